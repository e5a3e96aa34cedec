//! The gradient of a convolution's filter on the host: patches, turned, times the output's gradient, summed over blocks
//! of rows.
//!
//! Invariant: as in `conv_kernel.rs`; where there are few taps, the rows are cut into a fixed number of runs, whose sums
//! are added in order.

use super::conv_geometry::Conv;
use super::conv_kernel::{DEPTH, Matrix, PATCHES, Sweep, parts, product};
use super::elementwise::{Dispatch, GRAIN, Shared, Wide, fill};
use super::number::Number;
use super::window::DataFormat;
use crate::device::{CpuKernel, Scratch, Team};
use pulp::NullaryFnOnce;
use std::sync::Mutex;

/// Elements of a filter of which there may be a sum for every run of rows.
const SMALL_FILTER: usize = 1 << 20;

/// How the work is cut.
#[derive(Clone, Copy)]
struct Cut {
    sweep: Sweep,
    /// Taps of a part, and how many such parts there are.
    taps: usize,
    chunks: usize,
    /// Columns of a part.
    columns: usize,
    across: usize,
    /// Rows that are multiplied at a time.
    rows: usize,
    /// Runs of such blocks of rows.
    runs: usize,
    /// Steps of the filter's rows: all its columns.
    filters: usize,
}

impl Cut {
    fn new(conv: &Conv) -> Cut {
        let sweep = Sweep::forward(conv);
        let taps = (DEPTH / sweep.depth.max(1)).clamp(1, sweep.taps().max(1));
        let rows = match sweep.is_plain() {
            true => 512,
            false => (PATCHES / (taps * sweep.depth).max(1)).clamp(32, 512),
        };
        let chunks = sweep.taps().div_ceil(taps);
        let wanted = parts(conv.flops(), chunks * sweep.groups);
        let small = sweep.taps() * sweep.depth * conv.filters <= SMALL_FILTER;
        let (runs, cuts) = if small { (wanted, 1) } else { (1, wanted) };
        let columns = sweep.width.div_ceil(cuts).next_multiple_of(64);
        let across = sweep.width.div_ceil(columns);
        let (spans, length) = sweep.spans();
        let runs = runs.min(spans * length.div_ceil(rows)).max(1);
        Cut { sweep, taps, chunks, columns, across, rows, runs, filters: conv.filters }
    }

    /// Parts of a run.
    fn parts(&self) -> usize {
        self.chunks * self.across * self.sweep.groups
    }

    fn scratch(&self) -> usize {
        if self.sweep.is_plain() { 0 } else { self.rows * self.taps * self.sweep.depth }
    }

    /// Computes one part of the filter, summed over one run of rows.
    ///
    /// # Safety
    /// Source, gradient and filter have the sweep's sizes; the patches have room for a block of rows.
    unsafe fn run<T: Number>(
        &self,
        part: usize,
        source: *const T,
        gradient: *const T,
        filter: *mut T,
        patches: &mut [T],
    ) {
        let sweep = &self.sweep;
        let nhwc = sweep.format == DataFormat::Nhwc;
        let (group, part) = (part % sweep.groups, part / sweep.groups);
        let (column, part) = (part % self.across * self.columns, part / self.across);
        let (tap, run) = (part % self.chunks * self.taps, part / self.chunks);
        let (spans, length) = sweep.spans();
        let down = length.div_ceil(self.rows);
        let (from, until) = (spans * down * run / self.runs, spans * down * (run + 1) / self.runs);
        let (taps, n) = (self.taps.min(sweep.taps() - tap), self.columns.min(sweep.width - column));
        let k = taps * sweep.depth;
        // SAFETY: spans, groups and columns are within the tensors; parts of one run are disjoint parts of the filter.
        unsafe {
            let start = filter.add(tap * sweep.depth * self.filters + group * sweep.width + column);
            let to = Matrix { start, row: self.filters, column: 1 };
            for block in from..until {
                let (span, first) = (block / down, block % down * self.rows);
                let m = self.rows.min(length - first);
                let source = source.add(span * sweep.source.batch + group * sweep.depth * sweep.source.channel);
                let a = if sweep.is_plain() {
                    let start = source.add(first * sweep.source.x).cast_mut();
                    Matrix { start, row: sweep.source.channel, column: sweep.source.x }
                } else {
                    sweep.pack(source, first..first + m, tap..tap + taps, patches.as_mut_ptr());
                    let start = patches.as_mut_ptr();
                    if nhwc { Matrix { start, row: 1, column: k } } else { Matrix { start, row: m, column: 1 } }
                };
                let gradient = gradient
                    .add(span * sweep.target.batch + (group * sweep.width + column) * sweep.target.channel)
                    .add(first * sweep.target.x);
                let b = Matrix { start: gradient.cast_mut(), row: sweep.target.x, column: sweep.target.channel };
                product([k, m, n], to, block > from, a, b);
            }
        }
    }
}

