//! Convolutions on the host, of any float and layout: blocks of the patch matrix, packed into scratch memory that fits a
//! cache, times the filter by crate `gemm`. A window of one element without stride needs no patches, and is a plain
//! product. `float32` with channels last has faster ways (`conv_strips.rs`, `winograd_kernel.rs`).
//!
//! Invariant: what is cut into blocks, and where, depends on the sizes alone, so that results are bit-equal for any
//! number of threads. Absent: the filter's gradient (`conv_filter_kernel.rs`), the filter turned (`conv_turn.rs`), filters
//! of single channels (`depthwise_kernel.rs`).

use super::conv_geometry::{Axis, Conv};
use super::conv_turn::{turn, turned_len};
use super::elementwise::{Shared, fill};
use super::number::Number;
use super::window::DataFormat;
use crate::device::{CpuKernel, Scratch, Team};
use std::ops::Range;
use std::sync::Mutex;

/// Elements of a row of patches that are multiplied at a time; whole taps, so that it may be more.
pub(super) const DEPTH: usize = 512;
/// Elements of a block of patches: half of a second cache.
pub(super) const PATCHES: usize = 128 * 1024;
/// Multiplications and additions that are worth a part of their own.
const PART_FLOPS: f64 = 8e6;
/// Parts that a convolution of enough work is cut into at least.
const PARTS: usize = 16;

/// Parts that each of so many pieces of this work is to be cut into.
pub(super) fn parts(flops: f64, pieces: usize) -> usize {
    ((flops / PART_FLOPS) as usize).min(PARTS).div_ceil(pieces.max(1)).max(1)
}

/// An image's elements and the steps between them, by axis.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub batch: usize,
    pub y: usize,
    pub x: usize,
    pub channel: usize,
}

impl Steps {
    pub fn new(format: DataFormat, [height, width]: [usize; 2], channels: usize) -> Steps {
        let batch = height * width * channels;
        match format {
            DataFormat::Nhwc => Steps { batch, y: width * channels, x: channels, channel: 1 },
            DataFormat::Nchw => Steps { batch, y: width, x: 1, channel: height * width },
        }
    }
}

/// Results along a pair of axes, and the images on both sides.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    pub axes: [Axis; 2],
    pub batch: usize,
    pub groups: usize,
    pub format: DataFormat,
    pub source: Steps,
    /// Channels of a group of the source.
    pub depth: usize,
    pub target: Steps,
    /// Channels of a group of the target.
    pub width: usize,
}

impl Sweep {
    pub fn forward(conv: &Conv) -> Sweep {
        Sweep {
            axes: [conv.forward(0), conv.forward(1)],
            batch: conv.batch,
            groups: conv.groups,
            format: conv.format,
            source: Steps::new(conv.format, conv.image, conv.channels),
            depth: conv.depth(),
            target: Steps::new(conv.format, conv.out, conv.filters),
            width: conv.width(),
        }
    }

    pub fn backward(conv: &Conv) -> Vec<Sweep> {
        let forward = Sweep::forward(conv);
        let turned = |axes| Sweep {
            axes,
            source: forward.target,
            depth: forward.width,
            target: forward.source,
            width: forward.depth,
            ..forward
        };
        let across = conv.backward(1);
        conv.backward(0).into_iter().flat_map(|y| across.iter().map(move |&x| turned([y, x]))).collect()
    }

    /// True if backward sweeps give every place of a convolution's image a value; the others are zero.
    pub fn cover(sweeps: &[Sweep], conv: &Conv) -> bool {
        let covered: usize = sweeps.iter().map(Sweep::rows).sum();
        covered == conv.image[0] * conv.image[1] && conv.out.iter().all(|&n| n > 0)
    }

    /// Multiplications and additions.
    pub fn flops(&self) -> f64 {
        let all = [self.depth, self.taps(), self.width, self.groups, self.batch, self.rows(), 2];
        all.iter().map(|&n| n as f64).product()
    }

    /// Results of one image.
    pub fn rows(&self) -> usize {
        self.axes[0].count * self.axes[1].count
    }

    /// Elements of the window.
    pub fn taps(&self) -> usize {
        self.axes[0].taps * self.axes[1].taps
    }

    /// True if every result is one source, in the same order.
    pub fn is_plain(&self) -> bool {
        self.axes.iter().all(Axis::is_plain)
    }

    /// True if results lie in the target as they are counted.
    fn is_whole(&self) -> bool {
        self.axes.iter().all(|a| a.stride == 1)
    }

