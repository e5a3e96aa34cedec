//! Sweep: nodes that nothing reads any more go, and with them the values that only they made or read.
//!
//! Passes call it with the nodes whose readers they took away; what a user asked for is never among them.

use super::step::{Fetch, Origin, Partitioned, StepNode, StepNodeId, StepNodeKind, Value, ValueId};
use crate::base::DType;
use smallvec::SmallVec;
use std::collections::HashSet;

/// Drops these nodes where nothing reads them, then what only they read.
pub(super) fn sweep(step: &mut Partitioned, candidates: Vec<StepNodeId>) {
    let mut readers = vec![0u32; step.values.len()];
    let fetched = step.fetches.iter().filter_map(|f| match f {
        Fetch::Value(value) => Some(*value),
        _ => None,
    });
    step.nodes.iter().flat_map(|n| &n.inputs).copied().chain(fetched).for_each(|v| readers[v.index()] += 1);
    let mut removed = vec![false; step.nodes.len()];
    let mut pending = candidates;
    while let Some(id) = pending.pop() {
        let node = step.node(id);
        let read = node.outputs.iter().any(|v| readers[v.index()] > 0);
        if removed[id.index()] || read || !may_go(step, node) {
            continue;
        }
        removed[id.index()] = true;
        for input in &node.inputs {
            readers[input.index()] -= 1;
            if let Origin::Computed(by) = step.value(*input).origin {
                pending.push(by);
            }
        }
    }
    let unread = |(value, readers): (&Value, &u32)| *readers == 0 && value.known().is_some();
    if removed.contains(&true) || step.values.iter().zip(&readers).any(unread) {
        compact(step, &removed);
    }
}

/// True for nodes of which only the outputs matter.
fn may_go(step: &Partitioned, node: &StepNode) -> bool {
    if node.outputs.is_empty() || step.pruned.signature.targets.binary_search(&node.node).is_ok() {
        return false;
    }
    let outputs: SmallVec<[DType; 2]> = node.outputs.iter().map(|v| step.value(*v).desc.dtype).collect();
    match (&node.kind, node.op) {
        (StepNodeKind::Copy(_), _) => true,
        (StepNodeKind::Op, Some(op)) => {
            let traits = op.traits();
            let pure = !traits.stateful && !traits.variable && node.guards.is_empty();
            pure && node.written_places().is_empty() && !op.can_fail(&node.attrs, &outputs)
        }
        _ => false,
    }
}

/// Drops the removed nodes, their outputs, and known values that nothing else reads. Who waited for a removed node
/// waits for what that needed.
pub(super) fn compact(step: &mut Partitioned, removed: &[bool]) {
    let gone = |id: StepNodeId| removed[id.index()];
    let waits_for_gone = |i: &usize| !removed[*i] && step.nodes[*i].controls.iter().any(|c| gone(*c));
    for i in (0..step.nodes.len()).filter(waits_for_gone).collect::<Vec<_>>() {
        let mut waits: SmallVec<[StepNodeId; 2]> = SmallVec::new();
        let mut pending: SmallVec<[StepNodeId; 8]> = step.nodes[i].controls.iter().rev().copied().collect();
        let mut seen = HashSet::new();
        while let Some(id) = pending.pop() {
            match gone(id) {
                true if !seen.insert(id) => {}
                true => pending.extend(step.needed_nodes(step.node(id))),
                false if !waits.contains(&id) => waits.push(id),
                false => {}
            }
        }
        step.nodes[i].controls = waits;
    }
    let mut places = Vec::with_capacity(removed.len());
    let mut next = 0;
    for gone in removed {
        places.push(StepNodeId(next));
        next += u32::from(!gone);
    }
    let mut read = vec![false; step.values.len()];
    for (node, _) in step.nodes.iter().zip(removed).filter(|(_, gone)| !**gone) {
        node.inputs.iter().chain(&node.outputs).for_each(|v| read[v.index()] = true);
    }
    let mut value_places = Vec::with_capacity(step.values.len());
    let mut kept = Vec::new();
    for (value, read) in std::mem::take(&mut step.values).into_iter().zip(read) {
        value_places.push(ValueId(kept.len() as u32));
        if read || matches!(value.origin, Origin::Fed(_) | Origin::Variable(_)) {
            kept.push(value);
        }
    }
    step.values = kept;
    let mut keep = removed.iter().map(|gone| !gone);
    step.nodes.retain(|_| keep.next().unwrap_or(true));
    for node in &mut step.nodes {
        node.controls.iter_mut().for_each(|c| *c = places[c.index()]);
        node.inputs.iter_mut().chain(&mut node.outputs).for_each(|v| *v = value_places[v.index()]);
    }
    for value in &mut step.values {
        if let Origin::Computed(by) = &mut value.origin {
            *by = places[by.index()];
        }
        if let Some((of, _)) = &mut value.alias_of {
            *of = value_places[of.index()];
        }
    }
    for fetch in &mut step.fetches {
        if let Fetch::Value(value) = fetch {
            *value = value_places[value.index()];
        }
    }
}
