//! The copies of one step: what travels, from where to where, by which route, for whom; and the sums over GPUs that NCCL
//! makes, with what each GPU sends in a ring.

use super::tables::{csv, human_bytes, table};
use crate::device::{DeviceId, Machine};
use crate::graph::TensorId;
use crate::plan::{Route, Schedule};
use indexmap::IndexMap;
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
    /// `direct`, or `through host`, which moves the bytes twice; `spared` for a number that is known before the step and
    /// whose node asks for another device than its readers': TensorFlow copies it in every step, turret does not.
    pub route: &'static str,
    /// True for a fed value on its way to a placeholder on a GPU.
    pub fed: bool,
    /// The operations there that read it.
    pub consumers: Vec<String>,
}

/// One sum over several GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AllReduceRow {
    /// The node, as in `average/affine0/w/sum`.
    pub name: String,
    /// The devices that give a part each and get the whole.
    pub devices: Vec<String>,
    /// The sizes of a part.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: String,
    /// Its bytes.
    pub bytes: u64,
    /// The bytes that each device sends, and gets, in a ring of `n`: `2 (n - 1) / n` of a part's.
    pub bytes_per_device: u64,
    /// The operations that read a sum.
    pub consumers: Vec<String>,
}

/// The copies of one step, in the step's order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CopyTable {
    /// The copies.
    pub copies: Vec<CopyRow>,
    /// Bytes of all copies of a step; what is spared does not count.
    pub total_bytes: u64,
    /// Bytes of copies from memory to memory.
    pub direct_bytes: u64,
    /// Bytes of copies through host memory.
    pub through_host_bytes: u64,
    /// Sums over GPUs that NCCL makes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub all_reduces: Vec<AllReduceRow>,
}

const DIRECT: &str = "direct";
const THROUGH_HOST: &str = "through host";
const SPARED: &str = "spared";
const HEADS: [&str; 7] = ["tensor", "from", "to", "shape", "bytes", "route", "consumers"];

impl CopyTable {
    /// The copies of a scheduled step.
    pub fn new(schedule: &Schedule, machine: &Machine) -> CopyTable {
        let step = &schedule.step;
        let mut readers: HashMap<_, Vec<String>> = HashMap::new();
        for node in &step.nodes {
            for (i, &input) in node.inputs.iter().enumerate() {
                if !node.inputs[..i].contains(&input) {
                    let list = readers.entry(input).or_default();
                    match node.fusion.is_some() {
                        true => list.extend(node.readers(i).iter().map(|r| step.pruned.node(*r).name.to_string())),
                        false => list.push(node.name.to_string()),
                    }
                }
            }
        }
        let mut copies: Vec<CopyRow> = (step.copies())
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
        let bytes = |route: &str| copies.iter().filter(|c| c.route == route).map(|c| c.bytes).sum::<u64>();
        let (direct_bytes, through_host_bytes) = (bytes(DIRECT), bytes(THROUGH_HOST));
        let total_bytes = direct_bytes + through_host_bytes;
        copies.extend(spared(schedule, machine));
        let all_reduces = step.all_reduces().map(|(node, sum)| {
            let mut consumers: Vec<String> = Vec::new();
            for reader in node.outputs.iter().filter_map(|o| readers.remove(o)).flatten() {
                if !consumers.contains(&reader) {
                    consumers.push(reader);
                }
            }
            AllReduceRow {
                name: node.name.to_string(),
                devices: sum.devices.iter().map(|d| machine.device(*d).short_name()).collect(),
                shape: step.value(node.outputs[0]).desc.dims.to_vec(),
                dtype: step.value(node.outputs[0]).desc.dtype.to_string(),
                bytes: sum.bytes as u64,
                bytes_per_device: sum.bytes_per_device() as u64,
                consumers,
            }
        });
        let all_reduces = all_reduces.collect();
        CopyTable { total_bytes, direct_bytes, through_host_bytes, copies, all_reduces }
    }

    /// The bytes that all devices together send: those of the copies, and each device's of the sums over GPUs.
    pub fn sent_bytes(&self) -> u64 {
        let sums = self.all_reduces.iter().map(|a| a.bytes_per_device * a.devices.len() as u64);
        self.total_bytes + sums.sum::<u64>()
    }

    /// The rows of the table, with at most so many consumers by name.
    fn rows(&self, named: usize) -> impl Iterator<Item = Vec<String>> {
        let sums = self.all_reduces.iter().map(move |a| a.fields(named));
        self.copies.iter().map(move |c| c.fields(named)).chain(sums)
    }

