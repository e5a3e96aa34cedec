//! A schedule that is loaded: memory taken, kernels prepared, programs written, constants laid down.
//!
//! Invariant: running it again allocates nothing; feeds are used where they lie, fetches stay where they were computed.

use super::cuda::CudaPart;
use super::generators::Generators;
use super::room::{not_enough, padded};
use super::session::CudaOptions;
use super::store::VariableStore;
use super::tiling::{tile_stream, tiled_kernel};
use super::trace::NodeSpan;
use crate::base::{Array, Diagnostic, Error, Result};
use crate::device::cuda::{Gpu, Trace};
use crate::device::{
    Command, CpuKernel, DeviceId, DeviceKind, DeviceMemory, Event, Failure, FailureKind, Job, Machine, MemoryUse,
    Program, Step, Team, View, Waiter,
};
use crate::graph::{NodeId, TensorDesc};
use crate::plan::{CopyInfo, Fetch, Fusion, Origin, Route, Schedule, StepNode, StepNodeId, StepNodeKind, ValueId};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Kernels with a state of their own, such as random generators, by graph node and input sizes.
pub(super) type StatefulKernels = HashMap<(NodeId, Vec<TensorDesc>), Arc<CpuKernel>>;

/// What a plan is loaded into.
pub(super) struct Loader<'a> {
    pub machine: &'a Machine,
    pub accounts: &'a [Arc<MemoryUse>],
    pub waiters: &'a [Arc<Waiter>],
    pub store: &'a mut VariableStore,
    pub stateful: &'a mut StatefulKernels,
    pub generators: &'a mut Generators,
    pub gpus: &'a mut Vec<Arc<Gpu>>,
    pub cuda_options: CudaOptions,
}

/// A loaded plan.
pub(super) struct Executable {
    pub schedule: Schedule,
    pub step: Step,
    /// By device; `None` where a device has nothing to do.
    programs: Vec<Option<Program>>,
    /// For each feed, the views that point at it: device and view.
    feed_views: Vec<Vec<(DeviceId, u32, usize)>>,
    /// For each fetch that the step computes, where it is.
    fetch_views: Vec<Option<View>>,
    /// The CUDA GPUs' part, and by phase the host's commands before and beside it.
    cuda: Option<CudaPart>,
    turns: Vec<(Range<usize>, Range<usize>)>,
    traces: Mutex<Vec<(u64, Trace)>>,
    /// By device: arena, constants.
    _memory: Vec<(DeviceId, DeviceMemory)>,
    running: AtomicUsize,
    /// When the variables that it needs were seen to have values; [`VariableStore::are_initialized`] keeps it.
    pub initialized: AtomicU64,
}

impl Job for Executable {
    fn run(&self, device: usize, team: &Team) {
        let run = || {
            self.step.waiters[device].claim();
            self.run_program(device, team);
        };
        // A fault outside of any kernel still ends the step, rather than leaving the session waiting.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
            let message = "the device's queue panicked".into();
            self.step.fail(Failure { node: 0, message, kind: FailureKind::Panicked });
        }
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.step.waiters[DeviceId::HOST.index()].wake();
        }
    }
}

impl Executable {
    pub fn load(schedule: Schedule, loader: &mut Loader<'_>) -> Result<Executable> {
        let devices = loader.machine.devices().len();
        let mut plan = Layout::new(&schedule, loader)?;
        let mut programs = Vec::with_capacity(devices);
        let mut feed_views: Vec<Vec<(DeviceId, u32, usize)>> =
            vec![Vec::new(); schedule.step.pruned.signature.feeds.len()];
        let mut turns = Vec::new();
        for device in (0..devices as u16).map(DeviceId) {
            let mut writer = ProgramWriter::new(&schedule, &plan, device);
            if device.is_host() && !schedule.phases.is_empty() {
                for phase in &schedule.phases {
                    let before = writer.add_all(&phase.before, loader)?;
                    turns.push((before, writer.add_all(&phase.beside, loader)?));
                }
            } else if loader.machine.device(device).kind != DeviceKind::Cuda {
                let here = schedule.queues.partition_point(|q| q.device < device);
                writer.add_all(&schedule.sequences[here], loader)?;
            }
            for (view, feed, offset) in std::mem::take(&mut writer.feeds) {
                feed_views[feed].push((device, view, offset));
            }
            programs.push(writer.finish());
        }
        let cuda = CudaPart::load(&schedule, &plan, loader)?;
        let fetch_views = (schedule.step.fetches.iter())
            .map(|fetch| match fetch {
                Fetch::Value(value) => Some(plan.view(&schedule, *value)),
                _ => None,
            })
            .collect();
        let events = schedule.events.iter().map(|w| {
            let mut event = Event::default();
            event.waiters = w.iter().map(|q| schedule.queues[*q].device).collect();
            event
        });
        let step = Step::new(events.collect(), loader.waiters.to_vec());
        let memory = std::mem::take(&mut plan.memory);
        Ok(Executable {
            schedule,
            step,
            programs,
            feed_views,
            fetch_views,
            cuda,
            turns,
            traces: Mutex::default(),
            _memory: memory,
            running: AtomicUsize::new(0),
            initialized: AtomicU64::new(0),
        })
    }

