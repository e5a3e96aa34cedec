//! Whole networks: the program of the CIFAR-10 tutorial, MobileNetV2, and one that frameworks are compared on.
//!
//! Each is a function from images to the classes' scores, for the body of a tower; variables follow the scopes' rules.

mod cifar10;
mod cnn;
mod mobilenet_v2;

pub use cifar10::{Cifar10, cifar10};
pub use cnn::{Cnn, cnn};
pub use mobilenet_v2::{MobileNetV2, mobilenet_v2};

use super::scope::Layer;
use crate::graph::{Tensor, keys};

/// The channels of images, or what is wrong.
fn channels<'g>(l: &Layer<'g>, images: Tensor<'g>) -> Result<usize, String> {
    l.want(images, 4, "[batch, height, width, channels]")?;
    l.size(images, 3, "the channels")
}

/// The length of the rows that so many units, of this name, are to see, or what is wrong.
fn row<'g>(l: &Layer<'g>, rows: Tensor<'g>, units: usize, name: &str) -> Result<usize, String> {
    match units {
        0 => Err(format!("want 1 or more {name}, got 0")),
        _ => l.size(rows, 1, "a row"),
    }
}

/// The mean cross-entropy of scores `[batch, classes]` and labels `[batch]`, `int32` or `int64`; it joins
/// [`keys::LOSSES`]. A label that is no class ends the step.
#[track_caller]
pub fn classification_loss<'g>(scores: Tensor<'g>, labels: Tensor<'g>) -> Tensor<'g> {
    let graph = scores.graph();
    let loss = graph.with_source(graph.source_line(), || scores.sparse_softmax_cross_entropy(labels).mean());
    graph.add_to_collection(keys::LOSSES, loss);
    loss
}
