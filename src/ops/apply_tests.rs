//! `ApplyGradients` against its formulas, on rows, and split by device.

use super::apply::{ApplyGradients, ApplyLayout};
use super::apply_rules::UpdateRule;
use crate::base::{Array, DType};
use crate::device::cuda::{CudaArg, CudaBuffer, CudaLaunch};
use crate::device::{Launch, Team, View};
use crate::graph::{Fact, InferContext, KernelContext, Op, TensorDesc};

/// Runs a node once, or says why it could not; `inputs` are changed as variables are.
fn run(layout: &ApplyLayout, inputs: &mut [Array], threads: usize) -> Result<(), String> {
    let attrs = layout.attrs();
    let facts: Vec<Fact> = inputs.iter().map(|a| Fact::new(a.dtype(), a.shape())).collect();
    ApplyGradients.infer(&InferContext { attrs: &attrs, inputs: &facts, values: &[] })?;
    let descs: Vec<TensorDesc> =
        inputs.iter().map(|a| TensorDesc { dtype: a.dtype(), dims: a.dims().into() }).collect();
    let context = KernelContext { attrs: &attrs, inputs: &descs, outputs: &[], values: &[] };
    let kernel = ApplyGradients.cpu_kernel(&context)?;
    let views: Vec<View> =
        inputs.iter().map(|a| View { start: a.start(), len: a.len(), dtype: a.dtype(), writable: true }).collect();
    let team = Team::new(threads, "test");
    // SAFETY: the arrays outlive the launch, and nobody else has them.
    kernel(&unsafe { Launch::new(&views, &[], &team) })
}

fn vector(values: &[f32]) -> Array {
    Array::new(&[values.len()], values).expect("the length is the size")
}

fn matrix(rows: usize, values: &[f32]) -> Array {
    Array::new(&[rows, values.len() / rows], values).expect("rows divide the values")
}

fn assert_close(got: &Array, want: &[f64]) {
    for (i, want) in want.iter().enumerate() {
        assert!((got.get_f64(i) - want).abs() <= 1e-6, "entry {i}: got {}, want {want}", got.get_f64(i));
    }
}

/// The hyper-parameters of a rule, and for Adam the powers, as after no step.
fn scalars(rule: UpdateRule) -> Vec<Array> {
    let values: &[f32] = match rule {
        UpdateRule::GradientDescent | UpdateRule::Adagrad => &[0.1],
        UpdateRule::Momentum => &[0.1, 0.9],
        UpdateRule::Adam => &[0.1, 0.9, 0.999, 1e-8, 0.9, 0.999],
        UpdateRule::RmsProp => &[0.1, 0.9, 0.5, 1e-10],
        UpdateRule::CenteredRmsProp => &[0.1, 0.9, 0.5, 1.0],
        UpdateRule::AdagradV2 => &[0.1, 1e-3],
        UpdateRule::Adadelta => &[0.1, 0.95, 1e-3],
        UpdateRule::Ftrl => &[0.1, 0.01, 0.02, -0.5],
        UpdateRule::FtrlV2 => &[0.1, 0.01, 0.02, 0.03, -0.4],
    };
    values.iter().map(|&v| Array::scalar(v)).collect()
}

/// A dense step from `x = 1`, slots as optimizers start them, `g = 0.5`: the variable and slots afterwards.
#[test]
fn one_dense_step_of_every_rule() {
    let expected: [(UpdateRule, bool, &[f32], &[f64]); 6] = [
        (UpdateRule::GradientDescent, false, &[], &[0.95]),
        (UpdateRule::Momentum, false, &[1.0], &[0.86, 1.4]),
        (UpdateRule::Momentum, true, &[1.0], &[0.824, 1.4]),
        (UpdateRule::Adam, false, &[0.0, 0.0], &[0.9, 0.05, 0.00025]),
        (UpdateRule::RmsProp, false, &[1.0, 0.0], &[0.948_012_5, 0.925, 0.051_987_5]),
        (UpdateRule::Adagrad, false, &[0.1], &[0.915_484_6, 0.35]),
    ];
    for (rule, nesterov, slots, want) in expected {
        let layout = ApplyLayout::new(rule, nesterov, vec![false], true);
        let mut inputs = scalars(rule);
        let first = inputs.len();
        inputs.push(vector(&[1.0]));
        inputs.extend(slots.iter().map(|&s| vector(&[s])));
        inputs.extend([vector(&[0.5]), Array::scalar(6i64)]);
        run(&layout, &mut inputs, 1).unwrap_or_else(|e| panic!("{}: {e}", rule.name()));
        for (i, want) in want.iter().enumerate() {
            assert_close(&inputs[first + i], &[*want]);
        }
        assert_eq!(inputs.last(), Some(&Array::scalar(7i64)), "{}", rule.name());
        if rule == UpdateRule::Adam {
            assert_close(&inputs[4], &[0.81]);
            assert_close(&inputs[5], &[0.998001]);
        }
    }
}

