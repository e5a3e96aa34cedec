//! The nodes that export writes for what is built here: one for one where TensorFlow has the op, and TensorFlow's own
//! subgraphs where it has not.
//!
//! `ApplyGradients` becomes one `Apply…` node a variable, beside it, and a `NoOp` of its name that waits for all;
//! `AllReduceN` becomes a sum, and an `Identity` for each further output, beside its input.

use super::apply;
use super::export::{Plain, attributes, colocation, input, signature_of, written};
use super::proto::NodeDef;
use crate::base::DType;
use crate::graph::{Attr, Node, NodeId, TensorId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Writes the nodes that were built here.
pub(super) struct Expander<'a> {
    nodes: &'a [Arc<Node>],
    device: &'a dyn Fn(NodeId) -> String,
    /// Outputs that other nodes give after expansion.
    moved: HashMap<TensorId, String>,
    /// Names that are not free.
    taken: HashSet<String>,
}

impl<'a> Expander<'a> {
    pub fn new(nodes: &'a [Arc<Node>], device: &'a dyn Fn(NodeId) -> String) -> Expander<'a> {
        let mut new = Expander {
            nodes,
            device,
            moved: HashMap::new(),
            taken: nodes.iter().map(|n| n.name.to_string()).collect(),
        };
        // Readers may be written before, so that names come first.
        for node in nodes.iter().filter(|n| n.op.is_all_reduce()) {
            for output in 1..node.outputs.len() as u32 {
                let name = new.free(format!("{}/replica_{output}", node.name));
                new.moved.insert(TensorId { node: node.id, output }, name);
            }
        }
        new
    }

    /// A name that no other node has.
    pub fn free(&mut self, wanted: String) -> String {
        let mut name = wanted.clone();
        let mut number = 1;
        while !self.taken.insert(name.clone()) {
            name = format!("{wanted}_{number}");
            number += 1;
        }
        name
    }

    /// An input, by the name of the node that gives it in the file.
    pub fn input(&self, tensor: TensorId) -> String {
        let moved = self.moved.get(&tensor).cloned();
        moved.unwrap_or_else(|| input(&self.nodes[tensor.node.index()].name, tensor.output as usize))
    }

    /// A node that gives an input.
    pub fn source(&self, tensor: TensorId) -> &'a Node {
        &self.nodes[tensor.node.index()]
    }

    pub fn dtype(&self, tensor: TensorId) -> DType {
        self.source(tensor).outputs[tensor.output as usize].dtype
    }

    pub fn device(&self, id: NodeId) -> String {
        (self.device)(id)
    }

    pub fn controls(&self, node: &Node) -> Vec<String> {
        Plain { nodes: self.nodes }.controls(node)
    }

    /// A node whose op TensorFlow has, with TensorFlow's attributes, after what it needs beside it.
    pub fn built(&mut self, node: &Node) -> Result<Vec<NodeDef>, String> {
        let mut def = Plain { nodes: self.nodes }.node(node)?;
        def.input = node.inputs.iter().map(|t| self.input(*t)).chain(self.controls(node)).collect();
        let mut defs = Vec::new();
        if let Some(signature) = signature_of(node) {
            let inputs: Vec<DType> = node.inputs.iter().map(|t| self.dtype(*t)).collect();
            let outputs: Vec<DType> = node.outputs.iter().map(|f| f.dtype).collect();
            let attrs = attributes(&signature, node, &inputs, &outputs)?;
            // Some ops of turret's take integers of either width where TensorFlow wants those of another input.
            let wanted = signature.types(&signature.inputs, &attrs)?;
            for (i, (&from, &to)) in
                inputs.iter().zip(&wanted).enumerate().filter(|(_, (f, t))| f != t && !t.is_opaque())
            {
                let name = self.free(format!("{}/Cast_{i}", node.name));
                let input = std::mem::replace(&mut def.input[i], name.clone());
                let source = self.source(node.inputs[i]);
                let cast = match source.op.constant(&source.attrs) {
                    Some(value) => {
                        let value = value.cast(to).map_err(|e| e.to_string())?;
                        new_node(&name, "Const", Vec::new()).with("dtype", to).with("value", Arc::new(value))
                    }
                    None => new_node(&name, "Cast", vec![input]).with("SrcT", from).with("DstT", to),
                };
                defs.push(cast.on(self.device(node.id)).done()?);
            }
            def.attr = written(&signature, &attrs)?;
        }
        let with = node.colocated_with.iter().map(|id| self.nodes[id.index()].name.to_string());
        if let Some(class) = colocation(with) {
            def.attr.insert("_class".into(), class);
        }
        defs.push(def);
        Ok(defs)
    }

    /// The nodes for a node whose op TensorFlow does not have; `None` for all others.
    pub fn expand(&mut self, node: &Node) -> Option<Result<Vec<NodeDef>, String>> {
        if node.op.is_all_reduce() {
            return Some(self.all_reduce(node));
        }
        (node.op_type() == "ApplyGradients").then(|| apply::expand(self, node))
    }

    fn all_reduce(&self, node: &Node) -> Result<Vec<NodeDef>, String> {
        let dtype = node.outputs.first().map_or(DType::F32, |f| f.dtype);
        let inputs: Vec<String> = node.inputs.iter().map(|t| self.input(*t)).collect();
        let sum = new_node(&node.name, "AddN", inputs.into_iter().chain(self.controls(node)).collect())
            .with("T", dtype)
            .with("N", node.inputs.len() as i64)
            .on(self.device(node.id));
        let copies = (1..node.outputs.len()).map(|i| {
            let tensor = TensorId { node: node.id, output: i as u32 };
            let device = node.inputs.get(i).map_or_else(String::new, |t| self.device(t.node));
            new_node(&self.input(tensor), "Identity", vec![node.name.to_string()]).with("T", dtype).on(device)
        });
        std::iter::once(sum).chain(copies).map(NewNode::done).collect()
    }
}

/// A node that is put together.
pub(super) struct NewNode {
    def: NodeDef,
    problem: Option<String>,
}

/// A node with these inputs.
pub(super) fn new_node(name: &str, op: &str, input: Vec<String>) -> NewNode {
    NewNode { def: NodeDef { name: name.into(), op: op.into(), input, ..NodeDef::default() }, problem: None }
}

impl NewNode {
    /// One more attribute.
    pub fn with(mut self, name: &str, value: impl Into<Attr>) -> NewNode {
        match super::attr::write(&value.into()) {
            Ok(value) => {
                self.def.attr.insert(name.into(), value);
            }
            Err(why) => self.problem = Some(why),
        }
        self
    }

    /// The device that it asks for; empty for none.
    pub fn on(mut self, device: String) -> NewNode {
        self.def.device = device;
        self
    }

    /// The node that it asks to be put with.
    pub fn beside(mut self, name: &str) -> NewNode {
        if let Some(class) = colocation(std::iter::once(name.to_string())) {
            self.def.attr.insert("_class".into(), class);
        }
        self
    }

    pub fn done(self) -> Result<NodeDef, String> {
        self.problem.map_or(Ok(self.def), Err)
    }
}
