//! `ResizeBilinear` and `ResizeNearestNeighbor`, and their gradients.
//!
//! Absent: loops (`resize_kernel.rs`), images with channels in the middle, other interpolations.

use super::number::Number;
use super::resize_kernel::{Axis, bilinear, bilinear_gradient, nearest, nearest_gradient};
use super::strided_slice::Index;
use super::support::{by_dtype, int_vector, node, sized, sizes_from};
use super::values::{array, case_with, float, ints};
use crate::base::{Array, DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaCode, CudaKernel};
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};
use smallvec::{SmallVec, smallvec};

/// An op of this family, on images `[batch, height, width, channels]`; attributes `align_corners` and
/// `half_pixel_centers`, of which one at most is set.
///
/// Place `i` of `out` along an axis is at `i * scale` of the image's `size`, or with half-pixel centres at
/// `(i + 0.5) * scale - 0.5` (nearest: `(i + 0.5) * scale`), where `scale = size / out`, or with aligned corners
/// `(size - 1) / (out - 1)`, in `float32`. Bilinear results lie between the elements at floor and ceiling; the nearest is
/// that at the floor, or rounded with aligned corners.
pub struct ResizeOp {
    name: &'static str,
    nearest: bool,
    gradient: bool,
}

/// TensorFlow's `ResizeBilinear`: inputs images of numbers, or `uint8`, and `size`; the output is `float32`.
pub static BILINEAR: ResizeOp = ResizeOp { name: "ResizeBilinear", nearest: false, gradient: false };

/// TensorFlow's `ResizeBilinearGrad`: of the output's gradient and the images, whose type and shape it has.
pub static BILINEAR_GRAD: ResizeOp = ResizeOp { name: "ResizeBilinearGrad", nearest: false, gradient: true };

/// TensorFlow's `ResizeNearestNeighbor`: inputs images of any type and `size`.
pub static NEAREST: ResizeOp = ResizeOp { name: "ResizeNearestNeighbor", nearest: true, gradient: false };

/// TensorFlow's `ResizeNearestNeighborGrad`: of the output's gradient and the images' height and width.
pub static NEAREST_GRAD: ResizeOp = ResizeOp { name: "ResizeNearestNeighborGrad", nearest: true, gradient: true };

/// Height and width from an input, as far as known.
fn size(c: &InferContext<'_>, input: usize) -> Result<[Option<usize>; 2], String> {
    let values = int_vector(c, input, "size")?;
    if c.shape(input).dim(0).is_some_and(|n| n != 2) {
        return Err(format!("size must be [height, width], got a vector of shape {}", c.shape(input)));
    }
    let Some(values) = values else { return Ok([None, None]) };
    match sizes_from(&values, "size")?[..] {
        [height, width] if height > 0 && width > 0 => Ok([Some(height), Some(width)]),
        _ => Err(format!("size must be [height, width], both above 0, got {values:?}")),
    }
}

fn images(shape: &Shape, what: &str) -> Result<(), String> {
    if shape.rank().is_some_and(|r| r != 4) {
        return Err(format!("{what} must be [batch, height, width, channels], got shape {shape}"));
    }
    if shape.dim(1) == Some(0) || shape.dim(2) == Some(0) {
        return Err(format!("{what} must have height and width, got shape {shape}"));
    }
    Ok(())
}

impl ResizeOp {
    /// How results and images meet along height and width.
    fn axes(&self, c: &KernelContext<'_>) -> Result<[Axis; 2], String> {
        let (image, out) = match self.gradient {
            true => (&c.outputs[0].dims, &c.inputs[0].dims),
            false => (&c.inputs[0].dims, &c.outputs[0].dims),
        };
        let (&[_, height, width, _], &[_, out_y, out_x, _]) = (&image[..], &out[..]) else {
            return Err(format!("images must have 4 axes, got {image:?} and {out:?}"));
        };
        let (align, half) = (c.attrs.bool("align_corners"), c.attrs.bool("half_pixel_centers"));
        Ok([Axis::new(height, out_y, align, half, self.nearest), Axis::new(width, out_x, align, half, self.nearest)])
    }
}

