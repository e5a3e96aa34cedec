//! cuBLASLt: descriptors, one algorithm for everything, and products with a bias and an activation.

use super::handle::{EXECUTION_FAILED, INVALID_VALUE, NOT_SUPPORTED, REAL_32F, REAL_64F, blas};
use super::product::{Epilogue, Matrix, Product, Real, Scalar};
use crate::codes::Code;
use crate::queue::Work;
use crate::state::{Held, call, current_handle, say};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

/// Something that was created: its attributes by number, 8 bytes each.
#[derive(Clone, Default, Debug)]
struct Object(BTreeMap<c_int, u64>);

impl Object {
    fn get(&self, attribute: c_int) -> u64 {
        self.0.get(&attribute).copied().unwrap_or(0)
    }
}

static OBJECTS: Mutex<BTreeMap<u64, Object>> = Mutex::new(BTreeMap::new());

fn objects() -> std::sync::MutexGuard<'static, BTreeMap<u64, Object>> {
    OBJECTS.lock().unwrap_or_else(|e| e.into_inner())
}

fn scalar_error(code: Code) -> c_int {
    code
}

fn create(s: &mut Held, out: *mut u64, attributes: &[(c_int, u64)]) -> Result<(), Code> {
    let id = s.id();
    objects().insert(id, Object(attributes.iter().copied().collect()));
    // SAFETY: the caller's pointer is to a handle.
    unsafe { out.write(id) };
    Ok(())
}

fn destroy(handle: u64) -> Result<(), Code> {
    objects().remove(&handle).map(drop).ok_or(INVALID_VALUE)
}

unsafe fn set(handle: u64, attribute: c_int, from: *const u8, size: usize) -> Result<(), Code> {
    if from.is_null() || size == 0 || size > 8 {
        say(&format!("cuBLASLt attribute {attribute} of {size} bytes is not stood in for"));
        return Err(INVALID_VALUE);
    }
    let mut bytes = [0u8; 8];
    // SAFETY: the caller gives so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size) };
    let mut all = objects();
    all.get_mut(&handle).ok_or(INVALID_VALUE)?.0.insert(attribute, u64::from_le_bytes(bytes));
    Ok(())
}

unsafe fn get(handle: u64, attribute: c_int, to: *mut u8, size: usize, written: *mut usize) -> Result<(), Code> {
    let value = objects().get(&handle).ok_or(INVALID_VALUE)?.get(attribute).to_le_bytes();
    // SAFETY: the caller's buffer has room for so many bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), to, size.min(8));
        if !written.is_null() {
            written.write(size.min(8));
        }
    }
    Ok(())
}

const POINTER_MODE: c_int = 2;
const TRANSA: c_int = 3;
const TRANSB: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
const SCALE_TYPE: c_int = 1;
const TYPE: c_int = 0;
const ORDER: c_int = 1;
const ROWS: c_int = 2;
const COLUMNS: c_int = 3;
const LD: c_int = 4;
const BATCH: c_int = 5;
const STRIDE: c_int = 6;

fn epilogue(desc: &Object) -> Result<Epilogue, Code> {
    let bias = Some(desc.get(BIAS_POINTER));
    let e = match desc.get(EPILOGUE) {
        0 | 1 => Epilogue::default(),
        2 => Epilogue { relu: true, ..Epilogue::default() },
        4 => Epilogue { bias, ..Epilogue::default() },
        6 => Epilogue { bias, relu: true, gelu: false },
        32 => Epilogue { gelu: true, ..Epilogue::default() },
        36 => Epilogue { bias, relu: false, gelu: true },
        other => {
            say(&format!(
                "cublasLtMatmul: epilogue {other} is not stood in for; there are default, relu, bias, gelu and bias with either"
            ));
            return Err(NOT_SUPPORTED);
        }
    };
    if e.bias == Some(0) {
        say("cublasLtMatmul: the epilogue adds a bias, and no bias pointer is set");
        return Err(INVALID_VALUE);
    }
    Ok(e)
}

struct Call {
    desc: Object,
    layouts: [Object; 4],
}

