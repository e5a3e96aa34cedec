//! `LRN`, the local response normalization of AlexNet (Krizhevsky, Sutskever, Hinton 2012, section 3.3), and its gradient.

use super::elementwise::{Dispatch, GRAIN, Shared, Wide};
use super::functions::Real;
use super::values::{case_with, float};
use crate::base::{DType, Shape};
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch};
use crate::device::{CpuKernel, Scratch};
use crate::graph::{Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor};
use pulp::NullaryFnOnce;

/// TensorFlow's `LRN`: `x * norm ^ -beta` with `norm = bias + alpha * sum(x²)` over the channels (the last of four axes)
/// within `depth_radius`. Attributes `depth_radius` (5), `bias` (1), `alpha` (1), `beta` (0.5); `float32`, and here
/// `float64` too.
pub struct Lrn;

/// TensorFlow's `LRNGrad`: of the output's gradient, the input and the output. Of channel `k` it is
/// `grad[k] * norm[k] ^ -beta - 2 * alpha * beta * x[k] * sum(grad[j] * y[j] / norm[j])` over the same neighbours.
pub struct LrnGrad;

/// A node's attributes.
#[derive(Clone, Copy)]
struct Settings {
    radius: usize,
    bias: f64,
    alpha: f64,
    beta: f64,
}

impl Settings {
    fn of(attrs: &Attrs) -> Result<Settings, String> {
        let number = |name: &str, default: f32| attrs.float(name).unwrap_or(default).into();
        let radius = attrs.int("depth_radius").unwrap_or(5);
        let radius = usize::try_from(radius)
            .map_err(|_| format!("attribute 'depth_radius' must be 0 or more channels, got {radius}"))?;
        let (bias, alpha, beta) = (number("bias", 1.0), number("alpha", 1.0), number("beta", 0.5));
        Ok(Settings { radius, bias, alpha, beta })
    }
}

/// The facts of either op, whose inputs are all alike.
fn infer(c: &InferContext<'_>, inputs: usize) -> Result<Vec<Fact>, String> {
    c.want_inputs(inputs)?;
    Settings::of(c.attrs)?;
    let dtype = c.same_dtype()?;
    if !dtype.is_floating() {
        return Err(format!("want float32 or float64, got {dtype}; cast the inputs"));
    }
    let mut shape = Shape::of_rank(4);
    for input in 0..inputs {
        shape = shape.merge(c.shape(input)).ok_or_else(|| match input {
            0 => format!("want an image of 4 axes [batch, height, width, channels], got shape {}", c.shape(0)),
            _ => format!("all inputs must have one shape: want {shape}, got {} as input {input}", c.shape(input)),
        })?;
    }
    Ok(vec![Fact::new(dtype, shape)])
}

/// `norm ^ -beta` of a row.
#[derive(Clone, Copy, PartialEq)]
enum Power {
    Root,
    ThreeQuarters,
    Inverse,
    Other,
}

impl Power {
    fn of(beta: f64) -> Power {
        match beta {
            0.5 => Power::Root,
            0.75 => Power::ThreeQuarters,
            1.0 => Power::Inverse,
            _ => Power::Other,
        }
    }

    #[inline(always)]
    fn of_row<T: Real>(self, norm: &[T], to: &mut [T], beta: f64) {
        let pairs = to.iter_mut().zip(norm);
        match self {
            Power::Root => pairs.for_each(|(to, &n)| *to = T::ONE.over(n.root())),
            Power::ThreeQuarters => pairs.for_each(|(to, &n)| *to = T::ONE.over(n.root().times(n.root().root()))),
            Power::Inverse => pairs.for_each(|(to, &n)| *to = T::ONE.over(n)),
            Power::Other => {
                let exponent = T::from_f64(-beta);
                pairs.for_each(|(to, &n)| *to = n.power(exponent));
            }
        }
    }
}

/// Rows of channels.
struct Rows<'a, T> {
    settings: Settings,
    x: &'a [T],
    /// The output's gradient and the output, for the gradient.
    above: Option<(&'a [T], &'a [T])>,
    to: &'a mut [T],
    depth: usize,
    /// Room for three rows.
    work: &'a mut [T],
}

/// Adds to each element its neighbours' within a radius, and its own.
#[inline(always)]
fn spread<T: Real>(from: &[T], to: &mut [T], radius: usize) {
    to.copy_from_slice(from);
    for apart in 1..=radius.min(from.len().saturating_sub(1)) {
        to.iter_mut().zip(&from[apart..]).for_each(|(to, &x)| *to = to.plus(x));
        to[apart..].iter_mut().zip(from).for_each(|(to, &x)| *to = to.plus(x));
    }
}

