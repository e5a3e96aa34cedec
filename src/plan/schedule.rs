//! Schedule: each device's sequence, the events between devices, and the memory.

use super::memory::{MemoryPlan, plan_memory};
use super::step::{Origin, Partitioned, StepNodeId, StepNodeKind, ValueId};
use crate::base::{Array, Code, Error, Result};
use crate::device::{DeviceId, Machine};
use crate::graph::{Cost, KernelContext, TensorDesc};
use smallvec::SmallVec;
use std::sync::Arc;

/// A step, ready to be loaded.
pub struct Schedule {
    /// The nodes and values, in order.
    pub step: Partitioned,
    /// By device: its nodes, in order.
    pub sequences: Vec<Vec<StepNodeId>>,
    /// By node: the events to wait for before it.
    pub waits: Vec<SmallVec<[u32; 2]>>,
    /// By node: the event to mark after it.
    pub signals: Vec<Option<u32>>,
    /// By event: the devices that wait for it.
    pub events: Vec<SmallVec<[DeviceId; 2]>>,
    /// Where values live.
    pub memory: MemoryPlan,
}

impl Schedule {
    /// The work of one step by device: floating-point operations, and bytes that kernels read and write.
    pub fn work(&self) -> Vec<Cost> {
        let mut total = vec![Cost::default(); self.sequences.len()];
        let desc = |v: &ValueId| self.step.value(*v).desc.clone();
        for node in self.step.nodes.iter().filter(|n| !n.silent && matches!(n.kind, StepNodeKind::Op)) {
            let Some(op) = node.op else { continue };
            let inputs: Vec<TensorDesc> = node.inputs.iter().map(desc).collect();
            let outputs: Vec<TensorDesc> = node.outputs.iter().map(desc).collect();
            let values: Vec<Option<Arc<Array>>> =
                node.inputs.iter().map(|v| self.step.value(*v).known().cloned()).collect();
            let context = KernelContext { attrs: &node.attrs, inputs: &inputs, outputs: &outputs, values: &values };
            let cost = op.cost(&context);
            let sum = &mut total[node.device.index()];
            *sum = Cost { flops: sum.flops + cost.flops, bytes: sum.bytes + cost.bytes };
        }
        total
    }

    /// The devices that do something in the step, or hold something that it uses.
    pub fn devices(&self) -> Vec<DeviceId> {
        let holds = |d: DeviceId| self.step.values.iter().any(|v| v.device == d);
        (0..self.sequences.len() as u16)
            .map(DeviceId)
            .filter(|&d| !self.sequences[d.index()].is_empty() || holds(d))
            .collect()
    }

    /// The nodes that hold most of a device's memory at their own time: name and bytes, largest first.
    pub fn largest_buffers(&self, device: DeviceId, count: usize) -> Vec<(String, usize)> {
        let mut buffers: Vec<(String, usize)> = (self.step.values.iter())
            .filter(|v| v.device == device && v.alias_of.is_none() && !matches!(v.origin, Origin::Fed(_)))
            .map(|v| (self.step.tensor_name(v.tensor), v.desc.bytes()))
            .collect();
        buffers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        buffers.dedup_by(|a, b| a.0 == b.0);
        buffers.truncate(count);
        buffers
    }
}

/// Lays a partitioned step out in time and memory.
///
/// # Errors
/// [`Code::ResourceExhausted`] when a device with a memory limit cannot hold its part: the device, the largest buffer
/// with its node, bytes wanted, the limit, and the largest holders.
pub fn schedule(step: Partitioned, machine: &Machine) -> Result<Schedule> {
    let schedule = lay_out(step, machine);
    check_memory(&schedule, machine)?;
    Ok(schedule)
}

/// As [`schedule`], whatever the devices' memory limits are.
pub fn lay_out(step: Partitioned, machine: &Machine) -> Schedule {
    let devices = machine.devices().len();
    let mut sequences: Vec<Vec<StepNodeId>> = vec![Vec::new(); devices];
    let mut position = Vec::with_capacity(step.nodes.len());
    for (i, node) in step.nodes.iter().enumerate() {
        let sequence = &mut sequences[node.device.index()];
        position.push(sequence.len() as u32 + 1);
        sequence.push(StepNodeId(i as u32));
    }
    let depends_on = |i: usize| -> SmallVec<[StepNodeId; 4]> {
        let node = &step.nodes[i];
        let data = node.inputs.iter().filter_map(|v| match step.value(*v).origin {
            Origin::Computed(producer) => Some(producer),
            _ => None,
        });
        data.chain(node.controls.iter().copied()).filter(|p| step.node(*p).device != node.device).collect()
    };
    let mut told = vec![false; step.nodes.len()];
    for i in 0..step.nodes.len() {
        depends_on(i).iter().for_each(|p| told[p.index()] = true);
    }
    // What each device knows to be done: by device, how many of its nodes. Waiting teaches what the other knew.
    let mut knows: Vec<Vec<u32>> = vec![vec![0; devices]; devices];
    let mut knew: Vec<Vec<u32>> = vec![Vec::new(); step.nodes.len()];
    let mut signals = vec![None; step.nodes.len()];
    let mut waits: Vec<SmallVec<[u32; 2]>> = vec![SmallVec::new(); step.nodes.len()];
    let mut events: Vec<SmallVec<[DeviceId; 2]>> = Vec::new();
    for i in 0..step.nodes.len() {
        let device = step.nodes[i].device;
        for producer in depends_on(i) {
            let from = step.node(producer).device;
            if knows[device.index()][from.index()] >= position[producer.index()] {
                continue;
            }
            let event = *signals[producer.index()].get_or_insert_with(|| {
                events.push(SmallVec::new());
                events.len() as u32 - 1
            });
            waits[i].push(event);
            if !events[event as usize].contains(&device) {
                events[event as usize].push(device);
            }
            let learned = knew[producer.index()].clone();
            knows[device.index()].iter_mut().zip(&learned).for_each(|(k, l)| *k = (*k).max(*l));
        }
        knows[device.index()][device.index()] = position[i];
        if told[i] {
            knew[i] = knows[device.index()].clone();
        }
    }
    let memory = plan_memory(&step, devices);
    Schedule { step, sequences, waits, signals, events, memory }
}

fn check_memory(schedule: &Schedule, machine: &Machine) -> Result<()> {
    for device in machine.devices() {
        let Some(limit) = device.memory_limit else { continue };
        let arena = schedule.memory.arena_bytes(device.id) as u64;
        if arena <= limit {
            continue;
        }
        let holders = schedule.largest_buffers(device.id, 3);
        let list: Vec<String> = holders.iter().map(|(name, bytes)| format!("'{name}' {bytes}")).collect();
        let largest = holders.first().map_or("", |h| h.0.as_str());
        return Err(Error::new(
            Code::ResourceExhausted,
            format!(
                "{} cannot hold its part of the step, such as '{largest}': {arena} bytes are needed beside variables, \
                 the limit is {limit}; the largest are {} (bytes); use a smaller batch, more towers, or a higher limit",
                device.short_name(),
                list.join(", ")
            ),
        ));
    }
    Ok(())
}
