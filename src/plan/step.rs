//! The nodes and values of one step: what partitioning makes and everything after it reads.
//!
//! Invariant: a node's inputs are all on its own device, but for a copy's, which are where the tensor is, and an
//! all-reduce's, which are one on each of its devices, as are its outputs.

use super::fusion::{Fusion, Part, Tiled};
use super::passes::PassReport;
use super::place::Placed;
use super::prune::Pruned;
use crate::base::Array;
use crate::device::DeviceId;
use crate::device::cuda::Operand;
use crate::graph::{Attrs, KernelContext, NodeId, OpRef, TensorDesc, TensorId};
use smallvec::SmallVec;
use std::sync::Arc;

/// A node of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StepNodeId(pub u32);

/// A buffer's worth of data in a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ValueId(pub u32);

impl StepNodeId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a value's bytes come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A node of the step computes it.
    Computed(StepNodeId),
    /// Fed: which of the signature's feeds.
    Fed(usize),
    /// Known when planned, and laid down with the plan.
    Known(Arc<Array>),
    /// The buffer of this variable.
    Variable(NodeId),
}

/// A value: a tensor on one device.
#[derive(Clone, Debug)]
pub struct Value {
    /// The tensor.
    pub tensor: TensorId,
    /// Type and sizes.
    pub desc: TensorDesc,
    /// The device that holds it.
    pub device: DeviceId,
    /// Where its bytes come from.
    pub origin: Origin,
    /// It is a run of another value's bytes, from this byte on.
    pub alias_of: Option<(ValueId, usize)>,
}

/// How a copy travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// From memory to memory.
    Direct,
    /// Through host memory, since the two GPUs do not reach each other.
    ThroughHost,
}

/// What a copy node moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyInfo {
    /// The tensor.
    pub tensor: TensorId,
    /// The device that has it.
    pub from: DeviceId,
    /// The device that gets it.
    pub to: DeviceId,
    /// Bytes moved.
    pub bytes: usize,
    /// How it travels.
    pub route: Route,
    /// A fed value on its way to a placeholder that lives on a GPU.
    pub fed: bool,
}

/// What an all-reduce node sums.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllReduceInfo {
    /// The devices, in the order of inputs and outputs.
    pub devices: SmallVec<[DeviceId; 4]>,
    /// Bytes of one input, which is as large as all others and the outputs.
    pub bytes: usize,
}

impl AllReduceInfo {
    /// The bytes that each device sends, and gets, in a ring: `2 (n - 1) / n` of the tensor's, which is the least that an
    /// all-reduce can do with.
    pub fn bytes_per_device(&self) -> usize {
        let n = self.devices.len();
        (2 * (n as u128 - 1) * self.bytes as u128 / n as u128) as usize
    }
}

/// What a node of a step does.
#[derive(Clone, Debug)]
pub enum StepNodeKind {
    /// Runs an op of the graph, or its part on one device.
    Op,
    /// Copies a tensor to this device.
    Copy(CopyInfo),
    /// Sums over several CUDA GPUs by NCCL; its device is the first of them.
    AllReduce(AllReduceInfo),
    /// Keeps a variable's value from before it is changed.
    Snapshot,
    /// Waits for everything that can fail before variables change.
    Commit,
}

/// A node of a step.
#[derive(Clone, Debug)]
pub struct StepNode {
    /// What it does.
    pub kind: StepNodeKind,
    /// A readable name: the graph node's, or `copy/affine0/w/read→gpu:1`.
    pub name: Arc<str>,
    /// The graph node that it comes from; for copies, the producer of the tensor.
    pub node: NodeId,
    /// Its op type, for nodes of kind `Op`.
    pub op: Option<OpRef>,
    /// Its attributes; a part's are its own.
    pub attrs: Arc<Attrs>,
    /// The device that runs it.
    pub device: DeviceId,
    /// The values that it reads, all on its device but for a copy's and an all-reduce's.
    pub inputs: SmallVec<[ValueId; 4]>,
    /// It runs only where the last inputs, bools that its op does not see, are as said here.
    pub guards: SmallVec<[bool; 1]>,
    /// Nodes that must have run before.
    pub controls: SmallVec<[StepNodeId; 2]>,
    /// The values that it makes.
    pub outputs: SmallVec<[ValueId; 1]>,
    /// Nothing runs: it only orders, or its outputs are other values' bytes.
    pub silent: bool,
    /// What it does besides, where several nodes became one.
    pub fusion: Option<Arc<Fusion>>,
}

impl StepNode {
    /// The inputs that are variables and are written.
    pub fn written(&self) -> SmallVec<[ValueId; 4]> {
        self.written_places().into_iter().map(|i| self.inputs[i]).collect()
    }

