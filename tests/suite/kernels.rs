//! The CUDA texts of all ops: that each fits its launch, and that NVIDIA's own compiler takes it for the GPUs that
//! turret is meant for, without spilling registers. Needs no GPU; without NVRTC the compiling is left out, and says so.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use turret::base::{Array, DType, Dims};
use turret::device::cuda::{
    CudaArg, CudaBuffer, CudaKernel, CudaLaunch, CudaMap, MapStep, Operand, PRELUDE, map_kernel,
};
use turret::graph::{Attr, Attrs, Fact, InferContext, KernelContext, OpRef, TensorDesc};
use turret::ops::{self, UpdateInputs, UpdateRule};

/// Ops that run on the host alone, and why.
const WITHOUT: &[(&str, &str)] = &[
    ("Print", "it writes to standard error, which is the host's"),
    ("Qr", "a small factorization in double precision, of initial values alone"),
];

/// Ops whose kernels may use local memory, and why.
const STACK: &[(&str, &str)] = &[
    ("Sin", "reducing a huge argument takes a table, which others never touch"),
    ("Cos", "as Sin"),
    ("Tan", "as Sin"),
    ("RandomStandardNormal", "as Sin, though no angle is huge"),
    ("TruncatedNormal", "as RandomStandardNormal"),
];

/// The GPUs: A100, H100 and H200, B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

/// Kernels compiled at once.
const BATCH: usize = 48;

/// Ops of these inputs with shapes that the cases are too small for, as an input's type and sizes; a number is the
/// value of a scalar that is known when the step is planned.
fn large() -> Vec<(&'static str, Attrs, Vec<Input>)> {
    let f = |dims: &[usize]| Input::Sizes(DType::F32, dims.to_vec());
    let i = |dims: &[usize]| Input::Sizes(DType::I32, dims.to_vec());
    let none = Attrs::new;
    let mut all = vec![
        ("CheckNumerics", none().with("message", "m"), vec![f(&[1 << 20])]),
        ("ArgMax", none(), vec![f(&[1 << 20]), Input::Number(0)]),
        ("ArgMin", none(), vec![f(&[1 << 14, 64]), Input::Number(0)]),
        ("Cumsum", none(), vec![f(&[1 << 20]), Input::Number(0)]),
        ("Cumprod", none(), vec![f(&[1 << 14, 64]), Input::Number(0)]),
        ("InTopKV2", none(), vec![f(&[64, 2000]), i(&[64]), i(&[])]),
        ("AddN", none().with("N", 40i64), (0..40).map(|_| f(&[1 << 20])).collect()),
    ];
    all.extend(updates());
    for op in ["AssignAdd", "AssignSub", "Assign"] {
        all.push((op, none(), vec![f(&[1000]), f(&[1000])]));
    }
    for op in ["ScatterAdd", "ScatterSub", "ScatterMul", "ScatterDiv", "ScatterMin", "ScatterMax", "ScatterUpdate"] {
        all.push((op, none(), vec![f(&[1000, 5]), i(&[5000]), f(&[5000, 5])]));
    }
    all.push(("GatherNd", none(), vec![f(&[100, 50, 3]), i(&[40_000, 2])]));
    all.push(("BatchMatMulV2", none(), vec![f(&[7, 1, 20, 30]), f(&[5, 30, 40])]));
    for classes in [40, 100, 200, 400, 1000, 5000, 50_000] {
        all.push(("Softmax", none(), vec![f(&[64, classes])]));
        all.push(("LogSoftmax", none(), vec![f(&[64, classes])]));
        all.push(("SoftmaxCrossEntropyWithLogits", none(), vec![f(&[64, classes]), f(&[64, classes])]));
        all.push(("SparseSoftmaxCrossEntropyWithLogits", none(), vec![f(&[64, classes]), i(&[64])]));
    }
    all
}

