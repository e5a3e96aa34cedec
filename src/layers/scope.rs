//! What all layers share: their scope, their variables, their errors.

use crate::base::{Array, Code, Diagnostic, IntoShape};
use crate::graph::{Graph, Init, NodeBuilder, Regularizer, ScopeOptions, Tensor, Variable};
use crate::ops::{self, VariableOptions};

/// What is computed of a layer's result, as in `Some(|x| x.relu())`.
pub type Activation<'g> = fn(Tensor<'g>) -> Tensor<'g>;

/// The layer that is being built.
pub(super) struct Layer<'g> {
    pub graph: &'g Graph,
    /// The full name of its variable scope.
    name: String,
}

/// What a layer asks of one of its variables.
pub(super) struct Weight {
    pub init: Option<Init>,
    pub regularizer: Option<Regularizer>,
    pub trainable: bool,
}

impl Weight {
    pub fn new(init: impl Into<Option<Init>>) -> Weight {
        Weight { init: init.into(), regularizer: None, trainable: true }
    }

    pub fn regularized(self, regularizer: Option<Regularizer>) -> Weight {
        Weight { regularizer, ..self }
    }

    pub fn trainable(self, trainable: bool) -> Weight {
        Weight { trainable, ..self }
    }
}

/// Runs the body in the scope of a layer on this input; poison in is poison out.
#[track_caller]
pub(super) fn layer<'g>(
    input: Tensor<'g>,
    name: Option<&str>,
    default_name: &str,
    body: impl FnOnce(&Layer<'g>) -> Tensor<'g>,
) -> Tensor<'g> {
    let graph = input.graph();
    in_scope(graph, name, default_name, |layer| if input.is_poison() { input } else { body(layer) })
}

/// Runs the body in a layer's scope.
#[track_caller]
pub(super) fn in_scope<'g, R>(
    graph: &'g Graph,
    name: Option<&str>,
    default_name: &str,
    body: impl FnOnce(&Layer<'g>) -> R,
) -> R {
    let source = graph.source_line();
    let inside = || {
        let name = graph.current_variable_scope().name().to_string();
        body(&Layer { graph, name })
    };
    graph.with_source(source, || match name {
        Some(name) => graph.variable_scope_with(name, ScopeOptions::default(), inside),
        None => graph.variable_scope_default(default_name, inside),
    })
}

impl<'g> Layer<'g> {
    /// A layer that was built before, for a later use of it.
    pub fn again(graph: &'g Graph, name: String) -> Layer<'g> {
        Layer { graph, name }
    }

    /// The full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reports what is wrong with the layer.
    #[track_caller]
    pub fn refuse(&self, message: impl std::fmt::Display) -> Tensor<'g> {
        let message = format!("layer '{}': {message}", self.name);
        self.graph.report(Diagnostic::at(Code::InvalidArgument, message, self.graph.source_line()));
        self.graph.poison_tensor()
    }

    /// A variable of the layer, of the type of its input.
    #[track_caller]
    pub fn variable(&self, like: Tensor<'g>, name: &str, shape: impl IntoShape, weight: Weight) -> Variable<'g> {
        let Weight { init, regularizer, trainable } = weight;
        let options =
            VariableOptions { dtype: Some(like.dtype()), trainable, regularizer, ..VariableOptions::default() };
        self.graph.get_variable_with(name, shape, init, options)
    }

    /// The size of an axis that a variable's shape needs, or what is wrong.
    pub fn size(&self, input: Tensor<'g>, axis: usize, what: &str) -> Result<usize, String> {
        input.shape().dim(axis).ok_or_else(|| {
            format!(
                "the size of {what} must be known, which is axis {axis} of '{}' {}; declare it where the input is made",
                input.name(),
                input.shape()
            )
        })
    }

    /// An error unless the input has this rank and floats, for layers that say what each axis is.
    pub fn want(&self, input: Tensor<'g>, rank: usize, axes: &str) -> Result<(), String> {
        floats(input)?;
        match input.rank() == Some(rank) {
            true => Ok(()),
            false => Err(format!(
                "want an input of rank {rank}, {axes}, got '{}' {}; reshape it",
                input.name(),
                input.shape()
            )),
        }
    }
}

/// Starts a node of an op type by name.
#[track_caller]
pub(super) fn node<'g>(graph: &'g Graph, op: &'static str) -> NodeBuilder<'g> {
    match ops::find(op) {
        Some(op) => graph.node_of(op),
        None => {
            let message = format!("there is no op type '{op}'");
            graph.report(Diagnostic::at(Code::Unimplemented, message, graph.source_line()));
            // Whatever the type, a node of a poison input is poison.
            graph.node_of(ops::TABLE[0]).input(graph.poison_tensor())
        }
    }
}

/// A number of a tensor's type as a constant.
#[track_caller]
pub(super) fn number<'g>(like: Tensor<'g>, value: f64, name: &'static str) -> Tensor<'g> {
    match Array::from_f64(like.dtype(), &[], &[value]) {
        Ok(value) if !like.is_poison() => like.graph().constant_named(name, value),
        _ => like.graph().poison_tensor(),
    }
}

/// An error unless the input has floats.
pub(super) fn floats(input: Tensor<'_>) -> Result<(), String> {
    match input.dtype().is_floating() {
        true => Ok(()),
        false => Err(format!("want an input of floats, got '{}' {}; cast it", input.name(), input.dtype())),
    }
}

/// The result under an activation, if there is one.
#[track_caller]
pub(super) fn activated<'g>(x: Tensor<'g>, activation: Option<Activation<'g>>) -> Tensor<'g> {
    activation.map_or(x, |f| f(x))
}