/// Rows with repeated numbers act as the dense gradient of their sums. Adam moves all rows, the others only those named.
#[test]
fn rows_act_as_the_dense_gradient_of_their_sums() {
    let width = 70;
    let (rows, values) = ([3i64, 0, 3], 3 * width);
    let values: Vec<f32> = (0..values).map(|i| (i % 11) as f32 - 4.0).collect();
    let mut dense = vec![0.0f32; 4 * width];
    for (i, row) in rows.iter().enumerate() {
        (0..width).for_each(|j| dense[*row as usize * width + j] += values[i * width + j]);
    }
    for rule in UpdateRule::ALL {
        let slots = vec![matrix(4, &vec![0.25f32; 4 * width]); rule.slots().len()];
        let start = |more: Vec<Array>| -> Vec<Array> {
            let var = matrix(4, &vec![1.0f32; 4 * width]);
            scalars(rule).into_iter().chain([var]).chain(slots.clone()).chain(more).collect()
        };
        let mut with_rows = start(vec![matrix(3, &values), Array::new(&[3], &rows).expect("three")]);
        let mut with_dense = start(vec![matrix(4, &dense)]);
        let first = scalars(rule).len();
        run(&ApplyLayout::new(rule, false, vec![true], false), &mut with_rows, 2)
            .unwrap_or_else(|e| panic!("{}: {e}", rule.name()));
        run(&ApplyLayout::new(rule, false, vec![false], false), &mut with_dense, 2)
            .unwrap_or_else(|e| panic!("{}: {e}", rule.name()));
        for i in first..first + 1 + slots.len() {
            for at in 0..4 * width {
                let row = at / width;
                let (got, want) = (with_rows[i].get_f64(at), with_dense[i].get_f64(at));
                let untouched = if i == first { 1.0 } else { 0.25 };
                match rule != UpdateRule::Adam && row != 0 && row != 3 {
                    true => assert_eq!(got, untouched, "{} input {i} row {row}", rule.name()),
                    false => assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{} {got} {want}", rule.name()),
                }
            }
        }
    }
}

#[test]
fn a_row_that_is_not_there_changes_nothing() {
    let layout = ApplyLayout::new(UpdateRule::GradientDescent, false, vec![false, true], true);
    let mut inputs = vec![
        Array::scalar(0.1f32),
        vector(&[1.0]),
        vector(&[1.0]),
        matrix(2, &[1.0, 2.0]),
        matrix(1, &[1.0]),
        Array::new(&[1], &[2i32]).expect("one"),
        Array::scalar(0i32),
    ];
    let before = inputs.clone();
    let message = run(&layout, &mut inputs, 1).expect_err("row 2 of 2");
    assert_eq!(message, "row number 2 (entry 0) of the gradient of variable 1 is not in [0, 2)");
    assert_eq!(inputs, before);
}

