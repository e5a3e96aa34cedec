//! `Session`: plans, loads and runs steps of a graph.

use super::executable::{Executable, Loader, StatefulKernels};
use super::feeds::{check_feed, check_handles};
use super::store::VariableStore;
use crate::base::{Array, Code, Diagnostic, Dims, Error, Result};
use crate::device::{DeviceId, Machine, MemoryUse, Queue, Span, Team, Waiter};
use crate::graph::{Graph, Node, NodeId, Operation, Tensor, TensorId, Variable};
use crate::plan::{
    CopyInfo, FeedSpec, Fetch, PlacementOptions, Schedule, Signature, partition, place, prune, schedule,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The largest integer feed, in elements, whose value may decide sizes.
const VALUE_FEED_ELEMENTS: usize = 64;

/// How often a grown graph may be planned again before the session remarks on it.
const GROWTH_PLANS: usize = 3;

/// What a session runs on, and how it places.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The devices.
    pub machine: Machine,
    /// Soft placement, and where nodes go that ask for nothing.
    pub placement: PlacementOptions,
}

impl SessionOptions {
    /// Strict placement on this machine; what asks for nothing goes to the host.
    pub fn on(machine: Machine) -> SessionOptions {
        SessionOptions { machine, placement: PlacementOptions::default() }
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

/// What a traced run did.
#[derive(Clone, Debug)]
pub struct RunMetadata {
    /// When each node ran: name, device, span.
    pub spans: Vec<(Arc<str>, DeviceId, Span)>,
    /// The copies of the step.
    pub copies: Vec<CopyInfo>,
}

/// Runs steps of a graph. Shared between threads, it runs one step at a time.
pub struct Session<'g> {
    graph: &'g Graph,
    options: SessionOptions,
    accounts: Vec<Arc<MemoryUse>>,
    waiters: Vec<Arc<Waiter>>,
    queues: Vec<OnceLock<Queue>>,
    host: OnceLock<Team>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    store: VariableStore,
    stateful: StatefulKernels,
    plans: Vec<Arc<Plan>>,
    nodes: Arc<Vec<Arc<Node>>>,
    built: usize,
    grown: usize,
    closed: bool,
    /// Why the variables cannot be trusted, if a fault left them half changed.
    broken: Option<String>,
    warnings: Vec<String>,
    undo: Vec<Vec<u8>>,
}

/// A request as the user writes it, and the plan that serves it.
pub(super) struct Plan {
    feeds: Vec<(TensorId, Dims)>,
    /// Values that sizes depend on.
    values: Option<Vec<Option<Arc<Array>>>>,
    fetches: Vec<TensorId>,
    targets: Vec<NodeId>,
    executable: Arc<Executable>,
    /// By feed of the request: the signature's feed.
    feed_places: Vec<usize>,
    /// By fetch of the request: the signature's fetch.
    fetch_places: Vec<usize>,
}

impl<'g> Session<'g> {
    /// A session for this graph. Starts no thread and takes no memory yet.
    ///
    /// # Errors
    /// Everything that was wrong in building the graph, all at once.
    pub fn new(graph: &'g Graph, options: SessionOptions) -> Result<Session<'g>> {
        graph.check()?;
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
        let mut state = self.lock()?;
        let plan = self.plan_for(&mut state, feeds, fetches, targets)?;
        self.execute(&mut state, &plan, feeds.iter().map(|f| f.1), false)?;
        (0..fetches.len()).map(|i| fetched(&plan, i, feeds.get(..).unwrap_or_default())).collect()
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
        let mut state = self.lock()?;
        let plan = self.plan_for(&mut state, feeds, fetches, targets)?;
        self.execute(&mut state, &plan, feeds.iter().map(|f| f.1), true)?;
        let values = (0..fetches.len()).map(|i| fetched(&plan, i, feeds)).collect::<Result<_>>()?;
        let metadata =
            RunMetadata { spans: plan.executable.spans(), copies: plan.executable.copies().copied().collect() };
        Ok((values, metadata))
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

    /// A variable's value.
    ///
    /// # Errors
    /// When it has none, or belongs to another graph.
    pub fn value(&self, variable: Variable<'_>) -> Result<Array> {
        check_handles(self.graph, &[], &[variable.value()], &[])?;
        let state = self.lock()?;
        state.store.read(variable.op().id())?.ok_or_else(|| uninitialized(&[variable.name()], false))
    }

    /// Gives a variable a value.
    ///
    /// # Errors
    /// When type or shape differ, or it cannot be placed; it is as before then.
    pub fn load(&self, variable: Variable<'_>, value: &Array) -> Result<()> {
        self.load_all(&[(variable, value)])
    }

    /// Gives several variables their values: all or none.
    ///
    /// # Errors
    /// All mismatches in one error; nothing is changed then.
    pub fn load_all(&self, values: &[(Variable<'_>, &Array)]) -> Result<()> {
        let mut problems = Vec::new();
        for (variable, value) in values {
            check_handles(self.graph, &[], &[variable.value()], &[])?;
            if value.dtype() != variable.dtype() || value.shape() != variable.shape() {
                problems.push(Diagnostic::new(
                    Code::InvalidArgument,
                    format!(
                        "cannot load variable '{}': want {} {}, got {} {}",
                        variable.name(),
                        variable.dtype(),
                        variable.shape(),
                        value.dtype(),
                        value.shape()
                    ),
                ));
            }
        }
        if !problems.is_empty() {
            return Err(Error::from_all(problems));
        }
        let mut state = self.lock()?;
        let ids: Vec<NodeId> = values.iter().map(|(v, _)| v.op().id()).collect();
        self.refresh_nodes(&mut state);
        let nodes = state.nodes.clone();
        let placed = place(&nodes, &ids, &self.options.machine, &self.options.placement)?;
        for &id in &ids {
            let node = &nodes[id.index()];
            let desc = crate::graph::TensorDesc {
                dtype: node.outputs[0].dtype,
                dims: node.outputs[0].shape.to_dims().unwrap_or_default(),
            };
            let device = state.store.device(id).unwrap_or(placed.device(id));
            let info = self.options.machine.device(device);
            state.store.ensure(id, &node.name, &desc, info, &self.accounts[device.index()])?;
        }
        for (id, (_, value)) in ids.iter().zip(values) {
            state.store.write(*id, value);
        }
        if self.graph.all_variables().iter().all(|v| ids.contains(&v.op().id())) {
            state.broken = None;
        }
        Ok(())
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
        (0..self.queues.len() as u16).map(DeviceId).filter(|d| self.queues[d.index()].get().is_some()).collect()
    }

    /// Remarks that are no errors, such as a graph that grows from step to step.
    pub fn warnings(&self) -> Vec<String> {
        self.state.lock().unwrap_or_else(|e| e.into_inner()).warnings.clone()
    }

    /// Ends the session: its plans and variables go, and every later run is an error.
    pub fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        *state = State { closed: true, built: state.built, ..State::default() };
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
        check_handles(self.graph, &[], fetches, targets)?;
        let signature = Signature {
            feeds: (feeds.iter())
                .map(|(t, dims)| FeedSpec { tensor: t.id(), dtype: t.dtype(), dims: (*dims).into(), value: None })
                .collect(),
            fetches: fetches.iter().map(|t| t.id()).collect(),
            targets: targets.iter().map(|o| o.id()).collect(),
        };
        self.graph.check()?;
        self.make_schedule(Arc::new(self.graph.nodes()), signature)
    }

    pub(super) fn lock(&self) -> Result<MutexGuard<'_, State>> {
        // A panic in a run was turned into an error, so the state is whole.
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if state.closed {
            return Err(Error::new(Code::FailedPrecondition, "the session is closed; make a new one"));
        }
        Ok(state)
    }

    fn refresh_nodes(&self, state: &mut State) {
        if state.nodes.len() != self.graph.len() {
            state.nodes = Arc::new(self.graph.nodes());
        }
    }

    /// The plan for a request: the one that served it before, or a new one.
    pub(super) fn plan_for(
        &self,
        state: &mut State,
        feeds: &[(Tensor<'_>, &Array)],
        fetches: &[Tensor<'_>],
        targets: &[Operation<'_>],
    ) -> Result<Arc<Plan>> {
        if let Some(plan) = state.plans.iter().find(|p| p.serves(self.graph, feeds, fetches, targets)) {
            return Ok(plan.clone());
        }
        check_handles(self.graph, feeds, fetches, targets)?;
        self.graph.check()?;
        let before = state.nodes.len();
        self.refresh_nodes(state);
        for (tensor, array) in feeds {
            check_feed(&state.nodes[tensor.id().node.index()], tensor.id().output, array)?;
        }
        let mut order: Vec<usize> = (0..feeds.len()).collect();
        order.sort_by_key(|&i| feeds[i].0.id());
        let value_of =
            |a: &Array| (a.dtype().is_integer() && a.len() <= VALUE_FEED_ELEMENTS).then(|| Arc::new(a.clone()));
        let mut signature = Signature {
            feeds: (order.iter())
                .map(|&i| {
                    let (tensor, array) = feeds[i];
                    let (dtype, dims) = (array.dtype(), array.dims().into());
                    FeedSpec { tensor: tensor.id(), dtype, dims, value: value_of(array) }
                })
                .collect(),
            fetches: fetches.iter().map(|t| t.id()).collect(),
            targets: targets.iter().map(|o| o.id()).collect(),
        };
        signature.fetches.sort_unstable();
        signature.fetches.dedup();
        signature.targets.sort_unstable();
        signature.targets.dedup();
        let executable = match state.plans.iter().find(|p| p.has(&signature)) {
            Some(plan) => plan.executable.clone(),
            None => {
                let schedule = self.make_schedule(state.nodes.clone(), signature.clone())?;
                let State { store, stateful, .. } = &mut *state;
                let mut loader = Loader {
                    machine: &self.options.machine,
                    accounts: &self.accounts,
                    waiters: &self.waiters,
                    store,
                    stateful,
                };
                let executable = Arc::new(Executable::load(schedule, &mut loader)?);
                self.start_devices(&executable)?;
                state.built += 1;
                self.remark_on_growth(state, before);
                executable
            }
        };
        let step = &executable.schedule.step.pruned;
        let plan = Arc::new(Plan {
            feeds: feeds.iter().map(|(t, a)| (t.id(), a.dims().into())).collect(),
            values: step.depends_on_values.then(|| feeds.iter().map(|(_, a)| value_of(a)).collect()),
            fetches: fetches.iter().map(|t| t.id()).collect(),
            targets: targets.iter().map(|o| o.id()).collect(),
            feed_places: feeds.iter().filter_map(|(t, _)| step.signature.feed(t.id())).collect(),
            fetch_places: (fetches.iter())
                .filter_map(|t| step.signature.fetches.iter().position(|f| *f == t.id()))
                .collect(),
            executable,
        });
        state.plans.push(plan.clone());
        Ok(plan)
    }

    fn make_schedule(&self, nodes: Arc<Vec<Arc<Node>>>, signature: Signature) -> Result<Schedule> {
        let machine = &self.options.machine;
        let pruned = prune(nodes, signature)?;
        let fed = pruned.signature.feeds.iter().map(|f| f.tensor.node);
        let mut which: Vec<NodeId> = pruned.kept.iter().copied().chain(fed).collect();
        which.sort_unstable();
        which.dedup();
        let placed = place(&pruned.nodes, &which, machine, &self.options.placement)?;
        schedule(partition(pruned, placed, machine)?, machine)
    }

    fn start_devices(&self, executable: &Executable) -> Result<()> {
        self.host.get_or_init(|| Team::new(self.options.machine.devices()[0].threads, "cpu:0"));
        for gpu in executable.gpus() {
            if self.queues[gpu].get().is_none() {
                let info = &self.options.machine.devices()[gpu];
                let queue = Queue::start(&info.id.to_string(), info.threads).map_err(|e| {
                    Error::new(Code::ResourceExhausted, format!("cannot start the queue of {}: {e}", info.id))
                })?;
                // Only runs start queues, and they hold the state's lock.
                let _ = self.queues[gpu].set(queue);
            }
        }
        Ok(())
    }

    fn remark_on_growth(&self, state: &mut State, before: usize) {
        if before == 0 || state.nodes.len() == before {
            return;
        }
        state.grown += 1;
        if state.grown == GROWTH_PLANS {
            let newest = state.nodes.last().map_or(String::new(), |n| format!("'{}' (made at {})", n.name, n.source));
            state.warnings.push(format!(
                "the graph has grown between runs {GROWTH_PLANS} times and was planned again each time, last for {newest}; \
                 build operations once, before the loop, and call Graph::finalize to catch this"
            ));
        }
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
        if let Some(why) = &state.broken {
            return Err(Error::new(
                Code::FailedPrecondition,
                format!(
                    "an earlier fault may have left variables half changed ({why}); load them all, or make a new session"
                ),
            ));
        }
        if step.needs_initialized.iter().any(|&v| !state.store.is_initialized(v)) {
            return Err(missing_values(state, step.needs_initialized.iter().copied()));
        }
        for (place, array) in plan.feed_places.iter().zip(feeds) {
            // SAFETY: the state's lock excludes other runs, and the caller's borrow outlives this one.
            unsafe { executable.feed(*place, array) };
        }
        if !step.undo.is_empty() {
            state.undo.resize_with(step.undo.len(), Vec::new);
            for (variable, bytes) in step.undo.iter().zip(&mut state.undo) {
                state.store.save_bytes(*variable, bytes);
            }
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
        if let Some(failure) = executable.step.take_failure() {
            let node = &step.nodes[failure.node as usize];
            let graph_node = step.pruned.node(node.node);
            let op = node.op.map_or("", |op| op.name());
            let message = format!("'{}' ({op}) on {} failed: {}", node.name, node.device, failure.message);
            if !step.undo.is_empty() {
                for (variable, bytes) in step.undo.iter().zip(&state.undo) {
                    state.store.restore_bytes(*variable, bytes);
                }
            } else if executable.step.wrote() {
                state.broken = Some(message.clone());
            }
            let code = if failure.panicked { Code::Internal } else { Code::InvalidArgument };
            return Err(Diagnostic::at(code, message, graph_node.source).into());
        }
        for &variable in &step.initializes {
            state.store.set_initialized(variable);
        }
        Ok(())
    }
}

impl Plan {
    /// True if this plan serves the request as it stands.
    fn serves(
        &self,
        graph: &Graph,
        feeds: &[(Tensor<'_>, &Array)],
        fetches: &[Tensor<'_>],
        targets: &[Operation<'_>],
    ) -> bool {
        self.feeds.len() == feeds.len()
            && self.fetches.len() == fetches.len()
            && self.targets.len() == targets.len()
            && fetches.iter().zip(&self.fetches).all(|(t, f)| t.id() == *f && std::ptr::eq(t.graph(), graph))
            && targets.iter().zip(&self.targets).all(|(o, t)| o.id() == *t && std::ptr::eq(o.graph(), graph))
            && feeds.iter().zip(&self.feeds).enumerate().all(|(i, ((t, a), (id, dims)))| {
                t.id() == *id
                    && std::ptr::eq(t.graph(), graph)
                    && a.dims() == &dims[..]
                    && self.is_value(i, a)
                    && a.dtype() == self.feed_dtype(i)
            })
    }

    fn feed_dtype(&self, feed: usize) -> crate::base::DType {
        self.executable.schedule.step.pruned.signature.feeds[self.feed_places[feed]].dtype
    }

    fn is_value(&self, feed: usize, array: &Array) -> bool {
        match &self.values {
            Some(values) => values[feed].as_deref().is_none_or(|v| v == array),
            None => true,
        }
    }

    /// True if this plan is for that signature, whatever the order of the request.
    fn has(&self, signature: &Signature) -> bool {
        let mine = &self.executable.schedule.step.pruned;
        let same_feed = |a: &FeedSpec, b: &FeedSpec| {
            a.tensor == b.tensor && a.dims == b.dims && (!mine.depends_on_values || a.value == b.value)
        };
        mine.signature.fetches == signature.fetches
            && mine.signature.targets == signature.targets
            && mine.signature.feeds.len() == signature.feeds.len()
            && mine.signature.feeds.iter().zip(&signature.feeds).all(|(a, b)| same_feed(a, b))
    }

    /// Number of fetches of the request.
    pub(super) fn num_fetches(&self) -> usize {
        self.fetches.len()
    }

    /// Writes a computed or known fetch into an array of its type and sizes.
    pub(super) fn fetch_into(&self, fetch: usize, feeds: &[&Array], array: &mut Array) -> Result<()> {
        let place = self.fetch_places[fetch];
        let desc = self.executable.fetch_desc(place);
        if array.dtype() != desc.dtype || array.dims() != &desc.dims[..] {
            *array = Array::zeros(desc.dtype, &desc.dims)?;
        }
        match &self.executable.schedule.step.fetches[place] {
            Fetch::Value(_) => {
                let bytes = self.executable.fetched(place).unwrap_or_default();
                array.bytes_mut().copy_from_slice(bytes);
            }
            Fetch::Known(value) => array.bytes_mut().copy_from_slice(value.bytes()),
            Fetch::Fed(feed) => {
                let request = self.feed_places.iter().position(|p| p == feed).unwrap_or(0);
                array.bytes_mut().copy_from_slice(feeds[request].bytes());
            }
        }
        Ok(())
    }
}

fn fetched(plan: &Plan, fetch: usize, feeds: &[(Tensor<'_>, &Array)]) -> Result<Array> {
    let desc = plan.executable.fetch_desc(plan.fetch_places[fetch]);
    let mut array = Array::zeros(desc.dtype, &desc.dims)?;
    let arrays: Vec<&Array> = feeds.iter().map(|f| f.1).collect();
    plan.fetch_into(fetch, &arrays, &mut array)?;
    Ok(array)
}

fn missing_values(state: &State, needed: impl Iterator<Item = NodeId>) -> Error {
    let missing: Vec<NodeId> = needed.filter(|&v| !state.store.is_initialized(v)).collect();
    let name = |v: &NodeId| state.nodes[v.index()].name.to_string();
    let newest_set = state.nodes.iter().rev().find(|n| state.store.is_initialized(n.id)).map(|n| n.id);
    let all_newer = newest_set.is_some_and(|set| missing.iter().all(|m| *m > set));
    uninitialized(&missing.iter().map(name).collect::<Vec<_>>(), all_newer)
}

fn uninitialized(names: &[String], newer_than_init: bool) -> Error {
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
