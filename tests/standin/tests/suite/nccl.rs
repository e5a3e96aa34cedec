//! NCCL over four GPUs: sums that are the same everywhere, in graphs too, and ranks that never come.

use super::harness::{Gpu, gpu, lab, values};
use super::pipelines::TEXT;
use cudarc::driver::{CudaSlice, sys};
use cudarc::nccl::{Comm, Id, ReduceOp, group_end, group_start};
use std::sync::Arc;

fn clique(gpus: &[Gpu]) -> Vec<Comm> {
    Comm::from_devices(gpus.iter().map(|g| Arc::clone(&g.stream)).collect()).unwrap()
}

fn gpus(n: usize) -> Vec<Gpu> {
    (0..n).map(|i| gpu(i, TEXT)).collect()
}

fn sides(gpus: &[Gpu], n: usize, times: usize) -> (Vec<CudaSlice<f32>>, Vec<CudaSlice<f32>>) {
    let rank = |(i, g): (usize, &Gpu)| g.put(&values(n).iter().map(|v| v + i as f32).collect::<Vec<_>>());
    (
        gpus.iter().enumerate().map(rank).collect(),
        gpus.iter().map(|g| g.stream.alloc_zeros(n * times).unwrap()).collect(),
    )
}

fn all_reduce(comms: &[Comm], send: &[CudaSlice<f32>], receive: &mut [CudaSlice<f32>], op: &ReduceOp) {
    group_start().unwrap();
    for ((comm, send), receive) in comms.iter().zip(send).zip(receive) {
        comm.all_reduce(send, receive, op).unwrap();
    }
    group_end().unwrap();
}

#[test]
fn four_ranks_reduce_and_gather() {
    let Some(lab) = lab() else { return };
    let gpus = gpus(4);
    let comms = clique(&gpus);
    let n = 100;
    for (op, want) in [(ReduceOp::Sum, 4.0), (ReduceOp::Avg, 1.0)] {
        let (send, mut receive) = sides(&gpus, n, 1);
        all_reduce(&comms, &send, &mut receive, &op);
        for (g, r) in gpus.iter().zip(&receive) {
            let out = g.stream.clone_dtoh(r).unwrap();
            assert!(out.iter().zip(values(n)).all(|(o, v)| (o - want * (v + 1.5)).abs() < 1e-3), "times {want}");
        }
    }
    let (send, mut receive) = sides(&gpus, n, 4);
    group_start().unwrap();
    for ((comm, s), r) in comms.iter().zip(&send).zip(&mut receive) {
        comm.all_gather(s, r).unwrap();
    }
    group_end().unwrap();
    let out = gpus[2].stream.clone_dtoh(&receive[2]).unwrap();
    assert!((0..4).all(|r| out[r * n + 5] == values(n)[5] + r as f32));
    let (send, mut receive) = sides(&gpus, n, 1);
    group_start().unwrap();
    comms[0].send(&send[0], 3).unwrap();
    comms[3].recv(&mut receive[3], 0).unwrap();
    for (rank, r) in receive.iter_mut().enumerate().take(3) {
        let from = (rank == 1).then_some(&send[1]);
        comms[rank].broadcast(from, r, 1).unwrap();
    }
    // Freed only after the group's end: within the group nothing is enqueued yet.
    let mut last = gpus[3].stream.alloc_zeros::<f32>(n).unwrap();
    comms[3].broadcast(None::<&CudaSlice<f32>>, &mut last, 1).unwrap();
    group_end().unwrap();
    assert_eq!(gpus[3].stream.clone_dtoh(&receive[3]).unwrap(), values(n));
    assert_eq!(gpus[0].stream.clone_dtoh(&receive[0]).unwrap()[7], values(n)[7] + 1.0);
    for g in &gpus {
        g.stream.synchronize().unwrap();
    }
    assert_eq!(lab.standin.races(), Vec::<String>::new());
}

#[test]
fn ranks_meet_from_several_threads_and_in_graphs() {
    let Some(lab) = lab() else { return };
    let id = Id::new().unwrap();
    let n = 64;
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let g = gpu(rank, TEXT);
                let comm = Comm::from_rank(g.stream.clone(), rank, 3, id).unwrap();
                let (x, mut y) = (g.put(&vec![rank as f32; n]), g.stream.alloc_zeros::<f32>(n).unwrap());
                g.stream.synchronize().unwrap();
                g.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
                comm.all_reduce(&x, &mut y, &ReduceOp::Sum).unwrap();
                let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                let graph = g.stream.end_capture(flags).unwrap().unwrap();
                for _ in 0..3 {
                    graph.launch().unwrap();
                    assert_eq!(g.stream.clone_dtoh(&y).unwrap(), vec![3.0; n]);
                }
            });
        }
    });
    assert_eq!(lab.standin.races(), Vec::<String>::new());
}

#[test]
fn ranks_that_do_not_come_or_do_not_agree_are_told() {
    let Some(lab) = lab() else { return };
    lab.standin.patience(50);
    let gpus = gpus(2);
    let comms = clique(&gpus);
    let (send, mut receive) = sides(&gpus, 8, 1);
    comms[0].all_reduce(&send[0], &mut receive[0], &ReduceOp::Sum).unwrap();
    assert!(gpus[0].stream.synchronize().is_err());
    assert!(lab.standin.said().iter().any(|s| s.contains("ranks [1] never did")));
    lab.standin.reset();
    let _kept = gpus[0].context.check_err();
    comms[0].all_reduce(&send[0], &mut receive[0], &ReduceOp::Sum).unwrap();
    comms[1].all_reduce(&send[1], &mut receive[1], &ReduceOp::Max).unwrap();
    assert!(gpus[0].stream.synchronize().is_err());
    assert!(lab.standin.said().iter().any(|s| s.contains("do not agree")));
    lab.standin.reset();
    for g in &gpus {
        let _kept = g.context.check_err();
    }
}
