//! The built-in models: the article's program, written as a user would write it, and networks for images.

use super::options::{GlobalOptions, Inputs, ModelName, ModelOptions, OptimizerName, TowerOptions, Variables};
use super::tell;
use anyhow::{Result, bail, ensure};
use turret::base::{DType, Shape};
use turret::device::Machine;
use turret::graph::{Graph, Init, Operation, Tensor, VariablePlacement, keys};
use turret::layers::models::{Cifar10, Cnn, MobileNetV2, cifar10, classification_loss, cnn, mobilenet_v2};
use turret::plan::StageTimes;
use turret::run::Session;
use turret::train::{BuiltTowers, Optimizer, Towers};

/// A placeholder of the model.
pub(super) struct Input<'g> {
    pub tensor: Tensor<'g>,
    pub dims: Vec<usize>,
    pub made: Made,
}

/// What an input is fed where nothing is given.
#[derive(Clone, Copy)]
pub(super) enum Made {
    /// Numbers in `[0, 1)`.
    Uniform,
    /// `2x + 1` of the input of this number.
    TargetOf(usize),
    /// Numbers below this one.
    Labels(usize),
}

pub(super) struct Model<'g> {
    pub inputs: Vec<Input<'g>>,
    pub towers: BuiltTowers<'g>,
    pub train: Operation<'g>,
}

/// The tower of the article: affine layers with ReLU between them, and the mean square of what is left.
fn tower<'g>(g: &'g Graph, x: Tensor<'g>, target: Tensor<'g>, dims: &[usize]) -> Tensor<'g> {
    let affine = |scope: &str, x: Tensor<'g>, width: usize, init: Init| {
        let (w, b) = g.variable_scope(scope, || {
            (g.get_variable("w", [x.dim(1), width], init), g.get_variable("b", [], Init::Zeros))
        });
        x.matmul(w) + b
    };
    let mut h = x;
    for (i, &width) in dims.iter().enumerate() {
        h = affine(&format!("affine{i}"), h, width, Init::truncated_normal(0.0, 1.0)).relu();
    }
    let y = affine("affine_last", h, 1, Init::Constant(1.0));
    let loss = (y - target).square().mean();
    g.add_to_collection(keys::LOSSES, loss);
    loss
}

/// What a tower computes.
enum Network<'o> {
    Mlp { width: usize, dims: &'o [usize] },
    Images { size: usize, classes: usize, of: ImageNetwork },
}

enum ImageNetwork {
    Cifar10(Cifar10),
    Cnn(Cnn),
    MobileNetV2(MobileNetV2),
}

impl<'o> Network<'o> {
    fn of(options: &'o ModelOptions) -> Network<'o> {
        let classes = |usual: usize| options.classes.unwrap_or(usual);
        let images = |usual_size: usize, classes: usize, of: ImageNetwork| Network::Images {
            size: options.image_size.unwrap_or(usual_size),
            classes,
            of,
        };
        match options.model {
            ModelName::Mlp => Network::Mlp { width: options.dim_in, dims: &options.dims.0 },
            ModelName::Cifar10 => {
                let of = Cifar10 { classes: classes(10), ..Cifar10::default() };
                images(Cifar10::SIZE, of.classes, ImageNetwork::Cifar10(of))
            }
            ModelName::Cnn => {
                let of = Cnn { classes: classes(10), ..Cnn::default() };
                images(Cnn::SIZE, of.classes, ImageNetwork::Cnn(of))
            }
            ModelName::MobilenetV2 => {
                let of = MobileNetV2 { classes: classes(1000), width: options.width, ..MobileNetV2::default() };
                images(MobileNetV2::SIZE, of.classes, ImageNetwork::MobileNetV2(of))
            }
        }
    }

    /// The two inputs: name, type and the sizes of a row.
    fn inputs(&self) -> [(&'static str, DType, Vec<usize>); 2] {
        match *self {
            Network::Mlp { width, .. } => [("input", DType::F32, vec![width]), ("target", DType::F32, vec![width])],
            Network::Images { size, .. } => {
                [("images", DType::F32, vec![size, size, 3]), ("labels", DType::I32, Vec::new())]
            }
        }
    }

    /// What input `i` of the two is made of; `number` is its number among all inputs.
    fn made(&self, i: usize, number: usize) -> Made {
        match (self, i) {
            (_, 0) => Made::Uniform,
            (Network::Mlp { .. }, _) => Made::TargetOf(number.saturating_sub(1)),
            (Network::Images { classes, .. }, _) => Made::Labels(*classes),
        }
    }

    fn tower<'g>(&self, g: &'g Graph, x: Tensor<'g>, target: Tensor<'g>) -> Tensor<'g> {
        match self {
            Network::Mlp { dims, .. } => tower(g, x, target, dims),
            Network::Images { of: ImageNetwork::Cifar10(of), .. } => classification_loss(cifar10(x, *of), target),
            Network::Images { of: ImageNetwork::Cnn(of), .. } => classification_loss(cnn(x, *of), target),
            Network::Images { of: ImageNetwork::MobileNetV2(of), .. } => {
                classification_loss(mobilenet_v2(x, true, *of), target)
            }
        }
    }
}

