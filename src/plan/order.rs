//! The order of a step: who reads a variable before it changes, what must not fail afterwards, and one fixed sequence.
//!
//! A read that does not depend on a change sees the value from before it, always; the result of a change is the value
//! right after it, whatever changes follow. Where that cannot be had by order alone, a snapshot is kept.

use super::partition::unordered_writers;
use super::reach::Reach;
use super::roots::along_aliases;
use super::step::{Origin, Partitioned, StepNode, StepNodeId, StepNodeKind, Value, ValueId};
use crate::base::{Code, DType, Error, Result};
use crate::device::DeviceId;
use crate::graph::NodeId;
use indexmap::{IndexMap, IndexSet};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

type Edges = Vec<(StepNodeId, StepNodeId)>;

/// Adds the edges that variables ask for, and sorts the nodes so that every edge points forward.
pub(super) fn order(p: &mut Partitioned) -> Result<()> {
    let accesses = Accesses::find(p);
    let successors = successors(p, &[]);
    let reach = Reach::new(accesses.changes_that_matter(p), &successors);
    check_writers(p, &accesses, &reach)?;
    note_initialisation(p, &accesses, &reach);

    let mut kept = BTreeSet::new();
    let mut extra = Edges::new();
    for access in &accesses.reads {
        for writer in accesses.writers_of(access.variable) {
            if !reach.is_after(access.reader, writer) && access.reader != writer {
                extra.push((access.reader, writer));
                continue;
            }
            // It reads after the change. If what it reads is older, that has to be kept.
            let newer = match access.taken {
                Taken::By(taker) => taker != writer && !reach.is_after(taker, writer),
                Taken::FromResultOf(first, _) => first != writer && reach.is_after(writer, first),
                Taken::ByTheReader => access.reader == writer,
            };
            if newer {
                kept.insert(access.keeper());
            }
        }
    }
    if !kept.is_empty() {
        keep(p, &kept);
        return order(p);
    }
    add_commit(p, &accesses, &reach, &mut extra);
    match sorted(p, &extra) {
        Some(sequence) => {
            let changed: BTreeSet<StepNodeId> = extra.iter().map(|(_, after)| *after).collect();
            let controls = |after: StepNodeId| p.node(after).controls.iter().map(move |before| (*before, after));
            let mut known: HashSet<(StepNodeId, StepNodeId)> = changed.into_iter().flat_map(controls).collect();
            extra.retain(|edge| known.insert(*edge));
            extra.iter().for_each(|(before, after)| p.nodes[after.index()].controls.push(*before));
            permute(p, &sequence);
            Ok(())
        }
        None => {
            // Reads and changes of several variables wait for each other in a ring; snapshots undo it.
            let is_snapshot = |a: &&Access| matches!(p.nodes[a.reader.index()].kind, StepNodeKind::Snapshot);
            let all: BTreeSet<Keeper> = accesses.reads.iter().filter(|a| !is_snapshot(a)).map(Access::keeper).collect();
            if all.is_empty() {
                return Err(Error::new(Code::InvalidArgument, "the step's nodes wait for each other in a ring"));
            }
            keep(p, &all);
            order(p)
        }
    }
}

/// One node that reads a variable's buffer.
struct Access {
    variable: NodeId,
    reader: StepNodeId,
    /// The value that it reads.
    value: ValueId,
    taken: Taken,
}

/// Of which time the value is that a node reads.
#[derive(Clone, Copy)]
enum Taken {
    /// When this node's turn came, such as the variable's `read`.
    By(StepNodeId),
    /// Right after this change, whose result is this value.
    FromResultOf(StepNodeId, ValueId),
    /// When the reader's own turn comes: it reads the buffer itself.
    ByTheReader,
}

/// What keeps a value: a node that becomes a snapshot, a snapshot of a result, a snapshot before one reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Keeper {
    Taker(StepNodeId),
    Result(ValueId),
    Before(StepNodeId, ValueId),
}