    /// The GPUs that have something to do.
    pub fn gpus(&self) -> impl Iterator<Item = usize> {
        self.programs.iter().enumerate().skip(1).filter(|(_, p)| p.is_some()).map(|(i, _)| i)
    }

    /// Points the plan at this run's feeds, in the signature's order.
    ///
    /// # Safety
    /// No run is under way; the array lives until the next feed or the end of the last run.
    pub unsafe fn feed(&self, feed: usize, array: &Array) {
        for &(device, view, offset) in &self.feed_views[feed] {
            if let Some(program) = &self.programs[device.index()] {
                // SAFETY: by this function's contract; feeds are only read.
                unsafe { program.patch(view, array.start().wrapping_add(offset)) };
            }
        }
        if let Some(cuda) = &self.cuda {
            cuda.feed(feed, array.start());
        }
    }

    /// Begins a run: how many GPUs will report back.
    pub fn begin(&self, gpus: usize, trace: bool) {
        self.running.store(gpus, Ordering::SeqCst);
        self.step.begin(trace);
    }

    /// The CUDA GPUs' part.
    pub fn cuda(&self) -> Option<&CudaPart> {
        self.cuda.as_ref()
    }

    /// Runs the host's part on this thread, and waits for the GPUs.
    pub fn run_host(&self, team: &Team) {
        if let Some(cuda) = &self.cuda {
            if let Err(failure) = self.take_turns(cuda, team) {
                self.step.fail(failure);
            }
            return;
        }
        self.run_program(DeviceId::HOST.index(), team);
        self.step.waiters[DeviceId::HOST.index()].wait(|| self.running.load(Ordering::SeqCst) == 0);
    }

    /// Enqueues the GPUs' work and runs the host's, phase by phase. All that was enqueued is done when this returns.
    fn take_turns(&self, cuda: &CudaPart, team: &Team) -> Result<(), Failure> {
        let failed = |e| cuda.failure(e, &self.schedule);
        let mut traces = Vec::new();
        let host = |commands: &Range<usize>| {
            if let Some(program) = &self.programs[DeviceId::HOST.index()] {
                // SAFETY: as in `run_program`; the host's commands of a phase use what earlier phases have left.
                unsafe { program.execute_part(commands.clone(), &self.step, team) };
            }
            !self.step.aborted()
        };
        cuda.begin().map_err(failed)?;
        for (phase, (before, beside)) in self.turns.iter().enumerate() {
            if !host(before) {
                break;
            }
            let segment = cuda.segment(phase);
            if let Some(segment) = segment {
                let began = self.step.now();
                let writes = || self.step.about_to_write();
                let trace = cuda.step.launch(segment, began.is_some(), &writes).map_err(failed)?;
                traces.extend(began.zip(trace));
            }
            let goes_on = host(beside);
            if let Some(segment) = segment {
                cuda.step.wait(segment).map_err(failed)?;
            }
            if let Some(failure) = cuda.failed_check() {
                return Err(failure);
            }
            if !goes_on {
                break;
            }
        }
        *self.traces.lock().unwrap_or_else(|e| e.into_inner()) = traces;
        if self.step.aborted() {
            cuda.step.drain();
        }
        Ok(())
    }

    fn run_program(&self, device: usize, team: &Team) {
        if let Some(program) = &self.programs[device] {
            // SAFETY: the session runs one step at a time, each device's part on one thread; the schedule's events
            // order accesses, and its memory plan keeps living buffers apart.
            unsafe { program.execute(&self.step, team) };
        }
    }

    /// The bytes of a computed fetch of the last run.
    pub fn fetched(&self, fetch: usize) -> Option<&[u8]> {
        let view = self.fetch_views[fetch]?;
        // SAFETY: the view is in the host's arena, which this value owns; no run is under way.
        Some(unsafe { std::slice::from_raw_parts(view.start, view.len * view.dtype.size()) })
    }

    /// Type and sizes of a fetch.
    pub fn fetch_desc(&self, fetch: usize) -> TensorDesc {
        self.schedule.step.pruned.desc(self.schedule.step.pruned.signature.fetches[fetch])
    }

