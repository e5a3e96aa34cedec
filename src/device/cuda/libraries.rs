//! Which CUDA libraries this process can use, and why not.
//!
//! cudarc loads a library at the first call into it and panics where there is none, so that everything here asks first.
//! The variable `TURRET_CUDA_LIBS` names a folder whose libraries are loaded before any other is looked for.

use super::nccl::nccl;
use cudarc::{cublas, cublaslt, cudnn, driver, nvrtc};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The variable that names a folder with the libraries, such as the one of a pip-installed CUDA.
pub const LIBRARY_FOLDER: &str = "TURRET_CUDA_LIBS";

/// The oldest driver, as the driver counts (1000 · major + 10 · minor): CUDA 11.4.
const OLDEST_DRIVER: i32 = 11_040;

/// A library of CUDA's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Library {
    /// The driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Products.
    Cublas,
    /// Products with bias and ReLU.
    CublasLt,
    /// Convolutions.
    Cudnn,
    /// Sums over GPUs.
    Nccl,
}

impl Library {
    /// All, in the order in which they are loaded.
    pub const ALL: [Library; 6] =
        [Library::Driver, Library::Nvrtc, Library::CublasLt, Library::Cublas, Library::Cudnn, Library::Nccl];

    /// Its file name, without a version.
    pub fn file(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so",
            Library::Nvrtc => "libnvrtc.so",
            Library::Cublas => "libcublas.so",
            Library::CublasLt => "libcublasLt.so",
            Library::Cudnn => "libcudnn.so",
            Library::Nccl => "libnccl.so.2",
        }
    }

    /// What turret uses it for.
    pub fn purpose(self) -> &'static str {
        match self {
            Library::Driver => "the driver: memory, streams, launches",
            Library::Nvrtc => "compiles kernels for the card",
            Library::Cublas => "matrix products",
            Library::CublasLt => "matrix products with bias and ReLU",
            Library::Cudnn => "convolutions",
            Library::Nccl => "all-reduce between GPUs",
        }
    }

    /// True if nothing runs on CUDA without it.
    pub fn is_needed(self) -> bool {
        matches!(self, Library::Driver | Library::Nvrtc | Library::Cublas)
    }

    fn remedy(self) -> &'static str {
        match self {
            Library::Driver => "install NVIDIA's driver",
            _ => "install the CUDA toolkit, or its pip wheel and name the wheel's lib folder in TURRET_CUDA_LIBS",
        }
    }
}

/// Whether a library can be used; if not, why, and what helps. Each is looked for once, and stays loaded.
pub fn find(library: Library) -> Result<(), String> {
    static FOUND: [OnceLock<Result<(), String>>; Library::ALL.len()] = [const { OnceLock::new() }; Library::ALL.len()];
    FOUND[library as usize].get_or_init(|| look_for(library)).clone()
}

fn look_for(library: Library) -> Result<(), String> {
    let refused = preload();
    // SAFETY: the probes only load the library, whose initialisers are NVIDIA's; `culib`, which panics where there is
    // none, keeps it loaded, which the probe does not.
    let kept = unsafe {
        match library {
            Library::Driver => driver::sys::is_culib_present().then(|| driver::sys::culib()),
            Library::Nvrtc => nvrtc::sys::is_culib_present().then(|| nvrtc::sys::culib()),
            Library::Cublas => cublas::sys::is_culib_present().then(|| cublas::sys::culib()),
            Library::CublasLt => cublaslt::sys::is_culib_present().then(|| cublaslt::sys::culib()),
            Library::Cudnn => cudnn::sys::is_culib_present().then(|| cudnn::sys::culib()),
            Library::Nccl => return nccl().map(|_| ()),
        }
    };
    if kept.is_some() {
        return if library == Library::Nvrtc { fits_driver() } else { Ok(()) };
    }
    let refused = refused.iter().find(|(l, _)| *l == library).map(|(_, why)| format!(" ({why})"));
    Err(format!("{} was not found{}; {}", library.file(), refused.unwrap_or_default(), library.remedy()))
}

