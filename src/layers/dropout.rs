//! Dropout that is left out of what is not training.

use super::batch_norm::Training;
use super::scope::layer;
use crate::graph::Tensor;

/// In training a share `rate` of the elements is set to 0, drawn anew in every run, and the others are divided by
/// `1 − rate`; elsewhere the input as it is: `tf.layers.dropout`. Ops under `dropout`; no variables. Each tower draws for
/// itself: with an op seed all towers draw the same.
///
/// Reported: an input that holds no floats, and a rate that is not from 0 to below 1.
#[track_caller]
pub fn dropout<'g>(
    x: Tensor<'g>,
    rate: f64,
    training: impl Into<Training<'g>>,
    seed: impl Into<Option<i64>>,
) -> Tensor<'g> {
    let (training, seed) = (training.into(), seed.into());
    layer(x, None, "dropout", |l| match training {
        _ if !(0.0..1.0).contains(&rate) => l.refuse(format!("want a rate from 0 to below 1, got {rate}")),
        Training::Known(true) => x.dropout(rate, seed),
        Training::Known(false) => x.identity("Identity"),
        Training::When(training) if training.is_poison() => training,
        Training::When(training) => l.graph.name_scope("cond", || {
            let (no, yes) = x.switch(training);
            l.graph.merge(no.identity("Identity"), yes.dropout(rate, seed))
        }),
    })
}
