//! Data parallelism changes no result: the same weights after ten steps for any number of towers and any placement,
//! and the same bits in every run.

use crate::gpus;
use turret::base::{Array, DType};
use turret::device::Machine;
use turret::graph::{Graph, Init, ScopeOptions, Tensor, VariablePlacement};
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, Optimizer, Towers};

const STEPS: usize = 10;
const OPTIMIZERS: [&str; 5] = ["sgd", "momentum", "adam", "rmsprop", "adagrad"];

/// One way to train the network.
#[derive(Clone, Debug)]
struct Way {
    dtype: DType,
    optimizer: &'static str,
    towers: usize,
    variables: &'static str,
    average_on: &'static str,
    split: bool,
}

/// The network's sizes: rows of the batch, inputs, hidden layers.
struct Sizes {
    rows: usize,
    inputs: usize,
    hidden: &'static [usize],
}

const SMALL: Sizes = Sizes { rows: 16, inputs: 3, hidden: &[5, 4] };
/// Large enough that kernels share their work between threads.
const LARGE: Sizes = Sizes { rows: 64, inputs: 300, hidden: &[256, 128] };

/// Numbers in [-1, 1) that are the same everywhere.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn optimizer<'g>(name: &str) -> Optimizer<'g> {
    match name {
        "sgd" => Optimizer::gradient_descent(0.02),
        "momentum" => Optimizer::momentum(0.01, 0.9),
        "adam" => Optimizer::adam(0.01),
        "rmsprop" => Optimizer::rms_prop(0.005).with("momentum", 0.9),
        _ => Optimizer::adagrad(0.05),
    }
}

/// The article's network: affine layers with a scalar bias and a rectifier, and one more without.
fn loss<'g>(g: &'g Graph, dtype: DType, x: Tensor<'g>, target: Tensor<'g>, hidden: &[usize]) -> Tensor<'g> {
    let affine = |scope: &str, x: Tensor<'g>, width: usize, seed: u64| {
        let inputs = x.dim(1);
        let start: Vec<f64> =
            numbers(inputs * width, seed).iter().map(|v| (v + 0.25) / (inputs as f64).sqrt()).collect();
        let (w, b) = g.variable_scope(scope, || {
            let start = Array::from_f64(dtype, &[inputs, width], &start).unwrap();
            (g.get_variable("w", [inputs, width], Init::data(start)), g.get_variable("b", [], Init::Constant(0.1)))
        });
        x.matmul(w) + b
    };
    let mut h = x;
    for (i, &width) in hidden.iter().enumerate() {
        h = affine(&format!("affine{i}"), h, width, i as u64 + 3).relu();
    }
    (affine("affine_last", h, 1, 77) - target).square().mean()
}

