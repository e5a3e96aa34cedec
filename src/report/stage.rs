//! One view of every stage of a plan, from the built graph to the schedule: nodes with names, devices, inputs and notes.
//! The text and dot forms are written from it.
//!
//! Edges are written as GraphDef writes them: `a` for output 0, `b:1` for output 1, `^d` for control inputs.

use super::constants::{describe_array, describe_briefly};
use super::step_view::step_nodes;
use crate::base::{Error, Result, nearest};
use crate::device::Machine;
use crate::graph::{Attr, Attrs, Fact, Node, NodeId, TensorDesc, TensorId};
use crate::plan::{PassReport, Placed, Pruned, Schedule};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A stage of planning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The graph as the program built it.
    Built,
    /// What one step needs.
    Pruned,
    /// With devices.
    Placed,
    /// With the copies between devices.
    Partitioned,
    /// With each device's order, events and memory.
    Scheduled,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Stage; 5] = [Stage::Built, Stage::Pruned, Stage::Placed, Stage::Partitioned, Stage::Scheduled];

    /// The stage's name, as in `scheduled`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Built => "built",
            Stage::Pruned => "pruned",
            Stage::Placed => "placed",
            Stage::Partitioned => "partitioned",
            Stage::Scheduled => "scheduled",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Stage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Stage> {
        Stage::ALL.into_iter().find(|s| s.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Stage::ALL.iter().map(|s| s.name()).collect();
            let near = nearest(text, names.iter().copied()).map_or(String::new(), |n| format!("; did you mean '{n}'?"));
            Error::invalid(format!("'{text}' is no stage; want {}{near}", names.join(", ")))
        })
    }
}

/// What a node of a view is.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// An operation.
    Op,
    /// A variable's buffer.
    Variable,
    /// A constant; its value in short.
    Constant(String),
    /// A fed tensor.
    Fed,
    /// A copy that planning put in.
    Copy {
        /// The device that has the tensor.
        from: String,
        /// The device that gets it.
        to: String,
        /// Bytes moved.
        bytes: u64,
    },
    /// A sum over GPUs that planning made one NCCL call of.
    AllReduce {
        /// The devices that give a part each and get the whole.
        devices: Vec<String>,
        /// Bytes that each of them sends.
        bytes: u64,
    },
}

/// A node of a view.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NodeView {
    /// Its name; no other node of the view has it.
    pub name: String,
    /// Its op type, or what planning made it for.
    pub op: String,
    /// What it is.
    pub kind: NodeKind,
    /// The device: asked for until placed, given from then on. Empty if none was asked for.
    pub device: String,
    /// The data inputs: `a`, or `b:1` for an output other than 0.
    pub inputs: Vec<String>,
    /// The nodes that it waits for, by name.
    pub controls: Vec<String>,
    /// Type and shape of each output.
    pub outputs: Vec<String>,
    /// The attributes, names with values as text.
    pub attrs: Vec<(String, String)>,
    /// What the stage found out: names with values.
    pub notes: Vec<(String, String)>,
}

/// A stage, ready to be written as text or dot.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageView {
    /// The stage.
    pub stage: Stage,
    /// Lines about the whole stage.
    pub summary: Vec<String>,
    /// What passes did to the step, in order; of the stages before them none.
    pub passes: Vec<PassReport>,
    /// The nodes, every one after those that it reads.
    pub nodes: Vec<NodeView>,
}

impl StageView {
    /// The graph as it was built, or that a plan was made from.
    pub fn built(nodes: &[Arc<Node>]) -> StageView {
        let view = |n: &Arc<Node>| graph_node(n, nodes, |i| fact(&n.outputs[i]));
        let summary = vec![count(nodes.len())];
        StageView { stage: Stage::Built, summary, passes: Vec::new(), nodes: nodes.iter().map(view).collect() }
    }

    /// What a step needs, with its shapes.
    pub fn pruned(pruned: &Pruned) -> StageView {
        let summary = vec![
            format!("{} of {}", count(needed(pruned).len()), pruned.nodes.len()),
            format!("{} computed while planning", pruned.folded),
        ];
        StageView { stage: Stage::Pruned, summary, passes: Vec::new(), nodes: needed_views(pruned) }
    }

    /// What a step needs, on its devices.
    pub fn placed(pruned: &Pruned, placed: &Placed, machine: &Machine) -> StageView {
        let mut nodes = needed_views(pruned);
        for (view, id) in nodes.iter_mut().zip(needed(pruned)) {
            let Some(placement) = placed.get(id) else { continue };
            let asked = std::mem::replace(&mut view.device, machine.device(placement.device).short_name());
            if !asked.is_empty() && asked != view.device {
                view.notes.push(("asked".into(), asked));
            }
            view.notes.push(("reason".into(), format!("{:?}", placement.reason)));
            if placement.soft {
                view.notes.push(("soft".into(), "moved".into()));
            }
        }
        let summary = vec![count(nodes.len()), format!("{} moved by soft placement", placed.soft_moves())];
        StageView { stage: Stage::Placed, summary, passes: Vec::new(), nodes }
    }

