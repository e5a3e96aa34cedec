//! Every case of the op table on a CUDA GPU against the host's kernel.

use super::in_child;
use std::sync::Arc;
use turret::base::Array;
use turret::device::{Machine, Team};
use turret::graph::{Case, Fact, Graph, InferContext, OpRef, Tensor, evaluate};
use turret::ops::TABLE;
use turret::run::{Session, SessionOptions};

/// How far a CUDA kernel's floating-point value may be from the host's, relative to the largest value of the output:
/// products and sums are rounded in another order, functions by another library.
const TOLERANCE: f64 = 2e-6;

/// Why a case is not run on a GPU.
fn skipped(op: OpRef, case: &Case) -> bool {
    let facts: Vec<Fact> = case.inputs.iter().map(|a| Fact::new(a.dtype(), a.shape())).collect();
    let values: Vec<Option<Arc<Array>>> = case.inputs.iter().cloned().map(|a| Some(Arc::new(a))).collect();
    let outputs =
        op.infer(&InferContext { attrs: &case.attrs, inputs: &facts, values: &values }).expect("a sound case");
    op.traits().host_only || op.traits().variable || !op.has_cuda_kernel(&case.attrs, &outputs)
}

/// The outputs of a case that runs on GPU 0, twice in one session: command by command, then as a graph.
fn on_gpu(op: OpRef, case: &Case) -> turret::Result<Vec<Vec<Array>>> {
    let g = Graph::new();
    let planned = op.planned_inputs(case.inputs.len());
    let mut feeds: Vec<(Tensor<'_>, &Array)> = Vec::new();
    let mut node = g.node_of(op);
    for (i, input) in case.inputs.iter().enumerate() {
        if planned.contains(&i) {
            node = node.input(g.constant(input.clone()));
        } else {
            let x = g.placeholder(input.dtype(), input.dims(), &format!("x{i}"));
            feeds.push((x, input));
            node = node.input(x);
        }
    }
    node = case.attrs.iter().fold(node, |node, (name, value)| node.attr(name.to_string(), value.clone()));
    let made = g.device("/gpu:0", || node.add());
    g.check()?;
    let session = Session::new(&g, SessionOptions::on(Machine::cuda(&[0])?))?;
    let fetches: Vec<Tensor<'_>> = made.outputs();
    (0..3).map(|_| session.run(&feeds, &fetches, &[])).collect()
}

fn difference(got: &Array, want: &Array) -> Option<String> {
    if (got.dtype(), got.dims()) != (want.dtype(), want.dims()) {
        return Some(format!("{} {:?}, want {} {:?}", got.dtype(), got.dims(), want.dtype(), want.dims()));
    }
    let (got, want) = (got.to_f64(), want.to_f64());
    let largest = want.iter().filter(|v| v.is_finite()).fold(1e-3f64, |m, v| m.max(v.abs()));
    let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= TOLERANCE * largest;
    let at = got.iter().zip(&want).position(|(a, b)| !same(*a, *b))?;
    Some(format!("element {at} is {}, want {}", got[at], want[at]))
}

#[test]
fn child_every_op_agrees_with_the_host() {
    if !in_child() {
        return;
    }
    let team = Team::new(1, "want");
    let (mut ran, mut failures) = (0, Vec::new());
    for &op in TABLE {
        for (i, case) in op.cases().iter().enumerate().filter(|(_, c)| !skipped(op, c)) {
            let of = format!("case {i} of {}", op.name());
            let inputs: Vec<Arc<Array>> = case.inputs.iter().cloned().map(Arc::new).collect();
            let want = evaluate(op, &case.attrs, &inputs, &team).unwrap_or_else(|e| panic!("{of}: {e}"));
            ran += 1;
            match on_gpu(op, case) {
                Err(e) => failures.push(format!("{of}: {e}")),
                Ok(runs) => {
                    // What draws numbers draws others in the next run.
                    let alike = if op.traits().stateful { 1 } else { runs.len() };
                    let drawn_anew = runs.windows(2).all(|w| w[0] != w[1]);
                    assert!(alike > 1 || drawn_anew, "{of} gives the same numbers in every run");
                    for (run, got) in runs[..alike].iter().enumerate() {
                        let wrong =
                            got.iter().zip(&want).enumerate().find_map(|(o, (g, w))| Some((o, difference(g, w)?)));
                        failures.extend(wrong.map(|(o, why)| format!("{of}, run {run}, output {o}: {why}")));
                    }
                }
            }
        }
    }
    println!("{ran} cases on CUDA");
    assert!(failures.is_empty(), "{} of {ran} cases fail:\n{}", failures.len(), failures.join("\n"));
    assert!(ran > 100, "only {ran} cases have a CUDA kernel");
}
