//! Export: a graph becomes a `GraphDef` that TensorFlow imports and runs to the same numbers.
//!
//! A node that was read from a file is written as it was. What was built here gets TensorFlow's attributes: those that
//! it has, those that follow from its inputs (`T`, `N`, …), and no others; what equals the default is left to
//! TensorFlow. `ApplyGradients` and `AllReduceN`, which TensorFlow does not have, are taken apart by `expand`.

use super::attr;
use super::expand::Expander;
use super::origin::Kept;
use super::proto::{AttrValue, GraphDef, NodeDef, VersionDef, attr_value::Value};
use super::signatures::{Arg, AttrDecl, Kind, Signature, Tensors, TypeOf, signature};
use crate::base::{Code, DType, Diagnostic, Error, Result};
use crate::device::Machine;
use crate::graph::{Attr, Attrs, Graph, Node, NodeId, TensorId};
use crate::plan::Placed;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The version of TensorFlow 1.15, whose ops and rules graphs that are built here go by.
const PRODUCER: i32 = 134;

/// Writes a graph as TensorFlow's, with the devices that its nodes ask for.
///
/// # Errors
/// Nodes whose attributes cannot be told; op types of a program's own are written with all their attributes.
pub fn export_graph(graph: &Graph) -> Result<GraphDef> {
    export(graph, None)
}

/// As [`export_graph`], with the devices that planning gave.
///
/// # Errors
/// As [`export_graph`].
pub fn export_placed(graph: &Graph, placed: &Placed, machine: &Machine) -> Result<GraphDef> {
    export(graph, Some((placed, machine)))
}

fn export(graph: &Graph, placed: Option<(&Placed, &Machine)>) -> Result<GraphDef> {
    graph.check()?;
    let nodes = graph.nodes();
    let origin = graph.origin();
    let kept = origin.as_ref().and_then(|o| o.downcast_ref::<Kept>());
    let plain = Plain { nodes: &nodes };
    let device = |id: NodeId| match placed {
        Some((placed, machine)) => placed.get(id).map(|p| machine.device(p.device).short_name()).unwrap_or_default(),
        None => nodes[id.index()].device.spec.to_string(),
    };
    let mut expander = Expander::new(&nodes, &device);
    let from_file = kept.iter().flat_map(|k| &k.order).copied();
    let built = nodes.iter().map(|n| n.id).filter(|id| !kept.is_some_and(|k| k.has(*id)));
    let mut problems = Vec::new();
    let mut written = Vec::with_capacity(nodes.len());
    for id in from_file.chain(built) {
        let node = &nodes[id.index()];
        let kept = kept.filter(|k| k.has(id));
        let def = match kept {
            Some(kept) => plain.node(node).map(|mut def| {
                kept.restore(id, &mut def, placed.is_some());
                vec![def]
            }),
            None => match expander.expand(node) {
                Some(defs) => defs,
                None => expander.built(node),
            },
        };
        match def {
            Ok(mut defs) => {
                if let (true, Some(def)) = (placed.is_some(), defs.iter_mut().find(|d| *d.name == *node.name)) {
                    def.device = device(id);
                }
                written.extend(defs);
            }
            Err(why) => {
                let message = format!("cannot write '{}' ({}) for TensorFlow: {why}", node.name, node.op_type());
                problems.push(Diagnostic::at(Code::Unimplemented, message, node.source));
            }
        }
    }
    if !problems.is_empty() {
        return Err(Error::from_all(problems));
    }
    let versions = Some(VersionDef { producer: PRODUCER, ..VersionDef::default() });
    Ok(GraphDef {
        node: written,
        versions: kept.map_or(versions, |k| k.versions.clone()),
        version: kept.map_or(0, |k| k.version),
        library: kept.and_then(|k| k.library.clone()),
        debug_info: kept.and_then(|k| k.debug_info.clone()),
    })
}

/// Writes nodes one for one.
pub(super) struct Plain<'a> {
    pub nodes: &'a [Arc<Node>],
}

impl Plain<'_> {
    /// A node with all its attributes.
    pub fn node(&self, node: &Node) -> Result<NodeDef, String> {
        let attrs = node.attrs.iter().map(|(name, value)| Ok((name.to_string(), attr::write(value)?)));
        let attr = attrs.collect::<Result<BTreeMap<_, _>, String>>()?;
        let input = node.inputs.iter().map(|t| self.input(*t)).chain(self.controls(node)).collect();
        let device = node.device.spec.to_string();
        Ok(NodeDef {
            name: node.name.to_string(),
            op: node.op_type().into(),
            input,
            device,
            attr,
            ..NodeDef::default()
        })
    }

    pub fn input(&self, tensor: TensorId) -> String {
        input(&self.nodes[tensor.node.index()].name, tensor.output as usize)
    }

    pub fn controls(&self, node: &Node) -> Vec<String> {
        node.control_inputs.iter().map(|c| format!("^{}", self.nodes[c.index()].name)).collect()
    }
}

