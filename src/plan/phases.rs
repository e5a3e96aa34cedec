//! Phases: how the host and CUDA GPUs take turns in a step.
//!
//! A phase is host work that GPUs wait for, then GPU work that is enqueued in one go, then host work that may go on
//! beside it; then the host waits for the GPUs. A step whose GPUs need nothing of the host but what is there at its
//! beginning has one phase with GPU work, and so one launch.

use super::schedule::needed_nodes;
use super::step::{Partitioned, StepNodeId};
use crate::device::{DeviceKind, Machine, QueueId};

/// One turn of the host and one of the GPUs. Silent nodes are in none.
#[derive(Clone, Default, Debug, PartialEq)]
pub struct Phase {
    /// Host nodes that later GPU work needs.
    pub before: Vec<StepNodeId>,
    /// What is enqueued on the GPUs, in order.
    pub enqueued: Vec<StepNodeId>,
    /// Host nodes that no GPU waits for.
    pub beside: Vec<StepNodeId>,
}

/// The last phase of GPU nodes and of host nodes that something comes after, if any.
#[derive(Clone, Copy, Default)]
struct After {
    gpu: Option<usize>,
    host: Option<usize>,
}

impl After {
    fn join(&mut self, other: After) {
        self.gpu = self.gpu.max(other.gpu);
        self.host = self.host.max(other.host);
    }
}

/// Sorts the nodes of an ordered step into phases.
pub(super) fn plan_phases(step: &Partitioned, machine: &Machine, queue_of: &[usize], queues: &[QueueId]) -> Vec<Phase> {
    let on_gpu = |i: usize| machine.device(queues[queue_of[i]].device).kind == DeviceKind::Cuda;
    // The phase of a GPU node; for a host node the first in which it can run.
    let mut phase = vec![0; step.nodes.len()];
    let mut after = vec![After::default(); step.nodes.len()];
    for (i, node) in step.nodes.iter().enumerate() {
        let mut needs = After::default();
        needed_nodes(step, node).for_each(|p| needs.join(after[p.index()]));
        after[i] = if node.silent {
            needs
        } else if on_gpu(i) {
            // A host node of a phase comes before the GPU work of the same phase.
            phase[i] = needs.gpu.unwrap_or(0).max(needs.host.unwrap_or(0));
            After { gpu: Some(phase[i]), host: None }
        } else {
            phase[i] = needs.gpu.map_or(0, |p| p + 1).max(needs.host.unwrap_or(0));
            After { gpu: None, host: Some(phase[i]) }
        };
    }
    let mut feeds_gpu = vec![false; step.nodes.len()];
    for (i, node) in step.nodes.iter().enumerate().rev() {
        if feeds_gpu[i] || (!node.silent && on_gpu(i)) {
            needed_nodes(step, node).for_each(|p| feeds_gpu[p.index()] = true);
        }
    }
    let working = step.nodes.iter().enumerate().filter(|(_, n)| !n.silent);
    let count = working.clone().map(|(i, _)| phase[i] + 1).max().unwrap_or(0);
    let mut phases = vec![Phase::default(); count];
    for (i, _) in working {
        let id = StepNodeId(i as u32);
        let at = &mut phases[phase[i]];
        match (on_gpu(i), feeds_gpu[i]) {
            (true, _) => at.enqueued.push(id),
            (false, true) => at.before.push(id),
            (false, false) => at.beside.push(id),
        }
    }
    phases
}
