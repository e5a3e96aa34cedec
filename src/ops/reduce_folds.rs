//! What reductions fold: sums, means, products, extremes, logic.
//!
//! Absent: the loops (`reduce_kernel.rs`) and the ops (`reduce.rs`).

use super::number::Number;
use super::reduce_kernel::Fold;
use crate::base::Bool8;

/// A number type with the type that its totals are kept in.
pub(super) trait Summable: Number {
    type Total: Number;
    fn widen(self) -> Self::Total;
    fn narrow(total: Self::Total) -> Self;
}

macro_rules! summable {
    ($($t:ident => $total:ident),*) => {$(
        impl Summable for $t {
            type Total = $total;
            #[inline(always)]
            fn widen(self) -> $total {
                self as $total
            }
            #[inline(always)]
            fn narrow(total: $total) -> $t {
                total as $t
            }
        }
    )*};
}
summable!(f32 => f64, f64 => f64, i32 => i32, i64 => i64);

macro_rules! fold {
    ($name:ident, $start:ident, $method:ident, $lane:ident, $x:ident => $step:expr,
     $total:ident, $count:ident => $finish:expr) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name;
        impl<T: Summable> Fold<T> for $name {
            type Total = T::Total;
            #[inline(always)]
            fn start(self) -> T {
                T::$start
            }
            #[inline(always)]
            fn step(self, $lane: T, $x: T) -> T {
                $step
            }
            #[inline(always)]
            fn combine(self, a: T, b: T) -> T {
                a.$method(b)
            }
            #[inline(always)]
            fn total(self, lane: T) -> T::Total {
                lane.widen()
            }
            #[inline(always)]
            fn merge(self, a: T::Total, b: T::Total) -> T::Total {
                a.$method(b)
            }
            #[inline(always)]
            fn finish(self, $total: T::Total, $count: usize) -> T {
                T::narrow($finish)
            }
        }
    };
}

fold!(Sum, ZERO, plus, lane, x => lane.plus(x), total, _count => total);
fold!(Mean, ZERO, plus, lane, x => lane.plus(x), total, count => total.over(T::Total::from_f64(count as f64)));
fold!(Product, ONE, times, lane, x => lane.times(x), total, _count => total);
fold!(Largest, LOWEST, larger, lane, x => lane.larger(x), total, _count => total);
fold!(Smallest, HIGHEST, smaller, lane, x => lane.smaller(x), total, _count => total);
fold!(HalfSumOfSquares, ZERO, plus, lane, x => lane.plus(x.times(x)), total, _count => total.over(
    T::Total::from_f64(2.0)
));

/// A sum over this many: the mean, where the elements are sums themselves.
#[derive(Clone, Copy)]
pub(super) struct SumOver(pub usize);

impl<T: Summable> Fold<T> for SumOver {
    type Total = T::Total;
    #[inline(always)]
    fn start(self) -> T {
        T::ZERO
    }
    #[inline(always)]
    fn step(self, lane: T, x: T) -> T {
        lane.plus(x)
    }
    #[inline(always)]
    fn combine(self, a: T, b: T) -> T {
        a.plus(b)
    }
    #[inline(always)]
    fn total(self, lane: T) -> T::Total {
        lane.widen()
    }
    #[inline(always)]
    fn merge(self, a: T::Total, b: T::Total) -> T::Total {
        a.plus(b)
    }
    #[inline(always)]
    fn finish(self, total: T::Total, _count: usize) -> T {
        T::narrow(total.over(T::Total::from_f64(self.0 as f64)))
    }
}

/// `All` (true) or `Any` (false) of bools.
#[derive(Clone, Copy)]
pub(super) struct Logic(pub bool);

impl Fold<Bool8> for Logic {
    type Total = Bool8;
    #[inline(always)]
    fn start(self) -> Bool8 {
        Bool8::from(self.0)
    }
    #[inline(always)]
    fn step(self, lane: Bool8, x: Bool8) -> Bool8 {
        self.combine(lane, Bool8::from(x.get()))
    }
    #[inline(always)]
    fn combine(self, a: Bool8, b: Bool8) -> Bool8 {
        Bool8(if self.0 { a.0 & b.0 } else { a.0 | b.0 })
    }
    #[inline(always)]
    fn total(self, lane: Bool8) -> Bool8 {
        lane
    }
    #[inline(always)]
    fn merge(self, a: Bool8, b: Bool8) -> Bool8 {
        self.combine(a, b)
    }
    #[inline(always)]
    fn finish(self, total: Bool8, _count: usize) -> Bool8 {
        total
    }
}
