//! Gradients: values, what is absent, names, devices, refusals, cost of building.

use super::*;
use crate::base::{Array, DType};
use crate::graph::{Gradient, Graph, IndexedSlices, Init, Tensor};

fn messages(graph: &Graph) -> String {
    graph.check().err().map(|e| e.to_string()).unwrap_or_default()
}

fn value(graph: &Graph, grad: Option<Gradient<'_>>, feeds: &[(Tensor<'_>, Array)]) -> Vec<f64> {
    let Some(Gradient::Dense(grad)) = grad else { panic!("no dense gradient: {grad:?}") };
    graph.evaluate(grad, feeds).unwrap().to_f64()
}

fn vector(values: &[f32]) -> Array {
    Array::new(&[values.len()], values).unwrap()
}

#[test]
fn an_unconnected_x_is_none_or_zeros() {
    let graph = Graph::new();
    let u = graph.placeholder(DType::F32, [2], "u");
    let v = graph.placeholder(DType::F32, [3], "v");
    let loss = u.square().sum();
    assert!(gradients([loss], [v], GradOptions::default())[0].is_none());
    let zero = GradOptions { unconnected: UnconnectedGradients::Zero, ..GradOptions::default() };
    let grads = gradients([loss], [u, v], zero);
    let feeds = [(u, vector(&[1.0, 2.0])), (v, vector(&[0.0; 3]))];
    assert_eq!(value(&graph, grads[0], &feeds), [2.0, 4.0]);
    assert_eq!(value(&graph, grads[1], &feeds), [0.0; 3]);
    assert!(gradients([loss], Vec::<Tensor<'_>>::new(), GradOptions::default()).is_empty());
    assert_eq!(messages(&graph), "");
}

#[test]
fn rules_are_not_the_identity() {
    let graph = Graph::new();
    let x = graph.placeholder(DType::F64, [3], "x");
    let feeds = [(x, Array::new(&[3], &[2.0f64; 3]).unwrap())];
    for (y, want) in [(x.log(), 0.5), (x.exp(), 2f64.exp()), (x.sum(), 1.0)] {
        let grad = value(&graph, gradients([y], [x], GradOptions::default())[0], &feeds);
        grad.iter().for_each(|g| assert!((g - want).abs() < 1e-9, "{} {g} {want}", y.name()));
    }
}

#[test]
fn uses_of_one_tensor_add_up() {
    let graph = Graph::new();
    let x = graph.placeholder(DType::F32, [2], "x");
    let y = (x * x + x).sum();
    let grads = gradients([y, x.sum()], [x], GradOptions::default());
    assert_eq!(value(&graph, grads[0], &[(x, vector(&[1.0, 3.0]))]), [4.0, 8.0]);
    assert!(grads[0].unwrap().op().name().starts_with("gradients/AddN"));
}

#[test]
fn a_y_can_be_an_x() {
    let graph = Graph::new();
    let x = graph.placeholder(DType::F32, [2], "x");
    let y = x.square();
    let grads = gradients([y], [y, x], GradOptions::default());
    let feeds = [(x, vector(&[1.0, 3.0]))];
    assert_eq!(value(&graph, grads[0], &feeds), [1.0, 1.0]);
    assert_eq!(value(&graph, grads[1], &feeds), [2.0, 6.0]);
}

#[test]
fn given_gradients_and_stops_count() {
    let graph = Graph::new();
    let x = graph.placeholder(DType::F32, [2], "x");
    let square = x.square();
    let y = square * x;
    let feeds = [(x, vector(&[1.0, 3.0]))];
    let given = graph.constant(vec![10.0f32, 1.0]);
    let options = GradOptions { grad_ys: vec![Some(given.into())], ..GradOptions::default() };
    assert_eq!(value(&graph, gradients([y], [x], options)[0], &feeds), [30.0, 27.0]);
    let options = GradOptions { stop_gradients: vec![square], ..GradOptions::default() };
    assert_eq!(value(&graph, gradients([y], [x], options)[0], &feeds), [1.0, 9.0]);
    assert!(graph.operation("gradients/grad_ys_0").is_ok());
}

#[test]
fn constants_get_no_gradient_nodes() {
    let graph = Graph::new();
    let w = graph.get_variable("w", [2], Init::Ones);
    let mut chain = graph.constant(vec![1.0f32, 2.0]);
    for _ in 0..10 {
        chain = chain.exp();
    }
    let x = graph.placeholder(DType::F32, [2], "x");
    let loss = (w * x + chain).sum();
    let before = graph.len();
    let grads = gradients([loss], [w], GradOptions::default());
    assert!(grads[0].is_some());
    let made: Vec<String> = graph.nodes()[before..].iter().map(|n| n.name.to_string()).collect();
    assert!(!made.iter().any(|n| n.contains("Exp")), "{made:?}");
}

#[test]
fn an_op_without_a_rule_is_one_error_with_the_variable() {
    let graph = Graph::new();
    let w = graph.variable_scope("fc", || graph.get_variable("w", [2], Init::Ones));
    let odd = graph.node_of(&Ruleless).name("odd").input(w).tensor();
    let loss = (odd.square() + odd).sum();
    let grads = gradients([loss], [w], GradOptions::default());
    assert!(grads[0].is_some_and(|g| g.values().is_poison()));
    let message = messages(&graph);
    assert!(message.contains("no gradient defined for operation 'odd' (op type: Ruleless)"), "{message}");
    assert!(message.contains("variable 'fc/w'"), "{message}");
    assert_eq!(graph.diagnostics().len(), 1);
    assert!(graph.diagnostics()[0].source.is_some_and(|s| s.file().ends_with("gradients_tests.rs")));
}

#[test]
fn wrong_ends_are_refused() {
    let graph = Graph::new();
    let x = graph.placeholder(DType::I32, [2], "ids");
    let y = graph.placeholder(DType::F32, [2], "y");
    gradients([y], [x], GradOptions::default());
    let message = messages(&graph);
    assert!(message.contains("with respect to 'ids:0': gradients want float32 or float64, got int32"), "{message}");
}

#[test]
fn a_rule_with_a_wrong_shape_is_named() {
    let graph = Graph::new();
    let x = graph.placeholder(DType::F32, [2], "x");
    let y = graph.node_of(&WrongRule).name("bad").input(x).tensor();
    gradients([y], [x], GradOptions::default());
    let message = messages(&graph);
    assert!(
        message.contains("incompatible gradient of 'bad' (WrongRule), input 0: want the input's float32 [2]"),
        "{message}"
    );
    assert!(message.contains("got float32 []"), "{message}");
}

#[test]
fn rows_stay_rows_through_the_read_and_add_up() {
    let graph = Graph::new();
    let table = graph.get_variable("table", [4, 3], Init::Zeros);
    let look = |ids: [i32; 2]| table.value().gather(graph.constant(ids), 0).sum();
    let grads = gradients([look([0, 1]), look([0, 2])], [table.buffer()], GradOptions::default());
    let Some(Gradient::Slices(IndexedSlices { values, indices, .. })) = grads[0] else { panic!("{grads:?}") };
    assert_eq!(graph.evaluate(indices, &[]).unwrap().to_f64(), [0.0, 1.0, 0.0, 2.0]);
    let feeds = [(table.value(), Array::zeros(DType::F32, &[4, 3]).unwrap())];
    assert_eq!(graph.evaluate(values, &feeds).unwrap().dims(), [4, 3]);
    // Together with a dense use, the sum is dense.
    let dense = gradients([look([0, 1]), table.value().sum()], [table.buffer()], GradOptions::default());
    let rows = value(&graph, dense[0], &feeds);
    assert_eq!(rows, [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(messages(&graph), "");
}

#[test]
fn gradient_nodes_follow_their_forward_nodes_where_no_device_is_open() {
    let graph = Graph::new();
    let w = graph.device("/cpu:0", || graph.get_variable("w", [3, 2], Init::Ones));
    let penalty = graph.device("/cpu:0", || w.value().l2_loss());
    let loss = |i: usize| {
        let x = graph.placeholder(DType::F32, [4, 3], "x");
        graph.device(&format!("/gpu:{i}"), || graph.name_scope(&format!("tower_{i}"), || x.matmul(w).relu().mean()))
    };
    let total = (loss(0) + loss(1)) * 0.5 + penalty;
    gradients([total], [w.buffer()], GradOptions::default());
    let device = |start: &str| -> Vec<String> {
        let nodes = graph.nodes();
        let found: Vec<String> =
            (nodes.iter()).filter(|n| n.name.starts_with(start)).map(|n| n.device.spec.to_string()).collect();
        assert!(!found.is_empty(), "{start}");
        found
    };
    for i in 0..2 {
        assert!(device(&format!("gradients/tower_{i}/")).iter().all(|d| *d == format!("/device:GPU:{i}")));
    }
    assert!(device("gradients/L2Loss_grad/").iter().all(|d| d == "/device:CPU:0"));
    assert_eq!(messages(&graph), "");
}

#[test]
fn many_towers_are_built_in_linear_time() {
    let graph = Graph::new();
    let vars: Vec<_> = (0..8).map(|i| graph.get_variable(&format!("w{i}"), [4, 4], Init::Ones)).collect();
    let x = graph.placeholder(DType::F32, [2, 4], "x");
    let start = std::time::Instant::now();
    for i in 0..64 {
        graph.name_scope(&format!("tower_{i}"), || {
            let loss = vars.iter().fold(x, |h, w| (h.matmul(*w) + 1.0).relu()).square().mean();
            assert!(Optimizer::gradient_descent(0.1).compute_gradients(loss).iter().all(|gv| gv.grad.is_some()));
        });
    }
    assert!(graph.len() > 6400);
    assert!(start.elapsed().as_secs_f64() < 5.0, "{:?} for {} nodes", start.elapsed(), graph.len());
    assert_eq!(messages(&graph), "");
}

use crate::device::CpuKernel;
use crate::graph::{Fact, GradContext, InferContext, InputGradients, KernelContext, Op};

struct Ruleless;

impl Op for Ruleless {
    fn name(&self) -> &'static str {
        "Ruleless"
    }
    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        Ok(vec![c.inputs[0].clone()])
    }
    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Err("a test's op".into())
    }
}

struct WrongRule;

impl Op for WrongRule {
    fn name(&self) -> &'static str {
        "WrongRule"
    }
    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        Ok(vec![c.inputs[0].clone()])
    }
    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(c.grad().sum().into())])
    }
    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Err("a test's op".into())
    }
}