impl Access {
    fn keeper(&self) -> Keeper {
        match self.taken {
            Taken::By(taker) => Keeper::Taker(taker),
            Taken::FromResultOf(_, value) => Keeper::Result(value),
            Taken::ByTheReader => Keeper::Before(self.reader, self.value),
        }
    }
}

struct Accesses {
    reads: Vec<Access>,
    writers: IndexMap<NodeId, SmallVec<[StepNodeId; 1]>>,
}

impl Accesses {
    fn find(p: &Partitioned) -> Accesses {
        let mut found = Accesses { reads: Vec::new(), writers: IndexMap::new() };
        let taken = taken(p);
        for (i, node) in p.nodes.iter().enumerate() {
            let id = StepNodeId(i as u32);
            let written = node.written();
            for value in &written {
                if let Some((variable, _)) = taken[value.index()] {
                    found.writers.entry(variable).or_default().push(id);
                }
            }
            if node.silent {
                continue;
            }
            for value in read_only(node) {
                if let Some((variable, taken)) = taken[value.index()] {
                    found.reads.push(Access { variable, reader: id, value, taken });
                }
            }
        }
        found
    }

    /// The writers of each variable that must be ordered: with others, with readers, or with what can fail.
    fn changes_that_matter<'a>(&'a self, p: &Partitioned) -> impl Iterator<Item = &'a [StepNodeId]> {
        let read: HashSet<NodeId> = self.reads.iter().map(|a| a.variable).collect();
        let can_fail = p.nodes.iter().any(|n| can_fail(p, n));
        let matters = move |variable, writers: &[StepNodeId]| writers.len() > 1 || read.contains(variable) || can_fail;
        self.writers.iter().filter(move |(variable, writers)| matters(*variable, writers)).map(|(_, w)| &w[..])
    }

    fn writers_of(&self, variable: NodeId) -> impl Iterator<Item = StepNodeId> {
        self.writers.get(&variable).into_iter().flatten().copied()
    }
}

/// The inputs that a node reads and does not write.
fn read_only(node: &StepNode) -> impl Iterator<Item = ValueId> + '_ {
    let mut written: SmallVec<[bool; 8]> = SmallVec::from_elem(false, node.inputs.len());
    node.written_places().into_iter().for_each(|i| written[i] = true);
    node.inputs.iter().zip(written).filter(|(_, written)| !written).map(|(value, _)| *value)
}

/// By value: the variable in whose buffer it lies, if it does, and of which time it is.
fn taken(p: &Partitioned) -> Vec<Option<(NodeId, Taken)>> {
    let of_base = |id: ValueId| match p.value(id).origin {
        Origin::Variable(variable) => Some((variable, Taken::ByTheReader)),
        _ => None,
    };
    along_aliases(p, of_base, |id, _, below: &Option<(NodeId, Taken)>| {
        let (variable, before) = (*below)?;
        let taken = match (&p.value(id).origin, before) {
            (Origin::Computed(node), _) if !p.node(*node).written().is_empty() => Taken::FromResultOf(*node, id),
            (Origin::Computed(node), Taken::ByTheReader) => Taken::By(*node),
            _ => before,
        };
        Some((variable, taken))
    })
}

/// Which nodes come after each: readers, those that wait, and those that further edges say.
pub(super) fn successors(p: &Partitioned, extra: &[(StepNodeId, StepNodeId)]) -> Vec<Vec<StepNodeId>> {
    let mut successors = vec![Vec::new(); p.nodes.len()];
    for (i, node) in p.nodes.iter().enumerate() {
        p.needed_nodes(node).for_each(|needed| successors[needed.index()].push(StepNodeId(i as u32)));
    }
    for (before, after) in extra {
        successors[before.index()].push(*after);
    }
    successors
}

