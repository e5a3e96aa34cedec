//! Training through one layer or a few, as `record.py` does it in TensorFlow.

use super::{array, numbers};
use crate::gpus;
use serde::Deserialize;
use std::collections::BTreeMap;
use turret::base::{Array, DType};
use turret::graph::{Graph, Operation, Tensor};
use turret::layers::{
    self, BasicLstmCell, BasicRnnCell, BatchNormOptions, Conv2dOptions, DenseOptions, GruCell, LstmCell, MultiRnnCell,
    RnnCell, SeparableConv2dOptions,
};
use turret::ops::{DataFormat, Padding, PoolOptions};
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, ComputeOptions, Optimizer};

const RATE: f64 = 0.25;
/// For whole networks.
const SLOW_RATE: f64 = 0.0001;

#[derive(Deserialize)]
struct Recorded {
    variables: BTreeMap<String, Vec<usize>>,
    trainable: Vec<String>,
    ops: Vec<String>,
    losses: Vec<f64>,
    after: BTreeMap<String, Vec<f64>>,
}

fn recorded(program: &str) -> Recorded {
    let mut all: BTreeMap<String, Recorded> =
        serde_json::from_str(include_str!("recorded.json")).expect("the recorded figures can be read");
    all.remove(program).unwrap_or_else(|| panic!("no figures of {program}"))
}

/// Builds a program, and compares it with TensorFlow's: names, losses before each step, and the variables afterwards.
pub fn check(program: &str, build: impl for<'g> FnOnce(&'g Graph) -> Tensor<'g>) {
    compare(program, false, build);
}

/// As [`check`], of a whole network: the variables start smaller, and of those afterwards means are compared.
pub fn check_network(program: &str, build: impl for<'g> FnOnce(&'g Graph) -> Tensor<'g>) {
    compare(program, true, build);
}

/// Values that keep a deep network's results of the size of its inputs (He et al., 2015).
fn tame(name: &str, dims: &[usize], seed: u64) -> Array {
    let fan = if name.ends_with("depthwise_kernel") { &dims[..2] } else { &dims[..dims.len().saturating_sub(1)] };
    let fan: usize = fan.iter().product();
    let change = |v: f64| match name {
        _ if dims.len() > 1 => v * (24.0 / fan as f64).sqrt(),
        _ if name.ends_with("gamma") || name.ends_with("variance") => v * 0.25 + 1.0,
        _ => v,
    };
    let values: Vec<f64> = numbers(dims.iter().product(), seed).into_iter().map(change).collect();
    Array::from_f64(DType::F32, dims, &values).expect("as many as there are")
}

fn started(name: &str, dims: &[usize], seed: u64) -> Array {
    let shift = if name.ends_with("variance") { 1.0 } else { 0.0 };
    let values: Vec<f64> = array(dims, seed).to_f64().into_iter().map(|v| v + shift).collect();
    Array::from_f64(DType::F32, dims, &values).expect("as many as there are")
}

