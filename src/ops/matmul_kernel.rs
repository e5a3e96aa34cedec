//! Products of matrices on the host: crate `gemm` on fixed blocks; loops of our own where one side is a vector.
//!
//! Invariant: what is cut into blocks, and where, depends on the sizes alone, so that results are bit-equal for any
//! number of threads.

use super::elementwise::{Dispatch, Shared, Wide};
use super::number::Number;
use super::small_product;
use crate::device::{CpuKernel, Cut, Launch, RowFunction, RowKernel};
use pulp::NullaryFnOnce;
use std::marker::PhantomData;
use std::ops::Range;

/// Multiplications and additions that are worth a block of their own.
const BLOCK_FLOPS: usize = 8_000_000;
/// The largest number of rows of a block: its rows of both sides stay in the second cache.
const BLOCK_ROWS: usize = 500;
/// Blocks that a product of enough work is cut into at least.
const BLOCKS: usize = 4;

/// The sizes of a product `[m, k]` by `[k, n]`, and how its sides are laid out.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    m: usize,
    k: usize,
    n: usize,
    /// Steps of the left side along rows and columns.
    a: (usize, usize),
    /// Steps of the right side.
    b: (usize, usize),
}

impl Sizes {
    pub(super) fn new(m: usize, k: usize, n: usize, transposed: (bool, bool)) -> Sizes {
        let a = if transposed.0 { (1, m) } else { (k, 1) };
        let b = if transposed.1 { (1, k) } else { (n, 1) };
        Sizes { m, k, n, a, b }
    }

    /// Steps of the left side along rows and columns, then of the right side.
    pub fn steps(&self) -> [usize; 4] {
        [self.a.0, self.a.1, self.b.0, self.b.1]
    }

    /// How many blocks there are, and how many of them are worth a thread's while.
    fn blocks(&self) -> (usize, usize) {
        let (rows, columns) = self.block();
        let blocks = self.m.div_ceil(rows.max(1)) * self.n.div_ceil(columns.max(1));
        (blocks, (BLOCK_FLOPS / 64 / (self.flops() / blocks.max(1)).max(1)).max(1))
    }

    /// Multiplications and additions.
    pub fn flops(&self) -> usize {
        self.m.saturating_mul(self.n).saturating_mul(self.k).saturating_mul(2)
    }

    /// Rows and columns of a block.
    fn block(&self) -> (usize, usize) {
        let wanted = self.m.div_ceil(BLOCK_ROWS).max((self.flops() / BLOCK_FLOPS).min(BLOCKS)).max(1);
        let even = |size: usize| size.div_ceil(wanted).next_multiple_of(16).max(32);
        // Few rows are left together, and the columns cut. So are a left side's rows that lie across: a block of columns
        // keeps its right side in the second cache, where one of rows would pack the whole right side again.
        let lies_across = self.a.1 != 1 && self.n >= 64 * wanted;
        let by_rows = self.m >= 32 * wanted || self.m >= self.n;
        if by_rows && !lies_across { (even(self.m), self.n) } else { (self.m, even(self.n)) }
    }
}

