//! NumPy's broadcasting as a shape rule, and its reverse in gradient rules; `BroadcastGradientArgs`.
//!
//! Absent: the loops, which are in `elementwise.rs`.

use super::cuda_values::values_launches;
use super::values::{case, ints};
use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};
use smallvec::{SmallVec, smallvec};

/// The shape of an element-wise result: axes are matched from the last, size 1 stretches.
pub(super) fn broadcast(x: &Shape, y: &Shape) -> Result<Shape, String> {
    let (Some(xs), Some(ys)) = (x.dims(), y.dims()) else { return Ok(Shape::unknown()) };
    let rank = xs.len().max(ys.len());
    let size = |dims: &[Option<usize>], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(Some(1), |i| dims[i]);
    let sizes: Result<SmallVec<[Option<usize>; 4]>, String> = (0..rank)
        .map(|axis| match (size(xs, axis), size(ys, axis)) {
            (Some(1), d) | (d, Some(1)) => Ok(d),
            (Some(a), Some(b)) if a != b => Err(format!(
                "shapes {x} and {y} do not broadcast: sizes {a} and {b} of axis {axis} differ and neither is 1; \
                 reshape one of them"
            )),
            (a, b) => Ok(a.or(b)),
        })
        .collect();
    Ok(Shape::partial(sizes?))
}

/// The axes of the broadcast result that each input was stretched along, if the shapes tell.
fn stretched(x: &Shape, y: &Shape) -> Option<(Vec<i32>, Vec<i32>)> {
    let (xs, ys) = (x.dims()?, y.dims()?);
    let rank = xs.len().max(ys.len());
    let size = |dims: &[Option<usize>], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(Some(1), |i| dims[i]);
    let (mut of_x, mut of_y) = (Vec::new(), Vec::new());
    for axis in 0..rank {
        match (size(xs, axis), size(ys, axis)) {
            (Some(1), Some(1)) => {}
            (Some(1), _) => of_x.push(axis as i32),
            (_, Some(1)) => of_y.push(axis as i32),
            (None, _) | (_, None) => return None,
            _ => {}
        }
    }
    Some((of_x, of_y))
}

