//! The gradient rules of reductions, after TensorFlow's `python/ops/math_grad.py`.
//!
//! Absent: inputs of unknown rank, and reduced axes that are not constant where the result does not keep them; both
//! are reported. Products multiply all other elements (`Cumprod` from both sides), so that zeros have a gradient.

use super::binary::{FLOOR_DIV, FLOOR_MOD, MAXIMUM};
use super::reduce::{PROD, mark_axes};
use super::tile::Tile;
use crate::graph::{GradContext, InputGradients, Tensor};

type Gradients<'g> = Option<InputGradients<'g>>;

/// The reduced axes, marked; an input whose rank or axes are not known is reported.
fn reduced_axes(c: &GradContext<'_>) -> Option<Vec<bool>> {
    let axes = c.inputs[1].constant_value().and_then(|a| a.to_i64());
    let rank = c.inputs[0].rank();
    if let (Some(axes), Some(rank)) = (axes, rank) {
        return Some(mark_axes(&axes, rank).ok()?.to_vec());
    }
    if !c.inputs[0].is_poison() {
        c.node.graph().report_invalid(format!(
            "the gradient of '{}' ({}) needs constant axes and an input of known rank, got axes '{}' and an input of shape {}",
            c.node.name(),
            c.node.op_type(),
            c.inputs[1].name(),
            c.inputs[0].shape()
        ));
    }
    None
}

/// The result or its gradient with the reduced axes put back, with size 1.
#[track_caller]
fn keep_axes<'g>(tensor: Tensor<'g>, reduced: &[bool], input: Tensor<'g>) -> Tensor<'g> {
    let shape = input.shape();
    let sizes: Option<Vec<i64>> =
        (0..reduced.len()).map(|a| if reduced[a] { Some(1) } else { shape.dim(a).map(|d| d as i64) }).collect();
    match sizes {
        Some(sizes) => tensor.reshape(sizes),
        None => (0..reduced.len()).filter(|&a| reduced[a]).fold(tensor, |t, a| t.expand_dims(a as i32)),
    }
}

#[track_caller]
fn tile<'g>(tensor: Tensor<'g>, multiples: Tensor<'g>, like: Tensor<'g>) -> Tensor<'g> {
    let node = tensor.graph().node_of(&Tile).input(tensor).input(multiples);
    let shape = like.shape();
    match shape.is_fully_defined() {
        true => node.tensor(),
        false => node.attr(super::shape_ops::SHAPE_HINT, shape).tensor(),
    }
}

/// The gradient of a sum: that of the result, along all reduced axes.
fn sum_gradient<'g>(c: &GradContext<'g>) -> Option<Tensor<'g>> {
    let (input, grad, graph) = (c.inputs[0], c.grad(), c.node.graph());
    let keep = c.node.node().is_some_and(|n| n.attrs.bool("keep_dims"));
    let reduced = reduced_axes(c);
    let Some(reduced) = reduced else { return Some(graph.poison_tensor()) };
    if reduced.iter().all(|r| *r) {
        let ones = grad.reshape(vec![1i64; reduced.len()]);
        let sizes = match input.shape().to_dims() {
            Some(dims) => {
                let sizes: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
                graph.constant_named("Const", super::shape_ops::sizes_array(&sizes))
            }
            None => input.shape_tensor(),
        };
        return Some(tile(ones, sizes, input));
    }
    if let Some(dims) = input.shape().to_dims() {
        let kept = keep_axes(grad, &reduced, input);
        let multiples: Vec<i64> = dims.iter().zip(&reduced).map(|(&d, &r)| if r { d as i64 } else { 1 }).collect();
        return Some(kept.with_constant("Tile", "multiples", super::shape_ops::sizes_array(&multiples), |m| {
            graph.node_of(&Tile).input(kept).input(m)
        }));
    }
    let kept = if keep { grad } else { keep_axes(grad, &reduced, input) };
    let (sizes, kept_sizes) = (input.shape_tensor(), kept.shape_tensor());
    let at_least_1 =
        kept_sizes.with_constant("Maximum", "y", 1i32, |one| graph.node_of(&MAXIMUM).input(kept_sizes).input(one));
    Some(tile(kept, sizes.apply_with(&FLOOR_DIV, "floordiv", at_least_1), input))
}

