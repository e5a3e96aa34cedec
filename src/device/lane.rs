//! The queues of a device: work in one runs in order, work in two is ordered by events alone.

use super::machine::DeviceId;
use std::fmt;

/// What a queue of a CUDA GPU is for. Other devices have one queue, for everything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Lane {
    /// Kernels.
    #[default]
    Compute = 0,
    /// Copies from the host.
    FromHost = 1,
    /// Copies to the host.
    ToHost = 2,
    /// Copies from other GPUs.
    Peer = 3,
}

impl Lane {
    /// All lanes of a CUDA GPU, in the order of their numbers.
    pub const ALL: [Lane; 4] = [Lane::Compute, Lane::FromHost, Lane::ToHost, Lane::Peer];
}

/// One queue of one device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct QueueId {
    /// The device.
    pub device: DeviceId,
    /// Which of its queues.
    pub lane: Lane,
}

impl QueueId {
    /// The queue that runs a device's kernels.
    pub fn compute(device: DeviceId) -> QueueId {
        QueueId { device, lane: Lane::Compute }
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lane {
            Lane::Compute => write!(f, "{}", self.device),
            Lane::FromHost => write!(f, "{} from host", self.device),
            Lane::ToHost => write!(f, "{} to host", self.device),
            Lane::Peer => write!(f, "{} from peers", self.device),
        }
    }
}
