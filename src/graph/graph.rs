//! The graph: an arena of nodes with unique names, and the diagnostics of what could not be added.
//!
//! Invariants: nodes never change and never go; a node's inputs have smaller ids. The lock is held inside one method,
//! never while a user's closure runs. Threads may build in one graph at the same time: names stay unique and scopes are
//! each thread's own, but the order of nodes, and so the suffixes of names, is then no longer the same in every run.

use super::attrs::Attrs;
use super::builder::NodeBuilder;
use super::collections::Collections;
use super::imported::Origin;
use super::known::{Known, known};
use super::names::{self, Kind, NameTable};
use super::node::{DeviceRequest, DeviceRule, Node, NodeId, TensorId};
use super::op::{Fact, InferContext, OpRef};
use super::registry::Registry;
use super::scopes::{DeviceEntry, ScopeState};
use super::tensor::{Operation, Tensor};
use crate::base::{Array, Code, DeviceSpec, Diagnostic, Error, Result, SourceLine, nearest};
use indexmap::IndexMap;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

/// A computation graph that is being built. Handles borrow it; it can be shared between threads.
pub struct Graph {
    pub(super) number: u64,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub nodes: IndexMap<Arc<str>, Arc<Node>>,
    pub names: NameTable,
    /// The open scopes of each thread that builds.
    pub scopes: HashMap<ThreadId, ScopeState>,
    pub registry: Registry,
    pub collections: Collections,
    pub diagnostics: Vec<Diagnostic>,
    pub warnings: Vec<Diagnostic>,
    pub finalized: Option<SourceLine>,
    pub seed: Option<i64>,
    /// How many ops took their second seed from the graph.
    pub derived_seeds: i64,
    /// Values that shape rules asked for.
    pub known: Known,
    pub origin: Option<Origin>,
}

impl Default for Graph {
    fn default() -> Graph {
        Graph::new()
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        Graph {
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            inner: Mutex::new(Inner {
                nodes: IndexMap::new(),
                names: NameTable::default(),
                scopes: HashMap::new(),
                registry: Registry::default(),
                collections: Collections::default(),
                diagnostics: Vec::new(),
                warnings: Vec::new(),
                finalized: None,
                seed: None,
                derived_seeds: 0,
                known: Known::default(),
                origin: None,
            }),
        }
    }

