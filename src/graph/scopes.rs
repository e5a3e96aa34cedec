//! Scopes as closures: names, devices, colocation, control dependencies.
//!
//! Invariant: a scope restores only what it set, also when the body panics; `reuse_variables` inside a name or device
//! scope therefore lasts until its variable scope is left.

use super::graph::{Graph, Inner, NewNode};
use super::names;
use super::node::{DeviceRule, NodeId, TensorId};
use super::registry::VariableScope;
use super::tensor::Operation;
use crate::base::{Code, DeviceSpec, Diagnostic, Result, SourceLine};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::panic::Location;
use std::sync::Arc;

type DeviceFunction = Arc<dyn Fn(&NewNode<'_>) -> Result<DeviceSpec> + Send + Sync>;

#[derive(Clone)]
pub(super) enum DeviceEntry {
    Spec(DeviceSpec, DeviceRule),
    Clear,
    Function(DeviceFunction),
}

#[derive(Clone, Default)]
pub(super) struct ControlFrame {
    nodes: SmallVec<[NodeId; 2]>,
    /// Nodes added inside: what depends on one of them depends on the frame's nodes already.
    seen: HashSet<NodeId>,
}

/// What every new node is made under.
#[derive(Clone, Default)]
pub(super) struct ScopeState {
    /// Absolute, without a trailing slash.
    pub name_scope: String,
    pub devices: Arc<Vec<DeviceEntry>>,
    pub colocation: Vec<NodeId>,
    pub controls: Vec<ControlFrame>,
    pub variables: VariableScope,
    pub source: Option<SourceLine>,
}

impl ScopeState {
    /// The control inputs of a new node: its own, and those of the open frames that are not implied already.
    pub fn control_inputs(&self, inputs: &[TensorId], own: &[NodeId]) -> SmallVec<[NodeId; 2]> {
        let mut controls: SmallVec<[NodeId; 2]> = SmallVec::new();
        for &node in own {
            if !controls.contains(&node) {
                controls.push(node);
            }
        }
        for frame in &self.controls {
            if inputs.iter().any(|i| frame.seen.contains(&i.node)) {
                continue;
            }
            for &node in &frame.nodes {
                if !controls.contains(&node) && !inputs.iter().any(|i| i.node == node) {
                    controls.push(node);
                }
            }
        }
        controls
    }

    /// Tells the open frames of a new node.
    pub fn saw(&mut self, id: NodeId) {
        for frame in &mut self.controls {
            frame.seen.insert(id);
        }
    }
}

/// Restores a part of the scope state when it goes.
struct Restore<'g, T, F: Fn(&mut ScopeState, T)> {
    graph: &'g Graph,
    saved: Option<T>,
    put: F,
}

impl<T, F: Fn(&mut ScopeState, T)> Drop for Restore<'_, T, F> {
    fn drop(&mut self) {
        if let Some(saved) = self.saved.take() {
            (self.put)(&mut self.graph.lock().scope, saved);
        }
    }
}

impl Graph {
    /// Runs `body` under a changed scope state, and puts back what `change` returned.
    pub(super) fn scoped<R, T>(
        &self,
        change: impl FnOnce(&mut Inner) -> T,
        put: impl Fn(&mut ScopeState, T),
        body: impl FnOnce() -> R,
    ) -> R {
        let saved = change(&mut self.lock());
        let _restore = Restore { graph: self, saved: Some(saved), put };
        body()
    }

    /// Nodes made in the body are named `name/…`. The name is made unique; with a trailing `/` it is absolute and
    /// re-entered as it is; empty leaves all name scopes.
    #[track_caller]
    pub fn name_scope<R>(&self, name: &str, body: impl FnOnce() -> R) -> R {
        let source = Location::caller();
        self.scoped(|inner| inner.enter_name_scope(name, source), |s, old| s.name_scope = old, body)
    }

    /// The current name scope without a trailing slash; empty at the root.
    pub fn current_name_scope(&self) -> String {
        self.lock().scope.name_scope.clone()
    }

    /// Nodes made in the body ask for this device; what an inner scope sets wins, field by field. `""` changes nothing.
    #[track_caller]
    pub fn device<R>(&self, spec: &str, body: impl FnOnce() -> R) -> R {
        let entry = match DeviceSpec::parse(spec) {
            Ok(spec) => DeviceEntry::Spec(spec, DeviceRule::Scope),
            Err(e) => {
                self.report(Diagnostic::at(
                    Code::InvalidArgument,
                    e.diagnostics()[0].message.clone(),
                    Location::caller(),
                ));
                DeviceEntry::Spec(DeviceSpec::any(), DeviceRule::Scope)
            }
        };
        self.device_entry(entry, body)
    }

