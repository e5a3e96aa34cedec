//! Reverse-mode differentiation by adding nodes, as TensorFlow's `tf.gradients`: same walk, same names, same gating.
//!
//! Invariants: only nodes between the `xs` and the `ys` get gradient nodes; the walk costs time linear in the nodes that
//! the `ys` depend on, whatever else the graph holds. Absent: loops.

use super::gradient_ends::check_ends;
use super::joining::{gate, operation, sum};
use super::parts::{densify, fill_ones, zeros_like};
use crate::base::{Code, Diagnostic, Shape, SourceLine};
use crate::graph::{
    DeviceRule, GradContext, Gradient, Graph, IndexedSlices, InputGradients, Node, NodeId, Tensor, TensorId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// What [`gradients`] gives for an `x` that no `y` depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnconnectedGradients {
    /// `None`.
    #[default]
    None,
    /// Zeros of the shape of `x`.
    Zero,
}

/// How [`gradients`] builds; the default is TensorFlow's.
#[derive(Clone, Debug, Default)]
pub struct GradOptions<'g> {
    /// The gradients that reach the `ys`, one per `y`; ones where `None`, and for all of them where the list is empty.
    pub grad_ys: Vec<Option<Gradient<'g>>>,
    /// Tensors that count as constants.
    pub stop_gradients: Vec<Tensor<'g>>,
    /// Colocates each gradient node with its forward node, whatever device scopes are open.
    pub colocate_gradients_with_ops: bool,
    /// Lets no gradient of a node be used before all gradients of that node are there.
    pub gate_gradients: bool,
    /// What an `x` gets that no `y` depends on.
    pub unconnected: UnconnectedGradients,
}

/// The gradients of the sum of all `ys` with respect to each of the `xs`, in their order; each has the shape of its `x`.
///
/// New nodes are made in the name scope `gradients` under the current one. Where no device scope is open, each goes to
/// the device of the forward node that it belongs to; else the device scopes count, as in TensorFlow. For a variable
/// this differentiates with respect to its default read.
///
/// Reported: a `y` or `x` that is not floating, a node between them whose op type has no gradient rule, a rule whose
/// result does not have its input's shape. The affected gradients are poison then.
#[track_caller]
pub fn gradients<'g, Y: Into<Tensor<'g>>, X: Into<Tensor<'g>>>(
    ys: impl IntoIterator<Item = Y>,
    xs: impl IntoIterator<Item = X>,
    options: GradOptions<'g>,
) -> Vec<Option<Gradient<'g>>> {
    let ys: Vec<Tensor<'g>> = ys.into_iter().map(Into::into).collect();
    let xs: Vec<Tensor<'g>> = xs.into_iter().map(Into::into).collect();
    let Some(graph) = ys.iter().chain(&xs).map(|t| t.graph()).next() else { return Vec::new() };
    let source = graph.source_line();
    let (_, lists) = graph.with_source(source, || build(graph, ys, xs, options, source, false));
    lists.into_iter().map(|mut list| list.pop()).collect()
}

/// As [`gradients`], but what reaches each of the `xs` is not summed: its parts, one for each node that reads it. And
/// the absolute name scope of the new nodes; the part of a node `n` is computed by nodes in the scope `n_grad` in it.
///
/// The `xs` must not depend on each other.
#[track_caller]
pub(super) fn gradients_apart<'g>(
    graph: &'g Graph,
    ys: Vec<Tensor<'g>>,
    xs: Vec<Tensor<'g>>,
    options: GradOptions<'g>,
) -> (String, Vec<Vec<Gradient<'g>>>) {
    let source = graph.source_line();
    graph.with_source(source, || build(graph, ys, xs, options, source, true))
}

fn build<'g>(
    graph: &'g Graph,
    ys: Vec<Tensor<'g>>,
    xs: Vec<Tensor<'g>>,
    options: GradOptions<'g>,
    source: SourceLine,
    apart: bool,
) -> (String, Vec<Vec<Gradient<'g>>>) {
    if xs.is_empty() {
        return (String::new(), Vec::new());
    }
    let all_poison = || (String::new(), xs.iter().map(|_| vec![graph.poison_tensor().into()]).collect());
    if let Err(message) = check_ends(graph, &ys, &xs, &options) {
        graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
        return all_poison();
    }
    if ys.iter().any(|y| y.is_poison()) {
        return all_poison();
    }
    graph.name_scope("gradients", || {
        let mut walk = Walk::new(graph, &ys, &xs, &options, source);
        walk.apart = apart;
        let seeds = walk.seeds(&ys, &options.grad_ys);
        for (y, seed) in ys.iter().zip(seeds) {
            walk.set(y.id(), seed);
        }
        walk.run(&ys);
        let of = |&x: &Tensor<'g>| match apart {
            true => walk.parts(x),
            false => walk.result(x, options.unconnected).into_iter().collect(),
        };
        (graph.current_name_scope(), xs.iter().map(of).collect())
    })
}

