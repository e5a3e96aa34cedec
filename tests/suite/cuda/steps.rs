//! What a step on CUDA GPUs does: the host's figures, one launch, no allocation, no race, and only the GPUs it uses.

use super::in_child;
use super::program::{WAYS, Way, batch, build, cuda, start, train};
use turret::base::{Array, DType};
use turret::device::{Lane, Machine};
use turret::graph::Graph;
use turret::run::{CudaOptions, Session, SessionOptions};
use turret_standin::{Live, Standin};

#[test]
fn child_towers_train_to_the_hosts_figures() {
    if !in_child() {
        return;
    }
    for way in WAYS {
        let (want, final_want) = train(way, SessionOptions::on(Machine::simulated(way.towers)), 8);
        for (graphs, fusion) in [(true, true), (false, true), (true, false)] {
            let cuda_options = CudaOptions { graphs, ..CudaOptions::default() };
            let options = SessionOptions { fusion, cuda: cuda_options, ..cuda(way.towers) };
            let (got, finals) = train(way, options.clone(), 8);
            let again = train(way, options, 8);
            assert!(got == again.0 && finals == again.1, "{way:?}: other bits in another session");
            for (got, want) in got.iter().zip(&want) {
                assert!(
                    (got - want).abs() <= 1e-5 * want.abs(),
                    "{way:?} with graphs {graphs}, fusion {fusion}: {got}, want {want}"
                );
            }
            for ((name, got), (_, want)) in finals.iter().zip(&final_want) {
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 2e-5 * b.abs().max(1.0);
                assert!(got.to_f64().iter().zip(&want.to_f64()).all(near), "{way:?}: {name} {got:?}, want {want:?}");
            }
        }
    }
}

#[test]
fn child_no_race_over_ten_seeds() {
    if !in_child() {
        return;
    }
    let standin = Standin::loaded().unwrap();
    for seed in 1..=10 {
        standin.seed(seed);
        for way in WAYS {
            for graphs in [true, false] {
                train(
                    way,
                    SessionOptions { cuda: CudaOptions { graphs, ..CudaOptions::default() }, ..cuda(way.towers) },
                    4,
                );
                assert_eq!(standin.races(), Vec::<String>::new(), "{way:?}, seed {seed}, graphs {graphs}");
            }
        }
    }
}

/// Calls of these functions, one count each.
fn calls(standin: &Standin, names: &[&str]) -> Vec<u64> {
    names.iter().map(|n| standin.calls(n)).collect()
}

const ALLOCATING: [&str; 6] =
    ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemHostAlloc", "cuMemHostRegister_v2", "cuEventCreate", "cuModuleLoadData"];
const LAUNCHING: [&str; 4] = ["cuLaunchKernel", "cublasGemmEx", "cublasLtMatmul", "ncclAllReduce"];

#[test]
fn child_a_warm_step_is_one_launch_and_allocates_nothing() {
    if !in_child() {
        return;
    }
    let standin = Standin::loaded().unwrap();
    for way in WAYS {
        let g = Graph::new();
        let program = build(&g, way);
        let session = Session::new(&g, cuda(way.towers)).unwrap();
        start(&g, &session);
        let rows = batch(24);
        for _ in 0..3 {
            program.step(&session, &rows).unwrap();
        }
        let before = (calls(&standin, &ALLOCATING), calls(&standin, &LAUNCHING), standin.calls("cuGraphLaunch"));
        let held = session.memory_use();
        let steps = 5;
        for _ in 0..steps {
            program.step(&session, &rows).unwrap();
        }
        assert_eq!(calls(&standin, &ALLOCATING), before.0, "{way:?}: {ALLOCATING:?}");
        assert_eq!(calls(&standin, &LAUNCHING), before.1, "{way:?}: {LAUNCHING:?}");
        assert_eq!(standin.calls("cuGraphLaunch") - before.2, steps, "{way:?}: one graph over all GPUs and step");
        assert_eq!(session.memory_use(), held);
    }
}