/// NVRTC's code is for drivers of its own major version or newer.
fn fits_driver() -> Result<(), String> {
    if device_count().is_err() {
        return Ok(());
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are to live integers.
    let said = unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    let driver = raw_driver_version() / 1000;
    if said.result().is_err() || major <= driver {
        return Ok(());
    }
    Err(format!(
        "libnvrtc.so was found, but it is of CUDA {major}.{minor} and the driver of CUDA {driver}; install the libraries of \
         CUDA {driver} (pip's wheels end in -cu{driver} there), or a newer driver"
    ))
}

/// A function of the driver that cudarc knows by a newer name only.
///
/// # Safety
/// `F` is the function's type.
pub(super) unsafe fn driver_function<F: Copy>(name: &'static [u8]) -> Option<F> {
    find(Library::Driver).ok()?;
    // SAFETY: the library is loaded for good; the type is the caller's business.
    unsafe { driver::sys::culib().get::<F>(name).ok().map(|f| *f) }
}

/// The number of GPUs that the driver shows, or why there are none.
pub fn device_count() -> Result<usize, String> {
    static COUNT: OnceLock<Result<usize, String>> = OnceLock::new();
    COUNT.get_or_init(count_devices).clone()
}

/// The driver's CUDA version, as in `13.0`.
pub fn driver_version() -> Result<String, String> {
    device_count()?;
    let version = raw_driver_version();
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}

fn raw_driver_version() -> i32 {
    let mut version = 0;
    // SAFETY: the pointer is to a live integer, and the driver is loaded.
    let result = unsafe { driver::sys::cuDriverGetVersion(&mut version) };
    if result == driver::sys::CUresult::CUDA_SUCCESS { version } else { 0 }
}

fn count_devices() -> Result<usize, String> {
    find(Library::Driver)?;
    // SAFETY: cuInit may be called at any time.
    let result = unsafe { driver::sys::cuInit(0) };
    if result != driver::sys::CUresult::CUDA_SUCCESS {
        return Err(format!(
            "libcuda.so is there, but cuInit says {result:?}; see that the driver runs (nvidia-smi) and that \
             CUDA_VISIBLE_DEVICES shows a GPU"
        ));
    }
    let version = raw_driver_version();
    if version < OLDEST_DRIVER {
        return Err(format!(
            "the driver is for CUDA {}.{}, want 11.4 or newer; update it",
            version / 1000,
            version % 1000 / 10
        ));
    }
    let count = driver::result::device::get_count().map_err(|e| format!("cuDeviceGetCount says {:?}", e.0))?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("the driver shows no GPU; see CUDA_VISIBLE_DEVICES".into()),
    }
}

/// Loads the libraries of the named folder, once; gives those that are there but could not be loaded.
fn preload() -> &'static [(Library, String)] {
    static REFUSED: OnceLock<Vec<(Library, String)>> = OnceLock::new();
    REFUSED.get_or_init(|| {
        let Some(folder) = std::env::var_os(LIBRARY_FOLDER).filter(|f| !f.is_empty()).map(PathBuf::from) else {
            return Vec::new();
        };
        // NVRTC opens a part of itself by name, which is found if it is loaded; NCCL is looked up apart.
        load_all(&folder, "libnvrtc-builtins.so");
        let all = Library::ALL.iter().filter(|l| **l != Library::Nccl);
        all.filter_map(|l| Some((*l, load_from(&folder, *l).err()?))).collect()
    })
}

/// Loads the files of a folder whose names begin so; what cannot be loaded is missed by whoever needs it.
fn load_all(folder: &Path, beginning: &str) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_name().to_string_lossy().starts_with(beginning)) {
        // SAFETY: the user names this folder; the library stays loaded.
        if let Ok(loaded) = unsafe { libloading::os::unix::Library::open(Some(entry.path()), flags()) } {
            std::mem::forget(loaded);
        }
    }
}

fn load_from(folder: &Path, library: Library) -> Result<(), String> {
    let versions = ["", ".13", ".12", ".11", ".9", ".1"];
    let paths = versions.iter().map(|v| folder.join(format!("{}{v}", library.file())));
    let Some(path) = paths.into_iter().find(|p| p.exists()) else {
        return Err(format!("{LIBRARY_FOLDER} names {}, which has no {}", folder.display(), library.file()));
    };
    // SAFETY: the user names this folder; the library stays loaded, so that later lookups by name find it.
    match unsafe { libloading::os::unix::Library::open(Some(&path), flags()) } {
        Ok(loaded) => {
            std::mem::forget(loaded);
            Ok(())
        }
        Err(e) => Err(format!("{} could not be loaded: {e}", path.display())),
    }
}

fn flags() -> std::ffi::c_int {
    libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_GLOBAL
}
