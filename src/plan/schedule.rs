//! Schedule: each queue's sequence, the events between queues, and the memory.
//!
//! A device is one queue, but a CUDA GPU, whose copies have queues of their own.

use super::buffers;
use super::fusion::{Fusion, Tiled};
use super::memory::{MemoryPlan, plan_memory};
use super::phases::{Phase, order_by_turns, plan_phases};
use super::stages::StageTimes;
use super::step::{Origin, Partitioned, StepNodeId, StepNodeKind, ValueId};
use crate::base::{Code, Error, Result};
use crate::device::{DeviceId, Lane, Machine, QueueId};
use crate::graph::Cost;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A step, ready to be loaded.
pub struct Schedule {
    /// The nodes and values, in order.
    pub step: Partitioned,
    /// The machine's queues.
    pub queues: Vec<QueueId>,
    /// By node: the number of its queue.
    pub queue_of: Vec<usize>,
    /// By queue: its nodes, in order.
    pub sequences: Vec<Vec<StepNodeId>>,
    /// By node: the events to wait for before it.
    pub waits: Vec<SmallVec<[u32; 2]>>,
    /// By node: the event to mark after it.
    pub signals: Vec<Option<u32>>,
    /// By event: the queues that wait for it.
    pub events: Vec<SmallVec<[usize; 2]>>,
    /// How the host and CUDA GPUs take turns; empty where there are none.
    pub phases: Vec<Phase>,
    /// Where values live.
    pub memory: MemoryPlan,
}

impl Schedule {
    /// The work of one step by device: floating-point operations, and bytes that kernels read and write.
    pub fn work(&self) -> Vec<Cost> {
        let mut total = vec![Cost::default(); self.memory.compute_bytes.len()];
        for (i, node) in self.step.nodes.iter().enumerate() {
            total[node.device.index()] += self.cost(StepNodeId(i as u32));
        }
        total
    }

    /// The work of one node's kernel; none of copies and of nodes at which nothing runs.
    pub fn cost(&self, id: StepNodeId) -> Cost {
        let node = self.step.node(id);
        let (false, StepNodeKind::Op, Some(op)) = (node.silent, &node.kind, node.op) else { return Cost::default() };
        let bytes = |v: &ValueId| self.step.value(*v).desc.bytes() as f64;
        if let Some(Fusion::Chain(parts) | Fusion::Tiled(Tiled { parts, .. })) = node.fusion.as_deref() {
            return Cost {
                flops: parts.iter().map(|p| p.with_kernel_context(|c| p.op.cost(c)).flops).sum::<f64>(),
                bytes: node.inputs.iter().chain(&node.outputs).map(bytes).sum::<f64>(),
            };
        }
        let own = self.step.with_kernel_context(node, |c| op.cost(c));
        let Some(Fusion::Update { op_inputs, streams }) = node.fusion.as_deref() else { return own };
        let parts = streams.iter().flat_map(|s| &s.tiled.parts);
        Cost {
            flops: own.flops + parts.map(|p| p.with_kernel_context(|c| p.op.cost(c)).flops).sum::<f64>(),
            bytes: own.bytes + node.inputs[*op_inputs..].iter().map(bytes).sum::<f64>(),
        }
    }

