//! The filter as a convolution's gradient by the image reads it.

use super::conv_geometry::Conv;
use super::conv_kernel::Sweep;
use super::elementwise::Shared;
use super::number::Number;
use crate::device::Team;

/// Elements of the filter as it is laid out for these sweeps.
pub(super) fn turned_len(sweeps: &[Sweep]) -> usize {
    sweeps.iter().map(|s| s.taps() * s.depth * s.width * s.groups).sum()
}

/// Lays the filter out for the backward sweeps: by sweep and group, a row for each tap and filter, with the channels in it.
pub(super) fn turn<T: Number>(team: &Team, conv: &Conv, sweeps: &[Sweep], filter: &[T], turned: &mut [T]) {
    const TILE: usize = 16;
    let to = Shared::new(turned.as_mut_ptr());
    let taps: usize = sweeps.iter().map(Sweep::taps).sum();
    team.chunks(taps * conv.groups, 1, |part| {
        for part in part {
            let (mut tap, group) = (part / conv.groups, part % conv.groups);
            let mut first = 0;
            let Some(sweep) = sweeps.iter().find(|s| {
                let here = tap < s.taps();
                if !here {
                    tap -= s.taps();
                    first += s.taps() * s.depth * s.width * s.groups;
                }
                here
            }) else {
                return;
            };
            let Sweep { axes: [down, across], depth, width, .. } = *sweep;
            let (y, x) = (down.tap(tap / across.taps), across.tap(tap % across.taps));
            let from = &filter[(y * conv.taps[1] + x) * width * conv.filters + group * depth..];
            let first = first + (group * sweep.taps() + tap) * depth * width;
            for row in (0..depth).step_by(TILE) {
                for column in (0..width).step_by(TILE) {
                    for r in row..depth.min(row + TILE) {
                        for c in column..width.min(column + TILE) {
                            // SAFETY: every part writes the rows of its own tap and group.
                            unsafe { to.get().add(first + r * width + c).write(from[c * conv.filters + r]) }
                        }
                    }
                }
            }
        }
    });
}
