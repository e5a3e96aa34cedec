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
