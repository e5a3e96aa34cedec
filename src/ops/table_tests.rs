//! Walks the table: names, shape rules, kernels and gradients of every op, by the cases that the ops give.

use super::*;
use crate::base::{Array, Bool8, DType, Shape};
use crate::device::{Launch, Team, View};
use crate::graph::{
    Case, Fact, GradContext, Gradient, Graph, InferContext, KernelContext, Tensor, TensorDesc, evaluate,
};
use std::sync::Arc;

fn cases() -> impl Iterator<Item = (OpRef, usize, Case)> {
    TABLE.iter().flat_map(|&op| op.cases().into_iter().enumerate().map(move |(i, case)| (op, i, case)))
}

fn shared(arrays: &[Array]) -> Vec<Arc<Array>> {
    arrays.iter().cloned().map(Arc::new).collect()
}

/// Equal type and shape, and values within `tolerance` of the largest.
fn assert_close(got: &Array, want: &Array, tolerance: f64, of: &str) {
    assert_eq!((got.dtype(), got.dims()), (want.dtype(), want.dims()), "{of}");
    let finite = |a: &Array| a.to_f64().into_iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let tolerance = if want.dtype().is_floating() { tolerance * finite(want).max(1e-3) } else { 0.0 };
    for (i, (a, b)) in got.to_f64().into_iter().zip(want.to_f64()).enumerate() {
        let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance;
        assert!(same, "{of}: element {i} is {a}, want {b}\n got {got:?}\nwant {want:?}");
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = TABLE.iter().map(|op| op.name()).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn every_op_that_computes_has_a_case() {
    for op in TABLE {
        let exempt = op.traits().stateful || op.traits().host_only || op.control_flow().is_some();
        assert!(exempt || !op.cases().is_empty(), "{} has no case", op.name());
    }
}

#[test]
fn kernels_give_the_expected_outputs_for_any_number_of_threads() {
    let (one, three) = (Team::new(1, "one"), Team::new(3, "three"));
    for (op, i, case) in cases() {
        let of = format!("case {i} of {}", op.name());
        let got = evaluate(op, &case.attrs, &shared(&case.inputs), &one).unwrap_or_else(|e| panic!("{of}: {e}"));
        let again = evaluate(op, &case.attrs, &shared(&case.inputs), &three).unwrap();
        assert!(got == again, "{of}: other bits on three threads");
        assert!(case.outputs.is_empty() || case.outputs.len() == got.len(), "{of}: {} outputs", got.len());
        for (got, want) in got.iter().zip(&case.outputs) {
            assert_close(got, want, 1e-6, &of);
        }
    }
}

#[test]
fn shape_rules_know_less_of_unknown_sizes_but_nothing_else() {
    for (op, i, case) in cases() {
        let facts: Vec<Fact> = case.inputs.iter().map(|a| Fact::new(a.dtype(), a.shape())).collect();
        let values: Vec<Option<Arc<Array>>> = shared(&case.inputs).into_iter().map(Some).collect();
        let infer = |inputs: &[Fact], values: &[Option<Arc<Array>>]| {
            let context = InferContext { attrs: &case.attrs, inputs, values };
            op.infer(&context).unwrap_or_else(|e| panic!("case {i} of {} with {inputs:?}: {e}", op.name()))
        };
        let whole = infer(&facts, &values);
        let check = |inputs: &[Fact], values: &[Option<Arc<Array>>]| {
            for (part, whole) in infer(inputs, values).iter().zip(&whole) {
                let of = format!("case {i} of {} with {inputs:?}: {part:?} for {whole:?}", op.name());
                assert!(part.dtype == whole.dtype && part.shape.is_compatible_with(&whole.shape), "{of}");
            }
        };
        check(&facts, &vec![None; facts.len()]);
        for input in 0..facts.len() {
            let mut values = values.clone();
            values[input] = None;
            check(&facts, &values);
            let dims = facts[input].shape.to_dims().unwrap();
            let mut shapes: Vec<Shape> = (0..dims.len())
                .map(|axis| Shape::partial(dims.iter().enumerate().map(|(a, &d)| (a != axis).then_some(d))))
                .collect();
            shapes.extend([Shape::of_rank(dims.len()), Shape::unknown()]);
            for shape in shapes {
                let mut facts = facts.clone();
                facts[input].shape = shape;
                check(&facts, &values);
            }
        }
    }
}

#[test]
fn bad_inputs_are_errors_and_never_panics() {
    let team = Team::new(1, "bad");
    let shapes: [&[usize]; 7] = [&[], &[0], &[3], &[1, 1], &[2, 3], &[3, 0, 2], &[2, 1, 3, 1]];
    for (op, _, case) in cases() {
        let inputs = shared(&case.inputs);
        let _ = evaluate(op, &case.attrs, &[], &team);
        for i in 0..inputs.len() {
            let _ = evaluate(op, &case.attrs, &inputs[..i], &team);
            let _ = evaluate(op, &case.attrs, &[&inputs[..], &inputs[i..=i]].concat(), &team);
            for dtype in DType::ALL {
                let mut changed = inputs.clone();
                changed[i] = Arc::new(Array::from_f64(dtype, inputs[i].dims(), &inputs[i].to_f64()).unwrap());
                let _ = evaluate(op, &case.attrs, &changed, &team);
                for dims in shapes {
                    let count = dims.iter().product::<usize>();
                    for value in [0.0, -1.0, 7.0, 2e9] {
                        // An output of billions of elements is no bad input, but too much for a test.
                        let planned = op.planned_inputs(inputs.len()).contains(&i);
                        if planned && value > 7.0 {
                            continue;
                        }
                        changed[i] = Arc::new(Array::from_f64(dtype, dims, &vec![value; count]).unwrap());
                        let _ = evaluate(op, &case.attrs, &changed, &team);
                    }
                }
            }
        }
    }
}

#[test]
fn kernels_that_may_work_in_place_do() {
    let team = Team::new(2, "in place");
    let view = |a: &Array| View { start: a.start(), len: a.len(), dtype: a.dtype(), writable: true };
    for (op, i, case) in cases() {
        for &input in op.traits().in_place {
            let want = evaluate(op, &case.attrs, &shared(&case.inputs), &team).unwrap();
            let own = case.inputs[input].clone();
            if own.dtype() != want[0].dtype() || own.dims() != want[0].dims() {
                continue;
            }
            let desc = |a: &Array| TensorDesc { dtype: a.dtype(), dims: a.dims().into() };
            let inputs: Vec<TensorDesc> = case.inputs.iter().map(desc).collect();
            let outputs: Vec<TensorDesc> = want.iter().map(|a| desc(a)).collect();
            let values: Vec<Option<Arc<Array>>> = shared(&case.inputs).into_iter().map(Some).collect();
            let context = KernelContext { attrs: &case.attrs, inputs: &inputs, outputs: &outputs, values: &values };
            let kernel = op.cpu_kernel(&context).unwrap();
            let mut views: Vec<View> = case.inputs.iter().map(view).collect();
            views[input] = view(&own);
            let output = [view(&own)];
            // SAFETY: the arrays live on, and the written one is this test's own.
            kernel(&unsafe { Launch::new(&views, &output, &team) }).unwrap();
            assert!(own == *want[0], "case {i} of {} in place of input {input}", op.name());
        }
    }
}

/// A case with every `float32` as `float64`, so that differences are sharp.
fn sharp(case: &Case) -> Case {
    let wide = |a: &Array| match a.dtype() {
        DType::F32 => Array::from_f64(DType::F64, a.dims(), &a.to_f64()).unwrap(),
        _ => a.clone(),
    };
    let mut attrs = case.attrs.clone();
    for (name, value) in case.attrs.iter() {
        if *value == crate::graph::Attr::Type(DType::F32) {
            attrs.set(name.to_string(), DType::F64);
        }
    }
    Case { attrs, inputs: case.inputs.iter().map(wide).collect(), outputs: Vec::new(), gradient: true }
}

/// Values between -1 and 1 that are the same on every run.
fn upstream(dims: &[usize], seed: u64) -> Array {
    let count = dims.iter().product::<usize>() as u64;
    let mix = |i: u64| (i + 1 + seed * 977).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11;
    Array::new(dims, &(0..count).map(|i| mix(i) as f64 / (1u64 << 52) as f64 - 1.0).collect::<Vec<f64>>()).unwrap()
}

#[test]
fn gradients_are_the_slopes_of_the_kernels() {
    for (op, i, case) in cases().filter(|(_, _, case)| case.gradient) {
        for known in [true, false] {
            check_gradient(op, &sharp(&case), known, &format!("case {i} of {}, shapes known: {known}", op.name()));
        }
    }
}

fn check_gradient(op: OpRef, case: &Case, known: bool, of: &str) {
    let team = Team::new(1, "gradient");
    let run = |inputs: &[Array]| evaluate(op, &case.attrs, &shared(inputs), &team).unwrap();
    let graph = Graph::new();
    let mut feeds: Vec<(Tensor<'_>, Array)> = Vec::new();
    let inputs: Vec<Tensor<'_>> = (case.inputs.iter())
        .map(|array| {
            if !array.dtype().is_floating() && array.dtype() != DType::Bool {
                return graph.constant(array);
            }
            let shape = if known { array.shape() } else { Shape::of_rank(array.dims().len()) };
            let tensor = graph.placeholder(array.dtype(), shape, "x");
            feeds.push((tensor, array.clone()));
            tensor
        })
        .collect();
    let mut builder = graph.node_of(op).inputs(inputs.iter().copied());
    for (name, value) in case.attrs.iter() {
        builder = builder.attr(name.to_string(), value.clone());
    }
    let node = builder.add();
    graph.check().unwrap_or_else(|e| panic!("{of}: {e}"));
    let outputs = node.outputs();
    let mut weights = Vec::new();
    let grads: Vec<Option<Tensor<'_>>> = (outputs.iter().zip(run(&case.inputs)).enumerate())
        .map(|(k, (output, value))| {
            let weight = output.dtype().is_floating().then(|| upstream(value.dims(), k as u64));
            weights.push(weight.clone());
            weight.map(|weight| {
                let grad = graph.placeholder(DType::F64, output.shape(), "grad");
                feeds.push((grad, weight));
                grad
            })
        })
        .collect();
    let context = GradContext { node, inputs: inputs.clone(), outputs, grads };
    let gradients = graph.name_scope("grad", || op.gradient(&context));
    let problem = graph.check().err().map(|e| e.to_string());
    // A rule may need shapes, if it says so.
    let (Some(gradients), None) = (gradients, &problem) else {
        assert!(!known, "{of}: no gradient: {problem:?}");
        return;
    };
    assert_eq!(gradients.len(), inputs.len(), "{of}: number of gradients");
    for (k, gradient) in gradients.into_iter().enumerate() {
        let floating = case.inputs[k].dtype().is_floating();
        let Some(gradient) = gradient else { continue };
        assert!(floating, "{of}: a gradient of the {} input {k}", case.inputs[k].dtype());
        assert!(!gradient.values().is_poison(), "{of}: a poison gradient without a message");
        let slope = |x: usize| {
            let mut moved = case.inputs.clone();
            let at = moved[k].get_f64(x);
            let step = 1e-6 * at.abs().max(1.0);
            let mut loss = |to: f64| {
                moved[k].as_mut_slice::<f64>().unwrap()[x] = to;
                let outputs = run(&moved);
                let weighted = outputs.iter().zip(&weights).filter_map(|(o, w)| Some((o, w.as_ref()?)));
                weighted.map(|(o, w)| o.to_f64().iter().zip(w.to_f64()).map(|(o, w)| o * w).sum::<f64>()).sum::<f64>()
            };
            (loss(at + step) - loss(at - step)) / (2.0 * step)
        };
        let slopes: Vec<f64> = (0..case.inputs[k].len()).map(slope).collect();
        let want = Array::new(case.inputs[k].dims(), &slopes).unwrap();
        let of = format!("{of}, gradient of input {k}");
        let got = dense(&graph, gradient, &feeds, &case.inputs[k]).unwrap_or_else(|e| panic!("{of}: {e}"));
        if let Gradient::Dense(tensor) = gradient {
            assert!(tensor.shape().is_compatible_with(&case.inputs[k].shape()), "{of}: {tensor:?}");
        }
        assert_close(&got, &want, 1e-6, &of);
    }
}

/// The value of a gradient; rows are added into zeros.
fn dense<'g>(
    graph: &'g Graph,
    gradient: Gradient<'g>,
    feeds: &[(Tensor<'g>, Array)],
    like: &Array,
) -> Result<Array, String> {
    let slices = match gradient {
        Gradient::Dense(tensor) => return Ok(Array::clone(&*graph.evaluate(tensor, feeds)?)),
        Gradient::Slices(slices) => slices,
    };
    let (values, indices) = (graph.evaluate(slices.values, feeds)?, graph.evaluate(slices.indices, feeds)?);
    let mut sum = Array::zeros(DType::F64, like.dims()).unwrap();
    let row = like.dims()[1..].iter().product::<usize>();
    let all = sum.as_mut_slice::<f64>().unwrap();
    for (n, index) in indices.to_i64().unwrap().into_iter().enumerate() {
        (0..row).for_each(|j| all[index as usize * row + j] += values.get_f64(n * row + j));
    }
    Ok(sum)
}

#[test]
fn integer_division_by_zero_and_negative_powers_are_errors() {
    let team = Team::new(1, "errors");
    let ints = |v: &[i32]| Arc::new(Array::new(&[v.len()], v).unwrap());
    for name in ["FloorDiv", "FloorMod"] {
        let error = evaluate(find(name).unwrap(), &Default::default(), &[ints(&[1, 2]), ints(&[1, 0])], &team);
        assert!(error.unwrap_err().contains("division by zero"), "{name}");
    }
    let error = evaluate(find("Pow").unwrap(), &Default::default(), &[ints(&[2]), ints(&[-1])], &team);
    assert!(error.unwrap_err().contains("negative"));
}

#[test]
fn truth_is_any_byte_but_zero() {
    let team = Team::new(1, "truth");
    let x = Arc::new(Array::new(&[3], &[Bool8(0), Bool8(2), Bool8(255)]).unwrap());
    let not = evaluate(find("LogicalNot").unwrap(), &Default::default(), &[x], &team).unwrap();
    assert_eq!(not[0].to_f64(), [1.0, 0.0, 0.0]);
}
