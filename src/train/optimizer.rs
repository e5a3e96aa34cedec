//! Optimizers: gradients of a loss for a list of variables, and the one node that applies them.
//!
//! Absent: the update formulas, which `ops::ApplyGradients` has; what the planner makes of two applies in one run.

use super::gradients::{GradOptions, gradients};
use super::joining::gate;
use crate::base::{Code, DType, Diagnostic, nearest};
use crate::graph::{Gradient, Graph, NodeId, Operation, Tensor, Variable};
use crate::ops::UpdateRule;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

/// One variable with the gradient that is to be applied to it.
#[derive(Clone, Copy, Debug)]
pub struct GradAndVar<'g> {
    /// The gradient; `None` where the loss does not depend on the variable.
    pub grad: Option<Gradient<'g>>,
    /// The variable.
    pub var: Variable<'g>,
}

impl<'g> GradAndVar<'g> {
    /// The entry of a variable in a list.
    pub fn find(list: &[GradAndVar<'g>], var: Variable<'g>) -> Option<GradAndVar<'g>> {
        list.iter().find(|gv| gv.var == var).copied()
    }
}

/// The two names, as the article's listing prints them.
impl fmt::Display for GradAndVar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.grad {
            Some(grad) => write!(f, "{}\t{}", grad.op().name(), self.var.name()),
            None => write!(f, "None\t{}", self.var.name()),
        }
    }
}

/// A hyper-parameter: a number, or a scalar tensor such as a schedule of the global step.
#[derive(Clone, Copy, Debug)]
pub enum Hyper<'g> {
    /// A number; it becomes a constant in the optimizer's name scope.
    Value(f64),
    /// A scalar tensor of type `float32` or `float64`.
    Tensor(Tensor<'g>),
}

impl From<f64> for Hyper<'_> {
    fn from(value: f64) -> Self {
        Hyper::Value(value)
    }
}

impl<'g> From<Tensor<'g>> for Hyper<'g> {
    fn from(tensor: Tensor<'g>) -> Self {
        Hyper::Tensor(tensor)
    }
}

/// When the gradients of a node may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GateGradients {
    /// At once.
    None,
    /// When all gradients of that node are there: TensorFlow's default.
    #[default]
    Op,
    /// When all gradients of the list are there.
    Graph,
}

/// How [`Optimizer::compute_gradients`] builds.
#[derive(Clone, Debug, Default)]
pub struct ComputeOptions<'g> {
    /// The variables; without it, the trainable variables in the order of creation.
    pub var_list: Option<Vec<Variable<'g>>>,
    /// When gradients may be used.
    pub gate: GateGradients,
    /// Colocates each gradient node with its forward node.
    pub colocate_gradients_with_ops: bool,
    /// The gradient of the loss itself; one, without it.
    pub grad_loss: Option<Tensor<'g>>,
    /// Tensors that count as constants.
    pub stop_gradients: Vec<Tensor<'g>>,
}

/// How [`Optimizer::apply_gradients`] builds.
#[derive(Clone, Debug)]
pub struct ApplyOptions<'g> {
    /// A counter that goes up by one with each apply.
    pub global_step: Option<Variable<'g>>,
    /// The node's name, instead of the optimizer's.
    pub name: Option<String>,
    /// Runs the operations in [`keys::UPDATE_OPS`](crate::graph::keys::UPDATE_OPS) with each apply; on unless switched off.
    pub run_update_ops: bool,
}

impl Default for ApplyOptions<'_> {
    fn default() -> Self {
        ApplyOptions { global_step: None, name: None, run_update_ops: true }
    }
}

impl<'g> ApplyOptions<'g> {
    /// Options that only give the step counter.
    pub fn step(global_step: Variable<'g>) -> ApplyOptions<'g> {
        ApplyOptions { global_step: Some(global_step), ..ApplyOptions::default() }
    }
}

/// What an optimizer keeps between calls.
#[derive(Default)]
pub(super) struct State<'g> {
    /// The slots of each variable, shared by all applies of this optimizer.
    pub slots: BTreeMap<NodeId, Vec<Variable<'g>>>,
    /// The variables that all share, such as `beta1_power`.
    pub powers: Vec<Variable<'g>>,
    /// The losses whose gradients were asked for, for messages.
    pub losses: Vec<String>,
    /// The graph of those losses.
    pub graph: Option<&'g Graph>,
    /// A loss without any gradient is reported already.
    pub reported: bool,
}

