//! Copies between differently laid out views: the kernel of every op that only moves elements.
//!
//! A copy is sizes and two lists of strides; equal neighbours are joined first. Absent: overlapping views.

use super::support::{GRAIN, by_dtype};
use crate::base::{DType, Element};
use crate::device::{CpuKernel, Launch, Team};
use smallvec::SmallVec;

/// Side of the blocks in which a transposition reads whole cache lines.
const TILE: usize = 32;

/// A joined axis: its size, and its steps in the source and in the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    pub size: usize,
    pub from: isize,
    pub to: isize,
}

/// A copy of a box of elements, strides and starts in elements.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub axes: SmallVec<[Axis; 6]>,
    /// Where the box starts in the source.
    pub from: isize,
    /// Where it starts in the target.
    pub to: isize,
    /// The axis before the last is dense in the source, so that the two are walked in tiles.
    pub tiled: bool,
}

impl Copy {
    /// A copy of a box of these sizes. Strides may be zero (source only) or negative.
    pub fn new(dims: &[usize], from: isize, from_strides: &[isize], to: isize, to_strides: &[isize]) -> Copy {
        let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
        for ((&size, &from), &to) in dims.iter().zip(from_strides).zip(to_strides).filter(|((s, _), _)| **s != 1) {
            let inner = Axis { size, from, to };
            let steps = size as isize;
            match axes.last_mut() {
                Some(a) if a.from == from.wrapping_mul(steps) && a.to == to.wrapping_mul(steps) => {
                    *a = Axis { size: a.size.wrapping_mul(size), from, to };
                }
                _ => axes.push(inner),
            }
        }
        // Where another axis is dense in the source, it goes next to the last and both are walked in blocks.
        let dense = axes.len().checked_sub(1).filter(|&last| axes[last].from != 1);
        let dense = dense.and_then(|last| axes[..last].iter().position(|a| a.from == 1 && a.size >= 4));
        if let Some(dense) = dense {
            let axis = axes.remove(dense);
            let last = axes.len() - 1;
            axes.insert(last, axis);
        }
        Copy { axes, from, to, tiled: dense.is_some() }
    }

    /// The axis before the last and the last, and the others.
    fn split(&self) -> (&[Axis], Axis, Axis) {
        let one = Axis { size: 1, from: 0, to: 0 };
        match (&self.axes[..], self.tiled) {
            ([outer @ .., rows, last], true) => (outer, *rows, *last),
            ([outer @ .., last], _) => (outer, one, *last),
            ([], _) => (&[], one, one),
        }
    }

    /// Runs the copy.
    ///
    /// # Safety
    /// All elements of the box are inside of the two buffers, which do not overlap.
    pub unsafe fn run<T: Element>(&self, from: *const T, to: *mut T, team: &Team) {
        struct Ends<T>(*const T, *mut T);
        // SAFETY: the buffers outlive the job, and its parts write different elements.
        unsafe impl<T> Sync for Ends<T> {}
        let (outer, rows, last) = self.split();
        let boxes: usize = outer.iter().map(|a| a.size).product();
        if boxes == 0 || rows.size == 0 || last.size == 0 {
            return;
        }
        // A unit of work is a band of rows, or a stretch of the last axis.
        let (bands, stretches) = match self.tiled {
            true => (rows.size.div_ceil(TILE), 1),
            false => (1, last.size.div_ceil(GRAIN)),
        };
        let per_box = bands * stretches;
        let cost = if self.tiled { TILE.min(rows.size) * last.size } else { last.size.min(GRAIN) };
        // SAFETY: by the contract, the first element of the box is inside of both.
        let ends = Ends(unsafe { from.offset(self.from) }, unsafe { to.offset(self.to) });
        let ends = &ends;
        team.chunks(boxes * per_box, GRAIN / cost.max(1), |units| {
            let mut at = Odometer::at(outer, units.start / per_box);
            let mut within = units.start % per_box;
            for _ in units {
                let (band, stretch) = (within / stretches * TILE, within % stretches * GRAIN);
                // SAFETY: offsets of elements of the box.
                unsafe {
                    let (f, t) = (ends.0.offset(at.from), ends.1.offset(at.to));
                    if self.tiled {
                        transpose(f, t, rows, last, band);
                    } else {
                        let end = last.size.min(stretch + GRAIN);
                        let (f, t) = (f.offset(stretch as isize * last.from), t.offset(stretch as isize * last.to));
                        line(f, t, Axis { size: end - stretch, ..last });
                    }
                }
                within += 1;
                if within == per_box {
                    within = 0;
                    at.next(outer);
                }
            }
        });
    }
}

