//! Largest pools of `float32` images with channels last, and their gradients, in vectors of channels: the same results,
//! bit by bit, as the loops for all types (`pool_kernel.rs`).

use super::elementwise::{GRAIN, Shared};
use super::pool_kernel::{Pool, bands, windows};
use super::vectors::{Channels, Lanes, all_channels};
use crate::device::CpuKernel;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// The kernel of a largest pool of input 0.
pub(super) fn largest(pool: Pool) -> CpuKernel {
    let work = pool.out[1] * pool.channels * pool.down.taps * pool.across.taps;
    Box::new(move |l| {
        let source = Shared::new(l.input::<f32>(0).as_ptr().cast_mut());
        let target = Shared::new(l.output::<f32>(0).as_mut_ptr());
        l.team().chunks(pool.images * pool.out[0], (GRAIN / work.max(1)).max(1), |rows| {
            pulp::Arch::new().dispatch(Largest { pool, source: source.get(), target: target.get(), rows });
        });
        Ok(())
    })
}

struct Largest {
    pool: Pool,
    source: *const f32,
    target: *mut f32,
    /// Rows of results of all images.
    rows: Range<usize>,
}

impl WithSimd for Largest {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let [down, across] = self.pool.out;
        for row in self.rows.clone() {
            for j in 0..across {
                // SAFETY: the rows are of the pool's tensors, and of this part alone.
                unsafe { all_channels(simd, &self, self.pool.channels, (row / down, row % down, j)) }
            }
        }
    }
}

impl Channels for Largest {
    #[inline(always)]
    unsafe fn of<S: Simd, const V: usize, const PART: bool>(
        &self,
        lanes: Lanes<S, PART>,
        (image, i, j): (usize, usize, usize),
        first: usize,
    ) {
        let simd = lanes.simd;
        let mut best = [simd.splat_f32s(f32::NEG_INFINITY); V];
        self.pool.each(image, i, j, |_, at| {
            for (v, best) in best.iter_mut().enumerate() {
                // SAFETY: by the contract.
                let x = unsafe { lanes.load(self.source.add(at + first + v * S::F32_LANES)) };
                // As TensorFlow has it, a NaN is larger than nothing.
                *best = simd.select_f32s(simd.greater_than_f32s(x, *best), x, *best);
            }
        });
        for (v, best) in best.into_iter().enumerate() {
            let at = self.pool.result(image, i, j) + first + v * S::F32_LANES;
            // SAFETY: by the contract.
            unsafe { lanes.store(self.target.add(at), best) }
        }
    }
}

/// The kernel of a largest pool's gradient: each window's (input 2) goes to its largest element (of input 0).
pub(super) fn largest_gradient(pool: Pool) -> CpuKernel {
    let (band, bands) = bands(&pool);
    Box::new(move |l| {
        let source = Shared::new(l.input::<f32>(0).as_ptr().cast_mut());
        let gradient = Shared::new(l.input::<f32>(2).as_ptr().cast_mut());
        let target = Shared::new(l.output::<f32>(0).as_mut_ptr());
        l.team().run(pool.images * bands, |part| {
            let (image, first) = (part / bands, part % bands * band);
            let rows = first..pool.image[0].min(first + band);
            let (source, gradient, target) = (source.get(), gradient.get(), target.get());
            pulp::Arch::new().dispatch(LargestGradient { pool, source, gradient, target, image, rows });
        });
        Ok(())
    })
}

struct LargestGradient {
    pool: Pool,
    source: *const f32,
    gradient: *const f32,
    target: *mut f32,
    image: usize,
    /// Rows of the image.
    rows: Range<usize>,
}

impl LargestGradient {
    /// Sets rows to zero.
    ///
    /// # Safety
    /// They are of this part.
    #[inline(always)]
    unsafe fn clear(&self, rows: Range<usize>) {
        let (start, end) = (self.pool.source(self.image, rows.start, 0), self.pool.source(self.image, rows.end, 0));
        // SAFETY: by the contract.
        unsafe { self.target.add(start).write_bytes(0, end - start) }
    }
}

impl WithSimd for LargestGradient {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (pool, rows) = (&self.pool, self.rows.clone());
        if rows.is_empty() {
            return;
        }
        let mut cleared = rows.start;
        for i in windows(&pool.down, rows.start).start..windows(&pool.down, rows.end - 1).end {
            // Just before they are used, so that they are in the nearest cache.
            let reach = pool.down.start(i).saturating_add_unsigned(pool.down.taps);
            let reach = usize::try_from(reach).unwrap_or(0).clamp(cleared, rows.end);
            // SAFETY: the rows are of the pool's tensors, and of this part alone.
            unsafe {
                self.clear(cleared..reach);
                for j in 0..pool.out[1] {
                    all_channels(simd, &self, pool.channels, (self.image, i, j));
                }
            }
            cleared = reach;
        }
        // SAFETY: as above.
        unsafe { self.clear(cleared..rows.end) }
    }
}

impl Channels for LargestGradient {
    #[inline(always)]
    unsafe fn of<S: Simd, const V: usize, const PART: bool>(
        &self,
        lanes: Lanes<S, PART>,
        (image, i, j): (usize, usize, usize),
        first: usize,
    ) {
        let (simd, pool) = (lanes.simd, &self.pool);
        let (start, end) = (pool.source(image, self.rows.start, 0), pool.source(image, self.rows.end, 0));
        let mut best = [simd.splat_f32s(0.0); V];
        let mut place = [simd.splat_u32s(0); V];
        let mut begun = false;
        pool.each(image, i, j, |tap, at| {
            let tap = simd.splat_u32s(tap as u32);
            for (v, (best, place)) in best.iter_mut().zip(&mut place).enumerate() {
                // SAFETY: by the contract.
                let x = unsafe { lanes.load(self.source.add(at + first + v * S::F32_LANES)) };
                if begun {
                    let larger = simd.greater_than_f32s(x, *best);
                    *best = simd.select_f32s(larger, x, *best);
                    *place = simd.select_u32s(larger, tap, *place);
                } else {
                    (*best, *place) = (x, tap);
                }
            }
            begun = true;
        });
        let mut gradient = [simd.splat_f32s(0.0); V];
        for (v, gradient) in gradient.iter_mut().enumerate() {
            let at = pool.result(image, i, j) + first + v * S::F32_LANES;
            // SAFETY: by the contract.
            *gradient = unsafe { lanes.load(self.gradient.add(at)) };
        }
        pool.each(image, i, j, |tap, at| {
            if !(start..end).contains(&at) {
                return;
            }
            let tap = simd.splat_u32s(tap as u32);
            for (v, (&gradient, &place)) in gradient.iter().zip(&place).enumerate() {
                let to = self.target.wrapping_add(at + first + v * S::F32_LANES);
                let here = simd.select_f32s(simd.equal_u32s(place, tap), gradient, simd.splat_f32s(0.0));
                // SAFETY: by the contract; the row is of this part.
                unsafe { lanes.store(to, simd.add_f32s(lanes.load(to), here)) }
            }
        });
    }
}
