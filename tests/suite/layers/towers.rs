//! Layers in towers: what is shared, and that two towers compute what one device does.

use super::array;
use crate::gpus;
use turret::base::{Array, DType};
use turret::graph::{Gradient, Graph, Reuse, ScopeOptions, Tensor, VariablePlacement};
use turret::layers::{self, BasicLstmCell, DenseOptions, EmbeddingOptions};
use turret::run::{Session, SessionOptions};
use turret::train::{BuiltTowers, Optimizer, Towers};

/// The names of all variables.
fn names(g: &Graph) -> Vec<String> {
    g.global_variables().iter().map(|v| v.name()).collect()
}

fn op_names(g: &Graph, op: &str) -> Vec<String> {
    let is = |o: &turret::graph::Operation<'_>| o.op_type() == op && !o.name().contains("gradients");
    g.operations().into_iter().filter(is).map(|o| o.name()).collect()
}

/// Two layers without names, a network with an embedding and a cell.
fn network<'g>(g: &'g Graph, ids: Tensor<'g>) -> Tensor<'g> {
    let rows = layers::embedding(ids, 7, 3, EmbeddingOptions::default());
    let (outputs, _) = layers::static_rnn(&BasicLstmCell::new(4), &rows.unstack(1), None);
    let last = outputs.last().copied().unwrap_or_else(|| g.poison_tensor());
    let h = layers::dense(last, 5, DenseOptions::default()).relu();
    let y = layers::dense(h, 2, DenseOptions::default());
    y.square().mean()
}

fn build<'g>(g: &'g Graph, towers: usize) -> (Tensor<'g>, BuiltTowers<'g>, turret::graph::Operation<'g>) {
    let ids = g.placeholder(DType::I32, [8, 3], "ids");
    let towers = Towers::new(g, towers).variables(VariablePlacement::host());
    let parts = towers.split(ids);
    let optimizer = Optimizer::momentum(0.2, 0.9);
    let built = towers.build(&optimizer, |t| network(g, parts[t.index()]));
    let train = built.apply(&optimizer);
    g.check().unwrap();
    (ids, built, train)
}

#[test]
fn layers_without_names_are_shared_by_the_towers() {
    let g = Graph::new();
    let (_, built, _) = build(&g, 2);
    let weights: Vec<String> = names(&g).into_iter().filter(|n| !n.ends_with("/Momentum")).collect();
    assert_eq!(
        weights,
        [
            "embedding/embeddings",
            "rnn/basic_lstm_cell/kernel",
            "rnn/basic_lstm_cell/bias",
            "dense/kernel",
            "dense/bias",
            "dense_1/kernel",
            "dense_1/bias"
        ]
    );
    let products = op_names(&g, "MatMul");
    assert_eq!(
        products[5..10],
        [
            "tower_1/rnn/basic_lstm_cell/MatMul",
            "tower_1/rnn/basic_lstm_cell/MatMul_1",
            "tower_1/rnn/basic_lstm_cell/MatMul_2",
            "tower_1/dense/MatMul",
            "tower_1/dense_1/MatMul"
        ]
    );
    let devices: Vec<String> = g.global_variables().iter().map(|v| v.device().to_string()).collect();
    assert!(devices.iter().all(|d| d == "/device:CPU:0"), "{devices:?}");
    assert!(matches!(built.grads[0].grad, Some(Gradient::Slices(_))), "an embedding's gradient is its rows");
}

#[test]
fn a_cell_is_used_again_in_another_scope() {
    let g = Graph::new();
    let cell = BasicLstmCell::new(2);
    let x = g.placeholder(DType::F32, [1, 3], "x");
    g.variable_scope_with("net", ScopeOptions::reuse(Reuse::Auto), || {
        for _ in 0..2 {
            layers::static_rnn(&cell, &[x, x], None);
        }
    });
    g.check().unwrap();
    assert_eq!(names(&g)[0], "net/rnn/basic_lstm_cell/kernel");
    let products = op_names(&g, "MatMul");
    assert_eq!(products[1], "net/rnn/basic_lstm_cell/MatMul_1", "{products:?}");
    assert_eq!(products.len(), 4);
}

#[test]
fn towers_compute_what_one_device_does() {
    let after = |towers: usize| -> Vec<(String, Array)> {
        let g = Graph::new();
        let (ids, _, train) = build(&g, towers);
        let session = Session::new(&g, SessionOptions::on(gpus::machine(towers))).unwrap();
        session.initialize().unwrap();
        for (i, variable) in g.trainable_variables().into_iter().enumerate() {
            let dims = variable.shape().to_dims().unwrap();
            session.load(variable, &array(&dims, i as u64)).unwrap();
        }
        let numbers: Vec<i32> = (0..24).map(|i| i * 5 % 7).collect();
        let numbers = Array::new(&[8, 3], &numbers).unwrap();
        for _ in 0..5 {
            session.run(&[(ids, &numbers)], &[], &[train]).unwrap();
        }
        g.global_variables().into_iter().map(|v| (v.name(), session.value(v).unwrap())).collect()
    };
    let one = after(1);
    for towers in [2, 4] {
        for ((name, want), (other, got)) in one.iter().zip(after(towers)) {
            assert_eq!(*name, other);
            let (want, got) = (want.to_f64(), got.to_f64());
            let largest = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let far = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far <= 1e-5 * largest, "{name}, {towers} towers: off by {far} of {largest}");
        }
    }
}
