//! Pools on the host: loops over channels, which lie together; images with channels in the middle are as many images of
//! one channel. Largest pools of `float32` with channels last have vectors of their own (`pool_vectors.rs`).
//!
//! Invariant: gradients are gathered by the places that get them, so that results do not depend on the threads.

use super::conv_geometry::{Axis, Conv};
use super::elementwise::{Dispatch, GRAIN, Shared, Wide};
use super::number::Number;
use crate::device::CpuKernel;
use pulp::NullaryFnOnce;
use std::ops::Range;

/// Channels that are looked at side by side.
const LANES: usize = 64;

/// A pool's sizes, with channels last.
#[derive(Clone, Copy)]
pub(super) struct Pool {
    pub images: usize,
    pub image: [usize; 2],
    pub out: [usize; 2],
    pub channels: usize,
    pub down: Axis,
    pub across: Axis,
}

impl Pool {
    /// The pool that moves as a convolution of single channels does.
    pub fn new(conv: &Conv) -> Pool {
        let (images, channels) = match conv.format {
            super::window::DataFormat::Nhwc => (conv.batch, conv.channels),
            super::window::DataFormat::Nchw => (conv.batch * conv.channels, 1),
        };
        let (down, across) = (conv.forward(0), conv.forward(1));
        Pool { images, image: conv.image, out: conv.out, channels, down, across }
    }

    /// The first element of an input's place.
    #[inline(always)]
    pub fn source(&self, image: usize, y: usize, x: usize) -> usize {
        ((image * self.image[0] + y) * self.image[1] + x) * self.channels
    }

    /// The first element of an output's place.
    #[inline(always)]
    pub fn result(&self, image: usize, i: usize, j: usize) -> usize {
        ((image * self.out[0] + i) * self.out[1] + j) * self.channels
    }

    /// The elements of the window that are in the image, by number of tap and first element of the place.
    #[inline(always)]
    pub fn each(&self, image: usize, i: usize, j: usize, mut f: impl FnMut(usize, usize)) {
        let seen = self.across.seen(j);
        for ty in self.down.seen(i) {
            let y = self.down.start(i).wrapping_add_unsigned(ty) as usize;
            for tx in seen.clone() {
                let x = self.across.start(j).wrapping_add_unsigned(tx) as usize;
                f(ty * self.across.taps + tx, self.source(image, y, x));
            }
        }
    }

    /// Number of elements of a window that are in the image.
    #[inline(always)]
    fn count(&self, i: usize, j: usize) -> usize {
        self.down.seen(i).len() * self.across.seen(j).len()
    }
}

/// The windows along an axis that have a place in them.
#[inline(always)]
pub(super) fn windows(axis: &Axis, place: usize) -> Range<usize> {
    let last = (place as isize - axis.origin) as usize;
    let first = (last + 1).saturating_sub(axis.taps).div_ceil(axis.step);
    first..(last / axis.step + 1).min(axis.count)
}

/// What a pool makes of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    Largest,
    Average,
}

/// The kernel of a pool of input 0.
pub(super) fn forward<T: Number>(pool: Pool, take: Take) -> CpuKernel {
    let work = pool.out[1] * pool.channels * pool.down.taps * pool.across.taps;
    Box::new(move |l| {
        let (source, target) = (l.input::<T>(0), l.output::<T>(0));
        let target = Shared::new(target.as_mut_ptr());
        l.team().chunks(pool.images * pool.out[0], (GRAIN / work.max(1)).max(1), |rows| {
            Wide::run(Forward { pool, take, source, target, rows });
        });
        Ok(())
    })
}

struct Forward<'a, T> {
    pool: Pool,
    take: Take,
    source: &'a [T],
    target: Shared<T>,
    rows: Range<usize>,
}

