//! The view of a partitioned or scheduled step. What is no node there (fed tensors, constants, variables) gets a line of
//! its own, so that every input that is named is there; equal names on several devices are told apart by `@gpu:1`.

use super::constants::{describe_array, describe_briefly};
use super::memory::MemoryTable;
use super::stage::{NodeKind, NodeView, Stage, StageView, attrs, count, desc, edge};
use crate::device::{Lane, Machine};
use crate::plan::{Fetch, Origin, Partitioned, Region, Schedule, StepNode, StepNodeId, StepNodeKind, ValueId};
use std::collections::HashMap;

/// The view of a partitioned step; of a scheduled one where its schedule is given.
pub(super) fn step_nodes(step: &Partitioned, machine: &Machine, schedule: Option<&Schedule>) -> StageView {
    let view = StepView::new(step, machine);
    let mut positions = vec![0; step.nodes.len()];
    for sequence in schedule.iter().flat_map(|s| &s.sequences) {
        sequence.iter().enumerate().for_each(|(i, node)| positions[node.index()] = i);
    }
    let mut nodes: Vec<NodeView> = view.sources.iter().map(|v| view.source(*v)).collect();
    for (i, node) in step.nodes.iter().enumerate() {
        let mut line = view.node(StepNodeId(i as u32), node);
        if let Some(schedule) = schedule {
            line.notes.insert(0, ("order".into(), format!("#{}", positions[i])));
            view.note_schedule(schedule, i, &mut line.notes);
        }
        nodes.push(line);
    }
    let copies = step.copies().count();
    let bytes: usize = step.copies().map(|(_, c)| c.bytes).sum();
    let mut summary = vec![count(step.nodes.len()), format!("copies: {copies}, {bytes} bytes")];
    let sums = step.all_reduces().count();
    if sums > 0 {
        let bytes: usize = step.all_reduces().map(|(_, a)| a.bytes_per_device()).sum();
        summary.push(format!("all-reduces: {sums}, {bytes} bytes out of each device"));
    }
    for (i, phase) in schedule.iter().flat_map(|s| &s.phases).enumerate() {
        let (before, on, beside) = (phase.before.len(), phase.enqueued.len(), phase.beside.len());
        summary.push(format!("phase {i}: {before} on the host before, {on} on GPUs, {beside} on the host beside"));
    }
    for row in schedule.iter().flat_map(|s| MemoryTable::new(s, machine).devices) {
        summary.push(format!(
            "memory {}: variables {}, constants {}, compute {}, copies {}",
            row.device, row.variables, row.constants, row.compute, row.copies
        ));
    }
    for (tensor, fetch) in step.pruned.signature.fetches.iter().zip(&step.fetches) {
        let found = match fetch {
            Fetch::Value(value) => format!("in {}", view.reference(*value)),
            Fetch::Fed(_) => "fed".to_string(),
            Fetch::Known(value) => format!("known: {}", describe_array(value)),
        };
        summary.push(format!("fetch {}: {found}", step.tensor_name(*tensor)));
    }
    let stage = if schedule.is_some() { Stage::Scheduled } else { Stage::Partitioned };
    let passes = schedule.map_or(Vec::new(), |_| step.passes.clone());
    summary.extend(passes.iter().filter(|p| !p.changes.is_empty()).map(|p| format!("pass {}", p.summary())));
    StageView { stage, summary, passes, nodes }
}

struct StepView<'a> {
    step: &'a Partitioned,
    machine: &'a Machine,
    /// Values that no node computes, in their order.
    sources: Vec<ValueId>,
    source_names: HashMap<ValueId, String>,
    node_names: Vec<String>,
}

