//! Safe access to the library that is loaded: every function finds it, and does nothing or gives 0 where it is not loaded.

pub use crate::control::Live;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;

/// The stand-in driver as it is loaded in this process.
#[derive(Clone, Debug)]
pub struct Standin {
    handle: usize,
}

type Count = unsafe extern "C" fn(*const c_char) -> u64;

impl Standin {
    /// The library that [`crate::install`] made stubs for, loaded if it is not yet.
    pub fn loaded() -> Result<Standin, String> {
        Standin::at(&crate::install::library()?)
    }

    fn at(path: &Path) -> Result<Standin, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| format!("{} has a zero byte", path.display()))?;
        // SAFETY: loading the library runs none of its code.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) } as usize;
        if handle == 0 { Err(format!("cannot load {}", path.display())) } else { Ok(Standin { handle }) }
    }

    fn symbol(&self, name: &std::ffi::CStr) -> *mut std::ffi::c_void {
        // SAFETY: the handle is of a library that stays loaded.
        let at = unsafe { libc::dlsym(self.handle as *mut _, name.as_ptr()) };
        assert!(!at.is_null(), "the stand-in library has no {}; build it anew", name.to_string_lossy());
        at
    }

    fn count(&self, function: &std::ffi::CStr, name: &str) -> u64 {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the function is of this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Count>(self.symbol(function))(name.as_ptr()) }
    }

    /// How often a function of the driver or of a library was called, by its exported name (`cuMemAlloc_v2`).
    pub fn calls(&self, name: &str) -> u64 {
        self.count(c"standin_calls", name)
    }

    /// Bytes copied of a kind: `htod`, `dtoh`, `dtod`, `peer`, `nccl`. Counted when a copy runs.
    pub fn bytes(&self, kind: &str) -> u64 {
        self.count(c"standin_bytes", kind)
    }

    /// Races found so far, and in what is pending, which runs now (a GPU would have run it by itself).
    pub fn race_count(&self) -> u64 {
        // SAFETY: the function is of this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn() -> u64>(self.symbol(c"standin_races"))() }
    }

    /// The texts of the races, oldest first, at most 1000; what is pending runs first.
    pub fn races(&self) -> Vec<String> {
        self.race_count();
        type Get = unsafe extern "C" fn(usize, *mut u8, usize) -> usize;
        let mut buffer = [0u8; 1024];
        let mut texts = Vec::new();
        loop {
            // SAFETY: the function is of this type, and the buffer is as long as told.
            let n = unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, Get>(self.symbol(c"standin_race"))(
                    texts.len(),
                    buffer.as_mut_ptr(),
                    buffer.len(),
                )
            };
            if n == 0 {
                return texts;
            }
            texts.push(String::from_utf8_lossy(&buffer[..n]).into_owned());
        }
    }

    /// What the driver said since the last time it was asked: why calls and operations failed. At most 200 lines.
    pub fn said(&self) -> Vec<String> {
        type Get = unsafe extern "C" fn(*mut u8, usize) -> usize;
        let mut buffer = vec![0u8; 1 << 16];
        let get = self.symbol(c"standin_said");
        // SAFETY: the function is of this type, and the buffer is as long as told.
        let n = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Get>(get)(buffer.as_mut_ptr(), buffer.len()) };
        String::from_utf8_lossy(&buffer[..n]).lines().map(str::to_owned).collect()
    }

    /// How many things of a kind are alive on a GPU.
    pub fn live(&self, kind: Live, gpu: usize) -> u64 {
        type Get = extern "C" fn(c_int, usize) -> u64;
        // SAFETY: the function is of this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Get>(self.symbol(c"standin_live"))(kind as c_int, gpu) }
    }

    /// Starts the random order of what runs anew.
    pub fn seed(&self, seed: u64) {
        // SAFETY: the function is of this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn(u64)>(self.symbol(c"standin_seed"))(seed) }
    }

    /// Sets faults (see [`crate::faults`]) in place of those there were; `""` clears them and gives
    /// lost GPUs back, while errors stay in their contexts.
    pub fn fault(&self, text: &str) -> Result<(), String> {
        crate::faults::parse(text)?;
        let name = CString::new(text).map_err(|_| "a zero byte in the faults".to_owned())?;
        type Set = unsafe extern "C" fn(*const c_char) -> c_int;
        // SAFETY: the function is of this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Set>(self.symbol(c"standin_fault"))(name.as_ptr()) };
        Ok(())
    }

    /// Whether races fail the context (as from the start) or are only counted.
    pub fn races_fail(&self, fail: bool) {
        // SAFETY: the function is of this type.
        unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn(c_int)>(self.symbol(c"standin_races_fail"))(
                c_int::from(fail),
            )
        }
    }

    /// How long a collective waits for its other ranks, in milliseconds.
    pub fn patience(&self, milliseconds: u64) {
        // SAFETY: the function is of this type.
        unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn(u64)>(self.symbol(c"standin_patience"))(
                milliseconds,
            )
        }
    }

    /// Clears faults, errors that stay in contexts, and lost GPUs; what is pending stays.
    pub fn heal(&self) {
        // SAFETY: the function is of this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn()>(self.symbol(c"standin_heal"))() }
    }

    /// Drops faults, pending work, errors that stay, lost GPUs, races and counts. What is allocated stays.
    pub fn reset(&self) {
        // SAFETY: the function is of this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn()>(self.symbol(c"standin_reset"))() }
    }
}
