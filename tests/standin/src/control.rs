//! What tests ask the loaded library: counters, races, what is alive, seeds and faults. `client.rs` calls these.

use crate::faults;
use crate::state::{Held, say};
use std::ffi::{CStr, c_char, c_int};

/// What [`Standin::live`](crate::Standin::live) counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// Allocations of a GPU's memory.
    Allocations = 0,
    /// Streams beside the default ones.
    Streams = 1,
    /// Events.
    Events = 2,
    /// Modules.
    Modules = 3,
    /// Contexts in use.
    Contexts = 4,
    /// Bytes of allocations.
    Bytes = 5,
    /// Operations that wait to be run.
    Pending = 6,
    /// Allocations of pinned host memory; the GPU is not looked at.
    Pinned = 7,
}

unsafe fn string(at: *const c_char) -> String {
    // SAFETY: the client gives a string.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// How often a function was called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_calls(name: *const c_char) -> u64 {
    // SAFETY: the client gives a string.
    let name = unsafe { string(name) };
    Held::take().calls.get(&name).copied().unwrap_or(0)
}

/// Bytes copied of a kind: `htod`, `dtoh`, `dtod`, `peer`, `nccl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_bytes(kind: *const c_char) -> u64 {
    // SAFETY: the client gives a string.
    let kind = unsafe { string(kind) };
    Held::take().bytes.get(kind.as_str()).copied().unwrap_or(0)
}

/// Races found so far, and in what is pending, which runs now.
#[unsafe(no_mangle)]
pub extern "C" fn standin_races() -> u64 {
    let mut held = Held::take();
    let pending: Vec<_> = held.ops.keys().copied().collect();
    held.force(&pending);
    held.races.count
}

/// The text of a race; its length, or 0 when there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_race(i: usize, to: *mut u8, room: usize) -> usize {
    let held = Held::take();
    let Some(text) = held.races.reports.get(i) else { return 0 };
    // SAFETY: the client's buffer has so much room.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len().min(room)) };
    text.len().min(room)
}

/// What the driver said since the last call, a line each; the length, at most the buffer's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_said(to: *mut u8, room: usize) -> usize {
    let text: Vec<String> = crate::state::said().into();
    let text = text.join("\n");
    // SAFETY: the client's buffer has so much room.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len().min(room)) };
    text.len().min(room)
}

/// How many things of a kind are alive on a GPU.
#[unsafe(no_mangle)]
pub extern "C" fn standin_live(kind: c_int, gpu: usize) -> u64 {
    let s = Held::take();
    if gpu >= s.gpus.len() {
        return 0;
    }
    let on = |context: u64| s.contexts.get(&context).is_some_and(|c| c.gpu == gpu);
    let n = match kind {
        0 => s.space.live(gpu),
        1 => s.streams.values().filter(|t| !t.null && on(t.context)).count(),
        2 => s.events.values().filter(|e| on(e.context)).count(),
        3 => s.modules.values().filter(|m| on(m.context)).count(),
        4 => s.contexts.values().filter(|c| c.gpu == gpu && c.retained.is_none_or(|n| n > 0)).count(),
        5 => s.space.room(gpu).1 - s.space.room(gpu).0,
        6 => s.ops.values().filter(|o| on(o.context)).count(),
        7 => s.space.live(s.gpus.len()),
        _ => 0,
    };
    n as u64
}

/// Starts the random order anew.
#[unsafe(no_mangle)]
pub extern "C" fn standin_seed(seed: u64) {
    Held::take().seed(seed);
}

/// Sets faults in place of those there were; 0, or 1 when the text is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_fault(text: *const c_char) -> c_int {
    // SAFETY: the client gives a string.
    match faults::parse(&unsafe { string(text) }) {
        Ok(faults) => {
            Held::take().set_faults(faults);
            0
        }
        Err(message) => {
            say(&message);
            1
        }
    }
}

/// Whether races fail the context, from now on.
#[unsafe(no_mangle)]
pub extern "C" fn standin_races_fail(fail: c_int) {
    Held::take().config.races_fail = fail != 0;
}

/// Sets how long a collective waits for its other ranks, in milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn standin_patience(milliseconds: u64) {
    Held::take().config.patience = std::time::Duration::from_millis(milliseconds);
}

/// Clears faults, errors that stay, and lost GPUs; what is pending stays.
#[unsafe(no_mangle)]
pub extern "C" fn standin_heal() {
    let mut held = Held::take();
    held.set_faults(Vec::new());
    held.contexts.values_mut().for_each(|c| c.sticky = 0);
}

/// Drops faults, what is pending, errors that stay, lost GPUs, races, and counts.
#[unsafe(no_mangle)]
pub extern "C" fn standin_reset() {
    let mut held = Held::take();
    let s = &mut *held;
    s.set_faults(Vec::new());
    s.contexts.values_mut().for_each(|c| c.sticky = 0);
    s.ops.clear();
    s.captures.clear();
    s.streams.values_mut().for_each(|t| {
        t.capture = None;
        t.frontier.clear();
    });
    s.races = crate::races::Races::default();
    s.nccl.forget();
    s.calls.clear();
    s.bytes.clear();
}
