//! Cases of sessions and running.

use super::{assert_says, sim};
use std::sync::atomic::{AtomicUsize, Ordering};
use turret::base::{Array, Code, DType};
use turret::device::CpuKernel;
use turret::graph::{Fact, Graph, InferContext, Init, KernelContext, Op, Operation, Tensor, Traits, Variable};
use turret::run::Session;
use turret::train::{Optimizer, Towers};

fn floats(dims: &[usize], values: &[f32]) -> Array {
    Array::new(dims, values).unwrap()
}

/// One weight, mean square error, four rows over some towers, gradient descent with rate 0.1.
///
/// With [`rows`], each row's loss at `w = 2` is 1 and the mean gradient is -5, so that a step goes to 2.5.
struct Line<'g> {
    w: Variable<'g>,
    x: Tensor<'g>,
    t: Tensor<'g>,
    train: Operation<'g>,
    losses: Vec<Tensor<'g>>,
}

impl<'g> Line<'g> {
    fn new(g: &'g Graph, towers: usize) -> Line<'g> {
        let w = g.device("/cpu:0", || g.get_variable("w", [], Init::Constant(2.0)));
        let x = g.placeholder(DType::F32, [4], "x");
        let t = g.placeholder(DType::F32, [4], "t");
        let optimizer = Optimizer::gradient_descent(0.1);
        let all = Towers::new(g, towers).average_on("/cpu:0");
        let (xs, ts) = (all.split(x), all.split(t));
        let built = all.build(&optimizer, |tower| (xs[tower.index()] * w - ts[tower.index()]).square().mean());
        let train = built.apply(&optimizer);
        Line { w, x, t, train, losses: built.losses }
    }

    fn feeds<'a>(&self, x: &'a Array, t: &'a Array) -> [(Tensor<'g>, &'a Array); 2] {
        [(self.x, x), (self.t, t)]
    }
}

fn rows() -> (Array, Array) {
    (floats(&[4], &[1.0, 2.0, 3.0, 4.0]), floats(&[4], &[3.0, 5.0, 7.0, 9.0]))
}

#[test]
fn run_01() {
    let g = Graph::new();
    let images = g.placeholder(DType::F32, [None, Some(784)], "images");
    let made = format!("run.rs:{}:", line!() - 1);
    let small = g.placeholder(DType::F32, [2, 4], "small");
    let free = g.placeholder(DType::F32, [None, Some(4)], "free");
    let (a, b) = (images.identity("a"), small.identity("b"));
    let sums = free.sum_axes(&[0], false);
    let s = Session::new(&g, sim(1)).unwrap();
    for _ in 0..2 {
        let e = s.run(&[(images, &Array::zeros(DType::F32, &[50, 2352]).unwrap())], &[a], &[]).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
        assert_says(&e.to_string(), &["'images:0'", "[50, 2352]", "[?, 784]", "axis 1 is 2352 against 784", &made]);
        let e = s.run(&[(small, &floats(&[1, 4], &[0.0; 4]))], &[b], &[]).unwrap_err();
        assert_says(&e.to_string(), &["'small:0'", "[1, 4]", "[2, 4]", "axis 0 is 1 against 2"]);
        // The same number of elements in another shape is refused as well.
        let e = s.run(&[(small, &floats(&[8], &[0.0; 8]))], &[b], &[]).unwrap_err();
        assert_says(&e.to_string(), &["'small:0'", "[8]", "[2, 4]", "the ranks are 1 and 2", "reshape"]);
    }
    assert_eq!((s.plans_built(), s.started_devices()), (0, vec![]), "refused before any work");
    // No rows are rows too.
    let none = floats(&[0, 4], &[]);
    let out = s.run(&[(free, &none)], &[sums], &[]).unwrap();
    assert_eq!((out[0].dims(), out[0].to_f64()), (&[4][..], vec![0.0; 4]));
    let good = floats(&[2, 4], &[1.0; 8]);
    assert_eq!(s.run(&[(small, &good)], &[b], &[]).unwrap()[0], good);
}

