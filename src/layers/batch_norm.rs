//! Batch normalization (Ioffe and Szegedy, 2015): `tf.layers.batch_normalization`.
//!
//! Absent: moments over several towers (`synchronized.rs`), what moves the moving averages (`statistics.rs`).

use super::scope::{Layer, Weight, floats, layer, node, number};
use super::statistics::{self, MovingStatistics};
use crate::graph::{Graph, Init, Regularizer, Tensor, Variable};
use crate::ops::{self, DataFormat};

/// What [`batch_norm`] can be told; the defaults are TensorFlow's.
#[derive(Clone, Debug)]
pub struct BatchNormOptions {
    /// The layer's name; without it `batch_normalization`, `batch_normalization_1`, ….
    pub name: Option<String>,
    /// How much the moving averages keep in each step; 0.99.
    pub momentum: f64,
    /// Added to the variance; 0.001.
    pub epsilon: f64,
    /// Adds `beta`; true.
    pub center: bool,
    /// Multiplies by `gamma`; true.
    pub scale: bool,
    /// Where an image's channels are; last. Inputs of other ranks than 4 have them last.
    pub data_format: DataFormat,
    /// Whose batches move the moving averages; the first tower's.
    pub statistics: MovingStatistics,
    /// How beta starts; zeros.
    pub beta_init: Init,
    /// How gamma starts; ones.
    pub gamma_init: Init,
    /// How the moving mean starts; zeros.
    pub moving_mean_init: Init,
    /// How the moving variance starts; ones.
    pub moving_variance_init: Init,
    /// A penalty on beta, instead of the scope's.
    pub beta_regularizer: Option<Regularizer>,
    /// A penalty on gamma, instead of the scope's.
    pub gamma_regularizer: Option<Regularizer>,
    /// Whether optimizers change beta and gamma; true.
    pub trainable: bool,
}

impl Default for BatchNormOptions {
    fn default() -> Self {
        BatchNormOptions {
            name: None,
            momentum: 0.99,
            epsilon: 1e-3,
            center: true,
            scale: true,
            data_format: DataFormat::Nhwc,
            statistics: MovingStatistics::FirstTower,
            beta_init: Init::Zeros,
            gamma_init: Init::Ones,
            moving_mean_init: Init::Zeros,
            moving_variance_init: Init::Ones,
            beta_regularizer: None,
            gamma_regularizer: None,
            trainable: true,
        }
    }
}

impl BatchNormOptions {
    /// Options that only give the name.
    pub fn named(name: &str) -> Self {
        BatchNormOptions { name: Some(name.to_string()), ..BatchNormOptions::default() }
    }
}

/// Whether a layer that behaves differently in training is built for it.
#[derive(Clone, Copy, Debug)]
pub enum Training<'g> {
    /// True or false, once and for all.
    Known(bool),
    /// Where this bool scalar is true. Where it is fed, each of its values gets a plan of its own, which holds that
    /// branch only; where a step computes it, both branches are computed.
    When(Tensor<'g>),
}

impl From<bool> for Training<'_> {
    fn from(training: bool) -> Self {
        Training::Known(training)
    }
}

impl<'g> From<Tensor<'g>> for Training<'g> {
    fn from(training: Tensor<'g>) -> Self {
        Training::When(training)
    }
}

/// `(x − mean) / sqrt(variance + epsilon) · gamma + beta`, channel by channel: with the batch's moments in training, with
/// moving averages of them elsewhere.
///
/// Variables `gamma`, `beta`, which are trained, and `moving_mean`, `moving_variance`, which are not; all
/// `[channels]`. Images are normalized by `FusedBatchNormV3`, whose moving variance is of `n − 1` rows (Bessel's
/// correction), other inputs by ops under `moments` and `batchnorm`, whose moving variance is of `n`: both as in
/// TensorFlow. In training the moving averages are moved once a step by operations in
/// [`keys::UPDATE_OPS`](crate::graph::keys::UPDATE_OPS), which train ops run.
///
/// Reported: an input that holds no floats, has rank below 2 or an unknown number of channels.
#[track_caller]
pub fn batch_norm<'g>(x: Tensor<'g>, training: impl Into<Training<'g>>, options: BatchNormOptions) -> Tensor<'g> {
    let training = training.into();
    layer(x, options.name.as_deref(), "batch_normalization", |l| {
        let norm = match Norm::new(l, x, &options) {
            Ok(norm) => norm,
            Err(message) => return l.refuse(message),
        };
        match training {
            Training::Known(false) => norm.by_moving_averages(x),
            Training::Known(true) => {
                let [y, mean, variance] = norm.by_batch(x);
                norm.update(mean, variance);
                y
            }
            Training::When(t) if t.is_poison() => t,
            Training::When(t) => norm.by_either(x, t),
        }
    })
}

