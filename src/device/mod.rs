//! Machines and what runs on them: the host, simulated GPUs, CUDA GPUs; their memory, queues, kernels and programs.
//!
//! On the host and on simulated GPUs a step is one [`Program`] per device: launches, copies, waits and signals over
//! buffers whose places are fixed; the receiving device copies. On CUDA GPUs it is one [`cuda::CudaStep`] for all of
//! them: the same terms, where a queue is a stream and an event is the driver's.
//!
//! Invariant: nothing here knows of graphs; a device runs prepared kernels over buffers.

pub mod cuda;
mod kernel;
mod lane;
mod machine;
mod memory;
mod process;
mod program;
mod queue;
mod scratch;
mod shared;
mod team;
mod tiles;
mod waiter;

pub use kernel::{CpuKernel, Launch, View};
pub use lane::{Lane, QueueId};
pub use machine::{DeviceId, DeviceInfo, DeviceKind, Machine, Peers};
pub use memory::{DeviceMemory, MemoryUse};
pub use process::{peak_resident_bytes, reset_peak_resident, resident_bytes};
pub use program::{Command, Event, Failure, FailureKind, Program, Span, Step};
pub use queue::{Job, Queue};
pub use scratch::Scratch;
pub use shared::Shared;
pub use team::Team;
pub use tiles::{
    Buffers, Cut, Partial, Place, Product, RowFunction, RowKernel, StreamScratch, TILE, TilePart, TileStream, TileView,
    TiledKernel,
};
pub use waiter::Waiter;
