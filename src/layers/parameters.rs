//! How many parameters each layer has: what Keras's `summary` counts.

use crate::graph::{Graph, keys};
use indexmap::IndexMap;
use std::collections::HashSet;

/// The parameters of one layer, which are those of one variable scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerParameters {
    /// The scope's name; empty for variables outside of scopes.
    pub layer: String,
    /// The variables' own names and sizes, in the order of creation.
    pub variables: Vec<(String, Vec<usize>)>,
    /// Numbers that optimizers change.
    pub trainable: usize,
    /// Others, such as moving averages.
    pub other: usize,
}

/// The layers of all saved variables that the graph has so far, in the order of creation. Optimizers' slots and averages
/// are variables too once they are made, so call it before.
pub fn layer_parameters(graph: &Graph) -> Vec<LayerParameters> {
    let trainable: HashSet<_> = graph.variables_in(keys::TRAINABLE_VARIABLES).iter().map(|v| v.op().id()).collect();
    let mut layers: IndexMap<String, LayerParameters> = IndexMap::new();
    for variable in graph.global_variables() {
        let name = variable.name();
        let (layer, own) = name.rsplit_once('/').unwrap_or(("", &name));
        let sizes = variable.shape().to_dims().unwrap_or_default().to_vec();
        let count = variable.shape().num_elements().unwrap_or(0);
        let entry = layers.entry(layer.to_string()).or_insert_with(|| LayerParameters {
            layer: layer.to_string(),
            variables: Vec::new(),
            trainable: 0,
            other: 0,
        });
        entry.variables.push((own.to_string(), sizes));
        match trainable.contains(&variable.op().id()) {
            true => entry.trainable += count,
            false => entry.other += count,
        }
    }
    layers.into_values().collect()
}
