//! Partition: the nodes of one step on their devices, with the copies between them.
//!
//! Invariant: a node's inputs are all on its own device; what was elsewhere comes through a copy node, one per tensor
//! and destination, shared by all consumers there. The one exception is a sum over GPUs that NCCL makes: its inputs and
//! outputs are where the parts are.

use super::claims;
use super::narrow;
use super::order;
use super::place::Placed;
use super::prune::{Pruned, Source};
use super::sides::Sides;
use super::step::{
    AllReduceInfo, CopyInfo, Fetch, Origin, Partitioned, Route, StepNode, StepNodeId, StepNodeKind, Value, ValueId,
};
use super::transposes;
use super::twins::{Candidate, Twins};
use crate::base::{Array, Code, Diagnostic, Error, Result};
use crate::device::{DeviceId, DeviceKind, Machine};
use crate::graph::{Attrs, KernelContext, Node, NodeId, TensorDesc, TensorId};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// Puts a step's nodes on their devices, and copies between them.
///
/// # Errors
/// Writers of one variable that nothing orders, and updates that cannot be split by device.
pub fn partition(pruned: Pruned, placed: Placed, machine: &Machine) -> Result<Partitioned> {
    let nodes = pruned.nodes.len();
    let mut b = Builder {
        machine,
        p: Partitioned {
            pruned,
            placed,
            nodes: Vec::new(),
            values: Vec::new(),
            fetches: Vec::new(),
            needs_initialized: Vec::new(),
            initializes: Vec::new(),
            undo: Vec::new(),
            passes: Vec::new(),
        },
        computed: Computed::default(),
        fed: HashMap::new(),
        known: HashMap::new(),
        copies: HashMap::new(),
        twins: Twins::default(),
        step_nodes: vec![SmallVec::new(); nodes],
    };
    let kept = b.p.pruned.kept.clone();
    for id in kept {
        b.add_node(id)?;
    }
    b.add_fetches();
    let twins = std::mem::take(&mut b.twins).report(b.p.nodes.len());
    b.p.passes.push(twins);
    debug_assert_eq!(Sides::of_graph(&b.p).check(&b.p), Ok(()), "after the pass 'twins'");
    b.p.pass("transposes", false, transposes::into_products);
    b.p.pass("narrow", false, narrow::narrow);
    order::order(&mut b.p)?;
    Ok(b.p)
}

struct Builder<'a> {
    machine: &'a Machine,
    p: Partitioned,
    /// The value of a tensor on the device that computes or holds it.
    computed: Computed,
    /// By feed: its value on the host. Its node may be computed all the same, for the sake of another output.
    fed: HashMap<usize, ValueId>,
    known: HashMap<(TensorId, DeviceId), ValueId>,
    copies: HashMap<(ValueId, DeviceId, SmallVec<[StepNodeId; 2]>), ValueId>,
    /// By graph node: the step's nodes; several where it was split.
    step_nodes: Vec<SmallVec<[StepNodeId; 1]>>,
    twins: Twins,
}

/// The values of tensors, by node and output.
#[derive(Default)]
struct Computed {
    of: Vec<SmallVec<[ValueId; 1]>>,
}

impl Computed {
    /// The value of a tensor that was set.
    fn get(&self, tensor: TensorId) -> ValueId {
        self.of[tensor.node.index()][tensor.output as usize]
    }

    /// Sets the value of an output; outputs come in order, and may come again.
    fn set(&mut self, tensor: TensorId, value: ValueId) {
        let (node, output) = (tensor.node.index(), tensor.output as usize);
        if self.of.len() <= node {
            self.of.resize(node + 1, SmallVec::new());
        }
        let values = &mut self.of[node];
        values.resize(values.len().max(output + 1), value);
        values[output] = value;
    }
}