impl<T: Real> NullaryFnOnce for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Rows { settings: Settings { radius, bias, alpha, beta }, x, above, to, depth, work } = self;
        let (norm, rest) = work.split_at_mut(depth);
        let (power, parts) = rest.split_at_mut(depth);
        let (bias, factor, kind) = (T::from_f64(bias), T::from_f64(alpha), Power::of(beta));
        let slope = T::from_f64(-2.0 * alpha * beta);
        for (row, (x, to)) in x.chunks_exact(depth).zip(to.chunks_exact_mut(depth)).enumerate() {
            power.iter_mut().zip(x).for_each(|(square, &x)| *square = x.times(x));
            spread(power, norm, radius);
            norm.iter_mut().for_each(|n| *n = bias.plus(factor.times(*n)));
            kind.of_row(norm, power, beta);
            match above {
                None => to.iter_mut().zip(x.iter().zip(&*power)).for_each(|(to, (&x, &p))| *to = x.times(p)),
                Some((gradient, y)) => {
                    let (gradient, y) = (&gradient[row * depth..][..depth], &y[row * depth..][..depth]);
                    for ((part, &n), (&g, &y)) in parts.iter_mut().zip(&*norm).zip(gradient.iter().zip(y)) {
                        *part = g.times(y).over(n);
                    }
                    spread(parts, norm, radius);
                    let own = gradient.iter().zip(&*power).zip(x.iter().zip(&*norm));
                    for (to, ((&g, &p), (&x, &sum))) in to.iter_mut().zip(own) {
                        *to = g.times(p).plus(slope.times(x).times(sum));
                    }
                }
            }
        }
    }
}

/// The kernel of either op; the image is input `image`.
fn kernel<T: Real>(settings: Settings, depth: usize, gradient: bool) -> CpuKernel {
    let scratch = Scratch::<T>::new(3 * depth);
    Box::new(move |l| {
        let x = l.input::<T>(usize::from(gradient));
        let above = gradient.then(|| (l.input::<T>(0), l.input::<T>(2)));
        let to = l.output::<T>(0);
        if depth == 0 {
            return Ok(());
        }
        scratch.reserve(l.team().threads());
        let (rows, to) = (to.len() / depth, Shared::new(to.as_mut_ptr()));
        l.team().chunks(rows, (GRAIN / depth).max(1), |rows| {
            let range = rows.start * depth..rows.end * depth;
            // SAFETY: chunks are disjoint parts of the output.
            let to = unsafe { std::slice::from_raw_parts_mut(to.get().add(range.start), range.len()) };
            let above = above.map(|(g, y)| (&g[range.clone()], &y[range.clone()]));
            scratch.with(|work| Wide::run(Rows { settings, x: &x[range.clone()], above, to, depth, work }));
        });
        Ok(())
    })
}

fn cpu_kernel(c: &KernelContext<'_>, gradient: bool) -> Result<CpuKernel, String> {
    let (settings, depth) = (Settings::of(c.attrs)?, c.outputs[0].dims.last().copied().unwrap_or(0));
    Ok(match c.outputs[0].dtype {
        DType::F32 => kernel::<f32>(settings, depth, gradient),
        DType::F64 => kernel::<f64>(settings, depth, gradient),
        other => return Err(format!("there is no normalization of {other}")),
    })
}

fn cuda_kernel(c: &KernelContext<'_>, gradient: bool) -> Result<CudaKernel, String> {
    let Settings { radius, bias, alpha, beta } = Settings::of(c.attrs)?;
    let (dtype, count) = (c.outputs[0].dtype, c.outputs[0].len());
    let depth = c.outputs[0].dims.last().copied().unwrap_or(0);
    if count == 0 {
        return Ok(CudaKernel::default());
    }
    let number = |v: f64| if dtype == DType::F64 { CudaArg::F64(v) } else { CudaArg::F32(v as f32) };
    let launch = |make: i64, buffers: [CudaArg; 5]| {
        let code = CudaCode::new(include_str!("cuda/lrn.cu")).with_type("T", dtype).with_constant("MAKE", make);
        let sizes = [count, depth, radius.min(depth)].map(CudaArg::size);
        let args = buffers.into_iter().chain(sizes).chain([bias, alpha, beta].map(number));
        CudaLaunch::elements(code, count, args)
    };
    let (input, output) = (CudaArg::input, CudaArg::output(0));
    if !gradient {
        let x = input(0);
        return Ok(CudaKernel::new([launch(0, [x, x, x, x, output])]));
    }
    let parts = CudaArg::Buffer(CudaBuffer::Scratch(0));
    let (x, grad, y) = (input(1), input(0), input(2));
    let launches = [launch(1, [x, grad, y, x, parts]), launch(2, [x, grad, y, parts, output])];
    Ok(CudaKernel { scratch_bytes: c.outputs[0].bytes(), ..CudaKernel::new(launches) })
}

