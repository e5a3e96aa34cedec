//! Memory: of GPUs, also in the order of a stream, and pinned memory of the host.

use super::devices::device;
use crate::api;
use crate::bridge::WRITE;
use crate::codes::{
    Code, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY,
    STREAM_CAPTURE_UNSUPPORTED,
};
use crate::queue::{OpId, Touch, Work};
use crate::races::{Deed, Span};
use crate::state::{Held, State, say};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

fn take(s: &mut Held, context: u64, gpu: usize, size: usize) -> Result<usize, Code> {
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    if s.faults.alloc(size) {
        say(&format!("allocation of {size} bytes on GPU {gpu}: out of memory by the fault that was asked for"));
        return Err(OUT_OF_MEMORY);
    }
    if let Ok(at) = s.space.alloc(Some(gpu), context, size) {
        return Ok(at);
    }
    // Frees in the order of streams may be pending.
    let all: Vec<OpId> = s.ops.iter().filter(|(_, o)| s.gpu(o.context) == gpu).map(|(id, _)| *id).collect();
    s.force(&all);
    s.space.alloc(Some(gpu), context, size).inspect_err(|_| {
        let (free, total) = s.space.room(gpu);
        say(&format!("allocation of {size} bytes on GPU {gpu}: out of memory, {free} of {total} bytes are free"));
    })
}

/// Reports operations that use memory which the host frees without having waited for them.
fn judge_free(s: &mut State, host: usize) {
    let Some((at, alloc)) = s.space.find(host) else { return };
    let spans = Arc::new(vec![Span { lo: at, hi: at + alloc.size, bits: WRITE }]);
    let clock = s.clocks.host.clone();
    let deed = Deed { label: "freeing memory on the host".into(), slot: usize::MAX, time: 1, clock, spans };
    let space = &s.space;
    for report in s.races.judge_only(&deed, |h| space.device(h)) {
        say(&report);
    }
}