/// All variables, slots included, after the steps: names and values.
fn train(way: &Way, sizes: &Sizes, machine: Machine) -> Vec<(String, Array)> {
    let g = Graph::new();
    let optimizer = optimizer(way.optimizer);
    let placement = match way.variables {
        "cpu" => VariablePlacement::host(),
        "gpu" => VariablePlacement::gpu(0),
        _ => VariablePlacement::round_robin(way.towers as u32),
    };
    let towers = Towers::new(&g, way.towers).variables(placement).average_on(way.average_on);
    let (rows, part) = (sizes.rows, sizes.rows / way.towers);
    let feed = |count: usize, name: &str, columns: usize| g.placeholder(way.dtype, [count, columns], name);
    let (mut fed, mut xs, mut ts) = (Vec::new(), Vec::new(), Vec::new());
    if way.split {
        let (x, t) = (feed(rows, "x", sizes.inputs), feed(rows, "t", 1));
        fed.push((x, t));
        (xs, ts) = (towers.split(x), towers.split(t));
    }
    let options = ScopeOptions { dtype: Some(way.dtype), no_name_scope: true, ..ScopeOptions::default() };
    let built = g.reenter(&g.current_variable_scope(), options, || {
        towers.build(&optimizer, |tower| {
            if !way.split {
                let x = tower.placeholder(way.dtype, [part, sizes.inputs], "x");
                let t = tower.placeholder(way.dtype, [part, 1], "t");
                fed.push((x, t));
                xs.push(x);
                ts.push(t);
            }
            loss(&g, way.dtype, xs[tower.index()], ts[tower.index()], sizes.hidden)
        })
    });
    let train = built.apply(&optimizer);
    let s = Session::new(&g, SessionOptions::on(machine)).unwrap_or_else(|e| panic!("{way:?}: {e}"));
    s.initialize().unwrap();
    for step in 0..STEPS as u64 {
        let (x, t) = (numbers(rows * sizes.inputs, 1000 + step), numbers(rows, 2000 + step));
        let count = rows / fed.len();
        let arrays: Vec<(Array, Array)> = (0..fed.len())
            .map(|i| {
                let (from, to) = (i * count, (i + 1) * count);
                let x = &x[from * sizes.inputs..to * sizes.inputs];
                let array = |dims: &[usize], values: &[f64]| Array::from_f64(way.dtype, dims, values).unwrap();
                (array(&[count, sizes.inputs], x), array(&[count, 1], &t[from..to]))
            })
            .collect();
        let feeds: Vec<(Tensor<'_>, &Array)> =
            fed.iter().zip(&arrays).flat_map(|(&(x, t), (a, b))| [(x, a), (t, b)]).collect();
        s.run(&feeds, &[], &[train]).unwrap_or_else(|e| panic!("{way:?}: {e}"));
    }
    g.global_variables().into_iter().map(|v| (v.name(), s.value(v).unwrap())).collect()
}

fn machine(gpus: usize) -> Machine {
    gpus::machine(gpus).with_host_threads(1)
}

/// Every placement and input of these types and optimizers, for all numbers of towers, against one tower on the host.
fn agree(dtype: DType, tolerance: f64) {
    for optimizer in OPTIMIZERS {
        let way = |towers, variables, average_on, split| Way { dtype, optimizer, towers, variables, average_on, split };
        let want = train(&way(1, "cpu", "/cpu:0", false), &SMALL, machine(1));
        assert!(want.len() >= 6 && want.iter().flat_map(|(_, v)| v.to_f64()).all(f64::is_finite));
        for towers in [1, 2, 4, 8] {
            for (i, variables) in ["cpu", "gpu", "spread"].into_iter().enumerate() {
                for (k, average_on) in ["/cpu:0", "/gpu:0"].into_iter().enumerate() {
                    // Both kinds of input with every placement, in turn.
                    let way = way(towers, variables, average_on, (i + k + towers.ilog2() as usize).is_multiple_of(2));
                    let got = train(&way, &SMALL, machine(towers));
                    assert_eq!(got.len(), want.len());
                    for ((name, got), (wanted, want)) in got.iter().zip(&want) {
                        assert_eq!(name, wanted, "{way:?}");
                        for (g, w) in got.to_f64().iter().zip(want.to_f64()) {
                            let near = (g - w).abs() <= tolerance * w.abs().max(1.0);
                            assert!(near, "{name}: want {w}, got {g} by {way:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn towers_and_placements_give_the_same_weights_in_f32() {
    agree(DType::F32, 1e-6);
}

#[test]
fn towers_and_placements_give_the_same_weights_in_f64() {
    agree(DType::F64, 1e-12);
}

#[test]
fn bits_are_the_same_in_every_run_and_for_any_number_of_threads() {
    for (optimizer, variables, average_on, split) in
        [("adam", "cpu", "/cpu:0", true), ("momentum", "spread", "/gpu:0", false)]
    {
        let way = Way { dtype: DType::F32, optimizer, towers: 4, variables, average_on, split };
        let first = train(&way, &LARGE, machine(4));
        for threads in [1, 2] {
            let machine = gpus::machine(4).with_host_threads(threads).with_gpu_threads(threads);
            let again = train(&way, &LARGE, machine);
            for ((name, a), (_, b)) in first.iter().zip(&again) {
                assert!(a.bytes() == b.bytes(), "{name} differs with {threads} threads by {way:?}");
            }
        }
    }
}

#[test]
fn averages_run_beside_their_variables_unless_told_otherwise() {
    let copies = |average_on: Option<&str>| {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [8, 4], "x");
        let towers = Towers::new(&g, 2).variables(VariablePlacement::gpu(1));
        let towers = match average_on {
            Some(device) => towers.average_on(device),
            None => towers,
        };
        let parts = towers.split(x);
        let (_, train) = towers.train(&Optimizer::gradient_descent(0.1), ApplyOptions::default(), |tower| {
            let w = g.get_variable("w", [4, 2], Init::Ones);
            parts[tower.index()].matmul(w).square().mean()
        });
        let session = Session::new(&g, SessionOptions::on(gpus::machine(2))).expect("a sound graph");
        let schedule = session.schedule(&[(x, &[8, 4])], &[], &[train]).expect("a plan");
        schedule.step.copies().filter(|(_, c)| !schedule.step.tensor_name(c.tensor).starts_with("split")).count()
    };
    // The variable to the other tower, and that tower's gradient back; through the host, three gradients travel more.
    assert_eq!(copies(None), 2);
    assert_eq!(copies(Some("/cpu:0")), 4);
}

#[test]
fn a_placement_rule_for_a_while_changes_no_names() {
    let g = Graph::new();
    let outside = g.device("/gpu:0", || g.get_variable("a", [2], Init::Zeros));
    let inside = g.variables_on(VariablePlacement::host(), || {
        g.device("/gpu:0", || g.variable_scope("s", || g.get_variable("b", [2], Init::Zeros)))
    });
    let after = g.device("/gpu:0", || g.get_variable("c", [2], Init::Zeros));
    let found: Vec<(String, String)> =
        [outside, inside, after].map(|v| (v.name(), v.device().to_string())).into_iter().collect();
    let want = [("a", "/device:GPU:0"), ("s/b", "/device:CPU:0"), ("c", "/device:GPU:0")];
    assert_eq!(found, want.map(|(n, d)| (n.to_string(), d.to_string())));
}
