//! Values of variables and places of random generators: read at one moment, and set all or none.

use super::feeds::check_handles;
use super::generators::random_nodes;
use super::session::{Session, State, uninitialized};
use crate::base::{Array, Code, Diagnostic, Error, Result};
use crate::device::DeviceKind;
use crate::graph::{Node, NodeId, Seeds, TensorDesc, Variable};
use crate::plan::place;
use indexmap::IndexMap;
use std::collections::HashSet;
use std::sync::Arc;

/// Where random nodes' streams stand, by node name: two seeds, and the blocks that are taken.
pub type GeneratorPlaces = IndexMap<String, [u64; 3]>;

/// What a session holds between two steps.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The values of the variables that were asked for, in that order.
    pub values: Vec<Array>,
    /// The random nodes that give seeds or have drawn, but for those of initial values, in the order of the graph.
    pub generators: GeneratorPlaces,
}

impl<'g> Session<'g> {
    /// A variable's value.
    ///
    /// # Errors
    /// When it has none, or belongs to another graph.
    pub fn value(&self, variable: Variable<'_>) -> Result<Array> {
        check_handles(self.graph, [], &[variable.value()], &[])?;
        let state = self.lock()?;
        state.store.read(variable.op().id())?.ok_or_else(|| uninitialized(&[variable.name()], false))
    }

    /// The values of these variables, and where random nodes stand, all between the same two steps.
    ///
    /// # Errors
    /// Variables without a value, all in one error; variables of another graph; a session that a fault left with
    /// variables half changed.
    pub fn snapshot(&self, variables: &[Variable<'_>]) -> Result<Snapshot> {
        let reads: Vec<_> = variables.iter().map(|v| v.value()).collect();
        check_handles(self.graph, [], &reads, &[])?;
        let mut state = self.lock()?;
        state.check_whole()?;
        let without: Vec<String> =
            variables.iter().filter(|v| !state.store.is_initialized(v.op().id())).map(|v| v.name()).collect();
        if !without.is_empty() {
            return Err(uninitialized(&without, false));
        }
        let read = |v: &Variable<'_>| Ok(state.store.read(v.op().id())?.unwrap_or(Array::scalar(0f32)));
        let values = variables.iter().map(read).collect::<Result<_>>()?;
        let mut generators = GeneratorPlaces::new();
        for (node, seeds) in self.random_nodes(&mut state) {
            let start = match seeds {
                Seeds::Given([seed, seed2]) => Some([seed, seed2, 0]),
                Seeds::Entropy => None,
            };
            if let Some(words) = state.generators.words(node.id)?.or(start) {
                generators.insert(node.name.to_string(), words);
            }
        }
        Ok(Snapshot { values, generators })
    }

    /// Gives a variable a value.
    ///
    /// # Errors
    /// When type or shape differ, or it cannot be placed; it is as before then.
    pub fn load(&self, variable: Variable<'_>, value: &Array) -> Result<()> {
        self.load_all(&[(variable, value)])
    }

    /// Gives several variables their values: all or none.
    ///
    /// # Errors
    /// All mismatches in one error; nothing is changed then.
    pub fn load_all(&self, values: &[(Variable<'_>, &Array)]) -> Result<()> {
        self.load_snapshot(values, None)
    }

    /// As [`Session::load_all`]; random nodes then go on from these places, and those that are not named start again.
    /// A node that gives seeds keeps them, and takes only its place in the stream. Names that the graph has not are
    /// passed over, and without places nothing changes for random nodes.
    ///
    /// # Errors
    /// As [`Session::load_all`].
    pub fn load_snapshot(&self, values: &[(Variable<'_>, &Array)], generators: Option<&GeneratorPlaces>) -> Result<()> {
        let mut problems = Vec::new();
        for (variable, value) in values {
            check_handles(self.graph, [], &[variable.value()], &[])?;
            if value.dtype() != variable.dtype() || value.shape() != variable.shape() {
                problems.push(Diagnostic::new(
                    Code::InvalidArgument,
                    format!(
                        "cannot load variable '{}': want {} {}, got {} {}",
                        variable.name(),
                        variable.dtype(),
                        variable.shape(),
                        value.dtype(),
                        value.shape()
                    ),
                ));
            }
        }
        if !problems.is_empty() {
            return Err(Error::from_all(problems));
        }
        let mut state = self.lock()?;
        state.check_not_lost()?;
        let ids: Vec<NodeId> = values.iter().map(|(v, _)| v.op().id()).collect();
        self.refresh_nodes(&mut state);
        let nodes = state.nodes.clone();
        let placed = place(&nodes, &ids, &self.options.machine, &self.options.placement)?;
        for &id in &ids {
            let node = &nodes[id.index()];
            let desc =
                TensorDesc { dtype: node.outputs[0].dtype, dims: node.outputs[0].shape.to_dims().unwrap_or_default() };
            let device = state.store.device(id).unwrap_or(placed.device(id));
            let info = self.options.machine.device(device);
            state.store.ensure(id, &node.name, &desc, info, &self.accounts[device.index()])?;
        }
        self.write_all(&mut state, &ids, values)?;
        if let Some(places) = generators {
            self.move_generators(&mut state, places)?;
        }
        let loaded: HashSet<NodeId> = ids.into_iter().collect();
        if self.graph.all_variables().iter().all(|v| loaded.contains(&v.op().id())) {
            state.broken = None;
        }
        Ok(())
    }

    /// Writes all values, or puts back what was there where a device fails.
    fn write_all(&self, state: &mut State, ids: &[NodeId], values: &[(Variable<'_>, &Array)]) -> Result<()> {
        // Only a driver can refuse a write.
        let can_fail = self.options.machine.devices().iter().any(|d| d.kind == DeviceKind::Cuda);
        let mut before = Vec::new();
        for (id, (_, value)) in ids.iter().zip(values) {
            if can_fail {
                before.push((*id, state.store.read(*id)?));
            }
            let Err(error) = state.store.write(*id, value) else { continue };
            let put_back = before.into_iter().rev().try_for_each(|(id, value)| state.store.put_back(id, value));
            if put_back.is_err() {
                state.broken = Some(error.to_string());
            }
            return Err(error);
        }
        Ok(())
    }

    /// The random nodes that training draws from.
    fn random_nodes(&self, state: &mut State) -> Vec<(Arc<Node>, Seeds)> {
        self.refresh_nodes(state);
        let initializers: Vec<NodeId> = self.graph.all_variables().iter().map(|v| v.initializer().id()).collect();
        // A variable that was made since is initialized by nodes that are not there yet.
        let known = initializers.into_iter().filter(|id| id.index() < state.nodes.len()).collect::<Vec<_>>();
        random_nodes(&state.nodes, &known)
    }

    fn move_generators(&self, state: &mut State, places: &GeneratorPlaces) -> Result<()> {
        for (node, seeds) in self.random_nodes(state) {
            let words = match (places.get(&*node.name), seeds) {
                (Some(&[_, _, taken]), Seeds::Given([seed, seed2])) => [seed, seed2, taken],
                (Some(words), Seeds::Entropy) => *words,
                (None, seeds) => crate::graph::Generator::new(seeds).words(),
            };
            state.generators.set(node.id, words)?;
        }
        Ok(())
    }
}
