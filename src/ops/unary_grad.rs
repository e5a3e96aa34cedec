//! The gradient rules of `unary.rs`, node for node TensorFlow's, and the op types that they need: `ReluGrad`,
//! `Relu6Grad`, `EluGrad`, `SeluGrad`, `TanhGrad`, `SigmoidGrad`, `SqrtGrad`, `RsqrtGrad`, `ReciprocalGrad`, `InvGrad`,
//! `SoftplusGrad`, `SoftsignGrad`.

use super::binary::{ADD_V2, BinaryOp, IN_PLACE, MUL, REAL_DIV, SUB, floats};
use super::compare::LESS;
use super::functions as f;
use super::select::SELECT;
use super::unary::{COS, NEG, RECIPROCAL, SIGN, SIN};
use super::values::{case, float};
use crate::graph::{Case, GradContext, InputGradients, Tensor};

type Gradients<'g> = Option<InputGradients<'g>>;

fn one<'g>(gradient: Tensor<'g>) -> Gradients<'g> {
    Some(vec![Some(gradient.into())])
}

fn two<'g>(first: Tensor<'g>, second: Tensor<'g>) -> Gradients<'g> {
    Some(vec![Some(first.into()), Some(second.into())])
}

/// Builds under a dependency on the gradient, so that nothing of the backward pass is computed too early.
fn after_grad<'g>(c: &GradContext<'g>, build: impl FnOnce(Tensor<'g>) -> Tensor<'g>) -> Gradients<'g> {
    let grad = c.grad();
    one(c.node.graph().control_dependencies([grad.op()], || build(grad)))
}

/// A gradient op of the output and the gradient that reaches it.
fn of_output<'g>(c: &GradContext<'g>, op: &'static BinaryOp) -> Gradients<'g> {
    one(c.outputs[0].apply_with(op, op.name, c.grad()))
}

pub(super) fn neg<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    one(c.grad().apply(&NEG))
}

pub(super) fn abs<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    one(c.grad() * c.inputs[0].apply(&SIGN))
}

pub(super) fn square<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| {
        let twice = x.apply_with(&MUL, "Mul", x.scalar_like("Const", 2.0));
        grad.apply_with(&MUL, "Mul", twice)
    })
}

pub(super) fn sqrt<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    of_output(c, &SQRT_GRAD)
}

pub(super) fn rsqrt<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    of_output(c, &RSQRT_GRAD)
}

pub(super) fn reciprocal<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    of_output(c, &RECIPROCAL_GRAD)
}

pub(super) fn exp<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let y = c.outputs[0];
    after_grad(c, |grad| grad * y)
}

pub(super) fn log<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| grad * x.apply(&RECIPROCAL))
}

pub(super) fn sin<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| grad * x.apply(&COS))
}

pub(super) fn cos<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| grad * -x.apply(&SIN))
}

pub(super) fn log1p<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| {
        let shifted: Tensor<'g> = 1.0 + x;
        grad * shifted.apply(&RECIPROCAL)
    })
}

pub(super) fn tanh<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    of_output(c, &TANH_GRAD)
}

pub(super) fn sigmoid<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    of_output(c, &SIGMOID_GRAD)
}

pub(super) fn softplus<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    one(c.grad().apply_with(&SOFTPLUS_GRAD, "SoftplusGrad", c.inputs[0]))
}

pub(super) fn relu<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    one(c.grad().apply_with(&RELU_GRAD, "ReluGrad", c.outputs[0]))
}

pub(super) fn relu6<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    one(c.grad().apply_with(&RELU6_GRAD, "Relu6Grad", c.outputs[0]))
}

pub(super) fn elu<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    one(c.grad().apply_with(&ELU_GRAD, "EluGrad", c.outputs[0]))
}

pub(super) fn selu<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    one(c.grad().apply_with(&SELU_GRAD, "SeluGrad", c.outputs[0]))
}

