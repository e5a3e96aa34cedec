//! Transposes: a product reads a matrix as it lies instead of a transposed copy.
//!
//! Its sums are of the same summands, which may be added in another order, as they are for matrices that lie otherwise.

use super::step::{Origin, Partitioned, StepNodeId, StepNodeKind, ValueId};
use super::sweep::sweep;
use std::sync::Arc;

/// Takes transposes of the last two axes into the products that read them.
pub(super) fn into_products(step: &mut Partitioned, changes: &mut Vec<String>) {
    let mut left = Vec::new();
    for i in 0..step.nodes.len() {
        let id = StepNodeId(i as u32);
        let node = step.node(id);
        let Some(op) = node.op.filter(|_| matches!(node.kind, StepNodeKind::Op) && node.fusion.is_none()) else {
            continue;
        };
        for input in 0..node.op_inputs().len() {
            let Some(attr) = op.transposing_attr(input) else { continue };
            let read = step.node(id).inputs[input];
            let Some((by, matrix)) = transposed(step, read) else { continue };
            changes.push(format!("'{}' takes '{}' in", step.node(id).name, step.node(by).name));
            if let Origin::Computed(producer) = step.value(read).origin {
                left.push(producer);
            }
            let node = &mut step.nodes[i];
            node.inputs[input] = matrix;
            let flag = !node.attrs.bool(attr);
            Arc::make_mut(&mut node.attrs).set(attr, flag);
        }
    }
    sweep(step, left);
}

/// The node that transposes a value's last two axes, and what it transposes.
fn transposed(step: &Partitioned, mut value: ValueId) -> Option<(StepNodeId, ValueId)> {
    while let Some((of, 0)) = step.passed_on(value) {
        if step.value(of).desc.dims != step.value(value).desc.dims {
            return None;
        }
        value = of;
    }
    let Origin::Computed(by) = step.value(value).origin else { return None };
    let node = step.node(by);
    // What it waits for, the product would not.
    let plain = matches!(node.kind, StepNodeKind::Op) && node.guards.is_empty() && node.controls.is_empty();
    let op = node.op.filter(|_| plain)?;
    let swaps = step.with_kernel_context(node, |c| op.swaps_last_axes(c));
    // A variable's buffer is read when the transpose's turn comes.
    (swaps && step.variable(node.inputs[0]).is_none()).then_some((by, node.inputs[0]))
}