impl<T: Number> NullaryFnOnce for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Forward { pool, take, source, target, rows } = self;
        for row in rows {
            let (image, i) = (row / pool.out[0], row % pool.out[0]);
            for j in 0..pool.out[1] {
                // SAFETY: the place is within the target, and each row is of one part.
                let to = unsafe {
                    let start = target.get().add(pool.result(image, i, j));
                    std::slice::from_raw_parts_mut(start, pool.channels)
                };
                for (part, to) in to.chunks_mut(LANES).enumerate() {
                    let (first, width) = (part * LANES, to.len());
                    let start = if take == Take::Largest { T::LOWEST } else { T::ZERO };
                    let mut lanes = [start; LANES];
                    let lanes = &mut lanes[..width];
                    pool.each(image, i, j, |_, at| {
                        let x = &source[at + first..][..width];
                        if take == Take::Largest {
                            // As TensorFlow has it, a NaN is larger than nothing.
                            lanes.iter_mut().zip(x).for_each(|(lane, &x)| *lane = if x > *lane { x } else { *lane });
                        } else {
                            lanes.iter_mut().zip(x).for_each(|(lane, &x)| *lane = lane.plus(x));
                        }
                    });
                    if take == Take::Average {
                        let count = T::from_f64(pool.count(i, j) as f64);
                        lanes.iter_mut().for_each(|lane| *lane = lane.over(count));
                    }
                    to.copy_from_slice(lanes);
                }
            }
        }
    }
}

/// The kernel of an average pool's gradient, of the output's gradient (input 1).
pub(super) fn average_gradient<T: Number>(pool: Pool) -> CpuKernel {
    let work = pool.image[1] * pool.channels * pool.down.taps * pool.across.taps;
    Box::new(move |l| {
        let (gradient, target) = (l.input::<T>(1), l.output::<T>(0));
        let target = Shared::new(target.as_mut_ptr());
        l.team().chunks(pool.images * pool.image[0], (GRAIN / work.max(1)).max(1), |rows| {
            Wide::run(AverageGradient { pool, gradient, target, rows });
        });
        Ok(())
    })
}

struct AverageGradient<'a, T> {
    pool: Pool,
    gradient: &'a [T],
    target: Shared<T>,
    rows: Range<usize>,
}

impl<T: Number> NullaryFnOnce for AverageGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let AverageGradient { pool, gradient, target, rows } = self;
        for row in rows {
            let (image, y) = (row / pool.image[0], row % pool.image[0]);
            for x in 0..pool.image[1] {
                // SAFETY: the place is within the target, and each row is of one part.
                let to = unsafe {
                    let start = target.get().add(pool.source(image, y, x));
                    std::slice::from_raw_parts_mut(start, pool.channels)
                };
                for (part, to) in to.chunks_mut(LANES).enumerate() {
                    let (first, width) = (part * LANES, to.len());
                    let mut lanes = [T::ZERO; LANES];
                    let lanes = &mut lanes[..width];
                    for i in windows(&pool.down, y) {
                        for j in windows(&pool.across, x) {
                            let share = T::ONE.over(T::from_f64(pool.count(i, j) as f64));
                            let gradient = &gradient[pool.result(image, i, j) + first..][..width];
                            lanes.iter_mut().zip(gradient).for_each(|(lane, &g)| *lane = lane.plus(g.times(share)));
                        }
                    }
                    to.copy_from_slice(lanes);
                }
            }
        }
    }
}

/// The places of the largest elements of some channels in a window, as numbers of taps; the first of equal ones counts.
#[inline(always)]
fn find<T: Number>(pool: &Pool, (image, i, j): (usize, usize, usize), source: &[T], first: usize, place: &mut [T]) {
    let width = place.len();
    let mut best = [T::ZERO; LANES];
    let best = &mut best[..width];
    let mut begun = false;
    pool.each(image, i, j, |tap, at| {
        let (x, tap) = (&source[at + first..][..width], T::from_f64(tap as f64));
        if !begun {
            begun = true;
            best.copy_from_slice(x);
            place.fill(tap);
        } else {
            for ((best, place), &x) in best.iter_mut().zip(&mut *place).zip(x) {
                let larger = x > *best;
                *place = if larger { tap } else { *place };
                *best = if larger { x } else { *best };
            }
        }
    });
}

/// Rows of an image that are a part of a largest pool's gradient, and how many such parts there are.
pub(super) fn bands(pool: &Pool) -> (usize, usize) {
    // Windows that reach into two bands are looked at twice.
    let line = (pool.image[1] * pool.channels).max(1);
    let band = (GRAIN / line).max(4 * pool.down.taps.max(pool.down.step)).min(pool.image[0].max(1));
    (band, pool.image[0].div_ceil(band))
}

