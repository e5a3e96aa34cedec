//! Convolutions by cuDNN, where it is there and has a way for their sizes.
//!
//! Only algorithms that give the same bits in every run are taken, and only those whose workspace is bounded; where
//! there is none, the op's own kernels run. Invariant: descriptors and algorithm are fixed when a step is loaded, so that
//! a call can be captured in a graph.

use super::call::{CudaError, CudaResult};
use super::code::{ConvGeometry, ConvResult, CudaBuffer};
use super::context::{Context, Stream};
use crate::base::DType;
use cudarc::cudnn::{result as cudnn, sys};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

/// The most bytes of workspace that an algorithm may ask for.
const WORKSPACE: usize = 256 << 20;

/// The algorithms that are looked at, the fastest first.
const CONSIDERED: usize = 8;

/// A handle for one compute stream.
pub struct Dnn {
    handle: sys::cudnnHandle_t,
    context: Arc<Context>,
    tf32: bool,
    /// What was chosen for a convolution before.
    chosen: Mutex<HashMap<(ConvGeometry, ConvResult), Option<Choice>>>,
}

// SAFETY: the session runs one step at a time, and binds the context for every call.
unsafe impl Send for Dnn {}
// SAFETY: as above; what is chosen is behind a lock.
unsafe impl Sync for Dnn {}

/// An algorithm, by its number in cuDNN's enumeration for that kind of result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    algorithm: Algorithm,
    /// Bytes of workspace that it needs.
    pub workspace: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Algorithm {
    Output(sys::cudnnConvolutionFwdAlgo_t),
    Image(sys::cudnnConvolutionBwdDataAlgo_t),
    Filter(sys::cudnnConvolutionBwdFilterAlgo_t),
}

/// A convolution with its addresses, ready to be enqueued.
pub struct PreparedConvolution {
    descriptors: Descriptors,
    choice: Choice,
    dtype: DType,
    image: u64,
    filter: u64,
    output: u64,
    workspace: u64,
}

struct Tensor(sys::cudnnTensorDescriptor_t);
struct Filter(sys::cudnnFilterDescriptor_t);
struct Convolution(sys::cudnnConvolutionDescriptor_t);

/// What cuDNN is told of a convolution.
struct Descriptors {
    image: Tensor,
    filter: Filter,
    output: Tensor,
    convolution: Convolution,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made with the value, and used by nobody any more.
        let _ = unsafe { cudnn::destroy_tensor_descriptor(self.0) };
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { cudnn::destroy_filter_descriptor(self.0) };
    }
}

impl Drop for Convolution {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { cudnn::destroy_convolution_descriptor(self.0) };
    }
}

// SAFETY: descriptors are plain memory of the library, used by one thread at a time.
unsafe impl Send for PreparedConvolution {}
// SAFETY: as above.
unsafe impl Sync for PreparedConvolution {}

fn failed(call: &'static str) -> impl Fn(cudnn::CudnnError) -> CudaError {
    move |e| CudaError::refused(call, format!("{:?}", e.0))
}

impl Dnn {
    /// A handle for this stream. With `tf32`, convolutions of `float32` may use TensorFloat-32.
    pub fn new(stream: &Stream, tf32: bool) -> CudaResult<Dnn> {
        let context = stream.context.clone();
        context.bind()?;
        let handle = cudnn::create_handle().map_err(failed("cudnnCreate"))?;
        let made = Dnn { handle, context, tf32, chosen: Mutex::default() };
        // SAFETY: handle and stream are live, and belong to the current context.
        unsafe { cudnn::set_stream(handle, stream.raw.cast()) }.map_err(failed("cudnnSetStream"))?;
        Ok(made)
    }

    /// The algorithm for a convolution, or `None` where cuDNN has none that fits.
    pub fn choose(&self, geometry: &ConvGeometry, of: ConvResult) -> Option<Choice> {
        let mut chosen = self.chosen.lock().unwrap_or_else(|e| e.into_inner());
        *chosen.entry((*geometry, of)).or_insert_with(|| self.look_for(geometry, of).ok().flatten())
    }

