//! Nodes that are read from a file: taken exactly as they are, whatever scopes are open.
//!
//! Absent: what a file looks like; `interop` knows, and keeps in [`Origin`] what it needs to write the same file again.

use super::attrs::Attrs;
use super::graph::{Graph, NodeParts, outputs_of};
use super::node::{DeviceRequest, Node, NodeId, TensorId};
use super::op::{Fact, OpRef};
use crate::base::{Code, Diagnostic, SourceLine};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// What read the graph keeps this to write it.
pub(crate) type Origin = Arc<dyn Any + Send + Sync>;

/// A node of a file. Its inputs are in the graph already; colocation may name nodes that come after it.
pub(crate) struct Imported {
    pub name: String,
    pub op: OpRef,
    /// The op type, and what is known of the outputs, where turret does not have the op.
    pub unknown: Option<(Arc<str>, Vec<Fact>)>,
    pub attrs: Attrs,
    /// What is known of the outputs where their feeds may be of other sizes than the op's own rule says.
    pub outputs: Option<Vec<Fact>>,
    pub inputs: SmallVec<[TensorId; 4]>,
    pub control_inputs: SmallVec<[NodeId; 2]>,
    pub device: DeviceRequest,
    pub colocated_with: SmallVec<[NodeId; 1]>,
}

impl Graph {
    /// Adds a node of a file.
    ///
    /// # Errors
    /// What is wrong with it, or its name; the graph is as before then.
    pub(crate) fn add_imported(&self, new: &Imported, source: SourceLine) -> Result<NodeId, Diagnostic> {
        let mut inner = self.lock();
        let refuse = |message: String| Err(Diagnostic::at(Code::InvalidArgument, message, source));
        if inner.nodes.contains_key(&new.name[..]) {
            return refuse(format!("there are two nodes '{}'", new.name));
        }
        let parts =
            NodeParts { name: &new.name, op: new.op, attrs: &new.attrs, inputs: &new.inputs, unknown: &new.unknown };
        let outputs = match outputs_of(&mut inner, parts) {
            Ok(outputs) => outputs,
            Err(message) => return refuse(message.unwrap_or_else(|| format!("'{}' cannot be built", new.name))),
        };
        let id = NodeId(inner.nodes.len() as u32);
        let name: Arc<str> = new.name.as_str().into();
        inner.names.mark(&name);
        let node = Node {
            id,
            name: name.clone(),
            op: new.op,
            unknown_type: new.unknown.as_ref().map(|(op_type, _)| op_type.clone()),
            attrs: new.attrs.clone(),
            inputs: new.inputs.clone(),
            control_inputs: new.control_inputs.clone(),
            device: new.device.clone(),
            colocated_with: new.colocated_with.clone(),
            guards: SmallVec::new(),
            outputs: new.outputs.clone().unwrap_or(outputs).into(),
            source,
        };
        inner.nodes.insert(name, Arc::new(node));
        Ok(id)
    }

    /// Keeps what the graph was read from.
    pub(crate) fn set_origin(&self, origin: Origin) {
        self.lock().origin = Some(origin);
    }

    /// What the graph was read from, if it was.
    pub(crate) fn origin(&self) -> Option<Origin> {
        self.lock().origin.clone()
    }
}
