//! The methods that build random tensors, node for node as TensorFlow's Python functions do.

use super::support::{build, dims_array, node, scoped};
use crate::base::{Array, DType, IntoShape, POISON_DIM};
use crate::graph::{Graph, Tensor};

/// A distribution with its parameters.
#[derive(Clone, Copy)]
pub(super) enum Draw {
    Normal { mean: f64, stddev: f64 },
    TruncatedNormal { mean: f64, stddev: f64 },
    Uniform { min: f64, max: f64 },
}

/// Builds a random tensor of known sizes under TensorFlow's names: `random_normal/…`, `truncated_normal/…`,
/// `random_uniform/…`. An integer type draws uniform integers.
#[track_caller]
pub(super) fn draw<'g>(g: &'g Graph, draw: Draw, dims: &[usize], dtype: DType, seed: Option<i64>) -> Tensor<'g> {
    if dims.contains(&POISON_DIM) {
        return g.poison_tensor();
    }
    let scalar = |name: &'static str, value: f64| match Array::from_f64(dtype, &[], &[value]) {
        Ok(array) => g.constant_named(name, array),
        Err(_) => g.poison_tensor(),
    };
    let sample = |op: &'static str, shape: Tensor<'g>| {
        let (seed, seed2) = g.seeds(seed);
        node(g, op).input(shape).attr("seed", seed).attr("seed2", seed2).attr("dtype", dtype).tensor()
    };
    let (name, op, first, second) = match draw {
        Draw::Normal { mean, stddev } => ("random_normal", "RandomStandardNormal", mean, stddev),
        Draw::TruncatedNormal { mean, stddev } => ("truncated_normal", "TruncatedNormal", mean, stddev),
        Draw::Uniform { min, max } => ("random_uniform", "RandomUniform", min, max),
    };
    scoped(g, name, |name| {
        let shape = g.constant_named("shape", dims_array(dims));
        if !matches!(draw, Draw::Uniform { .. }) {
            let (mean, stddev) = (scalar("mean", first), scalar("stddev", second));
            let scaled = build("Mul", "mul", &[sample(op, shape), stddev]);
            return node(g, "AddV2").name(name).inputs([scaled, mean]).tensor();
        }
        let (min, max) = (scalar("min", first), scalar("max", second));
        if dtype.is_integer() {
            let (seed, seed2) = g.seeds(seed);
            let ints = node(g, "RandomUniformInt").name(name).inputs([shape, min, max]);
            return ints.attr("seed", seed).attr("seed2", seed2).attr("Tout", dtype).tensor();
        }
        let unit = sample(op, shape);
        let range = build("Sub", "sub", &[max, min]);
        let scaled = build("Mul", "mul", &[unit, range]);
        node(g, "AddV2").name(name).inputs([scaled, min]).tensor()
    })
}

impl Graph {
    /// Normal `float32` numbers, drawn anew in every run. The seed goes with the graph's, as [`Graph::seeds`] says.
    #[track_caller]
    pub fn random_normal(
        &self,
        shape: impl IntoShape,
        mean: f64,
        stddev: f64,
        seed: impl Into<Option<i64>>,
    ) -> Tensor<'_> {
        self.random(Draw::Normal { mean, stddev }, shape, DType::F32, seed.into())
    }

    /// As [`Graph::random_normal`], drawn again where further than two deviations from the mean.
    #[track_caller]
    pub fn truncated_normal(
        &self,
        shape: impl IntoShape,
        mean: f64,
        stddev: f64,
        seed: impl Into<Option<i64>>,
    ) -> Tensor<'_> {
        self.random(Draw::TruncatedNormal { mean, stddev }, shape, DType::F32, seed.into())
    }

    /// Uniform `float32` numbers in `[min, max)`, drawn anew in every run. For 0 and 1 only the draw itself is built.
    #[track_caller]
    pub fn random_uniform(
        &self,
        shape: impl IntoShape,
        min: f64,
        max: f64,
        seed: impl Into<Option<i64>>,
    ) -> Tensor<'_> {
        let (shape, seed) = (shape.into_shape(), seed.into());
        if (min, max) != (0.0, 1.0) {
            return self.random(Draw::Uniform { min, max }, shape, DType::F32, seed);
        }
        let Some(dims) = shape.to_dims().filter(|_| !shape.is_poisoned()) else { return self.not_drawn(&shape) };
        scoped(self, "random_uniform", |_| {
            let shape = self.constant_named("shape", dims_array(&dims));
            let (seed, seed2) = self.seeds(seed);
            let node = node(self, "RandomUniform").input(shape).attr("seed", seed).attr("seed2", seed2);
            node.attr("dtype", DType::F32).tensor()
        })
    }

    /// Uniform `int32` numbers in `[min, max)`, drawn anew in every run.
    #[track_caller]
    pub fn random_uniform_int(
        &self,
        shape: impl IntoShape,
        min: i32,
        max: i32,
        seed: impl Into<Option<i64>>,
    ) -> Tensor<'_> {
        self.random(Draw::Uniform { min: min.into(), max: max.into() }, shape, DType::I32, seed.into())
    }

    #[track_caller]
    fn random(&self, how: Draw, shape: impl IntoShape, dtype: DType, seed: Option<i64>) -> Tensor<'_> {
        let shape = shape.into_shape();
        match shape.to_dims() {
            Some(dims) => draw(self, how, &dims, dtype, seed),
            None => self.not_drawn(&shape),
        }
    }

    #[track_caller]
    fn not_drawn(&self, shape: &crate::base::Shape) -> Tensor<'_> {
        if !shape.is_poisoned() {
            self.report(crate::base::Diagnostic::at(
                crate::base::Code::InvalidArgument,
                format!("the shape of a random tensor must be fully known, got {shape}"),
                std::panic::Location::caller(),
            ));
        }
        self.poison_tensor()
    }
}
