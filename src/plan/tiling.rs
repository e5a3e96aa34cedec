//! Tiling: on the host and on simulated GPUs, a product by rows, element-wise ops and reductions become one node, which
//! runs on small tiles while they are in the first caches.
//!
//! Where products of matrices and convolutions take several passes over memory for a bias, a ReLU, its gradient and a bias's
//! gradient, tiles take none. Absent: CUDA (`fuse.rs`), and machines with CUDA GPUs, whose host takes turns with them. Invariant: every element
//! is computed by the same kernels as before; a reduction's result may be rounded differently, since its tiles are reduced
//! first, but depends on sizes alone. Nothing becomes one node that would have to wait for itself.

use super::fuse::{fetched, passes_on};
use super::fusion::{Fusion, Part, Tiled, reduction};
use super::order::{permute, sorted, successors};
use super::step::{Origin, Partitioned, StepNode, StepNodeId, StepNodeKind, ValueId};
use super::sweep::compact;
use super::updates;
use crate::base::{Code, Dims, Error, Result};
use crate::device::cuda::Operand;
use crate::device::{Machine, TILE};
use crate::graph::TensorDesc;
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The most inputs of a fused node, and the most nodes in it.
pub(super) const MOST: (usize, usize) = (24, 48);
/// The most elements of a row: a tile is a row at least, and has to stay in the caches.
const MOST_COLUMNS: usize = 1 << 14;
/// How many nodes are looked at to find out whether a node waits for a cluster.
const MOST_LOOKS: usize = 256;

/// Fuses what it can in an ordered step: first what updates compute their gradients from, then the rest.
///
/// # Errors
/// A fault of this pass: nodes that would wait for each other.
pub fn tile(mut step: Partitioned, machine: &Machine) -> Result<Partitioned> {
    if machine.is_cuda() {
        return Ok(step);
    }
    step.pass("update", true, updates::stream);
    let mut done = Ok(());
    step.pass("tile", true, |step, changes| done = tile_all(step, changes));
    done.map(|()| step)
}

fn tile_all(step: &mut Partitioned, changes: &mut Vec<String>) -> Result<()> {
    let mut pass = Pass::new(step);
    let all = (0..step.nodes.len() as u32).map(StepNodeId);
    // Products first, so that what follows one is not gone for a chain that began earlier.
    let (mut seeds, maps): (Vec<_>, Vec<_>) =
        all.filter(|id| !pass.is_reduction(*id)).partition(|id| pass.is_product(*id));
    seeds.extend(maps);
    let mut clusters = Vec::new();
    for seed in seeds {
        if let Some(cluster) = pass.grow(step, seed) {
            pass.take(&cluster);
            clusters.push(cluster);
        }
    }
    if clusters.is_empty() {
        return Ok(());
    }
    let mut removed = vec![false; step.nodes.len()];
    for cluster in &clusters {
        pass.contract(step, cluster, &mut removed);
    }
    let root_of: HashMap<StepNodeId, StepNodeId> =
        clusters.iter().flat_map(|c| c.members.iter().map(|m| (*m, c.root()))).collect();
    for node in &mut step.nodes {
        node.controls.iter_mut().for_each(|c| *c = root_of.get(c).copied().unwrap_or(*c));
        let mut seen = BTreeSet::new();
        node.controls.retain(|c| seen.insert(*c));
    }
    compact(step, &removed);
    let sequence = sorted(step, &[])
        .ok_or_else(|| Error::new(Code::Internal, "nodes that were fused wait for each other; turn fusion off"))?;
    permute(step, &sequence);
    let fusions = step.nodes.iter().filter(|n| matches!(n.fusion.as_deref(), Some(Fusion::Tiled(_))));
    changes.extend(fusions.map(|n| format!("'{}' does {}", n.name, step.what(n))));
    Ok(())
}

/// What a node can be in a tiled node.
enum Kind {
    /// It computes every element of its output alone.
    Map,
    /// It reduces its input 0 over the marked axes.
    Reduce(SmallVec<[bool; 8]>),
    /// It is a product by rows; this is how many there are. Its leading axes count them, or runs of them.
    Product(usize),
}

