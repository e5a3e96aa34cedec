//! One step's work on CUDA GPUs: what is enqueued on which stream, event by event, and its replay as a CUDA graph.
//!
//! Work comes in segments: all that can be enqueued before the host must look at a result. A segment forks from one
//! stream to all that it uses and joins them again, so that it can be captured as one graph over all GPUs and launched
//! by one call. Invariant: a replayed segment enqueues nothing else and allocates nothing.

use super::call::{Called, CudaError, CudaErrorKind, CudaResult};
use super::collective;
use super::command::{CudaCommand, Placed, Upload};
use super::context::{Event, PinnedMemory, Stream};
use super::copy;
use super::gpu::Gpu;
use super::trace::Trace;
use crate::device::{DeviceId, Lane};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUgraphExec};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Whether segments that ran before are replayed as CUDA graphs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Graphs {
    /// They are.
    On,
    /// They are not, as was asked.
    Off,
    /// They cannot be: why.
    Refused(String),
}

/// Why a step's work failed.
#[derive(Clone, Debug)]
pub struct StepFailure {
    /// The step's node, where one call belongs to it.
    pub node: Option<u32>,
    /// The device whose call failed.
    pub device: DeviceId,
    /// The call and what it said.
    pub error: CudaError,
    /// True if contexts were lost with the memory that they held.
    pub lost: bool,
}

/// One step's work on the GPUs.
pub struct CudaStep {
    gpus: Vec<Arc<Gpu>>,
    events: Vec<Option<Event>>,
    segments: Vec<Segment>,
    uploads: Vec<Upload>,
    /// By GPU: marked when its feeds have arrived.
    uploaded: Vec<Option<Event>>,
    /// Word 0: a check failed; word `1 + node`: where and on what.
    failure: Option<PinnedMemory>,
    graphs: Graphs,
}

struct Segment {
    commands: Vec<Placed>,
    /// The stream from which all others start, and where they end.
    origin: usize,
    /// The other streams, each with the event that says it has ended.
    others: Vec<(usize, Lane, Event)>,
    fork: Event,
    /// Whether NCCL is called in it.
    sums: bool,
    replay: Mutex<Replay>,
}

/// How often a waiting thread asks one stream before it looks at another.
const POLLS: u32 = 64;

/// How long streams may wait for a GPU that was lost.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// How often a segment was enqueued one by one, and its graph.
#[derive(Default)]
struct Replay {
    runs: u32,
    graph: Option<Graph>,
    failed_launches: u32,
    refused: Option<String>,
}

struct Graph(CUgraphExec, Arc<super::context::Context>);

impl Replay {
    /// Goes on without a graph, and keeps why; a lost context is an error all the same.
    fn refuse(&mut self, failure: StepFailure) -> Result<(), StepFailure> {
        if failure.lost {
            return Err(failure);
        }
        self.graph = None;
        self.refused = Some(failure.error.to_string());
        Ok(())
    }

    /// Goes on without this graph; after the second time, without any.
    fn refuse_once(&mut self, failure: StepFailure) -> Result<(), StepFailure> {
        self.failed_launches += 1;
        if self.failed_launches > 1 || failure.lost {
            return self.refuse(failure);
        }
        self.graph = None;
        Ok(())
    }
}

// SAFETY: handles of contexts that live as long as the process; addresses of memory that the plan and the session own.
unsafe impl Send for CudaStep {}
// SAFETY: the session runs one step at a time.
unsafe impl Sync for CudaStep {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.1.bind().is_ok() {
            // SAFETY: no launch of it is under way: steps are waited for.
            let _ = unsafe { result::graph::exec_destroy(self.0) };
        }
    }
}