#[test]
fn run_02() {
    let g = Graph::new();
    let ids = g.placeholder(DType::I32, [2], "ids");
    let rate = g.placeholder(DType::F32, [], "rate");
    let (a, b) = (ids.identity("a"), rate.identity("b"));
    let s = Session::new(&g, sim(0)).unwrap();
    let e = s.run(&[(ids, &floats(&[2], &[0.9, 1.7]))], &[a], &[]).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument);
    assert_says(&e.to_string(), &["'ids:0'", "an array of float32", "which is int32", "Array::cast(int32)", "run.rs:"]);
    let e = s.run(&[(rate, &Array::scalar(16777217i32))], &[b], &[]).unwrap_err();
    assert_says(&e.to_string(), &["'rate:0'", "an array of int32", "which is float32", "Array::cast(float32)"]);
    let good = Array::new(&[2], &[3i32, 4]).unwrap();
    assert_eq!(s.run(&[(ids, &good)], &[a], &[]).unwrap()[0], good);
    // A session that has a plan for these sizes looks at the type all the same.
    assert!(s.run(&[(ids, &floats(&[2], &[0.9, 1.7]))], &[a], &[]).is_err());
    assert!(s.callable(&[ids], &[a], &[]).run(&[&floats(&[2], &[0.9, 1.7])]).is_err());
}

#[test]
fn run_04() {
    let (one, two) = (Graph::new(), Graph::new());
    let make = |g: &'_ Graph| {
        let x = g.placeholder(DType::F32, [1], "x");
        (x.id(), x.identity("y").id())
    };
    assert_eq!(make(&one), make(&two), "the same ids and names in both graphs");
    let (x1, y1) = (one.tensor("x").unwrap(), one.tensor("y").unwrap());
    let (x2, y2) = (two.tensor("x").unwrap(), two.tensor("y").unwrap());
    let v = floats(&[1], &[5.0]);
    let s = Session::new(&two, sim(0)).unwrap();
    let whose = [format!("belongs to graph {}", one.number()), format!("this session runs graph {}", two.number())];
    let refused = |what: &str, e: turret::Error| {
        assert_eq!(e.code(), Code::InvalidArgument);
        assert_says(&e.to_string(), &[what, &whose[0], &whose[1]]);
    };
    // Before and after there is a plan that would serve by ids.
    for _ in 0..2 {
        refused("cannot feed 'x:0'", s.run(&[(x1, &v)], &[y2], &[]).unwrap_err());
        refused("cannot fetch 'y:0'", s.run(&[(x2, &v)], &[y1], &[]).unwrap_err());
        refused("cannot run 'y'", s.run(&[(x2, &v)], &[], &[y1.op()]).unwrap_err());
        assert_eq!(s.run(&[(x2, &v)], &[y2], &[]).unwrap()[0], v);
    }
    let w = one.get_variable("w", [], Init::Zeros);
    refused("'w", s.value(w).unwrap_err());
    refused("'w", s.load(w, &Array::scalar(1f32)).unwrap_err());
    refused("cannot feed 'x:0'", s.schedule(&[(x1, &[1])], &[y2], &[]).err().unwrap());
}

#[test]
fn run_06() {
    let g = Graph::new();
    let (u, v) = (g.get_variable("u", [2], Init::Ones), g.get_variable("v", [3], Init::Ones));
    let loss = u.value().square().sum();
    let optimizer = Optimizer::gradient_descent(0.5);
    let grads = optimizer.compute_gradients(loss);
    // A gradient that is not there is no tensor, so that it cannot be fetched; the graph says so.
    assert!(grads[0].grad.is_some() && grads[1].grad.is_none() && grads[1].var == v);
    let warnings: Vec<String> = g.warnings().iter().map(|w| w.to_string()).collect();
    assert_eq!(warnings.len(), 1);
    assert_says(&warnings[0], &["variable 'v' has no gradient", &format!("loss '{}'", loss.name()), "run.rs:"]);
    let train = optimizer.apply_gradients(&grads);
    // An operation without outputs is run, not fetched.
    let e = g.tensor(&train.name()).unwrap_err();
    assert_says(&e.to_string(), &["no tensor", "'GradientDescent:0'", "has 0 outputs", "run it as a target"]);
    let s = Session::new(&g, sim(1)).unwrap();
    s.initialize().unwrap();
    assert!(s.run(&[], &[], &[train]).unwrap().is_empty());
    assert_eq!(s.value(u).unwrap().to_f64(), [0.0, 0.0]);
    let (values, metadata) = s.run_traced(&[], &[], &[]).unwrap();
    assert!(values.is_empty() && metadata.spans.is_empty() && metadata.copies.is_empty());
    assert_eq!(s.started_devices(), [], "nothing ran on the GPU");
}

