//! One product of matrices, column by column as BLAS has them, with what cuBLASLt does to it afterwards.

use crate::bridge::{READ, WRITE};
use crate::codes::Failure;
use crate::queue::Touch;
use crate::races::Span;
use crate::state::State;

/// Element types that are multiplied here.
pub trait Real: Copy + Send + Sync + PartialEq + 'static {
    /// 0.
    const ZERO: Self;
    /// The sum.
    fn plus(self, other: Self) -> Self;
    /// The value as a double.
    fn wide(self) -> f64;
    /// A double as this type.
    fn narrow(value: f64) -> Self;
}

macro_rules! real {
    ($type:ty) => {
        impl Real for $type {
            const ZERO: $type = 0.0;
            fn plus(self, other: $type) -> $type {
                self + other
            }
            fn wide(self) -> f64 {
                self as f64
            }
            fn narrow(value: f64) -> $type {
                value as $type
            }
        }
    };
}
real!(f32);
real!(f64);

/// A matrix in memory: columns of `rows` elements, `ld` apart; `count` of them, `stride` apart.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Where it starts.
    pub at: u64,
    /// Rows as stored.
    pub rows: usize,
    /// Columns as stored.
    pub columns: usize,
    /// Elements from column to column.
    pub ld: usize,
    /// Elements from one matrix to the next.
    pub stride: i64,
}

impl Matrix {
    fn of(&self, i: usize, size: usize) -> u64 {
        self.at.wrapping_add_signed(self.stride * i as i64 * size as i64)
    }

    /// Checks and notes one of the matrices; where its bytes are.
    fn touch<T>(&self, state: &State, touch: &mut Touch, i: usize, bits: u8) -> Result<*mut T, Failure> {
        let size = size_of::<T>();
        let at = self.of(i, size);
        if self.rows == 0 || self.columns == 0 {
            return Ok(std::ptr::null_mut());
        }
        let whole = (self.ld * (self.columns - 1) + self.rows) * size;
        let host = touch.reach(state, at, whole, bits & WRITE != 0)? as usize;
        touch.spans.pop();
        if self.ld == self.rows {
            touch.spans.push(Span { lo: host, hi: host + whole, bits });
        } else {
            let column = |c: usize| host + c * self.ld * size;
            touch.spans.extend((0..self.columns).map(|c| Span {
                lo: column(c),
                hi: column(c) + self.rows * size,
                bits,
            }));
        }
        Ok(host as *mut T)
    }
}

/// A scalar from the host, or read from the GPU when the product runs.
#[derive(Clone, Copy, Debug)]
pub enum Scalar<T> {
    /// The value.
    Host(T),
    /// Its device address.
    Device(u64),
}

impl<T: Real> Scalar<T> {
    fn value(self, state: &State, touch: &mut Touch) -> Result<T, Failure> {
        match self {
            Scalar::Host(value) => Ok(value),
            // SAFETY: the range was checked.
            Scalar::Device(at) => {
                Ok(unsafe { touch.reach(state, at, size_of::<T>(), false)?.cast::<T>().read_unaligned() })
            }
        }
    }
}

/// What comes after the product, as `cublasLtEpilogue_t` has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue {
    /// The bias, one for each row of the result.
    pub bias: Option<u64>,
    /// Negative values become 0.
    pub relu: bool,
    /// GELU, by the hyperbolic tangent.
    pub gelu: bool,
}

/// D = alpha · op(A) · op(B) + beta · C, for each matrix of the batch.
#[derive(Clone, Copy, Debug)]
pub struct Product<T> {
    /// Rows of the result, its columns, and the inner dimension.
    pub m: usize,
    /// Columns.
    pub n: usize,
    /// Inner.
    pub k: usize,
    /// A, and whether it is transposed.
    pub a: (Matrix, bool),
    /// B, and whether it is transposed.
    pub b: (Matrix, bool),
    /// C.
    pub c: Matrix,
    /// D; the same place as C for cuBLAS.
    pub d: Matrix,
    /// Matrices in the batch.
    pub batch: usize,
    /// The factor of the product.
    pub alpha: Scalar<T>,
    /// The factor of C; C is not read where it is 0.
    pub beta: Scalar<T>,
    /// What follows.
    pub epilogue: Epilogue,
}

impl<T: Real> Product<T> {
    /// Does it.
    pub fn run(&self, state: &mut State, touch: &mut Touch) -> Result<(), Failure> {
        let alpha = self.alpha.value(state, touch)?;
        let beta = self.beta.value(state, touch)?;
        if self.m == 0 || self.n == 0 {
            return Ok(());
        }
        for i in 0..self.batch {
            let a = self.a.0.touch::<T>(state, touch, i, READ)?;
            let b = self.b.0.touch::<T>(state, touch, i, READ)?;
            let mut bits = WRITE;
            let d = self.d.touch::<T>(state, touch, i, WRITE)?;
            if beta != T::ZERO {
                let c = self.c.touch::<T>(state, touch, i, READ)?;
                bits |= READ;
                if !std::ptr::eq(c, d) {
                    for column in 0..self.n {
                        // SAFETY: both ranges were checked.
                        unsafe { std::ptr::copy(c.add(column * self.c.ld), d.add(column * self.d.ld), self.m) };
                    }
                }
            }
            let steps =
                |side: (Matrix, bool)| if side.1 { (1isize, side.0.ld as isize) } else { (side.0.ld as isize, 1isize) };
            let ((a_column, a_row), (b_column, b_row)) = (steps(self.a), steps(self.b));
            // SAFETY: the ranges of all three were checked, and the steps stay in them.
            unsafe {
                gemm::gemm(
                    self.m,
                    self.n,
                    self.k,
                    d,
                    self.d.ld as isize,
                    1,
                    bits & READ != 0,
                    a,
                    a_column,
                    a_row,
                    b,
                    b_column,
                    b_row,
                    beta,
                    alpha,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
            self.finish(state, touch, d)?;
        }
        Ok(())
    }

    fn finish(&self, state: &State, touch: &mut Touch, d: *mut T) -> Result<(), Failure> {
        let bias = match self.epilogue.bias {
            None => std::ptr::null(),
            Some(at) => touch.reach(state, at, self.m * size_of::<T>(), false)?.cast::<T>().cast_const(),
        };
        if bias.is_null() && !self.epilogue.relu && !self.epilogue.gelu {
            return Ok(());
        }
        for column in 0..self.n {
            for row in 0..self.m {
                // SAFETY: the ranges of the result and of the bias were checked.
                unsafe {
                    let at = d.add(column * self.d.ld + row);
                    let mut x = *at;
                    if !bias.is_null() {
                        x = x.plus(*bias.add(row));
                    }
                    if self.epilogue.relu && x.wide() < 0.0 {
                        x = T::ZERO;
                    }
                    if self.epilogue.gelu {
                        let v = x.wide();
                        x = T::narrow(0.5 * v * (1.0 + (0.797_884_560_802_865_4 * (v + 0.044_715 * v * v * v)).tanh()));
                    }
                    *at = x;
                }
            }
        }
        Ok(())
    }
}
