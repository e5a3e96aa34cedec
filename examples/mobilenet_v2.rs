//! MobileNetV2: its layers and parameters, and some steps of training on made-up images, one tower on each GPU.

#[macro_use]
mod printing;

use clap::Parser;
use std::time::Instant;
use turret::base::{Array, DType, Error};
use turret::graph::{Graph, VariablePlacement};
use turret::layers::layer_parameters;
use turret::layers::models::{MobileNetV2, classification_loss, mobilenet_v2};
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, Optimizer, Towers, get_or_create_global_step};

/// Builds MobileNetV2, counts its parameters, and trains it on made-up images.
#[derive(Parser)]
struct Args {
    /// Towers, one on each GPU
    #[arg(long, default_value_t = 2, value_parser = positive)]
    gpus: usize,
    /// Images of one step in each tower
    #[arg(long, default_value_t = 2, value_parser = positive)]
    batch: usize,
    /// Height and width of the images; 224 in the paper
    #[arg(long, default_value_t = 64, value_parser = positive)]
    size: usize,
    /// Classes
    #[arg(long, default_value_t = 1000, value_parser = positive)]
    classes: usize,
    /// What the numbers of channels are multiplied by
    #[arg(long, default_value_t = 1.0)]
    width: f64,
    /// Steps to train
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// The machine, as in sim:2 or cuda
    #[arg(long)]
    devices: Option<String>,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or("want a whole number above 0".to_string())
}

fn main() -> turret::Result<()> {
    let args = Args::parse();
    let rows = args.gpus * args.batch;
    let g = Graph::new();
    g.set_random_seed(1);
    let step = get_or_create_global_step(&g);
    let images = g.placeholder(DType::F32, [rows, args.size, args.size, 3], "images");
    let labels = g.placeholder(DType::I32, [rows], "labels");
    let towers = Towers::new(&g, args.gpus).variables(VariablePlacement::host());
    let (image_parts, label_parts) = (towers.split(images), towers.split(labels));
    let optimizer = Optimizer::momentum(0.01, 0.9);
    let options = MobileNetV2 { width: args.width, classes: args.classes, ..MobileNetV2::default() };
    let built = towers.build(&optimizer, |tower| {
        let scores = mobilenet_v2(image_parts[tower.index()], true, options);
        classification_loss(scores, label_parts[tower.index()])
    });
    g.check()?;
    let layers = layer_parameters(&g);
    println!("{:<32} {:>12} {:>12}  variables", "layer", "trained", "others");
    for layer in layers.iter().filter(|l| !l.layer.is_empty()) {
        let variables: Vec<String> = layer.variables.iter().map(|(name, sizes)| format!("{name} {sizes:?}")).collect();
        println!("{:<32} {:>12} {:>12}  {}", layer.layer, layer.trainable, layer.other, variables.join(", "));
    }
    let trainable: usize = layers.iter().map(|l| l.trainable).sum();
    let others: usize = layers.iter().filter(|l| !l.layer.is_empty()).map(|l| l.other).sum();
    println!("parameters: {trainable} trained, {others} of moving statistics");
    let train_op = built.apply_with(&optimizer, ApplyOptions::step(step));
    print!("{}", built.summary);

    let devices = args.devices.clone().unwrap_or_else(|| format!("auto:{}", args.gpus));
    let session = Session::new(&g, SessionOptions::devices(&devices)?)?;
    session.initialize()?;
    // The same images in every step: the loss falls as they are learned by heart.
    let count = rows * args.size * args.size * 3;
    let pixels: Vec<f32> = (0..count).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0).collect();
    let pixels = Array::new(&[rows, args.size, args.size, 3], &pixels)?;
    let shown: Vec<i32> = (0..rows).map(|i| (i * 7 % args.classes) as i32).collect();
    let shown = Array::new(&[rows], &shown)?;
    let running = session.callable(&[images, labels], &[built.loss], &[train_op]);
    for number in 0..args.steps {
        let began = Instant::now();
        let loss = running.run(&[&pixels, &shown])?[0].get_f64(0);
        println!("step {number}, loss = {loss:.4} ({:.3} s)", began.elapsed().as_secs_f64());
        if !loss.is_finite() {
            return Err(Error::invalid(format!("the loss of step {number} is {loss}")));
        }
    }
    Ok(())
}
