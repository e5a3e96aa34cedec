//! The step counter, and learning rates as functions of it, by TensorFlow's formulas.
//!
//! A schedule is a `float32` scalar to give an optimizer. Where no device scope is open it is computed where the counter
//! is, which is the host.

use super::parts::{cast, node as start, scalar};
use crate::base::{Code, DType, DeviceSpec, Diagnostic, Shape};
use crate::graph::{DeviceRule, Graph, Init, Tensor, Variable, keys};
use std::f64::consts::PI;

/// The step counter of the graph: an `int64` scalar named `global_step`, on the host whatever device scopes are open,
/// saved, not trained, in [`keys::GLOBAL_STEP`]. Made at the first call, whatever reuse is on.
#[track_caller]
pub fn get_or_create_global_step(graph: &Graph) -> Variable<'_> {
    let source = graph.source_line();
    if let Some(step) = graph.variables_in(keys::GLOBAL_STEP).first() {
        return *step;
    }
    if let Ok(step) = graph.find_variable("global_step") {
        if !step.dtype().is_integer() || step.shape() != Shape::scalar() {
            let message = format!(
                "variable 'global_step' cannot be the step counter: want an int64 or int32 scalar, got {} {}",
                step.dtype(),
                step.shape()
            );
            graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
            return graph.poison_variable();
        }
        graph.add_to_collection(keys::GLOBAL_STEP, step);
        return step;
    }
    let make = || graph.untracked_variable("global_step", Shape::scalar(), DType::I64, Init::Zeros, None);
    let on_host =
        || graph.device_because(DeviceSpec::device("CPU", 0), DeviceRule::Variable("step counter".into()), make);
    let step = graph.with_source(source, || graph.no_colocation(on_host));
    graph.add_to_collection(keys::GLOBAL_STEP, step);
    step
}

/// `rate · decay_rate ^ (step / decay_steps)`, the exponent cut to a whole number if `staircase`.
#[track_caller]
pub fn exponential_decay<'g>(
    step: impl Into<Tensor<'g>>,
    rate: f64,
    decay_steps: f64,
    decay_rate: f64,
    staircase: bool,
) -> Tensor<'g> {
    schedule(step.into(), "ExponentialDecay", decay_steps > 0.0, |g, step, name| {
        let rate = number(g, rate, "learning_rate");
        let share = div(step, number(g, decay_steps, "decay_steps"));
        let share = if staircase { start(g, "Floor").input(share).tensor() } else { share };
        let base = number(g, decay_rate, "decay_rate");
        let power = start(g, "Pow").input(base).input(share).tensor();
        start(g, "Mul").name(name).input(rate).input(power).tensor()
    })
}

/// `values[i]` up to and including step `boundaries[i]`, and the last value after that; one value more than boundaries.
#[track_caller]
pub fn piecewise_constant<'g>(step: impl Into<Tensor<'g>>, boundaries: &[i64], values: &[f64]) -> Tensor<'g> {
    let step = step.into();
    let graph = step.graph();
    let source = graph.source_line();
    let rising = boundaries.windows(2).all(|w| w[0] < w[1]);
    if values.len() != boundaries.len() + 1 || !rising {
        let message = format!(
            "piecewise_constant wants rising boundaries and one value more than boundaries, got boundaries \
             {boundaries:?} and {} values",
            values.len()
        );
        graph.report(Diagnostic::at(Code::InvalidArgument, message, source));
        return graph.poison_tensor();
    }
    place(step, || {
        graph.name_scope("PiecewiseConstant", || {
            let name = format!("{}/", graph.current_name_scope());
            let mut rate = number(graph, values[0], "value_0");
            for (i, (&boundary, &value)) in boundaries.iter().zip(&values[1..]).enumerate() {
                let boundary = scalar(graph, step.dtype(), boundary as f64, &format!("boundary_{i}"));
                let value = number(graph, value, &format!("value_{}", i + 1));
                let after = start(graph, "Greater").input(step).input(boundary).tensor();
                rate = start(graph, "SelectV2").input(after).input(value).input(rate).tensor();
            }
            start(graph, "Identity").name(name).input(rate).tensor()
        })
    })
}

/// From `rate` to `end_rate` over `decay_steps`, then constant:
/// `(rate − end_rate) · (1 − min(step, decay_steps) / decay_steps) ^ power + end_rate`.
#[track_caller]
pub fn polynomial_decay<'g>(
    step: impl Into<Tensor<'g>>,
    rate: f64,
    decay_steps: f64,
    end_rate: f64,
    power: f64,
) -> Tensor<'g> {
    schedule(step.into(), "PolynomialDecay", decay_steps > 0.0, |g, step, name| {
        let left = left_of(g, step, decay_steps);
        let power = start(g, "Pow").input(left).input(number(g, power, "power")).tensor();
        let span = number(g, rate - end_rate, "span");
        let above = start(g, "Mul").input(span).input(power).tensor();
        let end = number(g, end_rate, "end_learning_rate");
        start(g, "AddV2").name(name).input(above).input(end).tensor()
    })
}

