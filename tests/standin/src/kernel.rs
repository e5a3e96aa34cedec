//! Modules of kernels that were compiled for the host, and launching them.

use crate::bridge::{BRIDGE, Bridge, Place};
use crate::codes::{
    Code, Failure, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE,
    LAUNCH_OUT_OF_RESOURCES, NOT_FOUND,
};
use crate::fibers;
use crate::queue::{Touch, Work};
use crate::state::{State, current_handle, say};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;

/// The first line of what stands for a module's binary; the library's path follows.
pub const MAGIC: &str = "//turret stand-in module ";
/// A GPU's own limits: those of compute capability 9.0.
pub const MAX_THREADS: u32 = 1024;
/// Shared memory of a block without asking for more.
pub const SHARED: u32 = 48 << 10;
/// Shared memory of a block at most.
pub const SHARED_OPTIN: u32 = 227 << 10;

#[repr(C)]
struct EntryRow {
    name: *const c_char,
    run: fibers::Entry,
    count: c_int,
    sizes: *const u32,
    kinds: *const u8,
}

/// One kernel of a module: how to run it, and what its parameters are.
pub struct Kernel {
    name: String,
    run: fibers::Entry,
    sizes: Vec<u32>,
    kinds: Vec<u8>,
    place: *mut Place,
    dynamic: *mut u8,
    shared: (*mut u8, usize),
}

// SAFETY: the pointers are to a library that is never unloaded, and are used under the driver's lock.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// A loaded module.
pub struct Module {
    /// Its context.
    pub context: u64,
    kernels: Vec<Arc<Kernel>>,
}

/// A function of a module.
pub struct Function {
    /// Its context.
    pub context: u64,
    /// Its module.
    pub module: u64,
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// The dynamic shared memory that launches may ask for.
    pub dynamic: u32,
}

impl Function {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.kernel.name
    }
}

/// Grid, block, and bytes of dynamic shared memory.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared: u32,
}

/// Loads the library that an image names.
pub fn load(context: u64, image: &CStr) -> Result<Module, Code> {
    let text = image.to_string_lossy();
    let Some(path) = text.strip_prefix(MAGIC).and_then(|t| t.lines().next()) else {
        say("the module is not of the stand-in's NVRTC; compile kernels through NVRTC, as it cannot read PTX or CUBIN");
        return Err(INVALID_IMAGE);
    };
    let file = CString::new(path).map_err(|_| INVALID_IMAGE)?;
    type Attach = unsafe extern "C" fn(*mut Bridge, *mut *mut Place, *mut *mut u8, *mut *mut u8, *mut usize);
    // SAFETY: the library was built by this crate, so its symbols are of these types. It is never unloaded.
    unsafe {
        let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            say(&format!("cannot load module {path}: {}", CStr::from_ptr(libc::dlerror()).to_string_lossy()));
            return Err(INVALID_IMAGE);
        }
        let symbol = |name: &CStr| {
            let at = libc::dlsym(library, name.as_ptr());
            if at.is_null() { Err(INVALID_IMAGE) } else { Ok(at) }
        };
        let attach: Attach = std::mem::transmute(symbol(c"standin_attach")?);
        let (mut place, mut dynamic) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut shared = (std::ptr::null_mut(), 0);
        attach(BRIDGE.get(), &mut place, &mut dynamic, &mut shared.0, &mut shared.1);
        let count = *(symbol(c"standin_count")? as *const c_int) as usize;
        let rows = std::slice::from_raw_parts(symbol(c"standin_table")? as *const EntryRow, count);
        let kernels = rows
            .iter()
            .map(|row| {
                let n = row.count as usize;
                Arc::new(Kernel {
                    name: CStr::from_ptr(row.name).to_string_lossy().into_owned(),
                    run: row.run,
                    sizes: std::slice::from_raw_parts(row.sizes, n).to_vec(),
                    kinds: std::slice::from_raw_parts(row.kinds, n).to_vec(),
                    place,
                    dynamic,
                    shared,
                })
            })
            .collect();
        Ok(Module { context, kernels })
    }
}

impl Module {
    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Result<Arc<Kernel>, Code> {
        self.kernels.iter().find(|k| k.name == name).cloned().ok_or_else(|| {
            let names: Vec<&str> = self.kernels.iter().map(|k| k.name.as_str()).collect();
            say(&format!(
                "no kernel '{name}' in the module; it has {}; only `extern \"C\"` kernels keep their name",
                names.join(", ")
            ));
            NOT_FOUND
        })
    }
}

/// Checks a launch against the limits.
fn check(function: &Function, shape: Shape) -> Result<(), Code> {
    let name = function.name();
    let wrong = |code: Code, message: String| {
        say(&format!("launch of kernel {name}: {message}"));
        Err(code)
    };
    let [x, y, z] = shape.grid;
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65535 || z > 65535 {
        return wrong(INVALID_VALUE, format!("grid {:?} is not within 1 and [2147483647, 65535, 65535]", shape.grid));
    }
    let [x, y, z] = shape.block;
    let threads = [x, y, z].iter().fold(1u32, |a, b| a.saturating_mul(*b));
    if threads == 0 || threads > MAX_THREADS || z > 64 {
        return wrong(
            INVALID_VALUE,
            format!("block {:?} has {threads} threads, want 1 to {MAX_THREADS}, at most 64 in z", shape.block),
        );
    }
    if shape.shared > function.dynamic {
        let message = format!(
            "{} bytes of shared memory, at most {} were asked for; set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
            shape.shared, function.dynamic
        );
        return wrong(INVALID_VALUE, message);
    }
    let bytes: u32 = function.kernel.sizes.iter().map(|s| s.next_multiple_of(8)).sum();
    if bytes > 32764 {
        return wrong(LAUNCH_OUT_OF_RESOURCES, format!("{bytes} bytes of parameters, at most 32764"));
    }
    Ok(())
}