    /// When the nodes of the last traced run ran, in the order of starts.
    pub fn spans(&self) -> Vec<NodeSpan> {
        let traces = self.traces.lock().unwrap_or_else(|e| e.into_inner());
        let on_gpus = CudaPart::spans(&traces);
        let by_device = self.step.spans().into_iter().enumerate();
        let here = by_device.flat_map(|(d, spans)| spans.into_iter().map(move |s| (DeviceId(d as u16), s)));
        let mut spans: Vec<NodeSpan> =
            here.chain(on_gpus).map(|(device, span)| NodeSpan::new(&self.schedule, device, span)).collect();
        spans.sort_by_key(|s| (s.start_ns, s.end_ns, s.queue));
        spans
    }

    /// The copies of one step.
    pub fn copies(&self) -> impl Iterator<Item = &CopyInfo> {
        self.schedule.step.copies().map(|(_, c)| c)
    }
}

/// The addresses of a plan's values.
pub(super) struct Layout {
    /// By device: arena, constants.
    pub memory: Vec<(DeviceId, DeviceMemory)>,
    starts: Vec<*mut u8>,
}

impl Layout {
    fn new(schedule: &Schedule, loader: &mut Loader<'_>) -> Result<Layout> {
        let step = &schedule.step;
        let mut memory = Vec::new();
        let mut starts = vec![std::ptr::null_mut(); step.values.len()];
        let mut by_device: Vec<Vec<usize>> = vec![Vec::new(); loader.machine.devices().len()];
        step.values.iter().enumerate().for_each(|(i, value)| by_device[value.device.index()].push(i));
        for device in schedule.devices() {
            let here = &by_device[device.index()];
            let info = loader.machine.device(device);
            let arena_bytes = schedule.memory.arena_bytes(device);
            let constants: Vec<(usize, Arc<Array>)> =
                here.iter().filter_map(|&i| Some((i, step.values[i].known()?.clone()))).collect();
            // Constants on the host are used where the graph holds them.
            let laid_down = if device.is_host() { 0 } else { constants.iter().map(|(_, a)| padded(a)).sum() };
            let total = arena_bytes.saturating_add(laid_down);
            let taken = DeviceMemory::allocate(info, &loader.accounts[device.index()], total);
            let mut piece = taken.map_err(|e| not_enough(schedule, info, loader.store, total, e))?;
            let mut at = arena_bytes;
            for (i, array) in &constants {
                if device.is_host() {
                    starts[*i] = array.start();
                } else {
                    piece.write(at, array.bytes())?;
                    starts[*i] = piece.address().wrapping_add(at);
                    at += padded(array);
                }
            }
            for &i in here {
                let value = &step.values[i];
                let id = ValueId(i as u32);
                if let Some(offset) = schedule.memory.offset(device, id) {
                    starts[i] = piece.address().wrapping_add(offset);
                }
                if let Origin::Variable(variable) = value.origin {
                    let name = &step.pruned.node(variable).name;
                    let account = &loader.accounts[device.index()];
                    starts[i] = loader.store.ensure(variable, name, &value.desc, info, account)?.start;
                }
            }
            memory.push((device, piece));
        }
        Ok(Layout { memory, starts })
    }

    /// Where a value starts. Fed values start at null until they are fed.
    pub fn start(&self, schedule: &Schedule, value: ValueId) -> *mut u8 {
        let (base, offset) = schedule.memory.roots.get(value);
        self.starts[base.index()].wrapping_add(offset)
    }

    /// A value as kernels see it.
    fn view(&self, schedule: &Schedule, value: ValueId) -> View {
        let desc = &schedule.step.value(value).desc;
        let start = self.start(schedule, value);
        View { start, len: desc.len(), dtype: desc.dtype, writable: false }
    }
}

/// Writes one device's program.
struct ProgramWriter<'a> {
    schedule: &'a Schedule,
    layout: &'a Layout,
    device: DeviceId,
    commands: Vec<Command>,
    kernels: Vec<Arc<CpuKernel>>,
    views: Vec<View>,
    /// View, feed, byte offset.
    feeds: Vec<(u32, usize, usize)>,
    staging: usize,
}

impl<'a> ProgramWriter<'a> {
    fn new(schedule: &'a Schedule, layout: &'a Layout, device: DeviceId) -> Self {
        ProgramWriter {
            schedule,
            layout,
            device,
            commands: Vec::new(),
            kernels: Vec::new(),
            views: Vec::new(),
            feeds: Vec::new(),
            staging: 0,
        }
    }

    /// Adds nodes in order; gives where their commands are.
    fn add_all(&mut self, nodes: &[StepNodeId], loader: &mut Loader<'_>) -> Result<Range<usize>> {
        let start = self.commands.len();
        nodes.iter().try_for_each(|&id| self.add(id, loader))?;
        Ok(start..self.commands.len())
    }