/// TensorFlow's updates of one variable, from dense gradients and from rows.
fn updates() -> Vec<(&'static str, Attrs, Vec<Input>)> {
    let f = |dims: &[usize]| Input::Sizes(DType::F32, dims.to_vec());
    let mut all = Vec::new();
    for rule in UpdateRule::ALL {
        for (op, rows) in [(Some(rule.dense_op()), false), (rule.sparse_op(), true)] {
            for option in [None, Some(("use_nesterov", true)), Some(("update_slots", false))] {
                let Some(op) = op else { continue };
                let inputs = rule.inputs().into_iter().flat_map(|run| match run {
                    UpdateInputs::Own => (0..1 + rule.slots().len()).map(|_| f(&[1000, 5])).collect(),
                    UpdateInputs::Powers => rule.powers().iter().map(|_| f(&[])).collect(),
                    UpdateInputs::Hypers(which) => which.map(|_| f(&[])).collect(),
                    UpdateInputs::Gradient if rows => vec![f(&[5000, 5]), Input::Sizes(DType::I32, vec![5000])],
                    UpdateInputs::Gradient => vec![f(&[1000, 5])],
                });
                let attrs = option.into_iter().fold(Attrs::new(), |attrs, (name, on)| attrs.with(name, on));
                all.push((op, attrs, inputs.collect()));
            }
        }
    }
    all
}

enum Input {
    Sizes(DType, Vec<usize>),
    Number(i32),
}

/// What is known of a text: an op that has it, and the most threads of a block.
#[derive(Default)]
struct Text {
    op: &'static str,
    threads: u32,
    /// Whether it is worth the compiler's time.
    compiled: bool,
}

/// The texts of all kernels, and what is wrong with them.
#[derive(Default)]
struct Collected {
    texts: BTreeMap<String, Text>,
    problems: Vec<String>,
}

impl Collected {
    /// Takes one op with these inputs, of which `values` are known; with types exchanged, an op may refuse.
    fn take(
        &mut self,
        op: OpRef,
        attrs: &Attrs,
        inputs: &[TensorDesc],
        values: &[Option<Arc<Array>>],
        (sure, compiled): (bool, bool),
    ) {
        let facts: Vec<Fact> = inputs.iter().map(|d| Fact::new(d.dtype, turret::base::Shape::known(&d.dims))).collect();
        let outputs = match op.infer(&InferContext { attrs, inputs: &facts, values }) {
            Ok(outputs) => outputs,
            Err(e) if sure => panic!("{}: {e}", op.name()),
            Err(_) => return,
        };
        let desc = |f: &Fact| TensorDesc { dtype: f.dtype, dims: f.shape.to_dims().expect("known sizes") };
        let descs: Vec<TensorDesc> = outputs.iter().map(desc).collect();
        let context = KernelContext { attrs, inputs, outputs: &descs, values };
        let held = op.traits().variable || op.traits().forwards.is_some() || op.constant(attrs).is_some();
        if held || op.must_be_fed() || outputs.is_empty() && op.written_inputs(attrs, inputs.len()).is_empty() {
            return;
        }
        let on_host = WITHOUT.iter().any(|(name, _)| *name == op.name());
        if op.has_cuda_kernel(attrs, &outputs) == on_host {
            let types: Vec<DType> = inputs.iter().map(|d| d.dtype).collect();
            let what = if on_host { "is listed as one that has none" } else { "has none, and is not listed" };
            self.problems.push(format!("CUDA kernels: {} of {types:?} {what}", op.name()));
        }
        if on_host || op.aliases(&context).is_some() || !op.has_cuda_kernel(attrs, &outputs) {
            return;
        }
        match op.cuda_kernel(&context) {
            Ok(kernel) => self.check(op, attrs, inputs.len(), &kernel, compiled),
            Err(e) => self.problems.push(format!("{} says it has a CUDA kernel, but: {e}", op.name())),
        }
    }

