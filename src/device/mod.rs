//! Machines and what runs on them: the host, simulated GPUs, their memory, queues, kernels and programs.
//!
//! A step is one [`Program`] per device: launches, copies, waits and signals over buffers whose places are fixed. The
//! receiving device copies. A backend for real GPUs keeps these terms: its memory is out of the host's reach (hence
//! [`DeviceMemory`] with `read` and `write`), its queue is a stream, its events are the device's.
//!
//! Invariant: nothing here knows of graphs; a device runs prepared kernels over buffers.

pub mod cuda;
mod kernel;
mod lane;
mod machine;
mod memory;
mod program;
mod queue;
mod team;
mod waiter;

pub use kernel::{CpuKernel, Launch, View};
pub use lane::{Lane, QueueId};
pub use machine::{DeviceId, DeviceInfo, DeviceKind, Machine, Peers};
pub use memory::{DeviceMemory, MemoryUse};
pub use program::{Command, Event, Failure, FailureKind, Program, Span, Step};
pub use queue::{Job, Queue};
pub use team::Team;
pub use waiter::Waiter;