/// The kernel of a largest pool's gradient: each window's (input 2) goes to its largest element (of input 0).
pub(super) fn largest_gradient<T: Number>(pool: Pool) -> CpuKernel {
    let (band, bands) = bands(&pool);
    Box::new(move |l| {
        let (source, gradient, target) = (l.input::<T>(0), l.input::<T>(2), l.output::<T>(0));
        let target = Shared::new(target.as_mut_ptr());
        l.team().run(pool.images * bands, |part| {
            let (image, first) = (part / bands, part % bands * band);
            let rows = first..pool.image[0].min(first + band);
            Wide::run(LargestGradient { pool, source, gradient, target, image, rows });
        });
        Ok(())
    })
}

struct LargestGradient<'a, T> {
    pool: Pool,
    source: &'a [T],
    gradient: &'a [T],
    target: Shared<T>,
    image: usize,
    /// Rows of the image.
    rows: Range<usize>,
}

impl<T: Number> NullaryFnOnce for LargestGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let LargestGradient { pool, source, gradient, target, image, rows } = self;
        let (start, end) = (pool.source(image, rows.start, 0), pool.source(image, rows.end, 0));
        // SAFETY: the rows are within the target, and of this part alone.
        let target = unsafe { std::slice::from_raw_parts_mut(target.get().add(start), end - start) };
        target.fill(T::ZERO);
        if rows.is_empty() {
            return;
        }
        for i in windows(&pool.down, rows.start).start..windows(&pool.down, rows.end - 1).end {
            for j in 0..pool.out[1] {
                for first in (0..pool.channels).step_by(LANES) {
                    let width = LANES.min(pool.channels - first);
                    let mut place = [T::ZERO; LANES];
                    let place = &mut place[..width];
                    find(&pool, (image, i, j), source, first, place);
                    let gradient = &gradient[pool.result(image, i, j) + first..][..width];
                    pool.each(image, i, j, |tap, at| {
                        if !(start..end).contains(&at) {
                            return;
                        }
                        let tap = T::from_f64(tap as f64);
                        let to = &mut target[at - start + first..][..width];
                        for ((to, &place), &g) in to.iter_mut().zip(&*place).zip(gradient) {
                            *to = to.plus(if place == tap { g } else { T::ZERO });
                        }
                    });
                }
            }
        }
    }
}

/// The kernel that takes from each window (of input 2) the element where another (input 0) has its largest.
pub(super) fn largest_taken<T: Number>(pool: Pool) -> CpuKernel {
    let work = pool.out[1] * pool.channels * pool.down.taps * pool.across.taps;
    Box::new(move |l| {
        let (source, taken, target) = (l.input::<T>(0), l.input::<T>(2), l.output::<T>(0));
        let target = Shared::new(target.as_mut_ptr());
        l.team().chunks(pool.images * pool.out[0], (GRAIN / work.max(1)).max(1), |rows| {
            Wide::run(Taken { pool, source, taken, target, rows });
        });
        Ok(())
    })
}

struct Taken<'a, T> {
    pool: Pool,
    source: &'a [T],
    taken: &'a [T],
    target: Shared<T>,
    rows: Range<usize>,
}

impl<T: Number> NullaryFnOnce for Taken<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Taken { pool, source, taken, target, rows } = self;
        for row in rows {
            let (image, i) = (row / pool.out[0], row % pool.out[0]);
            for j in 0..pool.out[1] {
                // SAFETY: the place is within the target, and each row is of one part.
                let to = unsafe {
                    let start = target.get().add(pool.result(image, i, j));
                    std::slice::from_raw_parts_mut(start, pool.channels)
                };
                for (part, to) in to.chunks_mut(LANES).enumerate() {
                    let (first, width) = (part * LANES, to.len());
                    let mut place = [T::ZERO; LANES];
                    let place = &mut place[..width];
                    find(&pool, (image, i, j), source, first, place);
                    to.fill(T::ZERO);
                    pool.each(image, i, j, |tap, at| {
                        let (x, tap) = (&taken[at + first..][..width], T::from_f64(tap as f64));
                        for ((to, &place), &x) in to.iter_mut().zip(&*place).zip(x) {
                            *to = if place == tap { x } else { *to };
                        }
                    });
                }
            }
        }
    }
}
