//! Checks what is fed, fetched and run against the graph, before anything runs.

use crate::base::{Code, DType, Diagnostic, Error, Result, Shape};
use crate::graph::{Graph, Node, Operation, Tensor};
use std::collections::HashSet;
use std::sync::Arc;

/// Refuses handles of another graph, poison handles, and repeated feeds.
pub(super) fn check_handles<'a>(
    graph: &Graph,
    feeds: impl IntoIterator<Item = Tensor<'a>>,
    fetches: &[Tensor<'_>],
    targets: &[Operation<'_>],
) -> Result<()> {
    let foreign = |what: &str, name: String, other: &Graph| {
        let message = format!(
            "cannot {what} '{name}': the handle belongs to graph {}, this session runs graph {}; \
             use a handle of the session's graph",
            other.number(),
            graph.number()
        );
        Err(Error::invalid(message))
    };
    let mut fed = HashSet::new();
    for tensor in feeds {
        if !std::ptr::eq(tensor.graph(), graph) {
            return foreign("feed", tensor.name(), tensor.graph());
        }
        if tensor.is_poison() {
            return Err(poisoned(graph, "feed"));
        }
        if !fed.insert(tensor.id()) {
            return Err(Error::invalid(format!("'{}' is fed twice; feed each tensor once", tensor.name())));
        }
    }
    for tensor in fetches {
        if !std::ptr::eq(tensor.graph(), graph) {
            return foreign("fetch", tensor.name(), tensor.graph());
        }
        if tensor.is_poison() {
            return Err(poisoned(graph, "fetch"));
        }
    }
    for op in targets {
        if !std::ptr::eq(op.graph(), graph) {
            return foreign("run", op.name(), op.graph());
        }
        if op.is_poison() {
            return Err(poisoned(graph, "run"));
        }
    }
    Ok(())
}

fn poisoned(graph: &Graph, what: &str) -> Error {
    match graph.check() {
        Err(e) => e.context(format!("cannot {what} a handle whose node could not be built")),
        Ok(()) => Error::new(Code::Internal, format!("cannot {what} a handle whose node could not be built")),
    }
}

/// Checks one fed array against its tensor.
pub(super) fn check_feed(node: &Arc<Node>, output: u32, dtype: DType, got: &[usize]) -> Result<()> {
    let fact = &node.outputs[output as usize];
    let name = node.output_name(output);
    let refuse = |message: String| Err(Diagnostic::at(Code::InvalidArgument, message, node.source).into());
    if dtype != fact.dtype {
        return refuse(format!(
            "cannot feed an array of {dtype} for '{name}', which is {}; convert it with Array::cast({})",
            fact.dtype, fact.dtype
        ));
    }
    let Some(want) = fact.shape.dims() else { return Ok(()) };
    if want.len() != got.len() {
        return refuse(format!(
            "cannot feed an array of shape {} for '{name}', which has shape {}: the ranks are {} and {}; reshape the array",
            Shape::known(got),
            fact.shape,
            got.len(),
            want.len()
        ));
    }
    match want.iter().zip(got).position(|(w, g)| w.is_some_and(|w| w != *g)) {
        None => Ok(()),
        Some(axis) => refuse(format!(
            "cannot feed an array of shape {} for '{name}', which has shape {}: axis {axis} is {} against {}",
            Shape::known(got),
            fact.shape,
            got[axis],
            want[axis].unwrap_or(0)
        )),
    }
}