    /// The table, and totals by pair of devices and by route, for people.
    pub fn text(&self) -> String {
        let mut text = table(&HEADS, &["bytes"], self.rows(3));
        text.push('\n');
        let mut pairs: Vec<(&str, &str, usize, u64)> = Vec::new();
        let of_steps = || self.copies.iter().filter(|c| c.route != SPARED);
        for copy in of_steps() {
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
        let (sums, per_device) = (self.all_reduces.len(), self.all_reduces.iter().map(|a| a.bytes_per_device).sum());
        if sums > 0 {
            let sums = if sums == 1 { "1 all-reduce".to_string() } else { format!("{sums} all-reduces") };
            text.push_str(&format!("{sums}: {} out of each device, as a ring sends them\n", human_bytes(per_device)));
        }
        let (count, total) = (of_steps().count(), self.total_bytes);
        text.push_str(&format!("total: {}, {total} bytes, {}{routes}\n", counted(count), human_bytes(total)));
        let spared = self.copies.iter().filter(|c| c.route == SPARED);
        let (count, bytes) = spared.fold((0, 0), |(n, bytes), c| (n + 1, bytes + c.bytes));
        if count > 0 {
            let bytes = human_bytes(bytes);
            text.push_str(&format!("spared: {} of known numbers, {bytes}, that TensorFlow makes\n", counted(count)));
        }
        text
    }

    /// The copies as comma-separated values.
    pub fn csv(&self) -> String {
        csv(&HEADS, self.rows(usize::MAX))
    }
}

fn counted(copies: usize) -> String {
    format!("{copies} {}", if copies == 1 { "copy" } else { "copies" })
}

impl CopyRow {
    /// The fields of a row, with at most so many consumers by name.
    fn fields(&self, named: usize) -> Vec<String> {
        let consumers = listed(&self.consumers, named);
        let shape = format!("{:?}", self.shape);
        let (from, to) = (self.from.clone(), self.to.clone());
        vec![self.tensor.clone(), from, to, shape, self.bytes.to_string(), self.route.to_string(), consumers]
    }
}

impl AllReduceRow {
    /// The fields of a row among copies: from its devices to each of them.
    fn fields(&self, named: usize) -> Vec<String> {
        let (devices, shape) = (self.devices.join(" "), format!("{:?}", self.shape));
        let (bytes, consumers) = (self.bytes_per_device.to_string(), listed(&self.consumers, named));
        vec![self.name.clone(), devices, "each".into(), shape, bytes, "all-reduce".into(), consumers]
    }
}

/// The copies that TensorFlow makes of numbers which are known before the step: turret computes with them while it plans,
/// and lays down what is left where it is read. Integers do not count, which TensorFlow keeps on the host; nor do nodes that
/// ask for no device, which go where they are read.
fn spared(schedule: &Schedule, machine: &Machine) -> Vec<CopyRow> {
    let (pruned, placed) = (&schedule.step.pruned, &schedule.step.placed);
    let mut found: IndexMap<(TensorId, DeviceId), Vec<String>> = IndexMap::new();
    for node in pruned.needed().map(|id| pruned.node(id)) {
        let Some(to) = placed.get(node.id) else { continue };
        for &tensor in &node.inputs {
            let producer = pruned.node(tensor.node);
            let is_asked = !producer.device.spec.is_empty() && pruned.value(tensor).is_some();
            let travels = placed.get(producer.id).is_some_and(|from| from.device != to.device);
            if is_asked && travels && producer.outputs[tensor.output as usize].dtype.is_floating() {
                let readers = found.entry((tensor, to.device)).or_default();
                if !readers.contains(&node.name.to_string()) {
                    readers.push(node.name.to_string());
                }
            }
        }
    }
    let row = |((tensor, to), consumers): ((TensorId, DeviceId), Vec<String>)| {
        let desc = pruned.desc(tensor);
        CopyRow {
            tensor: schedule.step.tensor_name(tensor),
            from: machine.device(placed.device(tensor.node)).short_name(),
            to: machine.device(to).short_name(),
            shape: desc.dims.to_vec(),
            dtype: desc.dtype.to_string(),
            bytes: desc.bytes() as u64,
            route: SPARED,
            fed: false,
            consumers,
        }
    };
    found.into_iter().map(row).collect()
}

/// At most so many names, and how many more there are.
fn listed(names: &[String], most: usize) -> String {
    let mut text = names.iter().take(most).cloned().collect::<Vec<_>>().join(" ");
    if names.len() > most {
        text.push_str(&format!(" and {} more", names.len() - most));
    }
    text
}
