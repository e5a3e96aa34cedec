//! NVRTC: compiles the very text of the kernels with the host's C++ compiler, once for each text, kept by hash.
//!
//! What stands for the PTX and for the CUBIN is a line that names the library; `cuModuleLoadData` reads it.

use crate::kernel::MAGIC;
use crate::scan;
use crate::state::{call, say};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

const KERNEL_H: &str = include_str!("shim/kernel.h");
const HOOKS: &str = include_str!("shim/hooks.cpp");
const OK: c_int = 0;
const INVALID_INPUT: c_int = 3;
const INVALID_PROGRAM: c_int = 4;
const COMPILATION: c_int = 6;
const NAME_NOT_VALID: c_int = 10;

#[derive(Default)]
struct Program {
    source: String,
    name: String,
    log: String,
    image: String,
    names: Vec<std::ffi::CString>,
}

static PROGRAMS: Mutex<(u64, BTreeMap<u64, Program>)> = Mutex::new((0, BTreeMap::new()));

/// The first C++ compiler that is there, and whether it is clang.
pub fn compiler() -> Option<&'static (String, bool)> {
    static FOUND: OnceLock<Option<(String, bool)>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            ["c++", "g++", "clang++"].iter().find_map(|name| {
                let output = Command::new(name).arg("--version").output().ok().filter(|o| o.status.success())?;
                Some(((*name).to_owned(), String::from_utf8_lossy(&output.stdout).contains("clang")))
            })
        })
        .as_ref()
}

/// The folder that keeps compiled modules, one for each user.
fn cache() -> PathBuf {
    // SAFETY: geteuid has no conditions.
    std::env::temp_dir().join(format!("turret-standin-{}", unsafe { libc::geteuid() }))
}

