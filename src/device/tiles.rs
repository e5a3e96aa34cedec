//! Fused host kernels: blocks of rows, each of which a product may begin, and then small tiles on which the kernels of
//! several ops run one after the other while the tile is in the first caches.
//!
//! Absent: what is fused and which kernels these are. Invariant: where blocks and tiles begin depends on the sizes alone,
//! and the results of a reduction's tiles are merged in their order, so that bits do not depend on the threads.

use super::kernel::{CpuKernel, Launch, View};
use super::scratch::Scratch;
use super::shared::Shared;
use super::team::Team;
use crate::base::DType;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Elements of a tile: a few of them fit the first caches. What has no more is one tile, and gains nothing.
pub const TILE: usize = 1 << 12;

/// How rows are cut: into spans of equal length, each of which is cut, by itself, into blocks. The last span may be shorter,
/// and so may the last block of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// All rows.
    pub rows: usize,
    /// Rows of a span, at least one.
    pub span: usize,
    /// Rows of a block, at least one.
    pub block: usize,
}

impl Cut {
    /// Rows that are cut into blocks of this many and a rest.
    pub fn even(rows: usize, block: usize) -> Cut {
        Cut { rows, span: rows.max(1), block: block.max(1) }
    }

    /// The same in rows of `times` of these each, in blocks that are as small as that allows.
    pub fn coarser(&self, times: usize) -> Cut {
        let times = times.max(1);
        let (rows, spans) = (self.rows / times, self.span.is_multiple_of(times));
        match (self.block.is_multiple_of(times), spans) {
            (true, true) => Cut { rows, span: self.span / times, block: self.block / times },
            (false, true) => Cut { rows, span: self.span / times, block: self.span / times },
            (_, false) => Cut::even(rows, rows),
        }
    }

    /// Blocks of a whole span.
    fn of_span(&self) -> usize {
        self.span.div_ceil(self.block)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.rows / self.span * self.of_span() + (self.rows % self.span).div_ceil(self.block)
    }

    /// The rows of a block.
    pub fn block(&self, block: usize) -> Range<usize> {
        let (span, block) = (block / self.of_span(), block % self.of_span());
        let end = self.rows.min((span + 1) * self.span);
        let first = span * self.span + block * self.block;
        first..end.min(first + self.block)
    }

    /// Tiles of so many rows before a block that begins with a tile, as every block does.
    fn tiles_before(&self, block: usize, tile_rows: usize) -> usize {
        let (span, block) = (block / self.of_span(), block % self.of_span());
        span * self.tiles_of(self.span, tile_rows) + block * self.block.div_ceil(tile_rows)
    }

    /// Tiles of a span of so many rows.
    fn tiles_of(&self, span: usize, tile_rows: usize) -> usize {
        span / self.block * self.block.div_ceil(tile_rows) + (span % self.block).div_ceil(tile_rows)
    }

    /// Number of tiles of so many rows; the last of each block may be smaller.
    pub fn tiles(&self, tile_rows: usize) -> usize {
        self.rows / self.span * self.tiles_of(self.span, tile_rows) + self.tiles_of(self.rows % self.span, tile_rows)
    }

    /// How many rows tiles have, of `tile_rows` at most: each number once.
    pub fn sizes_of_tiles(&self, tile_rows: usize) -> SmallVec<[usize; 4]> {
        let mut sizes = SmallVec::new();
        let spans = [self.span.min(self.rows), self.rows % self.span];
        for rows in spans.into_iter().flat_map(|span| [self.block.min(span), span % self.block]) {
            let whole = if rows >= tile_rows { tile_rows } else { 0 };
            for size in [whole, rows % tile_rows] {
                if size > 0 && !sizes.contains(&size) {
                    sizes.push(size);
                }
            }
        }
        sizes
    }
}

