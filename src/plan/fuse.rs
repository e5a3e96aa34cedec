//! Fuse: chains of element-wise nodes on a CUDA GPU become one node, and a bias and ReLU become part of their product.
//!
//! A node is taken into the one that reads it where nothing else reads it or waits for it, so that it may as well run
//! at the reader's time. Invariant: every element of a chain is computed by the same operations as before, and nothing
//! that is fetched, changed, or can fail is touched. A product's bias and ReLU are cuBLASLt's, which sums in an order of
//! its own.

use super::fusion::{Fusion, Part};
use super::order::successors;
use super::step::{Fetch, Origin, Partitioned, StepNodeId, StepNodeKind, ValueId};
use super::sweep::compact;
use crate::device::cuda::{CudaMap, Operand};
use crate::device::{DeviceKind, Machine};
use crate::graph::{KernelContext, OpRef};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The most inputs of a fused node, and the most nodes in it: beyond these, registers run out.
const MOST: (usize, usize) = (16, 48);

/// Fuses what it can in an ordered step.
pub fn fuse(mut step: Partitioned, machine: &Machine) -> Partitioned {
    if !machine.is_cuda() {
        return step;
    }
    step.pass("fuse", true, |step, changes| fuse_all(step, machine, changes));
    step
}

fn fuse_all(step: &mut Partitioned, machine: &Machine, changes: &mut Vec<String>) {
    let (removed, after, fetched) = (vec![false; step.nodes.len()], successors(step, &[]), fetched(step));
    let mut fused = Fused { removed, after, fetched };
    // Products first: what an epilogue takes is gone for the chains.
    for i in 0..step.nodes.len() {
        fuse_epilogue(step, machine, StepNodeId(i as u32), &mut fused);
    }
    for i in (0..step.nodes.len()).rev() {
        fuse_chain(step, machine, StepNodeId(i as u32), &mut fused);
    }
    if fused.removed.contains(&true) {
        compact(step, &fused.removed);
    }
    let fusions = step.nodes.iter().filter(|n| n.fusion.is_some());
    changes.extend(fusions.map(|n| format!("'{}' does {}", n.name, step.what(n))));
}

/// What is known while nodes are fused.
struct Fused {
    /// The nodes that others have taken in.
    removed: Vec<bool>,
    /// Which nodes come after each: readers, and those that wait. Those that were taken in stay in the lists, beside
    /// the ones that took them.
    after: Vec<Vec<StepNodeId>>,
    /// The nodes whose outputs are fetched.
    fetched: Vec<bool>,
}

impl Fused {
    /// True if all that comes after a node is in the cluster.
    fn leads_only_into(&self, id: StepNodeId, cluster: &BTreeSet<StepNodeId>) -> bool {
        self.after[id.index()].iter().all(|s| cluster.contains(s) || self.removed[s.index()])
    }

    /// Notes that a node has taken the others of a cluster in, and now needs what they needed.
    fn took(&mut self, step: &Partitioned, cluster: &BTreeSet<StepNodeId>, root: StepNodeId) {
        for id in cluster.iter().filter(|id| **id != root) {
            self.removed[id.index()] = true;
        }
        for needed in step.needed_nodes(step.node(root)) {
            let after = &mut self.after[needed.index()];
            if !after.contains(&root) {
                after.push(root);
            }
        }
    }
}

fn on_cuda(step: &Partitioned, machine: &Machine, id: StepNodeId) -> bool {
    machine.device(step.node(id).device).kind == DeviceKind::Cuda
}

/// True for a node that computes every element of its one output alone.
fn is_map(step: &Partitioned, machine: &Machine, id: StepNodeId) -> bool {
    let node = step.node(id);
    let plain = matches!(node.kind, StepNodeKind::Op) && !node.silent && node.fusion.is_none();
    let Some(op) = node.op.filter(|_| plain && node.outputs.len() == 1 && on_cuda(step, machine, id)) else {
        return false;
    };
    node.written_places().is_empty()
        && step.with_kernel_context(step.node(id), |c| op.cuda_map(c)).is_some_and(|m| m.refuses.is_none())
}

