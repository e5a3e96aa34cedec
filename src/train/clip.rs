//! Clipping of tensors and of gradient lists, by TensorFlow's formulas.
//!
//! Rows of a sparse gradient count as they are: equal row numbers are not added up before a norm is taken, as in
//! TensorFlow.

use super::optimizer::GradAndVar;
use super::parts::{add_n, cast, node as start, scalar};
use crate::base::DType;
use crate::graph::{Gradient, Graph, IndexedSlices, Tensor};

/// The tensor with every element moved into `[min, max]`; `min` wins where they cross.
#[track_caller]
pub fn clip_by_value<'g>(tensor: Tensor<'g>, min: f64, max: f64) -> Tensor<'g> {
    scoped(tensor, "clip_by_value", |graph, name| {
        let high = scalar(graph, tensor.dtype(), max, "Minimum/y");
        let low = scalar(graph, tensor.dtype(), min, "y");
        let cut = start(graph, "Minimum").input(tensor).input(high).tensor();
        start(graph, "Maximum").name(name).input(cut).input(low).tensor()
    })
}

/// The tensor scaled so that its Euclidean norm is at most `norm`: `t · norm / max(‖t‖, norm)`.
#[track_caller]
pub fn clip_by_norm<'g>(tensor: Tensor<'g>, norm: f64) -> Tensor<'g> {
    scoped(tensor, "clip_by_norm", |graph, name| {
        let limit = scalar(graph, tensor.dtype(), norm, "clip_norm");
        let length = length_of(graph, &[tensor], "norm");
        let bound = start(graph, "Maximum").input(length).input(limit).tensor();
        let scaled = start(graph, "Mul").name("mul").input(tensor).input(limit).tensor();
        start(graph, "RealDiv").name(name).input(scaled).input(bound).tensor()
    })
}

/// The Euclidean norm of all gradients together: `sqrt(Σ ‖g‖²)`; `None` if the list has none.
///
/// Each part of the sum is computed where its gradient is.
#[track_caller]
pub fn global_norm<'g>(list: &[GradAndVar<'g>]) -> Option<Tensor<'g>> {
    let values: Vec<Tensor<'g>> = list.iter().filter_map(|gv| gv.grad).map(Gradient::values).collect();
    let graph = values.first()?.graph();
    let source = graph.source_line();
    Some(graph.with_source(source, || graph.name_scope("global_norm", || length_of(graph, &values, "global_norm"))))
}

/// The gradients scaled together so that their common norm is at most `norm`: `g · norm / max(global norm, norm)`.
/// A norm that is not finite makes all of them NaN. Entries without a gradient stay so; rows stay rows.
#[track_caller]
pub fn clip_by_global_norm<'g>(list: &[GradAndVar<'g>], norm: f64) -> Vec<GradAndVar<'g>> {
    let Some(first) = list.iter().find_map(|gv| gv.grad).map(Gradient::values) else { return list.to_vec() };
    let graph = first.graph();
    let source = graph.source_line();
    let body = || {
        let values: Vec<Tensor<'g>> = list.iter().filter_map(|gv| gv.grad).map(Gradient::values).collect();
        let length = length_of(graph, &values, "global_norm");
        let dtype = length.dtype();
        let limit = scalar(graph, dtype, norm, "clip_norm");
        let bound = start(graph, "Maximum").input(length).input(limit).tensor();
        let ratio = start(graph, "RealDiv").name("truediv").input(limit).input(bound).tensor();
        // x − x is zero for finite x and NaN for others.
        let blank = start(graph, "Sub").name("sub").input(length).input(length).tensor();
        let scale = start(graph, "AddV2").name("scale").input(ratio).input(blank).tensor();
        scaled(graph, list, scale)
    };
    graph.with_source(source, || graph.name_scope("clip_by_global_norm", body))
}

/// Each gradient clipped by its own norm, as [`clip_by_norm`].
#[track_caller]
pub fn clip_each_by_norm<'g>(list: &[GradAndVar<'g>], norm: f64) -> Vec<GradAndVar<'g>> {
    each(list, |values| clip_by_norm(values, norm))
}

/// Each gradient's elements moved into `[min, max]`, as [`clip_by_value`].
#[track_caller]
pub fn clip_each_by_value<'g>(list: &[GradAndVar<'g>], min: f64, max: f64) -> Vec<GradAndVar<'g>> {
    each(list, |values| clip_by_value(values, min, max))
}

/// All gradients times a scalar tensor, each where it is; the new nodes are named after the variables.
pub(super) fn scaled<'g>(graph: &'g Graph, list: &[GradAndVar<'g>], scale: Tensor<'g>) -> Vec<GradAndVar<'g>> {
    (list.iter())
        .map(|gv| {
            let grad = gv.grad.map(|grad| {
                with_values(grad, |values| {
                    let scale = cast(scale, values.dtype());
                    start(graph, "Mul").name(gv.var.name()).input(values).input(scale).colocate_with(values).tensor()
                })
            });
            GradAndVar { grad, ..*gv }
        })
        .collect()
}

#[track_caller]
fn each<'g>(list: &[GradAndVar<'g>], clip: impl Fn(Tensor<'g>) -> Tensor<'g>) -> Vec<GradAndVar<'g>> {
    let Some(graph) = list.first().map(|gv| gv.var.op().graph()) else { return Vec::new() };
    let source = graph.source_line();
    graph.with_source(source, || {
        (list.iter())
            .map(|gv| {
                let clipped = |values: Tensor<'g>| graph.colocate_with(values, || clip(values));
                GradAndVar { grad: gv.grad.map(|g| with_values(g, clipped)), ..*gv }
            })
            .collect()
    })
}

fn with_values<'g>(grad: Gradient<'g>, change: impl Fn(Tensor<'g>) -> Tensor<'g>) -> Gradient<'g> {
    match grad {
        Gradient::Dense(t) => change(t).into(),
        Gradient::Slices(s) => IndexedSlices { values: change(s.values), ..s }.into(),
    }
}

/// `sqrt(2 · Σ sum(t²) / 2)`, in the widest of the tensors' types; the halves are taken beside the tensors.
fn length_of<'g>(graph: &'g Graph, tensors: &[Tensor<'g>], name: &'static str) -> Tensor<'g> {
    let dtype = match tensors.iter().any(|t| t.dtype() == DType::F64) {
        true => DType::F64,
        false => tensors.first().map_or(DType::F32, |t| t.dtype()),
    };
    let halves: Vec<Tensor<'g>> =
        (tensors.iter()).map(|&t| cast(start(graph, "L2Loss").input(t).colocate_with(t).tensor(), dtype)).collect();
    let half = add_n(graph, &halves, "AddN");
    let two = scalar(graph, dtype, 2.0, "Const");
    let square = start(graph, "Mul").name("mul").input(half).input(two).tensor();
    start(graph, "Sqrt").name(name).input(square).tensor()
}

/// Runs the body in a name scope whose name the last node takes.
#[track_caller]
fn scoped<'g>(tensor: Tensor<'g>, name: &str, body: impl FnOnce(&'g Graph, String) -> Tensor<'g>) -> Tensor<'g> {
    let graph = tensor.graph();
    let source = graph.source_line();
    graph.with_source(source, || graph.name_scope(name, || body(graph, format!("{}/", graph.current_name_scope()))))
}
