//! Reductions over axes: `Sum`, `Mean`, `Prod`, `Max`, `Min`, `All`, `Any`.
//!
//! Absent: the loops (`reduce_kernel.rs`, `cuda_reduce.rs`), gradient rules (`reduce_grad.rs`), and `L2Loss`.

use super::cuda_reduce::{self as cuda, CudaFold};
use super::elementwise::{Plain, Wide};
use super::reduce_folds::{Largest, Logic, Mean, Product, Smallest, Sum, SumOver};
use super::reduce_grad as grad;
use super::reduce_kernel::{Fold, reduce};
use super::support::no_arithmetic;
use super::values::{array, bools, case, case_with, float, ints};
use crate::base::{Array, Bool8, DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, MergeKernel, Op, ReduceKernel,
    Reduction, Tensor, Traits,
};
use smallvec::{SmallVec, smallvec};

/// A reduction of input 0 over the axes in input 1 (`reduction_indices`), with attribute `keep_dims`.
pub struct ReduceOp {
    pub(super) name: &'static str,
    bools: bool,
    traits: Traits,
    kernel: ReduceKernel,
    /// How pieces are reduced, and their results.
    pub(super) pieces: (ReduceKernel, MergeKernel),
    cuda: CudaFold,
    gradient: for<'g> fn(&GradContext<'g>) -> Option<InputGradients<'g>>,
    cases: fn() -> Vec<Case>,
}

/// Which axes are reduced.
///
/// # Errors
/// Axes that are not there, and axes named twice.
pub(super) fn mark_axes(axes: &[i64], rank: usize) -> Result<SmallVec<[bool; 8]>, String> {
    let mut reduced: SmallVec<[bool; 8]> = smallvec![false; rank];
    for &axis in axes {
        let at = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        match usize::try_from(at).ok().and_then(|at| reduced.get_mut(at)) {
            Some(true) => return Err(format!("axis {axis} is named twice in {axes:?}")),
            Some(mark) => *mark = true,
            None => {
                return Err(format!("axis {axis} is outside [-{rank}, {rank}), the axes of a tensor of rank {rank}"));
            }
        }
    }
    Ok(reduced)
}

