//! Training: gradients, averaging over towers, optimizers, schedules. All of it only builds more graph.

mod gradients;
mod joining;
mod parts;

pub use gradients::{GradOptions, UnconnectedGradients, gradients};