/// What becomes one node.
struct Cluster {
    members: BTreeSet<StepNodeId>,
    /// Nodes at which nothing runs that only lead from member to member.
    inside: BTreeSet<StepNodeId>,
    /// The members in the order in which they run: a product, which waits for no other, first.
    order: Vec<StepNodeId>,
    dims: Dims,
    row_axes: usize,
    /// Members whose results are read outside, or nowhere: whole tensors first, of them the last one, then results of reductions.
    made: Vec<StepNodeId>,
    product_in: Option<usize>,
}

impl Cluster {
    /// The member in whose place the whole runs: the last of the step.
    fn root(&self) -> StepNodeId {
        self.members.last().copied().unwrap_or(self.order[0])
    }
}

struct Pass {
    kinds: Vec<Option<Kind>>,
    after: Vec<Vec<StepNodeId>>,
    /// By node: whether its output is fetched.
    fetched: Vec<bool>,
    /// By node: the cluster that it is in.
    owner: Vec<Option<usize>>,
    taken: Vec<BTreeSet<StepNodeId>>,
}

impl Pass {
    fn new(step: &Partitioned) -> Pass {
        let count = step.nodes.len();
        let kinds = step.nodes.iter().map(|n| kind(step, n)).collect();
        let (after, fetched) = (successors(step, &[]), fetched(step));
        Pass { kinds, after, fetched, owner: vec![None; count], taken: Vec::new() }
    }

    fn kind(&self, id: StepNodeId) -> Option<&Kind> {
        self.kinds[id.index()].as_ref()
    }

    fn is_reduction(&self, id: StepNodeId) -> bool {
        matches!(self.kind(id), Some(Kind::Reduce(_)))
    }

    fn is_product(&self, id: StepNodeId) -> bool {
        matches!(self.kind(id), Some(Kind::Product(_)))
    }