    /// The devices that do something in the step, or hold something that it uses.
    pub fn devices(&self) -> Vec<DeviceId> {
        let mut takes_part = vec![false; self.memory.compute_bytes.len()];
        let working = self.queues.iter().zip(&self.sequences).filter(|(_, sequence)| !sequence.is_empty());
        let holding = self.step.values.iter().map(|v| v.device);
        working.map(|(q, _)| q.device).chain(holding).for_each(|d| takes_part[d.index()] = true);
        (0..takes_part.len() as u16).map(DeviceId).filter(|d| takes_part[d.index()]).collect()
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
    lay_out_timed(step, machine, &mut StageTimes::start())
}

/// As [`lay_out`], and tells what the stages `schedule` and `memory` took.
pub fn lay_out_timed(mut step: Partitioned, machine: &Machine, times: &mut StageTimes) -> Schedule {
    if machine.is_cuda() {
        order_by_turns(&mut step, machine);
    }
    let queues = machine.queues();
    // The queues are in the order of devices and lanes.
    let number = |queue: QueueId| queues.binary_search(&queue).unwrap_or(0);
    let mut sequences: Vec<Vec<StepNodeId>> = vec![Vec::new(); queues.len()];
    let mut queue_of = Vec::with_capacity(step.nodes.len());
    let mut position = Vec::with_capacity(step.nodes.len());
    for (i, node) in step.nodes.iter().enumerate() {
        let queue = number(match &node.kind {
            StepNodeKind::Copy(copy) => machine.copying_queue(copy.from, copy.to),
            StepNodeKind::AllReduce(_) => QueueId { device: node.device, lane: Lane::Peer },
            _ => QueueId::compute(node.device),
        });
        queue_of.push(queue);
        let sequence = &mut sequences[queue];
        position.push(sequence.len() as u32 + 1);
        sequence.push(StepNodeId(i as u32));
    }
    let phases = if machine.is_cuda() { plan_phases(&step, machine) } else { Vec::new() };
    let depends_on = depends_on_others(&step, &queue_of, machine.is_cuda());
    let mut told = vec![false; step.nodes.len()];
    depends_on.iter().flatten().for_each(|p| told[p.index()] = true);
    // What each queue knows to be done on others: by queue, how many of its nodes. Waiting teaches what the other knew.
    let mut knows: Vec<Arc<Known>> = vec![Arc::default(); queues.len()];
    let mut knew: Vec<Option<Arc<Known>>> = vec![None; step.nodes.len()];
    let mut signals = vec![None; step.nodes.len()];
    let mut waits: Vec<SmallVec<[u32; 2]>> = vec![SmallVec::new(); step.nodes.len()];
    let mut events: Vec<SmallVec<[usize; 2]>> = Vec::new();
    for i in 0..step.nodes.len() {
        let queue = queue_of[i];
        // A queue does not wait where it runs nothing.
        let waits_here = !(machine.is_cuda() && step.nodes[i].silent);
        for &producer in depends_on[i].iter().filter(|_| waits_here) {
            let (of, done) = (queue_of[producer.index()], position[producer.index()]);
            if knows[queue].get(&of).is_some_and(|known| *known >= done) {
                continue;
            }
            let event = *signals[producer.index()].get_or_insert_with(|| {
                events.push(SmallVec::new());
                events.len() as u32 - 1
            });
            waits[i].push(event);
            // No queue waits for an event twice: from then on it knows.
            events[event as usize].push(queue);
            let known = Arc::make_mut(&mut knows[queue]);
            for (&of, &done) in knew[producer.index()].iter().flat_map(|k| k.iter()).filter(|(of, _)| **of != queue) {
                let known = known.entry(of).or_default();
                *known = done.max(*known);
            }
            known.insert(of, done);
        }
        if told[i] {
            knew[i] = Some(knows[queue].clone());
        }
    }
    times.lap("schedule");
    let memory = plan_memory(&step, machine.devices().len());
    debug_assert_eq!(buffers::check(&step, &memory), Ok(()), "the memory plan");
    times.lap("memory");
    Schedule { step, queues, queue_of, sequences, waits, signals, events, phases, memory }
}

/// By queue: how many of its nodes are known to be done.
type Known = BTreeMap<usize, u32>;

/// What each node needs to be done on other queues. Where `through_silent` is set, nodes at which nothing runs stand for
/// what they need themselves, so that nobody waits for a node that no queue runs.
fn depends_on_others(step: &Partitioned, queue_of: &[usize], through_silent: bool) -> Vec<SmallVec<[StepNodeId; 2]>> {
    let of_silent = if through_silent { needs_of_silent(step) } else { Vec::new() };
    let nodes = step.nodes.iter().enumerate();
    nodes
        .map(|(i, node)| {
            let needed = step.needed_nodes(node);
            let elsewhere = |p: &StepNodeId| queue_of[p.index()] != queue_of[i];
            if !through_silent {
                return needed.filter(elsewhere).collect();
            }
            let mut needs: SmallVec<[StepNodeId; 2]> =
                needed.flat_map(|p| of_silent[p.index()].iter().copied()).collect();
            needs.sort_unstable();
            needs.dedup();
            needs.retain(|p| elsewhere(p));
            needs
        })
        .collect()
}

/// What stands for each node: itself, or what a node at which nothing runs needs.
fn needs_of_silent(step: &Partitioned) -> Vec<SmallVec<[StepNodeId; 2]>> {
    let mut all: Vec<SmallVec<[StepNodeId; 2]>> = Vec::with_capacity(step.nodes.len());
    for (i, node) in step.nodes.iter().enumerate() {
        let mut needs: SmallVec<[StepNodeId; 2]> = SmallVec::new();
        match node.silent {
            true => step.needed_nodes(node).for_each(|p| needs.extend_from_slice(&all[p.index()])),
            false => needs.push(StepNodeId(i as u32)),
        }
        needs.sort_unstable();
        needs.dedup();
        all.push(needs);
    }
    all
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
