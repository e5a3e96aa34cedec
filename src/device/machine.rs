//! The devices of one machine: the host and its GPUs, and which pairs reach each other's memory.
//!
//! Invariant: describing a machine starts no thread, takes no memory and opens no GPU; a session does, for the devices
//! that its plans use.

use super::cuda::{self, CudaIdentity, Library};
use super::lane::{Lane, QueueId};
use crate::base::{Code, DeviceSpec, Error, Result};
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
    /// A CUDA GPU.
    Cuda,
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
    /// Which GPU it is, for one of kind [`DeviceKind::Cuda`].
    pub cuda: Option<CudaIdentity>,
    /// True for a host whose memory CUDA GPUs may copy from and to, so that it must be in pages of its own.
    pub pinnable: bool,
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
        match (self.kind, &self.cuda) {
            (DeviceKind::Host, _) => format!("host processor, {threads}"),
            (_, Some(gpu)) => {
                let context = if gpu.instance > 0 { format!(", context {}", gpu.instance) } else { String::new() };
                format!("{}, GPU {} at {}{context}", gpu.name, gpu.physical, gpu.pci)
            }
            _ => format!("simulated on the host, {threads}"),
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
    /// For CUDA GPUs, row by row: whether the first reads the second's memory.
    reaches: Vec<bool>,
    /// NCCL can be used.
    nccl: bool,
}

impl Machine {
    /// The most simulated GPUs of a machine: more threads than that help nobody.
    pub const MAX_GPUS: usize = 1024;

    /// The most threads of one device.
    pub const MAX_THREADS: usize = 256;

    /// A host alone, with all its processors.
    pub fn host() -> Machine {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Machine {
            devices: vec![info(DeviceId::HOST, DeviceKind::Host, threads)],
            peers: Peers::All,
            reaches: Vec::new(),
            nccl: false,
        }
    }

    /// A host and this many simulated GPUs with one thread each; at most [`Machine::MAX_GPUS`].
    pub fn simulated(gpus: usize) -> Machine {
        let mut machine = Machine::host();
        let gpus = gpus.min(Machine::MAX_GPUS) as u16;
        machine.devices.extend((1..=gpus).map(|i| info(DeviceId(i), DeviceKind::SimulatedGpu, 1)));
        machine
    }

    /// A host and these CUDA GPUs, by the driver's numbers, in this order. A GPU named twice plays two devices, each with
    /// a context of its own.
    ///
    /// # Errors
    /// Which library is missing and why, or that there is no such GPU.
    pub fn cuda(gpus: &[usize]) -> Result<Machine> {
        let missing = |why: String| Error::new(Code::NotFound, format!("no CUDA device can be used: {why}"));
        let all = cuda::identities().map_err(missing)?;
        Library::ALL.iter().filter(|l| l.is_needed()).try_for_each(|l| cuda::find(*l).map_err(missing))?;
        let mut machine = Machine::host();
        machine.devices[0].pinnable = true;
        machine.nccl = cuda::find(Library::Nccl).is_ok();
        let mut identities: Vec<CudaIdentity> = Vec::new();
        for &gpu in gpus {
            let Some(identity) = all.get(gpu) else {
                let there = if all.len() == 1 { "0".into() } else { format!("0 to {}", all.len() - 1) };
                return Err(Error::new(
                    Code::NotFound,
                    format!("there is no CUDA GPU {gpu}; the driver shows {there}"),
                ));
            };
            let instance = identities.iter().filter(|i| i.ordinal == identity.ordinal).count() as u32;
            identities.push(CudaIdentity { instance, ..identity.clone() });
        }
        if identities.len() > Machine::MAX_GPUS {
            return Err(Error::invalid(format!("at most {} GPUs, got {}", Machine::MAX_GPUS, identities.len())));
        }
        machine.reaches = identities.iter().flat_map(|a| identities.iter().map(|b| a.reaches(b))).collect();
        for (i, identity) in identities.into_iter().enumerate() {
            let cuda = Some(identity);
            machine.devices.push(DeviceInfo { cuda, ..info(DeviceId(i as u16 + 1), DeviceKind::Cuda, 1) });
        }
        Ok(machine)
    }

    /// A host and CUDA GPUs that are not there, to plan for; several may be contexts of one GPU.
    #[cfg(test)]
    pub(crate) fn pretended_cuda(ordinals: &[i32]) -> Machine {
        let mut machine = Machine { nccl: true, ..Machine::host() };
        for (i, &ordinal) in ordinals.iter().enumerate() {
            let identity = CudaIdentity {
                ordinal,
                instance: ordinals[..i].iter().filter(|o| **o == ordinal).count() as u32,
                name: "none".into(),
                pci: String::new(),
                physical: ordinal.to_string(),
                memory_bytes: 1 << 30,
                has_cublaslt: true,
            };
            machine
                .devices
                .push(DeviceInfo { cuda: Some(identity), ..info(DeviceId(i as u16 + 1), DeviceKind::Cuda, 1) });
        }
        machine.reaches = vec![true; ordinals.len() * ordinals.len()];
        // With a limit, nobody asks the driver for the room that there is.
        machine.with_gpu_memory(1 << 30)
    }

    /// A host and every CUDA GPU that the driver shows.
    ///
    /// # Errors
    /// Which library is missing and why, or that there is no GPU.
    pub fn all_cuda() -> Result<Machine> {
        let count = cuda::device_count().unwrap_or(1);
        Machine::cuda(&(0..count).collect::<Vec<_>>())
    }

