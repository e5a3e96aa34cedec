//! Winograd's convolutions on the host: blocks of tiles of `float32` images with channels last are transformed into
//! scratch memory that fits a cache, multiplied, and transformed into results.
//!
//! Invariant: a tile's results depend on nothing but its sources, so that they are bit-equal for any number of threads and
//! however tiles are cut into blocks.
//! Absent: the filter's gradient (`winograd_filter_kernel.rs`), and blocks that are lines of images (`winograd_rows.rs`).

use super::conv_geometry::{Axis, Conv};
use super::conv_kernel::Sweep;
use super::conv_turn::{turn, turned_len};
use super::elementwise::{Shared, fill};
use super::strip::Strip;
use super::window::DataFormat;
use super::winograd::{PLACES, PRODUCTS, Places, Square, Transform};
use crate::device::{CpuKernel, Scratch, Team};
use std::ops::Range;
use std::sync::Mutex;

/// Elements of a block of transformed tiles and their products: less than half of a second cache.
const ELEMENTS: usize = 96 * 1024;
/// Tiles that are worth it.
const TILES: usize = 48;
/// What the work must become less by.
const GAIN: f64 = 1.5;
/// The channels that a transform takes together.
const CHANNELS: usize = 16;

/// Images of the sizes of a sweep's results, cut into tiles.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub sweep: Sweep,
    pub taps: usize,
    /// Results of a tile along an axis.
    pub side: usize,
    /// Tiles of an image along each axis.
    pub down: usize,
    pub across: usize,
    /// Tiles of a block.
    pub block: usize,
}

impl Tiles {
    /// How a sweep over images with channels last is cut, if this is faster than to compute it as it is.
    pub fn new(sweep: Sweep) -> Option<Tiles> {
        let [y, x] = sweep.axes;
        let simple = |a: &Axis| (a.stride, a.step, a.tap_step) == (1, 1, 1);
        let side = match y.taps {
            3 => 4,
            5 => 2,
            _ => return None,
        };
        let whole = sweep.depth.is_multiple_of(CHANNELS) && sweep.width.is_multiple_of(CHANNELS);
        if !(simple(&y) && simple(&x) && y.taps == x.taps && sweep.groups == 1 && whole) {
            return None;
        }
        if sweep.format != DataFormat::Nhwc || sweep.depth.min(sweep.width) == 0 {
            return None;
        }
        let (down, across) = (y.count.div_ceil(side), x.count.div_ceil(side));
        let block = ELEMENTS / (PRODUCTS * (sweep.depth + sweep.width));
        // Rows are multiplied six at a time.
        let block = (block / 6 * 6).clamp(6, 48);
        let tiles = Tiles { sweep, taps: y.taps, side, down, across, block };
        let direct = (sweep.rows() * y.taps * x.taps) as f64;
        let worth = direct > GAIN * (down * across * PRODUCTS) as f64 && tiles.count() >= TILES;
        worth.then_some(tiles)
    }

    /// Tiles of all images.
    pub fn count(&self) -> usize {
        self.sweep.batch * self.down * self.across
    }

    /// Blocks of them.
    fn blocks(&self) -> usize {
        self.count().div_ceil(self.block)
    }

    /// The tiles of a block.
    fn of_block(&self, block: usize) -> Range<usize> {
        block * self.block..self.count().min((block + 1) * self.block)
    }

    /// The image of a tile, and its first result.
    fn place(&self, tile: usize) -> (usize, [usize; 2]) {
        let (image, tile) = (tile / (self.down * self.across), tile % (self.down * self.across));
        (image, [tile / self.across * self.side, tile % self.across * self.side])
    }

    /// The places of a tile's sources; zeros where there is none.
    pub fn sources(&self, tile: usize, source: *const f32, zeros: &[f32]) -> Places<*const f32> {
        let Sweep { axes: [y, x], source: steps, .. } = self.sweep;
        let (image, first) = self.place(tile);
        let at = |axis: &Axis, first: usize, place: usize| {
            usize::try_from(axis.start(first) + place as isize).ok().filter(|&at| at < axis.source)
        };
        let columns: [Option<usize>; PLACES] = std::array::from_fn(|j| at(&x, first[1], j));
        let mut from = [[zeros.as_ptr(); PLACES]; PLACES];
        for (i, from) in from.iter_mut().enumerate() {
            let Some(row) = at(&y, first[0], i) else { continue };
            let line = source.wrapping_add(image * steps.batch + row * steps.y);
            for (from, column) in from.iter_mut().zip(columns) {
                if let Some(column) = column {
                    *from = line.wrapping_add(column * steps.x);
                }
            }
        }
        from
    }

