//! Element-wise functions of one tensor: `Neg`, `Abs`, `Sign`, `Square`, `Sqrt`, `Rsqrt`, `Reciprocal`, `Inv`, `Exp`,
//! `Expm1`, `Log`, `Log1p`, `Sin`, `Cos`, `Tan` and their inverses, `Sinh`, `Cosh`, `Tanh` and theirs, `Erf`, `Erfc`,
//! `Sigmoid`, `Softplus`, `Softsign`, `Relu`, `Relu6`, `Elu`, `Selu`, `Floor`, `Ceil`, `Rint`, `Round`.
//!
//! Absent: what the gradients are (`unary_grad.rs`), and the functions themselves (`functions.rs`).

use super::elementwise::{Map1, Plain, Wide, unary};
use super::functions as f;
use super::unary_grad as grad;
use super::values::{array, case, float, ints};
use crate::base::DType;
use crate::device::CpuKernel;
use crate::device::cuda::CudaMap;
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};

/// An element-wise op of one input, whose output has its type and shape.
pub struct UnaryOp {
    pub(super) name: &'static str,
    floats_only: bool,
    no_gradient: bool,
    /// Floating-point operations per element, for the cost.
    flops: f64,
    kernel: fn(&KernelContext<'_>) -> Result<CpuKernel, String>,
    /// One element in CUDA C.
    cuda: &'static str,
    gradient: for<'g> fn(&GradContext<'g>) -> Option<InputGradients<'g>>,
    cases: fn() -> Vec<Case>,
}

impl Op for UnaryOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { in_place: &[0], no_gradient: self.no_gradient, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        let dtype = c.dtype(0);
        if !dtype.is_number() || self.floats_only && !dtype.is_floating() {
            let want = if self.floats_only { "float32 or float64" } else { "a number" };
            return Err(format!("want {want}, got {dtype}; cast the input"));
        }
        super::like_input(c)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        (self.gradient)(c)
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = (c.inputs[0].bytes() + c.outputs[0].bytes()) as f64;
        Cost { flops: self.flops * c.outputs[0].len() as f64, bytes }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        (self.kernel)(c)
    }

    fn cuda_map(&self, _c: &KernelContext<'_>) -> Option<CudaMap> {
        Some(CudaMap::new(self.cuda))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        (self.cases)()
    }
}

fn floats<F: Map1<f32, f32> + Map1<f64, f64>>(c: &KernelContext<'_>, f: F) -> Result<CpuKernel, String> {
    match c.inputs[0].dtype {
        DType::F32 => Ok(unary::<f32, f32, F, Wide>(0, f)),
        DType::F64 => Ok(unary::<f64, f64, F, Plain>(0, f)),
        other => Err(format!("there is no kernel for {other}")),
    }
}

fn numbers<F>(c: &KernelContext<'_>, f: F) -> Result<CpuKernel, String>
where
    F: Map1<f32, f32> + Map1<f64, f64> + Map1<i32, i32> + Map1<i64, i64>,
{
    match c.inputs[0].dtype {
        DType::I32 => Ok(unary::<i32, i32, F, Plain>(0, f)),
        DType::I64 => Ok(unary::<i64, i64, F, Plain>(0, f)),
        _ => floats(c, f),
    }
}

/// Points at which every function here is smooth, with and without a sign.
const SIGNED: [f32; 6] = [-2.5, -1.25, -0.0625, 0.3, 1.7, 7.5];
const POSITIVE: [f32; 4] = [0.04, 0.5, 1.0, 9.0];
const WITHIN_1: [f32; 4] = [-0.8, -0.125, 0.3, 0.9];
const ABOVE_1: [f32; 4] = [1.25, 1.5, 2.0, 9.0];
/// Halves are rounded to the even neighbour.
const HALVES: [f32; 8] = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.75, -0.2];

/// A case with outputs from an independent formula in `f64`, and one that is too short for a whole register.
fn points(points: &[f32], formula: fn(f64) -> f64) -> Vec<Case> {
    let expected: Vec<f32> = points.iter().map(|&x| formula(x.into()) as f32).collect();
    let dims = [points.len() / 2, 2];
    vec![
        case(vec![float(&dims, points)], vec![float(&dims, &expected)], true),
        case(vec![float(&[], &points[..1])], vec![float(&[], &expected[..1])], true),
        case(vec![float(&[0, 3], &[])], vec![float(&[0, 3], &[])], false),
    ]
}