/// Looks the descriptors up and checks that their shapes meet.
fn lookup(desc: u64, layouts: [u64; 4]) -> Result<(Call, [usize; 3]), Code> {
    let all = objects();
    let find = |handle: u64| all.get(&handle).cloned().ok_or(INVALID_VALUE);
    let call = Call {
        desc: find(desc)?,
        layouts: [find(layouts[0])?, find(layouts[1])?, find(layouts[2])?, find(layouts[3])?],
    };
    let size = |i: usize, transposed: bool| {
        let (r, c) = (call.layouts[i].get(ROWS) as usize, call.layouts[i].get(COLUMNS) as usize);
        if transposed { (c, r) } else { (r, c) }
    };
    let (a, b) = (size(0, call.desc.get(TRANSA) != 0), size(1, call.desc.get(TRANSB) != 0));
    let (c, d) = (size(2, false), size(3, false));
    if a.1 != b.0 || d != (a.0, b.1) || c != d {
        say(&format!("cublasLtMatmul: op(A) is {a:?}, op(B) {b:?}, C {c:?}, D {d:?}; they do not meet"));
        return Err(INVALID_VALUE);
    }
    let types: Vec<u64> = call.layouts.iter().map(|l| l.get(TYPE)).collect();
    let kind = types[0] as c_int;
    if types.iter().any(|t| *t != types[0])
        || (kind != REAL_32F && kind != REAL_64F)
        || call.layouts.iter().any(|l| l.get(ORDER) != 0)
    {
        say(&format!("cublasLtMatmul: types {types:?}; only float and double by columns are stood in for"));
        return Err(NOT_SUPPORTED);
    }
    epilogue(&call.desc)?;
    Ok((call, [a.0, b.1, a.1]))
}