    /// The places of the gradient of a tile's results; zeros where there is none.
    pub fn gradients(&self, tile: usize, gradient: *const f32, zeros: &[f32]) -> Places<*const f32> {
        let mut from = [[zeros.as_ptr(); PLACES]; PLACES];
        self.results(tile, |i, j, at| from[i][j] = gradient.wrapping_add(at));
        from
    }

    /// Transforms the sources of some tiles: to `[products, block, channels]`.
    ///
    /// # Safety
    /// `source` is a tensor of the sweep's sources, `zeros` has its channels, `to` the size of a block.
    unsafe fn transform_sources(&self, tiles: Range<usize>, source: *const f32, zeros: &[f32], to: *mut f32) {
        let channels = self.sweep.depth;
        for (n, tile) in tiles.enumerate() {
            let (from, to) = (self.sources(tile, source, zeros), self.of(n, channels, to));
            // SAFETY: places that are there are within the tensor, the others are zeros.
            unsafe { Square { transform: Transform::Image, channels, from: &from, to: &to }.run() }
        }
    }

    /// Gives the results of a tile that there are: their places in it and in the tensor.
    fn results(&self, tile: usize, mut give: impl FnMut(usize, usize, usize)) {
        let Sweep { axes: [y, x], target, .. } = self.sweep;
        let (image, [first_y, first_x]) = self.place(tile);
        for i in 0..self.side.min(y.count - first_y) {
            for j in 0..self.side.min(x.count - first_x) {
                give(i, j, image * target.batch + (first_y + i) * target.y + (first_x + j) * target.x);
            }
        }
    }

    /// The places of tile `n` of a block of `[products, block, channels]`.
    fn of(&self, n: usize, channels: usize, start: *mut f32) -> Places<*mut f32> {
        let at = |product: usize| start.wrapping_add((product * self.block + n) * channels);
        std::array::from_fn(|i| std::array::from_fn(|j| at(i * PLACES + j)))
    }

    /// Transforms products `[products, block, channels]` into the results of some tiles.
    ///
    /// # Safety
    /// `target` is a tensor of the sweep's results, `products` has the size of a block.
    unsafe fn transform_results(&self, tiles: Range<usize>, products: *mut f32, target: *mut f32) {
        let width = self.sweep.width;
        for (n, tile) in tiles.enumerate() {
            let mut to: Places<*mut f32> = [[std::ptr::null_mut(); PLACES]; PLACES];
            self.results(tile, |i, j, at| to[i][j] = target.wrapping_add(at));
            let from = self.of(n, width, products).map(|row| row.map(<*mut f32>::cast_const));
            // SAFETY: by the contract.
            unsafe {
                Square { transform: Transform::Result { taps: self.taps }, channels: width, from: &from, to: &to }.run()
            }
        }
    }

    /// Computes the results of some tiles, a block at most.
    ///
    /// # Safety
    /// The tensors have the sweep's sizes, the filter `[products, depth, width]`, the scratch memory [`Tiles::scratch`].
    pub unsafe fn run(
        &self,
        tiles: Range<usize>,
        source: *const f32,
        filter: *const f32,
        target: *mut f32,
        scratch: &mut [f32],
    ) {
        let Sweep { depth, width, .. } = self.sweep;
        let (zeros, rest) = scratch.split_at_mut(depth);
        zeros.fill(0.0);
        let (sources, products) = rest.split_at_mut(PRODUCTS * self.block * depth);
        // SAFETY: by the contract; the scratch memory was split by these sizes.
        unsafe {
            self.transform_sources(tiles.clone(), source, zeros, sources.as_mut_ptr());
            for product in 0..PRODUCTS {
                Strip {
                    rows: tiles.len(),
                    columns: width,
                    loops: [1, depth],
                    a: sources.as_ptr().add(product * self.block * depth),
                    a_row: depth,
                    a_loops: [0, 1],
                    b: filter.add(product * depth * width),
                    b_loops: [0, width],
                    to: products.as_mut_ptr().add(product * self.block * width),
                    to_row: width,
                    add: false,
                }
                .run();
            }
            self.transform_results(tiles, products.as_mut_ptr(), target);
        }
    }

