//! Memory of one device, counted against its limit.

use super::machine::{DeviceInfo, DeviceKind};
use crate::base::{AlignedBytes, Code, Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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
    bytes: AlignedBytes,
    account: Arc<MemoryUse>,
}

impl DeviceMemory {
    /// Takes zeroed memory.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] with bytes asked, in use and the limit.
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
        let memory = match device.kind {
            // A simulated GPU's memory is the host's; nothing but its queue touches it.
            DeviceKind::Host | DeviceKind::SimulatedGpu => AlignedBytes::zeroed(bytes),
        };
        let Some(memory) = memory else {
            return Err(Error::new(
                Code::ResourceExhausted,
                format!("{} is out of memory: {bytes} bytes asked, {used} in use", device.short_name()),
            ));
        };
        account.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        account.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(DeviceMemory { bytes: memory, account: account.clone() })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.bytes.as_ptr()
    }

    /// Copies host bytes in, at an offset, while no step runs.
    pub fn write(&mut self, offset: usize, host: &[u8]) {
        self.bytes[offset..offset + host.len()].copy_from_slice(host);
    }

    /// Copies bytes out to the host, while no step runs.
    pub fn read(&self, offset: usize, host: &mut [u8]) {
        host.copy_from_slice(&self.bytes[offset..offset + host.len()]);
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.account.bytes.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
        self.account.buffers.fetch_sub(1, Ordering::Relaxed);
    }
}