pub(super) fn softsign<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    one(c.grad().apply_with(&SOFTSIGN_GRAD, "SoftsignGrad", c.inputs[0]))
}

pub(super) fn expm1<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| grad * x.exp())
}

/// Of the error function and of what it leaves to 1, whose slopes are opposite: `slope · exp(-x²)`.
fn bell<'g>(c: &GradContext<'g>, slope: f64) -> Gradients<'g> {
    let x = c.inputs[0];
    let slope = c.grad().scalar_like("Const", slope);
    after_grad(c, |grad| grad * slope * x.square().apply(&NEG).exp())
}

pub(super) fn erf<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    bell(c, std::f64::consts::FRAC_2_SQRT_PI)
}

pub(super) fn erfc<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    bell(c, -std::f64::consts::FRAC_2_SQRT_PI)
}

pub(super) fn tan<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| x.apply(&COS).apply(&RECIPROCAL).square() * grad)
}

/// `1 / sqrt(1 - x²)`.
fn arc_slope<'g>(x: Tensor<'g>) -> Tensor<'g> {
    let square = x.square();
    let one = x.scalar_like("Const", 1.0);
    one.apply_with(&SUB, "Sub", square).sqrt().apply(&RECIPROCAL)
}

pub(super) fn asin<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| grad * arc_slope(x))
}

pub(super) fn acos<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| {
        let slope = arc_slope(x);
        grad.apply(&NEG) * slope
    })
}

/// Of the arc tangent and the area tangent: one over `1 + x²`, or `1 - x²`.
fn tangent_slope<'g>(c: &GradContext<'g>, op: &'static BinaryOp, name: &'static str) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| {
        let square = x.square();
        let one = x.scalar_like("Const", 1.0);
        grad * one.apply_with(op, name, square).apply(&RECIPROCAL)
    })
}

pub(super) fn atan<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    tangent_slope(c, &ADD_V2, "Add")
}

pub(super) fn atanh<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    tangent_slope(c, &SUB, "Sub")
}

pub(super) fn sinh<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| grad * x.cosh())
}

pub(super) fn cosh<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let x = c.inputs[0];
    after_grad(c, |grad| grad * x.sinh())
}

pub(super) fn asinh<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let y = c.outputs[0];
    after_grad(c, |grad| grad / y.cosh())
}

pub(super) fn acosh<'g>(c: &GradContext<'g>) -> Gradients<'g> {
    let y = c.outputs[0];
    after_grad(c, |grad| grad / y.sinh())
}

/// Of an `Elu`-like op's gradient: what reaches its second input, the forward output, is `grad · dy` below zero.
fn below_zero<'g>(c: &GradContext<'g>) -> Tensor<'g> {
    let (dy, y, grad) = (c.inputs[0], c.inputs[1], c.grad());
    let below = y.apply_with(&LESS, "Less", y.scalar_like("Less/y", 0.0));
    let scaled = grad * dy;
    c.node.graph().node_of(&SELECT).inputs([below, scaled, y.zeros_like()]).tensor()
}

/// A case at points that are smooth for every gradient op.
fn points(x: &[f32; 3], y: &[f32; 3], expected: fn(f32, f32) -> f32) -> Vec<Case> {
    let expected: Vec<f32> = x.iter().zip(y).map(|(&x, &y)| expected(x, y)).collect();
    vec![case(vec![float(&[3], x), float(&[3], y)], vec![float(&[3], &expected)], true)]
}

fn without_gradient(cases: Vec<Case>) -> Vec<Case> {
    cases.into_iter().map(|case| Case { gradient: false, ..case }).collect()
}