    fn check(&mut self, op: OpRef, attrs: &Attrs, inputs: usize, kernel: &CudaKernel, compiled: bool) {
        let written = op.written_inputs(attrs, inputs);
        for launch in kernel.all_launches() {
            let CudaLaunch::Code { code, args, threads, .. } = launch else { continue };
            let text = code.text();
            let mut wrong = |what: String| self.problems.push(format!("{}: {what}", op.name()));
            if text.matches("ENTRY").count() != 1 || text.contains("#include") {
                wrong("a text has one ENTRY and no header".into());
            }
            match parameters(text) {
                Some(parameters) => {
                    let expected: Vec<String> = args.iter().flat_map(expected).collect();
                    let fits = parameters.len() == expected.len()
                        && parameters.iter().zip(&expected).all(|(p, e)| p == e || e == "*" && p.ends_with('*'));
                    if !fits {
                        wrong(format!("the parameters are {parameters:?}, the arguments {args:?}"));
                    }
                    let mut places = args.iter().flat_map(|a| vec![a; expected_count(a)]).zip(&parameters);
                    let writes = places.find_map(|(a, p)| match a {
                        CudaArg::Buffer(CudaBuffer::Input(i, _)) if !p.starts_with("const ") => {
                            (!written.contains(i)).then_some(*i)
                        }
                        _ => None,
                    });
                    if let Some(i) = writes {
                        wrong(format!("input {i} is written, but the op does not say so"));
                    }
                }
                None => wrong(format!("no parameters found in {text}")),
            }
            if args.contains(&CudaArg::Failure) && kernel.failure.is_none() && written.is_empty() {
                wrong("a kernel that can fail has no message".into());
            }
            let entry = self.texts.entry(text.to_string()).or_default();
            entry.op = op.name();
            entry.threads = entry.threads.max(*threads);
            entry.compiled |= compiled;
        }
    }
}

fn expected_count(arg: &CudaArg) -> usize {
    expected(arg).len()
}

/// The types of the parameters that an argument fills.
fn expected(arg: &CudaArg) -> Vec<String> {
    let types: &[&str] = match arg {
        CudaArg::Buffer(_) => &["*"],
        CudaArg::Failure => &["volatile unsigned long long*", "unsigned int"],
        CudaArg::I32(_) => &["int"],
        CudaArg::U32(_) => &["unsigned int"],
        CudaArg::I64(_) => &["long long"],
        CudaArg::U64(_) => &["unsigned long long"],
        CudaArg::F32(_) => &["float"],
        CudaArg::F64(_) => &["double"],
    };
    types.iter().map(|t| t.to_string()).collect()
}

/// The types of the parameters of a text's kernel, with type names resolved.
fn parameters(text: &str) -> Option<Vec<String>> {
    let list = text.split_once("ENTRY(")?.1.split_once(')')?.0;
    let resolve = |word: &str| {
        let name = word.trim_end_matches('*');
        let stars = &word[name.len()..];
        let defined = |source: &str| {
            let line = source.lines().find(|l| l.starts_with("typedef ") && l.ends_with(&format!(" {name};")))?;
            Some(line["typedef ".len()..].trim_end_matches(&format!(" {name};")).to_string())
        };
        format!("{}{stars}", defined(text).or_else(|| defined(PRELUDE)).unwrap_or_else(|| name.to_string()))
    };
    let one = |parameter: &str| {
        let words: Vec<String> = parameter.split_whitespace().filter(|w| *w != "__restrict__").map(resolve).collect();
        let types = words[..words.len().saturating_sub(1)].join(" ").replace(" *", "*");
        if types == "unsigned" { "unsigned int".to_string() } else { types }
    };
    Some(list.split(',').map(one).collect())
}

