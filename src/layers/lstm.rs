//! Long short-term memory cells (Hochreiter and Schmidhuber, 1997), as `tf.nn.rnn_cell` has them.
//!
//! All four gates come from one product, `[x, h] · kernel + bias`, whose columns are in the order input `i`, candidate
//! `j`, forget `f`, output `o`: `c' = sigmoid(f + forget_bias) · c + sigmoid(i) · tanh(j)` and `h' = tanh(c') · sigmoid(o)`.

use super::rnn::{Kept, RnnCell, affine, columns, matrix};
use super::scope::{Activation, Weight, node, number};
use crate::graph::{Init, Tensor};

/// `tf.nn.rnn_cell.BasicLSTMCell`. Its state is `[c, h]`, its output `h`; variables `kernel` `[inputs + units, 4 units]`
/// and `bias` `[4 units]`.
#[derive(Default)]
pub struct BasicLstmCell<'g> {
    units: usize,
    name: Option<String>,
    forget_bias: f64,
    activation: Option<Activation<'g>>,
    kept: Kept<'g>,
}

impl<'g> BasicLstmCell<'g> {
    /// A cell of so many units; 1 is added to its forget gate.
    pub fn new(units: usize) -> Self {
        BasicLstmCell { units, forget_bias: 1.0, ..BasicLstmCell::default() }
    }

    /// Another scope of the variables than `basic_lstm_cell`.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_string());
        self
    }

    /// What is added to the forget gate, so that a new network remembers, instead of 1.
    #[must_use]
    pub fn forget_bias(mut self, bias: f64) -> Self {
        self.forget_bias = bias;
        self
    }

    /// What candidate and output go through, instead of `tanh`.
    #[must_use]
    pub fn activation(mut self, activation: Activation<'g>) -> Self {
        self.activation = Some(activation);
        self
    }
}

/// A node of two inputs under a name, for `BasicLstmCell`, whose nodes are named as functions are.
fn named<'g>(op: &'static str, name: &'static str, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
    node(a.graph(), op).name(name).inputs([a, b]).tensor()
}

fn tanh<'g>(activation: Option<Activation<'g>>) -> Activation<'g> {
    activation.unwrap_or(|x| x.tanh())
}

impl<'g> RnnCell<'g> for BasicLstmCell<'g> {
    fn default_name(&self) -> &'static str {
        "basic_lstm_cell"
    }

    fn state_sizes(&self) -> Vec<usize> {
        vec![self.units; 2]
    }

    fn output_size(&self) -> usize {
        self.units
    }

    #[track_caller]
    fn step(&self, x: Tensor<'g>, state: &[Tensor<'g>]) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let act = tanh(self.activation);
        let (add, mul) = (|a, b| named("AddV2", "Add", a, b), |a, b| named("Mul", "Mul", a, b));
        self.kept.step(
            self,
            self.name.as_deref(),
            (x, state),
            |l, inputs| {
                let sizes = [inputs.saturating_add(self.units), self.units.saturating_mul(4)];
                matrix(l, x, sizes, "", None, Init::Zeros).to_vec()
            },
            |variables| {
                let (&[kernel, bias], &[c, h]) = (variables, state) else {
                    unreachable!("both were made of two parts")
                };
                let [i, j, f, o] = columns(affine(x, h, kernel, bias));
                let forget_bias = number(x, self.forget_bias, "Const");
                let kept = mul(c, add(f, forget_bias).sigmoid());
                let c = add(kept, mul(i.sigmoid(), act(j)));
                let h = mul(act(c), o.sigmoid());
                (h, vec![c, h])
            },
        )
    }
}

/// `tf.nn.rnn_cell.LSTMCell`: with peepholes, a projection of the output, and clipping where asked for (Sak, Senior and
/// Beaufays, 2014). Its state is `[c, h]`, its output `h`.
///
/// Variables `kernel` and `bias` as [`BasicLstmCell`] has them, with peepholes `w_f_diag`, `w_i_diag`, `w_o_diag`
/// `[units]`, with a projection `projection/kernel` `[units, projection]`.
#[derive(Default)]
pub struct LstmCell<'g> {
    units: usize,
    name: Option<String>,
    peepholes: bool,
    cell_clip: Option<f64>,
    init: Option<Init>,
    projection: Option<usize>,
    projection_clip: Option<f64>,
    forget_bias: f64,
    activation: Option<Activation<'g>>,
    kept: Kept<'g>,
}

