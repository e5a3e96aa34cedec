//! Compiled kernels of one context: texts are compiled by NVRTC for the card that is there, several in one go, and kept
//! on disk for the next program.
//!
//! The cache folder is `$TURRET_CACHE`, else `turret` under the user's cache folder. A file that cannot be used is
//! compiled anew; a folder that cannot be written is no error.

use super::PRELUDE;
use super::call::{Called, CudaError, CudaResult};
use super::code::CudaCode;
use super::context::Context;
use cudarc::driver::result;
use cudarc::driver::sys::{CUfunction, CUmodule};
use cudarc::nvrtc::{result as nvrtc, sys};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Options of every compilation: each operation is rounded by itself, as on the host.
const OPTIONS: [&str; 2] = ["--fmad=false", "--std=c++17"];

/// What a context has compiled or loaded.
#[derive(Default)]
pub struct Kernels {
    functions: HashMap<u128, CUfunction>,
    modules: HashMap<u128, CUmodule>,
}

// SAFETY: handles of a context that lives as long as the process.
unsafe impl Send for Kernels {}

impl Kernels {
    /// Sees to it that all these texts are compiled.
    ///
    /// # Errors
    /// What the compiler says, with the line.
    pub fn prepare<'a>(&mut self, context: &Context, codes: impl IntoIterator<Item = &'a CudaCode>) -> CudaResult<()> {
        let mut missing: Vec<(u128, &CudaCode)> = codes.into_iter().map(|c| (fingerprint(c.text()), c)).collect();
        missing.sort_by_key(|(f, _)| *f);
        missing.dedup_by_key(|(f, _)| *f);
        missing.retain(|(f, _)| !self.functions.contains_key(f));
        if missing.is_empty() {
            return Ok(());
        }
        context.bind()?;
        missing.retain(|(f, _)| self.load_from_process(context.capability, *f).is_none());
        let folder = folder(context);
        missing.retain(|(f, _)| self.load_from_disk(folder.as_ref(), *f).is_none());
        if missing.is_empty() {
            return Ok(());
        }
        let text = module_text(&missing);
        let batch = fingerprint(&text);
        let image = compile(&text, context.capability)?;
        self.load(batch, &image)?;
        for (f, _) in &missing {
            self.find(batch, *f)?;
        }
        let image: Arc<[u8]> = image.into();
        let mut images = images();
        for (f, _) in &missing {
            images.insert((context.capability, *f), (batch, image.clone()));
        }
        drop(images);
        if let Some(folder) = folder {
            keep(&folder, batch, &image, &missing);
        }
        Ok(())
    }

    /// A prepared text's function.
    pub(super) fn function(&self, code: &CudaCode) -> CudaResult<CUfunction> {
        let found = self.functions.get(&fingerprint(code.text())).copied();
        found.ok_or_else(|| CudaError::refused("cuModuleGetFunction", "a kernel that was not prepared"))
    }

    fn load_from_process(&mut self, capability: i32, f: u128) -> Option<()> {
        let (batch, image) = images().get(&(capability, f)).cloned()?;
        if !self.modules.contains_key(&batch) {
            self.load(batch, &image).ok()?;
        }
        self.find(batch, f).ok()
    }

    fn load_from_disk(&mut self, folder: Option<&PathBuf>, f: u128) -> Option<()> {
        let folder = folder?;
        let batch = std::fs::read_to_string(folder.join(format!("{f:032x}.in"))).ok()?;
        let batch = u128::from_str_radix(batch.trim(), 16).ok()?;
        if !self.modules.contains_key(&batch) {
            let image = std::fs::read(folder.join(format!("{batch:032x}.cubin"))).ok()?;
            self.load(batch, &image).ok()?;
        }
        self.find(batch, f).ok()
    }

    fn load(&mut self, batch: u128, image: &[u8]) -> CudaResult<()> {
        // The driver reads a text image up to its final zero.
        let mut image = image.to_vec();
        image.push(0);
        // SAFETY: the image is whole and ends with a zero byte.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }.called("cuModuleLoadData")?;
        self.modules.insert(batch, module);
        Ok(())
    }

    fn find(&mut self, batch: u128, f: u128) -> CudaResult<()> {
        let Some(&module) = self.modules.get(&batch) else {
            return Err(CudaError::refused("cuModuleGetFunction", "a module that was not loaded"));
        };
        let name = CString::new(entry(f)).unwrap_or_default();
        // SAFETY: the module is loaded and stays so.
        let function = unsafe { result::module::get_function(module, name) }.called("cuModuleGetFunction")?;
        self.functions.insert(f, function);
        Ok(())
    }
}

/// What this process has compiled, by card and text, so that several GPUs of one kind compile once.
type Images = HashMap<(i32, u128), (u128, Arc<[u8]>)>;

fn images() -> MutexGuard<'static, Images> {
    static IMAGES: OnceLock<Mutex<Images>> = OnceLock::new();
    IMAGES.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner())
}

/// The name of a kernel in its module.
fn entry(fingerprint: u128) -> String {
    format!("turret_{fingerprint:032x}")
}

/// The text of a module: the prelude, then each kernel in a namespace of its own.
fn module_text(codes: &[(u128, &CudaCode)]) -> String {
    let mut text = String::from(PRELUDE);
    for (f, code) in codes {
        let named = code.text().replace("ENTRY", &entry(*f));
        text.push_str(&format!("\nnamespace n_{f:032x} {{\n{named}\n}}\n"));
    }
    text
}

