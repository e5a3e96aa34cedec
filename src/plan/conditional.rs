//! Conditionals: what `Switch` and `Merge` become in a step.
//!
//! A predicate that is known before the step (a constant, a fed bool scalar, whether a variable has a value) decides at once:
//! the branch that is not taken is no part of the step. Where the step computes a predicate, both branches are computed,
//! `Merge` becomes a choice, and what has effects or may fail is guarded, so that it runs only where its branch is taken.
//! Absent: loops.

use super::signature::Signature;
use crate::base::{Array, Bool8, Code, DType, Diagnostic, Result};
use crate::device::Team;
use crate::graph::{self, Attrs, ControlFlow, DeviceRequest, Guards, Node, NodeId, OpRef, TensorId};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A graph's nodes in which the conditionals that a step needs are resolved, and what that went by.
pub struct Resolved {
    /// The nodes; all but the conditionals' are the graph's own.
    pub nodes: Arc<Vec<Arc<Node>>>,
    /// True where the value of a feed decided; the plan then holds for that value only.
    pub depends_on_values: bool,
    /// The variables that were asked for a value, and the answers; the plan holds while they stay.
    pub initialized: Vec<(NodeId, bool)>,
}

/// Resolves the conditionals that a step needs.
///
/// # Errors
/// A fetch in a branch that is not taken, and a `Merge` whose inputs are not the two branches of one predicate.
pub fn resolve(
    nodes: Arc<Vec<Arc<Node>>>,
    signature: &Signature,
    is_initialized: &dyn Fn(NodeId) -> bool,
) -> Result<Resolved> {
    let needed = super::prune::reachable(&nodes, signature, |_, _| true, |_| true);
    let in_question =
        |n: &&Arc<Node>| needed[n.id.index()] && (n.op.control_flow().is_some() || n.op.ignores_opaque_inputs());
    if !nodes.iter().any(|n| in_question(&n)) {
        return Ok(Resolved { nodes, depends_on_values: false, initialized: Vec::new() });
    }
    let mut pass = Pass {
        nodes: &nodes,
        signature,
        is_initialized,
        team: Team::new(1, "conditionals"),
        known: HashMap::new(),
        depends_on_values: false,
        initialized: Vec::new(),
        states: vec![State::default(); nodes.len()],
        read: nodes.iter().flat_map(|n| n.inputs.iter().copied()).filter(|t| t.output > 0).collect(),
        replaced: Vec::new(),
    };
    for node in nodes.iter().filter(|n| needed[n.id.index()]) {
        pass.visit(node)?;
    }
    pass.check_fetches()?;
    let Pass { depends_on_values, initialized, replaced, .. } = pass;
    let mut resolved: Vec<Arc<Node>> = nodes.to_vec();
    for node in replaced {
        let place = node.id.index();
        resolved[place] = Arc::new(node);
    }
    Ok(Resolved { nodes: Arc::new(resolved), depends_on_values, initialized })
}

/// When a node runs.
#[derive(Clone, Default)]
struct State {
    /// Its branch is known not to be taken.
    dead: bool,
    /// The computed predicates that decide, in order.
    guards: Guards,
    /// For a `Switch`: its predicate, and its value where it is known.
    switch: Option<(TensorId, Option<bool>)>,
}

struct Pass<'a> {
    nodes: &'a [Arc<Node>],
    signature: &'a Signature,
    is_initialized: &'a dyn Fn(NodeId) -> bool,
    team: Team,
    known: HashMap<TensorId, Option<Arc<Array>>>,
    depends_on_values: bool,
    initialized: Vec<(NodeId, bool)>,
    states: Vec<State>,
    /// What some node reads, of outputs but the first.
    read: HashSet<TensorId>,
    replaced: Vec<Node>,
}