/// One node among those that the `ys` depend on.
struct Visit {
    node: Arc<Node>,
    /// On a path from an `x` to a `y`.
    between: bool,
    /// Uses by nodes between whose gradients are still to come.
    pending: i64,
}

struct Walk<'g> {
    graph: &'g Graph,
    source: SourceLine,
    visits: BTreeMap<NodeId, Visit>,
    from: BTreeSet<NodeId>,
    stop: BTreeSet<NodeId>,
    /// What has reached each output so far; one entry once the node's turn came.
    grads: HashMap<NodeId, Vec<Vec<Gradient<'g>>>>,
    colocate: bool,
    gate: bool,
    /// Leaves what reaches the xs as it is.
    apart: bool,
    /// No device scope is open, so that gradient nodes follow their forward nodes.
    follow: bool,
    /// Op types without a rule that are reported already.
    lacking: BTreeSet<String>,
}

impl<'g> Walk<'g> {
    fn new(
        graph: &'g Graph,
        ys: &[Tensor<'g>],
        xs: &[Tensor<'g>],
        options: &GradOptions<'g>,
        source: SourceLine,
    ) -> Walk<'g> {
        let from: BTreeSet<NodeId> = xs.iter().filter(|x| !x.is_poison()).map(|x| x.id().node).collect();
        let mut visits = ancestors(graph, ys);
        // Inputs have smaller ids, so one pass in the order of ids marks what the xs reach.
        let mut reached: BTreeSet<NodeId> = BTreeSet::new();
        for (&id, visit) in &visits {
            let flows = |input: &TensorId| {
                reached.contains(&input.node)
                    && visits[&input.node].node.outputs[input.output as usize].dtype.is_floating()
            };
            if from.contains(&id) || visit.node.inputs.iter().any(flows) {
                reached.insert(id);
            }
        }
        // Back from the ys inside of what is reached.
        let mut queue: VecDeque<NodeId> = ys.iter().map(|y| y.id().node).collect();
        while let Some(id) = queue.pop_front() {
            if reached.remove(&id) {
                let visit = visits.get_mut(&id).expect("reached nodes are visited");
                visit.between = true;
                queue.extend(visit.node.inputs.iter().map(|i| i.node));
            }
        }
        let uses: Vec<NodeId> =
            visits.values().filter(|v| v.between).flat_map(|v| v.node.inputs.iter().map(|i| i.node)).collect();
        for id in uses {
            let visit = visits.get_mut(&id).expect("inputs of visited nodes are visited");
            visit.pending += i64::from(visit.between);
        }
        let is_stop = |id: &&NodeId| match visits.get(id) {
            Some(visit) => visit.node.inputs.iter().all(|i| visits[&i.node].pending <= 0),
            None => true,
        };
        let mut stop: BTreeSet<NodeId> = from.iter().filter(is_stop).copied().collect();
        stop.extend(options.stop_gradients.iter().map(|t| t.id().node));
        Walk {
            graph,
            source,
            visits,
            from,
            stop,
            grads: HashMap::new(),
            colocate: options.colocate_gradients_with_ops,
            gate: options.gate_gradients,
            apart: false,
            follow: !graph.in_device_scope(),
            lacking: BTreeSet::new(),
        }
    }

    /// Runs the body where the gradient nodes of this node belong.
    fn beside<R>(&self, node: &Node, body: impl FnOnce() -> R) -> R {
        if self.colocate {
            self.graph.colocate_with(operation(self.graph, node.id), body)
        } else if self.follow {
            let rule = DeviceRule::Gradient(node.name.to_string());
            self.graph.device_because(node.device.spec.clone(), rule, body)
        } else {
            body()
        }
    }

    fn seeds(&self, ys: &[Tensor<'g>], given: &[Option<Gradient<'g>>]) -> Vec<Gradient<'g>> {
        (ys.iter().enumerate())
            .map(|(i, &y)| {
                self.beside(&self.visits[&y.id().node].node, || {
                    let name = format!("grad_ys_{i}");
                    match given.get(i).copied().flatten() {
                        None => fill_ones(y, &name).into(),
                        Some(Gradient::Dense(grad)) => grad.identity(&name).into(),
                        Some(Gradient::Slices(s)) => IndexedSlices {
                            values: s.values.identity(&format!("{name}_values")),
                            indices: s.indices.identity(&format!("{name}_indices")),
                            ..s
                        }
                        .into(),
                    }
                })
            })
            .collect()
    }

