//! The variable registry: which variables there are, and whether a request makes one or finds one.
//!
//! Absent: the nodes of a variable; `ops` builds them when the registry says so.

use super::graph::{Graph, Inner};
use super::names::{self, Kind};
use super::node::{NodeId, TensorId};
use super::tensor::{Operation, Tensor, Variable};
use super::variable_scope::{Reuse, VariableScope};
use crate::base::{Code, DType, Diagnostic, Shape, SourceLine, nearest};
use indexmap::IndexMap;
use std::collections::HashMap;

#[derive(Clone)]
pub(crate) struct Entry {
    pub node: NodeId,
    pub read: TensorId,
    pub initializer: NodeId,
    pub shape: Shape,
    pub dtype: DType,
    pub source: SourceLine,
    pub name_scope: String,
}

#[derive(Default)]
pub(super) struct Registry {
    /// By full name. Variables made outside `get_variable` (slots, counters) have entries too.
    variables: IndexMap<String, Entry>,
    by_node: HashMap<NodeId, usize>,
}

impl Registry {
    pub fn index_of(&self, node: NodeId) -> Option<usize> {
        self.by_node.get(&node).copied()
    }
}

/// What the registry says to a request.
pub(crate) enum Lookup<'g> {
    Found(Variable<'g>),
    /// To be made under this full name.
    Missing(String),
    /// Reported already.
    Refused,
}

impl Graph {
    /// Finds a variable by its full name; never makes one.
    ///
    /// # Errors
    /// When there is none, with the current scope and the nearest name.
    pub fn find_variable(&self, name: &str) -> crate::base::Result<Variable<'_>> {
        let mut inner = self.lock();
        if let Some(index) = inner.registry.variables.get_index_of(name) {
            return Ok(self.variable_at(&inner, index));
        }
        let scope = inner.scope().variables.clone();
        Err(Diagnostic::new(Code::NotFound, missing(&inner, &scope, name, "get_variable makes one")).into())
    }

    /// The variable of this node, if it is one.
    pub fn variable_of(&self, node: NodeId) -> Option<Variable<'_>> {
        let inner = self.lock();
        inner.registry.index_of(node).map(|i| self.variable_at(&inner, i))
    }

    /// All variables in the order of creation, slots and counters included, saved or not.
    pub fn all_variables(&self) -> Vec<Variable<'_>> {
        let inner = self.lock();
        (0..inner.registry.variables.len()).map(|i| self.variable_at(&inner, i)).collect()
    }

    /// The registry's rules for one request, in TensorFlow's order.
    pub(crate) fn look_up(
        &self,
        name: &str,
        shape: Option<&Shape>,
        dtype: Option<DType>,
        source: SourceLine,
    ) -> Lookup<'_> {
        let mut inner = self.lock();
        let scope = inner.scope().variables.clone();
        let full = scope.full_name(name);
        let refuse = |inner: &mut Inner, code, message| {
            inner.diagnostics.push(Diagnostic::at(code, message, source));
            Lookup::Refused
        };
        if let Err(illegal) = names::check(name, !scope.name.is_empty(), Kind::Variable) {
            return refuse(&mut inner, Code::InvalidArgument, illegal.message);
        }
        let found = inner.registry.variables.get_index_of(&full);
        let Some(index) = found else {
            if scope.reuse != Reuse::True {
                return Lookup::Missing(full);
            }
            let fix = "make it first, or set Reuse::Auto in its variable scope";
            let message = missing(&inner, &scope, &full, fix);
            return refuse(&mut inner, Code::NotFound, message);
        };
        let entry = inner.registry.variables[index].clone();
        let tower = if entry.name_scope.is_empty() { String::new() } else { format!(" in '{}'", entry.name_scope) };
        let first = format!("first made{tower} at {}", entry.source);
        if scope.reuse == Reuse::Inherit {
            let place = if scope.name.is_empty() { "the root scope".into() } else { format!("scope '{}'", scope.name) };
            return refuse(
                &mut inner,
                Code::AlreadyExists,
                format!(
                    "variable '{full}' already exists, {first}; reuse is off in {place}; \
                     did you mean Reuse::True or Reuse::Auto in the variable scope, or reuse_variables()?"
                ),
            );
        }
        if let Some(shape) = shape.filter(|s| !s.is_poisoned() && !s.is_compatible_with(&entry.shape)) {
            return refuse(
                &mut inner,
                Code::InvalidArgument,
                format!(
                    "cannot share variable '{full}': asked for shape {shape}, found shape {}, {first}; \
                     do the sizes of the inputs differ between the two calls?",
                    entry.shape
                ),
            );
        }
        if let Some(dtype) = dtype.filter(|&d| d != entry.dtype) {
            return refuse(
                &mut inner,
                Code::InvalidArgument,
                format!(
                    "cannot share variable '{full}': asked for dtype {dtype}, found dtype {}, {first}; \
                     give the dtype where the variable is reused",
                    entry.dtype
                ),
            );
        }
        Lookup::Found(self.variable_at(&inner, index))
    }

    /// False if this cannot be a variable's full name; that is reported.
    pub(crate) fn is_legal_variable_name(&self, full: &str, source: SourceLine) -> bool {
        match names::check(full, false, Kind::Variable) {
            Ok(()) => true,
            Err(illegal) => {
                self.report(Diagnostic::at(Code::InvalidArgument, illegal.message, source));
                false
            }
        }
    }

    /// Enters a new variable under its full name. `tracked` says that it is one of `get_variable`'s; another, such as a
    /// slot, goes by its node's name where the full name is taken.
    pub(crate) fn register(&self, full_name: &str, tracked: bool, entry: Entry) -> Option<Variable<'_>> {
        let mut inner = self.lock();
        let mut key = full_name.to_string();
        if let Some(first) = inner.registry.variables.get(full_name) {
            // Looking up and making are two steps, and another thread came between them.
            if tracked {
                let message = format!(
                    "variable '{full_name}' was made by two threads at once, first at {}; make it in one of them",
                    first.source
                );
                inner.diagnostics.push(Diagnostic::at(Code::AlreadyExists, message, entry.source));
                return None;
            }
            if let Some((name, _)) = inner.nodes.get_index(entry.node.index()) {
                key = name.to_string();
            }
        }
        let node = entry.node;
        let (index, _) = inner.registry.variables.insert_full(key, entry);
        inner.registry.by_node.insert(node, index);
        Some(self.variable_at(&inner, index))
    }

    pub(super) fn variable_at(&self, inner: &Inner, index: usize) -> Variable<'_> {
        let entry = &inner.registry.variables[index];
        Variable {
            node: Operation { graph: self, id: entry.node },
            read: Tensor { graph: self, id: entry.read },
            initializer: Operation { graph: self, id: entry.initializer },
        }
    }
}

fn missing(inner: &Inner, scope: &VariableScope, full: &str, fix: &str) -> String {
    let near = nearest(full, inner.registry.variables.keys().map(String::as_str));
    let near = near.map_or(String::new(), |n| format!("; did you mean '{n}'?"));
    let place = if scope.name.is_empty() { "the root scope".into() } else { format!("scope '{}'", scope.name) };
    format!("variable '{full}' does not exist (asked for in {place}, reuse {}){near}; {fix}", scope.reuse)
}
