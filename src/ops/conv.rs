//! `Conv2D` and `DepthwiseConv2dNative`, the gradients of their images and filters, and the methods that build them.
//!
//! Absent: sizes (`conv_geometry.rs`, `window.rs`), loops (`winograd_kernel.rs`, `winograd_filter_kernel.rs`,
//! `winograd_rows.rs`, `conv_strips.rs`, `conv_strips_filter.rs`, `conv_strips_rows.rs`, `conv_kernel.rs`,
//! `conv_filter_kernel.rs`, `depthwise_kernel.rs`, `depthwise_vectors.rs`), launches (`cuda_conv.rs`), the test cases (`conv_cases.rs`).

use super::conv_geometry::{Conv, Kind, Of, infer};
use super::shape_facts::ShapeN;
use super::support::{dims_array, node, shape_of};
use super::vectors::CHANNELS;
use super::window::{DataFormat, Padding};
use super::{
    conv_cases, conv_filter_kernel, conv_kernel, conv_strips, conv_strips_filter, conv_strips_rows, cuda_conv,
    depthwise_kernel, depthwise_vectors, winograd_filter_kernel, winograd_kernel, winograd_rows,
};
use crate::base::DType;
use crate::device::cuda::CudaKernel;
use crate::device::{CpuKernel, RowKernel};
use crate::graph::{
    Attr, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, NodeBuilder, Op, Tensor, Traits,
};
use smallvec::{SmallVec, smallvec};

/// A convolution of two-dimensional images by a filter, or the gradient of one of the two. Attributes `strides`,
/// `padding`, `explicit_paddings`, `data_format` and `dilations`; `float32` and `float64`.
///
/// The output at `(y, x)` of filter `f` is the sum over the window's `(i, j)` and the group's channels `c` of
/// `image[y * stride + i * dilation - padding, …, c] * filter[i, j, c, f]`.
pub struct ConvOp {
    name: &'static str,
    kind: Kind,
    of: Of,
}

/// TensorFlow's `Conv2D`: inputs image and filter `[height, width, channels of a group, filters]`.
pub static CONV: ConvOp = ConvOp { name: "Conv2D", kind: Kind::Full, of: Of::Output };

/// TensorFlow's `Conv2DBackpropInput`: the image's gradient, of the image's sizes (four, or height and width), the
/// filter, and the output's gradient.
pub static CONV_BACKPROP_INPUT: ConvOp = ConvOp { name: "Conv2DBackpropInput", kind: Kind::Full, of: Of::Image };

/// TensorFlow's `Conv2DBackpropFilter`: the filter's gradient, of the image, the filter's sizes, and the output's
/// gradient.
pub static CONV_BACKPROP_FILTER: ConvOp = ConvOp { name: "Conv2DBackpropFilter", kind: Kind::Full, of: Of::Filter };

/// TensorFlow's `DepthwiseConv2dNative`: inputs image and filter `[height, width, channels, multiplier]`; output channel
/// `c * multiplier + m` is of the image's channel `c`.
pub static DEPTHWISE: ConvOp = ConvOp { name: "DepthwiseConv2dNative", kind: Kind::Depthwise, of: Of::Output };

/// TensorFlow's `DepthwiseConv2dNativeBackpropInput`.
pub static DEPTHWISE_BACKPROP_INPUT: ConvOp =
    ConvOp { name: "DepthwiseConv2dNativeBackpropInput", kind: Kind::Depthwise, of: Of::Image };

/// TensorFlow's `DepthwiseConv2dNativeBackpropFilter`.
pub static DEPTHWISE_BACKPROP_FILTER: ConvOp =
    ConvOp { name: "DepthwiseConv2dNativeBackpropFilter", kind: Kind::Depthwise, of: Of::Filter };

impl ConvOp {
    /// The op of the same kind that computes something else.
    fn twin(&self, of: Of) -> &'static ConvOp {
        match (self.kind, of) {
            (Kind::Full, Of::Output) => &CONV,
            (Kind::Full, Of::Image) => &CONV_BACKPROP_INPUT,
            (Kind::Full, Of::Filter) => &CONV_BACKPROP_FILTER,
            (Kind::Depthwise, Of::Output) => &DEPTHWISE,
            (Kind::Depthwise, Of::Image) => &DEPTHWISE_BACKPROP_INPUT,
            (Kind::Depthwise, Of::Filter) => &DEPTHWISE_BACKPROP_FILTER,
        }
    }
}

/// The attributes that a gradient's convolution has from its forward node.
const ATTRIBUTES: [&str; 6] =
    ["strides", "padding", "explicit_paddings", "data_format", "dilations", "use_cudnn_on_gpu"];

