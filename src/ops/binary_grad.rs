//! The gradient rules of `binary.rs`, node for node TensorFlow's (`python/ops/math_grad.py`).
//!
//! Absent: rules of integer-valued ops. What a rule returns has the input's shape.

use super::binary::{MUL, POW, REAL_DIV};
use super::broadcast::{all_equal, reduce_gradients};
use super::compare::{CompareOp, GREATER};
use super::select::SELECT_V2;
use super::unary::{LOG, NEG};
use crate::graph::{GradContext, InputGradients, Tensor};

fn parts<'g>(c: &GradContext<'g>) -> (Tensor<'g>, Tensor<'g>, Tensor<'g>) {
    (c.inputs[0], c.inputs[1], c.grad())
}

pub(super) fn add<'g>(c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    Some(reduce_gradients(x, y, grad, grad))
}

pub(super) fn sub<'g>(c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    Some(reduce_gradients(x, y, grad, grad.apply(&NEG)))
}

pub(super) fn mul<'g>(c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    let gx = grad.apply_with(&MUL, "Mul", y);
    let gy = if all_equal(&[x, y, grad]) { grad.apply_with(&MUL, "Mul", x) } else { x.apply_with(&MUL, "Mul", grad) };
    Some(reduce_gradients(x, y, gx, gy))
}

pub(super) fn real_div<'g>(c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    let gx = grad.apply_with(&REAL_DIV, "RealDiv", y);
    let slope = x.apply(&NEG).apply_with(&REAL_DIV, "RealDiv", y).apply_with(&REAL_DIV, "RealDiv", y);
    Some(reduce_gradients(x, y, gx, grad * slope))
}

/// Of `Div`, whose integers have no gradient.
pub(super) fn div<'g>(c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    if !x.dtype().is_floating() {
        return Some(vec![None, None]);
    }
    let gx = grad / y;
    Some(reduce_gradients(x, y, gx, grad * (x.apply(&NEG) / y / y)))
}

pub(super) fn div_no_nan<'g>(c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    let gx = grad.div_no_nan(y);
    let slope = x.apply(&NEG).div_no_nan(y).div_no_nan(y);
    Some(reduce_gradients(x, y, gx, grad * slope))
}

pub(super) fn floor_mod<'g>(c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    if !x.dtype().is_floating() {
        return Some(vec![None, None]);
    }
    let quotient = x.apply_with(&super::binary::FLOOR_DIV, "FloorDiv", y);
    Some(reduce_gradients(x, y, grad, grad * quotient.apply(&NEG)))
}

/// Of `Maximum` and `Minimum`: the gradient goes to the input that was taken.
pub(super) fn extremum<'g>(c: &GradContext<'g>, taken: &'static CompareOp) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    let zeros = grad.zeros_like();
    let first = x.apply_with(taken, taken.name, y);
    let select =
        |x: Tensor<'g>, y: Tensor<'g>| c.node.graph().node_of(&SELECT_V2).input(first).input(x).input(y).tensor();
    let (gx, gy) = (select(grad, zeros), select(zeros, grad));
    Some(reduce_gradients(x, y, gx, gy))
}

pub(super) fn pow<'g>(c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    let z = c.outputs[0];
    let gx = grad * y * x.apply_with(&POW, "Pow", y - 1.0);
    // The logarithm is taken only where x is above zero, so that 0 to a power above 0 has a gradient.
    let mask = x.apply_with(&GREATER, "Greater", x.scalar_like("Greater/y", 0.0));
    let select =
        |x: Tensor<'g>, y: Tensor<'g>| c.node.graph().node_of(&SELECT_V2).input(mask).input(x).input(y).tensor();
    let log = select(select(x, x.ones_like()).apply(&LOG), x.zeros_like());
    Some(reduce_gradients(x, y, gx, grad * z * log))
}

pub(super) fn squared_difference<'g>(c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    let (x, y, grad) = parts(c);
    let gx = c.node.graph().control_dependencies([grad.op()], || 2.0 * grad * (x - y));
    Some(reduce_gradients(x, y, gx, gx.apply(&NEG)))
}
