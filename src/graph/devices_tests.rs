//! Device scopes, colocation, control dependencies and collections against TensorFlow's rules.

use super::scopes_tests::{check, compare, op, var};
use super::{DeviceRule, Graph, Init, keys};
use crate::base::{DeviceSpec, Error};
use crate::ops::VariableOptions;

fn no_op_type() -> super::OpRef {
    crate::ops::find("NoOp").expect("it is in the table")
}

#[test]
fn devices_merge_inner_first() {
    check(
        |g| {
            g.device("/job:ps/cpu:1", || {
                op(g, "a");
                g.device("/gpu", || op(g, "b"));
                g.device("", || op(g, "c"));
                g.no_device(|| {
                    op(g, "d");
                    g.device("/task:3", || op(g, "e"));
                });
                g.device("/gpu:x", || op(g, "f"));
            });
        },
        &[
            "a @/job:ps/device:CPU:1 | b @/job:ps/device:GPU:1 | c @/job:ps/device:CPU:1 | d | e @/task:3",
            "f @/job:ps/device:CPU:1",
            "! 'x' is not an index in device '/gpu:x'",
        ],
    );
}

#[test]
fn device_functions_replace_what_is_inside_and_merge_with_what_is_outside() {
    check(
        |g| {
            g.device("/job:w", || {
                let to_gpu = |new: &super::NewNode<'_>| match new.name {
                    "keep" => Ok(new.device.clone()),
                    "fail" => Err(Error::invalid("not here")),
                    _ => Ok(DeviceSpec::device("GPU", 7)),
                };
                g.device_function(to_gpu, || {
                    op(g, "a");
                    g.device("/cpu:0", || {
                        op(g, "b");
                        op(g, "keep");
                        op(g, "fail");
                    });
                    g.no_device(|| op(g, "c"));
                    assert!(g.in_device_scope());
                });
            });
            let rule = |name: &str| g.operation(name).map(|o| o.node().map(|n| n.device.rule.clone()));
            assert_eq!(rule("a"), Ok(Some(DeviceRule::Function)));
            assert_eq!(rule("keep"), Ok(Some(DeviceRule::Scope)));
        },
        &[
            "a @/job:w/device:GPU:7 | b @/job:w/device:GPU:7 | keep @/job:w/device:CPU:0 | c",
            "! device function of 'fail': not here",
        ],
    );
}

#[test]
fn colocation_overrides_devices() {
    check(
        |g| {
            let a = g.device("/gpu:1", || g.no_op("a"));
            let free = g.no_op("free");
            g.device("/cpu:0", || {
                let b = g.colocate_with(a, || g.no_op("b"));
                // The group is the one of the node that it was put with.
                g.colocate_with(b, || op(g, "c"));
                g.colocate_with(free, || {
                    op(g, "d");
                    g.device("/gpu:0", || op(g, "e"));
                    g.colocate_with(a, || op(g, "f"));
                    g.no_colocation(|| op(g, "h"));
                });
                // The innermost with a device decides.
                g.colocate_with(a, || g.colocate_with(free, || g.device("/cpu:5", || op(g, "i"))));
                g.colocate_with(g.poison_operation(), || op(g, "j"));
                op(g, "k");
                g.node_of(no_op_type()).name("l").colocate_with(free).add();
            });
        },
        &[
            "a @/device:GPU:1 | free | b @/device:GPU:1 =a | c @/device:GPU:1 =a | d =free",
            "e @/device:GPU:0 =free | f @/device:GPU:1 =a =free | h | i @/device:GPU:1 =a =free | j",
            "k @/device:CPU:0 | l =free",
        ],
    );
}

#[test]
fn control_dependencies_are_left_out_where_implied() {
    check(
        |g| {
            let (a, b) = (g.no_op("a"), g.no_op("b"));
            let c = g.control_dependencies([a, g.poison_operation(), a], || {
                let c = g.constant_named("c", 1.0f32);
                op(g, "d");
                g.control_dependencies([b], || {
                    op(g, "e");
                    g.no_control_dependencies(|| op(g, "f"));
                    var(g, "v");
                });
                c
            });
            // The frame's own node as input: no control input besides.
            g.control_dependencies([c.op()], || g.group([a], "h"));
            op(g, "i");
        },
        &["a", "b", "c ^a", "d ^a", "e ^a ^b", "f", "v", "h ^a ^c", "i"],
    );
    let g = Graph::new();
    let a = g.no_op("a");
    let controls = |t: super::Tensor<'_>| t.op().node().map_or(9, |n| n.control_inputs.len());
    g.control_dependencies([a], || {
        let x = g.constant(1.0f32);
        assert_eq!((controls(x), controls(x.identity("y"))), (1, 0));
        g.control_dependencies([x.op()], || assert_eq!(controls(x.identity("z")), 0));
    });
}

#[test]
fn handles_of_another_graph_are_refused() {
    let (g, other) = (Graph::new(), Graph::new());
    let (o, x) = (other.no_op("o"), other.constant(1.0f32));
    g.colocate_with(o, || op(&g, "a"));
    g.control_dependencies([o], || op(&g, "b"));
    g.add_to_collection("k", o);
    assert!(g.get_collection("k").is_empty());
    let new = |name| g.node_of(no_op_type()).name(name);
    for builder in [new("c").colocate_with(o), new("d").control(o), new("e").input(x)] {
        assert!(builder.add().is_poison());
    }
    let given = "! 'o' of graph ";
    compare(&g, &["a | b", given, given, given, "! 'c' in graph ", "! 'd' in graph ", "! 'e' in graph "]);
}

#[test]
fn collections_keep_their_order() {
    let g = Graph::new();
    let losses: Vec<_> =
        (0..11).map(|i| g.name_scope(&format!("tower_{i}"), || g.constant_named("l", 0.0f32))).collect();
    losses.iter().rev().for_each(|l| g.add_to_collection(keys::LOSSES, *l));
    g.add_to_collection(keys::LOSSES, g.no_op("tower_1/op"));
    g.add_to_collection(keys::LOSSES, g.poison_tensor());
    let names =
        |prefix: &str| g.get_collection_in(keys::LOSSES, prefix).into_iter().map(|i| i.name()).collect::<Vec<_>>();
    assert_eq!(names("tower_1"), ["tower_10/l:0", "tower_1/l:0", "tower_1/op"]);
    assert_eq!(names("tower_1/"), ["tower_1/l:0", "tower_1/op"]);
    assert_eq!((names("").len(), g.tensors_in(keys::LOSSES).len(), g.get_collection("none").len()), (12, 11, 0));

    var(&g, "w");
    let with = |trainable, keys: &[&str]| VariableOptions {
        trainable,
        collections: Some(keys.iter().map(|k| k.to_string()).collect()),
        ..VariableOptions::default()
    };
    g.get_variable_with("frozen", [], Init::Zeros, VariableOptions { trainable: false, ..VariableOptions::default() });
    g.get_variable_with("mine", [], Init::Zeros, with(true, &["mine", keys::TRAINABLE_VARIABLES]));
    let names = |key| g.variables_in(key).into_iter().map(|v| v.name()).collect::<Vec<_>>();
    assert_eq!(names(keys::GLOBAL_VARIABLES), ["w", "frozen"]);
    assert_eq!(names(keys::TRAINABLE_VARIABLES), ["w", "mine"]);
    assert_eq!(g.collection_names(), ["losses", "variables", "trainable_variables", "mine"]);
}
