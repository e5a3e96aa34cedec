//! `Softmax` and `LogSoftmax` over the last axis, and the two cross entropies that have a softmax in them.
//!
//! All subtract a row's largest value first, so they do not overflow. Absent: other axes; transpose to get them last.

use super::cuda_rows::{ROWS, rows_launch};
use super::elementwise::{Dispatch, Wide};
use super::functions::Real;
use super::support::{build, by_rows, index_at, node, scoped, sized};
use crate::base::{Array, DType, Shape};
use crate::device::cuda::{CudaArg, CudaCode, CudaKernel, CudaLaunch, FailureText};
use crate::device::{CpuKernel, Launch};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};
use pulp::NullaryFnOnce;
use std::sync::Arc;

/// TensorFlow's `Softmax`: `exp(x) / sum(exp(x))` over the last axis.
pub struct Softmax;

/// TensorFlow's `LogSoftmax`: `x - log(sum(exp(x)))` over the last axis.
pub struct LogSoftmax;

/// TensorFlow's `SoftmaxCrossEntropyWithLogits`: inputs features and labels `[rows, classes]`, outputs the loss
/// `[rows]` and its gradient by the features.
pub struct SoftmaxCrossEntropyWithLogits;

/// TensorFlow's `SparseSoftmaxCrossEntropyWithLogits`: inputs features `[rows, classes]` and class numbers `[rows]`,
/// outputs as [`SoftmaxCrossEntropyWithLogits`].
pub struct SparseSoftmaxCrossEntropyWithLogits;

fn logits(c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
    c.want_inputs(1)?;
    floating(c, "the logits")?;
    match c.shape(0).rank() {
        Some(0) => Err("the logits must have an axis of classes, got a scalar".into()),
        _ => Ok(vec![c.inputs[0].clone()]),
    }
}

fn floating(c: &InferContext<'_>, what: &str) -> Result<(), String> {
    match c.dtype(0).is_floating() {
        true => Ok(()),
        false => Err(format!("{what} must be float32 or float64, got {}; cast them", c.dtype(0))),
    }
}

/// A row's largest value.
#[inline(always)]
fn largest<T: Real>(row: &[T]) -> T {
    row.iter().copied().fold(T::LOWEST, T::larger)
}

/// The kernel of a function of rows.
fn rowwise<T: Real>(classes: usize, row: impl Fn(&[T], &mut [T]) + Send + Sync + 'static) -> CpuKernel {
    Box::new(move |l| {
        let x = l.input::<T>(0);
        by_rows(l.team(), l.output::<T>(0), classes, |first, rows| {
            let x = &x[first * classes..][..rows.len()];
            Wide::run(Rows { x, y: rows, classes, row: &row });
        });
        Ok(())
    })
}

/// Rows that are computed in one loop.
struct Rows<'a, T, F> {
    x: &'a [T],
    y: &'a mut [T],
    classes: usize,
    row: &'a F,
}

impl<T: Real, F: Fn(&[T], &mut [T])> NullaryFnOnce for Rows<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Rows { x, y, classes, row } = self;
        x.chunks_exact(classes).zip(y.chunks_exact_mut(classes)).for_each(|(x, y)| row(x, y));
    }
}

/// Writes `exp(x - max)` and gives its sum.
#[inline(always)]
fn exps<T: Real>(x: &[T], y: &mut [T]) -> T {
    let max = largest(x);
    for (y, &x) in y.iter_mut().zip(x) {
        *y = x.minus(max).exponential();
    }
    y.iter().fold(T::ZERO, |sum, &y| sum.plus(y))
}

#[inline(always)]
fn softmax_row<T: Real>(x: &[T], y: &mut [T]) {
    let factor = T::ONE.over(exps(x, y));
    y.iter_mut().for_each(|y| *y = y.times(factor));
}

#[inline(always)]
fn log_softmax_row<T: Real>(x: &[T], y: &mut [T]) {
    let (log, max) = (exps(x, y).logarithm(), largest(x));
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = x.minus(max).minus(log));
}

fn classes(c: &KernelContext<'_>) -> usize {
    c.inputs[0].dims.last().copied().unwrap_or(1)
}

/// The CUDA kernel of a softmax, or of its logarithm.
fn softmax_launch(c: &KernelContext<'_>, log: bool) -> CudaKernel {
    let (dtype, classes, len) = (c.inputs[0].dtype, classes(c), c.inputs[0].len());
    if len == 0 {
        return CudaKernel::default();
    }
    let rows = len / classes;
    let code = CudaCode::new(format!("{ROWS}{}", include_str!("cuda/softmax.cu"))).with_constant("LOG", log.into());
    let args = [CudaArg::input(0), CudaArg::output(0), CudaArg::size(rows), CudaArg::size(classes)];
    CudaKernel::new([rows_launch(code, dtype, (rows, classes), true, args)])
}

