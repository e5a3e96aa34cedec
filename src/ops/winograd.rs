//! The transforms of Winograd's convolutions (Winograd 1980; Lavin and Gray 2016): tiles of 6 by 6 places, of which 3 by 3
//! taps make 4 by 4 results, and 5 by 5 taps 2 by 2, with 36 products for 144 or 100.
//!
//! Both interpolate at 0, 1, -1, 2, -1/2 and infinity, which share one transform of images. In `float32` the largest error
//! is some 7 times that of direct sums over 64 channels (root mean squares alike), which is why no larger tile is used.
//! One infinity or NaN becomes NaN in the results of its whole tile, also in those whose windows do not see it.
//! Absent: what is transformed when, and the products (`winograd_kernel.rs`, `winograd_filter_kernel.rs`).

use pulp::{Simd, WithSimd};

/// Places of a tile along an axis.
pub(super) const PLACES: usize = 6;
/// Products of a tile.
pub(super) const PRODUCTS: usize = PLACES * PLACES;

/// One of the transforms along a line: `I` vectors to `O`.
trait Line<const I: usize, const O: usize> {
    fn of<S: Simd>(simd: S, x: [S::f32s; I]) -> [S::f32s; O];
}

/// Writes a line's transform as sums of factors times the vectors of these numbers.
macro_rules! line {
    ($(#[$doc:meta])* $name:ident, $inputs:literal to $outputs:literal:
        $([$first:literal * $at:literal $(, $factor:literal * $index:literal)*],)+) => {
        $(#[$doc])*
        struct $name;

        impl Line<$inputs, $outputs> for $name {
            #[inline(always)]
            fn of<S: Simd>(simd: S, x: [S::f32s; $inputs]) -> [S::f32s; $outputs] {
                [$({
                    let sum = simd.mul_f32s(simd.splat_f32s($first), x[$at]);
                    $(let sum = simd.mul_add_f32s(simd.splat_f32s($factor), x[$index], sum);)*
                    sum
                }),+]
            }
        }
    };
}

line! {
    /// A tile of an image, whichever the taps.
    Image, 6 to 6:
        [1.0 * 0, 1.5 * 1, -2.0 * 2, -1.5 * 3, 1.0 * 4],
        [1.0 * 3, 2.0 * 1, 5.0 * 2, -2.0 * 4],
        [1.0 * 2, 2.0 * 1, -5.0 * 3, 2.0 * 4],
        [1.0 * 3, -1.0 * 1, -2.0 * 2, 2.0 * 4],
        [1.0 * 2, -2.0 * 1, 2.0 * 3, -1.0 * 4],
        [1.0 * 1, 1.5 * 2, -2.0 * 3, -1.5 * 4, 1.0 * 5],
}

line! {
    /// Three taps.
    Filter3, 3 to 6:
        [1.0 * 0],
        [0.16666667 * 0, 0.16666667 * 1, 0.16666667 * 2],
        [0.16666667 * 0, -0.16666667 * 1, 0.16666667 * 2],
        [0.033333335 * 0, 0.06666667 * 1, 0.13333334 * 2],
        [1.0666667 * 0, -0.53333336 * 1, 0.26666668 * 2],
        [1.0 * 2],
}

line! {
    /// Five taps.
    Filter5, 5 to 6:
        [1.0 * 0],
        [0.16666667 * 0, 0.16666667 * 1, 0.16666667 * 2, 0.16666667 * 3, 0.16666667 * 4],
        [0.16666667 * 0, -0.16666667 * 1, 0.16666667 * 2, -0.16666667 * 3, 0.16666667 * 4],
        [0.033333335 * 0, 0.06666667 * 1, 0.13333334 * 2, 0.26666668 * 3, 0.53333336 * 4],
        [1.0666667 * 0, -0.53333336 * 1, 0.26666668 * 2, -0.13333334 * 3, 0.06666667 * 4],
        [1.0 * 4],
}

line! {
    /// The gradient of three taps: [`Filter3`] turned.
    FilterGradient3, 6 to 3:
        [1.0 * 0, 0.16666667 * 1, 0.16666667 * 2, 0.033333335 * 3, 1.0666667 * 4],
        [0.16666667 * 1, -0.16666667 * 2, 0.06666667 * 3, -0.53333336 * 4],
        [1.0 * 5, 0.16666667 * 1, 0.16666667 * 2, 0.13333334 * 3, 0.26666668 * 4],
}

line! {
    /// The gradient of five taps.
    FilterGradient5, 6 to 5:
        [1.0 * 0, 0.16666667 * 1, 0.16666667 * 2, 0.033333335 * 3, 1.0666667 * 4],
        [0.16666667 * 1, -0.16666667 * 2, 0.06666667 * 3, -0.53333336 * 4],
        [0.16666667 * 1, 0.16666667 * 2, 0.13333334 * 3, 0.26666668 * 4],
        [0.16666667 * 1, -0.16666667 * 2, 0.26666668 * 3, -0.13333334 * 4],
        [1.0 * 5, 0.16666667 * 1, 0.16666667 * 2, 0.53333336 * 3, 0.06666667 * 4],
}

line! {
    /// Four results, of three taps.
    Result4, 6 to 4:
        [1.0 * 0, 1.0 * 1, 1.0 * 2, 1.0 * 3, 1.0 * 4],
        [1.0 * 1, -1.0 * 2, 2.0 * 3, -0.5 * 4],
        [1.0 * 1, 1.0 * 2, 4.0 * 3, 0.25 * 4],
        [1.0 * 1, -1.0 * 2, 8.0 * 3, -0.125 * 4, 1.0 * 5],
}

line! {
    /// Two results, of five taps.
    Result2, 6 to 2:
        [1.0 * 0, 1.0 * 1, 1.0 * 2, 1.0 * 3, 1.0 * 4],
        [1.0 * 1, -1.0 * 2, 2.0 * 3, -0.5 * 4, 1.0 * 5],
}

line! {
    /// The gradient of four results: [`Result4`] turned.
    ResultGradient4, 4 to 6:
        [1.0 * 0],
        [1.0 * 0, 1.0 * 1, 1.0 * 2, 1.0 * 3],
        [1.0 * 0, -1.0 * 1, 1.0 * 2, -1.0 * 3],
        [1.0 * 0, 2.0 * 1, 4.0 * 2, 8.0 * 3],
        [1.0 * 0, -0.5 * 1, 0.25 * 2, -0.125 * 3],
        [1.0 * 3],
}

line! {
    /// The gradient of two results.
    ResultGradient2, 2 to 6:
        [1.0 * 0],
        [1.0 * 0, 1.0 * 1],
        [1.0 * 0, -1.0 * 1],
        [1.0 * 0, 2.0 * 1],
        [1.0 * 0, -0.5 * 1],
        [1.0 * 1],
}

/// A line's transform of all columns, and then of all rows, of a square of vectors.
#[inline(always)]
fn square<L: Line<I, O>, S: Simd, const I: usize, const O: usize>(
    simd: S,
    load: impl Fn(usize, usize) -> S::f32s,
    store: impl Fn(usize, usize, S::f32s),
) {
    let mut half = [[simd.splat_f32s(0.0); I]; O];
    for column in 0..I {
        let mut from = [simd.splat_f32s(0.0); I];
        for (row, from) in from.iter_mut().enumerate() {
            *from = load(row, column);
        }
        for (half, value) in half.iter_mut().zip(L::of(simd, from)) {
            half[column] = value;
        }
    }
    for (row, half) in half.into_iter().enumerate() {
        for (column, value) in L::of(simd, half).into_iter().enumerate() {
            store(row, column, value);
        }
    }
}

/// Which transform.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    /// 6 by 6 places of an image.
    Image,
    /// 3 by 3 or 5 by 5 taps of a filter, to 6 by 6.
    Filter { taps: usize },
    /// 6 by 6 to the taps of a filter's gradient.
    FilterGradient { taps: usize },
    /// 6 by 6 to 4 by 4 or 2 by 2 results.
    Result { taps: usize },
    /// The gradient of as many results, to 6 by 6.
    ResultGradient { taps: usize },
}

/// Where a square of vectors is: the first element of each, which may be one and the same where there is nothing.
pub(super) type Places<T> = [[T; PLACES]; PLACES];

/// Transforms a square of rows of channels into another.
pub(super) struct Square<'a> {
    pub transform: Transform,
    /// Channels: a multiple of 16.
    pub channels: usize,
    pub from: &'a Places<*const f32>,
    /// Null for what is not wanted.
    pub to: &'a Places<*mut f32>,
}

