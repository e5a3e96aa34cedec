//! What plans on a GPU share and hold: draws that go on from plan to plan, feeds larger than their staging memory,
//! buffers that are used again, kernels kept on disk.

use super::in_child;
use super::program::cuda;
use turret::base::{Array, DType};
use turret::graph::{Graph, Init};
use turret::run::{Session, SessionOptions};
use turret_standin::Standin;

#[test]
fn child_draws_go_on_from_plan_to_plan() {
    if !in_child() {
        return;
    }
    let draws = |options: SessionOptions| -> Vec<Vec<f64>> {
        let g = Graph::new();
        let drawn = g.device("/gpu:0", || g.random_uniform([40], 0.0, 1.0, 5));
        let (half, double) = g.device("/gpu:0", || (drawn * 0.5, drawn * 2.0));
        let session = Session::new(&g, options).unwrap();
        // Each fetch is a plan of its own.
        let each = [drawn, half, drawn, double, half, drawn, drawn, double, half];
        each.iter().map(|f| session.run(&[], &[*f], &[]).unwrap()[0].to_f64()).collect()
    };
    let got = draws(cuda(1));
    let want = draws(SessionOptions::devices("sim:1").unwrap());
    assert_eq!(got, want);
    assert!(got[0] != got[2] && got[2] != got[5] && got[5] != got[6], "the same numbers again");
}

#[test]
fn child_feeds_of_many_pieces_arrive_whole() {
    if !in_child() {
        return;
    }
    let standin = Standin::loaded().unwrap();
    // Five pieces and a part of one, through two buffers.
    let len = (5 << 20) + 1000;
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [len], "x");
    let y = g.device("/gpu:0", || x.identity("y"));
    let session = Session::new(&g, cuda(1)).unwrap();
    for seed in 1..=3 {
        standin.seed(seed);
        let fed: Vec<f32> = (0..len).map(|i| (i >> 8) as f32 + seed as f32).collect();
        let fed = Array::new(&[len], &fed).unwrap();
        assert!(session.run(&[(x, &fed)], &[y], &[]).unwrap()[0] == fed, "seed {seed}");
    }
}

#[test]
fn child_what_is_still_read_is_not_written_over() {
    if !in_child() {
        return;
    }
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4], "x");
    let table = g.placeholder(DType::F32, [4, 4], "table");
    let fetches = g.device("/gpu:0", || {
        let square = (x * 2f32).reshape([2, 2]);
        // As many bytes in the row of numbers as in the table of truth values.
        let below = (x.sum() + x).cumsum(0, false, false).less(table).logical_not();
        let part_of_itself = square + square.slice(&[0, 0], &[1, 2]);
        let part = (table * 2f32).reshape([16]).slice(&[0], &[4]) + table;
        let part_in_a_chain = ((table * 3f32).reshape([16]).slice(&[0], &[4]) + table) * 0.5;
        [below, part_of_itself, part, part_in_a_chain]
    });
    let results = |options: SessionOptions| {
        let session = Session::new(&g, options).unwrap();
        let feeds = [
            (x, &Array::new(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap()),
            (table, &Array::new(&[4, 4], &(0..16).map(|i| 4.0 * i as f32).collect::<Vec<_>>()).unwrap()),
        ];
        // A plan for each, so that no other fetch keeps its buffers.
        fetches.map(|fetch| session.run(&feeds, &[fetch], &[]).unwrap().remove(0).to_f64())
    };
    let want = results(SessionOptions::devices("sim:1").unwrap());
    let standin = Standin::loaded().unwrap();
    // Which thread of a kernel is first is drawn too.
    for seed in 1..=6 {
        standin.seed(seed);
        assert_eq!(results(cuda(1)), want, "seed {seed}");
    }
    assert_eq!(want[0][..5], [1.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(want[1], [4.0, 8.0, 8.0, 12.0]);
    assert_eq!(want[2][..5], [0.0, 12.0, 24.0, 36.0, 16.0]);
    assert_eq!(want[3][14..], [40.0, 48.0]);
}

#[test]
fn child_what_is_fused_waits_as_its_parts_did() {
    if !in_child() {
        return;
    }
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4, 4], "x");
    let w = g.device("/gpu:0", || g.get_variable("w", [4, 4], Init::Ones));
    let b = g.device("/gpu:0", || g.get_variable("b", [4], Init::Constant(0.25)));
    // The change waits for the host, and so do those that read the variable after it.
    let doubled = g.device("/gpu:0", || x * 2f32);
    let on_host = g.device("/cpu:0", || doubled.cumsum(0, false, false));
    let assign = w.assign(on_host);
    let chain = g.device("/gpu:0", || g.control_dependencies([assign.op()], || (w.buffer() * 0.125 + x).tanh()));
    let product =
        g.device("/gpu:0", || g.control_dependencies([assign.op()], || (x.matmul(w.buffer()) + b.value()).relu()));
    let fed = Array::new(&[4, 4], &(0..16).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>()).unwrap();
    let mut results = [cuda(1), SessionOptions::devices("sim:1").unwrap()].into_iter().map(|options| {
        let session = Session::new(&g, options).unwrap();
        let run = |fetch| {
            session.initialize().unwrap();
            session.run(&[(x, &fed)], &[fetch], &[]).unwrap().remove(0).to_f64()
        };
        [chain, product, chain, product].map(run)
    });
    let (got, want) = (results.next().unwrap(), results.next().unwrap());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
    assert!(got.iter().flatten().zip(want.iter().flatten()).all(near), "{got:?}, want {want:?}");
}

#[test]
fn child_kernels_from_disk_do_the_same() {
    // Told by the parent: whether there is something to compile.
    let Some(compiles) = std::env::var_os("TURRET_TEST_COMPILES").filter(|_| in_child()) else { return };
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [5], "x");
    let fetches = g.device("/gpu:0", || [(x * 3f32 + 1f32).tanh(), (x - 2f32).cumsum(0, false, false)]);
    let five = Array::new(&[5], &[0.5f32, -1.0, 0.0, 2.0, 0.25]).unwrap();
    let results = |options: SessionOptions| {
        let session = Session::new(&g, options).unwrap();
        // Two plans, so that there are two modules.
        fetches.map(|fetch| session.run(&[(x, &five)], &[fetch], &[]).unwrap().remove(0).to_f64())
    };
    let (got, want) = (results(cuda(1)), results(SessionOptions::devices("sim:1").unwrap()));
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6;
    assert!(got.iter().flatten().zip(want.iter().flatten()).all(near), "{got:?}, want {want:?}");
    let compiled = Standin::loaded().unwrap().calls("nvrtcCompileProgram");
    assert_eq!(compiled > 0, compiles == "some", "{compiled} compilations");
}
