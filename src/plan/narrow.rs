//! Narrow: element-wise nodes read what is stretched (`Tile`, `Fill`, `BroadcastTo`, one value everywhere) before it is
//! stretched, since they broadcast by themselves; what then is read by nobody is not computed.
//!
//! An element-wise node of stretched inputs is itself computed small. Invariant: every element that is still computed is
//! computed from the same values by the same operation.

use super::order::successors;
use super::step::{Origin, Partitioned, StepNode, StepNodeId, StepNodeKind, Value, ValueId};
use super::sweep::sweep;
use crate::base::{Array, DType, Dims, Shape};
use crate::device::Team;
use crate::graph::{Fact, InferContext, OpRef, Stretched, TensorDesc, evaluate};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// Lets element-wise nodes read small values where these broadcast to what they read now.
pub(super) fn narrow(step: &mut Partitioned, changes: &mut Vec<String>) {
    let after_changes = after_changes(step);
    let (small, team) = (HashMap::new(), Team::new(1, "plan"));
    let mut narrowing = Narrowing { step, small, after_changes, team, made: Vec::new() };
    let mut left = Vec::new();
    for i in 0..narrowing.step.nodes.len() {
        let id = StepNodeId(i as u32);
        narrowing.note(id);
        narrowing.read_small(id, &mut left, changes);
    }
    let Narrowing { made, .. } = narrowing;
    left.extend(made);
    sweep(step, left);
}

/// By node: whether it changes a variable, or comes after one that does.
fn after_changes(step: &Partitioned) -> Vec<bool> {
    let mut marked = vec![false; step.nodes.len()];
    let ids = (0..step.nodes.len() as u32).map(StepNodeId);
    let mut pending: Vec<StepNodeId> = ids.filter(|id| !step.node(*id).written_places().is_empty()).collect();
    let after = if pending.is_empty() { Vec::new() } else { successors(step, &[]) };
    while let Some(id) = pending.pop() {
        if !std::mem::replace(&mut marked[id.index()], true) {
            pending.extend(&after[id.index()]);
        }
    }
    marked
}

struct Narrowing<'a> {
    step: &'a mut Partitioned,
    /// What broadcasts to a value and is smaller, by value; `None` for known values that are not the same everywhere.
    small: HashMap<ValueId, Option<ValueId>>,
    /// By node: whether it changes a variable, or comes after one that does.
    after_changes: Vec<bool>,
    team: Team,
    /// Nodes that compute small values.
    made: Vec<StepNodeId>,
}

impl Narrowing<'_> {
    /// The smaller value that broadcasts to this one.
    fn small(&mut self, value: ValueId) -> Option<ValueId> {
        if let Some(small) = self.small.get(&value) {
            return *small;
        }
        let all_one = self.step.value(value).known().and_then(|array| one_of(array));
        let small = all_one.map(|array| self.known(value, array));
        self.small.insert(value, small);
        small
    }

    /// A known value of no axes in the place of another.
    fn known(&mut self, like: ValueId, array: Array) -> ValueId {
        let like = self.step.value(like);
        let desc = TensorDesc { dtype: array.dtype(), dims: array.dims().into() };
        let (tensor, device) = (like.tensor, like.device);
        self.value(Value { tensor, desc, device, origin: Origin::Known(Arc::new(array)), alias_of: None })
    }

    fn value(&mut self, value: Value) -> ValueId {
        self.step.values.push(value);
        ValueId(self.step.values.len() as u32 - 1)
    }

    fn dims(&self, value: ValueId) -> &Dims {
        &self.step.value(value).desc.dims
    }

    /// A value that a later reader sees as it is now.
    fn stays(&self, value: ValueId) -> bool {
        self.step.variable(value).is_none()
    }

    /// Notes what is smaller than the output of a node and broadcasts to it.
    fn note(&mut self, id: StepNodeId) {
        let node = self.step.node(id);
        let (&[output], StepNodeKind::Op, Some(op)) = (&node.outputs[..], &node.kind, node.op) else { return };
        // What it waits for, its readers would not.
        if node.fusion.is_some() || !node.guards.is_empty() || !node.controls.is_empty() {
            return;
        }
        let larger =
            |small: &ValueId, all: &Self| all.step.value(*small).desc.len() < all.step.value(output).desc.len();
        let found = if let Some((of, 0)) = self.step.value(output).alias_of {
            let same_sizes = self.dims(of) == self.dims(output);
            self.small(of).filter(|s| same_sizes || self.dims(*s).is_empty())
        } else {
            match self.step.with_kernel_context(self.step.node(id), |c| op.stretches(c)) {
                Some(Stretched::Input(input)) => {
                    let input = self.step.node(id).inputs[input];
                    self.small(input).or(Some(input)).filter(|small| self.stays(*small))
                }
                Some(Stretched::Value(array)) => {
                    let waits = self
                        .step
                        .needed_nodes(self.step.node(id))
                        .any(|n| self.after_changes.get(n.index()).copied().unwrap_or(true));
                    (!waits).then(|| self.known(output, array))
                }
                None => self.compute_small(id, op),
            }
        };
        if let Some(small) = found.filter(|small| larger(small, self)) {
            self.small.insert(output, Some(small));
        }
    }

    /// An element-wise node whose inputs are all stretched, computed before it is stretched.
    fn compute_small(&mut self, id: StepNodeId, op: OpRef) -> Option<ValueId> {
        if !maps(self.step, id) {
            return None;
        }
        let node = self.step.node(id).clone();
        let inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&v| self.small(v).unwrap_or(v)).collect();
        if inputs == node.inputs {
            return None;
        }
        let output = node.outputs[0];
        let dims = sizes(self.step, &node, op, &inputs)?;
        if dims.iter().product::<usize>() >= self.step.value(output).desc.len() {
            return None;
        }
        let known: Option<Vec<Arc<Array>>> = inputs.iter().map(|v| self.step.value(*v).known().cloned()).collect();
        let known = known.and_then(|known| evaluate(op, &node.attrs, &known, &self.team).ok());
        if let Some(array) = known.and_then(|outputs| outputs.into_iter().next()) {
            return Some(self.known(output, (*array).clone()));
        }
        let own = StepNodeId(self.step.nodes.len() as u32);
        let like = self.step.value(output).clone();
        let desc = TensorDesc { dtype: like.desc.dtype, dims };
        let small = self.value(Value { desc, origin: Origin::Computed(own), alias_of: None, ..like });
        self.step.nodes.push(StepNode { inputs, outputs: smallvec::smallvec![small], ..node });
        self.made.push(own);
        Some(small)
    }

    /// Lets a node read small inputs as far as its own sizes stay.
    fn read_small(&mut self, id: StepNodeId, left: &mut Vec<StepNodeId>, changes: &mut Vec<String>) {
        if !maps(self.step, id) {
            return;
        }
        let Some(op) = self.step.node(id).op else { return };
        for i in 0..self.step.node(id).inputs.len() {
            let was = self.step.node(id).inputs[i];
            let Some(small) = self.small(was) else { continue };
            let node = self.step.node(id);
            let mut inputs = node.inputs.clone();
            inputs[i] = small;
            if sizes(self.step, node, op, &inputs).as_ref() != Some(self.dims(node.outputs[0])) {
                continue;
            }
            let (name, tensor) = (node.name.clone(), self.step.tensor_name(self.step.value(was).tensor));
            let (from, to) = (Shape::known(self.dims(was)), Shape::known(self.dims(small)));
            changes.push(format!("'{name}' reads '{tensor}' as {to} instead of {from}"));
            if let Origin::Computed(by) = self.step.value(was).origin {
                left.push(by);
            }
            self.step.nodes[id.index()].inputs = inputs;
        }
    }
}