    /// How rows of all images are counted through: in runs of this number and length.
    pub fn spans(&self) -> (usize, usize) {
        match self.format {
            DataFormat::Nhwc => (1, self.batch * self.rows()),
            DataFormat::Nchw => (self.batch, self.rows()),
        }
    }

    /// The image, row and column of a result.
    #[inline(always)]
    fn place(&self, row: usize) -> (usize, usize, usize) {
        let across = self.axes[1].count;
        (row / across / self.axes[0].count, row / across % self.axes[0].count, row % across)
    }

    /// Writes the patches that some results of a group see by some taps: a row for each result, where the channels are
    /// last, else a column.
    ///
    /// # Safety
    /// `source` is a group's first element in an image tensor of these steps, rows are of it (with channels in the
    /// middle, of one image), and `to` has an element for each row, tap and channel.
    #[inline]
    pub unsafe fn pack<T: Number>(&self, source: *const T, rows: Range<usize>, taps: Range<usize>, to: *mut T) {
        // SAFETY: by the contract.
        unsafe {
            match self.format {
                DataFormat::Nhwc => self.pack_pixels(source, rows, taps, to),
                DataFormat::Nchw => self.pack_planes(source, rows, taps, to),
            }
        }
    }

    /// # Safety
    /// As `pack`.
    unsafe fn pack_pixels<T: Number>(&self, source: *const T, rows: Range<usize>, taps: Range<usize>, to: *mut T) {
        let ([down, across], depth) = (self.axes, self.depth);
        let together = across.tap_step == 1 && self.source.x == depth;
        let (mut image, mut i, mut j) = self.place(rows.start);
        let mut to = to;
        for _ in rows {
            let mut tap = taps.start;
            while tap < taps.end {
                let (ty, tx) = (tap / across.taps, tap % across.taps);
                let run = (across.taps - tx).min(taps.end - tap);
                // SAFETY: sources are within the image, and `to` has room for every tap and channel.
                unsafe {
                    match down.source(i, ty) {
                        None => to.write_bytes(0, run * depth),
                        Some(y) => {
                            let line = source.add(image * self.source.batch + y * self.source.y);
                            if together {
                                let seen = across.seen(j);
                                let (from, until) = (seen.start.clamp(tx, tx + run), seen.end.clamp(tx, tx + run));
                                if from < until {
                                    let first = line.add((across.start(j) + from as isize) as usize * depth);
                                    to.write_bytes(0, (from - tx) * depth);
                                    first.copy_to_nonoverlapping(to.add((from - tx) * depth), (until - from) * depth);
                                    to.add((until - tx) * depth).write_bytes(0, (tx + run - until) * depth);
                                } else {
                                    to.write_bytes(0, run * depth);
                                }
                            } else {
                                for t in 0..run {
                                    let to = to.add(t * depth);
                                    match across.source(j, tx + t) {
                                        Some(x) => line.add(x * self.source.x).copy_to_nonoverlapping(to, depth),
                                        None => to.write_bytes(0, depth),
                                    }
                                }
                            }
                        }
                    }
                    to = to.add(run * depth);
                }
                tap += run;
            }
            j += 1;
            if j == across.count {
                (i, j) = (i + 1, 0);
            }
            if i == down.count {
                (image, i) = (image + 1, 0);
            }
        }
    }

    /// # Safety
    /// As `pack`.
    unsafe fn pack_planes<T: Number>(&self, source: *const T, rows: Range<usize>, taps: Range<usize>, to: *mut T) {
        let [down, across] = self.axes;
        let mut to = to;
        for tap in taps {
            let (ty, tx) = (tap / across.taps, tap % across.taps);
            let seeing = across.seeing(tx);
            for channel in 0..self.depth {
                let mut row = rows.start;
                while row < rows.end {
                    let (i, from) = (row / across.count, row % across.count);
                    let until = across.count.min(from + rows.end - row);
                    let (first, last) = (seeing.start.clamp(from, until), seeing.end.clamp(from, until));
                    // SAFETY: sources are within the image, and `to` has room for every row.
                    unsafe {
                        match down.source(i, ty).filter(|_| first < last) {
                            None => to.write_bytes(0, until - from),
                            Some(y) => {
                                let x = across.start(first) + (tx * across.tap_step) as isize;
                                let line = source.add(channel * self.source.channel + y * self.source.y + x as usize);
                                to.write_bytes(0, first - from);
                                if across.step == 1 {
                                    line.copy_to_nonoverlapping(to.add(first - from), last - first);
                                } else {
                                    for n in 0..last - first {
                                        to.add(first - from + n).write(line.add(n * across.step).read());
                                    }
                                }
                                to.add(last - from).write_bytes(0, until - last);
                            }
                        }
                        to = to.add(until - from);
                    }
                    row += until - from;
                }
            }
        }
    }

