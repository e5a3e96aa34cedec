//! `Session`: plans, loads and runs steps of a graph.

use super::executable::StatefulKernels;
use super::feeds::{check_feed, check_handles};
use super::generators::Generators;
use super::remarks::Remarks;
use super::request::{Plan, fetched, release};
use super::room::{GiveWay, check_room};
use super::store::VariableStore;
use super::trace::RunMetadata;
use crate::base::{Array, Code, Diagnostic, Error, Result};
use crate::device::cuda::Gpu;
use crate::device::{DeviceId, FailureKind, Machine, MemoryUse, Queue, Team, Waiter};
use crate::graph::{Graph, Node, NodeId, Operation, Tensor};
use crate::plan::{
    FeedSpec, PlacementOptions, Schedule, Signature, StageTimes, check_known, fuse, lay_out_timed, needed, partition,
    place, prune, resolve, tile,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// What a session runs on, and how it places.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The devices.
    pub machine: Machine,
    /// Soft placement, and where nodes go that ask for nothing.
    pub placement: PlacementOptions,
    /// Makes one kernel of chains of element-wise ops, and takes what follows products into them: on the host and on
    /// simulated GPUs reductions too, on CUDA GPUs a bias and a ReLU.
    pub fusion: bool,
    /// How CUDA GPUs are used.
    pub cuda: CudaOptions,
}

/// How CUDA GPUs are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CudaOptions {
    /// Launches a step that ran before as CUDA graphs, one for each turn of the GPUs; otherwise command by command.
    pub graphs: bool,
    /// Lets products and convolutions of `float32` use TensorFloat-32: faster, with 10 bits of mantissa.
    pub tf32: bool,
    /// Lets sums over different GPUs (`AllReduceN`) be NCCL calls, where NCCL is there; otherwise they are copies and a
    /// kernel.
    pub nccl: bool,
    /// Lets convolutions be cuDNN's, where cuDNN is there and has a way that gives the same bits in every run; otherwise
    /// kernels of turret's own compute them.
    pub cudnn: bool,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions { graphs: true, tf32: false, nccl: true, cudnn: true }
    }
}

impl SessionOptions {
    /// Strict placement on this machine; what asks for nothing goes to the host.
    pub fn on(machine: Machine) -> SessionOptions {
        SessionOptions { machine, placement: PlacementOptions::default(), fusion: true, cuda: CudaOptions::default() }
    }

    /// As [`SessionOptions::on`], for a text such as `sim:2`.
    ///
    /// # Errors
    /// A text that names no machine.
    pub fn devices(text: &str) -> Result<SessionOptions> {
        Ok(SessionOptions::on(Machine::parse(text)?))
    }

    /// The same with soft placement on.
    pub fn soft(mut self) -> SessionOptions {
        self.placement.soft = true;
        self
    }
}

/// What one device holds.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceMemoryUse {
    /// The device.
    pub device: DeviceId,
    /// Bytes held by this session.
    pub bytes: u64,
    /// Buffers held by this session.
    pub buffers: usize,
}

/// Runs steps of a graph. Shared between threads, it runs one step at a time.
pub struct Session<'g> {
    pub(super) graph: &'g Graph,
    pub(super) options: SessionOptions,
    pub(super) accounts: Vec<Arc<MemoryUse>>,
    pub(super) waiters: Vec<Arc<Waiter>>,
    pub(super) queues: Vec<OnceLock<Queue>>,
    pub(super) host: OnceLock<Team>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) store: VariableStore,
    pub(super) stateful: StatefulKernels,
    pub(super) generators: Generators,
    /// The CUDA GPUs that plans have used, in the order of first use.
    pub(super) gpus: Vec<Arc<Gpu>>,
    pub(super) plans: Vec<Arc<Plan>>,
    pub(super) nodes: Arc<Vec<Arc<Node>>>,
    pub(super) built: usize,
    pub(super) closed: bool,
    /// Why the variables cannot be trusted, if a fault left them half changed.
    pub(super) broken: Option<String>,
    /// Why a GPU, with what it held, is lost for good.
    pub(super) lost: Option<String>,
    pub(super) remarks: Remarks,
    pub(super) undo: Vec<Vec<u8>>,
}

impl State {
    /// An error where a GPU is lost.
    pub(super) fn check_not_lost(&self) -> Result<()> {
        let Some(why) = &self.lost else { return Ok(()) };
        let message = format!("a GPU of this session was lost ({why}); run the program again");
        Err(Error::new(Code::FailedPrecondition, message))
    }