/// True for a node at which nothing runs and whose one output is the whole of its one input.
pub(super) fn passes_on(step: &Partitioned, id: StepNodeId) -> bool {
    let node = step.node(id);
    let &[output] = &node.outputs[..] else { return false };
    let whole = |of: ValueId| step.value(of).desc.dims == step.value(output).desc.dims;
    node.silent && step.value(output).alias_of.is_some_and(|(of, at)| at == 0 && node.inputs[..] == [of] && whole(of))
}

/// By node: whether one of its outputs is fetched.
pub(super) fn fetched(step: &Partitioned) -> Vec<bool> {
    let mut fetched = vec![false; step.nodes.len()];
    for fetch in &step.fetches {
        if let Fetch::Value(value) = fetch
            && let Origin::Computed(by) = step.value(*value).origin
        {
            fetched[by.index()] = true;
        }
    }
    fetched
}

/// Takes into a node all that only leads to it.
fn fuse_chain(step: &mut Partitioned, machine: &Machine, root: StepNodeId, fused: &mut Fused) {
    if fused.removed[root.index()] || !is_map(step, machine, root) {
        return;
    }
    let dims = step.value(step.node(root).outputs[0]).desc.dims.clone();
    let device = step.node(root).device;
    let mut cluster: BTreeSet<StepNodeId> = BTreeSet::from([root]);
    let mut candidates: BTreeSet<StepNodeId> = step.needed_nodes(step.node(root)).collect();
    while let Some(id) = candidates.pop_last() {
        let node = step.node(id);
        let same_sizes = node.outputs.len() == 1 && step.value(node.outputs[0]).desc.dims == dims;
        let inside = node.device == device && fused.leads_only_into(id, &cluster);
        if fused.removed[id.index()] || !same_sizes || !inside || fused.fetched[id.index()] || cluster.len() >= MOST.1 {
            continue;
        }
        if is_map(step, machine, id) || passes_on(step, id) {
            let mut grown = cluster.clone();
            grown.insert(id);
            if inputs_of(step, &grown).len() <= MOST.0 {
                candidates.extend(step.needed_nodes(node).filter(|p| !grown.contains(p)));
                cluster = grown;
            }
        }
    }
    let computing = cluster.iter().filter(|id| !step.node(**id).silent).count();
    if computing < 2 {
        return;
    }
    let inputs = inputs_of(step, &cluster);
    let mut place: HashMap<ValueId, Operand> =
        inputs.iter().enumerate().map(|(i, v)| (*v, Operand::Input(i))).collect();
    let mut parts = Vec::new();
    for &id in &cluster {
        let node = step.node(id);
        if node.silent {
            let of = place[&node.inputs[0]];
            place.insert(node.outputs[0], of);
            continue;
        }
        let operands = node.inputs.iter().map(|v| place[v]).collect();
        let Some(op) = node.op else { continue };
        place.insert(node.outputs[0], Operand::Step(parts.len()));
        parts.push(Part::of(step, node, op, operands));
    }
    let controls = waits_of(step, &cluster);
    let node = &mut step.nodes[root.index()];
    node.inputs = inputs;
    node.controls = controls;
    node.fusion = Some(Arc::new(Fusion::Chain(parts)));
    fused.took(step, &cluster, root);
}

/// What a cluster reads from outside, each once.
fn inputs_of(step: &Partitioned, cluster: &BTreeSet<StepNodeId>) -> SmallVec<[ValueId; 4]> {
    let mut inputs: SmallVec<[ValueId; 4]> = SmallVec::new();
    let inside = |v: ValueId| matches!(step.value(v).origin, Origin::Computed(by) if cluster.contains(&by));
    for &value in cluster.iter().flat_map(|id| &step.node(*id).inputs) {
        if !inside(value) && !inputs.contains(&value) {
            inputs.push(value);
        }
    }
    inputs
}

/// What a cluster waits for outside.
fn waits_of(step: &Partitioned, cluster: &BTreeSet<StepNodeId>) -> SmallVec<[StepNodeId; 2]> {
    let all = cluster.iter().flat_map(|id| step.node(*id).controls.iter().copied());
    let mut controls: SmallVec<[StepNodeId; 2]> = all.filter(|c| !cluster.contains(c)).collect();
    controls.sort_unstable();
    controls.dedup();
    controls
}