fn check_writers(p: &Partitioned, accesses: &Accesses, reach: &Reach) -> Result<()> {
    for (variable, writers) in &accesses.writers {
        let in_order = reach.in_order(writers);
        if in_order.windows(2).all(|pair| reach.is_after(pair[1], pair[0])) {
            continue;
        }
        for (i, &a) in writers.iter().enumerate() {
            for &b in &writers[i + 1..] {
                if a != b && !reach.is_after(b, a) && !reach.is_after(a, b) {
                    return Err(unordered_writers(p, *variable, &p.nodes[a.index()], &p.nodes[b.index()]));
                }
            }
        }
    }
    Ok(())
}

fn note_initialisation(p: &mut Partitioned, accesses: &Accesses, reach: &Reach) {
    // What is guarded may be left out.
    let overwrites = |n: StepNodeId| {
        let node = &p.nodes[n.index()];
        node.guards.is_empty() && node.op.is_some_and(|op| op.traits().overwrites)
    };
    let mut needs = IndexSet::new();
    let mut sets = IndexSet::new();
    let setters: HashMap<NodeId, Vec<StepNodeId>> = (accesses.writers.iter())
        .map(|(variable, writers)| (*variable, writers.iter().copied().filter(|w| overwrites(*w)).collect()))
        .collect();
    let is_set_before = |variable: NodeId, node: StepNodeId| {
        setters.get(&variable).into_iter().flatten().any(|w| *w != node && reach.is_after(node, *w))
    };
    for access in &accesses.reads {
        let taken = match access.taken {
            Taken::By(taker) => taker,
            Taken::FromResultOf(change, _) => change,
            Taken::ByTheReader => access.reader,
        };
        if !is_set_before(access.variable, access.reader)
            || !is_set_before(access.variable, taken) && !overwrites(taken)
        {
            needs.insert(access.variable);
        }
    }
    for (&variable, writers) in &accesses.writers {
        for &writer in writers {
            if overwrites(writer) {
                sets.insert(variable);
            } else if !is_set_before(variable, writer) {
                needs.insert(variable);
            }
        }
    }
    p.needs_initialized = needs.into_iter().collect();
    p.initializes = sets.into_iter().collect();
}

fn keep(p: &mut Partitioned, keepers: &BTreeSet<Keeper>) {
    for &keeper in keepers {
        match keeper {
            Keeper::Taker(taker) => keep_taken(p, taker),
            Keeper::Result(result) => {
                let copy = add_snapshot(p, result, SmallVec::new());
                let own = p.nodes.len() - 1;
                for node in &mut p.nodes[..own] {
                    node.inputs.iter_mut().filter(|v| **v == result).for_each(|v| *v = copy);
                }
                for value in &mut p.values {
                    if let Some((of, _)) = value.alias_of.as_mut().filter(|(of, _)| *of == result) {
                        *of = copy;
                    }
                }
            }
            Keeper::Before(reader, value) => {
                keep_before(p, reader, value);
            }
        }
    }
}

/// Keeps what a node takes that passes variables' bytes on. One that passes on a whole becomes the snapshot itself;
/// otherwise the whole is kept right before it.
fn keep_taken(p: &mut Partitioned, taker: StepNodeId) {
    let node = &mut p.nodes[taker.index()];
    let output = node.outputs[0];
    let value = &mut p.values[output.index()];
    if node.outputs.len() == 1 && value.alias_of == Some((node.inputs[0], 0)) {
        node.kind = StepNodeKind::Snapshot;
        node.silent = false;
        value.alias_of = None;
        return;
    }
    let mut taken: SmallVec<[ValueId; 2]> =
        node.outputs.iter().filter_map(|v| p.values[v.index()].alias_of).map(|(of, _)| of).collect();
    taken.sort_unstable();
    taken.dedup();
    let outputs = node.outputs.clone();
    for value in taken.into_iter().filter(|v| p.variable(*v).is_some()).collect::<Vec<_>>() {
        let copy = keep_before(p, taker, value);
        for output in &outputs {
            if let Some((of, _)) = p.values[output.index()].alias_of.as_mut().filter(|(of, _)| *of == value) {
                *of = copy;
            }
        }
    }
}

