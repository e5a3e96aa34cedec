//! What a traced run tells: when each node ran, on which queue, and how many bytes it made or moved.

use crate::device::{DeviceId, QueueId, Span};
use crate::graph::{Cost, TensorDesc};
use crate::plan::{CopyInfo, Schedule, StepNodeId};
use std::sync::Arc;

/// When one node of a step ran.
#[derive(Clone, Debug)]
pub struct NodeSpan {
    /// The node's name, or a copy's as in `copy/affine0/w/read→gpu:1`.
    pub name: Arc<str>,
    /// What it does: an op type, the op types of a fused chain, or `copy`, `snapshot` and the like.
    pub what: String,
    /// The queue that ran it.
    pub queue: QueueId,
    /// Nanoseconds since the step began.
    pub start_ns: u64,
    /// Nanoseconds since the step began.
    pub end_ns: u64,
    /// Types and sizes of what it made.
    pub outputs: Vec<TensorDesc>,
    /// What it moved, if it is a copy.
    pub copy: Option<CopyInfo>,
    /// True for products of matrices and convolutions, and for what is fused with one.
    pub product: bool,
    /// The work of its kernel by the cost model; none of copies.
    pub cost: Cost,
}

impl NodeSpan {
    /// The span of a node of a step on a device. A sum over several has one on each.
    pub(super) fn new(schedule: &Schedule, device: DeviceId, span: Span) -> NodeSpan {
        let id = StepNodeId(span.node);
        let node = schedule.step.node(id);
        NodeSpan {
            name: node.name.clone(),
            what: schedule.step.what(node),
            queue: QueueId { device, lane: schedule.queues[schedule.queue_of[id.index()]].lane },
            start_ns: span.start_ns,
            end_ns: span.end_ns.max(span.start_ns),
            outputs: node.outputs.iter().map(|v| schedule.step.value(*v).desc.clone()).collect(),
            copy: node.copy().copied(),
            product: node.is_product(),
            cost: schedule.cost(id),
        }
    }

    /// Bytes of what it made; of a copy, what it moved.
    pub fn bytes(&self) -> u64 {
        self.outputs.iter().map(|d| d.bytes() as u64).sum()
    }
}

/// What a traced run did.
#[derive(Clone, Debug)]
pub struct RunMetadata {
    /// When each node ran, in the order of starts.
    pub spans: Vec<NodeSpan>,
    /// The copies of the step.
    pub copies: Vec<CopyInfo>,
    /// Nanoseconds from the beginning of the step to its end on all devices.
    pub total_ns: u64,
}
