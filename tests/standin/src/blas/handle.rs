//! cuBLAS: handles, and the products that cudarc and turret call.

use super::product::{Epilogue, Matrix, Product, Real, Scalar};
use crate::codes::{Code, Failure};
use crate::queue::{Touch, Work};
use crate::state::{Held, State, call, current_handle, say};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::sync::{Arc, Mutex};

const NOT_INITIALIZED: c_int = 1;
pub(super) const INVALID_VALUE: c_int = 7;
pub(super) const EXECUTION_FAILED: c_int = 13;
pub(super) const NOT_SUPPORTED: c_int = 15;
pub(super) const REAL_32F: c_int = 0;
pub(super) const REAL_64F: c_int = 1;

#[derive(Clone, Copy, Default)]
struct Handle {
    context: u64,
    stream: u64,
    device_scalars: bool,
    math: c_int,
    atomics: c_int,
}

static HANDLES: Mutex<BTreeMap<u64, Handle>> = Mutex::new(BTreeMap::new());

fn handles() -> std::sync::MutexGuard<'static, BTreeMap<u64, Handle>> {
    HANDLES.lock().unwrap_or_else(|e| e.into_inner())
}

fn with(handle: u64, action: impl FnOnce(&mut Handle)) -> c_int {
    handles().get_mut(&handle).map(action).map_or(NOT_INITIALIZED, |()| 0)
}

/// Puts something that a handle runs on its stream; the current context must be the handle's.
fn enqueue(
    s: &mut Held,
    handle: u64,
    label: &str,
    run: impl Fn(&mut State, &mut Touch) -> Result<(), Failure> + Send + Sync + 'static,
) -> Result<(), Code> {
    let h = *handles().get(&handle).ok_or(NOT_INITIALIZED)?;
    let current = current_handle();
    if current != h.context {
        say(&format!(
            "{label}: context {current:#x} is current and the handle is of {:#x}; bind the handle's context first",
            h.context
        ));
        return Err(EXECUTION_FAILED);
    }
    let stream = s.stream(h.stream).map_err(|_| EXECUTION_FAILED)?;
    if s.streams[&stream].context != h.context {
        say(&format!("{label}: the handle's stream is of another context than the handle"));
        return Err(EXECUTION_FAILED);
    }
    if s.faults.launch(label.split(' ').next().unwrap_or(label)) {
        say(&format!("{label}: refused by the fault that was asked for"));
        return Err(EXECUTION_FAILED);
    }
    s.enqueue(stream, label, Work::Run(Arc::new(run))).map(drop).map_err(|_| EXECUTION_FAILED)
}

fn scalar<T: Real>(handle: u64, at: *const T) -> Scalar<T> {
    let device = handles().get(&handle).is_some_and(|h| h.device_scalars);
    // SAFETY: in the host's pointer mode the caller's pointer is to a value.
    if device { Scalar::Device(at as u64) } else { Scalar::Host(unsafe { *at }) }
}

fn positive(values: &[c_longlong], name: &str) -> Result<(), Code> {
    if values.iter().all(|v| *v >= 0) {
        return Ok(());
    }
    say(&format!("{name}: a size is negative: {values:?}"));
    Err(INVALID_VALUE)
}

type Sizes = [c_int; 3];
/// Address, leading dimension, stride.
type Given = (u64, c_int, c_longlong);

fn product<T: Real>(
    s: &mut Held,
    name: &str,
    handle: u64,
    ops: [c_int; 2],
    mnk: Sizes,
    alpha: *const T,
    sides: [Given; 3],
    beta: *const T,
    batch: c_int,
) -> Result<(), Code> {
    let [m, n, k] = mnk.map(|v| v.max(0) as usize);
    positive(&[mnk[0], mnk[1], mnk[2], batch].map(c_longlong::from), name)?;
    let (ta, tb) = (ops[0] != 0, ops[1] != 0);
    let matrix = |(at, ld, stride): Given, rows: usize, columns: usize| -> Result<Matrix, Code> {
        if ld < 0 || (ld as usize) < rows.max(1) {
            say(&format!("{name}: leading dimension {ld} of a matrix with {rows} rows; it must be at least that"));
            return Err(INVALID_VALUE);
        }
        Ok(Matrix { at, rows, columns, ld: ld as usize, stride })
    };
    let (a, b, c) = (
        if ta { matrix(sides[0], k, m)? } else { matrix(sides[0], m, k)? },
        if tb { matrix(sides[1], n, k)? } else { matrix(sides[1], k, n)? },
        matrix(sides[2], m, n)?,
    );
    let (alpha, beta) = (scalar(handle, alpha), scalar(handle, beta));
    let p = Product {
        m,
        n,
        k,
        a: (a, ta),
        b: (b, tb),
        c,
        d: c,
        batch: batch as usize,
        alpha,
        beta,
        epilogue: Epilogue::default(),
    };
    enqueue(s, handle, &format!("{name} {m}x{n}x{k}"), move |state, touch| p.run(state, touch))
}