impl Builder<'_> {
    fn add_node(&mut self, id: NodeId) -> Result<()> {
        let node = self.p.pruned.node(id).clone();
        let device = self.p.placed.device(id);
        if node.op.traits().variable {
            let tensor = TensorId { node: id, output: 0 };
            let desc = self.p.pruned.desc(tensor);
            let value = self.new_value(Value { tensor, desc, device, origin: Origin::Variable(id), alias_of: None });
            self.computed.set(tensor, value);
            return Ok(());
        }
        let sources = self.p.pruned.sources(&node);
        let mut controls: SmallVec<[StepNodeId; 2]> = SmallVec::new();
        for control in self.p.pruned.control_inputs(&node) {
            controls.extend(self.step_nodes[control.index()].iter().copied());
        }
        // A known input's node may still run for its effects; this one then waits for it.
        for (source, tensor) in sources.iter().zip(&node.inputs) {
            if matches!(source, Source::Known(_) | Source::Planned) && self.p.pruned.signature.feed(*tensor).is_none() {
                controls.extend(self.step_nodes[tensor.node.index()].iter().copied());
            }
        }
        let input_device = |b: &Self, i: usize| match sources[i] {
            Source::Computed => b.p.value(b.computed.get(node.inputs[i])).device,
            _ => device,
        };
        if let Some(info) = self.all_reduce(&node, &sources) {
            self.add_all_reduce(&node, info, &controls);
            return Ok(());
        }
        let split = node.op.split(&node.attrs, node.inputs.len(), &|i| input_device(self, i).0.into());
        match split {
            Some(parts) => {
                for part in parts {
                    let device = input_device(self, part.follows);
                    self.add_step_node(&node, &sources, &part.inputs, part.attrs, device, &controls)?;
                }
            }
            None => {
                let all: Vec<usize> = (0..node.inputs.len()).collect();
                self.add_step_node(&node, &sources, &all, node.attrs.clone(), device, &controls)?;
            }
        }
        Ok(())
    }

    fn add_step_node(
        &mut self,
        node: &Node,
        sources: &[Source],
        which: &[usize],
        attrs: Attrs,
        device: DeviceId,
        controls: &[StepNodeId],
    ) -> Result<()> {
        let after = self.before_buffers(node, sources, which, controls);
        let inputs: SmallVec<[ValueId; 4]> =
            which.iter().map(|&i| self.input(node.inputs[i], &sources[i], device, &after)).collect();
        let guards = self.guards(node, device)?;
        let id = StepNodeId(self.p.nodes.len() as u32);
        let written = node.op.written_inputs(&attrs, inputs.len());
        claims::written(&self.p, node, device, &written, &inputs)?;
        // A node whose outputs are all known runs only for what it waits for.
        let all_known = !node.outputs.is_empty()
            && (0..node.outputs.len() as u32)
                .all(|output| self.p.pruned.value(TensorId { node: node.id, output }).is_some());
        let descs: SmallVec<[TensorDesc; 1]> = (0..node.outputs.len() as u32)
            .map(|output| self.p.pruned.desc(TensorId { node: node.id, output }))
            .collect();
        let aliases = if written.is_empty() {
            self.with_context(node, &attrs, &inputs, |c| node.op.aliases(c))
        } else {
            // What assigns passes the variable on.
            (!descs.is_empty()).then(|| smallvec::smallvec![(written[0], 0)])
        };
        if let Some(aliases) = &aliases {
            claims::aliases(&self.p, node, aliases, &inputs, &descs)?;
        }
        if aliases.is_none()
            && written.is_empty()
            && guards.is_empty()
            && which.len() == node.inputs.len()
            && !all_known
            && !descs.is_empty()
        {
            let (name, op) = (&*node.name, node.op);
            let candidate = Candidate { name, op, attrs: &attrs, device, inputs: &inputs, controls };
            if let Some(twin) = self.twins.find(&self.p, &candidate, id) {
                for (output, value) in self.p.node(twin).outputs.iter().enumerate() {
                    self.computed.set(TensorId { node: node.id, output: output as u32 }, *value);
                }
                self.step_nodes[node.id.index()].push(twin);
                return Ok(());
            }
        }
        let mut outputs = SmallVec::new();
        for (output, desc) in descs.into_iter().enumerate() {
            let tensor = TensorId { node: node.id, output: output as u32 };
            let alias_of = aliases.as_ref().map(|a| (inputs[a[output].0], a[output].1));
            let value = self.new_value(Value { tensor, desc, device, origin: Origin::Computed(id), alias_of });
            self.computed.set(tensor, value);
            outputs.push(value);
        }
        let silent = written.is_empty()
            && (aliases.is_some() || all_known || node.outputs.is_empty() && !node.op.traits().stateful);
        self.p.nodes.push(StepNode {
            kind: StepNodeKind::Op,
            name: node.name.clone(),
            node: node.id,
            op: Some(node.op),
            attrs: Arc::new(attrs),
            device,
            inputs: inputs.into_iter().chain(guards).collect(),
            guards: node.guards.iter().map(|(_, want)| *want).collect(),
            controls: controls.into(),
            outputs,
            silent: silent && !(aliases.is_some() && node.op.traits().stateful),
            fusion: None,
        });
        self.step_nodes[node.id.index()].push(id);
        Ok(())
    }

    /// The predicates that decide whether a node runs, where it runs.
    fn guards(&mut self, node: &Node, device: DeviceId) -> Result<SmallVec<[ValueId; 1]>> {
        if !node.guards.is_empty() && self.machine.device(device).kind == DeviceKind::Cuda {
            let predicate = self.p.tensor_name(node.guards[0].0);
            let message = format!(
                "'{}' ({}) on {device} is in a branch of a conditional whose predicate '{predicate}' is computed by the \
                 step, and a CUDA GPU cannot leave it out; put it on the host, or feed the predicate",
                node.name,
                node.op_type()
            );
            return Err(Diagnostic::at(Code::Unimplemented, message, node.source).into());
        }
        let mut values = SmallVec::new();
        for &(predicate, _) in &node.guards {
            let source = self.p.pruned.source(predicate);
            values.push(self.input(predicate, &source, device, &[]));
        }
        Ok(values)
    }

    /// What a node sums in one call over several GPUs, if it is such a node and all its inputs are computed there.
    fn all_reduce(&self, node: &Node, sources: &[Source]) -> Option<AllReduceInfo> {
        let fits = node.op.is_all_reduce() && node.inputs.len() == node.outputs.len();
        if !fits || !sources.iter().all(|s| matches!(s, Source::Computed)) {
            return None;
        }
        let inputs = || node.inputs.iter().map(|t| self.p.value(self.computed.get(*t)));
        let devices: SmallVec<[DeviceId; 4]> = inputs().map(|v| v.device).collect();
        let bytes = inputs().next()?.desc.bytes();
        (bytes > 0 && self.machine.all_reduces(&devices)).then_some(AllReduceInfo { devices, bytes })
    }

    fn add_all_reduce(&mut self, node: &Node, info: AllReduceInfo, controls: &[StepNodeId]) {
        let id = StepNodeId(self.p.nodes.len() as u32);
        let inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|t| self.computed.get(*t)).collect();
        let mut outputs = SmallVec::new();
        for (output, &device) in info.devices.iter().enumerate() {
            let tensor = TensorId { node: node.id, output: output as u32 };
            let (desc, origin) = (self.p.pruned.desc(tensor), Origin::Computed(id));
            let value = self.new_value(Value { tensor, desc, device, origin, alias_of: None });
            self.computed.set(tensor, value);
            outputs.push(value);
        }
        self.p.nodes.push(StepNode {
            device: info.devices[0],
            kind: StepNodeKind::AllReduce(info),
            name: node.name.clone(),
            node: node.id,
            op: None,
            attrs: Arc::default(),
            inputs,
            controls: controls.into(),
            outputs,
            silent: false,
            guards: SmallVec::new(),
            fusion: None,
        });
        self.step_nodes[node.id.index()].push(id);
    }

    /// What a copy of a variable's buffer waits for, where this node reads one that may be elsewhere: all that the node
    /// waits for, so that it sees the same changes as it would beside the variable. A part of a split node sees the
    /// variables as they were.
    fn before_buffers(
        &self,
        node: &Node,
        sources: &[Source],
        which: &[usize],
        controls: &[StepNodeId],
    ) -> SmallVec<[StepNodeId; 2]> {
        let is_buffer = |t: &TensorId| self.p.pruned.node(t.node).op.traits().variable;
        if which.len() != node.inputs.len() || !node.inputs.iter().any(is_buffer) {
            return SmallVec::new();
        }
        let computed = node.inputs.iter().zip(sources).filter(|(_, source)| matches!(source, Source::Computed));
        let producers = computed.filter_map(|(t, _)| match self.p.value(self.computed.get(*t)).origin {
            Origin::Computed(producer) => Some(producer),
            _ => None,
        });
        let mut after: SmallVec<[StepNodeId; 2]> = controls.iter().copied().chain(producers).collect();
        after.sort_unstable();
        after.dedup();
        after
    }

    fn with_context<R>(
        &self,
        node: &Node,
        attrs: &Attrs,
        inputs: &[ValueId],
        use_it: impl FnOnce(&KernelContext<'_>) -> R,
    ) -> R {
        let descs: Vec<TensorDesc> = inputs.iter().map(|&v| self.p.value(v).desc.clone()).collect();
        let values: Vec<Option<Arc<Array>>> = inputs.iter().map(|&v| self.p.value(v).known().cloned()).collect();
        let outputs: Vec<TensorDesc> = (0..node.outputs.len() as u32)
            .map(|output| self.p.pruned.desc(TensorId { node: node.id, output }))
            .collect();
        use_it(&KernelContext { attrs, inputs: &descs, outputs: &outputs, values: &values })
    }

    /// The value of an input on the device that reads it.
    fn input(&mut self, tensor: TensorId, source: &Source, device: DeviceId, after: &[StepNodeId]) -> ValueId {
        let known = match source {
            Source::Known(array) => Some(array.clone()),
            Source::Planned => self.planned_value(tensor),
            _ => None,
        };
        if let Some(array) = known {
            if let Some(&value) = self.known.get(&(tensor, device)) {
                return value;
            }
            let desc = TensorDesc { dtype: array.dtype(), dims: array.dims().into() };
            let value = self.new_value(Value { tensor, desc, device, origin: Origin::Known(array), alias_of: None });
            self.known.insert((tensor, device), value);
            return value;
        }
        let at_home = match source {
            Source::Fed(feed) => self.fed(*feed),
            _ => self.computed.get(tensor),
        };
        self.on_device(at_home, device, after)
    }

    fn planned_value(&self, tensor: TensorId) -> Option<Arc<Array>> {
        match self.p.pruned.signature.feed(tensor) {
            Some(feed) => self.p.pruned.signature.feeds[feed].value.clone(),
            None => self.p.pruned.value(tensor).cloned(),
        }
    }

    fn fed(&mut self, feed: usize) -> ValueId {
        let tensor = self.p.pruned.signature.feeds[feed].tensor;
        if let Some(&value) = self.fed.get(&feed) {
            return value;
        }
        let desc = self.p.pruned.desc(tensor);
        let origin = Origin::Fed(feed);
        let value = self.new_value(Value { tensor, desc, device: DeviceId::HOST, origin, alias_of: None });
        self.fed.insert(feed, value);
        value
    }

    /// The value on this device: itself, or its one copy there. A variable's buffer is copied after these nodes; what
    /// has another value before and after them has a copy for each.
    fn on_device(&mut self, value: ValueId, device: DeviceId, after: &[StepNodeId]) -> ValueId {
        let source = self.p.value(value).clone();
        if source.device == device {
            return value;
        }
        let after = if matches!(source.origin, Origin::Variable(_)) { after } else { &[] };
        let key = (value, device, SmallVec::from_slice(after));
        if let Some(&copy) = self.copies.get(&key) {
            return copy;
        }
        let id = StepNodeId(self.p.nodes.len() as u32);
        let direct = self.machine.has_direct_link(source.device, device);
        let fed = matches!(source.origin, Origin::Fed(_));
        let info = CopyInfo {
            tensor: source.tensor,
            from: source.device,
            to: device,
            bytes: source.desc.bytes(),
            route: if direct { Route::Direct } else { Route::ThroughHost },
            fed: fed && !self.p.placed.device(source.tensor.node).is_host(),
        };
        let copy = self.new_value(Value { device, origin: Origin::Computed(id), alias_of: None, ..source.clone() });
        let tensor = self.p.tensor_name(source.tensor);
        let name = tensor.strip_suffix(":0").unwrap_or(&tensor);
        self.p.nodes.push(StepNode {
            kind: StepNodeKind::Copy(info),
            name: format!("copy/{name}→{device}").into(),
            node: source.tensor.node,
            op: None,
            attrs: Arc::default(),
            device,
            inputs: smallvec::smallvec![value],
            controls: SmallVec::from_slice(after),
            outputs: smallvec::smallvec![copy],
            silent: false,
            guards: SmallVec::new(),
            fusion: None,
        });
        self.copies.insert(key, copy);
        copy
    }

    fn add_fetches(&mut self) {
        for tensor in self.p.pruned.signature.fetches.clone() {
            let fetch = if let Some(feed) = self.p.pruned.signature.feed(tensor) {
                Fetch::Fed(feed)
            } else if let Some(value) = self.p.pruned.value(tensor) {
                Fetch::Known(value.clone())
            } else {
                let value = self.on_device(self.computed.get(tensor), DeviceId::HOST, &[]);
                Fetch::Value(self.kept_for_fetch(value))
            };
            self.p.fetches.push(fetch);
        }
    }

    /// A fetched variable is copied out within the step, so that a later change in the same step does not show; so is
    /// a run of a feed's bytes, which are the caller's.
    fn kept_for_fetch(&mut self, value: ValueId) -> ValueId {
        let base = self.p.base(value).0;
        if !matches!(self.p.value(base).origin, Origin::Variable(_) | Origin::Fed(_)) {
            return value;
        }
        let id = StepNodeId(self.p.nodes.len() as u32);
        let source = self.p.value(value).clone();
        let copy = self.new_value(Value { origin: Origin::Computed(id), alias_of: None, ..source.clone() });
        self.p.nodes.push(StepNode {
            kind: StepNodeKind::Snapshot,
            name: format!("fetch/{}", self.p.tensor_name(source.tensor)).into(),
            node: source.tensor.node,
            op: None,
            attrs: Arc::default(),
            device: source.device,
            inputs: smallvec::smallvec![value],
            controls: SmallVec::new(),
            outputs: smallvec::smallvec![copy],
            silent: false,
            guards: SmallVec::new(),
            fusion: None,
        });
        copy
    }

    fn new_value(&mut self, value: Value) -> ValueId {
        self.p.values.push(value);
        ValueId(self.p.values.len() as u32 - 1)
    }
}

/// Two writers that nothing orders.
pub(super) fn unordered_writers(p: &Partitioned, variable: NodeId, a: &StepNode, b: &StepNode) -> Error {
    let variable = &p.pruned.node(variable).name;
    let node = p.pruned.node(b.node);
    let message = format!(
        "'{}' and '{}' both change variable '{variable}' in one run, and nothing orders them; \
         run them one after the other, or make the second depend on the first (control_dependencies)",
        a.name, b.name
    );
    Diagnostic::at(Code::InvalidArgument, message, node.source).into()
}
