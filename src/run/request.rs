//! Requests: the plan that serves a (feeds, fetches, targets, sizes), kept once it is made.
//!
//! Invariants: asking again for what was asked lately neither plans nor allocates; a session that is fed ever other
//! sizes keeps a bounded number of plans.

use super::executable::{Executable, Loader};
use super::feeds::{check_feed, check_handles};
use super::room::{GiveWay, check_room};
use super::session::{Session, State};
use super::store::VariableStore;
use crate::base::{Array, Code, DType, Dims, Error, Result};
use crate::device::{Queue, Team};
use crate::graph::{Graph, NodeId, Operation, Tensor, TensorId};
use crate::plan::{FeedSpec, Fetch, Schedule, Signature, StageTimes};
use std::sync::Arc;

/// The largest feed of integers or bools, in elements, whose value may decide sizes and branches.
const VALUE_FEED_ELEMENTS: usize = 64;

/// How many requests a session keeps plans for; beyond that the one that was not used for longest goes.
const KEPT_PLANS: usize = 64;

/// A request as the user writes it, and the plan that serves it.
pub(super) struct Plan {
    feeds: Vec<(TensorId, Dims)>,
    /// Values that sizes depend on.
    values: Option<Vec<Option<Arc<Array>>>>,
    fetches: Vec<TensorId>,
    targets: Vec<NodeId>,
    pub executable: Arc<Executable>,
    /// What its stages took; none where it came with another request's.
    pub(super) times: StageTimes,
    /// By feed of the request: the signature's feed.
    pub feed_places: Vec<usize>,
    /// By fetch of the request: the signature's fetch.
    fetch_places: Vec<usize>,
}

impl Session<'_> {
    /// The plan for a request: the one that served it before, or a new one.
    pub(super) fn plan_for(
        &self,
        state: &mut State,
        feeds: &[(Tensor<'_>, &Array)],
        fetches: &[Tensor<'_>],
        targets: &[Operation<'_>],
    ) -> Result<Arc<Plan>> {
        if let Some(at) =
            state.plans.iter().position(|p| p.serves(self.graph, feeds, fetches, targets) && p.is_current(&state.store))
        {
            // The plans stand in the order of their last use.
            state.plans[at..].rotate_left(1);
            return Ok(state.plans[state.plans.len() - 1].clone());
        }
        let mut times = StageTimes::start();
        check_handles(self.graph, feeds.iter().map(|f| f.0), fetches, targets)?;
        self.graph.check()?;
        let before = state.nodes.len();
        self.refresh_nodes(state);
        for (tensor, array) in feeds {
            let id = tensor.id();
            check_feed(&state.nodes[id.node.index()], id.output, array.dtype(), array.dims())?;
        }
        let value_of = |a: &Array| {
            ((a.dtype().is_integer() || a.dtype() == DType::Bool) && a.len() <= VALUE_FEED_ELEMENTS)
                .then(|| Arc::new(a.clone()))
        };
        let signature = Signature::new(
            feeds.iter().map(|(tensor, array)| {
                let (dtype, dims) = (array.dtype(), array.dims().into());
                FeedSpec { tensor: tensor.id(), dtype, dims, value: value_of(array) }
            }),
            fetches.iter().map(|t| t.id()),
            targets.iter().map(|o| o.id()),
        );
        let executable = match state.plans.iter().find(|p| p.has(&signature) && p.is_current(&state.store)) {
            Some(plan) => plan.executable.clone(),
            None => {
                let is_initialized = |id: NodeId| state.store.is_initialized(id);
                let (nodes, signature) = (state.nodes.clone(), signature.clone());
                times.lap("check");
                let schedule = self.make_schedule(nodes, signature, &is_initialized, true, &mut times)?;
                self.make_room(state, &schedule)?;
                state.remarks.look_at(&schedule);
                let State { store, stateful, generators, gpus, .. } = &mut *state;
                let mut loader = Loader {
                    machine: &self.options.machine,
                    accounts: &self.accounts,
                    waiters: &self.waiters,
                    store,
                    stateful,
                    generators,
                    gpus,
                    cuda_options: self.options.cuda,
                };
                let executable = Arc::new(Executable::load(schedule, &mut loader)?);
                for (from, to, why) in executable.cuda().map(|c| c.detours(&executable.schedule)).unwrap_or_default() {
                    state.remarks.detoured(from, to, why);
                }
                times.lap("load");
                self.start_devices(&executable)?;
                times.lap("start");
                state.built += 1;
                if before > 0 && state.nodes.len() > before {
                    let State { remarks, nodes, .. } = &mut *state;
                    remarks.grew(nodes.last().map(|n| (&n.name, n.source)));
                }
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
            fetch_places: (fetches.iter()).filter_map(|t| step.signature.fetches.binary_search(&t.id()).ok()).collect(),
            executable,
            times,
        });
        if state.plans.len() == KEPT_PLANS {
            state.plans.remove(0);
        }
        state.plans.push(plan.clone());
        Ok(plan)
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

    /// Sees to it that a plan fits the memory limits. Kept plans give way before it is refused.
    fn make_room(&self, state: &mut State, schedule: &Schedule) -> Result<()> {
        let fits = |state: &State, give_way| {
            check_room(schedule, &self.options.machine, &self.accounts, &state.store, give_way)
        };
        let beside_all = fits(state, GiveWay::Nothing);
        if beside_all.is_err() && fits(state, GiveWay::Plans).is_ok() {
            release(std::mem::take(&mut state.plans));
            return fits(state, GiveWay::Nothing);
        }
        beside_all
    }
}

/// Lets plans go, and waits until no queue holds their memory any more.
pub(super) fn release(plans: Vec<Arc<Plan>>) {
    let mut executables: Vec<Arc<Executable>> = plans.iter().map(|p| p.executable.clone()).collect();
    executables.sort_by_key(Arc::as_ptr);
    executables.dedup_by(|a, b| Arc::ptr_eq(a, b));
    drop(plans);
    for executable in executables {
        // A queue lets its part of a step go just after the step has ended.
        while Arc::strong_count(&executable) > 1 {
            std::thread::yield_now();
        }
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

    /// True while the variables that decided a branch of the plan have, or lack, a value as they did.
    fn is_current(&self, store: &VariableStore) -> bool {
        let asked = &self.executable.schedule.step.pruned.initialized;
        asked.iter().all(|(variable, answer)| store.is_initialized(*variable) == *answer)
    }

    fn feed_dtype(&self, feed: usize) -> DType {
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

pub(super) fn fetched(plan: &Plan, fetch: usize, feeds: &[(Tensor<'_>, &Array)]) -> Result<Array> {
    let desc = plan.executable.fetch_desc(plan.fetch_places[fetch]);
    let mut array = Array::zeros(desc.dtype, &desc.dims)?;
    let arrays: Vec<&Array> = feeds.iter().map(|f| f.1).collect();
    plan.fetch_into(fetch, &arrays, &mut array)?;
    Ok(array)
}