fn collected() -> Collected {
    let mut all = Collected::default();
    let exchange = |dtype: DType, wide: (DType, DType)| if dtype == wide.0 { wide.1 } else { dtype };
    let same = (DType::F32, DType::F32);
    for op in ops::TABLE {
        for (number, case) in op.cases().into_iter().enumerate() {
            for wide in [same, (DType::F32, DType::F64), (DType::F32, DType::I32), (DType::I32, DType::I64)] {
                let mut attrs = case.attrs.clone();
                for (name, value) in case.attrs.iter() {
                    if let Attr::Type(dtype) = value {
                        attrs.set(name.to_string(), exchange(*dtype, wide));
                    }
                }
                let inputs: Vec<Arc<Array>> = (case.inputs.iter())
                    .map(|a| Arc::new(a.cast(exchange(a.dtype(), wide)).expect("numbers can be cast")))
                    .collect();
                let desc = |a: &Arc<Array>| TensorDesc { dtype: a.dtype(), dims: a.dims().into() };
                let descs: Vec<TensorDesc> = inputs.iter().map(desc).collect();
                let values: Vec<Option<Arc<Array>>> = inputs.into_iter().map(Some).collect();
                // Other types of the same structure say little more.
                all.take(*op, &attrs, &descs, &values, (wide == same, wide == same || number == 0));
            }
        }
    }
    for (name, attrs, inputs) in large() {
        let op = ops::find(name).unwrap_or_else(|| panic!("no op {name}"));
        for wide in [same, (DType::F32, DType::F64)] {
            let desc = |input: &Input| match input {
                Input::Sizes(dtype, dims) => TensorDesc { dtype: exchange(*dtype, wide), dims: dims[..].into() },
                Input::Number(_) => TensorDesc { dtype: DType::I32, dims: [][..].into() },
            };
            let value = |input: &Input| match input {
                Input::Sizes(..) => None,
                Input::Number(value) => Some(Arc::new(Array::scalar(*value))),
            };
            let descs: Vec<TensorDesc> = inputs.iter().map(desc).collect();
            let values: Vec<Option<Arc<Array>>> = inputs.iter().map(value).collect();
            all.take(op, &attrs, &descs, &values, (wide == same, true));
        }
    }
    for kernel in chains() {
        for launch in &kernel.launches {
            let CudaLaunch::Code { code, threads, .. } = launch else { continue };
            let (op, threads) = ("a chain of element-wise ops", *threads);
            all.texts.insert(code.text().to_string(), Text { op, threads, compiled: true });
        }
    }
    all
}

/// Chains of all element-wise ops from floats to floats that need no stack, over inputs of three sizes.
fn chains() -> Vec<CudaKernel> {
    let sizes: [&[usize]; 3] = [&[4, 3], &[3], &[]];
    let inputs: Vec<(DType, Dims)> = sizes.iter().map(|d| (DType::F32, Dims::from(*d))).collect();
    let whole = TensorDesc { dtype: DType::F32, dims: inputs[0].1.clone() };
    let fact = Fact::new(DType::F32, turret::base::Shape::known(&whole.dims));
    let attrs = Attrs::new();
    let mut maps = Vec::new();
    let stackless = ops::TABLE.iter().filter(|op| !STACK.iter().any(|(name, _)| *name == op.name()));
    for (op, count) in stackless.flat_map(|op| [(op, 1), (op, 2)]) {
        let (facts, descs, values) = (vec![fact.clone(); count], vec![whole.clone(); count], vec![None; count]);
        let inferred = op.infer(&InferContext { attrs: &attrs, inputs: &facts, values: &values });
        if inferred.is_ok_and(|outputs| outputs == [fact.clone()]) {
            let outputs = std::slice::from_ref(&whole);
            let context = KernelContext { attrs: &attrs, inputs: &descs, outputs, values: &values };
            maps.extend(op.cuda_map(&context).filter(|m| m.refuses.is_none()).map(|m| (m, count)));
        }
    }
    assert!(maps.len() > 30, "only {} element-wise ops of floats", maps.len());
    let chain = |part: &[(CudaMap, usize)]| {
        let step = |(i, (map, count)): (usize, &(CudaMap, usize))| {
            let before = i.checked_sub(1).map_or(Operand::Input(0), Operand::Step);
            let operands = [before, Operand::Input(i % 3)][..*count].to_vec();
            MapStep { map: map.clone(), dtype: DType::F32, operands }
        };
        let steps: Vec<MapStep> = part.iter().enumerate().map(step).collect();
        map_kernel(&steps, &inputs, &whole.dims).unwrap_or_else(|e| panic!("{e}"))
    };
    maps.chunks(40).map(chain).collect()
}

