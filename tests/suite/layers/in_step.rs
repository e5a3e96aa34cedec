//! Towers that are built in step: batch normalization over all towers' rows is that of one device on the whole batch.

use super::array;
use crate::gpus;
use turret::base::{Array, DType, Shape};
use turret::graph::{Graph, Operation, Reuse, ScopeOptions, Tensor, keys};
use turret::layers::{self, BatchNormOptions, Conv2dOptions, DenseOptions};
use turret::ops::DataFormat;
use turret::run::{Session, SessionOptions};
use turret::train::{AveragePlace, BuiltTowers, ComputeOptions, GateGradients, Optimizer, Towers};

/// What is normalized.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    Images(DataFormat),
    Rows,
}

impl Input {
    fn dims(self, rows: usize) -> Vec<usize> {
        match self {
            Input::Images(DataFormat::Nhwc) => vec![rows, 4, 3, 2],
            Input::Images(DataFormat::Nchw) => vec![rows, 2, 4, 3],
            Input::Rows => vec![rows, 5],
        }
    }

    fn first<'g>(self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Input::Images(data_format) => {
                layers::conv2d(x, 3, [2, 2], Conv2dOptions { data_format, ..Conv2dOptions::default() })
            }
            Input::Rows => layers::dense(x, 4, DenseOptions::default()),
        }
    }

    fn norm(self) -> BatchNormOptions {
        let data_format = if let Input::Images(format) = self { format } else { DataFormat::Nhwc };
        BatchNormOptions { momentum: 0.8, data_format, ..BatchNormOptions::default() }
    }

    fn last<'g>(self, h: Tensor<'g>) -> Tensor<'g> {
        let rows = if self == Input::Rows { h } else { layers::flatten(h) };
        layers::dense(rows.relu(), 2, DenseOptions::default())
    }
}

fn loss<'g>(y: Tensor<'g>) -> Tensor<'g> {
    (y - 0.25).square().mean()
}

struct Built<'g> {
    x: Tensor<'g>,
    loss: Tensor<'g>,
    train: Operation<'g>,
}

/// The network on one device, with the op that TensorFlow has.
fn alone<'g>(g: &'g Graph, input: Input, rows: usize) -> Built<'g> {
    let x = g.placeholder(DType::F32, &input.dims(rows)[..], "x");
    let optimizer = Optimizer::momentum(0.2, 0.5);
    let built = Towers::new(g, 1)
        .build(&optimizer, |_| loss(input.last(layers::batch_norm(input.first(x), true, input.norm()))));
    Built { x, loss: built.loss, train: built.apply(&optimizer) }
}

fn in_step<'g>(g: &'g Graph, input: Input, rows: Option<usize>, towers: Towers<'g>) -> (Built<'g>, BuiltTowers<'g>) {
    let dims = input.dims(rows.unwrap_or(1));
    let shape = Shape::partial(std::iter::once(rows).chain(dims[1..].iter().map(|&d| Some(d))));
    let x = g.placeholder(DType::F32, shape, "x");
    let optimizer = Optimizer::momentum(0.2, 0.5);
    let h = towers.each(towers.split(x), |_, x| input.first(x));
    let h = towers.batch_norm(&h, true, input.norm());
    let losses = towers.each(h, |_, h| loss(input.last(h)));
    let built = towers.build_from_losses(&optimizer, &losses);
    let train = built.apply(&optimizer);
    g.check().unwrap();
    (Built { x, loss: built.loss, train }, built)
}

/// Losses and variables over five steps.
fn run(g: &Graph, built: &Built<'_>, rows: &Array, gpus: usize) -> (Vec<f64>, Vec<(String, Array)>) {
    let session = Session::new(g, SessionOptions::on(gpus::machine(gpus))).unwrap();
    session.initialize().unwrap();
    for (i, variable) in g.trainable_variables().into_iter().enumerate() {
        let dims = variable.shape().to_dims().unwrap();
        session.load(variable, &array(&dims, i as u64)).unwrap();
    }
    let losses =
        (0..5).map(|_| session.run(&[(built.x, rows)], &[built.loss], &[built.train]).unwrap()[0].get_f64(0)).collect();
    (losses, g.global_variables().into_iter().map(|v| (v.name(), session.value(v).unwrap())).collect())
}

fn assert_same(case: &str, want: &(Vec<f64>, Vec<(String, Array)>), got: &(Vec<f64>, Vec<(String, Array)>)) {
    for (step, (want, got)) in want.0.iter().zip(&got.0).enumerate() {
        assert!((want - got).abs() <= 1e-5 * want.abs(), "{case}, step {step}: want loss {want}, got {got}");
    }
    for ((name, want), (other, got)) in want.1.iter().zip(&got.1) {
        assert_eq!(name, other, "{case}");
        let (want, got) = (want.to_f64(), got.to_f64());
        let largest = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let far = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far <= 2e-5 * largest.max(1e-3), "{case}, {name}: off by {far} of {largest}");
    }
}

#[test]
fn it_is_one_device_on_the_whole_batch() {
    for input in [Input::Images(DataFormat::Nhwc), Input::Images(DataFormat::Nchw), Input::Rows] {
        let rows = array(&input.dims(8), 100);
        let want = {
            let g = Graph::new();
            let built = alone(&g, input, 8);
            run(&g, &built, &rows, 1)
        };
        for count in [2, 4] {
            for (known, place) in [
                (Some(8), AveragePlace::BesideVariables),
                (None, AveragePlace::AllReduce),
                (None, AveragePlace::Spread),
            ] {
                let g = Graph::new();
                let (built, _) = in_step(&g, input, known, Towers::new(&g, count).average_at(place.clone()));
                let case = format!("{input:?}, {count} towers, {known:?} rows, {place:?}");
                assert_same(&case, &want, &run(&g, &built, &rows, count));
            }
        }
    }
}