    fn look_for(&self, geometry: &ConvGeometry, of: ConvResult) -> CudaResult<Option<Choice>> {
        self.context.bind()?;
        let d = Descriptors::new(geometry, self.tf32)?;
        macro_rules! first {
            ($find:path, $call:literal, $perf:ty, $kind:ident, [$($desc:expr),*]) => {{
                // SAFETY: all zeros is a legal value of this plain structure.
                let mut found: [$perf; CONSIDERED] = unsafe { std::mem::zeroed() };
                let mut count: c_int = 0;
                // SAFETY: handle and descriptors are live; there is room for as many as are asked for.
                unsafe { $find(self.handle, $($desc),*, CONSIDERED as c_int, &mut count, found.as_mut_ptr()) }
                    .map_err(failed($call))?;
                let count = usize::try_from(count).unwrap_or(0).min(CONSIDERED);
                let fits = |p: &&$perf| {
                    p.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS
                        && p.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC
                        && p.memory <= WORKSPACE
                        && (self.tf32 || p.mathType == sys::cudnnMathType_t::CUDNN_FMA_MATH)
                };
                found[..count].iter().find(fits).map(|p| Choice { algorithm: Algorithm::$kind(p.algo), workspace: p.memory })
            }};
        }
        let (image, filter, output, conv) = (d.image.0, d.filter.0, d.output.0, d.convolution.0);
        Ok(match of {
            ConvResult::Output => first!(
                cudnn::get_convolution_forward_algorithm,
                "cudnnGetConvolutionForwardAlgorithm",
                sys::cudnnConvolutionFwdAlgoPerf_t,
                Output,
                [image, filter, conv, output]
            ),
            ConvResult::Image => first!(
                cudnn::get_convolution_backward_data_algorithm,
                "cudnnGetConvolutionBackwardDataAlgorithm",
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                Image,
                [filter, output, conv, image]
            ),
            ConvResult::Filter => first!(
                cudnn::get_convolution_backward_filter_algorithm,
                "cudnnGetConvolutionBackwardFilterAlgorithm",
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                Filter,
                [image, output, conv, filter]
            ),
        })
    }

    /// Prepares a convolution for which there is a choice; `address` finds its buffers.
    ///
    /// # Errors
    /// What cuDNN says to the descriptors.
    pub fn prepare(
        &self,
        geometry: &ConvGeometry,
        choice: Choice,
        buffers: [CudaBuffer; 4],
        address: impl Fn(CudaBuffer) -> u64,
    ) -> CudaResult<PreparedConvolution> {
        self.context.bind()?;
        let descriptors = Descriptors::new(geometry, self.tf32)?;
        let [image, filter, output, workspace] = buffers.map(address);
        Ok(PreparedConvolution { descriptors, choice, dtype: geometry.dtype, image, filter, output, workspace })
    }

    /// Enqueues a convolution on the stream.
    pub fn enqueue(&self, c: &PreparedConvolution) -> CudaResult<()> {
        let (one, zero) = scalars(c.dtype);
        let d = &c.descriptors;
        let [image, filter, output, workspace] = [c.image, c.filter, c.output, c.workspace].map(|p| p as *mut c_void);
        let bytes = c.choice.workspace;
        // SAFETY: addresses and descriptors were made for each other, and live as long as the plan; the context is current.
        unsafe {
            match c.choice.algorithm {
                Algorithm::Output(algorithm) => cudnn::convolution_forward(
                    self.handle,
                    one,
                    d.image.0,
                    image,
                    d.filter.0,
                    filter,
                    d.convolution.0,
                    algorithm,
                    workspace,
                    bytes,
                    zero,
                    d.output.0,
                    output,
                )
                .map_err(failed("cudnnConvolutionForward")),
                Algorithm::Image(algorithm) => cudnn::convolution_backward_data(
                    self.handle,
                    one,
                    d.filter.0,
                    filter,
                    d.output.0,
                    output,
                    d.convolution.0,
                    algorithm,
                    workspace,
                    bytes,
                    zero,
                    d.image.0,
                    image,
                )
                .map_err(failed("cudnnConvolutionBackwardData")),
                Algorithm::Filter(algorithm) => cudnn::convolution_backward_filter(
                    self.handle,
                    one,
                    d.image.0,
                    image,
                    d.output.0,
                    output,
                    d.convolution.0,
                    algorithm,
                    workspace,
                    bytes,
                    zero,
                    d.filter.0,
                    filter,
                )
                .map_err(failed("cudnnConvolutionBackwardFilter")),
            }
        }
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        if self.context.lost().is_none() && self.context.bind().is_ok() {
            // SAFETY: nobody has the handle any more.
            let _ = unsafe { cudnn::destroy_handle(self.handle) };
        }
    }
}

