//! Scopes against TensorFlow's rules: each program's nodes are listed with devices, colocation, control inputs, errors.

use super::{Graph, Init, Reuse, ScopeOptions, VariablePlacement};
use crate::base::DType;
use crate::ops::VariableOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One line for each `NoOp`, `Const` and variable, as in `tower_0/x @/device:GPU:0 =w ^y`; then one for each problem.
fn listing(g: &Graph) -> Vec<String> {
    let mut lines = Vec::new();
    for node in g.nodes().iter().filter(|n| !n.name.contains("Initializer")) {
        if ["NoOp", "Const", "VariableV2"].contains(&node.op.name()) {
            let mut line = node.name.to_string();
            if !node.device.spec.is_empty() {
                line += &format!(" @{}", node.device.spec);
            }
            let name = |id: &super::NodeId| g.node(*id).map_or("?".to_string(), |n| n.name.to_string());
            node.colocated_with.iter().for_each(|id| line += &format!(" ={}", name(id)));
            node.control_inputs.iter().for_each(|id| line += &format!(" ^{}", name(id)));
            lines.push(line);
        }
    }
    lines.extend(g.diagnostics().iter().map(|d| format!("! {}", d.message)));
    lines
}

/// Runs a program and compares its listing, in which ` | ` parts lines; a wanted problem `! …` need only be how the
/// message starts.
pub(super) fn check(program: impl FnOnce(&Graph), want: &[&str]) {
    let g = Graph::new();
    program(&g);
    compare(&g, want);
}

/// As [`check`], of a graph that is built already.
pub(super) fn compare(g: &Graph, want: &[&str]) {
    let got = listing(g);
    let want: Vec<&str> = want.iter().flat_map(|w| w.split(" | ")).collect();
    let same = |(got, want): (&String, &&str)| got == want || want.starts_with('!') && got.starts_with(*want);
    assert!(got.len() == want.len() && got.iter().zip(&want).all(same), "\nwant {want:#?}\ngot {got:#?}");
}

pub(super) fn op(g: &Graph, name: &str) {
    g.no_op(name);
}

pub(super) fn var(g: &Graph, name: &str) {
    g.get_variable(name, [], Init::Zeros);
}

#[test]
fn name_scopes() {
    check(
        |g| {
            g.name_scope("a", || {
                op(g, "x");
                g.name_scope("b", || op(g, "x"));
                g.name_scope("", || op(g, "x"));
                g.name_scope("b", || op(g, "x"));
                op(g, "x");
            });
            g.name_scope("a/", || {
                op(g, "x");
                assert_eq!(g.current_name_scope(), "a");
                g.name_scope("c/d/", || op(g, "x"));
            });
            g.name_scope("a", || op(g, "_x"));
            g.name_scope("A", || op(g, "x"));
            // An op takes the name of its own scope.
            g.name_scope("Adam", || g.no_op(format!("{}/", g.current_name_scope()).as_str()));
            op(g, "Adam");
        },
        &["a/x", "a/b/x", "x", "a/b_1/x", "a/x_1", "a/x_2", "c/d/x", "a_1/_x", "A_2/x", "Adam", "Adam_1"],
    );
}

#[test]
fn illegal_names_are_reported_once_and_leave_the_state_usable() {
    let nested = "! 'a b' is no legal op name: character ' ' at index 1: it is not allowed in names; names have";
    check(
        |g| {
            g.name_scope("a:b", || {
                op(g, "x");
                op(g, "a b");
                op(g, "_x");
            });
            g.variable_scope("chars,", || {
                var(g, "w");
                var(g, "w:0");
                var(g, "_v");
            });
            for name in ["_lead", "", "/a", "a//b", "a/"] {
                var(g, name);
                g.variable_scope(name, || op(g, "x"));
            }
            g.variable_scope_default("d e", || var(g, "w"));
            g.name_scope("in", || op(g, "_lead/"));
            op(g, "x");
            var(g, "w");
        },
        &[
            "a_b/x | a_b/_x | chars/w | chars/_v | lead/x | x/x | a/x | a/b/x | a_1/x | d_e/w | x_1 | w",
            "! 'a:b' is no legal scope name: character ':' at index 1",
            nested,
            "! 'chars,' is no legal variable scope name: character ',' at index 5: it is not allowed in names; the first \
             character must be a letter, a digit or '.'; names have letters, digits, '_', '.', '-', and single '/' \
             between parts; try 'chars'",
            "! 'w:0' is no legal variable name: character ':'",
            "! '_lead' is no legal variable name: character '_' at index 0",
            "! '_lead' is no legal variable scope name: character '_' at index 0",
            "! '' is no legal variable name: it is empty",
            "! '' is no legal variable scope name: it is empty",
            "! '/a' is no legal variable name: character '/' at index 0",
            "! '/a' is no legal variable scope name",
            "! 'a//b' is no legal variable name: character '/' at index 2",
            "! 'a//b' is no legal variable scope name",
            "! 'a/' is no legal variable name: character '/' at index 1",
            "! 'a/' is no legal variable scope name",
            "! 'd e' is no legal variable scope name: character ' ' at index 1",
            "! '_lead/' is no legal op name: character '_' at index 0",
        ],
    );
}

