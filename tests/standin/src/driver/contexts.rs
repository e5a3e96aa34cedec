//! Contexts: primary and created ones, the current one of a thread, and peer access between them.

use super::devices::device;
use crate::api;
use crate::codes::{
    Code, DEVICE_UNAVAILABLE, INVALID_CONTEXT, INVALID_VALUE, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED,
    PEER_ACCESS_UNSUPPORTED,
};
use crate::state::{Held, change_current, current_handle};
use std::ffi::{c_int, c_uint, c_void};

/// Ends all that belongs to a context.
fn clear(s: &mut Held, context: u64) {
    let _ = s.synchronize_context(context);
    for at in s.space.of_context(context) {
        s.space.free(at);
    }
    let null = s.contexts.get(&context).map_or(0, |c| c.null);
    let streams: Vec<u64> =
        s.streams.iter().filter(|(k, t)| t.context == context && **k != null).map(|(k, _)| *k).collect();
    for stream in streams {
        if let Some(t) = s.streams.remove(&stream) {
            s.clocks.release(t.slot);
        }
    }
    s.events.retain(|_, e| e.context != context);
    s.modules.retain(|_, m| m.context != context);
    s.functions.retain(|_, f| f.context != context);
    if let Some(c) = s.contexts.get_mut(&context) {
        (c.sticky, c.streams) = (0, 0);
        c.peers.clear();
    }
}

fn create(s: &mut Held, out: *mut u64, d: c_int) -> Result<(), Code> {
    let gpu = device(s, d)?;
    if s.gpus[gpu].lost {
        return Err(DEVICE_UNAVAILABLE);
    }
    let context = s.add_context(gpu, None);
    change_current(|c| c.push(context));
    // SAFETY: the caller's pointer is to a handle.
    unsafe { out.write(context) };
    Ok(())
}

fn release(s: &mut Held, d: c_int) -> Result<(), Code> {
    let gpu = device(s, d)?;
    let primary = s.gpus[gpu].primary;
    let c = s.contexts.get_mut(&primary).ok_or(INVALID_CONTEXT)?;
    let n = c.retained.filter(|n| *n > 0).ok_or(INVALID_CONTEXT)?;
    c.retained = Some(n - 1);
    if n == 1 {
        clear(s, primary);
    }
    Ok(())
}

