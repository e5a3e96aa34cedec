//! One gradient per variable out of the towers' gradients.
//!
//! Invariant: the order of the sum is the order of the towers, so that the same program gives the same bits.

use super::average_place::{AveragePlace, Home};
use super::optimizer::{GradAndVar, quoted};
use super::parts::{concat_rows, densify, node as start, scalar};
use crate::base::{Code, DType, Diagnostic, SourceLine};
use crate::graph::{Gradient, Graph, IndexedSlices, Tensor, Variable};

/// What is made of the towers' gradients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// The sum divided by the number of towers: the gradient of the mean of the towers' losses, so that the learning
    /// rate does not depend on the number of towers.
    #[default]
    Mean,
    /// The sum: the learning rate then has to be chosen for the number of towers.
    Sum,
}

/// How [`average_gradients`] builds.
#[derive(Clone, Debug, Default)]
pub struct AverageOptions {
    /// Where sums and quotients run.
    pub place: AveragePlace,
    /// Mean or sum.
    pub reduction: Reduction,
    /// The rows of the batch that each tower got, where they differ: the mean is then over rows.
    pub rows: Option<Vec<usize>>,
    /// Lets the run fail, before anything is changed, where a tower's gradient holds a NaN or an infinity. Without it
    /// such a value reaches the variable, and from there all towers.
    pub check_finite: bool,
}

impl AverageOptions {
    /// Options that only say where it runs.
    pub fn at(place: AveragePlace) -> AverageOptions {
        AverageOptions { place, ..AverageOptions::default() }
    }

    /// Options that only say the device, as in `AverageOptions::device("/cpu:0")`.
    pub fn device(device: &str) -> AverageOptions {
        AverageOptions::at(AveragePlace::Device(device.to_string()))
    }

    /// Options that only say that each variable's mean runs on the variable's device.
    pub fn beside_variables() -> AverageOptions {
        AverageOptions::at(AveragePlace::BesideVariables)
    }

    /// Options that only say that the means are spread over the towers' devices.
    pub fn spread() -> AverageOptions {
        AverageOptions::at(AveragePlace::Spread)
    }

    /// Options that only say that sums are made on all towers' devices.
    pub fn all_reduce() -> AverageOptions {
        AverageOptions::at(AveragePlace::AllReduce)
    }

    /// Options that only say that the gradients' sizes decide.
    pub fn by_size() -> AverageOptions {
        AverageOptions::at(AveragePlace::BySize)
    }
}

/// The mean over towers of each variable's gradient, in the order of the first tower's list; entries are paired by
/// variable, whatever their order.
///
/// The mean of variable `v` is computed by the node `average/v` (under the current name scope), which is also what
/// [`GradAndVar::find`] gives for it: `AddN` over the towers (or `AllReduceN`, see [`AveragePlace`]), then a division by
/// their number. One tower's list is
/// returned as it is. Gradients that are rows in all towers stay rows: all towers' rows, divided by the number of
/// towers, and their row numbers. Rows and dense gradients together give a dense mean. A variable without a gradient in
/// every tower stays without; one without a gradient in some towers counts as zero there, and a warning names it.
///
/// Reported: towers whose lists hold different variables, `rows` that do not fit the towers, and a place that is none.
#[track_caller]
pub fn average_gradients<'g>(towers: &[Vec<GradAndVar<'g>>], options: AverageOptions) -> Vec<GradAndVar<'g>> {
    let Some(graph) = towers.iter().flatten().map(|gv| gv.var.op().graph()).next() else { return Vec::new() };
    let source = graph.source_line();
    let poison = || {
        (towers.iter().find(|t| !t.is_empty()).into_iter().flatten())
            .map(|gv| GradAndVar { grad: Some(graph.poison_tensor().into()), var: gv.var })
            .collect()
    };
    if towers.iter().flatten().any(|gv| gv.var.is_poison()) {
        return poison();
    }
    if let Err(message) = check(towers, &options) {
        graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
        return poison();
    }
    if towers.len() == 1 && !options.check_finite {
        return towers[0].clone();
    }
    let homes = match options.place.homes(towers) {
        Ok(homes) => homes,
        Err(message) => {
            graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
            return poison();
        }
    };
    let scope = if options.reduction == Reduction::Mean { "average" } else { "sum" };
    graph
        .with_source(source, || graph.name_scope(scope, || Averaging::new(graph, towers, &options, source).all(&homes)))
}

