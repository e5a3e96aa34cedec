//! Pooling: layers without variables.

use super::scope::layer;
use crate::graph::Tensor;
use crate::ops::{DataFormat, PoolOptions};

/// The largest element of each window of images, `tf.layers.max_pooling2d`: a `MaxPool` in the scope `max_pooling2d`.
///
/// Reported: an input that is no image of floats.
#[track_caller]
pub fn max_pooling2d(x: Tensor<'_>, options: PoolOptions) -> Tensor<'_> {
    pooled(x, "max_pooling2d", options.data_format, || x.max_pool(options))
}

/// The average of each window of images, of the elements that are there, `tf.layers.average_pooling2d`: an `AvgPool` in
/// the scope `average_pooling2d`.
///
/// Reported: an input that is no image of floats.
#[track_caller]
pub fn average_pooling2d(x: Tensor<'_>, options: PoolOptions) -> Tensor<'_> {
    pooled(x, "average_pooling2d", options.data_format, || x.avg_pool(options))
}

/// The average of each channel of images over height and width: `[batch, channels]`. A `Mean` in the scope
/// `global_average_pooling2d`, as Keras has it.
///
/// Reported: an input that is no image of floats.
#[track_caller]
pub fn global_average_pooling2d(x: Tensor<'_>, data_format: DataFormat) -> Tensor<'_> {
    let axes = data_format.spatial().map(|axis| axis as i32);
    pooled(x, "global_average_pooling2d", data_format, || x.mean_axes(&axes, false))
}

#[track_caller]
fn pooled<'g>(x: Tensor<'g>, name: &str, data_format: DataFormat, build: impl FnOnce() -> Tensor<'g>) -> Tensor<'g> {
    layer(x, None, name, |l| match l.want(x, 4, super::conv::axes(data_format)) {
        Ok(()) => build(),
        Err(message) => l.refuse(message),
    })
}