/// How a kernel computes its output 0 by blocks of rows.
pub trait RowFunction: Send + Sync {
    /// Runs once for a launch, before all blocks: makes what they have in common in memory that they then read.
    fn prepare(&self, _launch: &Launch<'_>, _prepared: &mut [f32]) {}

    /// Computes these rows of output 0: one block, or several that follow each other. It takes the output by its pointer,
    /// since other threads write other rows.
    fn run(&self, launch: &Launch<'_>, prepared: &[f32], rows: Range<usize>);
}

/// A host kernel that computes its output 0 by blocks of rows, each alone, with the same bits whatever the other blocks are.
pub struct RowKernel {
    /// Rows of output 0, the product of its leading sizes, and blocks that are best computed at once.
    pub cut: Cut,
    /// Whether blocks may begin and end at any row; otherwise only where `cut` has them.
    pub anywhere: bool,
    /// Elements of the memory that is prepared once for a launch.
    pub prepared: usize,
    /// Computes.
    pub function: Box<dyn RowFunction>,
}

/// What computes the rows of a fused kernel's blocks first.
pub struct Product {
    /// Its kernel.
    pub kernel: RowKernel,
    /// How many of its rows one row of the fused kernel is.
    pub rows: usize,
    /// The launch's inputs that it takes.
    pub inputs: SmallVec<[usize; 4]>,
    /// The launch's output that it leaves its rows in.
    pub output: usize,
}

/// Where a tile's operand or result is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In an input of the launch.
    Input(usize),
    /// In an output of the launch.
    Output(usize),
    /// From this byte of the thread's scratch memory on, by tile.
    Scratch(usize),
    /// Among the results of the tiles of this partial reduction.
    Partial(usize),
}

/// An operand or a result of a part, as tiles see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TileView {
    /// Where it is.
    pub place: Place,
    /// Elements of one row; of the whole where all tiles share it, of a tile's result where that is partial.
    pub len: usize,
    /// Whether it is an input that all tiles share.
    pub shared: bool,
    /// The element type.
    pub dtype: DType,
}

/// One op of a fused kernel.
pub struct TilePart {
    /// Its kernels, by the number of a tile's rows.
    pub tiles: SmallVec<[(usize, CpuKernel); 2]>,
    /// What it reads, in the order of the op's inputs.
    pub operands: SmallVec<[TileView; 3]>,
    /// What it writes.
    pub to: TileView,
}

/// A reduction over rows: each tile reduces its own, then the tiles' results are reduced.
pub struct Partial {
    /// The launch's output with the result.
    pub output: usize,
    /// Elements of the result.
    pub len: usize,
    /// The element type.
    pub dtype: DType,
    /// Reduces `[tiles, len]` to `[len]`.
    pub merge: CpuKernel,
}

/// A fused kernel's plan.
pub struct TiledKernel {
    /// Rows, and the blocks that threads take.
    pub cut: Cut,
    /// Rows of a tile; the last tile of a block may have fewer.
    pub tile_rows: usize,
    /// What computes a block's rows first.
    pub product: Option<Product>,
    /// What is done to each tile, in order.
    pub parts: Vec<TilePart>,
    /// The reductions over rows.
    pub partials: Vec<Partial>,
    /// Bytes of a thread's scratch memory.
    pub scratch_bytes: usize,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

impl Default for Line {
    fn default() -> Line {
        Line { _bytes: [0; 64] }
    }
}

/// Cache lines of so many bytes.
fn lines(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<Line>())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic left nothing that the next user reads.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// What a fused kernel keeps, and overwrites in every launch.
struct Kept {
    /// The results of tiles, by partial reduction.
    of_tiles: Vec<Vec<Line>>,
    /// What its product prepares.
    prepared: Vec<Line>,
}

impl TiledKernel {
    /// The kernel.
    pub fn kernel(self) -> CpuKernel {
        let tiles = self.cut.tiles(self.tile_rows);
        let lines_of = |bytes: usize| vec![Line::default(); lines(bytes)];
        let of_tiles = self.partials.iter().map(|p| lines_of(tiles * p.len * p.dtype.size())).collect();
        let prepared = self.product.as_ref().map_or(0, |p| p.kernel.prepared);
        let kept = Mutex::new(Kept { of_tiles, prepared: lines_of(prepared * size_of::<f32>()) });
        let scratch = Scratch::<Line>::new(lines(self.scratch_bytes));
        Box::new(move |l| {
            let mut kept = lock(&kept);
            let Kept { of_tiles, prepared: memory } = &mut *kept;
            let partials: SmallVec<[Shared<u8>; 4]> =
                of_tiles.iter_mut().map(|p| Shared::new(p.as_mut_ptr().cast())).collect();
            // SAFETY: the lines hold so many elements, any bytes are numbers, and only this launch uses them.
            let memory = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<f32>(), prepared) };
            let buffers = Buffers::of(l);
            let Buffers { outputs, team, .. } = buffers;
            if let Some(product) = &self.product {
                buffers.with_product(product, |launch| product.kernel.function.prepare(launch, memory));
            }
            let prepared = &*memory;
            let failure = Mutex::new(None);
            scratch.reserve(team.threads());
            team.run(self.cut.blocks(), |block| {
                scratch.with(|mine| {
                    let scratch = mine.as_mut_ptr().cast();
                    let run = Run { tiled: &self, buffers: &buffers, partials: &partials, prepared, scratch };
                    if let Err(message) = run.block(block) {
                        lock(&failure).get_or_insert(message);
                    }
                });
            });
            if let Some(message) = lock(&failure).take() {
                return Err(message);
            }
            for (partial, start) in self.partials.iter().zip(&partials) {
                let input =
                    View { start: start.get(), len: tiles * partial.len, dtype: partial.dtype, writable: false };
                // SAFETY: the tiles' results are this kernel's own memory, which all parts have left; the output is the
                // launch's, and no part writes it.
                let merge = unsafe {
                    let output = std::slice::from_ref(&outputs[partial.output]);
                    Launch::new(std::slice::from_ref(&input), output, team)
                };
                (partial.merge)(&merge)?;
            }
            Ok(())
        })
    }
}

