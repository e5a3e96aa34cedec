//! Dealing a batch to towers.

use crate::base::{Code, Diagnostic};
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
        _ => return graph.with_source(source, || batch.split(towers, 0)),
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
