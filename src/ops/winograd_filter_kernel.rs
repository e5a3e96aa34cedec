//! The gradient of a filter by Winograd's transforms: blocks of tiles of the image and of the output's gradient are
//! transformed, their products summed over all tiles, and the sums transformed once. A block is gone through by rows of
//! products, so that its tiles are many and their sums stay in a cache.
//!
//! Invariant: tiles are cut into a fixed number of runs, whose sums are added in order.

use super::conv_filter_kernel::add_runs;
use super::conv_geometry::Conv;
use super::conv_kernel::Sweep;
use super::elementwise::Shared;
use super::strip::Strip;
use super::winograd::{PLACES, PRODUCTS, Places, Row, Square, Transform};
use super::winograd_kernel::Tiles;
use crate::device::{CpuKernel, Scratch, Team};
use std::ops::Range;
use std::sync::Mutex;

/// Runs of tiles.
const RUNS: usize = 8;
/// The largest number of elements of a filter's rows and columns: its sums are kept for every run.
const LARGEST: usize = 128 * 128;
/// Elements of a row of products of a block's tiles: a quarter of a second cache; fewer in tests, so that small images
/// have several blocks.
const ELEMENTS: usize = if cfg!(test) { 8 * 1024 } else { 64 * 1024 };

/// How the work is cut.
#[derive(Clone, Copy)]
struct Cut {
    tiles: Tiles,
    depth: usize,
    width: usize,
    /// Tiles of a block.
    block: usize,
    runs: usize,
}

impl Cut {
    fn new(conv: &Conv) -> Option<Cut> {
        let sweep = Sweep::forward(conv);
        let Sweep { depth, width, .. } = sweep;
        let tiles = Tiles::new(sweep).filter(|_| depth * width <= LARGEST)?;
        let block = (ELEMENTS / (PLACES * (depth + width))).max(16);
        let runs = tiles.count().div_ceil(block).min(RUNS);
        Some(Cut { tiles, depth, width, block, runs })
    }

    /// Elements of the sums of a run.
    fn of_run(&self) -> usize {
        PRODUCTS * self.depth * self.width
    }

    /// Elements of scratch memory: zeros, a row of products of a block's images, the same of its gradients.
    fn scratch(&self) -> [usize; 3] {
        let of = |channels: usize| PLACES * self.block * channels;
        [self.depth.max(self.width), of(self.depth), of(self.width)]
    }

    /// The sums `[products, depth, width]` of one run.
    ///
    /// # Safety
    /// The tensors have the convolution's sizes, the sums those of a run, the scratch memory its elements.
    unsafe fn run(&self, run: usize, source: *const f32, gradient: *const f32, sums: *mut f32, scratch: &mut [f32]) {
        let count = self.tiles.count();
        let (first, end) = (count * run / self.runs, count * (run + 1) / self.runs);
        let (zeros, rest) = scratch.split_at_mut(self.scratch()[0]);
        let (images, gradients) = rest.split_at_mut(self.scratch()[1]);
        zeros.fill(0.0);
        for from in (first..end).step_by(self.block) {
            let tiles = from..end.min(from + self.block);
            for row in 0..PLACES {
                // SAFETY: by the contract.
                unsafe {
                    self.transform(row, tiles.clone(), source, gradient, zeros, [images, gradients]);
                    for column in 0..PLACES {
                        Strip {
                            rows: self.depth,
                            columns: self.width,
                            loops: [1, tiles.len()],
                            a: images.as_ptr().add(column * self.block * self.depth),
                            a_row: 1,
                            a_loops: [0, self.depth],
                            b: gradients.as_ptr().add(column * self.block * self.width),
                            b_loops: [0, self.width],
                            to: sums.add((row * PLACES + column) * self.depth * self.width),
                            to_row: self.width,
                            add: from > first,
                        }
                        .run();
                    }
                }
            }
        }
    }

