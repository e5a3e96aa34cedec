//! `MaxPool` and `AvgPool`, their gradients, and the methods that build them.
//!
//! Absent: windows over batches or channels; loops (`pool_kernel.rs`, `pool_vectors.rs`); the test cases (`pool_cases.rs`).

use super::conv_geometry::Conv;
use super::pool_cases;
use super::pool_kernel::{Pool, Take, average_gradient, forward, largest_gradient, largest_taken};
use super::pool_vectors;
use super::support::{build, int_vector, node, shape_of, sizes_from};
use super::vectors::CHANNELS;
use super::window::{DataFormat, Padding, Window, spatial_pair};
use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch};
use crate::graph::{
    Attr, Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor,
};
use smallvec::{SmallVec, smallvec};

/// What an op of this family computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Make {
    /// Of the image.
    Largest,
    Average,
    /// The image's gradient, of image, output and the output's gradient.
    LargestGradient,
    /// The image's gradient, of the image's sizes and the output's gradient.
    AverageGradient,
    /// From each window of input 2 the element where image (input 0) has its largest; input 1 is the output.
    LargestTaken,
}

/// A pool, or the gradient of one. Attributes `ksize`, `strides`, `padding`, `data_format`, and `explicit_paddings` for
/// the largest.
pub struct PoolOp {
    name: &'static str,
    make: Make,
}

/// TensorFlow's `MaxPool`: the largest element of each window, of `float32`, `float64`, `int32` or `int64`. A NaN is
/// passed over.
pub static MAX_POOL: PoolOp = PoolOp { name: "MaxPool", make: Make::Largest };

/// TensorFlow's `MaxPoolGrad`: each window's gradient goes to the first of its largest elements.
pub static MAX_POOL_GRAD: PoolOp = PoolOp { name: "MaxPoolGrad", make: Make::LargestGradient };

/// TensorFlow's `MaxPoolGradGrad`: what input 2 has where a window of input 0 has the first of its largest elements.
pub static MAX_POOL_GRAD_GRAD: PoolOp = PoolOp { name: "MaxPoolGradGrad", make: Make::LargestTaken };

/// TensorFlow's `AvgPool`: the average of each window's elements that are in the image, of `float32` or `float64`.
pub static AVG_POOL: PoolOp = PoolOp { name: "AvgPool", make: Make::Average };

/// TensorFlow's `AvgPoolGrad`: each window's gradient is shared by its elements that are in the image.
pub static AVG_POOL_GRAD: PoolOp = PoolOp { name: "AvgPoolGrad", make: Make::AverageGradient };

const ATTRIBUTES: [&str; 5] = ["ksize", "strides", "padding", "explicit_paddings", "data_format"];

/// The window's attributes and size.
fn window(attrs: &Attrs) -> Result<(Window, [usize; 2]), String> {
    let window = Window::of(attrs)?;
    let size = spatial_pair(attrs, "ksize", window.format, true)?;
    if let Padding::Explicit(pads) = window.padding {
        for (axis, (before, after)) in pads.into_iter().enumerate() {
            if before.max(after) >= size[axis] {
                let (what, size) = (["height", "width"][axis], size[axis]);
                return Err(format!(
                    "the padding along the {what} ({before} and {after}) must be smaller than the window, which is \
                     {size}: each window needs an element of the image"
                ));
            }
        }
    }
    Ok((window, size))
}

/// The output's shape, as far as known.
fn output_shape(attrs: &Attrs, image: &Shape) -> Result<Shape, String> {
    let (window, size) = window(attrs)?;
    let format = window.format;
    if image.rank().is_some_and(|r| r != 4) {
        return Err(format!("the image must have 4 axes ({}), got shape {image}", format.name()));
    }
    let mut places = [None; 2];
    for (axis, place) in places.iter_mut().enumerate() {
        if let Some(length) = image.dim(format.spatial()[axis]) {
            *place = Some(window.places(axis, length, size[axis])?.count);
        }
    }
    Ok(Shape::partial(format.arrange(image.dim(0), places, image.dim(format.channels()))))
}

impl PoolOp {
    /// The pool of a node, as the convolution of single channels that moves so.
    fn conv(&self, c: &KernelContext<'_>) -> Result<Conv, String> {
        let image = match self.make {
            Make::AverageGradient => &c.outputs[0].dims,
            _ => &c.inputs[0].dims,
        };
        let (window, taps) = window(c.attrs)?;
        let ([y, x], channels) = (window.format.spatial(), window.format.channels());
        if image.len() != 4 {
            return Err(format!("the image must have 4 axes, got {image:?}"));
        }
        let [py, px] = [window.places(0, image[y], taps[0])?, window.places(1, image[x], taps[1])?];
        Ok(Conv {
            format: window.format,
            batch: image[0],
            image: [image[y], image[x]],
            channels: image[channels],
            taps,
            groups: image[channels],
            filters: image[channels],
            out: [py.count, px.count],
            strides: window.strides,
            dilations: [1, 1],
            before: [py.before, px.before],
            after: [py.after, px.after],
        })
    }

