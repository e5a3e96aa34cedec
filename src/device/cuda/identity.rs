//! Which physical GPU a logical one is, without opening it.

use super::call::{Called, CudaResult};
use super::libraries;
use cudarc::driver::result;
use cudarc::driver::sys;

/// A GPU as the driver numbers it, and where it sits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaIdentity {
    /// The driver's number, after `CUDA_VISIBLE_DEVICES`.
    pub ordinal: i32,
    /// Which context on that GPU: 0 for the first, others where one GPU plays several.
    pub instance: u32,
    /// The card's name.
    pub name: String,
    /// Its place on the PCI bus, as in `0000:01:00.0`.
    pub pci: String,
    /// Its number or identifier before `CUDA_VISIBLE_DEVICES`.
    pub physical: String,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// True if cuBLASLt can be used, so that products can take bias and ReLU in.
    pub has_cublaslt: bool,
}

impl CudaIdentity {
    /// What the driver says of its GPU `ordinal`.
    pub fn of(ordinal: usize, instance: u32) -> CudaResult<CudaIdentity> {
        let device = result::device::get(ordinal as i32).called("cuDeviceGet")?;
        let mut pci = [0u8; 32];
        // SAFETY: the device is the driver's; the buffer's length is told.
        let memory_bytes = unsafe {
            sys::cuDeviceGetPCIBusId(pci.as_mut_ptr().cast(), pci.len() as i32, device)
                .called("cuDeviceGetPCIBusId")?;
            result::device::total_mem(device).called("cuDeviceTotalMem")? as u64
        };
        let end = pci.iter().position(|b| *b == 0).unwrap_or(pci.len());
        Ok(CudaIdentity {
            ordinal: ordinal as i32,
            instance,
            name: result::device::get_name(device).called("cuDeviceGetName")?,
            pci: String::from_utf8_lossy(&pci[..end]).into_owned(),
            physical: physical(std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref(), ordinal),
            memory_bytes,
            has_cublaslt: libraries::find(libraries::Library::CublasLt).is_ok(),
        })
    }

    /// True if this GPU can read the other's memory by itself.
    pub fn reaches(&self, other: &CudaIdentity) -> bool {
        if self.ordinal == other.ordinal {
            return true;
        }
        let device = |identity: &CudaIdentity| result::device::get(identity.ordinal);
        let (Ok(mine), Ok(theirs)) = (device(self), device(other)) else { return false };
        let mut can = 0;
        // SAFETY: both devices are the driver's.
        let said = unsafe { sys::cuDeviceCanAccessPeer(&mut can, mine, theirs) };
        said == sys::CUresult::CUDA_SUCCESS && can != 0
    }
}

/// The GPUs that the driver shows.
///
/// # Errors
/// Why there are none.
pub fn identities() -> Result<Vec<CudaIdentity>, String> {
    let count = libraries::device_count()?;
    (0..count).map(|i| CudaIdentity::of(i, 0).map_err(|e| format!("GPU {i}: {e}"))).collect()
}

/// The entry of `CUDA_VISIBLE_DEVICES` that the driver's number stands for.
fn physical(visible: Option<&str>, ordinal: usize) -> String {
    let entry = visible.and_then(|v| v.split(',').map(str::trim).nth(ordinal)).filter(|e| !e.is_empty());
    entry.map_or_else(|| ordinal.to_string(), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_physical_ones() {
        assert_eq!(physical(None, 1), "1");
        assert_eq!(physical(Some("3, 1"), 0), "3");
        assert_eq!(physical(Some("3,1"), 1), "1");
        assert_eq!(physical(Some(""), 0), "0");
        assert_eq!(physical(Some("GPU-8932f937"), 0), "GPU-8932f937");
    }
}
