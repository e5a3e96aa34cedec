//! Convolutions of `float32` images with channels last: each row of results out of registers, from padded lines of the
//! image and the filter as it lies there. There is no patch matrix, and windows lose what is above or below the image. Left
//! and right of it padding is multiplied like pixels, so that an infinite element of the filter gives NaN there.
//!
//! Invariant: a result's summands come in the order of the filter's rows, whatever the parts. Absent: blocks that are lines
//! of images (`conv_strips_rows.rs`).

use super::conv_geometry::Conv;
use super::conv_kernel::{Sweep, parts};
use super::conv_lines::Lines;
use super::conv_turn::{turn, turned_len};
use super::elementwise::{Shared, fill};
use super::strip::Strip;
use crate::device::{CpuKernel, Scratch, Team};
use std::ops::Range;
use std::sync::Mutex;

/// Rows of the filter that are gone through at a time: with 64 columns, half of a second cache.
const DEPTH: usize = 2048;

/// A sweep cut into parts: bands of results of an image, and where there are few of these, columns.
pub(super) struct Bands {
    pub sweep: Sweep,
    lines: Lines,
    /// Rows of results of a band, and bands of an image.
    pub rows: usize,
    down: usize,
    /// Columns of a part, and parts of them.
    columns: usize,
    pub across: usize,
    /// The filter's first element, and its steps to the next group and the next row.
    filter: usize,
    group: usize,
    row: usize,
}

impl Bands {
    fn new(sweep: Sweep, (filter, group, row): (usize, usize, usize)) -> Option<Bands> {
        let lines = Lines::new(sweep)?;
        let count = sweep.axes[0].count;
        let wanted = parts(sweep.flops(), sweep.batch * sweep.groups);
        let rows = lines.rows().min(count.div_ceil(wanted)).max(1);
        let down = count.div_ceil(rows);
        // Few rows are left together, and the columns cut.
        let columns = sweep.width.div_ceil(wanted.div_ceil(down.max(1))).next_multiple_of(64);
        let across = sweep.width.div_ceil(columns.max(1));
        Some(Bands { sweep, lines, rows, down, columns, across, filter, group, row })
    }

    fn count(&self) -> usize {
        self.sweep.batch * self.down * self.across * self.sweep.groups
    }

    /// Computes one part.
    ///
    /// # Safety
    /// Source and target have the sweep's steps, the filter its rows, the scratch memory room for a band's lines.
    unsafe fn run(&self, part: usize, source: *const f32, filter: *const f32, target: *mut f32, scratch: &mut [f32]) {
        let sweep = &self.sweep;
        let (group, part) = (part % sweep.groups, part / sweep.groups);
        let (column, part) = (part % self.across * self.columns, part / self.across);
        let (image, first) = (part / self.down, part % self.down * self.rows);
        let rows = first..sweep.axes[0].count.min(first + self.rows);
        let columns = column..sweep.width.min(column + self.columns);
        // SAFETY: images, groups, rows and columns are within the tensors.
        unsafe { self.place([image, group], rows, columns, [source, filter], target, scratch) }
    }

    /// Computes some columns of a band, which has `rows` at most, of an image and a group, from source and filter.
    ///
    /// # Safety
    /// As [`Bands::run`]; the image, group, rows and columns are the sweep's.
    pub unsafe fn place(
        &self,
        [image, group]: [usize; 2],
        rows: Range<usize>,
        columns: Range<usize>,
        [source, filter]: [*const f32; 2],
        target: *mut f32,
        scratch: &mut [f32],
    ) {
        let sweep = &self.sweep;
        // SAFETY: by the contract.
        unsafe {
            let source = source.add(image * sweep.source.batch + group * sweep.depth);
            let target = target.add(image * sweep.target.batch + group * sweep.width + columns.start);
            let filter = filter.add(self.filter + group * self.group + columns.start);
            self.band(rows, columns.len(), source, filter, target, scratch);
        }
    }

