//! Layers that behave differently in training: known when built, fed with each run, or computed in the step.

use super::array;
use crate::gpus;
use turret::base::{Array, Bool8, DType};
use turret::graph::{Graph, Operation, Tensor};
use turret::layers::{self, BatchNormOptions, Training};
use turret::run::{Session, SessionOptions};
use turret::train::{Optimizer, Towers};

const DIMS: [usize; 4] = [4, 3, 2, 2];

struct Net<'g> {
    x: Tensor<'g>,
    loss: Tensor<'g>,
    train: Operation<'g>,
}

/// Batch norm of images and of rows in two towers.
fn net<'g>(g: &'g Graph, training: Training<'g>) -> Net<'g> {
    let x = g.placeholder(DType::F32, DIMS, "x");
    let towers = Towers::new(g, 2);
    let parts = towers.split(x);
    let optimizer = Optimizer::gradient_descent(0.25);
    let built = towers.build(&optimizer, |t| {
        let momentum = |momentum| BatchNormOptions { momentum, ..BatchNormOptions::default() };
        let h = layers::batch_norm(parts[t.index()], training, momentum(0.75));
        let h = layers::batch_norm(layers::flatten(h.tanh()), training, momentum(0.5));
        (h - 0.25).square().mean()
    });
    let net = Net { x, loss: built.loss, train: built.apply(&optimizer) };
    g.check().unwrap();
    net
}

/// The loss and all variables after a step in which the values of variables are those of `array`.
fn step(g: &Graph, net: &Net<'_>, feeds: &[(Tensor<'_>, &Array)]) -> (f64, Vec<Array>) {
    let session = Session::new(g, SessionOptions::on(gpus::machine(2))).unwrap();
    session.initialize().unwrap();
    for (i, variable) in g.global_variables().into_iter().enumerate() {
        let start = array(&variable.shape().to_dims().unwrap(), i as u64);
        let start: Vec<f32> = start.to_f64().into_iter().map(|v| v as f32 + 0.75).collect();
        session.load(variable, &Array::new(&[start.len()], &start).unwrap()).unwrap();
    }
    let loss = session.run(feeds, &[net.loss], &[net.train]).unwrap()[0].get_f64(0);
    (loss, g.global_variables().into_iter().map(|v| session.value(v).unwrap()).collect())
}

#[test]
fn a_fed_predicate_gives_what_a_known_one_gives() {
    let rows = array(&DIMS, 9);
    let known = |training: bool| {
        let g = Graph::new();
        let net = net(&g, training.into());
        step(&g, &net, &[(net.x, &rows)])
    };
    let [trained, inferred] = [known(true), known(false)];
    assert_ne!(trained, inferred);
    let g = Graph::new();
    let training = g.placeholder(DType::Bool, [], "training");
    let fed = net(&g, training.into());
    for (value, want) in [(true, &trained), (false, &inferred), (true, &trained)] {
        let value = Array::scalar(Bool8::from(value));
        assert_eq!(&step(&g, &fed, &[(fed.x, &rows), (training, &value)]), want);
    }
    // Computed in the step, so that both branches are there.
    let g = Graph::new();
    let number = g.placeholder(DType::F32, [], "number");
    let computed = net(&g, number.greater(g.constant(0.5f32)).into());
    for (value, want) in [(1.0f32, &trained), (0.0, &inferred)] {
        assert_eq!(&step(&g, &computed, &[(computed.x, &rows), (number, &Array::scalar(value))]), want);
    }
}

#[test]
fn a_plan_holds_the_branch_that_is_taken() {
    let g = Graph::new();
    let training = g.placeholder(DType::Bool, [], "training");
    let net = net(&g, training.into());
    let session = Session::new(&g, SessionOptions::on(gpus::machine(2))).unwrap();
    session.initialize().unwrap();
    let rows = array(&DIMS, 9);
    let run = |value: bool| {
        let value = Array::scalar(Bool8::from(value));
        session.run(&[(net.x, &rows), (training, &value)], &[net.loss], &[]).unwrap()[0].get_f64(0)
    };
    // The moving averages still are zeros and ones, so that nothing is normalized there.
    assert_eq!(run(false), run(false));
    assert_ne!(run(true), run(false));
    assert_eq!(session.plans_built(), 3, "one to initialize, one for each value");
}

#[test]
fn dropout_is_of_training_only() {
    let g = Graph::new();
    g.set_random_seed(5);
    let x = g.placeholder(DType::F32, [None, Some(50)], "x");
    let training = g.placeholder(DType::Bool, [], "training");
    let [on, off, either] =
        [Training::from(true), false.into(), training.into()].map(|t| layers::dropout(x, 0.25, t, None));
    assert_eq!(on.name(), "dropout/dropout/SelectV2:0");
    assert_eq!(off.name(), "dropout_1/Identity:0");
    // The gradient of what is kept is what it was divided by.
    let grads = turret::train::gradients([either], [x], Default::default());
    let Some(turret::graph::Gradient::Dense(slope)) = grads[0] else { panic!("{grads:?}") };
    g.check().unwrap();
    let session = Session::new(&g, SessionOptions::on(gpus::machine(1))).unwrap();
    let ones = Array::new(&[40, 50], &[1.0f32; 2000]).unwrap();
    let run = |value: bool| {
        let value = Array::scalar(Bool8::from(value));
        session.run(&[(x, &ones), (training, &value)], &[on, off, either, slope], &[]).unwrap()
    };
    let kept = |a: &Array| {
        let values = a.to_f64();
        assert!(values.iter().all(|v| *v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6), "{values:?}");
        values.iter().filter(|v| **v != 0.0).count()
    };
    let (trained, again, inferred) = (run(true), run(true), run(false));
    for of in [&trained[0], &trained[2], &again[2]] {
        assert!((1400..1600).contains(&kept(of)), "{} of 2000", kept(of));
    }
    assert_ne!(trained[2], again[2], "it is drawn anew");
    assert_eq!(trained[2], trained[3]);
    assert_eq!((&inferred[1], &inferred[2], &inferred[3]), (&ones, &ones, &ones));
    layers::dropout(x, 1.0, true, None);
    let message = g.check().unwrap_err().to_string();
    assert!(message.starts_with("layer 'dropout_3': want a rate from 0 to below 1, got 1"), "{message}");
}