#[test]
fn run_07() {
    let g = Graph::new();
    let w = g.variable_scope("fc", || g.get_variable("w", [2], Init::Ones));
    let init = g.global_variables_initializer();
    let optimizer = Optimizer::adam(0.1);
    let train = optimizer.apply_gradients(&optimizer.compute_gradients(w.value().square().sum()));
    let s = Session::new(&g, sim(1)).unwrap();
    let all = ["fc/w", "beta1_power", "beta2_power", "fc/w/Adam", "fc/w/Adam_1"];
    let e = s.run_targets(&[train]).unwrap_err().to_string();
    assert_says(&e, &all.map(|n| format!("'{n}'")).each_ref().map(String::as_str));
    assert!(!e.contains("after the init operation"), "no init has run yet: {e}");
    s.run_targets(&[init]).unwrap();
    let e = s.run_targets(&[train]).unwrap_err();
    assert_eq!(e.code(), Code::FailedPrecondition);
    let missing = ["'fc/w/Adam'", "'fc/w/Adam_1'", "'beta1_power'", "'beta2_power'"];
    assert_says(&e.to_string(), &missing);
    assert_says(&e.to_string(), &["uninitialized", "made after the init operation that ran", "Session::initialize"]);
    assert!(!e.to_string().contains("'fc/w'"), "{e}");
    assert_eq!(s.value(w).unwrap().to_f64(), [1.0, 1.0], "nothing has changed");
    let mut open = s.uninitialized_variables().unwrap();
    open.sort();
    assert_eq!(open, ["beta1_power", "beta2_power", "fc/w/Adam", "fc/w/Adam_1"]);
    s.initialize().unwrap();
    assert!(s.uninitialized_variables().unwrap().is_empty());
    s.run_targets(&[train]).unwrap();
    assert!(s.value(w).unwrap().to_f64().iter().all(|v| (v - 0.9).abs() < 1e-6));
}

/// Savers and initializers are made before, or add no nodes; that is tested with the checkpoints.
#[test]
fn run_09() {
    let g = Graph::new();
    let w = g.get_variable("w", [], Init::Zeros);
    let init = g.global_variables_initializer();
    let at = format!("run.rs:{}:", line!() + 1);
    g.finalize();
    let nodes = g.len();
    g.name_scope("late", || {
        assert!(w.value().identity("copy").is_poison());
    });
    assert!(g.get_variable("v", [2], Init::Zeros).is_poison());
    assert!(g.global_variables_initializer().is_poison());
    assert_eq!((g.len(), init.name()), (nodes, "init".to_string()));
    let problems = g.diagnostics();
    assert_eq!(problems.len(), 3, "{problems:?}");
    for (problem, name) in problems.iter().zip(["'late/copy' (Identity)", "'v' (VariableV2)", "'init' (NoOp)"]) {
        assert_eq!(problem.code, Code::FailedPrecondition);
        assert_says(&problem.to_string(), &["cannot add", name, "finalised at", &at, "add it before", "run.rs:"]);
    }
    // What is there can still be found.
    assert_eq!(g.find_variable("w").unwrap(), w);
}

#[test]
fn run_10() {
    let (x, t) = rows();
    for towers in [1, 2, 4] {
        let g = Graph::new();
        let line = Line::new(&g, towers);
        let s = Session::new(&g, sim(4)).unwrap();
        s.initialize().unwrap();
        let start = s.value(line.w).unwrap();
        for repetition in 0..100 {
            s.load(line.w, &start).unwrap();
            let fetches: Vec<Tensor<'_>> = std::iter::once(line.w.value()).chain(line.losses.clone()).collect();
            let out = s.run(&line.feeds(&x, &t), &fetches, &[line.train]).unwrap();
            assert_eq!(out[0].to_f64(), [2.0], "{towers} towers, repetition {repetition}");
            // All towers read the same version: their losses are bit-equal.
            assert!(out[1..].iter().all(|l| *l == out[1]) && out[1].to_f64() == [1.0], "{out:?}");
            let after = s.run(&[], &[line.w.value()], &[]).unwrap();
            assert_eq!(after[0].to_f64(), [2.5]);
        }
    }
}