fn hash(value: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("cannot run {:?}: {e}", command.get_program()))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Writes a file so that others see all of it or nothing.
fn place(path: &Path, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    if path.exists() {
        return Ok(());
    }
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let ending = path.extension().map_or(String::new(), |e| e.to_string_lossy().into_owned());
    let temporary = path.with_extension(format!("{}.{n}.{ending}", std::process::id()));
    make(&temporary)?;
    std::fs::rename(&temporary, path).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn text(content: String) -> impl FnOnce(&Path) -> Result<(), String> {
    move |path| std::fs::write(path, content).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Flags that both compilers take. Compiling takes longer than running for most tests' kernels, so it is kept short.
const FLAGS: [&str; 14] = [
    "-std=c++17",
    "-c",
    "-fPIC",
    "-w",
    "-O1",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-fno-tree-vectorize",
    "-fno-stack-protector",
    "-fstack-clash-protection",
];

fn instrumented(clang: bool) -> &'static [&'static str] {
    if clang {
        &["-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-distinguish-volatile=1"]
    } else {
        &[
            "-fsanitize=thread",
            "--param",
            "tsan-instrument-func-entry-exit=0",
            "--param",
            "tsan-distinguish-volatile=1",
            "-fno-tree-loop-distribute-patterns",
            "-finline-small-functions",
            "-fno-gnu-unique",
        ]
    }
}

/// The text with its macros expanded, where they make kernels; CUDA's own words stay.
fn expand(
    source: &str,
    name: &str,
    defines: &[String],
    library: &Path,
    compiler: &str,
) -> Result<Option<String>, String> {
    if !scan::in_macros(source) {
        return Ok(None);
    }
    let plain = library.with_extension("cu");
    place(&plain, text(format!("#line 1 \"{name}\"\n{source}")))?;
    let own = ["-DTURRET_STANDIN=1", "-D__CUDA_ARCH__=900"];
    let mut command = Command::new(compiler);
    let output = command.args(["-E", "-w", "-x", "c++", "-std=c++17"]).args(own).args(defines).arg(&plain).output();
    let output = output.map_err(|e| format!("cannot run {compiler}: {e}"))?;
    if !output.status.success() {
        let _ = std::fs::remove_file(&plain);
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Compiles a text into a library; its path, or the compiler's log.
fn build(source: &str, name: &str, defines: &[String]) -> Result<PathBuf, String> {
    let (compiler, clang) = compiler().ok_or("no C++ compiler (c++, g++ or clang++)")?;
    let own = hash((KERNEL_H, HOOKS, FLAGS, instrumented(*clang), compiler));
    let folder = cache().join(&own);
    let library = folder.join(format!("{}.so", hash((source, name, defines))));
    if library.exists() {
        return Ok(library);
    }
    std::fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    place(&folder.join("kernel.h"), text(KERNEL_H.into()))?;
    place(&folder.join("hooks.cpp"), text(HOOKS.into()))?;
    let hooks = folder.join("hooks.o");
    place(&hooks, |to| {
        run(Command::new(compiler).args(FLAGS).args(["-O2", "-o"]).arg(to).arg(folder.join("hooks.cpp")))
    })?;

    let expanded = expand(source, name, defines, &library, compiler)?;
    let source = expanded.as_deref().unwrap_or(source);
    let mut rows = String::new();
    let kernels = scan::kernels(source);
    for kernel in kernels.iter().filter(|k| k.extern_c) {
        rows += &format!("STANDIN_ENTRY({}, \"{}\")\n", kernel.path, kernel.name);
    }
    let count = kernels.iter().filter(|k| k.extern_c).count();
    if count == 0 {
        let others: Vec<&str> = kernels.iter().map(|k| k.name.as_str()).collect();
        say(&format!("{name} has no `extern \"C\"` kernels; others: {}", others.join(", ")));
        rows = "{0, 0, 0, 0, 0}".into();
    }
    // All in a namespace without a name: so shared arrays of inline functions and of templates are plain ones too.
    let whole = format!(
        "#include \"kernel.h\"\nnamespace {{\n#line 1 \"{name}\"\n{}\n}}\nextern \"C\" {{\n#pragma GCC visibility push(default)\nextern const int standin_count = {count};\nextern const standin_entry standin_table[] = {{\n{rows}}};\n}}\n",
        scan::dynamic_shared(source)
    );
    let unit = library.with_extension("cpp");
    place(&unit, text(whole))?;
    place(&library, |to| {
        let object = to.with_extension("o");
        let mut command = Command::new(compiler);
        command
            .args(FLAGS)
            .args(instrumented(*clang))
            .args(defines)
            .arg("-I")
            .arg(&folder)
            .arg("-o")
            .arg(&object)
            .arg(&unit);
        let built = run(&mut command).and_then(|()| {
            let mut link = Command::new(compiler);
            run(link.args(["-shared", "-nostdlib", "-o"]).arg(to).arg(&object).arg(&hooks).args(["-lm", "-lc"]))
        });
        let _ = std::fs::remove_file(&object);
        built
    })
    .inspect_err(|_| drop(std::fs::remove_file(&unit)))?;
    Ok(library)
}

fn with<T>(handle: u64, action: impl FnOnce(&mut Program) -> T) -> Option<T> {
    PROGRAMS.lock().unwrap_or_else(|e| e.into_inner()).1.get_mut(&handle).map(action)
}

fn counted(name: &str) -> c_int {
    call(name, |_| Ok(()))
}

unsafe fn string(at: *const c_char) -> String {
    // SAFETY: the caller's pointer is null or a string.
    if at.is_null() { String::new() } else { unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned() }
}

/// The definitions among NVRTC's options, as the host's compiler takes them.
fn defines(options: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match option.strip_prefix("--define-macro").or(option.strip_prefix("-D")) {
            Some("") => found.extend(options.next().map(|d| format!("-D{d}"))),
            Some(rest) => found.push(format!("-D{}", rest.trim_start_matches('='))),
            None => {}
        }
    }
    found
}

macro_rules! nvrtc {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            counted(stringify!($name));
            // SAFETY: the caller's pointers are as NVRTC's interface wants them.
            unsafe { $body }
        }
    )* };
}

unsafe fn put(value: Option<String>, to: *mut c_char) -> c_int {
    let Some(value) = value else { return INVALID_PROGRAM };
    // SAFETY: the caller's buffer has room for what the size function told.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast::<u8>(), value.len());
        to.add(value.len()).write(0);
    }
    OK
}

unsafe fn size(value: Option<usize>, to: *mut usize) -> c_int {
    let Some(value) = value else { return INVALID_PROGRAM };
    // SAFETY: the caller's pointer is to a size.
    unsafe { to.write(value + 1) };
    OK
}

