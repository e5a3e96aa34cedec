//! The `Copy` handles that programs hold: tensors, operations, variables.
//!
//! Invariant: a handle of a node whose error is already reported is a poison handle; what is built from it is poison too.

use super::graph::Graph;
use super::node::{Node, NodeId, TensorId};
use crate::base::{DType, DeviceSpec, Diagnostic, POISON_DIM, Shape};
use std::fmt;
use std::sync::Arc;

/// One output of one node of a graph.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) id: TensorId,
}

/// A node of a graph.
#[derive(Clone, Copy)]
pub struct Operation<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) id: NodeId,
}

/// A variable of a graph: its node and its default read.
#[derive(Clone, Copy)]
pub struct Variable<'g> {
    pub(crate) node: Operation<'g>,
    pub(crate) read: Tensor<'g>,
    pub(crate) initializer: Operation<'g>,
}

impl<'g> Operation<'g> {
    /// The graph.
    pub fn graph(self) -> &'g Graph {
        self.graph
    }

    /// The node's id.
    pub fn id(self) -> NodeId {
        self.id
    }

    /// True if this stands for a node whose error is already reported.
    pub fn is_poison(self) -> bool {
        self.id == NodeId::POISON
    }

    /// The node itself; `None` for a poison handle.
    pub fn node(self) -> Option<Arc<Node>> {
        self.graph.node(self.id)
    }

    /// The unique name.
    pub fn name(self) -> String {
        self.node().map_or_else(|| "<error>".into(), |n| n.name.to_string())
    }

    /// The op type.
    pub fn op_type(self) -> String {
        self.node().map_or_else(|| "<error>".into(), |n| n.op_type().to_string())
    }

    /// The device that it asks for, as far as given.
    pub fn device(self) -> DeviceSpec {
        self.node().map_or_else(DeviceSpec::any, |n| n.device.spec.clone())
    }

    /// An output. One that is not there is reported, and gives a poison tensor.
    #[track_caller]
    pub fn output(self, output: usize) -> Tensor<'g> {
        let Some(node) = self.node() else { return self.graph.poison_tensor() };
        if output >= node.outputs.len() {
            let message = format!("'{}' has {} outputs, output {output} was asked for", node.name, node.outputs.len());
            let source = self.graph.source_line();
            self.graph.report(Diagnostic::at(crate::base::Code::OutOfRange, message, source));
            return self.graph.poison_tensor();
        }
        Tensor { graph: self.graph, id: TensorId { node: self.id, output: output as u32 } }
    }

    /// All outputs.
    pub fn outputs(self) -> Vec<Tensor<'g>> {
        let count = self.node().map_or(0, |n| n.outputs.len());
        (0..count as u32).map(|output| Tensor { graph: self.graph, id: TensorId { node: self.id, output } }).collect()
    }

    /// The tensors that it reads.
    pub fn inputs(self) -> Vec<Tensor<'g>> {
        let inputs = self.node().map(|n| n.inputs.clone()).unwrap_or_default();
        inputs.into_iter().map(|id| Tensor { graph: self.graph, id }).collect()
    }
}

impl<'g> Tensor<'g> {
    /// The graph.
    pub fn graph(self) -> &'g Graph {
        self.graph
    }

    /// The tensor's id.
    pub fn id(self) -> TensorId {
        self.id
    }

    /// The node that computes it.
    pub fn op(self) -> Operation<'g> {
        Operation { graph: self.graph, id: self.id.node }
    }

    /// True if this stands for a tensor whose error is already reported.
    pub fn is_poison(self) -> bool {
        self.id.node == NodeId::POISON
    }

    /// The name, as in `split:1`.
    pub fn name(self) -> String {
        format!("{}:{}", self.op().name(), self.id.output)
    }

    /// The element type (`float32` for a poison tensor).
    pub fn dtype(self) -> DType {
        self.op().node().map_or(DType::F32, |n| n.outputs[self.id.output as usize].dtype)
    }

    /// The shape, as far as known.
    pub fn shape(self) -> Shape {
        self.op().node().map_or_else(Shape::unknown, |n| n.outputs[self.id.output as usize].shape.clone())
    }

    /// The device that its node asks for.
    pub fn device(self) -> DeviceSpec {
        self.op().device()
    }

    /// The rank, if known.
    pub fn rank(self) -> Option<usize> {
        self.shape().rank()
    }

    /// The size of one axis, to build with. A size that is not known is reported here, and whatever is built from
    /// the returned number is poison.
    #[track_caller]
    pub fn dim(self, axis: usize) -> usize {
        if self.is_poison() {
            return POISON_DIM;
        }
        let shape = self.shape();
        if let Some(size) = shape.dim(axis) {
            return size;
        }
        let fix = match shape.rank() {
            None => "declare the rank and this size of the input it comes from",
            Some(rank) if axis >= rank => "axes count from 0",
            Some(_) => "declare this size, or use a size that is known",
        };
        let message = format!("the size of axis {axis} of '{}' is not known: its shape is {shape}; {fix}", self.name());
        let source = self.graph.source_line();
        self.graph.report(Diagnostic::at(crate::base::Code::InvalidArgument, message, source));
        POISON_DIM
    }
}

