//! A failed CUDA call: which, and what the library said.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use std::fmt;

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaError {
    /// The function that failed.
    pub call: &'static str,
    /// What the library said, as in `CUDA_ERROR_OUT_OF_MEMORY`.
    pub said: String,
    /// What kind of failure it is.
    pub kind: CudaErrorKind,
}

/// What a failed call means for what comes after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CudaErrorKind {
    /// There was no memory; nothing else is lost.
    OutOfMemory,
    /// The call did nothing; later ones may work.
    Refused,
    /// The context is lost with all its memory: the process cannot use this GPU any more.
    ContextLost,
}

/// The result of CUDA calls.
pub type CudaResult<T> = Result<T, CudaError>;

impl CudaError {
    /// A failure that costs nothing else.
    pub fn refused(call: &'static str, said: impl Into<String>) -> CudaError {
        CudaError { call, said: said.into(), kind: CudaErrorKind::Refused }
    }

    /// A failure of the driver.
    pub fn of(call: &'static str, result: CUresult) -> CudaError {
        CudaError { call, said: format!("{result:?}"), kind: kind(result) }
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with {}", self.call, self.said)
    }
}

/// The result of a driver call by its name.
pub trait Called<T> {
    /// Names the call in the error.
    fn called(self, call: &'static str) -> CudaResult<T>;
}

impl Called<()> for CUresult {
    fn called(self, call: &'static str) -> CudaResult<()> {
        if self == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(CudaError::of(call, self)) }
    }
}

impl<T> Called<T> for Result<T, DriverError> {
    fn called(self, call: &'static str) -> CudaResult<T> {
        self.map_err(|e| CudaError::of(call, e.0))
    }
}

fn kind(result: CUresult) -> CudaErrorKind {
    use CUresult::*;
    match result {
        CUDA_ERROR_OUT_OF_MEMORY => CudaErrorKind::OutOfMemory,
        CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_LAUNCH_TIMEOUT
        | CUDA_ERROR_ASSERT
        | CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUDA_ERROR_MISALIGNED_ADDRESS
        | CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUDA_ERROR_INVALID_PC
        | CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_ECC_UNCORRECTABLE
        | CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUDA_ERROR_DEVICE_UNAVAILABLE
        | CUDA_ERROR_EXTERNAL_DEVICE
        | CUDA_ERROR_DEINITIALIZED
        | CUDA_ERROR_MPS_CLIENT_TERMINATED
        | CUDA_ERROR_UNKNOWN => CudaErrorKind::ContextLost,
        _ => CudaErrorKind::Refused,
    }
}
