//! The CUDA GPUs' part of a loaded plan: descriptions become commands, phases become segments.
//!
//! Invariant: all addresses are fixed when a plan is loaded; what is fed is copied into buffers of the plan.

use super::executable::{Layout, Loader};
use super::generators::OnGpu;
use super::room::not_enough;
use crate::base::{Code, Diagnostic, Error, Result};
use crate::device::cuda::{
    Addresses, AllReduce, Context, CudaBuffer, CudaCommand, CudaError, CudaErrorKind, CudaKernel, CudaLaunch, CudaStep,
    Event, FailureText, Gpu, Graphs, LibraryUse, MapStep, PeerRoute, PinnedMemory, Placed, Rank, StepFailure,
    ThroughHost, Upload, choose_kernel, load_kernel, map_kernel, prepare_kernels, route, write_now,
};
use crate::device::{DeviceId, DeviceInfo, DeviceKind, DeviceMemory, Failure, FailureKind, Span};
use crate::graph::{KernelContext, NodeId};
use crate::plan::{CopyInfo, Fusion, Origin, Part, Partitioned, Schedule, StepNode, StepNodeId, StepNodeKind, ValueId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The GPUs' part of a plan.
pub(super) struct CudaPart {
    pub step: CudaStep,
    /// By feed: where its bytes are in this run.
    fed: Vec<AtomicPtr<u8>>,
    feed_bytes: Vec<usize>,
    /// By phase: its segment.
    segment_of: Vec<Option<usize>>,
    /// The texts of checks that can fail, by step node.
    checks: HashMap<u32, FailureText>,
    /// Variables that are changed.
    pub written: Vec<NodeId>,
    _memory: Vec<DeviceMemory>,
    _state: Vec<OnGpu>,
}

/// An error of the driver's on this device.
pub(super) fn cuda_error(device: &DeviceInfo, error: CudaError) -> Error {
    let code = if error.kind == CudaErrorKind::OutOfMemory { Code::ResourceExhausted } else { Code::Internal };
    Error::new(code, format!("{} ({}): {error}", device.short_name(), device.physical()))
}

impl CudaPart {
    /// Loads what a schedule puts on CUDA GPUs; `None` where that is nothing.
    pub fn load(schedule: &Schedule, layout: &Layout, loader: &mut Loader<'_>) -> Result<Option<CudaPart>> {
        let devices: Vec<DeviceId> =
            (schedule.devices().into_iter()).filter(|d| loader.machine.device(*d).kind == DeviceKind::Cuda).collect();
        if devices.is_empty() {
            return Ok(None);
        }
        let gpus = devices.iter().map(|d| open(loader, *d)).collect::<Result<Vec<_>>>()?;
        let mut part =
            PartWriter { schedule, layout, gpus, memory: Vec::new(), state: Vec::new(), scratch: Vec::new() };
        // Copies from and to pageable memory work too, but cannot be captured.
        let pageable = part.pin(loader).err().map(|e| format!("host memory could not be pinned: {e}"));
        let described = part.describe(loader)?;
        part.write(described, pageable, loader).map(Some)
    }

    /// Points the plan at this run's feed.
    pub fn feed(&self, feed: usize, start: *mut u8) {
        self.fed[feed].store(start, Ordering::Relaxed);
    }

    /// Enqueues the feeds' copies.
    pub fn begin(&self) -> Result<(), StepFailure> {
        // SAFETY: the session points every feed at an array of the signature's size before a run, and runs one step at
        // a time.
        unsafe {
            self.step
                .begin(|feed| std::slice::from_raw_parts(self.fed[feed].load(Ordering::Relaxed), self.feed_bytes[feed]))
        }
    }

    /// The segment of a phase.
    pub fn segment(&self, phase: usize) -> Option<usize> {
        self.segment_of[phase]
    }

    /// What a check on a GPU reported in the step that just ended.
    pub fn failed_check(&self) -> Option<Failure> {
        let (node, position, value) = self.step.failed_check()?;
        let text = self.checks.get(&node).map_or_else(|| "a check failed".into(), |t| t(position, value));
        Some(Failure { node, message: text, kind: FailureKind::Checked })
    }

    /// What a failed call means for the run.
    pub fn failure(&self, failure: StepFailure, schedule: &Schedule) -> Failure {
        let lost = self.step.drain() || failure.lost;
        let fallback = || schedule.step.nodes.iter().position(|n| n.device == failure.device && !n.silent);
        let node = failure.node.or_else(|| fallback().map(|i| i as u32)).unwrap_or(0);
        let whose = if failure.node.is_some() { "" } else { " (one of the nodes on this device)" };
        let kind = if lost { FailureKind::Lost } else { FailureKind::Device };
        Failure { node, message: format!("{}{whose}", failure.error), kind }
    }

    /// The times of traced segments, with the device of each.
    pub fn spans(traces: &[(u64, crate::device::cuda::Trace)]) -> Vec<(DeviceId, Span)> {
        let of = |(start, trace): &(u64, crate::device::cuda::Trace)| {
            let shift = |s: crate::device::cuda::GpuSpan| {
                (s.device, Span { node: s.node, start_ns: start + s.start_ns, end_ns: start + s.end_ns })
            };
            trace.spans().into_iter().map(shift).collect::<Vec<_>>()
        };
        traces.iter().flat_map(of).collect()
    }

    /// Pairs of GPUs that do not get bytes to each other rightly, so that copies go through the host, and why.
    pub fn detours(&self, schedule: &Schedule) -> Vec<(DeviceId, DeviceId, String)> {
        let context = |d: DeviceId| self.step.gpus().iter().find(|g| g.device == d).map(|g| &g.context);
        let mut found: Vec<(DeviceId, DeviceId, String)> = Vec::new();
        for (_, copy) in schedule.step.copies() {
            if let (Some(from), Some(to)) = (context(copy.from), context(copy.to))
                && !found.iter().any(|f| (f.0, f.1) == (copy.from, copy.to))
                && let Ok(PeerRoute::Host(why)) = route(from, to)
            {
                found.push((copy.from, copy.to, why));
            }
        }
        found
    }
}

/// The session's handle of a GPU, opened on first use.
fn open(loader: &mut Loader<'_>, device: DeviceId) -> Result<Arc<Gpu>> {
    if let Some(gpu) = loader.gpus.iter().find(|g| g.device == device) {
        return Ok(gpu.clone());
    }
    let (info, account) = (loader.machine.device(device), &loader.accounts[device.index()]);
    let libraries = LibraryUse { tf32: loader.cuda_options.tf32, cudnn: loader.cuda_options.cudnn };
    let gpu = Arc::new(Gpu::open(info, account, libraries).map_err(|e| cuda_error(info, e))?);
    loader.gpus.push(gpu.clone());
    Ok(gpu)
}

struct PartWriter<'a> {
    schedule: &'a Schedule,
    layout: &'a Layout,
    gpus: Vec<Arc<Gpu>>,
    memory: Vec<DeviceMemory>,
    state: Vec<OnGpu>,
    /// By GPU: the address of its scratch memory.
    scratch: Vec<u64>,
}

