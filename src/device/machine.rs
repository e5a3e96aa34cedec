//! The devices of one machine: the host and its GPUs, and which pairs reach each other's memory.
//!
//! Invariant: describing a machine starts no thread and takes no memory; a session does both, for the devices it uses.

use crate::base::{DeviceSpec, Error, Result};
use std::fmt;

/// A device of a machine: 0 is the host, `1 + i` is GPU `i`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// The host.
    pub const HOST: DeviceId = DeviceId(0);

    /// The id as an index into the machine's devices.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// True for the host.
    pub fn is_host(self) -> bool {
        self == DeviceId::HOST
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("cpu:0"),
            n => write!(f, "gpu:{}", n - 1),
        }
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// The host's processor and memory.
    Host,
    /// A GPU that the host plays: own memory, own queue and threads, real copies, host arithmetic.
    SimulatedGpu,
}

/// One device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its id.
    pub id: DeviceId,
    /// The full name, as in `/job:localhost/replica:0/task:0/device:GPU:0`.
    pub name: DeviceSpec,
    /// What it is.
    pub kind: DeviceKind,
    /// The threads that its kernels use.
    pub threads: usize,
    /// The most bytes that sessions may take on it, if there is a limit.
    pub memory_limit: Option<u64>,
}

impl DeviceInfo {
    /// The name without job, replica and task, as in `/device:GPU:0`.
    pub fn short_name(&self) -> String {
        DeviceSpec {
            device_type: self.name.device_type.clone(),
            device_index: self.name.device_index,
            ..DeviceSpec::any()
        }
        .to_string()
    }

    /// What stands behind it, in words.
    pub fn physical(&self) -> String {
        let threads = if self.threads == 1 { "1 thread".into() } else { format!("{} threads", self.threads) };
        match self.kind {
            DeviceKind::Host => format!("host processor, {threads}"),
            DeviceKind::SimulatedGpu => format!("simulated on the host, {threads}"),
        }
    }
}

/// Which GPUs reach each other's memory directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Peers {
    /// Every pair.
    #[default]
    All,
    /// GPUs `2i` and `2i + 1`.
    Pairs,
    /// None: every copy between GPUs goes through the host.
    None,
}

/// One host and its GPUs.
#[derive(Clone, Debug)]
pub struct Machine {
    devices: Vec<DeviceInfo>,
    peers: Peers,
}

impl Machine {
    /// The most simulated GPUs of a machine: more threads than that help nobody.
    pub const MAX_GPUS: usize = 1024;

    /// The most threads of one device.
    pub const MAX_THREADS: usize = 256;

    /// A host alone, with all its processors.
    pub fn host() -> Machine {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Machine { devices: vec![info(DeviceId::HOST, DeviceKind::Host, threads)], peers: Peers::All }
    }

    /// A host and this many simulated GPUs with one thread each; at most [`Machine::MAX_GPUS`].
    pub fn simulated(gpus: usize) -> Machine {
        let mut machine = Machine::host();
        let gpus = gpus.min(Machine::MAX_GPUS) as u16;
        machine.devices.extend((1..=gpus).map(|i| info(DeviceId(i), DeviceKind::SimulatedGpu, 1)));
        machine
    }

    /// The machine that a `--devices` text asks for: `auto`, `cpu`, `sim:N`, `sim:N@all|pairs|none`.
    ///
    /// # Errors
    /// A text that is none of these, or more simulated GPUs than [`Machine::MAX_GPUS`].
    pub fn parse(text: &str) -> Result<Machine> {
        let bad = |why: &str| {
            Error::invalid(format!("'{text}' is not a machine: {why}; want auto, cpu, sim:N or sim:N@all|pairs|none"))
        };
        match text {
            "auto" => return Ok(Machine::simulated(2)),
            "cpu" => return Ok(Machine::host()),
            _ => {}
        }
        let Some(rest) = text.strip_prefix("sim:") else {
            return Err(bad(if text.starts_with("cuda") { "CUDA is not in this version" } else { "unknown kind" }));
        };
        let (count, peers) = rest.split_once('@').unwrap_or((rest, "all"));
        let count: usize = count.parse().map_err(|_| bad("the number of GPUs is no number"))?;
        if count > Machine::MAX_GPUS {
            return Err(bad(&format!("at most {} simulated GPUs", Machine::MAX_GPUS)));
        }
        let peers = match peers {
            "all" => Peers::All,
            "pairs" => Peers::Pairs,
            "none" => Peers::None,
            _ => return Err(bad("unknown topology")),
        };
        Ok(Machine::simulated(count).with_peers(peers))
    }

