//! Other programs' files: TensorFlow's graphs, checkpoints and events, arrays of PyTorch and NumPy.
//!
//! Invariant: a file is never trusted. What a header claims is held against what is there before memory is taken for
//! it, and everything wrong is an error with the file's part in it.

pub mod arrays;
pub mod checkpoint;
mod checksum;
pub mod events;
mod files;
mod generators;
pub mod graphdef;
mod saver;

pub use checkpoint::latest_checkpoint;
pub use saver::{Mismatch, RestoreOptions, RestoreReport, Saver};