    /// An error where the variables cannot be trusted.
    pub(super) fn check_whole(&self) -> Result<()> {
        self.check_not_lost()?;
        let Some(why) = &self.broken else { return Ok(()) };
        let message = format!(
            "an earlier fault may have left variables half changed ({why}); load them all, or make a new session"
        );
        Err(Error::new(Code::FailedPrecondition, message))
    }
}

impl<'g> Session<'g> {
    /// A session for this graph. Starts no thread and takes no memory yet.
    ///
    /// # Errors
    /// Everything that was wrong in building the graph, all at once.
    pub fn new(graph: &'g Graph, mut options: SessionOptions) -> Result<Session<'g>> {
        graph.check()?;
        if !options.cuda.nccl {
            options.machine = options.machine.without_nccl();
        }
        let devices = options.machine.devices().len();
        Ok(Session {
            graph,
            accounts: (0..devices).map(|_| Arc::default()).collect(),
            waiters: (0..devices).map(|_| Arc::default()).collect(),
            queues: (0..devices).map(|_| OnceLock::new()).collect(),
            host: OnceLock::new(),
            state: Mutex::default(),
            options,
        })
    }

    /// The graph.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// The devices.
    pub fn machine(&self) -> &Machine {
        &self.options.machine
    }

    /// How it places.
    pub fn placement_options(&self) -> &PlacementOptions {
        &self.options.placement
    }

    /// Feeds tensors, runs the targets and what the fetches need, and gives the fetched values in the order asked.
    ///
    /// # Errors
    /// Feeds that do not fit, placeholders that are missing, variables without a value, placement, memory, and what a
    /// kernel refuses; the variables are as before then.
    pub fn run(
        &self,
        feeds: &[(Tensor<'_>, &Array)],
        fetches: &[Tensor<'_>],
        targets: &[Operation<'_>],
    ) -> Result<Vec<Array>> {
        self.run_then(feeds, fetches, targets, false, |_| ()).map(|(values, ())| values)
    }

    /// Runs targets without feeds or fetches.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_targets(&self, targets: &[Operation<'_>]) -> Result<()> {
        self.run(&[], &[], targets).map(|_| ())
    }

    /// As [`Session::run`], and tells when each node ran.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_traced(
        &self,
        feeds: &[(Tensor<'_>, &Array)],
        fetches: &[Tensor<'_>],
        targets: &[Operation<'_>],
    ) -> Result<(Vec<Array>, RunMetadata)> {
        self.run_then(feeds, fetches, targets, true, |plan| {
            let executable = &plan.executable;
            let total_ns = executable.step.total_ns();
            RunMetadata { spans: executable.spans(), copies: executable.copies().copied().collect(), total_ns }
        })
    }

    /// Runs, and looks at the plan before another run can use it.
    fn run_then<R>(
        &self,
        feeds: &[(Tensor<'_>, &Array)],
        fetches: &[Tensor<'_>],
        targets: &[Operation<'_>],
        trace: bool,
        look: impl FnOnce(&Plan) -> R,
    ) -> Result<(Vec<Array>, R)> {
        let mut state = self.lock()?;
        let plan = self.plan_for(&mut state, feeds, fetches, targets)?;
        self.execute(&mut state, &plan, feeds.iter().map(|f| f.1), trace)?;
        let values = (0..fetches.len()).map(|i| fetched(&plan, i, feeds)).collect::<Result<_>>()?;
        Ok((values, look(&plan)))
    }

    /// Gives every variable its initial value, those made after any init operation too.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn initialize(&self) -> Result<()> {
        let initializers: Vec<Operation<'_>> =
            self.graph.all_variables().into_iter().map(|v| v.initializer()).collect();
        self.run_targets(&initializers)
    }

    /// The names of variables without a value.
    ///
    /// # Errors
    /// When the session is closed.
    pub fn uninitialized_variables(&self) -> Result<Vec<String>> {
        let state = self.lock()?;
        let all = self.graph.all_variables().into_iter();
        Ok(all.filter(|v| !state.store.is_initialized(v.op().id())).map(|v| v.name()).collect())
    }

    /// What each device holds for this session.
    pub fn memory_use(&self) -> Vec<DeviceMemoryUse> {
        let devices = self.options.machine.devices().iter().zip(&self.accounts);
        devices.map(|(d, a)| DeviceMemoryUse { device: d.id, bytes: a.bytes(), buffers: a.buffers() }).collect()
    }

    /// Number of plans built so far.
    pub fn plans_built(&self) -> usize {
        self.state.lock().unwrap_or_else(|e| e.into_inner()).built
    }

    /// Devices whose queue has started.
    pub fn started_devices(&self) -> Vec<DeviceId> {
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let is_open = |d: &DeviceId| state.gpus.iter().any(|g| g.device == *d);
        let started = |d: &DeviceId| self.queues[d.index()].get().is_some() || is_open(d);
        (0..self.queues.len() as u16).map(DeviceId).filter(started).collect()
    }

    /// Remarks that are no errors, one line for each matter: a graph that grows from step to step, nodes that soft
    /// placement moved, copies that go through the host, steps that CUDA would not capture as a graph.
    pub fn warnings(&self) -> Vec<String> {
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let refused = state.plans.iter().find_map(|p| p.executable.cuda()?.step.refused());
        let refused = refused.map(|why| format!("a step is launched command by command, not as a CUDA graph: {why}"));
        state.remarks.lines().into_iter().chain(refused).collect()
    }

    /// Ends the session: its plans and variables go, and every later run is an error.
    pub fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let closed = State { closed: true, built: state.built, ..State::default() };
        release(std::mem::replace(&mut *state, closed).plans);
    }

    /// The schedule that a run with these feeds would use, without loading or running it.
    ///
    /// # Errors
    /// As [`Session::run`], short of running.
    pub fn schedule(
        &self,
        feeds: &[(Tensor<'_>, &[usize])],
        fetches: &[Tensor<'_>],
        targets: &[Operation<'_>],
    ) -> Result<Schedule> {
        check_handles(self.graph, feeds.iter().map(|f| f.0), fetches, targets)?;
        self.graph.check()?;
        let nodes = self.graph.nodes();
        for (tensor, dims) in feeds {
            let id = tensor.id();
            check_feed(&nodes[id.node.index()], id.output, tensor.dtype(), dims)?;
        }
        let feeds = feeds.iter();
        let signature = Signature::new(
            feeds.map(|(t, dims)| FeedSpec { tensor: t.id(), dtype: t.dtype(), dims: (*dims).into(), value: None }),
            fetches.iter().map(|t| t.id()),
            targets.iter().map(|o| o.id()),
        );
        let state = self.lock()?;
        let is_initialized = |id| state.store.is_initialized(id);
        let times = &mut StageTimes::start();
        let schedule = self.make_schedule(Arc::new(nodes), signature, &is_initialized, false, times)?;
        check_room(&schedule, &self.options.machine, &self.accounts, &state.store, GiveWay::Plans)?;
        Ok(schedule)
    }

    pub(super) fn lock(&self) -> Result<MutexGuard<'_, State>> {
        // A panic in a run was turned into an error, so the state is whole.
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if state.closed {
            return Err(Error::new(Code::FailedPrecondition, "the session is closed; make a new one"));
        }
        Ok(state)
    }

    pub(super) fn refresh_nodes(&self, state: &mut State) {
        if state.nodes.len() != self.graph.len() {
            state.nodes = Arc::new(self.graph.nodes());
        }
    }

    /// `to_run` refuses nodes that can be planned, but not run.
    pub(super) fn make_schedule(
        &self,
        nodes: Arc<Vec<Arc<Node>>>,
        signature: Signature,
        is_initialized: &dyn Fn(NodeId) -> bool,
        to_run: bool,
        times: &mut StageTimes,
    ) -> Result<Schedule> {
        let machine = &self.options.machine;
        let resolved = resolve(nodes, &signature, is_initialized)?;
        let nodes = &resolved.nodes;
        if to_run {
            check_known(nodes, &signature)?;
        }
        times.lap("resolve");
        // A device that is not there is told before sizes that do not fit.
        let placed = place(nodes, &needed(nodes, &signature)?, machine, &self.options.placement)?;
        times.lap("place");
        let pruned = prune(resolved, signature)?;
        times.lap("prune");
        let step = partition(pruned, placed, machine)?;
        times.lap("partition");
        let step = if self.options.fusion { tile(fuse(step, machine), machine)? } else { step };
        times.lap("passes");
        Ok(lay_out_timed(step, machine, times))
    }

    /// Launches a plan and waits for it.
    pub(super) fn execute<'a>(
        &self,
        state: &mut State,
        plan: &Plan,
        feeds: impl Iterator<Item = &'a Array>,
        trace: bool,
    ) -> Result<()> {
        let executable = &plan.executable;
        let step = &executable.schedule.step;
        state.check_whole()?;
        if !state.store.are_initialized(&step.needs_initialized, &executable.initialized) {
            return Err(missing_values(state, step.needs_initialized.iter().copied()));
        }
        for (place, array) in plan.feed_places.iter().zip(feeds) {
            // SAFETY: the state's lock excludes other runs, and the caller's borrow outlives this one.
            unsafe { executable.feed(*place, array) };
        }
        // What a CUDA kernel cannot be launched with shows at its first launch.
        let untried = executable.cuda().filter(|c| c.step.is_untried());
        let undo: &[NodeId] = untried.map_or(&step.undo, |c| &c.written);
        if state.undo.len() < undo.len() {
            state.undo.resize_with(undo.len(), Vec::new);
        }
        for (variable, bytes) in undo.iter().zip(&mut state.undo) {
            state.store.save_bytes(*variable, bytes)?;
        }
        self.waiters[DeviceId::HOST.index()].claim();
        executable.begin(executable.gpus().count(), trace);
        for gpu in executable.gpus() {
            if let Some(queue) = self.queues[gpu].get() {
                queue.submit(executable.clone(), gpu);
            }
        }
        if let Some(team) = self.host.get() {
            executable.run_host(team);
        }
        executable.step.ended();
        if let Some(failure) = executable.step.take_failure() {
            let node = &step.nodes[failure.node as usize];
            let graph_node = step.pruned.node(node.node);
            let message = format!("'{}' ({}) on {} failed: {}", node.name, node.what(), node.device, failure.message);
            // Where nothing is kept for undoing, what checks before it writes is the only writer, and wrote nothing.
            let checked_first = node.op.is_some_and(|op| op.traits().checks_before_writing);
            let unchanged = match failure.kind {
                FailureKind::Checked => true,
                FailureKind::Refused => checked_first,
                _ => false,
            };
            if failure.kind == FailureKind::Lost {
                state.lost = Some(message.clone());
            } else if !undo.is_empty() {
                for (variable, bytes) in undo.iter().zip(&state.undo) {
                    state.store.restore_bytes(*variable, bytes)?;
                }
            } else if executable.step.wrote() && !unchanged {
                state.broken = Some(message.clone());
            }
            let code = match failure.kind {
                FailureKind::Refused | FailureKind::Checked => Code::InvalidArgument,
                FailureKind::Panicked | FailureKind::Device | FailureKind::Lost => Code::Internal,
            };
            let message = match failure.kind {
                FailureKind::Device if state.broken.is_none() => {
                    message + "; the variables are as before, and the session can go on"
                }
                FailureKind::Lost => message + "; the GPU is lost to this program with all it held: run it again",
                _ => message,
            };
            return Err(Diagnostic::at(code, message, graph_node.source).into());
        }
        if step.undo.is_empty() {
            state.undo.clear();
        }
        for &variable in &step.initializes {
            state.store.set_initialized(variable);
        }
        Ok(())
    }
}

fn missing_values(state: &State, needed: impl Iterator<Item = NodeId>) -> Error {
    let missing: Vec<NodeId> = needed.filter(|&v| !state.store.is_initialized(v)).collect();
    let name = |v: &NodeId| state.nodes[v.index()].name.to_string();
    let newest_set = state.nodes.iter().rev().find(|n| state.store.is_initialized(n.id)).map(|n| n.id);
    let all_newer = newest_set.is_some_and(|set| missing.iter().all(|m| *m > set));
    uninitialized(&missing.iter().map(name).collect::<Vec<_>>(), all_newer)
}

pub(super) fn uninitialized(names: &[String], newer_than_init: bool) -> Error {
    let what = if names.len() == 1 { "variable" } else { "variables" };
    let why = if newer_than_init { " (made after the init operation that ran)" } else { "" };
    Error::new(
        Code::FailedPrecondition,
        format!(
            "attempting to use uninitialized {what} '{}'{why}; call Session::initialize, which covers all variables \
             there are, or load values",
            names.join("', '")
        ),
    )
}
