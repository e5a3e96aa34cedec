//! What is kept of the file that a graph was read from, so that it can be written again as it was.
//!
//! A node is kept only as far as writing it anew would differ: how its device is spelt, inputs that were resolved to the
//! variable behind them, attributes that were left out or have another form.

use super::export::Plain;
use super::proto::{AttrValue, GraphDef, NodeDef, VersionDef};
use crate::base::{Error, Result};
use crate::graph::{Graph, NodeId};
use prost::bytes::Bytes;
use std::collections::HashMap;

/// What is kept of a file.
pub(super) struct Kept {
    pub versions: Option<VersionDef>,
    pub version: i32,
    pub library: Option<Bytes>,
    pub debug_info: Option<Bytes>,
    /// The nodes in the file's order.
    pub order: Vec<NodeId>,
    nodes: HashMap<NodeId, KeptNode>,
}

/// What is kept of a node.
#[derive(Default)]
struct KeptNode {
    input: Option<Vec<String>>,
    device: Option<String>,
    /// Attributes to write in this form; without a value, those to leave out.
    attrs: Vec<(String, Option<AttrValue>)>,
    debug_info: Option<Bytes>,
    full_type: Option<Bytes>,
}

impl Kept {
    /// Compares what would be written with what was read.
    pub fn new(graph: &Graph, def: &GraphDef, ids: &[NodeId]) -> Result<Kept> {
        let nodes = graph.nodes();
        let plain = Plain { nodes: &nodes };
        let mut kept = HashMap::with_capacity(nodes.len());
        for (read, id) in def.node.iter().zip(ids) {
            let written = plain.node(&nodes[id.index()]).map_err(Error::invalid)?;
            kept.insert(*id, KeptNode::new(read, &written));
        }
        Ok(Kept {
            versions: def.versions.clone(),
            version: def.version,
            library: def.library.clone(),
            debug_info: def.debug_info.clone(),
            order: ids.to_vec(),
            nodes: kept,
        })
    }

    /// True if the node was in the file.
    pub fn has(&self, id: NodeId) -> bool {
        self.nodes.contains_key(&id)
    }

    /// Gives a node that was written anew the form that it had in the file. Its device stays, if `devices` says so.
    pub fn restore(&self, id: NodeId, def: &mut NodeDef, devices: bool) {
        let Some(kept) = self.nodes.get(&id) else { return };
        if let Some(input) = &kept.input {
            def.input.clone_from(input);
        }
        if let (Some(device), false) = (&kept.device, devices) {
            def.device.clone_from(device);
        }
        for (name, value) in &kept.attrs {
            match value {
                Some(value) => def.attr.insert(name.clone(), value.clone()),
                None => def.attr.remove(name),
            };
        }
        def.experimental_debug_info.clone_from(&kept.debug_info);
        def.experimental_type.clone_from(&kept.full_type);
    }
}

impl KeptNode {
    fn new(read: &NodeDef, written: &NodeDef) -> KeptNode {
        let differs = |(name, value): &(&String, &AttrValue)| written.attr.get(*name) != Some(*value);
        let other = read.attr.iter().filter(differs).map(|(n, v)| (n.clone(), Some(v.clone())));
        let filled_in = written.attr.keys().filter(|n| !read.attr.contains_key(*n)).map(|n| (n.clone(), None));
        KeptNode {
            input: (read.input != written.input).then(|| read.input.clone()),
            device: (read.device != written.device).then(|| read.device.clone()),
            attrs: other.chain(filled_in).collect(),
            debug_info: read.experimental_debug_info.clone(),
            full_type: read.experimental_type.clone(),
        }
    }
}