macro_rules! unary_ops {
    ($($(#[$doc:meta])* $op:ident = $name:literal, $method:ident, $kind:ident($function:expr, $cuda:literal), $flops:literal,
       $flat:literal, $gradient:expr, $cases:expr;)*) => {
        $($(#[$doc])*
        pub static $op: UnaryOp = UnaryOp {
            name: $name,
            floats_only: unary_ops!(@only $kind),
            no_gradient: $flat,
            flops: $flops,
            kernel: |c| $kind(c, $function),
            cuda: $cuda,
            gradient: $gradient,
            cases: || $cases,
        };)*

        impl<'g> Tensor<'g> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $method(self) -> Tensor<'g> {
                self.apply(&$op)
            })*
        }
    };
    (@only floats) => { true };
    (@only numbers) => { false };
}

/// Rounding of floats; integers are whole.
#[derive(Clone, Copy)]
struct RoundedNumber;

impl Map1<f32, f32> for RoundedNumber {
    #[inline(always)]
    fn at(self, x: f32) -> f32 {
        x.round_ties_even()
    }
}

impl Map1<f64, f64> for RoundedNumber {
    #[inline(always)]
    fn at(self, x: f64) -> f64 {
        x.round_ties_even()
    }
}

impl Map1<i32, i32> for RoundedNumber {
    #[inline(always)]
    fn at(self, x: i32) -> i32 {
        x
    }
}

impl Map1<i64, i64> for RoundedNumber {
    #[inline(always)]
    fn at(self, x: i64) -> i64 {
        x
    }
}

fn nothing<'g>(_c: &GradContext<'g>) -> Option<InputGradients<'g>> {
    Some(vec![None])
}

fn with_ints(mut cases: Vec<Case>, input: &[i32], output: &[i32]) -> Vec<Case> {
    cases.push(case(vec![ints(input)], vec![ints(output)], false));
    cases
}