impl<'g> LstmCell<'g> {
    /// A cell of so many units, without peepholes, projection and clipping; 1 is added to its forget gate.
    pub fn new(units: usize) -> Self {
        LstmCell { units, forget_bias: 1.0, ..LstmCell::default() }
    }

    /// Another scope of the variables than `lstm_cell`.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_string());
        self
    }

    /// Lets the gates see the memory, unit by unit.
    #[must_use]
    pub fn peepholes(mut self) -> Self {
        self.peepholes = true;
        self
    }

    /// Bounds the memory to `[-clip, clip]`.
    #[must_use]
    pub fn cell_clip(mut self, clip: f64) -> Self {
        self.cell_clip = Some(clip);
        self
    }

    /// How kernel, peepholes and projection start, instead of as the scope says.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.init = Some(init);
        self
    }

    /// Projects the output to this size.
    #[must_use]
    pub fn projection(mut self, size: usize) -> Self {
        self.projection = Some(size);
        self
    }

    /// Bounds the projected output to `[-clip, clip]`.
    #[must_use]
    pub fn projection_clip(mut self, clip: f64) -> Self {
        self.projection_clip = Some(clip);
        self
    }

    /// What is added to the forget gate, so that a new network remembers, instead of 1.
    #[must_use]
    pub fn forget_bias(mut self, bias: f64) -> Self {
        self.forget_bias = bias;
        self
    }

    /// What candidate and output go through, instead of `tanh`.
    #[must_use]
    pub fn activation(mut self, activation: Activation<'g>) -> Self {
        self.activation = Some(activation);
        self
    }
}

/// TensorFlow's `clip_by_value` to both sides of zero.
fn clipped<'g>(x: Tensor<'g>, clip: Option<f64>) -> Tensor<'g> {
    let graph = x.graph();
    let Some(clip) = clip.filter(|_| !x.is_poison()) else { return x };
    let bounded = |op: &'static str, scope: &str, x: &dyn Fn() -> Tensor<'g>, bound: f64| {
        graph.name_scope(scope, || {
            let name = format!("{}/", graph.current_name_scope());
            let x = x();
            node(graph, op).name(name).input(x).input(number(x, bound, "y")).tensor()
        })
    };
    bounded("Maximum", "clip_by_value", &|| bounded("Minimum", "Minimum", &|| x, clip), -clip)
}

impl<'g> RnnCell<'g> for LstmCell<'g> {
    fn default_name(&self) -> &'static str {
        "lstm_cell"
    }

    fn state_sizes(&self) -> Vec<usize> {
        vec![self.units, self.output_size()]
    }

    fn output_size(&self) -> usize {
        self.projection.unwrap_or(self.units)
    }

    #[track_caller]
    fn step(&self, x: Tensor<'g>, state: &[Tensor<'g>]) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let act = tanh(self.activation);
        self.kept.step(
            self,
            self.name.as_deref(),
            (x, state),
            |l, inputs| {
                let sizes = [inputs.saturating_add(self.output_size()), self.units.saturating_mul(4)];
                let mut all = matrix(l, x, sizes, "", self.init.as_ref(), Init::Zeros).to_vec();
                let mut more = |name: &str, sizes: &[usize]| {
                    all.push(l.variable(x, name, sizes, Weight::new(self.init.clone())));
                };
                if self.peepholes {
                    ["w_f_diag", "w_i_diag", "w_o_diag"].iter().for_each(|name| more(name, &[self.units]));
                }
                if let Some(size) = self.projection {
                    more("projection/kernel", &[self.units, size]);
                }
                all
            },
            |variables| {
                let (&[kernel, bias, ref more @ ..], &[c, h]) = (variables, state) else {
                    unreachable!("kernel, bias and a state of two parts were made")
                };
                let (peepholes, projection) = more.split_at(if self.peepholes { 3 } else { 0 });
                let peep = |gate: Tensor<'g>, which: usize, c: Tensor<'g>| match peepholes.get(which) {
                    Some(&w) => gate + w * c,
                    None => gate,
                };
                let [i, j, f, o] = columns(affine(x, h, kernel, bias));
                let kept = peep(f + self.forget_bias, 0, c).sigmoid() * c;
                let c = clipped(kept + peep(i, 1, c).sigmoid() * act(j), self.cell_clip);
                let h = peep(o, 2, c).sigmoid() * act(c);
                let h = match projection {
                    [kernel] => clipped(h.matmul(*kernel), self.projection_clip),
                    _ => h,
                };
                (h, vec![c, h])
            },
        )
    }
}