impl Op for ConvOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { product: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        infer(self.kind, self.of, c)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let attrs: Vec<(&str, Attr)> = {
            let node = c.node.node()?;
            ATTRIBUTES.iter().filter_map(|&name| Some((name, node.attrs.get(name)?.clone()))).collect()
        };
        let build = |of: Of, inputs: [Tensor<'g>; 3]| {
            let inputs = if of == Of::Output { &inputs[..2] } else { &inputs[..] };
            let op = self.twin(of);
            let node = c.node.graph().node_of(op).inputs(inputs.iter().copied());
            Some(attrs.iter().fold(node, |node, (name, value)| node.attr(*name, value.clone())).tensor().into())
        };
        let (inputs, grad) = (&c.inputs, c.grad());
        let sizes = |x: Tensor<'g>| shape_of(x, DType::I32);
        Some(match self.of {
            Of::Output => {
                let (image, filter) = (inputs[0], inputs[1]);
                let [image_sizes, filter_sizes] = match self.kind {
                    Kind::Full => {
                        let both = c.node.graph().node_of(&ShapeN).inputs([image, filter]).attr("N", 2i64);
                        let both = both.attr("out_type", DType::I32).add();
                        [0, 1].map(|output| both.output(output))
                    }
                    Kind::Depthwise => [sizes(image), sizes(filter)],
                };
                vec![build(Of::Image, [image_sizes, filter, grad]), build(Of::Filter, [image, filter_sizes, grad])]
            }
            Of::Image => {
                let (filter, upstream) = (inputs[1], inputs[2]);
                let filters = build(Of::Filter, [grad, sizes(filter), upstream]);
                vec![None, filters, build(Of::Output, [grad, filter, grad])]
            }
            Of::Filter => {
                let (image, upstream) = (inputs[0], inputs[2]);
                let images = build(Of::Image, [sizes(image), grad, upstream]);
                vec![images, None, build(Of::Output, [image, grad, grad])]
            }
        })
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        Cost { flops: Conv::of(self.kind, self.of, c).map_or(0.0, |conv| conv.flops()), bytes }
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        match self.of {
            Of::Output => SmallVec::new(),
            Of::Image => smallvec![0],
            Of::Filter => smallvec![1],
        }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let conv = Conv::of(self.kind, self.of, c)?;
        let (alone, vectors) = (is_alone(&conv), has_vectors(&conv, c));
        if vectors && !alone {
            let kernel = match self.of {
                Of::Output => winograd_kernel::forward(&conv).or_else(|| conv_strips::forward(&conv)),
                Of::Image => winograd_kernel::backward(&conv).or_else(|| conv_strips::backward(&conv)),
                Of::Filter => winograd_filter_kernel::filter_gradient(&conv)
                    .or_else(|| conv_strips_filter::filter_gradient(&conv)),
            };
            if let Some(kernel) = kernel {
                return Ok(kernel);
            }
        }
        if vectors && alone && fills_vectors(&conv) {
            match self.of {
                Of::Output => return Ok(depthwise_vectors::forward(&conv)),
                Of::Image => return Ok(depthwise_vectors::backward(&conv)),
                Of::Filter => {}
            }
        }
        Ok(match (self.of, alone, c.outputs[0].dtype) {
            (Of::Output, false, DType::F32) => conv_kernel::forward::<f32>(&conv),
            (Of::Output, false, DType::F64) => conv_kernel::forward::<f64>(&conv),
            (Of::Image, false, DType::F32) => conv_kernel::backward::<f32>(&conv),
            (Of::Image, false, DType::F64) => conv_kernel::backward::<f64>(&conv),
            (Of::Filter, false, DType::F32) => conv_filter_kernel::filter_gradient::<f32>(&conv),
            (Of::Filter, false, DType::F64) => conv_filter_kernel::filter_gradient::<f64>(&conv),
            (Of::Output, true, DType::F32) => depthwise_kernel::forward::<f32>(&conv),
            (Of::Output, true, DType::F64) => depthwise_kernel::forward::<f64>(&conv),
            (Of::Image, true, DType::F32) => depthwise_kernel::backward::<f32>(&conv),
            (Of::Image, true, DType::F64) => depthwise_kernel::backward::<f64>(&conv),
            (Of::Filter, true, DType::F32) => depthwise_kernel::filter_gradient::<f32>(&conv),
            (Of::Filter, true, DType::F64) => depthwise_kernel::filter_gradient::<f64>(&conv),
            (.., other) => return Err(format!("convolutions are of float32 or float64, got {other}")),
        })
    }

    fn row_kernel(&self, c: &KernelContext<'_>) -> Option<RowKernel> {
        let conv = Conv::of(self.kind, self.of, c).ok()?;
        // As `cpu_kernel` chooses, so that the bits are the same.
        match (self.of, is_alone(&conv)) {
            _ if !has_vectors(&conv, c) => None,
            (Of::Output, false) => winograd_rows::forward(&conv).or_else(|| conv_strips_rows::forward(&conv)),
            (Of::Image, false) => winograd_rows::backward(&conv).or_else(|| conv_strips_rows::backward(&conv)),
            (Of::Output, true) => fills_vectors(&conv).then(|| depthwise_vectors::forward_rows(&conv)),
            (Of::Image, true) => fills_vectors(&conv).then(|| depthwise_vectors::backward_rows(&conv)),
            (Of::Filter, _) => None,
        }
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        cuda_conv::kernel(&Conv::of(self.kind, self.of, c)?, self.of, c.outputs[0].dtype)
    }

    fn has_cuda_kernel(&self, _attrs: &crate::graph::Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        conv_cases::cases(self.kind, self.of)
    }
}