/// The chunks are the same whatever the threads, so the bits are.
#[test]
fn threads_do_not_change_bits() {
    let count = 50_000;
    let values: Vec<f32> = (0..count).map(|i| (i as f32).sin()).collect();
    let results = [1, 3].map(|threads| {
        let mut inputs = scalars(UpdateRule::Adam);
        inputs.extend([vector(&values), vector(&values), vector(&vec![0.5; count]), vector(&values)]);
        run(&ApplyLayout::new(UpdateRule::Adam, false, vec![false], false), &mut inputs, threads).expect("runs");
        inputs
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn a_split_keeps_powers_and_step_on_their_devices() {
    // lr, beta1, beta2, epsilon, powers 4 and 5, then var, m, v, gradient from 6 and from 10, the step 14.
    let layout = ApplyLayout::new(UpdateRule::Adam, false, vec![false, true], true);
    assert_eq!(layout.num_inputs(), 16);
    let device = |i: usize| match i {
        4..=9 => 1,
        10..=14 => 2,
        _ => 0,
    };
    let parts = ApplyGradients.split(&layout.attrs(), 16, &device).expect("it can be split");
    let inputs: Vec<&[usize]> = parts.iter().map(|p| &p.inputs[..]).collect();
    let [first, second, step] = inputs[..] else { panic!("want three parts, got {}", inputs.len()) };
    assert_eq!(first, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(second, [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14]);
    assert_eq!(step, [15]);
    let written = parts.iter().map(|p| ApplyGradients.written_inputs(&p.attrs, p.inputs.len()).to_vec());
    assert_eq!(written.collect::<Vec<_>>(), [vec![4, 5, 6, 7, 8], vec![6, 7, 8], vec![0]]);
    assert_eq!(parts.iter().map(|p| p.follows).collect::<Vec<_>>(), [6, 10, 15]);
    for part in &parts {
        let layout = ApplyLayout::from_attrs(&part.attrs).expect("a part has a layout");
        assert_eq!(layout.num_inputs(), part.inputs.len());
    }
}

#[test]
fn powers_apart_from_all_variables_get_a_part() {
    let layout = ApplyLayout::new(UpdateRule::Adam, false, vec![false], false);
    let device = |i: usize| u32::from(i >= 6);
    let parts = ApplyGradients.split(&layout.attrs(), layout.num_inputs(), &device).expect("it can be split");
    assert_eq!(parts[1].inputs, [0, 1, 2, 3, 4, 5]);
    let apart = |i: usize| u32::from(i == 5);
    assert!(ApplyGradients.split(&layout.attrs(), layout.num_inputs(), &apart).is_none());
}

#[test]
fn wrong_inputs_are_refused_by_name() {
    let layout = ApplyLayout::new(UpdateRule::Momentum, false, vec![false], false);
    let mut inputs = vec![
        Array::scalar(0.1f32),
        Array::scalar(0.9f32),
        vector(&[1.0, 2.0]),
        vector(&[0.0, 0.0]),
        vector(&[1.0, 2.0, 3.0]),
    ];
    let message = run(&layout, &mut inputs, 1).expect_err("three for two");
    assert_eq!(message, "the gradient of variable 0 must have its shape: want [2], got [3]");
    inputs[4] = Array::zeros(DType::F64, &[2]).expect("small");
    assert!(run(&layout, &mut inputs, 1).expect_err("float64").contains("want float32, got float64"));
}

/// However many variables there are, no launch has more than 4 KiB of parameters, and together they have all of them.
#[test]
fn launches_of_many_variables_keep_within_the_parameters_of_a_kernel() {
    for rule in UpdateRule::ALL {
        let layout = ApplyLayout::new(rule, false, vec![false; 300], true);
        let mut inputs = scalars(rule);
        inputs.extend((0..300 * (2 + rule.slots().len())).map(|_| vector(&[1.0])));
        inputs.push(Array::scalar(0i64));
        let descs: Vec<TensorDesc> =
            inputs.iter().map(|a| TensorDesc { dtype: a.dtype(), dims: a.dims().into() }).collect();
        let attrs = layout.attrs();
        let context = KernelContext { attrs: &attrs, inputs: &descs, outputs: &[], values: &[] };
        let kernel = ApplyGradients.cuda_kernel(&context).unwrap_or_else(|e| panic!("{}: {e}", rule.name()));
        let mut given = std::collections::BTreeSet::new();
        for launch in &kernel.launches {
            let CudaLaunch::Code { args, .. } = launch else { panic!("want kernels, got {launch:?}") };
            // No parameter is longer than eight bytes, and each lies on its own length.
            assert!(args.len() <= 512, "{}: {} parameters", rule.name(), args.len());
            given.extend(args.iter().filter_map(|a| match a {
                CudaArg::Buffer(CudaBuffer::Input(i, 0)) => Some(*i),
                _ => None,
            }));
        }
        assert!(kernel.launches.len() <= 5, "{}: {} launches", rule.name(), kernel.launches.len());
        assert_eq!(given.len(), inputs.len(), "{}", rule.name());
    }
}