fn product<T: Real>(
    call: &Call,
    [m, n, k]: [usize; 3],
    alpha: u64,
    beta: u64,
    at: [u64; 4],
) -> Result<Product<T>, Code> {
    let matrix = |i: usize| {
        let l = &call.layouts[i];
        Matrix {
            at: at[i],
            rows: l.get(ROWS) as usize,
            columns: l.get(COLUMNS) as usize,
            ld: l.get(LD) as usize,
            stride: l.get(STRIDE) as i64,
        }
    };
    let device = call.desc.get(POINTER_MODE) != 0;
    // SAFETY: in the host's pointer mode the caller's pointers are to values.
    let scalar = |at: u64| if device { Scalar::Device(at) } else { Scalar::Host(unsafe { *(at as *const T) }) };
    Ok(Product {
        m,
        n,
        k,
        a: (matrix(0), call.desc.get(TRANSA) != 0),
        b: (matrix(1), call.desc.get(TRANSB) != 0),
        c: matrix(2),
        d: matrix(3),
        batch: call.layouts[3].get(BATCH).max(1) as usize,
        alpha: scalar(alpha),
        beta: scalar(beta),
        epilogue: epilogue(&call.desc)?,
    })
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub struct Heuristic {
    algo: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const ALGO: u64 = 0x7574_7272_6574;

/// The preferences that say on which boundaries A, B, C and D start, and what they are where nobody says.
const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
const ALIGNED: u64 = 256;

/// The boundary that a bias must start on.
const BIAS_ALIGNED: u64 = 16;

blas! {
    fn cublasLtCreate(out: *mut u64) |s| {
        s.current().map_err(|_| 1)?;
        create(s, out, &[])
    }
    fn cublasLtDestroy(handle: u64) |_s| { destroy(handle) }
    fn cublasLtMatmulDescCreate(out: *mut u64, compute: c_int, scale: c_int) |s| { create(s, out, &[(0, compute as u64), (SCALE_TYPE, scale as u64)]) }
    fn cublasLtMatmulDescDestroy(desc: u64) |_s| { destroy(desc) }
    fn cublasLtMatmulDescSetAttribute(desc: u64, attribute: c_int, from: *const u8, size: usize) |_s| { set(desc, attribute, from, size) }
    fn cublasLtMatmulDescGetAttribute(desc: u64, attribute: c_int, to: *mut u8, size: usize, written: *mut usize) |_s| { get(desc, attribute, to, size, written) }
    fn cublasLtMatrixLayoutCreate(out: *mut u64, kind: c_int, rows: u64, columns: u64, ld: i64) |s| {
        if ld < 0 || (ld as u64) < rows {
            say(&format!("cublasLtMatrixLayoutCreate: leading dimension {ld} of a matrix with {rows} rows"));
            return Err(INVALID_VALUE);
        }
        create(s, out, &[(TYPE, kind as u64), (ROWS, rows), (COLUMNS, columns), (LD, ld as u64), (BATCH, 1)])
    }
    fn cublasLtMatrixLayoutDestroy(layout: u64) |_s| { destroy(layout) }
    fn cublasLtMatrixLayoutSetAttribute(layout: u64, attribute: c_int, from: *const u8, size: usize) |_s| { set(layout, attribute, from, size) }
    fn cublasLtMatrixLayoutGetAttribute(layout: u64, attribute: c_int, to: *mut u8, size: usize, written: *mut usize) |_s| { get(layout, attribute, to, size, written) }
    fn cublasLtMatmulPreferenceCreate(out: *mut u64) |s| { create(s, out, &[]) }
    fn cublasLtMatmulPreferenceDestroy(preference: u64) |_s| { destroy(preference) }
    fn cublasLtMatmulPreferenceSetAttribute(preference: u64, attribute: c_int, from: *const u8, size: usize) |_s| { set(preference, attribute, from, size) }
    fn cublasLtMatmulAlgoGetHeuristic(_handle: u64, desc: u64, a: u64, b: u64, c: u64, d: u64, preference: u64, wanted: c_int, out: *mut Heuristic, count: *mut c_int) |_s| {
        *count = 0;
        let (found, _) = lookup(desc, [a, b, c, d])?;
        // As cuBLASLt has it: doubles have the default epilogue alone.
        let is_plain = matches!(found.desc.get(EPILOGUE), 0 | 1);
        if wanted > 0 && (is_plain || found.layouts[0].get(TYPE) as c_int != REAL_64F) {
            let mut algo = [0; 8];
            algo[0] = ALGO;
            let preferred = objects().get(&preference).cloned().unwrap_or_default();
            for (i, attribute) in ALIGNMENTS.into_iter().enumerate() {
                let said = preferred.get(attribute);
                algo[1 + i] = if said == 0 { ALIGNED } else { said };
            }
            out.write(Heuristic { algo, workspace: 0, state: 0, waves: 1.0, reserved: [0; 4] });
            *count = 1;
        }
        Ok(())
    }
    fn cublasLtMatmul(_handle: u64, desc: u64, alpha: u64, a: u64, ad: u64, b: u64, bd: u64, beta: u64, c: u64, cd: u64, d: u64, dd: u64, algo: *const u64, workspace: u64, workspace_size: usize, handle: u64) |s| {
        let (found, mnk) = lookup(desc, [ad, bd, cd, dd])?;
        if !algo.is_null() && *algo != ALGO {
            say("cublasLtMatmul: the algorithm is not one that cublasLtMatmulAlgoGetHeuristic gave");
            return Err(INVALID_VALUE);
        }
        for (i, address) in [a, b, c, d].into_iter().enumerate().filter(|_| !algo.is_null()) {
            let aligned = *algo.add(1 + i);
            if !address.is_multiple_of(aligned) {
                say(&format!("cublasLtMatmul: matrix {i} is at {address:#x}, the preference promised a boundary of {aligned} bytes"));
                return Err(EXECUTION_FAILED);
            }
        }
        if epilogue(&found.desc)?.bias.is_some_and(|b| !b.is_multiple_of(BIAS_ALIGNED)) {
            say("cublasLtMatmul: the bias does not start on 16 bytes");
            return Err(EXECUTION_FAILED);
        }
        if workspace_size > 0 && workspace != 0 && s.space.range(workspace, workspace_size).is_err() {
            say("cublasLtMatmul: the workspace is no live allocation");
            return Err(INVALID_VALUE);
        }
        let stream = s.stream(handle).map_err(|_| EXECUTION_FAILED)?;
        let current = current_handle();
        if s.streams[&stream].context != current {
            say(&format!("cublasLtMatmul: context {current:#x} is current and the stream is of {:#x}; bind the stream's context first", s.streams[&stream].context));
            return Err(EXECUTION_FAILED);
        }
        if s.faults.launch("matmul") {
            say("cublasLtMatmul: refused by the fault that was asked for");
            return Err(EXECUTION_FAILED);
        }
        let at = [a, b, c, d];
        let label = format!("matmul {}x{}x{}", mnk[0], mnk[1], mnk[2]);
        let work = if found.layouts[0].get(TYPE) as c_int == REAL_64F {
            let p = product::<f64>(&found, mnk, alpha, beta, at)?;
            Work::Run(Arc::new(move |state, touch| p.run(state, touch)))
        } else {
            let p = product::<f32>(&found, mnk, alpha, beta, at)?;
            Work::Run(Arc::new(move |state, touch| p.run(state, touch)))
        };
        s.enqueue(stream, &label, work).map(drop).map_err(|_| EXECUTION_FAILED)
    }
    fn cublasLtLoggerSetLevel(_level: c_int) |_s| { Ok(()) }
    fn cublasLtLoggerOpenFile(_name: *const c_void) |_s| { Ok(()) }
}

/// `cublasLtGetVersion`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    130000
}