impl Op for ResizeOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: !self.nearest && self.gradient, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if c.attrs.bool("align_corners") && c.attrs.bool("half_pixel_centers") {
            return Err("attributes 'align_corners' and 'half_pixel_centers' exclude each other; set one".into());
        }
        let dtype = c.dtype(0);
        images(c.shape(0), if self.gradient { "the gradient" } else { "the images" })?;
        let (batch, channels) = (c.shape(0).dim(0), c.shape(0).dim(3));
        let resized = |[height, width]: [Option<usize>; 2]| Shape::partial([batch, height, width, channels]);
        let refuse = |want: &str| Err(format!("want {want}, got {dtype}; cast the input"));
        let fact = match (self.nearest, self.gradient) {
            (true, false) if dtype.is_opaque() => return refuse("images of numbers"),
            (true, true) if !dtype.is_number() => return refuse("numbers"),
            (false, false) if !dtype.is_number() && dtype != DType::U8 => return refuse("numbers or uint8"),
            (true, _) => sized(dtype, resized(size(c, 1)?))?,
            (false, false) => sized(DType::F32, resized(size(c, 1)?))?,
            (false, true) => {
                if dtype != DType::F32 || !c.dtype(1).is_floating() {
                    let of = c.dtype(1);
                    return Err(format!("want a float32 gradient of float32 or float64 images, got {dtype} of {of}"));
                }
                images(c.shape(1), "the images")?;
                let like = Shape::partial([batch, None, None, channels]);
                let shape = c.shape(1).merge(&like).ok_or_else(|| {
                    let (images, gradient) = (c.shape(1), c.shape(0));
                    format!("batch and channels must be those of the images {images}, got a gradient {gradient}")
                })?;
                Fact::new(c.dtype(1), shape)
            }
        };
        Ok(vec![fact])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        if self.gradient {
            return None;
        }
        let (image, g) = (c.inputs[0], c.node.graph());
        let (align, half) = {
            let node = c.node.node()?;
            (node.attrs.bool("align_corners"), node.attrs.bool("half_pixel_centers"))
        };
        let built = |op: &'static ResizeOp, other: Tensor<'g>| {
            let node = g.node_of(op).inputs([c.grad(), other]);
            node.attr("align_corners", align).attr("half_pixel_centers", half)
        };
        let gradient = match (self.nearest, image.shape().dim(1), image.shape().dim(2)) {
            _ if !image.dtype().is_floating() => return Some(vec![None, None]),
            (false, ..) => built(&BILINEAR_GRAD, image).tensor(),
            (true, Some(height), Some(width)) => {
                let size = super::support::dims_array(&[height, width]);
                c.grad().with_constant(NEAREST_GRAD.name, "size", size, |size| built(&NEAREST_GRAD, size))
            }
            (true, ..) => {
                let size = image.shape_tensor().index([Index::Span { start: Some(1), end: Some(3), step: 1 }]);
                built(&NEAREST_GRAD, size).tensor()
            }
        };
        Some(vec![Some(gradient.into()), None])
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = (c.inputs[0].bytes() + c.outputs[0].bytes()) as f64;
        let each = if self.nearest { 1.0 } else { 8.0 };
        Cost { flops: each * c.outputs[0].len().max(c.inputs[0].len()) as f64, bytes }
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        if !self.nearest && self.gradient { SmallVec::new() } else { smallvec![1] }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        // Nothing of an image's size is worked out for no elements.
        if c.outputs[0].is_empty() {
            return super::no_kernel();
        }
        let [down, across] = self.axes(c)?;
        let channels = c.outputs[0].dims.last().copied().unwrap_or(0);
        let axes = (&down, &across, channels);
        fn adding<T: Number>((down, across, channels): (&Axis, &Axis, usize)) -> CpuKernel {
            nearest_gradient::<T>(down, across, channels)
        }
        Ok(match (self.nearest, self.gradient, c.inputs[0].dtype) {
            (false, false, DType::F32) => bilinear::<f32>(&down, &across, channels),
            (false, false, DType::F64) => bilinear::<f64>(&down, &across, channels),
            (false, false, DType::I32) => bilinear::<i32>(&down, &across, channels),
            (false, false, DType::I64) => bilinear::<i64>(&down, &across, channels),
            (false, false, DType::U8) => bilinear::<u8>(&down, &across, channels),
            (false, true, DType::F32) => match c.outputs[0].dtype {
                DType::F64 => bilinear_gradient::<f64>(&down, &across, channels),
                _ => bilinear_gradient::<f32>(&down, &across, channels),
            },
            (true, false, dtype) if !dtype.is_opaque() => by_dtype!(dtype, T => nearest::<T>(&down, &across, channels)),
            (true, true, DType::F32) => adding::<f32>(axes),
            (true, true, DType::F64) => adding::<f64>(axes),
            (true, true, DType::I32) => adding::<i32>(axes),
            (true, true, DType::I64) => adding::<i64>(axes),
            (.., other) => return Err(format!("{} has no kernel for {other}", self.name)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let [down, across] = self.axes(c)?;
        let (from, to) = (&c.inputs[0], &c.outputs[0]);
        let dims = if self.gradient { &to.dims } else { &from.dims };
        let text = match self.gradient {
            true => include_str!("cuda/resize_grad.cu"),
            false => include_str!("cuda/resize_images.cu"),
        };
        let code = CudaCode::new(format!("{}{text}", include_str!("cuda/resize.cu")))
            .with_constant("NEAREST", self.nearest.into())
            .with_constant("ALIGN", c.attrs.bool("align_corners").into())
            .with_constant("HALF", c.attrs.bool("half_pixel_centers").into())
            .with_type("T", from.dtype)
            .with_type("R", to.dtype);
        let sizes = dims.iter().copied().chain([down.out, across.out]).map(CudaArg::size);
        let scales = [down.scale, across.scale].map(CudaArg::F32);
        let args = [CudaArg::input(0), CudaArg::output(0)].into_iter().chain(sizes).chain(scales);
        Ok(CudaKernel::elements(code, to.len(), args))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        cases(self.nearest, self.gradient)
    }
}

/// Cases with results from the definition, of sizes whose scales are exact.
fn cases(nearest: bool, gradient: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for (align, half) in [(false, false), (true, false), (false, true)] {
        let sizes = if align { [([3, 2], [5, 3]), ([5, 3], [3, 1])] } else { [([2, 3], [4, 3]), ([4, 5], [2, 4])] };
        for (image, out) in sizes {
            cases.push(sized_case(nearest, gradient, align, half, image, out));
        }
    }
    if nearest && !gradient {
        let x = array(&[1, 1, 2, 1], &[7u8, 9]);
        let y = array(&[1, 1, 4, 1], &[7u8, 7, 9, 9]);
        cases.push(case_with(Attrs::new(), vec![x, ints(&[1, 4])], vec![y], false));
    }
    if !nearest && !gradient {
        let x = array(&[1, 1, 2, 1], &[10i32, 20]);
        let y = float(&[1, 1, 4, 1], &[10.0, 15.0, 20.0, 20.0]);
        cases.push(case_with(Attrs::new(), vec![x, ints(&[1, 4])], vec![y], false));
    }
    cases
}

fn sized_case(nearest: bool, gradient: bool, align: bool, half: bool, image: [usize; 2], out: [usize; 2]) -> Case {
    let (batch, channels) = (2, 2);
    // (place, weight) of all elements that a result along an axis is made of.
    let parts = |axis: usize, i: usize| -> Vec<(usize, f64)> {
        let (size, out) = (image[axis] as f64, out[axis] as f64);
        let scale = if align && out > 1.0 { (size - 1.0) / (out - 1.0) } else { size / out };
        let last = image[axis] as i64 - 1;
        let whole = |at: f64| (at as i64).clamp(0, last) as usize;
        let centre = if half { 0.5 } else { 0.0 };
        let at = (i as f64 + centre) * scale;
        if nearest {
            return vec![(whole(if align { at.round() } else { at.floor() }), 1.0)];
        }
        let at = at - centre;
        let lerp = at - at.floor();
        vec![(whole(at.floor()), 1.0 - lerp), (whole(at.ceil()), lerp)]
    };
    let (from, to) = ([batch, image[0], image[1], channels], [batch, out[0], out[1], channels]);
    let values = |dims: &[usize; 4]| -> Vec<f64> {
        (0..dims.iter().product()).map(|i: usize| ((i * 7) % 13) as f64 / 4.0 - 1.5).collect()
    };
    let array = |dims: &[usize; 4], values: &[f64]| -> Array {
        float(dims, &values.iter().map(|&v| v as f32).collect::<Vec<f32>>())
    };
    let (x, g) = (values(&from), values(&to));
    let (mut y, mut dx) = (vec![0.0; g.len()], vec![0.0; x.len()]);
    for (n, i) in (0..batch).flat_map(|n| (0..out[0]).map(move |i| (n, i))) {
        for (j, c) in (0..out[1]).flat_map(|j| (0..channels).map(move |c| (j, c))) {
            let result = ((n * out[0] + i) * out[1] + j) * channels + c;
            for (row, down) in parts(0, i) {
                for (column, across) in parts(1, j) {
                    let place = ((n * image[0] + row) * image[1] + column) * channels + c;
                    y[result] += x[place] * down * across;
                    dx[place] += g[result] * down * across;
                }
            }
        }
    }
    let attrs = Attrs::new().with("align_corners", align).with("half_pixel_centers", half);
    let size = |[height, width]: [usize; 2]| ints(&[height as i32, width as i32]);
    let (inputs, output) = match (nearest, gradient) {
        (_, false) => (vec![array(&from, &x), size(out)], array(&to, &y)),
        (true, true) => (vec![array(&to, &g), size(image)], array(&from, &dx)),
        (false, true) => (vec![array(&to, &g), array(&from, &x)], array(&from, &dx)),
    };
    // Bilinear results are float32 whatever the images are, which is too coarse for differences.
    case_with(attrs, inputs, vec![output], nearest && !gradient)
}

/// Where resized images take their elements from; the default takes place `i * size / out`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ResizeOptions {
    /// The first and the last elements of images and results fall together.
    pub align_corners: bool,
    /// Elements are at the centres of their squares.
    pub half_pixel_centers: bool,
}

impl<'g> Tensor<'g> {
    /// These images `[batch, height, width, channels]` with another height and width, between their elements; of
    /// `float32`. Named `ResizeBilinear`.
    #[track_caller]
    pub fn resize_bilinear(self, size: [usize; 2], options: ResizeOptions) -> Tensor<'g> {
        self.resize(&BILINEAR, size, options)
    }

    /// These images `[batch, height, width, channels]` with another height and width, of their nearest elements. Named
    /// `ResizeNearestNeighbor`.
    #[track_caller]
    pub fn resize_nearest_neighbor(self, size: [usize; 2], options: ResizeOptions) -> Tensor<'g> {
        self.resize(&NEAREST, size, options)
    }

    #[track_caller]
    fn resize(self, op: &'static ResizeOp, size: [usize; 2], options: ResizeOptions) -> Tensor<'g> {
        let ResizeOptions { align_corners, half_pixel_centers } = options;
        self.with_constant(op.name, "size", super::support::dims_array(&size), |size| {
            let node = node(self.graph(), op.name).inputs([self, size]);
            node.attr("align_corners", align_corners).attr("half_pixel_centers", half_pixel_centers)
        })
    }
}
