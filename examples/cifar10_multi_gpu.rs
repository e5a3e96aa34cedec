//! TensorFlow's CIFAR-10 tutorial with several GPUs: one tower on each, weight decay, a decayed rate, moving averages of all
//! variables, with which it is tested, and checkpoints.

#[macro_use]
mod printing;
#[path = "cifar10/data.rs"]
mod data;

use clap::Parser;
use data::{CLASSES, Image, Numbers};
use std::path::PathBuf;
use std::time::Instant;
use turret::base::{Array, DType, Error};
use turret::graph::{Graph, Reuse, ScopeOptions, VariablePlacement};
use turret::interop::{Saver, latest_checkpoint};
use turret::layers::models::{Cifar10, cifar10, classification_loss};
use turret::run::{Session, SessionOptions};
use turret::train::{
    ApplyOptions, ExponentialMovingAverage, Optimizer, Towers, exponential_decay, get_or_create_global_step,
};

/// Trains the network of TensorFlow's CIFAR-10 tutorial on several GPUs.
#[derive(Parser)]
struct Args {
    /// Towers, one on each GPU
    #[arg(long, default_value_t = 2, value_parser = positive)]
    gpus: usize,
    /// Images of one step in each tower
    #[arg(long, default_value_t = 16, value_parser = positive)]
    batch: usize,
    /// Steps to train
    #[arg(long, default_value_t = 30, value_parser = positive)]
    steps: usize,
    /// The folder with CIFAR-10's binary version; without it a small set is made up
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// Where checkpoints are; training goes on from the latest
    #[arg(long, value_name = "FOLDER")]
    checkpoint_dir: Option<PathBuf>,
    /// The first learning rate
    #[arg(long, default_value_t = 0.1)]
    rate: f64,
    /// Where the variables live
    #[arg(long, default_value = "cpu", value_parser = ["cpu", "gpu"])]
    variables: String,
    /// The machine, as in sim:2 or cuda
    #[arg(long)]
    devices: Option<String>,
}

/// The rate is a tenth after so many passes over the images.
const EPOCHS_PER_DECAY: f64 = 350.0;
const DECAY: f64 = 0.1;
const MOVING_AVERAGE_DECAY: f64 = 0.9999;
/// Images of the set that is made up.
const MADE_UP: usize = 400;

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or("want a whole number above 0".to_string())
}