/// True if the shapes are fully known and equal, so that nothing was stretched.
pub(super) fn all_equal(tensors: &[Tensor<'_>]) -> bool {
    let first = tensors[0].shape();
    first.is_fully_defined() && tensors.iter().all(|t| t.shape() == first)
}

/// Sums the gradients of a broadcasting op's inputs over the axes that they were stretched along.
#[track_caller]
pub(super) fn reduce_gradients<'g>(x: Tensor<'g>, y: Tensor<'g>, gx: Tensor<'g>, gy: Tensor<'g>) -> InputGradients<'g> {
    if all_equal(&[x, y, gx, gy]) {
        return vec![Some(gx.into()), Some(gy.into())];
    }
    let (x_shape, y_shape) = (x.shape(), y.shape());
    let (x_sizes, y_sizes) = (x.shape_tensor(), y.shape_tensor());
    let reduce = |gradient: Tensor<'g>, axes: &[i32], shorter: bool, sizes: Tensor<'g>, shape: &Shape| {
        if axes.is_empty() && !shorter { gradient } else { gradient.sum_axes(axes, true).reshape_as(sizes, shape) }
    };
    let (gx, gy) = match stretched(&x_shape, &y_shape) {
        Some((of_x, of_y)) => {
            let (x_rank, y_rank) = (x_shape.rank(), y_shape.rank());
            let gx = reduce(gx, &of_x, x_rank < y_rank, x_sizes, &x_shape);
            (gx, reduce(gy, &of_y, y_rank < x_rank, y_sizes, &y_shape))
        }
        None => {
            let axes = x.graph().node_of(&BroadcastGradientArgs).input(x_sizes).input(y_sizes).add();
            let gx = gx.sum_over(axes.output(0), true).reshape_as(x_sizes, &x_shape);
            (gx, gy.sum_over(axes.output(1), true).reshape_as(y_sizes, &y_shape))
        }
    };
    vec![Some(gx.into()), Some(gy.into())]
}

/// TensorFlow's `BroadcastGradientArgs`: of two shapes, the axes of the broadcast result that each was stretched along.
pub struct BroadcastGradientArgs;

/// The axes by which gradients of tensors of these sizes are summed: TensorFlow's rule, by which an axis where both
/// are 1 counts for both.
fn gradient_axes(x: &[i64], y: &[i64]) -> Result<[Vec<i64>; 2], String> {
    let rank = x.len().max(y.len());
    let size = |dims: &[i64], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    let (mut of_x, mut of_y) = (Vec::new(), Vec::new());
    for axis in 0..rank {
        let (a, b) = (size(x, axis), size(y, axis));
        if a != b && a != 1 && b != 1 {
            return Err(format!("sizes {x:?} and {y:?} do not broadcast"));
        }
        if a == 1 {
            of_x.push(axis as i64);
        }
        if b == 1 {
            of_y.push(axis as i64);
        }
    }
    Ok([of_x, of_y])
}

impl Op for BroadcastGradientArgs {
    fn name(&self) -> &'static str {
        "BroadcastGradientArgs"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let dtype = c.same_dtype()?;
        if !dtype.is_integer() {
            return Err(format!("shapes must be int32 or int64, got {dtype}"));
        }
        let sizes = match (c.ints(0), c.ints(1)) {
            (Some(x), Some(y)) => gradient_axes(&x, &y)?.map(|axes| Shape::known(&[axes.len()])),
            _ => [Shape::of_rank(1), Shape::of_rank(1)],
        };
        Ok(sizes.into_iter().map(|s| Fact::new(dtype, s)).collect())
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![0, 1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (Some(x), Some(y)) = (c.ints(0), c.ints(1)) else {
            return Err("the shapes must be known when the step is planned".into());
        };
        let axes = gradient_axes(&x, &y)?;
        let wide = c.inputs[0].dtype == DType::I64;
        Ok(Box::new(move |l| {
            for (i, axes) in axes.iter().enumerate() {
                if wide {
                    l.output::<i64>(i).copy_from_slice(axes);
                } else {
                    // An axis always fits.
                    l.output::<i32>(i).iter_mut().zip(axes).for_each(|(o, &a)| *o = a as i32);
                }
            }
            Ok(())
        }))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (Some(x), Some(y)) = (c.ints(0), c.ints(1)) else {
            return Err("the shapes must be known when the step is planned".into());
        };
        let axes = gradient_axes(&x, &y)?;
        let launches = axes.iter().enumerate().flat_map(|(i, axes)| values_launches(i, c.inputs[0].dtype, axes));
        Ok(CudaKernel::new(launches))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            case(vec![ints(&[2, 3]), ints(&[3])], vec![ints(&[]), ints(&[0])], false),
            case(vec![ints(&[3, 1]), ints(&[1, 4])], vec![ints(&[1]), ints(&[0])], false),
            case(vec![ints(&[]), ints(&[2])], vec![ints(&[0]), ints(&[])], false),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_sizes_stay_unknown_unless_the_other_decides() {
        let x = Shape::partial([None, Some(1), None]);
        assert_eq!(broadcast(&x, &Shape::known(&[5, 3])), Ok(Shape::partial([None, Some(5), Some(3)])));
        assert_eq!(broadcast(&Shape::known(&[0, 4]), &Shape::known(&[4])), Ok(Shape::known(&[0, 4])));
        let refused = broadcast(&Shape::known(&[2, 3]), &Shape::known(&[2, 4])).unwrap_err();
        assert!(refused.contains("[2, 3] and [2, 4]") && refused.contains("axis 1"), "{refused}");
    }

    #[test]
    fn stretched_axes_are_found_where_the_shapes_tell() {
        let batch = Shape::partial([None, Some(7)]);
        assert_eq!(stretched(&batch, &Shape::scalar()), Some((vec![], vec![0, 1])));
        assert_eq!(stretched(&batch, &Shape::partial([None, Some(1)])), None);
    }
}
