//! The article's other way (方案1): every tower has placeholders of its own, on its GPU, and is fed by itself.

#[macro_use]
mod printing;

use clap::Parser;
use turret::base::{Array, DType};
use turret::graph::{Graph, Init};
use turret::run::{Session, SessionOptions};
use turret::train::{AverageOptions, Optimizer, average_gradients};

/// Fits y = 2x + 1 with one pair of placeholders per GPU.
#[derive(Parser)]
struct Args {
    /// Number of GPUs, one tower on each
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    gpus: u32,
    /// Training steps
    #[arg(long, default_value_t = 500)]
    steps: usize,
}

fn main() -> turret::Result<()> {
    let args = Args::parse();
    let g = Graph::new();
    let opt = Optimizer::gradient_descent(0.2);
    let (mut feeds, mut losses, mut tower_grads) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..args.gpus {
        g.device(&format!("/gpu:{i}"), || {
            g.name_scope(&format!("tower_{i}"), || {
                let input = g.placeholder(DType::F32, [None, Some(1)], &format!("input_{i}"));
                let target = g.placeholder(DType::F32, [None, Some(1)], &format!("target_{i}"));
                let (w, b) = g.device("/cpu:0", || {
                    (g.get_variable("w", [1, 1], Init::Ones), g.get_variable("b", [], Init::Zeros))
                });
                let loss = (input.matmul(w) + b - target).square().mean();
                g.reuse_variables();
                tower_grads.push(opt.compute_gradients(loss));
                losses.push(loss);
                feeds.extend([input, target]);
            });
        });
    }
    let grads = average_gradients(&tower_grads, AverageOptions::device("/cpu:0"));
    let train = opt.apply_gradients(&grads);

    for feed in &feeds {
        println!("{} on {}", feed.op().name(), feed.device());
    }
    let session = Session::new(&g, SessionOptions::devices(&format!("auto:{}", args.gpus))?)?;
    session.initialize()?;
    let step = session.callable(&feeds, &losses, &[train]);
    let arrays = tower_batches(args.gpus)?;
    let arrays: Vec<&Array> = arrays.iter().collect();
    for i in 1..=args.steps {
        let losses = step.run(&arrays)?;
        if i == 1 || i == args.steps {
            let losses: Vec<String> = losses.iter().map(|l| format!("{:.2e}", l.get_f64(0))).collect();
            println!("step {i}: losses {}", losses.join(", "));
        }
    }
    for var in g.trainable_variables() {
        println!("{} = {:.4}", var.name(), session.value(var)?.get_f64(0));
    }
    Ok(())
}

/// For each tower its inputs, 8 points of [0, 1), and its targets.
fn tower_batches(towers: u32) -> turret::Result<Vec<Array>> {
    let mut arrays = Vec::new();
    for i in 0..towers {
        let rows = (0..8).map(|r| (r * towers + i) as f32 / (8 * towers) as f32);
        let inputs: Vec<f32> = rows.collect();
        let targets: Vec<f32> = inputs.iter().map(|x| 2.0 * x + 1.0).collect();
        arrays.push(Array::new(&[8, 1], &inputs)?);
        arrays.push(Array::new(&[8, 1], &targets)?);
    }
    Ok(arrays)
}
