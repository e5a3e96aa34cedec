//! The functions of one or two elements behind `unary.rs` and `unary_grad.rs`.
//!
//! Absent: loops and types of ops. Of `float32`, powers, logarithms and what is made of them are in `math.rs`.

use super::elementwise::{Map1, Map2};
use super::math;
use super::number::Number;

/// A `float` type with the functions of analysis.
pub(super) trait Real: Number {
    fn floored(self) -> Self;
    fn raised(self) -> Self;
    fn rounded_to_even(self) -> Self;
    fn root(self) -> Self;
    fn exponential(self) -> Self;
    fn logarithm(self) -> Self;
    fn logarithm_of_1_plus(self) -> Self;
    fn hyperbolic_tangent(self) -> Self;
    fn sine(self) -> Self;
    fn cosine(self) -> Self;
    fn exponential_minus_1(self) -> Self;
    fn error_function(self) -> Self;
    fn rest_of_error_function(self) -> Self;
    fn tangent(self) -> Self;
    fn arc_sine(self) -> Self;
    fn arc_cosine(self) -> Self;
    fn arc_tangent(self) -> Self;
    fn hyperbolic_sine(self) -> Self;
    fn hyperbolic_cosine(self) -> Self;
    fn area_sine(self) -> Self;
    fn area_cosine(self) -> Self;
    fn area_tangent(self) -> Self;
    /// `1 / (1 + e^-x)`.
    fn logistic(self) -> Self;
    /// `ln(1 + e^x)`.
    fn soft_rectified(self) -> Self;
    fn half() -> Self {
        Self::from_f64(0.5)
    }
}

macro_rules! real {
    ($t:ident: $($name:ident = $function:path),*) => {
        impl Real for $t {
            real!(@methods floored = $t::floor, raised = $t::ceil, rounded_to_even = $t::round_ties_even,
                root = $t::sqrt, hyperbolic_sine = $t::sinh, hyperbolic_cosine = $t::cosh, area_sine = $t::asinh,
                area_cosine = $t::acosh, area_tangent = $t::atanh, sine = $t::sin, cosine = $t::cos, tangent = $t::tan,
                arc_sine = $t::asin, arc_cosine = $t::acos, arc_tangent = $t::atan);
            real!(@methods $($name = $function),*);
        }
    };
    (@methods $($name:ident = $function:path),*) => {$(
        #[inline(always)]
        fn $name(self) -> Self {
            $function(self)
        }
    )*};
}

real!(f32: exponential = math::exp, exponential_minus_1 = math::exp_m1, logarithm = math::ln,
    logarithm_of_1_plus = math::ln_1p, hyperbolic_tangent = math::tanh, error_function = math::erf,
    rest_of_error_function = math::erfc, logistic = math::sigmoid, soft_rectified = math::softplus);
real!(f64: exponential = f64::exp, exponential_minus_1 = f64::exp_m1, logarithm = f64::ln,
    logarithm_of_1_plus = f64::ln_1p, hyperbolic_tangent = f64::tanh, error_function = libm::erf,
    rest_of_error_function = libm::erfc, logistic = logistic, soft_rectified = soft_rectified);

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn soft_rectified(x: f64) -> f64 {
    rectified(x) + (-x.abs()).exp().ln_1p()
}

macro_rules! functions {
    ($($name:ident, $kind:ident: $($x:ident),+ => $body:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub(super) struct $name;
        functions!(@implement $name, $kind: $($x),+ => $body);
    )*};
    (@implement $name:ident, $kind:ident: $x:ident => $body:expr) => {
        impl<T: $kind> Map1<T, T> for $name {
            #[inline(always)]
            fn at(self, $x: T) -> T {
                $body
            }
        }
    };
    (@implement $name:ident, $kind:ident: $x:ident, $y:ident => $body:expr) => {
        impl<T: $kind> Map2<T, T> for $name {
            #[inline(always)]
            fn at(self, $x: T, $y: T) -> T {
                $body
            }
        }
    };
}

#[inline(always)]
fn rectified<T: Number>(x: T) -> T {
    // A NaN is passed on.
    if x < T::ZERO { T::ZERO } else { x }
}

