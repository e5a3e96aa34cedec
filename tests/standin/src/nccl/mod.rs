//! NCCL within one process: communicators, groups, and collectives that run when all ranks' parts are ready.

pub mod api;
mod reduce;

use crate::bridge::{READ, WRITE};
use crate::codes::{Code, Failure, INVALID_VALUE, LAUNCH_FAILED};
use crate::queue::{Op, OpId, Touch};
use crate::state::{Held, State};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everyone gets the reduction.
    AllReduce,
    /// The root gets the reduction.
    Reduce(usize),
    /// Everyone gets the root's.
    Broadcast(usize),
    /// Everyone gets all, one after the other.
    AllGather,
    /// Everyone gets its stretch of the reduction.
    ReduceScatter,
    /// To a rank.
    Send(usize),
    /// From a rank.
    Recv(usize),
}

/// One rank's part in a collective.
#[derive(Clone, Debug)]
pub struct Part {
    /// The clique of its communicator.
    pub clique: u64,
    /// Its rank.
    pub rank: usize,
    /// Ranks in all.
    pub ranks: usize,
    /// What is done.
    pub kind: Kind,
    /// Where it reads.
    pub send: u64,
    /// Where it writes.
    pub receive: u64,
    /// Elements, as the call has them.
    pub count: usize,
    /// The element type's number.
    pub dtype: i32,
    /// The reduction's number.
    pub op: i32,
}

impl Part {
    /// The two ranks of a transfer from one to another.
    fn pair(&self) -> Option<(usize, usize)> {
        match self.kind {
            Kind::Send(to) => Some((self.rank, to)),
            Kind::Recv(from) => Some((from, self.rank)),
            _ => None,
        }
    }

    fn describe(&self) -> String {
        format!(
            "rank {}: {:?} of {} elements of type {} with operation {}",
            self.rank, self.kind, self.count, self.dtype, self.op
        )
    }
}

/// What meets: all ranks of a clique, or the two of a transfer; and for which time.
type Key = (u64, Pair, u64);
type Pair = Option<(usize, usize)>;

struct Instance {
    key: Key,
    ranks: usize,
    parts: Vec<(usize, OpId, Arc<Part>)>,
}

/// One communicator, of one rank.
pub struct Comm {
    /// The clique it belongs to.
    pub clique: u64,
    /// Its rank.
    pub rank: usize,
    /// Ranks in all.
    pub ranks: usize,
    /// Its GPU.
    pub gpu: usize,
}

/// All communicators and what they are doing.
#[derive(Default)]
pub struct Nccl {
    /// By handle.
    pub comms: BTreeMap<u64, Comm>,
    /// The parts so far of each rank of a clique, or of one side of a transfer.
    counts: BTreeMap<(u64, Pair, usize), u64>,
    keys: BTreeMap<Key, u64>,
    instances: BTreeMap<u64, Instance>,
}

impl Nccl {
    /// The parts of a collective that are enqueued.
    pub fn parts_of(&self, instance: u64) -> Vec<OpId> {
        self.instances.get(&instance).map(|i| i.parts.iter().map(|p| p.1).collect()).unwrap_or_default()
    }

    /// The ranks that take part in a collective.
    pub fn ranks_of(&self, instance: u64) -> usize {
        self.instances.get(&instance).map_or(0, |i| i.ranks)
    }

    /// Drops collectives that are under way.
    pub fn forget(&mut self) {
        self.counts.clear();
        self.keys.clear();
        self.instances.clear();
    }

    /// Who has not come, in words.
    pub fn missing(&self, instance: u64) -> String {
        let Some(i) = self.instances.get(&instance) else { return "it is gone".into() };
        let came = |r: &usize| i.parts.iter().any(|p| p.0 == *r);
        let all: Vec<usize> = i.key.1.map_or_else(|| (0..i.ranks).collect(), |(a, b)| vec![a, b]);
        let (here, away): (Vec<usize>, Vec<usize>) = all.into_iter().partition(came);
        if away.is_empty() {
            return format!(
                "ranks {here:?} came, but wait for each other in different orders; enqueue collectives in the same order everywhere"
            );
        }
        format!("ranks {here:?} came, ranks {away:?} never did; every rank must make the call")
    }
}

/// Enters a part where it belongs: the n-th part of a rank meets the n-th parts of the others.
pub fn meet(state: &mut State, part: Arc<Part>, op: OpId) -> Result<u64, Code> {
    let pair = part.pair();
    let count = state.nccl.counts.entry((part.clique, pair, part.rank)).or_default();
    let key = (part.clique, pair, *count);
    *count += 1;
    let fresh = state.id();
    let id = *state.nccl.keys.entry(key).or_insert(fresh);
    let ranks = if pair.is_some() { 2 } else { part.ranks };
    let instance = state.nccl.instances.entry(id).or_insert(Instance { key, ranks, parts: Vec::new() });
    if instance.parts.iter().any(|p| p.0 == part.rank) {
        return Err(INVALID_VALUE);
    }
    instance.parts.push((part.rank, op, part));
    Ok(id)
}

/// Runs a collective whose parts are all ready; each part is judged by itself.
pub fn run(held: &mut Held, instance: u64, ops: &[(OpId, Op)]) {
    let Some(found) = held.nccl.instances.remove(&instance) else { return };
    held.nccl.keys.remove(&found.key);
    let mut parts: Vec<(usize, &Op, Arc<Part>)> = found
        .parts
        .iter()
        .filter_map(|(rank, id, part)| Some((*rank, &ops.iter().find(|(o, _)| o == id)?.1, part.clone())))
        .collect();
    parts.sort_by_key(|p| p.0);
    let mut touches: Vec<Touch> = parts
        .iter()
        .map(|(_, op, _)| Touch { context: op.context, gpu: held.gpu(op.context), spans: Vec::new() })
        .collect();
    let result = check(held, &parts).and_then(|()| reduce::run(held, &parts, &mut touches));
    if let Err(failure) = result {
        for (_, op, _) in &parts {
            held.fail(op.context, &op.label, &failure);
        }
        return;
    }
    for ((_, op, _), touch) in parts.iter().zip(touches) {
        held.settle(op, touch);
    }
}

fn check(state: &State, parts: &[(usize, &Op, Arc<Part>)]) -> Result<(), Failure> {
    let bad = |m: String| Err(Failure::new(LAUNCH_FAILED, m));
    let Some((_, _, first)) = parts.first() else { return Ok(()) };
    for (rank, op, part) in parts {
        if state.usable(op.context).is_err() {
            return bad(format!("the context of rank {rank} has failed, so the collective cannot run"));
        }
        let kinds = part.pair().is_some() || part.kind == first.kind;
        if !kinds || part.count != first.count || part.dtype != first.dtype || part.op != first.op {
            return bad(format!("the ranks do not agree: {}; {}", first.describe(), part.describe()));
        }
    }
    Ok(())
}

/// Checks a part's range; where its bytes are.
fn side(state: &State, touch: &mut Touch, address: u64, bytes: usize, bits: u8) -> Result<*mut u8, Failure> {
    if bytes == 0 {
        return Ok(std::ptr::null_mut());
    }
    debug_assert!(bits == READ || bits == WRITE);
    touch.reach(state, address, bytes, bits == WRITE)
}
