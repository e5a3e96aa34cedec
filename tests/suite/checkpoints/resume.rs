//! Training that is stopped and gone on with in another session gives the bits of training that was not.

use super::scratch;
use std::path::Path;
use turret::base::{Array, DType};
use turret::graph::{Graph, Init, Operation, Tensor, VariablePlacement};
use turret::interop::{RestoreOptions, Saver};
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, Optimizer, Towers, exponential_decay, get_or_create_global_step};

const ROWS: usize = 24;

/// A network with random nodes in each tower, and what a step of it needs.
pub struct Program<'g> {
    pub x: Tensor<'g>,
    pub target: Tensor<'g>,
    pub loss: Tensor<'g>,
    pub train: Operation<'g>,
}

/// What may differ between programs.
#[derive(Clone, Copy)]
pub struct Way {
    pub optimizer: &'static str,
    pub towers: usize,
    pub on_gpus: bool,
    pub dropout: bool,
}

pub fn build<'g>(g: &'g Graph, way: Way) -> Program<'g> {
    g.set_random_seed(11);
    let x = g.placeholder(DType::F32, [ROWS, 5], "x");
    let target = g.placeholder(DType::F32, [ROWS, 1], "target");
    let step = get_or_create_global_step(g);
    let rate = || exponential_decay(step, 0.05, 3.0, 0.9, false);
    let optimizer = match way.optimizer {
        "adam" => Optimizer::adam(rate()),
        "momentum" => Optimizer::momentum(rate(), 0.9),
        "rmsprop" => Optimizer::rms_prop(rate()),
        _ => Optimizer::gradient_descent(rate()),
    };
    let placement = match way.on_gpus {
        true => VariablePlacement::least_bytes(way.towers as u32),
        false => VariablePlacement::host(),
    };
    let towers = Towers::new(g, way.towers).variables(placement);
    let (xs, targets) = (towers.split(x), towers.split(target));
    let built = towers.build(&optimizer, |tower| {
        let i = tower.index();
        let rows = ROWS / way.towers;
        let w = g.get_variable("w", [5, 6], Init::random_uniform(-0.5, 0.5));
        let v = g.get_variable("v", [6, 1], Init::truncated_normal(0.0, 0.5));
        let mut h = xs[i].matmul(w).tanh();
        if way.dropout {
            // Dropout, and noise of a node that gives no seed of its own.
            h = h.dropout(0.3, 3);
            h = h + g.random_normal([rows, 6], 0.0, 0.01, None);
        }
        (h.matmul(v) - targets[i]).square().mean()
    });
    let train = built.apply_with(&optimizer, ApplyOptions::step(step));
    g.check().expect("the program is right");
    Program { x, target, loss: built.loss, train }
}

/// The batch of a step.
pub fn batch(step: usize) -> [Array; 2] {
    let mix = |i: usize| ((i * 7919 + step * 104_729) % 1009) as f32 / 1009.0 - 0.5;
    let x: Vec<f32> = (0..ROWS * 5).map(mix).collect();
    let target: Vec<f32> = x.chunks(5).map(|r| r.iter().sum::<f32>() + r[0] * r[1]).collect();
    [Array::new(&[ROWS, 5], &x).expect("it fits"), Array::new(&[ROWS, 1], &target).expect("it fits")]
}

pub fn session(g: &Graph, towers: usize) -> Session<'_> {
    Session::new(g, SessionOptions::on(crate::gpus::machine(towers))).expect("a session")
}

/// Runs steps, and gives their losses.
pub fn train(session: &Session<'_>, program: &Program<'_>, steps: std::ops::Range<usize>) -> Vec<Array> {
    steps
        .map(|step| {
            let [x, target] = batch(step);
            let feeds = [(program.x, &x), (program.target, &target)];
            session.run(&feeds, &[program.loss], &[program.train]).expect("a step").remove(0)
        })
        .collect()
}

/// All variables' values.
pub fn values(session: &Session<'_>) -> Vec<(String, Array)> {
    let all = session.graph().global_variables();
    all.into_iter().map(|v| (v.name(), session.value(v).expect("a value"))).collect()
}