/// From `rate` to `alpha · rate` over `decay_steps`, then constant, with `t = min(step, decay_steps) / decay_steps`:
/// `rate · ((1 − alpha) · (1 + cos(π t)) / 2 + alpha)` (Loshchilov and Hutter, 2016).
#[track_caller]
pub fn cosine_decay<'g>(step: impl Into<Tensor<'g>>, rate: f64, decay_steps: f64, alpha: f64) -> Tensor<'g> {
    schedule(step.into(), "CosineDecay", decay_steps > 0.0, |g, step, name| {
        let limit = number(g, decay_steps, "decay_steps");
        let done = div(start(g, "Minimum").input(step).input(limit).tensor(), limit);
        let angle = start(g, "Mul").input(number(g, PI, "pi")).input(done).tensor();
        let wave = start(g, "Cos").input(angle).tensor();
        let raised = start(g, "AddV2").name("add").input(number(g, 1.0, "one")).input(wave).tensor();
        let half = number(g, rate * (1.0 - alpha) / 2.0, "half_span");
        let above = start(g, "Mul").input(half).input(raised).tensor();
        let end = number(g, rate * alpha, "end_learning_rate");
        start(g, "AddV2").name(name).input(above).input(end).tensor()
    })
}

/// `rate / (1 + decay_rate · step / decay_steps)`, the quotient of steps cut to a whole number if `staircase`.
#[track_caller]
pub fn inverse_time_decay<'g>(
    step: impl Into<Tensor<'g>>,
    rate: f64,
    decay_steps: f64,
    decay_rate: f64,
    staircase: bool,
) -> Tensor<'g> {
    schedule(step.into(), "InverseTimeDecay", decay_steps > 0.0, |g, step, name| {
        let rate = number(g, rate, "learning_rate");
        let share = div(step, number(g, decay_steps, "decay_steps"));
        let share = if staircase { start(g, "Floor").input(share).tensor() } else { share };
        let slowed = start(g, "Mul").input(number(g, decay_rate, "decay_rate")).input(share).tensor();
        let divisor = start(g, "AddV2").name("Add").input(number(g, 1.0, "one")).input(slowed).tensor();
        start(g, "RealDiv").name(name).input(rate).input(divisor).tensor()
    })
}

/// `rate · e ^ (−decay_rate · step / decay_steps)`, the quotient of steps cut to a whole number if `staircase`. As in
/// TensorFlow, an [`exponential_decay`] with the rate `e ^ −decay_rate`.
#[track_caller]
pub fn natural_exp_decay<'g>(
    step: impl Into<Tensor<'g>>,
    rate: f64,
    decay_steps: f64,
    decay_rate: f64,
    staircase: bool,
) -> Tensor<'g> {
    exponential_decay(step, rate, decay_steps, (-decay_rate).exp(), staircase)
}

/// From zero in a line to `to` during the first `steps`, then what the schedule `after` says, which counts from the
/// same step: how tf_cnn_benchmarks warms up, after Goyal et al., 2017.
#[track_caller]
pub fn warm_up<'g>(step: impl Into<Tensor<'g>>, to: f64, steps: f64, after: Tensor<'g>) -> Tensor<'g> {
    schedule(step.into(), "WarmUp", steps > 0.0, |g, step, name| {
        let limit = number(g, steps, "steps");
        let line = start(g, "Mul").input(number(g, to, "learning_rate")).input(div(step, limit)).tensor();
        let warming = start(g, "Less").input(step).input(limit).tensor();
        start(g, "SelectV2").name(name).inputs([warming, line, after]).tensor()
    })
}

fn number<'g>(graph: &'g Graph, value: f64, name: &str) -> Tensor<'g> {
    scalar(graph, DType::F32, value, name)
}

fn div<'g>(a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
    start(a.graph(), "RealDiv").name("truediv").input(a).input(b).tensor()
}

/// The share of the steps that is still to come.
fn left_of<'g>(graph: &'g Graph, step: Tensor<'g>, decay_steps: f64) -> Tensor<'g> {
    let limit = number(graph, decay_steps, "decay_steps");
    let done = div(start(graph, "Minimum").input(step).input(limit).tensor(), limit);
    start(graph, "Sub").name("sub").input(number(graph, 1.0, "one")).input(done).tensor()
}

/// Runs the body in the schedule's name scope, beside the counter, with the counter as `float32`.
#[track_caller]
fn schedule<'g>(
    step: Tensor<'g>,
    name: &str,
    positive: bool,
    body: impl FnOnce(&'g Graph, Tensor<'g>, String) -> Tensor<'g>,
) -> Tensor<'g> {
    let graph = step.graph();
    if !positive {
        let message = format!("{name} wants a number of steps above zero");
        graph.report(Diagnostic::at(Code::InvalidArgument, message, graph.source_line()));
        return graph.poison_tensor();
    }
    place(step, || {
        graph.name_scope(name, || {
            let scope = format!("{}/", graph.current_name_scope());
            body(graph, cast(step, DType::F32), scope)
        })
    })
}

#[track_caller]
fn place<'g>(step: Tensor<'g>, body: impl FnOnce() -> Tensor<'g>) -> Tensor<'g> {
    let graph = step.graph();
    let source = graph.source_line();
    graph.with_source(source, || match graph.in_device_scope() {
        true => body(),
        false => graph.device_because(step.device(), DeviceRule::Colocated(step.op().name()), body),
    })
}