impl Pass<'_> {
    fn visit(&mut self, node: &Node) -> Result<()> {
        match node.op.control_flow() {
            Some(ControlFlow::Merge { taken, select }) => return self.merge(node, taken, select),
            Some(ControlFlow::Switch { branches }) => {
                let mut state = self.of_inputs(node);
                let predicate = self.origin(node.inputs[1]);
                state.switch = Some((predicate, self.truth(predicate)));
                if state.dead {
                    self.bury(node);
                } else {
                    self.replace(node, branches, &[node.inputs[0]], node.attrs.clone(), Guards::new());
                }
                self.states[node.id.index()] = state;
            }
            Some(ControlFlow::AsksInitialized { constant }) => {
                let state = self.of_inputs(node);
                let answer = Array::scalar(Bool8::from(self.answer(node)));
                let attrs = Attrs::new().with("dtype", answer.dtype()).with("value", Arc::new(answer));
                self.replace(node, constant, &[], attrs, Guards::new());
                self.states[node.id.index()] = state;
            }
            None => {
                let state = self.of_inputs(node);
                let traits = node.op.traits();
                if state.dead {
                    // As a target it does nothing; a fetch of it is refused.
                    self.bury(node);
                } else {
                    let types: SmallVec<[DType; 2]> = node.outputs.iter().map(|f| f.dtype).collect();
                    let can_fail = node.op.can_fail(&node.attrs, &types);
                    let guarded = (traits.stateful || can_fail) && !traits.variable;
                    let guards = if guarded { state.guards.clone() } else { Guards::new() };
                    let inputs = self.counting_inputs(node);
                    if !guards.is_empty() || inputs.len() < node.inputs.len() {
                        self.replace(node, node.op, &inputs, node.attrs.clone(), guards);
                    }
                }
                self.states[node.id.index()] = state;
            }
        }
        Ok(())
    }

    /// The inputs that the node's op looks at.
    fn counting_inputs(&self, node: &Node) -> SmallVec<[TensorId; 4]> {
        let is_opaque = |t: &TensorId| self.nodes[t.node.index()].outputs[t.output as usize].dtype.is_opaque();
        let ignores = node.op.ignores_opaque_inputs();
        node.inputs.iter().copied().filter(|t| !ignores || !is_opaque(t)).collect()
    }

    /// When a node runs whose inputs must all be there.
    fn of_inputs(&self, node: &Node) -> State {
        let mut state = State::default();
        for &input in node.inputs.iter().filter(|t| self.signature.feed(**t).is_none()) {
            self.join(&mut state, self.of_tensor(input));
        }
        for control in &node.control_inputs {
            let of = &self.states[control.index()];
            self.join(&mut state, State { switch: None, ..of.clone() });
        }
        state
    }

    fn join(&self, state: &mut State, other: State) {
        state.dead |= other.dead;
        for guard in other.guards {
            if let Err(at) = state.guards.binary_search(&guard) {
                state.guards.insert(at, guard);
            }
        }
    }

    /// When a tensor is there.
    fn of_tensor(&self, tensor: TensorId) -> State {
        let mut state = self.states[tensor.node.index()].clone();
        match state.switch.take() {
            Some((_, Some(known))) => state.dead |= known != (tensor.output == 1),
            Some((predicate, None)) => {
                let guard = (predicate, tensor.output == 1);
                if let Err(at) = state.guards.binary_search(&guard) {
                    state.guards.insert(at, guard);
                }
            }
            None => {}
        }
        state
    }

    fn merge(&mut self, node: &Node, taken: OpRef, select: OpRef) -> Result<()> {
        let alive: Vec<(TensorId, State)> = (node.inputs.iter())
            .map(|&t| (t, if self.signature.feed(t).is_some() { State::default() } else { self.of_tensor(t) }))
            .filter(|(_, state)| !state.dead)
            .collect();
        let refuse = |what: String| {
            let message = format!("cannot plan '{}' ({}): {what}", node.name, node.op_type());
            Err(Diagnostic::at(Code::Unimplemented, message, node.source).into())
        };
        if self.is_read(TensorId { node: node.id, output: 1 }) {
            return refuse("its value_index is read, which turret does not compute; test the predicate instead".into());
        }
        let mut state = match &alive[..] {
            [] => State { dead: true, ..State::default() },
            [(input, of)] => {
                self.replace(node, taken, &[*input], Attrs::new(), Guards::new());
                State { switch: None, ..of.clone() }
            }
            [(a, of_a), (b, of_b)] => {
                let opposite = |g: &(TensorId, bool)| (g.0, !g.1);
                let decides = |g: &&(TensorId, bool)| of_b.guards.contains(&opposite(g));
                let Some(&(predicate, value)) = of_a.guards.iter().find(decides) else {
                    return refuse("turret cannot tell which predicate chooses between its inputs".into());
                };
                let (yes, no) = if value { (*a, *b) } else { (*b, *a) };
                let guards = of_a.guards.iter().filter(|g| of_b.guards.contains(g)).copied().collect();
                self.replace(node, select, &[predicate, yes, no], Attrs::new(), Guards::new());
                State { guards, ..State::default() }
            }
            more => return refuse(format!("{} of its inputs may be taken; want two branches", more.len())),
        };
        for control in &node.control_inputs {
            let of = &self.states[control.index()];
            let of = State { switch: None, ..of.clone() };
            self.join(&mut state, of);
        }
        if state.dead {
            self.replaced.retain(|n| n.id != node.id);
            self.bury(node);
        }
        self.states[node.id.index()] = state;
        Ok(())
    }

    fn is_read(&self, tensor: TensorId) -> bool {
        self.signature.fetches.binary_search(&tensor).is_ok() || self.read.contains(&tensor)
    }

    /// Puts another op in a node's place, under its name.
    fn replace(&mut self, node: &Node, op: OpRef, inputs: &[TensorId], attrs: Attrs, guards: Guards) {
        let outputs = match node.op.control_flow() {
            Some(ControlFlow::Merge { .. }) => node.outputs[..1].into(),
            _ => node.outputs.clone(),
        };
        self.replaced.push(Node { op, inputs: inputs.into(), attrs, guards, outputs, ..node.clone() });
    }

    /// Makes nothing of a node that is not there.
    fn bury(&mut self, node: &Node) {
        let dead = Node {
            inputs: SmallVec::new(),
            control_inputs: SmallVec::new(),
            device: DeviceRequest::default(),
            colocated_with: SmallVec::new(),
            op: &Nothing,
            ..node.clone()
        };
        self.replaced.push(Node { outputs: SmallVec::new(), ..dead });
    }

    fn check_fetches(&self) -> Result<()> {
        let unfed = self.signature.fetches.iter().filter(|t| self.signature.feed(**t).is_none());
        let missing: Vec<Diagnostic> = unfed
            .filter(|t| self.of_tensor(**t).dead)
            .map(|t| {
                let node = &self.nodes[t.node.index()];
                let name = node.output_name(t.output);
                let message =
                    format!("cannot fetch '{name}': it is in a branch of a conditional that this run does not take");
                Diagnostic::at(Code::InvalidArgument, message, node.source)
            })
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(crate::base::Error::from_all(missing)) }
    }

    /// The tensor that this one is, under another name.
    fn origin(&self, mut tensor: TensorId) -> TensorId {
        while self.signature.feed(tensor).is_none() {
            let node = &self.nodes[tensor.node.index()];
            match (node.op.traits().forwards, node.op.control_flow()) {
                (Some(input), _) if tensor.output == 0 => tensor = node.inputs[input],
                (_, Some(ControlFlow::Switch { .. })) => tensor = node.inputs[0],
                _ => break,
            }
        }
        tensor
    }

    fn truth(&mut self, predicate: TensorId) -> Option<bool> {
        let value = self.value(predicate)?;
        value.as_slice::<Bool8>().ok()?.first().map(|b| b.get())
    }

    /// A tensor's value, where it is known before the step.
    fn value(&mut self, tensor: TensorId) -> Option<Arc<Array>> {
        let mut pending = vec![tensor];
        while let Some(&next) = pending.last() {
            if self.known.contains_key(&next) {
                pending.pop();
                continue;
            }
            let node = self.nodes[next.node.index()].clone();
            let value = if let Some(feed) = self.signature.feed(next) {
                // A plan for each value is worth it for a switch that somebody throws, not for data.
                let switch = |v: &Arc<Array>| v.dtype() == DType::Bool && v.len() == 1;
                let value = self.signature.feeds[feed].value.clone().filter(switch);
                self.depends_on_values |= value.is_some();
                value
            } else if let Some(ControlFlow::AsksInitialized { .. }) = node.op.control_flow() {
                Some(Arc::new(Array::scalar(Bool8::from(self.answer(&node)))))
            } else if let Some(value) = node.op.constant(&node.attrs) {
                Some(value.clone())
            } else if node.op.traits().stateful || node.op.must_be_fed() || node.inputs.is_empty() {
                None
            } else {
                let inputs: Vec<TensorId> = match node.op.control_flow() {
                    Some(ControlFlow::Switch { .. }) => vec![node.inputs[0]],
                    _ => node.inputs.to_vec(),
                };
                let asked = pending.len();
                pending.extend(inputs.iter().filter(|t| !self.known.contains_key(t)));
                if pending.len() > asked {
                    continue;
                }
                let known: Option<Vec<Arc<Array>>> = inputs.iter().map(|t| self.known[t].clone()).collect();
                known.and_then(|known| match node.op.control_flow() {
                    Some(ControlFlow::Switch { .. }) => known.into_iter().next(),
                    Some(_) => None,
                    None => {
                        let values = graph::evaluate(node.op, &node.attrs, &known, &self.team).ok()?;
                        values.into_iter().nth(next.output as usize)
                    }
                })
            };
            self.known.insert(next, value);
            pending.pop();
        }
        self.known[&tensor].clone()
    }

    /// Whether the variable that a node asks for has a value.
    fn answer(&mut self, node: &Node) -> bool {
        let variable = self.origin(node.inputs[0]).node;
        let answer = (self.is_initialized)(variable);
        if !self.initialized.contains(&(variable, answer)) {
            self.initialized.push((variable, answer));
        }
        answer
    }
}

/// What is left of a node whose branch is not taken.
struct Nothing;

impl graph::Op for Nothing {
    fn name(&self) -> &'static str {
        "NoOp"
    }

    fn infer(&self, _c: &graph::InferContext<'_>) -> std::result::Result<Vec<graph::Fact>, String> {
        Ok(Vec::new())
    }

    fn cpu_kernel(&self, _c: &graph::KernelContext<'_>) -> std::result::Result<crate::device::CpuKernel, String> {
        Ok(Box::new(|_| Ok(())))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[graph::Fact]) -> bool {
        true
    }
}
