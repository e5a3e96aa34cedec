//! The network of TensorFlow's CIFAR-10 tutorial (`tensorflow/models`, `tutorials/image/cifar10`), by its names.

use super::{channels, row};
use crate::graph::{Init, Regularizer, Tensor, Variable};
use crate::layers::scope::{Layer, Weight, layer, node};
use crate::layers::{flatten, max_pooling2d};
use crate::ops::{ConvOptions, LrnOptions, Padding, PoolOptions};

/// How [`cifar10`] is built; the defaults are the tutorial's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cifar10 {
    /// The number of classes; 10.
    pub classes: usize,
    /// The weight decay of the two fully connected layers; 0.004.
    pub weight_decay: f64,
}

impl Default for Cifar10 {
    fn default() -> Self {
        Cifar10 { classes: 10, weight_decay: 0.004 }
    }
}

impl Cifar10 {
    /// The height and width of the tutorial's images, which are cut from 32 by 32.
    pub const SIZE: usize = 24;
}

/// The classes' scores `[batch, classes]` of images `[batch, height, width, 3]`: two convolutions of 5 by 5 with pooling
/// and local response normalization, two fully connected layers with weight decay, and a linear one.
///
/// Variables `weights` and `biases` in the scopes `conv1`, `conv2`, `local3`, `local4`, `softmax_linear`. The decay is a
/// penalty in [`keys::REGULARIZATION_LOSSES`](crate::graph::keys::REGULARIZATION_LOSSES).
#[track_caller]
pub fn cifar10<'g>(images: Tensor<'g>, options: Cifar10) -> Tensor<'g> {
    let graph = images.graph();
    graph.with_source(graph.source_line(), || {
        let pool = PoolOptions::new([3, 3], [2, 2], Padding::Same);
        let lrn = LrnOptions { depth_radius: 4, bias: 1.0, alpha: 0.001 / 9.0, beta: 0.75 };
        let h = convolution(images, "conv1", 0.0);
        let h = max_pooling2d(h, pool).lrn(lrn);
        let h = convolution(h, "conv2", 0.1).lrn(lrn);
        let h = flatten(max_pooling2d(h, pool));
        let decay = (options.weight_decay != 0.0).then_some(Regularizer::L2(options.weight_decay));
        let h = affine(h, "local3", 384, 0.04, 0.1, decay).relu();
        let h = affine(h, "local4", 192, 0.04, 0.1, decay).relu();
        affine(h, "softmax_linear", options.classes, 1.0 / 192.0, 0.0, None)
    })
}

/// The weights of so many inputs and units, whose deviation this is, and their biases.
fn variables<'g>(
    l: &Layer<'g>,
    x: Tensor<'g>,
    shape: &[usize],
    (deviation, bias): (f64, f64),
    decay: Option<Regularizer>,
) -> [Variable<'g>; 2] {
    let weight = Weight::new(Init::truncated_normal(0.0, deviation)).regularized(decay);
    let weights = l.variable(x, "weights", shape, weight);
    [weights, l.variable(x, "biases", &shape[shape.len() - 1..], Weight::new(Init::Constant(bias)))]
}

/// 64 filters of 5 by 5, a bias and a ReLU.
fn convolution<'g>(x: Tensor<'g>, name: &str, bias: f64) -> Tensor<'g> {
    const FILTERS: usize = 64;
    layer(x, Some(name), name, |l| {
        let channels = match channels(l, x) {
            Ok(channels) => channels,
            Err(message) => return l.refuse(message),
        };
        let [kernel, biases] = variables(l, x, &[5, 5, channels, FILTERS], (0.05, bias), None);
        let sum = x.conv2d(kernel, ConvOptions::new([1, 1], Padding::Same)).bias_add(biases);
        node(l.graph, "Relu").name(name.to_string()).input(sum).tensor()
    })
}

fn affine<'g>(
    x: Tensor<'g>,
    name: &str,
    units: usize,
    deviation: f64,
    bias: f64,
    decay: Option<Regularizer>,
) -> Tensor<'g> {
    layer(x, Some(name), name, |l| {
        let inputs = match row(l, x, units, "classes") {
            Ok(inputs) => inputs,
            Err(message) => return l.refuse(message),
        };
        let [kernel, biases] = variables(l, x, &[inputs, units], (deviation, bias), decay);
        x.matmul(kernel) + biases
    })
}
