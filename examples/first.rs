//! The README's first program: two towers fit a line.
#[macro_use]
mod printing;

use turret::base::{Array, DType};
use turret::graph::{Graph, Init, VariablePlacement};
use turret::run::{Session, SessionOptions};
use turret::train::{Optimizer, Towers};

fn main() -> turret::Result<()> {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [None, Some(1)], "x");
    let target = g.placeholder(DType::F32, [None, Some(1)], "target");

    // One tower on each of two GPUs, each with half of the batch; the variables live on the host, and both read them.
    let towers = Towers::new(&g, 2).variables(VariablePlacement::host());
    let (xs, targets) = (towers.split(x), towers.split(target));
    let optimizer = Optimizer::gradient_descent(0.1);
    let built = towers.build(&optimizer, |tower| {
        // The first tower makes the variables, the second finds them by their names.
        let w = g.get_variable("w", [1, 1], Init::Zeros);
        let b = g.get_variable("b", [], Init::Zeros);
        let y = xs[tower.index()].matmul(w) + b;
        (y - targets[tower.index()]).square().mean()
    });
    let train = built.apply(&optimizer);

    // Two simulated GPUs: each has memory and a queue of its own, and computes on the host.
    let session = Session::new(&g, SessionOptions::devices("sim:2")?)?;
    session.initialize()?;
    let inputs = Array::new(&[4, 1], &[0.0f32, 1.0, 2.0, 3.0])?;
    let outputs = Array::new(&[4, 1], &[1.0f32, 3.0, 5.0, 7.0])?;
    for step in 0..=100 {
        let loss = session.run(&[(x, &inputs), (target, &outputs)], &[built.loss], &[train])?;
        if step % 50 == 0 {
            println!("step {step}: loss {:.6}", loss[0].get_f64(0));
        }
    }
    for variable in g.trainable_variables() {
        println!("{} on {}: {:?}", variable.name(), variable.device(), session.value(variable)?);
    }
    Ok(())
}
