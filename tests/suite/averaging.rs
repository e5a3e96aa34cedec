//! Where gradients are averaged changes no result: every place gives the bits of averaging on the host.

use crate::gpus;
use turret::base::{Array, DType};
use turret::graph::{Graph, Init, Tensor, VariablePlacement};
use turret::run::{Session, SessionOptions};
use turret::train::{AveragePlace, Optimizer, Reduction, SMALL_GRADIENT_BYTES, Towers};

const STEPS: usize = 4;
const ROWS: usize = 16;

/// Numbers in [-1, 1) that are the same everywhere.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn places() -> Vec<AveragePlace> {
    let on = |device: &str| AveragePlace::Device(device.into());
    vec![
        on("/cpu:0"),
        on("/gpu:1"),
        AveragePlace::BesideVariables,
        AveragePlace::Spread,
        AveragePlace::AllReduce,
        AveragePlace::BySize,
    ]
}

/// An embedding, whose gradient is rows, a layer that is large for [`AveragePlace::BySize`], and a small one.
fn loss<'g>(g: &'g Graph, ids: Tensor<'g>, target: Tensor<'g>) -> Tensor<'g> {
    let start = |dims: &[usize], seed: u64| {
        let values = numbers(dims.iter().product(), seed).iter().map(|v| v * 0.1).collect::<Vec<_>>();
        Init::data(Array::new(dims, &values).unwrap())
    };
    let table = g.get_variable("table", [50, 96], start(&[50, 96], 1));
    let w = g.get_variable("w", [96, 400], start(&[96, 400], 2));
    const { assert!(96 * 400 * 4 >= SMALL_GRADIENT_BYTES) };
    let small = g.get_variable("small", [400, 1], start(&[400, 1], 3));
    let bias = g.get_variable("bias", [], Init::Zeros);
    let hidden = g.embedding_lookup(table, ids).matmul(w).relu();
    (hidden.matmul(small) + bias - target).square().mean()
}

/// All variables after the steps.
fn train(towers: usize, variables: &str, place: &AveragePlace, reduction: Reduction) -> Vec<(String, Array)> {
    let g = Graph::new();
    let placement = match variables {
        "cpu" => VariablePlacement::host(),
        "gpu" => VariablePlacement::gpu(1),
        _ => VariablePlacement::round_robin(towers as u32),
    };
    let all = Towers::new(&g, towers).variables(placement).average_at(place.clone());
    let all = if reduction == Reduction::Sum { all.sum_gradients() } else { all };
    let ids = g.placeholder(DType::I32, [ROWS], "ids");
    let target = g.placeholder(DType::F32, [ROWS, 1], "target");
    let (parts, targets) = (all.split(ids), all.split(target));
    let optimizer = Optimizer::adagrad(0.05);
    let built = all.build(&optimizer, |t| loss(&g, parts[t.index()], targets[t.index()]));
    let train = built.apply(&optimizer);
    let of = format!("{towers} towers, variables {variables}, {place:?}");
    let session = Session::new(&g, SessionOptions::on(gpus::machine(towers))).unwrap_or_else(|e| panic!("{of}: {e}"));
    session.initialize().unwrap();
    for step in 0..STEPS as u64 {
        let rows: Vec<i32> = numbers(ROWS, 100 + step).iter().map(|v| ((v + 1.0) * 12.0) as i32).collect();
        let (rows, wanted) = (Array::new(&[ROWS], &rows).unwrap(), numbers(ROWS, 200 + step));
        let wanted = Array::new(&[ROWS, 1], &wanted).unwrap();
        session.run(&[(ids, &rows), (target, &wanted)], &[], &[train]).unwrap_or_else(|e| panic!("{of}: {e}"));
    }
    g.global_variables().into_iter().map(|v| (v.name(), session.value(v).unwrap())).collect()
}

#[test]
fn every_place_gives_the_bits_of_averaging_on_the_host() {
    for towers in [2, 4] {
        for (variables, reduction) in [("cpu", Reduction::Mean), ("gpu", Reduction::Sum), ("spread", Reduction::Mean)] {
            let want = train(towers, "cpu", &places()[0], reduction);
            assert_eq!(want.len(), 8, "{:?}", want.iter().map(|w| &w.0).collect::<Vec<_>>());
            for place in places() {
                let got = train(towers, variables, &place, reduction);
                for ((name, got), (_, want)) in got.iter().zip(&want) {
                    let of = format!("{name}, {towers} towers, variables {variables}, {place:?}");
                    if gpus::are_cuda() {
                        // The host's products and a GPU's, or NCCL, sum in other orders.
                        let near = |(g, w): (f64, f64)| (g - w).abs() <= 1e-5 * w.abs().max(1.0);
                        assert!(got.to_f64().into_iter().zip(want.to_f64()).all(near), "{of}");
                    } else {
                        assert!(got.bytes() == want.bytes(), "{of}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_spread_sends_each_gradient_to_one_tower_and_one_mean_to_the_variable() {
    // By place: the bytes that arrive at the host, which has the variables, and the copies between GPUs.
    let arriving = |place: AveragePlace| {
        let g = Graph::new();
        let all = Towers::new(&g, 4).variables(VariablePlacement::host()).average_at(place);
        let optimizer = Optimizer::gradient_descent(0.1);
        let mut fed: Vec<(Tensor<'_>, &[usize])> = Vec::new();
        let built = all.build(&optimizer, |tower| {
            let x = tower.placeholder(DType::F32, [1000], "x");
            fed.push((x, &[1000]));
            let products = ["a", "b", "c", "d"].map(|name| g.get_variable(name, [1000], Init::Ones) * x);
            products.into_iter().map(|p| p.square().sum()).reduce(|a, b| a + b).unwrap()
        });
        let train = built.apply(&optimizer);
        let session = Session::new(&g, SessionOptions::on(gpus::machine(4))).unwrap();
        let schedule = session.schedule(&fed, &[], &[train]).unwrap();
        let to_host = schedule.step.copies().filter(|(_, c)| c.to.is_host()).map(|(_, c)| c.bytes).sum::<usize>();
        (to_host, schedule.step.copies().filter(|(_, c)| !c.from.is_host() && !c.to.is_host()).count())
    };
    assert_eq!(arriving(AveragePlace::BesideVariables), (4 * 4 * 4000, 0));
    // Three towers' gradients go to each of the four.
    assert_eq!(arriving(AveragePlace::Spread), (4 * 4000, 4 * 3));
}
