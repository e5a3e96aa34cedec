//! Collections: named, ordered lists of tensors, operations and variables.

use super::graph::Graph;
use super::node::{NodeId, TensorId};
use super::tensor::{Operation, Tensor, Variable};
use indexmap::IndexMap;
use std::panic::Location;

/// The names of the collections that turret itself fills or reads, as TensorFlow has them.
pub mod keys {
    /// All variables that are saved.
    pub const GLOBAL_VARIABLES: &str = "variables";
    /// Variables that optimizers change.
    pub const TRAINABLE_VARIABLES: &str = "trainable_variables";
    /// Losses.
    pub const LOSSES: &str = "losses";
    /// Losses of regularizers, such as weight decay.
    pub const REGULARIZATION_LOSSES: &str = "regularization_losses";
    /// Operations to run with every training step.
    pub const UPDATE_OPS: &str = "update_ops";
    /// Threes of a moving average, a tower's statistic for it, and the decay: what is averaged over the towers before the
    /// moving averages are updated.
    pub const TOWER_STATISTICS: &str = "tower_statistics";
    /// Variables that moving averages are kept of.
    pub const MOVING_AVERAGE_VARIABLES: &str = "moving_average_variables";
    /// Train operations.
    pub const TRAIN_OP: &str = "train_op";
    /// The step counter.
    pub const GLOBAL_STEP: &str = "global_step";
}

#[derive(Clone, Copy, PartialEq)]
enum Item {
    Tensor(TensorId),
    Operation(NodeId),
    /// An index into the registry's variables.
    Variable(usize),
}

#[derive(Default)]
pub(super) struct Collections(IndexMap<String, Vec<Item>>);

/// A member of a collection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CollectionItem<'g> {
    /// A tensor.
    Tensor(Tensor<'g>),
    /// An operation.
    Operation(Operation<'g>),
    /// A variable.
    Variable(Variable<'g>),
}

impl<'g> From<Tensor<'g>> for CollectionItem<'g> {
    fn from(tensor: Tensor<'g>) -> Self {
        CollectionItem::Tensor(tensor)
    }
}

impl<'g> From<Operation<'g>> for CollectionItem<'g> {
    fn from(op: Operation<'g>) -> Self {
        CollectionItem::Operation(op)
    }
}

impl<'g> From<Variable<'g>> for CollectionItem<'g> {
    fn from(variable: Variable<'g>) -> Self {
        CollectionItem::Variable(variable)
    }
}

impl<'g> CollectionItem<'g> {
    /// The name of the tensor, operation or variable.
    pub fn name(self) -> String {
        match self {
            CollectionItem::Tensor(t) => t.name(),
            CollectionItem::Operation(o) => o.name(),
            CollectionItem::Variable(v) => v.name(),
        }
    }
}

impl Graph {
    /// Adds to a collection. Poison handles are left out: their error is reported.
    /// One of another graph is reported.
    #[track_caller]
    pub fn add_to_collection<'g>(&'g self, key: &str, item: impl Into<CollectionItem<'g>>) {
        let item = item.into();
        let op = match item {
            CollectionItem::Tensor(t) => t.op(),
            CollectionItem::Operation(o) => o,
            CollectionItem::Variable(v) => v.op(),
        };
        if self.own(op, "collection", Location::caller()).is_none() {
            return;
        }
        let item = match item {
            CollectionItem::Tensor(t) => Item::Tensor(t.id),
            CollectionItem::Operation(o) => Item::Operation(o.id),
            CollectionItem::Variable(v) => match self.lock().registry.index_of(v.node.id) {
                Some(index) => Item::Variable(index),
                None => return,
            },
        };
        self.lock().collections.0.entry(key.to_string()).or_default().push(item);
    }

    /// The members of a collection, in the order in which they were added.
    pub fn get_collection(&self, key: &str) -> Vec<CollectionItem<'_>> {
        let inner = self.lock();
        let items = inner.collections.0.get(key).map(Vec::as_slice).unwrap_or_default();
        items
            .iter()
            .map(|&item| match item {
                Item::Tensor(id) => Tensor { graph: self, id }.into(),
                Item::Operation(id) => Operation { graph: self, id }.into(),
                Item::Variable(index) => self.variable_at(&inner, index).into(),
            })
            .collect()
    }

    /// The members whose names start with this prefix, such as `tower_1/`.
    pub fn get_collection_in(&self, key: &str, prefix: &str) -> Vec<CollectionItem<'_>> {
        self.get_collection(key).into_iter().filter(|i| i.name().starts_with(prefix)).collect()
    }

    /// The tensors of a collection.
    pub fn tensors_in(&self, key: &str) -> Vec<Tensor<'_>> {
        self.get_collection(key)
            .into_iter()
            .filter_map(|i| match i {
                CollectionItem::Tensor(t) => Some(t),
                _ => None,
            })
            .collect()
    }

    /// The variables of a collection.
    pub fn variables_in(&self, key: &str) -> Vec<Variable<'_>> {
        self.get_collection(key)
            .into_iter()
            .filter_map(|i| match i {
                CollectionItem::Variable(v) => Some(v),
                _ => None,
            })
            .collect()
    }

    /// The variables that optimizers change, in the order of creation.
    pub fn trainable_variables(&self) -> Vec<Variable<'_>> {
        self.variables_in(keys::TRAINABLE_VARIABLES)
    }

    /// All variables that are saved, in the order of creation.
    pub fn global_variables(&self) -> Vec<Variable<'_>> {
        self.variables_in(keys::GLOBAL_VARIABLES)
    }

    /// The names of all collections, in the order of their first member.
    pub fn collection_names(&self) -> Vec<String> {
        self.lock().collections.0.keys().cloned().collect()
    }
}
