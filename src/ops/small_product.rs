//! Products of matrices so small that setting up a library's product takes longer than the product.
//!
//! Invariant: a row of the result depends on its own row of the left side and on the right side alone.

use super::elementwise::{Dispatch, Wide};
use super::number::Number;
use pulp::NullaryFnOnce;

/// The most multiplications.
const MOST: usize = 4096;
/// Results of a row that are summed side by side.
const LANES: usize = 8;
/// Rows that are.
const ROWS: usize = 4;
/// The right side's elements at most, its rows filled up to whole lanes.
const PANEL: usize = 512;

/// True for a product `[m, k]` by `[k, n]` that these loops are for.
pub(super) fn fits(m: usize, k: usize, n: usize) -> bool {
    m.saturating_mul(k).saturating_mul(n) <= MOST && k.saturating_mul(n.next_multiple_of(LANES)) <= PANEL
}

/// `o = x y` for so many rows of matrices that fit: `x` is `[m, k]` and `y` `[k, n]`, with these steps along rows and
/// columns; `o` is `[m, n]`.
///
/// # Safety
/// The pointers are of matrices of these sizes, and nobody else writes these rows of `o`.
pub(super) unsafe fn product<T: Number>(
    (k, n): (usize, usize),
    (x, x_steps): (*const T, (usize, usize)),
    (y, y_steps): (*const T, (usize, usize)),
    o: *mut T,
    rows: usize,
) {
    Wide::run(Small { k, n, x, x_steps, y, y_steps, o, rows });
}

struct Small<T> {
    k: usize,
    n: usize,
    x: *const T,
    x_steps: (usize, usize),
    y: *const T,
    y_steps: (usize, usize),
    o: *mut T,
    rows: usize,
}

impl<T: Number> NullaryFnOnce for Small<T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Small { k, n, x, x_steps, y, y_steps, o, rows } = self;
        let width = n.next_multiple_of(LANES);
        let mut panel = [T::ZERO; PANEL];
        for p in 0..k {
            for (j, to) in panel[p * width..][..n].iter_mut().enumerate() {
                // SAFETY: the maker's pointer is of so many rows and columns.
                *to = unsafe { y.add(p * y_steps.0 + j * y_steps.1).read() };
            }
        }
        for row in (0..rows).step_by(ROWS) {
            let height = ROWS.min(rows - row);
            // Where rows are missing, the last is computed again.
            let own: [usize; ROWS] = std::array::from_fn(|r| (row + r.min(height - 1)) * x_steps.0);
            for column in (0..n).step_by(LANES) {
                let mut sums = [[T::ZERO; LANES]; ROWS];
                for p in 0..k {
                    let right: &[T] = &panel[p * width + column..][..LANES];
                    for (sums, at) in sums.iter_mut().zip(own) {
                        // SAFETY: as above.
                        let left = unsafe { x.add(at + p * x_steps.1).read() };
                        for (sum, right) in sums.iter_mut().zip(right) {
                            *sum = sum.plus(left.times(*right));
                        }
                    }
                }
                for (r, sums) in sums.iter().take(height).enumerate() {
                    let count = LANES.min(n - column);
                    // SAFETY: these elements of the result are nobody else's.
                    unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), o.add((row + r) * n + column), count) };
                }
            }
        }
    }
}