    /// Elements of scratch memory.
    pub fn scratch(&self) -> usize {
        let Sweep { depth, width, .. } = self.sweep;
        depth + PRODUCTS * self.block * (depth + width)
    }

    /// Elements of the transformed filter.
    pub fn transformed(&self) -> usize {
        PRODUCTS * self.sweep.depth * self.sweep.width
    }

    /// Transforms a filter `[taps, taps, depth, width]` to `[products, depth, width]`.
    pub fn transform_filter(&self, team: &Team, filter: &[f32], to: &mut [f32]) {
        let (taps, Sweep { depth, width, .. }) = (self.taps, self.sweep);
        let (from, to) = (Shared::new(filter.as_ptr().cast_mut()), Shared::new(to.as_mut_ptr()));
        team.chunks(depth, (CHANNELS * CHANNELS / width).max(1), |rows| {
            for row in rows {
                let at = |start: *mut f32, place: usize| start.wrapping_add((place * depth + row) * width);
                let tap = |i: usize, j: usize| at(from.get(), i.min(taps - 1) * taps + j.min(taps - 1)).cast_const();
                let from: Places<*const f32> = std::array::from_fn(|i| std::array::from_fn(|j| tap(i, j)));
                let product = |i: usize, j: usize| at(to.get(), i * PLACES + j);
                let to: Places<*mut f32> = std::array::from_fn(|i| std::array::from_fn(|j| product(i, j)));
                // SAFETY: both have these sizes, and each row is of one part.
                unsafe { Square { transform: Transform::Filter { taps }, channels: width, from: &from, to: &to }.run() }
            }
        });
    }
}

/// What a launch keeps between its steps.
struct Filters {
    turned: Vec<f32>,
    transformed: Vec<f32>,
}

/// Computes all results of a sweep.
fn run(team: &Team, tiles: &Tiles, scratch: &Scratch<f32>, source: &[f32], filter: &[f32], target: &mut [f32]) {
    let (source, filter) = (Shared::new(source.as_ptr().cast_mut()), Shared::new(filter.as_ptr().cast_mut()));
    let target = Shared::new(target.as_mut_ptr());
    scratch.reserve(team.threads());
    team.run(tiles.blocks(), |block| {
        // SAFETY: the tensors have the sweep's sizes; each block writes results of its own.
        scratch.with(|scratch| unsafe {
            tiles.run(tiles.of_block(block), source.get(), filter.get(), target.get(), scratch)
        });
    });
}

/// The kernel of the output, of image and filter, where this is worth it.
pub(super) fn forward(conv: &Conv) -> Option<CpuKernel> {
    let tiles = Tiles::new(Sweep::forward(conv))?;
    let scratch = Scratch::new(tiles.scratch());
    let transformed = Mutex::new(vec![0.0f32; tiles.transformed()]);
    Some(Box::new(move |l| {
        // Every launch overwrites all of it, so a poisoned lock does not matter.
        let mut transformed = transformed.lock().unwrap_or_else(|e| e.into_inner());
        tiles.transform_filter(l.team(), l.input(1), &mut transformed);
        run(l.team(), &tiles, &scratch, l.input(0), &transformed, l.output(0));
        Ok(())
    }))
}

/// The kernel of the image's gradient, of the filter (input 1) and the output's gradient (input 2), where this is worth
/// it.
pub(super) fn backward(conv: &Conv) -> Option<CpuKernel> {
    let sweeps = Sweep::backward(conv);
    let &[sweep] = &sweeps[..] else { return None };
    let tiles = Tiles::new(sweep)?;
    let covers = Sweep::cover(&sweeps, conv);
    let scratch = Scratch::new(tiles.scratch());
    let transformed = vec![0.0f32; tiles.transformed()];
    let filters = Mutex::new(Filters { turned: vec![0.0f32; turned_len(&sweeps)], transformed });
    let conv = *conv;
    Some(Box::new(move |l| {
        // Every launch overwrites all of it, so a poisoned lock does not matter.
        let mut filters = filters.lock().unwrap_or_else(|e| e.into_inner());
        let Filters { turned, transformed } = &mut *filters;
        let target = l.output::<f32>(0);
        if !covers {
            fill(l.team(), target, 0.0);
        }
        turn(l.team(), &conv, &sweeps, l.input::<f32>(1), turned);
        tiles.transform_filter(l.team(), turned, transformed);
        run(l.team(), &tiles, &scratch, l.input(2), transformed, target);
        Ok(())
    }))
}
