//! Scopes as closures: names, devices, colocation, control dependencies.
//!
//! Invariants: a scope restores only what it set, also when the body panics; `reuse_variables` inside a name or device
//! scope therefore lasts until its variable scope is left. Every thread has scopes of its own and starts at the root, as
//! in TensorFlow: a thread that is started inside a scope builds outside of it, and threads that build in one graph share
//! its names, its variables and nothing else.

use super::graph::{Graph, Inner, NewNode};
use super::names::{self, Kind};
use super::node::{DeviceRule, NodeId, TensorId};
use super::tensor::Operation;
use super::variable_scope::VariableScope;
use crate::base::{Code, DeviceSpec, Diagnostic, Result, SourceLine};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
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
    /// How often variable scopes were opened, by full name: what default names are made unique by.
    pub opened: HashMap<String, usize>,
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

/// How often variable scopes were opened by their default names.
#[derive(Clone, Default)]
pub(crate) struct ScopeCounts(HashMap<String, usize>);

/// Restores a part of the scope state when it goes.
struct Restore<'g, T, F: Fn(&mut ScopeState, T)> {
    graph: &'g Graph,
    saved: Option<T>,
    put: F,
}

impl<T, F: Fn(&mut ScopeState, T)> Drop for Restore<'_, T, F> {
    fn drop(&mut self) {
        if let Some(saved) = self.saved.take() {
            (self.put)(self.graph.lock().scope(), saved);
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
        let enter = |inner: &mut Inner| {
            let old = inner.scope().name_scope.clone();
            inner.enter_name_scope(name, source);
            old
        };
        self.scoped(enter, |s, old| s.name_scope = old, body)
    }

    /// The current name scope without a trailing slash; empty at the root.
    pub fn current_name_scope(&self) -> String {
        self.lock().scope().name_scope.clone()
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
            let scope = inner.scope();
            let old = scope.devices.clone();
            Arc::make_mut(&mut scope.devices).push(entry);
            old
        };
        self.scoped(push, |s, old| s.devices = old, body)
    }

    /// True if a device scope or function is open.
    pub fn in_device_scope(&self) -> bool {
        let mut inner = self.lock();
        inner.scope().devices.iter().any(|d| !matches!(d, DeviceEntry::Spec(s, _) if s.is_empty()))
    }

    /// Nodes made in the body share the device of `op`; device scopes around do not count, and one inside only where
    /// `op` asks for no device.
    #[track_caller]
    pub fn colocate_with<'g, R>(&'g self, op: impl Into<Operation<'g>>, body: impl FnOnce() -> R) -> R {
        let op = self.own(op.into(), "colocation", Location::caller());
        let push = |inner: &mut Inner| {
            let scope = inner.scope();
            let old = (scope.colocation.clone(), std::mem::take(&mut scope.devices));
            scope.colocation.extend(op.map(|o| o.id));
            old
        };
        self.scoped(push, |s, (colocation, devices)| (s.colocation, s.devices) = (colocation, devices), body)
    }

    /// The colocation and the device scopes around do not count in the body.
    pub fn no_colocation<R>(&self, body: impl FnOnce() -> R) -> R {
        let clear = |inner: &mut Inner| {
            let scope = inner.scope();
            (std::mem::take(&mut scope.colocation), std::mem::take(&mut scope.devices))
        };
        self.scoped(clear, |s, (colocation, devices)| (s.colocation, s.devices) = (colocation, devices), body)
    }

    /// The operation, unless it is a poison handle, or one of another graph, which is reported.
    pub(super) fn own<'g>(&'g self, op: Operation<'g>, what: &str, source: SourceLine) -> Option<Operation<'g>> {
        if op.is_poison() {
            return None;
        }
        if !std::ptr::eq(op.graph, self) {
            let (name, of, own) = (op.name(), op.graph.number(), self.number());
            let message =
                format!("'{name}' of graph {of} is given for a {what} in graph {own}; build both in one graph");
            self.report(Diagnostic::at(Code::InvalidArgument, message, source));
            return None;
        }
        Some(op)
    }

    /// Nodes made in the body run after all of these. A node that reads another one of the body does so already, and
    /// gets no control inputs of its own.
    #[track_caller]
    pub fn control_dependencies<'g, R>(
        &'g self,
        ops: impl IntoIterator<Item = Operation<'g>>,
        body: impl FnOnce() -> R,
    ) -> R {
        let source = Location::caller();
        let nodes = (ops.into_iter()).filter_map(|o| self.own(o, "control dependency", source)).map(|o| o.id).collect();
        let push = |inner: &mut Inner| {
            let controls = &mut inner.scope().controls;
            controls.push(ControlFrame { nodes, seen: HashSet::new() });
            controls.len() - 1
        };
        self.scoped(push, |s, len| s.controls.truncate(len), body)
    }

    /// The counts that default names of variable scopes are made unique by are these in the body, and go on from where
    /// they are: so scopes that were left are taken up again, as in towers that are built in step.
    pub(crate) fn with_scope_counts<R>(&self, counts: &mut ScopeCounts, body: impl FnOnce() -> R) -> R {
        let swapped = Cell::new(std::mem::take(&mut counts.0));
        let enter = |inner: &mut Inner| std::mem::replace(&mut inner.scope().opened, swapped.take());
        let leave = |s: &mut ScopeState, old| swapped.set(std::mem::replace(&mut s.opened, old));
        let result = self.scoped(enter, leave, body);
        counts.0 = swapped.take();
        result
    }

    /// True if control dependencies are open, so that what is built now is to run after something.
    pub fn in_control_dependencies(&self) -> bool {
        self.lock().scope().controls.iter().any(|frame| !frame.nodes.is_empty())
    }

    /// The control dependencies around do not count in the body.
    pub fn no_control_dependencies<R>(&self, body: impl FnOnce() -> R) -> R {
        self.scoped(|inner| std::mem::take(&mut inner.scope().controls), |s, old| s.controls = old, body)
    }

    /// Nodes made in the body carry this source line.
    pub fn with_source<R>(&self, source: SourceLine, body: impl FnOnce() -> R) -> R {
        self.scoped(|inner| inner.scope().source.replace(source), |s, old| s.source = old, body)
    }

    /// The source line that nodes made now would carry, for code that builds on a user's behalf.
    #[track_caller]
    pub fn source_line(&self) -> SourceLine {
        self.lock().scope().source.unwrap_or(Location::caller())
    }
}

impl Inner {
    /// The scopes that this thread builds under.
    pub fn scope(&mut self) -> &mut ScopeState {
        self.scopes.entry(std::thread::current().id()).or_default()
    }

    /// Enters a name scope. An illegal name is reported, and the legal one nearest to it stands in.
    pub fn enter_name_scope(&mut self, name: &str, source: SourceLine) {
        let old = self.scope().name_scope.clone();
        let mut name = Cow::Borrowed(name);
        if !name.is_empty()
            && let Err(illegal) = names::check(&name, !old.is_empty(), Kind::NameScope)
        {
            self.diagnostics.push(Diagnostic::at(Code::InvalidArgument, illegal.message, source));
            name = Cow::Owned(illegal.suggestion);
        }
        self.scope().name_scope = if name.is_empty() {
            String::new()
        } else if let Some(exact) = name.strip_suffix('/') {
            exact.to_string()
        } else if old.is_empty() {
            self.names.unique(&name)
        } else {
            self.names.unique(&format!("{old}/{name}"))
        };
    }
}
