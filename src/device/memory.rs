//! Memory of one device, counted against its limit.

use super::cuda::{Context, CudaError, CudaErrorKind, CudaMemory, CudaResult, Registration};
use super::machine::DeviceInfo;
use crate::base::{AlignedBytes, Code, Error, Result};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What sessions hold on one device.
#[derive(Default, Debug)]
pub struct MemoryUse {
    bytes: AtomicU64,
    buffers: AtomicUsize,
}

impl MemoryUse {
    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Buffers in use.
    pub fn buffers(&self) -> usize {
        self.buffers.load(Ordering::Relaxed)
    }
}

/// A piece of a device's memory, given back when it goes.
///
/// Its address is the device's: only kernels and copies that run there, or the methods here, may use it.
pub struct DeviceMemory {
    bytes: Bytes,
    account: Arc<MemoryUse>,
}

enum Bytes {
    /// The host's, or a simulated GPU's, which nothing but its queue touches. The pages may be pinned, once, until they
    /// are given back.
    Host { pinned: OnceLock<Registration>, bytes: AlignedBytes },
    /// A CUDA GPU's.
    Cuda(CudaMemory),
}

impl DeviceMemory {
    /// Takes memory: zeroed on the host and on simulated GPUs, without contents on a CUDA GPU, which is opened if it
    /// was not.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] with bytes asked, in use or free, and the limit; what the driver says.
    pub fn allocate(device: &DeviceInfo, account: &Arc<MemoryUse>, bytes: usize) -> Result<DeviceMemory> {
        let used = account.bytes();
        if let Some(limit) = device.memory_limit
            && used.saturating_add(bytes as u64) > limit
        {
            return Err(Error::new(
                Code::ResourceExhausted,
                format!("{} is out of memory: {bytes} bytes asked, {used} of {limit} in use", device.short_name()),
            ));
        }
        let none = || {
            Error::new(
                Code::ResourceExhausted,
                format!("{} is out of memory: {bytes} bytes asked, {used} in use", device.short_name()),
            )
        };
        let pinned = OnceLock::new();
        let memory = match &device.cuda {
            Some(identity) => {
                let taken = Context::open(identity).and_then(|c| CudaMemory::allocate(&c, bytes));
                Bytes::Cuda(taken.map_err(|e| not_taken(device, bytes, e))?)
            }
            None if device.pinnable => Bytes::Host { pinned, bytes: AlignedBytes::in_pages(bytes).ok_or_else(none)? },
            None => Bytes::Host { pinned, bytes: AlignedBytes::zeroed(bytes).ok_or_else(none)? },
        };
        account.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        account.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(DeviceMemory { bytes: memory, account: account.clone() })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Host { bytes, .. } => bytes.len(),
            Bytes::Cuda(memory) => memory.len(),
        }
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device address of the first byte.
    pub fn address(&self) -> *mut u8 {
        match &self.bytes {
            Bytes::Host { bytes, .. } => bytes.as_ptr(),
            Bytes::Cuda(memory) => std::ptr::without_provenance_mut(memory.address() as usize),
        }
    }

    /// Pins host memory, so that GPUs copy from and to it by themselves. Memory in shared pages is left as it is.
    ///
    /// # Errors
    /// What the driver says; the memory is as before.
    pub fn pin(&self, context: &Arc<Context>) -> CudaResult<()> {
        if let Bytes::Host { pinned, bytes } = &self.bytes
            && pinned.get().is_none()
            && !bytes.is_empty()
        {
            let len = bytes.len().next_multiple_of(AlignedBytes::PAGE);
            // SAFETY: the pages are this value's own, and stay until after the registration is gone, which is the first
            // of its fields.
            let registration = unsafe { Registration::new(context, bytes.as_ptr(), len)? };
            let _ = pinned.set(registration);
        }
        Ok(())
    }

    /// Copies host bytes in, at an offset, while no step runs.
    ///
    /// # Errors
    /// What the driver says.
    pub fn write(&mut self, offset: usize, host: &[u8]) -> Result<()> {
        match &mut self.bytes {
            Bytes::Host { bytes, .. } => bytes[offset..offset + host.len()].copy_from_slice(host),
            Bytes::Cuda(memory) => memory.write(offset, host).map_err(|e| failed(memory, e))?,
        }
        Ok(())
    }

    /// Copies bytes out to the host, while no step runs.
    ///
    /// # Errors
    /// What the driver says.
    pub fn read(&self, offset: usize, host: &mut [u8]) -> Result<()> {
        match &self.bytes {
            Bytes::Host { bytes, .. } => host.copy_from_slice(&bytes[offset..offset + host.len()]),
            Bytes::Cuda(memory) => memory.read(offset, host).map_err(|e| failed(memory, e))?,
        }
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.account.bytes.fetch_sub(self.len() as u64, Ordering::Relaxed);
        self.account.buffers.fetch_sub(1, Ordering::Relaxed);
    }
}

fn not_taken(device: &DeviceInfo, bytes: usize, error: CudaError) -> Error {
    let name = device.short_name();
    if error.kind != CudaErrorKind::OutOfMemory {
        return Error::new(Code::Internal, format!("{name} gives no memory ({bytes} bytes asked): {error}"));
    }
    let free = device.cuda.as_ref().and_then(|i| Context::open(i).ok()?.memory().ok());
    let free = free.map_or(String::new(), |(free, total)| format!(", {free} of {total} free"));
    Error::new(Code::ResourceExhausted, format!("{name} is out of memory: {bytes} bytes asked{free} ({error})"))
}

fn failed(memory: &CudaMemory, error: CudaError) -> Error {
    if error.kind == CudaErrorKind::ContextLost {
        memory.context.lose(error.to_string());
    }
    let gpu = &memory.context.identity;
    Error::new(Code::Internal, format!("GPU {} ({}): {error}", gpu.physical, gpu.name))
}
