//! What is enqueued, and running it: nothing runs before the host waits for it, and then in a seeded random order.

use crate::bridge::{READ, WRITE};
use crate::clock::Clock;
use crate::codes::{Code, Failure, ILLEGAL_ADDRESS, LAUNCH_FAILED};
use crate::races::{Deed, Span, tidy};
use crate::space::Space;
use crate::state::{Held, State, say};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

/// An operation's number; they grow in the order of enqueuing.
pub type OpId = u64;

/// What an operation does; it may be done again by every launch of a graph.
pub type Runner = Arc<dyn Fn(&mut State, &mut Touch) -> Result<(), Failure> + Send + Sync>;

/// The work of an operation.
#[derive(Clone)]
pub enum Work {
    /// None: it only stands in the order.
    Nothing,
    /// Something on the GPU.
    Run(Runner),
    /// A function of the host, called without the lock.
    Host(extern "C" fn(*mut c_void), usize),
    /// An event that keeps time is reached.
    Stamp(u64),
    /// One rank's part in a collective.
    Part(Arc<crate::nccl::Part>),
}

/// One operation that waits to be run.
pub struct Op {
    /// What must have run before.
    pub deps: Vec<OpId>,
    /// Whose it is.
    pub context: u64,
    /// Its name with GPU and stream.
    pub label: Arc<str>,
    /// Its slot in the clocks, and its time there.
    pub slot: usize,
    /// Its time in the slot.
    pub time: u32,
    /// What is ordered before it, and itself.
    pub clock: Clock,
    /// What it does.
    pub work: Work,
    /// The collective it is a part of, once it is enqueued.
    pub instance: Option<u64>,
    running: bool,
}

/// What an operation touches while it runs.
pub struct Touch {
    /// The operation's context.
    pub context: u64,
    /// Its GPU.
    pub gpu: usize,
    /// The spans so far.
    pub spans: Vec<Span>,
}

impl Touch {
    /// Checks a range and notes what is done to it; the place of its bytes.
    pub fn range(&mut self, space: &Space, address: u64, n: usize, bits: u8) -> Result<*mut u8, Failure> {
        let host = space.range(address, n)?;
        self.spans.push(Span { lo: host, hi: host + n, bits });
        Ok(host as *mut u8)
    }

    /// The same for a library's kernel, which reaches only what its GPU reaches.
    pub fn reach(&mut self, state: &State, address: u64, n: usize, write: bool) -> Result<*mut u8, Failure> {
        if let Some(gpu) = state.space.gpu_of(address) {
            let own = gpu == self.gpu || state.contexts.get(&self.context).is_some_and(|c| c.peers.contains(&gpu));
            if !own {
                let message = format!(
                    "address {address:#x} is memory of GPU {gpu}, and GPU {} has no peer access to it",
                    self.gpu
                );
                return Err(Failure::new(ILLEGAL_ADDRESS, message));
            }
        }
        self.range(&state.space, address, n, if write { WRITE } else { READ })
    }
}

impl State {
    /// Puts an operation at the end of a stream; into the graph where the stream is captured.
    pub fn enqueue(&mut self, stream: u64, label: &str, work: Work) -> Result<Option<OpId>, Code> {
        if self.streams[&stream].capture.is_some() {
            self.add_node(stream, label, work)?;
            return Ok(None);
        }
        self.join_default(stream)?;
        let id = self.id();
        let host = self.clocks.host.clone();
        let s = self.streams.get_mut(&stream).expect("checked by the caller");
        s.clock.join(&host);
        let time = self.clocks.tick(s.slot, &mut s.clock);
        let mut deps = std::mem::take(&mut s.waits);
        deps.extend(s.last.replace(id));
        let label = format!("{label} on {}", s.name);
        let (context, slot, clock) = (s.context, s.slot, s.clock.clone());
        self.submit(
            id,
            Op { deps, context, label: label.into(), slot, time, clock, work, instance: None, running: false },
        )?;
        Ok(Some(id))
    }

    /// Enters a finished operation; a part of a collective meets its others here.
    pub fn submit(&mut self, id: OpId, mut op: Op) -> Result<(), Code> {
        if let Work::Part(part) = &op.work {
            op.instance = Some(crate::nccl::meet(self, part.clone(), id)?);
        }
        self.ops.insert(id, op);
        Ok(())
    }

