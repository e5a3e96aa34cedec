//! Sums over GPUs by NCCL: the communicators, and one call on every GPU's own peer stream.
//!
//! NCCL numbers GPUs as the driver does and uses their primary contexts, so that two contexts on one GPU cannot be in one
//! communicator; the planner sees to it. Communicators are made by the first plan that needs them and stay, as contexts
//! do. Invariant: calls are made by one thread at a time, so that every GPU gets all of them in one order.

use super::call::{CudaError, CudaResult};
use super::context::{Context, Event};
use super::gpu::Gpu;
use super::nccl::{Communicator, DataType, Nccl, nccl};
use crate::base::DType;
use crate::device::Lane;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// The communicators of some GPUs, one each, in their order.
struct Communicators(Vec<Communicator>);

// SAFETY: NCCL's communicators may be used from any thread, by one at a time, which `calling` sees to.
unsafe impl Send for Communicators {}
// SAFETY: as above.
unsafe impl Sync for Communicators {}

/// Holds off other threads' calls, and knows the communicators that were made, by the GPUs' numbers.
fn calling() -> MutexGuard<'static, BTreeMap<Vec<i32>, Arc<Communicators>>> {
    static MADE: Mutex<BTreeMap<Vec<i32>, Arc<Communicators>>> = Mutex::new(BTreeMap::new());
    MADE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Held while sums are enqueued, so that two sessions never reach two GPUs in opposite order, where each would wait for
/// the other.
pub(super) fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

impl Communicators {
    fn of(contexts: &[&Arc<Context>]) -> CudaResult<Arc<Communicators>> {
        let numbers: Vec<i32> = contexts.iter().map(|c| c.identity.ordinal).collect();
        let mut made = calling();
        if let Some(known) = made.get(&numbers) {
            return Ok(known.clone());
        }
        let raw = library()?.comm_init_all(&numbers)?;
        Ok(made.entry(numbers).or_insert(Arc::new(Communicators(raw))).clone())
    }
}

/// Where one GPU's part of a sum is, and where its whole sum goes.
pub struct Rank {
    /// The GPU's number in the step.
    pub gpu: usize,
    /// The address of its part.
    pub from: u64,
    /// The address of its sum.
    pub to: u64,
}

/// A sum over GPUs that every one of them gets.
pub struct AllReduce {
    communicators: Arc<Communicators>,
    ranks: Vec<Rank>,
    count: usize,
    dtype: DataType,
    /// Marked when all parts may be read and all sums written.
    ready: Event,
    /// By GPU after the first: marked when its sum is there.
    ended: Vec<Event>,
}

impl AllReduce {
    /// A sum of `count` elements over GPUs, the ranks in order; the first one's peer stream leads.
    ///
    /// # Errors
    /// What NCCL says to the communicators, and the driver to the events; element types that NCCL does not sum.
    pub fn new(gpus: &[Arc<Gpu>], ranks: Vec<Rank>, count: usize, dtype: DType) -> CudaResult<AllReduce> {
        let dtype = match dtype {
            DType::F32 => DataType::Float32,
            DType::F64 => DataType::Float64,
            DType::I32 => DataType::Int32,
            DType::I64 => DataType::Int64,
            _ => return Err(CudaError::refused("ncclAllReduce", format!("there is no arithmetic on {dtype}"))),
        };
        let contexts: Vec<&Arc<Context>> = ranks.iter().map(|r| &gpus[r.gpu].context).collect();
        let communicators = Communicators::of(&contexts)?;
        let ready = Event::new(contexts[0], false)?;
        let ended = contexts[1..].iter().map(|c| Event::new(c, false)).collect::<CudaResult<_>>()?;
        Ok(AllReduce { communicators, ranks, count, dtype, ready, ended })
    }

    /// The GPUs' numbers in the step; the first one's peer stream leads.
    pub fn gpus(&self) -> impl Iterator<Item = usize> {
        self.ranks.iter().map(|r| r.gpu)
    }

    /// Enqueues the sum on the GPUs' peer streams: it begins after what is enqueued on the first one's, and what is
    /// enqueued there next begins after it. The first GPU's context is current afterwards.
    ///
    /// # Safety
    /// The addresses hold `count` elements each until the streams' work is waited for.
    pub unsafe fn enqueue(&self, gpus: &[Arc<Gpu>]) -> CudaResult<()> {
        let first = &gpus[self.ranks[0].gpu];
        let others = || self.ranks[1..].iter().map(|r| &gpus[r.gpu]);
        first.context.bind()?;
        let leading = first.stream(Lane::Peer);
        self.ready.record(leading)?;
        others().try_for_each(|gpu| gpu.stream(Lane::Peer).wait(&self.ready))?;
        // SAFETY: by this function's contract.
        let said = unsafe { self.group(gpus) };
        for (gpu, ended) in others().zip(&self.ended) {
            gpu.context.bind()?;
            ended.record(gpu.stream(Lane::Peer))?;
        }
        first.context.bind()?;
        self.ended.iter().try_for_each(|e| leading.wait(e))?;
        said
    }

    /// # Safety
    /// As [`AllReduce::enqueue`].
    unsafe fn group(&self, gpus: &[Arc<Gpu>]) -> CudaResult<()> {
        let _one_at_a_time = calling();
        let nccl = library()?;
        nccl.group_start()?;
        let call = |(rank, communicator): (&Rank, &Communicator)| {
            let gpu = &gpus[rank.gpu];
            gpu.context.bind()?;
            let stream = gpu.stream(Lane::Peer).raw.cast();
            // SAFETY: by the contract of `enqueue`; communicators live as long as the process.
            unsafe { nccl.all_reduce((rank.from, rank.to), (self.count, self.dtype), *communicator, stream) }
        };
        let said = self.ranks.iter().zip(&self.communicators.0).try_for_each(call);
        // A group that was begun is always ended.
        let ended = nccl.group_end();
        said.and(ended)
    }
}

fn library() -> CudaResult<&'static Nccl> {
    nccl().map_err(|why| CudaError::refused("ncclCommInitAll", why))
}