/// The kernel for `float` types.
pub(super) fn floats<T: Number>(sizes: Sizes) -> CpuKernel {
    let Sizes { m, k, n, a, b } = sizes;
    if k == 0 {
        return Box::new(|l| {
            l.output::<T>(0).fill(T::ZERO);
            Ok(())
        });
    }
    if n == 1 {
        // `b` is a vector whichever way it is laid out.
        return matrix_by_vector::<T, Wide>(m, k, a, (0, 1));
    }
    if m == 1 {
        // The same, seen from the other side.
        return matrix_by_vector::<T, Wide>(n, k, (b.1, b.0), (1, 0));
    }
    if k == 1 {
        return outer::<T>(m, n);
    }
    if small_product::fits(m, k, n) {
        return Box::new(move |l| {
            let (x, y, o) = (l.input::<T>(0).as_ptr(), l.input::<T>(1).as_ptr(), l.output::<T>(0).as_mut_ptr());
            // SAFETY: the buffers hold matrices of these sizes.
            unsafe { small_product::product((k, n), (x, a), (y, b), o, m) };
            Ok(())
        });
    }
    let (blocks, _) = sizes.blocks();
    Box::new(move |l| {
        let (x, y) = (l.input::<T>(0).as_ptr(), l.input::<T>(1).as_ptr());
        let (x, y) = (Shared::new(x.cast_mut()), Shared::new(y.cast_mut()));
        let o = Shared::new(l.output::<T>(0).as_mut_ptr());
        // SAFETY: the buffers hold matrices of these sizes; blocks are disjoint parts of the output.
        l.team().run(blocks, |i| unsafe { block(&sizes, i, x.get(), y.get(), o.get()) });
        Ok(())
    })
}

/// The kernel of `float` types by rows, where cutting the rows alone is as good as any way.
pub(super) fn rows<T: Number>(sizes: Sizes) -> Option<RowKernel> {
    let Sizes { m, k, n, .. } = sizes;
    let (block_rows, columns) = sizes.block();
    if m < 2 || n < 2 || k == 0 || columns < n {
        return None;
    }
    let function = Rows::<T> { sizes, small: small_product::fits(m, k, n), of: PhantomData };
    Some(RowKernel { cut: Cut::even(m, block_rows), anywhere: true, prepared: 0, function: Box::new(function) })
}

/// Computes some rows of a product.
struct Rows<T> {
    sizes: Sizes,
    small: bool,
    of: PhantomData<T>,
}

impl<T: Number> RowFunction for Rows<T> {
    fn run(&self, l: &Launch<'_>, _prepared: &[f32], rows: Range<usize>) {
        let Sizes { k, n, a, b, .. } = self.sizes;
        let (x, y, o) = (l.input_ptr::<T>(0).0, l.input_ptr::<T>(1).0, l.output_ptr::<T>(0).0);
        // SAFETY: the buffers hold matrices of these sizes, and these are rows of the output that are nobody else's.
        unsafe {
            let (x, o) = (x.add(rows.start * a.0), o.add(rows.start * n));
            match k {
                1 => Wide::run(Outer { x, step: a.0, y, o, rows: rows.len(), n }),
                _ if self.small => small_product::product((k, n), (x, a), (y, b), o, rows.len()),
                _ => product((rows.len(), k, n), (x, a), (y, b), (o, n)),
            }
        }
    }
}

/// `o[i, j] = x[i] * y[j]` for some rows.
struct Outer<T> {
    x: *const T,
    step: usize,
    y: *const T,
    o: *mut T,
    rows: usize,
    n: usize,
}

impl<T: Number> NullaryFnOnce for Outer<T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for i in 0..self.rows {
            // SAFETY: the maker's pointers are of so many rows and columns.
            unsafe {
                let (x, o) = (self.x.add(i * self.step).read(), self.o.add(i * self.n));
                for j in 0..self.n {
                    o.add(j).write(x.times(self.y.add(j).read()));
                }
            }
        }
    }
}

/// `o = x * y` of matrices `[m, k]` and `[k, n]` with these steps along rows and columns, `k` not 0; `o` has a step along
/// rows.
///
/// # Safety
/// The pointers are of matrices of these sizes, and nobody else writes the result.
unsafe fn product<T: Number>(
    (m, k, n): (usize, usize, usize),
    (x, a): (*const T, (usize, usize)),
    (y, b): (*const T, (usize, usize)),
    (o, step): (*mut T, usize),
) {
    let [ac, ar, bc, br, step] = [a.1, a.0, b.1, b.0, step].map(|s| s as isize);
    let alone = gemm::Parallelism::None;
    // SAFETY: the steps address elements within both sides and the result, by the contract.
    unsafe { gemm::gemm(m, n, k, o, 1, step, false, x, ac, ar, y, bc, br, T::ZERO, T::ONE, false, false, false, alone) }
}

