//! Programs that are wrong: each message names what, both sides, the fix and the program's own line; all problems come
//! in one report; the session is as usable as before.

use super::{assert_says, sim};
use turret::base::{Array, Code, DType, Error};
use turret::graph::{Graph, Init};
use turret::run::Session;
use turret::train::{ApplyOptions, Optimizer, Towers};

/// Every problem has a line, and it is one of this file.
#[track_caller]
fn all_lines_here(e: &Error) {
    for d in e.diagnostics() {
        let file = d.source.map(|s| s.file().to_string()).unwrap_or_default();
        assert!(file.ends_with("robust/programs.rs"), "want a line of the program, got '{file}' for:\n{d}");
    }
}

/// The graph's one problem as text, made at the line of the call or in the two before it.
#[track_caller]
fn only(g: &Graph, parts: &[&str]) {
    let e = g.check().unwrap_err();
    assert_eq!(e.diagnostics().len(), 1, "{e}");
    all_lines_here(&e);
    assert_says(&e.to_string(), parts);
    // A session refuses the program with the same words.
    assert_eq!(Session::new(g, sim(1)).err().map(|e| e.to_string()), Some(e.to_string()));
}

#[test]
fn wrong_shapes_are_explained() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [None, Some(256)], "x");
    let w = g.get_variable("w", [64, 128], Init::Zeros);
    assert!((x.matmul(w) + 1.0).relu().is_poison(), "and what is built from it raises nothing more");
    only(&g, &["'MatMul'", "'x:0' float32 [?, 256]", "'w/read:0' float32 [64, 128]", "256", "64"]);

    let g = Graph::new();
    let (a, b) = (g.placeholder(DType::F32, [2, 3], "a"), g.placeholder(DType::F32, [2, 4], "b"));
    let _ = a + b;
    only(&g, &["'add' (AddV2)", "[2, 3]", "[2, 4]"]);

    let g = Graph::new();
    let _ = g.placeholder(DType::F32, [10, 2], "batch").split(3, 0);
    only(&g, &["'batch:0'", "size 10", "into 3 equal parts", "1 would be left over"]);

    let g = Graph::new();
    let _ = g.placeholder(DType::F32, [2, 3], "x").reshape([7]);
    only(&g, &["Reshape", "'x:0'", "[2, 3]", "7"]);

    let g = Graph::new();
    let _ = g.placeholder(DType::F32, [2, 3], "x").sum_axes(&[2], false);
    only(&g, &["Sum", "2", "rank 2"]);

    let g = Graph::new();
    let x = g.placeholder(DType::F32, [None, None], "x");
    let _ = g.get_variable("w", [x.dim(1), 4], Init::Zeros).value().relu();
    only(&g, &["axis 1 of 'x:0' is not known", "[?, ?]", "declare this size"]);

    let g = Graph::new();
    let _ = g.get_variable("w", [3], Init::data([1f32, 2.0]));
    only(&g, &["'w'", "float32 [3]", "float32 [2]"]);
}

#[test]
fn wrong_types_are_explained() {
    let g = Graph::new();
    let (i, f) = (g.placeholder(DType::I32, [2], "i"), g.placeholder(DType::F32, [2], "f"));
    let _ = i * f;
    only(&g, &["'mul' (Mul)", "'i:0' int32", "'f:0' float32", "cast"]);

    let g = Graph::new();
    let ids = g.placeholder(DType::F32, [2], "ids");
    let _ = g.get_variable("table", [4, 2], Init::Zeros).value().gather(ids, 0);
    only(&g, &["'ids:0' float32", "int32", "int64"]);

    let g = Graph::new();
    let w = g.get_variable("w", [2], Init::Zeros);
    let _ = w.assign(g.constant([1i32, 2]));
    only(&g, &["Assign", "float32", "int32", "cast"]);

    let g = Graph::new();
    let x = g.placeholder(DType::F32, [2], "x");
    let _ = g.node_of(turret::ops::find("AssignAdd").unwrap()).input(x).input(x).add();
    only(&g, &["'AssignAdd'", "must be a variable", "'x' (Placeholder)"]);
}

#[test]
fn two_problems_come_together() {
    let g = Graph::new();
    let (a, b) = (g.placeholder(DType::F32, [2, 3], "a"), g.placeholder(DType::I32, [2, 3], "b"));
    let first = a.matmul(a);
    let at_first = format!("programs.rs:{}:", line!() - 1);
    let second = a + b;
    let at_second = format!("programs.rs:{}:", line!() - 1);
    // What hangs on both raises nothing more.
    assert!((first + second).square().mean().is_poison());
    let e = Session::new(&g, sim(1)).err().unwrap();
    assert_eq!(e.diagnostics().len(), 2);
    all_lines_here(&e);
    assert_says(&e.to_string(), &["2 problems:", "1. ", "2. ", "'MatMul'", "'add'", &at_first, &at_second]);
}

