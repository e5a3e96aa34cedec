//! What a plan is made for: the fed tensors with their sizes, the fetches, the targets.

use crate::base::{Array, DType, Dims};
use crate::graph::{NodeId, TensorId};
use std::sync::Arc;

/// One fed tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedSpec {
    /// The tensor.
    pub tensor: TensorId,
    /// Its element type.
    pub dtype: DType,
    /// Its sizes.
    pub dims: Dims,
    /// Its value, for small integer feeds; used only where sizes depend on it.
    pub value: Option<Arc<Array>>,
}

/// What a plan is made for.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Signature {
    /// The fed tensors, each once.
    pub feeds: Vec<FeedSpec>,
    /// The fetched tensors, each once.
    pub fetches: Vec<TensorId>,
    /// The operations to run.
    pub targets: Vec<NodeId>,
}

impl Signature {
    /// The feed of this tensor.
    pub fn feed(&self, tensor: TensorId) -> Option<usize> {
        self.feeds.iter().position(|f| f.tensor == tensor)
    }
}