/// The buffers of a launch, which all its threads use.
#[derive(Clone, Copy)]
pub struct Buffers<'a> {
    inputs: &'a [View],
    outputs: &'a [View],
    team: &'a Team,
}

impl<'a> Buffers<'a> {
    /// Those of this launch.
    pub fn of(launch: &Launch<'a>) -> Buffers<'a> {
        let (inputs, outputs, team) = launch.parts();
        Buffers { inputs, outputs, team }
    }
}

// SAFETY: inputs are only read, and each thread writes rows of its own.
unsafe impl Sync for Buffers<'_> {}

impl Buffers<'_> {
    /// Gives the launch that a product sees.
    fn with_product(&self, product: &Product, give: impl FnOnce(&Launch<'_>)) {
        let inputs: SmallVec<[View; 4]> = product.inputs.iter().map(|i| self.inputs[*i]).collect();
        let output = [self.outputs[product.output]];
        // SAFETY: the launch's own buffers; the output is that of no input, which planning sees to.
        give(&unsafe { Launch::new(&inputs, &output, self.team) });
    }
}

/// One launch, as one thread sees it.
struct Run<'a> {
    tiled: &'a TiledKernel,
    buffers: &'a Buffers<'a>,
    partials: &'a [Shared<u8>],
    prepared: &'a [f32],
    scratch: *mut u8,
}

impl Run<'_> {
    /// Computes a block of rows, which begins with a tile.
    fn block(&self, block: usize) -> Result<(), String> {
        let TiledKernel { cut, product, tile_rows, .. } = self.tiled;
        let rows = cut.block(block);
        if let Some(product) = product {
            let own = rows.start * product.rows..rows.end * product.rows;
            self.buffers.with_product(product, |launch| product.kernel.function.run(launch, self.prepared, own));
        }
        let (mut tile, mut first) = (cut.tiles_before(block, *tile_rows), rows.start);
        while first < rows.end {
            let count = (*tile_rows).min(rows.end - first);
            self.tile(tile, first, count)?;
            (tile, first) = (tile + 1, first + count);
        }
        Ok(())
    }

    /// Does everything to one tile, of this number, first row and rows.
    fn tile(&self, tile: usize, first: usize, count: usize) -> Result<(), String> {
        for part in &self.tiled.parts {
            let operands: SmallVec<[View; 4]> =
                part.operands.iter().map(|o| self.view(o, tile, first, count, false)).collect();
            let to = [self.view(&part.to, tile, first, count, true)];
            // SAFETY: the tile's rows of the launch's buffers, scratch memory of this thread, and the tile's own
            // place among partial results; a result lies where an operand does only if the op works in place.
            let launch = unsafe { Launch::new(&operands, &to, self.buffers.team) };
            let kernel = part.tiles.iter().find(|(rows, _)| *rows == count);
            kernel.ok_or_else(|| format!("a tile of {count} rows has no kernel"))?.1(&launch)?;
        }
        Ok(())
    }

    fn view(&self, of: &TileView, tile: usize, first: usize, count: usize, writable: bool) -> View {
        let row = of.len * of.dtype.size();
        // Where the tile's rows begin, and how many there are.
        let (start, rows) = match of.place {
            Place::Input(i) if of.shared => (self.buffers.inputs[i].start, 1),
            Place::Input(i) => (self.buffers.inputs[i].start.wrapping_add(first * row), count),
            Place::Output(i) => (self.buffers.outputs[i].start.wrapping_add(first * row), count),
            Place::Scratch(at) => (self.scratch.wrapping_add(at), count),
            Place::Partial(i) => (self.partials[i].get().wrapping_add(tile * row), 1),
        };
        View { start, len: of.len * rows, dtype: of.dtype, writable }
    }
}