#[test]
fn reuse_is_inherited_and_ends_with_its_scope() {
    let exists = "! variable 'a/w' already exists, first made in 'a' at ";
    check(
        |g| {
            g.variable_scope("a", || var(g, "w"));
            g.variable_scope("a", || {
                g.name_scope("n", || g.reuse_variables());
                var(g, "w");
                g.variable_scope("b", || {
                    assert_eq!(g.current_variable_scope().reuse(), Reuse::True);
                    var(g, "missing");
                });
                g.variable_scope_with("b", ScopeOptions::reuse(Reuse::Auto), || var(g, "made"));
            });
            g.variable_scope("a", || var(g, "w"));
            g.variable_scope_with("a", ScopeOptions::reuse(Reuse::True), || {
                g.get_variable("w", [2], Init::Zeros);
                let options = VariableOptions { dtype: Some(DType::I32), ..VariableOptions::default() };
                g.get_variable_with("w", [], Init::Zeros, options);
            });
        },
        &[
            "a/w | a/b/made",
            "! variable 'a/b/missing' does not exist (asked for in scope 'a/b', reuse on)",
            exists,
            "! cannot share variable 'a/w': asked for shape [2], found shape [], first made",
            "! cannot share variable 'a/w': asked for dtype int32, found dtype float32, first made",
        ],
    );
}

#[test]
fn captured_scopes_are_entered_again() {
    check(
        |g| {
            let (mut inner, root) = (None, g.current_variable_scope());
            g.variable_scope("a", || {
                g.variable_scope("b", || inner = Some(g.current_variable_scope()));
            });
            let b = inner.expect("the scope was entered");
            assert_eq!((b.name(), b.original_name_scope(), b.reuse()), ("a/b", "a/b", Reuse::Inherit));
            let plain = ScopeOptions::default;
            g.variable_scope_with("c", ScopeOptions::reuse(Reuse::True), || {
                // The object's own reuse counts, not the one around; its name jumps, its name scope does not.
                g.reenter(&b, plain(), || {
                    var(g, "w");
                    op(g, "x");
                    g.reuse_variables();
                    var(g, "w");
                    assert_eq!(g.current_variable_scope().original_name_scope(), "a/b");
                });
                g.reenter(&b, ScopeOptions { no_name_scope: true, ..plain() }, || op(g, "x"));
                g.reenter(&root, plain(), || {
                    var(g, "v");
                    op(g, "x");
                });
            });
            assert_eq!(b.reuse(), Reuse::Inherit);
            g.reenter(&b, plain(), || var(g, "w"));
            g.reenter(&b, ScopeOptions::reuse(Reuse::Auto), || var(g, "w"));
            g.variable_scope_with("d", ScopeOptions { no_name_scope: true, ..plain() }, || {
                op(g, "x");
                var(g, "w");
            });
        },
        &["a/b/w", "c/b/x", "c/x", "v", "c/x_1", "x", "d/w", "! variable 'a/b/w' already exists"],
    );
}