#[test]
fn every_op_has_cuda_kernels_that_fit_their_launches() {
    let mut problems = collected().problems;
    problems.dedup();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn nvrtc_compiles_every_text_without_spills() {
    let nvrtc = match Nvrtc::find() {
        Ok(nvrtc) => nvrtc,
        Err(why) => return println!("the CUDA texts were not compiled: {why}"),
    };
    let mut texts: Vec<(String, Text)> = collected().texts.into_iter().filter(|(_, t)| t.compiled).collect();
    // Loops over broadcast inputs are the same for all element-wise ops: each is compiled around one of them.
    let mut loops = BTreeSet::new();
    texts.retain(|(text, _)| match text.split_once("template <int W>") {
        Some((_, body)) if body.contains("place0") => loops.insert(body.to_string()),
        _ => true,
    });
    let (nvrtc, texts) = (&nvrtc, &texts[..]);
    let all: Vec<Compiled> = std::thread::scope(|s| {
        let threads = ARCHITECTURES.map(|architecture| s.spawn(move || compile(nvrtc, texts, architecture)));
        threads.into_iter().map(|t| t.join().expect("the compiler's thread ends")).collect()
    });
    let most = all.iter().map(|c| &c.most).max().expect("there are architectures");
    println!("{} texts; the most registers: {} ({})", texts.len(), most.0, most.1);
    let problems: Vec<String> = all.into_iter().flat_map(|c| c.problems).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What came of compiling everything for one kind of GPU.
#[derive(Default)]
struct Compiled {
    problems: Vec<String>,
    /// The most registers, and by what.
    most: (u32, String),
}

fn compile(nvrtc: &Nvrtc, texts: &[(String, Text)], architecture: &str) -> Compiled {
    let mut all = Compiled::default();
    for (number, batch) in texts.chunks(BATCH).enumerate() {
        let mut source = PRELUDE.to_string();
        for (i, (text, _)) in batch.iter().enumerate() {
            let at = number * BATCH + i;
            source += &format!("namespace n{at} {{\n{}\n}}\n", text.replace("ENTRY", &format!("k{at}")));
        }
        let (compiled, log) = nvrtc.compile(&source, architecture);
        if !compiled {
            let ops: Vec<&str> = batch.iter().map(|(_, t)| t.op).collect();
            all.problems.push(format!("{architecture}, kernels of {ops:?}:\n{log}"));
            continue;
        }
        for used in uses(&log) {
            let (text, Text { op, threads, .. }) = &texts[used.kernel];
            let of = format!("{op} on {architecture}");
            all.most = all.most.max((used.registers, of.clone()));
            let allowed = STACK.iter().any(|(name, _)| name == op);
            if used.spilled > 0 || used.stack > 0 && !allowed {
                all.problems.push(format!("{of}: {} bytes spilled, {} of stack\n{text}", used.spilled, used.stack));
            }
            // The register file has 65,536, given out to warps by the 256.
            if (used.registers * 32).next_multiple_of(256) * threads.div_ceil(32) > 65_536 {
                all.problems.push(format!("{of}: blocks of {threads} threads with {} registers", used.registers));
            }
        }
    }
    all
}

/// What `ptxas -v` tells of one kernel.
#[derive(Default)]
struct Uses {
    kernel: usize,
    registers: u32,
    spilled: u32,
    stack: u32,
}

fn uses(log: &str) -> Vec<Uses> {
    let number = |text: &str| text.trim().split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut all: Vec<Uses> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function 'k") {
            let kernel = rest.split('\'').next().and_then(|n| n.parse().ok()).expect("our names are numbers");
            all.push(Uses { kernel, ..Uses::default() });
        }
        let Some(last) = all.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            let counts: Vec<u32> = line.split([',', '.']).map(number).filter(|&n| n > 0).collect();
            last.stack = if line.contains(" 0 bytes stack frame") { 0 } else { counts[0] };
            last.spilled = ["bytes spill stores", "bytes spill loads"]
                .map(|what| line.split(',').find(|p| p.contains(what)).map_or(0, number))
                .iter()
                .sum();
        } else if let Some((_, rest)) = line.split_once("Used ") {
            last.registers = number(rest);
        }
    }
    all
}

