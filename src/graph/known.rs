//! Values that are known when the graph is built: constants, shapes that are known, and what small nodes make of them.
//!
//! They are asked for where a shape rule needs one (a target shape, axes), and kept. Absent: what a step knows besides,
//! which planning finds out. Invariant: nothing that a run may feed, draw or change counts as known.

use super::eval::{FOLDED_ELEMENTS, evaluate};
use super::graph::{Graph, Inner};
use super::node::{Node, NodeId, TensorId};
use super::op::{Fact, InferContext};
use crate::base::Array;
use crate::device::Team;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// The largest inputs, in elements, that something is computed from while the graph is built.
const INPUT_ELEMENTS: usize = 1 << 16;

/// The outputs of nodes that were asked for; `None` where they are not known.
pub(super) type Known = HashMap<NodeId, Option<Vec<Arc<Array>>>>;

/// The value of a tensor, where it is known.
pub(super) fn known(inner: &mut Inner, tensor: TensorId) -> Option<Arc<Array>> {
    let mut pending: SmallVec<[NodeId; 8]> = smallvec::smallvec![tensor.node];
    while let Some(&id) = pending.last() {
        if inner.known.contains_key(&id) {
            pending.pop();
            continue;
        }
        let node = inner.nodes.get_index(id.index())?.1.clone();
        match look(inner, &node) {
            Look::Found(values) => {
                inner.known.insert(id, values);
                pending.pop();
            }
            Look::Needs(more) => pending.extend(more),
        }
    }
    inner.known.get(&tensor.node)?.as_ref()?.get(tensor.output as usize).cloned()
}

impl Graph {
    /// The value of a tensor that is known when the graph is built: a constant, or what small nodes make of constants and
    /// of shapes.
    pub fn known_value(&self, tensor: TensorId) -> Option<Arc<Array>> {
        known(&mut self.lock(), tensor)
    }
}

enum Look {
    Found(Option<Vec<Arc<Array>>>),
    /// These must be looked at before.
    Needs(SmallVec<[NodeId; 4]>),
}

fn look(inner: &Inner, node: &Node) -> Look {
    if let Some(value) = node.op.constant(&node.attrs) {
        return Look::Found(Some(vec![value.clone()]));
    }
    let traits = node.op.traits();
    let open = traits.stateful || traits.variable || node.op.may_be_fed() || node.op.is_unknown();
    let sizes = node.outputs.iter().filter_map(|f| f.shape.num_elements());
    if open || node.op.control_flow().is_some() || sizes.sum::<usize>() > FOLDED_ELEMENTS {
        return Look::Found(None);
    }
    let facts: Vec<Fact> =
        (node.inputs.iter()).map(|i| inner.nodes[i.node.index()].outputs[i.output as usize].clone()).collect();
    let nothing = vec![None; facts.len()];
    let of_shapes = InferContext { attrs: &node.attrs, inputs: &facts, values: &nothing };
    if let Some(values) = node.op.values_of_shapes(&of_shapes) {
        return Look::Found(Some(values.into_iter().map(Arc::new).collect()));
    }
    let mut inputs = Vec::with_capacity(facts.len());
    let mut needs = SmallVec::new();
    for input in &node.inputs {
        match inner.known.get(&input.node) {
            Some(Some(values)) => inputs.extend(values.get(input.output as usize).cloned()),
            Some(None) => return Look::Found(None),
            None => needs.push(input.node),
        }
    }
    if !needs.is_empty() {
        return Look::Needs(needs);
    }
    if inputs.len() < node.inputs.len() || inputs.iter().map(|a| a.len()).sum::<usize>() > INPUT_ELEMENTS {
        return Look::Found(None);
    }
    let values: Vec<Option<Arc<Array>>> = inputs.iter().cloned().map(Some).collect();
    let context = InferContext { attrs: &node.attrs, inputs: &facts, values: &values };
    let small = |outputs: Vec<Fact>| {
        let sizes: Option<Vec<usize>> = outputs.iter().map(|f| f.shape.num_elements()).collect();
        sizes.is_some_and(|sizes| sizes.into_iter().fold(0, usize::saturating_add) <= FOLDED_ELEMENTS)
    };
    if !node.op.infer(&context).is_ok_and(small) {
        return Look::Found(None);
    }
    // What fails is the run's to tell.
    Look::Found(evaluate(node.op, &node.attrs, &inputs, &Team::new(1, "build")).ok())
}
