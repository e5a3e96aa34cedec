//! The variables of a file: which nodes they are, and their reads, initializers and roles, found by edges.

use super::proto::{NodeDef, attr_value::Value};
use super::signatures::{Tensors, TypeOf, signature};
use crate::base::{DType, OpaqueType, SourceLine};
use crate::graph::{Entry, Graph, Node, NodeId, TensorId, keys};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Variables that share their buffer with an earlier one, by `container` and `shared_name`: the later one, the first.
pub(super) fn aliases(nodes: &[NodeDef]) -> HashMap<usize, usize> {
    let mut first: HashMap<(&str, Vec<u8>, Vec<u8>), usize> = HashMap::new();
    let mut aliases = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        if !matches!(&node.op[..], "VariableV2" | "Variable" | "VarHandleOp") {
            continue;
        }
        let text = |name: &str| match node.attr.get(name).and_then(|a| a.value.as_ref()) {
            Some(Value::S(text)) => text.clone(),
            _ => Vec::new(),
        };
        let shared = Some(text("shared_name")).filter(|s| !s.is_empty());
        let shared = shared.unwrap_or_else(|| node.name.clone().into_bytes());
        let key = (if node.op == "VarHandleOp" { "handle" } else { "buffer" }, text("container"), shared);
        if let Some(&other) = first.get(&key) {
            aliases.insert(i, other);
        } else {
            first.insert(key, i);
        }
    }
    aliases
}

/// What a `MetaGraphDef` says of variables.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles(HashMap<String, (String, String)>);

impl Roles {
    /// A variable's initializer and read, by name; either may be empty.
    pub fn add(&mut self, variable: &str, initializer: &str, read: &str) {
        self.0.insert(variable.into(), (initializer.into(), read.into()));
    }

    /// The initializer and the read of a variable, as far as they are told and there.
    fn of(&self, graph: &Graph, variable: &str) -> (Option<NodeId>, Option<TensorId>) {
        let Some((initializer, read)) = self.0.get(variable) else { return (None, None) };
        let initializer = graph.operation(initializer.trim_start_matches('^')).ok().map(|o| o.id());
        (initializer, graph.tensor(read).ok().map(|t| t.id()))
    }
}

/// Enters the variables of an imported graph in its registry. Where no `MetaGraphDef` tells their collections, all count
/// as saved, and those that an optimizer's op changes as trained.
pub(super) fn register(graph: &Graph, roles: &Roles, source: SourceLine) {
    let nodes = graph.nodes();
    let mut readers: HashMap<NodeId, Vec<&Arc<Node>>> = HashMap::new();
    for node in &nodes {
        for input in &node.inputs {
            let of = readers.entry(input.node).or_default();
            if of.last().is_none_or(|last| last.id != node.id) {
                of.push(node);
            }
        }
    }
    let trained: BTreeSet<NodeId> = nodes.iter().filter_map(|n| trained_by(n, &nodes)).collect();
    for node in nodes.iter().filter(|n| n.op.traits().variable) {
        let readers = readers.get(&node.id).map(Vec::as_slice).unwrap_or_default();
        let Some(fact) = node.outputs.first() else { continue };
        let is_handle = gives_handle(node);
        let read_op = if is_handle { "ReadVariableOp" } else { "Identity" };
        let read = find(node, readers, read_op, if is_handle { "Read/ReadVariableOp" } else { "read" });
        let assign = if is_handle { "AssignVariableOp" } else { "Assign" };
        let initializer = find(node, readers, assign, "Assign");
        let (told_initializer, told_read) = roles.of(graph, &node.name);
        let entry = Entry {
            node: node.id,
            read: told_read.unwrap_or(TensorId { node: read.unwrap_or(node.id), output: 0 }),
            // What has no initializer gets its value from elsewhere; to run the variable itself does nothing.
            initializer: told_initializer.or(initializer).unwrap_or(node.id),
            shape: fact.shape.clone(),
            dtype: fact.dtype,
            source,
            name_scope: String::new(),
        };
        let shared = node.attrs.str("shared_name").filter(|name| is_handle && !name.is_empty());
        let Some(variable) = graph.register(shared.unwrap_or(&node.name), false, entry) else { continue };
        if !roles.0.is_empty() {
            continue;
        }
        graph.add_to_collection(keys::GLOBAL_VARIABLES, variable);
        if trained.contains(&node.id) {
            graph.add_to_collection(keys::TRAINABLE_VARIABLES, variable);
        }
    }
}

fn gives_handle(node: &Node) -> bool {
    let resource = Tensors::One(TypeOf::Fixed(DType::Opaque(OpaqueType::Resource)));
    signature(node.op_type()).is_some_and(|s| s.outputs.first().is_some_and(|o| o.tensors == resource))
}

/// The first reader of this op type that takes the variable first: one of the usual name, else any.
fn find(variable: &Node, readers: &[&Arc<Node>], op_type: &str, usual: &str) -> Option<NodeId> {
    let fits = |n: &&&Arc<Node>| n.op_type() == op_type && n.inputs.first().is_some_and(|i| i.node == variable.id);
    let usual = format!("{}/{usual}", variable.name);
    let named = readers.iter().filter(fits).find(|n| *n.name == *usual);
    named.or_else(|| readers.iter().find(fits)).map(|n| n.id)
}

/// The variable that a node of an optimizer changes. Where it has no op for that, such as gradient descent for rows, its
/// nodes have TensorFlow's names.
fn trained_by(node: &Arc<Node>, nodes: &[Arc<Node>]) -> Option<NodeId> {
    let first = &nodes[node.inputs.first()?.node.index()];
    let op_type = node.op_type().strip_prefix("Resource").unwrap_or(node.op_type());
    let applies = op_type.starts_with("Apply") || op_type.starts_with("SparseApply");
    let writes = || node.op.written_inputs(&node.attrs, node.inputs.len()).contains(&0);
    let named = || first.op.traits().variable && node.name.contains(&format!("/update_{}/", first.name)) && writes();
    (applies || named()).then_some(first.id)
}