/// y = alpha · op(A) · x + beta · y, as a product with one column.
fn vector<T: Real>(
    s: &mut Held,
    name: &str,
    handle: u64,
    op: c_int,
    mn: [c_int; 2],
    alpha: *const T,
    a: (u64, c_int),
    x: (u64, c_int),
    beta: *const T,
    y: (u64, c_int),
) -> Result<(), Code> {
    if x.1 <= 0 || y.1 <= 0 {
        say(&format!("{name}: steps {} and {}, only positive ones are stood in for", x.1, y.1));
        return Err(NOT_SUPPORTED);
    }
    let (rows, inner) = if op == 0 { (mn[0], mn[1]) } else { (mn[1], mn[0]) };
    // The vectors are rows: y' = x' · op(A)', so that a step is a leading dimension.
    product(
        s,
        name,
        handle,
        [0, c_int::from(op == 0)],
        [1, rows, inner],
        alpha,
        [(x.0, x.1, 0), (a.0, a.1, 0), (y.0, y.1, 0)],
        beta,
        1,
    )
}

fn mixed(
    s: &mut Held,
    name: &str,
    handle: u64,
    ops: [c_int; 2],
    mnk: Sizes,
    alpha: *const c_void,
    sides: [Given; 3],
    types: [c_int; 3],
    beta: *const c_void,
    batch: c_int,
) -> Result<(), Code> {
    match types {
        [REAL_32F, REAL_32F, REAL_32F] => {
            product::<f32>(s, name, handle, ops, mnk, alpha.cast(), sides, beta.cast(), batch)
        }
        [REAL_64F, REAL_64F, REAL_64F] => {
            product::<f64>(s, name, handle, ops, mnk, alpha.cast(), sides, beta.cast(), batch)
        }
        _ => {
            say(&format!("{name}: types {types:?}; only float and double are stood in for"));
            Err(NOT_SUPPORTED)
        }
    }
}

fn scalar_error(code: Code) -> c_int {
    if code == 0 { 0 } else { code }
}

macro_rules! blas {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) |$s:ident| $body:block)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's pointers are as the library's interface wants them.
            scalar_error(call(stringify!($name), |$s: &mut Held| -> Result<(), Code> { #[allow(unused_unsafe)] unsafe { $body } }))
        }
    )* };
}
pub(crate) use blas;

fn code(status: c_int) -> Result<(), Code> {
    if status == 0 { Ok(()) } else { Err(status) }
}