/// What can be done to a product before it is stored.
enum Epilogue {
    /// Input `bias`, a vector, is added to every row of input `of`.
    Bias { of: usize, bias: usize },
    /// Negative elements of input 0 become 0.
    Relu,
}

/// What an element-wise op would be as the end of a product, if it can be that.
fn epilogue(op: OpRef, c: &KernelContext<'_>) -> Option<Epilogue> {
    let map = op.cuda_map(c)?;
    if map.expression == CudaMap::RELU {
        return Some(Epilogue::Relu);
    }
    let columns = *c.outputs[0].dims.last()?;
    let is_row = |i: usize| c.inputs[i].len() == columns && c.inputs[i].dims.last() == Some(&columns);
    let is_whole = |i: usize| c.inputs[i].dims == c.outputs[0].dims;
    let sums = map.expression == CudaMap::SUM && c.outputs[0].dims.len() == 2;
    [(0, 1), (1, 0)]
        .into_iter()
        .find(|&(of, bias)| sums && is_whole(of) && is_row(bias))
        .map(|(of, bias)| Epilogue::Bias { of, bias })
}

/// Takes what only follows a product into it: a bias, then a ReLU.
fn fuse_epilogue(step: &mut Partitioned, machine: &Machine, id: StepNodeId, fused: &mut Fused) {
    let product = step.node(id);
    let fuses = machine.device(product.device).cuda.as_ref().is_some_and(|c| c.has_cublaslt);
    let takes = product.op.is_some_and(|op| {
        fuses && !product.silent && step.with_kernel_context(step.node(id), |c| op.takes_epilogue(c))
    });
    if !takes || !matches!(product.kind, StepNodeKind::Op) || product.fusion.is_some() {
        return;
    }
    let (mut taken, mut last) = (vec![id], id);
    let (mut bias, mut adds, mut relu) = (None, None, false);
    while let &[next] = &fused.after[last.index()][..]
        && !fused.fetched[last.index()]
        && !relu
    {
        let node = step.node(next);
        let followed = step.node(last).outputs[0];
        if node.device == step.node(id).device && passes_on(step, next) {
            taken.push(next);
            last = next;
            continue;
        }
        let plain = matches!(node.kind, StepNodeKind::Op) && !node.silent && node.device == step.node(id).device;
        let Some(op) = node.op.filter(|_| plain) else { break };
        match step.with_kernel_context(step.node(next), |c| epilogue(op, c)) {
            Some(Epilogue::Bias { of, bias: by }) if bias.is_none() && node.inputs[of] == followed => {
                (bias, adds) = (Some(node.inputs[by]), Some(node.node));
            }
            Some(Epilogue::Relu) if node.inputs[0] == followed => relu = true,
            _ => break,
        }
        taken.push(next);
        last = next;
    }
    // What passes on at the end stays outside.
    while taken.len() > 1 && step.node(last).silent {
        taken.pop();
        last = taken[taken.len() - 1];
    }
    if bias.is_none() && !relu {
        return;
    }
    // The whole runs in the last one's place, whose output it makes.
    let cluster: BTreeSet<StepNodeId> = taken.iter().copied().collect();
    let controls = waits_of(step, &cluster);
    let product = step.node(id).clone();
    let mut inputs = product.inputs.clone();
    let bias = bias.map(|value| {
        inputs.push(value);
        inputs.len() - 1
    });
    let names: Vec<&'static str> = taken[1..]
        .iter()
        .filter_map(|t| step.node(*t).op.filter(|_| !step.node(*t).silent))
        .map(|o| o.name())
        .collect();
    let output = step.node(last).outputs.clone();
    step.nodes[last.index()] = super::step::StepNode {
        name: step.node(last).name.clone(),
        node: step.node(last).node,
        inputs,
        controls,
        outputs: output,
        fusion: Some(Arc::new(Fusion::Epilogue { bias, relu, of: (product.node, adds), names })),
        ..product
    };
    fused.took(step, &cluster, last);
}