impl<'g> Variable<'g> {
    /// A handle of these parts.
    pub(crate) fn new(node: Operation<'g>, read: Tensor<'g>, initializer: Operation<'g>) -> Variable<'g> {
        Variable { node, read, initializer }
    }

    /// The variable's node.
    pub fn op(self) -> Operation<'g> {
        self.node
    }

    /// The full name, as in `affine0/w`.
    pub fn name(self) -> String {
        self.node.name()
    }

    /// The device that it asks for.
    pub fn device(self) -> DeviceSpec {
        self.node.device()
    }

    /// The shape.
    pub fn shape(self) -> Shape {
        self.read.shape()
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        self.read.dtype()
    }

    /// The default read, `NAME/read:0`, which is what a use of the variable reads.
    pub fn value(self) -> Tensor<'g> {
        self.read
    }

    /// The buffer itself, for ops that write it.
    pub fn buffer(self) -> Tensor<'g> {
        Tensor { graph: self.node.graph, id: TensorId { node: self.node.id, output: 0 } }
    }

    /// The node that assigns the initial value.
    pub fn initializer(self) -> Operation<'g> {
        self.initializer
    }

    /// True if its error is already reported.
    pub fn is_poison(self) -> bool {
        self.node.is_poison()
    }
}

impl<'g> From<Variable<'g>> for Tensor<'g> {
    fn from(variable: Variable<'g>) -> Tensor<'g> {
        variable.read
    }
}

impl<'g> From<Variable<'g>> for Operation<'g> {
    fn from(variable: Variable<'g>) -> Operation<'g> {
        variable.node
    }
}

impl<'g> From<Tensor<'g>> for Operation<'g> {
    fn from(tensor: Tensor<'g>) -> Operation<'g> {
        tensor.op()
    }
}

impl PartialEq for Tensor<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.graph, other.graph) && self.id == other.id
    }
}

impl PartialEq for Operation<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.graph, other.graph) && self.id == other.id
    }
}

impl PartialEq for Variable<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
    }
}

/// As TensorFlow prints it, as in `<Tensor 'x:0' shape=[2, 3] dtype=float32>`.
impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<Tensor '{}' shape={} dtype={}>", self.name(), self.shape(), self.dtype())
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<Operation '{}' type={}>", self.name(), self.op_type())
    }
}

impl fmt::Debug for Variable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<Variable '{}' shape={} dtype={}>", self.name(), self.shape(), self.dtype())
    }
}

/// Rows of a gradient: row `i` of `values` belongs to row `indices[i]` of the whole, and equal indices add up.
#[derive(Clone, Copy, Debug)]
pub struct IndexedSlices<'g> {
    /// The rows, `[n, …]`.
    pub values: Tensor<'g>,
    /// The row numbers, `[n]`, `int32` or `int64`.
    pub indices: Tensor<'g>,
    /// The variable or tensor that the rows belong to.
    pub of: Tensor<'g>,
}

/// A gradient: dense, or some rows of it.
#[derive(Clone, Copy, Debug)]
pub enum Gradient<'g> {
    /// The whole gradient.
    Dense(Tensor<'g>),
    /// Some rows.
    Slices(IndexedSlices<'g>),
}

impl<'g> Gradient<'g> {
    /// The tensor that carries the values: the dense gradient, or the rows.
    pub fn values(self) -> Tensor<'g> {
        match self {
            Gradient::Dense(t) => t,
            Gradient::Slices(s) => s.values,
        }
    }

    /// The node that computes it, as the (grad, var) listings print it.
    pub fn op(self) -> Operation<'g> {
        self.values().op()
    }
}

impl<'g> From<Tensor<'g>> for Gradient<'g> {
    fn from(tensor: Tensor<'g>) -> Gradient<'g> {
        Gradient::Dense(tensor)
    }
}

impl<'g> From<IndexedSlices<'g>> for Gradient<'g> {
    fn from(slices: IndexedSlices<'g>) -> Gradient<'g> {
        Gradient::Slices(slices)
    }
}
