//! Moving averages of variables and tensors: TensorFlow's `ExponentialMovingAverage`.
//!
//! Absent: swapping a session's variables for their averages; a saver does that by [`ExponentialMovingAverage::variables_to_restore`].

use super::apply::detached;
use super::optimizer::{Hyper, quoted};
use super::parts::{cast, node as start, scalar};
use crate::base::{Code, DType, Diagnostic, Shape};
use crate::graph::{Graph, Init, NodeId, Operation, Tensor, TensorId, Variable, keys};
use crate::ops::one_minus;
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Keeps `average ← average − (1 − decay) · (average − value)` of variables or tensors.
///
/// The average of variable `w` is the variable `w/ExponentialMovingAverage`, beside it and not trainable; it starts from
/// the value of `w`. That of a tensor starts from zeros.
pub struct ExponentialMovingAverage<'g> {
    decay: Hyper<'g>,
    num_updates: Option<Tensor<'g>>,
    zero_debias: bool,
    name: String,
    averages: Mutex<BTreeMap<Of, Variable<'g>>>,
}

/// What an average is kept of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Variable(NodeId),
    Tensor(TensorId),
}

impl<'g> ExponentialMovingAverage<'g> {
    /// Averages with this decay, a number below 1 or a float scalar; close to 1 they are slow.
    pub fn new(decay: impl Into<Hyper<'g>>) -> ExponentialMovingAverage<'g> {
        ExponentialMovingAverage {
            decay: decay.into(),
            num_updates: None,
            zero_debias: false,
            name: "ExponentialMovingAverage".to_string(),
            averages: Mutex::default(),
        }
    }

    /// Lets averages move faster at the beginning: the decay is `min(decay, (1 + n) / (10 + n))` for this counter of
    /// updates `n`, such as the global step.
    #[must_use]
    pub fn num_updates(mut self, counter: impl Into<Tensor<'g>>) -> Self {
        self.num_updates = Some(counter.into());
        self
    }

    /// Corrects averages of tensors for their start from zeros (Kingma and Ba, 2014, section 3).
    #[must_use]
    pub fn zero_debias(mut self) -> Self {
        self.zero_debias = true;
        self
    }

    /// Another name: of the operation, and the last part of the averages' names.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_string();
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn averages(&self) -> MutexGuard<'_, BTreeMap<Of, Variable<'g>>> {
        // The lock guards no user code, so a poisoned one still holds a whole state.
        self.averages.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// An operation that moves the averages of these variables, named as this is. Averages that are not there are made.
    ///
    /// It takes the variables as they are when a step begins; inside of
    /// [`control_dependencies`](Graph::control_dependencies) on a train op, as the train op left them, and the counter too.
    /// Of no variables it does nothing. Reported: a variable that holds no floats.
    #[track_caller]
    pub fn apply(&self, variables: &[Variable<'g>]) -> Operation<'g> {
        let Some(graph) = variables.iter().map(|v| v.op().graph()).next() else { return detached() };
        let source = graph.source_line();
        let integers: Vec<String> =
            variables.iter().filter(|v| !v.is_poison() && !v.dtype().is_floating()).map(|v| v.name()).collect();
        if !integers.is_empty() {
            let message =
                format!("moving average '{}': {} must hold floats; leave them out", self.name, quoted(&integers));
            graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
            return graph.poison_operation();
        }
        graph.with_source(source, || {
            for &variable in variables {
                let key = Of::Variable(variable.op().id());
                if variable.is_poison() || self.averages().contains_key(&key) {
                    continue;
                }
                let average = graph.variable_copy(&self.slot_name(graph, &variable.name()), variable);
                graph.add_to_collection(keys::MOVING_AVERAGE_VARIABLES, variable);
                self.averages().insert(key, average);
            }
            let value = |&v: &Variable<'g>| (Of::Variable(v.op().id()), v.value(), false);
            self.updates(graph, variables.iter().map(value).collect())
        })
    }

    /// As [`ExponentialMovingAverage::apply`], of tensors, such as losses. Their averages are named by the nodes that
    /// compute them, and lie where the device scopes say.
    #[track_caller]
    pub fn apply_to_tensors(&self, tensors: &[Tensor<'g>]) -> Operation<'g> {
        let Some(graph) = tensors.iter().map(|t| t.graph()).next() else { return detached() };
        let source = graph.source_line();
        let unfit =
            tensors.iter().find(|t| !(t.is_poison() || t.dtype().is_floating() && t.shape().is_fully_defined()));
        if let Some(t) = unfit {
            let message = format!(
                "moving average '{}': want tensors of floats whose shapes are known, got '{}' {} {}",
                self.name,
                t.name(),
                t.dtype(),
                t.shape()
            );
            graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
            return graph.poison_operation();
        }
        graph.with_source(source, || {
            for &tensor in tensors.iter().filter(|t| !t.is_poison()) {
                let key = Of::Tensor(tensor.id());
                if self.averages().contains_key(&key) {
                    continue;
                }
                let name = self.slot_name(graph, &tensor.op().name());
                let average = graph.untracked_variable(&name, tensor.shape(), tensor.dtype(), Init::Zeros, None);
                self.averages().insert(key, average);
            }
            let value = |&t: &Tensor<'g>| (Of::Tensor(t.id()), t, self.zero_debias);
            self.updates(graph, tensors.iter().map(value).collect())
        })
    }

    fn slot_name(&self, graph: &Graph, of: &str) -> String {
        let scope = graph.current_variable_scope();
        let prefix = if scope.name().is_empty() { String::new() } else { format!("{}/", scope.name()) };
        format!("{prefix}{of}/{}", self.name)
    }

    fn updates(&self, graph: &'g Graph, values: Vec<(Of, Tensor<'g>, bool)>) -> Operation<'g> {
        let averages: Vec<Option<Variable<'g>>> =
            values.iter().map(|(key, ..)| self.averages().get(key).copied()).collect();
        if averages.iter().any(|a| a.is_none_or(|a| a.is_poison())) || values.iter().any(|(_, v, _)| v.is_poison()) {
            return graph.poison_operation();
        }
        graph.name_scope(&self.name, || {
            let scope = format!("{}/", graph.current_name_scope());
            let decay = self.decay(graph);
            let group = start(graph, "NoOp").name(scope);
            (values.into_iter().zip(averages.into_iter().flatten()))
                .fold(group, |group, ((_, value, debias), average)| {
                    group.control(self.move_one(graph, average, value, decay, debias))
                })
                .add()
        })
    }

    /// The decay of this update.
    fn decay(&self, graph: &'g Graph) -> Tensor<'g> {
        let decay = match self.decay {
            Hyper::Value(value) => scalar(graph, DType::F32, value, "decay"),
            Hyper::Tensor(tensor) => tensor,
        };
        let Some(counter) = self.num_updates else { return decay };
        let n = as_it_is_now(counter);
        let n = match n.dtype() == DType::F32 || n.is_poison() {
            true => n,
            false => {
                let cast = start(graph, "Cast").name("num_updates").input(n);
                cast.attr("SrcT", n.dtype()).attr("DstT", DType::F32).tensor()
            }
        };
        let plus = |name: &'static str, number: f64| {
            graph.name_scope(name, || {
                let scope = format!("{}/", graph.current_name_scope());
                start(graph, "AddV2").name(scope).input(scalar(graph, DType::F32, number, "x")).input(n).tensor()
            })
        };
        let share = start(graph, "RealDiv").name("truediv").inputs([plus("add", 1.0), plus("add", 10.0)]).tensor();
        start(graph, "Minimum").inputs([cast(decay, DType::F32), share]).tensor()
    }

    fn move_one(
        &self,
        graph: &'g Graph,
        average: Variable<'g>,
        value: Tensor<'g>,
        decay: Tensor<'g>,
        debias: bool,
    ) -> Operation<'g> {
        let value = as_it_is_now(value);
        if !debias {
            return average.assign_moving_average(value, cast(decay, average.dtype())).op();
        }
        graph.name_scope("AssignMovingAvg", || {
            let scope = format!("{}/", graph.current_name_scope());
            graph.no_device(|| graph.colocate_with(average, || self.debiased(graph, average, value, decay, scope)))
        })
    }

    /// The average over `1 − decay ^ n` after `n` updates, from a biased one that started from zeros.
    fn debiased(
        &self,
        graph: &'g Graph,
        average: Variable<'g>,
        value: Tensor<'g>,
        decay: Tensor<'g>,
        scope: String,
    ) -> Operation<'g> {
        let dtype = average.dtype();
        let rate = one_minus(cast(decay, dtype));
        let kept = |what: &str, shape: Shape| {
            let name = format!("{}/{what}", average.name());
            let found = graph.find_variable(&name).ok();
            found.unwrap_or_else(|| graph.untracked_variable(&name, shape, dtype, Init::Zeros, Some(average)))
        };
        let (biased, count) = (kept("biased", average.shape()), kept("local_step", Shape::scalar()));
        let biased = biased.moved(value, rate, "AssignSub".into());
        let count = graph.name_scope("AssignAdd", || {
            let name = format!("{}/", graph.current_name_scope());
            let one = scalar(graph, dtype, 1.0, "value");
            start(graph, "AssignAdd").name(name).inputs([count.buffer(), one]).tensor()
        });
        let power = start(graph, "Pow").inputs([one_minus(rate), count]).tensor();
        let quotient = start(graph, "RealDiv").name("truediv").inputs([biased, one_minus(power)]).tensor();
        start(graph, "Assign").name(scope).inputs([average.buffer(), quotient]).add()
    }

    /// The average of a variable, once [`ExponentialMovingAverage::apply`] has made it.
    pub fn average(&self, variable: Variable<'g>) -> Option<Variable<'g>> {
        self.averages().get(&Of::Variable(variable.op().id())).copied()
    }

    /// The average of a tensor, once [`ExponentialMovingAverage::apply_to_tensors`] has made it.
    pub fn average_of_tensor(&self, tensor: Tensor<'g>) -> Option<Variable<'g>> {
        self.averages().get(&Of::Tensor(tensor.id())).copied()
    }

    /// The name that a variable's average has, or would get.
    pub fn average_name(&self, variable: Variable<'g>) -> String {
        match self.average(variable) {
            Some(average) => average.name(),
            None => self.slot_name(variable.op().graph(), &variable.name()),
        }
    }

    /// Which variable to fill from which name of a checkpoint, to compute with the averages: each variable that has an
    /// average, or is trainable, from its average, and all others from their own. For evaluation, in a graph of its own.
    pub fn variables_to_restore(&self, graph: &'g Graph) -> IndexMap<String, Variable<'g>> {
        let mut averaged = graph.trainable_variables();
        averaged.extend(graph.variables_in(keys::MOVING_AVERAGE_VARIABLES));
        let mut map: IndexMap<String, Variable<'g>> = IndexMap::new();
        for variable in averaged.iter().copied() {
            map.insert(self.average_name(variable), variable);
        }
        let others = graph.global_variables().into_iter().filter(|v| !averaged.contains(v));
        for variable in others {
            map.entry(variable.name()).or_insert(variable);
        }
        map
    }
}

/// The tensor; a variable's default read is read anew where the control dependencies ask for what comes after something.
fn as_it_is_now(tensor: Tensor<'_>) -> Tensor<'_> {
    let graph = tensor.graph();
    let variable = tensor.op().node().and_then(|n| graph.variable_of(n.inputs.first()?.node));
    match variable.filter(|v| v.value() == tensor && graph.in_control_dependencies()) {
        Some(variable) => {
            start(graph, "Identity").name("read").input(variable.buffer()).colocate_with(variable).tensor()
        }
        None => tensor,
    }
}
