//! Which variables are optimizers' state, and whose.
//!
//! The train ops tell: what they write beside the variables that have gradients.

use crate::graph::{Graph, Node, NodeId, Op};
use crate::ops::{ApplyGradients, ApplyLayout};
use std::collections::HashMap;
use std::sync::Arc;

/// The optimizers' variables, and the optimizer of each by TensorFlow's name.
pub(super) fn optimizer_state(graph: &Graph) -> HashMap<NodeId, String> {
    let mut state = HashMap::new();
    let nodes = graph.nodes();
    for node in &nodes {
        let op_type = node.op_type().strip_prefix("Resource").unwrap_or(node.op_type());
        if op_type == ApplyGradients.name() {
            whole_list(node, &mut state);
        } else if let Some(optimizer) = op_type.strip_prefix("SparseApply").or_else(|| op_type.strip_prefix("Apply")) {
            one_variable(&nodes, node, optimizer, &mut state);
        }
    }
    state
}

/// The slots and powers of TensorFlow's node for one variable, which has the variable first.
fn one_variable(nodes: &[Arc<Node>], node: &Node, optimizer: &str, state: &mut HashMap<NodeId, String>) {
    let of = |id: NodeId| nodes.get(id.index());
    for input in node.inputs.iter().skip(1) {
        let Some(producer) = of(input.node) else { continue };
        if producer.op.traits().variable {
            state.insert(producer.id, optimizer.to_string());
            continue;
        }
        // Powers may come in through a read, as may a learning rate, which is no state.
        let read = producer.inputs.first().and_then(|i| of(i.node)).filter(|v| v.op.traits().variable);
        let is_power = |v: &&Arc<Node>| {
            let last = v.name.rsplit('/').next().unwrap_or_default();
            last.starts_with("beta1_power") || last.starts_with("beta2_power")
        };
        if let Some(power) = read.filter(is_power) {
            state.insert(power.id, optimizer.to_string());
        }
    }
}

/// The slots and powers of a node that applies a whole list.
fn whole_list(node: &Node, state: &mut HashMap<NodeId, String>) {
    let Ok(layout) = ApplyLayout::from_attrs(&node.attrs) else { return };
    let slots = layout.variables().flat_map(|v| v.slots);
    let places: Vec<usize> = layout.powers().chain(slots).collect();
    for input in places.into_iter().filter_map(|i| node.inputs.get(i)) {
        state.insert(input.node, layout.rule.name().to_string());
    }
}
