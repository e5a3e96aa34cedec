//! How inputs of several sizes meet an output: NumPy's broadcasting as few axes, and the parameters that tell a kernel.
//!
//! Absent: the loops. Invariant: the axes and the steps decide the parameters, and their number alone the text.

use super::super::code::CudaArg;
use smallvec::SmallVec;

/// How an input's elements meet the output's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meets {
    /// One by one.
    Each,
    /// One for all.
    One,
    /// By its steps along the axes; whether it moves along the innermost.
    Strided(bool),
}

/// How inputs of several sizes meet the output: axes along which each input moves alike are one, axes of size 1 are gone.
#[derive(Debug, PartialEq)]
pub(super) struct Grid {
    /// Sizes, the outermost first.
    pub(super) axes: SmallVec<[usize; 4]>,
    /// For each input, its step along each axis, in elements.
    steps: Vec<SmallVec<[usize; 4]>>,
    pub(super) meets: Vec<Meets>,
}

impl Grid {
    pub(super) fn new(inputs: &[&[usize]], output: &[usize]) -> Result<Grid, String> {
        let mut axes: SmallVec<[usize; 4]> = SmallVec::new();
        let mut steps: Vec<SmallVec<[usize; 4]>> = vec![SmallVec::new(); inputs.len()];
        let mut next: SmallVec<[usize; 8]> = SmallVec::from_elem(1, inputs.len());
        if let Some(dims) = inputs.iter().find(|d| d.len() > output.len()) {
            return Err(format!("sizes {dims:?} do not broadcast to {output:?}: they have more axes"));
        }
        for back in 0..output.len() {
            let size = output[output.len() - 1 - back];
            let mut here: SmallVec<[usize; 8]> = SmallVec::new();
            for (dims, next) in inputs.iter().zip(&mut next) {
                let own = dims.len().checked_sub(back + 1).map_or(1, |i| dims[i]);
                if own != 1 && own != size {
                    return Err(format!("sizes {dims:?} do not broadcast to {output:?}"));
                }
                here.push(if own == 1 { 0 } else { *next });
                *next = next.wrapping_mul(own);
            }
            let alike = |(steps, here): (&SmallVec<[usize; 4]>, &usize)| {
                steps.last().is_some_and(|inner| (*inner == 0) == (*here == 0))
            };
            match axes.last_mut() {
                _ if size == 1 => {}
                Some(inner) if steps.iter().zip(&here).all(alike) => *inner = inner.wrapping_mul(size),
                _ => {
                    axes.push(size);
                    steps.iter_mut().zip(here).for_each(|(s, h)| s.push(h));
                }
            }
        }
        axes.reverse();
        steps.iter_mut().for_each(|s| s.reverse());
        let meet = |steps: &SmallVec<[usize; 4]>| match steps.last() {
            _ if steps.iter().all(|&s| s != 0) => Meets::Each,
            _ if steps.iter().all(|&s| s == 0) => Meets::One,
            inner => Meets::Strided(inner != Some(&0)),
        };
        let meets = steps.iter().map(meet).collect();
        Ok(Grid { axes, steps, meets })
    }

    /// True where some input's place has to be worked out from the places along the axes.
    pub(super) fn is_strided(&self) -> bool {
        self.meets.iter().any(|m| matches!(m, Meets::Strided(_)))
    }

    /// The parameters that [`Grid::parameters`] declares.
    pub(super) fn sizes(&self, wide: bool, args: &mut Vec<CudaArg>) {
        if !self.is_strided() {
            return;
        }
        let number = |n: usize| if wide { CudaArg::size(n) } else { CudaArg::U32(n as u32) };
        for &size in &self.axes[1..] {
            args.push(number(size));
            if !wide {
                let (multiplier, shift) = divisor(size as u32);
                args.extend([CudaArg::U32(multiplier), CudaArg::U32(shift)]);
            }
        }
        for (steps, _) in self.strided() {
            args.extend(steps.iter().map(|&s| number(s)));
        }
    }