    /// Which of its inputs are written.
    pub fn written_places(&self) -> SmallVec<[usize; 4]> {
        let op = self.op.filter(|_| matches!(self.kind, StepNodeKind::Op));
        op.map(|op| op.written_inputs(&self.attrs, self.op_inputs().len())).unwrap_or_default()
    }

    /// The inputs of its op: all but what guards it, and what only streams of an update read.
    pub fn op_inputs(&self) -> &[ValueId] {
        match self.fusion.as_deref() {
            Some(Fusion::Update { op_inputs, .. }) => &self.inputs[..*op_inputs],
            _ => self.kernel_inputs(),
        }
    }

    /// What its kernel reads: all but what guards it.
    pub fn kernel_inputs(&self) -> &[ValueId] {
        &self.inputs[..self.inputs.len() - self.guards.len()]
    }

    /// The bools that guard it.
    pub fn guard_inputs(&self) -> &[ValueId] {
        &self.inputs[self.inputs.len() - self.guards.len()..]
    }

    /// What it does, in a word: its op type, or what it is beside the graph's nodes.
    pub fn what(&self) -> &'static str {
        match self.kind {
            StepNodeKind::Op => self.op.map_or("", |op| op.name()),
            StepNodeKind::Copy(_) => "copy",
            StepNodeKind::Snapshot => "snapshot",
            StepNodeKind::Commit => "commit",
            StepNodeKind::AllReduce(_) => "all-reduce",
        }
    }

    /// True for a product of matrices or a convolution, alone or with what is fused with it.
    pub fn is_product(&self) -> bool {
        let is_product = |op: OpRef| op.traits().product;
        match self.fusion.as_deref() {
            Some(Fusion::Chain(parts) | Fusion::Tiled(Tiled { parts, .. })) => parts.iter().any(|p| is_product(p.op)),
            _ => self.op.is_some_and(is_product),
        }
    }

    /// The graph nodes that read an input: the node's own, or those that became one with it.
    pub fn readers(&self, input: usize) -> SmallVec<[NodeId; 2]> {
        match self.fusion.as_deref() {
            Some(Fusion::Chain(parts) | Fusion::Tiled(Tiled { parts, .. })) => {
                let reads = |p: &&Part| p.operands.contains(&Operand::Input(input));
                parts.iter().filter(reads).map(|p| p.node).collect()
            }
            Some(Fusion::Epilogue { bias: Some(bias), of: (_, Some(adds)), .. }) if *bias == input => {
                smallvec::smallvec![*adds]
            }
            Some(Fusion::Epilogue { of: (product, _), .. }) => smallvec::smallvec![*product],
            Some(Fusion::Update { streams, .. }) if streams.iter().any(|s| s.reads(input)) => {
                let parts = streams.iter().flat_map(|s| &s.tiled.parts);
                parts.filter(|p| p.operands.contains(&Operand::Input(input))).map(|p| p.node).collect()
            }
            Some(Fusion::Update { .. }) | None => smallvec::smallvec![self.node],
        }
    }

    /// The inputs in whose buffer its output may be computed.
    pub fn in_place_candidates(&self) -> SmallVec<[usize; 4]> {
        match (self.fusion.as_deref(), self.op) {
            (Some(Fusion::Chain(_)), _) => (0..self.inputs.len()).collect(),
            (Some(Fusion::Tiled(tiled)), _) => (0..self.inputs.len()).filter(|i| tiled.ends_reading(*i)).collect(),
            (None, Some(op)) => op.traits().in_place.into(),
            _ => SmallVec::new(),
        }
    }

    /// What it sums, if it is an all-reduce.
    pub fn all_reduce(&self) -> Option<&AllReduceInfo> {
        match &self.kind {
            StepNodeKind::AllReduce(info) => Some(info),
            _ => None,
        }
    }

    /// True for nodes that move bytes between devices: their results live apart, and what they read is kept to the step's
    /// end, so that only events order them.
    pub fn is_transfer(&self) -> bool {
        matches!(self.kind, StepNodeKind::Copy(_) | StepNodeKind::AllReduce(_))
    }

    /// What it moves, if it is a copy.
    pub fn copy(&self) -> Option<&CopyInfo> {
        match &self.kind {
            StepNodeKind::Copy(info) => Some(info),
            _ => None,
        }
    }
}

/// The nodes of one step on their devices.
pub struct Partitioned {
    /// What was pruned.
    pub pruned: Pruned,
    /// Where graph nodes are.
    pub placed: Placed,
    /// The nodes, in an order that respects all edges once `order` has run.
    pub nodes: Vec<StepNode>,
    /// The values.
    pub values: Vec<Value>,
    /// Where each fetch is found.
    pub fetches: Vec<Fetch>,
    /// Variables that the step reads or partly writes before anything in it has set them.
    pub needs_initialized: Vec<NodeId>,
    /// Variables that the step sets.
    pub initializes: Vec<NodeId>,
    /// Variables that are put back if the step fails, since something can fail after they were changed.
    pub undo: Vec<NodeId>,
    /// What passes did to it, in order.
    pub passes: Vec<PassReport>,
}

