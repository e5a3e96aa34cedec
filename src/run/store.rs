//! The variables of a session: their buffers, on their devices, and which have values.

use crate::base::{Array, Code, Error, Result};
use crate::device::cuda::{Context, CudaResult};
use crate::device::{DeviceId, DeviceInfo, DeviceMemory, MemoryUse, View};
use crate::graph::{NodeId, TensorDesc};
use indexmap::IndexMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variables that plans have touched so far.
#[derive(Default)]
pub(super) struct VariableStore {
    variables: IndexMap<NodeId, Stored>,
    /// How often a variable has lost its value.
    losses: u64,
}

struct Stored {
    device: DeviceId,
    desc: TensorDesc,
    memory: DeviceMemory,
    initialized: bool,
}

impl VariableStore {
    /// The variable's buffer; made on first use, without a value.
    ///
    /// # Errors
    /// When the device has no memory for it, or a plan puts it on another device than an earlier one.
    pub fn ensure(
        &mut self,
        id: NodeId,
        name: &str,
        desc: &TensorDesc,
        device: &DeviceInfo,
        account: &Arc<MemoryUse>,
    ) -> Result<View> {
        if let Some(stored) = self.variables.get(&id) {
            if stored.device != device.id {
                return Err(Error::new(
                    Code::Internal,
                    format!("variable '{name}' lives on {}, a plan puts it on {}", stored.device, device.id),
                ));
            }
            return Ok(stored.view());
        }
        let memory = DeviceMemory::allocate(device, account, desc.bytes())
            .map_err(|e| e.context(format!("variable '{name}' {} {:?}", desc.dtype, &desc.dims[..])))?;
        let stored = Stored { device: device.id, desc: desc.clone(), memory, initialized: false };
        let view = stored.view();
        self.variables.insert(id, stored);
        Ok(view)
    }

    /// True if the variable has a value.
    pub fn is_initialized(&self, id: NodeId) -> bool {
        self.variables.get(&id).is_some_and(|v| v.initialized)
    }

    /// True if all of these have values. `seen` keeps for the next time that they had.
    pub fn are_initialized(&self, ids: &[NodeId], seen: &AtomicU64) -> bool {
        // One that has a value keeps it, unless one is lost.
        let now = self.losses + 1;
        let all = seen.load(Ordering::Relaxed) == now || ids.iter().all(|id| self.is_initialized(*id));
        if all {
            seen.store(now, Ordering::Relaxed);
        }
        all
    }

    /// Notes that the variable has a value.
    pub fn set_initialized(&mut self, id: NodeId) {
        if let Some(stored) = self.variables.get_mut(&id) {
            stored.initialized = true;
        }
    }

    /// The device of a variable that is there.
    pub fn device(&self, id: NodeId) -> Option<DeviceId> {
        self.variables.get(&id).map(|v| v.device)
    }

    /// The variables on a device, and their bytes.
    pub fn on_device(&self, device: DeviceId) -> impl Iterator<Item = (NodeId, usize)> {
        let here = self.variables.iter().filter(move |(_, v)| v.device == device);
        here.map(|(id, v)| (*id, v.memory.len()))
    }

    /// A copy of the variable's value, if it has one.
    ///
    /// # Errors
    /// When the host has no memory for it.
    pub fn read(&self, id: NodeId) -> Result<Option<Array>> {
        let Some(stored) = self.variables.get(&id).filter(|v| v.initialized) else { return Ok(None) };
        let mut array = Array::zeros(stored.desc.dtype, &stored.desc.dims)?;
        stored.memory.read(0, array.bytes_mut())?;
        Ok(Some(array))
    }

    /// Gives the variable a value of its own type and sizes, which the caller has checked.
    ///
    /// # Errors
    /// What the device says.
    pub fn write(&mut self, id: NodeId, value: &Array) -> Result<()> {
        if let Some(stored) = self.variables.get_mut(&id) {
            stored.memory.write(0, value.bytes())?;
            stored.initialized = true;
        }
        Ok(())
    }

    /// Puts back what [`VariableStore::read`] gave: a value, or that there is none.
    ///
    /// # Errors
    /// What the device says.
    pub fn put_back(&mut self, id: NodeId, value: Option<Array>) -> Result<()> {
        match value {
            Some(value) => self.write(id, &value)?,
            None => {
                self.losses += 1;
                self.variables.get_mut(&id).into_iter().for_each(|stored| stored.initialized = false);
            }
        }
        Ok(())
    }

    /// Keeps the bytes of a variable.
    ///
    /// # Errors
    /// What the device says.
    pub fn save_bytes(&self, id: NodeId, into: &mut Vec<u8>) -> Result<()> {
        if let Some(stored) = self.variables.get(&id) {
            into.resize(stored.memory.len(), 0);
            stored.memory.read(0, into)?;
        }
        Ok(())
    }

    /// Puts kept bytes back.
    ///
    /// # Errors
    /// What the device says.
    pub fn restore_bytes(&mut self, id: NodeId, bytes: &[u8]) -> Result<()> {
        match self.variables.get_mut(&id) {
            Some(stored) => stored.memory.write(0, bytes),
            None => Ok(()),
        }
    }

    /// Pins a variable's host memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pin(&self, id: NodeId, context: &Arc<Context>) -> CudaResult<()> {
        self.variables.get(&id).map_or(Ok(()), |stored| stored.memory.pin(context))
    }
}

impl Stored {
    fn view(&self) -> View {
        View { start: self.memory.address(), len: self.desc.len(), dtype: self.desc.dtype, writable: true }
    }
}