    /// Copies a block of results to their places in the target.
    ///
    /// # Safety
    /// `results` has the rows by columns (with channels in the middle, the other way), and they lie within `target`,
    /// the block's first channel.
    unsafe fn place_results<T: Number>(
        &self,
        target: *mut T,
        results: *const T,
        first: usize,
        rows: usize,
        columns: usize,
    ) {
        let [down, across] = self.axes;
        for row in 0..rows {
            let (image, i, j) = self.place(first + row);
            let (y, x) = (down.first + i * down.stride, across.first + j * across.stride);
            // SAFETY: by the contract.
            unsafe {
                let to = target.add(image * self.target.batch + y * self.target.y + x * self.target.x);
                match self.format {
                    DataFormat::Nhwc => results.add(row * columns).copy_to_nonoverlapping(to, columns),
                    DataFormat::Nchw => {
                        for c in 0..columns {
                            to.add(c * self.target.channel).write(results.add(c * rows + row).read());
                        }
                    }
                }
            }
        }
    }
}

/// A matrix in memory: where it starts, and its steps along rows and columns.
#[derive(Clone, Copy)]
pub(super) struct Matrix<T> {
    pub start: *mut T,
    pub row: usize,
    pub column: usize,
}

/// `to = a · b`, or `to += a · b`, for `[m, k]` by `[k, n]`.
///
/// # Safety
/// The matrices have these sizes, and `to` is no part of the others.
pub(super) unsafe fn product<T: Number>([m, k, n]: [usize; 3], to: Matrix<T>, add: bool, a: Matrix<T>, b: Matrix<T>) {
    let old = if add { T::ONE } else { T::ZERO };
    // SAFETY: by the contract.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            to.start,
            to.column as isize,
            to.row as isize,
            add,
            a.start.cast_const(),
            a.column as isize,
            a.row as isize,
            b.start.cast_const(),
            b.column as isize,
            b.row as isize,
            old,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// A sweep cut into blocks, and where its filter is.
struct Blocks {
    sweep: Sweep,
    /// Rows of a block.
    rows: usize,
    /// Blocks of a span of rows.
    down: usize,
    /// Columns of a block.
    columns: usize,
    across: usize,
    /// Taps that are multiplied at a time.
    taps: usize,
    /// The filter's first element, and its steps to the next group and the next row.
    filter: usize,
    group: usize,
    row: usize,
}

impl Blocks {
    fn new(sweep: Sweep, (filter, group, row): (usize, usize, usize)) -> Blocks {
        let (spans, length) = sweep.spans();
        let taps = if sweep.is_plain() { 1 } else { (DEPTH / sweep.depth.max(1)).clamp(1, sweep.taps().max(1)) };
        let wanted = parts(sweep.flops(), spans * sweep.groups);
        let most = (PATCHES / (taps * sweep.depth).max(1)).clamp(32, 512);
        let rows = length.div_ceil(wanted).next_multiple_of(16).clamp(32, most);
        let down = length.div_ceil(rows);
        // Few rows are left together, and the columns cut.
        let columns = sweep.width.div_ceil(wanted.div_ceil(down.max(1))).next_multiple_of(64);
        let across = sweep.width.div_ceil(columns.max(1));
        Blocks { sweep, rows, down, columns, across, taps, filter, group, row }
    }

    fn count(&self) -> usize {
        self.sweep.spans().0 * self.down * self.across * self.sweep.groups
    }

    /// Elements of scratch memory: patches, then results.
    fn scratch(&self) -> (usize, usize) {
        let (sweep, rows) = (&self.sweep, self.rows);
        let patches = if sweep.is_plain() { 0 } else { rows * self.taps * sweep.depth };
        let results = if sweep.is_whole() { 0 } else { rows * self.columns.min(sweep.width) };
        (patches, results)
    }

    /// Computes one block.
    ///
    /// # Safety
    /// Source and target have the sweep's steps, the filter its rows; the scratch has its elements.
    unsafe fn run<T: Number>(&self, block: usize, source: *const T, filter: *const T, target: *mut T, work: &mut [T]) {
        let sweep = &self.sweep;
        let (span_length, nhwc) = (sweep.spans().1, sweep.format == DataFormat::Nhwc);
        let (group, block) = (block % sweep.groups, block / sweep.groups);
        let (column, block) = (block % self.across * self.columns, block / self.across);
        let (span, first) = (block / self.down, block % self.down * self.rows);
        let (m, n) = (self.rows.min(span_length - first), self.columns.min(sweep.width - column));
        let (patches, results) = work.split_at_mut(self.scratch().0);
        // SAFETY: spans, groups and columns are within the tensors; blocks are disjoint parts of the target.
        unsafe {
            let source = source.add(span * sweep.source.batch + group * sweep.depth * sweep.source.channel);
            let target = target.add(span * sweep.target.batch + (group * sweep.width + column) * sweep.target.channel);
            let to = match (sweep.is_whole(), nhwc) {
                (true, _) => Matrix {
                    start: target.add(first * sweep.target.x),
                    row: sweep.target.x,
                    column: sweep.target.channel,
                },
                (false, true) => Matrix { start: results.as_mut_ptr(), row: n, column: 1 },
                (false, false) => Matrix { start: results.as_mut_ptr(), row: 1, column: m },
            };
            let filter = filter.add(self.filter + group * self.group + column).cast_mut();
            let mut tap = 0;
            while tap < sweep.taps() {
                let taps = self.taps.min(sweep.taps() - tap);
                let k = taps * sweep.depth;
                let a = if sweep.is_plain() {
                    let start = source.add(first * sweep.source.x).cast_mut();
                    Matrix { start, row: sweep.source.x, column: sweep.source.channel }
                } else {
                    sweep.pack(source, first..first + m, tap..tap + taps, patches.as_mut_ptr());
                    let start = patches.as_mut_ptr();
                    if nhwc { Matrix { start, row: k, column: 1 } } else { Matrix { start, row: 1, column: m } }
                };
                let start = filter.add(tap * sweep.depth * self.row);
                product([m, k, n], to, tap > 0, a, Matrix { start, row: self.row, column: 1 });
                tap += taps;
            }
            if !sweep.is_whole() {
                sweep.place_results(target, results.as_ptr(), first, m, n);
            }
        }
    }
}

/// Runs all blocks.
fn run<T: Number>(team: &Team, all: &[Blocks], scratch: &Scratch<T>, source: &[T], filter: &[T], target: &mut [T]) {
    let parts: usize = all.iter().map(Blocks::count).sum();
    scratch.reserve(team.threads());
    let target = Shared::new(target.as_mut_ptr());
    team.run(parts, |part| {
        let mut block = part;
        for blocks in all {
            if block < blocks.count() {
                // SAFETY: the tensors have the sizes that the blocks were made for; each part writes a block of its own.
                return scratch
                    .with(|work| unsafe { blocks.run(block, source.as_ptr(), filter.as_ptr(), target.get(), work) });
            }
            block -= blocks.count();
        }
    });
}

fn scratch_for<T: Number>(all: &[Blocks]) -> Scratch<T> {
    let elements = |b: &Blocks| b.scratch().0 + b.scratch().1;
    Scratch::new(all.iter().map(elements).max().unwrap_or(0))
}

/// The kernel of the output, of image and filter.
pub(super) fn forward<T: Number>(conv: &Conv) -> CpuKernel {
    let sweep = Sweep::forward(conv);
    let all = [Blocks::new(sweep, (0, sweep.width, conv.filters))];
    let scratch = scratch_for::<T>(&all);
    Box::new(move |l| {
        run(l.team(), &all, &scratch, l.input(0), l.input(1), l.output(0));
        Ok(())
    })
}

/// The kernel of the image's gradient, of the filter (input 1) and the output's gradient (input 2).
pub(super) fn backward<T: Number>(conv: &Conv) -> CpuKernel {
    let sweeps = Sweep::backward(conv);
    let mut first = 0;
    let mut all = Vec::new();
    for &sweep in &sweeps {
        let rows = sweep.taps() * sweep.depth;
        all.push(Blocks::new(sweep, (first, rows * sweep.width, sweep.width)));
        first += rows * sweep.width * sweep.groups;
    }
    let covers = Sweep::cover(&sweeps, conv);
    let scratch = scratch_for::<T>(&all);
    let turned = Mutex::new(vec![T::ZERO; turned_len(&sweeps)]);
    let conv = *conv;
    Box::new(move |l| {
        // Every launch overwrites all of it, so a poisoned lock does not matter.
        let mut turned = turned.lock().unwrap_or_else(|e| e.into_inner());
        let (filter, gradient) = (l.input::<T>(1), l.input::<T>(2));
        let target = l.output::<T>(0);
        if !covers {
            fill(l.team(), target, T::ZERO);
        }
        turn(l.team(), &conv, &sweeps, filter, &mut turned);
        run(l.team(), &all, &scratch, gradient, &turned, target);
        Ok(())
    })
}