    /// The sizes that a node of this kind has in common with what it is fused with.
    fn dims<'a>(&self, step: &'a Partitioned, id: StepNodeId) -> &'a Dims {
        let node = step.node(id);
        let value = if self.is_reduction(id) { node.inputs[0] } else { node.outputs[0] };
        &step.value(value).desc.dims
    }

    fn take(&mut self, cluster: &Cluster) {
        for member in &cluster.members {
            self.owner[member.index()] = Some(self.taken.len());
        }
        self.taken.push(cluster.members.clone());
    }

    /// The cluster that begins with a node, if it is worth it.
    fn grow(&self, step: &Partitioned, seed: StepNodeId) -> Option<Cluster> {
        self.kind(seed).filter(|_| self.owner[seed.index()].is_none())?;
        let dims = self.dims(step, seed).clone();
        // One tile is in the first caches whatever is done, and a kernel of its own is the cheapest way to run an op.
        if dims.iter().product::<usize>() <= TILE {
            return None;
        }
        let mut members = BTreeSet::from([seed]);
        let mut row_axes = self.row_axes(step, &members, &dims)?;
        let mut frontier = BTreeSet::new();
        self.readers(step, seed, &mut frontier);
        while let Some(next) = frontier.pop_first() {
            let joins = !members.contains(&next)
                && members.len() < MOST.1
                && self.owner[next.index()].is_none()
                && matches!(self.kind(next), Some(Kind::Map | Kind::Reduce(_)))
                && step.node(next).device == step.node(seed).device
                && *self.dims(step, next) == dims
                && !self.waits_for(step, next, &members);
            if !joins {
                continue;
            }
            let mut grown = members.clone();
            grown.insert(next);
            self.add_what_leads_in(step, next, &mut grown, &dims);
            let Some(axes) = self.row_axes(step, &grown, &dims) else { continue };
            if inputs_of(step, &grown).len() > MOST.0 {
                continue;
            }
            for new in grown.difference(&members) {
                self.readers(step, *new, &mut frontier);
            }
            (members, row_axes) = (grown, axes);
        }
        if members.len() < 2 {
            return None;
        }
        self.close(step, seed, members, dims, row_axes)
    }

    /// The nodes that read a node's result, also through nodes that pass it on.
    fn readers(&self, step: &Partitioned, id: StepNodeId, into: &mut BTreeSet<StepNodeId>) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let output = step.node(id).outputs[0];
            for &next in &self.after[id.index()] {
                if !step.node(next).inputs.contains(&output) {
                    continue;
                }
                if passes_on(step, next) {
                    pending.push(next);
                } else {
                    into.insert(next);
                }
            }
        }
    }

    /// Adds element-wise nodes of the same sizes that lead nowhere but into the cluster.
    fn add_what_leads_in(&self, step: &Partitioned, id: StepNodeId, members: &mut BTreeSet<StepNodeId>, dims: &Dims) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            for needed in step.needed_nodes(step.node(id)) {
                let joins = !members.contains(&needed)
                    && members.len() < MOST.1
                    && self.owner[needed.index()].is_none()
                    && matches!(self.kind(needed), Some(Kind::Map))
                    && step.node(needed).device == step.node(id).device
                    && *self.dims(step, needed) == *dims
                    && !self.fetched[needed.index()]
                    && self.after[needed.index()].iter().all(|s| members.contains(s) && !self.is_product(*s));
                if joins {
                    members.insert(needed);
                    pending.push(needed);
                }
            }
        }
    }

    /// True if a node waits for a member in a way that leads through nodes outside, or if that cannot be told soon.
    fn waits_for(&self, step: &Partitioned, id: StepNodeId, members: &BTreeSet<StepNodeId>) -> bool {
        let Some(&first) = members.first() else { return false };
        let mut seen = BTreeSet::new();
        // With each node, whether the way to it has led outside.
        let mut pending: Vec<(StepNodeId, bool)> = vec![(id, false)];
        while let Some((at, outside)) = pending.pop() {
            let node = step.node(at);
            let data = node.inputs.iter().filter_map(|v| Some((step.producer(*v)?, outside)));
            for (needed, outside) in data.chain(node.controls.iter().map(|c| (*c, true))) {
                if members.contains(&needed) {
                    if outside && at != id {
                        return true;
                    }
                    continue;
                }
                let owner = self.owner[needed.index()];
                if needed < first && owner.is_none() || !seen.insert((needed, outside)) {
                    continue;
                }
                if seen.len() > MOST_LOOKS {
                    return true;
                }
                // A node that passes a member's result on, and waits for nothing else, is inside.
                let passes = passes_on(step, needed) && step.node(needed).controls.is_empty();
                pending.push((needed, outside || !passes));
                if let Some(owner) = owner {
                    pending.extend(self.taken[owner].iter().map(|m| (*m, true)));
                }
            }
        }
        false
    }

    /// How many leading axes can count rows: all that every operand has in full, or not at all.
    fn row_axes(&self, step: &Partitioned, members: &BTreeSet<StepNodeId>, dims: &Dims) -> Option<usize> {
        let fits = |axes: usize| {
            // What reduces rows has no result before the last tile, nor has what is then spread along rows.
            let is_there = |value: ValueId, shared: bool| {
                let by = Self::source(step, members, value).and_then(|by| self.kind(by));
                !matches!(by, Some(Kind::Reduce(reduced)) if shared || reduced[..axes].contains(&true))
            };
            members.iter().all(|id| match self.kind(*id) {
                Some(Kind::Map) => step.node(*id).inputs.iter().all(|v| {
                    operand(&step.value(*v).desc.dims, dims, axes).is_some_and(|(_, shared)| is_there(*v, shared))
                }),
                Some(Kind::Reduce(reduced)) => {
                    reduced[..axes].iter().all(|r| *r == reduced[0]) && is_there(step.node(*id).inputs[0], false)
                }
                Some(Kind::Product(rows)) => axes < dims.len() && rows.is_multiple_of(dims[..axes].iter().product()),
                None => false,
            })
        };
        let axes = (1..=dims.len()).rev().find(|axes| fits(*axes))?;
        (dims[axes..].iter().product::<usize>() <= MOST_COLUMNS).then_some(axes)
    }

    /// What the cluster makes, if it can be one node.
    fn close(
        &self,
        step: &Partitioned,
        seed: StepNodeId,
        members: BTreeSet<StepNodeId>,
        dims: Dims,
        row_axes: usize,
    ) -> Option<Cluster> {
        let inside = self.inside(step, &members);
        let stays = |id: &StepNodeId| !members.contains(id) && !inside.contains(id);
        let reads = |s: &StepNodeId, id: StepNodeId| step.node(*s).inputs.contains(&step.node(id).outputs[0]);
        let is_read_outside = |id: StepNodeId| self.after[id.index()].iter().any(|s| stays(s) && reads(s, id));
        // What nobody reads was asked for as an op, and has a buffer as well.
        let is_read_inside = |id: StepNodeId| members.iter().any(|m| !operands_from(step, *m, id).is_empty());
        let is_made = |id: StepNodeId| self.fetched[id.index()] || is_read_outside(id) || !is_read_inside(id);
        let mut made: Vec<StepNodeId> = members.iter().copied().filter(|m| is_made(*m)).collect();
        made.sort_by_key(|m| (self.is_reduction(*m), std::cmp::Reverse(*m)));
        let mut order: Vec<StepNodeId> = members.iter().copied().collect();
        let mut product_in = None;
        if self.is_product(seed) {
            order.sort_by_key(|m| (*m != seed, *m));
            // A product that is read outside has a buffer of its own.
            let own = made.iter().position(|m| *m == seed);
            let lent = || made.iter().position(|m| self.takes_place(step, *m, seed, &members));
            product_in = Some(own.or_else(lent)?);
        }
        Some(Cluster { members, inside, order, dims, row_axes, made, product_in })
    }

    /// True if a product may be computed where this member's result will be: the member is whole, and the last to read
    /// the product, element by element.
    fn takes_place(
        &self,
        step: &Partitioned,
        member: StepNodeId,
        product: StepNodeId,
        members: &BTreeSet<StepNodeId>,
    ) -> bool {
        let dtype = |id: StepNodeId| step.value(step.node(id).outputs[0]).desc.dtype;
        let in_place = step.node(member).op.map_or(&[][..], |op| op.traits().in_place);
        let mut later = members.iter().filter(|m| **m > member);
        !self.is_reduction(member)
            && dtype(member) == dtype(product)
            && operands_from(step, member, product).iter().all(|i| in_place.contains(i))
            && later.all(|m| operands_from(step, *m, product).is_empty())
    }

    /// Nodes at which nothing runs that lead from members to members alone.
    fn inside(&self, step: &Partitioned, members: &BTreeSet<StepNodeId>) -> BTreeSet<StepNodeId> {
        let mut found = Vec::new();
        let mut pending: Vec<StepNodeId> = members.iter().copied().collect();
        while let Some(id) = pending.pop() {
            let passing = self.after[id.index()].iter().filter(|s| passes_on(step, **s));
            for &next in passing.filter(|s| step.node(**s).controls.is_empty() && !members.contains(s)) {
                found.push(next);
                pending.push(next);
            }
        }
        let mut inside: BTreeSet<StepNodeId> = found.into_iter().filter(|s| !self.fetched[s.index()]).collect();
        loop {
            let leads_out =
                |s: &&StepNodeId| self.after[s.index()].iter().any(|a| !members.contains(a) && !inside.contains(a));
            let Some(out) = inside.iter().find(leads_out).copied() else { return inside };
            inside.remove(&out);
        }
    }

    /// The member whose result a value is, seen through nodes that pass it on.
    fn source(step: &Partitioned, members: &BTreeSet<StepNodeId>, mut value: ValueId) -> Option<StepNodeId> {
        loop {
            let by = step.producer(value)?;
            if members.contains(&by) {
                return Some(by);
            }
            if !passes_on(step, by) || !step.node(by).controls.is_empty() {
                return None;
            }
            value = step.node(by).inputs[0];
        }
    }

    /// Puts one node in the place of a cluster's last.
    fn contract(&self, step: &mut Partitioned, cluster: &Cluster, removed: &mut [bool]) {
        let Cluster { members, order, .. } = cluster;
        let number = |id: StepNodeId| order.iter().position(|o| *o == id).unwrap_or(0);
        let mut inputs: SmallVec<[ValueId; 4]> = SmallVec::new();
        let mut parts = Vec::new();
        for &id in order {
            let node = step.node(id);
            let Some(op) = node.op else { continue };
            let read = if self.is_reduction(id) { &node.inputs[..1] } else { &node.inputs[..] };
            let operands = read.iter().map(|&value| match Self::source(step, members, value) {
                Some(by) => Operand::Step(number(by)),
                None => Operand::Input(inputs.iter().position(|v| *v == value).unwrap_or_else(|| {
                    inputs.push(value);
                    inputs.len() - 1
                })),
            });
            let operands = operands.collect();
            parts.push(Part::of(step, node, op, operands));
        }
        let gone = |id: &StepNodeId| members.contains(id) || cluster.inside.contains(id);
        let mut controls: SmallVec<[StepNodeId; 2]> =
            order.iter().flat_map(|id| step.node(*id).controls.iter().copied()).filter(|c| !gone(c)).collect();
        controls.sort_unstable();
        controls.dedup();
        // It is named after what it makes first; one whose results nobody reads ends in its last member.
        let root = cluster.root();
        let named = step.node(cluster.made.first().copied().unwrap_or(root)).clone();
        let outputs: SmallVec<[ValueId; 1]> = cluster.made.iter().map(|m| step.node(*m).outputs[0]).collect();
        for output in &outputs {
            step.values[output.index()].origin = Origin::Computed(root);
        }
        let tiled = Tiled {
            parts,
            dims: cluster.dims.clone(),
            row_axes: cluster.row_axes,
            product_in: cluster.product_in,
            outputs: cluster.made.iter().map(|m| number(*m)).collect(),
        };
        let fusion = Some(Arc::new(Fusion::Tiled(tiled)));
        step.nodes[root.index()] = StepNode { inputs, controls, outputs, fusion, ..named };
        members.iter().chain(&cluster.inside).filter(|m| **m != root).for_each(|m| removed[m.index()] = true);
    }
}

