//! How variables start, and the penalties on them: what a request says, without the nodes that carry it out.

use std::sync::Arc;

/// How the elements of a variable start.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All this number.
    Constant(f64),
    /// This array; its shape is the variable's.
    Data(Arc<crate::base::Array>),
    /// Normal, drawn again where further than two deviations from the mean.
    TruncatedNormal {
        /// The mean.
        mean: f64,
        /// The standard deviation before cutting.
        stddev: f64,
        /// The op seed.
        seed: Option<i64>,
    },
    /// Normal.
    RandomNormal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        stddev: f64,
        /// The op seed.
        seed: Option<i64>,
    },
    /// Uniform in `[min, max)`.
    RandomUniform {
        /// The least value.
        min: f64,
        /// The bound above.
        max: f64,
        /// The op seed.
        seed: Option<i64>,
    },
    /// Scaled by the shape, as TensorFlow's `variance_scaling_initializer`.
    VarianceScaling {
        /// The factor.
        scale: f64,
        /// Which fan the variance is divided by.
        mode: FanMode,
        /// The distribution.
        distribution: Distribution,
        /// The op seed.
        seed: Option<i64>,
    },
    /// A random orthogonal matrix times `gain`; for shapes of rank 2 and above, the leading axes flattened.
    Orthogonal {
        /// The factor.
        gain: f64,
        /// The op seed.
        seed: Option<i64>,
    },
}

/// Which number of connections a variance is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanMode {
    /// Inputs of a unit.
    In,
    /// Outputs of a unit.
    Out,
    /// Their mean.
    Avg,
}

/// The distribution of a variance-scaling initializer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Normal, cut at two deviations, with the variance that is left corrected.
    TruncatedNormal,
    /// Normal.
    UntruncatedNormal,
    /// Uniform.
    Uniform,
}

impl Init {
    /// Normal, drawn again where further than two deviations from the mean; seeded by the graph.
    pub fn truncated_normal(mean: f64, stddev: f64) -> Init {
        Init::TruncatedNormal { mean, stddev, seed: None }
    }

    /// Normal; seeded by the graph.
    pub fn random_normal(mean: f64, stddev: f64) -> Init {
        Init::RandomNormal { mean, stddev, seed: None }
    }

    /// Uniform in `[min, max)`; seeded by the graph.
    pub fn random_uniform(min: f64, max: f64) -> Init {
        Init::RandomUniform { min, max, seed: None }
    }

    /// Uniform within `sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio, 2010): the default of `get_variable`.
    pub fn glorot_uniform() -> Init {
        Init::VarianceScaling { scale: 1.0, mode: FanMode::Avg, distribution: Distribution::Uniform, seed: None }
    }

    /// Cut normal with variance `2 / (fan_in + fan_out)`.
    pub fn glorot_normal() -> Init {
        let distribution = Distribution::TruncatedNormal;
        Init::VarianceScaling { scale: 1.0, mode: FanMode::Avg, distribution, seed: None }
    }

    /// Cut normal with variance `2 / fan_in` (He et al., 2015).
    pub fn he_normal() -> Init {
        let distribution = Distribution::TruncatedNormal;
        Init::VarianceScaling { scale: 2.0, mode: FanMode::In, distribution, seed: None }
    }

    /// A random orthogonal matrix; seeded by the graph.
    pub fn orthogonal(gain: f64) -> Init {
        Init::Orthogonal { gain, seed: None }
    }

    /// This array; its shape is the variable's.
    pub fn data(array: impl crate::base::IntoArray) -> Init {
        Init::Data(Arc::new(array.into_array()))
    }
}

/// A penalty on a variable, added to the regularization losses where the variable is made.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Regularizer {
    /// `scale · sum(w²) / 2`.
    L2(f64),
}
