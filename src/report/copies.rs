//! The copies of one step: what travels, from where to where, by which route, for whom.

use super::tables::{csv, human_bytes, table};
use crate::device::Machine;
use crate::plan::{Route, Schedule};
use serde::Serialize;
use std::collections::HashMap;

/// One copy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CopyRow {
    /// The tensor, as in `affine0/w/read:0`.
    pub tensor: String,
    /// The device that has it.
    pub from: String,
    /// The device that gets it.
    pub to: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: String,
    /// Bytes moved.
    pub bytes: u64,
    /// `direct`, or `through host`, which moves the bytes twice.
    pub route: &'static str,
    /// True for a fed value on its way to a placeholder on a GPU.
    pub fed: bool,
    /// The operations there that read it.
    pub consumers: Vec<String>,
}

/// The copies of one step, in the step's order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CopyTable {
    /// The copies.
    pub copies: Vec<CopyRow>,
    /// Bytes of all copies.
    pub total_bytes: u64,
    /// Bytes of copies from memory to memory.
    pub direct_bytes: u64,
    /// Bytes of copies through host memory.
    pub through_host_bytes: u64,
}

const DIRECT: &str = "direct";
const THROUGH_HOST: &str = "through host";
const HEADS: [&str; 7] = ["tensor", "from", "to", "shape", "bytes", "route", "consumers"];

impl CopyTable {
    /// The copies of a scheduled step.
    pub fn new(schedule: &Schedule, machine: &Machine) -> CopyTable {
        let step = &schedule.step;
        let mut readers: HashMap<_, Vec<String>> = HashMap::new();
        for node in &step.nodes {
            for (i, &input) in node.inputs.iter().enumerate() {
                if !node.inputs[..i].contains(&input) {
                    readers.entry(input).or_default().push(node.name.to_string());
                }
            }
        }
        let copies: Vec<CopyRow> = (step.copies())
            .map(|(node, copy)| CopyRow {
                tensor: step.tensor_name(copy.tensor),
                from: machine.device(copy.from).short_name(),
                to: machine.device(copy.to).short_name(),
                shape: step.value(node.outputs[0]).desc.dims.to_vec(),
                dtype: step.value(node.outputs[0]).desc.dtype.to_string(),
                bytes: copy.bytes as u64,
                route: if copy.route == Route::Direct { DIRECT } else { THROUGH_HOST },
                fed: copy.fed,
                consumers: readers.remove(&node.outputs[0]).unwrap_or_default(),
            })
            .collect();
        let bytes = |route: Option<&str>| {
            copies.iter().filter(|c| route.is_none_or(|r| r == c.route)).map(|c| c.bytes).sum::<u64>()
        };
        let (total_bytes, direct_bytes, through_host_bytes) =
            (bytes(None), bytes(Some(DIRECT)), bytes(Some(THROUGH_HOST)));
        CopyTable { total_bytes, direct_bytes, through_host_bytes, copies }
    }

    /// The table, and totals by pair of devices and by route, for people.
    pub fn text(&self) -> String {
        let mut text = table(&HEADS, &["bytes"], self.copies.iter().map(|c| c.fields(3)));
        text.push('\n');
        let mut pairs: Vec<(&str, &str, usize, u64)> = Vec::new();
        for copy in &self.copies {
            match pairs.iter_mut().find(|p| (p.0, p.1) == (&copy.from, &copy.to)) {
                Some(pair) => (pair.2, pair.3) = (pair.2 + 1, pair.3 + copy.bytes),
                None => pairs.push((&copy.from, &copy.to, 1, copy.bytes)),
            }
        }
        for (from, to, count, bytes) in pairs {
            text.push_str(&format!("{from} → {to}: {}, {}\n", counted(count), human_bytes(bytes)));
        }
        let routes = match self.through_host_bytes {
            0 => String::new(),
            through => {
                format!(" ({DIRECT} {}, {THROUGH_HOST} {})", human_bytes(self.direct_bytes), human_bytes(through))
            }
        };
        let (count, total) = (self.copies.len(), self.total_bytes);
        text.push_str(&format!("total: {}, {total} bytes, {}{routes}\n", counted(count), human_bytes(total)));
        text
    }

    /// The copies as comma-separated values.
    pub fn csv(&self) -> String {
        csv(&HEADS, self.copies.iter().map(|c| c.fields(usize::MAX)))
    }
}

fn counted(copies: usize) -> String {
    format!("{copies} {}", if copies == 1 { "copy" } else { "copies" })
}

impl CopyRow {
    /// The fields of a row, with at most so many consumers by name.
    fn fields(&self, named: usize) -> Vec<String> {
        let mut consumers = self.consumers.iter().take(named).cloned().collect::<Vec<_>>().join(" ");
        if self.consumers.len() > named {
            consumers.push_str(&format!(" and {} more", self.consumers.len() - named));
        }
        let shape = format!("{:?}", self.shape);
        let (from, to) = (self.from.clone(), self.to.clone());
        vec![self.tensor.clone(), from, to, shape, self.bytes.to_string(), self.route.to_string(), consumers]
    }
}