fn check(towers: &[Vec<GradAndVar<'_>>], options: &AverageOptions) -> Result<(), String> {
    if let Some(rows) = &options.rows {
        if rows.len() != towers.len() {
            return Err(format!("rows must have one entry per tower: want {}, got {}", towers.len(), rows.len()));
        }
        match rows.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) {
            Some(0) => return Err("the towers must have at least one row together, got none".into()),
            None => return Err(format!("the towers' rows are more than can be counted: {rows:?}")),
            Some(_) => {}
        }
    }
    for (i, tower) in towers.iter().enumerate().skip(1) {
        let lacks = |these: &[GradAndVar<'_>], others: &[GradAndVar<'_>]| -> Vec<String> {
            these.iter().filter(|a| !others.iter().any(|b| b.var == a.var)).map(|gv| gv.var.name()).collect()
        };
        let (missing, extra) = (lacks(&towers[0], tower), lacks(tower, &towers[0]));
        if missing.is_empty() && extra.is_empty() && tower.len() == towers[0].len() {
            continue;
        }
        let mut parts = Vec::new();
        if !missing.is_empty() {
            parts.push(format!("tower {i} lacks {}", quoted(&missing)));
        }
        if !extra.is_empty() {
            parts.push(format!("only tower {i} has {}", quoted(&extra)));
        }
        if parts.is_empty() {
            parts.push(format!("tower 0 has {} entries, tower {i} has {}", towers[0].len(), tower.len()));
        }
        return Err(format!(
            "the towers' gradients must be for the same variables: {}; share variables between towers by reuse, and \
             give all towers one var_list",
            parts.join(", ")
        ));
    }
    Ok(())
}