    fn floats_only(&self) -> bool {
        matches!(self.make, Make::Average | Make::AverageGradient)
    }

    /// A node of another op of the family, with this one's window.
    fn node<'g>(&self, c: &GradContext<'g>, op: &'static PoolOp, inputs: &[Tensor<'g>]) -> Option<Tensor<'g>> {
        let attrs: Vec<(&str, Attr)> = {
            let node = c.node.node()?;
            ATTRIBUTES.iter().filter_map(|&name| Some((name, node.attrs.get(name)?.clone()))).collect()
        };
        let node = c.node.graph().node_of(op).inputs(inputs.iter().copied());
        Some(attrs.iter().fold(node, |node, (name, value)| node.attr(*name, value.clone())).tensor())
    }
}

impl Op for PoolOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let (inputs, gradient) = match self.make {
            Make::Largest | Make::Average => (1, 0),
            Make::AverageGradient => (2, 1),
            Make::LargestGradient | Make::LargestTaken => (3, 2),
        };
        c.want_inputs(inputs)?;
        let dtype = c.dtype(gradient);
        if !dtype.is_number() || self.floats_only() && !dtype.is_floating() {
            let want = if self.floats_only() { "float32 or float64" } else { "numbers" };
            return Err(format!("want {want}, got {dtype}; cast the input"));
        }
        let image = if self.make == Make::AverageGradient {
            let what = "orig_input_shape";
            match int_vector(c, 0, what)? {
                Some(sizes) if sizes.len() == 4 => Shape::known(&sizes_from(&sizes, what)?),
                Some(sizes) => return Err(format!("{what} must have 4 entries, got {sizes:?}")),
                None => Shape::of_rank(4),
            }
        } else {
            c.same_dtype()?;
            c.shape(0).clone()
        };
        let output = output_shape(c.attrs, &image)?;
        let like = |input: usize, want: &Shape, what: &str| match want.is_compatible_with(c.shape(input)) {
            true => Ok(()),
            false => Err(format!("{what} must have shape {want}, got {}", c.shape(input))),
        };
        let result = match self.make {
            Make::Largest | Make::Average => output,
            Make::AverageGradient => {
                like(1, &output, "the output's gradient")?;
                image
            }
            Make::LargestGradient => {
                like(1, &output, "the output")?;
                like(2, &output, "the output's gradient")?;
                image
            }
            Make::LargestTaken => {
                like(1, &output, "the output")?;
                like(2, &image, "what is taken from")?;
                output
            }
        };
        Ok(vec![super::support::sized(dtype, result)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (inputs, grad) = (&c.inputs, c.grad());
        let zeros = |input: usize| Some(build("ZerosLike", "zeros_like", &[inputs[input]]).into());
        Some(match self.make {
            Make::Largest => {
                let y = *c.outputs.first()?;
                vec![Some(self.node(c, &MAX_POOL_GRAD, &[inputs[0], y, grad])?.into())]
            }
            Make::Average => {
                let sizes = shape_of(inputs[0], DType::I32);
                vec![Some(self.node(c, &AVG_POOL_GRAD, &[sizes, grad])?.into())]
            }
            Make::AverageGradient => vec![None, Some(self.node(c, &AVG_POOL, &[grad])?.into())],
            Make::LargestGradient | Make::LargestTaken => {
                let op = if self.make == Make::LargestGradient { &MAX_POOL_GRAD_GRAD } else { &MAX_POOL_GRAD };
                let first = [zeros(0), zeros(1)];
                let last = self.node(c, op, &[inputs[0], inputs[1], grad])?;
                first.into_iter().chain([Some(last.into())]).collect()
            }
        })
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        Cost { flops: self.conv(c).map_or(0.0, |conv| conv.flops() / 2.0), bytes }
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        if self.make == Make::AverageGradient { smallvec![0] } else { SmallVec::new() }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let pool = Pool::new(&self.conv(c)?);
        macro_rules! kernel {
            ($t:ty) => {
                match self.make {
                    Make::Largest => forward::<$t>(pool, Take::Largest),
                    Make::Average => forward::<$t>(pool, Take::Average),
                    Make::LargestGradient => largest_gradient::<$t>(pool),
                    Make::AverageGradient => average_gradient::<$t>(pool),
                    Make::LargestTaken => largest_taken::<$t>(pool),
                }
            };
        }
        if c.outputs[0].dtype == DType::F32 && pool.channels >= CHANNELS {
            match self.make {
                Make::Largest => return Ok(pool_vectors::largest(pool)),
                Make::LargestGradient => return Ok(pool_vectors::largest_gradient(pool)),
                _ => {}
            }
        }
        Ok(match c.outputs[0].dtype {
            DType::F32 => kernel!(f32),
            DType::F64 => kernel!(f64),
            DType::I32 => kernel!(i32),
            DType::I64 => kernel!(i64),
            other => return Err(format!("there are no pools of {other}")),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        cuda_kernel(self.make, &self.conv(c)?, c)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        pool_cases::cases(self.make)
    }
}

fn cuda_kernel(make: Make, conv: &Conv, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
    let pool = Pool::new(conv);
    let dtype = c.outputs[0].dtype;
    let results = pool.images * pool.out[0] * pool.out[1] * pool.channels;
    let numbers = [pool.image[0], pool.image[1], pool.channels, conv.taps[0], conv.taps[1], pool.out[0], pool.out[1]];
    let numbers = numbers.into_iter().chain(conv.strides).chain(conv.before);
    let number = |n: usize| match i32::try_from(n) {
        Ok(n) if n < 1 << 30 => Ok(CudaArg::I32(n)),
        _ => Err(format!("{n} is beyond what CUDA's pools count")),
    };
    let sizes: Vec<CudaArg> = numbers.map(number).collect::<Result<_, _>>()?;
    let sizes = [CudaArg::size(pool.images)].into_iter().chain(sizes);
    let [nothing, lowest] = match dtype {
        DType::F32 => [CudaArg::F32(0.0), CudaArg::F32(f32::NEG_INFINITY)],
        DType::F64 => [CudaArg::F64(0.0), CudaArg::F64(f64::NEG_INFINITY)],
        DType::I64 => [CudaArg::I64(0), CudaArg::I64(i64::MIN)],
        _ => [CudaArg::I32(0), CudaArg::I32(i32::MIN)],
    };
    // Each result of `pool.cu`: what it is made of, where it goes, its type and what it makes.
    let over_results = |taken: CudaArg, to: CudaArg, result: DType, what: i64, least: CudaArg| {
        let code = CudaCode::new(include_str!("cuda/pool.cu")).with_type("T", dtype).with_type("R", result);
        let args = [CudaArg::input(0), taken, to].into_iter().chain(sizes.clone()).chain([least]);
        CudaLaunch::elements(code.with_constant("MAKE", what), results, args)
    };
    let over_image = |gradient: usize, place: CudaArg, largest: bool| {
        let code = CudaCode::new(include_str!("cuda/pool_grad.cu")).with_type("T", dtype);
        let args = [CudaArg::input(gradient), place, CudaArg::output(0)].into_iter().chain(sizes.clone());
        CudaLaunch::elements(code.with_constant("LARGEST", largest.into()), c.outputs[0].len(), args)
    };
    if c.outputs[0].is_empty() {
        return Ok(CudaKernel::default());
    }
    let (x, y) = (CudaArg::input(0), CudaArg::output(0));
    Ok(CudaKernel::new(match make {
        Make::Largest => vec![over_results(x, y, dtype, 0, lowest)],
        Make::Average => vec![over_results(x, y, dtype, 1, nothing)],
        Make::LargestTaken => vec![over_results(CudaArg::input(2), y, dtype, 3, nothing)],
        // Nothing reads the places here.
        Make::AverageGradient => vec![over_image(1, CudaArg::input(0), false)],
        Make::LargestGradient => {
            let places = CudaArg::Buffer(CudaBuffer::Scratch(0));
            let find = (results > 0).then(|| over_results(x, places, DType::I32, 2, CudaArg::I32(0)));
            let launches = find.into_iter().chain([over_image(2, places, true)]);
            return Ok(CudaKernel { scratch_bytes: (4 * results).max(4), ..CudaKernel::new(launches) });
        }
    }))
}

/// How a pool's window moves. Pairs are of height and width; the default is a window of two by two that moves by two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// The size of the window.
    pub ksize: [usize; 2],
    /// How far it moves.
    pub strides: [usize; 2],
    /// What lies around the image; windows do not see it.
    pub padding: Padding,
    /// Where the image's axes are.
    pub data_format: DataFormat,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions::new([2, 2], [2, 2], Padding::Valid)
    }
}

