//! A classifier of handwritten digits, trained with 1 and with 4 towers: the same batch, the same accuracy.
//!
//! Fails, with exit code 1, where a run stays below 95 % on images that it was not trained on.

#[macro_use]
mod printing;

use clap::Parser;
use flate2::read::GzDecoder;
use std::io::Read;
use std::process::ExitCode;
use turret::base::{Array, DType, Error};
use turret::graph::{Graph, Init, Reuse, ScopeOptions, Tensor, VariablePlacement};
use turret::run::{Session, SessionOptions};
use turret::train::{Optimizer, Towers};

const PIXELS: usize = 64;
const CLASSES: usize = 10;
const WANTED: f64 = 0.95;

/// Trains a classifier of handwritten digits.
#[derive(Parser)]
struct Args {
    /// Numbers of towers to train with, one run each
    #[arg(long, value_delimiter = ',', default_value = "1,4", value_parser = positive)]
    towers: Vec<usize>,
    /// Passes over the training images
    #[arg(long, default_value_t = 30, value_parser = positive)]
    epochs: usize,
    /// Rows of one step, over all towers
    #[arg(long, default_value_t = 96, value_parser = positive)]
    batch: usize,
    /// Learning rate of Adam
    #[arg(long, default_value_t = 0.02)]
    lr: f64,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or("want a whole number above 0".to_string())
}

fn main() -> turret::Result<ExitCode> {
    let args = Args::parse();
    let digits = Digits::read()?;
    println!("{} images to train on, {} to test on", digits.train.len(), digits.test.len());
    let (batch, images) = (args.batch, digits.train.len());
    if batch > images {
        let message = format!("cannot take --batch {batch} of {images} images; use --batch {images} or less");
        return Err(Error::invalid(message));
    }
    let mut accuracies = Vec::new();
    for &towers in &args.towers {
        accuracies.push((towers, train(&args, towers, &digits)?));
    }
    for (towers, accuracy) in &accuracies {
        let plural = if *towers == 1 { "" } else { "s" };
        println!("test accuracy, {towers} tower{plural}: {:.2} %", 100.0 * accuracy);
    }
    if accuracies.iter().all(|(_, accuracy)| *accuracy >= WANTED) {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("want {} % in each run; train for more epochs", 100.0 * WANTED);
    Ok(ExitCode::FAILURE)
}

/// One hidden layer; gives the scores of the classes.
fn scores<'g>(g: &'g Graph, images: Tensor<'g>) -> Tensor<'g> {
    let dense = |scope: &str, x: Tensor<'g>, width: usize| {
        let (w, b) = g.variable_scope(scope, || {
            (g.get_variable("w", [x.dim(1), width], Init::glorot_uniform()), g.get_variable("b", [width], Init::Zeros))
        });
        x.matmul(w) + b
    };
    dense("scores", dense("hidden", images, 64).relu(), CLASSES)
}

/// Trains with this many towers, and gives the accuracy on the test images.
fn train(args: &Args, towers: usize, digits: &Digits) -> turret::Result<f64> {
    let g = Graph::new();
    g.set_random_seed(1);
    let images = g.placeholder(DType::F32, [Some(args.batch), Some(PIXELS)], "images");
    let labels = g.placeholder(DType::I32, [args.batch], "labels");
    let builder = Towers::new(&g, towers).variables(VariablePlacement::host());
    let (image_parts, label_parts) = (builder.split(images), builder.split(labels));
    let optimizer = Optimizer::adam(args.lr);
    let built = builder.build(&optimizer, |tower| {
        let scores = scores(&g, image_parts[tower.index()]);
        scores.sparse_softmax_cross_entropy(label_parts[tower.index()]).mean()
    });
    let train_op = built.apply(&optimizer);
    // The same variables once more, for a whole set of images at once.
    let tested = g.placeholder(DType::F32, [None, Some(PIXELS)], "tested");
    let reuse = ScopeOptions::reuse(Reuse::True);
    let tested_scores = g.reenter(&g.current_variable_scope(), reuse, || scores(&g, tested));
    print!("{}", built.summary);

    let session = Session::new(&g, SessionOptions::devices(&format!("auto:{towers}"))?)?;
    session.initialize()?;
    let accuracy = |set: &[Digit]| -> turret::Result<f64> {
        let found = session.run(&[(tested, &pixels(set)?)], &[tested_scores], &[])?;
        let rows = found[0].as_slice::<f32>()?.chunks(CLASSES);
        let right = rows.zip(set).filter(|(row, digit)| largest(row) == digit.label as usize).count();
        Ok(right as f64 / set.len() as f64)
    };
    let step = session.callable(&[images, labels], &[built.loss], &[train_op]);
    for epoch in 1..=args.epochs {
        let mut losses = Vec::new();
        // The file's order is fixed, and already well mixed; the rows that fill no batch are left out.
        for batch in digits.train.chunks_exact(args.batch) {
            let labels: Vec<i32> = batch.iter().map(|d| d.label).collect();
            let loss = step.run(&[&pixels(batch)?, &Array::new(&[args.batch], &labels)?])?;
            losses.push(loss[0].get_f64(0));
        }
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        println!("epoch {epoch}: loss {loss:.4}, test accuracy {:.2} %", 100.0 * accuracy(&digits.test)?);
    }
    accuracy(&digits.test)
}

fn largest(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0)
}

/// An image, its pixels in [0, 1], and what it shows.
struct Digit {
    pixels: Vec<f32>,
    label: i32,
}

/// The images; each fifth is for testing.
struct Digits {
    train: Vec<Digit>,
    test: Vec<Digit>,
}

impl Digits {
    fn read() -> turret::Result<Digits> {
        let mut text = String::new();
        let file = include_bytes!("data/digits.csv.gz");
        GzDecoder::new(&file[..])
            .read_to_string(&mut text)
            .map_err(|e| Error::invalid(format!("digits.csv.gz: {e}")))?;
        let mut digits = Digits { train: Vec::new(), test: Vec::new() };
        for (i, line) in text.lines().enumerate() {
            let numbers: Result<Vec<f32>, _> = line.split(',').map(str::parse).collect();
            let numbers = numbers.map_err(|e| Error::invalid(format!("digits.csv.gz line {}: {e}", i + 1)))?;
            let [pixels @ .., label] = &numbers[..] else { continue };
            let digit = Digit { pixels: pixels.iter().map(|p| p / 16.0).collect(), label: *label as i32 };
            if i % 5 == 4 { digits.test.push(digit) } else { digits.train.push(digit) }
        }
        Ok(digits)
    }
}

fn pixels(digits: &[Digit]) -> turret::Result<Array> {
    let pixels: Vec<f32> = digits.iter().flat_map(|d| &d.pixels).copied().collect();
    Array::new(&[digits.len(), PIXELS], &pixels)
}
