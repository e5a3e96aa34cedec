//! Copies and fills, as CUDA does them: asynchronous only where the host's side is pinned.

use crate::api;
use crate::bridge::{READ, WRITE};
use crate::codes::{Code, Failure, INVALID_CONTEXT, INVALID_VALUE};
use crate::queue::{Touch, Work};
use crate::state::{Held, State, say};
use std::ffi::{c_uchar, c_uint, c_ushort};
use std::sync::Arc;

/// Where one side of a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Gpu(usize),
    Pinned,
    Pageable,
}

fn side(s: &State, address: u64, n: usize) -> Result<Side, Code> {
    if address >> 56 != 0 {
        if let Err(failure) = s.space.range(address, n) {
            say(&format!("copy or fill: {}", failure.message));
            return Err(INVALID_VALUE);
        }
        return s.space.gpu_of(address).map(Side::Gpu).ok_or(INVALID_VALUE);
    }
    if address == 0 {
        return Err(INVALID_VALUE);
    }
    Ok(if s.space.pinned(address as usize, n) { Side::Pinned } else { Side::Pageable })
}

/// Which way a copy goes, as the counters name it.
fn kind(from: Side, to: Side, peer: bool) -> &'static str {
    match (from, to) {
        (Side::Gpu(a), Side::Gpu(b)) if a != b || peer => "peer",
        (Side::Gpu(_), Side::Gpu(_)) => "dtod",
        (Side::Gpu(_), _) => "dtoh",
        (_, Side::Gpu(_)) => "htod",
        _ => "htoh",
    }
}

/// How the host waits for a copy.
#[derive(Clone, Copy, PartialEq)]
enum Wait {
    /// As the sides have it: not for pinned memory.
    Sides,
    /// Always, but for a copy from device to device.
    Call,
}

fn copy(s: &mut Held, to: u64, from: u64, n: usize, handle: u64, wait: Wait, peer: bool) -> Result<(), Code> {
    s.any_current()?;
    let stream = s.stream(handle)?;
    if n == 0 {
        return Ok(());
    }
    let (source, target) = (side(s, from, n)?, side(s, to, n)?);
    if wait == Wait::Call {
        s.outside_capture("a copy that the host waits for")?;
    }
    let captured = s.streams[&stream].capture.is_some();
    let kind = kind(source, target, peer);
    let label = match (source, target) {
        (Side::Gpu(a), Side::Gpu(b)) if kind == "peer" => format!("peer copy of {n} bytes from GPU {a} to GPU {b}"),
        _ => format!("{kind} copy of {n} bytes"),
    };
    // Pageable memory is read before the call is back.
    let staged: Option<Vec<u8>> = (source == Side::Pageable && !captured).then(|| {
        // SAFETY: the caller gives so many readable bytes.
        unsafe { std::slice::from_raw_parts(from as *const u8, n).to_vec() }
    });
    let pair = match (source, target) {
        (Side::Gpu(a), Side::Gpu(b)) if kind == "peer" => Some((a, b)),
        _ => None,
    };
    let run = move |state: &mut State, touch: &mut Touch| -> Result<(), Failure> {
        let place = |touch: &mut Touch, side: Side, address: u64, bits: u8| match side {
            Side::Pageable => Ok(address as usize as *mut u8),
            _ => touch.range(&state.space, address, n, bits),
        };
        let source = match &staged {
            Some(bytes) => bytes.as_ptr(),
            None => place(touch, source, from, READ)?.cast_const(),
        };
        let target = place(touch, target, to, WRITE)?;
        let flip = state.faults.copy(pair);
        // SAFETY: both ranges were checked, or are the caller's.
        unsafe {
            std::ptr::copy(source, target, n);
            if flip {
                (0..n).for_each(|i| *target.add(i) ^= 0x55);
            }
        }
        state.count_bytes(kind, n);
        Ok(())
    };
    let id = s.enqueue(stream, &label, Work::Run(Arc::new(run)))?;
    let host = !matches!((source, target), (Side::Gpu(_), Side::Gpu(_)));
    let waits = match wait {
        Wait::Call => host,
        // From pageable memory the call is back when the bytes are staged.
        Wait::Sides => target == Side::Pageable,
    };
    match id {
        Some(_) if waits => s.synchronize(stream),
        _ => Ok(()),
    }
}