    /// Computes some columns of some rows of results.
    ///
    /// # Safety
    /// As [`Bands::run`], for pointers to the image's group, its filter and its results.
    unsafe fn band(
        &self,
        rows: Range<usize>,
        columns: usize,
        source: *const f32,
        filter: *const f32,
        target: *mut f32,
        scratch: &mut [f32],
    ) {
        let Sweep { axes: [down, across], depth, target: steps, .. } = self.sweep;
        // SAFETY: as above; taps that are seen have their lines in the view.
        let view = unsafe { self.lines.view(source, &rows, scratch) };
        // Taps that lie together in a line are one loop with their channels.
        let together = across.tap_step == 1 && view.pixel == depth;
        let (runs, run) = if together { (1, across.taps * depth) } else { (across.taps, depth) };
        // Lines of the window at a time.
        let some = if together { (DEPTH / run.max(1)).max(1) } else { 1 };
        for taps in (0..down.taps).step_by(some) {
            for i in rows.clone() {
                let seen = down.seen(i);
                let (from, until) = (seen.start.max(taps), seen.end.min(taps + some));
                // The first lines begin the sums, also where they see nothing.
                if from >= until && taps > 0 {
                    continue;
                }
                let lines = until.saturating_sub(from);
                // SAFETY: as above.
                unsafe {
                    let a = match lines {
                        0 => source,
                        _ => view.of(down.start(i).wrapping_add_unsigned(from * down.tap_step) as usize),
                    };
                    let (a_outer, outer) = if together {
                        (down.tap_step * view.line, lines)
                    } else {
                        (across.tap_step * view.pixel, runs)
                    };
                    let to = (down.first + i * down.stride) * steps.y + across.first * steps.x;
                    Strip {
                        rows: across.count,
                        columns,
                        loops: [if lines == 0 { 0 } else { outer }, run],
                        a,
                        a_row: across.step * view.pixel,
                        a_loops: [a_outer, 1],
                        b: filter.wrapping_add(from * across.taps * depth * self.row),
                        b_loops: [run * self.row, self.row],
                        to: target.add(to),
                        to_row: across.stride * steps.x,
                        add: taps > 0,
                    }
                    .run();
                }
            }
        }
    }
}

/// Runs all parts.
fn run(team: &Team, all: &[Bands], scratch: &Scratch<f32>, source: &[f32], filter: &[f32], target: &mut [f32]) {
    let parts: usize = all.iter().map(Bands::count).sum();
    scratch.reserve(team.threads());
    let (source, filter) = (Shared::new(source.as_ptr().cast_mut()), Shared::new(filter.as_ptr().cast_mut()));
    let target = Shared::new(target.as_mut_ptr());
    team.run(parts, |mut part| {
        for bands in all {
            if part < bands.count() {
                // SAFETY: the tensors have the sizes that the parts were made for; each part writes results of its own.
                return scratch.with(|s| unsafe { bands.run(part, source.get(), filter.get(), target.get(), s) });
            }
            part -= bands.count();
        }
    });
}

pub(super) fn scratch_for(all: &[Bands]) -> Scratch<f32> {
    Scratch::new(all.iter().map(|b| b.lines.scratch(b.rows)).max().unwrap_or(0))
}

/// The forward convolution in bands, where lines are dense.
pub(super) fn forward_bands(conv: &Conv) -> Option<[Bands; 1]> {
    let sweep = Sweep::forward(conv);
    Some([Bands::new(sweep, (0, sweep.width, conv.filters))?])
}

/// The backward sweeps in bands, of the filter turned, where all lines are dense.
pub(super) fn backward_bands(sweeps: &[Sweep]) -> Option<Vec<Bands>> {
    let mut first = 0;
    let bands = |&sweep: &Sweep| {
        let group = sweep.taps() * sweep.depth * sweep.width;
        let filter = first;
        first += group * sweep.groups;
        Bands::new(sweep, (filter, group, sweep.width))
    };
    sweeps.iter().map(bands).collect()
}

/// The kernel of the output, of image and filter, where lines are dense.
pub(super) fn forward(conv: &Conv) -> Option<CpuKernel> {
    let all = forward_bands(conv)?;
    let scratch = scratch_for(&all);
    Some(Box::new(move |l| {
        run(l.team(), &all, &scratch, l.input(0), l.input(1), l.output(0));
        Ok(())
    }))
}

/// The kernel of the image's gradient, of the filter (input 1) and the output's gradient (input 2), where all lines are
/// dense.
pub(super) fn backward(conv: &Conv) -> Option<CpuKernel> {
    let sweeps = Sweep::backward(conv);
    let all = backward_bands(&sweeps)?;
    let covers = Sweep::cover(&sweeps, conv);
    let scratch = scratch_for(&all);
    let turned = Mutex::new(vec![0.0f32; turned_len(&sweeps)]);
    let conv = *conv;
    Some(Box::new(move |l| {
        // Every launch overwrites all of it, so a poisoned lock does not matter.
        let mut turned = turned.lock().unwrap_or_else(|e| e.into_inner());
        let (filter, gradient) = (l.input::<f32>(1), l.input::<f32>(2));
        let target = l.output::<f32>(0);
        if !covers {
            fill(l.team(), target, 0.0);
        }
        turn(l.team(), &conv, &sweeps, filter, &mut turned);
        run(l.team(), &all, &scratch, gradient, &turned, target);
        Ok(())
    }))
}
