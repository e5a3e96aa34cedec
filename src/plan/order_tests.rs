//! In which order devices take what others hand over.

use super::planned_tests::{inputs, plan};
use crate::device::Machine;
use crate::graph::Graph;

/// What is there early moves early, whatever was asked for first, and the host goes on with it.
#[test]
fn results_move_in_the_order_in_which_they_are_there() {
    let dims: [&[usize]; 1] = [&[8, 8]];
    let g = Graph::new();
    let x = inputs(&g, &dims)[0];
    let (first, second, third) = g.device("/gpu:0", || {
        let first = x.exp();
        let second = first.tanh();
        (first, second, second.sin())
    });
    let late = g.device("/cpu:0", || third + second);
    let early = g.device("/cpu:0", || first * 2.0);
    let schedule = plan(&g, Machine::simulated(1), &[late, early], &[], &dims);
    let names: Vec<&str> = schedule.step.nodes.iter().filter(|n| !n.silent).map(|n| &*n.name).collect();
    let want =
        ["copy/x0→gpu:0", "Exp", "Tanh", "Sin", "copy/Exp→cpu:0", "mul", "copy/Tanh→cpu:0", "copy/Sin→cpu:0", "add"];
    assert_eq!(names, want);
    let waiting = schedule.waits.iter().filter(|waits| !waits.is_empty()).count();
    assert_eq!(waiting, 3, "one wait for each result");
}
