//! GPUs that are open: contexts, streams, events, memory.
//!
//! A context is opened by the first plan that uses its GPU and stays for the process's life, as CUDA's own primary
//! contexts do. Invariant: cudarc's tracking of events is not used; what must wait for what is the planner's business.

use super::call::{Called, CudaError, CudaErrorKind, CudaResult};
use super::identity::CudaIdentity;
use super::kernels::Kernels;
use super::libraries::driver_function;
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUevent, CUstream};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

/// One context on one GPU.
pub struct Context {
    raw: CUcontext,
    device: CUdevice,
    /// Compute capability, as in `90`.
    pub(super) capability: i32,
    /// Whose context it is.
    pub identity: CudaIdentity,
    kernels: Mutex<Kernels>,
    lost: Mutex<Option<String>>,
}

// SAFETY: the driver's contexts may be used from any thread that makes them current, which every use here does.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

static OPEN: Mutex<BTreeMap<(i32, u32), Arc<Context>>> = Mutex::new(BTreeMap::new());

impl Context {
    /// The context of this GPU; opened at the first call. The first context on a GPU is its primary one.
    ///
    /// # Errors
    /// What the driver says, or that the context was lost earlier.
    pub fn open(identity: &CudaIdentity) -> CudaResult<Arc<Context>> {
        let mut open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
        let key = (identity.ordinal, identity.instance);
        if let Some(context) = open.get(&key) {
            return match context.lost() {
                Some(why) => {
                    let said = format!("the GPU's context, which was lost earlier ({why}); run the program again");
                    Err(CudaError { call: "cuCtxSetCurrent", said, kind: CudaErrorKind::ContextLost })
                }
                None => Ok(context.clone()),
            };
        }
        result::init().called("cuInit")?;
        let device = result::device::get(identity.ordinal).called("cuDeviceGet")?;
        // SAFETY: the device came from the driver just now.
        let (raw, capability) = unsafe {
            let raw = match identity.instance {
                0 => result::primary_ctx::retain(device).called("cuDevicePrimaryCtxRetain")?,
                _ => create(device)?,
            };
            use sys::CUdevice_attribute_enum as Attribute;
            let of = |attribute| result::device::get_attribute(device, attribute).called("cuDeviceGetAttribute");
            let major = of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            (raw, major * 10 + of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)
        };
        let context = Arc::new(Context {
            raw,
            device,
            capability,
            identity: identity.clone(),
            kernels: Mutex::default(),
            lost: Mutex::default(),
        });
        open.insert(key, context.clone());
        Ok(context)
    }

    /// The context of this GPU, if it is open.
    pub fn opened(identity: &CudaIdentity) -> Option<Arc<Context>> {
        let open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
        open.get(&(identity.ordinal, identity.instance)).cloned()
    }

    /// Makes the context this thread's current one.
    pub fn bind(&self) -> CudaResult<()> {
        // SAFETY: contexts live as long as the process.
        unsafe { result::ctx::set_current(self.raw) }.called("cuCtxSetCurrent")
    }

    /// The driver's handle.
    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// The driver's device.
    pub(super) fn raw_device(&self) -> CUdevice {
        self.device
    }

    /// The compiled kernels.
    pub(super) fn kernels(&self) -> MutexGuard<'_, Kernels> {
        self.kernels.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Bytes free and in all, as the driver counts them for every program.
    pub fn memory(&self) -> CudaResult<(usize, usize)> {
        self.bind()?;
        result::mem_get_info().called("cuMemGetInfo")
    }

    /// Why the context cannot be used any more, if so.
    pub fn lost(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Notes that a failure cost the context.
    pub fn lose(&self, why: String) {
        self.lost.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(why);
    }
}

/// One more context on a GPU. The function's newer forms are not in every driver.
fn create(device: CUdevice) -> CudaResult<CUcontext> {
    type Create = unsafe extern "C" fn(*mut CUcontext, u32, CUdevice) -> sys::CUresult;
    // SAFETY: this is the function's type since CUDA 3.2.
    let Some(create) = (unsafe { driver_function::<Create>(b"cuCtxCreate_v2\0") }) else {
        return Err(CudaError::refused("cuCtxCreate", "no such function in the driver"));
    };
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle, and the device is the driver's.
    unsafe { create(&mut context, 0, device) }.called("cuCtxCreate")?;
    Ok(context)
}

/// A stream that waits for no other by itself.
pub struct Stream {
    pub(super) raw: CUstream,
    pub(super) context: Arc<Context>,
}

// SAFETY: as for contexts.
unsafe impl Send for Stream {}
// SAFETY: as for contexts; the session runs one step at a time.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream.
    pub fn new(context: &Arc<Context>) -> CudaResult<Stream> {
        context.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")?;
        Ok(Stream { raw, context: context.clone() })
    }

    /// Makes everything enqueued here later wait for the event's last record.
    pub fn wait(&self, event: &Event) -> CudaResult<()> {
        // SAFETY: both are live; waiting for another context's event is allowed.
        unsafe {
            result::stream::wait_event(self.raw, event.raw, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
                .called("cuStreamWaitEvent")
        }
    }

    /// True if everything enqueued is done.
    pub fn is_done(&self) -> CudaResult<bool> {
        self.context.bind()?;
        // SAFETY: the stream is live.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            said => said.called("cuStreamQuery").map(|()| true),
        }
    }

