//! Passes: what makes a planned step cheaper, the report of each, and the check after it.
//!
//! A pass changes nodes and values of a [`Partitioned`] step and says, line by line, which. Invariant: after every pass
//! each value has one producer that comes before its readers, sizes and devices agree, fetches and written variables are
//! what they were, and their readers on the same side of each change; debug builds check it. Absent: what the passes do, which is in their own modules.

use super::fusion::{Fusion, Part, Streamed, Tiled};
use super::sides::Sides;
use super::step::{Fetch, Origin, Partitioned, StepNode, StepNodeId, StepNodeKind, ValueId};
use super::tiling::tile_desc;
use crate::base::Shape;
use crate::device::cuda::Operand;
use crate::graph::{Fact, InferContext, NodeId, TensorDesc};
use serde::Serialize;
use std::collections::BTreeSet;

/// What a pass did to a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PassReport {
    /// The pass, as in `fuse`.
    pub name: &'static str,
    /// Nodes of the step before it.
    pub nodes_before: usize,
    /// Nodes of the step after it.
    pub nodes_after: usize,
    /// Each change, naming the nodes.
    pub changes: Vec<String>,
}

impl PassReport {
    /// The report in a line, as in `fuse: 43 → 37 nodes, 3 changes`.
    pub fn summary(&self) -> String {
        let changes =
            if self.changes.len() == 1 { "1 change".into() } else { format!("{} changes", self.changes.len()) };
        format!("{}: {} → {} nodes, {changes}", self.name, self.nodes_before, self.nodes_after)
    }
}

impl Partitioned {
    /// Runs a pass over the step and keeps its report. Debug builds check the step afterwards; one that is `ordered` has
    /// its nodes in an order in which every edge points forward.
    pub(super) fn pass(
        &mut self,
        name: &'static str,
        ordered: bool,
        work: impl FnOnce(&mut Partitioned, &mut Vec<String>),
    ) {
        let promises = cfg!(debug_assertions).then(|| Promises::of(self, ordered));
        let nodes_before = self.nodes.len();
        let mut changes = Vec::new();
        work(self, &mut changes);
        if let Some(promises) = promises {
            let kept = promises.check(self).and_then(|()| check(self, ordered));
            debug_assert_eq!(kept, Ok(()), "after the pass '{name}'");
        }
        self.passes.push(PassReport { name, nodes_before, nodes_after: self.nodes.len(), changes });
    }
}

/// What a step promises its caller, and no pass may change.
struct Promises {
    fetches: Vec<Option<TensorDesc>>,
    written: BTreeSet<NodeId>,
    sides: Sides,
}

impl Promises {
    fn of(step: &Partitioned, ordered: bool) -> Promises {
        let (fetches, written) = Promises::asked(step);
        // What comes before a change is not said before a step is ordered.
        let sides = if ordered { Sides::of(step) } else { Sides::of_graph(step) };
        Promises { fetches, written, sides }
    }

    /// Type and sizes of the fetches, and the variables that change.
    fn asked(step: &Partitioned) -> (Vec<Option<TensorDesc>>, BTreeSet<NodeId>) {
        let fetch = |fetch: &Fetch| match fetch {
            Fetch::Value(value) => Some(step.value(*value).desc.clone()),
            _ => None,
        };
        let written = step.nodes.iter().flat_map(|n| n.written()).filter_map(|v| step.variable(v));
        (step.fetches.iter().map(fetch).collect(), written.collect())
    }

    fn check(&self, step: &Partitioned) -> Result<(), String> {
        let (fetches, written) = Promises::asked(step);
        if fetches != self.fetches {
            return Err(format!("fetches changed: want {:?}, got {fetches:?}", self.fetches));
        }
        if written != self.written {
            return Err(format!("written variables changed: want {:?}, got {written:?}", self.written));
        }
        self.sides.check(step)
    }
}

