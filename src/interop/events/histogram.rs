//! Histograms with TensorFlow's buckets (tensorflow/core/lib/histogram).

use super::messages::HistogramProto;
use crate::base::{Array, DType, Error, Result};
use std::sync::OnceLock;

/// The upper limits of all buckets: 0, and in both directions from 1e-12 to 1e20 each 10 % beyond the last.
fn limits() -> &'static [f64] {
    static LIMITS: OnceLock<Vec<f64>> = OnceLock::new();
    LIMITS.get_or_init(|| {
        let mut positive = Vec::new();
        let mut limit = 1.0e-12;
        while limit < 1.0e20 {
            positive.push(limit);
            limit *= 1.1;
        }
        positive.push(f64::MAX);
        let negative = positive.iter().rev().map(|v| -v);
        negative.chain([0.0]).chain(positive.iter().copied()).collect()
    })
}

/// How values are distributed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Histogram {
    /// The smallest value; the largest `float64` where there are none.
    pub min: f64,
    /// The largest value; the least `float64` where there are none.
    pub max: f64,
    /// Number of values.
    pub count: f64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub sum_squares: f64,
    /// The upper limit of each bucket, which is not in it, and the number of values from the one before on. Empty buckets
    /// beside one another are one.
    pub buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// The histogram of an array of numbers.
    ///
    /// # Errors
    /// NaN and infinities, which no bucket holds; types that are no numbers.
    pub fn of(array: &Array) -> Result<Histogram> {
        if array.dtype() == DType::Bool || array.dtype().is_opaque() {
            return Err(Error::invalid(format!("no histogram can be made of {}; cast it to float32", array.dtype())));
        }
        let limits = limits();
        let mut counts = vec![0.0; limits.len()];
        let mut made = Histogram { min: f64::MAX, max: -f64::MAX, ..Histogram::default() };
        for i in 0..array.len() {
            let value = array.get_f64(i);
            if !value.is_finite() {
                return Err(Error::invalid(format!("no histogram can be made of {value}, which is element {i}")));
            }
            // The largest value of all is in the last bucket too.
            let bucket = limits.partition_point(|limit| *limit <= value).min(limits.len() - 1);
            counts[bucket] += 1.0;
            made.min = made.min.min(value);
            made.max = made.max.max(value);
            made.count += 1.0;
            made.sum += value;
            made.sum_squares += value * value;
        }
        let mut all = limits.iter().copied().zip(counts).peekable();
        while let Some((mut limit, count)) = all.next() {
            while count <= 0.0
                && let Some((next, _)) = all.next_if(|(_, next)| *next <= 0.0)
            {
                limit = next;
            }
            made.buckets.push((limit, count));
        }
        Ok(made)
    }

    pub(super) fn to_message(&self) -> HistogramProto {
        HistogramProto {
            min: self.min,
            max: self.max,
            num: self.count,
            sum: self.sum,
            sum_squares: self.sum_squares,
            bucket_limit: self.buckets.iter().map(|b| b.0).collect(),
            bucket: self.buckets.iter().map(|b| b.1).collect(),
        }
    }

    pub(super) fn from_message(message: HistogramProto) -> Histogram {
        Histogram {
            min: message.min,
            max: message.max,
            count: message.num,
            sum: message.sum,
            sum_squares: message.sum_squares,
            buckets: message.bucket_limit.into_iter().zip(message.bucket).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TensorFlow 2.21's `HistogramSummary` of these values.
    #[test]
    fn buckets_are_tensorflows() {
        let values = [-1.5f32, 0.0, 0.0, 2.0, 2.05, 1e-13, 1e30];
        let made = Histogram::of(&Array::new(&[7], &values).unwrap()).unwrap();
        let bounds = [
            (-1.624957930213695, 0.0),
            (-1.47723448201245, 1.0),
            (0.0, 0.0),
            (1e-12, 3.0),
            (1.9661990955585713, 0.0),
            (2.1628190051144287, 2.0),
            (9.920775621859783e+19, 0.0),
            (f64::MAX, 1.0),
        ];
        let near = |a: f64, b: f64| (a - b).abs() <= b.abs() * 1e-12;
        assert_eq!(made.buckets.len(), bounds.len(), "{:?}", made.buckets);
        for ((limit, count), (want_limit, want_count)) in made.buckets.iter().zip(bounds) {
            assert!(
                near(*limit, want_limit) && *count == want_count,
                "{limit} {count}, want {want_limit} {want_count}"
            );
        }
        assert_eq!((made.count, made.min), (7.0, -1.5));
        assert_eq!(Histogram::from_message(made.to_message()), made);
    }

    #[test]
    fn what_no_bucket_holds_is_refused() {
        for (value, part) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
            let e = Histogram::of(&Array::new(&[2], &[1.0, value]).unwrap()).unwrap_err().to_string();
            assert!(e.contains(part) && e.contains("element 1"), "{e}");
        }
        let none = Histogram::of(&Array::new::<f32>(&[0], &[]).unwrap()).unwrap();
        assert_eq!((none.count, none.min, &none.buckets[..]), (0.0, f64::MAX, &[(f64::MAX, 0.0)][..]));
        assert!(Histogram::of(&Array::scalar(crate::base::Bool8(1))).is_err());
    }
}