impl Square<'_> {
    /// Transforms all channels.
    ///
    /// # Safety
    /// The places of the transform's sizes have the channels, and no result is a source.
    pub unsafe fn run(self) {
        pulp::Arch::new().dispatch(self)
    }
}

impl WithSimd for Square<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: by the contract of `run`.
        unsafe {
            match self.transform {
                Transform::Image => self.all::<Image, S, 6, 6>(simd),
                Transform::Filter { taps: 3 } => self.all::<Filter3, S, 3, 6>(simd),
                Transform::Filter { .. } => self.all::<Filter5, S, 5, 6>(simd),
                Transform::FilterGradient { taps: 3 } => self.all::<FilterGradient3, S, 6, 3>(simd),
                Transform::FilterGradient { .. } => self.all::<FilterGradient5, S, 6, 5>(simd),
                Transform::Result { taps: 3 } => self.all::<Result4, S, 6, 4>(simd),
                Transform::Result { .. } => self.all::<Result2, S, 6, 2>(simd),
                Transform::ResultGradient { taps: 3 } => self.all::<ResultGradient4, S, 4, 6>(simd),
                Transform::ResultGradient { .. } => self.all::<ResultGradient2, S, 2, 6>(simd),
            }
        }
    }
}

impl Square<'_> {
    /// # Safety
    /// As [`Square::run`].
    #[inline(always)]
    unsafe fn all<L: Line<I, O>, S: Simd, const I: usize, const O: usize>(&self, simd: S) {
        for channel in (0..self.channels).step_by(S::F32_LANES) {
            // SAFETY: by the contract; the channels are whole vectors.
            square::<L, S, I, O>(
                simd,
                |y, x| unsafe { self.from[y][x].add(channel).cast::<S::f32s>().read_unaligned() },
                |y, x, value| unsafe {
                    if !self.to[y][x].is_null() {
                        self.to[y][x].add(channel).cast::<S::f32s>().write_unaligned(value);
                    }
                },
            );
        }
    }
}