/// What a node can be in a tiled node, if anything.
fn kind(step: &Partitioned, node: &StepNode) -> Option<Kind> {
    let plain = matches!(node.kind, StepNodeKind::Op) && !node.silent && node.guards.is_empty();
    let op = node.op.filter(|_| plain && node.fusion.is_none() && node.outputs.len() == 1)?;
    let output = &step.value(node.outputs[0]).desc;
    if output.is_empty() || !node.written().is_empty() || op.can_fail(&node.attrs, &[output.dtype]) {
        return None;
    }
    step.with_kernel_context(node, |c| {
        if op.cuda_map(c).is_some_and(|m| m.refuses.is_none()) {
            return Some(Kind::Map);
        }
        let reduction = reduction(op, c).filter(|_| c.inputs[0].dtype == c.outputs[0].dtype);
        reduction.map(|r| Kind::Reduce(r.axes)).or_else(|| op.row_kernel(c).map(|k| Kind::Product(k.cut.rows)))
    })
}

/// Which inputs of a node are another's result, also through nodes that pass it on.
fn operands_from(step: &Partitioned, reader: StepNodeId, of: StepNodeId) -> SmallVec<[usize; 2]> {
    let one = BTreeSet::from([of]);
    let inputs = step.node(reader).inputs.iter().enumerate();
    inputs.filter(|(_, v)| Pass::source(step, &one, **v) == Some(of)).map(|(i, _)| i).collect()
}