/// Copies one band of a transposition: rows dense in the source, the last axis dense in the target as a rule.
///
/// # Safety
/// As [`Copy::run`].
unsafe fn transpose<T: Element>(from: *const T, to: *mut T, rows: Axis, last: Axis, band: usize) {
    let end = rows.size.min(band + TILE);
    for block in (0..last.size).step_by(TILE) {
        for i in band as isize..end as isize {
            for j in block as isize..last.size.min(block + TILE) as isize {
                // SAFETY: (i, j) is inside of the box.
                unsafe { *to.offset(i * rows.to + j * last.to) = *from.offset(i * rows.from + j * last.from) };
            }
        }
    }
}

/// Copies one line.
///
/// # Safety
/// As [`Copy::run`].
unsafe fn line<T: Element>(from: *const T, to: *mut T, axis: Axis) {
    // SAFETY: every offset is of an element of the line.
    unsafe {
        match (axis.from, axis.to) {
            (1, 1) => std::ptr::copy_nonoverlapping(from, to, axis.size),
            (0, 1) => std::slice::from_raw_parts_mut(to, axis.size).fill(*from),
            _ => {
                for i in 0..axis.size as isize {
                    *to.offset(i * axis.to) = *from.offset(i * axis.from);
                }
            }
        }
    }
}

/// A position in the outer axes.
struct Odometer {
    index: SmallVec<[usize; 6]>,
    from: isize,
    to: isize,
}

impl Odometer {
    fn at(axes: &[Axis], mut position: usize) -> Odometer {
        let mut o = Odometer { index: smallvec::smallvec![0; axes.len()], from: 0, to: 0 };
        for (i, a) in axes.iter().enumerate().rev() {
            o.index[i] = position % a.size;
            position /= a.size;
            o.from += o.index[i] as isize * a.from;
            o.to += o.index[i] as isize * a.to;
        }
        o
    }

    fn next(&mut self, axes: &[Axis]) {
        for (i, a) in axes.iter().enumerate().rev() {
            self.index[i] += 1;
            self.from += a.from;
            self.to += a.to;
            if self.index[i] < a.size {
                return;
            }
            self.index[i] = 0;
            self.from -= a.from * a.size as isize;
            self.to -= a.to * a.size as isize;
        }
    }
}

/// A copy from one input to one output.
pub(super) struct Move {
    /// The input.
    pub input: usize,
    /// The output.
    pub output: usize,
    /// The boxes.
    pub copy: Copy,
}

/// A kernel that does these copies one after another. The boxes must be inside of their buffers.
pub(super) fn move_kernel(dtype: DType, moves: Vec<Move>) -> CpuKernel {
    by_dtype!(dtype, T => Box::new(move |l| {
        run_moves::<T>(l, &moves);
        Ok(())
    }))
}

/// A kernel that zeroes output 0 and then does these copies.
pub(super) fn zero_and_move_kernel(dtype: DType, moves: Vec<Move>) -> CpuKernel {
    by_dtype!(dtype, T => Box::new(move |l| {
        l.output::<T>(0).fill(T::default());
        run_moves::<T>(l, &moves);
        Ok(())
    }))
}

fn run_moves<T: Element>(l: &Launch<'_>, moves: &[Move]) {
    for m in moves {
        let (from, to) = (l.input_ptr::<T>(m.input).0, l.output_ptr::<T>(m.output).0);
        // SAFETY: the ops that make moves derive the boxes from the sizes of these buffers, and do not work in place.
        unsafe { m.copy.run(from, to, l.team()) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::support::strides_of;
    use super::*;

    #[test]
    fn neighbours_with_equal_layout_are_joined() {
        let strides = strides_of(&[3, 4, 5]);
        assert_eq!(Copy::new(&[3, 4, 5], 0, &strides, 0, &strides).axes.len(), 1);
        assert_eq!(Copy::new(&[3, 4, 5], 0, &[0, 5, 1], 0, &strides).axes.len(), 2);
    }

    #[test]
    fn large_transpositions_reach_every_element() {
        let (rows, columns) = (301, 173);
        let from: Vec<i32> = (0..rows * columns).collect();
        let mut to = vec![-1; from.len()];
        let copy = Copy::new(&[columns as usize, rows as usize], 0, &[1, columns as isize], 0, &[rows as isize, 1]);
        assert!(copy.tiled);
        // SAFETY: the box is the whole of both.
        unsafe { copy.run(from.as_ptr(), to.as_mut_ptr(), &Team::new(3, "test")) };
        for i in 0..columns {
            for j in 0..rows {
                assert_eq!(to[(i * rows + j) as usize], j * columns + i);
            }
        }
    }
}