impl CudaStep {
    /// The work of a step: its GPUs, events (those that streams wait for), segments in order, and feeds.
    ///
    /// # Errors
    /// What the driver says to events and pinned memory.
    pub fn new(
        gpus: Vec<Arc<Gpu>>,
        events: Vec<Option<Event>>,
        segments: Vec<Vec<Placed>>,
        uploads: Vec<Upload>,
        failure: Option<PinnedMemory>,
        graphs: Graphs,
    ) -> CudaResult<CudaStep> {
        let segments = segments.into_iter().map(|c| Segment::new(c, &gpus)).collect::<CudaResult<_>>()?;
        let fed = |gpu: usize| uploads.iter().any(|u| u.gpu == gpu);
        let uploaded = (gpus.iter().enumerate())
            .map(|(i, g)| fed(i).then(|| Event::new(&g.context, false)).transpose())
            .collect::<CudaResult<_>>()?;
        gpus.iter().enumerate().filter(|(i, _)| fed(*i)).try_for_each(|(_, g)| g.prepare_staging())?;
        Ok(CudaStep { gpus, events, segments, uploads, uploaded, failure, graphs })
    }

    /// The GPUs.
    pub fn gpus(&self) -> &[Arc<Gpu>] {
        &self.gpus
    }

    /// Why segments are not replayed as graphs though they were to be.
    pub fn refused(&self) -> Option<String> {
        match &self.graphs {
            Graphs::Refused(why) => Some(why.clone()),
            _ => self.segments.iter().find_map(|s| s.lock().refused.clone()),
        }
    }

    /// True before the first run: kernels may turn out not to be launchable.
    pub fn is_untried(&self) -> bool {
        self.segments.iter().any(|s| s.lock().runs == 0)
    }

