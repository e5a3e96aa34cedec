//! The loops of batch normalization: over rows of channels, or over planes of one channel each.
//!
//! Absent: how the work is shared out, and what is made of the moments (`batch_norm_kernel.rs`).

use super::batch_norm_kernel::{Layout, Pair, merged};
use super::functions::Real;
use pulp::NullaryFnOnce;
use std::ops::Range;

/// Channels that are summed side by side.
const STRIP: usize = 256;
/// Rows that go into lanes before these go into the totals.
const ROWS: usize = 64;
/// Elements of a plane that are summed side by side.
const LANES: usize = 32;
/// Elements of a plane that go into lanes before these go into the totals.
const BLOCK: usize = ROWS * LANES;

/// A `float` type with a way to and from `float64`.
pub(super) trait Wide64: Real {
    fn wide(self) -> f64;
}

impl Wide64 for f32 {
    #[inline(always)]
    fn wide(self) -> f64 {
        self.into()
    }
}

impl Wide64 for f64 {
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
}

/// Merges the moments of some rows into the totals, channel by channel.
pub(super) struct RowMoments<'a, T> {
    pub x: &'a [T],
    pub channels: usize,
    pub rows: Range<usize>,
    pub totals: &'a mut [Pair],
}

impl<T: Wide64> NullaryFnOnce for RowMoments<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let RowMoments { x, channels, rows, totals } = self;
        for (strip, totals) in totals.chunks_mut(STRIP).enumerate() {
            let (first, width) = (strip * STRIP, totals.len());
            let mut n = 0.0;
            for start in rows.clone().step_by(ROWS) {
                let block = start..rows.end.min(start + ROWS);
                let k = block.len() as f64;
                let (mut means, mut squares) = ([T::ZERO; STRIP], [T::ZERO; STRIP]);
                let (means, squares) = (&mut means[..width], &mut squares[..width]);
                for row in block.clone() {
                    let x = &x[row * channels + first..][..width];
                    means.iter_mut().zip(x).for_each(|(sum, &x)| *sum = sum.plus(x));
                }
                let size = T::from_f64(k);
                means.iter_mut().for_each(|mean| *mean = mean.over(size));
                for row in block {
                    let x = &x[row * channels + first..][..width];
                    for ((sum, &mean), &x) in squares.iter_mut().zip(&*means).zip(x) {
                        let apart = x.minus(mean);
                        *sum = sum.plus(apart.times(apart));
                    }
                }
                for ((total, mean), squares) in totals.iter_mut().zip(means).zip(squares) {
                    *total = merged(*total, n, (mean.wide(), squares.wide()), k);
                }
                n += k;
            }
        }
    }
}

/// The sum of lanes.
#[inline(always)]
fn added<T: Wide64>(mut lanes: [T; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = lanes[i].plus(lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0].wide()
}

/// Merges the moments of some channels' planes into the totals.
pub(super) struct PlaneMoments<'a, T> {
    pub x: &'a [T],
    pub layout: Layout,
    pub channels: Range<usize>,
    pub totals: &'a mut [Pair],
}

impl<T: Wide64> NullaryFnOnce for PlaneMoments<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let PlaneMoments { x, layout, channels, totals } = self;
        for (channel, total) in channels.zip(totals) {
            let mut n = 0.0;
            for outer in 0..layout.outer {
                let plane = &x[(outer * layout.channels + channel) * layout.inner..][..layout.inner];
                for block in plane.chunks(BLOCK) {
                    let k = block.len() as f64;
                    let mut lanes = [T::ZERO; LANES];
                    for part in block.chunks(LANES) {
                        lanes.iter_mut().zip(part).for_each(|(sum, &x)| *sum = sum.plus(x));
                    }
                    let mean = T::from_f64(added(lanes) / k);
                    let mut lanes = [T::ZERO; LANES];
                    for part in block.chunks(LANES) {
                        for (sum, &x) in lanes.iter_mut().zip(part) {
                            let apart = x.minus(mean);
                            *sum = sum.plus(apart.times(apart));
                        }
                    }
                    *total = merged(*total, n, (mean.wide(), added(lanes)), k);
                    n += k;
                }
            }
        }
    }
}

/// Adds the gradients of some rows, and their products with the elements' distances from the mean, to the totals.
pub(super) struct RowSlopes<'a, T> {
    pub gradient: &'a [T],
    pub x: &'a [T],
    pub mean: &'a [T],
    pub rows: Range<usize>,
    pub totals: &'a mut [Pair],
}