#[test]
fn run_13() {
    let (x, t) = rows();
    let g = Graph::new();
    let line = Line::new(&g, 2);
    let s = Session::new(&g, sim(2)).unwrap();
    s.load(line.w, &Array::scalar(2f32)).unwrap();
    let nodes = g.len();
    for _ in 0..1000 {
        s.run(&line.feeds(&x, &t), &[line.losses[0]], &[line.train]).unwrap();
    }
    assert_eq!((g.len() - nodes, s.plans_built()), (0, 1));
    assert!(s.warnings().is_empty(), "{:?}", s.warnings());

    // A program that builds in its loop.
    let mut newest = String::new();
    for step in 0..10 {
        let more = line.losses[0].identity("more");
        if step == 2 {
            newest = more.op().name();
        }
        s.run(&line.feeds(&x, &t), &[more], &[line.train]).unwrap();
    }
    let warnings = s.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_says(&warnings[0], &["has grown between runs", &format!("'{newest}'"), "run.rs:", "Graph::finalize"]);
    g.finalize();
    let more = line.losses[0].identity("more");
    let e = s.run(&line.feeds(&x, &t), &[more], &[line.train]).unwrap_err();
    assert_says(&e.to_string(), &["cannot add 'more' (Identity)", "finalised at", "run.rs:"]);
}

/// A user's op: its input, counted.
struct Counted;

static RUNS: AtomicUsize = AtomicUsize::new(0);

impl Op for Counted {
    fn name(&self) -> &'static str {
        "Counted"
    }

    fn traits(&self) -> Traits {
        Traits { stateful: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        Ok(vec![c.inputs[0].clone()])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(Box::new(|l| {
            RUNS.fetch_add(1, Ordering::SeqCst);
            l.output::<f32>(0).copy_from_slice(l.input::<f32>(0));
            Ok(())
        }))
    }
}

#[test]
fn run_15() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [2], "x");
    let a = g.node_of(&Counted).input(x).tensor();
    let b = x * 3.0;
    let s = Session::new(&g, sim(0)).unwrap();
    let v = floats(&[2], &[1.0, -2.0]);
    let [one] = &s.run(&[(x, &v)], &[a], &[]).unwrap()[..] else { panic!("want one value") };
    let [first, middle, last] = &s.run(&[(x, &v)], &[a, b, a], &[]).unwrap()[..] else { panic!("want three") };
    assert_eq!((one, first, last), (&v, &v, &v));
    assert_eq!(middle.to_f64(), [3.0, -6.0]);
    assert_eq!(RUNS.load(Ordering::SeqCst), 2, "once in each run");
    let [first, second] = &s.run(&[(x, &v)], &[b, a], &[]).unwrap()[..] else { panic!("want two") };
    assert_eq!((first, second), (middle, &v));
}

#[test]
fn run_17() {
    const LEN: usize = 10_000;
    let g = Graph::new();
    let a = g.device("/gpu:0", || g.get_variable("a", [LEN], Init::Zeros));
    let b = g.device("/gpu:1", || g.get_variable("b", [LEN], Init::Zeros));
    let one = g.constant(vec![1f32; LEN]);
    let train = g.group([a.assign_add(one).op(), b.assign_add(one).op()], "train");
    let s = Session::new(&g, sim(2)).unwrap();
    s.initialize().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0.0;
                for _ in 0..200 {
                    let out = s.run(&[], &[a.value(), b.value()], &[]).unwrap();
                    let step = out[0].get_f64(0);
                    let whole = out.iter().all(|v| v.as_slice::<f32>().unwrap().iter().all(|&e| f64::from(e) == step));
                    assert!(whole, "half an update was seen at step {step}");
                    assert!(step >= seen, "went back from {seen} to {step}");
                    seen = step;
                }
            });
        }
        scope.spawn(|| (0..200).for_each(|_| s.run_targets(&[train]).unwrap()));
    });
    assert_eq!(s.value(a).unwrap().get_f64(LEN - 1), 200.0);
    let callable = s.callable(&[], &[a.value()], &[]);
    s.close();
    let closed = [
        s.run_targets(&[train]).unwrap_err(),
        s.run(&[], &[a.value()], &[]).unwrap_err(),
        callable.run(&[]).unwrap_err(),
        s.initialize().unwrap_err(),
        s.value(a).unwrap_err(),
        s.load(a, &Array::zeros(DType::F32, &[LEN]).unwrap()).unwrap_err(),
    ];
    for e in closed {
        assert_eq!(e.code(), Code::FailedPrecondition);
        assert_says(&e.to_string(), &["the session is closed", "make a new one"]);
    }
}