impl PoolOptions {
    /// A window with channels last.
    pub fn new(ksize: [usize; 2], strides: [usize; 2], padding: Padding) -> PoolOptions {
        PoolOptions { ksize, strides, padding, data_format: DataFormat::Nhwc }
    }
}

impl<'g> Tensor<'g> {
    /// The largest element of each window of these images. Named `MaxPool`.
    #[track_caller]
    pub fn max_pool(self, options: PoolOptions) -> Tensor<'g> {
        self.pool("MaxPool", options)
    }

    /// The average of each window of these images, of the elements that are there. Named `AvgPool`.
    #[track_caller]
    pub fn avg_pool(self, options: PoolOptions) -> Tensor<'g> {
        self.pool("AvgPool", options)
    }

    #[track_caller]
    fn pool(self, op: &'static str, options: PoolOptions) -> Tensor<'g> {
        let PoolOptions { ksize, strides, padding, data_format } = options;
        let all = |pair: [usize; 2]| {
            let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            data_format.arrange(1, pair.map(number), 1).to_vec()
        };
        let node = node(self.graph(), op).input(self).attr("ksize", all(ksize)).attr("strides", all(strides));
        let node = node.attr("padding", padding.name()).attr("data_format", data_format.name());
        match padding {
            Padding::Explicit(_) => node.attr("explicit_paddings", padding.explicit(data_format)).tensor(),
            _ => node.tensor(),
        }
    }
}