unary_ops! {
    /// TensorFlow's `Neg`: `-x`.
    NEG = "Neg", negative, numbers(f::Negated, "turret_negated($0)"), 1.0, false, grad::neg,
        with_ints(points(&SIGNED, |x| -x), &[3, i32::MIN], &[-3, i32::MIN]);
    /// TensorFlow's `Abs`: `|x|`.
    ABS = "Abs", abs, numbers(f::Magnitude, "turret_magnitude($0)"), 1.0, false, grad::abs,
        with_ints(points(&SIGNED, f64::abs), &[-3, i32::MIN], &[3, i32::MIN]);
    /// TensorFlow's `Sign`: -1, 0 or 1.
    SIGN = "Sign", sign, numbers(f::Signum, "turret_sign($0)"), 1.0, true, nothing,
        with_ints(points(&SIGNED, f64::signum), &[-3, 0, 9], &[-1, 0, 1]);
    /// TensorFlow's `Square`: `x²`.
    SQUARE = "Square", square, numbers(f::Squared, "turret_times($0, $0)"), 1.0, false, grad::square,
        with_ints(points(&SIGNED, |x| x * x), &[-3, 4], &[9, 16]);
    /// TensorFlow's `Floor`: rounded toward minus infinity.
    FLOOR = "Floor", floor, floats(f::Floored, "turret_floor($0)"), 1.0, true, nothing, points(&SIGNED, f64::floor);
    /// TensorFlow's `Sqrt`: the square root.
    SQRT = "Sqrt", sqrt, floats(f::Root, "turret_sqrt($0)"), 4.0, false, grad::sqrt, points(&POSITIVE, f64::sqrt);
    /// TensorFlow's `Rsqrt`: one over the square root.
    RSQRT = "Rsqrt", rsqrt, floats(f::OneOverRoot, "1 / turret_sqrt($0)"), 8.0, false, grad::rsqrt, points(&POSITIVE, |x| 1.0 / x.sqrt());
    /// TensorFlow's `Reciprocal`: `1 / x`.
    RECIPROCAL = "Reciprocal", reciprocal, floats(f::OneOver, "1 / $0"), 4.0, false, grad::reciprocal, points(&SIGNED, |x| 1.0 / x);
    /// TensorFlow's `Exp`: e to the power `x`.
    EXP = "Exp", exp, floats(f::Exponential, "turret_exp($0)"), 12.0, false, grad::exp, points(&SIGNED, f64::exp);
    /// TensorFlow's `Log`: the natural logarithm.
    LOG = "Log", log, floats(f::Logarithm, "turret_log($0)"), 12.0, false, grad::log, points(&POSITIVE, f64::ln);
    /// TensorFlow's `Log1p`: the natural logarithm of `1 + x`.
    LOG1P = "Log1p", log1p, floats(f::LogarithmOf1Plus, "turret_log1p($0)"), 16.0, false, grad::log1p, points(&POSITIVE, f64::ln_1p);
    /// TensorFlow's `Tanh`.
    TANH = "Tanh", tanh, floats(f::HyperbolicTangent, "turret_tanh($0)"), 16.0, false, grad::tanh, points(&SIGNED, f64::tanh);
    /// TensorFlow's `Sin`, of an angle in radians.
    SIN = "Sin", sin, floats(f::Sine, "turret_sin($0)"), 16.0, false, grad::sin, points(&SIGNED, f64::sin);
    /// TensorFlow's `Cos`, of an angle in radians.
    COS = "Cos", cos, floats(f::Cosine, "turret_cos($0)"), 16.0, false, grad::cos, points(&SIGNED, f64::cos);
    /// TensorFlow's `Sigmoid`: `1 / (1 + exp(-x))`.
    SIGMOID = "Sigmoid", sigmoid, floats(f::Logistic, "turret_logistic($0)"), 16.0, false, grad::sigmoid,
        points(&SIGNED, |x| 1.0 / (1.0 + (-x).exp()));
    /// TensorFlow's `Softplus`: `log(1 + exp(x))`.
    SOFTPLUS = "Softplus", softplus, floats(f::SoftRectified, "turret_soft_rectified($0)"), 30.0, false, grad::softplus,
        points(&SIGNED, |x| x.max(0.0) + (-x.abs()).exp().ln_1p());
    /// TensorFlow's `Relu`: `max(x, 0)`.
    RELU = "Relu", relu, numbers(f::Rectified, "turret_rectified($0)"), 1.0, false, grad::relu, {
        let mut cases = with_ints(points(&SIGNED, |x| x.max(0.0)), &[-3, 4], &[0, 4]);
        cases.push(case(vec![array(&[2], &[-1.5f64, 2.5])], vec![array(&[2], &[0.0f64, 2.5])], true));
        cases
    };
    /// TensorFlow's `Relu6`: `min(max(x, 0), 6)`.
    RELU6 = "Relu6", relu6, numbers(f::RectifiedTo6, "$0 > 6 ? 6 : turret_rectified($0)"), 2.0, false, grad::relu6,
        with_ints(points(&SIGNED, |x| x.clamp(0.0, 6.0)), &[-3, 4, 9], &[0, 4, 6]);
    /// TensorFlow's `Elu` (Clevert et al., 2015): `x`, or `exp(x) - 1` below zero.
    ELU = "Elu", elu, floats(f::ExponentialLinear, "$0 < 0 ? turret_expm1($0) : $0"), 16.0, false, grad::elu,
        points(&SIGNED, |x| if x < 0.0 { x.exp_m1() } else { x });
    /// TensorFlow's `Selu` (Klambauer et al., 2017): `1.0507 x`, or `1.7581 (exp(x) - 1)` below zero.
    SELU = "Selu", selu, floats(f::ScaledExponentialLinear, "turret_selu($0)"), 17.0, false, grad::selu,
        points(&SIGNED, |x| if x < 0.0 { f::SELU_SCALE_ALPHA * x.exp_m1() } else { f::SELU_SCALE * x });
    /// TensorFlow's `Softsign`: `x / (1 + |x|)`.
    SOFTSIGN = "Softsign", softsign, floats(f::SoftSign, "$0 / (1 + turret_magnitude($0))"), 6.0, false, grad::softsign,
        points(&SIGNED, |x| x / (1.0 + x.abs()));
    /// TensorFlow's `Ceil`: rounded toward plus infinity.
    CEIL = "Ceil", ceil, floats(f::Raised, "turret_ceil($0)"), 1.0, true, nothing, points(&SIGNED, f64::ceil);
    /// TensorFlow's `Rint`: the nearest whole number; of two, the even one.
    RINT = "Rint", rint, floats(f::RoundedToEven, "turret_rint($0)"), 1.0, true, nothing,
        points(&HALVES, f64::round_ties_even);
    /// TensorFlow's `Round`: the nearest whole number; of two, the even one. Integers stay as they are.
    ROUND = "Round", round, numbers(RoundedNumber, "turret_rint($0)"), 1.0, true, nothing,
        with_ints(points(&HALVES, f64::round_ties_even), &[-3, i32::MAX], &[-3, i32::MAX]);
    /// TensorFlow's `Inv`, the older name of `Reciprocal`.
    INV = "Inv", inv, floats(f::OneOver, "1 / $0"), 4.0, false, grad::reciprocal, points(&SIGNED, |x| 1.0 / x);
    /// TensorFlow's `Expm1`: `exp(x) - 1`, exact near zero.
    EXPM1 = "Expm1", expm1, floats(f::ExponentialMinus1, "turret_expm1($0)"), 16.0, false, grad::expm1,
        points(&SIGNED, f64::exp_m1);
    /// TensorFlow's `Erf`: the integral of the normal distribution, `2/√π ∫₀ˣ exp(-t²) dt`.
    ERF = "Erf", erf, floats(f::ErrorFunction, "turret_erf($0)"), 30.0, false, grad::erf, points(&SIGNED, libm::erf);
    /// TensorFlow's `Erfc`: `1 - erf(x)`.
    ERFC = "Erfc", erfc, floats(f::RestOfErrorFunction, "turret_erfc($0)"), 30.0, false, grad::erfc,
        points(&SIGNED, libm::erfc);
    /// TensorFlow's `Tan`, of an angle in radians.
    TAN = "Tan", tan, floats(f::Tangent, "turret_tan($0)"), 20.0, false, grad::tan, points(&SIGNED, f64::tan);
    /// TensorFlow's `Asin`: the angle whose sine this is, in radians.
    ASIN = "Asin", asin, floats(f::ArcSine, "turret_asin($0)"), 20.0, false, grad::asin, points(&WITHIN_1, f64::asin);
    /// TensorFlow's `Acos`: the angle whose cosine this is, in radians.
    ACOS = "Acos", acos, floats(f::ArcCosine, "turret_acos($0)"), 20.0, false, grad::acos, points(&WITHIN_1, f64::acos);
    /// TensorFlow's `Atan`: the angle whose tangent this is, in radians.
    ATAN = "Atan", atan, floats(f::ArcTangent, "turret_atan($0)"), 20.0, false, grad::atan, points(&SIGNED, f64::atan);
    /// TensorFlow's `Sinh`.
    SINH = "Sinh", sinh, floats(f::HyperbolicSine, "turret_sinh($0)"), 20.0, false, grad::sinh, points(&SIGNED, f64::sinh);
    /// TensorFlow's `Cosh`.
    COSH = "Cosh", cosh, floats(f::HyperbolicCosine, "turret_cosh($0)"), 20.0, false, grad::cosh, points(&SIGNED, f64::cosh);
    /// TensorFlow's `Asinh`: the inverse of `Sinh`.
    ASINH = "Asinh", asinh, floats(f::AreaSine, "turret_asinh($0)"), 20.0, false, grad::asinh, points(&SIGNED, f64::asinh);
    /// TensorFlow's `Acosh`: the inverse of `Cosh`.
    ACOSH = "Acosh", acosh, floats(f::AreaCosine, "turret_acosh($0)"), 20.0, false, grad::acosh, points(&ABOVE_1, f64::acosh);
    /// TensorFlow's `Atanh`: the inverse of `Tanh`.
    ATANH = "Atanh", atanh, floats(f::AreaTangent, "turret_atanh($0)"), 20.0, false, grad::atanh, points(&WITHIN_1, f64::atanh);
}