/// A full filter of single channels is a depthwise one.
fn is_alone(conv: &Conv) -> bool {
    conv.depth() == 1 && conv.groups > 1
}

/// True if channels lie together, for the kernels in vectors of `float32`.
fn has_vectors(conv: &Conv, c: &KernelContext<'_>) -> bool {
    c.outputs[0].dtype == DType::F32 && conv.format == DataFormat::Nhwc
}

/// True if filters of single channels are one for each, and fill vectors.
fn fills_vectors(conv: &Conv) -> bool {
    conv.width() == 1 && conv.channels >= CHANNELS
}

/// How a convolution's window moves. Pairs are of height and width; the default moves by one, without padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvOptions {
    /// How far the window moves.
    pub strides: [usize; 2],
    /// What lies around the image.
    pub padding: Padding,
    /// How far the window's elements lie apart.
    pub dilations: [usize; 2],
    /// Where the image's axes are.
    pub data_format: DataFormat,
}

impl Default for ConvOptions {
    fn default() -> ConvOptions {
        let (padding, data_format) = (Padding::Valid, DataFormat::Nhwc);
        ConvOptions { strides: [1, 1], padding, dilations: [1, 1], data_format }
    }
}

impl ConvOptions {
    /// The default with these strides and padding.
    pub fn new(strides: [usize; 2], padding: Padding) -> ConvOptions {
        ConvOptions { strides, padding, ..ConvOptions::default() }
    }
}

impl<'g> Tensor<'g> {
    /// The convolution of these images by a filter `[height, width, channels of a group, filters]`. The image's channels
    /// are a multiple of the filter's: the groups, each of which has its share of the filters. Named `Conv2D`.
    #[track_caller]
    pub fn conv2d(self, filter: impl Into<Tensor<'g>>, options: ConvOptions) -> Tensor<'g> {
        self.convolve("Conv2D", &[self, filter.into()], options)
    }

    /// The convolution of each channel of these images by filters of its own, `[height, width, channels, multiplier]`.
    /// Named `DepthwiseConv2dNative`.
    #[track_caller]
    pub fn depthwise_conv2d_native(self, filter: impl Into<Tensor<'g>>, options: ConvOptions) -> Tensor<'g> {
        self.convolve("DepthwiseConv2dNative", &[self, filter.into()], options)
    }

    /// The transposed convolution: the gradient by its image of a convolution that has images of shape `sizes` (in the
    /// order of the data format) and this as its output's gradient, by a filter `[height, width, channels of the result,
    /// channels of this]`. A `Conv2DBackpropInput` that is named `conv2d_transpose`.
    #[track_caller]
    pub fn conv2d_transpose(
        self,
        filter: impl Into<Tensor<'g>>,
        sizes: [usize; 4],
        options: ConvOptions,
    ) -> Tensor<'g> {
        let filter = filter.into();
        self.with_constant("conv2d_transpose", "input_sizes", dims_array(&sizes), |sizes| {
            self.convolution("Conv2DBackpropInput", &[sizes, filter, self], options)
        })
    }

    #[track_caller]
    fn convolve(self, op: &'static str, inputs: &[Tensor<'g>], options: ConvOptions) -> Tensor<'g> {
        self.convolution(op, inputs, options).tensor()
    }

    /// Starts a convolution of this type, to be named.
    pub(crate) fn convolution(self, op: &str, inputs: &[Tensor<'g>], options: ConvOptions) -> NodeBuilder<'g> {
        let ConvOptions { strides, padding, dilations, data_format } = options;
        let all = |pair: [usize; 2]| {
            let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            data_format.arrange(1, pair.map(number), 1).to_vec()
        };
        node(self.graph(), op)
            .inputs(inputs.iter().copied())
            .attr("strides", all(strides))
            .attr("padding", padding.name())
            .attr("explicit_paddings", padding.explicit(data_format))
            .attr("data_format", data_format.name())
            .attr("dilations", all(dilations))
    }
}