macro_rules! grad_op {
    ($(#[$doc:meta])* $op:ident = $name:literal, $function:expr, $cuda:literal, $gradient:expr, $cases:expr) => {
        $(#[$doc])*
        pub static $op: BinaryOp = BinaryOp {
            name: $name,
            floats_only: true,
            same_shape: true,
            traits: IN_PLACE,
            kernel: |c| floats(c, $function),
            cuda: $cuda,
            refuses: None,
            gradient: $gradient,
            cases: || $cases,
        };
    };
}

grad_op!(
    /// TensorFlow's `ReluGrad`: input 0, the gradient, where input 1, the relu's output or input, is above zero.
    RELU_GRAD = "ReluGrad", f::RectifiedSlope, "$1 > 0 ? $0 : 0",
    |c| two(c.grad().apply_with(&RELU_GRAD, "ReluGrad", c.inputs[1]), c.inputs[1].zeros_like()),
    points(&[1.5, -2.0, 3.0], &[0.5, -1.0, 2.0], |g, y| if y > 0.0 { g } else { 0.0 })
);
grad_op!(
    /// TensorFlow's `Relu6Grad`: input 0, the gradient, where input 1, the relu's output, is within 0 and 6.
    RELU6_GRAD = "Relu6Grad", f::RectifiedTo6Slope, "$1 > 0 && $1 < 6 ? $0 : 0",
    |c| two(c.grad().apply_with(&RELU6_GRAD, "Relu6Grad", c.inputs[1]), c.inputs[1].zeros_like()),
    points(&[1.5, -2.0, 3.0], &[0.5, -1.0, 7.0], |g, y| if y > 0.0 && y < 6.0 { g } else { 0.0 })
);
grad_op!(
    /// TensorFlow's `TanhGrad`: `dy * (1 - y²)` of inputs `y`, `dy`.
    TANH_GRAD = "TanhGrad", f::HyperbolicTangentSlope, "$1 * (1 - $0 * $0)",
    |c| {
        let (y, dy, grad) = (c.inputs[0], c.inputs[1], c.grad());
        two(grad * -2.0 * dy * y, y.apply_with(&TANH_GRAD, "TanhGrad", grad))
    },
    points(&[0.5, -0.25, 0.9], &[1.5, -2.0, 3.0], |y, g| g * (1.0 - y * y))
);
grad_op!(
    /// TensorFlow's `SigmoidGrad`: `dy * y * (1 - y)` of inputs `y`, `dy`.
    SIGMOID_GRAD = "SigmoidGrad", f::LogisticSlope, "$1 * $0 * (1 - $0)",
    |c| {
        let (y, dy, grad) = (c.inputs[0], c.inputs[1], c.grad());
        let scaled = grad * dy;
        two(scaled - 2.0 * scaled * y, y.apply_with(&SIGMOID_GRAD, "SigmoidGrad", grad))
    },
    points(&[0.5, 0.25, 0.9], &[1.5, -2.0, 3.0], |y, g| g * y * (1.0 - y))
);
grad_op!(
    /// TensorFlow's `SqrtGrad`: `dy * 0.5 / y` of inputs `y`, `dy`.
    SQRT_GRAD = "SqrtGrad", f::RootSlope, "$1 * 0.5f / $0",
    |c| {
        let scaled = c.grad().apply_with(&REAL_DIV, "truediv", c.inputs[0]);
        two(scaled.apply(&NEG) * c.outputs[0], 0.5 * scaled)
    },
    points(&[0.5, 0.25, 0.9], &[1.5, -2.0, 3.0], |y, g| g * 0.5 / y)
);
grad_op!(
    /// TensorFlow's `RsqrtGrad`: `dy * -0.5 * y³` of inputs `y`, `dy`.
    RSQRT_GRAD = "RsqrtGrad", f::OneOverRootSlope, "-($1 * 0.5f * ($0 * $0 * $0))",
    |c| {
        let (y, dy, grad) = (c.inputs[0], c.inputs[1], c.grad());
        two(-1.5 * grad * dy * y.square(), y.apply_with(&RSQRT_GRAD, "RsqrtGrad", grad))
    },
    points(&[0.5, 0.25, 0.9], &[1.5, -2.0, 3.0], |y, g| g * -0.5 * y * y * y)
);
grad_op!(
    /// TensorFlow's `ReciprocalGrad`: `-dy * y²` of inputs `y`, `dy`.
    RECIPROCAL_GRAD = "ReciprocalGrad", f::OneOverSlope, "-($1 * ($0 * $0))",
    |c| {
        let (y, dy, grad) = (c.inputs[0], c.inputs[1], c.grad());
        two(grad * -2.0 * dy * y, y.apply_with(&RECIPROCAL_GRAD, "ReciprocalGrad", grad))
    },
    points(&[0.5, -0.25, 0.9], &[1.5, -2.0, 3.0], |y, g| -g * y * y)
);
grad_op!(
    /// TensorFlow's `InvGrad`, the older name of `ReciprocalGrad`.
    INV_GRAD = "InvGrad", f::OneOverSlope, "-($1 * ($0 * $0))",
    |c| {
        let (y, dy, grad) = (c.inputs[0], c.inputs[1], c.grad());
        two(grad * -2.0 * dy * y, y.apply_with(&RECIPROCAL_GRAD, "ReciprocalGrad", grad))
    },
    points(&[0.5, -0.25, 0.9], &[1.5, -2.0, 3.0], |y, g| -g * y * y)
);
grad_op!(
    /// TensorFlow's `EluGrad`: `g · (y + 1)` where `y`, the output, is below zero, else `g`; inputs `g`, `y`.
    ELU_GRAD = "EluGrad", f::ExponentialLinearSlope, "$1 < 0 ? ($1 + 1) * $0 : $0",
    |c| two(c.grad().apply_with(&ELU_GRAD, "EluGrad", c.inputs[1]), below_zero(c)),
    points(&[1.5, -2.0, 3.0], &[-0.5, 1.0, -0.75], |g, y| if y < 0.0 { g * (y + 1.0) } else { g })
);
grad_op!(
    /// TensorFlow's `SeluGrad`: `g · (y + 1.7581)` where `y`, the output, is below zero, else `1.0507 g`; inputs `g`, `y`.
    SELU_GRAD = "SeluGrad", f::ScaledExponentialLinearSlope, "turret_selu_slope($0, $1)",
    |c| two(c.grad().apply_with(&SELU_GRAD, "SeluGrad", c.inputs[1]), below_zero(c)),
    points(&[1.5, -2.0, 3.0], &[-0.5, 1.0, -0.75], |g, y| {
        (if y < 0.0 { f64::from(g) * (f64::from(y) + f::SELU_SCALE_ALPHA) } else { f64::from(g) * f::SELU_SCALE }) as f32
    })
);
grad_op!(
    /// TensorFlow's `SoftsignGrad`: `g / (1 + |x|)²` of inputs `g`, `x`. It has no gradient itself.
    SOFTSIGN_GRAD = "SoftsignGrad", f::SoftSignSlope, "$0 / ((1 + turret_magnitude($1)) * (1 + turret_magnitude($1)))",
    |_| None,
    without_gradient(points(&[1.5, -2.0, 3.0], &[0.5, -1.0, 2.0], |g, x| g / ((1.0 + x.abs()) * (1.0 + x.abs()))))
);
grad_op!(
    /// TensorFlow's `SoftplusGrad`: `g / (1 + exp(-x))` of inputs `g`, `x`.
    SOFTPLUS_GRAD = "SoftplusGrad", f::SoftRectifiedSlope, "$0 * turret_logistic($1)",
    |c| {
        let (dy, x, grad) = (c.inputs[0], c.inputs[1], c.grad());
        let bell = x.apply(&NEG).exp() + 2.0 + x.exp();
        two(grad.apply_with(&SOFTPLUS_GRAD, "SoftplusGrad", x), grad * dy / bell)
    },
    points(&[1.5, -2.0, 3.0], &[0.5, -1.0, 2.0], |g, x| g / (1.0 + (-x).exp()))
);
