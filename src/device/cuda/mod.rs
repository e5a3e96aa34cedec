//! CUDA: what ops describe for it, and the backend that runs it.
//!
//! A description (`code`, `map`) knows no driver. The backend (all other files) is loaded at run time through cudarc;
//! where there is no driver, [`find`] and [`identities`] say so and nothing else here is called. cudarc's own tracking
//! of events is not used: all order is the planner's.

mod call;
mod code;
mod collective;
mod command;
mod context;
mod copy;
mod dnn;
mod gemm;
mod gpu;
mod identity;
mod kernels;
mod launch;
mod libraries;
mod load;
mod map;
mod nccl;
mod step;
mod trace;

pub use call::{CudaError, CudaErrorKind, CudaResult};
pub use code::{
    BLOCK, ConvGeometry, ConvResult, Convolution, CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, CudaMap,
    FailureText, Gemm, c_type,
};
pub use collective::{AllReduce, Rank};
pub use command::{CudaCommand, Placed, ThroughHost, Upload};
pub use context::{Context, CudaMemory, Event, PinnedMemory, Registration};
pub use copy::{PeerRoute, route, write_now};
pub use gpu::{Gpu, LibraryUse};
pub use identity::{CudaIdentity, identities};
pub use launch::KernelCall;
pub use libraries::{LIBRARY_FOLDER, Library, device_count, driver_version, find};
pub use load::{Addresses, choose_kernel, load_kernel, prepare_kernels};
pub use map::{MapStep, Operand, divisor, map_kernel};
pub use step::{CudaStep, Graphs, StepFailure};
pub use trace::{GpuSpan, Trace};

/// What stands before the kernels of every module.
pub const PRELUDE: &str = include_str!("prelude.cu");
