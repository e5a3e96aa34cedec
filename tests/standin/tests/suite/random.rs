//! Random programs over streams of two GPUs, plain and as graphs: with all waits they compute what they say, in any
//! order of running and without a race; with one wait less there is a race exactly where the test's own order says so.

use super::harness::{Gpu, Lab, gpu, lab};
use cudarc::driver::{CudaEvent, CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, sys};
use std::sync::Arc;

const TEXT: &str = r#"
extern "C" __global__ void mix(unsigned* y, const unsigned* x, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = y[i] * 3u + x[i];
}
"#;
const N: usize = 32;
const BUFFERS: usize = 6;

/// y = 3 y + x on a stream, where y and x are parts of one allocation.
#[derive(Clone, Copy)]
struct Step {
    stream: usize,
    y: usize,
    x: usize,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

fn program(random: &mut Random, steps: usize, streams: usize) -> Vec<Step> {
    let step = |random: &mut Random| {
        let y = random.below(BUFFERS);
        Step { stream: random.below(streams), y, x: (y + 1 + random.below(BUFFERS - 1)) % BUFFERS }
    };
    (0..steps).map(|_| step(random)).collect()
}

fn conflict(a: Step, b: Step) -> bool {
    a.y == b.y || a.y == b.x || a.x == b.y
}

/// The waits that the program needs: (earlier, later) on different streams.
fn waits(steps: &[Step]) -> Vec<(usize, usize)> {
    let pairs = (0..steps.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    pairs.filter(|(a, b)| steps[*a].stream != steps[*b].stream && conflict(steps[*a], steps[*b])).collect()
}

/// True when every conflict is ordered by the streams and these waits.
fn ordered(steps: &[Step], waits: &[(usize, usize)]) -> bool {
    let n = steps.len();
    let mut before = vec![vec![false; n]; n];
    for b in 0..n {
        for a in 0..b {
            if steps[a].stream == steps[b].stream || waits.contains(&(a, b)) {
                let through = before[a].clone();
                before[b].iter_mut().zip(through).for_each(|(own, theirs)| *own |= theirs);
                before[b][a] = true;
            }
        }
    }
    (0..n).all(|b| (0..b).all(|a| before[b][a] || !conflict(steps[a], steps[b])))
}

struct Bench {
    gpus: Vec<Gpu>,
    streams: Vec<(usize, Arc<CudaStream>)>,
    functions: Vec<CudaFunction>,
    memory: CudaSlice<u32>,
}

fn start() -> Vec<u32> {
    (0..(N * BUFFERS) as u32).map(|i| i * i + 7).collect()
}

impl Bench {
    fn new() -> Bench {
        let gpus = vec![gpu(0, TEXT), gpu(1, TEXT)];
        gpus[1].context.bind_to_thread().unwrap();
        // SAFETY: the contexts are alive.
        unsafe { sys::cuCtxEnablePeerAccess(gpus[0].context.cu_ctx(), 0) }.result().unwrap();
        let streams = (0..4).map(|i| (i % 2, gpus[i % 2].context.new_stream().unwrap())).collect();
        let functions = gpus.iter().map(|g| g.function("mix")).collect();
        let memory = gpus[0].put(&start());
        gpus[0].stream.synchronize().unwrap();
        Bench { gpus, streams, functions, memory }
    }

    fn enqueue(&self, steps: &[Step], waits: &[(usize, usize)]) {
        let base = self.memory.device_ptr(&self.gpus[0].stream).0;
        let at = |buffer: usize| base + (buffer * N * 4) as u64;
        let mut events: Vec<CudaEvent> = Vec::new();
        for (b, step) in steps.iter().enumerate() {
            let (gpu, stream) = &self.streams[step.stream];
            for (a, _) in waits.iter().filter(|w| w.1 == b) {
                stream.wait(&events[*a]).unwrap();
            }
            let (y, x, n) = (at(step.y), at(step.x), N as i32);
            let mut launch = stream.launch_builder(&self.functions[*gpu]);
            launch.arg(&y).arg(&x).arg(&n);
            let shape = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (N as u32, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: the arguments are the kernel's.
            unsafe { launch.launch(shape) }.unwrap();
            events.push(stream.record_event(None).unwrap());
        }
    }

    fn run(&mut self, steps: &[Step], waits: &[(usize, usize)], graph: bool) -> Vec<u32> {
        let host = start();
        self.gpus[0].stream.memcpy_htod(&host, &mut self.memory).unwrap();
        self.gpus[0].stream.synchronize().unwrap();
        if graph {
            let first = self.streams[0].1.clone();
            first.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
            let fork = first.record_event(None).unwrap();
            self.streams[1..].iter().for_each(|s| s.1.wait(&fork).unwrap());
            self.enqueue(steps, waits);
            for (_, stream) in &self.streams[1..] {
                first.wait(&stream.record_event(None).unwrap()).unwrap();
            }
            let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            first.end_capture(flags).unwrap().unwrap().launch().unwrap();
        } else {
            self.enqueue(steps, waits);
        }
        self.streams.iter().for_each(|s| s.1.synchronize().unwrap());
        self.gpus[0].stream.clone_dtoh(&self.memory).unwrap()
    }
}

fn by_hand(steps: &[Step]) -> Vec<u32> {
    let mut memory = start();
    for s in steps {
        for i in 0..N {
            memory[s.y * N + i] = memory[s.y * N + i].wrapping_mul(3).wrapping_add(memory[s.x * N + i]);
        }
    }
    memory
}

fn both_ways(lab: &Lab, graph: bool) {
    lab.standin.races_fail(false);
    let mut bench = Bench::new();
    let mut random = Random(11);
    let (mut racing, mut sound) = (0, 0);
    for round in 0..12 {
        lab.standin.seed(round);
        let steps = program(&mut random, 24, 4);
        let mut waits = waits(&steps);
        let before = lab.standin.race_count();
        assert_eq!(bench.run(&steps, &waits, graph), by_hand(&steps), "round {round}");
        assert_eq!(lab.standin.race_count(), before, "round {round}: {:?}", lab.standin.races());
        // Without some of the waits.
        waits.retain(|_| random.below(3) > 0);
        let want = ordered(&steps, &waits);
        bench.run(&steps, &waits, graph);
        let races = lab.standin.race_count() > before;
        assert_eq!(races, !want, "round {round}");
        racing += usize::from(races);
        sound += usize::from(!races);
    }
    assert!(racing > 0, "{racing} racing, {sound} sound");
}

#[test]
fn streams_keep_the_order_that_is_asked_for() {
    if let Some(lab) = lab() {
        both_ways(&lab, false);
    }
}

#[test]
fn graphs_keep_the_order_that_is_asked_for() {
    if let Some(lab) = lab() {
        both_ways(&lab, true);
    }
}
