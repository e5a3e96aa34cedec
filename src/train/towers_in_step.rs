//! Towers that are built in step, layer by layer, so that a layer can see all of them: batch normalization over all rows.
//!
//! Invariants: a tower's scopes are the same in every step; the gradient of every tower is that of the sum of all losses by
//! what this tower reads, for a tower's loss depends on the others' rows too.

use super::average::Reduction;
use super::gradients::{GradOptions, gradients_apart};
use super::joining::{gate, sum};
use super::optimizer::{GateGradients, GradAndVar, Optimizer};
use super::parts::{node as start, scalar};
use super::towers::{BuiltTowers, Tower, Towers};
use crate::base::{Code, Diagnostic, SourceLine};
use crate::graph::{Gradient, ScopeCounts, Tensor, Variable};
use crate::layers::{self, BatchNormOptions, Training};

/// Where one tower is taken up again.
#[derive(Clone, Default)]
pub(super) struct StepScope {
    /// The absolute name scope; empty before the first step.
    name: String,
    counts: ScopeCounts,
}

impl<'g> Towers<'g> {
    /// Builds the next layers of all towers: the body is called for each tower with its part, in the tower's device and
    /// name scope, where the last step left it. Variables are made by the first tower and found by the others.
    ///
    /// What needs all towers comes between such steps, as [`Towers::batch_norm`] does;
    /// [`Towers::build_from_losses`] ends them. Reported: other than one part for each tower.
    #[track_caller]
    pub fn each<X, R>(&self, parts: impl IntoIterator<Item = X>, mut body: impl FnMut(Tower<'g>, X) -> R) -> Vec<R> {
        let (graph, count, source) = (self.graph, self.count(), self.graph.source_line());
        let parts: Vec<X> = parts.into_iter().collect();
        self.check_parts(parts.len(), "a step", source);
        let scope = graph.current_variable_scope();
        (self.devices.iter().zip(parts).enumerate())
            .map(|(index, (device, part))| {
                let mut at = self.take_step(index);
                let (name, mut inside) = (at.name.clone(), String::new());
                let result = graph.reenter(&scope, self.scope_options(index), || {
                    graph.with_scope_counts(&mut at.counts, || {
                        graph.device(device, || {
                            let name = if name.is_empty() { format!("tower_{index}") } else { format!("{name}/") };
                            graph.name_scope(&name, || {
                                inside = graph.current_name_scope();
                                body(Tower { graph, index, count }, part)
                            })
                        })
                    })
                });
                at.name = inside;
                self.put_step(index, at);
                result
            })
            .collect()
    }

    /// Batch normalization of each tower's part by the moments of all towers' rows together, as if the whole batch were
    /// on one device; elsewhere than in training as [`layers::batch_norm`]. The moments are put together on the first
    /// tower's device, and what travels is the size of a channel's numbers. The moving averages are moved by them, once.
    #[track_caller]
    pub fn batch_norm(
        &self,
        parts: &[Tensor<'g>],
        training: impl Into<Training<'g>>,
        options: BatchNormOptions,
    ) -> Vec<Tensor<'g>> {
        let (graph, source) = (self.graph, self.graph.source_line());
        match training.into() {
            Training::Known(true) => {}
            Training::Known(false) => {
                return graph.with_source(source, || {
                    self.each(parts.iter().copied(), |_, x| layers::batch_norm(x, false, options.clone()))
                });
            }
            Training::When(training) => {
                let message = format!(
                    "batch normalization over towers cannot go by '{}': want training to be true or false when it is \
                     built; build a second graph for evaluation",
                    training.name()
                );
                graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
                return vec![graph.poison_tensor(); self.count()];
            }
        }
        graph.with_source(source, || {
            let begun = self.each(parts.iter().copied(), |_, x| layers::begin_synchronized(x, &options));
            let begun: Option<Vec<_>> = begun.into_iter().collect();
            let Some(begun) = begun.filter(|b| b.len() == self.count()) else {
                return vec![graph.poison_tensor(); self.count()];
            };
            let moments = match self.devices.first() {
                Some(first) => graph.device(first, || layers::combine_synchronized(graph, &begun)),
                None => None,
            };
            self.each(&begun, |_, part| match moments {
                Some(moments) => layers::finish_synchronized(part, moments),
                None => graph.poison_tensor(),
            })
        })
    }

    /// Ends the towers that were built in step: their losses, one scalar each, are averaged, and so are their gradients,
    /// which are computed together. Penalties count as in [`Towers::build`].
    #[track_caller]
    pub fn build_from_losses(&self, optimizer: &Optimizer<'g>, losses: &[Tensor<'g>]) -> BuiltTowers<'g> {
        let (graph, source) = (self.graph, self.graph.source_line());
        graph.with_source(source, || {
            self.check_parts(losses.len(), "losses", source);
            let losses = self.each(losses.iter().copied(), |t, loss| self.whole_loss(loss, t.index()));
            let tower_grads = self.gradients_of_all(optimizer, &losses, source);
            self.averaged(losses, tower_grads, None)
        })
    }

    fn check_parts(&self, got: usize, what: &str, source: SourceLine) {
        let (graph, want) = (self.graph, self.count());
        // Too few parts in one step are too few in the next; once is enough.
        if got != want && graph.diagnostics().is_empty() {
            let message = format!("{what} of {want} towers must have one part for each: want {want}, got {got}");
            graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
        }
    }

    fn take_step(&self, index: usize) -> StepScope {
        let steps = self.in_step.lock().unwrap_or_else(|e| e.into_inner());
        steps.get(index).cloned().unwrap_or_default()
    }

    fn put_step(&self, index: usize, at: StepScope) {
        let mut steps = self.in_step.lock().unwrap_or_else(|e| e.into_inner());
        if steps.len() <= index {
            steps.resize_with(index + 1, StepScope::default);
        }
        steps[index] = at;
    }

    /// Each tower's share of the gradients of all losses together.
    fn gradients_of_all(
        &self,
        optimizer: &Optimizer<'g>,
        losses: &[Tensor<'g>],
        source: SourceLine,
    ) -> Vec<Vec<GradAndVar<'g>>> {
        let graph = self.graph;
        let options = self.compute.clone();
        let variables = options.var_list.clone().unwrap_or_else(|| graph.trainable_variables());
        let (Some(&first), false) = (losses.first(), variables.is_empty() || losses.iter().any(|l| l.is_poison()))
        else {
            // What there is to say of it is said where one loss is differentiated.
            return losses.iter().map(|&l| optimizer.compute_gradients_with(l, options.clone())).collect();
        };
        optimizer.state().graph = Some(graph);
        let floating = |v: &&Variable<'g>| v.is_poison() || v.dtype().is_floating();
        let reads: Vec<Tensor<'g>> = variables.iter().filter(floating).map(|v| v.value()).collect();
        let how = GradOptions {
            grad_ys: self.seeds(losses),
            stop_gradients: options.stop_gradients.clone(),
            colocate_gradients_with_ops: true,
            gate_gradients: options.gate == GateGradients::Op,
            ..GradOptions::default()
        };
        let (scope, parts) = gradients_apart(graph, losses.to_vec(), reads, how);
        let mut towers: Vec<Vec<Option<Gradient<'g>>>> = self.each(0..self.count(), |tower, index| {
            let own = format!("{scope}/{}/", graph.current_name_scope());
            let others: Vec<String> = (0..tower.count())
                .filter(|&i| i != index)
                .map(|i| format!("{scope}/{}/", self.take_step(i).name))
                .collect();
            graph.name_scope(&format!("{scope}/"), || {
                let of_tower = |gradient: &&Gradient<'g>| {
                    let name = gradient.op().name();
                    // What belongs to no tower, such as a penalty's, goes to the first.
                    name.starts_with(&own) || index == 0 && !others.iter().any(|o| name.starts_with(o))
                };
                let summed =
                    |list: &Vec<Gradient<'g>>| sum(graph, &list.iter().filter(of_tower).copied().collect::<Vec<_>>());
                parts.iter().map(summed).collect()
            })
        });
        if options.gate == GateGradients::Graph {
            for grads in towers.iter_mut().filter(|grads| grads.iter().any(Option::is_some)) {
                *grads = gate(graph, grads);
            }
        }
        let lists: Vec<Vec<GradAndVar<'g>>> = (towers.into_iter())
            .map(|grads| {
                let mut grads = grads.into_iter();
                let grad = |var: &Variable<'g>| if floating(&var) { grads.next().flatten() } else { None };
                let mut grad = grad;
                variables.iter().map(|&var| GradAndVar { grad: grad(&var), var }).collect()
            })
            .collect();
        // A variable is without a gradient where no tower has one.
        let any = |i: usize| lists.iter().find_map(|list| list[i].grad);
        let joined: Vec<GradAndVar<'g>> =
            variables.iter().enumerate().map(|(i, &var)| GradAndVar { grad: any(i), var }).collect();
        optimizer.remark_missing(graph, first, &joined, source);
        lists
    }

    /// The gradients that reach the losses: ones, or for towers of different numbers of rows their share, so that the
    /// mean over the towers is one over rows.
    fn seeds(&self, losses: &[Tensor<'g>]) -> Vec<Option<Gradient<'g>>> {
        let graph = self.graph;
        let given = self.compute.grad_loss;
        let is_mean = self.average.reduction == Reduction::Mean;
        let rows = self.batch().rows.clone().filter(|rows| is_mean && rows.len() == losses.len());
        let Some(rows) = rows else {
            return match given {
                Some(grad) => vec![Some(grad.into()); losses.len()],
                None => Vec::new(),
            };
        };
        let all: usize = rows.iter().sum();
        self.each(losses.iter().zip(rows), |tower, (loss, rows)| {
            let share = rows as f64 * tower.count() as f64 / all.max(1) as f64;
            let share = scalar(graph, loss.dtype(), share, "share_of_rows");
            Some(match given {
                Some(grad) => start(graph, "Mul").inputs([grad, share]).tensor().into(),
                None => share.into(),
            })
        })
    }
}
