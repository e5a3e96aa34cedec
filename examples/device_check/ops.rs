//! Every case of the op table on CUDA GPU 0 against the host's kernel. The test suite runs the same cases.

use super::items::Items;
use std::sync::Arc;
use turret::base::Array;
use turret::device::{Machine, Team};
use turret::graph::{Case, Fact, Graph, InferContext, OpRef, Tensor, evaluate};
use turret::ops::TABLE;
use turret::run::{Session, SessionOptions};

/// How far a CUDA kernel's floating-point value may be from the host's, relative to the largest value of the output:
/// products and sums are rounded in another order, functions by another library.
const TOLERANCE: f64 = 2e-6;

/// The cases that have a CUDA kernel, each with its number among those of its op.
pub fn cases() -> Vec<(OpRef, usize, Case)> {
    let of = |&op: &OpRef| op.cases().into_iter().enumerate().map(move |(i, case)| (op, i, case));
    TABLE.iter().flat_map(of).filter(|(op, _, case)| has_kernel(*op, case)).collect()
}

fn has_kernel(op: OpRef, case: &Case) -> bool {
    let facts: Vec<Fact> = case.inputs.iter().map(|a| Fact::new(a.dtype(), a.shape())).collect();
    let values: Vec<Option<Arc<Array>>> = case.inputs.iter().cloned().map(|a| Some(Arc::new(a))).collect();
    let outputs = op.infer(&InferContext { attrs: &case.attrs, inputs: &facts, values: &values }).unwrap_or_default();
    !op.traits().host_only && !op.traits().variable && op.has_cuda_kernel(&case.attrs, &outputs)
}

/// The outputs of a case that runs on GPU 0, three times in one session: step by step, then as a graph.
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

/// Runs a case on both, and says where they differ.
pub fn check(op: OpRef, case: &Case) -> Result<(), String> {
    let inputs: Vec<Arc<Array>> = case.inputs.iter().cloned().map(Arc::new).collect();
    let want = evaluate(op, &case.attrs, &inputs, &Team::new(1, "want"))?;
    let runs = on_gpu(op, case).map_err(|e| e.to_string())?;
    // What draws numbers draws others in the next run.
    let alike = if op.traits().stateful { 1 } else { runs.len() };
    if alike == 1 && runs.windows(2).any(|w| w[0] == w[1]) {
        return Err("the same numbers in every run".into());
    }
    for (run, got) in runs[..alike].iter().enumerate() {
        let outputs = got.iter().zip(&want).enumerate();
        if let Some((output, why)) = outputs.into_iter().find_map(|(o, (g, w))| Some((o, difference(g, w)?))) {
            return Err(format!("run {run}, output {output}: {why}"));
        }
    }
    Ok(())
}

/// Checks all cases; the first of each op in quick runs.
pub fn run(items: &mut Items) {
    let quick = items.quick;
    let cases: Vec<(OpRef, usize, Case)> = cases().into_iter().filter(|(_, i, _)| !quick || *i == 0).collect();
    let count = cases.len();
    for (done, (op, i, case)) in cases.into_iter().enumerate() {
        let progress = if (done + 1) % 50 == 0 { format!("{} of {count} cases", done + 1) } else { String::new() };
        items.check(&format!("case {i} of {}", op.name()), || check(op, &case).map(|()| progress));
    }
}
