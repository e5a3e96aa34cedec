//! Where the variables of two towers live, and what one training step copies, for three rules of placing variables.

#[macro_use]
mod printing;

use clap::Parser;
use turret::base::DType;
use turret::graph::{Graph, Init, Tensor, VariablePlacement};
use turret::report::{CopyTable, PlacementTable};
use turret::run::{Session, SessionOptions};
use turret::train::{Optimizer, Towers};

/// Prints where variables live and what travels, for variables on the host, on the first GPU, and spread.
#[derive(Parser)]
struct Args {
    /// Number of towers, each on its own GPU
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    towers: u32,
    /// Rows of one step, over all towers
    #[arg(long, default_value_t = 2000, value_parser = positive)]
    batch: usize,
    /// The devices: auto:N (CUDA GPUs, or simulated ones), cuda:0,1, sim:N, sim:N@all|pairs|none [default: auto:TOWERS]
    #[arg(long)]
    devices: Option<String>,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or("want a whole number above 0".to_string())
}

fn main() -> turret::Result<()> {
    let args = Args::parse();
    let rules = [VariablePlacement::host(), VariablePlacement::gpu(0), VariablePlacement::least_bytes(args.towers)];
    for rule in rules {
        println!("== variables: {}\n", rule.name());
        print_tables(&args, rule)?;
    }
    Ok(())
}

fn print_tables(args: &Args, rule: VariablePlacement) -> turret::Result<()> {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [None, Some(600)], "input");
    let target = g.placeholder(DType::F32, [None, Some(1)], "target");
    let towers = Towers::new(&g, args.towers as usize).variables(rule);
    let (xs, targets) = (towers.split(x), towers.split(target));
    let optimizer = Optimizer::gradient_descent(0.01);
    let built = towers.build(&optimizer, |tower| {
        let y = network(&g, xs[tower.index()], &[512, 128, 128]);
        (y - targets[tower.index()]).square().mean()
    });
    let train = built.apply(&optimizer);

    let devices = args.devices.clone().unwrap_or(format!("auto:{}", args.towers));
    let session = Session::new(&g, SessionOptions::devices(&devices)?)?;
    // The step as it would run with a batch of this size; nothing runs.
    let feeds = [(x, &[args.batch, 600][..]), (target, &[args.batch, 1][..])];
    let step = session.schedule(&feeds, &[], &[train])?;
    let machine = session.machine();
    println!("{}", PlacementTable::new(&g, &step.step.placed, machine).variables_only().text());
    println!("{}", CopyTable::new(&step, machine).text());
    Ok(())
}

fn network<'g>(g: &'g Graph, x: Tensor<'g>, dims: &[usize]) -> Tensor<'g> {
    let affine = |scope: &str, x: Tensor<'g>, width: usize| {
        let (w, b) = g.variable_scope(scope, || {
            (g.get_variable("w", [x.dim(1), width], Init::he_normal()), g.get_variable("b", [], Init::Zeros))
        });
        x.matmul(w) + b
    };
    let mut hidden = x;
    for (i, &width) in dims.iter().enumerate() {
        hidden = affine(&format!("affine{i}"), hidden, width).relu();
    }
    affine("affine_last", hidden, 1)
}
