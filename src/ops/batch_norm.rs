//! `FusedBatchNorm` and its gradient, in the three versions that TensorFlow has of each, and the method that builds the
//! last.
//!
//! Absent: loops (`batch_norm_kernel.rs`, `batch_norm_loops.rs`), the gradient's gradient (`batch_norm_second.rs`),
//! halves as input.

use super::batch_norm_kernel::{Layout, Settings, backward, forward};
use super::batch_norm_second;
use super::cuda_rows::Parts;
use super::support::{around, node, or_zeros};
use super::values::{case_with, float};
use super::window::DataFormat;
use crate::base::{Array, DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch};
use crate::graph::{
    Attr, Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor,
};

/// Normalizes input 0 by the moments of each channel: `(x - mean) / sqrt(variance + epsilon) * scale + offset`. Inputs
/// x, scale, offset, mean, variance; attributes `epsilon` (0.0001), `exponential_avg_factor` (1), `data_format` (`NHWC`),
/// `is_training` (true); `float32`, and here `float64` too.
///
/// Outputs the result; in training, with the batch's mean and its variance (by Bessel's correction, `n / (n - 1)`), the
/// running moments `(1 - factor) * input + factor * batch's`, else the inputs; then what it was normalized with: the
/// batch's mean and its variance, uncorrected, or the inputs; from version 3 on, an empty vector.
pub struct BatchNorm {
    name: &'static str,
    gradient: &'static BatchNormGrad,
    version: usize,
}

/// The gradient of input, scale and offset, of the output's gradient, the input, the scale, the moments that it was
/// normalized with, and from version 3 on what is not used; then two empty vectors.
pub struct BatchNormGrad {
    name: &'static str,
    version: usize,
}

/// TensorFlow's `FusedBatchNorm`.
pub static BATCH_NORM: BatchNorm = BatchNorm { name: "FusedBatchNorm", gradient: &BATCH_NORM_GRAD, version: 1 };

/// TensorFlow's `FusedBatchNormV2`.
pub static BATCH_NORM_V2: BatchNorm = BatchNorm { name: "FusedBatchNormV2", gradient: &BATCH_NORM_GRAD_V2, version: 2 };

/// TensorFlow's `FusedBatchNormV3`; images may have a depth (`NDHWC`, `NCDHW`).
pub static BATCH_NORM_V3: BatchNorm = BatchNorm { name: "FusedBatchNormV3", gradient: &BATCH_NORM_GRAD_V3, version: 3 };

/// TensorFlow's `FusedBatchNormGrad`.
pub static BATCH_NORM_GRAD: BatchNormGrad = BatchNormGrad { name: "FusedBatchNormGrad", version: 1 };

/// TensorFlow's `FusedBatchNormGradV2`.
pub static BATCH_NORM_GRAD_V2: BatchNormGrad = BatchNormGrad { name: "FusedBatchNormGradV2", version: 2 };

/// TensorFlow's `FusedBatchNormGradV3`.
pub static BATCH_NORM_GRAD_V3: BatchNormGrad = BatchNormGrad { name: "FusedBatchNormGradV3", version: 3 };

/// The rank, and the axis of the channels.
pub(super) fn axis(attrs: &Attrs, version: usize) -> Result<(usize, usize), String> {
    match attrs.str("data_format") {
        None | Some("NHWC") => Ok((4, 3)),
        Some("NCHW") => Ok((4, 1)),
        Some("NDHWC") if version > 2 => Ok((5, 4)),
        Some("NCDHW") if version > 2 => Ok((5, 1)),
        Some(other) => {
            let more = if version > 2 { ", NDHWC or NCDHW" } else { "" };
            Err(format!("attribute 'data_format' must be NHWC or NCHW{more}, got '{other}'"))
        }
    }
}

pub(super) fn settings(attrs: &Attrs) -> Settings {
    Settings {
        epsilon: attrs.float("epsilon").unwrap_or(1e-4).into(),
        factor: attrs.float("exponential_avg_factor").unwrap_or(1.0).into(),
        training: attrs.get("is_training").is_none_or(|a| *a == Attr::Bool(true)),
    }
}

fn layout(c: &KernelContext<'_>, input: usize, version: usize) -> Result<Layout, String> {
    let (rank, axis) = axis(c.attrs, version)?;
    let dims = &c.inputs[input].dims;
    if dims.len() != rank {
        return Err(format!("the input must have {rank} axes, got {dims:?}"));
    }
    Ok(Layout::new(around(dims, axis)))
}

