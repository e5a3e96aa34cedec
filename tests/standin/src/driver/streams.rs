//! Streams, events, capture of streams, and graphs.

use crate::api;
use crate::codes::{CAPTURED_EVENT, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::queue::Work;
use crate::state::{Event, Held, say};
use std::ffi::{c_int, c_uint, c_void};

const NON_BLOCKING: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
const EXTERNAL: c_uint = 1;

fn create(s: &mut Held, out: *mut u64, flags: c_uint, priority: c_int) -> Result<(), Code> {
    let (context, _) = s.current()?;
    // SAFETY: the caller's pointer is to a handle.
    unsafe { out.write(s.add_stream(context, flags & NON_BLOCKING == 0, priority.clamp(-5, 0), false)) };
    Ok(())
}

/// True every now and then, so that one who asks again and again comes to an end.
fn enough(s: &mut Held) -> bool {
    s.random().is_multiple_of(3)
}

fn record(s: &mut Held, event: u64, handle: u64, external: bool) -> Result<(), Code> {
    let stream = s.stream(handle)?;
    let (own, theirs) = (s.events.get(&event).ok_or(INVALID_HANDLE)?.context, s.streams[&stream].context);
    if own != theirs {
        say(&format!(
            "event of context {own:#x} is recorded on {}; make events in the stream's context",
            s.streams[&stream].name
        ));
        return Err(INVALID_HANDLE);
    }
    if s.streams[&stream].capture.is_some() {
        return s.record_captured(event, stream, external);
    }
    // The default stream's event is behind all blocking streams', so it needs a place of its own.
    if s.events[&event].timing || s.streams[&stream].null {
        s.enqueue(stream, "event", Work::Stamp(event))?;
    }
    let (mut ops, mut clock) = s.tail(stream);
    clock.join(&s.clocks.host);
    ops.retain(|o| s.ops.contains_key(o));
    if let Some(e) = s.events.get_mut(&event) {
        *e = Event { context: own, ops, clock, at: None, timing: e.timing, recorded: true, captured: None };
    }
    Ok(())
}

fn elapsed(s: &Held, out: *mut f32, start: u64, end: u64) -> Result<(), Code> {
    let (a, b) = (s.events.get(&start).ok_or(INVALID_HANDLE)?, s.events.get(&end).ok_or(INVALID_HANDLE)?);
    if !a.timing || !b.timing || !a.recorded || !b.recorded {
        return Err(INVALID_HANDLE);
    }
    let (Some(from), Some(to)) = (a.at, b.at) else { return Err(NOT_READY) };
    let seconds = to.checked_duration_since(from).map_or_else(|| -(from - to).as_secs_f32(), |d| d.as_secs_f32());
    // SAFETY: the caller's pointer is to a float.
    unsafe { out.write(seconds * 1000.0) };
    Ok(())
}

fn capture_info(s: &Held, handle: u64, status: *mut c_int, id: *mut u64) -> Result<(), Code> {
    let stream = s.stream(handle)?;
    let capture = s.streams[&stream].capture;
    // SAFETY: the caller's pointers are null or to values.
    unsafe {
        status.write(c_int::from(capture.is_some()));
        if !id.is_null() {
            id.write(capture.unwrap_or(0));
        }
    }
    Ok(())
}

api! {
    fn cuStreamCreate(out: *mut u64, flags: c_uint) |s| { create(s, out, flags, 0) }
    fn cuStreamCreateWithPriority(out: *mut u64, flags: c_uint, priority: c_int) |s| { create(s, out, flags, priority) }
    fn cuStreamDestroy_v2(stream: u64) |s| {
        if s.streams.get(&stream).is_none_or(|t| t.null) {
            return Err(INVALID_HANDLE);
        }
        if let Some(t) = s.streams.remove(&stream) {
            s.clocks.release(t.slot);
        }
        Ok(())
    }
    fn cuStreamSynchronize(handle: u64) |s| {
        let stream = s.stream(handle)?;
        s.not_captured(stream, "cuStreamSynchronize")?;
        s.synchronize(stream)
    }
    fn cuStreamQuery(handle: u64) |s| {
        let stream = s.stream(handle)?;
        s.not_captured(stream, "cuStreamQuery")?;
        let (ops, _) = s.tail(stream);
        if !s.done(&ops) && !enough(s) {
            return Err(NOT_READY);
        }
        s.synchronize(stream)
    }
    fn cuStreamWaitEvent(handle: u64, event: u64, flags: c_uint) |s| {
        let stream = s.stream(handle)?;
        if !s.events.contains_key(&event) {
            return Err(INVALID_HANDLE);
        }
        if s.wait_captured(stream, event, flags & EXTERNAL != 0)? {
            return Ok(());
        }
        let (ops, clock) = (s.events[&event].ops.clone(), s.events[&event].clock.clone());
        s.wait_for(stream, &ops, &clock);
        Ok(())
    }
    fn cuStreamGetPriority(handle: u64, out: *mut c_int) |s| { *out = s.streams[&s.stream(handle)?].priority; Ok(()) }
    fn cuStreamGetFlags(handle: u64, out: *mut c_uint) |s| {
        *out = c_uint::from(!s.streams[&s.stream(handle)?].blocking);
        Ok(())
    }
    fn cuStreamGetCtx(handle: u64, out: *mut u64) |s| { *out = s.streams[&s.stream(handle)?].context; Ok(()) }
    fn cuStreamGetDevice(handle: u64, out: *mut c_int) |s| {
        *out = s.gpu(s.streams[&s.stream(handle)?].context) as c_int;
        Ok(())
    }
    fn cuStreamGetId(handle: u64, out: *mut u64) |s| { *out = s.stream(handle)?; Ok(()) }
    fn cuStreamAttachMemAsync(_stream: u64, _at: u64, _n: usize, _flags: c_uint) |_s| { Err(crate::codes::NOT_SUPPORTED) }
    fn cuLaunchHostFunc(handle: u64, function: extern "C" fn(*mut c_void), data: usize) |s| {
        let stream = s.stream(handle)?;
        s.enqueue(stream, "host function", Work::Host(function, data)).map(drop)
    }

    fn cuEventCreate(out: *mut u64, flags: c_uint) |s| {
        let (context, _) = s.current()?;
        let id = s.id();
        s.events.insert(id, Event { context, timing: flags & DISABLE_TIMING == 0, ..Event::default() });
        *out = id;
        Ok(())
    }
    fn cuEventDestroy_v2(event: u64) |s| { s.events.remove(&event).map(drop).ok_or(INVALID_HANDLE) }
    fn cuEventRecord(event: u64, stream: u64) |s| { record(s, event, stream, false) }
    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: c_uint) |s| { record(s, event, stream, flags & EXTERNAL != 0) }
    fn cuEventSynchronize(event: u64) |s| {
        let e = s.events.get(&event).ok_or(INVALID_HANDLE)?;
        if e.captured.is_some() {
            return Err(CAPTURED_EVENT);
        }
        let (context, ops, clock) = (e.context, e.ops.clone(), e.clock.clone());
        s.usable(context)?;
        s.force(&ops);
        s.host_joins(&clock);
        s.usable(context)
    }
    fn cuEventQuery(event: u64) |s| {
        let e = s.events.get(&event).ok_or(INVALID_HANDLE)?;
        if e.captured.is_some() {
            return Err(CAPTURED_EVENT);
        }
        let (context, ops, clock) = (e.context, e.ops.clone(), e.clock.clone());
        s.usable(context)?;
        if !s.done(&ops) {
            if !enough(s) {
                return Err(NOT_READY);
            }
            s.force(&ops);
        }
        s.host_joins(&clock);
        s.usable(context)
    }
    fn cuEventElapsedTime(out: *mut f32, start: u64, end: u64) |s| { elapsed(s, out, start, end) }
    fn cuEventElapsedTime_v2(out: *mut f32, start: u64, end: u64) |s| { elapsed(s, out, start, end) }

    fn cuStreamBeginCapture_v2(handle: u64, mode: c_uint) |s| { let stream = s.stream(handle)?; s.begin_capture(stream, mode) }
    fn cuStreamEndCapture(handle: u64, out: *mut u64) |s| {
        let stream = s.stream(handle)?;
        *out = 0;
        *out = s.end_capture(stream)?;
        Ok(())
    }
    fn cuStreamIsCapturing(handle: u64, status: *mut c_int) |s| { capture_info(s, handle, status, std::ptr::null_mut()) }
    fn cuStreamGetCaptureInfo_v2(handle: u64, status: *mut c_int, id: *mut u64, _g: *mut u64, _d: *mut u64, _n: *mut usize) |s| {
        capture_info(s, handle, status, id)
    }
    fn cuStreamGetCaptureInfo_v3(handle: u64, status: *mut c_int, id: *mut u64, _g: *mut u64, _d: *mut u64, _e: *mut u64, _n: *mut usize) |s| {
        capture_info(s, handle, status, id)
    }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) |_s| { *mode = crate::graph::MODE.replace(*mode); Ok(()) }

    fn cuGraphInstantiateWithFlags(out: *mut u64, graph: u64, _flags: u64) |s| { *out = s.instantiate(graph)?; Ok(()) }
    fn cuGraphInstantiate_v2(out: *mut u64, graph: u64, _node: *mut u64, _log: *mut u8, _n: usize) |s| { *out = s.instantiate(graph)?; Ok(()) }
    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, info: *mut c_int) |s| {
        let same = s.update(exec, graph)?;
        if !info.is_null() { *info = c_int::from(!same) }
        if same { Ok(()) } else { Err(910) }
    }
    fn cuGraphLaunch(exec: u64, handle: u64) |s| { let stream = s.stream(handle)?; s.launch_graph(exec, stream) }
    fn cuGraphUpload(exec: u64, handle: u64) |s| {
        s.stream(handle)?;
        if s.execs.contains_key(&exec) { Ok(()) } else { Err(INVALID_HANDLE) }
    }
    fn cuGraphExecDestroy(exec: u64) |s| { s.drop_exec(exec) }
    fn cuGraphDestroy(graph: u64) |s| { s.graphs.remove(&graph).map(drop).ok_or(INVALID_HANDLE) }
    fn cuGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize) |s| {
        let n = s.graphs.get(&graph).ok_or(INVALID_HANDLE)?.nodes.len();
        if count.is_null() {
            return Err(INVALID_VALUE);
        }
        if nodes.is_null() {
            *count = n;
            return Ok(());
        }
        (0..n.min(*count)).for_each(|i| nodes.add(i).write(graph + 1 + i as u64));
        *count = n.min(*count);
        Ok(())
    }
}
