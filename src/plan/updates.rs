//! Updates that compute their gradients: element-wise ops that lead to nothing but an update of variables on their own
//! device, such as the averaging of towers' gradients, run tile by tile right before each tile is applied.
//!
//! The gradient is then neither stored nor read again. Host and simulated GPUs alone, as `tiling.rs`, before which this
//! runs. Absent: gradients of rows, and those whose ops read a variable that the same node updates.

use super::fuse::fetched;
use super::fusion::{Fusion, Part, Streamed, Tiled};
use super::order::successors;
use super::step::{Partitioned, StepNodeId, StepNodeKind, ValueId};
use super::sweep::compact;
use super::tiling::{MOST, is_map, operand};
use crate::device::cuda::Operand;
use crate::graph::NodeId;
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// Lets every update of an ordered step compute the gradients that it can.
pub(super) fn stream(step: &mut Partitioned, changes: &mut Vec<String>) {
    let (after, fetched) = (successors(step, &[]), fetched(step));
    let mut removed = vec![false; step.nodes.len()];
    for id in (0..step.nodes.len() as u32).map(StepNodeId) {
        stream_into(step, id, (&after, &fetched), &mut removed, changes);
    }
    if removed.contains(&true) {
        compact(step, &removed);
    }
}

/// `known` is what comes after each node, and which ones are fetched.
fn stream_into(
    step: &mut Partitioned,
    id: StepNodeId,
    (after, fetched): (&[Vec<StepNodeId>], &[bool]),
    removed: &mut [bool],
    changes: &mut Vec<String>,
) {
    let node = step.node(id);
    let plain = matches!(node.kind, StepNodeKind::Op) && node.guards.is_empty() && node.fusion.is_none();
    let Some(op) = node.op.filter(|_| plain) else { return };
    let places = step.with_kernel_context(node, |c| op.streamed_inputs(c));
    if places.is_empty() {
        return;
    }
    let written: BTreeSet<NodeId> = node.written().into_iter().filter_map(|v| step.variable(v)).collect();
    let mut seen = HashSet::new();
    let twice = node.inputs.iter().copied().filter(|v| !seen.insert(*v)).collect();
    let around = Around { after, fetched, written, twice };
    let mut inputs = node.inputs.clone();
    let mut controls = node.controls.clone();
    let mut streams = Vec::new();
    for place in places {
        let Some(chain) = chain(step, id, place, &around) else { continue };
        for member in &chain.members {
            removed[member.index()] = true;
            controls.extend(step.node(*member).controls.iter().copied());
        }
        streams.push(chain.streamed(step, place, &mut inputs));
    }
    if streams.is_empty() {
        return;
    }
    controls.sort_unstable();
    controls.dedup();
    let fusion = Arc::new(Fusion::Update { op_inputs: node.inputs.len(), streams });
    let node = &mut step.nodes[id.index()];
    (node.inputs, node.controls, node.fusion) = (inputs, controls, Some(fusion));
    changes.push(format!("'{}' does {}", step.node(id).name, step.what(step.node(id))));
}

/// Element-wise ops of which the last makes a gradient.
struct Chain {
    /// In order.
    members: BTreeSet<StepNodeId>,
    /// What they read from outside, first a value with the gradient's type and sizes.
    reads: Vec<ValueId>,
}

/// What decides whether a node can become part of an update.
struct Around<'a> {
    /// By node: what comes after it.
    after: &'a [Vec<StepNodeId>],
    /// By node: whether it is fetched.
    fetched: &'a [bool],
    /// The variables that the update changes.
    written: BTreeSet<NodeId>,
    /// What the update reads more than once.
    twice: HashSet<ValueId>,
}

/// The ops that make an input of an update, if they can become part of it.
fn chain(step: &Partitioned, update: StepNodeId, place: usize, around: &Around<'_>) -> Option<Chain> {
    let Around { after, fetched, written, twice } = around;
    let node = step.node(update);
    let gradient = node.inputs[place];
    let desc = &step.value(gradient).desc;
    let mut members = BTreeSet::new();
    // The update is its one reader, and reads it once.
    let mut pending: SmallVec<[ValueId; 8]> = SmallVec::from_iter((!twice.contains(&gradient)).then_some(gradient));
    while let Some(value) = pending.pop() {
        let Some(by) = step.producer(value).filter(|by| !members.contains(by)) else { continue };
        let maker = step.node(by);
        let leads_in = |next: &StepNodeId| members.contains(next) || members.is_empty() && *next == update;
        let fits = |v: &ValueId| operand(&step.value(*v).desc.dims, &desc.dims, desc.dims.len()).is_some();
        let joins = members.len() < MOST.1
            && maker.device == node.device
            && is_map(step, maker)
            && step.value(value).desc.dims == desc.dims
            && maker.inputs.iter().all(fits)
            && after[by.index()].iter().all(leads_in)
            && !fetched[by.index()];
        if joins {
            members.insert(by);
            pending.extend(maker.inputs.iter().copied());
        }
    }
    let mut reads: Vec<ValueId> = Vec::new();
    for &value in members.iter().flat_map(|m| &step.node(*m).inputs) {
        let inside = step.producer(value).is_some_and(|by| members.contains(&by));
        if !inside && !reads.contains(&value) {
            reads.push(value);
        }
    }
    // The update's kernel finds one of them in the gradient's place.
    let like = reads.iter().position(|v| step.value(*v).desc == *desc)?;
    reads.swap(0, like);
    let changes = |v: &ValueId| step.variable(*v).is_some_and(|variable| written.contains(&variable));
    (reads.len() <= MOST.0 && !reads.iter().any(changes)).then_some(Chain { members, reads })
}

impl Chain {
    /// What the update does for this input of its, whose place the first value takes; the others are put at the end.
    fn streamed(&self, step: &Partitioned, place: usize, inputs: &mut SmallVec<[ValueId; 4]>) -> Streamed {
        let dims = step.value(inputs[place]).desc.dims.clone();
        inputs[place] = self.reads[0];
        let places: Vec<usize> = std::iter::once(place).chain(inputs.len()..).take(self.reads.len()).collect();
        inputs.extend(self.reads[1..].iter().copied());
        let order: Vec<StepNodeId> = self.members.iter().copied().collect();
        let mut parts = Vec::new();
        for node in order.iter().map(|id| step.node(*id)) {
            let Some(op) = node.op else { continue };
            let operands = node.inputs.iter().map(|value| {
                let maker = step.producer(*value).and_then(|by| order.iter().position(|o| *o == by));
                let read = || self.reads.iter().position(|r| r == value).unwrap_or(0);
                maker.map_or_else(|| Operand::Input(places[read()]), Operand::Step)
            });
            let operands = operands.collect();
            parts.push(Part::of(step, node, op, operands));
        }
        let row_axes = dims.len();
        Streamed { place, tiled: Tiled { parts, dims, row_axes, product_in: None, outputs: Vec::new() } }
    }
}
