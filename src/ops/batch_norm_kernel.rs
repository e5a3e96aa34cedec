//! Batch normalization on the host: the moments of channels, and the passes over all elements that use them.
//!
//! Invariant: moments are merged from blocks whose bounds depend on the sizes alone, so that results are bit-equal for
//! any number of threads. What is summed over blocks is kept in `float64`.

use super::batch_norm_loops::{PlaneMoments, PlaneSlopes, Planes, RowMoments, RowSlopes, Rows, Term, Wide64};
use super::elementwise::{Dispatch, GRAIN, Shared, Wide};
use crate::device::{CpuKernel, Launch};
use std::ops::Range;
use std::sync::Mutex;

/// The most parts that the rows are cut into.
const PARTS: usize = 32;

/// Elements before, along and after the axis of the channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub outer: usize,
    pub channels: usize,
    pub inner: usize,
}

impl Layout {
    pub fn new((outer, channels, inner): (usize, usize, usize)) -> Layout {
        Layout { outer, channels, inner }
    }

    /// Elements of a channel.
    pub fn count(&self) -> usize {
        self.outer * self.inner
    }

    /// Parts whose totals are merged: of the rows where channels are last, else one, in which each channel is whole.
    fn parts(&self) -> usize {
        match self.inner {
            1 => (self.outer * self.channels / GRAIN).clamp(1, PARTS).min(self.outer.max(1)),
            _ => 1,
        }
    }

    /// The rows of a part.
    fn rows(&self, part: usize) -> Range<usize> {
        let parts = self.parts();
        self.outer * part / parts..self.outer * (part + 1) / parts
    }
}

/// What is kept of a channel in `float64`: mean and sum of squared distances from it, or two sums.
pub(super) type Pair = (f64, f64);

/// The moments of two sets as those of both: means and sums of squared distances, of `n` and `k` elements.
#[inline(always)]
pub(super) fn merged(a: Pair, n: f64, b: Pair, k: f64) -> Pair {
    let (apart, all) = (b.0 - a.0, n + k);
    (a.0 + apart * (k / all), a.1 + b.1 + apart * apart * (n * k / all))
}

/// What a node says beside its inputs.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub epsilon: f64,
    /// How much of the batch's moments goes into the running ones.
    pub factor: f64,
    pub training: bool,
}

/// Numbers of the channels that a launch works with.
struct Work<T> {
    /// By part, then by channel.
    totals: Vec<Pair>,
    mean: Vec<T>,
    factor: Vec<T>,
    shift: Vec<T>,
    slope: Vec<T>,
}

impl<T: Wide64> Work<T> {
    fn new(layout: Layout) -> Mutex<Work<T>> {
        let numbers = || vec![T::ZERO; layout.channels];
        let totals = vec![(0.0, 0.0); layout.parts() * layout.channels];
        Mutex::new(Work { totals, mean: numbers(), factor: numbers(), shift: numbers(), slope: numbers() })
    }

    /// Runs what fills the totals: for rows of a part, or for some channels.
    fn total(
        &mut self,
        l: &Launch<'_>,
        layout: Layout,
        rows: impl Fn(Range<usize>, &mut [Pair]) + Sync,
        planes: impl Fn(Range<usize>, &mut [Pair]) + Sync,
    ) {
        let start = Shared::new(self.totals.as_mut_ptr());
        // SAFETY: each part has totals of its own.
        let totals = |first: usize, count: usize| unsafe {
            let totals = std::slice::from_raw_parts_mut(start.get().add(first), count);
            totals.fill((0.0, 0.0));
            totals
        };
        if layout.inner == 1 {
            l.team().run(layout.parts(), |part| {
                rows(layout.rows(part), totals(part * layout.channels, layout.channels));
            });
        } else {
            l.team().chunks(layout.channels, (GRAIN / layout.count().max(1)).max(1), |channels| {
                let totals = totals(channels.start, channels.len());
                planes(channels, totals);
            });
        }
    }

    /// A channel's totals over all parts.
    fn merge(&self, layout: Layout, channel: usize, merge: impl Fn(Pair, f64, Pair, f64) -> Pair) -> Pair {
        let (mut all, mut n) = (self.totals[channel], layout.rows(0).len() as f64);
        for part in 1..layout.parts() {
            let k = layout.rows(part).len() as f64;
            all = merge(all, n, self.totals[part * layout.channels + channel], k);
            n += k;
        }
        all
    }

    /// Makes every element from the elements of the inputs and the channels' numbers.
    fn apply(&self, l: &Launch<'_>, layout: Layout, x: &[T], gradient: Option<&[T]>, y: &mut [T]) {
        let Layout { outer, channels, inner } = layout;
        if y.is_empty() {
            return;
        }
        let term = Term { mean: &self.mean, factor: &self.factor, shift: &self.shift, slope: &self.slope };
        let (rows, width) = if inner == 1 { (outer, channels) } else { (outer * channels, inner) };
        let y = Shared::new(y.as_mut_ptr());
        l.team().chunks(rows, (GRAIN / width.max(1)).max(1), |rows| {
            let (first, count) = (rows.start * width, rows.len() * width);
            // SAFETY: chunks are disjoint parts of the output.
            let y = unsafe { std::slice::from_raw_parts_mut(y.get().add(first), count) };
            let (x, gradient) = (&x[first..][..count], gradient.map(|g| &g[first..][..count]));
            match inner {
                1 => Wide::run(Rows { term, x, gradient, y }),
                _ => Wide::run(Planes { term, x, gradient, y, inner, first: rows.start }),
            }
        });
    }
}