impl<'a> StepView<'a> {
    fn new(step: &'a Partitioned, machine: &'a Machine) -> StepView<'a> {
        let all = (0..step.values.len() as u32).map(ValueId);
        let sources: Vec<ValueId> = all.filter(|v| !matches!(step.value(*v).origin, Origin::Computed(_))).collect();
        let source = |v: &ValueId| {
            let value = step.value(*v);
            let name = step.tensor_name(value.tensor);
            (name.strip_suffix(":0").unwrap_or(&name).to_string(), value.device)
        };
        let plain: Vec<(String, _)> =
            sources.iter().map(source).chain(step.nodes.iter().map(|n| (n.name.to_string(), n.device))).collect();
        let mut uses: HashMap<&str, usize> = HashMap::new();
        plain.iter().for_each(|(name, _)| *uses.entry(name).or_default() += 1);
        let mut taken: HashMap<String, usize> = HashMap::new();
        let mut names = plain.iter().map(|(name, device)| {
            let name = if uses[&name[..]] == 1 { name.clone() } else { format!("{name}@{device}") };
            let times = taken.entry(name.clone()).or_default();
            *times += 1;
            if *times == 1 { name } else { format!("{name}#{times}") }
        });
        let source_names = sources.iter().copied().zip(names.by_ref()).collect();
        let node_names = names.collect();
        StepView { step, machine, sources, source_names, node_names }
    }

    /// How a value is named as an input.
    fn reference(&self, value: ValueId) -> String {
        match self.step.value(value).origin {
            Origin::Computed(node) => {
                let output = self.step.node(node).outputs.iter().position(|v| *v == value).unwrap_or(0);
                edge(&self.node_names[node.index()], output as u32)
            }
            _ => self.source_names.get(&value).cloned().unwrap_or_default(),
        }
    }

    fn source(&self, id: ValueId) -> NodeView {
        let value = self.step.value(id);
        let node = self.step.pruned.node(value.tensor.node);
        let mut notes = Vec::new();
        let (op, kind) = match &value.origin {
            Origin::Known(array) => {
                notes.push(("value".to_string(), describe_array(array)));
                ("Const", NodeKind::Constant(describe_briefly(array)))
            }
            Origin::Variable(_) => (node.op_type(), NodeKind::Variable),
            _ => ("Placeholder", NodeKind::Fed),
        };
        NodeView {
            name: self.source_names.get(&id).cloned().unwrap_or_default(),
            op: op.to_string(),
            kind,
            device: self.machine.device(value.device).short_name(),
            inputs: Vec::new(),
            controls: Vec::new(),
            outputs: vec![desc(&value.desc)],
            attrs: Vec::new(),
            notes,
        }
    }

    fn node(&self, id: StepNodeId, node: &StepNode) -> NodeView {
        let mut notes = Vec::new();
        if node.silent {
            notes.push(("runs".to_string(), "nothing".to_string()));
        }
        let (op, kind) = match &node.kind {
            StepNodeKind::Op => {
                let op = node.op.map_or("", |op| op.name());
                notes.extend(node.fusion.iter().map(|f| ("fused".to_string(), f.describe(op))));
                (op, NodeKind::Op)
            }
            StepNodeKind::Snapshot => ("Snapshot", NodeKind::Op),
            StepNodeKind::Commit => ("Commit", NodeKind::Op),
            StepNodeKind::AllReduce(sum) => {
                let devices: Vec<String> = sum.devices.iter().map(|d| self.machine.device(*d).short_name()).collect();
                let bytes = sum.bytes_per_device() as u64;
                notes.push(("devices".to_string(), devices.join(",")));
                notes.push(("bytes".to_string(), format!("{bytes}-each")));
                ("AllReduce", NodeKind::AllReduce { devices, bytes })
            }
            StepNodeKind::Copy(copy) => {
                let name = |device| self.machine.device(device).short_name();
                notes.push(("from".to_string(), name(copy.from)));
                notes.push(("bytes".to_string(), copy.bytes.to_string()));
                if copy.route == crate::plan::Route::ThroughHost {
                    notes.push(("route".to_string(), "through-host".to_string()));
                }
                ("Copy", NodeKind::Copy { from: name(copy.from), to: name(copy.to), bytes: copy.bytes as u64 })
            }
        };
        NodeView {
            name: self.node_names[id.index()].clone(),
            op: op.to_string(),
            kind,
            device: self.machine.device(node.device).short_name(),
            inputs: node.inputs.iter().map(|v| self.reference(*v)).collect(),
            controls: node.controls.iter().map(|c| self.node_names[c.index()].clone()).collect(),
            outputs: node.outputs.iter().map(|v| desc(&self.step.value(*v).desc)).collect(),
            attrs: attrs(&node.attrs),
            notes,
        }
    }

    /// The events around a node, and where its results live.
    fn note_schedule(&self, schedule: &Schedule, node: usize, notes: &mut Vec<(String, String)>) {
        let queue = schedule.queues[schedule.queue_of[node]];
        if queue.lane != Lane::Compute {
            notes.push(("queue".to_string(), queue.to_string().replace(' ', "-")));
        }
        let waits: Vec<String> = schedule.waits[node].iter().map(|e| format!("e{e}")).collect();
        if !waits.is_empty() {
            notes.push(("waits".to_string(), waits.join(",")));
        }
        if let Some(event) = schedule.signals[node] {
            notes.push(("signals".to_string(), format!("e{event}")));
        }
        let buffers: Vec<String> = (self.step.nodes[node].outputs.iter())
            .map(|&output| {
                let value = self.step.value(output);
                if let Some((of, at)) = value.alias_of {
                    return format!("alias:{}+{at}", self.reference(of));
                }
                let place = match schedule.memory.places[output.index()] {
                    Some((Region::Compute, at)) => format!("compute+{at}"),
                    Some((Region::Copy, at)) => format!("copies+{at}"),
                    None => "none".to_string(),
                };
                match schedule.memory.in_place_of[output.index()] {
                    Some(of) => format!("{place}={}", self.reference(of)),
                    None => place,
                }
            })
            .collect();
        if !buffers.is_empty() {
            notes.push(("buffers".to_string(), buffers.join(",")));
        }
    }
}