    /// The machine that a `--devices` text asks for: `auto` (CUDA where it can be used, else `sim:2`), `auto:N` (CUDA
    /// GPUs where there are so many, else `sim:N`), `cpu`, `sim:N`, `sim:N@all|pairs|none`, `cuda` (every GPU), `cuda:0,1`
    /// (these).
    ///
    /// # Errors
    /// A text that is none of these, more simulated GPUs than [`Machine::MAX_GPUS`], or no CUDA.
    pub fn parse(text: &str) -> Result<Machine> {
        let bad = |why: &str| {
            Error::invalid(format!(
                "'{text}' is not a machine: {why}; want auto, auto:N, cpu, sim:N, sim:N@all|pairs|none, cuda or cuda:0,1"
            ))
        };
        match text {
            "auto" => return Ok(Machine::all_cuda().unwrap_or_else(|_| Machine::simulated(2))),
            "cpu" => return Ok(Machine::host()),
            "cuda" => return Machine::all_cuda(),
            _ => {}
        }
        if let Some(list) = text.strip_prefix("cuda:") {
            let numbers: std::result::Result<Vec<usize>, _> = list.split(',').map(|n| n.trim().parse()).collect();
            return Machine::cuda(&numbers.map_err(|_| bad("a GPU's number is no number"))?);
        }
        let count = |number: &str| {
            let count: usize = number.parse().map_err(|_| bad("the number of GPUs is no number"))?;
            match count > Machine::MAX_GPUS {
                true => Err(bad(&format!("at most {} simulated GPUs", Machine::MAX_GPUS))),
                false => Ok(count),
            }
        };
        if let Some(number) = text.strip_prefix("auto:") {
            let count = count(number)?;
            let which: Vec<usize> = (0..count).collect();
            let there = count > 0 && cuda::device_count().is_ok_and(|n| n >= count);
            let real = if there { Machine::cuda(&which).ok() } else { None };
            return Ok(real.unwrap_or_else(|| Machine::simulated(count)));
        }
        let Some(rest) = text.strip_prefix("sim:") else {
            return Err(bad("unknown kind"));
        };
        let (number, peers) = rest.split_once('@').unwrap_or((rest, "all"));
        let count = count(number)?;
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

    /// The same machine without NCCL: sums over GPUs are made by copies and kernels.
    pub fn without_nccl(mut self) -> Machine {
        self.nccl = false;
        self
    }

    /// True if NCCL sums over these devices in one call: different CUDA GPUs, at least two, each by its first context.
    pub fn all_reduces(&self, devices: &[DeviceId]) -> bool {
        let first_context = |d: &DeviceId| self.device(*d).cuda.as_ref().is_some_and(|c| c.instance == 0);
        let differ = devices.iter().enumerate().all(|(i, d)| !devices[..i].contains(d));
        self.nccl && devices.len() > 1 && differ && devices.iter().all(first_context)
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

    /// True if its GPUs are CUDA's.
    pub fn is_cuda(&self) -> bool {
        self.devices.iter().any(|d| d.kind == DeviceKind::Cuda)
    }

    /// The queues of its devices, in the devices' order: four for each CUDA GPU, one for any other device.
    pub fn queues(&self) -> Vec<QueueId> {
        let of = |d: &DeviceInfo| -> &[Lane] { if d.kind == DeviceKind::Cuda { &Lane::ALL } else { &Lane::ALL[..1] } };
        self.devices.iter().flat_map(|d| of(d).iter().map(|l| QueueId { device: d.id, lane: *l })).collect()
    }

    /// The queue that copies from one device to another: the receiver's, but a CUDA GPU also copies to the host.
    pub fn copying_queue(&self, from: DeviceId, to: DeviceId) -> QueueId {
        let is_cuda = |d: DeviceId| self.device(d).kind == DeviceKind::Cuda;
        match (is_cuda(from), is_cuda(to)) {
            (_, true) if from.is_host() => QueueId { device: to, lane: Lane::FromHost },
            (true, true) => QueueId { device: to, lane: Lane::Peer },
            (true, false) => QueueId { device: from, lane: Lane::ToHost },
            _ => QueueId::compute(to),
        }
    }

    /// True if one device reads the other's memory directly. The host and a GPU always do.
    pub fn has_direct_link(&self, a: DeviceId, b: DeviceId) -> bool {
        if a == b || a.is_host() || b.is_host() {
            return true;
        }
        if !self.reaches.is_empty() {
            return self.reaches[(a.index() - 1) * self.gpus() + b.index() - 1];
        }
        match self.peers {
            Peers::All => true,
            Peers::Pairs => (a.0 - 1) / 2 == (b.0 - 1) / 2,
            Peers::None => false,
        }
    }

    /// The devices that a full or partial name allows, in the machine's order.
    pub fn matching(&self, spec: &DeviceSpec) -> Vec<DeviceId> {
        // Who names one device is not shown all of them.
        let one = match (spec.device_type.as_deref(), spec.device_index) {
            (Some("CPU"), Some(0)) => Some(0),
            (Some("GPU"), Some(i)) => (i as usize).checked_add(1),
            _ => None,
        };
        let which = match one {
            Some(i) => self.devices.get(i..=i).unwrap_or_default(),
            None => &self.devices,
        };
        which.iter().filter(|d| spec.allows(&d.name)).map(|d| d.id).collect()
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
    DeviceInfo { id, name, kind, threads, memory_limit: None, cuda: None, pinnable: false }
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