api! {
    fn cuDevicePrimaryCtxRetain(out: *mut u64, d: c_int) |s| {
        let gpu = device(s, d)?;
        if s.gpus[gpu].lost {
            return Err(DEVICE_UNAVAILABLE);
        }
        let primary = s.gpus[gpu].primary;
        s.contexts.entry(primary).and_modify(|c| c.retained = c.retained.map(|n| n + 1));
        *out = primary;
        Ok(())
    }
    fn cuDevicePrimaryCtxRelease_v2(d: c_int) |s| { release(s, d) }
    fn cuDevicePrimaryCtxReset_v2(d: c_int) |s| {
        let primary = s.gpus[device(s, d)?].primary;
        clear(s, primary);
        Ok(())
    }
    fn cuDevicePrimaryCtxGetState(d: c_int, flags: *mut c_uint, active: *mut c_int) |s| {
        let primary = s.gpus[device(s, d)?].primary;
        *flags = 0;
        *active = c_int::from(s.contexts[&primary].retained.is_some_and(|n| n > 0));
        Ok(())
    }
    fn cuDevicePrimaryCtxSetFlags_v2(d: c_int, _flags: c_uint) |s| { device(s, d).map(drop) }
    fn cuCtxCreate_v2(out: *mut u64, _flags: c_uint, d: c_int) |s| { create(s, out, d) }
    fn cuCtxCreate_v3(out: *mut u64, _p: *mut c_void, _n: c_int, _flags: c_uint, d: c_int) |s| { create(s, out, d) }
    fn cuCtxCreate_v4(out: *mut u64, _p: *mut c_void, _flags: c_uint, d: c_int) |s| { create(s, out, d) }
    fn cuCtxDestroy_v2(context: u64) |s| {
        if s.contexts.get(&context).is_none_or(|c| c.retained.is_some()) {
            return Err(INVALID_CONTEXT);
        }
        clear(s, context);
        let null = s.contexts.get(&context).map_or(0, |c| c.null);
        s.streams.remove(&null);
        s.contexts.remove(&context);
        change_current(|c| if c.last() == Some(&context) { c.pop(); });
        Ok(())
    }
    fn cuCtxSetCurrent(context: u64) |s| {
        if context != 0 && !s.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        change_current(|c| {
            c.pop();
            if context != 0 { c.push(context) }
        });
        Ok(())
    }
    fn cuCtxGetCurrent(out: *mut u64) |_s| { *out = current_handle(); Ok(()) }
    fn cuCtxPushCurrent_v2(context: u64) |s| {
        if !s.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        change_current(|c| c.push(context));
        Ok(())
    }
    fn cuCtxPopCurrent_v2(out: *mut u64) |_s| {
        let popped = change_current(Vec::pop).ok_or(INVALID_CONTEXT)?;
        if !out.is_null() { *out = popped }
        Ok(())
    }
    fn cuCtxGetDevice(out: *mut c_int) |s| {
        let gpu = s.contexts.get(&current_handle()).ok_or(INVALID_CONTEXT)?.gpu;
        *out = gpu as c_int;
        Ok(())
    }
    fn cuCtxGetDevice_v2(out: *mut c_int, context: u64) |s| {
        *out = s.contexts.get(&context).ok_or(INVALID_CONTEXT)?.gpu as c_int;
        Ok(())
    }
    fn cuCtxGetId(context: u64, out: *mut u64) |s| {
        let context = if context == 0 { current_handle() } else { context };
        s.contexts.get(&context).ok_or(INVALID_CONTEXT)?;
        *out = context;
        Ok(())
    }
    fn cuCtxGetApiVersion(_context: u64, version: *mut c_uint) |_s| { *version = 3020; Ok(()) }
    fn cuCtxGetFlags(flags: *mut c_uint) |s| { s.current()?; *flags = 0; Ok(()) }
    fn cuCtxSetFlags(_flags: c_uint) |s| { s.current().map(drop) }
    fn cuCtxSynchronize() |s| {
        let (context, _) = s.current()?;
        s.outside_capture("cuCtxSynchronize")?;
        s.synchronize_context(context)
    }
    fn cuCtxSynchronize_v2(context: u64) |s| {
        s.usable(context)?;
        s.outside_capture("cuCtxSynchronize")?;
        s.synchronize_context(context)
    }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |s| {
        s.current()?;
        if !least.is_null() { *least = 0 }
        if !greatest.is_null() { *greatest = -5 }
        Ok(())
    }
    fn cuCtxGetCacheConfig(out: *mut c_int) |s| { s.current()?; *out = 0; Ok(()) }
    fn cuCtxSetCacheConfig(_config: c_int) |s| { s.current().map(drop) }
    fn cuCtxGetLimit(out: *mut usize, _limit: c_int) |s| { s.current()?; *out = 0; Ok(()) }
    fn cuCtxSetLimit(_limit: c_int, _value: usize) |s| { s.current().map(drop) }
    fn cuCtxEnablePeerAccess(peer: u64, flags: c_uint) |s| {
        let (context, gpu) = s.current()?;
        let other = s.contexts.get(&peer).ok_or(INVALID_CONTEXT)?.gpu;
        if flags != 0 || peer == context {
            return Err(if flags != 0 { INVALID_VALUE } else { INVALID_CONTEXT });
        }
        if !s.peers(gpu, other) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let fresh = s.contexts.get_mut(&context).is_some_and(|c| c.peers.insert(other));
        if fresh { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }
    fn cuCtxDisablePeerAccess(peer: u64) |s| {
        let (context, _) = s.current()?;
        let other = s.contexts.get(&peer).ok_or(INVALID_CONTEXT)?.gpu;
        let known = s.contexts.get_mut(&context).is_some_and(|c| c.peers.remove(&other));
        if known { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }
}
