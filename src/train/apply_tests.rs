//! The train op: its name, its inputs, its slots; figures of the names from the tower fixtures.

use super::*;
use crate::base::DType;
use crate::graph::{Gradient, Graph, Init, Reuse, ScopeOptions, Variable, keys};

fn messages(graph: &Graph) -> String {
    graph.check().err().map(|e| e.to_string()).unwrap_or_default()
}

fn warnings(graph: &Graph) -> Vec<String> {
    graph.warnings().into_iter().map(|w| w.message).collect()
}

type Build = for<'g> fn(&'g Graph) -> Optimizer<'g>;

/// Two variables on the host with a gradient each, as the fixtures' first layer.
fn layer(graph: &Graph) -> Vec<GradAndVar<'_>> {
    let make = |name: &str, shape: &[usize]| {
        let var = graph.device("/cpu:0", || {
            graph.variable_scope_with("affine0", ScopeOptions::reuse(Reuse::Auto), || {
                graph.get_variable(name, shape, Init::Zeros)
            })
        });
        let grad = graph.placeholder(DType::F32, shape, &format!("grad_{name}"));
        GradAndVar { grad: Some(grad.into()), var }
    };
    vec![make("w", &[6, 5]), make("b", &[])]
}

fn names(variables: &[Variable<'_>]) -> Vec<String> {
    variables.iter().map(|v| v.name()).collect()
}

#[test]
fn slots_and_nodes_have_tensorflows_names() {
    let cases: [(Build, &[&str], &[&str]); 5] = [
        (|_| Optimizer::gradient_descent(0.02), &[], &["GradientDescent/learning_rate", "GradientDescent"]),
        (
            |_| Optimizer::momentum(0.01, 0.9),
            &["affine0/w/Momentum", "affine0/b/Momentum"],
            &["affine0/b/Momentum/read", "Momentum/learning_rate", "Momentum/momentum", "Momentum"],
        ),
        (
            |_| Optimizer::adam(0.01),
            &["beta1_power", "beta2_power", "affine0/w/Adam", "affine0/w/Adam_1", "affine0/b/Adam", "affine0/b/Adam_1"],
            &[
                "beta1_power/initial_value",
                "beta1_power/Assign",
                "beta1_power/read",
                "affine0/w/Adam_1/Initializer/zeros",
                "Adam/learning_rate",
                "Adam/beta1",
                "Adam/beta2",
                "Adam/epsilon",
                "Adam",
            ],
        ),
        (
            |_| Optimizer::rms_prop(0.005),
            &["affine0/w/RMSProp", "affine0/w/RMSProp_1", "affine0/b/RMSProp", "affine0/b/RMSProp_1"],
            &[
                "affine0/w/RMSProp/Initializer/ones",
                "affine0/w/RMSProp_1/Initializer/zeros",
                "RMSProp/learning_rate",
                "RMSProp/decay",
                "RMSProp/momentum",
                "RMSProp/epsilon",
                "RMSProp",
            ],
        ),
        (
            |_| Optimizer::adagrad(0.05),
            &["affine0/w/Adagrad", "affine0/b/Adagrad"],
            &["affine0/w/Adagrad/Initializer/Const", "Adagrad/learning_rate", "Adagrad"],
        ),
    ];
    for (build, slots, nodes) in cases {
        let graph = Graph::new();
        let optimizer = build(&graph);
        let list = layer(&graph);
        let op = optimizer.apply_gradients(&list);
        assert_eq!(messages(&graph), "");
        assert_eq!(op.op_type(), "ApplyGradients");
        assert_eq!(op.name(), optimizer.name());
        assert_eq!(names(&graph.global_variables())[2..], *slots);
        assert_eq!(names(&optimizer.variables()), *slots);
        for node in nodes {
            assert!(graph.operation(node).is_ok(), "{node}");
        }
        for v in optimizer.variables() {
            assert_eq!(v.device().to_string(), "/device:CPU:0", "{}", v.name());
        }
        assert_eq!(names(&graph.trainable_variables()), ["affine0/w", "affine0/b"]);
        assert_eq!(graph.get_collection(keys::TRAIN_OP), [op.into()]);
        assert_eq!(graph.nodes().iter().filter(|n| n.op.name() == "ApplyGradients").count(), 1);
    }
}

#[test]
fn slots_are_made_whatever_reuse_is_on() {
    let graph = Graph::new();
    let list = layer(&graph);
    graph.reuse_variables();
    let optimizer = Optimizer::adam(0.1);
    optimizer.apply_gradients(&list);
    assert_eq!(messages(&graph), "");
    assert_eq!(names(&optimizer.slots(list[0].var)), ["affine0/w/Adam", "affine0/w/Adam_1"]);
}

#[test]
fn a_second_optimizer_gets_slots_of_its_own() {
    let build = || {
        let graph = Graph::new();
        let list = layer(&graph);
        let (first, second) = (Optimizer::adam(0.1), Optimizer::adam(0.1));
        first.apply_gradients(&list);
        assert!(warnings(&graph).is_empty());
        let op = second.apply_gradients(&list);
        assert_eq!(op.name(), "Adam_1");
        assert!(warnings(&graph)[0].contains("'affine0/w' is updated by 'Adam' already"), "{:?}", warnings(&graph));
        assert_eq!(messages(&graph), "");
        names(&graph.global_variables())
    };
    let first = build();
    assert_eq!(
        first[8..],
        [
            "beta1_power_1",
            "beta2_power_1",
            "affine0/w/Adam_2",
            "affine0/w/Adam_3",
            "affine0/b/Adam_2",
            "affine0/b/Adam_3"
        ]
    );
    assert_eq!(first, build());
}

#[test]
fn one_optimizer_keeps_its_slots() {
    let graph = Graph::new();
    let list = layer(&graph);
    let optimizer = Optimizer::momentum(0.1, 0.9);
    optimizer.apply_gradients(&list[..1]);
    optimizer.apply_gradients(&list);
    assert_eq!(names(&optimizer.variables()), ["affine0/w/Momentum", "affine0/b/Momentum"]);
}

#[test]
fn slots_take_the_variable_scope_and_powers_the_name_scope() {
    let graph = Graph::new();
    let list = layer(&graph);
    let optimizer = Optimizer::adam(0.1);
    graph.variable_scope("train", || optimizer.apply_gradients(&list[..1]));
    assert_eq!(
        names(&optimizer.variables()),
        ["train/beta1_power", "train/beta2_power", "train/affine0/w/Adam", "train/affine0/w/Adam_1"]
    );
    assert!(graph.operation("train/Adam").is_ok());
}

#[test]
fn missing_gradients_are_left_out_and_all_missing_is_an_error() {
    let graph = Graph::new();
    let mut list = layer(&graph);
    list[1].grad = None;
    let optimizer = Optimizer::gradient_descent(0.1);
    let op = optimizer.apply_gradients(&list);
    assert_eq!(op.inputs().len(), 3);
    list[0].grad = None;
    optimizer.apply_gradients(&list);
    let message = messages(&graph);
    assert!(message.contains("no gradients provided for any variable: 'affine0/w', 'affine0/b'"), "{message}");
}

#[test]
fn lists_that_do_not_fit_are_refused_by_name() {
    let graph = Graph::new();
    let list = layer(&graph);
    let optimizer = Optimizer::gradient_descent(0.1);
    let wrong: Gradient<'_> = graph.placeholder(DType::F32, [6, 4], "wrong").into();
    optimizer.apply_gradients(&[GradAndVar { grad: Some(wrong), ..list[0] }]);
    optimizer.apply_gradients(&[list[0], list[0]]);
    Optimizer::adam(0.1).with("beta", 0.5).apply_gradients(&list);
    Optimizer::adagrad(0.1).nesterov().apply_gradients(&list);
    let message = messages(&graph);
    for part in [
        "variable 'affine0/w' must be like it: want float32 [6, 5], got 'wrong:0' float32 [6, 4]",
        "variable 'affine0/w' is twice",
        "no hyper-parameter 'beta', only learning_rate, beta1, beta2, epsilon",
        "optimizer 'Adagrad' has no Nesterov form",
    ] {
        assert!(message.contains(part), "{part}\nin\n{message}");
    }
}

#[test]
fn the_step_counter_lives_on_the_host_and_is_an_input() {
    let graph = Graph::new();
    let list = layer(&graph);
    let step = graph.device("/gpu:1", || get_or_create_global_step(&graph));
    assert_eq!(step, get_or_create_global_step(&graph));
    assert_eq!((step.name(), step.dtype()), ("global_step".into(), DType::I64));
    assert_eq!(step.device().to_string(), "/device:CPU:0");
    assert!(!graph.trainable_variables().contains(&step) && graph.global_variables().contains(&step));
    let op = Optimizer::gradient_descent(0.1).apply_gradients_with(&list, ApplyOptions::step(step));
    assert_eq!(op.inputs().last(), Some(&step.buffer()));
    assert_eq!(messages(&graph), "");
}

#[test]
fn update_operations_run_with_the_train_op() {
    let graph = Graph::new();
    let list = layer(&graph);
    let update = graph.no_op("moving_mean/update");
    graph.add_to_collection(keys::UPDATE_OPS, update);
    let op = Optimizer::gradient_descent(0.1).apply_gradients(&list);
    assert_eq!(op.node().map(|n| n.control_inputs.to_vec()), Some(vec![update.id()]));
    let by_hand = ApplyOptions { run_update_ops: false, ..ApplyOptions::default() };
    Optimizer::gradient_descent(0.1).apply_gradients_with(&list, by_hand);
    let warnings = warnings(&graph).join("\n");
    assert!(warnings.contains("1 update operations are not reached by 'GradientDescent_1'"), "{warnings}");
    assert!(warnings.contains("'moving_mean/update'"), "{warnings}");
}