    /// The number that tells this graph from the process's others in messages.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // The lock guards no user code, so a poisoned one still holds a whole state.
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.lock().nodes.len()
    }

    /// True if there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A node by id.
    pub fn node(&self, id: NodeId) -> Option<Arc<Node>> {
        self.lock().nodes.get_index(id.index()).map(|(_, n)| n.clone())
    }

    /// All nodes, in the order of creation. Nodes are shared, not copied.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.lock().nodes.values().cloned().collect()
    }

    /// All operations, in the order of creation.
    pub fn operations(&self) -> Vec<Operation<'_>> {
        (0..self.len() as u32).map(|i| Operation { graph: self, id: NodeId(i) }).collect()
    }

    /// An operation by name.
    ///
    /// # Errors
    /// When there is none, with the nearest name.
    pub fn operation(&self, name: &str) -> Result<Operation<'_>> {
        let inner = self.lock();
        match inner.nodes.get(name) {
            Some(node) => Ok(Operation { graph: self, id: node.id }),
            None => Err(no_operation(&inner, name)),
        }
    }

    /// A tensor by name, as in `split:1`; output 0 may be left out.
    ///
    /// # Errors
    /// When there is none: the nearest name, or the number of outputs that there are.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let (node_name, output) = match name.rsplit_once(':').map(|(n, o)| (n, o.parse::<u32>())) {
            Some((node, Ok(output))) => (node, output),
            Some((_, Err(_))) => return Err(Error::invalid(format!("'{name}' is no tensor name; want NODE:OUTPUT"))),
            None => (name, 0),
        };
        let inner = self.lock();
        let Some(node) = inner.nodes.get(node_name) else { return Err(no_operation(&inner, node_name)) };
        if output as usize >= node.outputs.len() {
            let count = node.outputs.len();
            let fix = if count == 0 { "; run it as a target instead" } else { "" };
            return Err(Error::new(
                Code::NotFound,
                format!("there is no tensor '{node_name}:{output}': '{node_name}' has {count} outputs{fix}"),
            ));
        }
        Ok(Tensor { graph: self, id: TensorId { node: node.id, output } })
    }

    /// Records a problem; all come out together at [`Graph::check`] or when a session is made.
    pub fn report(&self, diagnostic: Diagnostic) {
        self.lock().diagnostics.push(diagnostic);
    }

    /// Records a remark that is no error.
    pub fn warn(&self, diagnostic: Diagnostic) {
        self.lock().warnings.push(diagnostic);
    }

    /// The problems so far.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.lock().diagnostics.clone()
    }

    /// The remarks so far.
    pub fn warnings(&self) -> Vec<Diagnostic> {
        self.lock().warnings.clone()
    }

    /// All problems so far as one error.
    ///
    /// # Errors
    /// When there are any.
    pub fn check(&self) -> Result<()> {
        let diagnostics = self.diagnostics();
        if diagnostics.is_empty() { Ok(()) } else { Err(Error::from_all(diagnostics)) }
    }

    /// From here on nothing can be added; a second call changes nothing.
    #[track_caller]
    pub fn finalize(&self) {
        self.lock().finalized.get_or_insert(Location::caller());
    }

    /// Where the graph was finalised, if it was.
    pub fn finalized(&self) -> Option<SourceLine> {
        self.lock().finalized
    }

    /// Sets the graph-level random seed for ops added from here on.
    pub fn set_random_seed(&self, seed: i64) {
        self.lock().seed = Some(seed);
    }

    /// The two seeds of a new random op, by TensorFlow's rule: an op seed alone goes with the default graph seed; with
    /// a graph seed alone, the second counts the ops that asked before. Neither: `(0, 0)`, which asks for entropy.
    pub fn seeds(&self, op_seed: Option<i64>) -> (i64, i64) {
        const DEFAULT_GRAPH_SEED: i64 = 87654321;
        const LARGEST: i64 = (1 << 31) - 1;
        let mut inner = self.lock();
        let seeds = match (inner.seed, op_seed) {
            (Some(graph), Some(op)) => (graph.rem_euclid(LARGEST), op.rem_euclid(LARGEST)),
            (Some(graph), None) => {
                let count = inner.derived_seeds;
                inner.derived_seeds += 1;
                (graph.rem_euclid(LARGEST), count.rem_euclid(LARGEST))
            }
            (None, Some(op)) => (DEFAULT_GRAPH_SEED, op.rem_euclid(LARGEST)),
            (None, None) => return (0, 0),
        };
        // Two zeros would ask for entropy.
        if seeds == (0, 0) { (0, LARGEST) } else { seeds }
    }

    /// A tensor whose error is already reported.
    pub fn poison_tensor(&self) -> Tensor<'_> {
        Tensor { graph: self, id: TensorId { node: NodeId::POISON, output: 0 } }
    }

    /// An operation whose error is already reported.
    pub fn poison_operation(&self) -> Operation<'_> {
        Operation { graph: self, id: NodeId::POISON }
    }

    pub(super) fn add(&self, new: NodeBuilder<'_>, caller: SourceLine) -> NodeId {
        let (source, name_scope, devices, colocation) = {
            let mut inner = self.lock();
            let scope = inner.scope();
            // The node's own colocation shuts out the device scopes, as `colocate_with` does.
            let devices = if new.colocate.is_some() { Arc::default() } else { scope.devices.clone() };
            let (source, name_scope) = (scope.source.unwrap_or(caller), scope.name_scope.clone());
            let ids: SmallVec<[NodeId; 2]> =
                new.colocate.into_iter().chain(scope.colocation.iter().rev().copied()).collect();
            let nodes: SmallVec<[Arc<Node>; 2]> =
                ids.iter().filter_map(|id| Some(inner.nodes.get_index(id.index())?.1.clone())).collect();
            (source, name_scope, devices, nodes)
        };
        let fail = |code, message: String| {
            self.report(Diagnostic::at(code, message, source));
            NodeId::POISON
        };
        if let Some(problem) = new.problem {
            return fail(Code::InvalidArgument, problem);
        }
        let mut needed = new.inputs.iter().map(|i| i.node).chain(new.controls.iter().copied()).chain(new.colocate);
        if needed.any(|n| n == NodeId::POISON) {
            return NodeId::POISON;
        }
        let nested = !name_scope.is_empty();
        if let Err(illegal) = names::check(&new.name, nested, Kind::Op) {
            return fail(Code::InvalidArgument, illegal.message);
        }
        let full = match new.name.strip_suffix('/') {
            Some(exact) => exact.to_string(),
            None if nested => format!("{name_scope}/{}", new.name),
            None => new.name.to_string(),
        };
        if let Some(at) = self.finalized() {
            let kind = new.op_type();
            return fail(
                Code::FailedPrecondition,
                format!("cannot add '{full}' ({kind}): the graph was finalised at {at}; add it before"),
            );
        }
        let device = match device_of(&new, &devices, &colocation, &full) {
            Ok(device) => device,
            Err(e) => return fail(Code::InvalidArgument, format!("device function of '{full}': {e}")),
        };

        let mut inner = self.lock();
        let parts =
            NodeParts { name: &full, op: new.op, attrs: &new.attrs, inputs: &new.inputs, unknown: &new.unknown };
        let outputs = match outputs_of(&mut inner, parts) {
            Ok(outputs) => outputs,
            Err(None) => return NodeId::POISON,
            Err(Some(message)) => {
                inner.diagnostics.push(Diagnostic::at(Code::InvalidArgument, message, source));
                return NodeId::POISON;
            }
        };
        let unknown_type = new.unknown.map(|(op_type, _)| op_type);
        let name: Arc<str> = match new.name.strip_suffix('/') {
            // The name of a scope that is open: taken as it is.
            Some(exact) if !inner.nodes.contains_key(exact) => {
                inner.names.mark(exact);
                exact.into()
            }
            _ => inner.names.unique(&full).into(),
        };
        let id = NodeId(inner.nodes.len() as u32);
        let controls = inner.scope().control_inputs(&new.inputs, &new.controls);
        inner.scope().saw(id);
        let node = Node {
            id,
            name: name.clone(),
            op: new.op,
            unknown_type,
            attrs: new.attrs,
            inputs: new.inputs,
            control_inputs: controls,
            device,
            colocated_with: colocation_groups(&inner, &colocation),
            guards: SmallVec::new(),
            outputs: outputs.into(),
            source,
        };
        inner.nodes.insert(name, Arc::new(node));
        id
    }
}

