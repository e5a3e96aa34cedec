//! The convolutional network that frameworks are compared on: two convolutions with pools, three affine layers.
//!
//! Absent: what [`cifar10`](super::cifar10) has beside it, local response normalization and weight decay.

use super::{channels, row};
use crate::graph::{Init, Tensor, Variable};
use crate::layers::scope::{Layer, Weight, layer};
use crate::layers::{flatten, max_pooling2d};
use crate::ops::{ConvOptions, Padding, PoolOptions};

/// How [`cnn`] is built.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cnn {
    /// Filters of each of the two convolutions; 64.
    pub filters: usize,
    /// Units of the two affine layers before the last one; 384 and 192.
    pub units: [usize; 2],
    /// The number of classes; 10.
    pub classes: usize,
}

impl Default for Cnn {
    fn default() -> Self {
        Cnn { filters: 64, units: [384, 192], classes: 10 }
    }
}

impl Cnn {
    /// The height and width of the comparison's images.
    pub const SIZE: usize = 24;
}

/// The classes' scores `[batch, classes]` of images `[batch, height, width, channels]`: two convolutions of 5 by 5 with
/// bias, ReLU and a largest pool of 3 by 3 that moves by two, two affine layers with ReLU, and one without.
///
/// Variables `w` and `b` in the scopes `layer0` to `layer4`; weights begin normal, cut at two deviations of
/// `1 / sqrt(inputs of a unit)`, biases at zero.
#[track_caller]
pub fn cnn<'g>(images: Tensor<'g>, options: Cnn) -> Tensor<'g> {
    let graph = images.graph();
    graph.with_source(graph.source_line(), || {
        let pool = PoolOptions::new([3, 3], [2, 2], Padding::Same);
        let mut h = images;
        for name in ["layer0", "layer1"] {
            h = max_pooling2d(convolution(h, name, options.filters).relu(), pool);
        }
        h = flatten(h);
        for (name, units) in ["layer2", "layer3"].into_iter().zip(options.units) {
            h = affine(h, name, units).relu();
        }
        affine(h, "layer4", options.classes)
    })
}

fn variables<'g>(l: &Layer<'g>, x: Tensor<'g>, shape: &[usize]) -> [Variable<'g>; 2] {
    let (inputs, units) = shape.split_at(shape.len() - 1);
    let deviation = 1.0 / (inputs.iter().product::<usize>().max(1) as f64).sqrt();
    let w = l.variable(x, "w", shape, Weight::new(Init::truncated_normal(0.0, deviation)));
    [w, l.variable(x, "b", units, Weight::new(Init::Zeros))]
}

fn convolution<'g>(x: Tensor<'g>, name: &str, filters: usize) -> Tensor<'g> {
    layer(x, Some(name), name, |l| {
        let channels = match channels(l, x) {
            Ok(channels) => channels,
            Err(message) => return l.refuse(message),
        };
        if filters == 0 {
            return l.refuse("want 1 or more filters, got 0");
        }
        let [w, b] = variables(l, x, &[5, 5, channels, filters]);
        x.conv2d(w, ConvOptions::new([1, 1], Padding::Same)).bias_add(b)
    })
}

fn affine<'g>(x: Tensor<'g>, name: &str, units: usize) -> Tensor<'g> {
    layer(x, Some(name), name, |l| {
        let inputs = match row(l, x, units, "units") {
            Ok(inputs) => inputs,
            Err(message) => return l.refuse(message),
        };
        let [w, b] = variables(l, x, &[inputs, units]);
        x.matmul(w).bias_add(b)
    })
}
