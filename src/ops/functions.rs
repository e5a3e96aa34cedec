//! The functions of one or two elements behind `unary.rs` and `unary_grad.rs`.
//!
//! Absent: loops and types of ops.

use super::elementwise::{Map1, Map2};
use super::number::Number;

/// A `float` type with the functions of analysis.
pub(super) trait Real: Number {
    fn floored(self) -> Self;
    fn root(self) -> Self;
    fn exponential(self) -> Self;
    fn logarithm(self) -> Self;
    fn logarithm_of_1_plus(self) -> Self;
    fn hyperbolic_tangent(self) -> Self;
    fn sine(self) -> Self;
    fn cosine(self) -> Self;
    fn half() -> Self {
        Self::from_f64(0.5)
    }
}

macro_rules! real {
    ($t:ident) => {
        impl Real for $t {
            #[inline(always)]
            fn floored(self) -> Self {
                self.floor()
            }
            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn exponential(self) -> Self {
                self.exp()
            }
            #[inline(always)]
            fn logarithm(self) -> Self {
                self.ln()
            }
            #[inline(always)]
            fn logarithm_of_1_plus(self) -> Self {
                self.ln_1p()
            }
            #[inline(always)]
            fn hyperbolic_tangent(self) -> Self {
                self.tanh()
            }
            #[inline(always)]
            fn sine(self) -> Self {
                self.sin()
            }
            #[inline(always)]
            fn cosine(self) -> Self {
                self.cos()
            }
        }
    };
}
real!(f32);
real!(f64);

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
fn logistic<T: Real>(x: T) -> T {
    T::ONE.over(T::ONE.plus(x.negated().exponential()))
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
    Logistic, Real: x => logistic(x);
    SoftRectified, Real: x => rectified(x).plus(x.magnitude().negated().exponential().logarithm_of_1_plus());

    RectifiedSlope, Number: grad, y => if y > T::ZERO { grad } else { T::ZERO };
    RectifiedTo6Slope, Number: grad, y => if y > T::ZERO && y < six() { grad } else { T::ZERO };
    HyperbolicTangentSlope, Real: y, grad => grad.times(T::ONE.minus(y.times(y)));
    LogisticSlope, Real: y, grad => grad.times(y).times(T::ONE.minus(y));
    RootSlope, Real: y, grad => grad.times(T::half()).over(y);
    OneOverRootSlope, Real: y, grad => grad.times(T::half()).times(y.times(y).times(y)).negated();
    OneOverSlope, Real: y, grad => grad.times(y.times(y)).negated();
    SoftRectifiedSlope, Real: grad, x => grad.times(logistic(x));
}
