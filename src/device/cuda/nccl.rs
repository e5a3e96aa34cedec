//! The few functions of NCCL that sums over GPUs need, looked up by ourselves: its library is called `libnccl.so.2`
//! everywhere, a name that cudarc does not try.

use super::call::{CudaError, CudaResult};
use super::libraries::LIBRARY_FOLDER;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// One GPU's place in a group.
pub(super) type Communicator = *mut c_void;

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum DataType {
    Int32 = 2,
    Int64 = 4,
    Float32 = 7,
    Float64 = 8,
}

/// `ncclSum`.
const SUM: c_int = 0;

type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int;

/// NCCL as it is loaded.
pub(super) struct Nccl {
    comm_init_all: unsafe extern "C" fn(*mut Communicator, c_int, *const c_int) -> c_int,
    all_reduce: AllReduce,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// NCCL, or why it cannot be used. It is looked for once, and stays loaded.
pub(super) fn nccl() -> Result<&'static Nccl, String> {
    static FOUND: OnceLock<Result<Nccl, String>> = OnceLock::new();
    FOUND.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Nccl, String> {
    let names = ["libnccl.so.2", "libnccl.so"].map(PathBuf::from);
    let folder = std::env::var_os(LIBRARY_FOLDER).filter(|f| !f.is_empty()).map(PathBuf::from);
    let in_folder = folder.iter().flat_map(|f| names.iter().map(|n| f.join(n))).filter(|p| p.exists());
    let mut told = None;
    for path in in_folder.chain(names.iter().cloned()) {
        // SAFETY: the library's initialisers are NVIDIA's.
        match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => {
                let functions = Nccl::of(&library).map_err(|e| format!("{} is no NCCL: {e}", path.display()));
                // The functions live as long as the process.
                std::mem::forget(library);
                return functions;
            }
            Err(e) if path.is_absolute() => told = Some(format!("{} could not be loaded: {e}", path.display())),
            Err(_) => {}
        }
    }
    let why = told.map_or(String::new(), |t| format!(" ({t})"));
    Err(format!("libnccl.so.2 was not found{why}; install NCCL (Debian's libnccl2, pip's nvidia-nccl-cu13 or -cu12)"))
}

impl Nccl {
    fn of(library: &Library) -> Result<Nccl, libloading::Error> {
        // SAFETY: these are the functions' types since NCCL 2.0.
        unsafe {
            Ok(Nccl {
                comm_init_all: *library.get(b"ncclCommInitAll\0")?,
                all_reduce: *library.get(b"ncclAllReduce\0")?,
                group_start: *library.get(b"ncclGroupStart\0")?,
                group_end: *library.get(b"ncclGroupEnd\0")?,
                error_string: *library.get(b"ncclGetErrorString\0")?,
            })
        }
    }

    /// Communicators of GPUs by the driver's numbers, one each.
    pub(super) fn comm_init_all(&self, gpus: &[i32]) -> CudaResult<Vec<Communicator>> {
        let mut made = vec![std::ptr::null_mut(); gpus.len()];
        // SAFETY: both lists are as long as told.
        let said = unsafe { (self.comm_init_all)(made.as_mut_ptr(), gpus.len() as c_int, gpus.as_ptr()) };
        self.called("ncclCommInitAll", said).map(|()| made)
    }

    /// Begins a group of calls that are made at once when it ends.
    pub(super) fn group_start(&self) -> CudaResult<()> {
        // SAFETY: it may be called at any time.
        self.called("ncclGroupStart", unsafe { (self.group_start)() })
    }

    /// Ends a group.
    pub(super) fn group_end(&self) -> CudaResult<()> {
        // SAFETY: as above.
        self.called("ncclGroupEnd", unsafe { (self.group_end)() })
    }

    /// One GPU's part in a sum.
    ///
    /// # Safety
    /// Addresses and stream are of the communicator's GPU, whose context is current; they hold `count` elements until
    /// the stream's work is waited for.
    pub(super) unsafe fn all_reduce(
        &self,
        (from, to): (u64, u64),
        (count, dtype): (usize, DataType),
        communicator: Communicator,
        stream: *mut c_void,
    ) -> CudaResult<()> {
        // SAFETY: by this function's contract.
        let said = unsafe {
            (self.all_reduce)(from as *const _, to as *mut _, count, dtype as c_int, SUM, communicator, stream)
        };
        self.called("ncclAllReduce", said)
    }

    fn called(&self, call: &'static str, said: c_int) -> CudaResult<()> {
        if said == 0 {
            return Ok(());
        }
        // SAFETY: the text is a constant of the library's.
        let text = unsafe { CStr::from_ptr((self.error_string)(said)) }.to_string_lossy().into_owned();
        let help = "NCCL_DEBUG=WARN tells more, and CudaOptions::nccl turned off does without NCCL";
        Err(CudaError::refused(call, format!("code {said} ({text}); {help}")))
    }
}
