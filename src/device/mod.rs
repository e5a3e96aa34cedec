//! Machines and what runs on them: the host, simulated GPUs, their memory, threads and kernels.
//!
//! Invariant: nothing here knows of graphs; a device runs prepared kernels over buffers.

mod kernel;
mod team;

pub use kernel::{CpuKernel, Launch, View};
pub use team::Team;
