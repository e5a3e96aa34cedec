//! Nodes and their ids.

use super::attrs::Attrs;
use super::op::{Fact, OpRef};
use crate::base::{DeviceSpec, SourceLine};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A node's place in its graph; ids grow in the order of creation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The id that stands for a node whose error is already reported.
    pub const POISON: NodeId = NodeId(u32::MAX);

    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// One output of one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    /// The node.
    pub node: NodeId,
    /// Which of its outputs.
    pub output: u32,
}

impl fmt::Debug for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{}", self.node, self.output)
    }
}

/// Which rule gave a node the device that it asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum DeviceRule {
    /// Nothing asked for a device.
    #[default]
    Unset,
    /// The device scopes around it.
    Scope,
    /// The file that it was read from.
    File,
    /// A device function around it.
    Function,
    /// A variable placement rule, by name.
    Variable(String),
    /// A rule for where averaged gradients are made, by name.
    Averaging(String),
    /// It is colocated with this node.
    Colocated(String),
    /// It is part of the gradient of this node, and no device scope was open.
    Gradient(String),
}

/// The text of [`DeviceRule::Scope`].
pub const DEVICE_SCOPE: &str = "device scope";

impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceRule::Unset => f.write_str("no device asked"),
            DeviceRule::Scope => f.write_str(DEVICE_SCOPE),
            DeviceRule::File => f.write_str("the file's device"),
            DeviceRule::Function => f.write_str("device function"),
            DeviceRule::Variable(rule) => write!(f, "variable rule: {rule}"),
            DeviceRule::Averaging(rule) => write!(f, "averaging rule: {rule}"),
            DeviceRule::Colocated(with) => write!(f, "colocated with {with}"),
            DeviceRule::Gradient(of) => write!(f, "gradient of {of}"),
        }
    }
}

/// The device that a node asks for, and why.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceRequest {
    /// The device, possibly partial.
    pub spec: DeviceSpec,
    /// The rule that set it.
    pub rule: DeviceRule,
}

/// Predicates, and the value that each must have.
pub type Guards = SmallVec<[(TensorId, bool); 1]>;

/// A node; never changed once it is in the graph.
#[derive(Clone)]
pub struct Node {
    /// Its place in the graph.
    pub id: NodeId,
    /// Its unique name.
    pub name: Arc<str>,
    /// Its op.
    pub op: OpRef,
    /// Its op type where `op` is [`Unknown`](super::Unknown).
    pub unknown_type: Option<Arc<str>>,
    /// The attributes.
    pub attrs: Attrs,
    /// The tensors that it reads, in order.
    pub inputs: SmallVec<[TensorId; 4]>,
    /// Nodes that must have run before it.
    pub control_inputs: SmallVec<[NodeId; 2]>,
    /// The device that it asks for.
    pub device: DeviceRequest,
    /// Nodes that it must share a device with.
    pub colocated_with: SmallVec<[NodeId; 1]>,
    /// It runs only where each of these bools is as said: branches of conditionals whose predicates a step computes.
    /// Set by planning alone.
    pub guards: Guards,
    /// What is known of its outputs.
    pub outputs: SmallVec<[Fact; 1]>,
    /// The line of the user's program that made it.
    pub source: SourceLine,
}

impl Node {
    /// Its op type, as in `MatMul`, whether turret has it or not.
    pub fn op_type(&self) -> &str {
        self.unknown_type.as_deref().unwrap_or(self.op.name())
    }

    /// An output's name, as in `split:1`.
    pub fn output_name(&self, output: u32) -> String {
        format!("{}:{output}", self.name)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}{:?}", self.name, self.op_type(), self.inputs)
    }
}
