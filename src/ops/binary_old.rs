//! Quotients that are not `RealDiv` or `FloorDiv`, and the op types that older graphs have for sums and quotients:
//! `Add`, `Div`, `Mod`, `TruncateDiv`, `TruncateMod`, `DivNoNan`.
//!
//! Absent: sums of strings, which TensorFlow's `Add` has.

use super::binary::{
    BinaryOp, IN_PLACE, Over, Plus, TruncatedQuotient, TruncatedRest, ZERO_DIVISOR, checked, floats, numbers, shapes,
};
use super::binary_grad as grad;
use super::elementwise::Map2;
use super::functions::Real;
use super::values::{array, case, float, ints};
use crate::device::cuda::CudaMap;
use crate::graph::{Case, Tensor, Traits};

/// TensorFlow's `Add`, the older name of `AddV2`.
pub static ADD: BinaryOp = BinaryOp {
    name: "Add",
    floats_only: false,
    same_shape: false,
    traits: IN_PLACE,
    kernel: |c| numbers(c, Plus),
    cuda: CudaMap::SUM,
    refuses: None,
    gradient: grad::add,
    cases: || shapes(|x, y| x + y),
};

/// TensorFlow's `Div`: `x / y` as C has it: of integers, rounded toward zero.
pub static DIV: BinaryOp = BinaryOp {
    name: "Div",
    floats_only: false,
    same_shape: false,
    traits: Traits { fallible: true, ..IN_PLACE },
    kernel: |c| checked(c, Over, |v| v == 0, ZERO_DIVISOR),
    cuda: "turret_over($0, $1)",
    refuses: Some(("$1 == 0", ZERO_DIVISOR)),
    gradient: grad::div,
    cases: || {
        let mut cases = shapes(|x, y| x / y);
        cases.extend(quotients());
        cases
    },
};

/// Integers, rounded toward zero, and the one quotient that does not fit.
fn quotients() -> Vec<Case> {
    vec![
        case(vec![ints(&[7, -7, 7, -7]), ints(&[2, 2, -2, -2])], vec![ints(&[3, -3, -3, 3])], false),
        case(vec![ints(&[i32::MIN]), ints(&[-1])], vec![ints(&[i32::MIN])], false),
        case(vec![array(&[2], &[i64::MIN, 9]), array(&[], &[-1i64])], vec![array(&[2], &[i64::MIN, -9])], false),
    ]
}

fn rests() -> Vec<Case> {
    vec![
        case(vec![ints(&[7, -7, 7, -7]), ints(&[2, 2, -2, -2])], vec![ints(&[1, -1, 1, -1])], false),
        case(vec![array(&[1], &[i64::MIN]), array(&[], &[-1i64])], vec![array(&[1], &[0i64])], false),
        case(
            vec![float(&[4], &[7.5, -7.5, 7.5, -7.5]), float(&[4], &[2.0, 2.0, -2.0, -2.0])],
            vec![float(&[4], &[1.5, -1.5, 1.5, -1.5])],
            false,
        ),
    ]
}

macro_rules! rest_op {
    ($(#[$doc:meta])* $op:ident, $name:literal) => {
        $(#[$doc])*
        pub static $op: BinaryOp = BinaryOp {
            name: $name,
            floats_only: false,
            same_shape: false,
            traits: Traits { fallible: true, ..IN_PLACE },
            kernel: |c| checked(c, TruncatedRest, |v| v == 0, ZERO_DIVISOR),
            cuda: "turret_truncate_mod($0, $1)",
            refuses: Some(("$1 == 0", ZERO_DIVISOR)),
            gradient: |_| None,
            cases: rests,
        };
    };
}

rest_op!(
    /// TensorFlow's `TruncateMod`: what `TruncateDiv` leaves, of the dividend's sign. It has no gradient.
    TRUNCATE_MOD, "TruncateMod"
);
rest_op!(
    /// TensorFlow's `Mod`, the older name of `TruncateMod`.
    MOD, "Mod"
);

/// TensorFlow's `TruncateDiv`: the quotient, rounded toward zero.
pub static TRUNCATE_DIV: BinaryOp = BinaryOp {
    name: "TruncateDiv",
    floats_only: false,
    same_shape: false,
    traits: Traits { fallible: true, no_gradient: true, ..IN_PLACE },
    kernel: |c| checked(c, TruncatedQuotient, |v| v == 0, ZERO_DIVISOR),
    cuda: "turret_truncate_div($0, $1)",
    refuses: Some(("$1 == 0", ZERO_DIVISOR)),
    gradient: |_| Some(vec![None, None]),
    cases: || {
        let mut cases = quotients();
        let (x, y) = (float(&[3], &[7.0, -7.0, 7.5]), float(&[3], &[2.0, 2.0, -2.5]));
        cases.push(case(vec![x, y], vec![float(&[3], &[3.0, -3.0, -3.0])], false));
        cases
    },
};

/// A quotient that is 0 where the divisor is.
#[derive(Clone, Copy)]
struct OverOrNothing;

impl<T: Real> Map2<T, T> for OverOrNothing {
    #[inline(always)]
    fn at(self, x: T, y: T) -> T {
        if y == T::ZERO { T::ZERO } else { x.over(y) }
    }
}

/// TensorFlow's `DivNoNan`: `x / y`, and 0 where `y` is 0.
pub static DIV_NO_NAN: BinaryOp = BinaryOp {
    name: "DivNoNan",
    floats_only: true,
    same_shape: false,
    traits: IN_PLACE,
    kernel: |c| floats(c, OverOrNothing),
    cuda: "$1 == 0 ? 0 : $0 / $1",
    refuses: None,
    gradient: grad::div_no_nan,
    cases: || {
        let mut cases = shapes(|x, y| x / y);
        let inputs = vec![float(&[3], &[1.0, 0.0, f32::NAN]), float(&[3], &[0.0, -0.0, 0.0])];
        cases.push(case(inputs, vec![float(&[3], &[0.0; 3])], false));
        cases
    },
};

impl<'g> Tensor<'g> {
    /// The quotient, and 0 where the divisor is 0. Named `div_no_nan`.
    #[track_caller]
    pub fn div_no_nan(self, other: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.apply_with(&DIV_NO_NAN, "div_no_nan", other)
    }
}
