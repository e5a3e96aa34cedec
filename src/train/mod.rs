//! Training: gradients, averaging over towers, optimizers, schedules. All of it only builds more graph.

mod apply;
mod average;
mod gradients;
mod joining;
mod optimizer;
mod parts;

pub use average::{AverageOptions, Reduction, average_gradients};
pub use gradients::{GradOptions, UnconnectedGradients, gradients};
pub use optimizer::{ApplyOptions, ComputeOptions, GateGradients, GradAndVar, Hyper, Optimizer};