fn main() -> turret::Result<()> {
    let args = Args::parse();
    let folder = match &args.data_dir {
        Some(folder) => folder.clone(),
        None => {
            let folder = std::env::temp_dir().join(format!("turret-cifar10-{}", std::process::id()));
            data::make_up(&folder, MADE_UP)?;
            folder
        }
    };
    let sets = data::read(&folder, "data_batch").and_then(|train| Ok((train, data::read(&folder, "test_batch")?)));
    if args.data_dir.is_none() {
        // What is left behind is no reason to fail.
        let _ = std::fs::remove_dir_all(&folder);
    }
    let (train, test) = sets?;
    let made_up = if args.data_dir.is_none() { " (made up)" } else { "" };
    println!("{} images to train on, {} to test on{made_up}", train.len(), test.len());
    let rows = args.gpus * args.batch;
    if rows > train.len() {
        let message = format!("{} towers of {} images want {rows}, there are {}", args.gpus, args.batch, train.len());
        return Err(Error::invalid(message));
    }

    let g = Graph::new();
    g.set_random_seed(1);
    let step = get_or_create_global_step(&g);
    let decay_steps = (train.len() as f64 / rows as f64 * EPOCHS_PER_DECAY).floor().max(1.0);
    let rate = exponential_decay(step, args.rate, decay_steps, DECAY, true);
    let optimizer = Optimizer::gradient_descent(rate);
    let size = Cifar10::SIZE;
    let images = g.placeholder(DType::F32, [rows, size, size, 3], "images");
    let labels = g.placeholder(DType::I32, [rows], "labels");
    let placement = if args.variables == "gpu" { VariablePlacement::gpu(0) } else { VariablePlacement::host() };
    let towers = Towers::new(&g, args.gpus).variables(placement);
    let (image_parts, label_parts) = (towers.split(images), towers.split(labels));
    let built = towers.build(&optimizer, |tower| {
        let scores = cifar10(image_parts[tower.index()], Cifar10::default());
        classification_loss(scores, label_parts[tower.index()])
    });
    let apply = built.apply_with(&optimizer, ApplyOptions::step(step));
    let averages = ExponentialMovingAverage::new(MOVING_AVERAGE_DECAY).num_updates(step.value().cast(DType::F32));
    let moved = averages.apply(&g.trainable_variables());
    let train_op = g.group([apply, moved], "train");
    // The same variables once more, for testing.
    let tested = g.placeholder(DType::F32, [None, Some(size), Some(size), Some(3)], "tested");
    let reuse = ScopeOptions::reuse(Reuse::True);
    let scores = g.reenter(&g.current_variable_scope(), reuse, || cifar10(tested, Cifar10::default()));
    print!("{}", built.summary);

    let devices = args.devices.clone().unwrap_or_else(|| format!("auto:{}", args.gpus));
    let session = Session::new(&g, SessionOptions::devices(&devices)?)?;
    session.initialize()?;
    let saver = Saver::new(&g);
    if let Some(folder) = &args.checkpoint_dir {
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::invalid(format!("cannot make '{}': {e}", folder.display())))?;
        if let Some(latest) = latest_checkpoint(folder)? {
            saver.restore(&session, &latest)?;
            println!("going on from {}", latest.display());
        }
    }
    let first = session.value(step)?.get_f64(0) as usize;
    let running = session.callable(&[images, labels], &[built.loss], &[train_op]);
    for number in first..first + args.steps {
        // Drawn by the step's number, so that training that goes on draws as if it had not stopped.
        let mut numbers = Numbers((number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for _ in 0..8 {
            numbers.below(2);
        }
        let chosen: Vec<&Image> = (0..rows).map(|_| &train[numbers.below(train.len())]).collect();
        let shown: Vec<i32> = chosen.iter().map(|i| i.label.into()).collect();
        let began = Instant::now();
        let fed = data::batch(&chosen, size, Some(&mut numbers))?;
        let loss = running.run(&[&fed, &Array::new(&[rows], &shown)?])?[0].get_f64(0);
        if number % 10 == 0 || number + 1 == first + args.steps {
            let seconds = began.elapsed().as_secs_f64();
            let (speed, each) = (rows as f64 / seconds, seconds / args.gpus as f64);
            println!("step {number}, loss = {loss:.2} ({speed:.1} examples/sec; {each:.3} sec/batch)");
        }
        if !loss.is_finite() {
            return Err(Error::invalid(format!("the loss of step {number} is {loss}; use a smaller --rate")));
        }
    }
    if let Some(folder) = &args.checkpoint_dir {
        let path = saver.save(&session, folder.join("model.ckpt"), (first + args.steps) as i64)?;
        println!("saved {}", path.display());
    }
    // Tested with the averages in the variables' place, as the tutorial evaluates.
    let pairs = g.trainable_variables().into_iter().filter_map(|v| Some((v, averages.average(v)?)));
    let values = pairs.map(|(v, average)| Ok((v, session.value(average)?))).collect::<turret::Result<Vec<_>>>()?;
    session.load_all(&values.iter().map(|(v, value)| (*v, value)).collect::<Vec<_>>())?;
    let mut right = 0;
    for part in test.chunks(100) {
        let shown: Vec<&Image> = part.iter().collect();
        let found = session.run(&[(tested, &data::batch(&shown, size, None)?)], &[scores], &[])?;
        let rows = found[0].as_slice::<f32>()?.chunks(CLASSES);
        right += rows.zip(part).filter(|(row, image)| largest(row) == image.label as usize).count();
    }
    println!("precision @ 1 = {:.3} on {} images", right as f64 / test.len() as f64, test.len());
    Ok(())
}

fn largest(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0)
}
