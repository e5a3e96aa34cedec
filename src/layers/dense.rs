//! Fully connected layers, and the flattening before them.

use super::scope::{Activation, Weight, activated, floats, layer, node};
use crate::graph::{Init, Regularizer, Tensor};

/// What [`dense`] can be told beside its units; the defaults are TensorFlow's.
#[derive(Clone, Debug)]
pub struct DenseOptions<'g> {
    /// The layer's name; without it `dense`, `dense_1`, ….
    pub name: Option<String>,
    /// Applied to the result; nothing without it.
    pub activation: Option<Activation<'g>>,
    /// Adds a bias; true.
    pub use_bias: bool,
    /// How the kernel starts; without it as the scope says, else Glorot uniform.
    pub kernel_init: Option<Init>,
    /// How the bias starts; zeros.
    pub bias_init: Init,
    /// A penalty on the kernel, instead of the scope's.
    pub kernel_regularizer: Option<Regularizer>,
    /// A penalty on the bias, instead of the scope's.
    pub bias_regularizer: Option<Regularizer>,
    /// Whether optimizers change the variables; true.
    pub trainable: bool,
}

impl Default for DenseOptions<'_> {
    fn default() -> Self {
        DenseOptions {
            name: None,
            activation: None,
            use_bias: true,
            kernel_init: None,
            bias_init: Init::Zeros,
            kernel_regularizer: None,
            bias_regularizer: None,
            trainable: true,
        }
    }
}

impl DenseOptions<'_> {
    /// Options that only give the name.
    pub fn named(name: &str) -> Self {
        DenseOptions { name: Some(name.to_string()), ..DenseOptions::default() }
    }
}

/// `activation(x · kernel + bias)` along the last axis: `[…, inputs]` gives `[…, units]`.
///
/// Variables `kernel` `[inputs, units]` and `bias` `[units]`; ops `MatMul`, `BiasAdd`. An input of rank 3 or more is
/// reshaped to rows and back, under `Tensordot`.
///
/// Reported: no units, an input that holds no floats, has rank below 2 or a last axis of unknown size.
#[track_caller]
pub fn dense<'g>(x: Tensor<'g>, units: usize, options: DenseOptions<'g>) -> Tensor<'g> {
    layer(x, options.name.as_deref(), "dense", |l| {
        let inputs = || {
            floats(x)?;
            let rank = x.rank().filter(|&r| r >= 2).ok_or_else(|| {
                format!("want an input of rank 2 or more, got '{}' {}; flatten or reshape it", x.name(), x.shape())
            })?;
            if units == 0 {
                return Err("want 1 or more units, got 0".to_string());
            }
            Ok((rank, l.size(x, rank - 1, "a row")?))
        };
        let (rank, inputs) = match inputs() {
            Ok(found) => found,
            Err(message) => return l.refuse(message),
        };
        let kernel = Weight::new(options.kernel_init).regularized(options.kernel_regularizer);
        let kernel = l.variable(x, "kernel", [inputs, units], kernel.trainable(options.trainable));
        let bias = options.use_bias.then(|| {
            let bias = Weight::new(options.bias_init).regularized(options.bias_regularizer);
            l.variable(x, "bias", [units], bias.trainable(options.trainable))
        });
        let product = match rank {
            2 => x.matmul(kernel),
            _ => over_rows(x, rank, inputs, units, |rows| rows.matmul(kernel)),
        };
        let sum = bias.map_or(product, |bias| product.bias_add(bias));
        activated(sum, options.activation)
    })
}

/// Computes on the rows `[n, inputs]` of a tensor, and gives the results the tensor's outer axes again.
fn over_rows<'g>(
    x: Tensor<'g>,
    rank: usize,
    inputs: usize,
    units: usize,
    product: impl FnOnce(Tensor<'g>) -> Tensor<'g>,
) -> Tensor<'g> {
    let graph = x.graph();
    graph.name_scope("Tensordot", || {
        let name = format!("{}/", graph.current_name_scope());
        let rows = product(x.reshape([-1, as_i64(inputs)]));
        let shape = x.shape();
        let size = |axis: usize| if axis + 1 == rank { Some(units) } else { shape.dim(axis) };
        let sizes: Vec<Option<usize>> = (0..rank).map(size).collect();
        // One unknown size follows from the others; more are read from the input when it runs.
        let sizes = if sizes.iter().filter(|s| s.is_none()).count() <= 1 {
            graph.constant_named("shape", sizes.iter().map(|s| s.map_or(-1, as_i64)).collect::<Vec<i64>>())
        } else {
            let outer = x.shape_tensor().slice(&[0], &[rank as i64 - 1]);
            let last = graph.constant_named("units", vec![i32::try_from(units).unwrap_or(i32::MAX)]);
            graph.concat([outer, last], 0)
        };
        node(graph, "Reshape").name(name).inputs([rows, sizes]).tensor()
    })
}

fn as_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// All axes but the first in one: `[batch, …]` gives `[batch, n]`. Ops under `flatten`; no variables.
///
/// Reported: a scalar, and an input whose sizes beside the first are not known.
#[track_caller]
pub fn flatten(x: Tensor<'_>) -> Tensor<'_> {
    layer(x, None, "flatten", |l| {
        let shape = x.shape();
        let Some(dims) = shape.dims().filter(|d| !d.is_empty()) else {
            return l.refuse(format!("want an input of rank 1 or more, got '{}' {shape}", x.name()));
        };
        let Some(width) = dims[1..].iter().try_fold(1i64, |n, &d| n.checked_mul(i64::try_from(d?).ok()?)) else {
            return l.refuse(format!(
                "the sizes of all axes but the first must be known, got '{}' {shape}; declare them where the input is made",
                x.name()
            ));
        };
        // A width of zero leaves the other size open, so that it has to be given.
        match (dims[0], width) {
            (Some(rows), _) => x.reshape([as_i64(rows), width]),
            (None, 0) => l.refuse(format!("'{}' {shape} has no elements to flatten", x.name())),
            (None, _) => x.reshape([-1, width]),
        }
    })
}