    /// Nodes made in the body ask for this device, for the given reason.
    pub fn device_because<R>(&self, spec: DeviceSpec, rule: DeviceRule, body: impl FnOnce() -> R) -> R {
        self.device_entry(DeviceEntry::Spec(spec, rule), body)
    }

    /// The device scopes around do not count in the body.
    pub fn no_device<R>(&self, body: impl FnOnce() -> R) -> R {
        self.device_entry(DeviceEntry::Clear, body)
    }

    /// The function is asked for the device of every node made in the body; what it gives replaces what the scopes
    /// inside of it gave, so it merges by itself.
    pub fn device_function<R>(
        &self,
        function: impl Fn(&NewNode<'_>) -> Result<DeviceSpec> + Send + Sync + 'static,
        body: impl FnOnce() -> R,
    ) -> R {
        self.device_entry(DeviceEntry::Function(Arc::new(function)), body)
    }

    fn device_entry<R>(&self, entry: DeviceEntry, body: impl FnOnce() -> R) -> R {
        let push = |inner: &mut Inner| {
            let old = inner.scope.devices.clone();
            Arc::make_mut(&mut inner.scope.devices).push(entry);
            old
        };
        self.scoped(push, |s, old| s.devices = old, body)
    }

    /// True if a device scope or function is open.
    pub fn in_device_scope(&self) -> bool {
        let inner = self.lock();
        inner.scope.devices.iter().any(|d| !matches!(d, DeviceEntry::Spec(s, _) if s.is_empty()))
    }

    /// Nodes made in the body share the device of `op`; device scopes around do not count.
    pub fn colocate_with<'g, R>(&'g self, op: impl Into<Operation<'g>>, body: impl FnOnce() -> R) -> R {
        let id = op.into().id;
        let push = |inner: &mut Inner| {
            let old = (inner.scope.colocation.clone(), std::mem::take(&mut inner.scope.devices));
            if id != NodeId::POISON {
                inner.scope.colocation.push(id);
            }
            old
        };
        self.scoped(push, |s, (colocation, devices)| (s.colocation, s.devices) = (colocation, devices), body)
    }

    /// Nodes made in the body run after all of these.
    pub fn control_dependencies<'g, R>(
        &'g self,
        ops: impl IntoIterator<Item = Operation<'g>>,
        body: impl FnOnce() -> R,
    ) -> R {
        let nodes = ops.into_iter().map(|o| o.id).collect();
        let push = |inner: &mut Inner| {
            inner.scope.controls.push(ControlFrame { nodes, seen: HashSet::new() });
            inner.scope.controls.len() - 1
        };
        self.scoped(push, |s, len| s.controls.truncate(len), body)
    }

    /// The control dependencies around do not count in the body.
    pub fn no_control_dependencies<R>(&self, body: impl FnOnce() -> R) -> R {
        self.scoped(|inner| std::mem::take(&mut inner.scope.controls), |s, old| s.controls = old, body)
    }

    /// Nodes made in the body carry this source line.
    pub fn with_source<R>(&self, source: SourceLine, body: impl FnOnce() -> R) -> R {
        self.scoped(|inner| inner.scope.source.replace(source), |s, old| s.source = old, body)
    }

    /// The source line that nodes made now would carry, for code that builds on a user's behalf.
    #[track_caller]
    pub fn source_line(&self) -> SourceLine {
        self.lock().scope.source.unwrap_or(Location::caller())
    }
}

impl Inner {
    /// Enters a name scope and returns the one to put back.
    pub fn enter_name_scope(&mut self, name: &str, source: SourceLine) -> String {
        let old = self.scope.name_scope.clone();
        self.scope.name_scope = if name.is_empty() {
            String::new()
        } else if let Err(message) = names::check(name, !old.is_empty(), "scope") {
            self.diagnostics.push(Diagnostic::at(Code::InvalidArgument, message, source));
            old.clone()
        } else if let Some(exact) = name.strip_suffix('/') {
            exact.to_string()
        } else if old.is_empty() {
            self.names.unique(name)
        } else {
            self.names.unique(&format!("{old}/{name}"))
        };
        old
    }
}
