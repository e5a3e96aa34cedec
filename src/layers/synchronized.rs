//! Batch normalization with the moments of all towers' rows together, as if the whole batch were on one device.
//!
//! Each tower's mean `m` and variance `v` of its `n` rows travel, not its rows: the mean of all is `Σ n·m / N`, the
//! variance `Σ n·(v + (m − mean)²) / N` (Chan, Golub and LeVeque, 1979). Gradients flow through both. The towers are
//! built in step: [`Towers::batch_norm`](crate::train::Towers::batch_norm) opens their scopes.

use super::batch_norm::{BatchNormOptions, Norm};
use super::scope::{Layer, layer, node, number};
use crate::graph::{Graph, Tensor};
use std::cell::RefCell;

/// What one tower contributes.
pub(crate) struct Part<'g> {
    norm: Norm<'g>,
    x: Tensor<'g>,
    /// The layer's full name, and the name scope of its ops in this tower.
    name: String,
    inside: String,
    /// The tower's own mean and variance.
    moments: [Tensor<'g>; 2],
    rows: Rows<'g>,
}

/// How many numbers of a tower make one channel's moments.
#[derive(Clone, Copy)]
enum Rows<'g> {
    Known(usize),
    /// A scalar of the input's type.
    Computed(Tensor<'g>),
}

/// Mean and variance of each channel over all towers.
#[derive(Clone, Copy)]
pub(crate) struct Moments<'g> {
    mean: Tensor<'g>,
    variance: Tensor<'g>,
}

/// Opens the layer in one tower and builds the tower's own moments; nothing where that cannot be, which is reported.
#[track_caller]
pub(crate) fn begin<'g>(x: Tensor<'g>, options: &BatchNormOptions) -> Option<Part<'g>> {
    let part = RefCell::new(None);
    layer(x, options.name.as_deref(), "batch_normalization", |l| match Norm::new(l, x, options) {
        Ok(norm) => {
            let moments = norm.moments(x);
            let rows = rows(l, x, &norm);
            let inside = l.graph.current_name_scope();
            part.replace(Some(Part { norm, x, name: l.name().to_string(), inside, moments, rows }));
            x
        }
        Err(message) => l.refuse(message),
    });
    part.into_inner()
}

fn rows<'g>(l: &Layer<'g>, x: Tensor<'g>, norm: &Norm<'g>) -> Rows<'g> {
    let shape = x.shape();
    let known = norm.axes(x).into_iter().try_fold(1usize, |n, axis| n.checked_mul(shape.dim(axis as usize)?));
    if let Some(known) = known {
        return Rows::Known(known);
    }
    let channels = shape.dim(norm.axis).unwrap_or(1).max(1);
    let all = x.size_tensor().cast(x.dtype());
    Rows::Computed(
        node(l.graph, "RealDiv").name("rows").input(all).input(number(x, channels as f64, "channels")).tensor(),
    )
}

/// The moments of all towers' rows, and the update of the moving averages by them.
pub(crate) fn combine<'g>(graph: &'g Graph, parts: &[Part<'g>]) -> Option<Moments<'g>> {
    let first = parts.first()?;
    let like = first.moments[0];
    graph.name_scope("moments", || {
        graph.name_scope(&first.name, || {
            let known: Option<Vec<usize>> = (parts.iter())
                .map(|p| match p.rows {
                    Rows::Known(n) => Some(n),
                    Rows::Computed(_) => None,
                })
                .collect();
            let alike = known.as_ref().is_some_and(|k| k.iter().all(|n| *n == k[0]));
            let weights: Option<Vec<Tensor<'g>>> = (!alike).then(|| {
                (parts.iter())
                    .map(|p| match p.rows {
                        Rows::Known(n) => number(like, n as f64, "rows"),
                        Rows::Computed(n) => n,
                    })
                    .collect()
            });
            // The rows of all towers, or where the towers are alike their number.
            let divisor = match (&weights, &known) {
                (Some(weights), None) => sum(graph, weights, "all_rows"),
                (Some(_), Some(known)) => number(like, known.iter().map(|&n| n as f64).sum(), "all_rows"),
                (None, _) => number(like, parts.len() as f64, "towers"),
            };
            let mean_of = |values: Vec<Tensor<'g>>, name: &'static str| {
                let weighted: Vec<Tensor<'g>> = match &weights {
                    Some(weights) => values.iter().zip(weights).map(|(&v, &w)| v * w).collect(),
                    None => values,
                };
                let sum = sum(graph, &weighted, "sum");
                node(graph, "RealDiv").name(name).inputs([sum, divisor]).tensor()
            };
            let mean = mean_of(parts.iter().map(|p| p.moments[0]).collect(), "mean");
            let spread = parts.iter().map(|p| p.moments[1] + (p.moments[0] - mean).square()).collect();
            let variance = mean_of(spread, "variance");
            let corrected = match first.norm.fused {
                true => variance * bessel(graph, like, known.as_deref(), divisor),
                false => variance,
            };
            first.norm.update(mean, corrected);
            Some(Moments { mean, variance })
        })
    })
}

/// `n / (n − 1)` for the rows of all towers, and 1 where there is but one, as `FusedBatchNormV3` has it.
fn bessel<'g>(graph: &'g Graph, like: Tensor<'g>, known: Option<&[usize]>, all_rows: Tensor<'g>) -> Tensor<'g> {
    match known {
        Some(rows) => {
            let n: f64 = rows.iter().map(|&n| n as f64).sum();
            number(like, n / (n - 1.0).max(1.0), "bessel")
        }
        None => {
            let one = number(like, 1.0, "one");
            let less = node(graph, "Maximum").inputs([all_rows - 1.0, one]).tensor();
            node(graph, "RealDiv").name("bessel").inputs([all_rows, less]).tensor()
        }
    }
}

fn sum<'g>(graph: &'g Graph, tensors: &[Tensor<'g>], name: &'static str) -> Tensor<'g> {
    match tensors {
        [one] => *one,
        _ => node(graph, "AddN").name(name).inputs(tensors.iter().copied()).tensor(),
    }
}

/// The tower's result, in the name scope that [`begin`] opened.
pub(crate) fn finish<'g>(part: &Part<'g>, moments: Moments<'g>) -> Tensor<'g> {
    let graph = part.x.graph();
    graph.name_scope(&format!("{}/", part.inside), || part.norm.normalize(part.x, moments.mean, moments.variance))
}