fn compare(program: &str, large: bool, build: impl for<'g> FnOnce(&'g Graph) -> Tensor<'g>) {
    let want = recorded(program);
    let g = Graph::new();
    let out = build(&g);
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let is_of_a_variable = |name: &str| want.variables.keys().any(|v| name == v || name.starts_with(&format!("{v}/")));
    let inner = ["ZeroState/", "Tensordot/", "Conv2D/"];
    let counts = |o: &Operation<'_>| {
        let name = o.name();
        !["Const", "Placeholder"].contains(&o.op_type().as_str())
            && !is_of_a_variable(&name)
            && !inner.iter().any(|part| name.contains(part))
            && name != "concat"
    };
    let ops = sorted(g.operations().into_iter().filter(counts).map(|o| o.name()).collect());
    let dtype = out.dtype();
    let placeholders: Vec<Tensor<'_>> =
        g.operations().into_iter().filter(|o| o.op_type() == "Placeholder").map(|o| o.output(0)).collect();
    let loss = (out - 0.25).square().mean();
    let optimizer = Optimizer::gradient_descent(if large { SLOW_RATE } else { RATE });
    let train = if g.trainable_variables().is_empty() {
        let updates = g.get_collection(turret::graph::keys::UPDATE_OPS);
        g.group(updates.iter().filter_map(|u| g.operation(&u.name()).ok()), "train")
    } else {
        optimizer.minimize(loss, ComputeOptions::default(), ApplyOptions::default())
    };
    g.check().unwrap_or_else(|e| panic!("{program}: {e}"));
    let variables: BTreeMap<String, Vec<usize>> =
        g.global_variables().iter().map(|v| (v.name(), v.shape().to_dims().expect("known").to_vec())).collect();
    assert_eq!(variables, want.variables, "{program}");
    let trainable: Vec<String> = g.trainable_variables().iter().map(|v| v.name()).collect();
    assert_eq!(trainable, want.trainable, "{program}");
    if !large {
        assert_eq!(ops, sorted(want.ops.clone()), "{program}");
    }

    let session = Session::new(&g, SessionOptions::on(gpus::machine(1))).expect("a sound graph");
    for (i, (name, dims)) in want.variables.iter().enumerate() {
        let start = if large { tame } else { started }(name, dims, i as u64).cast(dtype).expect("floats are cast");
        session.load(g.find_variable(name).expect("it is there"), &start).expect("it fits");
    }
    let feeds: Vec<Array> = (placeholders.iter().enumerate())
        .map(|(i, p)| array(&p.shape().to_dims().expect("known"), 100 + i as u64).cast(dtype).expect("floats are cast"))
        .collect();
    let feeds: Vec<(Tensor<'_>, &Array)> = placeholders.iter().copied().zip(&feeds).collect();
    for (step, want) in want.losses.iter().enumerate() {
        let got = session.run(&feeds, &[loss], &[train]).expect("the step runs")[0].get_f64(0);
        let near = if large { 1e-4 } else { 1e-5 };
        assert!((got - want).abs() <= near * want.abs(), "{program}, step {step}: want loss {want}, got {got}");
    }
    // TensorFlow's fused batch normalization knows no float64, and what stands in moves the variance of n rows.
    let counts = |name: &str| dtype == DType::F32 || !name.ends_with("moving_variance");
    for (name, want) in want.after.iter().filter(|(name, _)| counts(name)) {
        let got = session.value(g.find_variable(name).expect("it is there")).expect("it has one").to_f64();
        let got = if large { means(&got) } else { got };
        let near = if large { 1e-3 } else { 2e-5 };
        let largest = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= near * largest, "{program}, {name}: want {want}, got {got}");
        }
    }
}

/// The mean, and the root of the mean square.
fn means(values: &[f64]) -> Vec<f64> {
    let mean = |of: &dyn Fn(f64) -> f64| values.iter().map(|&v| of(v)).sum::<f64>() / values.len() as f64;
    vec![mean(&|v| v), mean(&|v| v * v).sqrt()]
}

/// The input of the programs.
pub fn x<'g>(g: &'g Graph, dims: &[usize]) -> Tensor<'g> {
    g.placeholder(DType::F32, dims, "x")
}

/// All outputs and the state of a cell over a sequence of three.
fn sequence<'g>(g: &'g Graph, cell: &dyn RnnCell<'g>) -> Tensor<'g> {
    let xs: Vec<Tensor<'g>> = (0..3).map(|_| x(g, &[2, 3])).collect();
    let (outputs, state) = layers::static_rnn(cell, &xs, None);
    g.concat(outputs.into_iter().chain(state), 1)
}

#[test]
fn dense() {
    check("dense", |g| {
        let options = DenseOptions { activation: Some(|x| x.relu()), ..DenseOptions::default() };
        let h = layers::dense(x(g, &[4, 3]), 5, options);
        layers::dense(h, 2, DenseOptions { use_bias: false, ..DenseOptions::default() })
    });
    check("dense_named", |g| {
        layers::dense(x(g, &[4, 3]), 5, DenseOptions { activation: Some(|x| x.tanh()), ..DenseOptions::named("fc") })
    });
    check("dense_rank_3", |g| layers::dense(x(g, &[2, 4, 3]), 5, DenseOptions::default()));
    check("flatten", |g| layers::dense(layers::flatten(x(g, &[2, 3, 4])), 2, DenseOptions::default()));
}

