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

/// Computes a range of the rows of a launch's output 0.
pub type RowFunction = dyn Fn(&Launch<'_>, Range<usize>) + Send + Sync;

/// A host kernel that computes its output 0 by ranges of rows, each alone, whatever the other ranges are.
pub struct RowKernel {
    /// Rows of output 0: the product of its leading sizes.
    pub rows: usize,
    /// How many rows are best computed at once.
    pub block_rows: usize,
    /// Computes these rows of output 0. It takes the output by its pointer, since other threads write other rows.
    pub run: Box<RowFunction>,
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
    /// Its kernel for a tile.
    pub tile: CpuKernel,
    /// Its kernel for the last tile, where that has fewer rows.
    pub last: Option<CpuKernel>,
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
    /// Rows of the whole.
    pub rows: usize,
    /// Rows of a tile.
    pub tile_rows: usize,
    /// Rows of a block, which one thread takes: whole tiles.
    pub block_rows: usize,
    /// What computes a block's rows first, the launch's inputs that it takes, and the output that it leaves them in.
    pub product: Option<(RowKernel, SmallVec<[usize; 4]>, usize)>,
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

impl TiledKernel {
    /// The kernel.
    pub fn kernel(self) -> CpuKernel {
        let tiles = self.rows.div_ceil(self.tile_rows.max(1));
        // The results of tiles, by partial reduction.
        let of_tiles: Vec<Vec<Line>> =
            self.partials.iter().map(|p| vec![Line::default(); lines(tiles * p.len * p.dtype.size())]).collect();
        let of_tiles = Mutex::new(of_tiles);
        let scratch = Scratch::<Line>::new(lines(self.scratch_bytes));
        Box::new(move |l| {
            let mut of_tiles = lock(&of_tiles);
            let partials: SmallVec<[Shared<u8>; 4]> =
                of_tiles.iter_mut().map(|p| Shared::new(p.as_mut_ptr().cast())).collect();
            let buffers = Buffers::of(l);
            let Buffers { outputs, team, .. } = buffers;
            let failure = Mutex::new(None);
            scratch.reserve(team.threads());
            team.chunks(self.rows, self.block_rows, |rows| {
                scratch.with(|mine| {
                    let scratch = mine.as_mut_ptr().cast();
                    let run = Run { tiled: &self, buffers: &buffers, partials: &partials, scratch };
                    if let Err(message) = run.block(rows) {
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

/// One launch, as one thread sees it.
struct Run<'a> {
    tiled: &'a TiledKernel,
    buffers: &'a Buffers<'a>,
    partials: &'a [Shared<u8>],
    scratch: *mut u8,
}

impl Run<'_> {
    /// Computes a block of rows, which begins with a tile.
    fn block(&self, rows: Range<usize>) -> Result<(), String> {
        let TiledKernel { product, tile_rows, .. } = self.tiled;
        if let Some((kernel, inputs, output)) = product {
            let inputs: SmallVec<[View; 4]> = inputs.iter().map(|i| self.buffers.inputs[*i]).collect();
            let output = [self.buffers.outputs[*output]];
            // SAFETY: the launch's own buffers; the output is that of no input, which planning sees to.
            let launch = unsafe { Launch::new(&inputs, &output, self.buffers.team) };
            (kernel.run)(&launch, rows.clone());
        }
        let mut first = rows.start;
        while first < rows.end {
            let count = (*tile_rows).min(rows.end - first);
            self.tile(first, count)?;
            first += count;
        }
        Ok(())
    }

    /// Does everything to one tile.
    fn tile(&self, first: usize, count: usize) -> Result<(), String> {
        let TiledKernel { parts, tile_rows, .. } = self.tiled;
        for part in parts {
            let operands: SmallVec<[View; 4]> =
                part.operands.iter().map(|o| self.view(o, first, count, false)).collect();
            let to = [self.view(&part.to, first, count, true)];
            // SAFETY: the tile's rows of the launch's buffers, scratch memory of this thread, and the tile's own
            // place among partial results; a result lies where an operand does only if the op works in place.
            let launch = unsafe { Launch::new(&operands, &to, self.buffers.team) };
            let kernel = match &part.last {
                Some(last) if count < *tile_rows => last,
                _ => &part.tile,
            };
            kernel(&launch)?;
        }
        Ok(())
    }

    fn view(&self, of: &TileView, first: usize, count: usize, writable: bool) -> View {
        let row = of.len * of.dtype.size();
        // Where the tile's rows begin, and how many there are.
        let (start, rows) = match of.place {
            Place::Input(i) if of.shared => (self.buffers.inputs[i].start, 1),
            Place::Input(i) => (self.buffers.inputs[i].start.wrapping_add(first * row), count),
            Place::Output(i) => (self.buffers.outputs[i].start.wrapping_add(first * row), count),
            Place::Scratch(at) => (self.scratch.wrapping_add(at), count),
            Place::Partial(i) => (self.partials[i].get().wrapping_add(first / self.tiled.tile_rows * row), 1),
        };
        View { start, len: of.len * rows, dtype: of.dtype, writable }
    }
}

/// An input of a kernel that is computed by tiles while the kernel runs: its rows are single elements.
pub struct TileStream {
    tiled: TiledKernel,
    result: TileView,
    scratch: Scratch<Line>,
}

impl TileStream {
    /// What these parts compute; the result is in scratch memory.
    pub fn new(tiled: TiledKernel, result: TileView) -> TileStream {
        let scratch = Scratch::new(lines(tiled.scratch_bytes));
        TileStream { tiled, result, scratch }
    }

    /// Sees to it that so many threads can compute at once without allocating.
    pub fn reserve(&self, threads: usize) {
        self.scratch.reserve(threads);
    }

    /// Computes these elements, which begin with a tile, and gives each tile's elements and where they are for now.
    ///
    /// # Errors
    /// That of an op's kernel.
    pub fn each(
        &self,
        buffers: &Buffers<'_>,
        elements: Range<usize>,
        mut take: impl FnMut(Range<usize>, *const u8),
    ) -> Result<(), String> {
        self.scratch.with(|mine| {
            let run = Run { tiled: &self.tiled, buffers, partials: &[], scratch: mine.as_mut_ptr().cast() };
            for first in elements.clone().step_by(self.tiled.tile_rows) {
                let count = self.tiled.tile_rows.min(elements.end - first);
                run.tile(first, count)?;
                take(first..first + count, run.view(&self.result, first, count, false).start);
            }
            Ok(())
        })
    }
}
