//! Where variables and operations live: asked, given, and the rule that decided.

use super::tables::{csv, human_bytes, table};
use crate::base::DType;
use crate::device::Machine;
use crate::graph::{Graph, Node, NodeId};
use crate::plan::Placed;
use indexmap::IndexMap;
use serde::Serialize;

/// A variable and its device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VariableRow {
    /// Its name.
    pub name: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its element type, as in `float32`.
    pub dtype: String,
    /// Bytes of its value.
    pub bytes: u64,
    /// The device that it asked for, possibly partial; empty if none.
    pub requested: String,
    /// The device that it got, as in `/device:GPU:0`.
    pub device: String,
    /// The rule that decided.
    pub reason: String,
    /// True if soft placement moved it from what it asked for.
    pub soft: bool,
}

/// An operation and its device. One that is split by device has a row for each part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpRow {
    /// Its name.
    pub name: String,
    /// Its op type.
    pub op: String,
    /// The device that it asked for, possibly partial; empty if none.
    pub requested: String,
    /// The device that it got, as in `/device:GPU:0`.
    pub device: String,
    /// The rule that decided.
    pub reason: String,
    /// True if soft placement moved it from what it asked for.
    pub soft: bool,
}

/// What there is to say about all rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlacementSummary {
    /// Operations, variables among them, that soft placement moved.
    pub soft_moves: usize,
    /// Bytes of variables by device.
    pub variable_bytes: IndexMap<String, u64>,
}

/// Where the placed nodes of a graph live.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementTable {
    /// The variables, in the order of creation.
    pub variables: Vec<VariableRow>,
    /// All operations, variables among them, in the order of creation; empty if left out.
    pub ops: Vec<OpRow>,
    /// Soft moves, and bytes by device.
    pub summary: PlacementSummary,
}

impl PlacementTable {
    /// The table of the nodes that were placed: of a whole graph (`plan::place_all`) or of one step.
    pub fn new(graph: &Graph, placed: &Placed, machine: &Machine) -> PlacementTable {
        let mut summary = PlacementSummary { soft_moves: placed.soft_moves(), ..PlacementSummary::default() };
        let mut variables = Vec::new();
        for variable in graph.all_variables() {
            let Some(placement) = placed.get(variable.op().id()) else { continue };
            let shape = variable.shape().to_dims().unwrap_or_default().to_vec();
            let device = machine.device(placement.device).short_name();
            let bytes = bytes(&shape, variable.dtype());
            *summary.variable_bytes.entry(device.clone()).or_default() += bytes;
            variables.push(VariableRow {
                name: variable.name(),
                shape,
                dtype: variable.dtype().to_string(),
                bytes,
                requested: variable.device().to_string(),
                device,
                reason: placement.reason.to_string(),
                soft: placement.soft,
            });
        }
        summary
            .variable_bytes
            .sort_by_cached_key(|device, _| machine.devices().iter().position(|d| d.short_name() == *device));
        let nodes = graph.nodes();
        let ops =
            nodes.iter().flat_map(|node| op_rows(node, placed, machine, &|id| nodes[id.index()].name.to_string()));
        PlacementTable { variables, ops: ops.collect(), summary }
    }

    /// The same without the rows of operations.
    #[must_use]
    pub fn variables_only(mut self) -> PlacementTable {
        self.ops.clear();
        self
    }

    /// One line a variable, as the TensorFlow programs print them: `affine0/w: /device:CPU:0`.
    pub fn short(&self) -> String {
        self.variables.iter().map(|v| format!("{}: {}\n", v.name, v.device)).collect()
    }

    /// The tables and the summary, for people.
    pub fn text(&self) -> String {
        let number = ["bytes"];
        let mut text = table(&VARIABLE_HEADS, &number, self.variables.iter().map(VariableRow::fields));
        if !self.ops.is_empty() {
            text.push('\n');
            text.push_str(&table(&OP_HEADS, &number, self.ops.iter().map(OpRow::fields)));
        }
        text.push('\n');
        text.push_str(&self.summary.text());
        text
    }

    /// The variables as comma-separated values.
    pub fn variables_csv(&self) -> String {
        csv(&VARIABLE_HEADS, self.variables.iter().map(VariableRow::fields))
    }

    /// The operations as comma-separated values.
    pub fn ops_csv(&self) -> String {
        csv(&OP_HEADS, self.ops.iter().map(OpRow::fields))
    }
}

impl PlacementSummary {
    /// `variables: /device:CPU:0 1.2 MiB; soft placement moved nothing`, and a line end.
    pub fn text(&self) -> String {
        let bytes: Vec<String> = self.variable_bytes.iter().map(|(d, b)| format!("{d} {}", human_bytes(*b))).collect();
        let bytes = if bytes.is_empty() { "none".to_string() } else { bytes.join(", ") };
        let moves = match self.soft_moves {
            0 => "soft placement moved nothing".to_string(),
            1 => "soft placement moved 1 operation".to_string(),
            n => format!("soft placement moved {n} operations"),
        };
        format!("variables: {bytes}; {moves}\n")
    }
}

const VARIABLE_HEADS: [&str; 8] = ["variable", "shape", "dtype", "bytes", "asked", "given", "reason", "soft"];
const OP_HEADS: [&str; 6] = ["operation", "op", "asked", "given", "reason", "soft"];

fn soft_mark(soft: bool) -> String {
    if soft { "moved".into() } else { String::new() }
}

impl VariableRow {
    fn fields(&self) -> Vec<String> {
        let shape = format!("{:?}", self.shape);
        let (asked, given, reason) = (self.requested.clone(), self.device.clone(), self.reason.clone());
        let soft = soft_mark(self.soft);
        vec![self.name.clone(), shape, self.dtype.clone(), self.bytes.to_string(), asked, given, reason, soft]
    }
}

impl OpRow {
    fn fields(&self) -> Vec<String> {
        let (asked, given, reason) = (self.requested.clone(), self.device.clone(), self.reason.clone());
        vec![self.name.clone(), self.op.clone(), asked, given, reason, soft_mark(self.soft)]
    }
}

fn bytes(dims: &[usize], dtype: DType) -> u64 {
    dims.iter().fold(dtype.size() as u64, |n, &d| n.saturating_mul(d as u64))
}

/// The rows of one node: one, or one for each part where planning splits it by device.
fn op_rows(node: &Node, placed: &Placed, machine: &Machine, name_of: &dyn Fn(NodeId) -> String) -> Vec<OpRow> {
    let Some(placement) = placed.get(node.id) else { return Vec::new() };
    let row = OpRow {
        name: node.name.to_string(),
        op: node.op_type().to_string(),
        requested: node.device.spec.to_string(),
        device: machine.device(placement.device).short_name(),
        reason: placement.reason.to_string(),
        soft: placement.soft,
    };
    let device_of = |i: usize| placed.device(node.inputs[i].node);
    match node.op.split(&node.attrs, node.inputs.len(), &|i| device_of(i).0.into()) {
        None => vec![row],
        Some(parts) => (parts.iter())
            .map(|part| OpRow {
                device: machine.device(device_of(part.follows)).short_name(),
                reason: format!("split by device: with {}", name_of(node.inputs[part.follows].node)),
                soft: false,
                ..row.clone()
            })
            .collect(),
    }
}
