//! Products of `float32` out of registers: elements of rows of one side, spread over lanes, times rows of the other, with
//! sums that stay in registers over two nested loops. Neither side is packed, and any steps between elements will do.
//!
//! Invariant: a result's summands are added one by one in the order of the loops, each multiplied and added with one
//! rounding, whatever is computed beside it. Absent: blocks for caches, which are the callers'.

use pulp::{Simd, WithSimd};

/// Rows of results that are computed side by side at most: with four vectors of columns, 24 of 32 registers.
const ROWS: usize = 6;

/// Some rows by some columns of results: `to[r, c] = Σ_o Σ_i a[r, o, i] * b[o, i, c]`, or added to what is there. All
/// steps are in elements; columns lie together.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    pub rows: usize,
    pub columns: usize,
    /// How often the loops run: the outer, the inner. Without a summand results are zero.
    pub loops: [usize; 2],
    pub a: *const f32,
    pub a_row: usize,
    pub a_loops: [usize; 2],
    pub b: *const f32,
    pub b_loops: [usize; 2],
    pub to: *mut f32,
    pub to_row: usize,
    /// Whether results are added to what is there.
    pub add: bool,
}

impl Strip {
    /// Computes all.
    ///
    /// # Safety
    /// Every element that the steps name is there, and no result is part of the other two.
    pub unsafe fn run(self) {
        pulp::Arch::new().dispatch(Run(self))
    }
}

struct Run(Strip);

impl WithSimd for Run {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (strip, lanes) = (self.0, S::F32_LANES);
        let mut column = 0;
        // SAFETY: by the contract of `Strip::run`; columns are within the strip's.
        unsafe {
            if S::REGISTER_COUNT >= 32 {
                while column + 4 * lanes <= strip.columns {
                    columns::<S, 4, false>(simd, &strip, column);
                    column += 4 * lanes;
                }
            }
            while column + 2 * lanes <= strip.columns {
                columns::<S, 2, false>(simd, &strip, column);
                column += 2 * lanes;
            }
            while column + lanes <= strip.columns {
                columns::<S, 1, false>(simd, &strip, column);
                column += lanes;
            }
            if column < strip.columns {
                columns::<S, 1, true>(simd, &strip, column);
            }
        }
    }
}

/// All rows of some columns, which are `V` whole vectors or part of one.
///
/// # Safety
/// As [`Strip::run`].
#[inline(always)]
unsafe fn columns<S: Simd, const V: usize, const PART: bool>(simd: S, strip: &Strip, column: usize) {
    // As even as can be: five and five rather than six and four.
    let blocks = strip.rows.div_ceil(ROWS);
    for block in 0..blocks {
        let (first, end) = (strip.rows * block / blocks, strip.rows * (block + 1) / blocks);
        // SAFETY: by the contract.
        unsafe {
            match end - first {
                6 => tile::<S, 6, V, PART>(simd, strip, first, column),
                5 => tile::<S, 5, V, PART>(simd, strip, first, column),
                4 => tile::<S, 4, V, PART>(simd, strip, first, column),
                3 => tile::<S, 3, V, PART>(simd, strip, first, column),
                2 => tile::<S, 2, V, PART>(simd, strip, first, column),
                _ => tile::<S, 1, V, PART>(simd, strip, first, column),
            }
        }
    }
}

/// `R` rows of `V` vectors of columns.
///
/// # Safety
/// As [`Strip::run`].
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const V: usize, const PART: bool>(
    simd: S,
    strip: &Strip,
    row: usize,
    column: usize,
) {
    let lanes = S::F32_LANES;
    let mask = simd.mask_between_m32s(0, (strip.columns - column).min(lanes) as u32);
    // SAFETY: by the contract; lanes beyond the columns are masked.
    unsafe {
        let load = |from: *const f32| match PART {
            true => simd.mask_load_ptr_f32s(mask, from),
            false => from.cast::<S::f32s>().read_unaligned(),
        };
        let to = strip.to.add(row * strip.to_row + column);
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        if strip.add {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = load(to.add(r * strip.to_row + v * lanes));
                }
            }
        }
        let (a, b) = (strip.a.wrapping_add(row * strip.a_row), strip.b.wrapping_add(column));
        for outer in 0..strip.loops[0] {
            let mut a = a.wrapping_add(outer * strip.a_loops[0]);
            let mut b = b.wrapping_add(outer * strip.b_loops[0]);
            for _ in 0..strip.loops[1] {
                let mut right = [simd.splat_f32s(0.0); V];
                for (v, right) in right.iter_mut().enumerate() {
                    *right = load(b.add(v * lanes));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let left = simd.splat_f32s(a.add(r * strip.a_row).read());
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = simd.mul_add_f32s(left, right, *sum);
                    }
                }
                // Beyond the end after the last round.
                a = a.wrapping_add(strip.a_loops[1]);
                b = b.wrapping_add(strip.b_loops[1]);
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                let to = to.add(r * strip.to_row + v * lanes);
                match PART {
                    true => simd.mask_store_ptr_f32s(mask, to, sum),
                    false => to.cast::<S::f32s>().write_unaligned(sum),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_of_all_sizes_are_products() {
        for (rows, columns, outer, inner) in
            [(1, 1, 1, 1), (7, 64, 2, 3), (13, 117, 3, 2), (5, 15, 0, 4), (6, 33, 1, 9)]
        {
            let value = |i: usize| (i * 37 % 23) as f32 - 11.0;
            let a: Vec<f32> = (0..rows * outer * inner).map(value).collect();
            let b: Vec<f32> = (0..outer * inner * columns).map(value).collect();
            let start: Vec<f32> = (0..rows * (columns + 3)).map(value).collect();
            for add in [false, true] {
                let mut to = start.clone();
                let strip = Strip {
                    rows,
                    columns,
                    loops: [outer, inner],
                    a: a.as_ptr(),
                    // The rows of the left side lie together.
                    a_row: 1,
                    a_loops: [inner * rows, rows],
                    b: b.as_ptr(),
                    b_loops: [inner * columns, columns],
                    to: to.as_mut_ptr(),
                    to_row: columns + 3,
                    add,
                };
                // SAFETY: the vectors have these sizes.
                unsafe { strip.run() };
                for (i, (&got, &old)) in to.iter().zip(&start).enumerate() {
                    let (row, column) = (i / (columns + 3), i % (columns + 3));
                    let terms =
                        (0..outer * inner).map(|k| a[k * rows + row] * b[k * columns + column.min(columns - 1)]);
                    let want = if column < columns { terms.sum::<f32>() + if add { old } else { 0.0 } } else { old };
                    assert_eq!(got, want, "{rows} by {columns}, {outer} times {inner}, at {row}, {column}");
                }
            }
        }
    }
}