/// True for a node that computes every element of its one output from elements of its broadcast inputs, and cannot fail.
fn maps(step: &Partitioned, id: StepNodeId) -> bool {
    let node = step.node(id);
    let plain = matches!(node.kind, StepNodeKind::Op) && !node.silent && node.fusion.is_none();
    let Some(op) = node.op.filter(|_| plain && node.outputs.len() == 1 && node.guards.is_empty()) else { return false };
    let outputs: SmallVec<[DType; 1]> = node.outputs.iter().map(|v| step.value(*v).desc.dtype).collect();
    let pure = !op.traits().stateful && node.written_places().is_empty() && !op.can_fail(&node.attrs, &outputs);
    pure && step.with_kernel_context(node, |c| op.cuda_map(c).is_some() && op.stretches(c).is_none())
}

/// The sizes of the output that a node would have with these inputs; none if it does not take them.
fn sizes(step: &Partitioned, node: &StepNode, op: OpRef, inputs: &[ValueId]) -> Option<Dims> {
    let desc = |v: &ValueId| &step.value(*v).desc;
    let facts: Vec<Fact> = inputs.iter().map(|v| Fact::new(desc(v).dtype, Shape::known(&desc(v).dims))).collect();
    let values: Vec<Option<Arc<Array>>> = inputs.iter().map(|v| step.value(*v).known().cloned()).collect();
    let outputs = op.infer(&InferContext { attrs: &node.attrs, inputs: &facts, values: &values }).ok()?;
    let dims = outputs.first()?.shape.to_dims()?;
    // What is no broadcasting of NumPy's for these sizes is not taken.
    let descs: Vec<TensorDesc> = inputs.iter().map(|v| desc(v).clone()).collect();
    let output = [TensorDesc { dtype: outputs[0].dtype, dims: dims.clone() }];
    let context = crate::graph::KernelContext { attrs: &node.attrs, inputs: &descs, outputs: &output, values: &values };
    op.cuda_map(&context).is_some().then_some(dims)
}

/// The one value that all elements have, bit for bit, of an array of several.
fn one_of(array: &Array) -> Option<Array> {
    let size = array.dtype().size();
    let (first, _) = array.bytes().split_at_checked(size).filter(|_| array.len() > 1 && size > 0)?;
    if !array.bytes().chunks_exact(size).all(|bytes| bytes == first) {
        return None;
    }
    let mut one = Array::zeros(array.dtype(), &[]).ok()?;
    one.bytes_mut().copy_from_slice(first);
    Some(one)
}