/// The kernel of the filter's gradient, of the image (input 0) and the output's gradient (input 2).
pub(super) fn filter_gradient<T: Number>(conv: &Conv) -> CpuKernel {
    let cut = Cut::new(conv);
    let scratch = Scratch::<T>::new(cut.scratch());
    summed_in_runs(&cut.sweep, cut.runs, cut.parts(), scratch, move |part, [source, gradient], to, patches| {
        // SAFETY: the maker's tensors have the convolution's sizes.
        unsafe { cut.run(part, source, gradient, to, patches) }
    })
}

/// The kernel of a filter's gradient that `run` computes: parts of a run one after another, runs one after another, each
/// of which gives a whole filter. The numbers of parts and runs depend on sizes alone. `run` gets a part's number, the
/// image and the output's gradient, the filter that is this run's, and scratch memory.
pub(super) fn summed_in_runs<T: Number>(
    sweep: &Sweep,
    runs: usize,
    parts: usize,
    scratch: Scratch<T>,
    run: impl Fn(usize, [*const T; 2], *mut T, &mut [T]) + Send + Sync + 'static,
) -> CpuKernel {
    let len = sweep.taps() * sweep.depth * sweep.width * sweep.groups;
    let empty = sweep.batch * sweep.rows() == 0;
    let sums = Mutex::new(vec![T::ZERO; if runs > 1 { runs * len } else { 0 }]);
    Box::new(move |l| {
        let (source, gradient) = (l.input::<T>(0), l.input::<T>(2));
        let filter = l.output::<T>(0);
        if empty {
            fill(l.team(), filter, T::ZERO);
            return Ok(());
        }
        // Every launch overwrites all of it, so a poisoned lock does not matter.
        let mut sums = sums.lock().unwrap_or_else(|e| e.into_inner());
        scratch.reserve(l.team().threads());
        let (to, step) = if runs > 1 { (sums.as_mut_ptr(), len) } else { (filter.as_mut_ptr(), 0) };
        let to = Shared::new(to);
        l.team().run(parts * runs, |part| {
            let to = to.get().wrapping_add(part / parts * step);
            scratch.with(|scratch| run(part, [source.as_ptr(), gradient.as_ptr()], to, scratch));
        });
        if runs > 1 {
            add_runs(l.team(), &sums, filter);
        }
        Ok(())
    })
}

/// Sums over runs, which lie one after another, in order.
pub(super) fn add_runs<T: Number>(team: &Team, runs: &[T], filter: &mut [T]) {
    let (len, to) = (filter.len(), Shared::new(filter.as_mut_ptr()));
    let count = runs.len() / len.max(1);
    team.chunks(len, GRAIN / count.max(1), |chunk| {
        // SAFETY: chunks are disjoint parts of the output.
        let to = unsafe { std::slice::from_raw_parts_mut(to.get().add(chunk.start), chunk.len()) };
        Wide::run(AddRuns { runs, len, first: chunk.start, to });
    });
}

struct AddRuns<'a, T> {
    runs: &'a [T],
    /// Elements of a run.
    len: usize,
    first: usize,
    to: &'a mut [T],
}

impl<T: Number> NullaryFnOnce for AddRuns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let AddRuns { runs, len, first, to } = self;
        to.copy_from_slice(&runs[first..][..to.len()]);
        for run in runs.chunks_exact(len).skip(1) {
            to.iter_mut().zip(&run[first..]).for_each(|(to, &sum)| *to = to.plus(sum));
        }
    }
}
