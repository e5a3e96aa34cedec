//! The article's program (方案2): one pair of placeholders, split over one tower per GPU, averaged gradients, one train op.
//!
//! Its functions are the article's, one for one. Absent: the line `device:…`, which the article's listing lacks too.

#[macro_use]
mod printing;

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Instant;
use turret::base::{Array, DType, IntoShape};
use turret::graph::{Graph, Init, Operation, Tensor, Variable, VariablePlacement, keys};
use turret::plan::place_all;
use turret::run::{Session, SessionOptions};
use turret::train::{GradAndVar, Optimizer};

/// Trains the article's multi-layer network with one tower per GPU, and prints what the article prints.
#[derive(Parser)]
struct Args {
    /// Number of GPUs, one tower on each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    gpus: u32,
    /// Width of the input
    #[arg(long, default_value_t = 600, value_parser = positive)]
    dim_in: usize,
    /// Widths of the hidden layers; none for y = xw + b
    #[arg(long, num_args = 0..=1, default_value = "512,128,128", default_missing_value = "", value_parser = widths)]
    dims: std::vec::Vec<usize>,
    /// Rows of one step, over all GPUs
    #[arg(long, default_value_t = 2000, value_parser = positive)]
    batch: usize,
    /// Training steps (the article: 10000)
    #[arg(long, default_value_t = 100)]
    steps: u64,
    #[arg(long, value_enum, default_value = "sgd")]
    optimizer: Rule,
    /// Learning rate
    #[arg(long, default_value_t = 1e-2)]
    lr: f64,
    /// Standard deviation of the initial weights; sqrt(2 / width), about 0.06, trains well
    #[arg(long, default_value_t = 1.0)]
    init_scale: f64,
    /// Where the variables live: host memory, the first GPU, or spread over the GPUs
    #[arg(long, value_enum, default_value = "cpu")]
    variables: Variables,
    /// The devices: auto:N (CUDA GPUs, or simulated ones), cuda:0,1, sim:N, cpu [default: auto:GPUS]
    #[arg(long)]
    devices: Option<String>,
    /// Fetch the loss through the article's Print, which shows the variables in every step
    #[arg(long)]
    print_variables: bool,
    /// Print only the closing time
    #[arg(long)]
    quiet: bool,
}

/// Layer widths as in `512,128`; an empty text is no layer. The field's long type keeps clap from parsing each by itself.
fn widths(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').filter(|_| !text.is_empty()).map(positive).collect()
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or(format!("'{text}' is no size; want whole numbers above 0"))
}

#[derive(Clone, Copy, ValueEnum)]
enum Rule {
    Sgd,
    Momentum,
    Adam,
    Rmsprop,
    Adagrad,
}

#[derive(Clone, Copy, ValueEnum)]
enum Variables {
    Cpu,
    Gpu,
    Spread,
}

/// Makes or finds a variable, and prints its name and device.
fn allocate_variable<'g>(g: &'g Graph, args: &Args, name: &str, shape: impl IntoShape, init: Init) -> Variable<'g> {
    let var = g.get_variable(name, shape, init);
    if !args.quiet {
        println!("{}: {}", var.name(), var.device());
    }
    var
}

/// The network y = xw + b, with `relu` between the layers, and its mean square loss.
fn tower<'g>(g: &'g Graph, args: &Args, input: Tensor<'g>, target: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>) {
    let affine = |scope: &str, x: Tensor<'g>, width: usize, init: Init| {
        // The scope only makes the variables' full names; it says nothing of devices.
        let (w, b) = g.variable_scope(scope, || {
            let w = allocate_variable(g, args, "w", [x.dim(1), width], init);
            (w, allocate_variable(g, args, "b", [], Init::Zeros))
        });
        x.matmul(w) + b
    };
    let mut hidden = input;
    for (i, &width) in args.dims.iter().enumerate() {
        let init = Init::truncated_normal(0.0, args.init_scale);
        hidden = affine(&format!("affine{i}"), hidden, width, init).relu();
    }
    let y = affine("affine_last", hidden, 1, Init::Constant(1.0));
    let loss = (y - target).square().mean();
    g.add_to_collection(keys::LOSSES, loss);
    (y, loss)
}

/// Prints all towers' gradients, and gives their means. `train::average_gradients` is the ready-made form.
fn average_tower_grads<'g>(g: &'g Graph, args: &Args, tower_grads: &[Vec<GradAndVar<'g>>]) -> Vec<GradAndVar<'g>> {
    if !args.quiet {
        println!("towerGrads:");
        for (i, grads) in tower_grads.iter().enumerate() {
            println!("grads---tower_{i}");
            for GradAndVar { grad, var } in grads {
                let Some(grad) = grad else { continue };
                println!("({:?}, {var:?})", grad.values());
                println!("\t{}\n\t{}", grad.op().name(), var.name());
            }
        }
    }
    if let [only] = tower_grads {
        return only.clone();
    }
    let mut averaged = Vec::new();
    for (i, &GradAndVar { var, .. }) in tower_grads[0].iter().enumerate() {
        let grads = tower_grads.iter().filter_map(|tower| Some(tower[i].grad?.values().expand_dims(0)));
        let mean = g.concat(grads, 0).mean_axes(&[0], false);
        averaged.push(GradAndVar { grad: Some(mean.into()), var });
    }
    averaged
}

struct Model<'g> {
    input: Tensor<'g>,
    target: Tensor<'g>,
    /// The last tower's loss, as in the article, and the same through a `Print` of the variables.
    loss: Tensor<'g>,
    printed_loss: Tensor<'g>,
    train: Operation<'g>,
}

