//! Towers: the same model built once per device over shared variables, with its gradients averaged.
//!
//! Invariant: what a tower changes of the scopes (device, names, reuse) ends with it. Absent: replicas with variables of
//! their own.

use super::average::{AverageOptions, Reduction, average_gradients};
use super::average_place::AveragePlace;
use super::optimizer::{ApplyOptions, ComputeOptions, GradAndVar, Optimizer};
use super::parts::{add_n, node as start, scalar};
use super::split::refuse_split;
use super::summary::TowerSummary;
use super::towers_in_step::StepScope;
use crate::base::{Code, DType, Diagnostic, SourceLine};
use crate::device::Machine;
use crate::graph::{Graph, Operation, Reuse, ScopeOptions, Tensor, VariablePlacement, keys};
use crate::layers::update_from_towers;
use crate::ops::IntoPlaceholderShape;
use std::sync::{Mutex, MutexGuard};

/// Builds one tower per device: device scope, name scope `tower_i`, variables made by the first and found by the others.
pub struct Towers<'g> {
    pub(super) graph: &'g Graph,
    pub(super) devices: Vec<String>,
    placement: Option<VariablePlacement>,
    pub(super) average: AverageOptions,
    uneven: bool,
    regularization: bool,
    pub(super) compute: ComputeOptions<'g>,
    batch: Mutex<Batch>,
    /// Where the towers are that are built in step.
    pub(super) in_step: Mutex<Vec<StepScope>>,
}

/// What is known of the batch: the first split input decides.
#[derive(Clone, Default)]
pub(super) struct Batch {
    name: String,
    global: Option<usize>,
    pub(super) rows: Option<Vec<usize>>,
}

/// The tower that is being built.
#[derive(Clone, Copy)]
pub struct Tower<'g> {
    pub(super) graph: &'g Graph,
    pub(super) index: usize,
    pub(super) count: usize,
}

impl<'g> Tower<'g> {
    /// Which tower, from 0.
    pub fn index(self) -> usize {
        self.index
    }

    /// How many towers there are.
    pub fn count(self) -> usize {
        self.count
    }

    /// The graph.
    pub fn graph(self) -> &'g Graph {
        self.graph
    }

    /// An input of this tower alone, named `tower_i/NAME_i`, to be fed with each run.
    #[track_caller]
    pub fn placeholder(self, dtype: DType, shape: impl IntoPlaceholderShape, name: &str) -> Tensor<'g> {
        self.graph.placeholder(dtype, shape, &format!("{name}_{}", self.index))
    }
}

/// What [`Towers::gradients`] made: each tower's loss and gradients, not yet averaged.
pub struct TowerGradients<'g> {
    /// Each tower's loss, penalties included: what was differentiated.
    pub losses: Vec<Tensor<'g>>,
    /// Each tower's gradients, in the order of the variables.
    pub tower_grads: Vec<Vec<GradAndVar<'g>>>,
}

/// What [`Towers::build`] made.
pub struct BuiltTowers<'g> {
    /// Each tower's loss, penalties included: what was differentiated.
    pub losses: Vec<Tensor<'g>>,
    /// The mean of the losses, named `loss`; over rows where the towers have different numbers of them.
    pub loss: Tensor<'g>,
    /// Each tower's gradients, in the order of the variables.
    pub tower_grads: Vec<Vec<GradAndVar<'g>>>,
    /// The averaged gradients.
    pub grads: Vec<GradAndVar<'g>>,
    /// Towers, devices and batch sizes, to print.
    pub summary: TowerSummary,
}

impl<'g> BuiltTowers<'g> {
    /// The one node that applies the averaged gradients.
    #[track_caller]
    pub fn apply(&self, optimizer: &Optimizer<'g>) -> Operation<'g> {
        self.apply_with(optimizer, ApplyOptions::default())
    }

    /// As [`BuiltTowers::apply`], with options such as the step counter.
    #[track_caller]
    pub fn apply_with(&self, optimizer: &Optimizer<'g>, options: ApplyOptions<'g>) -> Operation<'g> {
        if self.grads.is_empty() {
            return self.loss.graph().poison_operation();
        }
        optimizer.apply_gradients_with(&self.grads, options)
    }
}