/// Enqueues a kernel.
///
/// # Safety
/// `parameters` points to as many pointers as the kernel has parameters, each to a value of its size.
pub unsafe fn launch(
    state: &mut State,
    handle: u64,
    shape: Shape,
    stream: u64,
    parameters: *mut *mut c_void,
) -> Result<(), Code> {
    let function = state.functions.get(&handle).ok_or(INVALID_HANDLE)?;
    let (own, theirs) = (function.context, state.streams[&stream].context);
    if own != theirs {
        say(&format!(
            "kernel {} is of context {own:#x} and the stream of {theirs:#x}; load the module in the stream's context",
            function.name()
        ));
        return Err(INVALID_HANDLE);
    }
    let current = current_handle();
    if current != theirs {
        let name = function.name();
        say(&format!(
            "kernel {name}: context {current:#x} is current and the stream is of {theirs:#x}; bind the stream's context first"
        ));
        return Err(if current == 0 { INVALID_CONTEXT } else { INVALID_HANDLE });
    }
    check(function, shape)?;
    let kernel = function.kernel.clone();
    if state.faults.launch(&kernel.name) {
        say(&format!("launch of kernel {}: refused by the fault that was asked for", kernel.name));
        return Err(LAUNCH_OUT_OF_RESOURCES);
    }
    if parameters.is_null() && !kernel.sizes.is_empty() {
        say(&format!("kernel {} has {} parameters and none was given", kernel.name, kernel.sizes.len()));
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller gives a pointer to a value of the size for each parameter.
    let value = |(i, n): (usize, &u32)| unsafe {
        std::slice::from_raw_parts(*parameters.add(i) as *const u8, *n as usize).to_vec()
    };
    let arguments: Vec<Vec<u8>> = kernel.sizes.iter().enumerate().map(value).collect();
    let label = format!("kernel {}", kernel.name);
    let work = Arc::new(move |state: &mut State, touch: &mut Touch| run(state, touch, &kernel, shape, &arguments));
    state.enqueue(stream, &label, Work::Run(work)).map(drop)
}

/// A parameter with device addresses in it made ones of the host: pointers, and what looks like one in a structure.
fn translate(state: &State, bytes: &[u8], kind: u8) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    // SAFETY: the words have room for the bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast::<u8>(), bytes.len()) };
    for word in words.iter_mut().take(bytes.len() / 8) {
        if *word >> 56 != 0 {
            if let Some(host) = state.space.host(*word) {
                *word = host as u64;
            }
        } else if kind != 0 && *word != 0 && !state.space.pinned(*word as usize, 1) {
            // Pageable memory of the host: it is out of a GPU's reach.
            *word |= 0xDEAD << 48;
        }
    }
    words
}

fn run(
    state: &mut State,
    touch: &mut Touch,
    kernel: &Kernel,
    shape: Shape,
    arguments: &[Vec<u8>],
) -> Result<(), Failure> {
    if state.faults.kernel(&kernel.name) {
        return Err(Failure::new(ILLEGAL_ADDRESS, "it fails by the fault that was asked for"));
    }
    let values: Vec<Vec<u64>> = arguments.iter().zip(&kernel.kinds).map(|(a, k)| translate(state, a, *k)).collect();
    let mut pointers: Vec<*mut c_void> = values.iter().map(|v| v.as_ptr() as *mut c_void).collect();
    let gpus = state.gpus.len();
    let peers = state.contexts.get(&touch.context).map(|c| c.peers.clone()).unwrap_or_default();
    let reach = peers.iter().fold(1u64 << touch.gpu | 1 << gpus, |r, p| r | 1 << p);
    let (turn_threads, turn_blocks) = (state.random() % 2, state.random() % 2 == 1);
    let [bx, by, bz] = shape.block;
    let [gx, gy, gz] = shape.grid;
    let b = BRIDGE.get();
    fibers::start(kernel.run, pointers.as_mut_ptr(), kernel.place, gpus + 1, state.space.registered());
    let small = shape.shared as usize + kernel.shared.1 <= 8192;
    let blocks = u64::from(gx) * u64::from(gy) * u64::from(gz);
    let mut result = Ok(());
    for i in 0..blocks {
        let n = if turn_blocks { blocks - 1 - i } else { i };
        // SAFETY: the lock is held, no fiber runs, and the pointers are to the module's own variables.
        unsafe {
            if i == 0 || small {
                std::ptr::write_bytes(kernel.dynamic, 0xFF, shape.shared as usize);
                std::ptr::write_bytes(kernel.shared.0, 0xFF, kernel.shared.1);
            }
            (*b).reach = reach;
            (*b).count = bx * by * bz;
            (*b).reversed = turn_threads as u32;
            ((*b).next, (*b).have, (*b).done_count) = (0, 0, 0);
            (*b).done = [0; 32];
            let block = [
                (n % u64::from(gx)) as u32,
                (n / u64::from(gx) % u64::from(gy)) as u32,
                (n / u64::from(gx) / u64::from(gy)) as u32,
            ];
            *kernel.place = Place { thread: [0; 3], lane: 0, block, block_size: shape.block, grid_size: shape.grid };
        }
        result = fibers::run_block();
        if result.is_err() {
            break;
        }
    }
    let outside = fibers::finish();
    touch.spans.extend(outside);
    touch.spans.extend(state.space.collect());
    result
}