/// The input's shape with what the vectors of its channels say, and the channels.
fn channels(c: &InferContext<'_>, version: usize, x: usize, vectors: &[usize]) -> Result<(Shape, Shape), String> {
    let dtype = c.same_dtype()?;
    if !dtype.is_floating() {
        return Err(format!("want float32 or float64, got {dtype}; cast the inputs"));
    }
    let (rank, axis) = axis(c.attrs, version)?;
    let shape = c.shape(x).merge(&Shape::of_rank(rank)).ok_or_else(|| {
        let format = c.attrs.str("data_format").unwrap_or("NHWC");
        format!("the input must have {rank} axes ({format}), got shape {}", c.shape(x))
    })?;
    let mut vector = Shape::partial([shape.dim(axis)]);
    for &input in vectors {
        vector = vector.merge(c.shape(input)).ok_or_else(|| {
            format!("input {input} must have one entry a channel (axis {axis}): want {vector}, got {}", c.shape(input))
        })?;
    }
    let dims = (0..rank).map(|a| if a == axis { vector.dim(0) } else { shape.dim(a) });
    Ok((Shape::partial(dims), vector))
}

impl Op for BatchNorm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(5)?;
        let Settings { factor, training, .. } = settings(c.attrs);
        let needed: &[usize] = if training && factor == 1.0 { &[1, 2] } else { &[1, 2, 3, 4] };
        let (shape, vector) = channels(c, self.version, 0, needed)?;
        for input in [3, 4] {
            if c.shape(input).rank().is_some_and(|r| r != 1) {
                return Err(format!("input {input} must be a vector, got {}", c.shape(input)));
            }
        }
        let fact = |shape: &Shape| Fact::new(c.dtype(0), shape.clone());
        let mut facts = vec![fact(&shape)];
        facts.extend((0..4).map(|_| fact(&vector)));
        facts.extend((self.version > 2).then(|| fact(&Shape::known(&[0]))));
        Ok(facts)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (inputs, outputs) = (&c.inputs, &c.outputs);
        let node = c.node.node()?;
        let training = settings(&node.attrs).training;
        // As in TensorFlow, what reaches the moments goes no further.
        let grad = or_zeros(c.grads.first().copied().flatten(), *outputs.first()?);
        let moments = if training { [*outputs.get(3)?, *outputs.get(4)?] } else { [inputs[3], inputs[4]] };
        let gradient = c.node.graph().node_of(self.gradient).inputs([grad, inputs[0], inputs[1]]).inputs(moments);
        let gradient = gradient.inputs(outputs.get(5).copied());
        let gradient = ["epsilon", "data_format", "is_training"].iter().fold(gradient, |gradient, name| {
            match node.attrs.get(name) {
                Some(value) => gradient.attr(*name, value.clone()),
                None => gradient,
            }
        });
        let gradient = gradient.add();
        let output = |i: usize| Some(gradient.output(i).into());
        Some(vec![output(0), output(1), output(2), None, None])
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        Cost { flops: 8.0 * c.inputs[0].len() as f64, bytes }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (layout, settings) = (layout(c, 0, self.version)?, settings(c.attrs));
        Ok(match c.inputs[0].dtype {
            DType::F32 => forward::<f32>(layout, settings),
            DType::F64 => forward::<f64>(layout, settings),
            other => return Err(format!("there is no batch normalization of {other}")),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (layout, settings) = (layout(c, 0, self.version)?, settings(c.attrs));
        let (input, output) = (CudaArg::input, CudaArg::output);
        let dtype = c.inputs[0].dtype;
        let Layout { outer, channels, inner } = layout;
        if channels == 0 {
            return Ok(CudaKernel::default());
        }
        let totals = Totals::new(layout);
        let training = settings.training && layout.count() > 0;
        let found = if training { CudaArg::Buffer(CudaBuffer::Scratch(0)) } else { input(3) };
        let moments = training.then(|| totals.launch(dtype, false, [input(0), input(0), input(0), found]));
        let merge = {
            let args = [found, input(3), input(4), output(1), output(2), output(3), output(4)].into_iter();
            let args =
                args.chain([channels, layout.count(), totals.parts.count, totals.parts.length].map(CudaArg::size));
            let args = args.chain([CudaArg::I32(settings.training.into()), CudaArg::F64(settings.factor)]);
            let code = CudaCode::new(include_str!("cuda/batch_norm_merge.cu")).with_type("T", dtype);
            CudaLaunch::elements(code, channels, args)
        };
        let apply = (layout.count() > 0).then(|| {
            let count = outer * channels * inner;
            let args = [input(0), input(1), input(2), output(3), output(4), output(0)].into_iter();
            let epsilon = match dtype {
                DType::F64 => CudaArg::F64(settings.epsilon),
                _ => CudaArg::F32(settings.epsilon as f32),
            };
            let args = args.chain([count, channels, inner].map(CudaArg::size)).chain([epsilon]);
            let code = CudaCode::new(include_str!("cuda/batch_norm_apply.cu")).with_type("T", dtype);
            CudaLaunch::elements(code, count, args)
        });
        let scratch_bytes = if training { totals.bytes() } else { 0 };
        let launches = moments.into_iter().chain([merge]).chain(apply);
        Ok(CudaKernel { scratch_bytes, ..CudaKernel::new(launches) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        cases(self.version, false)
    }
}

impl Op for BatchNormGrad {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(if self.version > 2 { 6 } else { 5 })?;
        let (shape, vector) = channels(c, self.version, 1, &[2, 3, 4])?;
        let shape = shape.merge(c.shape(0)).ok_or_else(|| {
            format!("the output's gradient must have the input's shape: want {shape}, got {}", c.shape(0))
        })?;
        let empty = Shape::known(&[0]);
        Ok([shape, vector.clone(), vector, empty.clone(), empty].map(|shape| Fact::new(c.dtype(0), shape)).into())
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        batch_norm_second::gradient(c, self.version)
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        Cost { flops: 10.0 * c.inputs[0].len() as f64, bytes }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (layout, settings) = (layout(c, 1, self.version)?, settings(c.attrs));
        Ok(match c.inputs[0].dtype {
            DType::F32 => backward::<f32>(layout, settings),
            DType::F64 => backward::<f64>(layout, settings),
            other => return Err(format!("there is no batch normalization of {other}")),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (layout, settings) = (layout(c, 1, self.version)?, settings(c.attrs));
        let (input, output) = (CudaArg::input, CudaArg::output);
        let dtype = c.inputs[0].dtype;
        let Layout { outer, channels, inner } = layout;
        if channels == 0 {
            return Ok(CudaKernel::default());
        }
        let totals = Totals::new(layout);
        let found = CudaArg::Buffer(CudaBuffer::Scratch(0));
        let numbers = CudaArg::Buffer(CudaBuffer::Scratch(totals.bytes()));
        let sums = totals.launch(dtype, true, [input(1), input(0), input(3), found]);
        let slopes = {
            let args = [found, input(2), input(4), output(1), output(2), numbers].into_iter();
            let args = args.chain([channels, layout.count(), totals.parts.count].map(CudaArg::size));
            let args = args.chain([CudaArg::I32(settings.training.into()), CudaArg::F64(settings.epsilon)]);
            let code = CudaCode::new(include_str!("cuda/batch_norm_slopes.cu")).with_type("T", dtype);
            CudaLaunch::elements(code, channels, args)
        };
        let count = outer * channels * inner;
        let apply = (count > 0).then(|| {
            let args = [input(0), input(1), input(3), numbers, output(0)].into_iter();
            let args = args.chain([count, channels, inner].map(CudaArg::size));
            let code = CudaCode::new(include_str!("cuda/batch_norm_grad.cu")).with_type("T", dtype);
            CudaLaunch::elements(code, count, args)
        });
        let scratch_bytes = totals.bytes() + 3 * channels * dtype.size();
        Ok(CudaKernel { scratch_bytes, ..CudaKernel::new([sums, slopes].into_iter().chain(apply)) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        cases(self.version, true)
    }
}

/// How the totals of channels are shared out on CUDA.
struct Totals {
    layout: Layout,
    parts: Parts,
}

impl Totals {
    fn new(layout: Layout) -> Totals {
        let Layout { channels, inner, .. } = layout;
        let apart = if inner == 1 { channels } else { 1 };
        Totals { layout, parts: Parts::new(channels, layout.count(), apart) }
    }

    /// Two doubles for each part of a channel.
    fn bytes(&self) -> usize {
        16 * self.layout.channels * self.parts.count
    }

    fn launch(&self, dtype: DType, slopes: bool, buffers: [CudaArg; 4]) -> CudaLaunch {
        let Parts { lanes, count, length } = self.parts;
        let code = CudaCode::new(include_str!("cuda/batch_norm_moments.cu"))
            .with_type("T", dtype)
            .with_constant("SLOPES", slopes.into())
            .with_constant("LANES", lanes as i64);
        let Layout { channels, inner, .. } = self.layout;
        let sizes = [channels, self.layout.count(), inner, count, length].map(CudaArg::size);
        CudaLaunch::elements(code, channels * count * lanes, buffers.into_iter().chain(sizes))
    }
}

/// Cases with results from the definition.
fn cases(version: usize, gradient: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for format in if version > 2 { &["NHWC", "NCHW", "NDHWC", "NCDHW"][..] } else { &["NHWC", "NCHW"] } {
        for (training, factor) in [(true, 1.0), (true, 0.25), (false, 1.0)] {
            let attrs =
                Attrs::new().with("data_format", *format).with("is_training", training).with("epsilon", 0.01f32);
            if gradient {
                cases.extend((factor == 1.0).then(|| gradient_case(attrs, version, training)));
            } else {
                cases.push(forward_case(
                    attrs.with("exponential_avg_factor", factor as f32),
                    version,
                    factor,
                    training,
                ));
            }
        }
    }
    cases
}

/// An input of 2 images of 3 by 2 places with 2 channels, by its attributes: sizes, values by channel, and the place of a
/// channel's element.
fn example(attrs: &Attrs, version: usize) -> (Vec<usize>, impl Fn(usize, usize) -> usize + use<>) {
    let (rank, axis) = axis(attrs, version).unwrap_or((4, 3));
    let mut dims = vec![2, 3, 2];
    dims.resize(rank - 1, 1);
    dims.insert(axis, 2);
    let (_, channels, inner) = around(&dims, axis);
    (dims, move |channel, i| (i / inner * channels + channel) * inner + i % inner)
}

/// Elements of a channel in the example.
const COUNT: usize = 12;

fn values(seed: usize) -> Vec<f64> {
    (0..2 * COUNT).map(|i| ((i * 7 + seed) % 13) as f64 / 4.0 - 1.0).collect()
}

fn array(dims: &[usize], values: &[f64]) -> Array {
    float(dims, &values.iter().map(|&v| v as f32).collect::<Vec<f32>>())
}

/// Mean and variance of a channel.
fn moments(x: &[f64], place: impl Fn(usize) -> usize) -> (f64, f64) {
    let mean = (0..COUNT).map(|i| x[place(i)]).sum::<f64>() / COUNT as f64;
    (mean, (0..COUNT).map(|i| (x[place(i)] - mean).powi(2)).sum::<f64>() / COUNT as f64)
}

fn forward_case(attrs: Attrs, version: usize, factor: f64, training: bool) -> Case {
    let (dims, place) = example(&attrs, version);
    let (x, epsilon) = (values(0), settings(&attrs).epsilon);
    let (scale, offset, old) = ([0.5, -2.0], [0.25, 1.0], [(0.125, 0.75), (-0.5, 1.5)]);
    let mut y = vec![0.0; x.len()];
    let mut results = [[0.0; 2]; 4];
    for c in 0..2 {
        let (mean, variance) = if training { moments(&x, |i| place(c, i)) } else { old[c] };
        let unbiased = if training { variance * COUNT as f64 / (COUNT - 1) as f64 } else { variance };
        let running = |old: f64, new: f64| (1.0 - factor) * old + factor * new;
        let both = [running(old[c].0, mean), running(old[c].1, unbiased), mean, variance];
        results.iter_mut().zip(both).for_each(|(result, value)| result[c] = value);
        for i in 0..COUNT {
            let at = place(c, i);
            y[at] = (x[at] - mean) / (variance + epsilon).sqrt() * scale[c] + offset[c];
        }
    }
    let pair = |values: [f64; 2]| array(&[2], &values);
    let needed = !training || factor != 1.0;
    let given = |values: [f64; 2]| if needed { pair(values) } else { float(&[0], &[]) };
    let inputs = vec![array(&dims, &x), pair(scale), pair(offset), given(old.map(|o| o.0)), given(old.map(|o| o.1))];
    let mut outputs = vec![array(&dims, &y)];
    outputs.extend(results.map(pair));
    outputs.extend((version > 2).then(|| float(&[0], &[])));
    // In training nothing flows through the moments, which numeric differences do not know.
    case_with(attrs, inputs, outputs, !training)
}

fn gradient_case(attrs: Attrs, version: usize, training: bool) -> Case {
    let (dims, place) = example(&attrs, version);
    let (x, g, epsilon) = (values(0), values(5), settings(&attrs).epsilon);
    let scale = [0.5, -2.0];
    let (mut dx, mut sums, mut used) = (vec![0.0; x.len()], [[0.0; 2]; 2], [[0.0; 2]; 2]);
    for c in 0..2 {
        let (mean, variance) = moments(&x, |i| place(c, i));
        let inverse = 1.0 / (variance + epsilon).sqrt();
        let sum: f64 = (0..COUNT).map(|i| g[place(c, i)]).sum();
        let product: f64 = (0..COUNT).map(|i| g[place(c, i)] * (x[place(c, i)] - mean)).sum();
        for i in 0..COUNT {
            let at = place(c, i);
            let shared = (sum + (x[at] - mean) * inverse.powi(2) * product) / COUNT as f64;
            dx[at] = scale[c] * inverse * (g[at] - if training { shared } else { 0.0 });
        }
        (sums[0][c], sums[1][c], used[0][c], used[1][c]) = (product * inverse, sum, mean, variance);
    }
    let pair = |values: [f64; 2]| array(&[2], &values);
    let mut inputs = vec![array(&dims, &g), array(&dims, &x), pair(scale), pair(used[0]), pair(used[1])];
    inputs.extend((version > 2).then(|| float(&[0], &[])));
    let empty = || float(&[0], &[]);
    let outputs = vec![array(&dims, &dx), pair(sums[0]), pair(sums[1]), empty(), empty()];
    // In training the moments are the input's own, which numeric differences of the node alone do not know.
    case_with(attrs, inputs, outputs, !training)
}

/// How a batch is normalized.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormOptions<'g> {
    /// The running mean: needed without training, or with a factor other than 1.
    pub mean: Option<Tensor<'g>>,
    /// The running variance, needed where the mean is.
    pub variance: Option<Tensor<'g>>,
    /// Added to the variance.
    pub epsilon: f32,
    /// How much of the batch's moments goes into the running ones.
    pub exponential_avg_factor: f32,
    /// Where the image's axes are.
    pub data_format: DataFormat,
    /// Whether the batch's own moments are used.
    pub is_training: bool,
}

impl Default for BatchNormOptions<'_> {
    fn default() -> Self {
        BatchNormOptions {
            mean: None,
            variance: None,
            epsilon: 0.001,
            exponential_avg_factor: 1.0,
            data_format: DataFormat::Nhwc,
            is_training: true,
        }
    }
}

impl<'g> Tensor<'g> {
    /// Normalizes the channels of these images; `scale` and `offset` have one entry a channel. Gives the result, and
    /// the running mean and variance. Named `FusedBatchNormV3`.
    #[track_caller]
    pub fn fused_batch_norm(
        self,
        scale: impl Into<Tensor<'g>>,
        offset: impl Into<Tensor<'g>>,
        options: BatchNormOptions<'g>,
    ) -> [Tensor<'g>; 3] {
        let g = self.graph();
        // As in TensorFlow, moments that are not needed are empty constants.
        let empty = || match Array::zeros(self.dtype(), &[0]) {
            Ok(array) => g.constant(array),
            Err(_) => g.poison_tensor(),
        };
        let (mean, variance) = (options.mean.unwrap_or_else(empty), options.variance.unwrap_or_else(empty));
        let node = node(g, "FusedBatchNormV3")
            .inputs([self, scale.into(), offset.into(), mean, variance])
            .attr("epsilon", options.epsilon)
            .attr("exponential_avg_factor", options.exponential_avg_factor)
            .attr("data_format", options.data_format.name())
            .attr("is_training", options.is_training)
            .add();
        [0, 1, 2].map(|output| node.output(output))
    }
}
