//! CUDA kernels that write variables against the host's, to the bit: assignments, scatters, and every optimizer's update
//! from dense gradients and from rows. What is refused changes nothing.

use super::compare::{NUMBERS, Near, difference, numbers};
use super::in_child;
use super::moves::{indices, with};
use turret::base::{Array, DType};
use turret::device::Machine;
use turret::graph::{Graph, Init, OpRef, Variable};
use turret::ops::{self, ApplyGradients, ApplyLayout, UpdateRule};
use turret::run::{Session, SessionOptions};

/// A node that writes variables: which of its inputs are variables, and all their values.
struct Write {
    name: String,
    op: OpRef,
    attrs: turret::graph::Attrs,
    inputs: Vec<(Array, bool)>,
}

/// The variables' values after two steps, or after the first that fails, and what it said.
fn values(write: &Write, gpu: bool) -> (Vec<Array>, String) {
    let g = Graph::new();
    let (mut fed, mut variables): (Vec<_>, Vec<Variable<'_>>) = (Vec::new(), Vec::new());
    let made = g.device(if gpu { "/gpu:0" } else { "/cpu:0" }, || {
        let mut node = g.node_of(write.op);
        for (i, (value, is_variable)) in write.inputs.iter().enumerate() {
            node = node.input(if *is_variable {
                let variable = g.get_variable(&format!("v{i}"), value.dims(), Init::Data(value.clone().into()));
                variables.push(variable);
                variable.buffer()
            } else {
                let x = g.placeholder(value.dtype(), value.dims(), &format!("x{i}"));
                fed.push((x, value));
                x
            });
        }
        write.attrs.iter().fold(node, |node, (name, value)| node.attr(name.to_string(), value.clone())).add()
    });
    let machine = if gpu { Machine::cuda(&[0]).expect("a GPU") } else { Machine::simulated(0) };
    let session = Session::new(&g, SessionOptions::on(machine)).unwrap_or_else(|e| panic!("{}: {e}", write.name));
    session.initialize().expect("initial values are there");
    let step = || session.run(&fed, &[], &[made]);
    let said = match step().and_then(|_| step()) {
        Ok(_) => String::new(),
        Err(e) => e.to_string().replace("GPU:0", "CPU:0").replace("gpu:0", "cpu:0"),
    };
    let reads: Vec<_> = variables.iter().map(|v| v.value()).collect();
    (session.run(&[], &reads, &[]).expect("variables can be read"), said)
}

/// How the variables or the messages differ from the host's.
fn compare(write: &Write, failures: &mut Vec<String>, fails: bool) {
    let ((got, got_said), (want, want_said)) = (values(write, true), values(write, false));
    if got_said != want_said || want_said.is_empty() == fails {
        failures.push(format!("{}: {got_said}\nwant {want_said}", write.name));
    }
    let before: Vec<Array> = write.inputs.iter().filter(|i| i.1).map(|i| i.0.clone()).collect();
    if fails && want != before {
        failures.push(format!("{}: the host changed variables", write.name));
    }
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let why = difference(got, want, Near::Exactly);
        failures.extend(why.map(|why| format!("{}, variable {i}: {why}", write.name)));
    }
}

