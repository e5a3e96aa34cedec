//! Random training steps: towers, averaging, clipping, every optimizer, fetches of anything between. Fused and apart, with
//! any number of threads, the same figures and the same variables afterwards.

use super::graphs::seeds;
use super::random::Random;
use turret::base::{Array, DType};
use turret::graph::{Gradient, Graph, Init, Tensor, VariablePlacement};
use turret::run::{Session, SessionOptions};
use turret::train::{
    ApplyOptions, AveragePlace, GradAndVar, Optimizer, Towers, clip_by_global_norm, clip_each_by_norm,
    clip_each_by_value, global_norm,
};

/// Sums of `float64` in other orders differ by less, of the largest element.
const NEAR: f64 = 1e-9;

/// A step: what is fed, what may be fetched, and what trains.
struct Program<'g> {
    feeds: Vec<(Tensor<'g>, Array)>,
    fetches: Vec<Tensor<'g>>,
    train: turret::graph::Operation<'g>,
}

fn array(random: &mut Random, dims: &[usize], scale: f64) -> Array {
    let values: Vec<f64> = (0..dims.iter().product()).map(|_| f64::from(random.number()) * scale).collect();
    Array::from_f64(DType::F64, dims, &values).unwrap()
}

fn optimizer<'g>(random: &mut Random) -> Optimizer<'g> {
    match random.below(8) {
        0 => Optimizer::gradient_descent(0.02),
        1 => Optimizer::momentum(0.01, 0.9),
        2 => Optimizer::momentum(0.01, 0.9).nesterov(),
        3 => Optimizer::adam(0.01),
        4 => Optimizer::rms_prop(0.005).with("momentum", 0.9),
        5 => Optimizer::rms_prop(0.005).centered(),
        6 => Optimizer::adagrad(0.05),
        _ => Optimizer::adadelta(0.5),
    }
}

fn build<'g>(g: &'g Graph, random: &mut Random, gpus: usize) -> Program<'g> {
    let (rows, inputs) = (random.pick(&[8, 65, 100, 257]), random.pick(&[5, 33, 64]));
    let widths: Vec<usize> = (0..1 + random.below(3)).map(|_| random.pick(&[1, 16, 64, 65])).collect();
    let start: Vec<[Array; 2]> = (widths.iter().enumerate())
        .map(|(i, width)| {
            let from = if i == 0 { inputs } else { widths[i - 1] };
            let bias: &[usize] = random.pick(&[&[], &[1]]);
            let bias = if random.one_in(2) { bias.to_vec() } else { vec![*width] };
            [array(random, &[from, *width], 0.5 / (from as f64).sqrt()), array(random, &bias, 0.25)]
        })
        .collect();
    let kinds: Vec<usize> = widths.iter().map(|_| random.below(7)).collect();
    let towers = gpus.max(1);
    let devices: Vec<String> =
        (0..towers).map(|i| if gpus == 0 { "/cpu:0".into() } else { format!("/gpu:{i}") }).collect();
    let placement = match random.below(3) {
        0 if gpus > 0 => VariablePlacement::round_robin(gpus as u32),
        1 if gpus > 0 => VariablePlacement::gpu(0),
        _ => VariablePlacement::host(),
    };
    let places = [AveragePlace::Device("/cpu:0".into()), AveragePlace::BesideVariables, AveragePlace::BySize];
    let place = places[random.below(places.len())].clone();
    let (x, target) = (g.placeholder(DType::F64, [rows * towers, inputs], "x"), {
        let sizes = [rows * towers, widths[widths.len() - 1]];
        g.placeholder(DType::F64, sizes, "target")
    });
    let all = Towers::new(g, towers).devices(devices).variables(placement).average_at(place);
    let optimizer = optimizer(random);
    let mut between: Vec<Tensor<'g>> = Vec::new();
    let (parts, targets) = (all.split(x), all.split(target));
    let (squares, weighs, spreads) = (random.one_in(3), random.one_in(3), random.one_in(3));
    let built = all.build(&optimizer, |tower| {
        let mut h = parts[tower.index()];
        for (i, [w, b]) in start.iter().enumerate() {
            let (w, b) = g.variable_scope(&format!("layer{i}"), || {
                let variable =
                    |name: &str, start: &Array| g.get_variable(name, start.dims(), Init::data(start.clone()));
                (variable("w", w), variable("b", b))
            });
            let y = h.matmul(w) + b;
            h = match kinds[i] {
                0 => y.relu(),
                1 => y.tanh(),
                2 => y.sigmoid(),
                3 => y.softplus(),
                // The rows' and columns' own figures, subtracted from them.
                4 => y - y.mean_axes(&[1], true) + y.mean_axes(&[0], false),
                5 => y.check_numerics("never").relu(),
                _ => y / (y.square().sum_axes(&[1], true) + 1.0).sqrt(),
            };
            between.extend([y, h]);
            if weighs {
                between.push(h.square().sum());
            }
        }
        let error = h - targets[tower.index()];
        let loss = if squares {
            error.square().sum_axes(&[1], false).mean()
        } else {
            error.abs().mean() + error.square().mean()
        };
        between.extend([error, loss]);
        if spreads { loss + h.square().mean() * 0.01 } else { loss }
    });
    let averaged: &[GradAndVar<'g>] = &built.grads;
    let clipped = match random.below(4) {
        0 => clip_by_global_norm(averaged, 0.5),
        1 => clip_each_by_norm(averaged, 0.25),
        2 => clip_each_by_value(averaged, -0.02, 0.02),
        _ => averaged.to_vec(),
    };
    between.extend(clipped.iter().chain(averaged).filter_map(|gv| gv.grad).map(Gradient::values));
    between.extend(global_norm(averaged));
    let train = optimizer.apply_gradients_with(&clipped, ApplyOptions::default());
    let fetches = (0..1 + random.below(5)).map(|_| random.pick(&between)).collect();
    let feeds = [x, target].map(|t| (t, array(random, &t.shape().to_dims().unwrap(), 1.0)));
    Program { feeds: feeds.into(), fetches, train }
}

