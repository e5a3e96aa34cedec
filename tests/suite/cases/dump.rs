//! Cases of names and of graph dumps.

use super::{assert_says, only_problem};
use turret::base::Code;
use turret::graph::{Graph, Init};

#[test]
fn dump_01() {
    /// Gives a graph a name of its kind; true if what was to have it was refused.
    type Give = fn(&Graph, &str) -> bool;
    // An empty name scope is left out: it is TensorFlow's way back to the root.
    let kinds: [(&str, Give); 4] = [
        ("op", |g, name| g.no_op(name).is_poison()),
        ("scope", |g, name| g.name_scope(name, || g.no_op("inside").is_poison())),
        ("variable", |g, name| g.get_variable(name, [], Init::Zeros).is_poison()),
        ("variable scope", |g, name| g.variable_scope(name, || g.no_op("inside").is_poison())),
    ];
    for (kind, give) in kinds {
        for name in ["fc1", "tower_0/fc", ".x", "a-b"] {
            let g = Graph::new();
            assert_eq!((give(&g, name), g.check()), (false, Ok(())), "{kind} {name}");
        }
        for (name, offence, suggestion) in [
            ("concave points", "character ' ' at index 7", "concave_points"),
            ("x:0", "character ':' at index 1", "x_0"),
            ("chars,", "character ',' at index 5", "chars"),
            ("hey:)", "character ':' at index 3", "hey"),
            ("_lead", "character '_' at index 0", "lead"),
            ("", "it is empty", "x"),
            ("/a", "character '/' at index 0", "a"),
            ("a//b", "character '/' at index 2", "a/b"),
        ] {
            if (kind, name) == ("scope", "") {
                continue;
            }
            let g = Graph::new();
            // In place of a refused scope the suggested one is opened, so that its body raises nothing more.
            assert_eq!(give(&g, name), ["op", "variable"].contains(&kind), "{kind} {name}");
            let problem = only_problem(&g);
            assert_eq!(problem.code, Code::InvalidArgument);
            assert_says(
                &problem.to_string(),
                &[
                    &format!("'{name}' is no legal {kind} name"),
                    offence,
                    "the first character must be a letter, a digit or '.'",
                    "names have letters, digits, '_', '.', '-', and single '/' between parts",
                    &format!("try '{suggestion}'"),
                    "dump.rs:",
                ],
            );
            // The suggestion is legal, and the graph is as usable as before.
            assert!(!give(&g, suggestion));
            assert_eq!(g.no_op("after").name(), "after");
            assert_eq!(g.get_variable("w", [], Init::Zeros).name(), "w");
            only_problem(&g);
        }
    }
}
