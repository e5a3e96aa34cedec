//! Phases: how the host and CUDA GPUs take turns in a step.
//!
//! A phase is host work that GPUs wait for, then GPU work that is enqueued in one go, then host work that may go on
//! beside it; then the host waits for the GPUs. A step whose GPUs need nothing of the host but what is there at its
//! beginning has one phase with GPU work, and so one launch.

use super::order::permute;
use super::step::{Partitioned, StepNode, StepNodeId};
use crate::device::{DeviceKind, Machine};

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

/// When a node's turn comes: its phase, then before, on, or beside the GPUs.
type Turn = (usize, u8);

const BEFORE: u8 = 0;
const ENQUEUED: u8 = 1;
const BESIDE: u8 = 2;

/// Puts the nodes of an ordered step in the order in which their turns come, so that a queue's order is the step's.
pub(super) fn order_by_turns(step: &mut Partitioned, machine: &Machine) {
    let turns = turns(step, machine);
    let mut sequence: Vec<StepNodeId> = (0..step.nodes.len() as u32).map(StepNodeId).collect();
    sequence.sort_by_key(|id| (turns[id.index()], *id));
    permute(step, &sequence);
}

/// The phases of a step whose nodes are in the order of their turns.
pub(super) fn plan_phases(step: &Partitioned, machine: &Machine) -> Vec<Phase> {
    let turns = turns(step, machine);
    let mut phases: Vec<Phase> = Vec::new();
    for (i, _) in step.nodes.iter().enumerate().filter(|(_, n)| !n.silent) {
        let (phase, part) = turns[i];
        phases.resize(phases.len().max(phase + 1), Phase::default());
        let id = StepNodeId(i as u32);
        match part {
            BEFORE => phases[phase].before.push(id),
            ENQUEUED => phases[phase].enqueued.push(id),
            _ => phases[phase].beside.push(id),
        }
    }
    phases
}

/// True for what CUDA GPUs do: the nodes on them, and copies from and to them.
fn on_gpu(machine: &Machine, node: &StepNode) -> bool {
    let is_cuda = |d| machine.device(d).kind == DeviceKind::Cuda;
    is_cuda(node.device) || node.copy().is_some_and(|c| is_cuda(c.from))
}

fn turns(step: &Partitioned, machine: &Machine) -> Vec<Turn> {
    let on_gpu: Vec<bool> = step.nodes.iter().map(|n| on_gpu(machine, n)).collect();
    let mut feeds_gpu = vec![false; step.nodes.len()];
    for (i, node) in step.nodes.iter().enumerate().rev() {
        if feeds_gpu[i] || (!node.silent && on_gpu[i]) {
            step.needed_nodes(node).for_each(|p| feeds_gpu[p.index()] = true);
        }
    }
    let mut turns: Vec<Turn> = vec![(0, BEFORE); step.nodes.len()];
    let mut after = vec![After::default(); step.nodes.len()];
    for (i, node) in step.nodes.iter().enumerate() {
        let mut needs = After::default();
        step.needed_nodes(node).for_each(|p| needs.join(after[p.index()]));
        let host = needs.host.unwrap_or(0);
        if node.silent {
            after[i] = needs;
            turns[i] = step.needed_nodes(node).map(|p| turns[p.index()]).max().unwrap_or((0, BEFORE));
        } else if on_gpu[i] {
            // A host node of a phase comes before the GPU work of the same phase.
            let phase = needs.gpu.unwrap_or(0).max(host);
            after[i] = After { gpu: Some(phase), host: None };
            turns[i] = (phase, ENQUEUED);
        } else {
            let phase = needs.gpu.map_or(0, |p| p + 1).max(host);
            after[i] = After { gpu: None, host: Some(phase) };
            turns[i] = (phase, if feeds_gpu[i] { BEFORE } else { BESIDE });
        }
    }
    turns
}
