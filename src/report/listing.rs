//! The lists that tower programs print: gradients with their variables, tower by tower, and all variables.

use crate::graph::Variable;
use crate::train::GradAndVar;
use std::fmt::Write;

/// The gradient and the variable of each pair, by tower:
///
/// ```text
/// towerGrads:
/// grads---tower_0
/// (<Tensor 'tower_0/gradients/…/control_dependency_1:0' shape=[600, 512] dtype=float32>, <Variable 'affine0/w' …>)
///     tower_0/gradients/…/control_dependency_1
///     affine0/w
/// ```
///
/// A variable that a tower's loss does not depend on shows with `None`.
pub fn gradient_listing(towers: &[Vec<GradAndVar<'_>>]) -> String {
    let mut text = String::from("towerGrads:\n");
    for (i, tower) in towers.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "grads---tower_{i}");
        for pair in tower {
            let (shown, name) = match pair.grad {
                Some(g) => (format!("{:?}", g.values()), g.op().name()),
                None => ("None".to_string(), "None".to_string()),
            };
            let _ = writeln!(text, "({shown}, {:?})\n\t{name}\n\t{}", pair.var, pair.var.name());
        }
    }
    text
}

/// The names of the variables under `ALL variables:`, each after a tab.
pub fn variable_listing<'g>(variables: impl IntoIterator<Item = Variable<'g>>) -> String {
    let mut text = String::from("ALL variables:\n");
    for variable in variables {
        let _ = writeln!(text, "\t{}", variable.name());
    }
    text
}