/// A layer's variables, and how it computes.
#[derive(Clone)]
pub(super) struct Norm<'g> {
    pub graph: &'g Graph,
    /// The axis of the channels.
    pub axis: usize,
    pub fused: bool,
    gamma: Option<Tensor<'g>>,
    beta: Option<Tensor<'g>>,
    mean: Variable<'g>,
    variance: Variable<'g>,
    /// The moving averages' values, in the branch where they are used.
    moving: [Tensor<'g>; 2],
    momentum: f64,
    epsilon: f64,
    data_format: DataFormat,
    statistics: MovingStatistics,
}

impl<'g> Norm<'g> {
    /// Makes or finds the variables.
    pub fn new(l: &Layer<'g>, x: Tensor<'g>, options: &BatchNormOptions) -> Result<Norm<'g>, String> {
        floats(x)?;
        let rank = x.rank().filter(|&r| r >= 2).ok_or_else(|| {
            format!("want an input of rank 2 or more, got '{}' {}; declare its rank or reshape it", x.name(), x.shape())
        })?;
        let fused = rank == 4;
        let axis = if fused { options.data_format.channels() } else { rank - 1 };
        let channels = l.size(x, axis, "the channels")?;
        let o = options;
        let trained = |name: &str, init: &Init, regularizer| {
            let weight = Weight::new(init.clone()).regularized(regularizer).trainable(o.trainable);
            l.variable(x, name, [channels], weight).value()
        };
        let gamma = o.scale.then(|| trained("gamma", &o.gamma_init, o.gamma_regularizer));
        let beta = o.center.then(|| trained("beta", &o.beta_init, o.beta_regularizer));
        let moving = |name, init: &Init| l.variable(x, name, [channels], Weight::new(init.clone()).trainable(false));
        let mean = moving("moving_mean", &o.moving_mean_init);
        let variance = moving("moving_variance", &o.moving_variance_init);
        Ok(Norm {
            graph: l.graph,
            axis,
            fused,
            gamma,
            beta,
            mean,
            variance,
            moving: [mean.value(), variance.value()],
            momentum: o.momentum,
            epsilon: o.epsilon,
            data_format: o.data_format,
            statistics: o.statistics,
        })
    }

    /// All axes but that of the channels.
    pub fn axes(&self, x: Tensor<'g>) -> Vec<i32> {
        (0..x.rank().unwrap_or(0)).filter(|&a| a != self.axis).map(|a| a as i32).collect()
    }

    fn by_moving_averages(&self, x: Tensor<'g>) -> Tensor<'g> {
        let [mean, variance] = self.moving;
        match self.fused {
            true => self.fuse(x, Some([mean, variance]))[0],
            false => self.normalize(x, mean, variance),
        }
    }

    /// The result, and the batch's mean and variance, as they move the moving averages.
    fn by_batch(&self, x: Tensor<'g>) -> [Tensor<'g>; 3] {
        if self.fused {
            return self.fuse(x, None);
        }
        let [mean, variance] = self.moments(x);
        [self.normalize(x, mean, variance), mean, variance]
    }

    /// `FusedBatchNormV3` with these moments, or with the batch's.
    fn fuse(&self, x: Tensor<'g>, moments: Option<[Tensor<'g>; 2]>) -> [Tensor<'g>; 3] {
        let options = ops::BatchNormOptions {
            mean: moments.map(|[mean, _]| mean),
            variance: moments.map(|[_, variance]| variance),
            epsilon: self.epsilon as f32,
            data_format: self.data_format,
            is_training: moments.is_none(),
            ..ops::BatchNormOptions::default()
        };
        // Where there is no gamma or beta, ones and zeros of their size stand in.
        let instead = |value: f64| {
            let channels = self.mean.shape().dim(0).unwrap_or(0);
            match crate::base::Array::from_f64(x.dtype(), &[channels], &vec![value; channels]) {
                Ok(array) => self.graph.constant(array),
                Err(_) => self.graph.poison_tensor(),
            }
        };
        let gamma = self.gamma.unwrap_or_else(|| instead(1.0));
        let beta = self.beta.unwrap_or_else(|| instead(0.0));
        x.fused_batch_norm(gamma, beta, options)
    }

    /// Mean and variance of each channel, by `tf.nn.moments`.
    pub fn moments(&self, x: Tensor<'g>) -> [Tensor<'g>; 2] {
        let g = self.graph;
        let axes = self.axes(x);
        g.name_scope("moments", || {
            let mean_of = |x: Tensor<'g>, name: &'static str| {
                g.name_scope(name, || {
                    let scope = format!("{}/", g.current_name_scope());
                    let axes = g.constant_named("reduction_indices", axes.clone());
                    node(g, "Mean").name(scope).inputs([x, axes]).attr("keep_dims", true).tensor()
                })
            };
            let mean = mean_of(x, "mean");
            let squares = node(g, "SquaredDifference").inputs([x, mean.stop_gradient()]).tensor();
            let variance = mean_of(squares, "variance");
            let gone: Vec<i64> = axes.iter().map(|&a| a.into()).collect();
            [mean.squeeze(&gone), variance.squeeze(&gone)]
        })
    }

    /// `x · (gamma / sqrt(variance + epsilon)) + (beta − mean · …)`, by `tf.nn.batch_normalization`.
    pub fn normalize(&self, x: Tensor<'g>, mean: Tensor<'g>, variance: Tensor<'g>) -> Tensor<'g> {
        self.graph.name_scope("batchnorm", || {
            let mut factor = (variance + self.epsilon).rsqrt();
            if let Some(gamma) = self.gamma {
                factor = factor * gamma;
            }
            let scaled = x * self.along(x, factor);
            let shift = match self.beta {
                Some(beta) => {
                    let shifted = mean * factor;
                    beta - shifted
                }
                None => -mean * factor,
            };
            scaled + self.along(x, shift)
        })
    }

    /// A vector of channels so that it broadcasts to the input.
    fn along(&self, x: Tensor<'g>, vector: Tensor<'g>) -> Tensor<'g> {
        let after = x.rank().map_or(0, |rank| rank.saturating_sub(self.axis + 1));
        if after == 0 || vector.is_poison() {
            return vector;
        }
        let channels = vector.shape().dim(0).and_then(|c| i64::try_from(c).ok()).unwrap_or(-1);
        vector.reshape([channels].into_iter().chain(std::iter::repeat_n(1, after)).collect::<Vec<i64>>())
    }

    /// Both ways behind a predicate. The statistics are the moving averages themselves where it is false, so that the
    /// update leaves them as they are.
    fn by_either(&self, x: Tensor<'g>, training: Tensor<'g>) -> Tensor<'g> {
        let g = self.graph;
        let [y, mean, variance] = g.name_scope("cond", || {
            let switched = |t: Tensor<'g>| t.switch(training);
            let ((x_no, x_yes), gamma, beta) = (switched(x), self.gamma.map(switched), self.beta.map(switched));
            let [(mean, _), (variance, _)] = self.moving.map(switched);
            let no = Norm {
                gamma: gamma.map(|(no, _)| no),
                beta: beta.map(|(no, _)| no),
                moving: [mean, variance],
                ..self.clone()
            };
            let yes = Norm { gamma: gamma.map(|(_, yes)| yes), beta: beta.map(|(_, yes)| yes), ..self.clone() };
            let inferred = no.by_moving_averages(x_no);
            let [trained, batch_mean, batch_variance] = yes.by_batch(x_yes);
            [g.merge(inferred, trained), g.merge(mean, batch_mean), g.merge(variance, batch_variance)]
        });
        self.update(mean, variance);
        y
    }

    /// Moves the moving averages by the moments of a batch.
    pub fn update(&self, mean: Tensor<'g>, variance: Tensor<'g>) {
        let g = self.graph;
        if self.mean.is_poison() || self.variance.is_poison() {
            return;
        }
        // As TensorFlow has it: one constant for both behind the fused op, one for each elsewhere.
        let decay = match self.fused {
            true => Ok(g.no_colocation(|| g.colocate_with(self.mean, || number(mean, self.momentum, "Const")))),
            false => Err(self.momentum),
        };
        statistics::update(self.statistics, self.mean, mean, decay);
        statistics::update(self.statistics, self.variance, variance, decay);
    }
}