/// The launch of a cross entropy, whose text has its labels' type as `I`.
fn cross_entropy_launch(c: &KernelContext<'_>, text: &str, fails: bool) -> Option<CudaLaunch> {
    let [rows, classes] = c.inputs[0].dims[..] else { return None };
    let code = CudaCode::new(format!("{ROWS}{}{text}", include_str!("cuda/cross_entropy.cu")));
    let code = if fails { code.with_type("I", c.inputs[1].dtype) } else { code };
    let mut args = vec![CudaArg::input(0), CudaArg::input(1), CudaArg::output(0), CudaArg::output(1)];
    args.extend(fails.then_some(CudaArg::Failure));
    args.extend([rows, classes].map(CudaArg::size));
    (rows > 0).then(|| rows_launch(code, c.inputs[0].dtype, (rows, classes), true, args))
}

/// The error of a label that is no class.
fn no_class(row: i64, label: i64, classes: usize) -> String {
    format!("label {label} (row {row}) is not in [0, {classes})")
}

/// The sum over the last axis, which stays with size one.
fn sum_last<'g>(x: Tensor<'g>) -> Tensor<'g> {
    let graph = x.graph();
    scoped(graph, "Sum", |name| {
        let axes = graph.constant_named("reduction_indices", -1i32);
        node(graph, "Sum").name(name).inputs([x, axes]).attr("keep_dims", true).tensor()
    })
}

/// A vector times the rows of a matrix.
fn times_rows<'g>(vector: Tensor<'g>, matrix: Tensor<'g>) -> Tensor<'g> {
    let graph = vector.graph();
    let column = scoped(graph, "ExpandDims", |name| {
        let axis = graph.constant_named("dim", -1i32);
        node(graph, "ExpandDims").name(name).inputs([vector, axis]).tensor()
    });
    build("Mul", "mul", &[column, matrix])
}

