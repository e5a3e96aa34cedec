//! A `GraphDef` as text for people: large constants show in short, as in the other dumps.

use super::constants::{SHOWN_BYTES, describe_array};
use crate::base::Result;
use crate::graph::{Attr, Graph};
use crate::interop::graphdef::{AttrValue, GraphDef, LEFT_OUT, attr_value::Value};
use std::borrow::Cow;
use std::collections::HashMap;

/// The text of a graph that was exported from this one. Unless it is to be `full`, a constant of more than
/// [`SHOWN_BYTES`] has neither its content nor its type, so that no reader takes it for the real one, and its type,
/// shape, digest and first values are in attribute `_digest`.
///
/// # Errors
/// As [`GraphDef::to_text`].
pub fn graph_text(graph: &Graph, def: &GraphDef, full: bool) -> Result<String> {
    let nodes = graph.nodes();
    let large: HashMap<&str, String> = (nodes.iter())
        .filter_map(|n| match n.attrs.get("value") {
            Some(Attr::Tensor(array)) if array.bytes().len() > SHOWN_BYTES => Some((&*n.name, describe_array(array))),
            _ => None,
        })
        .collect();
    let mut def = Cow::Borrowed(def);
    if !full && !large.is_empty() {
        for node in &mut def.to_mut().node {
            let Some(digest) = large.get(&node.name[..]) else { continue };
            if let Some(AttrValue { value: Some(Value::Tensor(tensor)) }) = node.attr.get_mut("value") {
                **tensor = Default::default();
                let digest = Value::S(digest.clone().into_bytes());
                node.attr.insert(LEFT_OUT.into(), AttrValue { value: Some(digest) });
            }
        }
    }
    def.to_text()
}