#[test]
fn towers_of_different_numbers_of_rows_count_by_rows() {
    for input in [Input::Images(DataFormat::Nhwc), Input::Rows] {
        let rows = array(&input.dims(7), 100);
        let g = Graph::new();
        let alone = alone(&g, input, 7);
        let want = run(&g, &alone, &rows, 1);
        let g = Graph::new();
        let (built, _) = in_step(&g, input, Some(7), Towers::new(&g, 3).uneven());
        assert_same(&format!("{input:?}"), &want, &run(&g, &built, &rows, 3));
    }
}

#[test]
fn each_tower_is_taken_up_where_it_was_left() {
    let g = Graph::new();
    let compute = ComputeOptions { gate: GateGradients::Graph, ..ComputeOptions::default() };
    let (_, built) = in_step(&g, Input::Rows, Some(4), Towers::new(&g, 2).compute(compute));
    let ops: Vec<(String, String)> = (g.operations().into_iter())
        .filter(|o| ["MatMul", "Rsqrt"].contains(&o.op_type().as_str()) && !o.name().starts_with("gradients"))
        .map(|o| (o.name(), o.device().to_string()))
        .collect();
    let want = ["dense/MatMul", "batch_normalization/batchnorm/Rsqrt", "dense_1/MatMul"];
    for tower in 0..2 {
        for part in want {
            let entry = (format!("tower_{tower}/{part}"), format!("/device:GPU:{tower}"));
            assert!(ops.contains(&entry), "{entry:?} in {ops:?}");
        }
    }
    assert_eq!(ops.len(), 6, "{ops:?}");
    let variables: Vec<String> = g.trainable_variables().iter().map(|v| v.name()).collect();
    assert_eq!(
        variables,
        [
            "dense/kernel",
            "dense/bias",
            "batch_normalization/gamma",
            "batch_normalization/beta",
            "dense_1/kernel",
            "dense_1/bias"
        ]
    );
    // Each tower's gradients are its own, on its device; the averages have the variables' names.
    for (tower, grads) in built.tower_grads.iter().enumerate() {
        assert_eq!(grads.len(), 6);
        for gv in grads {
            let op = gv.grad.expect("it has one").op();
            assert_eq!(op.device().to_string(), format!("/device:GPU:{tower}"), "{}", op.name());
        }
    }
    assert_eq!(built.grads[0].to_string(), "average/dense/kernel\tdense/kernel");
    assert_eq!(g.get_collection(keys::UPDATE_OPS).len(), 2);
    assert!(g.warnings().is_empty(), "{:?}", g.warnings());
}

#[test]
fn a_part_for_each_tower_is_wanted() {
    let g = Graph::new();
    let towers = Towers::new(&g, 2);
    let x = g.placeholder(DType::F32, [4, 3], "x");
    let optimizer = Optimizer::gradient_descent(0.1);
    let h = towers.each([x], |_, x| layers::dense(x, 2, DenseOptions::default()));
    let losses = towers.each(h, |_, h| h.mean());
    towers.build_from_losses(&optimizer, &losses).apply(&optimizer);
    let messages: Vec<String> = g.diagnostics().into_iter().map(|d| d.message).collect();
    assert_eq!(messages, ["a step of 2 towers must have one part for each: want 2, got 1"]);

    let g = Graph::new();
    let towers = Towers::new(&g, 2);
    let x = g.placeholder(DType::F32, [4, 3], "x");
    let training = g.placeholder(DType::Bool, [], "training");
    assert!(towers.batch_norm(&towers.split(x), training, BatchNormOptions::default())[0].is_poison());
    let message = g.check().unwrap_err().to_string();
    assert!(message.contains("cannot go by 'training:0'") && message.contains("in_step.rs"), "{message}");
}

#[test]
fn evaluation_uses_the_moving_averages_of_training() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4, 5], "x");
    let (built, _) = {
        let towers = Towers::new(&g, 2);
        let optimizer = Optimizer::gradient_descent(0.5);
        let h = towers.batch_norm(&towers.split(x), true, Input::Rows.norm());
        let losses = towers.each(h, |_, h| loss(h));
        let built = towers.build_from_losses(&optimizer, &losses);
        (built.apply(&optimizer), built.loss)
    };
    let reuse = ScopeOptions { no_name_scope: true, ..ScopeOptions::reuse(Reuse::True) };
    let y = g.reenter(&g.current_variable_scope(), reuse, || {
        let towers = Towers::new(&g, 2);
        g.concat(towers.batch_norm(&towers.split(x), false, Input::Rows.norm()), 0)
    });
    g.check().unwrap();
    let session = Session::new(&g, SessionOptions::on(gpus::machine(2))).unwrap();
    session.initialize().unwrap();
    let rows = array(&[4, 5], 3);
    session.run(&[(x, &rows)], &[], &[built]).unwrap();
    let value =
        |name: &str| session.value(g.find_variable(&format!("batch_normalization/{name}")).unwrap()).unwrap().to_f64();
    let (mean, variance, gamma, beta) = (value("moving_mean"), value("moving_variance"), value("gamma"), value("beta"));
    let got = session.run(&[(x, &rows)], &[y], &[]).unwrap()[0].to_f64();
    for (i, (got, x)) in got.iter().zip(rows.to_f64()).enumerate() {
        let c = i % 5;
        let want = (x - mean[c]) / (variance[c] + 1e-3).sqrt() * gamma[c] + beta[c];
        assert!((got - want).abs() <= 1e-5, "{i}: want {want}, got {got}");
    }
}
