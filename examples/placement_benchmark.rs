//! What it costs to keep the variables on the host, on the first GPU, or spread over the GPUs, for several tower counts.
//!
//! The settings take turns, so that a machine that slows down or speeds up does so for all of them.

#[macro_use]
mod printing;

use clap::Parser;
use indicatif::ProgressBar;
use std::time::Instant;
use turret::base::{Array, DType};
use turret::graph::{Graph, Init, Operation, Tensor, VariablePlacement};
use turret::report::{CopyTable, human_bytes, table};
use turret::run::{Session, SessionOptions};
use turret::train::{Optimizer, Towers};

/// Times training steps for each number of towers and each rule of placing variables.
#[derive(Parser)]
struct Args {
    /// Numbers of towers, each on its own GPU: CUDA's where there are so many, else simulated
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..))]
    towers: Vec<u32>,
    /// The devices for all settings, as in cuda:0,1,2,3 [default: auto:TOWERS for each]
    #[arg(long)]
    devices: Option<String>,
    /// Width of the input
    #[arg(long, default_value_t = 600, value_parser = positive)]
    dim_in: usize,
    /// Widths of the hidden layers
    #[arg(long, num_args = 0..=1, default_value = "512,128,128", default_missing_value = "", value_parser = widths)]
    dims: std::vec::Vec<usize>,
    /// Rows of one step, over all towers
    #[arg(long, default_value_t = 400, value_parser = positive)]
    batch: usize,
    /// How many steps to time of each setting
    #[arg(long, default_value_t = 25, value_parser = positive)]
    rounds: usize,
}

/// Layer widths as in `512,128`; an empty text is no layer. The field's long type keeps clap from parsing each by itself.
fn widths(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').filter(|_| !text.is_empty()).map(positive).collect()
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or(format!("'{text}' is no size; want whole numbers above 0"))
}

/// A training program, and what its steps cost.
struct Setting<'g> {
    towers: u32,
    variables: &'static str,
    session: Session<'g>,
    feeds: [Tensor<'g>; 2],
    train: Operation<'g>,
    copies: CopyTable,
    ms: Vec<f64>,
}

fn main() -> turret::Result<()> {
    let args = Args::parse();
    let rules = |towers| [VariablePlacement::host(), VariablePlacement::gpu(0), VariablePlacement::least_bytes(towers)];
    let programs: Vec<(u32, VariablePlacement, Graph)> =
        (args.towers.iter()).flat_map(|&towers| rules(towers).map(|rule| (towers, rule, Graph::new()))).collect();
    let mut settings = Vec::new();
    for (towers, rule, g) in &programs {
        settings.push(build(g, *towers, rule, &args)?);
    }

    let x = Array::new(&[args.batch, args.dim_in], &vec![0.5f32; args.batch * args.dim_in])?;
    let target = Array::new(&[args.batch, 1], &vec![1.0f32; args.batch])?;
    let bar = ProgressBar::new(args.rounds as u64 + 2);
    // Two rounds are not counted: the first plans and loads the steps, the second captures those of CUDA GPUs as graphs.
    for round in 0..args.rounds + 2 {
        for setting in &mut settings {
            let [x_tensor, target_tensor] = setting.feeds;
            let start = Instant::now();
            setting.session.run(&[(x_tensor, &x), (target_tensor, &target)], &[], &[setting.train])?;
            let ms = start.elapsed().as_secs_f64() * 1e3;
            if round > 1 {
                setting.ms.push(ms);
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();

    let heads = ["towers", "variables", "ms per step", "least", "most", "copies", "bytes copied"];
    let numbers = ["towers", "ms per step", "least", "most", "copies", "bytes copied"];
    print!("{}", table(&heads, &numbers, settings.iter_mut().map(Setting::row)));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    if let Some(setting) = settings.iter().max_by_key(|s| s.towers) {
        let machine = setting.session.machine();
        if machine.is_cuda() {
            machine.devices()[1..].iter().for_each(|d| println!("{}: {}", d.short_name(), d.physical()));
        } else if setting.towers as usize > threads {
            let towers = setting.towers;
            println!(
                "{towers} simulated GPUs share {threads} processor threads: more towers than threads cannot overlap"
            );
        }
    }
    Ok(())
}

fn build<'g>(g: &'g Graph, towers: u32, rule: &VariablePlacement, args: &Args) -> turret::Result<Setting<'g>> {
    let x = g.placeholder(DType::F32, [args.batch, args.dim_in], "input");
    let target = g.placeholder(DType::F32, [args.batch, 1], "target");
    let builder = Towers::new(g, towers as usize).variables(rule.clone());
    let (xs, targets) = (builder.split(x), builder.split(target));
    let optimizer = Optimizer::gradient_descent(0.01);
    let built = builder.build(&optimizer, |tower| {
        let y = network(g, xs[tower.index()], &args.dims);
        (y - targets[tower.index()]).square().mean()
    });
    let train = built.apply(&optimizer);
    let session = Session::new(g, SessionOptions::devices(&args.devices.clone().unwrap_or(format!("auto:{towers}")))?)?;
    session.initialize()?;
    let step = session.schedule(&[(x, &[args.batch, args.dim_in]), (target, &[args.batch, 1])], &[], &[train])?;
    let copies = CopyTable::new(&step, session.machine());
    Ok(Setting { towers, variables: rule.name(), session, feeds: [x, target], train, copies, ms: Vec::new() })
}

impl Setting<'_> {
    fn row(&mut self) -> Vec<String> {
        self.ms.sort_by(f64::total_cmp);
        let ms = |i: Option<usize>| i.and_then(|i| self.ms.get(i)).map_or("-".into(), |ms| format!("{ms:.2}"));
        vec![
            self.towers.to_string(),
            self.variables.to_string(),
            ms(Some(self.ms.len() / 2)),
            ms(Some(0)),
            ms(self.ms.len().checked_sub(1)),
            self.copies.copies.len().to_string(),
            human_bytes(self.copies.sent_bytes()),
        ]
    }
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
