//! Embeddings: a row of a variable for each number.

use super::scope::layer;
use crate::base::DType;
use crate::graph::{Init, Regularizer, Tensor};
use crate::ops::VariableOptions;

/// What [`embedding`] can be told beside its sizes; the defaults are Keras's.
#[derive(Clone, Debug)]
pub struct EmbeddingOptions {
    /// The layer's name; without it `embedding`, `embedding_1`, ….
    pub name: Option<String>,
    /// How the rows start; uniform in `[-0.05, 0.05)`.
    pub init: Option<Init>,
    /// A penalty on the rows, instead of the scope's. It makes their gradient dense.
    pub regularizer: Option<Regularizer>,
    /// Whether optimizers change the rows; true.
    pub trainable: bool,
    /// The element type; without it the scope's.
    pub dtype: Option<DType>,
}

impl Default for EmbeddingOptions {
    fn default() -> Self {
        let init = Some(Init::random_uniform(-0.05, 0.05));
        EmbeddingOptions { name: None, init, regularizer: None, trainable: true, dtype: None }
    }
}

impl EmbeddingOptions {
    /// Options that only give the name.
    pub fn named(name: &str) -> Self {
        EmbeddingOptions { name: Some(name.to_string()), ..EmbeddingOptions::default() }
    }
}

/// The rows with these numbers, `int32` or `int64`, of a variable `embeddings` `[rows, width]`: `[…]` gives
/// `[…, width]`. The variable's gradient is only these rows.
///
/// Reported: numbers that are no integers, and no rows or width. A number that is out of range ends the step.
#[track_caller]
pub fn embedding<'g>(ids: Tensor<'g>, rows: usize, width: usize, options: EmbeddingOptions) -> Tensor<'g> {
    layer(ids, options.name.clone().as_deref(), "embedding", |l| {
        if !ids.dtype().is_integer() {
            return l.refuse(format!("want numbers of rows, int32 or int64, got '{}' {}", ids.name(), ids.dtype()));
        }
        if rows == 0 || width == 0 {
            return l.refuse(format!("want 1 or more rows and columns, got [{rows}, {width}]"));
        }
        let EmbeddingOptions { init, regularizer, trainable, dtype, .. } = options;
        let of_rows = VariableOptions { dtype, trainable, regularizer, ..VariableOptions::default() };
        let table = l.graph.get_variable_with("embeddings", [rows, width], init, of_rows);
        l.graph.embedding_lookup(table, ids)
    })
}