#[test]
fn convolutions() {
    let image = [2, 7, 6, 3];
    fn relu<'g>() -> Conv2dOptions<'g> {
        Conv2dOptions { activation: Some(|x| x.relu()), ..Conv2dOptions::default() }
    }
    check("conv2d", |g| layers::conv2d(x(g, &image), 4, [3, 3], relu()));
    check("conv2d_same_strided", |g| {
        layers::conv2d(x(g, &image), 4, [3, 2], Conv2dOptions::moving([2, 1], Padding::Same))
    });
    check("conv2d_dilated", |g| {
        let options = Conv2dOptions { dilations: [2, 2], use_bias: false, ..Conv2dOptions::named("c") };
        layers::conv2d(x(g, &image), 4, [2, 2], options)
    });
    check("separable_conv2d", |g| {
        let conv = Conv2dOptions { strides: [2, 2], padding: Padding::Same, ..relu() };
        let options = SeparableConv2dOptions { depth_multiplier: 2, ..SeparableConv2dOptions::conv(conv) };
        layers::separable_conv2d(x(g, &image), 4, [3, 3], options)
    });
    check("depthwise_conv2d", |g| layers::depthwise_conv2d(x(g, &image), [3, 3], 2, Conv2dOptions::default()));
    check("conv2d_groups", |g| {
        let options = Conv2dOptions { groups: 2, ..Conv2dOptions::default() };
        layers::conv2d(x(g, &[2, 5, 4, 4]), 6, [3, 3], options)
    });
}

#[test]
fn pools() {
    fn conv(g: &Graph) -> Tensor<'_> {
        layers::conv2d(x(g, &[2, 7, 6, 3]), 4, [2, 2], Conv2dOptions::default())
    }
    check("max_pooling2d", |g| layers::max_pooling2d(conv(g), PoolOptions::new([3, 3], [2, 2], Padding::Same)));
    check("average_pooling2d", |g| layers::average_pooling2d(conv(g), PoolOptions::default()));
    check("global_average_pooling2d", |g| layers::global_average_pooling2d(conv(g), DataFormat::Nhwc));
}

#[test]
fn batch_norm() {
    let image = [2, 7, 6, 3];
    let slow = || BatchNormOptions { momentum: 0.9, ..BatchNormOptions::default() };
    check("batch_norm_rank_4", |g| layers::batch_norm(x(g, &image), true, slow()));
    check("batch_norm_rank_2", |g| {
        layers::batch_norm(x(g, &[6, 3]), true, BatchNormOptions { epsilon: 0.01, ..slow() })
    });
    check("batch_norm_plain", |g| {
        let options = BatchNormOptions { center: false, scale: false, ..BatchNormOptions::named("bn") };
        layers::batch_norm(x(g, &image), true, options)
    });
    check("batch_norm_rank_3", |g| layers::batch_norm(x(g, &[3, 4, 2]), true, BatchNormOptions::default()));
    check("batch_norm_inference", |g| layers::batch_norm(x(g, &image), false, BatchNormOptions::default()));
}

#[test]
fn recurrent_cells() {
    check("basic_lstm", |g| sequence(g, &BasicLstmCell::new(4)));
    check("lstm", |g| sequence(g, &LstmCell::new(4)));
    check("lstm_everything", |g| {
        let cell = LstmCell::new(4).peepholes().projection(3).cell_clip(0.125).projection_clip(0.25).forget_bias(0.5);
        sequence(g, &cell)
    });
    check("gru", |g| sequence(g, &GruCell::new(4)));
    check("basic_rnn", |g| sequence(g, &BasicRnnCell::new(4)));
    check("multi_rnn", |g| {
        let cells: [Box<dyn RnnCell<'_>>; 2] = [Box::new(BasicLstmCell::new(4)), Box::new(GruCell::new(5))];
        sequence(g, &MultiRnnCell::new(cells))
    });
}