    fn set(&mut self, tensor: TensorId, grad: Gradient<'g>) {
        let outputs = self.visits.get(&tensor.node).map_or(0, |v| v.node.outputs.len());
        let lists = self.grads.entry(tensor.node).or_insert_with(|| vec![Vec::new(); outputs]);
        if let Some(list) = lists.get_mut(tensor.output as usize) {
            list.push(grad);
        }
    }

    fn run(&mut self, ys: &[Tensor<'g>]) {
        let mut queue: VecDeque<NodeId> = VecDeque::new();
        for id in ys.iter().map(|y| y.id().node) {
            let visit = &self.visits[&id];
            if visit.pending == 0 && visit.between && !queue.contains(&id) {
                queue.push_back(id);
            }
        }
        while let Some(id) = queue.pop_front() {
            let node = self.visits[&id].node.clone();
            let in_grads = self.differentiate(&node);
            for (index, (&input, grad)) in node.inputs.iter().zip(in_grads).enumerate() {
                if let Some(grad) = grad.and_then(|g| self.checked(&node, index, g)) {
                    self.set(input, grad);
                }
            }
            for input in &node.inputs {
                let visit = self.visits.get_mut(&input.node).expect("inputs of visited nodes are visited");
                visit.pending -= 1;
                if visit.pending == 0 {
                    queue.push_back(input.node);
                }
            }
        }
    }

    /// The gradients of one node's inputs.
    fn differentiate(&mut self, node: &Arc<Node>) -> InputGradients<'g> {
        if self.apart && self.from.contains(&node.id) {
            return vec![None; node.inputs.len()];
        }
        let out_grads = self.beside(node, || self.aggregate(node.id));
        if let Some(out_grads) = &out_grads {
            let lists = out_grads.iter().map(|g| g.iter().copied().collect()).collect();
            self.grads.insert(node.id, lists);
        }
        let nothing = vec![None; node.inputs.len()];
        let Some(out_grads) = out_grads.filter(|g| g.iter().any(Option::is_some)) else { return nothing };
        if self.stop.contains(&node.id) || node.op.traits().no_gradient {
            return nothing;
        }
        if out_grads.iter().flatten().any(|g| g.values().is_poison()) {
            return self.poison(node);
        }
        if let Some(passed) = pass_rows(node, &out_grads, self) {
            return passed;
        }
        let scope = format!("{}_grad", node.name);
        let ruled = self.beside(node, || {
            let context = self.context(node, out_grads);
            self.graph.name_scope(&scope, || (node.op.gradient(&context), self.graph.current_name_scope()))
        });
        let (Some(in_grads), scope) = ruled else {
            self.report_lacking(node);
            return self.poison(node);
        };
        if in_grads.len() != node.inputs.len() {
            let message = format!(
                "the gradient rule of {} gave {} gradients for the {} inputs of '{}'",
                node.op_type(),
                in_grads.len(),
                node.inputs.len(),
                node.name
            );
            self.graph.report(Diagnostic::at(Code::Internal, message, self.source));
            return self.poison(node);
        }
        if self.gate && in_grads.iter().flatten().count() > 1 {
            return self.graph.name_scope(&format!("{scope}/"), || gate(self.graph, &in_grads));
        }
        in_grads
    }

    /// What a rule sees; outputs that nothing depends on get zeros, as in TensorFlow.
    fn context(&self, node: &Node, out_grads: Vec<Option<Gradient<'g>>>) -> GradContext<'g> {
        let op = operation(self.graph, node.id);
        let outputs = op.outputs();
        let grads = (out_grads.into_iter().zip(&outputs))
            .map(|(grad, &output)| match grad {
                Some(grad) => Some(densify(grad)),
                None if output.dtype().is_floating() => Some(zeros_like(output)),
                None => None,
            })
            .collect();
        GradContext { node: op, inputs: op.inputs(), outputs, grads }
    }

    /// One gradient per output out of all that reached it.
    fn aggregate(&self, id: NodeId) -> Option<Vec<Option<Gradient<'g>>>> {
        let lists = self.grads.get(&id)?;
        Some(lists.iter().map(|list| sum(self.graph, list)).collect())
    }