/// An input of a kernel that is computed by tiles while the kernel runs: its rows are single elements.
pub struct TileStream {
    tiled: TiledKernel,
    result: TileView,
}

/// What threads compute streams in: one buffer for each, whichever stream it is.
pub struct StreamScratch(Scratch<Line>);

impl StreamScratch {
    /// For these streams; buffers are as large as the largest needs.
    pub fn of<'a>(streams: impl Iterator<Item = &'a TileStream>) -> StreamScratch {
        StreamScratch(Scratch::new(lines(streams.map(|s| s.tiled.scratch_bytes).max().unwrap_or(0))))
    }

    /// Sees to it that so many threads can compute at once without allocating.
    pub fn reserve(&self, threads: usize) {
        self.0.reserve(threads);
    }
}

impl TileStream {
    /// What these parts compute; the result is in scratch memory.
    pub fn new(tiled: TiledKernel, result: TileView) -> TileStream {
        TileStream { tiled, result }
    }

    /// Computes these elements, which begin with a tile, and gives each tile's elements and where they are for now.
    ///
    /// # Errors
    /// That of an op's kernel.
    pub fn each(
        &self,
        buffers: &Buffers<'_>,
        scratch: &StreamScratch,
        elements: Range<usize>,
        mut take: impl FnMut(Range<usize>, *const u8),
    ) -> Result<(), String> {
        scratch.0.with(|mine| {
            let scratch = mine.as_mut_ptr().cast();
            let run = Run { tiled: &self.tiled, buffers, partials: &[], prepared: &[], scratch };
            for first in elements.clone().step_by(self.tiled.tile_rows) {
                let count = self.tiled.tile_rows.min(elements.end - first);
                let tile = first / self.tiled.tile_rows;
                run.tile(tile, first, count)?;
                take(first..first + count, run.view(&self.result, tile, first, count, false).start);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_tiles_are_all_rows_in_order() {
        for (rows, span, block) in [(24, 12, 5), (24, 24, 7), (30, 12, 5), (6, 6, 9), (0, 1, 3), (12, 4, 4)] {
            let cut = Cut { rows, span, block };
            for tile_rows in 1..=block {
                let sizes = cut.sizes_of_tiles(tile_rows);
                let (mut next, mut tile) = (0, 0);
                let mut used: SmallVec<[usize; 4]> = SmallVec::new();
                for block in 0..cut.blocks() {
                    assert_eq!(cut.tiles_before(block, tile_rows), tile, "{cut:?}, block {block}");
                    let of_block = cut.block(block);
                    assert!(of_block.start == next && !of_block.is_empty(), "{cut:?}, block {block}: {of_block:?}");
                    assert!(of_block.start / span == (of_block.end - 1) / span, "{cut:?}, block {block}");
                    while next < of_block.end {
                        let size = tile_rows.min(of_block.end - next);
                        used.push(size);
                        (next, tile) = (next + size, tile + 1);
                    }
                }
                assert_eq!((next, tile), (rows, cut.tiles(tile_rows)), "{cut:?} in tiles of {tile_rows}");
                assert!(used.iter().all(|u| sizes.contains(u)) && sizes.iter().all(|s| used.contains(s)), "{cut:?}");
            }
        }
    }

    #[test]
    fn coarser_rows_are_cut_where_finer_ones_are() {
        let lines = Cut { rows: 3 * 10 * 6, span: 10 * 6, block: 4 * 6 };
        assert_eq!(lines.coarser(1), lines);
        assert_eq!(lines.coarser(6), Cut { rows: 30, span: 10, block: 4 });
        assert_eq!(lines.coarser(60), Cut { rows: 3, span: 1, block: 1 });
        assert_eq!(Cut::even(7 * 30, 60).coarser(30), Cut { rows: 7, span: 7, block: 2 });
        assert_eq!(Cut::even(90, 40).coarser(30), Cut { rows: 3, span: 3, block: 3 });
    }
}
