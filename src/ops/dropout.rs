//! Dropout, node for node as TensorFlow's `tf.nn.dropout` builds it (`python/ops/nn_ops.py`).
//!
//! Absent: noise of another shape than the tensor's.

use super::support::{build, node, scoped, shape_of};
use crate::base::DType;
use crate::graph::Tensor;

impl<'g> Tensor<'g> {
    /// This with a share `rate` of its elements, drawn anew in every run, set to 0, and the others divided by `1 - rate`
    /// (Srivastava et al., 2014). The rate is 0 or more and below 1; with 0 the tensor itself comes out. The seed goes with
    /// the graph's, as [`Graph::seeds`](crate::graph::Graph::seeds) says. Named `dropout/SelectV2`.
    #[track_caller]
    pub fn dropout(self, rate: f64, seed: impl Into<Option<i64>>) -> Tensor<'g> {
        let g = self.graph();
        if self.is_poison() || rate == 0.0 {
            return self;
        }
        if !(0.0..1.0).contains(&rate) || !self.dtype().is_floating() {
            let dtype = self.dtype();
            return g.report_invalid(format!(
                "dropout of '{}' wants a float32 or float64 tensor and a rate from 0 to below 1, got {dtype} and {rate}",
                self.name()
            ));
        }
        scoped(g, "dropout", |_| {
            let scale = self.scalar_like("Const", 1.0 / (1.0 - rate));
            let scaled = build("Mul", "", &[self, scale]);
            let shape = shape_of(self, DType::I32);
            let drawn = scoped(g, "random_uniform", |_| {
                let (seed, seed2) = g.seeds(seed.into());
                let draw = node(g, "RandomUniform").input(shape).attr("seed", seed).attr("seed2", seed2);
                draw.attr("dtype", self.dtype()).tensor()
            });
            let kept = build("GreaterEqual", "", &[drawn, self.scalar_like("GreaterEqual/y", rate)]);
            build("SelectV2", "", &[kept, scaled, self.scalar_like("Const_1", 0.0)])
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::base::{Array, DType};
    use crate::graph::Graph;

    /// Names and figures of TensorFlow 2.21.
    #[test]
    fn nodes_and_draws_are_tensorflows() {
        let g = Graph::new();
        g.set_random_seed(42);
        let rows: Vec<f32> = (1..13).map(|i| i as f32).collect();
        let x = g.constant(Array::new(&[3, 4], &rows).expect("twelve"));
        let y = x.dropout(0.4, 7);
        x.dropout(0.25, None);
        g.check().expect("sound");
        let names: Vec<String> = g.operations().iter().map(|op| op.name()).collect();
        let one =
            ["Const", "Mul", "Shape", "random_uniform/RandomUniform", "GreaterEqual/y", "GreaterEqual", "Const_1"];
        let of = |scope: &str| one.into_iter().chain(["SelectV2"]).map(|n| format!("{scope}/{n}")).collect::<Vec<_>>();
        let want: Vec<String> = [vec!["Const".to_string()], of("dropout"), of("dropout_1")].concat();
        assert_eq!(names, want);
        let got = g.evaluate(y, &[]).expect("a value");
        let kept = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0];
        for (i, kept) in kept.iter().enumerate() {
            let want = kept * f64::from(rows[i]) / 0.6;
            assert!((got.get_f64(i) - want).abs() <= 1e-6 * want, "element {i}: {} for {want}", got.get_f64(i));
        }
    }

    #[test]
    fn sizes_may_be_unknown_and_rates_must_be_shares() {
        let g = Graph::new();
        let x = g.placeholder(DType::F64, [None, Some(3)], "x");
        assert_eq!(x.dropout(0.0, None), x);
        let y = x.dropout(0.5, 3);
        let fed = Array::new(&[400, 3], &[1.0f64; 1200]).expect("sizes fit");
        let got = g.evaluate(y, &[(x, fed)]).expect("a value").to_f64();
        assert!(got.iter().all(|&v| v == 0.0 || v == 2.0));
        let share = got.iter().filter(|v| **v == 0.0).count() as f64 / 1200.0;
        assert!((share - 0.5).abs() < 0.06, "{share} of the elements are 0");
        for rate in [1.0, -0.1, f64::NAN] {
            assert!(x.dropout(rate, None).is_poison());
        }
        g.placeholder(DType::I32, [3], "n").dropout(0.5, None);
        let said = g.check().expect_err("four are refused").to_string();
        assert!(said.starts_with("4 problems") && said.contains("got int32 and 0.5"), "{said}");
    }
}