    /// The default stream waits for all blocking streams of its context, and they for it.
    fn join_default(&mut self, stream: u64) -> Result<(), Code> {
        let s = &self.streams[&stream];
        let (context, null, blocking) = (s.context, s.null, s.blocking);
        if !null && !blocking {
            return Ok(());
        }
        let others: Vec<u64> = self
            .streams
            .iter()
            .filter(|(k, o)| **k != stream && o.context == context && if null { o.blocking } else { o.null })
            .map(|(k, _)| *k)
            .collect();
        for other in others {
            let o = &self.streams[&other];
            if o.capture.is_some() {
                return Err(crate::codes::STREAM_CAPTURE_IMPLICIT);
            }
            let (ops, clock) = (o.waits.iter().copied().chain(o.last).collect::<Vec<_>>(), o.clock.clone());
            self.wait_for(stream, &ops, &clock);
        }
        Ok(())
    }

    /// Makes the next operation of a stream wait for others.
    pub fn wait_for(&mut self, stream: u64, ops: &[OpId], clock: &Clock) {
        let pending: Vec<OpId> = ops.iter().copied().filter(|o| self.ops.contains_key(o)).collect();
        if let Some(s) = self.streams.get_mut(&stream) {
            s.waits.extend(pending);
            s.clock.join(clock);
        }
    }

    /// The host has waited for what a clock knows.
    pub fn host_joins(&mut self, clock: &Clock) {
        self.clocks.host.join(clock);
        if self.races.full() {
            let host = self.clocks.host.clone();
            self.races.forget(&host, self.ops.values().map(|o| &o.clock));
        }
    }

    /// All that a stream has to do, and its clock.
    pub fn tail(&self, stream: u64) -> (Vec<OpId>, Clock) {
        let s = &self.streams[&stream];
        (s.waits.iter().copied().chain(s.last).collect(), s.clock.clone())
    }

    /// True when all of these have run.
    pub fn done(&self, ops: &[OpId]) -> bool {
        !ops.iter().any(|o| self.ops.contains_key(o))
    }

    /// Notes what an operation touched, and judges it.
    pub fn settle(&mut self, op: &Op, touch: Touch) {
        let spans = Arc::new(tidy(touch.spans));
        let deed = Deed { label: op.label.clone(), slot: op.slot, time: op.time, clock: op.clock.clone(), spans };
        let space = &self.space;
        let found = self.races.judge(deed, |host| space.device(host));
        for message in &found {
            say(message);
        }
        if !found.is_empty() && self.config.races_fail {
            self.fail(
                op.context,
                &op.label,
                &Failure::new(LAUNCH_FAILED, "it races, so its context fails; TURRET_STANDIN_RACES=log only reports"),
            );
        }
    }
}

/// An operation that a graph's launch makes.
pub fn op(deps: Vec<OpId>, context: u64, label: Arc<str>, slot: usize, time: u32, clock: Clock, work: Work) -> Op {
    Op { deps, context, label, slot, time, clock, work, instance: None, running: false }
}

/// What must run for some operations, and in which order it may.
struct Plan {
    left: HashMap<OpId, usize>,
    after: HashMap<OpId, Vec<OpId>>,
    ready: Vec<OpId>,
    /// Ready parts of collectives, by collective.
    parts: BTreeMap<u64, Vec<OpId>>,
}

impl Plan {
    fn new(state: &State, targets: &[OpId]) -> Plan {
        let mut need = HashSet::new();
        let mut todo: Vec<OpId> = targets.to_vec();
        while let Some(id) = todo.pop() {
            let Some(op) = state.ops.get(&id) else { continue };
            if need.insert(id) {
                todo.extend(&op.deps);
                todo.extend(op.instance.map(|i| state.nccl.parts_of(i)).unwrap_or_default());
            }
        }
        let mut plan = Plan { left: HashMap::new(), after: HashMap::new(), ready: Vec::new(), parts: BTreeMap::new() };
        let mut need: Vec<OpId> = need.into_iter().collect();
        need.sort_unstable();
        for id in need {
            let deps: Vec<OpId> = state.ops[&id].deps.iter().copied().filter(|d| state.ops.contains_key(d)).collect();
            plan.left.insert(id, deps.len());
            if deps.is_empty() {
                plan.enable(state, id);
            }
            deps.into_iter().for_each(|d| plan.after.entry(d).or_default().push(id));
        }
        plan
    }

    fn enable(&mut self, state: &State, id: OpId) {
        let Some(op) = state.ops.get(&id).filter(|o| !o.running) else { return };
        let Some(instance) = op.instance else { return self.ready.push(id) };
        let parts = self.parts.entry(instance).or_default();
        parts.push(id);
        if parts.len() == state.nccl.ranks_of(instance) {
            self.ready.push(id);
        }
    }

    fn finish(&mut self, state: &State, id: OpId) {
        self.left.remove(&id);
        for next in self.after.remove(&id).unwrap_or_default() {
            let n = self.left.entry(next).or_insert(1);
            *n -= 1;
            if *n == 0 {
                self.enable(state, next);
            }
        }
    }
}

