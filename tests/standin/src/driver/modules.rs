//! Modules, functions, launches of kernels, and occupancy.

use crate::api;
use crate::codes::{INVALID_HANDLE, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES, NOT_FOUND};
use crate::kernel::{Function, MAX_THREADS, SHARED, SHARED_OPTIN, Shape, launch, load};
use crate::state::say;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CUlaunchConfig` up to its stream.
#[repr(C)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: u64,
}

const MAX_DYNAMIC: c_int = 8;

/// Blocks of a size that fit on one multiprocessor of 2048 threads.
fn blocks(threads: c_int, shared: usize) -> c_int {
    let by_threads = 2048 / threads.clamp(1, 1024);
    let by_shared = if shared == 0 { 32 } else { (228 << 10) / (shared + 1024) };
    by_threads.min(by_shared as c_int).min(32)
}

api! {
    fn cuModuleLoadData(out: *mut u64, image: *const c_void) |s| {
        let (context, _) = s.current()?;
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        let module = load(context, CStr::from_ptr(image.cast()))?;
        let id = s.id();
        s.modules.insert(id, module);
        *out = id;
        Ok(())
    }
    fn cuModuleLoadDataEx(out: *mut u64, image: *const c_void, _n: c_uint, _options: *mut c_int, _values: *mut *mut c_void) |s| {
        let (context, _) = s.current()?;
        let module = load(context, CStr::from_ptr(image.cast()))?;
        let id = s.id();
        s.modules.insert(id, module);
        *out = id;
        Ok(())
    }
    fn cuModuleUnload(module: u64) |s| {
        s.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        s.functions.retain(|_, f| f.module != module);
        Ok(())
    }
    fn cuModuleGetFunction(out: *mut u64, module: u64, name: *const c_char) |s| {
        let m = s.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let (kernel, context) = (m.kernel(&CStr::from_ptr(name).to_string_lossy())?, m.context);
        let id = s.id();
        s.functions.insert(id, Function { context, module, kernel, dynamic: SHARED });
        *out = id;
        Ok(())
    }
    fn cuModuleGetGlobal_v2(_at: *mut u64, _n: *mut usize, module: u64, _name: *const c_char) |s| {
        if !s.modules.contains_key(&module) {
            return Err(INVALID_HANDLE);
        }
        say("variables of modules are not stood in for");
        Err(NOT_FOUND)
    }
    fn cuFuncGetModule(out: *mut u64, function: u64) |s| { *out = s.functions.get(&function).ok_or(INVALID_HANDLE)?.module; Ok(()) }
    fn cuFuncGetAttribute(out: *mut c_int, attribute: c_int, function: u64) |s| {
        let f = s.functions.get(&function).ok_or(INVALID_HANDLE)?;
        *out = match attribute {
            0 => MAX_THREADS as c_int,
            4 => 32,
            5 | 6 => 90,
            MAX_DYNAMIC => f.dynamic as c_int,
            _ => 0,
        };
        Ok(())
    }
    fn cuFuncSetAttribute(function: u64, attribute: c_int, value: c_int) |s| {
        let f = s.functions.get_mut(&function).ok_or(INVALID_HANDLE)?;
        if attribute == MAX_DYNAMIC {
            if value < 0 || value as u32 > SHARED_OPTIN {
                say(&format!("kernel {} asks for {value} bytes of dynamic shared memory, at most {SHARED_OPTIN} are there", f.name()));
                return Err(INVALID_VALUE);
            }
            f.dynamic = value as u32;
        }
        Ok(())
    }
    fn cuFuncSetCacheConfig(function: u64, _config: c_int) |s| { if s.functions.contains_key(&function) { Ok(()) } else { Err(INVALID_HANDLE) } }
    fn cuLaunchKernel(f: u64, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: u64, parameters: *mut *mut c_void, _extra: *mut *mut c_void) |s| {
        let stream = s.stream(stream)?;
        launch(s, f, Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared }, stream, parameters)
    }
    fn cuLaunchKernelEx(config: *const LaunchConfig, f: u64, parameters: *mut *mut c_void, _extra: *mut *mut c_void) |s| {
        let c = &*config;
        let stream = s.stream(c.stream)?;
        launch(s, f, Shape { grid: c.grid, block: c.block, shared: c.shared }, stream, parameters)
    }
    fn cuLaunchCooperativeKernel(f: u64, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint, _shared: c_uint, _stream: u64, _parameters: *mut *mut c_void) |s| {
        let name = s.functions.get(&f).ok_or(INVALID_HANDLE)?.name().to_owned();
        say(&format!("cooperative launches are not stood in for (kernel {name})"));
        Err(crate::codes::NOT_SUPPORTED)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: *mut c_int, _f: u64, threads: c_int, shared: usize) |_s| { *out = blocks(threads, shared); Ok(()) }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: *mut c_int, _f: u64, threads: c_int, shared: usize, _flags: c_uint) |_s| {
        *out = blocks(threads, shared);
        Ok(())
    }
    fn cuOccupancyMaxPotentialBlockSize(grid: *mut c_int, block: *mut c_int, _f: u64, _size: *const c_void, _shared: usize, limit: c_int) |_s| {
        *block = if limit > 0 { limit.min(1024) } else { 1024 };
        *grid = 132 * blocks(*block, 0);
        Ok(())
    }
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: *mut c_int, block: *mut c_int, _f: u64, _size: *const c_void, _shared: usize, limit: c_int, _flags: c_uint) |_s| {
        *block = if limit > 0 { limit.min(1024) } else { 1024 };
        *grid = 132 * blocks(*block, 0);
        Ok(())
    }
    fn cuOccupancyAvailableDynamicSMemPerBlock(out: *mut usize, _f: u64, count: c_int, _threads: c_int) |_s| {
        *out = (228usize << 10) / count.max(1) as usize - 1024;
        if count > 0 { Ok(()) } else { Err(LAUNCH_OUT_OF_RESOURCES) }
    }
}