fn small_case(op: &'static str) -> Option<Case> {
    let x = Array::new(&[1, 3], &[1.0f32, 2.0, 3.0]).ok()?;
    let values = match op {
        "Softmax" => [0.09003057, 0.24472848, 0.66524094],
        _ => [-2.407606, -1.407606, -0.407606],
    };
    let y = Array::new(&[1, 3], &values.map(|v: f64| v as f32)).ok()?;
    Some(Case { attrs: Attrs::new(), inputs: vec![x], outputs: vec![y], gradient: true })
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        "Softmax"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        logits(c)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (y, grad) = (*c.outputs.first()?, c.grad());
        let sum = sum_last(build("Mul", "mul", &[grad, y]));
        let centred = build("Sub", "sub", &[grad, sum]);
        Some(vec![Some(build("Mul", "mul_1", &[centred, y]).into())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(match c.inputs[0].dtype {
            DType::F64 => rowwise::<f64>(classes(c), softmax_row),
            _ => rowwise::<f32>(classes(c), softmax_row),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(softmax_launch(c, false))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        small_case("Softmax").into_iter().collect()
    }
}

impl Op for LogSoftmax {
    fn name(&self) -> &'static str {
        "LogSoftmax"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        logits(c)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let softmax = build("Exp", "", &[*c.outputs.first()?]);
        let share = build("Mul", "mul", &[sum_last(c.grad()), softmax]);
        Some(vec![Some(build("Sub", "sub", &[c.grad(), share]).into())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(match c.inputs[0].dtype {
            DType::F64 => rowwise::<f64>(classes(c), log_softmax_row),
            _ => rowwise::<f32>(classes(c), log_softmax_row),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(softmax_launch(c, true))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        small_case("LogSoftmax").into_iter().collect()
    }
}

/// The outputs of both cross entropies, for features whose shape is merged with what else is known.
fn losses(c: &InferContext<'_>, features: Shape) -> Result<Vec<Fact>, String> {
    let loss = Shape::partial([features.dim(0)]);
    Ok(vec![Fact::new(c.dtype(0), loss), sized(c.dtype(0), features)?])
}

/// The gradient by the features: the loss's part, and the second derivative where output 1 is used too.
fn features_gradient<'g>(c: &GradContext<'g>) -> Option<Tensor<'g>> {
    let backprop = *c.outputs.get(1)?;
    let first = c.grads.first().copied().flatten().map(|g| times_rows(g, backprop));
    let second = c.grads.get(1).copied().flatten().map(|g| {
        let softmax = build("Softmax", "", &[c.inputs[0]]);
        let sum = sum_last(build("Mul", "mul", &[g, softmax]));
        build("Mul", "mul", &[build("Sub", "sub", &[g, sum]), softmax])
    });
    match (first, second) {
        (Some(first), Some(second)) => Some(build("AddV2", "add", &[first, second])),
        (first, second) => first.or(second),
    }
}

impl Op for SoftmaxCrossEntropyWithLogits {
    fn name(&self) -> &'static str {
        "SoftmaxCrossEntropyWithLogits"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        floating(c, "the features")?;
        c.same_dtype()?;
        let matrix = Shape::of_rank(2);
        let both = c.shape(0).merge(&matrix).and_then(|s| s.merge(c.shape(1))).ok_or_else(|| {
            format!("features and labels must both be [rows, classes], got {} and {}", c.shape(0), c.shape(1))
        })?;
        losses(c, both)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let features = features_gradient(c)?;
        let first = c.grads.first().copied().flatten().map(|g| {
            let log = build("LogSoftmax", "", &[c.inputs[0]]);
            times_rows(g, build("Neg", "", &[log]))
        });
        let second = c.grads.get(1).copied().flatten();
        let labels = match (first, second) {
            (Some(first), Some(second)) => Some(build("Sub", "sub_labels", &[first, second]).into()),
            (first, second) => first.or(second.map(|g| build("Neg", "", &[g]))).map(Into::into),
        };
        Some(vec![Some(features.into()), labels])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn kernel<T: Real>(classes: usize) -> CpuKernel {
            Box::new(move |l| {
                let labels = l.input::<T>(1);
                rows_and_losses::<T>(l, classes, |row, x, loss, y| {
                    let labels = &labels[row * classes..][..classes];
                    let (sum, max) = (exps(x, y), largest(x));
                    let log = sum.logarithm();
                    *loss = x.iter().zip(labels).fold(T::ZERO, |s, (&x, &p)| match p == T::ZERO {
                        true => s,
                        false => s.plus(p.times(log.minus(x.minus(max)))),
                    });
                    y.iter_mut().zip(labels).for_each(|(y, &p)| *y = y.over(sum).minus(p));
                });
                Ok(())
            })
        }
        Ok(match c.inputs[0].dtype {
            DType::F64 => kernel::<f64>(classes(c)),
            _ => kernel::<f32>(classes(c)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let text = include_str!("cuda/cross_entropy_dense.cu");
        Ok(CudaKernel::new(cross_entropy_launch(c, text, false)))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[1, 3], &[1.0f32, 2.0, 3.0]).ok()?;
            let labels = Array::new(&[1, 3], &[0.0f32, 0.5, 0.5]).ok()?;
            let loss = Array::new(&[1], &[0.907606f32]).ok()?;
            let back = Array::new(&[1, 3], &[0.09003057f32, -0.25527152, 0.16524094]).ok()?;
            Some(Case { attrs: Attrs::new(), inputs: vec![x, labels], outputs: vec![loss, back], gradient: true })
        };
        build().into_iter().collect()
    }
}

impl Op for SparseSoftmaxCrossEntropyWithLogits {
    fn name(&self) -> &'static str {
        "SparseSoftmaxCrossEntropyWithLogits"
    }

    fn traits(&self) -> Traits {
        Traits { fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        floating(c, "the features")?;
        if !c.dtype(1).is_integer() {
            return Err(format!("labels must be class numbers (int32 or int64), got {}", c.dtype(1)));
        }
        let refuse = || {
            let (features, labels) = (c.shape(0), c.shape(1));
            format!("features must be [rows, classes] and labels [rows], got {features} and {labels}")
        };
        let rows = c.shape(1).merge(&Shape::of_rank(1)).ok_or_else(refuse)?;
        let features = c.shape(0).merge(&Shape::partial([rows.dim(0), None])).ok_or_else(refuse)?;
        losses(c, features)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(features_gradient(c)?.into()), None])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn kernel<T: Real>(rows: usize, classes: usize) -> CpuKernel {
            Box::new(move |l| {
                let label = index_at(l, 1);
                if let Some(i) = (0..rows).find(|&i| !usize::try_from(label(i)).is_ok_and(|c| c < classes)) {
                    return Err(no_class(i as i64, label(i), classes));
                }
                rows_and_losses::<T>(l, classes, |row, x, loss, y| {
                    let (sum, max) = (exps(x, y), largest(x));
                    let class = label(row) as usize;
                    *loss = sum.logarithm().minus(x[class].minus(max));
                    y.iter_mut().for_each(|y| *y = y.over(sum));
                    y[class] = y[class].minus(T::ONE);
                });
                Ok(())
            })
        }
        Ok(match c.inputs[0].dtype {
            DType::F64 => kernel::<f64>(c.inputs[1].len(), classes(c)),
            _ => kernel::<f32>(c.inputs[1].len(), classes(c)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let classes = classes(c);
        let failure: FailureText = Arc::new(move |row, label| no_class(row, label, classes));
        let launch = cross_entropy_launch(c, include_str!("cuda/cross_entropy_sparse.cu"), true);
        Ok(CudaKernel { failure: Some(failure), ..CudaKernel::new(launch) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[1, 3], &[1.0f32, 2.0, 3.0]).ok()?;
            let loss = Array::new(&[1], &[0.407606f32]).ok()?;
            let back = Array::new(&[1, 3], &[0.09003057f32, 0.24472848, -0.33475906]).ok()?;
            let inputs = vec![x, Array::new(&[1], &[2i64]).ok()?];
            Some(Case { attrs: Attrs::new(), inputs, outputs: vec![loss, back], gradient: true })
        };
        build().into_iter().collect()
    }
}

/// Runs `f(row number, features, loss, backprop)` for every row.
fn rows_and_losses<T: Real>(l: &Launch<'_>, classes: usize, f: impl Fn(usize, &[T], &mut T, &mut [T]) + Sync) {
    struct Losses<T>(*mut T);
    // SAFETY: each row writes its own loss.
    unsafe impl<T> Sync for Losses<T> {}
    let x = l.input::<T>(0);
    let all = l.output::<T>(0);
    if classes == 0 {
        return all.fill(T::default());
    }
    let losses = Losses(all.as_mut_ptr());
    let losses = &losses;
    by_rows(l.team(), l.output::<T>(1), classes, |first, rows| {
        let count = rows.len() / classes;
        // SAFETY: there are as many losses as rows, and this chunk alone has these rows.
        let losses = unsafe { std::slice::from_raw_parts_mut(losses.0.add(first), count) };
        Wide::run(LossRows { x: &x[first * classes..], y: rows, losses, classes, first, f: &f });
    });
}

/// Rows whose losses are computed in one loop.
struct LossRows<'a, T, F> {
    x: &'a [T],
    y: &'a mut [T],
    losses: &'a mut [T],
    classes: usize,
    first: usize,
    f: &'a F,
}

impl<T: Real, F: Fn(usize, &[T], &mut T, &mut [T])> NullaryFnOnce for LossRows<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let LossRows { x, y, losses, classes, first, f } = self;
        let rows = x.chunks_exact(classes).zip(y.chunks_exact_mut(classes)).zip(losses);
        rows.enumerate().for_each(|(i, ((x, y), loss))| f(first + i, x, loss, y));
    }
}

impl<'g> Tensor<'g> {
    /// `exp(x) / sum(exp(x))` over the last axis. Named `Softmax`.
    #[track_caller]
    pub fn softmax(self) -> Tensor<'g> {
        self.graph().node_of(&Softmax).input(self).tensor()
    }

    /// `x - log(sum(exp(x)))` over the last axis. Named `LogSoftmax`.
    #[track_caller]
    pub fn log_softmax(self) -> Tensor<'g> {
        self.graph().node_of(&LogSoftmax).input(self).tensor()
    }

    /// The cross entropy `[rows]` of these logits `[rows, classes]` with label distributions of their shape. No
    /// gradient flows to the labels. Named `softmax_cross_entropy_with_logits_sg`, as TensorFlow 1 names it; its
    /// reshapes of matrices to matrices are left out.
    #[track_caller]
    pub fn softmax_cross_entropy(self, labels: Tensor<'g>) -> Tensor<'g> {
        let graph = self.graph();
        scoped(graph, "softmax_cross_entropy_with_logits_sg", |name| {
            let labels = build("StopGradient", "labels_stop_gradient", &[labels]);
            graph.node_of(&SoftmaxCrossEntropyWithLogits).name(name).inputs([self, labels]).tensor()
        })
    }

    /// The cross entropy `[rows]` of these logits `[rows, classes]` with class numbers `[rows]`. A label that is no
    /// class ends the step.
    #[track_caller]
    pub fn sparse_softmax_cross_entropy(self, labels: Tensor<'g>) -> Tensor<'g> {
        let graph = self.graph();
        scoped(graph, "SparseSoftmaxCrossEntropyWithLogits", |_| {
            super::support::shape_of(labels, DType::I32);
            graph.node_of(&SparseSoftmaxCrossEntropyWithLogits).inputs([self, labels]).tensor()
        })
    }
}
