//! Convolutions out of registers by blocks of rows, which what follows them is fused into: lines of images with channels
//! last.

use super::conv_geometry::Conv;
use super::conv_kernel::Sweep;
use super::conv_rows::{cut, lines};
use super::conv_strips::{Bands, backward_bands, forward_bands, scratch_for};
use super::conv_turn::{turn, turned_len};
use crate::device::{Launch, RowFunction, RowKernel, Scratch};
use std::ops::Range;

/// The forward or the backward convolution in bands.
struct Rows {
    all: Vec<Bands>,
    scratch: Scratch<f32>,
    /// Height, width and channels of the results.
    size: [usize; 2],
    channels: usize,
    /// True if the bands give every result a value; the others are zero.
    covers: bool,
    /// The backward sweeps, with the convolution whose filter is turned for them.
    turned: Option<(Conv, Vec<Sweep>)>,
}

impl RowFunction for Rows {
    fn prepare(&self, l: &Launch<'_>, prepared: &mut [f32]) {
        self.scratch.reserve(l.team().threads());
        if let Some((conv, sweeps)) = &self.turned {
            turn(l.team(), conv, sweeps, l.input::<f32>(1), prepared);
        }
    }

    fn run(&self, l: &Launch<'_>, prepared: &[f32], rows: Range<usize>) {
        let (source, filter) = match &self.turned {
            None => (l.input_ptr::<f32>(0).0, l.input_ptr::<f32>(1).0),
            Some(_) => (l.input_ptr::<f32>(2).0, prepared.as_ptr()),
        };
        let target = l.output_ptr::<f32>(0).0;
        if !self.covers {
            // SAFETY: these rows are the output's, and nobody else's.
            unsafe { target.add(rows.start * self.channels).write_bytes(0, rows.len() * self.channels) }
        }
        self.scratch.with(|scratch| {
            for (image, lines) in lines(rows, self.size) {
                for bands in &self.all {
                    let (down, groups) = (bands.sweep.axes[0], bands.sweep.groups);
                    let of_sweep = down.results(&lines);
                    for group in 0..groups {
                        for first in of_sweep.clone().step_by(bands.rows) {
                            let band = first..of_sweep.end.min(first + bands.rows);
                            let columns = 0..bands.sweep.width;
                            // SAFETY: the buffers have the convolution's sizes, the filter is as the bands have it, and
                            // these are lines that nobody else writes.
                            unsafe {
                                bands.place([image, group], band, columns, [source, filter], target, scratch);
                            }
                        }
                    }
                }
            }
        });
    }
}

fn kernel(all: Vec<Bands>, conv: &Conv, turned: Option<Vec<Sweep>>) -> Option<RowKernel> {
    // Where lines are few, columns are cut as well, and blocks of lines would leave threads without work.
    if all.iter().any(|b| b.across > 1) {
        return None;
    }
    let (size, channels) = match turned {
        None => (conv.out, conv.filters),
        Some(_) => (conv.image, conv.channels),
    };
    let covers = turned.as_ref().is_none_or(|sweeps| Sweep::cover(sweeps, conv));
    let lines = all.iter().map(|b| b.rows * b.sweep.axes[0].stride).max().unwrap_or(1);
    let prepared = turned.as_deref().map_or(0, turned_len);
    let scratch = scratch_for(&all);
    let cut = cut(conv.batch, size, channels, lines);
    let turned = turned.map(|sweeps| (*conv, sweeps));
    let function = Box::new(Rows { all, scratch, size, channels, covers, turned });
    Some(RowKernel { cut, anywhere: false, prepared, function })
}

/// The kernel of the output by rows, where [`super::conv_strips::forward`] is one that cuts nothing but lines.
pub(super) fn forward(conv: &Conv) -> Option<RowKernel> {
    kernel(forward_bands(conv)?.into(), conv, None)
}

/// The kernel of the image's gradient by rows, where [`super::conv_strips::backward`] is one that cuts nothing but lines.
pub(super) fn backward(conv: &Conv) -> Option<RowKernel> {
    let sweeps = Sweep::backward(conv);
    kernel(backward_bands(&sweeps)?, conv, Some(sweeps))
}
