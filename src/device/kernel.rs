//! What a backend runs: a kernel prepared for one node's shapes, and the buffers of one launch.
//!
//! Invariant: a kernel sees only its own launch; it allocates nothing, and asks nothing of the graph.

use super::team::Team;
use crate::base::{DType, Element};
use std::cell::Cell;

/// A host kernel, prepared when the step is planned. An error ends the step and carries the cause as text.
pub type CpuKernel = Box<dyn Fn(&Launch<'_>) -> Result<(), String> + Send + Sync>;

/// A buffer as a kernel sees it: where it starts, its elements, their type.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The first element's address in the device's memory.
    pub start: *mut u8,
    /// Number of elements.
    pub len: usize,
    /// Their type.
    pub dtype: DType,
}

/// The buffers and threads of one launch of a [`CpuKernel`].
pub struct Launch<'a> {
    inputs: &'a [View],
    outputs: &'a [View],
    team: &'a Team,
    lent: Cell<u64>,
}

impl<'a> Launch<'a> {
    /// A launch over these buffers.
    ///
    /// # Safety
    /// Every view is valid for the launch's life. Outputs, and inputs that the kernel writes, are used by nobody else
    /// meanwhile, except that an output may be the very buffer of an input where the op's `in_place` says so.
    pub unsafe fn new(inputs: &'a [View], outputs: &'a [View], team: &'a Team) -> Launch<'a> {
        Launch { inputs, outputs, team, lent: Cell::new(0) }
    }

    /// The threads that this launch may use.
    pub fn team(&self) -> &'a Team {
        self.team
    }

    /// Number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The elements of an input.
    ///
    /// # Panics
    /// When the element type is another: a fault of the kernel.
    pub fn input<T: Element>(&self, i: usize) -> &'a [T] {
        let view = self.inputs[i];
        assert_eq!(view.dtype, T::DTYPE, "input {i} of a kernel");
        // SAFETY: valid by the contract of `new`; only written through `output` or `variable`, which kernels
        // that work in place do not combine with `input` on the same buffer.
        unsafe { std::slice::from_raw_parts(view.start.cast(), view.len) }
    }

    /// The elements of an output, to write. Each can be taken once.
    ///
    /// # Panics
    /// When the element type is another or it was taken before: faults of the kernel.
    pub fn output<T: Element>(&self, i: usize) -> &'a mut [T] {
        self.lend(i, 0);
        self.slice_mut(self.outputs[i])
    }

    /// The elements of a variable that comes in as input `i` and is written. Each can be taken once.
    ///
    /// # Panics
    /// As [`Launch::output`].
    pub fn variable<T: Element>(&self, i: usize) -> &'a mut [T] {
        self.lend(i, 32);
        self.slice_mut(self.inputs[i])
    }

    /// An input's first element and length, for kernels that may work in place.
    pub fn input_ptr<T: Element>(&self, i: usize) -> (*const T, usize) {
        let view = self.inputs[i];
        assert_eq!(view.dtype, T::DTYPE, "input {i} of a kernel");
        (view.start.cast(), view.len)
    }

    /// An output's first element and length, for kernels that may work in place.
    pub fn output_ptr<T: Element>(&self, i: usize) -> (*mut T, usize) {
        let view = self.outputs[i];
        assert_eq!(view.dtype, T::DTYPE, "output {i} of a kernel");
        (view.start.cast(), view.len)
    }

    /// The type of an input.
    pub fn input_dtype(&self, i: usize) -> DType {
        self.inputs[i].dtype
    }

    /// Guards against a kernel's mistake; the first 32 buffers of either kind are enough to catch one.
    fn lend(&self, i: usize, first_bit: usize) {
        if i >= 32 {
            return;
        }
        let mask = 1u64 << (first_bit + i);
        assert_eq!(self.lent.get() & mask, 0, "a kernel took the same buffer twice");
        self.lent.set(self.lent.get() | mask);
    }

    fn slice_mut<T: Element>(&self, view: View) -> &'a mut [T] {
        assert_eq!(view.dtype, T::DTYPE, "a written buffer of a kernel");
        // SAFETY: valid and unshared by the contract of `new`; lent once, as `lend` has checked.
        unsafe { std::slice::from_raw_parts_mut(view.start.cast(), view.len) }
    }
}
