//! Convolutions of single channels of `float32` images with channels last, one filter for each, and the gradient of the
//! image, in vectors of channels whose sums stay in registers.
//!
//! Invariant: a result's summands come in the order of its taps, each multiplied and added with one rounding.

use super::conv_geometry::Conv;
use super::conv_kernel::Sweep;
use super::conv_rows::{cut, lines};
use super::elementwise::{GRAIN, Shared, fill};
use super::vectors::{Channels, Lanes, all_channels};
use crate::device::{CpuKernel, Launch, RowFunction, RowKernel};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Bands of lines that what is computed by lines is cut into at least.
const BANDS: usize = 16;

/// The kernel of the output, of image and filter.
pub(super) fn forward(conv: &Conv) -> CpuKernel {
    sweeps(conv, vec![Sweep::forward(conv)], true, (0, 1))
}

/// The kernel of the image's gradient, of the filter (input 1) and the output's gradient (input 2).
pub(super) fn backward(conv: &Conv) -> CpuKernel {
    let all = Sweep::backward(conv);
    let covers = Sweep::cover(&all, conv);
    sweeps(conv, all, covers, (2, 1))
}

/// The kernel of these sweeps, which give every result a value or leave zeros.
fn sweeps(conv: &Conv, all: Vec<Sweep>, covers: bool, (source, filter): (usize, usize)) -> CpuKernel {
    let conv = *conv;
    Box::new(move |l| {
        let target = l.output::<f32>(0);
        if !covers {
            fill(l.team(), target, 0.0);
        }
        let [source, filter] = [source, filter].map(|i| Shared::new(l.input::<f32>(i).as_ptr().cast_mut()));
        let target = Shared::new(target.as_mut_ptr());
        for sweep in &all {
            let work = sweep.axes[1].count * sweep.taps() * conv.filters;
            let grain = (GRAIN / work.max(1)).max(1);
            l.team().chunks(sweep.batch * sweep.axes[0].count, grain, |rows| {
                let (source, filter, target) = (source.get(), filter.get(), target.get());
                pulp::Arch::new().dispatch(Pixels { sweep, conv: &conv, source, filter, target, rows });
            });
        }
        Ok(())
    })
}

/// The forward or the backward convolution by lines of images, which what follows is fused into.
struct Rows {
    conv: Conv,
    all: Vec<Sweep>,
    covers: bool,
    /// The inputs that are the source and the filter.
    inputs: (usize, usize),
    /// Height and width of the results.
    size: [usize; 2],
}

impl RowFunction for Rows {
    fn run(&self, l: &Launch<'_>, _prepared: &[f32], rows: Range<usize>) {
        let Rows { conv, all, covers, inputs, size } = self;
        let [source, filter] = [inputs.0, inputs.1].map(|i| l.input_ptr::<f32>(i).0);
        let target = l.output_ptr::<f32>(0).0;
        if !covers {
            // SAFETY: these rows are the output's, and nobody else's.
            unsafe { target.add(rows.start * conv.channels).write_bytes(0, rows.len() * conv.channels) }
        }
        for (image, lines) in lines(rows, *size) {
            for sweep in all {
                let (down, first) = (sweep.axes[0], image * sweep.axes[0].count);
                let of_sweep = down.results(&lines);
                let rows = first + of_sweep.start..first + of_sweep.end;
                pulp::Arch::new().dispatch(Pixels { sweep, conv, source, filter, target, rows });
            }
        }
    }
}

/// The kernel by rows.
fn rows(conv: &Conv, all: Vec<Sweep>, covers: bool, inputs: (usize, usize), size: [usize; 2]) -> RowKernel {
    let cut = cut(conv.batch, size, conv.channels, size[0].div_ceil(BANDS.div_ceil(conv.batch.max(1))));
    RowKernel { cut, anywhere: false, prepared: 0, function: Box::new(Rows { conv: *conv, all, covers, inputs, size }) }
}

/// The kernel of the output by rows.
pub(super) fn forward_rows(conv: &Conv) -> RowKernel {
    rows(conv, vec![Sweep::forward(conv)], true, (0, 1), conv.out)
}

/// The kernel of the image's gradient by rows.
pub(super) fn backward_rows(conv: &Conv) -> RowKernel {
    let all = Sweep::backward(conv);
    let covers = Sweep::cover(&all, conv);
    rows(conv, all, covers, (2, 1), conv.image)
}

/// Rows of results of all images.
struct Pixels<'a> {
    sweep: &'a Sweep,
    conv: &'a Conv,
    source: *const f32,
    filter: *const f32,
    target: *mut f32,
    rows: Range<usize>,
}

impl WithSimd for Pixels<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let [down, across] = self.sweep.axes;
        for row in self.rows.clone() {
            for j in 0..across.count {
                let window = (row / down.count, row % down.count, j);
                // SAFETY: the rows are of the sweep's tensors, and of this part alone.
                unsafe { all_channels(simd, &self, self.conv.channels, window) }
            }
        }
    }
}

impl Channels for Pixels<'_> {
    #[inline(always)]
    unsafe fn of<S: Simd, const V: usize, const PART: bool>(
        &self,
        lanes: Lanes<S, PART>,
        (image, i, j): (usize, usize, usize),
        first: usize,
    ) {
        let (simd, sweep, channels) = (lanes.simd, self.sweep, self.conv.channels);
        let [down, across] = sweep.axes;
        let mut sums = [simd.splat_f32s(0.0); V];
        let seen = across.seen(j);
        for ty in down.seen(i) {
            let y = down.start(i).wrapping_add_unsigned(ty * down.tap_step) as usize;
            let line = image * sweep.source.batch + y * sweep.source.y + first;
            let taps = (down.tap(ty)) * self.conv.taps[1];
            for tx in seen.clone() {
                let x = across.start(j).wrapping_add_unsigned(tx * across.tap_step) as usize;
                let (pixel, weights) = (line + x * channels, (taps + across.tap(tx)) * channels + first);
                for (v, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: by the contract; taps that are seen have a pixel.
                    let (x, w) = unsafe {
                        let at = v * S::F32_LANES;
                        (lanes.load(self.source.add(pixel + at)), lanes.load(self.filter.add(weights + at)))
                    };
                    *sum = simd.mul_add_f32s(x, w, *sum);
                }
            }
        }
        let (y, x) = (down.first + i * down.stride, across.first + j * across.stride);
        let at = image * sweep.target.batch + y * sweep.target.y + x * sweep.target.x + first;
        for (v, sum) in sums.into_iter().enumerate() {
            // SAFETY: by the contract.
            unsafe { lanes.store(self.target.add(at + v * S::F32_LANES), sum) }
        }
    }
}