#[test]
fn child_only_gpus_that_a_plan_uses_are_opened() {
    if !in_child() {
        return;
    }
    let standin = Standin::loaded().unwrap();
    let contexts = || (0..4).map(|gpu| standin.live(Live::Contexts, gpu)).collect::<Vec<_>>();
    let g = Graph::new();
    let w = g.device("/gpu:2", || g.get_variable("w", [3], turret::graph::Init::Ones));
    let y = g.device("/gpu:2", || (w * 2.0).sum());
    let session = Session::new(&g, cuda(4)).unwrap();
    assert_eq!(contexts(), [0, 0, 0, 0]);
    session.initialize().unwrap();
    assert_eq!(session.run(&[], &[y], &[]).unwrap()[0].to_f64(), [6.0]);
    assert_eq!(contexts(), [0, 0, 1, 0]);
}

#[test]
fn child_an_untrained_way_is_traced() {
    if !in_child() {
        return;
    }
    let way = Way { towers: 2, variables: "gpu", average: "beside" };
    let g = Graph::new();
    let program = build(&g, way);
    let session = Session::new(&g, cuda(2)).unwrap();
    start(&g, &session);
    let rows = batch(24);
    let feeds = [(program.x, &rows[0]), (program.target, &rows[1])];
    for _ in 0..2 {
        let (_, metadata) = session.run_traced(&feeds, &[program.loss], &[program.train]).unwrap();
        let on = |gpu: u16| metadata.spans.iter().filter(|s| s.queue.device.0 == gpu && s.end_ns >= s.start_ns).count();
        assert!(on(1) > 10 && on(2) > 10, "{:?}", metadata.spans);
        // Copies have queues of their own, and their bytes.
        let copies: Vec<_> = metadata.spans.iter().filter_map(|s| Some((s, s.copy?))).collect();
        assert!(
            copies.iter().all(|(s, copy)| s.queue.lane != Lane::Compute && s.bytes() == copy.bytes as u64),
            "{copies:?}"
        );
        let lanes: std::collections::BTreeSet<Lane> = copies.iter().map(|(s, _)| s.queue.lane).collect();
        assert!(lanes.len() >= 2, "{lanes:?}");
        let trace = turret::report::timeline(&metadata, session.machine()).to_string();
        assert!(trace.contains("copies from other GPUs") && trace.contains("\"kernels\""), "{trace}");
    }
}

#[test]
fn child_products_of_odd_places_take_bias_and_relu_in_or_not() {
    if !in_child() {
        return;
    }
    let standin = Standin::loaded().unwrap();
    for (dtype, odd, bias_at) in [(DType::F32, 1, 0), (DType::F32, 3, 1), (DType::F32, 0, 4), (DType::F64, 1, 0)] {
        let of = |device: &str, options: SessionOptions| {
            let g = Graph::new();
            let x = g.placeholder(dtype, [8, 5], "x");
            let (w, b) = (g.placeholder(dtype, [5, 3], "w"), g.placeholder(dtype, [9], "b"));
            let y = g.device(device, || {
                // Runs of the fed bytes, which start wherever they start.
                let (x, b) = (x.slice(&[odd, 0], &[4, 5]), b.slice(&[bias_at], &[3]));
                let product = x.matmul(w) + b;
                [product.relu(), x.matmul(w).relu(), product]
            });
            let session = Session::new(&g, options).unwrap();
            let array = |dims: &[usize]| {
                let len: usize = dims.iter().product();
                let drawn: Vec<f64> = (0..len).map(|i| ((i * 37 % 19) as f64 - 9.0) / 4.0).collect();
                Array::from_f64(dtype, dims, &drawn).unwrap()
            };
            let (fx, fw, fb) = (array(&[8, 5]), array(&[5, 3]), array(&[9]));
            let feeds = [(x, &fx), (w, &fw), (b, &fb)];
            let mut got = Vec::new();
            for fetches in [&y[..1], &y[1..2], &y[..]] {
                for _ in 0..3 {
                    got.extend(session.run(&feeds, fetches, &[]).unwrap());
                }
            }
            got
        };
        let before = standin.calls("cublasLtMatmul");
        let (got, want) = (of("/gpu:0", cuda(1)), of("/cpu:0", SessionOptions::on(Machine::host())));
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5;
            assert!(got.to_f64().iter().zip(&want.to_f64()).all(near), "{dtype}, row {odd}: {got:?}, want {want:?}");
        }
        // cuBLASLt has no epilogues for doubles.
        assert_eq!(standin.calls("cublasLtMatmul") > before, dtype == DType::F32, "{dtype}");
    }
}