    /// The same machine with another number of host threads, 1 to [`Machine::MAX_THREADS`].
    pub fn with_host_threads(mut self, threads: usize) -> Machine {
        self.devices[0].threads = threads.clamp(1, Machine::MAX_THREADS);
        self
    }

    /// The same machine with another number of threads for each GPU, 1 to [`Machine::MAX_THREADS`].
    pub fn with_gpu_threads(mut self, threads: usize) -> Machine {
        self.devices[1..].iter_mut().for_each(|d| d.threads = threads.clamp(1, Machine::MAX_THREADS));
        self
    }

    /// The same machine with a memory limit on each GPU, in bytes.
    pub fn with_gpu_memory(mut self, bytes: u64) -> Machine {
        self.devices[1..].iter_mut().for_each(|d| d.memory_limit = Some(bytes));
        self
    }

    /// The same machine with other links between GPUs.
    pub fn with_peers(mut self, peers: Peers) -> Machine {
        self.peers = peers;
        self
    }

    /// All devices; the host is the first.
    pub fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    /// One device.
    pub fn device(&self, id: DeviceId) -> &DeviceInfo {
        &self.devices[id.index()]
    }

    /// Number of GPUs.
    pub fn gpus(&self) -> usize {
        self.devices.len() - 1
    }

    /// True if one device reads the other's memory directly. The host and a GPU always do.
    pub fn has_direct_link(&self, a: DeviceId, b: DeviceId) -> bool {
        if a == b || a.is_host() || b.is_host() {
            return true;
        }
        match self.peers {
            Peers::All => true,
            Peers::Pairs => (a.0 - 1) / 2 == (b.0 - 1) / 2,
            Peers::None => false,
        }
    }

    /// The devices that a full or partial name allows, in the machine's order.
    pub fn matching(&self, spec: &DeviceSpec) -> Vec<DeviceId> {
        self.devices.iter().filter(|d| spec.allows(&d.name)).map(|d| d.id).collect()
    }
}

fn info(id: DeviceId, kind: DeviceKind, threads: usize) -> DeviceInfo {
    let (device_type, index) = if id.is_host() { ("CPU", 0) } else { ("GPU", u32::from(id.0) - 1) };
    let name = DeviceSpec {
        job: Some("localhost".into()),
        replica: Some(0),
        task: Some(0),
        device_type: Some(device_type.into()),
        device_index: Some(index),
    };
    DeviceInfo { id, name, kind, threads, memory_limit: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_parsed_or_explained() {
        assert_eq!(Machine::parse("sim:4@pairs").unwrap().gpus(), 4);
        assert_eq!(Machine::parse("cpu").unwrap().gpus(), 0);
        for bad in ["sim", "sim:x", "sim:2@ring", "gpu", "", "sim:99999999999"] {
            assert!(Machine::parse(bad).unwrap_err().to_string().contains("is not a machine"), "{bad}");
        }
    }

    #[test]
    fn links_follow_the_topology() {
        let m = Machine::simulated(4).with_peers(Peers::Pairs);
        let gpu = |i: u16| DeviceId(i + 1);
        assert!(m.has_direct_link(gpu(0), gpu(1)) && m.has_direct_link(gpu(2), gpu(3)));
        assert!(!m.has_direct_link(gpu(1), gpu(2)) && !m.has_direct_link(gpu(0), gpu(3)));
        assert!(m.has_direct_link(DeviceId::HOST, gpu(3)));
    }
}
