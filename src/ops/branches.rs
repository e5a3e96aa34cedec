//! Which predicate a `Merge` goes by, as far as the graph tells before any run: what its gradient is switched by.

use crate::graph::{ControlFlow, Graph, Node, NodeId, Operation, Tensor, TensorId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Predicates and the values under which something is computed.
type Guards = BTreeSet<(TensorId, bool)>;

/// The predicate that chooses between the inputs of a `Merge`, and the input that is taken where it is true.
pub(super) fn predicate<'g>(merge: Operation<'g>) -> Option<(Tensor<'g>, usize)> {
    let graph = merge.graph();
    let node = merge.node()?;
    let [a, b] = node.inputs[..] else { return None };
    let known = guards(graph, &[a.node, b.node]);
    let (of_a, of_b) = (of_tensor(&known, a), of_tensor(&known, b));
    let (tensor, value) = *of_a.iter().find(|(tensor, value)| of_b.contains(&(*tensor, !value)))?;
    let predicate = Operation { graph, id: tensor.node }.output(tensor.output as usize);
    Some((predicate, usize::from(!value)))
}

/// What is known of a node: its guards, and for a `Switch` its predicate.
struct Known {
    guards: Guards,
    switched_by: Option<TensorId>,
}

fn of_tensor(known: &BTreeMap<NodeId, Known>, tensor: TensorId) -> Guards {
    let Some(of) = known.get(&tensor.node) else { return Guards::new() };
    let mut guards = of.guards.clone();
    guards.extend(of.switched_by.map(|predicate| (predicate, tensor.output == 1)));
    guards
}

/// The guards of these nodes and of all that they depend on.
fn guards(graph: &Graph, of: &[NodeId]) -> BTreeMap<NodeId, Known> {
    let mut nodes: BTreeMap<NodeId, Arc<Node>> = BTreeMap::new();
    let mut stack = of.to_vec();
    while let Some(id) = stack.pop() {
        if let Some(node) = graph.node(id).filter(|_| !nodes.contains_key(&id)) {
            stack.extend(node.inputs.iter().map(|i| i.node).chain(node.control_inputs.iter().copied()));
            nodes.insert(id, node);
        }
    }
    // Inputs have smaller ids, so all that a node goes by is known when its turn comes.
    let mut known: BTreeMap<NodeId, Known> = BTreeMap::new();
    for (&id, node) in &nodes {
        let flow = node.op.control_flow();
        let mut guards = Guards::new();
        match (&flow, &node.inputs[..]) {
            (Some(ControlFlow::Merge { .. }), inputs) => {
                let all: Vec<Guards> = inputs.iter().map(|&t| of_tensor(&known, t)).collect();
                if let [first, rest @ ..] = &all[..] {
                    guards.extend(first.iter().filter(|g| rest.iter().all(|r| r.contains(g))));
                }
            }
            (_, inputs) => inputs.iter().for_each(|&t| guards.extend(of_tensor(&known, t))),
        }
        for control in &node.control_inputs {
            guards.extend(known.get(control).iter().flat_map(|k| k.guards.iter().copied()));
        }
        let switched_by = match flow {
            Some(ControlFlow::Switch { .. }) => node.inputs.get(1).map(|&p| origin(&nodes, p)),
            _ => None,
        };
        known.insert(id, Known { guards, switched_by });
    }
    known
}

/// The tensor that this one is, under another name.
fn origin(nodes: &BTreeMap<NodeId, Arc<Node>>, mut tensor: TensorId) -> TensorId {
    while let Some(node) = nodes.get(&tensor.node) {
        let input = match (node.op.traits().forwards, node.op.control_flow()) {
            (Some(input), _) if tensor.output == 0 => node.inputs.get(input),
            (_, Some(ControlFlow::Switch { .. })) => node.inputs.first(),
            _ => None,
        };
        match input {
            Some(&input) => tensor = input,
            None => break,
        }
    }
    tensor
}
