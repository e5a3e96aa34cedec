//! TensorFlow's checkpoints, format V2: an index of names, types, shapes and checksums, and data files with the bytes.
//!
//! The formats are TensorFlow's `tensor_bundle.proto` and `tensor_bundle.cc`, and LevelDB's table. Absent: format V1,
//! strings, big-endian files.

mod messages;
mod read;
mod slices;
mod state_file;
mod table;
#[cfg(test)]
mod tests;
mod write;

pub use read::Checkpoint;
pub(super) use state_file::find;
pub use state_file::{CheckpointState, latest_checkpoint};
pub use write::write_checkpoint;
pub(super) use write::{Item, remove_checkpoint, write_items};

/// `kTensorBundleVersion`.
const VERSION: i32 = 1;

#[cfg(target_endian = "big")]
compile_error!("files are read and written as little-endian");