fn fingerprint(text: &str) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, text, PRELUDE, OPTIONS).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// Compiles a module for a card.
fn compile(text: &str, capability: i32) -> CudaResult<Vec<u8>> {
    let source = CString::new(text).map_err(|_| CudaError::refused("nvrtcCreateProgram", "a zero byte in a kernel"))?;
    let failed = |call, e: nvrtc::NvrtcError| CudaError::refused(call, format!("{:?}", e.0));
    let program = nvrtc::create_program(&source, Some(c"turret.cu")).map_err(|e| failed("nvrtcCreateProgram", e))?;
    let target = Target::of(capability);
    let mut options = vec![target.option()];
    options.extend(OPTIONS.map(String::from));
    // SAFETY: the program lives until it is destroyed below; the buffers have the sizes that NVRTC told.
    unsafe {
        let compiled = nvrtc::compile_program(program, &options);
        let image = match compiled {
            Ok(()) if target.is_ptx => {
                let text = nvrtc::get_ptx(program).map_err(|e| failed("nvrtcGetPTX", e));
                text.map(|t| t.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect())
            }
            Ok(()) => cubin(program),
            Err(e) => {
                let log = nvrtc::get_program_log(program).map(|l| log_text(&l)).unwrap_or_default();
                Err(CudaError::refused("nvrtcCompileProgram", format!("{:?} for {}: {log}", e.0, target.option())))
            }
        };
        let _ = nvrtc::destroy_program(program);
        image
    }
}

/// What to compile for.
struct Target {
    capability: i32,
    /// Text for the driver's own compiler, where the card is newer than NVRTC.
    is_ptx: bool,
}

impl Target {
    fn of(capability: i32) -> Target {
        let mut count = 0;
        // SAFETY: the first call tells how long the list of the second is.
        let known = unsafe {
            let said = sys::nvrtcGetNumSupportedArchs(&mut count);
            let mut list = vec![0; usize::try_from(count).unwrap_or(0)];
            let both = said.result().and_then(|()| sys::nvrtcGetSupportedArchs(list.as_mut_ptr()).result());
            both.map(|()| list).unwrap_or_default()
        };
        let newest = known.iter().copied().filter(|a| *a <= capability).max();
        match newest {
            Some(newest) if newest < capability => Target { capability: newest, is_ptx: true },
            _ => Target { capability, is_ptx: false },
        }
    }

    fn option(&self) -> String {
        let kind = if self.is_ptx { "compute" } else { "sm" };
        format!("--gpu-architecture={kind}_{}", self.capability)
    }
}

/// # Safety
/// The program was compiled.
unsafe fn cubin(program: sys::nvrtcProgram) -> CudaResult<Vec<u8>> {
    let failed = |call| move |e: nvrtc::NvrtcError| CudaError::refused(call, format!("{:?}", e.0));
    let mut size = 0;
    // SAFETY: by the contract, and the buffer has the size that NVRTC told.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &mut size).result().map_err(failed("nvrtcGetCUBINSize"))?;
        let mut image = vec![0u8; size];
        sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result().map_err(failed("nvrtcGetCUBIN"))?;
        Ok(image)
    }
}

fn log_text(log: &[c_char]) -> String {
    let bytes: Vec<u8> = log.iter().map(|c| *c as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map(|c| c.to_string_lossy().into_owned());
    text.unwrap_or_default().trim().to_string()
}

/// Where this card's kernels are kept.
fn folder(context: &Context) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let root = set("TURRET_CACHE").or_else(|| {
        let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
        Some(caches.join("turret"))
    })?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are to live integers.
    let said = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    let version = if said.result().is_ok() { format!("{major}.{minor}") } else { "unknown".into() };
    Some(root.join(format!("sm_{}-nvrtc-{version}", context.capability)))
}

/// Puts a module on disk: the image first, then a pointer to it for each kernel; each appears whole or not at all.
fn keep(folder: &std::path::Path, batch: u128, image: &[u8], codes: &[(u128, &CudaCode)]) {
    let put = |name: String, bytes: &[u8]| -> std::io::Result<()> {
        let temporary = folder.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
        std::fs::write(&temporary, bytes)?;
        std::fs::rename(temporary, folder.join(name))
    };
    let all = || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        put(format!("{batch:032x}.cubin"), image)?;
        codes.iter().try_for_each(|(f, _)| put(format!("{f:032x}.in"), format!("{batch:032x}\n").as_bytes()))
    };
    // Without the files the next program compiles again.
    let _ = all();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_names_each_kernel_and_keeps_them_apart() {
        let (a, b) = (CudaCode::new("void ENTRY(int a) {}"), CudaCode::new("void ENTRY(int b) {}"));
        let codes: Vec<(u128, &CudaCode)> = [&a, &b].map(|c| (fingerprint(c.text()), c)).to_vec();
        assert_ne!(codes[0].0, codes[1].0);
        let text = module_text(&codes);
        assert!(text.starts_with(PRELUDE) && !text[PRELUDE.len()..].contains("ENTRY"));
        assert_eq!(text.matches("namespace n_").count(), 2);
        assert!(text.contains(&format!("void {}(int b)", entry(codes[1].0))));
    }
}
