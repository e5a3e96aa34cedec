//! Asynchronous copies between memories, and which way a copy between two GPUs takes.
//!
//! Some machines report that two GPUs reach each other and then corrupt what is copied. So each way is tried with a
//! pattern when a plan first needs it; one that fails is never used, and bytes go through pinned host memory instead.

use super::call::{Called, CudaResult};
use super::context::{Context, CudaMemory, Stream};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Bytes of the pattern: more than one packet of any link.
const PATTERN_BYTES: usize = 256 << 10;

/// Enqueues a copy from pinned host memory.
///
/// # Safety
/// Both ranges hold `bytes` bytes until the stream's work is waited for; the stream's context is current.
pub unsafe fn from_host(stream: &Stream, to: u64, from: *const u8, bytes: usize) -> CudaResult<()> {
    // SAFETY: by this function's contract.
    unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream.raw) }.called("cuMemcpyHtoDAsync")
}

/// Enqueues a copy to pinned host memory.
///
/// # Safety
/// As [`from_host`].
pub unsafe fn to_host(stream: &Stream, to: *mut u8, from: u64, bytes: usize) -> CudaResult<()> {
    // SAFETY: by this function's contract.
    unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream.raw) }.called("cuMemcpyDtoHAsync")
}

/// Enqueues a copy within one GPU's memory.
///
/// # Safety
/// As [`from_host`].
pub unsafe fn within(stream: &Stream, to: u64, from: u64, bytes: usize) -> CudaResult<()> {
    // SAFETY: by this function's contract.
    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.raw) }.called("cuMemcpyDtoDAsync")
}

/// Enqueues a copy from another GPU's memory.
///
/// # Safety
/// As [`from_host`].
pub unsafe fn from_peer(stream: &Stream, to: u64, source: &Context, from: u64, bytes: usize) -> CudaResult<()> {
    // SAFETY: by this function's contract.
    unsafe { sys::cuMemcpyPeerAsync(to, stream.context.raw(), from, source.raw(), bytes, stream.raw) }
        .called("cuMemcpyPeerAsync")
}

/// Enqueues zero bytes.
///
/// # Safety
/// As [`from_host`].
pub unsafe fn zero(stream: &Stream, to: u64, bytes: usize) -> CudaResult<()> {
    // SAFETY: by this function's contract.
    unsafe { result::memset_d8_async(to, 0, bytes, stream.raw) }.called("cuMemsetD8Async")
}

/// Copies host bytes to a GPU, and waits for it; for what is laid down when a plan is loaded.
///
/// # Safety
/// The destination is as long as the bytes, and nobody uses it meanwhile.
pub unsafe fn write_now(context: &Arc<Context>, to: u64, bytes: &[u8]) -> CudaResult<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    context.bind()?;
    // SAFETY: by this function's contract.
    unsafe { result::memcpy_htod_sync(to, bytes) }.called("cuMemcpyHtoD")?;
    super::context::settle()
}

/// How bytes get from one GPU to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerRoute {
    /// The receiver reads the other's memory.
    Direct,
    /// The driver takes the bytes through host memory, since the GPUs do not reach each other.
    Driver,
    /// We take them through pinned host memory, since the copy gave other bytes than were sent, or failed: why.
    Host(String),
}

static ROUTES: Mutex<BTreeMap<Ends, PeerRoute>> = Mutex::new(BTreeMap::new());

/// A GPU and context that sends, and one that receives.
type Ends = ((i32, u32), (i32, u32));

/// The way from one GPU to another; found and tried at the first call.
///
/// # Errors
/// Memory for the trial.
pub fn route(from: &Arc<Context>, to: &Arc<Context>) -> CudaResult<PeerRoute> {
    let key = |c: &Context| (c.identity.ordinal, c.identity.instance);
    let mut routes = ROUTES.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(route) = routes.get(&(key(from), key(to))) {
        return Ok(route.clone());
    }
    let route = match (enable(to, from), try_pattern(from, to)?) {
        (_, Err(why)) => PeerRoute::Host(why),
        (true, Ok(())) => PeerRoute::Direct,
        (false, Ok(())) => PeerRoute::Driver,
    };
    routes.insert((key(from), key(to)), route.clone());
    Ok(route)
}

/// Lets one context's streams read another's memory; false where the pair cannot.
fn enable(reader: &Context, owner: &Context) -> bool {
    if reader.identity.ordinal == owner.identity.ordinal {
        return true;
    }
    let mut can = 0;
    // SAFETY: devices and contexts are live.
    unsafe {
        let said = sys::cuDeviceCanAccessPeer(&mut can, reader.raw_device(), owner.raw_device());
        if said != CUresult::CUDA_SUCCESS || can == 0 || reader.bind().is_err() {
            return false;
        }
        let said = sys::cuCtxEnablePeerAccess(owner.raw(), 0);
        matches!(said, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    }
}

/// Sends a pattern; the inner error says what arrived instead.
fn try_pattern(from: &Arc<Context>, to: &Arc<Context>) -> CudaResult<Result<(), String>> {
    let pattern: Vec<u8> = (0..PATTERN_BYTES as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut sent = CudaMemory::allocate(from, PATTERN_BYTES)?;
    sent.write(0, &pattern)?;
    let mut received = CudaMemory::allocate(to, PATTERN_BYTES)?;
    received.clear()?;
    let stream = Stream::new(to)?;
    to.bind()?;
    // SAFETY: both buffers live until the stream was waited for.
    let copied = unsafe { from_peer(&stream, received.address(), from, sent.address(), PATTERN_BYTES) };
    if let Err(e) = copied.and_then(|()| stream.synchronize()) {
        return Ok(Err(e.to_string()));
    }
    let mut arrived = vec![0; PATTERN_BYTES];
    received.read(0, &mut arrived)?;
    let wrong = arrived.iter().zip(&pattern).filter(|(a, b)| a != b).count();
    Ok(if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {PATTERN_BYTES} trial bytes arrived changed")) })
}
