//! Cases of sessions and running.

use super::assert_says;
use turret::base::Code;
use turret::graph::{Graph, Init};

/// Savers and initializers are made before, or add no nodes; that is tested with the checkpoints.
#[test]
fn run_09() {
    let g = Graph::new();
    let w = g.get_variable("w", [], Init::Zeros);
    let init = g.global_variables_initializer();
    let at = format!("run.rs:{}:", line!() + 1);
    g.finalize();
    let nodes = g.len();
    g.name_scope("late", || {
        assert!(w.value().identity("copy").is_poison());
    });
    assert!(g.get_variable("v", [2], Init::Zeros).is_poison());
    assert!(g.global_variables_initializer().is_poison());
    assert_eq!((g.len(), init.name()), (nodes, "init".to_string()));
    let problems = g.diagnostics();
    assert_eq!(problems.len(), 3, "{problems:?}");
    for (problem, name) in problems.iter().zip(["'late/copy' (Identity)", "'v' (VariableV2)", "'init' (NoOp)"]) {
        assert_eq!(problem.code, Code::FailedPrecondition);
        assert_says(&problem.to_string(), &["cannot add", name, "finalised at", &at, "add it before", "run.rs:"]);
    }
    // What is there can still be found.
    assert_eq!(g.find_variable("w").unwrap(), w);
}
