//! Recurrent cells, and the unrolling of one over a sequence.
//!
//! Absent: loops over sequences of unknown length (`tf.nn.dynamic_rnn`), and rows of different lengths.

use super::scope::{Layer, Weight, in_scope, number};
use crate::graph::{Graph, Init, ScopeOptions, Tensor, Variable};
use std::cell::RefCell;

/// One step of a recurrent network.
///
/// A cell makes its variables at its first step, in the variable scope that is current then, and keeps them; in another
/// name scope, such as the next tower's, it looks them up anew. Where a step cannot be built, that is reported, and its
/// tensors are poison.
pub trait RnnCell<'g> {
    /// The name that its variables get where none was given, as in `basic_lstm_cell`.
    fn default_name(&self) -> &'static str;

    /// The sizes of the parts of its state, each of which is `[batch, size]`.
    fn state_sizes(&self) -> Vec<usize>;

    /// The size of its output, which is `[batch, size]`.
    fn output_size(&self) -> usize;

    /// The output and the next state, from an input `[batch, inputs]` and the state in its parts.
    fn step(&self, x: Tensor<'g>, state: &[Tensor<'g>]) -> (Tensor<'g>, Vec<Tensor<'g>>);

    /// A state of zeros for as many rows as this tensor has, of its type.
    fn zero_state(&self, like: Tensor<'g>) -> Vec<Tensor<'g>> {
        let graph = like.graph();
        let camel: String = self.default_name().split('_').map(capitalized).collect();
        graph.with_source(graph.source_line(), || {
            graph.name_scope(&format!("{camel}ZeroState"), || {
                self.state_sizes().into_iter().map(|size| zeros(like, size)).collect()
            })
        })
    }
}

/// `lstm` becomes `LSTM`, `cell` becomes `Cell`.
fn capitalized(word: &str) -> String {
    match word {
        "lstm" | "gru" | "rnn" => word.to_uppercase(),
        _ => word.chars().take(1).flat_map(char::to_uppercase).chain(word.chars().skip(1)).collect(),
    }
}

/// Zeros `[rows of a tensor, size]`.
fn zeros<'g>(like: Tensor<'g>, size: usize) -> Tensor<'g> {
    let graph = like.graph();
    if like.is_poison() {
        return like;
    }
    graph.name_scope("zeros", || {
        let rows = match like.shape().dim(0).and_then(|n| i32::try_from(n).ok()) {
            Some(rows) => graph.constant_named("rows", vec![rows]),
            None => like.shape_tensor().slice(&[0], &[1]),
        };
        let size = graph.constant_named("size", vec![i32::try_from(size).unwrap_or(i32::MAX)]);
        let sizes = graph.concat([rows, size], 0);
        graph.fill(sizes, number(like, 0.0, "Const"))
    })
}

/// Unrolls a cell over the inputs of a sequence, `[batch, inputs]` each, in the variable scope `rnn`: its outputs, one
/// for each input, and the state at the end. Without a first state it starts from zeros.
///
/// An empty sequence gives no outputs and the first state. Reported: a first state that is not the cell's.
#[track_caller]
pub fn static_rnn<'g>(
    cell: &dyn RnnCell<'g>,
    inputs: &[Tensor<'g>],
    first: Option<&[Tensor<'g>]>,
) -> (Vec<Tensor<'g>>, Vec<Tensor<'g>>) {
    let Some(graph) = inputs.iter().map(|x| x.graph()).next() else {
        return (Vec::new(), first.map(<[_]>::to_vec).unwrap_or_default());
    };
    in_scope(graph, None, "rnn", |_| {
        let mut state = match first {
            Some(given) => given.to_vec(),
            None => cell.zero_state(inputs[0]),
        };
        let mut outputs = Vec::with_capacity(inputs.len());
        for &x in inputs {
            let (output, next) = cell.step(x, &state);
            outputs.push(output);
            state = next;
        }
        (outputs, state)
    })
}

/// Where a cell was built, and with which variables.
struct Built<'g> {
    graph: &'g Graph,
    /// The name scope around.
    around: String,
    /// The name scope of its ops.
    inside: String,
    /// The full name of its variable scope.
    name: String,
    variables: Vec<Variable<'g>>,
}

/// What a cell keeps between steps.
#[derive(Default)]
pub(super) struct Kept<'g> {
    built: RefCell<Vec<Built<'g>>>,
    /// Whether the current variable scope is opened once more around the cell's, as TensorFlow does for cells that
    /// have no variables of their own.
    again: bool,
}

/// A cell's output and next state.
type Step<'g> = (Tensor<'g>, Vec<Tensor<'g>>);

