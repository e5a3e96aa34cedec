//! Arithmetic on element types: integers wrap, so that no value can stop a program.
//!
//! Absent: division of integers by zero, which kernels look for before they divide.

use crate::base::Element;

/// An element type that can be computed with.
pub(super) trait Number: Element + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    /// The identity of a maximum: minus infinity, or the smallest integer.
    const LOWEST: Self;
    /// The identity of a minimum.
    const HIGHEST: Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// The quotient; of integers, rounded toward zero.
    fn over(self, other: Self) -> Self;
    /// The quotient rounded toward zero.
    fn truncated_over(self, other: Self) -> Self;
    /// What `truncated_over` leaves: of the dividend's sign.
    fn truncated_rest(self, other: Self) -> Self;
    fn negated(self) -> Self;
    /// Rounded toward minus infinity.
    fn floor_div(self, other: Self) -> Self;
    /// What `floor_div` leaves: of the divisor's sign.
    fn floor_mod(self, other: Self) -> Self;
    /// The power; integers to negative powers are the caller's to refuse.
    fn power(self, other: Self) -> Self;
    fn magnitude(self) -> Self;
    /// True of a float that is no number.
    fn is_nan(self) -> bool;
    fn from_f64(value: f64) -> Self;

    /// The larger; NaN if either is NaN.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other || self.is_nan() { self } else { other }
    }

    /// The smaller; NaN if either is NaN.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self < other || self.is_nan() { self } else { other }
    }

    /// -1, 0 or 1; NaN of NaN.
    #[inline(always)]
    fn sign(self) -> Self {
        if self > Self::ZERO {
            Self::ONE
        } else if self < Self::ZERO {
            Self::ONE.negated()
        } else {
            self
        }
    }
}

macro_rules! float {
    ($t:ident, $power:path) => {
        impl Number for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $t::NEG_INFINITY;
            const HIGHEST: Self = $t::INFINITY;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn over(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn truncated_over(self, other: Self) -> Self {
                (self / other).trunc()
            }
            #[inline(always)]
            fn truncated_rest(self, other: Self) -> Self {
                self % other
            }
            #[inline(always)]
            fn negated(self) -> Self {
                -self
            }
            #[inline(always)]
            fn floor_div(self, other: Self) -> Self {
                (self / other).floor()
            }
            #[inline(always)]
            fn floor_mod(self, other: Self) -> Self {
                let rest = self % other;
                if rest != 0.0 && (rest < 0.0) != (other < 0.0) { rest + other } else { rest }
            }
            #[inline(always)]
            fn power(self, other: Self) -> Self {
                $power(self, other)
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $t::is_nan(self)
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $t
            }
        }
    };
}

macro_rules! integer {
    ($t:ident) => {
        impl Number for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = $t::MIN;
            const HIGHEST: Self = $t::MAX;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn over(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn truncated_over(self, other: Self) -> Self {
                self.over(other)
            }
            #[inline(always)]
            fn truncated_rest(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_rem(other) }
            }
            #[inline(always)]
            fn negated(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn floor_div(self, other: Self) -> Self {
                if other == 0 {
                    return 0;
                }
                let quotient = self.wrapping_div(other);
                let inexact = self.wrapping_rem(other) != 0;
                if inexact && (self < 0) != (other < 0) { quotient - 1 } else { quotient }
            }
            #[inline(always)]
            fn floor_mod(self, other: Self) -> Self {
                if other == 0 {
                    return 0;
                }
                let rest = self.wrapping_rem(other);
                if rest != 0 && (rest < 0) != (other < 0) { rest + other } else { rest }
            }
            fn power(self, mut exponent: Self) -> Self {
                let (mut base, mut power) = (self, 1 as $t);
                while exponent > 0 {
                    if exponent & 1 == 1 {
                        power = power.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    exponent >>= 1;
                }
                power
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.wrapping_abs()
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $t
            }
        }
    };
}

float!(f32, super::math::pow);
float!(f64, f64::powf);
integer!(i32);
integer!(i64);