#[test]
fn towers_report_the_programs_lines() {
    let g = Graph::new();
    let optimizer = Optimizer::gradient_descent(0.1);
    let towers = Towers::new(&g, 2);
    let x = g.placeholder(DType::F32, [5, 2], "batch");
    let parts = towers.split(x);
    let (built, train) = towers.train(&optimizer, ApplyOptions::default(), |tower| parts[tower.index()].sum());
    assert!(built.loss.is_poison() && train.is_poison());
    let e = g.check().unwrap_err();
    all_lines_here(&e);
    assert_says(&e.diagnostics()[0].message, &["'batch'", "5", "2", "1"]);

    // A loss that is no scalar, in each tower.
    let g = Graph::new();
    let optimizer = Optimizer::gradient_descent(0.1);
    Towers::new(&g, 2).train(&optimizer, ApplyOptions::default(), |_| g.get_variable("w", [3], Init::Ones).value());
    let e = g.check().unwrap_err();
    all_lines_here(&e);
    assert_says(&e.to_string(), &["the loss of tower 0 must be a scalar", "[3]", "take its mean"]);

    // No towers at all.
    let g = Graph::new();
    let optimizer = Optimizer::gradient_descent(0.1);
    Towers::new(&g, 0).train(&optimizer, ApplyOptions::default(), |_| unreachable!("no tower is built"));
    let e = g.check().unwrap_err();
    all_lines_here(&e);
    assert_says(&e.to_string(), &["want at least 1 tower, got 0"]);
}

#[test]
fn reuse_without_a_variable_is_explained() {
    let g = Graph::new();
    let made = g.variable_scope("fc", || g.get_variable("w", [2], Init::Zeros));
    g.reuse_variables();
    g.variable_scope("fd", || assert!(g.get_variable("w", [2], Init::Zeros).is_poison()));
    only(&g, &["'fd/w' does not exist", "did you mean 'fc/w'", "Reuse::Auto", "make it first"]);
    assert!(!made.is_poison());
}

#[test]
fn wrong_runs_leave_everything_as_it_was() {
    let g = Graph::new();
    let w = g.device("/gpu:0", || g.get_variable("w", [2], Init::Ones));
    let x = g.placeholder(DType::F32, [None, Some(2)], "x");
    let y = g.placeholder(DType::I32, [], "y");
    let sum = g.device("/gpu:0", || w.assign_add((x * 2.0).sum_axes(&[0], false)));
    let z = y.identity("z");
    let s = Session::new(&g, sim(1)).unwrap();
    s.initialize().unwrap();
    let good = Array::new(&[1, 2], &[1f32, 2.0]).unwrap();
    s.run(&[(x, &good)], &[], &[sum.op()]).unwrap();
    let before = s.value(w).unwrap();
    assert_eq!(before.to_f64(), [3.0, 5.0]);
    let (memory, plans) = (s.memory_use(), s.plans_built());

    let narrow = Array::zeros(DType::F32, &[1, 3]).unwrap();
    let doubles = Array::zeros(DType::F64, &[1, 2]).unwrap();
    let e = s.run(&[(x, &narrow)], &[sum], &[]).unwrap_err();
    all_lines_here(&e);
    assert_says(&e.to_string(), &["'x:0'", "[1, 3]", "[?, 2]", "axis 1 is 3 against 2"]);
    let e = s.run(&[(x, &doubles)], &[sum], &[]).unwrap_err();
    all_lines_here(&e);
    assert_says(&e.to_string(), &["'x:0'", "float64", "float32", "Array::cast"]);
    let e = s.run(&[], &[sum, z], &[]).unwrap_err();
    all_lines_here(&e);
    assert_eq!(e.diagnostics().len(), 2, "all placeholders that are missing: {e}");
    assert_says(&e.to_string(), &["you must feed", "'x'", "float32 and shape [?, 2]", "'y'", "int32 and shape []"]);
    let e = s.run(&[(x, &good), (x, &good)], &[sum], &[]).unwrap_err();
    assert_says(&e.to_string(), &["'x:0' is fed twice"]);
    // A fetch that does not exist cannot be had as a handle.
    let e = g.tensor("identity").unwrap_err();
    assert_eq!(e.code(), Code::NotFound);
    assert_says(&g.tensor("x:1").unwrap_err().to_string(), &["'x:1'", "1 outputs"]);
    assert_says(&g.operation("w/raed").unwrap_err().to_string(), &["'w/raed'", "did you mean 'w/read'"]);
    // Another graph's.
    let other = Graph::new();
    let foreign = other.placeholder(DType::F32, [2], "x");
    let e = s.run(&[(x, &good)], &[sum, foreign], &[]).unwrap_err();
    assert_says(&e.to_string(), &["cannot fetch 'x:0'", "belongs to graph", "this session runs graph"]);
    let e = s.callable(&[x], &[sum], &[]).run(&[]).unwrap_err();
    assert_says(&e.to_string(), &["1 feeds", "0 arrays"]);
    let e = s.load(w, &narrow).unwrap_err();
    assert_says(&e.to_string(), &["'w'", "float32 [2]", "float32 [1, 3]"]);

    assert_eq!((s.value(w).unwrap(), s.memory_use(), s.plans_built()), (before, memory, plans));
    s.run(&[(x, &good)], &[], &[sum.op()]).unwrap();
    assert_eq!(s.value(w).unwrap().to_f64(), [5.0, 9.0]);
    let _ = foreign + foreign;
    let mixed = x + foreign;
    assert!(mixed.is_poison());
    only(&g, &["'add' in graph", "cannot read 'x' of graph", "build both in one graph"]);
}