/// Losses and variables of ten steps: at once, and in three programs with checkpoints between them.
fn both(way: Way, folder: &Path) {
    let g = Graph::new();
    let program = build(&g, way);
    let whole = session(&g, way.towers);
    whole.initialize().expect("initial values");
    let mut losses = train(&whole, &program, 0..10);
    let mut parts = Vec::new();
    let mut path = None;
    for steps in [0..3, 3..4, 4..10] {
        let g = Graph::new();
        let program = build(&g, way);
        let session = session(&g, way.towers);
        let saver = Saver::new(&g);
        // As programs do it: initial values first, or none at all.
        if steps.start != 3 {
            session.initialize().expect("initial values");
        }
        if let Some(path) = path {
            let report = saver.restore(&session, path).expect("a checkpoint");
            assert!(report.missing.is_empty() && report.unused.is_empty(), "{report}");
            assert_eq!(report.generators, if way.dropout { 2 * way.towers } else { 0 }, "{report}");
        }
        parts.extend(train(&session, &program, steps.clone()));
        path = Some(saver.save(&session, folder.join("model.ckpt"), steps.end as i64).expect("it is saved"));
        if steps.end == 10 {
            assert_eq!(values(&session), values(&whole), "{}", way.optimizer);
        }
    }
    assert_eq!(parts, losses, "{} on {} towers", way.optimizer, way.towers);
    losses.dedup();
    assert_eq!(losses.len(), 10, "no two steps are alike");
}

#[test]
fn training_that_goes_on_gives_the_same_bits() {
    let folder = scratch("resume");
    for (optimizer, towers, on_gpus) in
        [("sgd", 1, false), ("momentum", 2, true), ("adam", 2, false), ("adam", 4, true), ("rmsprop", 3, false)]
    {
        both(Way { optimizer, towers, on_gpus, dropout: true }, &folder);
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn another_number_of_towers_goes_on_where_it_can() {
    let folder = scratch("towers");
    let way = |towers, dropout| Way { optimizer: "adam", towers, on_gpus: towers > 1, dropout };
    for dropout in [false, true] {
        let g = Graph::new();
        let program = build(&g, way(4, dropout));
        let s = session(&g, 4);
        s.initialize().expect("initial values");
        train(&s, &program, 0..3);
        let path = Saver::new(&g).save(&s, folder.join("model.ckpt"), 3).expect("it is saved");
        let want = values(&s);
        let next = train(&s, &program, 3..5);
        for towers in [1, 2, 8] {
            let g = Graph::new();
            let program = build(&g, way(towers, dropout));
            let s = session(&g, towers);
            let report = Saver::new(&g).restore(&s, &path).expect("a checkpoint of four towers");
            assert_eq!(values(&s), want, "{report}");
            // The towers that both have go on; new ones start at the beginning of their streams.
            assert_eq!(report.generators, if dropout { 2 * towers.min(4) } else { 0 }, "{report}");
            let losses = train(&s, &program, 3..5);
            if !dropout {
                // Means over other towers are rounded otherwise.
                for (got, want) in losses.iter().zip(&next) {
                    let (got, want) = (got.get_f64(0), want.get_f64(0));
                    assert!((got - want).abs() <= 1e-5 * want.abs(), "{towers} towers: {got}, want {want}");
                }
            }
        }
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn going_back_in_one_session_repeats_what_was() {
    let folder = scratch("back");
    let g = Graph::new();
    let program = build(&g, Way { optimizer: "momentum", towers: 2, on_gpus: true, dropout: true });
    let s = session(&g, 2);
    s.initialize().expect("initial values");
    let saver = Saver::new(&g);
    let start = saver.save(&s, folder.join("m"), 0).expect("it is saved before any step");
    let want = train(&s, &program, 0..4);
    saver.restore(&s, &start).expect("it is there");
    assert_eq!(train(&s, &program, 0..4).len(), want.len());
    // Nodes that give no seed had not begun when the first was saved; from here on all have.
    let middle = saver.save(&s, folder.join("m"), 4).expect("it is saved");
    let want = train(&s, &program, 4..8);
    for _ in 0..2 {
        saver.restore(&s, &middle).expect("it is there");
        assert_eq!(train(&s, &program, 4..8), want);
    }
    // The model alone: slots begin anew, so the losses differ.
    let model = RestoreOptions { model_only: true, ..RestoreOptions::default() };
    let report = saver.restore_with(&s, &middle, model).expect("it is there");
    assert_eq!(report.initialized, ["w/Momentum", "v/Momentum"]);
    assert_eq!(s.value(g.find_variable("w/Momentum").expect("a slot")).expect("a value").to_f64(), [0.0; 30]);
    let _ = std::fs::remove_dir_all(folder);
}