/// Checks a step by itself: producers, order, sizes, devices.
///
/// # Errors
/// The first thing that is wrong, with the node.
pub(super) fn check(step: &Partitioned, ordered: bool) -> Result<(), String> {
    let mut made = vec![false; step.values.len()];
    for (i, node) in step.nodes.iter().enumerate() {
        let id = StepNodeId(i as u32);
        for &output in &node.outputs {
            if std::mem::replace(&mut made[output.index()], true) {
                return Err(format!("'{}' makes a value that another node makes", node.name));
            }
            if !matches!(step.value(output).origin, Origin::Computed(by) if by == id) {
                return Err(format!("'{}' makes a value that is said to come from elsewhere", node.name));
            }
        }
        if let Some(late) = step.needed_nodes(node).find(|p| p.index() >= step.nodes.len() || ordered && *p >= id) {
            return Err(format!(
                "'{}' (node {i}) needs node {}, which does not come before it",
                node.name,
                late.index()
            ));
        }
        check_devices(step, node)?;
        check_sizes(step, node)?;
        let fused = match node.fusion.as_deref() {
            Some(Fusion::Tiled(tiled)) => check_tiled(step, node, tiled),
            Some(Fusion::Update { op_inputs, streams }) => {
                streams.iter().try_for_each(|stream| check_stream(step, node, *op_inputs, stream))
            }
            _ => Ok(()),
        };
        fused.map_err(|e| format!("'{}' ({}): {e}", node.name, step.what(node)))?;
    }
    let orphan = |v: &ValueId| matches!(step.value(*v).origin, Origin::Computed(_)) && !made[v.index()];
    let read = step.nodes.iter().flat_map(|n| &n.inputs).copied();
    let fetched = step.fetches.iter().filter_map(|f| match f {
        Fetch::Value(value) => Some(*value),
        _ => None,
    });
    match read.chain(fetched).find(orphan) {
        Some(value) => Err(format!("nothing makes '{}'", step.tensor_name(step.value(value).tensor))),
        None => Ok(()),
    }
}

fn check_devices(step: &Partitioned, node: &StepNode) -> Result<(), String> {
    if node.is_transfer() {
        return Ok(());
    }
    let elsewhere = |v: &&ValueId| step.value(**v).device != node.device;
    match node.inputs.iter().chain(&node.outputs).find(elsewhere) {
        None => Ok(()),
        Some(value) => {
            let value = step.value(*value);
            let tensor = step.tensor_name(value.tensor);
            Err(format!("'{}' is on {}, its '{tensor}' on {}", node.name, node.device, value.device))
        }
    }
}

/// Checks aliases against what they lie in, and outputs against the op's shape rule.
fn check_sizes(step: &Partitioned, node: &StepNode) -> Result<(), String> {
    for &output in &node.outputs {
        let value = step.value(output);
        if let Some((of, at)) = value.alias_of
            && at + value.desc.bytes() > step.value(of).desc.bytes()
        {
            let (has, bytes) = (step.value(of).desc.bytes(), value.desc.bytes());
            return Err(format!("'{}' passes on {bytes} bytes from byte {at} of {has}", node.name));
        }
    }
    let op = node.op.filter(|op| matches!(node.kind, StepNodeKind::Op) && node.fusion.is_none() && !op.is_unknown());
    let Some(op) = op else { return Ok(()) };
    let fact = |v: &ValueId| Fact::new(step.value(*v).desc.dtype, Shape::known(&step.value(*v).desc.dims));
    let inputs: Vec<Fact> = node.op_inputs().iter().map(fact).collect();
    let values: Vec<_> = node.op_inputs().iter().map(|v| step.value(*v).known().cloned()).collect();
    let found = op.infer(&InferContext { attrs: &node.attrs, inputs: &inputs, values: &values });
    let found = found.map_err(|e| format!("'{}' ({}): {e}", node.name, op.name()))?;
    for (want, output) in found.iter().zip(&node.outputs) {
        let got = &step.value(*output).desc;
        if want.dtype != got.dtype || want.shape.merge(&Shape::known(&got.dims)).is_none() {
            let got = Shape::known(&got.dims);
            return Err(format!("'{}' ({}) makes {}, its value has {got}", node.name, op.name(), want.shape));
        }
    }
    Ok(())
}