blas! {
    fn cublasCreate_v2(out: *mut u64) |s| {
        let (context, _) = s.current().map_err(|_| NOT_INITIALIZED)?;
        let id = s.id();
        handles().insert(id, Handle { context, ..Handle::default() });
        *out = id;
        Ok(())
    }
    fn cublasDestroy_v2(handle: u64) |_s| { handles().remove(&handle).map(drop).ok_or(NOT_INITIALIZED) }
    fn cublasSetStream_v2(handle: u64, stream: u64) |_s| { code(with(handle, |h| h.stream = stream)) }
    fn cublasGetStream_v2(handle: u64, out: *mut u64) |_s| { code(with(handle, |h| *out = h.stream)) }
    fn cublasSetWorkspace_v2(handle: u64, at: u64, n: usize) |s| {
        code(with(handle, |_| ()))?;
        if n > 0 && s.space.range(at, n).is_err() { Err(INVALID_VALUE) } else { Ok(()) }
    }
    fn cublasSetMathMode(handle: u64, mode: c_int) |_s| { code(with(handle, |h| h.math = mode)) }
    fn cublasGetMathMode(handle: u64, out: *mut c_int) |_s| { code(with(handle, |h| *out = h.math)) }
    fn cublasSetAtomicsMode(handle: u64, mode: c_int) |_s| { code(with(handle, |h| h.atomics = mode)) }
    fn cublasGetAtomicsMode(handle: u64, out: *mut c_int) |_s| { code(with(handle, |h| *out = h.atomics)) }
    fn cublasSetPointerMode_v2(handle: u64, mode: c_int) |_s| { code(with(handle, |h| h.device_scalars = mode != 0)) }
    fn cublasGetPointerMode_v2(handle: u64, out: *mut c_int) |_s| { code(with(handle, |h| *out = c_int::from(h.device_scalars))) }
    fn cublasGetVersion_v2(_handle: u64, out: *mut c_int) |_s| { *out = 130000; Ok(()) }
    fn cublasSgemm_v2(h: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: *const f32, a: u64, lda: c_int, b: u64, ldb: c_int, beta: *const f32, c: u64, ldc: c_int) |s| {
        product(s, "sgemm", h, [ta, tb], [m, n, k], alpha, [(a, lda, 0), (b, ldb, 0), (c, ldc, 0)], beta, 1)
    }
    fn cublasDgemm_v2(h: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: *const f64, a: u64, lda: c_int, b: u64, ldb: c_int, beta: *const f64, c: u64, ldc: c_int) |s| {
        product(s, "dgemm", h, [ta, tb], [m, n, k], alpha, [(a, lda, 0), (b, ldb, 0), (c, ldc, 0)], beta, 1)
    }
    fn cublasSgemmStridedBatched(h: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: *const f32, a: u64, lda: c_int, sa: c_longlong, b: u64, ldb: c_int, sb: c_longlong, beta: *const f32, c: u64, ldc: c_int, sc: c_longlong, batch: c_int) |s| {
        product(s, "sgemm", h, [ta, tb], [m, n, k], alpha, [(a, lda, sa), (b, ldb, sb), (c, ldc, sc)], beta, batch)
    }
    fn cublasDgemmStridedBatched(h: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: *const f64, a: u64, lda: c_int, sa: c_longlong, b: u64, ldb: c_int, sb: c_longlong, beta: *const f64, c: u64, ldc: c_int, sc: c_longlong, batch: c_int) |s| {
        product(s, "dgemm", h, [ta, tb], [m, n, k], alpha, [(a, lda, sa), (b, ldb, sb), (c, ldc, sc)], beta, batch)
    }
    fn cublasGemmEx(h: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void, a: u64, at: c_int, lda: c_int, b: u64, bt: c_int, ldb: c_int, beta: *const c_void, c: u64, ct: c_int, ldc: c_int, _compute: c_int, _algo: c_int) |s| {
        mixed(s, "gemm", h, [ta, tb], [m, n, k], alpha, [(a, lda, 0), (b, ldb, 0), (c, ldc, 0)], [at, bt, ct], beta, 1)
    }
    fn cublasGemmStridedBatchedEx(h: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void, a: u64, at: c_int, lda: c_int, sa: c_longlong, b: u64, bt: c_int, ldb: c_int, sb: c_longlong, beta: *const c_void, c: u64, ct: c_int, ldc: c_int, sc: c_longlong, batch: c_int, _compute: c_int, _algo: c_int) |s| {
        mixed(s, "gemm", h, [ta, tb], [m, n, k], alpha, [(a, lda, sa), (b, ldb, sb), (c, ldc, sc)], [at, bt, ct], beta, batch)
    }
    fn cublasSgemv_v2(h: u64, t: c_int, m: c_int, n: c_int, alpha: *const f32, a: u64, lda: c_int, x: u64, incx: c_int, beta: *const f32, y: u64, incy: c_int) |s| {
        vector(s, "sgemv", h, t, [m, n], alpha, (a, lda), (x, incx), beta, (y, incy))
    }
    fn cublasDgemv_v2(h: u64, t: c_int, m: c_int, n: c_int, alpha: *const f64, a: u64, lda: c_int, x: u64, incx: c_int, beta: *const f64, y: u64, incy: c_int) |s| {
        vector(s, "dgemv", h, t, [m, n], alpha, (a, lda), (x, incx), beta, (y, incy))
    }
}

/// `cublasGetStatusString`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusString(status: c_int) -> *const c_char {
    match status {
        0 => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        EXECUTION_FAILED => c"CUBLAS_STATUS_EXECUTION_FAILED",
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => c"CUBLAS_STATUS_INTERNAL_ERROR",
    }
    .as_ptr()
}