fn generate_towers_v2<'g>(g: &'g Graph, args: &Args) -> Model<'g> {
    let input = g.placeholder(DType::F32, [None, Some(args.dim_in)], "input");
    let target = g.placeholder(DType::F32, [None, Some(args.dim_in)], "target");
    // The number of towers must divide the batch.
    let inputs = input.split(args.gpus as usize, 0);
    let targets = target.split(args.gpus as usize, 0);
    let opt = match args.optimizer {
        Rule::Sgd => Optimizer::gradient_descent(args.lr),
        Rule::Momentum => Optimizer::momentum(args.lr, 0.9),
        Rule::Adam => Optimizer::adam(args.lr),
        Rule::Rmsprop => Optimizer::rms_prop(args.lr),
        Rule::Adagrad => Optimizer::adagrad(args.lr),
    };
    let mut tower_grads = Vec::new();
    let mut loss = g.poison_tensor();
    for (i, (&input, &target)) in inputs.iter().zip(&targets).enumerate() {
        g.device(&format!("/gpu:{i}"), || {
            g.name_scope(&format!("tower_{i}"), || {
                (_, loss) = tower(g, args, input, target);
                // Reuse variables for the next tower.
                g.reuse_variables();
                tower_grads.push(opt.compute_gradients(loss));
            });
        });
    }
    let grads = average_tower_grads(g, args, &tower_grads);
    let variables: Vec<Tensor<'_>> = g.trainable_variables().into_iter().map(Tensor::from).collect();
    let printed_loss = loss.print(&variables, "");
    let train = opt.apply_gradients(&grads);
    if !args.quiet {
        println!("ALL variables:");
        for var in g.global_variables() {
            println!("\t{}", var.name());
        }
    }
    Model { input, target, loss, printed_loss, train }
}

/// The article's `np.random.rand`: uniform in [0, 1), here from a fixed seed (Marsaglia's xorshift).
fn random(rows: usize, columns: usize) -> Vec<f32> {
    let mut state = 88172645463325252u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..rows * columns).map(|_| next()).collect()
}

fn main() -> turret::Result<()> {
    let args = Args::parse();
    let devices = args.devices.clone().unwrap_or(format!("auto:{}", args.gpus));
    let placement = match args.variables {
        Variables::Cpu => VariablePlacement::host(),
        Variables::Gpu => VariablePlacement::gpu(0),
        Variables::Spread => VariablePlacement::least_bytes(args.gpus),
    };
    let g = Graph::new();
    let model = g.variables_on(placement, || generate_towers_v2(&g, &args));

    let session = Session::new(&g, SessionOptions::devices(&devices)?)?;
    // As in TensorFlow, a device that is not there is refused before anything runs.
    place_all(&g.nodes(), session.machine(), session.placement_options())?;
    session.initialize()?;
    let inputs = random(args.batch, args.dim_in);
    let targets: Vec<f32> = inputs.iter().map(|x| x * 2.0 + 1.0).collect();
    let inputs = Array::new(&[args.batch, args.dim_in], &inputs)?;
    let targets = Array::new(&[args.batch, args.dim_in], &targets)?;

    let loss = if args.print_variables { model.printed_loss } else { model.loss };
    let step = session.callable(&[model.input, model.target], &[loss], &[model.train]);
    let (mut fetched, mut losses) = (Vec::new(), Vec::new());
    let bar = progress_bar(args.steps);
    let start = Instant::now();
    for i in 1..=args.steps {
        step.run_into(&[&inputs, &targets], &mut fetched)?;
        let loss = fetched[0].get_f64(0);
        losses.push(loss);
        let ms = start.elapsed().as_secs_f64() * 1e3 / i as f64;
        bar.set_message(format!("loss {loss:.4e}, {ms:.2} ms per step"));
        bar.inc(1);
    }
    let elapsed = start.elapsed();
    bar.finish_and_clear();
    println!("{}块GPU用时: {:.2}s", args.gpus, elapsed.as_secs_f64());
    remark(&losses, &args);
    Ok(())
}

/// Drawn on standard error, and only on a terminal.
fn progress_bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}");
    ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Says how the training went, and plainly where it went wrong.
fn remark(losses: &[f64], args: &Args) {
    let (Some(first), Some(last)) = (losses.first(), losses.last()) else { return };
    let cause = format!("initial weights of deviation {} and learning rate {}", args.init_scale, args.lr);
    let advice = "--init-scale 0.06 trains the article's network";
    if let Some(step) = losses.iter().position(|l| !l.is_finite()) {
        eprintln!("the loss is {} from step {} on: {cause} make it diverge; {advice}", losses[step], step + 1);
    } else if last > first {
        eprintln!("the loss grew from {first:.3e} to {last:.3e}: {cause} make it diverge; {advice}");
    } else if !args.quiet && losses.len() == 1 {
        eprintln!("loss: {first:.3e} in the only step");
    } else if !args.quiet {
        eprintln!("loss: {first:.3e} in step 1, {last:.3e} in step {}", losses.len());
    }
}