    /// Transforms a row of products of some tiles, of images and of gradients.
    ///
    /// # Safety
    /// As [`Cut::run`].
    unsafe fn transform(
        &self,
        row: usize,
        tiles: Range<usize>,
        source: *const f32,
        gradient: *const f32,
        zeros: &[f32],
        [images, gradients]: [&mut [f32]; 2],
    ) {
        let (image, taps) = (Transform::Image, self.tiles.taps);
        for (n, tile) in tiles.enumerate() {
            let (channels, to_step) = (self.depth, self.block * self.depth);
            let (from, to) = (self.tiles.sources(tile, source, zeros), images[n * channels..].as_mut_ptr());
            // SAFETY: places that are there are within the tensor, the others are zeros.
            unsafe { Row { transform: image, row, channels, from: &from, to, to_step }.run() }
            let (channels, to_step) = (self.width, self.block * self.width);
            let (from, to) = (self.tiles.gradients(tile, gradient, zeros), gradients[n * channels..].as_mut_ptr());
            let transform = Transform::ResultGradient { taps };
            // SAFETY: as above.
            unsafe { Row { transform, row, channels, from: &from, to, to_step }.run() }
        }
    }

    /// Transforms sums `[products, depth, width]` to the filter's gradient `[taps, taps, depth, width]`.
    fn finish(&self, team: &Team, sums: &[f32], filter: &mut [f32]) {
        let (taps, filter) = (self.tiles.taps, Shared::new(filter.as_mut_ptr()));
        team.chunks(self.depth, 4, |rows| {
            for row in rows {
                let at = |place: usize| (place * self.depth + row) * self.width;
                let from: Places<*const f32> =
                    std::array::from_fn(|i| std::array::from_fn(|j| sums.as_ptr().wrapping_add(at(i * PLACES + j))));
                let mut to: Places<*mut f32> = [[std::ptr::null_mut(); PLACES]; PLACES];
                for (i, to) in to.iter_mut().take(taps).enumerate() {
                    for (j, to) in to.iter_mut().take(taps).enumerate() {
                        *to = filter.get().wrapping_add(at(i * taps + j));
                    }
                }
                let transform = Transform::FilterGradient { taps };
                // SAFETY: the filter's rows are within it, and each is of one part.
                unsafe { Square { transform, channels: self.width, from: &from, to: &to }.run() }
            }
        });
    }
}

/// What a launch keeps between its steps.
struct Sums {
    runs: Vec<f32>,
    total: Vec<f32>,
}

/// The kernel of the filter's gradient, of the image (input 0) and the output's gradient (input 2), where this is worth
/// it.
pub(super) fn filter_gradient(conv: &Conv) -> Option<CpuKernel> {
    let cut = Cut::new(conv)?;
    let of_run = cut.of_run();
    let sums = Mutex::new(Sums { runs: vec![0.0f32; cut.runs * of_run], total: vec![0.0f32; of_run] });
    let scratch = Scratch::<f32>::new(cut.scratch().iter().sum());
    Some(Box::new(move |l| {
        // Every launch overwrites all of it, so a poisoned lock does not matter.
        let mut sums = sums.lock().unwrap_or_else(|e| e.into_inner());
        let Sums { runs, total } = &mut *sums;
        let to = Shared::new(runs.as_mut_ptr());
        let source = Shared::new(l.input::<f32>(0).as_ptr().cast_mut());
        let gradient = Shared::new(l.input::<f32>(2).as_ptr().cast_mut());
        scratch.reserve(l.team().threads());
        l.team().run(cut.runs, |run| {
            scratch.with(|scratch| {
                // SAFETY: the tensors have the convolution's sizes, and each run has sums of its own.
                unsafe { cut.run(run, source.get(), gradient.get(), to.get().add(run * of_run), scratch) }
            });
        });
        add_runs(l.team(), runs, total);
        cut.finish(l.team(), total, l.output(0));
        Ok(())
    }))
}
