//! Generated pieces of CUDA C: the walk over a box of elements in strided views, and the choice of a part by number.
//!
//! Sizes are parameters and only the number of axes is text, so that one compilation serves all sizes. Absent: kernels.

use crate::base::DType;
use crate::device::cuda::{BLOCK, CudaArg, CudaCode, divisor};
use std::fmt::Write as _;

/// What `index.cu` gives to every text that computes indices.
const INDEX: &str = include_str!("cuda/index.cu");

/// Elements and offsets below this are counted in 32 bits, with room for a grid's step.
const NARROW: usize = 1 << 30;

/// The most threads of a launch whose blocks ask whether a check failed: the answer lies in the host's memory.
pub(super) const ASKING: usize = 2048 * BLOCK as usize;

/// The type that a launch counts elements in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counter {
    wide: bool,
}

impl Counter {
    /// A type that holds every count and offset up to the largest of these.
    pub fn for_sizes(sizes: &[usize]) -> Counter {
        Counter { wide: sizes.iter().any(|&s| s >= NARROW) }
    }

    /// A text with this type as `I`, and what `index.cu` has.
    pub fn code(self, text: &str) -> CudaCode {
        let dtype = if self.wide { DType::I64 } else { DType::I32 };
        CudaCode::new(format!("{INDEX}\n{text}")).with_type("I", dtype)
    }

    /// A count or step.
    pub fn arg(self, value: isize) -> CudaArg {
        if self.wide { CudaArg::I64(value as i64) } else { CudaArg::I32(value as i32) }
    }

    /// A count.
    pub fn size(self, value: usize) -> CudaArg {
        self.arg(value as isize)
    }

    /// The three parameters `I size, u32 multiplier, u32 shift` by which `quotient` divides.
    pub fn divisor(self, size: usize) -> [CudaArg; 3] {
        let (multiplier, shift) = if self.wide { (0, 0) } else { divisor(size as u32) };
        [self.size(size), CudaArg::U32(multiplier), CudaArg::U32(shift)]
    }
}

/// A box of elements, walked in row-major order, and the steps of some views along its axes.
pub(super) struct Walk {
    name: &'static str,
    counter: Counter,
    /// Outermost first.
    sizes: Vec<usize>,
    /// By axis, then by view.
    steps: Vec<Vec<isize>>,
    views: usize,
}

impl Walk {
    /// A walk of `views` views; `axes` gives an axis's size and its steps by view.
    pub fn new(name: &'static str, counter: Counter, views: usize, axes: Vec<(usize, Vec<isize>)>) -> Walk {
        let (sizes, steps) = axes.into_iter().unzip();
        Walk { name, counter, sizes, steps, views }
    }

    /// Parameters in pairs of type and name.
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut parameters = Vec::new();
        for axis in 0..self.sizes.len() {
            if axis > 0 {
                parameters.push(("I", format!("{}_size{axis}", self.name)));
                parameters.push(("u32", format!("{}_multiplier{axis}", self.name)));
                parameters.push(("u32", format!("{}_shift{axis}", self.name)));
            }
            parameters.extend((0..self.views).map(|v| ("I", format!("{}_step{axis}_{v}", self.name))));
        }
        parameters
    }

    /// A text with this walk in it: the function `NAME(I at, I& offset0, … NAMES)` before it, and in it the parameters
    /// for `$NAME_parameters` and their names for `$NAME_names`, each with a comma before it.
    pub fn put(&self, text: &str) -> String {
        let parameters = self.parameters();
        let declared: String = parameters.iter().map(|(t, n)| format!(", {t} {n}")).collect();
        let names: String = parameters.iter().map(|(_, n)| format!(", {n}")).collect();
        let offsets: String = (0..self.views).map(|v| format!(", I& offset{v}")).collect();
        let mut body = String::new();
        // Writing to a string does not fail.
        for axis in (0..self.sizes.len()).rev() {
            let place = if axis > 0 { "place" } else { "at" };
            if axis > 0 {
                let size = ["size", "multiplier", "shift"].map(|p| format!("{}_{p}{axis}", self.name)).join(", ");
                let _ = writeln!(body, "    rest = quotient(at, {size});");
                let _ = writeln!(body, "    place = at - rest * {}_size{axis};", self.name);
            }
            for v in 0..self.views {
                let _ = writeln!(body, "    offset{v} += {place} * {}_step{axis}_{v};", self.name);
            }
            if axis > 0 {
                let _ = writeln!(body, "    at = rest;");
            }
        }
        let function = format!(
            "static __device__ __forceinline__ void {}(I at{offsets}{declared}) {{\n    I rest, place;\n{body}}}\n",
            self.name
        );
        let text = text.replace(&format!("${}_parameters", self.name), &declared);
        function + &text.replace(&format!("${}_names", self.name), &names)
    }

    /// The arguments for the parameters.
    pub fn args(&self) -> Vec<CudaArg> {
        let mut args = Vec::new();
        for (axis, &size) in self.sizes.iter().enumerate() {
            if axis > 0 {
                args.extend(self.counter.divisor(size));
            }
            args.extend(self.steps[axis].iter().map(|&s| self.counter.arg(s)));
        }
        args
    }
}

/// Code that runs the statements of part `i` of `count > 0`, where `block < end{i}` and no earlier part has it: a tree
/// of comparisons, which all threads of a block go through alike.
pub(super) fn choose(count: usize, statements: &dyn Fn(usize) -> String) -> String {
    fn tree(from: usize, to: usize, statements: &dyn Fn(usize) -> String) -> String {
        if to - from == 1 {
            return format!("{{ {} }}", statements(from));
        }
        let middle = from.midpoint(to);
        let (low, high) = (tree(from, middle, statements), tree(middle, to, statements));
        format!("{{ if (block < end{}) {low} else {high} }}", middle - 1)
    }
    tree(0, count, statements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_compares_as_often_as_its_depth() {
        let text = choose(3, &|i| format!("part = {i};"));
        assert_eq!(
            text,
            "{ if (block < end0) { part = 0; } else { if (block < end1) { part = 1; } else { part = 2; } } }"
        );
    }
}