#[test]
fn default_names_are_unique_among_opened_scopes() {
    check(
        |g| {
            let dense = || g.variable_scope_default("dense", || var(g, "w"));
            let net = |body: &dyn Fn()| g.variable_scope_with("net", ScopeOptions::reuse(Reuse::Auto), body);
            dense();
            dense();
            g.variable_scope("dense_2", || op(g, "x"));
            dense();
            net(&|| {
                dense();
                dense();
            });
            // When the scope is left, the names inside of it count from the start again.
            net(&|| {
                dense();
                g.variable_scope_default("dense", || op(g, "x"));
            });
            // What is opened inside a scope object that was entered again leaves no trace; entering it does.
            let mut inside = None;
            g.variable_scope("p", || g.variable_scope("dense", || inside = Some(g.current_variable_scope())));
            let inside = inside.expect("the scope was entered");
            g.reenter(&inside, ScopeOptions::default(), dense);
            g.variable_scope("p", dense);
        },
        &[
            "dense/w | dense_1/w | dense_2/x | dense_3/w | net/dense/w | net/dense_1/w | net_1/dense_1/x",
            "p/dense/dense/w | p/dense_1/w",
        ],
    );
}

#[test]
fn variable_scopes_hand_down_their_defaults() {
    let g = Graph::new();
    let options = ScopeOptions {
        initializer: Some(Init::Ones),
        dtype: Some(DType::F64),
        placement: Some(VariablePlacement::host()),
        ..ScopeOptions::default()
    };
    g.variable_scope_with("a", options, || {
        g.variable_scope("b", || {
            let scope = g.current_variable_scope();
            assert_eq!((scope.initializer(), scope.dtype()), (Some(&Init::Ones), DType::F64));
            let w = g.device("/gpu:0", || g.get_variable("w", [2], None));
            assert_eq!((w.dtype(), w.device().to_string()), (DType::F64, "/device:CPU:0".to_string()));
            // A given array has the last word on the type, but for a given type.
            assert_eq!(g.get_variable("ids", [2], Init::data([1i32, 2])).dtype(), DType::I32);
        });
    });
    assert_eq!(g.current_variable_scope().dtype(), DType::F32);
    assert_eq!(g.check(), Ok(()));
}

#[test]
fn a_panic_in_a_body_restores_the_scopes() {
    check(
        |g| {
            let a = g.no_op("a");
            let thrown = catch_unwind(AssertUnwindSafe(|| {
                g.variable_scope("v", || {
                    g.reuse_variables();
                    g.variable_scope_default("d", || {
                        g.device("/gpu:0", || {
                            g.control_dependencies([a], || {
                                g.colocate_with(a, || std::panic::resume_unwind(Box::new(7)))
                            })
                        })
                    })
                })
            }));
            assert!(thrown.is_err());
            op(g, "b");
            var(g, "w");
            g.variable_scope("v", || g.variable_scope_default("d", || var(g, "w")));
        },
        &["a", "b", "w", "v/d/w"],
    );
}

#[test]
fn threads_build_in_one_graph() {
    let g = Graph::new();
    let each = |thread: usize| {
        for i in 0..200 {
            g.name_scope("shared", || g.device(&format!("/gpu:{thread}"), || op(&g, &format!("x{thread}"))));
            g.variable_scope(&format!("v{thread}"), || var(&g, &format!("w{i}")));
        }
        g.current_name_scope() + g.current_variable_scope().name()
    };
    g.device("/cpu:0", || {
        g.reuse_variables();
        let ends: Vec<String> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4).map(|t| s.spawn(move || each(t))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(ends, [""; 4]);
    });
    assert_eq!(g.check(), Ok(()));
    assert_eq!((g.all_variables().len(), g.global_variables().len()), (800, 800));
    for node in g.nodes().iter() {
        let device = node.device.spec.to_string();
        match node.op.name() {
            "NoOp" => {
                let (scope, op) = node.name.split_once('/').expect("made in a scope");
                assert!(
                    scope.starts_with("shared") && device == format!("/device:GPU:{}", &op[1..]),
                    "{node:?} {device}"
                );
            }
            _ => assert!(node.name.starts_with('v') && device.is_empty(), "{node:?} {device}"),
        }
    }
}

#[test]
fn two_threads_that_make_one_variable_are_told() {
    for _ in 0..50 {
        let g = Arc::new(Graph::new());
        std::thread::scope(|s| {
            for _ in 0..2 {
                let g = g.clone();
                s.spawn(move || var(&g, "w"));
            }
        });
        assert_eq!(g.all_variables().len(), 1);
        let messages: Vec<String> = g.diagnostics().into_iter().map(|d| d.message).collect();
        assert!(messages.len() == 1 && messages[0].starts_with("variable 'w' "), "{messages:?}");
    }
}
