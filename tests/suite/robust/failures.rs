//! Kernels that fail or panic in the middle of a step.

use super::{assert_says, sim};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use turret::base::{Array, Code, DType};
use turret::device::CpuKernel;
use turret::graph::{Fact, Graph, InferContext, Init, KernelContext, Op, OpRef, Tensor, Traits, Variable};
use turret::run::Session;

/// A user's op that fails on a negative number, and panics where that is -100 or less; it says so in its traits.
struct Picky;

/// As [`Picky`], and says nothing of it.
struct Secretive;

fn picky(l: &turret::device::Launch<'_>) -> Result<(), String> {
    let input = l.input::<f32>(0);
    assert!(input.iter().all(|v| *v > -100.0), "a number below all reason");
    match input.iter().find(|v| **v < 0.0) {
        Some(bad) => Err(format!("want no negative number, got {bad}")),
        None => {
            l.output::<f32>(0).copy_from_slice(input);
            Ok(())
        }
    }
}

fn like_input(c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
    c.want_inputs(1)?;
    Ok(vec![c.inputs[0].clone()])
}

impl Op for Picky {
    fn name(&self) -> &'static str {
        "Picky"
    }

    fn traits(&self) -> Traits {
        Traits { fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        like_input(c)
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(Box::new(picky))
    }
}

impl Op for Secretive {
    fn name(&self) -> &'static str {
        "Secretive"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        like_input(c)
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(Box::new(picky))
    }
}

/// Towers over some GPUs: a variable on each and one on the host, all changed by the step; tower 1 goes through `op`.
struct Program<'g> {
    x: Tensor<'g>,
    variables: Vec<Variable<'g>>,
    step: turret::graph::Operation<'g>,
    made: String,
}

/// `after` puts the op behind the writers, so that what they changed has to be put back.
fn program<'g>(g: &'g Graph, gpus: usize, op: OpRef, after: bool) -> Program<'g> {
    let x = g.placeholder(DType::F32, [4], "x");
    let mut variables = vec![g.device("/cpu:0", || g.get_variable("shared", [4], Init::Constant(0.1)))];
    let mut sums = Vec::new();
    let mut made = String::new();
    for i in 0..gpus {
        g.device(&format!("/gpu:{i}"), || {
            g.name_scope(&format!("tower_{i}"), || {
                let own = g.get_variable(&format!("own_{i}"), [4], Init::Constant(0.3));
                variables.push(own);
                let change = |v: Tensor<'g>| own.assign_add(v * 0.7);
                let checked = |v: Tensor<'g>| g.node_of(op).name("check").input(v).tensor();
                let value = match (i, after) {
                    (1, false) => {
                        made = format!("failures.rs:{}:", line!() - 3);
                        change(checked(x))
                    }
                    (1, true) => {
                        made = format!("failures.rs:{}:", line!() - 7);
                        checked(change(x) + x * 50.0)
                    }
                    _ => change(x),
                };
                sums.push(value);
            });
        });
    }
    let step = g.device("/cpu:0", || {
        let sum = sums.into_iter().reduce(|a, b| a + b).unwrap();
        variables[0].assign_sub(sum).op()
    });
    Program { x, variables, step, made }
}

fn floats(values: [f32; 4]) -> Array {
    Array::new(&[4], &values).unwrap()
}

#[test]
fn a_failing_kernel_leaves_all_variables_as_they_were() {
    for (gpus, op, after) in [(2, &Picky as OpRef, false), (2, &Picky, true), (4, &Picky, false), (4, &Picky, true)] {
        let g = Graph::new();
        let p = program(&g, gpus, op, after);
        let s = Session::new(&g, sim(gpus)).unwrap();
        s.initialize().unwrap();
        let values = |s: &Session<'_>| -> Vec<Array> { p.variables.iter().map(|v| s.value(*v).unwrap()).collect() };
        let good = floats([0.1, 0.2, 0.3, 0.4]);
        s.run(&[(p.x, &good)], &[], &[p.step]).unwrap();
        let before = values(&s);
        for (bad, words) in [(-1.0, "want no negative number, got -"), (-1000.0, "a number below all reason")] {
            for _ in 0..20 {
                let e = s.run(&[(p.x, &floats([1.0, 2.0, bad, 4.0]))], &[], &[p.step]).unwrap_err();
                let code = if bad < -100.0 || after { e.code() } else { Code::InvalidArgument };
                assert_eq!(e.code(), code);
                assert_says(&e.to_string(), &["'tower_1/check' (Picky)", "gpu:1", "failed", &p.made]);
                assert!(e.to_string().contains(words) || after, "{e}");
                assert_eq!(values(&s), before, "bit for bit");
            }
        }
        // The next run works, and gives what a session gives that never failed.
        s.run(&[(p.x, &good)], &[], &[p.step]).unwrap();
        let fresh = Session::new(&g, sim(gpus)).unwrap();
        fresh.initialize().unwrap();
        for _ in 0..2 {
            fresh.run(&[(p.x, &good)], &[], &[p.step]).unwrap();
        }
        assert_eq!(values(&s), values(&fresh));
    }
}