    /// Waits on this thread for everything enqueued.
    pub fn synchronize(&self) -> CudaResult<()> {
        self.context.bind()?;
        // SAFETY: the stream is live.
        unsafe { result::stream::synchronize(self.raw) }.called("cuStreamSynchronize")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: nobody has the stream any more. What it says concerns work that was reported already.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// An event of one context's streams.
pub struct Event {
    pub(super) raw: CUevent,
    context: Arc<Context>,
}

// SAFETY: as for contexts.
unsafe impl Send for Event {}
// SAFETY: as for contexts.
unsafe impl Sync for Event {}

impl Event {
    /// An event, which keeps time only where asked to.
    pub fn new(context: &Arc<Context>, timing: bool) -> CudaResult<Event> {
        context.bind()?;
        let flags = match timing {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        Ok(Event { raw: result::event::create(flags).called("cuEventCreate")?, context: context.clone() })
    }

    /// Marks the event once everything enqueued on the stream so far is done. The stream's context must be current.
    pub fn record(&self, stream: &Stream) -> CudaResult<()> {
        // SAFETY: both are live.
        unsafe { result::event::record(self.raw, stream.raw) }.called("cuEventRecord")
    }

    /// Waits on this thread until the event is marked.
    pub fn synchronize(&self) -> CudaResult<()> {
        self.context.bind()?;
        // SAFETY: the event is live.
        unsafe { result::event::synchronize(self.raw) }.called("cuEventSynchronize")
    }

    /// Milliseconds from another event of the same GPU to this one; both are done.
    pub fn since(&self, earlier: &Event) -> CudaResult<f32> {
        type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> sys::CUresult;
        // SAFETY: this is the function's type in every version; its newer name is not in every driver.
        let Some(elapsed) = (unsafe { driver_function::<Elapsed>(b"cuEventElapsedTime\0") }) else {
            return Err(CudaError::refused("cuEventElapsedTime", "no such function in the driver"));
        };
        let mut ms = 0.0;
        // SAFETY: the pointer is to a live number, and both events are live.
        unsafe { elapsed(&mut ms, earlier.raw, self.raw) }.called("cuEventElapsedTime")?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: nobody has the event any more.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// A piece of a GPU's memory.
pub struct CudaMemory {
    address: u64,
    len: usize,
    /// Whose memory it is.
    pub context: Arc<Context>,
}

impl CudaMemory {
    /// Takes memory, without contents. No bytes at all take none.
    pub fn allocate(context: &Arc<Context>, len: usize) -> CudaResult<CudaMemory> {
        context.bind()?;
        let address = match len {
            0 => 0,
            // SAFETY: the context is current.
            _ => unsafe { result::malloc_sync(len) }.called("cuMemAlloc")?,
        };
        Ok(CudaMemory { address, len, context: context.clone() })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte in the GPU's memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Sets all bytes to zero, while no step runs.
    pub fn clear(&mut self) -> CudaResult<()> {
        if self.len == 0 {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: the range is this memory.
        unsafe { result::memset_d8_sync(self.address, 0, self.len) }.called("cuMemsetD8")?;
        settle()
    }

    /// Copies host bytes in, while no step runs.
    pub fn write(&mut self, offset: usize, host: &[u8]) -> CudaResult<()> {
        assert!(offset + host.len() <= self.len, "a write beyond the end of a GPU's memory");
        if host.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: the range was checked.
        unsafe { result::memcpy_htod_sync(self.address + offset as u64, host) }.called("cuMemcpyHtoD")?;
        settle()
    }

    /// Copies bytes out to the host, while no step runs.
    pub fn read(&self, offset: usize, host: &mut [u8]) -> CudaResult<()> {
        assert!(offset + host.len() <= self.len, "a read beyond the end of a GPU's memory");
        if host.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: the range was checked.
        unsafe { result::memcpy_dtoh_sync(host, self.address + offset as u64) }.called("cuMemcpyDtoH")
    }
}

/// Waits for the default stream, which other streams do not: a copy from pageable memory returns when its bytes are
/// staged, a memset before it has run.
pub(super) fn settle() -> CudaResult<()> {
    // SAFETY: null is the current context's default stream.
    unsafe { result::stream::synchronize(std::ptr::null_mut()) }.called("cuStreamSynchronize")
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if self.len > 0 && self.context.bind().is_ok() {
            // SAFETY: nobody uses the memory any more: the steps that did have ended.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Host memory that GPUs copy from and to without the driver's staging.
pub struct PinnedMemory {
    start: *mut u8,
    len: usize,
    context: Arc<Context>,
}

// SAFETY: the bytes are owned by this value; the session orders all uses.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every context.
const PORTABLE: u32 = 1;

impl PinnedMemory {
    /// Takes pinned memory without contents, `len > 0` bytes.
    pub fn allocate(context: &Arc<Context>, len: usize) -> CudaResult<PinnedMemory> {
        context.bind()?;
        // SAFETY: the context is current.
        let start = unsafe { result::malloc_host(len, PORTABLE) }.called("cuMemHostAlloc")?.cast::<u8>();
        Ok(PinnedMemory { start, len, context: context.clone() })
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: nobody uses the memory any more.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}

/// Host memory of another owner that is pinned while this value lives.
pub struct Registration {
    start: *mut c_void,
    context: Arc<Context>,
}

// SAFETY: only the address is kept.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Pins whole pages that the caller keeps until this value is gone.
    ///
    /// # Safety
    /// The range is the caller's own, and outlives the registration.
    pub unsafe fn new(context: &Arc<Context>, start: *mut u8, len: usize) -> CudaResult<Registration> {
        context.bind()?;
        // SAFETY: by this function's contract.
        unsafe { sys::cuMemHostRegister_v2(start.cast(), len, PORTABLE) }.called("cuMemHostRegister")?;
        Ok(Registration { start: start.cast(), context: context.clone() })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: registered in `new`.
            let _ = unsafe { sys::cuMemHostUnregister(self.start) };
        }
    }
}