/// Keeps a value right before the turn of a node that reads it, which reads what is kept instead.
fn keep_before(p: &mut Partitioned, reader: StepNodeId, value: ValueId) -> ValueId {
    let node = &p.nodes[reader.index()];
    let producers = node.inputs.iter().filter_map(|v| match p.value(*v).origin {
        Origin::Computed(producer) => Some(producer),
        _ => None,
    });
    let before: SmallVec<[StepNodeId; 2]> = node.controls.iter().copied().chain(producers).collect();
    let places = node.written_places();
    let copy = add_snapshot(p, value, before);
    for (i, input) in p.nodes[reader.index()].inputs.iter_mut().enumerate() {
        if *input == value && !places.contains(&i) {
            *input = copy;
        }
    }
    copy
}

/// A node that copies a value where it is, after these nodes; gives the copy.
fn add_snapshot(p: &mut Partitioned, value: ValueId, controls: SmallVec<[StepNodeId; 2]>) -> ValueId {
    let (id, copy) = (StepNodeId(p.nodes.len() as u32), ValueId(p.values.len() as u32));
    let source = p.value(value).clone();
    p.nodes.push(StepNode {
        kind: StepNodeKind::Snapshot,
        name: format!("keep/{}", p.tensor_name(source.tensor)).into(),
        node: source.tensor.node,
        op: None,
        attrs: Arc::default(),
        device: source.device,
        inputs: smallvec::smallvec![value],
        controls,
        outputs: smallvec::smallvec![copy],
        silent: false,
        guards: SmallVec::new(),
        fusion: None,
    });
    p.values.push(Value { origin: Origin::Computed(id), alias_of: None, ..source });
    copy
}

fn can_fail(p: &Partitioned, node: &StepNode) -> bool {
    let outputs: SmallVec<[DType; 2]> = node.outputs.iter().map(|v| p.value(*v).desc.dtype).collect();
    let op = node.op.filter(|_| !node.silent && matches!(node.kind, StepNodeKind::Op));
    op.is_some_and(|op| op.can_fail(&node.attrs, &outputs))
}

/// Makes every change of a variable wait for all that can still fail, and notes what must be put back otherwise.
fn add_commit(p: &mut Partitioned, accesses: &Accesses, reach: &Reach, extra: &mut Edges) {
    let writers: BTreeSet<StepNodeId> = accesses.writers.values().flatten().copied().collect();
    let fallible: Vec<StepNodeId> =
        (0..p.nodes.len() as u32).map(StepNodeId).filter(|n| can_fail(p, &p.nodes[n.index()])).collect();
    if writers.is_empty() || fallible.is_empty() {
        return;
    }
    // A change that fails before it writes leaves nothing to put back, unless another change may have run already. So
    // the one change that can fail goes first, where it may.
    let checks_first = |n: StepNodeId| p.node(n).op.is_some_and(|op| op.traits().checks_before_writing);
    let waits_for_change = |n: StepNodeId| {
        let mut before = extra.iter().filter(|(_, after)| *after == n).map(|(before, _)| *before);
        before.any(|b| writers.contains(&b) || reach.is_after_any(b))
    };
    let failing: Vec<StepNodeId> = fallible.iter().copied().filter(|n| writers.contains(n)).collect();
    let first = match failing[..] {
        [n] if checks_first(n) && !reach.is_after_any(n) => Some(n).filter(|n| !waits_for_change(*n)),
        _ => None,
    };
    let leaves_changes =
        |n: StepNodeId| writers.contains(&n) && first != Some(n) && (writers.len() > 1 || !checks_first(n));
    if fallible.iter().any(|&n| reach.is_after_any(n) || leaves_changes(n)) {
        p.undo = accesses.writers.keys().copied().collect();
    }
    if let Some(first) = first {
        let others = writers.iter().copied().filter(|w| *w != first && !reach.is_after(*w, first));
        extra.extend(others.map(|w| (first, w)));
    }
    let before: Vec<StepNodeId> =
        fallible.into_iter().filter(|&n| !reach.is_after_any(n) && !writers.contains(&n)).collect();
    if before.is_empty() {
        return;
    }
    let commit = StepNodeId(p.nodes.len() as u32);
    p.nodes.push(StepNode {
        kind: StepNodeKind::Commit,
        name: "commit".into(),
        node: p.nodes[before[0].index()].node,
        op: None,
        attrs: Arc::default(),
        device: DeviceId::HOST,
        inputs: SmallVec::new(),
        controls: before.into(),
        outputs: SmallVec::new(),
        silent: true,
        guards: SmallVec::new(),
        fusion: None,
    });
    extra.extend(writers.into_iter().map(|w| (commit, w)));
}