/// The kernel of the normalization of input 0: outputs the result, the running moments (or the batch's), and the
/// moments that it was normalized with.
pub(super) fn forward<T: Wide64>(layout: Layout, settings: Settings) -> CpuKernel {
    let work = Work::<T>::new(layout);
    let Settings { epsilon, factor, training } = settings;
    Box::new(move |l| {
        // Every launch overwrites what it reads, so a poisoned lock does not matter.
        let mut work = work.lock().unwrap_or_else(|e| e.into_inner());
        let (x, scale, offset) = (l.input::<T>(0), l.input::<T>(1), l.input::<T>(2));
        let (old_mean, old_variance) = (l.input::<T>(3), l.input::<T>(4));
        let [mean, variance, used_mean, used_variance] = [1, 2, 3, 4].map(|output| l.output::<T>(output));
        let count = layout.count();
        if count == 0 {
            [&mut *mean, &mut *variance].into_iter().for_each(|m| m.fill(T::from_f64(f64::NAN)));
            [used_mean, used_variance].into_iter().for_each(|m| m.fill(T::ZERO));
            return Ok(());
        }
        if training {
            work.total(
                l,
                layout,
                |rows, totals| Wide::run(RowMoments { x, channels: layout.channels, rows, totals }),
                |channels, totals| Wide::run(PlaneMoments { x, layout, channels, totals }),
            );
        }
        for c in 0..layout.channels {
            if training {
                let (m, squares) = work.merge(layout, c, merged);
                let v = squares / count as f64;
                // Bessel's correction, as far as there is more than one element.
                let unbiased = squares / (count - 1).max(1) as f64;
                let running = |new: f64, old: &[T]| match factor {
                    1.0 => T::from_f64(new),
                    _ => T::from_f64((1.0 - factor) * old[c].wide() + factor * new),
                };
                (mean[c], variance[c]) = (running(m, old_mean), running(unbiased, old_variance));
                (used_mean[c], used_variance[c]) = (T::from_f64(m), T::from_f64(v));
            } else {
                (mean[c], variance[c]) = (old_mean[c], old_variance[c]);
                (used_mean[c], used_variance[c]) = (old_mean[c], old_variance[c]);
            }
            work.mean[c] = used_mean[c];
            work.factor[c] = scale[c].over(used_variance[c].plus(T::from_f64(epsilon)).root());
            work.shift[c] = offset[c];
        }
        work.apply(l, layout, x, None, l.output::<T>(0));
        Ok(())
    })
}

/// The kernel of its gradient, of the output's gradient (input 0), the input, the scale, and the moments that it was
/// normalized with: outputs the gradients of input, scale and offset.
///
/// In training these moments are of the batch, with `r = 1 / sqrt(variance + epsilon)`:
/// `dx = scale * r * (dy - mean(dy) - (x - mean) * r² * mean(dy * (x - mean)))`; otherwise `dx = scale * r * dy`.
pub(super) fn backward<T: Wide64>(layout: Layout, settings: Settings) -> CpuKernel {
    let work = Work::<T>::new(layout);
    let Settings { epsilon, training, .. } = settings;
    Box::new(move |l| {
        // Every launch overwrites what it reads, so a poisoned lock does not matter.
        let mut work = work.lock().unwrap_or_else(|e| e.into_inner());
        let (gradient, x, scale) = (l.input::<T>(0), l.input::<T>(1), l.input::<T>(2));
        let (mean, variance) = (l.input::<T>(3), l.input::<T>(4));
        let (to_scale, to_offset) = (l.output::<T>(1), l.output::<T>(2));
        work.total(
            l,
            layout,
            |rows, totals| Wide::run(RowSlopes { gradient, x, mean, rows, totals }),
            |channels, totals| Wide::run(PlaneSlopes { gradient, x, mean, layout, channels, totals }),
        );
        let count = layout.count() as f64;
        for c in 0..layout.channels {
            let (sum, product) = work.merge(layout, c, |a, _, b, _| (a.0 + b.0, a.1 + b.1));
            let inverse = 1.0 / (variance[c].wide() + epsilon).sqrt();
            to_scale[c] = T::from_f64(product * inverse);
            to_offset[c] = T::from_f64(sum);
            work.factor[c] = T::from_f64(scale[c].wide() * inverse);
            work.mean[c] = mean[c];
            let share = |total: f64| if training { T::from_f64(total / count) } else { T::ZERO };
            work.shift[c] = share(sum);
            work.slope[c] = share(product * inverse * inverse);
        }
        work.apply(l, layout, x, Some(gradient), l.output::<T>(0));
        Ok(())
    })
}
