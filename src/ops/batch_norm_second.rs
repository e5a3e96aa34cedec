//! The gradient of batch normalization's gradient, from sums and products, as TensorFlow has it.

use super::batch_norm::{axis, settings};
use crate::graph::{GradContext, InputGradients, Tensor};

/// The gradients of the output's gradient `g`, the input `x` and the scale `s` of a `FusedBatchNormGrad` node, of what
/// reaches its outputs: `a` (of x), `b` (of scale), `c` (of offset).
///
/// With `r = 1 / sqrt(variance + epsilon)`, `d = x - mean(x)`, and sums and means by channel over `n` elements, the node
/// makes of a loss `L = s (r P - r³ Q R / n) + b r R + c sum(g)`, where `P = sum(a (g - mean(g)))`, `Q = sum(a d)`,
/// `R = sum(g d)`; `dr/dx = -r³ d / n`. Without training `mean` and `r` are given numbers, and
/// `L = s r sum(a g) + b r R + c sum(g)`.
pub(super) fn gradient<'g>(c: &GradContext<'g>, version: usize) -> Option<InputGradients<'g>> {
    let node = c.node.node()?;
    let (rank, axis) = axis(&node.attrs, version).ok()?;
    let settings = settings(&node.attrs);
    let &[g, x, scale, mean, variance, ..] = &c.inputs[..] else { return None };
    let reached = |output: usize| c.grads.get(output).copied().flatten();
    // Vectors of channels lie along their axis.
    let column = |vector: Tensor<'g>| {
        let mut sizes = vec![-1i64];
        sizes.resize(rank - axis, 1);
        if sizes.len() > 1 { vector.reshape(sizes.as_slice()) } else { vector }
    };
    let axes: Vec<i32> = (0..rank).filter(|&a| a != axis).map(|a| a as i32).collect();
    let sum = |t: Tensor<'g>| t.sum_axes(&axes, true);
    let average = |t: Tensor<'g>| t.mean_axes(&axes, true);
    let vector = |t: Tensor<'g>| t.reshape(&[-1i64][..]);
    let add = |a: Option<Tensor<'g>>, b: Option<Tensor<'g>>| match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };

    let s = column(scale);
    let (mean, variance) = match settings.training {
        true => {
            let mean = average(x);
            (mean, average((x - mean).square()))
        }
        false => (column(mean), column(variance)),
    };
    let r = (variance + settings.epsilon).rsqrt();
    let d = x - mean;
    let (a, b, c) = (reached(0), reached(1).map(column), reached(2).map(column));

    let of_b = b.map(|b| b * r);
    let (to_g, to_x, to_scale) = if settings.training {
        let centred = |t: Tensor<'g>| t - average(t);
        let (q, p) = (a.map(|a| average(a * d)), a.map(|a| sum(a * centred(g))));
        let products = average(g * d);
        let cubed = r * r * r;
        let own = a.zip(q).map(|(a, q)| s * r * (centred(a) - d * (r * r * q)));
        let to_g = add(own, of_b.map(|b| b * d));
        // What r gives, then what Q and R give.
        let by_r = match (p, q) {
            (Some(p), Some(q)) => {
                let count = sum(d.ones_like());
                let own = s * (p / count - r * r * q * products * 3.0);
                add(Some(own), b.map(|b| b * products))
            }
            _ => b.map(|b| b * products),
        };
        let by_r = by_r.map(|by_r| -(by_r * cubed * d));
        let by_sums = a.zip(q).map(|(a, q)| -(s * cubed * (products * centred(a) + q * centred(g))));
        let to_x = add(add(by_r, by_sums), of_b.map(|b| b * centred(g)));
        let to_scale = p.zip(q).map(|(p, q)| {
            let count = sum(d.ones_like());
            r * (p - count * (r * r * q * products))
        });
        (to_g, to_x, to_scale)
    } else {
        let to_g = add(a.map(|a| a * s * r), of_b.map(|b| b * d));
        (to_g, of_b.map(|b| b * g), a.map(|a| sum(a * g) * r))
    };
    let to_g = match (to_g, c) {
        (Some(to_g), Some(c)) => Some(to_g + c),
        (None, Some(c)) => Some(g.zeros_like() + c),
        (to_g, None) => to_g,
    };
    let like = |t: Option<Tensor<'g>>, x: Tensor<'g>| t.unwrap_or_else(|| x.zeros_like());
    let all = [like(to_g, g), like(to_x, x), to_scale.map_or_else(|| scale.zeros_like(), vector)];
    let mut gradients: InputGradients<'g> = all.into_iter().map(|t| Some(t.into())).collect();
    gradients.resize(node.inputs.len(), None);
    Some(gradients)
}