impl Held {
    /// Runs operations and all they depend on. Those that another thread is running are waited for.
    pub fn force(&mut self, targets: &[OpId]) {
        let start = Instant::now();
        loop {
            let mut plan = Plan::new(self, targets);
            if plan.left.is_empty() {
                return;
            }
            let mut alone = true;
            while alone && !plan.ready.is_empty() {
                let pick = self.random() % plan.ready.len();
                let id = plan.ready.swap_remove(pick);
                alone = self.run(id, &mut plan);
            }
            if !alone || plan.left.is_empty() {
                continue;
            }
            let busy = plan.left.keys().any(|o| self.ops.get(o).is_some_and(|o| o.running));
            if !busy && start.elapsed() >= self.config.patience {
                self.give_up(&plan);
                continue;
            }
            let limit = self.config.patience.saturating_sub(start.elapsed()).max(std::time::Duration::from_millis(1));
            self.wait(limit);
        }
    }

    /// Parts of collectives whose others never came: they fail, so that nothing hangs.
    fn give_up(&mut self, plan: &Plan) {
        let stuck: Vec<OpId> = plan.parts.values().flatten().copied().filter(|o| self.ops.contains_key(o)).collect();
        for id in &stuck {
            let Some(op) = self.ops.remove(id) else { continue };
            let missing = op.instance.map(|i| self.nccl.missing(i)).unwrap_or_default();
            let failure = Failure::new(LAUNCH_FAILED, format!("the collective never ran: {missing}"));
            self.fail(op.context, &op.label, &failure);
        }
        if stuck.is_empty() {
            say("operations wait for each other; they are dropped");
            plan.left.keys().for_each(|id| drop(self.ops.remove(id)));
        }
        self.tell();
    }

    /// Runs one operation, or a whole collective; false when the lock was let go meanwhile.
    fn run(&mut self, id: OpId, plan: &mut Plan) -> bool {
        let Some(op) = self.ops.get_mut(&id) else { return true };
        op.running = true;
        if let Some(instance) = op.instance {
            let parts = plan.parts.remove(&instance).unwrap_or_default();
            let ops: Vec<(OpId, Op)> = parts.iter().filter_map(|p| Some((*p, self.ops.remove(p)?))).collect();
            crate::nccl::run(self, instance, &ops);
            parts.iter().for_each(|p| plan.finish(self, *p));
            self.tell();
            return true;
        }
        let (context, work, label) = (op.context, op.work.clone(), op.label.clone());
        let gpu = self.gpu(context);
        if self.faults.lost(gpu) {
            self.lose(gpu);
        }
        if self.config.trace {
            say(&format!("runs {label}"));
        }
        let usable = self.usable(context).is_ok();
        let mut touch = Touch { context, gpu, spans: Vec::new() };
        let mut alone = true;
        match work {
            Work::Run(runner) if usable => {
                if let Err(failure) = runner(self, &mut touch) {
                    self.fail(context, &label, &failure);
                }
            }
            Work::Host(function, data) if usable => {
                self.unlocked(|| function(data as *mut c_void));
                alone = false;
            }
            Work::Stamp(event) => {
                if let Some(e) = self.events.get_mut(&event) {
                    e.at = Some(Instant::now());
                }
            }
            _ => {}
        }
        if let Some(op) = self.ops.remove(&id)
            && !touch.spans.is_empty()
        {
            self.settle(&op, touch);
        }
        plan.finish(self, id);
        self.tell();
        alone
    }

    /// Waits for a stream; the error of its context, if any.
    pub fn synchronize(&mut self, stream: u64) -> Result<(), Code> {
        let context = self.streams[&stream].context;
        let (ops, clock) = self.tail(stream);
        self.force(&ops);
        self.host_joins(&clock);
        self.usable(context)
    }

    /// Waits for all streams of a context.
    pub fn synchronize_context(&mut self, context: u64) -> Result<(), Code> {
        let streams: Vec<u64> = self.streams.iter().filter(|(_, s)| s.context == context).map(|(k, _)| *k).collect();
        let tails: Vec<(Vec<OpId>, Clock)> = streams.iter().map(|s| self.tail(*s)).collect();
        let mut ops: Vec<OpId> = tails.iter().flat_map(|t| t.0.iter().copied()).collect();
        let own: Vec<OpId> = self.ops.iter().filter(|(_, o)| o.context == context).map(|(id, _)| *id).collect();
        let clocks: Vec<Clock> = own.iter().map(|o| self.ops[o].clock.clone()).collect();
        ops.extend(own);
        self.force(&ops);
        tails.iter().map(|t| &t.1).chain(&clocks).for_each(|c| self.host_joins(c));
        self.usable(context)
    }
}
