//! Towers on one GPU by two contexts, in every usual layout, against the host alone.
//!
//! The same layout twice gives the same bits, and so does its replay as a graph. Where there are several GPUs, the first
//! two are tried as well, with NCCL where it is there.

use super::items::{Items, is_near, text};
use turret::base::{Array, DType};
use turret::device::{Machine, cuda};
use turret::graph::{Graph, Init, Tensor, VariablePlacement};
use turret::run::{CudaOptions, Session, SessionOptions};
use turret::train::{AveragePlace, Optimizer, Towers};

/// How far losses and weights may be from the host's, relative to them or to 1, after all steps.
const TOLERANCE: f64 = 5e-5;

const STEPS: usize = 12;
const ROWS: usize = 64;
const WIDTH: usize = 40;

/// What training gave.
struct Trained {
    losses: Vec<f64>,
    variables: Vec<(String, Array)>,
    /// Sums that NCCL made in each step.
    collectives: usize,
}

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

fn array(dims: &[usize], seed: u64, factor: f32) -> turret::Result<Array> {
    let values: Vec<f32> = numbers(dims.iter().product(), seed).iter().map(|v| v * factor).collect();
    Array::new(dims, &values)
}

/// Two layers over numbers and over an embedding of words, and the mean square of what is left.
fn loss<'g>(g: &'g Graph, x: Tensor<'g>, words: Tensor<'g>, target: Tensor<'g>) -> Tensor<'g> {
    let make = |name: &str, dims: [usize; 2], seed: u64| {
        let start = array(&dims, seed, 0.3).map_or(Init::Zeros, Init::data);
        g.get_variable(name, dims, start)
    };
    let bias = |name: &str, width: usize| g.get_variable(name, [width], Init::Constant(0.05));
    let known = g.embedding_lookup(make("words", [100, 48], 1), words);
    let hidden = (x.matmul(make("w0", [WIDTH, 48], 2)) + bias("b0", 48) + known).relu();
    let hidden = (hidden.matmul(make("w1", [48, 32], 3)) + bias("b1", 32)).tanh();
    (hidden.matmul(make("w2", [32, 1], 4)) + bias("b2", 1) - target).square().mean()
}

/// Trains on towers on these devices.
fn train(
    options: SessionOptions,
    devices: &[&str],
    variables: VariablePlacement,
    place: AveragePlace,
) -> turret::Result<Trained> {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [ROWS, WIDTH], "x");
    let words = g.placeholder(DType::I32, [ROWS], "words");
    let target = g.placeholder(DType::F32, [ROWS, 1], "target");
    let towers = Towers::new(&g, 1).devices(devices.iter().copied()).variables(variables).average_at(place);
    let (xs, all_words, targets) = (towers.split(x), towers.split(words), towers.split(target));
    let optimizer = Optimizer::momentum(0.05, 0.9);
    let built = towers.build(&optimizer, |tower| {
        let i = tower.index();
        loss(&g, xs[i], all_words[i], targets[i])
    });
    let train = built.apply(&optimizer);
    let session = Session::new(&g, options)?;
    session.initialize()?;
    let mut losses = Vec::new();
    for step in 0..STEPS as u64 {
        let rows: Vec<i32> = numbers(ROWS, 50 + step).iter().map(|v| ((v + 1.0) * 50.0) as i32).collect();
        let (fed, wanted) = (array(&[ROWS, WIDTH], 100 + step, 1.0)?, array(&[ROWS, 1], 200 + step, 1.0)?);
        let feeds = [(x, &fed), (words, &Array::new(&[ROWS], &rows)?), (target, &wanted)];
        losses.push(session.run(&feeds, &[built.loss], &[train])?[0].get_f64(0));
    }
    for warning in session.warnings() {
        println!("note: {warning}");
    }
    let fed: [(Tensor<'_>, &[usize]); 3] = [(x, &[ROWS, WIDTH]), (words, &[ROWS]), (target, &[ROWS, 1])];
    let collectives = session.schedule(&fed, &[built.loss], &[train])?.step.all_reduces().count();
    let values = g.global_variables().into_iter().map(|v| Ok((v.name(), session.value(v)?)));
    Ok(Trained { losses, variables: values.collect::<turret::Result<_>>()?, collectives })
}

/// The largest difference from the host, or what differs by more than the tolerance.
fn compare(got: &Trained, want: &Trained) -> Result<f64, String> {
    let mut worst = 0f64;
    let mut near = |got: f64, want: f64, what: &str| {
        worst = worst.max((got - want).abs() / want.abs().max(1.0));
        if is_near(got, want, TOLERANCE) { Ok(()) } else { Err(format!("{what} is {got}, the host's {want}")) }
    };
    for (step, (g, w)) in got.losses.iter().zip(&want.losses).enumerate() {
        near(*g, *w, &format!("the loss of step {step}"))?;
    }
    for ((name, g), (_, w)) in got.variables.iter().zip(&want.variables) {
        for (i, (g, w)) in g.to_f64().into_iter().zip(w.to_f64()).enumerate() {
            near(g, w, &format!("element {i} of '{name}'"))?;
        }
    }
    Ok(worst)
}

fn same_bits(a: &Trained, b: &Trained) -> bool {
    let losses = |t: &Trained| t.losses.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
    losses(a) == losses(b) && a.variables.iter().zip(&b.variables).all(|(a, b)| a.1.bytes() == b.1.bytes())
}

/// Checks every layout; three of them in quick runs.
pub fn run(items: &mut Items) {
    items.check("products with bias and ReLU", super::products::check);
    let host = || {
        let options = SessionOptions::on(Machine::host());
        train(options, &["/cpu:0"], VariablePlacement::host(), AveragePlace::Around).map_err(text)
    };
    let want = match host() {
        Ok(want) => want,
        Err(why) => return items.check("training on the host", || Err(why)),
    };
    let mut machines = vec![vec![0, 0]];
    if cuda::device_count().is_ok_and(|n| n > 1) {
        machines.push(vec![0, 1]);
    }
    let places = [
        ("host", AveragePlace::Device("/cpu:0".into())),
        ("gpu:0", AveragePlace::Device("/gpu:0".into())),
        ("spread", AveragePlace::Spread),
        ("all-reduce", AveragePlace::AllReduce),
    ];
    for gpus in &machines {
        for (variables, rule) in [("host", VariablePlacement::host()), ("gpu:0", VariablePlacement::gpu(0))] {
            for (averages, place) in &places {
                if items.quick && (variables == "host") == (*averages == "all-reduce") {
                    continue;
                }
                let name = format!("cuda:{},{}, variables on {variables}, averages {averages}", gpus[0], gpus[1]);
                items.check(&name, || {
                    let run = |graphs: bool| {
                        let cuda = CudaOptions { graphs, ..CudaOptions::default() };
                        let options = SessionOptions { cuda, ..SessionOptions::on(Machine::cuda(gpus)?) };
                        train(options, &["/gpu:0", "/gpu:1"], rule.clone(), place.clone())
                    };
                    let first = run(true).map_err(text)?;
                    let worst = compare(&first, &want)?;
                    for (graphs, what) in [(true, "again"), (false, "without graphs")] {
                        let next = run(graphs).map_err(text)?;
                        if !same_bits(&first, &next) {
                            return Err(format!("other bits {what}"));
                        }
                    }
                    let nccl = if first.collectives > 0 { ", by NCCL" } else { "" };
                    Ok(format!("{name}{nccl}: within {worst:.1e} of the host"))
                });
            }
        }
    }
}