#[inline(always)]
fn six<T: Number>() -> T {
    T::from_f64(6.0)
}

/// What Klambauer et al., 2017, multiply positive values by.
pub(super) const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
/// The same times what they multiply negative values by.
pub(super) const SELU_SCALE_ALPHA: f64 = 1.758_099_340_847_376_9;

#[inline(always)]
fn scale<T: Number>() -> T {
    T::from_f64(SELU_SCALE)
}

#[inline(always)]
fn scale_alpha<T: Number>() -> T {
    T::from_f64(SELU_SCALE_ALPHA)
}

functions! {
    Negated, Number: x => x.negated();
    Magnitude, Number: x => x.magnitude();
    Signum, Number: x => x.sign();
    Squared, Number: x => x.times(x);
    Rectified, Number: x => rectified(x);
    RectifiedTo6, Number: x => if x > six::<T>() { six() } else { rectified(x) };
    Floored, Real: x => x.floored();
    Root, Real: x => x.root();
    OneOverRoot, Real: x => T::ONE.over(x.root());
    OneOver, Real: x => T::ONE.over(x);
    Exponential, Real: x => x.exponential();
    Logarithm, Real: x => x.logarithm();
    LogarithmOf1Plus, Real: x => x.logarithm_of_1_plus();
    HyperbolicTangent, Real: x => x.hyperbolic_tangent();
    Sine, Real: x => x.sine();
    Cosine, Real: x => x.cosine();
    Raised, Real: x => x.raised();
    RoundedToEven, Real: x => x.rounded_to_even();
    ExponentialMinus1, Real: x => x.exponential_minus_1();
    ErrorFunction, Real: x => x.error_function();
    RestOfErrorFunction, Real: x => x.rest_of_error_function();
    Tangent, Real: x => x.tangent();
    ArcSine, Real: x => x.arc_sine();
    ArcCosine, Real: x => x.arc_cosine();
    ArcTangent, Real: x => x.arc_tangent();
    HyperbolicSine, Real: x => x.hyperbolic_sine();
    HyperbolicCosine, Real: x => x.hyperbolic_cosine();
    AreaSine, Real: x => x.area_sine();
    AreaCosine, Real: x => x.area_cosine();
    AreaTangent, Real: x => x.area_tangent();
    ExponentialLinear, Real: x => if x < T::ZERO { x.exponential_minus_1() } else { x };
    ScaledExponentialLinear, Real: x =>
        if x < T::ZERO { scale_alpha::<T>().times(x.exponential_minus_1()) } else { scale::<T>().times(x) };
    SoftSign, Real: x => x.over(T::ONE.plus(x.magnitude()));
    Logistic, Real: x => x.logistic();
    SoftRectified, Real: x => x.soft_rectified();

    RectifiedSlope, Number: grad, y => if y > T::ZERO { grad } else { T::ZERO };
    RectifiedTo6Slope, Number: grad, y => if y > T::ZERO && y < six() { grad } else { T::ZERO };
    HyperbolicTangentSlope, Real: y, grad => grad.times(T::ONE.minus(y.times(y)));
    LogisticSlope, Real: y, grad => grad.times(y).times(T::ONE.minus(y));
    RootSlope, Real: y, grad => grad.times(T::half()).over(y);
    OneOverRootSlope, Real: y, grad => grad.times(T::half()).times(y.times(y).times(y)).negated();
    OneOverSlope, Real: y, grad => grad.times(y.times(y)).negated();
    SoftRectifiedSlope, Real: grad, x => grad.times(x.logistic());
    ExponentialLinearSlope, Real: grad, y => if y < T::ZERO { y.plus(T::ONE).times(grad) } else { grad };
    ScaledExponentialLinearSlope, Real: grad, y =>
        if y < T::ZERO { grad.times(y.plus(scale_alpha())) } else { grad.times(scale()) };
    SoftSignSlope, Real: grad, x => {
        let size = T::ONE.plus(x.magnitude());
        grad.over(size.times(size))
    };
}