fn cost(c: &KernelContext<'_>) -> Cost {
    let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
    let neighbours = Settings::of(c.attrs).map_or(1.0, |s| 2.0 * s.radius as f64 + 1.0);
    Cost { flops: (2.0 * neighbours + 4.0) * c.outputs[0].len() as f64, bytes }
}

/// Cases with results from the definition.
fn cases(gradient: bool) -> Vec<Case> {
    let depth = 5;
    let x: Vec<f64> = (0..2 * depth).map(|i| ((i * 7) % 11) as f64 / 4.0 - 1.0).collect();
    let g: Vec<f64> = (0..2 * depth).map(|i| ((i * 5) % 7) as f64 / 2.0 - 1.5).collect();
    let array = |values: &[f64]| float(&[1, 2, 1, depth], &values.iter().map(|&v| v as f32).collect::<Vec<f32>>());
    let mut cases = Vec::new();
    for (radius, bias, alpha, beta) in
        [(1, 2.0, 0.5, 0.75), (0, 1.0, 1.0, 0.5), (9, 1.5, 0.25, 1.0), (2, 1.0, 0.3, 0.6)]
    {
        let near = |i: usize| {
            let row = i / depth * depth;
            (row..row + depth).filter(move |j| i.abs_diff(*j) <= radius)
        };
        let norm = |i: usize| bias + alpha * near(i).map(|j| x[j] * x[j]).sum::<f64>();
        let y: Vec<f64> = (0..x.len()).map(|i| x[i] * norm(i).powf(-beta)).collect();
        let others = |i: usize| near(i).map(|j| g[j] * y[j] / norm(j)).sum::<f64>();
        let slope = |i: usize| g[i] * norm(i).powf(-beta) - 2.0 * alpha * beta * x[i] * others(i);
        let dx: Vec<f64> = (0..x.len()).map(slope).collect();
        let attrs = Attrs::new().with("depth_radius", radius as i64).with("bias", bias as f32);
        let attrs = attrs.with("alpha", alpha as f32).with("beta", beta as f32);
        cases.push(match gradient {
            false => case_with(attrs, vec![array(&x)], vec![array(&y)], true),
            true => case_with(attrs, vec![array(&g), array(&x), array(&y)], vec![array(&dx)], false),
        });
    }
    cases
}

impl Op for Lrn {
    fn name(&self) -> &'static str {
        "LRN"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        infer(c, 1)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let node = c.node.node()?;
        let gradient = c.node.graph().node_of(&LrnGrad).inputs([c.grad(), c.inputs[0], *c.outputs.first()?]);
        let names = ["depth_radius", "bias", "alpha", "beta"];
        let gradient = names.iter().fold(gradient, |gradient, name| match node.attrs.get(name) {
            Some(value) => gradient.attr(*name, value.clone()),
            None => gradient,
        });
        Some(vec![Some(gradient.tensor().into())])
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        cost(c)
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        cpu_kernel(c, false)
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        cuda_kernel(c, false)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        cases(false)
    }
}

impl Op for LrnGrad {
    fn name(&self) -> &'static str {
        "LRNGrad"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        infer(c, 3)
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        cost(c)
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        cpu_kernel(c, true)
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        cuda_kernel(c, true)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        cases(true)
    }
}

/// How strongly channels normalize each other.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LrnOptions {
    /// How many channels on either side count.
    pub depth_radius: usize,
    /// What the sum of squares is added to.
    pub bias: f32,
    /// What the sum of squares is multiplied by.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
}

impl Default for LrnOptions {
    fn default() -> LrnOptions {
        LrnOptions { depth_radius: 5, bias: 1.0, alpha: 1.0, beta: 0.5 }
    }
}

impl<'g> Tensor<'g> {
    /// The local response normalization of these images, over their channels, which are the last axis. Named `LRN`.
    #[track_caller]
    pub fn lrn(self, options: LrnOptions) -> Tensor<'g> {
        let LrnOptions { depth_radius, bias, alpha, beta } = options;
        let node = self.graph().node_of(&Lrn).input(self);
        let node = node.attr("depth_radius", i64::try_from(depth_radius).unwrap_or(i64::MAX));
        node.attr("bias", bias).attr("alpha", alpha).attr("beta", beta).tensor()
    }
}