impl<T: Wide64> NullaryFnOnce for RowSlopes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let RowSlopes { gradient, x, mean, rows, totals } = self;
        let channels = mean.len();
        for (strip, totals) in totals.chunks_mut(STRIP).enumerate() {
            let (first, width) = (strip * STRIP, totals.len());
            let mean = &mean[first..][..width];
            for start in rows.clone().step_by(ROWS) {
                let (mut sums, mut products) = ([T::ZERO; STRIP], [T::ZERO; STRIP]);
                let (sums, products) = (&mut sums[..width], &mut products[..width]);
                for row in start..rows.end.min(start + ROWS) {
                    let at = row * channels + first;
                    let (gradient, x) = (&gradient[at..][..width], &x[at..][..width]);
                    let sums = sums.iter_mut().zip(products.iter_mut());
                    for (((sum, product), &g), (&x, &mean)) in sums.zip(gradient).zip(x.iter().zip(mean)) {
                        *sum = sum.plus(g);
                        *product = product.plus(g.times(x.minus(mean)));
                    }
                }
                for (total, (sum, product)) in totals.iter_mut().zip(sums.iter().zip(products)) {
                    *total = (total.0 + sum.wide(), total.1 + product.wide());
                }
            }
        }
    }
}

/// The same for some channels' planes.
pub(super) struct PlaneSlopes<'a, T> {
    pub gradient: &'a [T],
    pub x: &'a [T],
    pub mean: &'a [T],
    pub layout: Layout,
    pub channels: Range<usize>,
    pub totals: &'a mut [Pair],
}

impl<T: Wide64> NullaryFnOnce for PlaneSlopes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let PlaneSlopes { gradient, x, mean, layout, channels, totals } = self;
        for (channel, total) in channels.zip(totals) {
            let mean = mean[channel];
            for outer in 0..layout.outer {
                let at = (outer * layout.channels + channel) * layout.inner;
                let (gradient, x) = (&gradient[at..][..layout.inner], &x[at..][..layout.inner]);
                for (gradient, x) in gradient.chunks(BLOCK).zip(x.chunks(BLOCK)) {
                    let (mut sums, mut products) = ([T::ZERO; LANES], [T::ZERO; LANES]);
                    for (gradient, x) in gradient.chunks(LANES).zip(x.chunks(LANES)) {
                        let sums = sums.iter_mut().zip(products.iter_mut());
                        for ((sum, product), (&g, &x)) in sums.zip(gradient.iter().zip(x)) {
                            *sum = sum.plus(g);
                            *product = product.plus(g.times(x.minus(mean)));
                        }
                    }
                    *total = (total.0 + added(sums), total.1 + added(products));
                }
            }
        }
    }
}

/// What is made of an element with the numbers of its channel: `(x - mean) * factor + shift`, or of a gradient
/// `(gradient - shift - (x - mean) * slope) * factor`.
pub(super) struct Term<'a, T> {
    pub mean: &'a [T],
    pub factor: &'a [T],
    pub shift: &'a [T],
    pub slope: &'a [T],
}

impl<T> Clone for Term<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Term<'_, T> {}

/// All elements of some rows.
pub(super) struct Rows<'a, T> {
    pub term: Term<'a, T>,
    pub x: &'a [T],
    pub gradient: Option<&'a [T]>,
    pub y: &'a mut [T],
}

impl<T: Wide64> NullaryFnOnce for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Rows { term: Term { mean, factor, shift, slope }, x, gradient, y } = self;
        let channels = mean.len();
        let numbers = || mean.iter().zip(factor).zip(shift);
        match gradient {
            None => {
                for (y, x) in y.chunks_exact_mut(channels).zip(x.chunks_exact(channels)) {
                    for ((y, &x), ((&mean, &factor), &shift)) in y.iter_mut().zip(x).zip(numbers()) {
                        *y = x.minus(mean).times(factor).plus(shift);
                    }
                }
            }
            Some(gradient) => {
                let rows = x.chunks_exact(channels).zip(gradient.chunks_exact(channels));
                for (y, (x, gradient)) in y.chunks_exact_mut(channels).zip(rows) {
                    let elements = y.iter_mut().zip(x.iter().zip(gradient)).zip(slope);
                    for (((y, (&x, &g)), &slope), ((&mean, &factor), &shift)) in elements.zip(numbers()) {
                        *y = g.minus(shift).minus(x.minus(mean).times(slope)).times(factor);
                    }
                }
            }
        }
    }
}

/// All elements of some planes.
pub(super) struct Planes<'a, T> {
    pub term: Term<'a, T>,
    pub x: &'a [T],
    pub gradient: Option<&'a [T]>,
    pub y: &'a mut [T],
    pub inner: usize,
    /// The number of the first plane.
    pub first: usize,
}

impl<T: Wide64> NullaryFnOnce for Planes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Planes { term, x, gradient, y, inner, first } = self;
        for (plane, y) in y.chunks_exact_mut(inner).enumerate() {
            let x = &x[plane * inner..][..inner];
            let channel = (first + plane) % term.mean.len();
            let (mean, factor) = (term.mean[channel], term.factor[channel]);
            let (shift, slope) = (term.shift[channel], term.slope[channel]);
            match gradient {
                None => {
                    y.iter_mut().zip(x).for_each(|(y, &x)| *y = x.minus(mean).times(factor).plus(shift));
                }
                Some(gradient) => {
                    let gradient = &gradient[plane * inner..][..inner];
                    for (y, (&x, &g)) in y.iter_mut().zip(x.iter().zip(gradient)) {
                        *y = g.minus(shift).minus(x.minus(mean).times(slope)).times(factor);
                    }
                }
            }
        }
    }
}
