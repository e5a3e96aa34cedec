//! Graphs: captured streams run again with what is in memory then, in the graph's order; misuse is refused.

use super::harness::{Gpu, gpu, lab, peer_copy, threads, values};
use super::pipelines::TEXT;
use cudarc::driver::{CudaGraph, CudaSlice, PushKernelArg, sys};

const MODE: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const FLAGS: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

fn scale(g: &Gpu, y: &mut CudaSlice<f32>, x: &CudaSlice<f32>, a: f32) {
    let (n, f) = (x.len() as i32, g.function("scale"));
    let mut launch = g.stream.launch_builder(&f);
    launch.arg(y).arg(x).arg(&a).arg(&n);
    // SAFETY: the arguments are the kernel's.
    unsafe { launch.launch(threads(x.len())) }.unwrap();
}

/// x on GPU 0, doubled, copied to GPU 1, tripled there; back to GPU 0's stream. `wait`: the copy waits for the kernel.
fn record(a: &Gpu, b: &Gpu, buffers: &mut [CudaSlice<f32>; 4], wait: bool) -> CudaGraph {
    let [x, y, z, w] = buffers;
    let (fork, ready) = (a.context.new_event(None).unwrap(), a.context.new_event(None).unwrap());
    let done = b.context.new_event(None).unwrap();
    a.stream.begin_capture(MODE).unwrap();
    fork.record(&a.stream).unwrap();
    scale(a, y, x, 2.0);
    ready.record(&a.stream).unwrap();
    b.stream.wait(if wait { &ready } else { &fork }).unwrap();
    assert!(peer_copy(a, b, y, z));
    scale(b, w, z, 3.0);
    done.record(&b.stream).unwrap();
    a.stream.wait(&done).unwrap();
    a.context.bind_to_thread().unwrap();
    a.stream.end_capture(FLAGS).unwrap().unwrap()
}

fn buffers(a: &Gpu, b: &Gpu, n: usize) -> [CudaSlice<f32>; 4] {
    let made = [
        a.put(&values(n)),
        a.stream.alloc_zeros(n).unwrap(),
        b.stream.alloc_zeros(n).unwrap(),
        b.stream.alloc_zeros(n).unwrap(),
    ];
    a.stream.synchronize().unwrap();
    b.stream.synchronize().unwrap();
    made
}

#[test]
fn a_graph_runs_again_with_new_data() {
    let Some(lab) = lab() else { return };
    let (a, b) = (gpu(0, TEXT), gpu(1, TEXT));
    let n = 1000;
    let mut buffers = buffers(&a, &b, n);
    let graph = record(&a, &b, &mut buffers, true);
    for round in 0..5 {
        lab.standin.seed(round);
        let x: Vec<f32> = values(n).iter().map(|v| v + round as f32).collect();
        a.stream.memcpy_htod(&x, &mut buffers[0]).unwrap();
        graph.launch().unwrap();
        a.stream.synchronize().unwrap();
        let out = b.stream.clone_dtoh(&buffers[3]).unwrap();
        assert!(out.iter().zip(&x).all(|(o, x)| *o == 6.0 * x), "round {round}");
    }
    assert_eq!(lab.standin.races(), Vec::<String>::new());
    assert_eq!(lab.standin.calls("cuGraphLaunch"), 5);
    assert_eq!(lab.standin.bytes("peer"), 5 * 4 * n as u64);
}

#[test]
fn a_missing_edge_is_a_race() {
    let Some(lab) = lab() else { return };
    let (a, b) = (gpu(0, TEXT), gpu(1, TEXT));
    let mut buffers = buffers(&a, &b, 100);
    let graph = record(&a, &b, &mut buffers, false);
    graph.launch().unwrap();
    assert!(a.stream.synchronize().is_err() || b.stream.synchronize().is_err());
    assert!(
        lab.standin.races().iter().any(|r| r.contains("peer copy") && r.contains("kernel scale")),
        "{:?}",
        lab.standin.races()
    );
}

#[test]
fn work_beside_a_launch_is_not_ordered_with_it() {
    let Some(lab) = lab() else { return };
    lab.standin.races_fail(false);
    let (a, b) = (gpu(0, TEXT), gpu(1, TEXT));
    let mut buffers = buffers(&a, &b, 100);
    let graph = record(&a, &b, &mut buffers, true);
    graph.launch().unwrap();
    let [_, _, z, w] = &mut buffers;
    scale(&b, z, w, 1.0);
    a.stream.synchronize().unwrap();
    b.stream.synchronize().unwrap();
    assert!(lab.standin.race_count() > 0);
    // After a wait it is.
    lab.standin.reset();
    graph.launch().unwrap();
    let event = a.stream.record_event(None).unwrap();
    b.stream.wait(&event).unwrap();
    scale(&b, z, w, 1.0);
    b.stream.synchronize().unwrap();
    assert_eq!(lab.standin.races(), Vec::<String>::new());
}

#[test]
fn misuse_of_capture_is_refused() {
    use sys::CUresult::*;
    let Some(_lab) = lab() else { return };
    let (a, b) = (gpu(0, TEXT), gpu(1, TEXT));
    let mut buffers = buffers(&a, &b, 100);
    // Work that nobody waits for.
    a.stream.begin_capture(MODE).unwrap();
    let fork = a.stream.record_event(None).unwrap();
    b.stream.wait(&fork).unwrap();
    let [x, y, z, w] = &mut buffers;
    scale(&b, w, z, 1.0);
    assert_eq!(a.stream.end_capture(FLAGS).map(|_| ()).unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // Waiting within.
    a.stream.begin_capture(MODE).unwrap();
    scale(&a, y, x, 1.0);
    assert_eq!(a.stream.synchronize().unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(a.stream.end_capture(FLAGS).map(|_| ()).unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // An event from outside.
    let outside = b.stream.record_event(None).unwrap();
    a.stream.begin_capture(MODE).unwrap();
    assert_eq!(a.stream.wait(&outside).unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert!(a.stream.end_capture(FLAGS).is_err());
    // After all that a capture works.
    a.stream.begin_capture(MODE).unwrap();
    scale(&a, y, x, 1.0);
    a.stream.end_capture(FLAGS).unwrap().unwrap().launch().unwrap();
    a.stream.synchronize().unwrap();
}
