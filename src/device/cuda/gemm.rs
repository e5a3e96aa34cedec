//! Products: cuBLAS, and cuBLASLt where a bias or ReLU comes with them. Row-major products are asked for as the
//! transposed column-major ones: `cᵀ = op(b)ᵀ · op(a)ᵀ`.
//!
//! Invariants: a handle's context is made current before every call, since these libraries do not do it; the workspace
//! is given once, so that nothing is allocated while a step runs or is captured.

use super::call::{CudaError, CudaResult};
use super::code::{CudaBuffer, Gemm};
use super::context::{Context, Stream};
use crate::base::DType;
use crate::device::DeviceMemory;
use cudarc::cublas::{result as cublas, sys as blas};
use cudarc::cublaslt::{result as cublaslt, sys as lt};
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

/// Bytes of workspace that NVIDIA recommends: for Hopper and newer, and for others.
const WORKSPACE: (usize, usize) = (32 << 20, 4 << 20);

/// A handle of either library for one compute stream.
pub struct Blas {
    handle: blas::cublasHandle_t,
    lt: OnceLock<Option<Lt>>,
    workspace: DeviceMemory,
    context: Arc<Context>,
    tf32: bool,
}

// SAFETY: the session runs one step at a time, and binds the context for every call.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

struct Lt(lt::cublasLtHandle_t);

/// The boundary that a bias must start on, in bytes: kernels read it in vectors.
const BIAS_ALIGN: u64 = 16;

/// A product with its addresses, ready to be enqueued.
pub struct PreparedGemm {
    gemm: Gemm,
    a: u64,
    b: u64,
    c: u64,
    lt: Option<LtCall>,
}

/// What cuBLASLt wants for one product.
struct LtCall {
    desc: Desc,
    /// Of `b`, `a` and `c`, in the order of the transposed product.
    layouts: [Layout; 3],
    algorithm: lt::cublasLtMatmulAlgo_t,
}

struct Desc(lt::cublasLtMatmulDesc_t);
struct Layout(lt::cublasLtMatrixLayout_t);
struct Preference(lt::cublasLtMatmulPreference_t);

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: made with the value, and used by nobody any more.
        let _ = unsafe { cublaslt::destroy_matmul_desc(self.0) };
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { cublaslt::destroy_matrix_layout(self.0) };
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { cublaslt::destroy_matmul_pref(self.0) };
    }
}

// SAFETY: descriptors are plain memory of the library, used by one thread at a time.
unsafe impl Send for PreparedGemm {}
// SAFETY: as above.
unsafe impl Sync for PreparedGemm {}

fn blas_failed(call: &'static str) -> impl Fn(cublas::CublasError) -> CudaError {
    move |e| CudaError::refused(call, format!("{:?}", e.0))
}

fn lt_failed(call: &'static str) -> impl Fn(cublaslt::CublasError) -> CudaError {
    move |e| CudaError::refused(call, format!("{:?}", e.0))
}

impl Blas {
    /// The bytes of workspace that a handle should have.
    pub fn workspace_bytes(context: &Context) -> usize {
        if context.capability >= 90 { WORKSPACE.0 } else { WORKSPACE.1 }
    }

    /// A handle for this stream, with memory of its device to work in. With `tf32`, products of `float32` may use TensorFloat-32.
    pub fn new(stream: &Stream, workspace: DeviceMemory, tf32: bool) -> CudaResult<Blas> {
        let context = stream.context.clone();
        context.bind()?;
        let bytes = workspace.len();
        let handle = cublas::create_handle().map_err(blas_failed("cublasCreate"))?;
        let made = Blas { handle, lt: OnceLock::new(), workspace, context, tf32 };
        // SAFETY: handle, stream and workspace are live, and belong to the current context.
        unsafe {
            cublas::set_stream(handle, stream.raw.cast()).map_err(blas_failed("cublasSetStream"))?;
            blas::cublasSetWorkspace_v2(handle, made.workspace.address().cast(), bytes)
                .result()
                .map_err(blas_failed("cublasSetWorkspace"))?;
            blas::cublasSetAtomicsMode(handle, blas::cublasAtomicsMode_t::CUBLAS_ATOMICS_NOT_ALLOWED)
                .result()
                .map_err(blas_failed("cublasSetAtomicsMode"))?;
        }
        Ok(made)
    }