impl<'g> Towers<'g> {
    /// So many towers, tower `i` on `/gpu:i`.
    #[track_caller]
    pub fn new(graph: &'g Graph, towers: usize) -> Towers<'g> {
        if towers == 0 {
            let message = "want at least 1 tower, got 0";
            graph.report(Diagnostic::at(Code::InvalidArgument, message, graph.source_line()));
        }
        let most = Machine::MAX_GPUS;
        if towers > most {
            let message = format!("want at most {most} towers, got {towers}");
            graph.report(Diagnostic::at(Code::InvalidArgument, message, graph.source_line()));
        }
        Towers {
            graph,
            devices: (0..towers.min(most)).map(|i| format!("/gpu:{i}")).collect(),
            placement: None,
            average: AverageOptions::beside_variables(),
            uneven: false,
            regularization: true,
            compute: ComputeOptions::default(),
            batch: Mutex::default(),
            in_step: Mutex::default(),
        }
    }

    /// The towers' devices, one each; their number becomes the number of towers.
    #[must_use]
    #[track_caller]
    pub fn devices<S: Into<String>>(mut self, devices: impl IntoIterator<Item = S>) -> Towers<'g> {
        self.devices = devices.into_iter().map(Into::into).collect();
        if self.devices.is_empty() {
            let message = "want the device of at least 1 tower, got none";
            self.graph.report(Diagnostic::at(Code::InvalidArgument, message, self.graph.source_line()));
        }
        self
    }

