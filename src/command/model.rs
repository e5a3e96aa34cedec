//! The built-in model: the article's program, written as a user would write it.

use super::options::{GlobalOptions, Inputs, ModelOptions, OptimizerName, TowerOptions, Variables};
use super::tell;
use anyhow::{Result, bail, ensure};
use turret::base::DType;
use turret::device::Machine;
use turret::graph::{Graph, Init, Operation, Tensor, VariablePlacement, keys};
use turret::run::Session;
use turret::train::{BuiltTowers, Optimizer, Towers};

/// A placeholder of the model.
pub(super) struct Input<'g> {
    pub tensor: Tensor<'g>,
    pub dims: [usize; 2],
    /// The placeholder whose `2x + 1` it is fed; an input of its own if none.
    pub target_of: Option<usize>,
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
    let (width, dims) = (options.dim_in, &options.dims.0[..]);
    let mut inputs: Vec<Input<'g>> = Vec::new();
    let mut built = match options.inputs {
        Inputs::Split => {
            let x = g.placeholder(DType::F32, [batch, width], "input");
            let t = g.placeholder(DType::F32, [batch, width], "target");
            inputs.push(Input { tensor: x, dims: [batch, width], target_of: None });
            inputs.push(Input { tensor: t, dims: [batch, width], target_of: Some(0) });
            let (xs, ts) = (towers.split(x), towers.split(t));
            towers.build(&optimizer, |t| tower(g, xs[t.index()], ts[t.index()], dims))
        }
        Inputs::PerTower => towers.build(&optimizer, |t| {
            let x = t.placeholder(DType::F32, [None, Some(width)], "input");
            let target = t.placeholder(DType::F32, [None, Some(width)], "target");
            let rows = batch / count;
            inputs.push(Input { tensor: x, dims: [rows, width], target_of: None });
            inputs.push(Input { tensor: target, dims: [rows, width], target_of: Some(inputs.len() - 1) });
            tower(g, x, target, dims)
        }),
    };
    built.summary.global_batch = Some(batch);
    built.summary.tower_batches = vec![batch / count; count];
    let train = built.apply(&optimizer);
    g.global_variables_initializer();
    g.check()?;
    Ok(Model { inputs, towers: built, train })
}

impl<'g> Model<'g> {
    /// Tells on standard error what runs where, and what is left idle.
    pub fn summarize(&self, global: &GlobalOptions, machine: &Machine) {
        let summary = self.towers.summary.clone().on_machine(machine.gpus());
        tell(format_args!("machine: {}\n{summary}", global.machine_name(machine)));
    }
}