/// A sequence in which every edge points forward: by the number of device changes on the way, so that no device waits
/// for another's late result before it has handed out its own early ones; then by how much the other device has to do
/// before its part is there, so that what is there early, such as the last layers' gradients, moves while the rest is
/// computed; then by creation. `None` for a ring.
pub(super) fn sorted(p: &Partitioned, extra: &[(StepNodeId, StepNodeId)]) -> Option<Vec<StepNodeId>> {
    let successors = successors(p, extra);
    let mut waiting = vec![0u32; p.nodes.len()];
    successors.iter().flatten().for_each(|s| waiting[s.index()] += 1);
    // By node: device changes, and how many nodes run before what was handed over last on the device that made it.
    let mut turns = vec![(0u32, 0u32); p.nodes.len()];
    let mut on_device: HashMap<DeviceId, u32> = HashMap::new();
    let ids = (0..p.nodes.len() as u32).map(StepNodeId);
    let mut ready: BinaryHeap<Reverse<((u32, u32), StepNodeId)>> =
        ids.filter(|n| waiting[n.index()] == 0).map(|n| Reverse(((0, 0), n))).collect();
    let mut sequence = Vec::with_capacity(p.nodes.len());
    while let Some(Reverse(((hops, since), node))) = ready.pop() {
        sequence.push(node);
        let done = on_device.entry(p.nodes[node.index()].device).or_default();
        *done += u32::from(!p.nodes[node.index()].silent && !p.nodes[node.index()].is_transfer());
        let done = *done;
        for &next in &successors[node.index()] {
            let (from, to) = (&p.nodes[node.index()], &p.nodes[next.index()]);
            // An all-reduce ends on all its devices.
            let crosses = to.is_transfer() || from.all_reduce().is_none() && from.device != to.device;
            let turn = &mut turns[next.index()];
            *turn = (*turn).max(if crosses { (hops + 1, done) } else { (hops, since) });
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.push(Reverse((*turn, next)));
            }
        }
    }
    (sequence.len() == p.nodes.len()).then_some(sequence)
}

/// Puts the nodes in another order.
pub(super) fn permute(p: &mut Partitioned, sequence: &[StepNodeId]) {
    let mut place = vec![StepNodeId(0); sequence.len()];
    for (new, old) in sequence.iter().enumerate() {
        place[old.index()] = StepNodeId(new as u32);
    }
    let mut nodes: Vec<Option<StepNode>> = std::mem::take(&mut p.nodes).into_iter().map(Some).collect();
    p.nodes = sequence.iter().filter_map(|old| nodes[old.index()].take()).collect();
    for node in &mut p.nodes {
        node.controls.iter_mut().for_each(|c| *c = place[c.index()]);
    }
    for value in &mut p.values {
        if let Origin::Computed(node) = &mut value.origin {
            *node = place[node.index()];
        }
    }
}