/// What the outputs of a new node go by.
pub(super) struct NodeParts<'a> {
    pub name: &'a str,
    pub op: OpRef,
    pub attrs: &'a Attrs,
    pub inputs: &'a [TensorId],
    /// The op type, and what is known of the outputs, where turret does not have the op.
    pub unknown: &'a Option<(Arc<str>, Vec<Fact>)>,
}

/// What is known of a new node's outputs, or what is wrong with it; `None` where that is reported already.
pub(super) fn outputs_of(inner: &mut Inner, new: NodeParts<'_>) -> std::result::Result<Vec<Fact>, Option<String>> {
    let producers: SmallVec<[Arc<Node>; 4]> = new.inputs.iter().map(|i| inner.nodes[i.node.index()].clone()).collect();
    let facts: SmallVec<[_; 4]> =
        new.inputs.iter().zip(&producers).map(|(i, n)| n.outputs[i.output as usize].clone()).collect();
    if facts.iter().any(|f| f.shape.is_poisoned()) {
        return Err(None);
    }
    let mut values: SmallVec<[Option<Arc<Array>>; 4]> =
        producers.iter().map(|n| n.op.constant(&n.attrs).cloned()).collect();
    // Other inputs are computed only where a shape depends on their values.
    for i in new.op.planned_inputs(new.inputs.len()) {
        if let (Some(input), Some(value @ None)) = (new.inputs.get(i), values.get_mut(i)) {
            *value = known(inner, *input);
        }
    }
    let context = InferContext { attrs: new.attrs, inputs: &facts, values: &values };
    let op_type = new.unknown.as_ref().map_or(new.op.name(), |(op_type, _)| op_type);
    let inferred = match new.unknown {
        Some((_, outputs)) => Ok(outputs.clone()),
        None => new.op.infer(&context).and_then(|outputs| held(new.op, &facts, outputs)),
    };
    let outputs = inferred.map_err(|message| {
        let inputs: Vec<String> = (new.inputs.iter().zip(&producers).zip(&facts))
            .map(|((i, n), f)| format!("'{}' {} {}", n.output_name(i.output), f.dtype, f.shape))
            .collect();
        let inputs = if inputs.is_empty() { String::new() } else { format!("; inputs: {}", inputs.join(", ")) };
        format!("cannot build '{}' ({op_type}): {message}{inputs}", new.name)
    })?;
    if outputs.iter().any(|f| f.shape.is_poisoned()) {
        return Err(None);
    }
    let written = new.op.written_inputs(new.attrs, new.inputs.len());
    let no_variable = |i: &usize| producers.get(*i).is_none_or(|p| !p.op.traits().variable);
    if let Some(written) = written.into_iter().find(no_variable) {
        let got = producers.get(written).map(|p| format!("'{}' ({})", p.name, p.op_type()));
        return Err(Some(format!(
            "cannot build '{}' ({op_type}): input {written} is written, so it must be a variable, got {}",
            new.name,
            got.unwrap_or_else(|| format!("{} inputs", producers.len()))
        )));
    }
    Ok(outputs)
}

