//! Cases that libraries in Rust have met.

use super::{assert_says, names};
use turret::base::Code;
use turret::graph::{Graph, Init};

#[test]
fn rust_02() {
    let g = Graph::new();
    g.variable_scope("fc", || {
        g.get_variable("w", [2], Init::Zeros);
        g.get_variable("b", [2], Init::Zeros);
    });
    let nodes = g.len();
    g.variable_scope("net", || {
        assert_eq!(g.current_variable_scope().name(), "net");
        let error = g.find_variable("fc/v").unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert_says(
            &error.to_string(),
            &["'fc/v' does not exist", "scope 'net'", "did you mean 'fc/", "get_variable makes one"],
        );
        assert_says(&g.find_variable("w").unwrap_err().to_string(), &["did you mean 'fc/w'?"]);
        assert_eq!(g.find_variable("fc/w").unwrap().name(), "fc/w");
    });
    // Looking up made nothing, and is no error of the graph.
    assert_eq!((g.len(), g.check(), names(&g.all_variables())), (nodes, Ok(()), vec!["fc/w".into(), "fc/b".into()]));
    g.variable_scope("net", || g.get_variable("v", [2], Init::Ones));
    assert_eq!(g.find_variable("net/v").unwrap().name(), "net/v");
}

#[test]
fn rust_03() {
    for order in [["foo", "bar"], ["bar", "foo"]] {
        let g = Graph::new();
        for name in order {
            let made: Vec<String> = (0..3).map(|_| g.no_op(name).name()).collect();
            assert_eq!(made, [name.to_string(), format!("{name}_1"), format!("{name}_2")]);
        }
        // Variables count apart from each other, and a second one is an error, not a suffix.
        g.variable_scope("v", || {
            for name in order {
                assert_eq!(g.get_variable(name, [], Init::Zeros).name(), format!("v/{name}"));
                assert!(g.get_variable(name, [], Init::Zeros).is_poison());
            }
        });
        let codes: Vec<Code> = g.diagnostics().iter().map(|d| d.code).collect();
        assert_eq!(codes, [Code::AlreadyExists; 2]);
    }
}
