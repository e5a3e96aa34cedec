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
    desc: lt::cublasLtMatmulDesc_t,
    /// Of `b`, `a` and `c`, in the order of the transposed product.
    layouts: [lt::cublasLtMatrixLayout_t; 3],
    algorithm: lt::cublasLtMatmulAlgo_t,
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

    /// Prepares a product, whose buffers `address` finds.
    ///
    /// # Errors
    /// Sizes beyond the library's, or no algorithm.
    pub fn prepare(&self, gemm: &Gemm, address: impl Fn(CudaBuffer) -> u64) -> CudaResult<PreparedGemm> {
        if [gemm.m, gemm.n, gemm.k].iter().any(|n| i32::try_from(*n).is_err()) {
            let said = format!("a product of [{}, {}] and [{}, {}] is beyond 2³¹", gemm.m, gemm.k, gemm.k, gemm.n);
            return Err(CudaError::refused("cublasGemmEx", said));
        }
        let (a, b, c) = (address(gemm.a), address(gemm.b), address(gemm.c));
        let lt = match gemm.bias.is_some() || gemm.relu {
            true => Some(self.lt_call(gemm, gemm.bias.map(&address))?),
            false => None,
        };
        Ok(PreparedGemm { gemm: gemm.clone(), a, b, c, lt })
    }

    /// Enqueues a product on the stream.
    pub fn enqueue(&self, product: &PreparedGemm, stream: &Stream) -> CudaResult<()> {
        let Gemm { m, n, k, transpose_a, transpose_b, dtype, .. } = product.gemm;
        let (one, zero) = scalars(dtype);
        let [a, b, c] = [product.a, product.b, product.c].map(|p| p as *mut c_void);
        if let Some(call) = &product.lt {
            let handle = self.lt()?;
            let [lb, la, lc] = call.layouts;
            let (workspace, bytes) = (self.workspace.address().cast(), self.workspace.len());
            // SAFETY: addresses and descriptors were made for each other, and live as long as the plan.
            return unsafe {
                cublaslt::matmul(
                    handle,
                    call.desc,
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

    fn lt_call(&self, gemm: &Gemm, bias: Option<u64>) -> CudaResult<LtCall> {
        let handle = self.lt()?;
        let Gemm { m, n, k, transpose_a, transpose_b, dtype, relu, .. } = *gemm;
        let (data, compute) = match (dtype, self.tf32) {
            (DType::F64, _) => (data_type(dtype).1, lt::cublasComputeType_t::CUBLAS_COMPUTE_64F),
            (_, true) => (data_type(dtype).1, lt::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32),
            (_, false) => (data_type(dtype).1, lt::cublasComputeType_t::CUBLAS_COMPUTE_32F),
        };
        use lt::cublasLtMatmulDescAttributes_t as Attribute;
        let desc = cublaslt::create_matmul_desc(compute, data).map_err(lt_failed("cublasLtMatmulDescCreate"))?;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the value has this many bytes.
            unsafe { cublaslt::set_matmul_desc_attribute(desc, attribute, value, bytes) }
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
                .map_err(lt_failed("cublasLtMatrixLayoutCreate"))
        };
        let stored = |rows, columns, transposed| if transposed { layout(columns, rows) } else { layout(rows, columns) };
        let layouts = [stored(n, k, transpose_b)?, stored(k, m, transpose_a)?, layout(n, m)?];
        let preference = cublaslt::create_matmul_pref().map_err(lt_failed("cublasLtMatmulPreferenceCreate"))?;
        let bytes = self.workspace.len();
        // SAFETY: all descriptors are live; the preference is destroyed once it was used.
        let found = unsafe {
            let limit = lt::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            cublaslt::set_matmul_pref_attribute(preference, limit, (&raw const bytes).cast(), size_of_val(&bytes))
                .map_err(lt_failed("cublasLtMatmulPreferenceSetAttribute"))?;
            let [lb, la, lc] = layouts;
            let found = cublaslt::get_matmul_algo_heuristic(handle, desc, lb, la, lc, lc, preference);
            let _ = cublaslt::destroy_matmul_pref(preference);
            found.map_err(lt_failed("cublasLtMatmulAlgoGetHeuristic"))?
        };
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

impl Drop for LtCall {
    fn drop(&mut self) {
        // SAFETY: made in `lt_call`, and used by nobody any more.
        unsafe {
            for layout in self.layouts {
                let _ = cublaslt::destroy_matrix_layout(layout);
            }
            let _ = cublaslt::destroy_matmul_desc(self.desc);
        }
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
