//! How convolutions' results are cut into blocks for what follows them: whole lines of images with channels last.
//!
//! Absent: what computes the blocks (`winograd_rows.rs`, `conv_strips.rs`, `depthwise_vectors.rs`).

use crate::device::{Cut, TILE};
use std::ops::Range;

/// Elements of a block's results: a quarter of a second cache; fewer in tests, so that small images have several blocks.
pub(super) const LARGEST: usize = if cfg!(test) { 8 * 1024 } else { 64 * 1024 };
/// Blocks that there are at least, where there are so many pieces.
const BLOCKS: usize = 16;

/// Of so many pieces, how many one block may have, so that there are enough blocks.
pub(super) fn enough(pieces: usize) -> usize {
    (pieces / BLOCKS).max(1)
}

/// Cuts images of these sizes and channels into blocks of so many lines at most; several images, where these are small.
pub(super) fn cut(images: usize, [height, width]: [usize; 2], channels: usize, lines: usize) -> Cut {
    let (image, line) = (height * width, (width * channels).max(1));
    let rows = images * image;
    let most = lines.min(LARGEST / line).max(1);
    if most < height {
        // As even as can be.
        let lines = height.div_ceil(height.div_ceil(most));
        return Cut { rows, span: image.max(1), block: (lines * width).max(1) };
    }
    let small = (TILE / (image * channels).max(1)).clamp(1, enough(images));
    Cut::even(rows, small * image)
}

/// The lines that some rows of images are, image by image.
pub(super) fn lines(rows: Range<usize>, [height, width]: [usize; 2]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let (first, end) = (rows.start / width.max(1), rows.end / width.max(1));
    let mut line = first;
    std::iter::from_fn(move || {
        if line >= end {
            return None;
        }
        let (image, from) = (line / height, line % height);
        let until = height.min(from + end - line);
        line += until - from;
        Some((image, from..until))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_lines_and_several_images_where_these_are_small() {
        let large = cut(3, [10, 100], 32, 4);
        assert_eq!((large.span, large.block), (1000, 200));
        assert_eq!(cut(64, [4, 4], 16, 4), Cut::even(64 * 16, 64));
        assert_eq!(cut(2, [4, 4], 16, 4), Cut::even(32, 16));
        let seen: Vec<_> = lines(18..6 * 11, [5, 6]).collect();
        assert_eq!(seen, [(0, 3..5), (1, 0..5), (2, 0..1)]);
    }
}
