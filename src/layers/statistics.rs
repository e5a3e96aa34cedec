//! Which statistics move the moving averages of batch normalization, and when: once a step, whatever the number of towers.
//!
//! Invariant: a moving average is written by one update operation, the first that is built for it.

use super::scope::{node, number};
use crate::graph::{CollectionItem, Graph, NodeId, Tensor, Variable, keys};
use std::collections::BTreeMap;

/// Whose batches move the moving averages, where several towers share them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MovingStatistics {
    /// The first tower's, or in general those of the first use of a layer in training. It costs nothing, and with as
    /// many rows in each tower is as good a sample as any.
    #[default]
    FirstTower,
    /// The mean of all towers' statistics, in one update after the last tower; better with few rows in each. Towers of
    /// different numbers of rows count alike. [`Towers::build`](crate::train::Towers::build) makes the update; towers
    /// that are written by hand call [`update_from_towers`] after the last.
    MeanOfTowers,
}

/// Moves an average by a statistic of the batch, as far as it is this use's turn. The decay is a tensor or a number.
pub(super) fn update<'g>(
    how: MovingStatistics,
    average: Variable<'g>,
    statistic: Tensor<'g>,
    decay: Result<Tensor<'g>, f64>,
) {
    let graph = average.op().graph();
    if average.is_poison() || statistic.is_poison() || is_updated(graph, average) {
        return;
    }
    match how {
        MovingStatistics::FirstTower => {
            let moved = match decay {
                Ok(decay) => average.assign_moving_average(statistic, decay),
                Err(decay) => average.assign_moving_average(statistic, decay),
            };
            graph.add_to_collection(keys::UPDATE_OPS, moved.op());
        }
        MovingStatistics::MeanOfTowers => {
            let beside =
                |decay: f64| graph.no_colocation(|| graph.colocate_with(average, || number(statistic, decay, "Const")));
            let decay = decay.unwrap_or_else(beside);
            graph.add_to_collection(keys::TOWER_STATISTICS, average);
            graph.add_to_collection(keys::TOWER_STATISTICS, statistic);
            graph.add_to_collection(keys::TOWER_STATISTICS, decay);
        }
    }
}

/// True if an update operation writes this variable.
fn is_updated<'g>(graph: &'g Graph, average: Variable<'g>) -> bool {
    let writes = |item: CollectionItem<'g>| {
        let node = match item {
            CollectionItem::Operation(op) => op.node(),
            CollectionItem::Tensor(tensor) => tensor.op().node(),
            CollectionItem::Variable(_) => None,
        };
        node.is_some_and(|n| {
            let written = n.op.written_inputs(&n.attrs, n.inputs.len());
            written.iter().filter_map(|&i| n.inputs.get(i)).any(|input| input.node == average.op().id())
        })
    };
    graph.get_collection(keys::UPDATE_OPS).into_iter().any(writes)
}

/// Builds the updates of moving averages by the mean over the towers that were built so far, for layers that were told
/// [`MovingStatistics::MeanOfTowers`], and adds them to [`keys::UPDATE_OPS`]. Averages that have an update are left out, so
/// a second call changes nothing.
#[track_caller]
pub fn update_from_towers(graph: &Graph) {
    let source = graph.source_line();
    let items = graph.get_collection(keys::TOWER_STATISTICS);
    let mut by_average: BTreeMap<NodeId, (Variable<'_>, Tensor<'_>, Vec<Tensor<'_>>)> = BTreeMap::new();
    for three in items.chunks_exact(3) {
        let [CollectionItem::Variable(average), CollectionItem::Tensor(statistic), CollectionItem::Tensor(decay)] =
            three
        else {
            continue;
        };
        let (.., statistics) = by_average.entry(average.op().id()).or_insert((*average, *decay, Vec::new()));
        statistics.push(*statistic);
    }
    graph.with_source(source, || {
        for (average, decay, statistics) in by_average.into_values() {
            if is_updated(graph, average) {
                continue;
            }
            let mean = || {
                graph.name_scope(&average.name(), || {
                    let [first, _, ..] = statistics[..] else { return statistics[0] };
                    let sum = node(graph, "AddN").name("sum").inputs(statistics.iter().copied()).tensor();
                    let towers = number(first, statistics.len() as f64, "towers");
                    node(graph, "RealDiv").name("mean").inputs([sum, towers]).tensor()
                })
            };
            graph.name_scope("moving_averages", || {
                let mean = graph.no_colocation(|| graph.colocate_with(average, mean));
                let moved = average.assign_moving_average(mean, decay);
                graph.add_to_collection(keys::UPDATE_OPS, moved.op());
            });
        }
    });
}