    /// Adds every change that passes made to the summary.
    pub fn with_changes(mut self) -> StageView {
        for pass in &self.passes {
            self.summary.extend(pass.changes.iter().map(|change| format!("{}: {change}", pass.name)));
        }
        self
    }

    /// Any stage of the plan that ended in this schedule.
    pub fn of(schedule: &Schedule, machine: &Machine, stage: Stage) -> StageView {
        let step = &schedule.step;
        match stage {
            Stage::Built => StageView::built(&step.pruned.nodes),
            Stage::Pruned => StageView::pruned(&step.pruned),
            Stage::Placed => StageView::placed(&step.pruned, &step.placed, machine),
            Stage::Partitioned => step_nodes(step, machine, None),
            Stage::Scheduled => step_nodes(step, machine, Some(schedule)),
        }
    }
}

pub(super) fn count(nodes: usize) -> String {
    if nodes == 1 { "1 node".into() } else { format!("{nodes} nodes") }
}

/// The kept nodes, and the placeholders and constants that feed them.
fn needed(pruned: &Pruned) -> Vec<NodeId> {
    let mut all: Vec<NodeId> = pruned.kept.clone();
    for id in &pruned.kept {
        all.extend(pruned.node(*id).inputs.iter().map(|t| t.node));
    }
    all.extend(pruned.signature.fetches.iter().map(|t| t.node));
    all.sort_unstable();
    all.dedup();
    all
}

fn needed_views(pruned: &Pruned) -> Vec<NodeView> {
    let view = |id: NodeId| {
        let node = pruned.node(id);
        let tensor = |i: usize| TensorId { node: id, output: i as u32 };
        let mut view = graph_node(node, &pruned.nodes, |i| desc(&pruned.desc(tensor(i))));
        let fed = (0..node.outputs.len()).any(|i| pruned.signature.feed(tensor(i)).is_some());
        if fed {
            view.kind = NodeKind::Fed;
        }
        if fed || !pruned.is_kept(id) {
            // It does not run, so it reads nothing.
            view.inputs.clear();
            view.controls.clear();
        } else {
            let kept = |c: &NodeId| pruned.node(*c).name.to_string();
            view.controls = pruned.control_inputs(node).iter().map(kept).collect();
        }
        if let (false, false, NodeKind::Op, Some(value)) = (fed, pruned.is_kept(id), &view.kind, known(pruned, id)) {
            view.notes.push(("known".into(), describe_array(&value)));
            view.kind = NodeKind::Constant(describe_briefly(&value));
        }
        view
    };
    needed(pruned).into_iter().map(view).collect()
}

fn known(pruned: &Pruned, id: NodeId) -> Option<Arc<crate::base::Array>> {
    (!pruned.node(id).outputs.is_empty()).then(|| pruned.value(TensorId { node: id, output: 0 }).cloned())?
}

fn graph_node(node: &Node, nodes: &[Arc<Node>], output: impl Fn(usize) -> String) -> NodeView {
    let kind = match node.op.constant(&node.attrs) {
        Some(value) => NodeKind::Constant(describe_briefly(value)),
        None if node.op.traits().variable => NodeKind::Variable,
        None => NodeKind::Op,
    };
    NodeView {
        name: node.name.to_string(),
        op: node.op_type().to_string(),
        kind,
        device: node.device.spec.to_string(),
        inputs: node.inputs.iter().map(|t| edge(&nodes[t.node.index()].name, t.output)).collect(),
        controls: node.control_inputs.iter().map(|c| nodes[c.index()].name.to_string()).collect(),
        outputs: (0..node.outputs.len()).map(output).collect(),
        attrs: attrs(&node.attrs),
        notes: Vec::new(),
    }
}

/// An input as GraphDef writes it.
pub(super) fn edge(name: &str, output: u32) -> String {
    if output == 0 { name.to_string() } else { format!("{name}:{output}") }
}

pub(super) fn attrs(attrs: &Attrs) -> Vec<(String, String)> {
    let text = |value: &Attr| match value {
        Attr::Tensor(array) => describe_array(array),
        other => format!("{other:?}"),
    };
    attrs.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

fn fact(fact: &Fact) -> String {
    format!("{}{}", fact.dtype, fact.shape)
}

pub(super) fn desc(desc: &TensorDesc) -> String {
    format!("{}{:?}", desc.dtype, &desc.dims[..])
}
