//! The options that several subcommands share, and what they mean for the library.

use super::feeds::{FeedFile, FeedShape, feed_file, feed_shape};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use turret::device::Machine;
use turret::run::{CudaOptions, SessionOptions};
use turret::train::AveragePlace;

/// The most towers that are built.
const MAX_TOWERS: u64 = 1024;

/// The largest size of a layer or batch.
const MAX_SIZE: u64 = 1 << 24;

#[derive(Args)]
#[command(next_help_heading = "Machine")]
pub(super) struct GlobalOptions {
    /// The machine: auto (CUDA where it can be used, else sim:2), cpu, sim:N, sim:N@all|pairs|none, cuda, cuda:0,1
    #[arg(long, global = true, value_name = "MACHINE", default_value = "auto")]
    devices: String,
    /// One JSON document on standard output instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Moves operations whose device is not there to one that is, and marks them
    #[arg(long, global = true)]
    soft_placement: bool,
    /// Threads of the host; without it, one for each processor
    #[arg(long, visible_alias = "threads", global = true, value_name = "N")]
    host_threads: Option<NonZeroUsize>,
    /// Threads of each simulated GPU
    #[arg(long, global = true, value_name = "N", default_value = "1")]
    gpu_threads: NonZeroUsize,
    /// Whether steps on CUDA GPUs are replayed as CUDA graphs
    #[arg(long, global = true, value_enum, value_name = "SWITCH", default_value = "on")]
    cuda_graphs: Switch,
    /// Whether several operations become one kernel: products with what follows them, element-wise chains, reductions
    #[arg(long, global = true, value_enum, value_name = "SWITCH", default_value = "on")]
    fusion: Switch,
    /// Whether sums over CUDA GPUs are NCCL calls, where NCCL is there
    #[arg(long, global = true, value_enum, value_name = "SWITCH", default_value = "on")]
    nccl: Switch,
    /// Whether convolutions on CUDA GPUs are cuDNN's, where cuDNN is there
    #[arg(long, global = true, value_enum, value_name = "SWITCH", default_value = "on")]
    cudnn: Switch,
    /// Lets products and convolutions on CUDA GPUs use TensorFloat-32
    #[arg(long, global = true)]
    tf32: bool,
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl GlobalOptions {
    pub fn machine(&self) -> Result<Machine> {
        Ok(self.with_threads(Machine::parse(&self.devices)?))
    }

    fn with_threads(&self, machine: Machine) -> Machine {
        let machine = machine.with_gpu_threads(self.gpu_threads.get());
        match self.host_threads {
            Some(threads) => machine.with_host_threads(threads.get()),
            None => machine,
        }
    }

    pub fn session_options(&self) -> Result<SessionOptions> {
        Ok(self.on(self.machine()?))
    }

    /// As [`GlobalOptions::session_options`], with a simulated GPU for each of so many towers where no machine is named.
    pub fn session_options_for(&self, towers: usize) -> Result<SessionOptions> {
        let named = &self.devices != "auto";
        Ok(self.on(if named { self.machine()? } else { self.with_threads(Machine::simulated(towers)) }))
    }

    fn on(&self, machine: Machine) -> SessionOptions {
        let mut options = SessionOptions::on(machine);
        options.cuda = CudaOptions {
            graphs: self.cuda_graphs == Switch::On,
            tf32: self.tf32,
            nccl: self.nccl == Switch::On,
            cudnn: self.cudnn == Switch::On,
        };
        options.fusion = self.fusion == Switch::On;
        if self.soft_placement { options.soft() } else { options }
    }

    /// The machine by name, with `auto` resolved.
    pub fn machine_name(&self, machine: &Machine) -> String {
        match &self.devices[..] {
            "auto" if machine.is_cuda() => "cuda".to_string(),
            "auto" => format!("sim:{}", machine.gpus()),
            name => name.to_string(),
        }
    }

    /// An error where so many towers ask for GPUs that are not there.
    pub fn check_towers(&self, machine: &Machine, towers: usize) -> Result<()> {
        let gpus = machine.gpus();
        if towers <= gpus || self.soft_placement {
            return Ok(());
        }
        let counted = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let fewer = if gpus == 0 { String::new() } else { format!(", --towers {gpus},") };
        bail!(
            "cannot place {}: tower {gpus} asks for /gpu:{gpus}, the machine {} has {}; use --devices {}{fewer} or \
             --soft-placement",
            counted(towers, "tower"),
            self.machine_name(machine),
            counted(gpus, "GPU"),
            if machine.is_cuda() { in_turn(towers, gpus) } else { format!("sim:{towers}") }
        )
    }
}

/// So many CUDA devices of fewer GPUs: one that is named twice plays two.
fn in_turn(devices: usize, gpus: usize) -> String {
    let numbers: Vec<String> = (0..devices).map(|i| (i % gpus.max(1)).to_string()).collect();
    format!("cuda:{}", numbers.join(","))
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ModelName {
    /// The affine layers of the article, with ReLU between them
    Mlp,
    /// The network of TensorFlow's CIFAR-10 tutorial
    Cifar10,
    /// Two convolutions of 5 by 5 with pools and three affine layers, for comparisons
    Cnn,
    /// MobileNetV2
    #[value(name = "mobilenet_v2", alias = "mobilenet-v2")]
    MobilenetV2,
}

/// Where variables live.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Variables {
    /// On the host
    Cpu,
    /// On /gpu:0
    Gpu,
    /// Over the towers' GPUs, each on the one with the fewest bytes
    Spread,
    /// A copy in each tower (comes later)
    Mirrored,
}

impl Variables {
    pub fn name(self) -> &'static str {
        match self {
            Variables::Cpu => "cpu",
            Variables::Gpu => "gpu",
            Variables::Spread => "spread",
            Variables::Mirrored => "mirrored",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OptimizerName {
    Sgd,
    Momentum,
    Adam,
    Rmsprop,
    Adagrad,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum AverageOn {
    /// On the host
    Cpu,
    /// On /gpu:0
    Gpu,
    /// Each on its variable's device
    Variables,
    /// Over the towers' GPUs, balanced by bytes
    Spread,
    /// Summed on all towers' GPUs, by NCCL where it can be used
    AllReduce,
    /// Small ones beside their variables, large ones spread or all-reduced
    Auto,
}

impl AverageOn {
    pub fn place(self) -> AveragePlace {
        match self {
            AverageOn::Cpu => AveragePlace::Device("/cpu:0".into()),
            AverageOn::Gpu => AveragePlace::Device("/gpu:0".into()),
            AverageOn::Variables => AveragePlace::BesideVariables,
            AverageOn::Spread => AveragePlace::Spread,
            AverageOn::AllReduce => AveragePlace::AllReduce,
            AverageOn::Auto => AveragePlace::BySize,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Inputs {
    /// One input for all, split over the towers
    Split,
    /// An input for each tower
    #[value(name = "per_tower", alias = "per-tower")]
    PerTower,
}

/// The sizes of hidden layers.
#[derive(Clone, Debug)]
pub(super) struct LayerSizes(pub Vec<usize>);

fn layer_sizes(text: &str) -> Result<LayerSizes, String> {
    if text.is_empty() || text == "none" {
        return Ok(LayerSizes(Vec::new()));
    }
    let size = |part: &str| match part.trim().parse::<u64>() {
        Ok(n) if (1..=MAX_SIZE).contains(&n) => Ok(n as usize),
        _ => Err(format!("'{part}' is no layer size; want numbers from 1 to {MAX_SIZE} as in 512,128,128, or none")),
    };
    text.split(',').map(size).collect::<Result<_, _>>().map(LayerSizes)
}

fn size(text: &str) -> Result<usize, String> {
    match text.parse::<u64>() {
        Ok(n) if (1..=MAX_SIZE).contains(&n) => Ok(n as usize),
        _ => Err(format!("want a number from 1 to {MAX_SIZE}")),
    }
}

pub(super) fn towers(text: &str) -> Result<usize, String> {
    match text.parse::<u64>() {
        Ok(n) if (1..=MAX_TOWERS).contains(&n) => Ok(n as usize),
        _ => Err(format!("want a number from 1 to {MAX_TOWERS}")),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor <= 16.0 => Ok(factor),
        _ => Err("want a number above 0 and up to 16".to_string()),
    }
}

fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("want a number above 0".to_string()),
    }
}

/// What the built-in model is made of.
#[derive(Args, Clone)]
#[command(next_help_heading = "Model")]
pub(super) struct ModelOptions {
    /// A TensorFlow graph instead of a built-in model: .pb, .pbtxt, .meta, or a SavedModel
    #[arg(value_name = "GRAPH")]
    file: Option<PathBuf>,
    /// The same as GRAPH
    #[arg(long, value_name = "GRAPH", conflicts_with = "file")]
    graph: Option<PathBuf>,
    /// The built-in model
    #[arg(long, value_enum, default_value = "mlp")]
    pub model: ModelName,
    /// Rows of one step over all towers; without it 2000 of mlp, 128 of cifar10 and cnn, 32 of mobilenet_v2
    #[arg(long, visible_alias = "global-batch", value_name = "ROWS", value_parser = size)]
    batch: Option<usize>,
    /// Rows of one step in each tower, instead of --batch
    #[arg(long, value_name = "ROWS", conflicts_with = "batch", value_parser = size)]
    tower_batch: Option<usize>,
    /// Sizes of the hidden layers of mlp, or none
    #[arg(long, value_name = "SIZES", default_value = "512,128,128", value_parser = layer_sizes)]
    pub dims: LayerSizes,
    /// Size of a row of the input of mlp
    #[arg(long, value_name = "SIZE", default_value = "600", value_parser = size)]
    pub dim_in: usize,
    /// Height and width of images; without it 24 of cifar10 and cnn, 224 of mobilenet_v2
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub image_size: Option<usize>,
    /// Classes of images; without it 10 of cifar10 and cnn, 1000 of mobilenet_v2
    #[arg(long, value_name = "N", value_parser = size)]
    pub classes: Option<usize>,
    /// What mobilenet_v2's numbers of channels are multiplied by
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = factor)]
    pub width: f64,
    /// The optimizer
    #[arg(long, value_enum, default_value = "sgd")]
    pub optimizer: OptimizerName,
    /// The learning rate
    #[arg(long, value_name = "RATE", default_value = "0.01", value_parser = learning_rate)]
    pub learning_rate: f64,
    /// Where gradients are averaged
    #[arg(long, value_enum, default_value = "cpu")]
    pub average_on: AverageOn,
    /// One input split over the towers, or one for each
    #[arg(long, value_enum, default_value = "split")]
    pub inputs: Inputs,
    /// Seed of the variables and of generated inputs
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u32,
}

impl ModelOptions {
    /// The graph file, if one is named.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref().or(self.graph.as_deref())
    }

    /// The model's name.
    pub fn workload(&self) -> String {
        let file = self.file().and_then(Path::file_stem).map(|name| name.to_string_lossy().into_owned());
        let model = || self.model.to_possible_value().map(|v| v.get_name().to_string());
        file.or_else(model).unwrap_or_default()
    }

    /// Rows of one step over so many towers.
    pub fn global_batch(&self, towers: usize) -> usize {
        let usual = match self.model {
            ModelName::Mlp => 2000,
            ModelName::Cifar10 | ModelName::Cnn => 128,
            ModelName::MobilenetV2 => 32,
        };
        self.tower_batch.map_or(self.batch.unwrap_or(usual), |rows| rows * towers)
    }

    /// The same model with the batch that so many towers divide, next to the one that was asked for.
    pub fn near_batch(&self, towers: usize) -> ModelOptions {
        ModelOptions { tower_batch: Some((self.global_batch(towers) / towers).max(1)), batch: None, ..self.clone() }
    }
}

/// How many towers, and where their variables live.
#[derive(Args)]
#[command(next_help_heading = "Towers")]
pub(super) struct TowerOptions {
    /// Number of towers; tower i is on /gpu:i
    #[arg(long, value_name = "N", default_value = "1", value_parser = towers)]
    pub towers: usize,
    /// Where variables live
    #[arg(long, value_enum, default_value = "cpu")]
    pub variables: Variables,
}

/// What one step computes.
#[derive(Args)]
#[command(next_help_heading = "Step")]
pub(super) struct StepOptions {
    /// A tensor to fetch, as in loss or split:1; may be given several times
    #[arg(long, value_name = "TENSOR")]
    pub fetch: Vec<String>,
    /// An operation to run; without --fetch and --target, the train op
    #[arg(long, value_name = "OPERATION")]
    pub target: Vec<String>,
    /// A tensor and the file that it is fed from, FILE.npy or FILE.json; inputs of the built-in model that are not fed
    /// are made up
    #[arg(long, value_name = "NAME=FILE", value_parser = feed_file)]
    pub feed: Vec<FeedFile>,
    /// A tensor and its sizes where nothing is run, as in images=8,24,24,3
    #[arg(long, value_name = "NAME=SIZES", value_parser = feed_shape)]
    pub feed_shape: Vec<FeedShape>,
}