    fn add(&mut self, id: StepNodeId, loader: &mut Loader<'_>) -> Result<()> {
        let node = self.schedule.step.node(id);
        // With CUDA GPUs the host waits for whole phases.
        let by_events = self.schedule.phases.is_empty();
        if by_events {
            self.commands.extend(self.schedule.waits[id.index()].iter().map(|&e| Command::Wait(e)));
        }
        match &node.kind {
            _ if node.silent => {}
            StepNodeKind::Op => {
                let kernel = self.kernel(node, loader)?;
                self.kernels.push(kernel);
                if !node.guards.is_empty() {
                    let predicates = self.add_views(node.guard_inputs());
                    self.commands.push(Command::Guard { predicates, wanted: node.guards.clone() });
                }
                let inputs = self.add_views(node.kernel_inputs());
                let outputs = self.add_views(&node.outputs);
                let of = |i: usize, range: &std::ops::Range<u32>| range.start as usize + i;
                node.written_places().iter().for_each(|&i| self.views[of(i, &inputs)].writable = true);
                // What passes an input's bytes on does not write them.
                for (i, output) in node.outputs.iter().enumerate() {
                    let own = self.schedule.step.value(*output).alias_of.is_none();
                    self.views[of(i, &outputs)].writable = own;
                }
                let kernel = self.kernels.len() as u32 - 1;
                let writes = !node.written().is_empty();
                self.commands.push(Command::Launch { kernel, inputs, outputs, node: id.0, writes });
            }
            StepNodeKind::Copy(info) => {
                let staged = info.route == Route::ThroughHost;
                if staged {
                    self.staging = self.staging.max(info.bytes);
                }
                self.add_copy(node, id.0, staged);
            }
            StepNodeKind::Snapshot => self.add_copy(node, id.0, false),
            StepNodeKind::Commit => {}
            StepNodeKind::AllReduce(_) => {
                let message = format!("'{}' is a sum over CUDA GPUs, which the host cannot run", node.name);
                return Err(Error::new(crate::base::Code::Internal, message));
            }
        }
        self.commands.extend(self.schedule.signals[id.index()].filter(|_| by_events).map(Command::Signal));
        Ok(())
    }

    fn add_copy(&mut self, node: &StepNode, id: u32, staged: bool) {
        let from = self.add_views(&node.inputs[..1]).start;
        let to = self.add_views(&node.outputs[..1]).start;
        self.commands.push(Command::Copy { from, to, node: id, staged });
    }

    fn add_views(&mut self, values: &[ValueId]) -> std::ops::Range<u32> {
        let start = self.views.len() as u32;
        for &value in values {
            let (base, offset) = self.schedule.memory.roots.get(value);
            if let Origin::Fed(feed) = self.schedule.step.value(base).origin {
                self.feeds.push((self.views.len() as u32, feed, offset));
            }
            self.views.push(self.layout.view(self.schedule, value));
        }
        start..self.views.len() as u32
    }

    fn kernel(&self, node: &StepNode, loader: &mut Loader<'_>) -> Result<Arc<CpuKernel>> {
        let step = &self.schedule.step;
        let graph_node = step.pruned.node(node.node);
        let Some(op) = node.op else { return Ok(Arc::new(Box::new(|_| Ok(())))) };
        let has_state = op.traits().stateful && node.written().is_empty();
        let key = (node.node, node.inputs.iter().map(|&v| step.value(v).desc.clone()).collect::<Vec<_>>());
        if has_state && let Some(kernel) = loader.stateful.get(&key) {
            return Ok(kernel.clone());
        }
        let generator = op.seeds(&graph_node.attrs).map(|seeds| loader.generators.on_host(node.node, seeds));
        let described = match node.fusion.as_deref() {
            Some(Fusion::Tiled(tiled)) => tiled_kernel(tiled),
            Some(Fusion::Update { streams, .. }) => step.with_kernel_context(node, |c| {
                let streams = streams.iter().map(|s| Ok((s.place, tile_stream(&s.tiled)?)));
                op.streaming_kernel(c, streams.collect::<Result<_, String>>()?)
            }),
            _ => step.with_kernel_context(node, |c| match generator {
                Some(generator) => op.drawing_kernel(c, generator),
                None => op.cpu_kernel(c),
            }),
        };
        let kernel = described.map_err(|message| {
            let message = format!("cannot prepare '{}' ({}): {message}", node.name, op.name());
            Error::from(Diagnostic::at(crate::base::Code::InvalidArgument, message, graph_node.source))
        })?;
        let kernel = Arc::new(kernel);
        if has_state {
            loader.stateful.insert(key, kernel.clone());
        }
        Ok(kernel)
    }

    fn finish(self) -> Option<Program> {
        if self.commands.is_empty() {
            return None;
        }
        Some(Program::new(self.device, self.commands, self.kernels, self.views, self.staging))
    }
}

// SAFETY: the addresses point into memory that the executable and the session's store own.
unsafe impl Send for Executable {}
// SAFETY: runs are serialised by the session; in a run each device's thread uses its own program.
unsafe impl Sync for Executable {}