/// Computes block `i` of a product whose sums are of at least one summand.
///
/// # Safety
/// The pointers are of matrices of these sizes, and nobody else writes the block.
unsafe fn block<T: Number>(sizes: &Sizes, i: usize, x: *const T, y: *const T, o: *mut T) {
    let Sizes { m, k, n, a, b } = *sizes;
    let (rows, columns) = sizes.block();
    let across = n.div_ceil(columns.max(1));
    let (row, column) = (i / across * rows, i % across * columns);
    let (height, width) = (rows.min(m - row), columns.min(n - column));
    // SAFETY: by the contract; the block lies within the result.
    unsafe {
        let (x, y, o) = (x.add(row * a.0), y.add(column * b.1), o.add(row * n + column));
        product((height, k, width), (x, a), (y, b), (o, n));
    }
}

/// The kernel for a batch of products of `float` types: which matrices of either side each product takes.
pub(super) fn batched_floats<T: Number>(sizes: Sizes, takes: Vec<(usize, usize)>) -> CpuKernel {
    let (blocks, grain) = sizes.blocks();
    Box::new(move |l| {
        let out = l.output::<T>(0);
        if sizes.k == 0 {
            out.fill(T::ZERO);
            return Ok(());
        }
        let (x, y) = (l.input::<T>(0).as_ptr(), l.input::<T>(1).as_ptr());
        let (x, y) = (Shared::new(x.cast_mut()), Shared::new(y.cast_mut()));
        let o = Shared::new(out.as_mut_ptr());
        l.team().chunks(takes.len() * blocks, grain, |parts| {
            for part in parts {
                let product = part / blocks;
                let (from_x, from_y) = takes[product];
                // SAFETY: as many matrices are there as `takes` names; blocks are disjoint parts of the output.
                unsafe {
                    let (x, y) = (x.get().add(from_x * sizes.m * sizes.k), y.get().add(from_y * sizes.k * sizes.n));
                    block(&sizes, part % blocks, x, y, o.get().add(product * sizes.m * sizes.n));
                }
            }
        });
        Ok(())
    })
}

/// The kernel for a batch of products of integers.
pub(super) fn batched_integers<T: Number>(sizes: Sizes, takes: Vec<(usize, usize)>) -> CpuKernel {
    Box::new(move |l| {
        let (x, y, o) = (l.input::<T>(0), l.input::<T>(1), l.output::<T>(0));
        let Sizes { m, k, n, .. } = sizes;
        for (product, &(from_x, from_y)) in takes.iter().enumerate() {
            let (x, y) = (&x[from_x * m * k..][..m * k], &y[from_y * k * n..][..k * n]);
            whole(&sizes, x, y, &mut o[product * m * n..][..m * n]);
        }
        Ok(())
    })
}

/// The kernel for integers, which wrap.
pub(super) fn integers<T: Number>(sizes: Sizes) -> CpuKernel {
    Box::new(move |l| {
        whole(&sizes, l.input::<T>(0), l.input::<T>(1), l.output::<T>(0));
        Ok(())
    })
}

/// A product by its definition.
fn whole<T: Number>(sizes: &Sizes, x: &[T], y: &[T], o: &mut [T]) {
    let Sizes { m, k, n, a, b } = *sizes;
    o.fill(T::ZERO);
    for i in 0..m {
        for p in 0..k {
            let left = x[i * a.0 + p * a.1];
            for j in 0..n {
                o[i * n + j] = o[i * n + j].plus(left.times(y[p * b.0 + j * b.1]));
            }
        }
    }
}

/// `o[i, j] = x[i] * y[j]`.
fn outer<T: Number>(m: usize, n: usize) -> CpuKernel {
    super::elementwise::binary::<T, T, super::binary::Times, Wide>(
        &[m, 1].as_slice().into(),
        &[1, n].as_slice().into(),
        &[m, n].as_slice().into(),
        super::binary::Times,
    )
}

