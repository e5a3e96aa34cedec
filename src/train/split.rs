//! Dealing a batch to towers.

use super::parts::{node as start, scalar};
use crate::base::{Code, DType, Diagnostic};
use crate::graph::Tensor;

/// The rows of a batch in `towers` equal parts along axis 0, in order: nodes `split`, `split_1`, …
///
/// Reported: a size that `towers` does not divide. A size that is only known at run time is checked by the run.
#[track_caller]
pub fn split_batch(batch: Tensor<'_>, towers: usize) -> Vec<Tensor<'_>> {
    let graph = batch.graph();
    let source = graph.source_line();
    let message = match batch.shape().dim(0) {
        _ if towers == 0 => "want at least 1 tower to split a batch over, got 0".to_string(),
        Some(size) if size % towers != 0 => refuse_split(&batch.op().name(), size, towers),
        _ => return graph.with_source(source, || split_equal(batch, towers)),
    };
    graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
    vec![graph.poison_tensor(); towers]
}

/// Why a batch cannot be dealt evenly, and the ways out.
pub(super) fn refuse_split(name: &str, size: usize, towers: usize) -> String {
    let remainder = size % towers;
    format!(
        "batch '{name}' of size {size} cannot be split evenly over {towers} towers: remainder {remainder}; drop \
         {remainder} rows, pad it with rows of weight zero, or use the uneven mode"
    )
}

pub(super) fn split_equal(batch: Tensor<'_>, towers: usize) -> Vec<Tensor<'_>> {
    let graph = batch.graph();
    let op = graph.name_scope("split", || {
        let axis = scalar(graph, DType::I32, 0.0, "split_dim");
        let name = format!("{}/", graph.current_name_scope());
        start(graph, "Split").name(name).input(axis).input(batch).attr("num_split", towers as i64).add()
    });
    if op.is_poison() { vec![graph.poison_tensor(); towers] } else { op.outputs() }
}

/// Parts of these sizes along axis 0.
pub(super) fn split_rows<'g>(batch: Tensor<'g>, rows: &[usize]) -> Vec<Tensor<'g>> {
    let graph = batch.graph();
    let op = graph.name_scope("split", || {
        let sizes: Vec<i32> = rows.iter().map(|&r| i32::try_from(r).unwrap_or(i32::MAX)).collect();
        let sizes = graph.constant_named("Const", sizes);
        let axis = scalar(graph, DType::I32, 0.0, "split_dim");
        let name = format!("{}/", graph.current_name_scope());
        start(graph, "SplitV").name(name).inputs([batch, sizes, axis]).attr("num_split", rows.len() as i64).add()
    });
    if op.is_poison() { vec![graph.poison_tensor(); rows.len()] } else { op.outputs() }
}