/// Checks that a part's operands are there before it, and have the types and sizes that it goes by.
fn check_operands(step: &Partitioned, node: &StepNode, parts: &[Part], i: usize) -> Result<(), String> {
    for (operand, want) in parts[i].operands.iter().zip(&parts[i].inputs) {
        let there = match operand {
            Operand::Input(at) => node.inputs.get(*at).map(|v| &step.value(*v).desc),
            Operand::Step(of) => parts.get(*of).filter(|_| *of < i).map(|p| &p.output),
        };
        if there != Some(want) {
            return Err(format!("part {i} reads what is not there, or has other sizes"));
        }
    }
    Ok(())
}

/// Checks that an update computes an input of its op's from what is there, and that all of it leads to that.
fn check_stream(step: &Partitioned, node: &StepNode, op_inputs: usize, stream: &Streamed) -> Result<(), String> {
    let parts = &stream.tiled.parts;
    (0..parts.len()).try_for_each(|i| check_operands(step, node, parts, i))?;
    let unread = |i: usize| !parts[i + 1..].iter().any(|p| p.operands.contains(&Operand::Step(i)));
    if let Some(i) = (0..parts.len().saturating_sub(1)).find(|i| unread(*i)) {
        return Err(format!("part {i} of what makes its input {} is read by nobody", stream.place));
    }
    let place = node.inputs.get(stream.place).filter(|_| stream.place < op_inputs);
    match (place, parts.last()) {
        (Some(value), Some(last)) if step.value(*value).desc == last.output => Ok(()),
        _ => Err(format!("what makes its input {} has other sizes", stream.place)),
    }
}

/// Checks that what became one node has a place for every result, and reads nothing before it is there.
fn check_tiled(step: &Partitioned, node: &StepNode, tiled: &Tiled) -> Result<(), String> {
    let Tiled { parts, dims, row_axes, product_in, outputs } = tiled;
    let refuse = |i: usize, what: &str| Err(format!("part {i} {what}"));
    if node.outputs.len() != outputs.len() || outputs.iter().any(|o| *o >= parts.len()) {
        return Err("its outputs are not its parts' results".into());
    }
    for (value, of) in node.outputs.iter().zip(outputs) {
        if step.value(*value).desc != parts[*of].output {
            return refuse(*of, "makes an output of other sizes");
        }
    }
    let is_row_reduction = |i: usize| parts[i].reduction().is_some_and(|r| r.axes[..*row_axes].contains(&true));
    for (i, part) in parts.iter().enumerate() {
        check_operands(step, node, parts, i)?;
        for (operand, want) in part.operands.iter().zip(&part.inputs) {
            let Operand::Step(of) = *operand else { continue };
            let spreads = parts[of].reduction().is_some()
                && part.reduction().is_none()
                && tile_desc(want, dims, *row_axes, 1).is_none_or(|(_, shared)| shared);
            if is_row_reduction(of) || spreads {
                return refuse(i, "reads a sum before the last tile");
            }
        }
        let is_read = parts[i + 1..].iter().any(|p| p.operands.contains(&Operand::Step(i)));
        if !outputs.contains(&i) && (is_row_reduction(i) || !is_read) {
            return refuse(i, "has no place for its result");
        }
        if part.op.traits().product && (i > 0 || product_in.is_none()) {
            return refuse(i, "is a product without a buffer");
        }
    }
    match product_in {
        Some(at) if outputs.get(*at).is_none() => Err("its product is in an output that is not there".into()),
        Some(at) if outputs.iter().position(|o| *o == 0).is_some_and(|own| own != *at) => {
            refuse(0, "is made, and computed elsewhere")
        }
        _ => Ok(()),
    }
}
