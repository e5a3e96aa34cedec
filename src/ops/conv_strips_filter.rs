//! The gradient of a `float32` convolution's filter with channels last: rows of the filter out of registers, over the
//! places of an image, from padded lines of the image and the output's gradient as it lies there.
//!
//! Invariant: images are cut into a fixed number of runs, whose sums are added in order; within a run they come in order.

use super::conv_filter_kernel::summed_in_runs;
use super::conv_geometry::Conv;
use super::conv_kernel::{Sweep, parts};
use super::conv_lines::Lines;
use super::strip::Strip;
use crate::device::{CpuKernel, Scratch};
use std::ops::Range;

/// Elements of a filter of which there may be a sum for every run.
const SMALL_FILTER: usize = 1 << 18;

/// How the work is cut.
#[derive(Clone, Copy)]
struct Cut {
    sweep: Sweep,
    lines: Lines,
    /// Rows of results of a band, and bands of an image.
    rows: usize,
    down: usize,
    /// Runs of bands of all images.
    runs: usize,
    /// Lines of the window, and columns, of a part.
    taps: usize,
    columns: usize,
    /// Columns of the filter.
    filters: usize,
}

impl Cut {
    fn new(conv: &Conv) -> Option<Cut> {
        let sweep = Sweep::forward(conv);
        let lines = Lines::new(sweep)?;
        let rows = lines.rows();
        let down = sweep.axes[0].count.div_ceil(rows);
        let wanted = parts(conv.flops(), sweep.groups);
        let small = sweep.taps() * sweep.depth * conv.filters <= SMALL_FILTER;
        let runs = if small { wanted } else { 1 }.min(sweep.batch * down).max(1);
        // A part's sums stay in a cache.
        let cut = wanted.div_ceil(runs) > 1;
        let taps = if cut { 1 } else { sweep.axes[0].taps };
        let columns = if cut { 64 } else { sweep.width };
        Some(Cut { sweep, lines, rows, down, runs, taps, columns, filters: conv.filters })
    }

    /// Parts of a run: along the window's height, along the columns, groups.
    fn parts(&self) -> [usize; 3] {
        let (taps, columns) = (self.sweep.axes[0].taps, self.sweep.width);
        [taps.div_ceil(self.taps.max(1)), columns.div_ceil(self.columns.max(1)), self.sweep.groups]
    }

    /// Computes one part of the filter's gradient, summed over one run.
    ///
    /// # Safety
    /// Source, gradient and filter have the sweep's sizes, the scratch memory room for a band's lines.
    unsafe fn run(&self, part: usize, source: *const f32, gradient: *const f32, to: *mut f32, scratch: &mut [f32]) {
        let sweep = &self.sweep;
        let [_, across, groups] = self.parts();
        let (group, part) = (part % groups, part / groups);
        let (column, part) = (part % across * self.columns, part / across);
        let (first, run) = (part % self.parts()[0] * self.taps, part / self.parts()[0]);
        let taps = first..sweep.axes[0].taps.min(first + self.taps);
        let columns = self.columns.min(sweep.width - column);
        let all = sweep.batch * self.down;
        let (from, until) = (all * run / self.runs, all * (run + 1) / self.runs);
        for band in from..until {
            let (image, row) = (band / self.down, band % self.down * self.rows);
            let rows = row..sweep.axes[0].count.min(row + self.rows);
            // SAFETY: images, groups, taps, rows and columns are within the tensors.
            unsafe {
                let source = source.add(image * sweep.source.batch + group * sweep.depth);
                let gradient = gradient.add(image * sweep.target.batch + group * sweep.width + column);
                let to = to.add(group * sweep.width + column);
                self.band([rows, taps.clone()], columns, [source, gradient], (to, band > from), scratch);
            }
        }
    }

    /// Adds what some rows of results of one image give to some lines of the window and some columns, or begins with
    /// it.
    ///
    /// # Safety
    /// As [`Cut::run`], for pointers to the group and the first column.
    unsafe fn band(
        &self,
        [rows, taps]: [Range<usize>; 2],
        columns: usize,
        [source, gradient]: [*const f32; 2],
        (to, add): (*mut f32, bool),
        scratch: &mut [f32],
    ) {
        let Sweep { axes: [down, across], depth, target, .. } = self.sweep;
        // SAFETY: as above; lines that a tap sees are in the view.
        let view = unsafe { self.lines.view(source, &rows, scratch) };
        // Taps that lie together in a line give rows of the filter like their channels.
        let together = across.tap_step == 1 && view.pixel == depth;
        let (runs, run) = if together { (1, across.taps * depth) } else { (across.taps, depth) };
        for tap in taps {
            let seeing = down.seeing(tap);
            let (from, until) = (seeing.start.max(rows.start), seeing.end.min(rows.end));
            let lines = until.saturating_sub(from);
            // SAFETY: as above.
            unsafe {
                let a = match lines {
                    0 => source,
                    _ => view.of(down.start(from).wrapping_add_unsigned(tap * down.tap_step) as usize),
                };
                for tx in 0..runs {
                    Strip {
                        rows: run,
                        columns,
                        loops: [lines, across.count],
                        a: a.wrapping_add(tx * across.tap_step * view.pixel),
                        a_row: 1,
                        a_loops: [down.step * view.line, across.step * view.pixel],
                        b: gradient.wrapping_add(from * target.y),
                        b_loops: [target.y, target.x],
                        to: to.add((tap * across.taps * depth + tx * run) * self.filters),
                        to_row: self.filters,
                        add,
                    }
                    .run();
                }
            }
        }
    }
}

/// The kernel of the filter's gradient, of the image (input 0) and the output's gradient (input 2), where lines are dense.
pub(super) fn filter_gradient(conv: &Conv) -> Option<CpuKernel> {
    let cut = Cut::new(conv)?;
    let scratch = Scratch::<f32>::new(cut.lines.scratch(cut.rows));
    let parts = cut.parts().iter().product();
    Some(summed_in_runs(&cut.sweep, cut.runs, parts, scratch, move |part, [source, gradient], to, scratch| {
        // SAFETY: the maker's tensors have the convolution's sizes.
        unsafe { cut.run(part, source, gradient, to, scratch) }
    }))
}