/// The first step of a square's transform for one of its rows, and the second of that row, of rows of channels: an image's
/// tile or a gradient's, a slab of products at a time.
pub(super) struct Row<'a> {
    /// `Image` or `ResultGradient`.
    pub transform: Transform,
    /// Which row of the result.
    pub row: usize,
    /// Channels: a multiple of 16.
    pub channels: usize,
    pub from: &'a Places<*const f32>,
    /// The row's first place, and the step to the next.
    pub to: *mut f32,
    pub to_step: usize,
}

impl Row<'_> {
    /// Transforms all channels.
    ///
    /// # Safety
    /// The places of the transform's sizes have the channels, and no result is a source.
    pub unsafe fn run(self) {
        pulp::Arch::new().dispatch(self)
    }

    /// # Safety
    /// As [`Row::run`].
    #[inline(always)]
    unsafe fn of<L: Line<I, PLACES>, S: Simd, const I: usize>(&self, simd: S) {
        // SAFETY: by the contract.
        unsafe {
            match self.row {
                0 => self.all::<L, S, I, 0>(simd),
                1 => self.all::<L, S, I, 1>(simd),
                2 => self.all::<L, S, I, 2>(simd),
                3 => self.all::<L, S, I, 3>(simd),
                4 => self.all::<L, S, I, 4>(simd),
                _ => self.all::<L, S, I, 5>(simd),
            }
        }
    }

    /// # Safety
    /// As [`Row::run`].
    #[inline(always)]
    unsafe fn all<L: Line<I, PLACES>, S: Simd, const I: usize, const ROW: usize>(&self, simd: S) {
        for channel in (0..self.channels).step_by(S::F32_LANES) {
            let mut half = [simd.splat_f32s(0.0); I];
            for (column, half) in half.iter_mut().enumerate() {
                let mut from = [simd.splat_f32s(0.0); I];
                for (row, from) in from.iter_mut().enumerate() {
                    // SAFETY: by the contract; the channels are whole vectors.
                    *from = unsafe { self.from[row][column].add(channel).cast::<S::f32s>().read_unaligned() };
                }
                // The other rows' sums are never computed.
                *half = L::of(simd, from)[ROW];
            }
            for (column, value) in L::of(simd, half).into_iter().enumerate() {
                // SAFETY: by the contract.
                unsafe {
                    self.to.add(column * self.to_step + channel).cast::<S::f32s>().write_unaligned(value);
                }
            }
        }
    }
}

impl WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: by the contract of `run`.
        unsafe {
            match self.transform {
                Transform::ResultGradient { taps: 3 } => self.of::<ResultGradient4, S, 4>(simd),
                Transform::ResultGradient { .. } => self.of::<ResultGradient2, S, 2>(simd),
                _ => self.of::<Image, S, 6>(simd),
            }
        }
    }
}
