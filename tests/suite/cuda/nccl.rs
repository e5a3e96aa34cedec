//! Sums over GPUs by NCCL: the same numbers as by copies and kernels, step by step and replayed.

use super::in_child;
use turret::base::{Array, DType};
use turret::device::{Machine, cuda};
use turret::graph::{Graph, Tensor};
use turret::run::{CudaOptions, Session, SessionOptions};

/// Elements of each part; some sums are of fewer.
const SIZE: usize = 3000;

/// Three rounds of sums over all GPUs of each element type: every GPU's part is made from its own last sum, so that each
/// one's readers and writers must wait for the others'.
fn rounds<'g>(g: &'g Graph, gpus: usize, x: Tensor<'g>) -> Vec<Tensor<'g>> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::I32, DType::I64] {
        let mut parts: Vec<Tensor<'g>> = (0..gpus)
            .map(|i| {
                g.device(&format!("/gpu:{i}"), || {
                    let factor = Array::from_f64(dtype, &[], &[i as f64 + 1.0]).unwrap();
                    x.cast(dtype) * g.constant(factor)
                })
            })
            .collect();
        for _ in 0..3 {
            let sums = g.device("/gpu:0", || g.all_reduce_n(parts.clone()));
            let next =
                |(i, (sum, part)): (usize, (&Tensor<'g>, &Tensor<'g>))| g.device(&format!("/gpu:{i}"), || *sum - *part);
            parts = sums.iter().zip(&parts).enumerate().map(next).collect();
            all.push(sums[gpus - 1]);
        }
        all.extend(parts);
    }
    all
}

fn run(machine: Machine, cuda: CudaOptions, collectives: usize) -> Vec<Vec<Array>> {
    let g = Graph::new();
    let gpus = machine.gpus();
    let x = g.placeholder(DType::F32, [SIZE], "x");
    let fetches = rounds(&g, gpus, x);
    let session = Session::new(&g, SessionOptions { cuda, ..SessionOptions::on(machine) }).unwrap();
    let schedule = session.schedule(&[(x, &[SIZE])], &fetches, &[]).unwrap();
    assert_eq!(schedule.step.all_reduces().count(), collectives);
    let fed = |step: usize| (0..SIZE).map(|i| ((i * 31 + step * 7) % 97) as f32).collect::<Vec<_>>();
    let step = |step| session.run(&[(x, &Array::new(&[SIZE], &fed(step)).unwrap())], &fetches, &[]).unwrap();
    (0..5).map(step).collect()
}

#[test]
fn child_sums_over_gpus_are_those_of_the_host() {
    if !in_child() {
        return;
    }
    let there = cuda::device_count().unwrap();
    if there < 2 {
        println!("skipped: one GPU");
        return;
    }
    let machine = || Machine::cuda(&(0..there).collect::<Vec<_>>()).unwrap();
    // Whole numbers, so that the order of a sum changes nothing.
    let want = run(Machine::simulated(there), CudaOptions::default(), 0);
    for graphs in [true, false] {
        for (nccl, collectives) in [(true, 12), (false, 0)] {
            let got = run(machine(), CudaOptions { graphs, nccl, ..CudaOptions::default() }, collectives);
            assert!(got == want, "graphs {graphs}, nccl {nccl}");
        }
    }
    if std::env::var("TURRET_TEST_CUDA").is_ok_and(|on| on == "stand-in") {
        let standin = turret_standin::Standin::loaded().unwrap();
        // By graph: one step enqueued and one captured; without graphs: every step.
        let calls = ["ncclAllReduce", "ncclGroupEnd", "cuGraphLaunch"].map(|name| standin.calls(name));
        assert_eq!(calls, [12 * there as u64 * 7, 12 * 7, 2 * 4]);
    }
    // Two contexts of one GPU cannot be in one communicator.
    let twice = run(Machine::cuda(&[0, 0]).unwrap(), CudaOptions::default(), 0);
    assert!(twice == run(Machine::simulated(2), CudaOptions::default(), 0));
}