type Program = *mut c_void;

/// NVIDIA's compiler, called by itself, so that a stand-in that other tests load is not meant.
struct Nvrtc {
    library: libloading::Library,
    /// Found by name when the compiler first needs it, so it stays loaded.
    _builtins: libloading::Library,
}

impl Nvrtc {
    fn find() -> Result<Nvrtc, String> {
        let folders = match std::env::var_os("TURRET_CUDA_LIBS") {
            Some(folder) => vec![PathBuf::from(folder)],
            None => wheels(&Path::new(env!("CARGO_MANIFEST_DIR")).join("target/cuda-wheels")),
        };
        let in_folder =
            |folder: &PathBuf| Some((file(folder, "libnvrtc.so.1")?, file(folder, "libnvrtc-builtins.so.")?));
        let (nvrtc, builtins) = folders.iter().find_map(in_folder).ok_or_else(|| {
            "there is no libnvrtc with its builtins in TURRET_CUDA_LIBS or target/cuda-wheels (.ci/run puts it there)"
                .to_string()
        })?;
        // SAFETY: NVIDIA's libraries, whose initialisers have no conditions.
        let load =
            |path: &Path| unsafe { libloading::Library::new(path) }.map_err(|e| format!("{}: {e}", path.display()));
        Ok(Nvrtc { _builtins: load(&builtins)?, library: load(&nvrtc)? })
    }

    /// Whether a source compiles, and what the compiler says.
    fn compile(&self, source: &str, architecture: &str) -> (bool, String) {
        let source = CString::new(source).expect("a text has no zero bytes");
        let options = [&format!("--gpu-architecture={architecture}"), "--fmad=false", "--ptxas-options=-v"];
        let options = options.map(|o| CString::new(o).expect("an option has no zero bytes"));
        let pointers = options.each_ref().map(|o| o.as_ptr());
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const c_void,
            *const c_void,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Log = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: the types are those of nvrtc.h, strings end with zero and outlive the calls, and the log's buffer has
        // the size that the library asked for.
        unsafe {
            let create = self.library.get::<Create>(b"nvrtcCreateProgram\0").expect("NVRTC has it");
            let compile = self.library.get::<Compile>(b"nvrtcCompileProgram\0").expect("NVRTC has it");
            let size = self.library.get::<Size>(b"nvrtcGetProgramLogSize\0").expect("NVRTC has it");
            let log = self.library.get::<Log>(b"nvrtcGetProgramLog\0").expect("NVRTC has it");
            let destroy = self.library.get::<Destroy>(b"nvrtcDestroyProgram\0").expect("NVRTC has it");
            let nothing = std::ptr::null();
            assert_eq!(create(&mut program, source.as_ptr(), c"kernels.cu".as_ptr(), 0, nothing, nothing), 0);
            let compiled = compile(program, pointers.len() as c_int, pointers.as_ptr()) == 0;
            let mut bytes = 0;
            assert_eq!(size(program, &mut bytes), 0);
            let mut text = vec![0u8; bytes.max(1)];
            assert_eq!(log(program, text.as_mut_ptr().cast()), 0);
            assert_eq!(destroy(&mut program), 0);
            (compiled, CStr::from_bytes_until_nul(&text).map_or(String::new(), |t| t.to_string_lossy().into_owned()))
        }
    }
}

/// The folders of libraries that pip put under this one.
pub fn wheels(folder: &Path) -> Vec<PathBuf> {
    let inside = |path: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect()
    };
    let pythons = inside(&folder.join("lib"));
    let packages = pythons.iter().flat_map(|p| inside(&p.join("site-packages/nvidia")));
    packages.map(|p| p.join("lib")).filter(|p| p.is_dir()).collect()
}

/// The file of a folder whose name starts so.
pub fn file(folder: &Path, start: &str) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|e| e.path()).collect();
    files.sort();
    files.into_iter().find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start)))
}
