//! Changes of shape that copy nothing: `Reshape`, `ExpandDims`, `Squeeze`.
//!
//! Absent: shapes as values (`shape_facts.rs`) and ops that move elements (`tile.rs`).

use super::no_kernel;
use super::values::{case, float, ints};
use crate::base::{Array, Shape};
use crate::device::CpuKernel;
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};
use smallvec::{SmallVec, smallvec};

/// An attribute with what is known of the output's shape beyond the target's value: set by gradient rules, whose
/// results have the shape of a forward tensor. Its underscore marks it as internal in a GraphDef.
pub(super) const SHAPE_HINT: &str = "_shape";

/// The shape that a target value gives, refined by the node's hint. At most one `-1` stands for what is left.
pub(super) fn target_shape(c: &InferContext<'_>, target: usize, allow_rest: bool) -> Result<Shape, String> {
    if !c.dtype(target).is_integer() {
        return Err(format!("the target shape must be int32 or int64, got {}; cast it", c.dtype(target)));
    }
    let given = match c.ints(target) {
        Some(sizes) if c.shape(target).rank() == Some(1) => {
            if sizes.iter().filter(|&&s| s == -1).count() > 1 {
                return Err(format!("at most one size of the target shape may be -1, got {sizes:?}"));
            }
            if let Some(bad) = sizes.iter().find(|&&s| s < if allow_rest { -1 } else { 0 }) {
                return Err(format!("a size of the target shape must not be negative, got {bad} in {sizes:?}"));
            }
            Shape::partial(sizes.iter().map(|&s| usize::try_from(s).ok()))
        }
        _ => match (c.shape(target).rank(), c.shape(target).dim(0)) {
            (Some(1), Some(rank)) if rank <= 64 => Shape::of_rank(rank),
            (Some(1) | None, _) => Shape::unknown(),
            (Some(rank), _) => {
                return Err(format!("the target shape must be a vector, got a tensor of rank {rank}"));
            }
        },
    };
    match c.attrs.shape(SHAPE_HINT) {
        Some(hint) => given.merge(hint).ok_or_else(|| format!("the target shape {given} is not the expected {hint}")),
        None => Ok(given),
    }
}

/// The product of sizes, as 128-bit so that it cannot overflow for real shapes; `None` where a size is unknown.
fn product(dims: &[Option<usize>]) -> Option<u128> {
    dims.iter().try_fold(1u128, |n, d| n.checked_mul((*d)? as u128))
}