/// The first element that is not near, of what is fetched or of a variable.
fn far(got: &Array, want: &Array, near: f64) -> Option<(usize, f64, f64)> {
    let (got, want) = (got.to_f64(), want.to_f64());
    let largest = want.iter().fold(0.0f64, |m, v| m.max(v.abs())).max(1e-3);
    let is_near = |a: f64, b: f64| a == b || (a - b).abs() <= near * largest;
    let mut pairs = got.into_iter().zip(want).enumerate();
    pairs.find(|(_, (a, b))| !is_near(*a, *b)).map(|(i, (a, b))| (i, a, b))
}

#[test]
fn random_training_gives_the_same_figures_fused_and_apart() {
    let mut fused = 0;
    for seed in 0..seeds(24) {
        let g = Graph::new();
        let mut random = Random::new(seed);
        let gpus = seed as usize % 4;
        let p = build(&g, &mut random, gpus);
        g.check().unwrap_or_else(|e| panic!("program {seed}: {e}"));
        let given: Vec<(Tensor<'_>, &Array)> = p.feeds.iter().map(|(t, a)| (*t, a)).collect();
        let run = |fusion: bool, threads: usize| {
            let machine = crate::gpus::machine(gpus).with_host_threads(threads);
            let session = Session::new(&g, SessionOptions { fusion, ..SessionOptions::on(machine) }).unwrap();
            session.initialize().unwrap();
            let steps: Vec<Vec<Array>> = (0..3)
                .map(|_| session.run(&given, &p.fetches, &[p.train]).unwrap_or_else(|e| panic!("program {seed}: {e}")))
                .collect();
            let shapes: Vec<(Tensor<'_>, &[usize])> = given.iter().map(|(t, a)| (*t, a.dims())).collect();
            let plan = session.schedule(&shapes, &p.fetches, &[p.train]).unwrap();
            let nodes = plan.step.nodes.iter().filter(|n| n.fusion.is_some()).count();
            let variables =
                g.global_variables().into_iter().map(|v| (v.name(), session.value(v).unwrap())).collect::<Vec<_>>();
            (steps, variables, nodes)
        };
        let (one, more, apart) = (run(true, 1), run(true, 2 + seed as usize % 2), run(false, 1));
        fused += one.2;
        assert_eq!(apart.2, 0, "program {seed}");
        assert!(one.0 == more.0 && one.1 == more.1, "program {seed}: other bits with other threads");
        for (step, (got, want)) in one.0.iter().zip(&apart.0).enumerate() {
            for ((fetch, got), want) in p.fetches.iter().zip(got).zip(want) {
                let far = far(got, want, NEAR);
                assert!(far.is_none(), "program {seed}, step {step}: {fetch:?} with and without fusion: {far:?}");
            }
        }
        for ((name, got), (_, want)) in one.1.iter().zip(&apart.1) {
            let far = far(got, want, NEAR);
            assert!(far.is_none(), "program {seed}: variable '{name}' with and without fusion: {far:?}");
        }
    }
    assert!(fused > 40, "{fused} nodes fused");
}