struct Averaging<'a, 'g> {
    graph: &'g Graph,
    towers: &'a [Vec<GradAndVar<'g>>],
    options: &'a AverageOptions,
    source: SourceLine,
    /// Rows per tower, where they differ.
    rows: Option<&'a [usize]>,
    /// The absolute name scope of the whole, with a trailing slash.
    scope: String,
    /// The divisor by element type; all variables share it.
    divisors: Vec<(DType, Tensor<'g>)>,
    /// The rows of each tower as constants, by element type.
    weights: Vec<(DType, Vec<Tensor<'g>>)>,
}

impl<'a, 'g> Averaging<'a, 'g> {
    fn new(
        graph: &'g Graph,
        towers: &'a [Vec<GradAndVar<'g>>],
        options: &'a AverageOptions,
        source: SourceLine,
    ) -> Self {
        let rows = options.rows.as_deref().filter(|r| r.iter().any(|n| *n != r[0]));
        let rows = rows.filter(|_| options.reduction == Reduction::Mean);
        let scope = format!("{}/", graph.current_name_scope());
        Averaging { graph, towers, options, source, rows, scope, divisors: Vec::new(), weights: Vec::new() }
    }

    fn all(mut self, homes: &[Home]) -> Vec<GradAndVar<'g>> {
        let variables: Vec<Variable<'g>> = self.towers[0].iter().map(|gv| gv.var).collect();
        let graph = self.graph;
        let mut placed = |var: Variable<'g>, home: &Home| match home {
            Home::Around => self.one(var, None),
            Home::Beside => graph.colocate_with(var, || self.one(var, None)),
            Home::On(spec, rule) => graph.device_because(spec.clone(), rule.clone(), || self.one(var, None)),
            Home::AllReduce(tower, spec, rule) => {
                graph.device_because(spec.clone(), rule.clone(), || self.one(var, Some(*tower)))
            }
        };
        variables.into_iter().zip(homes).map(|(var, home)| GradAndVar { grad: placed(var, home), var }).collect()
    }

    /// The mean for one variable; all-reduced where a tower is named, whose output of the sum is taken.
    fn one(&mut self, var: Variable<'g>, all_reduced: Option<usize>) -> Option<Gradient<'g>> {
        let mut grads: Vec<(usize, Gradient<'g>)> = Vec::new();
        let mut absent = Vec::new();
        for (i, tower) in self.towers.iter().enumerate() {
            match GradAndVar::find(tower, var).and_then(|gv| gv.grad) {
                Some(grad) => grads.push((i, grad)),
                None => absent.push(i.to_string()),
            }
        }
        if grads.is_empty() {
            return None;
        }
        if grads.iter().any(|(_, g)| g.values().is_poison()) {
            return Some(self.graph.poison_tensor().into());
        }
        if !absent.is_empty() {
            let message = format!(
                "variable '{}' has no gradient in tower {}: it counts as zero there, and the divisor stays {}",
                var.name(),
                absent.join(", "),
                self.towers.len()
            );
            self.graph.warn(Diagnostic::at(Code::InvalidArgument, message, self.source));
        }
        self.graph.name_scope(&var.name(), || {
            if self.options.check_finite {
                grads = grads.into_iter().map(|(i, g)| (i, self.checked(var, i, g))).collect();
            }
            if self.towers.len() == 1 {
                return Some(grads[0].1);
            }
            Some(self.joined(&grads, all_reduced))
        })
    }

    fn joined(&mut self, grads: &[(usize, Gradient<'g>)], all_reduced: Option<usize>) -> Gradient<'g> {
        let graph = self.graph;
        // What is summed on all devices is made ready on its own.
        let on_its_own = |of: Gradient<'g>, body: &mut dyn FnMut() -> Gradient<'g>| match all_reduced {
            Some(_) => graph.no_colocation(|| graph.colocate_with(of.op(), body)),
            None => body(),
        };
        let weighted: Vec<Gradient<'g>> =
            grads.iter().map(|&(i, g)| on_its_own(g, &mut || self.weighted(i, g))).collect();
        let slices: Vec<IndexedSlices<'g>> = (weighted.iter())
            .filter_map(|g| match g {
                Gradient::Slices(s) => Some(*s),
                Gradient::Dense(_) => None,
            })
            .collect();
        if slices.len() == weighted.len() {
            let joined = concat_rows(&slices);
            let values = match self.options.reduction {
                Reduction::Mean => self.divided(joined.values),
                Reduction::Sum => self.named("Identity", &[joined.values]),
            };
            return IndexedSlices { values, ..joined }.into();
        }
        let dense: Vec<Tensor<'g>> =
            weighted.into_iter().map(|g| on_its_own(g, &mut || densify(g).into()).values()).collect();
        if let Some(tower) = all_reduced.filter(|_| dense.len() > 1) {
            let sums = start(graph, "AllReduceN").name("sum").inputs(dense.iter().copied());
            let sums = sums.attr("N", dense.len() as i64).attr("reduction", "sum").add();
            let sum = sums.output(grads.iter().position(|(i, _)| *i == tower).unwrap_or(0));
            return match self.options.reduction {
                Reduction::Sum => self.named("Identity", &[sum]).into(),
                Reduction::Mean => self.divided(sum).into(),
            };
        }
        match (self.options.reduction, &dense[..]) {
            (Reduction::Sum, [one]) => self.named("Identity", &[*one]).into(),
            (Reduction::Sum, all) => self.named("AddN", all).into(),
            (Reduction::Mean, [one]) => self.divided(*one).into(),
            (Reduction::Mean, all) => {
                let sum = start(self.graph, "AddN").name("sum").inputs(all.iter().copied()).tensor();
                self.divided(sum).into()
            }
        }
    }

    /// A node that has the name of the scope, which is the variable's.
    fn named(&self, op: &'static str, inputs: &[Tensor<'g>]) -> Tensor<'g> {
        let name = format!("{}/", self.graph.current_name_scope());
        start(self.graph, op).name(name).inputs(inputs.iter().copied()).tensor()
    }

    fn divided(&mut self, sum: Tensor<'g>) -> Tensor<'g> {
        let dtype = sum.dtype();
        let known = self.divisors.iter().find(|(d, _)| *d == dtype).map(|(_, t)| *t);
        let divisor = known.unwrap_or_else(|| {
            let (value, name) = match self.rows {
                Some(rows) => (rows.iter().sum::<usize>(), "rows"),
                None => (self.towers.len(), "towers"),
            };
            let constant = self.graph.name_scope(&self.scope, || scalar(self.graph, dtype, value as f64, name));
            self.divisors.push((dtype, constant));
            constant
        });
        self.named("RealDiv", &[sum, divisor])
    }

    /// The gradient times the tower's rows, where towers have different numbers of them.
    fn weighted(&mut self, tower: usize, grad: Gradient<'g>) -> Gradient<'g> {
        let Some(rows) = self.rows else { return grad };
        let dtype = grad.values().dtype();
        let known = self.weights.iter().position(|(d, _)| *d == dtype);
        let index = known.unwrap_or_else(|| {
            let constants = self.graph.name_scope(&self.scope, || {
                (rows.iter().enumerate())
                    .map(|(i, &n)| scalar(self.graph, dtype, n as f64, &format!("rows_of_{i}")))
                    .collect()
            });
            self.weights.push((dtype, constants));
            self.weights.len() - 1
        });
        let weight = self.weights[index].1[tower];
        let times = |values: Tensor<'g>| {
            start(self.graph, "Mul").name(format!("times_rows_{tower}")).input(values).input(weight).tensor()
        };
        match grad {
            Gradient::Dense(t) => times(t).into(),
            Gradient::Slices(s) => IndexedSlices { values: times(s.values), ..s }.into(),
        }
    }

    /// The gradient through a check on the tower's own device.
    fn checked(&self, var: Variable<'g>, tower: usize, grad: Gradient<'g>) -> Gradient<'g> {
        let check = |values: Tensor<'g>| {
            let device = values.device();
            let device = if device.is_empty() { "no device asked".to_string() } else { device.to_string() };
            let message = format!("the gradient of variable '{}' in tower {tower} ({device})", var.name());
            let node = start(self.graph, "CheckNumerics").name(format!("check_{tower}"));
            let node = node.attr("message", message).input(values).colocate_with(values);
            self.graph.no_colocation(|| node.tensor())
        };
        match grad {
            Gradient::Dense(t) => check(t).into(),
            Gradient::Slices(s) => IndexedSlices { values: check(s.values), ..s }.into(),
        }
    }
}