    /// Prepares a product, whose buffers `address` finds. Where cuBLASLt has no algorithm that takes bias and ReLU in,
    /// the product is without them, as [`PreparedGemm::has_epilogue`] tells.
    ///
    /// # Errors
    /// Sizes beyond the library's.
    pub fn prepare(&self, gemm: &Gemm, address: impl Fn(CudaBuffer) -> u64) -> CudaResult<PreparedGemm> {
        if [gemm.m, gemm.n, gemm.k].iter().any(|n| i32::try_from(*n).is_err()) {
            let said = format!("a product of [{}, {}] and [{}, {}] is beyond 2³¹", gemm.m, gemm.k, gemm.k, gemm.n);
            return Err(CudaError::refused("cublasGemmEx", said));
        }
        self.context.bind()?;
        let addresses = [gemm.a, gemm.b, gemm.c].map(&address);
        let bias = gemm.bias.map(&address);
        let fits = (gemm.bias.is_some() || gemm.relu) && bias.is_none_or(|b| b % BIAS_ALIGN == 0);
        let lt = if fits { self.lt_call(gemm, addresses, bias).ok() } else { None };
        let [a, b, c] = addresses;
        Ok(PreparedGemm { gemm: gemm.clone(), a, b, c, lt })
    }

    /// Enqueues a product on the stream.
    pub fn enqueue(&self, product: &PreparedGemm, stream: &Stream) -> CudaResult<()> {
        let Gemm { m, n, k, transpose_a, transpose_b, dtype, .. } = product.gemm;
        let (one, zero) = scalars(dtype);
        let [a, b, c] = [product.a, product.b, product.c].map(|p| p as *mut c_void);
        if let Some(call) = &product.lt {
            let handle = self.lt()?;
            let [lb, la, lc] = [&call.layouts[0], &call.layouts[1], &call.layouts[2]].map(|l| l.0);
            let (workspace, bytes) = (self.workspace.address().cast(), self.workspace.len());
            // SAFETY: addresses and descriptors were made for each other, and live as long as the plan.
            return unsafe {
                cublaslt::matmul(
                    handle,
                    call.desc.0,
                    one,
                    zero,
                    b,
                    lb,
                    a,
                    la,
                    c,
                    lc,
                    c,
                    lc,
                    &call.algorithm,
                    workspace,
                    bytes,
                    stream.raw.cast(),
                )
            }
            .map_err(lt_failed("cublasLtMatmul"));
        }
        let data = data_type(dtype);
        let int = |n: usize| n as i32;
        let op = |t: bool| if t { blas::cublasOperation_t::CUBLAS_OP_T } else { blas::cublasOperation_t::CUBLAS_OP_N };
        let (lda, ldb) = (if transpose_a { m } else { k }, if transpose_b { k } else { n });
        let compute = match (dtype, self.tf32) {
            (DType::F64, _) => blas::cublasComputeType_t::CUBLAS_COMPUTE_64F,
            (_, true) => blas::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            (_, false) => blas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        // SAFETY: the addresses hold matrices of these sizes; the context is current.
        unsafe {
            cublas::gemm_ex(
                self.handle,
                op(transpose_b),
                op(transpose_a),
                int(n),
                int(m),
                int(k),
                one,
                b,
                data.0,
                int(ldb),
                a,
                data.0,
                int(lda),
                zero,
                c,
                data.0,
                int(n),
                compute,
                blas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(blas_failed("cublasGemmEx"))
    }

    fn lt(&self) -> CudaResult<lt::cublasLtHandle_t> {
        let made = self.lt.get_or_init(|| {
            self.context.bind().ok()?;
            cublaslt::create_handle().ok().map(Lt)
        });
        let missing = || CudaError::refused("cublasLtCreate", "no handle");
        made.as_ref().map(|l| l.0).ok_or_else(missing)
    }

    fn lt_call(&self, gemm: &Gemm, [a, b, c]: [u64; 3], bias: Option<u64>) -> CudaResult<LtCall> {
        let handle = self.lt()?;
        let Gemm { m, n, k, transpose_a, transpose_b, dtype, relu, .. } = *gemm;
        let (data, compute) = match (dtype, self.tf32) {
            (DType::F64, _) => (data_type(dtype).1, lt::cublasComputeType_t::CUBLAS_COMPUTE_64F),
            (_, true) => (data_type(dtype).1, lt::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32),
            (_, false) => (data_type(dtype).1, lt::cublasComputeType_t::CUBLAS_COMPUTE_32F),
        };
        use lt::cublasLtMatmulDescAttributes_t as Attribute;
        let desc = cublaslt::create_matmul_desc(compute, data).map_err(lt_failed("cublasLtMatmulDescCreate"))?;
        let desc = Desc(desc);
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the value has this many bytes.
            unsafe { cublaslt::set_matmul_desc_attribute(desc.0, attribute, value, bytes) }
                .map_err(lt_failed("cublasLtMatmulDescSetAttribute"))
        };
        for (attribute, transposed) in [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, transpose_b),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, transpose_a),
        ] {
            // `CUBLAS_OP_N` is 0, `CUBLAS_OP_T` is 1.
            let value = u32::from(transposed);
            set(attribute, (&raw const value).cast(), size_of_val(&value))?;
        }
        let epilogue = match (bias.is_some(), relu) {
            (true, true) => lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS,
            (true, false) => lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            _ => lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU,
        };
        set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, (&raw const epilogue).cast(), size_of_val(&epilogue))?;
        if let Some(bias) = bias {
            set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const bias).cast(), size_of_val(&bias))?;
        }
        let layout = |rows: usize, columns: usize| {
            cublaslt::create_matrix_layout(data, rows as u64, columns as u64, rows as i64)
                .map(Layout)
                .map_err(lt_failed("cublasLtMatrixLayoutCreate"))
        };
        let stored = |rows, columns, transposed| if transposed { layout(columns, rows) } else { layout(rows, columns) };
        let layouts = [stored(n, k, transpose_b)?, stored(k, m, transpose_a)?, layout(n, m)?];
        let preference = cublaslt::create_matmul_pref().map_err(lt_failed("cublasLtMatmulPreferenceCreate"))?;
        let preference = Preference(preference);
        let prefer = |attribute, value: *const c_void, bytes| {
            // SAFETY: the value has this many bytes.
            unsafe { cublaslt::set_matmul_pref_attribute(preference.0, attribute, value, bytes) }
                .map_err(lt_failed("cublasLtMatmulPreferenceSetAttribute"))
        };
        use lt::cublasLtMatmulPreferenceAttributes_t as Limit;
        let bytes = self.workspace.len();
        prefer(Limit::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const bytes).cast(), size_of_val(&bytes))?;
        // Buffers start where the plan puts them; without being told, the library takes them to be on 256 bytes.
        for (attribute, address) in [
            (Limit::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
            (Limit::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
            (Limit::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
            (Limit::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
        ] {
            let boundary = 1u32 << address.trailing_zeros().min(8);
            prefer(attribute, (&raw const boundary).cast(), size_of_val(&boundary))?;
        }
        let [lb, la, lc] = [&layouts[0], &layouts[1], &layouts[2]].map(|l| l.0);
        // SAFETY: all descriptors are live.
        let found = unsafe { cublaslt::get_matmul_algo_heuristic(handle, desc.0, lb, la, lc, lc, preference.0) }
            .map_err(lt_failed("cublasLtMatmulAlgoGetHeuristic"))?;
        Ok(LtCall { desc, layouts, algorithm: found.algo })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.context.lost().is_none() && self.context.bind().is_ok() {
            // SAFETY: nobody has the handles any more.
            unsafe {
                if let Some(Some(lt)) = self.lt.get() {
                    let _ = cublaslt::destroy_handle(lt.0);
                }
                let _ = cublas::destroy_handle(self.handle);
            }
        }
    }
}

impl PreparedGemm {
    /// True if bias and ReLU, where the product has them, are part of it.
    pub fn has_epilogue(&self) -> bool {
        self.lt.is_some() || self.gemm.bias.is_none() && !self.gemm.relu
    }
}

/// One and zero of a type, where the library reads them.
fn scalars(dtype: DType) -> (*const c_void, *const c_void) {
    static F32: [f32; 2] = [1.0, 0.0];
    static F64: [f64; 2] = [1.0, 0.0];
    match dtype {
        DType::F64 => ((&raw const F64[0]).cast(), (&raw const F64[1]).cast()),
        _ => ((&raw const F32[0]).cast(), (&raw const F32[1]).cast()),
    }
}

/// The libraries' names of a type.
fn data_type(dtype: DType) -> (blas::cudaDataType, lt::cudaDataType) {
    match dtype {
        DType::F64 => (blas::cudaDataType::CUDA_R_64F, lt::cudaDataType::CUDA_R_64F),
        _ => (blas::cudaDataType::CUDA_R_32F, lt::cudaDataType::CUDA_R_32F),
    }
}