pub(super) fn sum<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    Some(vec![sum_gradient(c).map(Into::into), None])
}

/// The gradient of a sum, divided by the number of elements of each mean.
pub(super) fn mean<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let gradient = sum_gradient(c)?;
    let input = c.inputs[0];
    let (from, to) = (input.shape().num_elements(), c.outputs[0].shape().num_elements());
    let factor = match (from, to) {
        (Some(from), Some(to)) => gradient.scalar_like("Const", (from / to.max(1)) as f64),
        _ => {
            let sizes = input.shape_tensor();
            let rank = sizes.size_tensor();
            let axes = (c.inputs[1] + rank).apply_with(&FLOOR_MOD, "mod", rank);
            gather(sizes, axes).reduce_all(&PROD).cast(gradient.dtype())
        }
    };
    Some(vec![Some((gradient / factor).into()), None])
}

/// The elements of a vector at these places, as TensorFlow builds it.
#[track_caller]
fn gather<'g>(vector: Tensor<'g>, places: Tensor<'g>) -> Tensor<'g> {
    let graph = vector.graph();
    let Some(op) = super::find("GatherV2") else {
        return graph.report_invalid("there is no op type GatherV2".into());
    };
    vector.with_constant("GatherV2", "axis", 0i32, |axis| graph.node_of(op).input(vector).input(places).input(axis))
}

/// Of `Max` and `Min`: equal extreme elements share the gradient.
pub(super) fn extremum<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let (input, graph) = (c.inputs[0], c.node.graph());
    let Some(reduced) = reduced_axes(c) else { return Some(vec![Some(graph.poison_tensor().into()), None]) };
    let keep = c.node.node().is_some_and(|n| n.attrs.bool("keep_dims"));
    let kept = |t: Tensor<'g>| if keep { t } else { keep_axes(t, &reduced, input) };
    let (y, grad) = (kept(c.outputs[0]), kept(c.grad()));
    let selected = y.equal(input).cast(grad.dtype());
    let count = selected.sum_over(c.inputs[1], true);
    Some(vec![Some(((selected / count) * grad).into()), None])
}

/// Of `Prod`: each element's gradient is the product of all others.
pub(super) fn prod<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let (input, graph) = (c.inputs[0], c.node.graph());
    let refused = Some(vec![Some(graph.poison_tensor().into()), None]);
    let Some(reduced) = reduced_axes(c) else { return refused };
    let Some(spread) = sum_gradient(c) else { return refused };
    // The reduced axes come first and become one, so that products run along axis 0.
    let marked = |mark: bool| (0..reduced.len()).filter(|&a| reduced[a] == mark).map(|a| a as i32).collect();
    let parts: [Vec<i32>; 2] = [marked(true), marked(false)];
    let order = parts.concat();
    let permuted = transpose(input, &order);
    let rows = match input.shape().to_dims() {
        Some(dims) => permuted.reshape(parts.map(|axes| axes.iter().map(|&a| dims[a as usize]).product::<usize>())),
        None => {
            let sizes = input.shape_tensor();
            let counts = parts.map(|axes| gather(sizes, graph.constant(axes)).reduce_all(&PROD));
            permuted.reshape(super::support::node(graph, "Pack").inputs(counts).attr("axis", 0i64).tensor())
        }
    };
    let product = rows.cumprod(0, true, false) * rows.cumprod(0, true, true);
    let mut back = vec![0i32; order.len()];
    order.iter().enumerate().for_each(|(to, &from)| back[from as usize] = to as i32);
    Some(vec![Some((spread * transpose(product.reshape_like(permuted), &back)).into()), None])
}

/// The axes in another order; nothing where they keep it.
#[track_caller]
fn transpose<'g>(tensor: Tensor<'g>, order: &[i32]) -> Tensor<'g> {
    let graph = tensor.graph();
    if order.is_sorted() {
        return tensor;
    }
    let Some(op) = super::find("Transpose") else {
        return graph.report_invalid("there is no op type Transpose".into());
    };
    tensor.with_constant("transpose", "perm", order, |perm| graph.node_of(op).input(tensor).input(perm))
}