impl Descriptors {
    fn new(g: &ConvGeometry, tf32: bool) -> CudaResult<Descriptors> {
        let format = match g.channels_last {
            true => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
            false => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        };
        let data = match g.dtype {
            DType::F64 => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
            _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        };
        let math = match tf32 {
            true => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
            false => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        };
        let int = |n: usize| {
            c_int::try_from(n)
                .map_err(|_| CudaError::refused("cudnnSetTensor4dDescriptor", format!("{n} is beyond 2³¹")))
        };
        let ints = |sizes: [usize; 4]| -> CudaResult<[c_int; 4]> {
            Ok([int(sizes[0])?, int(sizes[1])?, int(sizes[2])?, int(sizes[3])?])
        };
        let tensor = |sizes: [usize; 4]| -> CudaResult<Tensor> {
            let tensor = Tensor(cudnn::create_tensor_descriptor().map_err(failed("cudnnCreateTensorDescriptor"))?);
            // SAFETY: the descriptor was just made.
            unsafe { cudnn::set_tensor4d_descriptor(tensor.0, format, data, ints(sizes)?) }
                .map_err(failed("cudnnSetTensor4dDescriptor"))?;
            Ok(tensor)
        };
        let image = tensor([g.batch, g.channels, g.image[0], g.image[1]])?;
        let output = tensor([g.batch, g.filters, g.out[0], g.out[1]])?;
        let filter = Filter(cudnn::create_filter_descriptor().map_err(failed("cudnnCreateFilterDescriptor"))?);
        let sizes = ints([g.filters, g.channels / g.groups.max(1), g.taps[0], g.taps[1]])?;
        // SAFETY: the descriptor was just made.
        unsafe { cudnn::set_filter4d_descriptor(filter.0, data, format, sizes) }
            .map_err(failed("cudnnSetFilter4dDescriptor"))?;
        let made = cudnn::create_convolution_descriptor().map_err(failed("cudnnCreateConvolutionDescriptor"))?;
        let convolution = Convolution(made);
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let [pads, strides, dilations] =
            [g.pads, g.strides, g.dilations].map(|p| -> CudaResult<_> { Ok([int(p[0])?, int(p[1])?]) });
        let ([py, px], [sy, sx], [dy, dx]) = (pads?, strides?, dilations?);
        // SAFETY: the descriptor was just made.
        unsafe {
            cudnn::set_convolution2d_descriptor(convolution.0, py, px, sy, sx, dy, dx, mode, data)
                .map_err(failed("cudnnSetConvolution2dDescriptor"))?;
            cudnn::set_convolution_group_count(convolution.0, int(g.groups)?)
                .map_err(failed("cudnnSetConvolutionGroupCount"))?;
            cudnn::set_convolution_math_type(convolution.0, math).map_err(failed("cudnnSetConvolutionMathType"))?;
        }
        Ok(Descriptors { image, filter, output, convolution })
    }
}

/// One and zero of the type that cuDNN scales in, where it reads them.
fn scalars(dtype: DType) -> (*const c_void, *const c_void) {
    static F32: [f32; 2] = [1.0, 0.0];
    static F64: [f64; 2] = [1.0, 0.0];
    match dtype {
        DType::F64 => ((&raw const F64[0]).cast(), (&raw const F64[1]).cast()),
        _ => ((&raw const F32[0]).cast(), (&raw const F32[1]).cast()),
    }
}
