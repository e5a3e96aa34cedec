//! The command's networks for images: their inputs, variables and steps.

use crate::command::{self, Ran, good, turret};
use serde_json::Value;

fn document(args: &[&str]) -> Value {
    command::document(&good(args))
}

fn names(document: &Value) -> Vec<&str> {
    let list = document["variables"].as_array().expect("a list of variables");
    list.iter().map(|v| v["name"].as_str().expect("a name")).collect()
}

const CIFAR10: [&str; 8] = ["--model", "cifar10", "--batch", "4", "--image-size", "8", "--towers", "2"];
const MOBILENET: [&str; 12] = [
    "--model",
    "mobilenet_v2",
    "--batch",
    "4",
    "--image-size",
    "32",
    "--classes",
    "5",
    "--width",
    "0.35",
    "--towers",
    "2",
];

#[test]
fn cifar10_is_placed_and_trained() {
    let placed = document(&[&["place", "--json", "--variables", "spread"], &CIFAR10[..]].concat());
    let variables = names(&placed);
    assert_eq!(variables[..4], ["conv1/weights", "conv1/biases", "conv2/weights", "conv2/biases"]);
    assert_eq!(variables.len(), 10);
    for inputs in ["split", "per_tower"] {
        let run =
            ["run", "--json", "--fetch", "loss", "--target", "GradientDescent", "--steps", "3", "--inputs", inputs];
        let steps = document(&[&run, &CIFAR10[..]].concat());
        let losses: Vec<f64> = (0..3).map(|i| steps["steps"][i]["fetches"]["loss"].as_f64().expect("a loss")).collect();
        // About ln 10 with the weights' decay on top; it falls on the same batch.
        assert!((2.0..8.0).contains(&losses[0]) && losses[2] < losses[0], "{losses:?}");
    }
}

#[test]
fn the_cnn_is_placed_and_trained() {
    let cnn = ["--model", "cnn", "--batch", "4", "--image-size", "8"];
    let placed = document(&[&["place", "--json"], &cnn[..]].concat());
    assert_eq!(names(&placed)[..3], ["layer0/w", "layer0/b", "layer1/w"]);
    let run = ["run", "--json", "--fetch", "loss", "--target", "GradientDescent", "--steps", "2"];
    let steps = document(&[&run, &cnn[..]].concat());
    let losses: Vec<f64> = (0..2).map(|i| steps["steps"][i]["fetches"]["loss"].as_f64().expect("a loss")).collect();
    // About ln 10.
    assert!((2.0..3.0).contains(&losses[0]) && losses[1] < losses[0], "{losses:?}");
}

#[test]
fn mobilenet_v2_is_placed_and_trained() {
    let placed = document(&[&["place", "--json"], &MOBILENET[..]].concat());
    assert_eq!(names(&placed).len(), 262);
    let copies = document(&[&["copies", "--json", "--fetch", "loss"], &MOBILENET[..]].concat());
    let moved = copies["copies"].as_array().expect("a list of copies");
    // Each tower gets its images, and no moving average, which training does not read.
    assert!(
        moved.iter().any(|c| c["tensor"] == "split:1" && c["shape"] == serde_json::json!([2, 32, 32, 3])),
        "{copies}"
    );
    assert!(moved.iter().all(|c| !c["tensor"].as_str().expect("a name").contains("moving_")), "{copies}");
    let run = ["run", "--json", "--fetch", "loss", "--target", "GradientDescent", "--steps", "2"];
    let steps = document(&[&run, &MOBILENET[..]].concat());
    let losses: Vec<f64> = (0..2).map(|i| steps["steps"][i]["fetches"]["loss"].as_f64().expect("a loss")).collect();
    assert!(losses.iter().all(|l| l.is_finite()) && losses[0] != losses[1], "{losses:?}");
}

#[test]
fn widths_and_sizes_that_cannot_be_are_refused() {
    let Ran { code, err, .. } = turret(&["place", "--model", "mobilenet_v2", "--width", "0"]);
    assert!(code != 0 && err.contains("want a number above 0 and up to 16"), "{err}");
    let Ran { code, err, .. } = turret(&["place", "--model", "cifar10", "--towers", "3", "--devices", "sim:3"]);
    assert!(code == 1 && err.contains("cannot split --batch 128 over 3 towers: remainder 2; use --batch 126"), "{err}");
}