fn alloc_async(s: &mut Held, size: usize, handle: u64) -> Result<u64, Code> {
    let stream = s.stream(handle)?;
    let t = &s.streams[&stream];
    let (context, capture) = (t.context, t.capture);
    if let Some(capture) = capture {
        s.break_capture(capture, "cuMemAllocAsync (memory nodes of graphs are not stood in for)");
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    let gpu = s.gpu(context);
    let at = take(s, context, gpu, size)?;
    let address = s.space.device(at);
    let run = move |state: &mut State, touch: &mut Touch| touch.range(&state.space, address, size, WRITE).map(drop);
    s.enqueue(stream, "allocation", Work::Run(Arc::new(run)))?;
    Ok(address)
}

const POOL: u64 = 0x4000_0000;

api! {
    fn cuMemAlloc_v2(out: *mut u64, size: usize) |s| {
        let (context, gpu) = s.current()?;
        s.outside_capture("cuMemAlloc")?;
        let at = take(s, context, gpu, size)?;
        *out = s.space.device(at);
        Ok(())
    }
    fn cuMemAllocManaged(_out: *mut u64, _size: usize, _flags: c_uint) |_s| {
        say("cuMemAllocManaged is not stood in for");
        Err(NOT_SUPPORTED)
    }
    fn cuMemFree_v2(address: u64) |s| {
        if address == 0 {
            return Ok(());
        }
        s.current()?;
        s.outside_capture("cuMemFree")?;
        let gpu = s.space.gpu_of(address).ok_or(INVALID_VALUE)?;
        let host = s.space.host(address).ok_or(INVALID_VALUE)?;
        if s.space.find(host).is_none_or(|(at, _)| at != host) {
            say(&format!("cuMemFree of {address:#x}, where no live allocation starts"));
            return Err(INVALID_VALUE);
        }
        let pending: Vec<OpId> = s.ops.iter().filter(|(_, o)| s.gpu(o.context) == gpu).map(|(id, _)| *id).collect();
        s.force(&pending);
        judge_free(s, host);
        if s.space.free(host) { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cuMemAllocAsync(out: *mut u64, size: usize, handle: u64) |s| { *out = alloc_async(s, size, handle)?; Ok(()) }
    fn cuMemAllocFromPoolAsync(out: *mut u64, size: usize, _pool: u64, handle: u64) |s| { *out = alloc_async(s, size, handle)?; Ok(()) }
    fn cuMemFreeAsync(address: u64, handle: u64) |s| {
        if address == 0 {
            return Ok(());
        }
        let stream = s.stream(handle)?;
        if let Some(capture) = s.streams[&stream].capture {
            s.break_capture(capture, "cuMemFreeAsync (memory nodes of graphs are not stood in for)");
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let host = s.space.host(address).ok_or(INVALID_VALUE)?;
        let Some((_, alloc)) = s.space.find(host).filter(|(at, _)| *at == host) else {
            say(&format!("cuMemFreeAsync of {address:#x}, where no live allocation starts"));
            return Err(INVALID_VALUE);
        };
        let (size, owner, own) = (alloc.size, alloc.gpu, s.gpu(s.streams[&stream].context));
        if owner != Some(own) {
            say(&format!("cuMemFreeAsync: memory of GPU {owner:?} is freed on a stream of GPU {own}"));
            return Err(INVALID_VALUE);
        }
        let run = move |state: &mut State, touch: &mut Touch| {
            touch.range(&state.space, address, size, WRITE)?;
            state.space.free(host);
            Ok(())
        };
        s.enqueue(stream, "free", Work::Run(Arc::new(run))).map(drop)
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |s| {
        let (_, gpu) = s.current()?;
        (*free, *total) = s.space.room(gpu);
        Ok(())
    }
    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) |s| {
        let host = s.space.host(address).ok_or(INVALID_VALUE)?;
        let (at, alloc) = s.space.find(host).ok_or(INVALID_VALUE)?;
        if !base.is_null() { *base = s.space.device(at) }
        if !size.is_null() { *size = alloc.size }
        Ok(())
    }
    fn cuMemHostAlloc(out: *mut u64, size: usize, _flags: c_uint) |s| { *out = host_alloc(s, size)?; Ok(()) }
    fn cuMemAllocHost_v2(out: *mut u64, size: usize) |s| { *out = host_alloc(s, size)?; Ok(()) }
    fn cuMemFreeHost(at: usize) |s| {
        if s.space.find(at).is_none_or(|(start, a)| start != at || a.gpu.is_some()) {
            return Err(INVALID_VALUE);
        }
        judge_free(s, at);
        if s.space.free(at) { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cuMemHostRegister_v2(at: usize, size: usize, _flags: c_uint) |s| {
        s.current()?;
        if s.faults.always("register") {
            say("pinning memory fails by the fault that was asked for");
            return Err(NOT_SUPPORTED);
        }
        if at == 0 || size == 0 {
            return Err(INVALID_VALUE);
        }
        if s.space.register(at, size) { Ok(()) } else { Err(HOST_MEMORY_ALREADY_REGISTERED) }
    }
    fn cuMemHostUnregister(at: usize) |s| {
        s.current()?;
        if s.space.unregister(at) { Ok(()) } else { Err(HOST_MEMORY_NOT_REGISTERED) }
    }
    fn cuMemHostGetDevicePointer_v2(out: *mut u64, at: usize, _flags: c_uint) |s| {
        if !s.space.pinned(at, 1) {
            return Err(INVALID_VALUE);
        }
        *out = at as u64;
        Ok(())
    }
    fn cuMemHostGetFlags(flags: *mut c_uint, at: usize) |s| {
        *flags = 2;
        if s.space.pinned(at, 1) { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cuPointerGetAttribute(out: *mut c_void, attribute: c_int, address: u64) |s| {
        let host = s.space.host(address).ok_or(INVALID_VALUE)?;
        let found = s.space.find(host).map(|(_, a)| (a.context, a.gpu));
        match attribute {
            1 => out.cast::<u64>().write(found.ok_or(INVALID_VALUE)?.0),
            2 => out.cast::<c_uint>().write(if s.space.gpu_of(address).is_some() { 2 } else { 1 }),
            3 | 4 => out.cast::<u64>().write(address),
            9 => out.cast::<c_int>().write(found.and_then(|f| f.1).map_or(0, |g| g as c_int)),
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
    fn cuDeviceGetDefaultMemPool(out: *mut u64, d: c_int) |s| { *out = POOL + device(s, d)? as u64; Ok(()) }
    fn cuDeviceGetMemPool(out: *mut u64, d: c_int) |s| { *out = POOL + device(s, d)? as u64; Ok(()) }
    fn cuDeviceSetMemPool(d: c_int, _pool: u64) |s| { device(s, d).map(drop) }
    fn cuMemPoolCreate(out: *mut u64, _properties: *const c_void) |s| { *out = s.id(); Ok(()) }
    fn cuMemPoolDestroy(_pool: u64) |_s| { Ok(()) }
    fn cuMemPoolTrimTo(_pool: u64, _keep: usize) |_s| { Ok(()) }
    fn cuMemPoolSetAttribute(_pool: u64, _attribute: c_int, _value: *mut c_void) |_s| { Ok(()) }
    fn cuMemPoolGetAttribute(_pool: u64, _attribute: c_int, value: *mut u64) |_s| { *value = 0; Ok(()) }
    fn cuMemPoolSetAccess(_pool: u64, _map: *const c_void, _count: usize) |_s| { Ok(()) }
}

fn host_alloc(s: &mut Held, size: usize) -> Result<u64, Code> {
    let (context, _) = s.current()?;
    if s.faults.always("hostalloc") {
        say("pinned memory is refused by the fault that was asked for");
        return Err(OUT_OF_MEMORY);
    }
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    Ok(s.space.alloc(None, context, size)? as u64)
}