impl Op for ReduceOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        self.traits
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if (c.dtype(0) == DType::Bool) != self.bools {
            let want = if self.bools { "bool" } else { "numbers" };
            return Err(format!("want {want}, got {}; cast the input", c.dtype(0)));
        }
        if !c.dtype(1).is_integer() {
            return Err(format!("the axes must be int32 or int64, got {}", c.dtype(1)));
        }
        if c.shape(1).rank().is_some_and(|r| r > 1) {
            return Err(format!("the axes must be a scalar or a vector, got {}", c.shape(1)));
        }
        let keep = c.attrs.bool("keep_dims");
        let shape = match (c.shape(0).dims(), c.ints(1)) {
            (Some(dims), Some(axes)) => {
                let reduced = mark_axes(&axes, dims.len())?;
                Shape::partial(dims.iter().zip(reduced).filter_map(|(d, reduced)| match (reduced, keep) {
                    (true, true) => Some(Some(1)),
                    (true, false) => None,
                    (false, _) => Some(*d),
                }))
            }
            (Some(dims), None) if keep => Shape::of_rank(dims.len()),
            _ => Shape::unknown(),
        };
        Ok(vec![Fact::new(c.dtype(0), shape)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        (self.gradient)(c)
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = (c.inputs[0].bytes() + c.outputs[0].bytes()) as f64;
        Cost { flops: c.inputs[0].len() as f64, bytes }
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn can_fail(&self, _attrs: &Attrs, outputs: &[DType]) -> bool {
        // Only the mean of no integers has no value.
        self.traits.fallible && !outputs.iter().all(|t| t.is_floating())
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let axes = c.ints(1).ok_or("the axes must be known when the step is planned")?;
        let dims = &c.inputs[0].dims;
        (self.kernel)(c.inputs[0].dtype, dims, &mark_axes(&axes, dims.len())?)
    }

    fn reduction(&self, c: &KernelContext<'_>) -> Option<Reduction> {
        let axes = mark_axes(&c.ints(1)?, c.inputs[0].dims.len()).ok()?;
        let (piece, merge) = self.pieces;
        (!c.inputs[0].is_empty()).then_some(Reduction { axes, whole: self.kernel, piece, merge })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let axes = c.ints(1).ok_or("the axes must be known when the step is planned")?;
        let dims = &c.inputs[0].dims;
        let reduced = mark_axes(&axes, dims.len())?;
        if self.traits.fallible && no_integers(c.inputs[0].dtype, dims, &reduced) {
            return Ok(cuda::refusal(c.outputs[0].bytes(), NO_INTEGERS));
        }
        Ok(cuda::reduce(c.inputs[0].dtype, dims, &reduced, self.cuda))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        (self.cases)()
    }
}

pub(super) fn numbers<F>(dtype: DType, dims: &[usize], reduced: &[bool], f: F) -> Result<CpuKernel, String>
where
    F: Fold<f32> + Fold<f64> + Fold<i32> + Fold<i64>,
{
    Ok(match dtype {
        DType::F32 => reduce::<f32, F, Wide>(dims, reduced, f),
        DType::F64 => reduce::<f64, F, Plain>(dims, reduced, f),
        DType::I32 => reduce::<i32, F, Plain>(dims, reduced, f),
        DType::I64 => reduce::<i64, F, Plain>(dims, reduced, f),
        other => return Err(no_arithmetic(other)),
    })
}

const NO_INTEGERS: &str = "the mean of no integers is undefined; cast to float, where it is NaN";

/// Whether a mean would be of no integers.
fn no_integers(dtype: DType, dims: &[usize], reduced: &[bool]) -> bool {
    let count: usize = dims.iter().zip(reduced).filter(|(_, r)| **r).map(|(d, _)| d).product();
    let results: usize = dims.iter().zip(reduced).filter(|(_, r)| !**r).map(|(d, _)| d).product();
    count == 0 && results > 0 && dtype.is_integer()
}

pub(super) fn sum(dtype: DType, dims: &[usize], reduced: &[bool]) -> Result<CpuKernel, String> {
    numbers(dtype, dims, reduced, Sum)
}

fn mean(dtype: DType, dims: &[usize], reduced: &[bool]) -> Result<CpuKernel, String> {
    if no_integers(dtype, dims, reduced) {
        return Ok(Box::new(|_| Err(NO_INTEGERS.into())));
    }
    numbers(dtype, dims, reduced, Mean)
}

const PLAIN: Traits = Traits {
    stateful: false,
    variable: false,
    forwards: None,
    in_place: &[],
    fallible: false,
    checks_before_writing: false,
    product: false,
    host_only: false,
    overwrites: false,
    no_gradient: false,
};

/// TensorFlow's `Sum`.
pub static SUM: ReduceOp = ReduceOp {
    name: "Sum",
    bools: false,
    traits: PLAIN,
    kernel: sum,
    pieces: (sum, |dtype, dims, reduced, _| sum(dtype, dims, reduced)),
    cuda: cuda::SUM,
    gradient: grad::sum,
    cases: || cases(0.0, |a, b| a + b, |a, _| a),
};

/// TensorFlow's `Mean`; of nothing it is NaN.
pub static MEAN: ReduceOp = ReduceOp {
    name: "Mean",
    bools: false,
    traits: Traits { fallible: true, ..PLAIN },
    kernel: mean,
    pieces: (sum, |dtype, dims, reduced, count| numbers(dtype, dims, reduced, SumOver(count))),
    cuda: cuda::MEAN,
    gradient: grad::mean,
    cases: || cases(0.0, |a, b| a + b, |a, n| a / n as f32),
};

/// TensorFlow's `Prod`; of nothing it is 1.
pub static PROD: ReduceOp = ReduceOp {
    name: "Prod",
    bools: false,
    traits: PLAIN,
    kernel: |dtype, dims, reduced| numbers(dtype, dims, reduced, Product),
    pieces: (
        |dtype, dims, reduced| numbers(dtype, dims, reduced, Product),
        |dtype, dims, reduced, _| numbers(dtype, dims, reduced, Product),
    ),
    cuda: cuda::PRODUCT,
    gradient: grad::prod,
    cases: || {
        // The gradient is checked at one zero and at two, where a quotient would be no rule.
        let mut cases = cases(1.0, |a, b| a * b, |a, _| a);
        let zeros = float(&[2, 3], &[2.0, 0.0, 3.0, 0.0, 0.0, 1.5]);
        cases.push(case(vec![zeros, ints(&[1])], vec![float(&[2], &[0.0, 0.0])], true));
        cases
    },
};

/// TensorFlow's `Max`; of nothing it is the lowest value. Equal largest elements share the gradient.
pub static MAX: ReduceOp = ReduceOp {
    name: "Max",
    bools: false,
    traits: PLAIN,
    kernel: |dtype, dims, reduced| numbers(dtype, dims, reduced, Largest),
    pieces: (
        |dtype, dims, reduced| numbers(dtype, dims, reduced, Largest),
        |dtype, dims, reduced, _| numbers(dtype, dims, reduced, Largest),
    ),
    cuda: cuda::LARGEST,
    gradient: grad::extremum,
    cases: || cases(f32::NEG_INFINITY, f32::max, |a, _| a),
};

/// TensorFlow's `Min`; of nothing it is the highest value. Equal smallest elements share the gradient.
pub static MIN: ReduceOp = ReduceOp {
    name: "Min",
    bools: false,
    traits: PLAIN,
    kernel: |dtype, dims, reduced| numbers(dtype, dims, reduced, Smallest),
    pieces: (
        |dtype, dims, reduced| numbers(dtype, dims, reduced, Smallest),
        |dtype, dims, reduced, _| numbers(dtype, dims, reduced, Smallest),
    ),
    cuda: cuda::SMALLEST,
    gradient: grad::extremum,
    cases: || cases(f32::INFINITY, f32::min, |a, _| a),
};

/// TensorFlow's `All`: true where all elements are.
pub static ALL: ReduceOp = ReduceOp {
    name: "All",
    bools: true,
    traits: Traits { no_gradient: true, ..PLAIN },
    kernel: |_, dims, reduced| Ok(reduce::<Bool8, Logic, Plain>(dims, reduced, Logic(true))),
    pieces: (
        |_, dims, reduced| Ok(reduce::<Bool8, Logic, Plain>(dims, reduced, Logic(true))),
        |_, dims, reduced, _| Ok(reduce::<Bool8, Logic, Plain>(dims, reduced, Logic(true))),
    ),
    cuda: cuda::ALL,
    gradient: |_| Some(vec![None, None]),
    cases: || {
        let x = bools(&[2, 2], &[true, false, true, true]);
        vec![
            case(vec![x.clone(), ints(&[1])], vec![bools(&[2], &[false, true])], false),
            case(vec![x, ints(&[0, 1])], vec![bools(&[], &[false])], false),
        ]
    },
};

/// TensorFlow's `Any`: true where one element is.
pub static ANY: ReduceOp = ReduceOp {
    name: "Any",
    bools: true,
    traits: Traits { no_gradient: true, ..PLAIN },
    kernel: |_, dims, reduced| Ok(reduce::<Bool8, Logic, Plain>(dims, reduced, Logic(false))),
    pieces: (
        |_, dims, reduced| Ok(reduce::<Bool8, Logic, Plain>(dims, reduced, Logic(false))),
        |_, dims, reduced, _| Ok(reduce::<Bool8, Logic, Plain>(dims, reduced, Logic(false))),
    ),
    cuda: cuda::ANY,
    gradient: |_| Some(vec![None, None]),
    cases: || {
        let x = bools(&[2, 2], &[true, false, false, false]);
        vec![
            case(vec![x.clone(), ints(&[1])], vec![bools(&[2], &[true, false])], false),
            case(vec![x, ints(&[])], vec![bools(&[2, 2], &[true, false, false, false])], false),
        ]
    },
};

/// Cases over every set of axes, with outputs from an independent fold.
fn cases(start: f32, fold: fn(f32, f32) -> f32, finish: fn(f32, usize) -> f32) -> Vec<Case> {
    let dims = [3usize, 4, 2];
    let x: Vec<f32> = (0..24).map(|i| ((i * 7 % 24) as f32 - 11.4) / 8.0).collect();
    let mut cases = Vec::new();
    for axes in [&[0i32][..], &[1], &[-1], &[0, 1], &[0, 2], &[], &[2, 0, 1]] {
        for keep in [false, true] {
            let reduced = |axis: usize| axes.iter().any(|&a| (a + 3) as usize % 3 == axis);
            let kept: Vec<usize> = (0..3).filter(|&a| !reduced(a)).collect();
            let results: usize = kept.iter().map(|&a| dims[a]).product();
            let mut output = vec![start; results];
            for (flat, &x) in x.iter().enumerate() {
                let index = [flat / 8, flat / 2 % 4, flat % 2];
                let result = kept.iter().fold(0, |r, &a| r * dims[a] + index[a]);
                output[result] = fold(output[result], x);
            }
            output.iter_mut().for_each(|o| *o = finish(*o, 24 / results));
            let shape: Vec<usize> = match keep {
                true => (0..3).map(|a| if reduced(a) { 1 } else { dims[a] }).collect(),
                false => kept.iter().map(|&a| dims[a]).collect(),
            };
            let attrs = Attrs::new().with("keep_dims", keep);
            cases.push(case_with(attrs, vec![float(&dims, &x), ints(axes)], vec![float(&shape, &output)], true));
        }
    }
    let nothing = finish(start, 0);
    cases.push(case(vec![float(&[0, 3], &[]), ints(&[0])], vec![float(&[3], &[nothing; 3])], false));
    cases.push(case(vec![array(&[2, 0], &[] as &[i64]), ints(&[0])], vec![array(&[0], &[] as &[i64])], false));
    cases
}

macro_rules! methods {
    ($($(#[$doc:meta])* $all:ident, $axes:ident => $op:ident;)*) => {
        impl<'g> Tensor<'g> {
            $($(#[$doc])*
            /// Over all axes.
            #[track_caller]
            pub fn $all(self) -> Tensor<'g> {
                self.reduce_all(&$op)
            }

            $(#[$doc])*
            /// Over these axes; negative ones count from the last. With `keep_dims` they stay, with size 1.
            #[track_caller]
            pub fn $axes(self, axes: &[i32], keep_dims: bool) -> Tensor<'g> {
                self.with_constant($op.name, "reduction_indices", axes, |axes| {
                    self.graph().node_of(&$op).input(self).input(axes).attr("keep_dims", keep_dims)
                })
            })*
        }
    };
}

methods! {
    /// The sum.
    sum, sum_axes => SUM;
    /// The mean.
    mean, mean_axes => MEAN;
    /// The product.
    prod, prod_axes => PROD;
    /// The largest element.
    reduce_max, max_axes => MAX;
    /// The smallest element.
    reduce_min, min_axes => MIN;
    /// True if all elements are.
    all, all_axes => ALL;
    /// True if one element is.
    any, any_axes => ANY;
}

impl<'g> Tensor<'g> {
    /// The sum over the axes that a tensor holds.
    #[track_caller]
    pub fn sum_over(self, axes: Tensor<'g>, keep_dims: bool) -> Tensor<'g> {
        self.graph().node_of(&SUM).input(self).input(axes).attr("keep_dims", keep_dims).tensor()
    }

    /// A reduction over all axes, which are a constant beside it; a tensor of unknown rank is made a vector first.
    #[track_caller]
    pub(super) fn reduce_all(self, op: &'static ReduceOp) -> Tensor<'g> {
        if self.is_poison() {
            return self;
        }
        let (flat, rank) = match self.rank() {
            Some(rank) => (self, rank),
            None => (self.reshape([-1]), 1),
        };
        let axes: Vec<i32> = (0..rank as i32).collect();
        let axes: Array = crate::base::IntoArray::into_array(axes);
        let axes = self.graph().constant_named("Const", axes);
        self.graph().node_of(op).input(flat).input(axes).attr("keep_dims", false).tensor()
    }
}