/// An input as TensorFlow writes it.
pub(super) fn input(name: &str, output: usize) -> String {
    if output == 0 { name.to_string() } else { format!("{name}:{output}") }
}

/// The attributes that TensorFlow has for a node of this signature, inputs and outputs.
pub(super) fn attributes(
    signature: &Signature,
    node: &Node,
    inputs: &[DType],
    outputs: &[DType],
) -> Result<Attrs, String> {
    if let Some((name, _)) = node.attrs.iter().find(|(n, _)| signature.attr(n).is_none() && !n.starts_with('_')) {
        return Err(format!("TensorFlow's {} has no attribute '{name}'", signature.name));
    }
    // Notes, which TensorFlow lets any node have.
    let mut attrs = Attrs::new();
    node.attrs.iter().filter(|(n, _)| n.starts_with('_')).for_each(|(n, v)| attrs.set(n.to_string(), v.clone()));
    for decl in &signature.attrs {
        let value = match node.attrs.get(&decl.name) {
            Some(value) if attr::kind(value).is_none_or(|k| k == decl.kind) => Some(value.clone()),
            Some(value) => return Err(format!("attribute '{}' must be {}, got {value:?}", decl.name, decl.kind)),
            None => follows(decl, &signature.inputs, inputs)?.or(follows(decl, &signature.outputs, outputs)?),
        };
        match value {
            Some(value) => attrs.set(decl.name.clone(), value),
            None if decl.default.is_some() || decl.kind.of == Kind::Tensor => {}
            None => return Err(format!("attribute '{}' ({}) is not known", decl.name, decl.kind)),
        }
    }
    Ok(attrs)
}

/// These attributes as they are written: without those that have their default.
pub(super) fn written(signature: &Signature, attrs: &Attrs) -> Result<BTreeMap<String, AttrValue>, String> {
    let given = attrs
        .iter()
        .filter(|(name, value)| signature.attr(name).is_none_or(|decl| decl.default.as_ref() != Some(*value)));
    given.map(|(name, value)| Ok((name.to_string(), attr::write(value)?))).collect()
}

/// What an attribute must be, since these arguments go by it and stand for tensors of these types.
fn follows(decl: &AttrDecl, args: &[Arg], types: &[DType]) -> Result<Option<Attr>, String> {
    let several = args.iter().filter(|a| !matches!(a.tensors, Tensors::One(_))).count();
    let single = args.len() - several;
    // At most one argument stands for several tensors, or all such arguments for as many.
    let rest =
        types.len().checked_sub(single).ok_or_else(|| format!("want {} tensors, got {}", args.len(), types.len()))?;
    if several > 0 && rest % several != 0 {
        return Err(format!("{rest} tensors cannot be {several} lists of one length"));
    }
    let mut next = 0;
    for arg in args {
        let len = if matches!(arg.tensors, Tensors::One(_)) { 1 } else { rest / several };
        let of = &types[next..next + len];
        next += len;
        match &arg.tensors {
            Tensors::One(TypeOf::Attr(name)) if *name == decl.name => return Ok(of.first().map(|t| (*t).into())),
            Tensors::Many(number, _) if *number == decl.name => return Ok(Some((len as i64).into())),
            Tensors::Many(_, TypeOf::Attr(name)) if *name == decl.name && len > 0 => return Ok(Some(of[0].into())),
            Tensors::List(name) if *name == decl.name => return Ok(Some(of.to_vec().into())),
            _ => {}
        }
    }
    Ok(None)
}

/// `_class`, which asks to be put where these nodes are.
pub(super) fn colocation(names: impl Iterator<Item = String>) -> Option<AttrValue> {
    let mut s: Vec<Vec<u8>> = names.map(|n| format!("loc:@{n}").into_bytes()).collect();
    s.sort();
    s.dedup();
    let list = super::proto::ListValue { s, ..super::proto::ListValue::default() };
    (!list.s.is_empty()).then_some(AttrValue { value: Some(Value::List(list)) })
}

/// The signature of a node's op; `None` for ops of a program's own.
pub(super) fn signature_of(node: &Node) -> Option<Signature> {
    signature(node.op_type())
}