/// A node's description, and the address of its state.
type Described = HashMap<StepNodeId, (CudaKernel, u64)>;

impl PartWriter<'_> {
    fn gpu(&self, device: DeviceId) -> usize {
        self.gpus.iter().position(|g| g.device == device).unwrap_or(0)
    }

    /// Pins the host memory that copies use.
    fn pin(&self, loader: &mut Loader<'_>) -> Result<(), CudaError> {
        let context = &self.gpus[0].context;
        let mut memory = self.layout.memory.iter().filter(|(d, _)| d.is_host());
        memory.try_for_each(|(_, m)| m.pin(context))?;
        let step = &self.schedule.step;
        for (node, copy) in step.copies() {
            let ends = [(copy.from, node.inputs[0]), (copy.to, node.outputs[0])];
            let variables = ends.iter().filter(|(d, _)| d.is_host()).filter_map(|(_, v)| step.variable(*v));
            variables.into_iter().try_for_each(|v| loader.store.pin(v, context))?;
        }
        Ok(())
    }

    /// What every node asks for; compiles it all, and takes scratch memory and states.
    fn describe(&mut self, loader: &mut Loader<'_>) -> Result<Described> {
        let mut described = Described::new();
        for (i, node) in self.schedule.step.nodes.iter().enumerate() {
            let on_gpu = self.gpus.iter().any(|g| g.device == node.device);
            if !on_gpu || node.silent || !matches!(node.kind, StepNodeKind::Op) {
                continue;
            }
            let kernel = choose_kernel(&self.gpus[self.gpu(node.device)], self.kernel(node)?);
            let state = self.state_of(node, &kernel, loader)?;
            described.insert(StepNodeId(i as u32), (kernel, state));
        }
        for gpu in &self.gpus {
            let info = loader.machine.device(gpu.device);
            let here = |id: &StepNodeId| self.schedule.step.node(*id).device == gpu.device;
            let kernels = described.iter().filter(|(id, _)| here(id)).map(|(_, (k, _))| k);
            prepare_kernels(gpu, kernels.clone()).map_err(|e| cuda_error(info, e))?;
            let bytes = kernels.map(|k| k.scratch_bytes).max().unwrap_or(0);
            let account = &loader.accounts[gpu.device.index()];
            let scratch = DeviceMemory::allocate(info, account, bytes)
                .map_err(|e| not_enough(self.schedule, info, loader.store, bytes, e))?;
            self.scratch.push(scratch.address().addr() as u64);
            self.memory.push(scratch);
        }
        Ok(described)
    }

    fn kernel(&self, node: &StepNode) -> Result<CudaKernel> {
        let Some(op) = node.op else { return Ok(CudaKernel::default()) };
        let step = &self.schedule.step;
        let described = match node.fusion.as_deref() {
            Some(Fusion::Chain(parts)) => chain_kernel(step, node, parts),
            Some(Fusion::Epilogue { bias, relu, .. }) => {
                step.with_kernel_context(node, |c| op.cuda_kernel(c)).map(|k| with_epilogue(k, *bias, *relu))
            }
            Some(Fusion::Tiled(_) | Fusion::Update { .. }) => Err("it was fused for the host".into()),
            None => step.with_kernel_context(node, |c| op.cuda_kernel(c)),
        };
        described.map_err(|message| {
            let message = format!("cannot prepare '{}' ({}) for CUDA: {message}", node.name, op.name());
            Diagnostic::at(Code::Unimplemented, message, step.pruned.node(node.node).source).into()
        })
    }

    fn state_of(&mut self, node: &StepNode, kernel: &CudaKernel, loader: &mut Loader<'_>) -> Result<u64> {
        let Some(first) = &kernel.state else { return Ok(0) };
        let info = loader.machine.device(node.device);
        let account = &loader.accounts[node.device.index()];
        let (state, address) = loader.generators.on_gpu(node.node, first, info, account)?;
        self.state.push(state);
        Ok(address)
    }

    fn write(self, described: Described, pageable: Option<String>, loader: &mut Loader<'_>) -> Result<CudaPart> {
        let step = &self.schedule.step;
        let first = loader.machine.device(self.gpus[0].device);
        let of_driver = |e| cuda_error(first, e);
        let checks: HashMap<u32, FailureText> =
            described.iter().filter_map(|(id, (k, _))| Some((id.0, k.failure.clone()?))).collect();
        let failure = match checks.is_empty() {
            true => None,
            false => {
                let bytes = 8 * (1 + step.nodes.len());
                Some(PinnedMemory::allocate(&self.gpus[0].context, bytes).map_err(of_driver)?)
            }
        };
        let failure_address = failure.as_ref().map_or(0, |f| f.start().addr() as u64);
        let events = self.events(loader)?;
        let mut uploads = Vec::new();
        let mut segments = Vec::new();
        let mut segment_of = Vec::new();
        // By event: the phase that marks it.
        let mut marked_in = vec![None; events.len()];
        for (turn, phase) in self.schedule.phases.iter().enumerate() {
            for event in phase.enqueued.iter().filter_map(|id| self.schedule.signals[id.index()]) {
                marked_in[event as usize] = events[event as usize].as_ref().map(|_| turn);
            }
        }
        for (turn, phase) in self.schedule.phases.iter().enumerate() {
            let mut commands = Vec::new();
            for &id in &phase.enqueued {
                let node = step.node(id);
                if let Some(upload) = self.upload(id, node) {
                    uploads.push(upload);
                    continue;
                }
                let queue = self.schedule.queues[self.schedule.queue_of[id.index()]];
                let (gpu, info) = (self.gpu(queue.device), loader.machine.device(queue.device));
                if self.lay_down(node).map_err(|e| self.at_node(node, info, e))? {
                    continue;
                }
                let (lane, writes) = (queue.lane, !node.written().is_empty());
                let mut add = |command| commands.push(Placed { node: id.0, gpu, lane, writes, command });
                // What earlier phases enqueued is done.
                let waits = self.schedule.waits[id.index()].iter().map(|e| *e as usize);
                waits.filter(|e| marked_in[*e] == Some(turn)).for_each(|e| add(CudaCommand::Wait(e)));
                match &node.kind {
                    StepNodeKind::Op => {
                        if let Some((kernel, state)) = described.get(&id) {
                            let at = |values: &[ValueId]| values.iter().map(|v| self.address(*v)).collect::<Vec<_>>();
                            let (inputs, outputs) = (at(&node.inputs), at(&node.outputs));
                            let addresses = Addresses {
                                inputs: &inputs,
                                outputs: &outputs,
                                scratch: self.scratch[gpu],
                                state: *state,
                                failure: failure_address,
                                node: id.0,
                            };
                            let loaded = load_kernel(&self.gpus[gpu], kernel, &addresses);
                            loaded.map_err(|e| self.at_node(node, info, e))?.into_iter().for_each(&mut add);
                        }
                    }
                    StepNodeKind::Copy(copy) => {
                        let command = self.copy(node, copy).map_err(|e| self.at_node(node, info, e))?;
                        command.into_iter().for_each(&mut add);
                    }
                    StepNodeKind::AllReduce(_) => {
                        let sum = self.all_reduce(node).map_err(|e| self.at_node(node, info, e))?;
                        add(CudaCommand::AllReduce(Box::new(sum)));
                    }
                    StepNodeKind::Snapshot => {
                        let (from, to) = (self.address(node.inputs[0]), self.address(node.outputs[0]));
                        let bytes = step.value(node.outputs[0]).desc.bytes();
                        (bytes > 0).then_some(CudaCommand::Within(to, from, bytes)).into_iter().for_each(&mut add);
                    }
                    StepNodeKind::Commit => {}
                }
                let signal = self.schedule.signals[id.index()].map(|e| e as usize);
                signal.filter(|e| events[*e].is_some()).map(CudaCommand::Signal).into_iter().for_each(&mut add);
            }
            segment_of.push((!commands.is_empty()).then_some(segments.len()));
            if !commands.is_empty() {
                segments.push(commands);
            }
        }
        let mut written: Vec<NodeId> =
            step.nodes.iter().flat_map(|n| n.written()).filter_map(|v| step.variable(v)).collect();
        written.sort_unstable();
        written.dedup();
        let feeds = &step.pruned.signature.feeds;
        let feed_bytes = feeds.iter().map(|f| f.dims.iter().product::<usize>() * f.dtype.size()).collect();
        let graphs = match pageable {
            Some(why) if loader.cuda_options.graphs => Graphs::Refused(why),
            _ if loader.cuda_options.graphs => Graphs::On,
            _ => Graphs::Off,
        };
        let step = CudaStep::new(self.gpus, events, segments, uploads, failure, graphs).map_err(of_driver)?;
        Ok(CudaPart {
            step,
            fed: feeds.iter().map(|_| AtomicPtr::default()).collect(),
            feed_bytes,
            segment_of,
            checks,
            written,
            _memory: self.memory,
            _state: self.state,
        })
    }

    /// The events that one stream marks and another waits for. The host's turns need none.
    fn events(&self, loader: &Loader<'_>) -> Result<Vec<Option<Event>>> {
        let schedule = self.schedule;
        let gpu = |queue: usize| self.gpus.iter().find(|g| g.device == schedule.queues[queue].device);
        let mut events: Vec<Option<Event>> = schedule.events.iter().map(|_| None).collect();
        for (i, event) in schedule.signals.iter().enumerate() {
            let Some(event) = event.map(|e| e as usize) else { continue };
            let Some(owner) = gpu(schedule.queue_of[i]) else { continue };
            let waited_for = schedule.events[event].iter().any(|q| gpu(*q).is_some());
            let (id, node) = (StepNodeId(i as u32), &schedule.step.nodes[i]);
            // What is uploaded, or known, has arrived before any segment begins.
            if waited_for && self.upload(id, node).is_none() && self.known_bytes(node).is_none() {
                let made = Event::new(&owner.context, false);
                events[event] = Some(made.map_err(|e| cuda_error(loader.machine.device(owner.device), e))?);
            }
        }
        Ok(events)
    }

    /// A copy of fed bytes, which goes before all segments.
    fn upload(&self, id: StepNodeId, node: &StepNode) -> Option<Upload> {
        node.copy()?;
        let (base, offset) = self.schedule.memory.roots.get(node.inputs[0]);
        let Origin::Fed(feed) = self.schedule.step.value(base).origin else { return None };
        let bytes = self.schedule.step.value(node.outputs[0]).desc.bytes();
        let to = (self.address(node.outputs[0]), bytes);
        Some(Upload { node: id.0, gpu: self.gpu(node.device), feed: (feed, offset), to })
    }

    /// Copies a constant's bytes once for all steps: nothing else is ever put where copies go. False for other nodes.
    fn lay_down(&self, node: &StepNode) -> Result<bool, CudaError> {
        let Some(bytes) = self.known_bytes(node) else { return Ok(false) };
        let context = &self.gpus[self.gpu(node.device)].context;
        // SAFETY: the destination is the plan's, which does not run yet.
        unsafe { write_now(context, self.address(node.outputs[0]), bytes)? };
        Ok(true)
    }

    /// What a copy from the host takes, where that is known when planned.
    fn known_bytes(&self, node: &StepNode) -> Option<&[u8]> {
        let copy = node.copy().filter(|c| c.from.is_host())?;
        let (base, offset) = self.schedule.memory.roots.get(node.inputs[0]);
        let array = self.schedule.step.value(base).known()?;
        Some(&array.bytes()[offset..offset + copy.bytes])
    }

    fn copy(&self, node: &StepNode, copy: &CopyInfo) -> Result<Option<CudaCommand>, CudaError> {
        let (from, to) = (node.inputs[0], node.outputs[0]);
        if copy.bytes == 0 {
            return Ok(None);
        }
        let (source, target) = (self.address(from), self.address(to));
        let host = |value| self.layout.start(self.schedule, value);
        Ok(Some(match (copy.from.is_host(), copy.to.is_host()) {
            (true, _) => CudaCommand::FromHost(target, host(from).cast_const(), copy.bytes),
            (_, true) => CudaCommand::ToHost(host(to), source, copy.bytes),
            _ => {
                let (sender, receiver) = (self.gpu(copy.from), self.gpu(copy.to));
                let contexts: [&Arc<Context>; 2] = [&self.gpus[sender].context, &self.gpus[receiver].context];
                match route(contexts[0], contexts[1])? {
                    PeerRoute::Direct | PeerRoute::Driver => CudaCommand::FromPeer(target, sender, source, copy.bytes),
                    PeerRoute::Host(_) => CudaCommand::ThroughHost(Box::new(ThroughHost {
                        to: target,
                        source: sender,
                        from: source,
                        staging: PinnedMemory::allocate(contexts[1], copy.bytes)?,
                        turns: [Event::new(contexts[1], false)?, Event::new(contexts[0], false)?],
                    })),
                }
            }
        }))
    }

    fn all_reduce(&self, node: &StepNode) -> Result<AllReduce, CudaError> {
        let step = &self.schedule.step;
        let rank = |(&from, &to): (&ValueId, &ValueId)| Rank {
            gpu: self.gpu(step.value(to).device),
            from: self.address(from),
            to: self.address(to),
        };
        let desc = &step.value(node.outputs[0]).desc;
        AllReduce::new(&self.gpus, node.inputs.iter().zip(&node.outputs).map(rank).collect(), desc.len(), desc.dtype)
    }

    fn address(&self, value: ValueId) -> u64 {
        self.layout.start(self.schedule, value).addr() as u64
    }

    fn at_node(&self, node: &StepNode, device: &DeviceInfo, error: CudaError) -> Error {
        let source = self.schedule.step.pruned.node(node.node).source;
        cuda_error(device, error).context(format!("preparing '{}'", node.name)).with_source(source)
    }
}