    /// Where the variables live that the towers make; without it, where the tower that makes one is.
    #[must_use]
    pub fn variables(mut self, placement: VariablePlacement) -> Towers<'g> {
        self.placement = Some(placement);
        self
    }

    /// Where the averages run; without it, each on its variable's device.
    #[must_use]
    pub fn average_on(self, device: &str) -> Towers<'g> {
        self.average_at(AveragePlace::Device(device.to_string()))
    }

    /// Each average runs on its variable's device, which is what happens if nothing else is said.
    #[must_use]
    pub fn average_beside_variables(self) -> Towers<'g> {
        self.average_at(AveragePlace::BesideVariables)
    }

    /// The averages are spread over the towers' devices, balanced by bytes.
    #[must_use]
    pub fn average_spread(self) -> Towers<'g> {
        self.average_at(AveragePlace::Spread)
    }

    /// The sums are made on all towers' devices: by NCCL, where it can be used.
    #[must_use]
    pub fn average_all_reduce(self) -> Towers<'g> {
        self.average_at(AveragePlace::AllReduce)
    }

    /// The gradients' sizes decide where they are averaged, as [`AveragePlace::BySize`] says.
    #[must_use]
    pub fn average_by_size(self) -> Towers<'g> {
        self.average_at(AveragePlace::BySize)
    }

    /// Where the averages run.
    #[must_use]
    pub fn average_at(mut self, place: AveragePlace) -> Towers<'g> {
        self.average.place = place;
        self
    }

    /// Lets the run fail where a tower's gradient holds a NaN or an infinity, before anything is changed.
    #[must_use]
    pub fn check_finite(mut self) -> Towers<'g> {
        self.average.check_finite = true;
        self
    }

    /// Sums gradients instead of averaging them.
    #[must_use]
    pub fn sum_gradients(mut self) -> Towers<'g> {
        self.average.reduction = Reduction::Sum;
        self
    }

    /// Accepts batches that the towers do not divide: the first towers get one row more, and means are over rows.
    #[must_use]
    pub fn uneven(mut self) -> Towers<'g> {
        self.uneven = true;
        self
    }

    /// Leaves [`keys::REGULARIZATION_LOSSES`] out of the losses.
    #[must_use]
    pub fn without_regularization(mut self) -> Towers<'g> {
        self.regularization = false;
        self
    }

    /// How each tower's gradients are computed.
    #[must_use]
    pub fn compute(mut self, options: ComputeOptions<'g>) -> Towers<'g> {
        self.compute = options;
        self
    }

    /// How many towers.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    pub(super) fn batch(&self) -> MutexGuard<'_, Batch> {
        // The lock guards no user code, so a poisoned one still holds a whole state.
        self.batch.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The rows of a batch dealt to the towers: tower `i` gets the i-th part, in order.
    ///
    /// A size that the towers do not divide is reported, unless [`Towers::uneven`] is on; a size that is only known at
    /// run time is checked then. Inputs of different sizes are reported.
    #[track_caller]
    pub fn split(&self, batch: Tensor<'g>) -> Vec<Tensor<'g>> {
        let (graph, count) = (self.graph, self.count());
        let source = graph.source_line();
        let poison = || vec![graph.poison_tensor(); count];
        if batch.is_poison() || count == 0 {
            return poison();
        }
        let refuse = |message: String| {
            graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
            poison()
        };
        let size = batch.shape().dim(0);
        {
            let mut known = self.batch();
            if let (Some(first), Some(this)) = (known.global, size)
                && first != this
            {
                let message = format!(
                    "inputs must have one batch size: '{}' has {first} rows, '{}' has {this}",
                    known.name,
                    batch.op().name()
                );
                return refuse(message);
            }
            if known.global.is_none() {
                known.global = size;
                known.name = batch.op().name();
            }
        }
        let remainder = size.map(|n| n % count);
        graph.with_source(source, || match (self.uneven, size, remainder) {
            (false, Some(size), Some(r)) if r != 0 => refuse(refuse_split(&batch.op().name(), size, count)),
            (true, None, _) => refuse(format!(
                "the uneven mode needs the batch size of '{}' when it is built: its shape is {}; declare the size",
                batch.op().name(),
                batch.shape()
            )),
            (true, Some(size), Some(r)) if r != 0 => {
                if size < count {
                    return refuse(format!(
                        "batch '{}' has {size} rows for {count} towers; use at most {size} towers",
                        batch.op().name()
                    ));
                }
                let rows: Vec<usize> = (0..count).map(|i| size / count + usize::from(i < r)).collect();
                let sizes: Vec<i64> = rows.iter().map(|&n| n as i64).collect();
                self.batch().rows = Some(rows);
                batch.split_sizes(&sizes, 0)
            }
            _ => batch.split(count, 0),
        })
    }

    /// Builds all towers and averages their gradients. The body builds one tower's model and returns its loss, a
    /// scalar; it runs in the tower's device and name scope. The penalties in [`keys::REGULARIZATION_LOSSES`] that
    /// belong to no tower, or to this one, are added to each tower's loss, so that they count once in the mean.
    #[track_caller]
    pub fn build(&self, optimizer: &Optimizer<'g>, body: impl FnMut(Tower<'g>) -> Tensor<'g>) -> BuiltTowers<'g> {
        let source = self.graph.source_line();
        let gradients = self.gradients_at(source, optimizer, body);
        self.graph.with_source(source, || self.average(gradients))
    }

    /// The first half of [`Towers::build`]: all towers and their gradients. What [`Towers::average`] is then given may be
    /// changed before, such as each tower's gradients clipped by themselves.
    #[track_caller]
    pub fn gradients(
        &self,
        optimizer: &Optimizer<'g>,
        body: impl FnMut(Tower<'g>) -> Tensor<'g>,
    ) -> TowerGradients<'g> {
        self.gradients_at(self.graph.source_line(), optimizer, body)
    }

    /// The second half of [`Towers::build`]: the mean loss and the averages of the towers' gradients.
    #[track_caller]
    pub fn average(&self, of: TowerGradients<'g>) -> BuiltTowers<'g> {
        let source = self.graph.source_line();
        let rows = self.batch().rows.clone();
        self.graph.with_source(source, || self.averaged(of.losses, of.tower_grads, rows))
    }

    fn gradients_at(
        &self,
        source: SourceLine,
        optimizer: &Optimizer<'g>,
        mut body: impl FnMut(Tower<'g>) -> Tensor<'g>,
    ) -> TowerGradients<'g> {
        let graph = self.graph;
        let (count, mut losses, mut tower_grads) = (self.count(), Vec::new(), Vec::new());
        // A copy of the scope is entered for each tower, so that no reuse leaks out and default names start anew.
        let scope = graph.current_variable_scope();
        for (index, device) in self.devices.iter().enumerate() {
            graph.reenter(&scope, self.scope_options(index), || {
                graph.device(device, || {
                    graph.name_scope(&format!("tower_{index}"), || {
                        let loss = body(Tower { graph, index, count });
                        let (loss, grads) = graph.with_source(source, || {
                            let loss = self.whole_loss(loss, index);
                            (loss, optimizer.compute_gradients_with(loss, self.compute.clone()))
                        });
                        losses.push(loss);
                        tower_grads.push(grads);
                    });
                });
            });
        }
        TowerGradients { losses, tower_grads }
    }

    /// The mean loss and the averages of these gradients; `weights` are rows for gradients that do not count alike.
    pub(super) fn averaged(
        &self,
        losses: Vec<Tensor<'g>>,
        tower_grads: Vec<Vec<GradAndVar<'g>>>,
        weights: Option<Vec<usize>>,
    ) -> BuiltTowers<'g> {
        let (graph, count) = (self.graph, self.count());
        let batch = self.batch().clone();
        let average = AverageOptions { rows: weights, ..self.average.clone() };
        let loss = match &self.average.place {
            AveragePlace::Device(device) => graph.device(device, || self.mean_loss(&losses, batch.rows.as_deref())),
            _ => self.mean_loss(&losses, batch.rows.as_deref()),
        };
        let grads = average_gradients(&tower_grads, average);
        update_from_towers(graph);
        let summary = TowerSummary {
            devices: self.devices.clone(),
            global_batch: batch.global,
            tower_batches: match (&batch.rows, batch.global) {
                (Some(rows), _) => rows.clone(),
                (None, Some(global)) => vec![global / count.max(1); count],
                (None, None) => Vec::new(),
            },
            variables: self.placement.as_ref().map(|p| p.name().to_string()),
            machine_gpus: None,
        };
        BuiltTowers { losses, loss, tower_grads, grads, summary }
    }

    /// [`Towers::build`] and one apply-gradients node.
    #[track_caller]
    pub fn train(
        &self,
        optimizer: &Optimizer<'g>,
        options: ApplyOptions<'g>,
        body: impl FnMut(Tower<'g>) -> Tensor<'g>,
    ) -> (BuiltTowers<'g>, Operation<'g>) {
        let built = self.build(optimizer, body);
        let train_op = built.apply_with(optimizer, options);
        (built, train_op)
    }

    /// What the variable scope is told for a tower: the first makes variables, the others find them.
    pub(super) fn scope_options(&self, index: usize) -> ScopeOptions {
        ScopeOptions {
            reuse: if index == 0 { Reuse::Inherit } else { Reuse::True },
            placement: self.placement.clone(),
            no_name_scope: true,
            ..ScopeOptions::default()
        }
    }

    /// A tower's loss with the penalties, in the tower's name scope.
    pub(super) fn whole_loss(&self, loss: Tensor<'g>, tower: usize) -> Tensor<'g> {
        let loss = self.scalar_loss(loss, tower);
        if self.regularization { self.with_penalties(loss) } else { loss }
    }

    fn scalar_loss(&self, loss: Tensor<'g>, tower: usize) -> Tensor<'g> {
        if loss.is_poison() || loss.rank().is_none_or(|r| r == 0) {
            return loss;
        }
        let message = format!(
            "the loss of tower {tower} must be a scalar, got '{}' {}; take its mean",
            loss.name(),
            loss.shape()
        );
        self.graph.report(Diagnostic::at(Code::InvalidArgument, message, self.graph.source_line()));
        self.graph.poison_tensor()
    }

    /// The loss and the penalties of this tower and of the variables; those of other towers do not belong to it.
    fn with_penalties(&self, loss: Tensor<'g>) -> Tensor<'g> {
        let scope = self.graph.current_name_scope();
        let outer = scope.rsplit_once('/').map_or(String::new(), |(outer, _)| format!("{outer}/"));
        let own = format!("{scope}/");
        let counts = |penalty: &Tensor<'g>| {
            let name = penalty.op().name();
            name.starts_with(&own) || !is_of_a_tower(name.strip_prefix(&outer).unwrap_or(&name))
        };
        let penalties: Vec<Tensor<'g>> =
            self.graph.tensors_in(keys::REGULARIZATION_LOSSES).into_iter().filter(counts).collect();
        if penalties.is_empty() || loss.is_poison() {
            return loss;
        }
        let all: Vec<Tensor<'g>> = std::iter::once(loss).chain(penalties).collect();
        add_n(self.graph, &all, "total_loss")
    }

    /// The mean of the losses by the same weights as that of the gradients.
    fn mean_loss(&self, losses: &[Tensor<'g>], rows: Option<&[usize]>) -> Tensor<'g> {
        let graph = self.graph;
        let Some(first) = losses.first().filter(|_| losses.iter().all(|l| !l.is_poison())) else {
            return graph.poison_tensor();
        };
        graph.name_scope("loss", || {
            let name = format!("{}/", graph.current_name_scope());
            if let [one] = losses {
                return start(graph, "Identity").name(name).input(*one).tensor();
            }
            let number = |value: usize, name: &str| scalar(graph, first.dtype(), value as f64, name);
            let weighted: Vec<Tensor<'g>> = match rows {
                None => losses.to_vec(),
                Some(rows) => (losses.iter().zip(rows).enumerate())
                    .map(|(i, (&loss, &n))| {
                        let rows = number(n, &format!("rows_of_{i}"));
                        start(graph, "Mul").name(format!("times_rows_{i}")).input(loss).input(rows).tensor()
                    })
                    .collect(),
            };
            let divisor = match rows {
                None => number(losses.len(), "towers"),
                Some(rows) => number(rows.iter().sum(), "rows"),
            };
            let sum = add_n(graph, &weighted, "sum");
            start(graph, "RealDiv").name(name).input(sum).input(divisor).tensor()
        })
    }
}

/// True for names such as `tower_1/…` and `tower_1_2/…`.
fn is_of_a_tower(name: &str) -> bool {
    let first = name.split('/').next().unwrap_or_default();
    let digits = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_digit());
    first.strip_prefix("tower_").is_some_and(|n| n.split('_').all(digits)) && name.contains('/')
}
