//! Putting a node together: op type, name, inputs, attributes, device; [`NodeBuilder::add`] gives it its place.
//!
//! Invariant: nothing is in the graph, and nothing is reported, before `add`.

use super::attrs::{Attr, Attrs};
use super::graph::Graph;
use super::node::{DeviceRequest, DeviceRule, NodeId, TensorId};
use super::op::{Fact, OpRef};
use super::tensor::{Operation, Tensor};
use super::unknown::Unknown;
use crate::base::DeviceSpec;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::panic::Location;
use std::sync::Arc;

impl Graph {
    /// Starts a node of this op type; [`NodeBuilder::add`] adds it.
    pub fn node_of(&self, op: OpRef) -> NodeBuilder<'_> {
        NodeBuilder {
            graph: self,
            op,
            name: Cow::Borrowed(op.name()),
            inputs: SmallVec::new(),
            controls: SmallVec::new(),
            attrs: Attrs::new(),
            device: None,
            colocate: None,
            problem: None,
            unknown: None,
        }
    }

    /// Starts a node of a type that turret does not have, or cannot run, with the outputs that it is known to have.
    pub fn unknown_node(&self, op_type: &str, outputs: Vec<Fact>) -> NodeBuilder<'_> {
        let builder = self.node_of(&Unknown).name(op_type.to_string());
        NodeBuilder { unknown: Some((op_type.into(), outputs)), ..builder }
    }
}

/// A node that is being put together.
#[must_use = "the node is added by `add`"]
pub struct NodeBuilder<'g> {
    pub(super) graph: &'g Graph,
    pub(super) op: OpRef,
    pub(super) name: Cow<'static, str>,
    pub(super) inputs: SmallVec<[TensorId; 4]>,
    pub(super) controls: SmallVec<[NodeId; 2]>,
    pub(super) attrs: Attrs,
    pub(super) device: Option<DeviceRequest>,
    pub(super) colocate: Option<NodeId>,
    pub(super) problem: Option<String>,
    pub(super) unknown: Option<(Arc<str>, Vec<Fact>)>,
}

impl<'g> NodeBuilder<'g> {
    /// The op type, whether turret has it or not.
    pub(super) fn op_type(&self) -> &str {
        self.unknown.as_ref().map_or(self.op.name(), |(op_type, _)| op_type)
    }

    /// The wanted name, made unique in the current name scope; with a trailing `/` it is absolute and taken as it is.
    /// Without this, the op type.
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// One more input.
    pub fn input(mut self, tensor: impl Into<Tensor<'g>>) -> Self {
        let tensor = tensor.into();
        self.same_graph(tensor.op(), "read");
        self.inputs.push(tensor.id);
        self
    }

    /// More inputs.
    pub fn inputs(self, tensors: impl IntoIterator<Item = Tensor<'g>>) -> Self {
        tensors.into_iter().fold(self, |b, t| b.input(t))
    }

    /// One more node that must have run before.
    pub fn control(mut self, op: impl Into<Operation<'g>>) -> Self {
        let op = op.into();
        self.same_graph(op, "wait for");
        self.controls.push(op.id);
        self
    }

    /// An attribute.
    pub fn attr(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Attr>) -> Self {
        self.attrs.set(name, value);
        self
    }

    /// The device that it asks for, whatever scopes are open.
    pub fn device(mut self, spec: DeviceSpec, rule: DeviceRule) -> Self {
        self.device = Some(DeviceRequest { spec, rule });
        self
    }

    /// A node that it must share a device with; device scopes do not count then.
    pub fn colocate_with(mut self, op: impl Into<Operation<'g>>) -> Self {
        let op = op.into();
        self.same_graph(op, "share a device with");
        self.colocate = Some(op.id);
        self
    }

    /// Notes a problem if the operation is one of another graph.
    fn same_graph(&mut self, op: Operation<'g>, verb: &str) {
        if !std::ptr::eq(op.graph, self.graph) && !op.is_poison() {
            let (name, of, own) = (op.name(), op.graph.number, self.graph.number);
            let text =
                format!("'{}' in graph {own} cannot {verb} '{name}' of graph {of}; build both in one graph", self.name);
            self.problem = Some(text);
        }
    }

    /// Adds the node. A problem is reported, and gives a poison operation.
    #[track_caller]
    pub fn add(self) -> Operation<'g> {
        let graph = self.graph;
        Operation { graph, id: graph.add(self, Location::caller()) }
    }

    /// Adds the node and gives its output 0.
    #[track_caller]
    pub fn tensor(self) -> Tensor<'g> {
        let op = self.add();
        if op.is_poison() { op.graph.poison_tensor() } else { op.output(0) }
    }
}