/// One kernel for a chain of element-wise ops.
fn chain_kernel(step: &Partitioned, node: &StepNode, parts: &[Part]) -> Result<CudaKernel, String> {
    let steps = parts.iter().map(|part| {
        let values = vec![None; part.inputs.len()];
        let outputs = std::slice::from_ref(&part.output);
        let context = KernelContext { attrs: &part.attrs, inputs: &part.inputs, outputs, values: &values };
        let map = part.op.cuda_map(&context).ok_or_else(|| format!("{} is not element-wise", part.op.name()))?;
        Ok(MapStep { map, dtype: part.output.dtype, operands: part.operands.clone() })
    });
    let steps = steps.collect::<Result<Vec<_>, String>>()?;
    let desc = |v: &ValueId| &step.value(*v).desc;
    let inputs: Vec<_> = node.inputs.iter().map(|v| (desc(v).dtype, desc(v).dims.clone())).collect();
    map_kernel(&steps, &inputs, &desc(&node.outputs[0]).dims)
}

/// A product's description with what follows it.
fn with_epilogue(mut kernel: CudaKernel, bias: Option<usize>, relu: bool) -> CudaKernel {
    for launch in &mut kernel.launches {
        if let CudaLaunch::Gemm(gemm) = launch {
            gemm.bias = bias.map(|i| CudaBuffer::Input(i, 0));
            gemm.relu = relu;
        }
    }
    kernel
}
