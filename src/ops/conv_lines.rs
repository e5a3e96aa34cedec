//! Lines of images with their padding, as convolutions with channels last read them: window after window, without a
//! question of where the image ends.

use super::conv_kernel::Sweep;
use std::ops::Range;

/// Elements of the lines that one part works on: a quarter of a second cache.
const ELEMENTS: usize = 64 * 1024;
/// Elements of a line that may be padding for the most part.
const SMALL: usize = 8 * 1024;

/// How a sweep's sources are laid out in lines.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    sweep: Sweep,
    /// Pixels of a line: all that the windows of a row of results see.
    width: usize,
    /// True if the lines lie in the image as they are wanted.
    in_place: bool,
}

/// Some lines, ready to be read.
#[derive(Clone, Copy)]
pub(super) struct View {
    /// The first element of the first line.
    start: *const f32,
    /// The number of the first line in its image.
    first: usize,
    /// Steps from line to line and from pixel to pixel.
    pub line: usize,
    pub pixel: usize,
}

impl View {
    /// The first element of a line of the image.
    ///
    /// # Safety
    /// It is one of the view's.
    pub unsafe fn of(&self, line: usize) -> *const f32 {
        // SAFETY: by the contract.
        unsafe { self.start.add((line - self.first) * self.line) }
    }
}

impl Lines {
    /// How a sweep's sources are laid out, unless that is almost nothing but padding: dilations and strides may be such
    /// that the windows of a row reach over gigabytes of it.
    pub fn new(sweep: Sweep) -> Option<Lines> {
        let across = sweep.axes[1];
        let width = match across.count {
            0 => 0,
            count => {
                let moves = (count - 1).checked_mul(across.step)?;
                let reach = (across.taps.max(1) - 1).checked_mul(across.tap_step)?;
                moves.checked_add(reach)?.checked_add(1)?
            }
        };
        let inside = usize::try_from(across.origin).is_ok_and(|origin| origin + width <= across.source);
        let in_place = inside && sweep.source.x == sweep.depth;
        // Dense, a line is about what the image and the filter are.
        let dense = width <= 2 * (across.source + across.taps) || width.saturating_mul(sweep.depth) <= SMALL;
        (in_place || dense).then_some(Lines { sweep, width, in_place })
    }

    /// The lines that some rows of results see.
    fn seen(&self, rows: &Range<usize>) -> Range<usize> {
        let down = self.sweep.axes[0];
        if rows.is_empty() || down.taps == 0 {
            return 0..0;
        }
        let within = |at: isize| usize::try_from(at).unwrap_or(0).min(down.source);
        let reach = ((down.taps - 1) * down.tap_step + 1) as isize;
        let first = within(down.start(rows.start));
        first..within(down.start(rows.end - 1) + reach).max(first)
    }

    /// Elements of scratch memory that so many rows of results take.
    pub fn scratch(&self, rows: usize) -> usize {
        if self.in_place || rows == 0 {
            return 0;
        }
        let down = self.sweep.axes[0];
        let lines = ((rows - 1) * down.step + (down.taps.max(1) - 1) * down.tap_step + 1).min(down.source);
        lines * self.width * self.sweep.depth
    }

    /// Rows of results whose lines fit a cache; at least one.
    pub fn rows(&self) -> usize {
        let down = self.sweep.axes[0];
        let line = (self.width * self.sweep.depth).max(1);
        let lines = ELEMENTS / line;
        let reach = (down.taps.max(1) - 1) * down.tap_step + 1;
        (lines.saturating_sub(reach) / down.step.max(1) + 1).clamp(1, down.count.max(1))
    }

    /// The lines that some rows of results of one image see.
    ///
    /// # Safety
    /// `source` is the first element of a group in an image of the sweep's steps; the scratch memory has room.
    pub unsafe fn view(&self, source: *const f32, rows: &Range<usize>, scratch: &mut [f32]) -> View {
        let (sweep, lines) = (&self.sweep, self.seen(rows));
        let (across, depth, x) = (sweep.axes[1], sweep.depth, sweep.source.x);
        // SAFETY: by the contract: sources are within the image, and copies within the scratch memory.
        unsafe {
            if self.in_place {
                // Where no line is seen, this may be beyond the end.
                let start = source.wrapping_add(lines.start * sweep.source.y + across.origin as usize * x);
                return View { start, first: lines.start, line: sweep.source.y, pixel: x };
            }
            let line = self.width * depth;
            // Pixels of a line before, in and after the image.
            let left = usize::try_from(-across.origin).unwrap_or(0).min(self.width);
            let skipped = usize::try_from(across.origin).unwrap_or(0).min(across.source);
            let inside = (across.source - skipped).min(self.width - left);
            for (n, y) in lines.clone().enumerate() {
                let to = scratch[n * line..][..line].as_mut_ptr();
                let from = source.add(y * sweep.source.y + skipped * x);
                to.write_bytes(0, left * depth);
                let image = to.add(left * depth);
                if x == depth {
                    from.copy_to_nonoverlapping(image, inside * depth);
                } else {
                    for pixel in 0..inside {
                        from.add(pixel * x).copy_to_nonoverlapping(image.add(pixel * depth), depth);
                    }
                }
                image.add(inside * depth).write_bytes(0, (self.width - left - inside) * depth);
            }
            View { start: scratch.as_ptr(), first: lines.start, line, pixel: depth }
        }
    }
}
