//! Building the one apply-gradients node: its slots, its hyper-parameters, its order.

use super::optimizer::{ApplyOptions, GradAndVar, Hyper, Optimizer, quoted};
use super::parts::{node as start, scalar};
use crate::base::{Code, DType, DeviceSpec, Diagnostic, SourceLine};
use crate::graph::{
    CollectionItem, DeviceRequest, DeviceRule, Gradient, Graph, Init, NodeId, Operation, Tensor, Variable, keys,
};
use crate::layers::update_from_towers;
use crate::ops::{ApplyGradients, ApplyLayout, UpdateRule};
use std::collections::BTreeSet;

impl<'g> Optimizer<'g> {
    /// One node that applies these gradients to their variables, named as the optimizer.
    #[track_caller]
    pub fn apply_gradients(&self, list: &[GradAndVar<'g>]) -> Operation<'g> {
        self.apply_gradients_with(list, ApplyOptions::default())
    }

    /// As [`Optimizer::apply_gradients`], with options.
    ///
    /// The node joins [`keys::TRAIN_OP`]. Entries without a gradient are left out. Slots are made beside their
    /// variables, whatever reuse is on. Reported: an empty list, a list without any gradient, a variable twice, types
    /// or shapes that differ. A variable that another node of the graph updates already is a warning: both may be
    /// built, and one run may hold both only if one waits for the other.
    #[track_caller]
    pub fn apply_gradients_with(&self, list: &[GradAndVar<'g>], options: ApplyOptions<'g>) -> Operation<'g> {
        let graph = list.first().map(|gv| gv.var.op().graph()).or(self.state().graph);
        let Some(graph) = graph.or(options.global_step.map(|s| s.op().graph())) else { return detached() };
        let source = graph.source_line();
        if list.is_empty() {
            // What made a list of gradients empty is reported where that happened.
            if graph.diagnostics().is_empty() {
                let message = format!("no variables provided to optimizer '{}'", self.name);
                graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
            }
            return graph.poison_operation();
        }
        let poison = list.iter().any(|gv| gv.var.is_poison() || gv.grad.is_some_and(|g| g.values().is_poison()));
        if poison || options.global_step.is_some_and(|s| s.is_poison()) {
            return graph.poison_operation();
        }
        if let Err(message) = self.check(list, &options) {
            if !message.is_empty() {
                graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
            }
            return graph.poison_operation();
        }
        let given: Vec<GradAndVar<'g>> = list.iter().filter(|gv| gv.grad.is_some()).copied().collect();
        warn_second(graph, &given, source);
        graph.with_source(source, || self.build(graph, &given, options, source))
    }

    /// What is wrong with the list; empty where it is reported already.
    fn check(&self, list: &[GradAndVar<'g>], options: &ApplyOptions<'g>) -> Result<(), String> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        if list.iter().all(|gv| gv.grad.is_none()) {
            let state = self.state();
            if state.reported {
                return Err(String::new());
            }
            let names: Vec<String> = list.iter().map(|gv| gv.var.name()).collect();
            let losses = match &state.losses[..] {
                [] => String::new(),
                losses => format!(" of loss {}", quoted(losses)),
            };
            return Err(format!(
                "no gradients{losses} provided for any variable: {}; does the loss depend on them?",
                quoted(&names)
            ));
        }
        let mut seen = BTreeSet::new();
        for gv in list {
            let (name, dtype, shape) = (gv.var.name(), gv.var.dtype(), gv.var.shape());
            if !seen.insert(gv.var.op().id()) {
                return Err(format!(
                    "variable '{name}' is twice in the list to apply; average or add its gradients first"
                ));
            }
            let Some(grad) = gv.grad else { continue };
            let values = grad.values();
            let fits = match grad {
                Gradient::Dense(t) => t.shape().is_compatible_with(&shape),
                Gradient::Slices(_) => true,
            };
            if values.dtype() != dtype || !fits {
                return Err(format!(
                    "the gradient of variable '{name}' must be like it: want {dtype} {shape}, got '{}' {} {}",
                    values.name(),
                    values.dtype(),
                    values.shape()
                ));
            }
        }
        for (hyper, name) in self.hypers.iter().zip(self.rule.hypers()) {
            let Hyper::Tensor(t) = hyper else { continue };
            if !t.is_poison() && (!t.dtype().is_floating() || t.rank().is_some_and(|r| r != 0)) {
                return Err(format!(
                    "{name} of optimizer '{}' must be a float scalar, got '{}' {} {}",
                    self.name,
                    t.name(),
                    t.dtype(),
                    t.shape()
                ));
            }
        }
        for (hyper, name) in self.hypers.iter().zip(self.rule.hypers()) {
            let Hyper::Value(value) = hyper else { continue };
            let (want, fits) = match *name {
                "learning_rate_power" => ("zero or less", *value <= 0.0),
                name if name.ends_with("regularization_strength") => ("zero or more", *value >= 0.0),
                _ => continue,
            };
            if !fits {
                return Err(format!("{name} of optimizer '{}' must be {want}, got {value}", self.name));
            }
        }
        if let Some(step) = options.global_step
            && (!step.dtype().is_integer() || step.shape().rank() != Some(0))
        {
            return Err(format!(
                "the global step must be an int64 or int32 scalar, got variable '{}' {} {}; \
                 get_or_create_global_step makes one",
                step.name(),
                step.dtype(),
                step.shape()
            ));
        }
        Ok(())
    }

    fn build(
        &self,
        graph: &'g Graph,
        list: &[GradAndVar<'g>],
        options: ApplyOptions<'g>,
        source: SourceLine,
    ) -> Operation<'g> {
        let dtype = Self::shared_type(list);
        self.make_powers(graph, list, dtype);
        let slots: Vec<Vec<Variable<'g>>> = list.iter().map(|gv| self.slots_of(graph, gv.var)).collect();
        let powers = self.state().powers.clone();
        let name = options.name.as_deref().unwrap_or(&self.name);
        update_from_towers(graph);
        let updates: Vec<Operation<'g>> =
            graph.get_collection(keys::UPDATE_OPS).into_iter().filter_map(operation_of).collect();
        let device = common_device(list);
        let sparse: Vec<bool> = list.iter().map(|gv| matches!(gv.grad, Some(Gradient::Slices(_)))).collect();
        let layout = ApplyLayout::new(self.rule, self.use_nesterov, sparse, options.global_step.is_some());
        let op = graph.name_scope(name, || {
            let hypers = self.hyper_tensors(graph, dtype, &device);
            let mut builder = start(graph, "ApplyGradients").name(format!("{}/", graph.current_name_scope()));
            for (name, value) in layout.attrs().iter() {
                builder = builder.attr(name.to_string(), value.clone());
            }
            builder = builder.device(device.spec, device.rule).inputs(hypers);
            builder = builder.inputs(powers.iter().map(|p| p.buffer()));
            for (gv, slots) in list.iter().zip(&slots) {
                builder = builder.input(gv.var.buffer()).inputs(slots.iter().map(|s| s.buffer()));
                builder = match gv.grad {
                    Some(Gradient::Slices(s)) => builder.input(s.values).input(s.indices),
                    Some(Gradient::Dense(t)) => builder.input(t),
                    None => builder,
                };
            }
            if let Some(step) = options.global_step {
                builder = builder.input(step.buffer());
            }
            if options.run_update_ops {
                builder = updates.iter().fold(builder, |b, &op| b.control(op));
            }
            builder.add()
        });
        if !options.run_update_ops && !op.is_poison() {
            warn_unreached(graph, op, &updates, source);
        }
        graph.add_to_collection(keys::TRAIN_OP, op);
        op
    }

    /// Numbers become constants beside the node.
    fn hyper_tensors(&self, graph: &'g Graph, dtype: DType, device: &DeviceRequest) -> Vec<Tensor<'g>> {
        let constant = |value: f64, name: &str| {
            graph.no_device(|| {
                graph.device_because(device.spec.clone(), device.rule.clone(), || scalar(graph, dtype, value, name))
            })
        };
        (self.hypers.iter().zip(self.rule.hypers()))
            .map(|(hyper, name)| match *hyper {
                Hyper::Value(value) => constant(value, name),
                Hyper::Tensor(tensor) => tensor,
            })
            .collect()
    }

    /// The variables that all variables share, beside the one whose name is first in the alphabet, as in TensorFlow.
    fn make_powers(&self, graph: &'g Graph, list: &[GradAndVar<'g>], dtype: DType) {
        if !self.state().powers.is_empty() {
            return;
        }
        let Some(first) = list.iter().map(|gv| gv.var).min_by_key(|v| v.name()) else { return };
        let powers = (self.rule.powers().iter().zip(&self.hypers[1..]))
            .map(|(name, beta)| {
                let start = match beta {
                    Hyper::Value(value) => *value,
                    // A beta that is computed is not known here; its power starts from TensorFlow's default.
                    Hyper::Tensor(t) => constant_of(*t).unwrap_or(if *name == "beta1_power" { 0.9 } else { 0.999 }),
                };
                graph.scalar_variable(name, dtype, start, Some(first))
            })
            .collect();
        self.state().powers = powers;
    }

    /// The slots of one variable, made at the first call: named `VAR/NAME`, `VAR/NAME_1` under the current variable
    /// scope, and beside their variable.
    fn slots_of(&self, graph: &'g Graph, var: Variable<'g>) -> Vec<Variable<'g>> {
        if let Some(slots) = self.state().slots.get(&var.op().id()) {
            return slots.clone();
        }
        let scope = graph.current_variable_scope();
        let prefix = if scope.name().is_empty() { String::new() } else { format!("{}/", scope.name()) };
        let name = format!("{prefix}{}/{}", var.name(), self.name);
        let names = self.rule.slots();
        let make = |i: usize| {
            let init = match (self.rule, i) {
                (UpdateRule::RmsProp, 0) | (UpdateRule::CenteredRmsProp, 1) => Init::Ones,
                (UpdateRule::Adagrad | UpdateRule::AdagradV2, _) => Init::Constant(self.initial_accumulator),
                (UpdateRule::Ftrl | UpdateRule::FtrlV2, 0) => Init::Constant(self.initial_accumulator),
                _ => Init::Zeros,
            };
            (i, graph.untracked_variable(&name, var.shape(), var.dtype(), init, Some(var)))
        };
        // Made in the order of their names, since names are given in turn.
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by_key(|&i| names[i]);
        let mut made: Vec<(usize, Variable<'g>)> = order.into_iter().map(make).collect();
        made.sort_by_key(|(i, _)| *i);
        let slots: Vec<Variable<'g>> = made.into_iter().map(|(_, slot)| slot).collect();
        self.state().slots.insert(var.op().id(), slots.clone());
        slots
    }
}

/// The value of a tensor that is a constant scalar.
fn constant_of(tensor: Tensor<'_>) -> Option<f64> {
    let node = tensor.op().node()?;
    let value = node.op.constant(&node.attrs)?;
    (value.len() == 1).then(|| value.get_f64(0))
}

/// A poison operation where there is no graph: nothing is ever recorded in the empty one behind it.
pub(super) fn detached<'g>() -> Operation<'g> {
    static EMPTY: std::sync::OnceLock<Graph> = std::sync::OnceLock::new();
    EMPTY.get_or_init(Graph::new).poison_operation()
}

/// The device of all variables; none where they differ, and planning splits the node.
fn common_device(list: &[GradAndVar<'_>]) -> DeviceRequest {
    let spec = list.first().map_or_else(DeviceSpec::any, |gv| gv.var.device());
    if spec.is_empty() || list.iter().any(|gv| gv.var.device() != spec) {
        return DeviceRequest::default();
    }
    DeviceRequest { spec, rule: DeviceRule::Colocated(list[0].var.name()) }
}

fn operation_of(item: CollectionItem<'_>) -> Option<Operation<'_>> {
    match item {
        CollectionItem::Operation(op) => Some(op),
        CollectionItem::Tensor(t) => Some(t.op()),
        CollectionItem::Variable(_) => None,
    }
}

/// A remark for each variable that a train op of this graph updates already.
fn warn_second(graph: &Graph, list: &[GradAndVar<'_>], source: SourceLine) {
    for op in graph.get_collection(keys::TRAIN_OP).into_iter().filter_map(operation_of) {
        let Some(node) = op.node().filter(|n| n.op.name() == crate::graph::Op::name(&ApplyGradients)) else { continue };
        let written: BTreeSet<NodeId> =
            node.op.written_inputs(&node.attrs, node.inputs.len()).iter().map(|&i| node.inputs[i].node).collect();
        for gv in list.iter().filter(|gv| written.contains(&gv.var.op().id())) {
            let message = format!(
                "variable '{}' is updated by '{}' already; run the two in different runs, or let one wait for the other",
                gv.var.name(),
                node.name
            );
            graph.warn(Diagnostic::at(Code::InvalidArgument, message, source));
        }
    }
}

/// A remark with the update operations that the train op does not run.
fn warn_unreached(graph: &Graph, op: Operation<'_>, updates: &[Operation<'_>], source: SourceLine) {
    let mut seen = BTreeSet::new();
    let mut stack = vec![op.id()];
    while let Some(id) = stack.pop() {
        if !seen.insert(id) {
            continue;
        }
        if let Some(node) = graph.node(id) {
            stack.extend(node.inputs.iter().map(|i| i.node));
            stack.extend(node.control_inputs.iter().copied());
        }
    }
    let missed: Vec<String> = updates.iter().filter(|u| !seen.contains(&u.id())).map(|u| u.name()).collect();
    if !missed.is_empty() {
        let message = format!(
            "{} update operations are not reached by '{}': {}; leave run_update_ops on, or run them yourself",
            missed.len(),
            op.name(),
            quoted(&missed)
        );
        graph.warn(Diagnostic::at(Code::InvalidArgument, message, source));
    }
}
