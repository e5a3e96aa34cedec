//! Devices: count, names, attributes, peers; and the texts of errors.

use crate::api;
use crate::codes::{Code, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, texts};
use crate::kernel::{MAX_THREADS, SHARED, SHARED_OPTIN};
use crate::state::State;
use std::ffi::{c_char, c_int, c_uint};

/// The GPU of a device handle.
pub fn device(s: &State, handle: c_int) -> Result<usize, Code> {
    usize::try_from(handle).ok().filter(|d| *d < s.gpus.len()).ok_or(INVALID_DEVICE)
}

/// A device attribute, by number. What is not here is 0, "no".
fn attribute(s: &State, gpu: usize, number: c_int) -> c_int {
    match number {
        1..=3 => MAX_THREADS as c_int,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => SHARED as c_int,
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        13 => 1_980_000,
        14 | 51 => 512,
        15 | 19 | 31 | 41 | 78..=80 | 90 | 91 | 95 | 99 | 115 => 1,
        16 => 132,
        33 => s.gpus[gpu].physical as c_int,
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => 2048,
        40 => 3,
        75 => 9,
        76 => 0,
        81 => 228 << 10,
        97 => SHARED_OPTIN as c_int,
        106 => 32,
        111 => 1024,
        _ => 0,
    }
}

unsafe fn fill(text: &str, to: *mut c_char, room: c_int) {
    let n = text.len().min((room.max(1) - 1) as usize);
    // SAFETY: the caller's buffer has so much room.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), n);
        to.add(n).write(0);
    }
}

fn uuid(physical: usize) -> [u8; 16] {
    let mut uuid = *b"turret-standin\0\0";
    uuid[15] = physical as u8;
    uuid
}

api! {
    fn cuInit(_flags: c_uint) |s| { if s.gpus.is_empty() { Err(NO_DEVICE) } else { Ok(()) } }
    fn cuDriverGetVersion(version: *mut c_int) |_s| { *version = 13000; Ok(()) }
    fn cuDeviceGetCount(n: *mut c_int) |s| { *n = s.gpus.len() as c_int; Ok(()) }
    fn cuDeviceGet(out: *mut c_int, ordinal: c_int) |s| { *out = device(s, ordinal)? as c_int; Ok(()) }
    fn cuDeviceGetName(name: *mut c_char, room: c_int, d: c_int) |s| {
        let gpu = device(s, d)?;
        fill(&format!("Stand-in GPU {}", s.gpus[gpu].physical), name, room);
        Ok(())
    }
    fn cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, d: c_int) |s| {
        let gpu = device(s, d)?;
        fill(&format!("0000:{:02x}:00.0", s.gpus[gpu].physical), id, room);
        Ok(())
    }
    fn cuDeviceGetByPCIBusId(out: *mut c_int, id: *const c_char) |s| {
        let id = std::ffi::CStr::from_ptr(id).to_string_lossy().into_owned();
        let found = s.gpus.iter().position(|g| id.to_lowercase().contains(&format!("{:02x}:00.0", g.physical)));
        *out = found.ok_or(INVALID_DEVICE)? as c_int;
        Ok(())
    }
    fn cuDeviceGetUuid(out: *mut [u8; 16], d: c_int) |s| { *out = uuid(s.gpus[device(s, d)?].physical); Ok(()) }
    fn cuDeviceGetUuid_v2(out: *mut [u8; 16], d: c_int) |s| { *out = uuid(s.gpus[device(s, d)?].physical); Ok(()) }
    fn cuDeviceGetAttribute(out: *mut c_int, number: c_int, d: c_int) |s| { *out = attribute(s, device(s, d)?, number); Ok(()) }
    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, d: c_int) |s| {
        device(s, d)?;
        (*major, *minor) = (9, 0);
        Ok(())
    }
    fn cuDeviceTotalMem_v2(out: *mut usize, d: c_int) |s| { *out = s.space.room(device(s, d)?).1; Ok(()) }
    fn cuDeviceCanAccessPeer(out: *mut c_int, a: c_int, b: c_int) |s| {
        *out = c_int::from(s.peers(device(s, a)?, device(s, b)?));
        Ok(())
    }
    fn cuDeviceGetP2PAttribute(out: *mut c_int, number: c_int, a: c_int, b: c_int) |s| {
        let peers = s.peers(device(s, a)?, device(s, b)?);
        // Rank, access, native atomics: the order of the attributes.
        *out = match number { 1 => 0, 2..=4 => c_int::from(peers), _ => return Err(INVALID_VALUE) };
        Ok(())
    }
    fn cuGetErrorName(code: Code, out: *mut *const c_char) |_s| {
        let found = texts(code);
        *out = found.map_or(std::ptr::null(), |t| t.0.as_ptr());
        if found.is_some() { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cuGetErrorString(code: Code, out: *mut *const c_char) |_s| {
        let found = texts(code);
        *out = found.map_or(std::ptr::null(), |t| t.1.as_ptr());
        if found.is_some() { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cuProfilerStart() |_s| { Ok(()) }
    fn cuProfilerStop() |_s| { Ok(()) }
}