    /// Clears what the last step's checks reported, and enqueues the feeds' copies.
    ///
    /// # Safety
    /// No step is under way; `feed` gives the bytes of each feed, of the sizes that the step was made for.
    pub unsafe fn begin<'a>(&self, feed: impl Fn(usize) -> &'a [u8]) -> Result<(), StepFailure> {
        if let Some(failure) = &self.failure {
            // SAFETY: nothing is enqueued that could write it.
            unsafe { failure.start().write_bytes(0, failure.len()) };
        }
        for upload in &self.uploads {
            let gpu = &self.gpus[upload.gpu];
            let (from, (to, bytes)) = (upload.feed.1, upload.to);
            // SAFETY: the destination is the plan's, and no step uses it now.
            unsafe { gpu.upload(&feed(upload.feed.0)[from..from + bytes], to) }
                .map_err(|e| self.failed(Some(upload.node), upload.gpu, e))?;
        }
        for (i, uploaded) in self.uploaded.iter().enumerate() {
            if let Some(event) = uploaded {
                let gpu = &self.gpus[i];
                let record = || gpu.context.bind().and_then(|()| event.record(gpu.stream(Lane::FromHost)));
                record().map_err(|e| self.failed(None, i, e))?;
            }
        }
        Ok(())
    }

    /// Enqueues a segment: by one graph launch where it can be replayed, else command by command. Calls `writes` when
    /// what changes variables may run, even if the rest is then refused; a graph is launched whole or not at all.
    pub fn launch(&self, segment: usize, trace: bool, writes: &dyn Fn()) -> Result<Option<Trace>, StepFailure> {
        let part = &self.segments[segment];
        let origin = &self.gpus[part.origin];
        let stream = origin.stream(Lane::Compute);
        let mut replay = part.lock();
        if segment == 0 {
            let wait = || {
                origin.context.bind()?;
                self.uploaded.iter().flatten().try_for_each(|e| stream.wait(e))
            };
            wait().map_err(|e| self.failed(None, part.origin, e))?;
        }
        // Calls of NCCL's and launches that hold them have one order for all GPUs.
        let _in_turn = part.sums.then(collective::in_turn);
        if trace {
            let mut trace = Trace::default();
            replay.runs += 1;
            self.enqueue(part, writes, Some(&mut trace))?;
            return Ok(Some(trace));
        }
        let can_replay = self.graphs == Graphs::On && replay.refused.is_none();
        if can_replay && replay.graph.is_none() && replay.runs > 0 {
            match self.capture(part) {
                Ok(graph) => replay.graph = Some(graph),
                Err(failure) => replay.refuse(failure)?,
            }
        }
        if let Some(graph) = &replay.graph {
            let launch = || {
                origin.context.bind()?;
                // SAFETY: the graph and the stream are live.
                unsafe { result::graph::launch(graph.0, stream.raw) }.called("cuGraphLaunch")
            };
            match launch().map_err(|e| self.failed(None, part.origin, e)) {
                Ok(()) => {
                    if part.commands.iter().any(|c| c.writes) {
                        writes();
                    }
                    return Ok(None);
                }
                // Nothing was enqueued. This step goes command by command, and the next may be captured anew.
                Err(failure) => replay.refuse_once(failure)?,
            }
        }
        replay.runs += 1;
        self.enqueue(part, writes, None)?;
        Ok(None)
    }

    /// Waits for a segment's work. A GPU that was lost is told at once, though others may wait for it for ever.
    pub fn wait(&self, segment: usize) -> Result<(), StepFailure> {
        let part = &self.segments[segment];
        let origin = self.gpus[part.origin].stream(Lane::Compute);
        let failed = |gpu| move |e| self.failed(None, gpu, e);
        let mut others = part.others.iter().map(|(gpu, lane, _)| (*gpu, *lane)).cycle();
        let mut polls = 0u32;
        while !origin.is_done().map_err(failed(part.origin))? {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS) {
                if let Some((gpu, lane)) = others.next() {
                    self.gpus[gpu].stream(lane).is_done().map_err(failed(gpu))?;
                }
                std::thread::yield_now();
            }
        }
        // All is done, but only its own calls tell that a GPU was lost.
        let mut asked = part.origin;
        for (gpu, lane, _) in &part.others {
            if std::mem::replace(&mut asked, *gpu) != *gpu {
                self.gpus[*gpu].stream(*lane).is_done().map_err(failed(*gpu))?;
            }
        }
        Ok(())
    }

    /// Waits for all that was enqueued, whatever became of it, and notes contexts that were lost; true if any was.
    /// Streams that wait for a lost GPU are given up after some seconds, and their contexts with them.
    pub fn drain(&self) -> bool {
        let began = Instant::now();
        let mut lost = false;
        let mut pending: Vec<&Stream> = self.gpus.iter().flat_map(|g| Lane::ALL.map(|l| g.stream(l))).collect();
        while !pending.is_empty() {
            pending.retain(|stream| match stream.is_done() {
                Ok(done) => !done,
                Err(e) => {
                    if e.kind == CudaErrorKind::ContextLost {
                        stream.context.lose(e.to_string());
                        lost = true;
                    }
                    false
                }
            });
            if lost && began.elapsed() > GIVEN_UP {
                pending.iter().for_each(|s| s.context.lose("it waits for a GPU that was lost".into()));
                break;
            }
            std::thread::yield_now();
        }
        lost
    }

    /// What a check on a GPU reported in the step that just ended: node, position, value.
    pub fn failed_check(&self) -> Option<(u32, i64, i64)> {
        let failure = self.failure.as_ref()?;
        // SAFETY: the memory is whole words, and the step was waited for.
        let words = unsafe { std::slice::from_raw_parts(failure.start().cast::<u64>(), failure.len() / 8) };
        if words[0] == 0 {
            return None;
        }
        let (i, word) = words[1..].iter().enumerate().find(|(_, w)| **w >> 63 != 0)?;
        Some((i as u32, (word >> 32 & 0x7fff_ffff) as i64, i64::from(*word as u32 as i32)))
    }

    fn enqueue(&self, part: &Segment, writes: &dyn Fn(), mut trace: Option<&mut Trace>) -> Result<(), StepFailure> {
        let origin = &self.gpus[part.origin];
        let start = origin.stream(Lane::Compute);
        let fork = || {
            origin.context.bind()?;
            part.fork.record(start)?;
            part.others.iter().try_for_each(|(gpu, lane, _)| {
                self.gpus[*gpu].context.bind()?;
                self.gpus[*gpu].stream(*lane).wait(&part.fork)
            })?;
            origin.context.bind()
        };
        fork().map_err(|e| self.failed(None, part.origin, e))?;
        if let Some(trace) = &mut trace {
            for (i, gpu) in self.gpus.iter().enumerate() {
                let lane = part.others.iter().find(|o| o.0 == i).map(|o| o.1);
                let lane = if i == part.origin { Some(Lane::Compute) } else { lane };
                let begin = |lane| trace.begin(gpu, gpu.stream(lane));
                lane.map_or(Ok(()), begin).map_err(|e| self.failed(None, i, e))?;
            }
            origin.context.bind().map_err(|e| self.failed(None, part.origin, e))?;
        }
        let mut bound = part.origin;
        for placed in &part.commands {
            if placed.writes {
                writes();
            }
            let gpu = &self.gpus[placed.gpu];
            let mut run = || {
                if std::mem::replace(&mut bound, placed.gpu) != placed.gpu {
                    gpu.context.bind()?;
                }
                let stream = gpu.stream(placed.lane);
                match &mut trace {
                    Some(trace) if !matches!(placed.command, CudaCommand::Wait(_) | CudaCommand::Signal(_)) => {
                        let before = trace.mark(gpu, stream)?;
                        self.command(placed, gpu, stream)?;
                        trace.note(placed.node, before, gpu, stream)
                    }
                    _ => self.command(placed, gpu, stream),
                }
            };
            run().map_err(|e| self.failed(Some(placed.node), placed.gpu, e))?;
        }
        for (gpu, lane, ended) in &part.others {
            let owner = &self.gpus[*gpu];
            let join = || {
                owner.context.bind()?;
                ended.record(owner.stream(*lane))?;
                origin.context.bind()?;
                start.wait(ended)
            };
            join().map_err(|e| self.failed(None, *gpu, e))?;
        }
        Ok(())
    }

    fn command(&self, placed: &Placed, gpu: &Gpu, stream: &Stream) -> CudaResult<()> {
        // SAFETY: the GPU's context is current; addresses belong to memory that the plan and the session own, and the
        // planner's events order every use of it.
        unsafe {
            match &placed.command {
                CudaCommand::Wait(e) => self.events[*e].as_ref().map_or(Ok(()), |e| stream.wait(e)),
                CudaCommand::Signal(e) => self.events[*e].as_ref().map_or(Ok(()), |e| e.record(stream)),
                CudaCommand::Kernel(call) => call.enqueue(stream),
                CudaCommand::Gemm(product) => gpu.blas()?.enqueue(product, stream),
                CudaCommand::Convolution(convolution) => gpu.dnn_handle()?.enqueue(convolution),
                CudaCommand::Within(to, from, bytes) => copy::within(stream, *to, *from, *bytes),
                CudaCommand::Zero(to, bytes) => copy::zero(stream, *to, *bytes),
                CudaCommand::FromHost(to, from, bytes) => copy::from_host(stream, *to, *from, *bytes),
                CudaCommand::ToHost(to, from, bytes) => copy::to_host(stream, *to, *from, *bytes),
                CudaCommand::FromPeer(to, source, from, bytes) => {
                    copy::from_peer(stream, *to, &self.gpus[*source].context, *from, *bytes)
                }
                CudaCommand::ThroughHost(c) => {
                    let source = &self.gpus[c.source];
                    let sender = source.stream(Lane::Peer);
                    c.turns[0].record(stream)?;
                    source.context.bind()?;
                    sender.wait(&c.turns[0])?;
                    copy::to_host(sender, c.staging.start(), c.from, c.staging.len())?;
                    c.turns[1].record(sender)?;
                    gpu.context.bind()?;
                    stream.wait(&c.turns[1])?;
                    copy::from_host(stream, c.to, c.staging.start(), c.staging.len())
                }
                CudaCommand::AllReduce(sum) => sum.enqueue(&self.gpus),
            }
        }
    }

    fn capture(&self, part: &Segment) -> Result<Graph, StepFailure> {
        let origin = &self.gpus[part.origin];
        let stream = origin.stream(Lane::Compute);
        let failed = |e| self.failed(None, part.origin, e);
        let begin = || {
            origin.context.bind()?;
            // SAFETY: the stream is live and captures nothing.
            unsafe {
                result::stream::begin_capture(stream.raw, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            }
            .called("cuStreamBeginCapture")
        };
        begin().map_err(failed)?;
        let enqueued = self.enqueue(part, &|| (), None);
        let end = || {
            origin.context.bind()?;
            // SAFETY: the stream captures since `begin`.
            unsafe { result::stream::end_capture(stream.raw) }.called("cuStreamEndCapture")
        };
        let graph = end();
        let captured = graph.as_ref().is_ok_and(|g| !g.is_null());
        // SAFETY: the graph is live until it is destroyed here; its executable form is its own.
        let made = captured.then(|| unsafe {
            let graph = *graph.as_ref().unwrap_or(&std::ptr::null_mut());
            let mut made = std::ptr::null_mut();
            let said = match enqueued.is_ok() {
                true => sys::cuGraphInstantiateWithFlags(&mut made, graph, 0).called("cuGraphInstantiate"),
                false => Ok(()),
            };
            let _ = result::graph::destroy(graph);
            said.map(|()| made)
        });
        enqueued?;
        graph.map_err(failed)?;
        let none = || CudaError::refused("cuStreamEndCapture", "no graph");
        let executable = Graph(made.ok_or_else(none).map_err(failed)?.map_err(failed)?, origin.context.clone());
        // The first launch would take what the graph needs of the device's memory; rather now.
        // SAFETY: both are live.
        unsafe { result::graph::upload(executable.0, stream.raw) }.called("cuGraphUpload").map_err(failed)?;
        Ok(executable)
    }

    fn failed(&self, node: Option<u32>, gpu: usize, error: CudaError) -> StepFailure {
        let gpu = &self.gpus[gpu];
        let lost = error.kind == CudaErrorKind::ContextLost;
        if lost {
            gpu.context.lose(error.to_string());
        }
        StepFailure { node, device: gpu.device, error, lost }
    }
}

impl Segment {
    fn new(commands: Vec<Placed>, gpus: &[Arc<Gpu>]) -> CudaResult<Segment> {
        let origin = commands.first().map_or(0, |c| c.gpu);
        let mut used: Vec<(usize, Lane)> = commands.iter().map(|c| (c.gpu, c.lane)).collect();
        for command in &commands {
            match &command.command {
                CudaCommand::ThroughHost(t) => used.push((t.source, Lane::Peer)),
                CudaCommand::AllReduce(sum) => used.extend(sum.gpus().map(|gpu| (gpu, Lane::Peer))),
                _ => {}
            }
        }
        used.sort_unstable();
        used.dedup();
        used.retain(|u| *u != (origin, Lane::Compute));
        let others = used.into_iter().map(|(gpu, lane)| Ok((gpu, lane, Event::new(&gpus[gpu].context, false)?)));
        Ok(Segment {
            others: others.collect::<CudaResult<_>>()?,
            fork: Event::new(&gpus[origin].context, false)?,
            sums: commands.iter().any(|c| matches!(c.command, CudaCommand::AllReduce(_))),
            commands,
            origin,
            replay: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Replay> {
        self.replay.lock().unwrap_or_else(|e| e.into_inner())
    }
}