/// Where a fetch is found after the step.
#[derive(Clone, Debug)]
pub enum Fetch {
    /// In this value, on the host.
    Value(ValueId),
    /// It is one of the feeds.
    Fed(usize),
    /// It was known when planned.
    Known(Arc<Array>),
}

impl Partitioned {
    /// A node.
    pub fn node(&self, id: StepNodeId) -> &StepNode {
        &self.nodes[id.index()]
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// What a node does: its op type, those of a fused chain as in `Mul+AddV2`, or what it is beside the graph's nodes.
    pub fn what(&self, node: &StepNode) -> String {
        node.fusion.as_deref().map_or_else(|| node.what().to_string(), |fusion| fusion.describe(node.what()))
    }

    /// The node that makes a value, if one does.
    pub(super) fn producer(&self, id: ValueId) -> Option<StepNodeId> {
        match self.value(id).origin {
            Origin::Computed(by) => Some(by),
            _ => None,
        }
    }

    /// The value whose bytes these are, and where in it they start.
    pub fn base(&self, mut id: ValueId) -> (ValueId, usize) {
        let mut offset = 0;
        while let Some((of, at)) = self.value(id).alias_of {
            (id, offset) = (of, offset + at);
        }
        (id, offset)
    }

    /// What a value passes on, and from which byte, where the node between waits for nothing: who reads that instead waits
    /// for the same.
    pub(super) fn passed_on(&self, id: ValueId) -> Option<(ValueId, usize)> {
        let value = self.value(id);
        let waits = matches!(value.origin, Origin::Computed(by) if !self.node(by).controls.is_empty());
        value.alias_of.filter(|_| !waits)
    }

    /// The variable whose buffer a value is, if it is one.
    pub fn variable(&self, id: ValueId) -> Option<NodeId> {
        match self.value(self.base(id).0).origin {
            Origin::Variable(node) => Some(node),
            _ => None,
        }
    }

    /// The producers of what a node reads, and the nodes that it must run after.
    pub(super) fn needed_nodes<'a>(&'a self, node: &'a StepNode) -> impl Iterator<Item = StepNodeId> + 'a {
        node.inputs.iter().filter_map(|v| self.producer(*v)).chain(node.controls.iter().copied())
    }

    /// Asks something of a node's op with its types, sizes and known values.
    pub fn with_kernel_context<R>(&self, node: &StepNode, ask: impl FnOnce(&KernelContext<'_>) -> R) -> R {
        let desc = |v: &ValueId| self.value(*v).desc.clone();
        let inputs: Vec<TensorDesc> = node.op_inputs().iter().map(desc).collect();
        let outputs: Vec<TensorDesc> = node.outputs.iter().map(desc).collect();
        let known = |v: &ValueId| self.value(*v).known().cloned();
        let values: Vec<Option<Arc<Array>>> = node.op_inputs().iter().map(known).collect();
        ask(&KernelContext { attrs: &node.attrs, inputs: &inputs, outputs: &outputs, values: &values })
    }

    /// A tensor's name, as in `split:1`.
    pub fn tensor_name(&self, tensor: TensorId) -> String {
        self.pruned.node(tensor.node).output_name(tensor.output)
    }

    /// The copies, in the order of the step's nodes.
    pub fn copies(&self) -> impl Iterator<Item = (&StepNode, &CopyInfo)> {
        self.nodes.iter().filter_map(|n| n.copy().map(|c| (n, c)))
    }

    /// The all-reduces, in the order of the step's nodes.
    pub fn all_reduces(&self) -> impl Iterator<Item = (&StepNode, &AllReduceInfo)> {
        self.nodes.iter().filter_map(|n| n.all_reduce().map(|a| (n, a)))
    }

    /// The nodes that read this value.
    pub fn consumers(&self, value: ValueId) -> impl Iterator<Item = &StepNode> {
        self.nodes.iter().filter(move |n| n.inputs.contains(&value))
    }
}

impl Value {
    /// The value, where it is known when planned.
    pub fn known(&self) -> Option<&Arc<Array>> {
        match &self.origin {
            Origin::Known(array) => Some(array),
            _ => None,
        }
    }

    /// True for a copy, which is no variable's buffer though its tensor may be.
    pub(super) fn copy_of_variable(&self, p: &Partitioned) -> bool {
        match self.origin {
            Origin::Computed(node) => p.nodes.get(node.index()).is_some_and(|n| n.copy().is_some()),
            _ => false,
        }
    }
}