/// Elements of the matrix that are one part.
const VECTOR_GRAIN: usize = 1 << 16;
/// Results that are summed side by side where the matrix's columns lie together.
const STRIP: usize = 128;

/// `o[i] = Σ matrix[i, p] * vector[p]` for a matrix `[m, k]` with these steps; `sides` tells which inputs the two are.
fn matrix_by_vector<T: Number, D: Dispatch>(
    m: usize,
    k: usize,
    steps: (usize, usize),
    sides: (usize, usize),
) -> CpuKernel {
    let by_rows = steps.1 == 1;
    // Either whole rows, or strips of results whose summands lie together.
    let grain = (VECTOR_GRAIN / k).max(1);
    let grain = if by_rows { grain } else { grain.next_multiple_of(STRIP / 4).min(STRIP) };
    Box::new(move |l| {
        let (matrix, vector) = (l.input::<T>(sides.0), l.input::<T>(sides.1));
        let o = Shared::new(l.output::<T>(0).as_mut_ptr());
        l.team().chunks(m, grain, |rows| {
            // SAFETY: chunks are disjoint parts of the output.
            let o = unsafe { std::slice::from_raw_parts_mut(o.get().add(rows.start), rows.len()) };
            if by_rows { D::run(Dots { matrix, vector, o, rows }) } else { D::run(Sums { matrix, vector, o, rows, m }) }
        });
        Ok(())
    })
}

/// Each result is the product of a row and the vector.
struct Dots<'a, T> {
    matrix: &'a [T],
    vector: &'a [T],
    o: &'a mut [T],
    rows: Range<usize>,
}

impl<T: Number> NullaryFnOnce for Dots<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        const LANES: usize = 32;
        let k = self.vector.len();
        for (o, row) in self.o.iter_mut().zip(self.rows) {
            let row = &self.matrix[row * k..(row + 1) * k];
            let mut lanes = [T::ZERO; LANES];
            let (xs, ys) = (row.chunks_exact(LANES), self.vector.chunks_exact(LANES));
            let rest = xs.remainder().iter().zip(ys.remainder());
            let rest = rest.fold(T::ZERO, |sum, (x, y)| sum.plus(x.times(*y)));
            for (xs, ys) in xs.zip(ys) {
                for i in 0..LANES {
                    lanes[i] = lanes[i].plus(xs[i].times(ys[i]));
                }
            }
            let mut width = LANES / 2;
            while width > 0 {
                for i in 0..width {
                    lanes[i] = lanes[i].plus(lanes[i + width]);
                }
                width /= 2;
            }
            *o = lanes[0].plus(rest);
        }
    }
}

/// The results are the sum of the matrix's columns, each times an element of the vector.
struct Sums<'a, T> {
    matrix: &'a [T],
    vector: &'a [T],
    o: &'a mut [T],
    rows: Range<usize>,
    m: usize,
}

impl<T: Number> NullaryFnOnce for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Sums { matrix, vector, o, rows, m } = self;
        let width = o.len();
        let mut sums = [T::ZERO; STRIP];
        let sums = &mut sums[..width];
        let at = |p: usize| &matrix[p * m + rows.start..][..width];
        let mut p = 0;
        while p + 4 <= vector.len() {
            let (v, x) = (&vector[p..p + 4], [at(p), at(p + 1), at(p + 2), at(p + 3)]);
            for i in 0..width {
                let low = x[0][i].times(v[0]).plus(x[1][i].times(v[1]));
                let high = x[2][i].times(v[2]).plus(x[3][i].times(v[3]));
                sums[i] = sums[i].plus(low.plus(high));
            }
            p += 4;
        }
        for (p, v) in vector.iter().enumerate().skip(p) {
            for (sum, x) in sums.iter_mut().zip(at(p)) {
                *sum = sum.plus(x.times(*v));
            }
        }
        o.copy_from_slice(sums);
    }
}