/// An op that does not say that it can fail: the variables are as before, or the session says that they may not be.
#[test]
fn an_unannounced_failure_is_never_silent() {
    for after in [false, true] {
        let g = Graph::new();
        let p = program(&g, 2, &Secretive, after);
        let s = Session::new(&g, sim(2)).unwrap();
        s.initialize().unwrap();
        let before: Vec<Array> = p.variables.iter().map(|v| s.value(*v).unwrap()).collect();
        let good = floats([0.1, 0.2, 0.3, 0.4]);
        let e = s.run(&[(p.x, &floats([1.0, 2.0, -1.0, 4.0]))], &[], &[p.step]).unwrap_err();
        assert_says(&e.to_string(), &["'tower_1/check' (Secretive)", "gpu:1", "want no negative number", &p.made]);
        let now: Vec<Array> = p.variables.iter().map(|v| s.value(*v).unwrap()).collect();
        match s.run(&[(p.x, &good)], &[], &[p.step]) {
            Ok(_) => assert_eq!(now, before),
            Err(e) => {
                assert_eq!(e.code(), Code::FailedPrecondition);
                assert_says(&e.to_string(), &["an earlier fault", "'tower_1/check'", "load them all"]);
                let all: Vec<_> = p.variables.iter().copied().zip(&before).collect();
                s.load_all(&all).unwrap();
                s.run(&[(p.x, &good)], &[], &[p.step]).unwrap();
            }
        }
    }
}

/// The only writer of a step checks before it writes, so that a refusal leaves the variable as it was.
#[test]
fn a_scatter_that_is_refused_leaves_the_session_as_it_was() {
    let g = Graph::new();
    let table = g.get_variable("table", [4, 1], Init::Ones);
    let at = g.placeholder(DType::I32, [2], "at");
    let rows = g.constant(Array::new(&[2, 1], &[5.0f32, 7.0]).unwrap());
    let step = table.scatter_add(at, rows);
    let s = Session::new(&g, sim(1)).unwrap();
    s.initialize().unwrap();
    let e = s.run(&[(at, &Array::new(&[2], &[1, 4]).unwrap())], &[], &[step.op()]).unwrap_err();
    assert_says(&e.to_string(), &["ScatterAdd", "index 4 (entry 1) is not in [0, 4)"]);
    assert_eq!(s.value(table).unwrap().to_f64(), [1.0; 4]);
    s.run(&[(at, &Array::new(&[2], &[1, 3]).unwrap())], &[], &[step.op()]).unwrap();
    assert_eq!(s.value(table).unwrap().to_f64(), [1.0, 6.0, 1.0, 8.0]);
}

#[test]
fn two_hundred_failing_steps_on_four_gpus_end() {
    let g = Graph::new();
    let p = program(&g, 4, &Picky, false);
    let s = Session::new(&g, sim(4)).unwrap();
    s.initialize().unwrap();
    for i in 0..200 {
        let bad = floats([1.0, if i % 2 == 0 { -1.0 } else { -1000.0 }, 0.0, 0.0]);
        let e = s.run(&[(p.x, &bad)], &[], &[p.step]).unwrap_err();
        assert_eq!(e.code(), if i % 2 == 0 { Code::InvalidArgument } else { Code::Internal }, "{e}");
        if i % 10 == 0 {
            s.run(&[(p.x, &floats([1.0; 4]))], &[], &[p.step]).unwrap();
        }
    }
}

/// An op whose kernel panics while it is prepared, and one whose shape rule panics at run-time sizes.
struct Brittle;

static PREPARING: AtomicBool = AtomicBool::new(false);
static PREPARED: AtomicUsize = AtomicUsize::new(0);

impl Op for Brittle {
    fn name(&self) -> &'static str {
        "Brittle"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        like_input(c)
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        PREPARED.fetch_add(1, Ordering::SeqCst);
        if PREPARING.load(Ordering::SeqCst) {
            return Err("no kernel today".into());
        }
        Ok(Box::new(picky))
    }
}

#[test]
fn a_kernel_that_cannot_be_prepared_is_named() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4], "x");
    let y = g.device("/gpu:0", || g.node_of(&Brittle).input(x).tensor());
    let made = format!("failures.rs:{}:", line!() - 1);
    let s = Session::new(&g, sim(1)).unwrap();
    PREPARING.store(true, Ordering::SeqCst);
    let held = s.memory_use();
    let e = s.run(&[(x, &floats([1.0; 4]))], &[y], &[]).unwrap_err();
    assert_says(&e.to_string(), &["cannot prepare 'Brittle' (Brittle)", "no kernel today", &made]);
    assert_eq!(s.memory_use(), held);
    PREPARING.store(false, Ordering::SeqCst);
    assert_eq!(s.run(&[(x, &floats([1.0; 4]))], &[y], &[]).unwrap()[0], floats([1.0; 4]));
    assert_eq!(PREPARED.load(Ordering::SeqCst), 2);
}
