//! Users' trouble cases, one file per kind; each test bears the id of its case.

mod auto;
mod bn;
mod ckpt;
mod dump;
mod grad;
mod input;
mod perf;
mod place;
mod run;
mod rust;
mod small;
mod vars;

use turret::base::Diagnostic;
use turret::graph::{Graph, Variable};
use turret::run::SessionOptions;

/// A session's options for so many GPUs.
fn sim(gpus: usize) -> SessionOptions {
    SessionOptions::on(crate::gpus::machine(gpus))
}

/// The graph's one problem.
fn only_problem(g: &Graph) -> Diagnostic {
    match &g.diagnostics()[..] {
        [one] => one.clone(),
        other => panic!("want one problem, got {other:?}"),
    }
}

/// Fails unless the text has all of these parts, in any order.
pub fn assert_says(text: &str, parts: &[&str]) {
    let lacks: Vec<&&str> = parts.iter().filter(|p| !text.contains(**p)).collect();
    assert!(lacks.is_empty(), "want {lacks:?} in:\n{text}");
}

/// The names of variables.
fn names(variables: &[Variable<'_>]) -> Vec<String> {
    variables.iter().map(|v| v.name()).collect()
}
