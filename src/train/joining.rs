//! How gradients of one node come together: sums over uses, gates over a node's gradients, groups over devices.

use super::parts::{add_n, concat_rows, densify, node as start, spec_text};
use crate::graph::{Gradient, Graph, IndexedSlices, InputGradients, NodeId, Operation, Tensor};
use std::collections::BTreeMap;

/// The handle of a node.
pub(super) fn operation(graph: &Graph, id: NodeId) -> Operation<'_> {
    Operation { graph, id }
}

/// The sum of all gradients that reached one output: AddN per device, then over the devices' sums; rows are joined
/// where all are rows.
pub(super) fn sum<'g>(graph: &'g Graph, list: &[Gradient<'g>]) -> Option<Gradient<'g>> {
    let slices: Vec<IndexedSlices<'g>> = (list.iter())
        .filter_map(|g| match g {
            Gradient::Slices(s) => Some(*s),
            Gradient::Dense(_) => None,
        })
        .collect();
    match list {
        [] => None,
        [one] => Some(*one),
        _ if list.iter().any(|g| g.values().is_poison()) => Some(graph.poison_tensor().into()),
        _ if slices.len() == list.len() => Some(concat_rows(&slices).into()),
        _ => {
            let dense: Vec<Tensor<'g>> = list.iter().map(|&g| densify(g)).collect();
            if !slices.is_empty() {
                return Some(add_n(graph, &dense, "AddN").into());
            }
            let mut by_device: BTreeMap<String, Vec<Tensor<'g>>> = BTreeMap::new();
            for tensor in dense {
                by_device.entry(spec_text(tensor)).or_default().push(tensor);
            }
            let sums: Vec<Tensor<'g>> = (by_device.values())
                .map(|tensors| match tensors[..] {
                    [one] => one,
                    // Beside its inputs, whatever forward node is being differentiated.
                    _ => graph.no_colocation(|| {
                        start(graph, "AddN").inputs(tensors.iter().copied()).colocate_with(tensors[0]).tensor()
                    }),
                })
                .collect();
            Some(add_n(graph, &sums, "AddN").into())
        }
    }
}

/// TensorFlow's `tuple`: each gradient under a new name that waits for all of them, beside the gradient itself.
pub(super) fn gate<'g>(graph: &'g Graph, grads: &[Option<Gradient<'g>>]) -> InputGradients<'g> {
    if grads.iter().flatten().any(|g| g.values().is_poison()) {
        return grads.iter().map(|g| g.map(|_| graph.poison_tensor().into())).collect();
    }
    let body = || {
        let mut ids: Vec<NodeId> = grads.iter().flatten().map(|g| g.op().id()).collect();
        ids.sort_unstable();
        ids.dedup();
        let gate = group_by_device(graph, &ids);
        let gated = |tensor: Tensor<'g>| {
            let builder = start(graph, "Identity").name("control_dependency");
            builder.input(tensor).control(gate).colocate_with(tensor).tensor()
        };
        (grads.iter())
            .map(|grad| {
                Some(match (*grad)? {
                    Gradient::Dense(t) => gated(t).into(),
                    Gradient::Slices(s) => IndexedSlices { values: gated(s.values), ..s }.into(),
                })
            })
            .collect()
    };
    // What is gated is where it is; scopes around do not move it.
    graph.name_scope("tuple", || graph.no_colocation(body))
}

/// TensorFlow's `group`: one NoOp per device of these nodes, and one over them where there are several.
fn group_by_device<'g>(graph: &'g Graph, ids: &[NodeId]) -> Operation<'g> {
    let mut by_device: BTreeMap<String, Vec<NodeId>> = BTreeMap::new();
    for &id in ids {
        by_device.entry(operation(graph, id).device().to_string()).or_default().push(id);
    }
    let one = |ids: &[NodeId], name: String| {
        let mut builder = start(graph, "NoOp").name(name);
        if let Some(node) = ids.first().and_then(|&id| graph.node(id)) {
            builder = builder.device(node.device.spec.clone(), node.device.rule.clone());
        }
        ids.iter().fold(builder, |b, &id| b.control(operation(graph, id))).add()
    };
    if let [(_, ids)] = &by_device.iter().collect::<Vec<_>>()[..] {
        return one(ids, "group_deps".into());
    }
    graph.name_scope("group_deps", || {
        let parts: Vec<Operation<'g>> = by_device.values().map(|ids| one(ids, "NoOp".into())).collect();
        let root = start(graph, "NoOp").name(format!("{}/", graph.current_name_scope()));
        parts.into_iter().fold(root, |b, op| b.control(op)).add()
    })
}
