//! CUDA: what ops describe for it, and the backend that runs it.

mod code;
mod map;

pub use code::{BLOCK, CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, CudaMap, FailureText, Gemm, c_type};
pub use map::{MapStep, Operand, map_kernel};

/// What stands before the kernels of every module.
pub const PRELUDE: &str = include_str!("prelude.cu");