impl<'g> Kept<'g> {
    /// For a cell without variables of its own.
    pub fn of_cells() -> Kept<'g> {
        Kept { again: true, ..Kept::default() }
    }

    /// Builds a step in the cell's scope: `make` makes or finds the variables for inputs of this size, once for each
    /// name scope around; `compute` builds the ops.
    #[track_caller]
    pub fn step(
        &self,
        cell: &dyn RnnCell<'g>,
        name: Option<&str>,
        (x, state): (Tensor<'g>, &[Tensor<'g>]),
        make: impl FnOnce(&Layer<'g>, usize) -> Vec<Variable<'g>>,
        compute: impl FnOnce(&[Variable<'g>]) -> Step<'g>,
    ) -> Step<'g> {
        let graph = x.graph();
        let poison = || (graph.poison_tensor(), vec![graph.poison_tensor(); cell.state_sizes().len()]);
        let around = graph.current_name_scope();
        let known = {
            let kept = self.built.borrow();
            let built = kept.iter().find(|b| b.around == around && std::ptr::eq(b.graph, graph));
            built.map(|b| (b.inside.clone(), b.name.clone(), b.variables.clone()))
        };
        let refused = |layer: &Layer<'g>, message: String| {
            layer.refuse(message);
            poison()
        };
        let source = graph.source_line();
        graph.with_source(source, || match known {
            _ if x.is_poison() => poison(),
            Some((inside, name, variables)) => graph.name_scope(&format!("{inside}/"), || {
                let layer = Layer::again(graph, name);
                match check(&layer, cell, x, state) {
                    Ok(_) => compute(&variables),
                    Err(message) => refused(&layer, message),
                }
            }),
            None => self.around(graph, || {
                in_scope(graph, name, cell.default_name(), |layer| {
                    let inputs = match check(layer, cell, x, state) {
                        Ok(inputs) => inputs,
                        Err(message) => return refused(layer, message),
                    };
                    let (inside, variables) = (graph.current_name_scope(), make(layer, inputs));
                    let name = layer.name().to_string();
                    self.built.borrow_mut().push(Built { graph, around, inside, name, variables: variables.clone() });
                    compute(&variables)
                })
            }),
        })
    }

    fn around<R>(&self, graph: &Graph, body: impl FnOnce() -> R) -> R {
        match self.again {
            true => graph.reenter(&graph.current_variable_scope(), ScopeOptions::default(), body),
            false => body(),
        }
    }
}

/// The size of an input's rows; an error where there are no units, the input is no matrix of floats, or the state is
/// another cell's.
fn check<'g>(layer: &Layer<'g>, cell: &dyn RnnCell<'g>, x: Tensor<'g>, state: &[Tensor<'g>]) -> Result<usize, String> {
    let sizes = cell.state_sizes();
    if sizes.contains(&0) {
        return Err("want 1 or more units, got 0".into());
    }
    layer.want(x, 2, "[batch, inputs]")?;
    let fits = |(part, &size): (&Tensor<'g>, &usize)| {
        part.is_poison() || (part.rank() == Some(2) && part.shape().dim(1).is_none_or(|s| s == size))
    };
    if state.len() != sizes.len() || !state.iter().zip(&sizes).all(fits) {
        let want: Vec<String> = sizes.iter().map(|s| format!("[batch, {s}]")).collect();
        let got: Vec<String> = state.iter().map(|s| s.shape().to_string()).collect();
        let got = if got.is_empty() { "none".to_string() } else { got.join(", ") };
        return Err(format!("the state must have shapes {}, got {got}; zero_state makes one", want.join(", ")));
    }
    layer.size(x, 1, "a row")
}

/// A kernel and a bias under a prefix such as `gates/`.
pub(super) fn matrix<'g>(
    layer: &Layer<'g>,
    x: Tensor<'g>,
    sizes: [usize; 2],
    prefix: &str,
    kernel: Option<&Init>,
    bias: Init,
) -> [Variable<'g>; 2] {
    let kernel = layer.variable(x, &format!("{prefix}kernel"), sizes, Weight::new(kernel.cloned()));
    let bias = layer.variable(x, &format!("{prefix}bias"), [sizes[1]], Weight::new(bias));
    [kernel, bias]
}

/// `[x, h] · kernel + bias`.
pub(super) fn affine<'g>(x: Tensor<'g>, h: Tensor<'g>, kernel: Variable<'g>, bias: Variable<'g>) -> Tensor<'g> {
    x.graph().concat([x, h], 1).matmul(kernel).bias_add(bias)
}

/// As many equal parts as wanted along the columns.
pub(super) fn columns<'g, const N: usize>(x: Tensor<'g>) -> [Tensor<'g>; N] {
    let parts = x.split(N, 1);
    std::array::from_fn(|i| parts.get(i).copied().unwrap_or_else(|| x.graph().poison_tensor()))
}
