//! Training: gradients, averaging over towers, optimizers, schedules. All of it only builds more graph.

mod apply;
#[cfg(test)]
mod apply_tests;
mod average;
mod average_place;
#[cfg(test)]
mod average_tests;
mod clip;
#[cfg(test)]
mod clip_tests;
mod gradient_ends;
mod gradients;
#[cfg(test)]
mod gradients_tests;
mod joining;
mod moving_average;
#[cfg(test)]
mod moving_average_tests;
mod optimizer;
mod parts;
#[cfg(test)]
mod recorded_names;
mod schedule;
mod split;
mod summary;
mod towers;
mod towers_in_step;
#[cfg(test)]
mod towers_tests;

pub use average::{AverageOptions, Reduction, average_gradients};
pub use average_place::{AveragePlace, SMALL_GRADIENT_BYTES};
pub use clip::{clip_by_global_norm, clip_by_norm, clip_by_value, clip_each_by_norm, clip_each_by_value, global_norm};
pub use gradients::{GradOptions, UnconnectedGradients, gradients};
pub use moving_average::ExponentialMovingAverage;
pub use optimizer::{ApplyOptions, ComputeOptions, GateGradients, GradAndVar, Hyper, Optimizer};
pub use schedule::{
    cosine_decay, exponential_decay, get_or_create_global_step, inverse_time_decay, natural_exp_decay,
    piecewise_constant, polynomial_decay, warm_up,
};
pub use split::split_batch;
pub use summary::TowerSummary;
pub use towers::{BuiltTowers, Tower, TowerGradients, Towers};
