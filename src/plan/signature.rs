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
    /// The fed tensors, each once, in the order of their ids: [`Signature::new`] sees to it.
    pub feeds: Vec<FeedSpec>,
    /// The fetched tensors, each once.
    pub fetches: Vec<TensorId>,
    /// The operations to run.
    pub targets: Vec<NodeId>,
}

impl Signature {
    /// A signature of these, in the order of their ids, each once.
    pub fn new(
        feeds: impl IntoIterator<Item = FeedSpec>,
        fetches: impl IntoIterator<Item = TensorId>,
        targets: impl IntoIterator<Item = NodeId>,
    ) -> Signature {
        let mut signature = Signature {
            feeds: feeds.into_iter().collect(),
            fetches: fetches.into_iter().collect(),
            targets: targets.into_iter().collect(),
        };
        signature.feeds.sort_by_key(|f| f.tensor);
        signature.feeds.dedup_by_key(|f| f.tensor);
        signature.fetches.sort_unstable();
        signature.fetches.dedup();
        signature.targets.sort_unstable();
        signature.targets.dedup();
        signature
    }

    /// The feed of this tensor.
    pub fn feed(&self, tensor: TensorId) -> Option<usize> {
        self.feeds.binary_search_by_key(&tensor, |f| f.tensor).ok()
    }
}