nvrtc! {
    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) {
        (*major, *minor) = (13, 0);
        OK
    }
    fn nvrtcGetNumSupportedArchs(n: *mut c_int) {
        *n = 3;
        OK
    }
    fn nvrtcGetSupportedArchs(archs: *mut c_int) {
        [80, 90, 100].iter().enumerate().for_each(|(i, a)| archs.add(i).write(*a));
        OK
    }
    fn nvrtcCreateProgram(out: *mut u64, source: *const c_char, name: *const c_char, headers: c_int, _h: *const *const c_char, _n: *const *const c_char) {
        if source.is_null() {
            return INVALID_INPUT;
        }
        if headers > 0 {
            say("nvrtcCreateProgram: headers are not taken; put all of it in one text");
            return INVALID_INPUT;
        }
        let mut name = string(name).replace(['"', '\\', '\n'], "_");
        if name.is_empty() {
            name = "default_program".into();
        }
        let mut programs = PROGRAMS.lock().unwrap_or_else(|e| e.into_inner());
        programs.0 += 1;
        let handle = programs.0;
        programs.1.insert(handle, Program { source: string(source), name, ..Program::default() });
        *out = handle;
        OK
    }
    fn nvrtcDestroyProgram(program: *mut u64) {
        let known = PROGRAMS.lock().unwrap_or_else(|e| e.into_inner()).1.remove(&*program).is_some();
        *program = 0;
        if known { OK } else { INVALID_PROGRAM }
    }
    fn nvrtcCompileProgram(program: u64, count: c_int, options: *const *const c_char) {
        let options: Vec<String> = (0..count.max(0) as usize).map(|i| string(*options.add(i))).collect();
        let Some((source, name)) = with(program, |p| (p.source.clone(), p.name.clone())) else { return INVALID_PROGRAM };
        let refused = call("nvrtcCompileProgram:fault", |s| if s.faults.always("nvrtc") { Err(COMPILATION) } else { Ok(()) });
        let built = if refused != 0 {
            Err(format!("{name}(1): error: compiling fails by the fault that was asked for\n"))
        } else {
            build(&source, &name, &defines(&options))
        };
        with(program, |p| match built {
            Ok(library) => {
                p.image = format!("{MAGIC}{}\n", library.display());
                OK
            }
            Err(log) => {
                p.log = log;
                COMPILATION
            }
        })
        .unwrap_or(INVALID_PROGRAM)
    }
    fn nvrtcGetPTXSize(program: u64, n: *mut usize) { size(with(program, |p| p.image.len()), n) }
    fn nvrtcGetPTX(program: u64, to: *mut c_char) { put(with(program, |p| p.image.clone()), to) }
    fn nvrtcGetCUBINSize(program: u64, n: *mut usize) { size(with(program, |p| p.image.len()), n) }
    fn nvrtcGetCUBIN(program: u64, to: *mut c_char) { put(with(program, |p| p.image.clone()), to) }
    fn nvrtcGetProgramLogSize(program: u64, n: *mut usize) { size(with(program, |p| p.log.len()), n) }
    fn nvrtcGetProgramLog(program: u64, to: *mut c_char) { put(with(program, |p| p.log.clone()), to) }
    fn nvrtcAddNameExpression(program: u64, name: *const c_char) {
        let name = CStr::from_ptr(name).to_owned();
        with(program, |p| p.names.push(name)).map_or(INVALID_PROGRAM, |()| OK)
    }
    fn nvrtcGetLoweredName(program: u64, name: *const c_char, lowered: *mut *const c_char) {
        let want = CStr::from_ptr(name);
        let found = with(program, |p| p.names.iter().find(|n| n.as_c_str() == want).map(|n| n.as_ptr() as usize)).flatten();
        let Some(at) = found else { return NAME_NOT_VALID };
        *lowered = at as *const c_char;
        OK
    }
}

/// `nvrtcGetErrorString`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        OK => c"NVRTC_SUCCESS",
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        NAME_NOT_VALID => c"NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
        _ => c"NVRTC_ERROR unknown",
    };
    text.as_ptr()
}
