//! Gated recurrent units, plain recurrent cells, and cells one above the other, as `tf.nn.rnn_cell` has them.

use super::rnn::{Kept, RnnCell, affine, columns, matrix};
use super::scope::Activation;
use crate::graph::{Init, Tensor};
use std::cell::RefCell;

/// `tf.nn.rnn_cell.BasicRNNCell`: `h' = tanh([x, h] · kernel + bias)`. Its state and its output are `h`.
#[derive(Default)]
pub struct BasicRnnCell<'g> {
    units: usize,
    name: Option<String>,
    activation: Option<Activation<'g>>,
    kept: Kept<'g>,
}

impl<'g> BasicRnnCell<'g> {
    /// A cell of so many units.
    pub fn new(units: usize) -> Self {
        BasicRnnCell { units, ..BasicRnnCell::default() }
    }

    /// Another scope of the variables than `basic_rnn_cell`.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_string());
        self
    }

    /// What the state goes through, instead of `tanh`.
    #[must_use]
    pub fn activation(mut self, activation: Activation<'g>) -> Self {
        self.activation = Some(activation);
        self
    }
}

impl<'g> RnnCell<'g> for BasicRnnCell<'g> {
    fn default_name(&self) -> &'static str {
        "basic_rnn_cell"
    }

    fn state_sizes(&self) -> Vec<usize> {
        vec![self.units]
    }

    fn output_size(&self) -> usize {
        self.units
    }

    #[track_caller]
    fn step(&self, x: Tensor<'g>, state: &[Tensor<'g>]) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let act = self.activation.unwrap_or(|x| x.tanh());
        self.kept.step(
            self,
            self.name.as_deref(),
            (x, state),
            |l, inputs| matrix(l, x, [inputs.saturating_add(self.units), self.units], "", None, Init::Zeros).to_vec(),
            |variables| {
                let (&[kernel, bias], &[h]) = (variables, state) else { unreachable!("two variables, one part") };
                let h = act(affine(x, h, kernel, bias));
                (h, vec![h])
            },
        )
    }
}

/// `tf.nn.rnn_cell.GRUCell` (Cho et al., 2014): `r, u = sigmoid([x, h] · gates + bias)`,
/// `h' = u · h + (1 − u) · tanh([x, r · h] · candidate + bias)`. Its state and its output are `h`.
///
/// Variables `gates/kernel` `[inputs + units, 2 units]`, `gates/bias`, which starts from ones,
/// `candidate/kernel` `[inputs + units, units]`, `candidate/bias`.
#[derive(Default)]
pub struct GruCell<'g> {
    units: usize,
    name: Option<String>,
    activation: Option<Activation<'g>>,
    init: Option<Init>,
    kept: Kept<'g>,
}

impl<'g> GruCell<'g> {
    /// A cell of so many units.
    pub fn new(units: usize) -> Self {
        GruCell { units, ..GruCell::default() }
    }

    /// Another scope of the variables than `gru_cell`.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_string());
        self
    }

    /// What the candidate goes through, instead of `tanh`.
    #[must_use]
    pub fn activation(mut self, activation: Activation<'g>) -> Self {
        self.activation = Some(activation);
        self
    }

    /// How both kernels start, instead of as the scope says.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.init = Some(init);
        self
    }
}

impl<'g> RnnCell<'g> for GruCell<'g> {
    fn default_name(&self) -> &'static str {
        "gru_cell"
    }

    fn state_sizes(&self) -> Vec<usize> {
        vec![self.units]
    }

    fn output_size(&self) -> usize {
        self.units
    }

    #[track_caller]
    fn step(&self, x: Tensor<'g>, state: &[Tensor<'g>]) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let act = self.activation.unwrap_or(|x| x.tanh());
        self.kept.step(
            self,
            self.name.as_deref(),
            (x, state),
            |l, inputs| {
                let rows = inputs.saturating_add(self.units);
                let (init, twice) = (self.init.as_ref(), self.units.saturating_mul(2));
                let mut all = matrix(l, x, [rows, twice], "gates/", init, Init::Ones).to_vec();
                all.extend(matrix(l, x, [rows, self.units], "candidate/", init, Init::Zeros));
                all
            },
            |variables| {
                let (&[gates, gates_bias, candidate, candidate_bias], &[h]) = (variables, state) else {
                    unreachable!("four variables, one part")
                };
                let [r, u] = columns(affine(x, h, gates, gates_bias).sigmoid());
                let new = act(affine(x, r * h, candidate, candidate_bias));
                let h = u * h + (1.0 - u) * new;
                (h, vec![h])
            },
        )
    }
}

/// `tf.nn.rnn_cell.MultiRNNCell`: each cell's output is the next one's input. Its state is the cells' states, one after
/// another; its output is the last cell's. Variables under `multi_rnn_cell/cell_i/`.
pub struct MultiRnnCell<'g> {
    cells: Vec<Box<dyn RnnCell<'g> + 'g>>,
    name: Option<String>,
    kept: Kept<'g>,
    /// The name scopes of the cells, by the name scope that the whole was built in.
    scopes: RefCell<Vec<(String, Vec<String>)>>,
}

impl<'g> MultiRnnCell<'g> {
    /// These cells, the first one reads the input.
    pub fn new(cells: impl IntoIterator<Item = Box<dyn RnnCell<'g> + 'g>>) -> Self {
        MultiRnnCell {
            cells: cells.into_iter().collect(),
            name: None,
            kept: Kept::of_cells(),
            scopes: RefCell::default(),
        }
    }

    /// Another name for the variables' scope.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_string());
        self
    }

    /// Runs the body in the scope of cell `i`, again in the same name scope where there is one already.
    fn in_cell<R>(&self, x: Tensor<'g>, i: usize, body: impl FnOnce() -> R) -> R {
        let graph = x.graph();
        let around = graph.current_name_scope();
        let known = {
            let scopes = self.scopes.borrow();
            scopes.iter().find(|(a, _)| *a == around).and_then(|(_, cells)| cells.get(i).cloned())
        };
        match known {
            Some(scope) => graph.name_scope(&format!("{scope}/"), body),
            None => graph.variable_scope(&format!("cell_{i}"), || {
                let inside = graph.current_name_scope();
                let mut scopes = self.scopes.borrow_mut();
                match scopes.iter_mut().find(|(a, _)| *a == around) {
                    Some((_, cells)) => cells.push(inside),
                    None => scopes.push((around, vec![inside])),
                }
                drop(scopes);
                body()
            }),
        }
    }
}

impl<'g> RnnCell<'g> for MultiRnnCell<'g> {
    fn default_name(&self) -> &'static str {
        "multi_rnn_cell"
    }

    fn state_sizes(&self) -> Vec<usize> {
        self.cells.iter().flat_map(|c| c.state_sizes()).collect()
    }

    fn output_size(&self) -> usize {
        self.cells.last().map_or(0, |c| c.output_size())
    }

    #[track_caller]
    fn step(&self, x: Tensor<'g>, state: &[Tensor<'g>]) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        self.kept.step(
            self,
            self.name.as_deref(),
            (x, state),
            |_, _| Vec::new(),
            |_| {
                let (mut h, mut next, mut from) = (x, Vec::with_capacity(state.len()), 0);
                for (i, cell) in self.cells.iter().enumerate() {
                    let parts = cell.state_sizes().len();
                    let (output, of_cell) = self.in_cell(x, i, || cell.step(h, &state[from..from + parts]));
                    h = output;
                    next.extend(of_cell);
                    from += parts;
                }
                (h, next)
            },
        )
    }
}