    pub(super) fn parameters(&self, wide: bool, used: &[usize]) -> Vec<(&'static str, String)> {
        let mut parameters = Vec::new();
        if !self.is_strided() {
            return parameters;
        }
        let index = if wide { "i64" } else { "u32" };
        for axis in 1..self.axes.len() {
            parameters.push((index, format!("size{axis}")));
            if !wide {
                parameters.extend([(index, format!("multiplier{axis}")), (index, format!("shift{axis}"))]);
            }
        }
        for (_, i) in self.strided() {
            parameters.extend((0..self.axes.len()).map(|axis| (index, format!("step{}_{axis}", used[i]))));
        }
        parameters
    }

    fn strided(&self) -> impl Iterator<Item = (&SmallVec<[usize; 4]>, usize)> {
        let strided = |i: &usize| matches!(self.meets[*i], Meets::Strided(_));
        (0..self.meets.len()).filter(strided).map(|i| (&self.steps[i], i))
    }
}

/// Multiplier and shift for `turret_divide`: n / d is ((n · multiplier >> 32) + n) >> shift for n below 2³¹
/// (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994).
pub fn divisor(d: u32) -> (u32, u32) {
    let d = d.max(1);
    let shift = 32 - (d - 1).leading_zeros();
    let multiplier = ((1u64 << 32) * ((1u64 << shift) - u64::from(d))) / u64::from(d) + 1;
    (multiplier as u32, shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_all_inputs_meet_alike_are_joined() {
        let grid = Grid::new(&[&[2, 3, 4, 5], &[3, 1, 1]], &[2, 3, 4, 5]).unwrap();
        assert_eq!(grid.axes[..], [2, 3, 20]);
        assert_eq!(grid.steps[0][..], [60, 20, 1]);
        assert_eq!(grid.steps[1][..], [0, 1, 0]);
        assert_eq!(grid.meets, [Meets::Each, Meets::Strided(false)]);
        let grid = Grid::new(&[&[3, 1], &[1, 4], &[]], &[3, 4]).unwrap();
        assert_eq!(grid.axes[..], [3, 4]);
        assert_eq!(grid.meets, [Meets::Strided(false), Meets::Strided(true), Meets::One]);
        let grid = Grid::new(&[&[1, 1], &[]], &[1, 1]).unwrap();
        assert_eq!((grid.axes.len(), &grid.meets[..]), (0, &[Meets::Each, Meets::Each][..]));
        assert!(Grid::new(&[&[2], &[3]], &[3]).is_err());
        assert!(Grid::new(&[&[1, 3]], &[3]).is_err());
    }

    #[test]
    fn places_in_strided_inputs_are_numpys() {
        // The arithmetic of the text, done here on the parameters that it gets.
        let (inputs, output): ([&[usize]; 2], [usize; 4]) = ([&[3, 1, 2], &[5, 1, 4, 1]], [5, 3, 4, 2]);
        let grid = Grid::new(&inputs, &output).unwrap();
        for flat in 0..120u32 {
            let (mut rest, mut at) = (flat, [0usize; 2]);
            for axis in (0..grid.axes.len()).rev() {
                let size = grid.axes[axis] as u32;
                let (multiplier, shift) = divisor(size);
                let quotient = (((u64::from(rest) * u64::from(multiplier)) >> 32) as u32 + rest) >> shift;
                let place = if axis == 0 { rest } else { rest - quotient * size };
                (0..2).for_each(|i| at[i] += place as usize * grid.steps[i][axis]);
                rest = quotient;
            }
            let index = |axis: usize| flat as usize / output[axis + 1..].iter().product::<usize>() % output[axis];
            assert_eq!(at, [index(1) * 2 + index(3), index(0) * 4 + index(2)]);
        }
    }

    #[test]
    fn divisors_divide() {
        for d in [1u32, 2, 3, 5, 7, 10, 641, 1000, 65535, 65536, 1_000_003, i32::MAX as u32] {
            let (multiplier, shift) = divisor(d);
            for n in
                [0, 1, d - 1, d, d.saturating_add(1), 2 * (d / 2), 999_999_937, i32::MAX as u32 - 1, i32::MAX as u32]
            {
                let n = n.min(i32::MAX as u32);
                let quotient = (((u64::from(n) * u64::from(multiplier)) >> 32) as u32 + n) >> shift;
                assert_eq!(quotient, n / d, "{n} / {d}");
            }
        }
    }
}
