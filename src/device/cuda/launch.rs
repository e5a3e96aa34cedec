//! One launch of a kernel, ready to be enqueued again and again.
//!
//! Invariant: parameters never change, so that a launch can be captured in a graph.

use super::call::{Called, CudaResult};
use super::context::Stream;
use cudarc::driver::sys::{self, CUfunction};
use std::ffi::c_void;

/// A launch with its parameters.
pub struct KernelCall {
    function: CUfunction,
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
    /// One slot for each parameter; the driver reads as many bytes as the parameter has.
    _values: Box<[u64]>,
    pointers: Box<[*mut c_void]>,
}

impl KernelCall {
    /// A launch; each parameter in the low bytes of a slot.
    pub(super) fn new(function: CUfunction, blocks: u32, threads: u32, shared_bytes: u32, values: Vec<u64>) -> Self {
        let mut values = values.into_boxed_slice();
        let pointers = values.iter_mut().map(|v| (&raw mut *v).cast()).collect();
        KernelCall { function, blocks, threads, shared_bytes, _values: values, pointers }
    }

    /// Enqueues the launch.
    ///
    /// # Safety
    /// The stream's context is current; the parameters are those of the kernel's text, and addresses among them hold what
    /// the kernel touches until the stream's work is waited for.
    pub(super) unsafe fn enqueue(&self, stream: &Stream) -> CudaResult<()> {
        let (pointers, no_more) = (self.pointers.as_ptr().cast_mut(), std::ptr::null_mut());
        let (blocks, threads, shared) = (self.blocks, self.threads, self.shared_bytes);
        // SAFETY: by this function's contract.
        unsafe {
            sys::cuLaunchKernel(self.function, blocks, 1, 1, threads, 1, 1, shared, stream.raw, pointers, no_more)
        }
        .called("cuLaunchKernel")
    }
}