/// An error if turret holds no values of the type of an input or output, so that kernels never meet one.
fn held(op: OpRef, inputs: &[Fact], outputs: Vec<Fact>) -> std::result::Result<Vec<Fact>, String> {
    let inputs = if op.ignores_opaque_inputs() { &[] } else { inputs };
    match inputs.iter().chain(&outputs).find(|f| f.dtype.is_opaque()) {
        None => Ok(outputs),
        Some(fact) => Err(format!("turret holds no values of type {}", fact.dtype)),
    }
}

/// The device that a new node asks for. As in TensorFlow the device scopes are asked first, innermost first, and the
/// innermost colocation with a node that asks for a device overrides what they say.
fn device_of(
    new: &NodeBuilder<'_>,
    devices: &[DeviceEntry],
    colocation: &[Arc<Node>],
    name: &str,
) -> Result<DeviceRequest> {
    if let Some(device) = &new.device {
        return Ok(device.clone());
    }
    let mut request = DeviceRequest::default();
    for entry in devices.iter().rev() {
        match entry {
            DeviceEntry::Clear => break,
            DeviceEntry::Spec(spec, rule) => {
                if request.rule == DeviceRule::Unset && !spec.is_empty() {
                    request.rule = rule.clone();
                }
                request.spec = request.spec.merged_into(spec);
            }
            DeviceEntry::Function(function) => {
                let spec = function(&NewNode { name, op_type: new.op_type(), device: &request.spec })?;
                if spec != request.spec {
                    request = DeviceRequest { spec, rule: DeviceRule::Function };
                }
            }
        }
    }
    let placed = colocation.iter().find(|n| !n.device.spec.is_empty());
    if let Some(with) = placed.or(colocation.first().filter(|_| request.spec.is_empty())) {
        let rule = DeviceRule::Colocated(with.name.to_string());
        request = DeviceRequest { spec: with.device.spec.clone(), rule };
    }
    Ok(request)
}

/// The nodes that a new node shares a device with, by name: those that it is put with, or those that they were put with.
fn colocation_groups(inner: &Inner, colocation: &[Arc<Node>]) -> SmallVec<[NodeId; 1]> {
    let mut groups: SmallVec<[NodeId; 1]> = SmallVec::new();
    for node in colocation {
        match &node.colocated_with[..] {
            [] => groups.push(node.id),
            groups_of_it => groups.extend_from_slice(groups_of_it),
        }
    }
    groups.sort_by(|a, b| {
        inner.nodes.get_index(a.index()).map(|n| n.0).cmp(&inner.nodes.get_index(b.index()).map(|n| n.0))
    });
    groups.dedup();
    groups
}

/// What a device function sees of the node that is being added.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// The name that it will have, before it is made unique.
    pub name: &'a str,
    /// Its op type.
    pub op_type: &'a str,
    /// The device that the scopes inside of the function gave it.
    pub device: &'a DeviceSpec,
}

fn no_operation(inner: &Inner, name: &str) -> Error {
    let near = nearest(name, inner.nodes.keys().map(|k| k.as_ref()));
    let near = near.map_or(String::new(), |n| format!("; did you mean '{n}'?"));
    Error::new(Code::NotFound, format!("there is no operation '{name}' among the graph's {}{near}", inner.nodes.len()))
}
