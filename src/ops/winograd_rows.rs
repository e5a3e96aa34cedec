//! Winograd's convolutions by blocks of rows, which what follows them is fused into: a block is whole images, or lines of
//! one in whole rows of tiles.

use super::conv_geometry::Conv;
use super::conv_kernel::Sweep;
use super::conv_rows::{LARGEST, enough, lines};
use super::conv_turn::{turn, turned_len};
use super::winograd_kernel::Tiles;
use crate::device::{Cut, Launch, RowFunction, RowKernel, Scratch};
use std::ops::Range;

/// The forward or the backward convolution of tiles.
struct Rows {
    tiles: Tiles,
    scratch: Scratch<f32>,
    /// The backward sweeps, of which there is one, with the convolution whose filter is turned for them.
    turned: Option<(Conv, Vec<Sweep>)>,
}

/// How many of `count` runs of tiles are one block: as many as make the fewest calls of `block` tiles at most, of `most`
/// runs at most.
fn runs(tiles: usize, count: usize, block: usize, most: usize) -> usize {
    let calls = |runs: usize| {
        let of = |runs: usize| (runs * tiles).div_ceil(block);
        count / runs * of(runs) + of(count % runs)
    };
    (1..=most.clamp(1, count.max(1))).min_by_key(|runs| calls(*runs)).unwrap_or(1)
}

/// How the results of tiles are cut into blocks.
fn cut(tiles: &Tiles) -> Cut {
    let &Tiles { sweep, side, down, across, block, .. } = tiles;
    let [height, width] = sweep.axes.map(|a| a.count);
    let (image, rows) = (height * width, sweep.batch * height * width);
    if 2 * image * sweep.width <= LARGEST {
        let most = (LARGEST / (image * sweep.width).max(1)).min(enough(sweep.batch));
        let images = runs(down * across, sweep.batch, block, most);
        return Cut::even(rows, images * image);
    }
    let most = (LARGEST / (side * width * sweep.width)).min(enough(sweep.batch * down));
    let lines = runs(across, down, block, most) * side;
    Cut { rows, span: image, block: lines.min(height) * width }
}

impl RowFunction for Rows {
    fn prepare(&self, l: &Launch<'_>, prepared: &mut [f32]) {
        self.scratch.reserve(l.team().threads());
        let (transformed, turned) = prepared.split_at_mut(self.tiles.transformed());
        let filter = match &self.turned {
            None => l.input(1),
            Some((conv, sweeps)) => {
                turn(l.team(), conv, sweeps, l.input::<f32>(1), turned);
                turned
            }
        };
        self.tiles.transform_filter(l.team(), filter, transformed);
    }

    fn run(&self, l: &Launch<'_>, prepared: &[f32], rows: Range<usize>) {
        let &Tiles { sweep, side, down, across, block, .. } = &self.tiles;
        let source = l.input_ptr::<f32>(if self.turned.is_some() { 2 } else { 0 }).0;
        let target = l.output_ptr::<f32>(0).0;
        self.scratch.with(|scratch| {
            for (image, lines) in lines(rows, sweep.axes.map(|a| a.count)) {
                let first = (image * down + lines.start / side) * across;
                let count = (lines.end.div_ceil(side) - lines.start / side) * across;
                let calls = count.div_ceil(block);
                for call in 0..calls {
                    let tiles = first + count * call / calls..first + count * (call + 1) / calls;
                    // SAFETY: the buffers have the convolution's sizes, the prepared memory the transformed filter, and
                    // these are the tiles of the rows, which nobody else writes.
                    unsafe { self.tiles.run(tiles, source, prepared.as_ptr(), target, scratch) }
                }
            }
        });
    }
}

fn kernel(tiles: Tiles, turned: Option<(Conv, Vec<Sweep>)>) -> RowKernel {
    let prepared = tiles.transformed() + turned.as_ref().map_or(0, |(_, sweeps)| turned_len(sweeps));
    let scratch = Scratch::new(tiles.scratch());
    RowKernel { cut: cut(&tiles), anywhere: false, prepared, function: Box::new(Rows { tiles, scratch, turned }) }
}

/// The kernel of the output by rows, where [`super::winograd_kernel::forward`] is one.
pub(super) fn forward(conv: &Conv) -> Option<RowKernel> {
    Tiles::new(Sweep::forward(conv)).map(|tiles| kernel(tiles, None))
}

/// The kernel of the image's gradient by rows, where [`super::winograd_kernel::backward`] is one.
pub(super) fn backward(conv: &Conv) -> Option<RowKernel> {
    let sweeps = Sweep::backward(conv);
    let &[sweep] = &sweeps[..] else { return None };
    Tiles::new(sweep).map(|tiles| kernel(tiles, Some((*conv, sweeps))))
}