fn fill<T: Copy + Send + Sync + 'static>(s: &mut Held, to: u64, value: T, n: usize, handle: u64) -> Result<(), Code> {
    s.any_current()?;
    let stream = s.stream(handle)?;
    let bytes = n * size_of::<T>();
    if n == 0 {
        return Ok(());
    }
    if side(s, to, bytes)? == Side::Pageable || !(to as usize).is_multiple_of(align_of::<T>()) {
        return Err(INVALID_VALUE);
    }
    let run = move |state: &mut State, touch: &mut Touch| -> Result<(), Failure> {
        let at = touch.reach(state, to, bytes, true)?.cast::<T>();
        // SAFETY: the range was checked.
        unsafe { std::slice::from_raw_parts_mut(at, n) }.fill(value);
        Ok(())
    };
    s.enqueue(stream, &format!("fill of {bytes} bytes"), Work::Run(Arc::new(run))).map(drop)
}

fn peer(
    s: &mut Held,
    to: u64,
    to_context: u64,
    from: u64,
    from_context: u64,
    n: usize,
    handle: u64,
) -> Result<(), Code> {
    for (address, context, which) in [(to, to_context, "destination"), (from, from_context, "source")] {
        let gpu = s.contexts.get(&context).ok_or(INVALID_CONTEXT)?.gpu;
        if n > 0 && s.space.gpu_of(address) != Some(gpu) {
            say(&format!(
                "peer copy: the {which} {address:#x} is no memory of GPU {gpu}, whose context is given for it"
            ));
            return Err(INVALID_VALUE);
        }
    }
    copy(s, to, from, n, handle, Wait::Sides, true)
}

api! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, n: usize, stream: u64) |s| { copy(s, to, from, n, stream, Wait::Sides, false) }
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, n: usize, stream: u64) |s| { copy(s, to, from, n, stream, Wait::Sides, false) }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, n: usize, stream: u64) |s| { copy(s, to, from, n, stream, Wait::Sides, false) }
    fn cuMemcpyAsync(to: u64, from: u64, n: usize, stream: u64) |s| { copy(s, to, from, n, stream, Wait::Sides, false) }
    fn cuMemcpyHtoD_v2(to: u64, from: u64, n: usize) |s| { copy(s, to, from, n, 0, Wait::Call, false) }
    fn cuMemcpyDtoH_v2(to: u64, from: u64, n: usize) |s| { copy(s, to, from, n, 0, Wait::Call, false) }
    fn cuMemcpyDtoD_v2(to: u64, from: u64, n: usize) |s| { copy(s, to, from, n, 0, Wait::Call, false) }
    fn cuMemcpy(to: u64, from: u64, n: usize) |s| { copy(s, to, from, n, 0, Wait::Call, false) }
    fn cuMemcpyPeerAsync(to: u64, to_context: u64, from: u64, from_context: u64, n: usize, stream: u64) |s| {
        peer(s, to, to_context, from, from_context, n, stream)
    }
    fn cuMemcpyPeer(to: u64, to_context: u64, from: u64, from_context: u64, n: usize) |s| {
        peer(s, to, to_context, from, from_context, n, 0)
    }
    fn cuMemsetD8Async(to: u64, value: c_uchar, n: usize, stream: u64) |s| { fill(s, to, value, n, stream) }
    fn cuMemsetD16Async(to: u64, value: c_ushort, n: usize, stream: u64) |s| { fill(s, to, value, n, stream) }
    fn cuMemsetD32Async(to: u64, value: c_uint, n: usize, stream: u64) |s| { fill(s, to, value, n, stream) }
    fn cuMemsetD8_v2(to: u64, value: c_uchar, n: usize) |s| { fill(s, to, value, n, 0) }
    fn cuMemsetD16_v2(to: u64, value: c_ushort, n: usize) |s| { fill(s, to, value, n, 0) }
    fn cuMemsetD32_v2(to: u64, value: c_uint, n: usize) |s| { fill(s, to, value, n, 0) }
}