/// An optimizer. Hyper-parameters go by TensorFlow's names; slots belong to the optimizer, so that two of them on one
/// variable keep apart.
pub struct Optimizer<'g> {
    pub(super) rule: UpdateRule,
    pub(super) name: String,
    pub(super) hypers: Vec<Hyper<'g>>,
    pub(super) use_nesterov: bool,
    pub(super) initial_accumulator: f64,
    /// What was asked for and cannot be; reported where it is applied.
    pub(super) problem: Option<String>,
    state: Mutex<State<'g>>,
}

impl<'g> Optimizer<'g> {
    fn new(rule: UpdateRule, hypers: Vec<Hyper<'g>>) -> Optimizer<'g> {
        Optimizer {
            rule,
            name: rule.default_name().to_string(),
            hypers,
            use_nesterov: false,
            initial_accumulator: 0.1,
            problem: None,
            state: Mutex::default(),
        }
    }

    /// `w ← w − lr · g`.
    pub fn gradient_descent(learning_rate: impl Into<Hyper<'g>>) -> Optimizer<'g> {
        Optimizer::new(UpdateRule::GradientDescent, vec![learning_rate.into()])
    }

    /// `a ← momentum · a + g; w ← w − lr · a`; with [`Optimizer::nesterov`] `w ← w − lr · (g + momentum · a)`.
    pub fn momentum(learning_rate: impl Into<Hyper<'g>>, momentum: impl Into<Hyper<'g>>) -> Optimizer<'g> {
        Optimizer::new(UpdateRule::Momentum, vec![learning_rate.into(), momentum.into()])
    }

    /// Kingma and Ba, 2014, with epsilon outside of the bias correction; beta1 0.9, beta2 0.999, epsilon 1e-8.
    pub fn adam(learning_rate: impl Into<Hyper<'g>>) -> Optimizer<'g> {
        Optimizer::new(UpdateRule::Adam, vec![learning_rate.into(), 0.9.into(), 0.999.into(), 1e-8.into()])
    }

    /// Hinton's lecture 6e; decay 0.9, momentum 0, epsilon 1e-10.
    pub fn rms_prop(learning_rate: impl Into<Hyper<'g>>) -> Optimizer<'g> {
        Optimizer::new(UpdateRule::RmsProp, vec![learning_rate.into(), 0.9.into(), 0.0.into(), 1e-10.into()])
    }

    /// Duchi et al., 2011; accumulators start at 0.1.
    pub fn adagrad(learning_rate: impl Into<Hyper<'g>>) -> Optimizer<'g> {
        Optimizer::new(UpdateRule::Adagrad, vec![learning_rate.into()])
    }

    /// Zeiler, 2012; rho 0.95, epsilon 1e-8.
    pub fn adadelta(learning_rate: impl Into<Hyper<'g>>) -> Optimizer<'g> {
        Optimizer::new(UpdateRule::Adadelta, vec![learning_rate.into(), 0.95.into(), 1e-8.into()])
    }

    /// McMahan et al., 2013: follow the regularized leader; accumulators start at 0.1, learning_rate_power -0.5, and
    /// l1_regularization_strength, l2_regularization_strength and l2_shrinkage_regularization_strength 0.
    pub fn ftrl(learning_rate: impl Into<Hyper<'g>>) -> Optimizer<'g> {
        Optimizer::new(UpdateRule::Ftrl, vec![learning_rate.into(), 0.0.into(), 0.0.into(), (-0.5).into()])
    }

    /// Goes by the variance of the gradient instead of its square (Graves, 2013); for RMSProp.
    #[must_use]
    pub fn centered(mut self) -> Optimizer<'g> {
        match self.rule {
            UpdateRule::RmsProp => self.rule = UpdateRule::CenteredRmsProp,
            _ => {
                self.problem.get_or_insert(format!("optimizer '{}' has no centered form; RMSProp has one", self.name));
            }
        }
        self
    }

    /// Sets a hyper-parameter by TensorFlow's name, as in `with("beta1", 0.95)`. A name that this optimizer does not
    /// have is reported where it is applied.
    #[must_use]
    pub fn with(mut self, hyper: &str, value: impl Into<Hyper<'g>>) -> Optimizer<'g> {
        if self.rule == UpdateRule::Ftrl && UpdateRule::FtrlV2.hypers()[3] == hyper {
            self.rule = UpdateRule::FtrlV2;
            self.hypers.insert(3, 0.0.into());
        }
        match self.rule.hypers().iter().position(|h| *h == hyper) {
            Some(i) => self.hypers[i] = value.into(),
            None => {
                let known = self.rule.hypers();
                let near = nearest(hyper, known.iter().copied());
                let near = near.map_or(String::new(), |n| format!("; did you mean '{n}'?"));
                self.problem.get_or_insert(format!(
                    "optimizer '{}' has no hyper-parameter '{hyper}', only {}{near}",
                    self.name,
                    known.join(", ")
                ));
            }
        }
        self
    }

    /// Looks ahead by Nesterov's rule; for momentum and Adam.
    #[must_use]
    pub fn nesterov(mut self) -> Optimizer<'g> {
        if !matches!(self.rule, UpdateRule::Momentum | UpdateRule::Adam) {
            self.problem
                .get_or_insert(format!("optimizer '{}' has no Nesterov form; momentum and Adam have one", self.name));
        }
        self.use_nesterov = true;
        self
    }

    /// Where the accumulators start; for Adagrad and FTRL.
    #[must_use]
    pub fn initial_accumulator(mut self, value: f64) -> Optimizer<'g> {
        let fits = match self.rule {
            UpdateRule::Adagrad => value > 0.0,
            UpdateRule::Ftrl | UpdateRule::FtrlV2 => value >= 0.0,
            _ => false,
        };
        if !fits {
            self.problem.get_or_insert(format!(
                "the initial accumulator of optimizer '{}' cannot be {value}; it is for Adagrad, above zero, and for FTRL",
                self.name
            ));
        }
        self.initial_accumulator = value;
        self
    }

    /// Another name: of the train op, its name scope and the slots.
    #[must_use]
    pub fn named(mut self, name: &str) -> Optimizer<'g> {
        self.name = name.to_string();
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The update rule.
    pub fn rule(&self) -> UpdateRule {
        self.rule
    }

    /// The variables that this optimizer made so far, in the order of creation: shared ones and slots.
    pub fn variables(&self) -> Vec<Variable<'g>> {
        let state = self.state();
        let mut all: Vec<Variable<'g>> = state.powers.iter().chain(state.slots.values().flatten()).copied().collect();
        all.sort_by_key(|v| v.op().id());
        all
    }

    /// The slots of a variable, in TensorFlow's order; empty before the first apply.
    pub fn slots(&self, var: Variable<'g>) -> Vec<Variable<'g>> {
        self.state().slots.get(&var.op().id()).cloned().unwrap_or_default()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<'g>> {
        // The lock guards no user code, so a poisoned one still holds a whole state.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The gradients of a scalar loss for the trainable variables, in the order of creation. Gradient nodes go by the
    /// device scope that is open, so call it in the tower's; without one they follow their forward nodes.
    #[track_caller]
    pub fn compute_gradients(&self, loss: Tensor<'g>) -> Vec<GradAndVar<'g>> {
        self.compute_gradients_with(loss, ComputeOptions::default())
    }

    /// As [`Optimizer::compute_gradients`], with options.
    ///
    /// A variable that the loss does not depend on has no gradient; a warning names it and the loss, once for each
    /// variable. Reported: no variables, and a loss that depends on none of them.
    #[track_caller]
    pub fn compute_gradients_with(&self, loss: Tensor<'g>, options: ComputeOptions<'g>) -> Vec<GradAndVar<'g>> {
        let graph = loss.graph();
        self.state().graph = Some(graph);
        let source = graph.source_line();
        let ComputeOptions { var_list, gate: gating, colocate_gradients_with_ops, grad_loss, stop_gradients } = options;
        let variables = var_list.unwrap_or_else(|| graph.trainable_variables());
        if variables.is_empty() {
            if !loss.is_poison() && graph.diagnostics().is_empty() {
                let message = format!(
                    "no variables to optimize for loss '{}'; make trainable variables first, or give a var_list",
                    loss.name()
                );
                graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
            }
            return Vec::new();
        }
        let grad_options = GradOptions {
            grad_ys: if grad_loss.is_some() { vec![grad_loss.map(Gradient::Dense)] } else { Vec::new() },
            stop_gradients,
            colocate_gradients_with_ops,
            gate_gradients: gating == GateGradients::Op,
            ..GradOptions::default()
        };
        // As in TensorFlow, the variables themselves are differentiated with respect to, not one of their reads.
        let floating = |v: &&Variable<'g>| v.is_poison() || v.dtype().is_floating();
        let xs: Vec<Tensor<'g>> = variables.iter().filter(floating).map(|v| v.buffer()).collect();
        let mut grads = graph.with_source(source, || gradients([loss], xs, grad_options));
        if gating == GateGradients::Graph && grads.iter().any(Option::is_some) {
            grads = graph.with_source(source, || gate(graph, &grads));
        }
        let mut grads = grads.into_iter();
        let list: Vec<GradAndVar<'g>> = (variables.iter())
            .map(|&var| GradAndVar { grad: if floating(&&var) { grads.next().flatten() } else { None }, var })
            .collect();
        self.remark_missing(graph, loss, &list, source);
        list
    }

    pub(super) fn remark_missing(
        &self,
        graph: &Graph,
        loss: Tensor<'g>,
        list: &[GradAndVar<'g>],
        source: crate::base::SourceLine,
    ) {
        let loss_name = loss.name();
        let missing: Vec<String> = list.iter().filter(|gv| gv.grad.is_none()).map(|gv| gv.var.name()).collect();
        let mut state = self.state();
        if !state.losses.contains(&loss_name) {
            state.losses.push(loss_name.clone());
        }
        if missing.len() == list.len() {
            state.reported = true;
            let message = format!(
                "no gradient for any variable: loss '{loss_name}' depends on none of {}; \
                 does it pass stop_gradient, an integer or a comparison on its way?",
                quoted(&missing)
            );
            return graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
        }
        let warnings = graph.warnings();
        for name in missing {
            let start = format!("variable '{name}' has no gradient: ");
            if !warnings.iter().any(|w| w.message.starts_with(&start)) {
                let message = format!(
                    "{start}loss '{loss_name}' does not depend on it; it stays as it is, or leave it out of var_list"
                );
                graph.warn(Diagnostic::at(Code::InvalidArgument, message, source));
            }
        }
    }

    /// [`Optimizer::compute_gradients_with`] and [`Optimizer::apply_gradients_with`] in one.
    #[track_caller]
    pub fn minimize(&self, loss: Tensor<'g>, compute: ComputeOptions<'g>, apply: ApplyOptions<'g>) -> Operation<'g> {
        let list = self.compute_gradients_with(loss, compute);
        if list.iter().all(|gv| gv.grad.is_none()) {
            // Reported where the gradients were computed.
            return loss.graph().poison_operation();
        }
        self.apply_gradients_with(&list, apply)
    }

    /// The element type of shared variables and hyper-parameters: `float64` where a variable has it, so that nothing
    /// is rounded on the way.
    pub(super) fn shared_type(list: &[GradAndVar<'g>]) -> DType {
        match list.iter().any(|gv| gv.var.dtype() == DType::F64) {
            true => DType::F64,
            false => DType::F32,
        }
    }
}

/// Names in quotes with commas.
pub(super) fn quoted(names: &[String]) -> String {
    names.iter().map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ")
}