fn end(failures: Vec<String>) {
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn child_assignments_and_scatters_leave_the_same_bits() {
    if !in_child() {
        return;
    }
    let mut failures = Vec::new();
    let mut check = |op: &str, inputs: &[Array], fails: bool| {
        let sizes: Vec<_> = inputs.iter().map(|a| format!("{} {:?}", a.dtype(), a.dims())).collect();
        let inputs = inputs.iter().enumerate().map(|(i, a)| (a.clone(), i == 0)).collect();
        let name = format!("{op} of {}", sizes.join(", "));
        let op = ops::find(op).expect("an op of the table");
        compare(&Write { name, op, attrs: Default::default(), inputs }, &mut failures, fails);
    };
    for dtype in DType::ALL {
        check("Assign", &[numbers(dtype, &[333], 1), numbers(dtype, &[333], 2)], false);
        let rows = [numbers(dtype, &[60, 5], 1), indices(DType::I32, 100, 60, 3), numbers(dtype, &[100, 5], 2)];
        check("ScatterUpdate", &rows, false);
    }
    for dtype in NUMBERS {
        for op in ["AssignAdd", "AssignSub"] {
            for len in [1, 5003] {
                check(op, &[numbers(dtype, &[len], 1), numbers(dtype, &[len], 2)], false);
            }
        }
        for (count, width) in [(1, 5), (100, 5), (2049, 2), (9000, 1)] {
            let kind = if count == 100 { DType::I64 } else { DType::I32 };
            let rows =
                [numbers(dtype, &[60, width], 1), indices(kind, count, 60, 3), numbers(dtype, &[count, width], 2)];
            for op in ["ScatterAdd", "ScatterSub", "ScatterMul", "ScatterMin", "ScatterMax", "ScatterUpdate"] {
                check(op, &rows, false);
            }
            if dtype.is_floating() {
                check("ScatterDiv", &rows, false);
            }
            let bad = with(&with(&rows[1], count - 1, -7.0), count / 2, 60.0);
            check("ScatterAdd", &[rows[0].clone(), bad, rows[2].clone()], true);
        }
    }
    end(failures);
}

/// A variable's sizes, and how many rows its gradient has if it is not dense.
type Sizes = (&'static [usize], Option<usize>);

/// An update of variables of these sizes.
fn update(rule: UpdateRule, nesterov: bool, dtype: DType, sizes: &[Sizes], bad: Option<(usize, usize)>) -> Write {
    let layout = ApplyLayout::new(rule, nesterov, sizes.iter().map(|s| s.1.is_some()).collect(), true);
    let scalars: &[f64] = match rule {
        UpdateRule::GradientDescent | UpdateRule::Adagrad => &[0.1],
        UpdateRule::Momentum => &[0.1, 0.9],
        UpdateRule::Adam => &[0.1, 0.9, 0.999, 1e-8, 0.81, 0.998],
        UpdateRule::RmsProp => &[0.1, 0.9, 0.5, 1e-10],
        UpdateRule::CenteredRmsProp => &[0.1, 0.9, 0.5, 100.0],
        UpdateRule::AdagradV2 => &[0.1, 1e-3],
        UpdateRule::Adadelta => &[0.1, 0.95, 1e-3],
        UpdateRule::Ftrl => &[0.1, 0.01, 0.02, -0.5],
        UpdateRule::FtrlV2 => &[0.1, 0.01, 0.02, 0.03, -0.5],
    };
    let is_power = |i: usize| i >= rule.hypers().len();
    let scalar = |(i, v): (usize, &f64)| (Array::from_f64(DType::F32, &[], &[*v]).expect("one"), is_power(i));
    let mut inputs: Vec<(Array, bool)> = scalars.iter().enumerate().map(scalar).collect();
    for (v, (dims, rows)) in sizes.iter().enumerate() {
        let seed = 10 * v as u64;
        inputs.push((numbers(dtype, dims, seed), true));
        for slot in 0..rule.slots().len() as u64 {
            let positive: Vec<f64> =
                numbers(dtype, dims, seed + 1 + slot).to_f64().iter().map(|v| v.abs() + 0.1).collect();
            inputs.push((Array::from_f64(dtype, dims, &positive).expect("sizes fit"), true));
        }
        match rows {
            None => inputs.push((numbers(dtype, dims, seed + 4), false)),
            Some(count) => {
                let gradient: Vec<usize> = [*count].iter().chain(&dims[1..]).copied().collect();
                inputs.push((numbers(dtype, &gradient, seed + 4), false));
                let kind = if v == 0 { DType::I32 } else { DType::I64 };
                let rows = indices(kind, *count, dims[0], seed + 5);
                let bad = bad.filter(|b| b.0 <= v).map(|b| with(&rows, b.1, dims[0] as f64 + v as f64));
                inputs.push((bad.unwrap_or(rows), false));
            }
        }
    }
    inputs.push((Array::scalar(7i64), true));
    let name = format!("{} (nesterov {nesterov}) of {dtype} {sizes:?}", rule.name());
    Write { name, op: &ApplyGradients, attrs: layout.attrs(), inputs }
}

#[test]
fn child_every_optimizer_leaves_the_same_bits() {
    if !in_child() {
        return;
    }
    let mut failures = Vec::new();
    let many: Vec<Sizes> = (0..200).map(|i| ([&[3][..], &[1], &[2, 2]][i % 3], None)).collect();
    let sets: [&[Sizes]; 4] = [
        &[(&[5, 7], None), (&[], None), (&[0], None), (&[9001], None)],
        &[(&[50, 7], Some(30)), (&[13], None), (&[20, 3, 2], Some(1)), (&[9], Some(0))],
        &[(&[300, 2], Some(3000))],
        &many,
    ];
    for rule in UpdateRule::ALL {
        for nesterov in [false, true] {
            let looks_ahead = matches!(rule, UpdateRule::Momentum | UpdateRule::Adam);
            for dtype in [DType::F32, DType::F64] {
                for sizes in sets.iter().filter(|_| looks_ahead || !nesterov) {
                    compare(&update(rule, nesterov, dtype, sizes, None), &mut failures, false);
                }
            }
        }
        let bad: [Sizes; 4] = [(&[50, 7], Some(30)), (&[8], None), (&[20, 3], Some(9)), (&[30], Some(3000))];
        for which in [0, 2, 3] {
            compare(&update(rule, false, DType::F32, &bad, Some((which, 2))), &mut failures, true);
        }
    }
    end(failures);
}
