//! Puts the library in a folder under the names by which CUDA's libraries are looked for.
//!
//! Each name is a small library with that SONAME that depends on the one with all the code, so all share one state. One
//! that was loaded by its path is found again by its SONAME: a program that loads `DIR/libcuda.so` and the others first
//! needs no `LD_LIBRARY_PATH`, and one that has it needs no loading.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The names, as a program looks for them.
pub const NAMES: [&str; 6] = ["cuda", "nvrtc", "cublas", "cublasLt", "cudnn", "nccl"];
const LIBRARY: &str = "libturret_standin.so";

/// The library with all the code, beside the program that runs or above it.
pub fn library() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("the program's own path is not known: {e}"))?;
    let folders = program.ancestors().skip(1).take(3).flat_map(|f| [f.to_path_buf(), f.join("deps")]);
    let found: Vec<PathBuf> = folders.map(|f| f.join(LIBRARY)).filter(|p| p.exists()).collect();
    let newest = found.into_iter().max_by_key(|p| std::fs::metadata(p).and_then(|m| m.modified()).ok());
    newest.ok_or_else(|| {
        format!("no {LIBRARY} near {}; build it with `cargo build -p turret-standin`", program.display())
    })
}

/// Fills a folder with the six libraries. Several processes may do so at the same time.
pub fn install(dir: &Path) -> Result<(), String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the stand-in driver runs on Linux with x86-64 only".into());
    }
    let (compiler, _) = crate::nvrtc::compiler().ok_or("no C++ compiler (c++, g++ or clang++)")?;
    let library = library()?;
    let library = library.canonicalize().map_err(|e| format!("cannot find {}: {e}", library.display()))?;
    std::fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let mark = dir.join("turret-standin.path");
    let stubs = NAMES.map(|n| dir.join(format!("lib{n}.so")));
    let whole = std::fs::read(&mark).is_ok_and(|m| m == library.as_os_str().as_encoded_bytes())
        && stubs.iter().all(|s| s.exists());
    if whole {
        return Ok(());
    }
    let mut first: Option<PathBuf> = None;
    for (name, stub) in NAMES.iter().zip(&stubs) {
        let temporary = dir.join(format!(".lib{name}.{}.{:?}.so", std::process::id(), std::thread::current().id()));
        let output = Command::new(compiler)
            .args(["-shared", "-nostdlib", "-o"])
            .arg(&temporary)
            .arg(format!("-Wl,-soname,lib{name}.so"))
            .arg("-Wl,--no-as-needed")
            .arg(&library)
            .output()
            .map_err(|e| format!("cannot run {compiler}: {e}"))?;
        if !output.status.success() {
            return Err(format!(
                "{compiler} cannot make {}: {}",
                stub.display(),
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        std::fs::rename(&temporary, stub).map_err(|e| format!("cannot write {}: {e}", stub.display()))?;
        first.get_or_insert_with(|| stub.clone());
    }
    let temporary = dir.join(format!(".mark.{}.{:?}", std::process::id(), std::thread::current().id()));
    std::fs::write(&temporary, library.as_os_str().as_encoded_bytes())
        .and_then(|()| std::fs::rename(&temporary, &mark))
        .map_err(|e| format!("cannot write {}: {e}", mark.display()))
}

/// Loads the six libraries of a folder, so that cudarc finds them by name.
pub fn preload(dir: &Path) -> Result<(), String> {
    for name in NAMES {
        let path = dir.join(format!("lib{name}.so"));
        let text = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| format!("{} has a zero byte", path.display()))?;
        // SAFETY: loading the library runs none of its code.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(format!("cannot load {}", path.display()));
        }
    }
    Ok(())
}