/// Builds the model that the options ask for, opens a session on their machine, and tells what is used.
pub(super) fn open<'g>(
    g: &'g Graph,
    global: &GlobalOptions,
    options: &ModelOptions,
    towers: &TowerOptions,
) -> Result<(Model<'g>, Session<'g>)> {
    let on = global.session_options()?;
    global.check_towers(&on.machine, towers.towers)?;
    let model = build(g, options, towers.towers, towers.variables)?;
    let session = Session::new(g, on)?;
    model.summarize(global, session.machine());
    Ok((model, session))
}

/// Builds the model with so many towers.
pub(super) fn build<'g>(g: &'g Graph, options: &ModelOptions, count: usize, variables: Variables) -> Result<Model<'g>> {
    build_timed(g, options, count, variables, &mut StageTimes::start())
}

/// As [`build`], and tells what the stages `forward`, `gradients`, `average` and `apply` took.
pub(super) fn build_timed<'g>(
    g: &'g Graph,
    options: &ModelOptions,
    count: usize,
    variables: Variables,
    times: &mut StageTimes,
) -> Result<Model<'g>> {
    let placement = match variables {
        Variables::Cpu => VariablePlacement::host(),
        Variables::Gpu => VariablePlacement::gpu(0),
        Variables::Spread => VariablePlacement::least_bytes(count as u32),
        Variables::Mirrored => {
            bail!("--variables mirrored comes later: it needs all-reduce; want cpu, gpu or spread")
        }
    };
    let batch = options.global_batch(count);
    ensure!(
        batch.is_multiple_of(count),
        "cannot split --batch {batch} over {count} towers: remainder {}; use --batch {} or --tower-batch {}",
        batch % count,
        (batch / count).max(1) * count,
        (batch / count).max(1)
    );
    g.set_random_seed(options.seed.into());
    let rate = options.learning_rate;
    let optimizer = match options.optimizer {
        OptimizerName::Sgd => Optimizer::gradient_descent(rate),
        OptimizerName::Momentum => Optimizer::momentum(rate, 0.9),
        OptimizerName::Adam => Optimizer::adam(rate),
        OptimizerName::Rmsprop => Optimizer::rms_prop(rate),
        OptimizerName::Adagrad => Optimizer::adagrad(rate),
    };
    let towers = Towers::new(g, count).variables(placement).average_at(options.average_on.place());
    let network = Network::of(options);
    let mut inputs: Vec<Input<'g>> = Vec::new();
    let made = match options.inputs {
        Inputs::Split => {
            for (i, (name, dtype, row)) in network.inputs().into_iter().enumerate() {
                let dims: Vec<usize> = [batch].into_iter().chain(row).collect();
                let tensor = g.placeholder(dtype, &dims[..], name);
                inputs.push(Input { tensor, dims, made: network.made(i, i) });
            }
            let parts: Vec<Vec<Tensor<'g>>> = inputs.iter().map(|i| towers.split(i.tensor)).collect();
            towers.gradients(&optimizer, |t| {
                times.lap(if t.index() == 0 { "forward" } else { "gradients" });
                let loss = network.tower(g, parts[0][t.index()], parts[1][t.index()]);
                times.lap("forward");
                loss
            })
        }
        Inputs::PerTower => towers.gradients(&optimizer, |t| {
            times.lap(if t.index() == 0 { "forward" } else { "gradients" });
            let parts: Vec<Tensor<'g>> = (network.inputs().into_iter().enumerate())
                .map(|(i, (name, dtype, row))| {
                    let shape = Shape::partial([None].into_iter().chain(row.iter().map(|&d| Some(d))));
                    let tensor = t.placeholder(dtype, shape, name);
                    let dims = [batch / count].into_iter().chain(row).collect();
                    inputs.push(Input { tensor, dims, made: network.made(i, inputs.len()) });
                    tensor
                })
                .collect();
            let loss = network.tower(g, parts[0], parts[1]);
            times.lap("forward");
            loss
        }),
    };
    times.lap("gradients");
    let mut built = towers.average(made);
    times.lap("average");
    built.summary.global_batch = Some(batch);
    built.summary.tower_batches = vec![batch / count; count];
    let train = built.apply(&optimizer);
    g.global_variables_initializer();
    g.check()?;
    times.lap("apply");
    Ok(Model { inputs, towers: built, train })
}

impl<'g> Model<'g> {
    /// Tells on standard error what runs where, and what is left idle.
    pub fn summarize(&self, global: &GlobalOptions, machine: &Machine) {
        let summary = self.towers.summary.clone().on_machine(machine.gpus());
        tell(format_args!("machine: {}\n{summary}", global.machine_name(machine)));
    }
}
