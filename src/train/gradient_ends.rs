//! What may be differentiated, and with respect to what.

use super::gradients::GradOptions;
use crate::graph::{Gradient, Graph, Tensor};

/// Graphs, counts and element types of what is to be differentiated.
pub(super) fn check_ends<'g>(
    graph: &'g Graph,
    ys: &[Tensor<'g>],
    xs: &[Tensor<'g>],
    options: &GradOptions<'g>,
) -> Result<(), String> {
    if let Some(t) = ys.iter().chain(xs).find(|t| !std::ptr::eq(t.graph(), graph) && !t.is_poison()) {
        let (name, other, this) = (t.name(), t.graph().number(), graph.number());
        return Err(format!("'{name}' belongs to graph {other}, the gradients are built in graph {this}"));
    }
    if !options.grad_ys.is_empty() && options.grad_ys.len() != ys.len() {
        let (got, want) = (options.grad_ys.len(), ys.len());
        return Err(format!("grad_ys must have one entry per y: want {want}, got {got}"));
    }
    for (what, list) in [("differentiate", ys), ("differentiate with respect to", xs)] {
        if let Some(t) = list.iter().find(|t| !t.is_poison() && !t.dtype().is_floating()) {
            let (name, dtype) = (t.name(), t.dtype());
            return Err(format!(
                "cannot {what} '{name}': gradients want float32 or float64, got {dtype}; cast it before its use"
            ));
        }
    }
    for (y, grad) in ys.iter().zip(&options.grad_ys) {
        let Some(Gradient::Dense(grad)) = grad else { continue };
        if grad.is_poison() || y.is_poison() {
            continue;
        }
        if grad.dtype() != y.dtype() || !grad.shape().is_compatible_with(&y.shape()) {
            return Err(format!(
                "the gradient given for '{}' must be like it: want {} {}, got '{}' {} {}",
                y.name(),
                y.dtype(),
                y.shape(),
                grad.name(),
                grad.dtype(),
                grad.shape()
            ));
        }
    }
    Ok(())
}