/// What a fused node would read, each once.
fn inputs_of(step: &Partitioned, members: &BTreeSet<StepNodeId>) -> BTreeSet<ValueId> {
    let all = members.iter().flat_map(|id| step.node(*id).inputs.iter().copied());
    all.filter(|v| Pass::source(step, members, *v).is_none()).collect()
}

/// True for a node that computes every element of its output alone.
pub(super) fn is_map(step: &Partitioned, node: &StepNode) -> bool {
    matches!(kind(step, node), Some(Kind::Map))
}

/// How an operand meets tiles that are cut after `axes` axes of `dims`: the sizes of its rest, and whether all tiles share
/// it. `None` if it has some of these axes and not others.
pub(super) fn operand(own: &Dims, dims: &Dims, axes: usize) -> Option<(Dims, bool)> {
    let missing = dims.len().checked_sub(own.len())?;
    let own_rows = axes.saturating_sub(missing).min(own.len());
    let (rows, rest) = own.split_at(own_rows);
    let is_whole = missing == 0 && rows == &dims[..axes];
    (is_whole || rows.iter().all(|d| *d == 1)).then(|| (rest.into(), !is_whole))
}

/// Type and sizes of a tile of `rows` rows, and whether all tiles share it.
pub(crate) fn tile_desc(whole: &TensorDesc, dims: &Dims, axes: usize, rows: usize) -> Option<(TensorDesc, bool)> {
    let (rest, shared) = operand(&whole.dims, dims, axes)?;
    let has_rows = whole.dims.len() + axes > dims.len();
    let lead = if shared { 1 } else { rows };
    let dims = if has_rows { std::iter::once(lead).chain(rest).collect() } else { rest };
    Some((TensorDesc { dtype: whole.dtype, dims }, shared))
}
