//! Sides: on which side of each change of a variable every node is that reads it; debug builds check it after each pass.
//!
//! Whatever a pass steps over or puts together, what came after a change comes after it still, and once a step is
//! ordered, what came before one comes before it. Absent: what decides on it (`order.rs`).

use super::fusion::{Fusion, Tiled};
use super::roots::Roots;
use super::step::{Origin, Partitioned, StepNode, StepNodeId, StepNodeKind};
use crate::graph::{NodeId, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// How many nodes are looked at, about; what is larger is checked in part.
const MOST_LOOKS: usize = 1 << 22;

/// By graph node that changes a variable: the graph nodes that read the variable after it and before it.
#[derive(Default, Debug)]
pub(super) struct Sides {
    after: BTreeMap<NodeId, BTreeSet<NodeId>>,
    before: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

/// By variable: who reads it, and who changes it.
#[derive(Default)]
struct Accesses {
    readers: BTreeMap<NodeId, BTreeSet<NodeId>>,
    writers: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl Accesses {
    /// Who changes variables that somebody reads, and who reads one of them.
    fn pairs(&self) -> BTreeMap<NodeId, BTreeSet<NodeId>> {
        let mut pairs: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
        for (variable, writers) in &self.writers {
            let readers = self.readers.get(variable).into_iter().flatten();
            for writer in writers {
                pairs.entry(*writer).or_default().extend(readers.clone().filter(|r| *r != writer));
            }
        }
        pairs.retain(|_, readers| !readers.is_empty());
        pairs
    }
}

impl Sides {
    /// Those of a step as its edges are.
    pub fn of(step: &Partitioned) -> Sides {
        let roots = Roots::find(step);
        let mut found = Accesses::default();
        for node in &step.nodes {
            let places = node.written_places();
            for (i, value) in node.inputs.iter().enumerate() {
                let Origin::Variable(variable) = step.value(roots.get(*value).0).origin else { continue };
                let of = if places.contains(&i) { &mut found.writers } else { &mut found.readers };
                of.entry(variable).or_default().extend(graph_nodes(node));
            }
        }
        let mut places = Places::of(step);
        let mut sides = Sides::default();
        for (writer, readers) in found.pairs() {
            let (mut after, mut before) = (readers.clone(), readers);
            places.keep_reached(&mut after, writer, true);
            places.keep_reached(&mut before, writer, false);
            if places.walk.is_tired() {
                break;
            }
            sides.after.insert(writer, after);
            sides.before.insert(writer, before);
        }
        sides
    }

    /// Those of the graph that a step is made of; only what comes after changes, since nothing in a graph says that the
    /// other reads come before them.
    pub fn of_graph(step: &Partitioned) -> Sides {
        let pruned = &step.pruned;
        let (mut found, mut after) = (Accesses::default(), vec![Vec::new(); pruned.nodes.len()]);
        for id in pruned.needed() {
            let node = pruned.node(id);
            let unfed = |t: &TensorId| pruned.signature.feed(*t).is_none();
            // What waits for no effect, such as for a shape alone, may come at any time.
            if pruned.has_effects(id) {
                let data = node.inputs.iter().filter(|t| unfed(t)).map(|t| t.node);
                data.chain(node.control_inputs.iter().copied())
                    .for_each(|before| after[before.index()].push(id.index()));
            }
            let places = node.op.written_inputs(&node.attrs, node.inputs.len());
            // The parts of a node that is split see the variables as they were.
            let is_split = node.op.split(&node.attrs, node.inputs.len(), &|_| 0).is_some();
            for (i, tensor) in node.inputs.iter().enumerate() {
                if unfed(tensor) && pruned.is_kept(id) && pruned.node(tensor.node).op.traits().variable {
                    match places.contains(&i) {
                        true => _ = found.writers.entry(tensor.node).or_default().insert(id),
                        false if is_split => {}
                        false => _ = found.readers.entry(tensor.node).or_default().insert(id),
                    }
                }
            }
        }
        let mut walk = Walk::new(after.len());
        let mut sides = Sides::default();
        for (writer, mut readers) in found.pairs() {
            walk.from(writer.index(), &after);
            if walk.is_tired() {
                break;
            }
            readers.retain(|r| walk.has_reached(r.index()));
            sides.after.insert(writer, readers);
        }
        sides
    }

    /// Checks that all of it holds of a step, for those that are in it.
    ///
    /// # Errors
    /// A reader that is on the other side of a change.
    pub fn check(&self, step: &Partitioned) -> Result<(), String> {
        let mut places = Places::of(step);
        for (sides, is_after) in [(&self.after, true), (&self.before, false)] {
            for (writer, readers) in sides {
                let mut kept = readers.clone();
                places.keep_reached(&mut kept, *writer, is_after);
                if let Some(lost) = readers.difference(&kept).find(|r| places.at.contains_key(r)) {
                    let [reader, writer] = [lost, writer].map(|id| &step.pruned.node(*id).name);
                    let was = if is_after { "after" } else { "before" };
                    return Err(format!("'{reader}' no longer comes {was} '{writer}', which changes what it reads"));
                }
            }
        }
        Ok(())
    }
}

/// The graph nodes that a step's node is, or that became one with it.
fn graph_nodes(node: &StepNode) -> Vec<NodeId> {
    match (&node.kind, node.fusion.as_deref()) {
        (StepNodeKind::Op, Some(Fusion::Chain(parts) | Fusion::Tiled(Tiled { parts, .. }))) => {
            parts.iter().map(|p| p.node).collect()
        }
        (StepNodeKind::Op, Some(Fusion::Epilogue { of: (product, adds), .. })) => {
            std::iter::once(*product).chain(*adds).collect()
        }
        (StepNodeKind::Op, Some(Fusion::Update { streams, .. })) => {
            let of_streams = streams.iter().flat_map(|s| &s.tiled.parts).map(|p| p.node);
            std::iter::once(node.node).chain(of_streams).collect()
        }
        (StepNodeKind::Op, None) => vec![node.node],
        // A read that keeps what it reads is itself; other snapshots, and copies, go by their readers.
        (StepNodeKind::Snapshot, _) if node.op.is_some() => vec![node.node],
        _ => Vec::new(),
    }
}

/// Where graph nodes are in a step, and what comes before and after.
struct Places {
    at: BTreeMap<NodeId, Vec<StepNodeId>>,
    before: Vec<Vec<usize>>,
    after: Vec<Vec<usize>>,
    walk: Walk,
}

impl Places {
    fn of(step: &Partitioned) -> Places {
        let count = step.nodes.len();
        let mut at: BTreeMap<NodeId, Vec<StepNodeId>> = BTreeMap::new();
        let (mut before, mut after) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (i, node) in step.nodes.iter().enumerate() {
            graph_nodes(node).into_iter().for_each(|id| at.entry(id).or_default().push(StepNodeId(i as u32)));
            for needed in step.needed_nodes(node) {
                before[i].push(needed.index());
                after[needed.index()].push(i);
            }
        }
        Places { at, before, after, walk: Walk::new(count) }
    }

    /// Keeps those that come after, or before, all of a graph node's nodes; all, once it takes too long to tell.
    fn keep_reached(&mut self, those: &mut BTreeSet<NodeId>, from: NodeId, is_after: bool) {
        let edges = if is_after { &self.after } else { &self.before };
        for start in self.at.get(&from).into_iter().flatten() {
            self.walk.from(start.index(), edges);
            let (walk, at) = (&self.walk, &self.at);
            let is_reached = |n: &StepNodeId| walk.has_reached(n.index());
            those.retain(|id| at.get(id).is_some_and(|nodes| nodes.iter().all(is_reached)));
        }
    }
}

/// Marks what can be reached, time and again.
struct Walk {
    marks: Vec<u32>,
    turn: u32,
    looks: usize,
}

impl Walk {
    fn new(count: usize) -> Walk {
        Walk { marks: vec![0; count], turn: 0, looks: 0 }
    }

    fn from(&mut self, start: usize, edges: &[Vec<usize>]) {
        self.turn += 1;
        let mut pending = vec![start];
        while let Some(at) = pending.pop().filter(|_| !self.is_tired()) {
            for &next in &edges[at] {
                self.looks += 1;
                if std::mem::replace(&mut self.marks[next], self.turn) != self.turn {
                    pending.push(next);
                }
            }
        }
    }

    fn is_tired(&self) -> bool {
        self.looks > MOST_LOOKS
    }

    fn has_reached(&self, at: usize) -> bool {
        self.is_tired() || self.marks[at] == self.turn
    }
}