    fn poison(&self, node: &Node) -> InputGradients<'g> {
        node.inputs.iter().map(|_| Some(self.graph.poison_tensor().into())).collect()
    }

    fn report_lacking(&mut self, node: &Node) {
        let kind = node.op_type().to_string();
        if !self.lacking.insert(kind.clone()) {
            return;
        }
        let wanted: Vec<String> = self.reaching(node.id).iter().map(|&x| self.display(x)).collect();
        let message = format!(
            "no gradient defined for operation '{}' (op type: {kind}), which lies between the differentiated value and {}; \
             use stop_gradient before it, or leave {} out of what is differentiated",
            node.name,
            wanted.join(", "),
            if wanted.len() == 1 { "that" } else { "those" }
        );
        self.graph.report(Diagnostic::at(Code::Unimplemented, message, self.source));
    }

    /// The xs that this node depends on.
    fn reaching(&self, id: NodeId) -> Vec<NodeId> {
        let mut seen = BTreeSet::new();
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            if self.visits.get(&id).is_some_and(|v| v.between) && seen.insert(id) {
                stack.extend(self.visits[&id].node.inputs.iter().map(|i| i.node));
            }
        }
        self.from.iter().filter(|x| seen.contains(x)).copied().collect()
    }

    /// A variable by its name, also where its default read is what was given; any other node by its name.
    fn display(&self, id: NodeId) -> String {
        let Some(visit) = self.visits.get(&id) else { return "<error>".into() };
        let read_of = visit.node.inputs.first().map(|i| i.node);
        let variable = self
            .graph
            .variable_of(id)
            .or_else(|| read_of.and_then(|v| self.graph.variable_of(v)).filter(|v| v.value().op().id() == id));
        match variable {
            Some(variable) => format!("variable '{}'", variable.name()),
            None => format!("'{}'", visit.node.name),
        }
    }

    /// The gradient if it has its input's shape; else that is reported.
    fn checked(&self, node: &Node, index: usize, grad: Gradient<'g>) -> Option<Gradient<'g>> {
        let input = node.inputs[index];
        let fact = &self.visits[&input.node].node.outputs[input.output as usize];
        if grad.values().is_poison() {
            return Some(grad);
        }
        let (want, got) = match grad {
            Gradient::Dense(t) => (fact.shape.clone(), t.shape()),
            Gradient::Slices(s) => (rows_of(&fact.shape), rows_of(&s.values.shape())),
        };
        if want.is_compatible_with(&got) && grad.values().dtype() == fact.dtype {
            return Some(grad);
        }
        let message = format!(
            "incompatible gradient of '{}' ({}), input {index}: want the input's {} {}, got {} {}",
            node.name,
            node.op_type(),
            fact.dtype,
            want,
            grad.values().dtype(),
            got
        );
        self.graph.report(Diagnostic::at(Code::InvalidArgument, message, self.source));
        Some(self.graph.poison_tensor().into())
    }

    fn parts(&self, x: Tensor<'g>) -> Vec<Gradient<'g>> {
        let lists = self.grads.get(&x.id().node);
        lists.and_then(|lists| lists.get(x.id().output as usize)).cloned().unwrap_or_default()
    }

    fn result(&self, x: Tensor<'g>, unconnected: UnconnectedGradients) -> Option<Gradient<'g>> {
        if x.is_poison() {
            return Some(x.into());
        }
        let id = x.id();
        let list = self.grads.get(&id.node).and_then(|lists| lists.get(id.output as usize));
        // An x that is its own y only, or that the walk never came to, may hold several: they add up here.
        match list.and_then(|list| sum(self.graph, list)) {
            None if unconnected == UnconnectedGradients::Zero => {
                let node = x.op().node()?;
                Some(self.beside(&node, || zeros_like(x)).into())
            }
            found => found,
        }
    }
}

/// The nodes that the ys depend on, by id.
fn ancestors<'g>(graph: &'g Graph, ys: &[Tensor<'g>]) -> BTreeMap<NodeId, Visit> {
    let mut visits = BTreeMap::new();
    let mut stack: Vec<NodeId> = ys.iter().map(|y| y.id().node).collect();
    while let Some(id) = stack.pop() {
        if visits.contains_key(&id) {
            continue;
        }
        if let Some(node) = graph.node(id) {
            stack.extend(node.inputs.iter().map(|i| i.node));
            visits.insert(id, Visit { node, between: false, pending: 0 });
        }
    }
    visits
}

/// Rows pass a node that only renames its input: the read of a variable keeps its gradient sparse.
fn pass_rows<'g>(node: &Node, out_grads: &[Option<Gradient<'g>>], walk: &Walk<'g>) -> Option<InputGradients<'g>> {
    let [Some(Gradient::Slices(slices))] = out_grads else { return None };
    let index = node.op.traits().forwards?;
    let input = *node.inputs.get(index)?;
    let same = walk.visits[&input.node].node.outputs[input.output as usize] == node.outputs[0];
    if !same || !node.outputs[0].shape.is_fully_defined() {
        return None;
    }
    let of = Tensor { graph: walk.graph, id: input };
    let mut grads = vec![None; node.inputs.len()];
    grads[index] = Some(IndexedSlices { of, ..*slices }.into());
    Some(grads)
}

/// The shape of one row.
fn rows_of(shape: &Shape) -> Shape {
    match shape.dims() {
        Some([_, rest @ ..]) => Shape::partial(rest.iter().copied()),
        _ => Shape::unknown(),
    }
}