/// TensorFlow's `Reshape`: the same elements under other sizes, of which one may be -1.
pub struct Reshape;

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "Reshape"
    }

    fn traits(&self) -> Traits {
        Traits { forwards: Some(0), ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let mut shape = target_shape(c, 1, true)?;
        let from = c.shape(0);
        if let (Some(dims), Some(count)) = (shape.dims(), from.dims().and_then(product)) {
            let unknown: Vec<usize> = (0..dims.len()).filter(|&i| dims[i].is_none()).collect();
            let rest: Vec<Option<usize>> = dims.iter().copied().filter(Option::is_some).collect();
            let rest = product(&rest).ok_or("the target shape is too large")?;
            match unknown[..] {
                [] if rest != count => {
                    return Err(format!("{from} has {count} elements, the target shape {shape} has {rest}"));
                }
                [axis] if rest != 0 => {
                    if count % rest != 0 {
                        return Err(format!("{from} has {count} elements, which {rest} does not divide: {shape}"));
                    }
                    let size = usize::try_from(count / rest).map_err(|_| "the target shape is too large")?;
                    shape =
                        Shape::partial(dims.iter().enumerate().map(|(i, d)| if i == axis { Some(size) } else { *d }));
                }
                [_] if count != 0 => {
                    return Err(format!("{from} has {count} elements, the target shape {shape} can hold none"));
                }
                // Nothing is left for the -1 but any number of nothings: TensorFlow refuses this too.
                [_] if c.ints(1).is_some() && from.is_fully_defined() => {
                    return Err(format!("-1 in {shape} is ambiguous for the empty {from}; give every size"));
                }
                _ => {}
            }
        }
        Ok(vec![Fact::new(c.dtype(0), shape)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(c.grad().reshape_like(c.inputs[0]).into()), None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cost(&self, _c: &KernelContext<'_>) -> Cost {
        Cost::default()
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cases(&self) -> Vec<Case> {
        let x = |dims: &[usize]| float(dims, &[1.0, -2.0, 3.0, 4.5, 5.0, -6.0]);
        vec![
            case(vec![x(&[3, 2]), ints(&[2, -1])], vec![x(&[2, 3])], true),
            case(vec![x(&[3, 2]), ints(&[6])], vec![x(&[6])], true),
            case(vec![float(&[1], &[7.0]), ints(&[])], vec![float(&[], &[7.0])], true),
            case(vec![float(&[0, 4], &[]), ints(&[2, 0])], vec![float(&[2, 0], &[])], false),
        ]
    }
}

/// TensorFlow's `ExpandDims`: one axis of size 1 more; attribute-free, the axis is input 1.
pub struct ExpandDims;

impl Op for ExpandDims {
    fn name(&self) -> &'static str {
        "ExpandDims"
    }

    fn traits(&self) -> Traits {
        Traits { forwards: Some(0), ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if !c.dtype(1).is_integer() {
            return Err(format!("the axis must be int32 or int64, got {}", c.dtype(1)));
        }
        let Some(dims) = c.shape(0).dims() else { return Ok(vec![Fact::new(c.dtype(0), Shape::unknown())]) };
        let rank = dims.len() as i64;
        let shape = match c.ints(1).as_deref() {
            Some([axis]) => {
                let at = if *axis < 0 { axis.saturating_add(rank + 1) } else { *axis };
                if !(0..=rank).contains(&at) {
                    return Err(format!("axis {axis} is outside [{}, {rank}] for {}", -rank - 1, c.shape(0)));
                }
                let mut dims: SmallVec<[Option<usize>; 8]> = dims.into();
                dims.insert(at as usize, Some(1));
                Shape::partial(dims)
            }
            Some(axes) => return Err(format!("want one axis, got {}", axes.len())),
            None => Shape::of_rank(dims.len() + 1),
        };
        Ok(vec![Fact::new(c.dtype(0), shape)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(c.grad().reshape_like(c.inputs[0]).into()), None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cost(&self, _c: &KernelContext<'_>) -> Cost {
        Cost::default()
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cases(&self) -> Vec<Case> {
        let x = |dims: &[usize]| float(dims, &[1.0, -2.0, 3.0, 4.5, 5.0, -6.0]);
        vec![
            case(vec![x(&[3, 2]), Array::scalar(0i32)], vec![x(&[1, 3, 2])], true),
            case(vec![x(&[3, 2]), Array::scalar(-1i32)], vec![x(&[3, 2, 1])], true),
            case(vec![x(&[3, 2]), Array::scalar(1i64)], vec![x(&[3, 1, 2])], true),
        ]
    }
}

/// TensorFlow's `Squeeze` with attribute `squeeze_dims`: leaves out axes of size 1, all of them where none is named.
pub struct Squeeze;

impl Op for Squeeze {
    fn name(&self) -> &'static str {
        "Squeeze"
    }

    fn traits(&self) -> Traits {
        Traits { forwards: Some(0), ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        let unknown = || Ok(vec![Fact::new(c.dtype(0), Shape::unknown())]);
        let Some(dims) = c.shape(0).dims() else { return unknown() };
        let axes = c.attrs.ints("squeeze_dims");
        if axes.is_empty() && dims.contains(&None) {
            return unknown();
        }
        let mut leave_out: SmallVec<[bool; 8]> = dims.iter().map(|d| axes.is_empty() && *d == Some(1)).collect();
        let rank = dims.len() as i64;
        for &axis in axes {
            let at = if axis < 0 { axis.saturating_add(rank) } else { axis };
            if !(0..rank).contains(&at) {
                return Err(format!("axis {axis} is outside [{}, {rank}) for {}", -rank, c.shape(0)));
            }
            if dims[at as usize].is_some_and(|d| d != 1) {
                return Err(format!("axis {axis} of {} must have size 1 to be left out", c.shape(0)));
            }
            leave_out[at as usize] = true;
        }
        let kept = dims.iter().zip(leave_out).filter(|(_, out)| !out).map(|(d, _)| *d);
        Ok(vec![Fact::new(c.dtype(0), Shape::partial(kept))])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(c.grad().reshape_like(c.inputs[0]).into())])
    }

    fn cost(&self, _c: &KernelContext<'_>) -> Cost {
        Cost::default()
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cases(&self) -> Vec<Case> {
        let x = |dims: &[usize]| float(dims, &[1.0, -2.0, 3.0, 4.5, 5.0, -6.0]);
        let mut named = case(vec![x(&[3, 1, 2, 1])], vec![x(&[3, 2, 1])], true);
        named.attrs = Attrs::new().with("squeeze_dims", vec![1i64]);
        vec![case(vec![x(&[3, 1, 2, 1])], vec![x(&[3, 2])], true), named]
    }
}

/// What can be given as the target of a reshape: sizes, of which one may be -1, or a tensor that holds them.
pub trait ShapeArg<'g> {
    /// The sizes, or the tensor; `None` for sizes whose error is already reported.
    fn shape_arg(self) -> Option<Result<Vec<i64>, Tensor<'g>>>;
}

impl<'g> ShapeArg<'g> for Tensor<'g> {
    fn shape_arg(self) -> Option<Result<Vec<i64>, Tensor<'g>>> {
        Some(Err(self))
    }
}

macro_rules! shape_arg {
    ($($t:ty),*) => {$(
        impl<'g, const N: usize> ShapeArg<'g> for [$t; N] {
            fn shape_arg(self) -> Option<Result<Vec<i64>, Tensor<'g>>> {
                self.as_slice().shape_arg()
            }
        }
        impl<'g> ShapeArg<'g> for Vec<$t> {
            fn shape_arg(self) -> Option<Result<Vec<i64>, Tensor<'g>>> {
                self.as_slice().shape_arg()
            }
        }
        impl<'g> ShapeArg<'g> for &[$t] {
            fn shape_arg(self) -> Option<Result<Vec<i64>, Tensor<'g>>> {
                let poison = |s: $t| usize::try_from(s) == Ok(crate::base::POISON_DIM);
                // Sizes beyond int64 fit nothing, and the node says so.
                let size = |&s: &$t| (!poison(s)).then(|| i64::try_from(s).unwrap_or(i64::MAX));
                self.iter().map(size).collect::<Option<Vec<i64>>>().map(Ok)
            }
        }
    )*};
}
shape_arg!(i32, i64, usize);

/// Sizes as a constant's value: `int32` where they fit.
pub(super) fn sizes_array(sizes: &[i64]) -> Array {
    use crate::base::IntoArray;
    match sizes.iter().map(|&s| i32::try_from(s)).collect::<Result<Vec<i32>, _>>() {
        Ok(sizes) => sizes.into_array(),
        Err(_) => sizes.into_array(),
    }
}

impl<'g> Tensor<'g> {
    /// The same elements, in row-major order, under other sizes; one size may be -1: what is left.
    #[track_caller]
    pub fn reshape(self, shape: impl ShapeArg<'g>) -> Tensor<'g> {
        let graph = self.graph();
        match shape.shape_arg() {
            _ if self.is_poison() => graph.poison_tensor(),
            None => graph.poison_tensor(),
            Some(Err(tensor)) => graph.node_of(&Reshape).input(self).input(tensor).tensor(),
            Some(Ok(sizes)) => graph.with_source(graph.source_line(), || {
                graph.name_scope("Reshape", || {
                    let scope = graph.current_name_scope();
                    let target = graph.constant_named("shape", sizes_array(&sizes));
                    graph.node_of(&Reshape).name(format!("{scope}/")).input(self).input(target).tensor()
                })
            }),
        }
    }

    /// The same elements under the shape of another tensor, which the program may know only in part.
    #[track_caller]
    pub(crate) fn reshape_like(self, like: Tensor<'g>) -> Tensor<'g> {
        self.reshape_as(like.shape_tensor(), &like.shape())
    }

    /// The same elements under sizes held by a tensor, of which this is known.
    #[track_caller]
    pub(super) fn reshape_as(self, sizes: Tensor<'g>, known: &Shape) -> Tensor<'g> {
        let node = self.graph().node_of(&Reshape).input(self).input(sizes);
        // A known shape is what the constant says already.
        let hint = !known.is_fully_defined() && known.rank().is_some();
        if hint { node.attr(SHAPE_HINT, known.clone()).tensor() } else { node.tensor() }
    }

    /// One axis of size 1 more, before this axis; -1 is behind the last.
    #[track_caller]
    pub fn expand_dims(self, axis: i32) -> Tensor<'g> {
        let graph = self.graph();
        if self.is_poison() {
            return self;
        }
        graph.with_source(graph.source_line(), || {
            graph.name_scope("ExpandDims", || {
                let scope = graph.current_name_scope();
                let axis = graph.constant_named("dim", axis);
                graph.node_of(&ExpandDims).name(format!("{scope}/")).input(self).input(axis).tensor()
            })
        })
    }

    /// Without these axes, which have size 1; with none named, without all axes of size 1.
    #[track_caller]
    pub fn squeeze(self, axes: &[i64]) -> Tensor<'g> {
        self.graph().node_of(&Squeeze).input(self).attr("squeeze_dims", axes.to_vec()).tensor()
    }
}
