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
    /// Whether a kernel may write them.
    pub writable: bool,
}

impl View {
    fn overlaps(&self, other: &View) -> bool {
        let end = |v: &View| v.start.addr() + v.len * v.dtype.size();
        self.start.addr() < end(other) && other.start.addr() < end(self)
    }
}

/// The bit that notes a buffer's lending; later ones have none.
fn bit(i: usize) -> u64 {
    if i < 32 { 1 << i } else { 0 }
}

const SHARED: &str = "a kernel took one buffer to read and to write; one that works in place uses raw pointers";

/// The buffers and threads of one launch of a [`CpuKernel`].
pub struct Launch<'a> {
    inputs: &'a [View],
    outputs: &'a [View],
    team: &'a Team,
    /// Outputs that are lent to write, then inputs.
    lent: Cell<u64>,
    /// Inputs that are lent to read.
    read: Cell<u32>,
}

impl<'a> Launch<'a> {
    /// A launch over these buffers.
    ///
    /// # Safety
    /// Every view is valid for the launch's life. Writable ones are used by nobody else meanwhile, except that an
    /// output may be the very buffer of an input where the op's `in_place` says so; no two writable inputs overlap.
    pub unsafe fn new(inputs: &'a [View], outputs: &'a [View], team: &'a Team) -> Launch<'a> {
        Launch { inputs, outputs, team, lent: Cell::new(0), read: Cell::new(0) }
    }

    /// The threads that this launch may use.
    pub fn team(&self) -> &'a Team {
        self.team
    }

    /// Number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Number of outputs.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// The elements of an input.
    ///
    /// # Panics
    /// When the element type is another, or the buffer is lent to write: faults of the kernel.
    pub fn input<T: Element>(&self, i: usize) -> &'a [T] {
        let view = self.inputs[i];
        assert_eq!(view.dtype, T::DTYPE, "input {i} of a kernel");
        self.check_not_lent(&view);
        self.read.set(self.read.get() | bit(i) as u32);
        // SAFETY: valid by the contract of `new`; not lent to write, as was checked, nor will it be while `read` says so.
        unsafe { std::slice::from_raw_parts(view.start.cast(), view.len) }
    }

    /// The first element of an input, which may be written afterwards.
    ///
    /// # Panics
    /// When there is none, the element type is another, or the buffer is lent to write: faults of the kernel.
    pub fn first<T: Element>(&self, i: usize) -> T {
        let view = self.inputs[i];
        assert!(view.dtype == T::DTYPE && view.len > 0, "the first element of input {i} of a kernel");
        self.check_not_lent(&view);
        // SAFETY: valid by the contract of `new`, and not lent to write.
        unsafe { view.start.cast::<T>().read() }
    }

    /// The elements of an output, to write. Each can be taken once.
    ///
    /// # Panics
    /// When the element type is another, it was taken before, it is not for writing, or an input that was taken lies
    /// there: faults of the kernel.
    pub fn output<T: Element>(&self, i: usize) -> &'a mut [T] {
        self.lend(i, 0, &self.outputs[i]);
        self.slice_mut(self.outputs[i])
    }

    /// The elements of a variable that comes in as input `i` and is written. Each can be taken once.
    ///
    /// # Panics
    /// As [`Launch::output`].
    pub fn variable<T: Element>(&self, i: usize) -> &'a mut [T] {
        self.lend(i, 32, &self.inputs[i]);
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

    /// All that it was made of.
    pub(super) fn parts(&self) -> (&'a [View], &'a [View], &'a Team) {
        (self.inputs, self.outputs, self.team)
    }

    /// The type of an input.
    pub fn input_dtype(&self, i: usize) -> DType {
        self.inputs[i].dtype
    }

    fn check_not_lent(&self, view: &View) {
        let lent = self.lent.get();
        let clashes =
            |views: &[View], lent: u64| views.iter().enumerate().any(|(i, v)| lent & bit(i) != 0 && v.overlaps(view));
        assert!(lent == 0 || !clashes(self.outputs, lent) && !clashes(self.inputs, lent >> 32), "{SHARED}");
    }

    /// Guards against a kernel's mistake; the first 32 buffers of either kind are enough to catch one.
    fn lend(&self, i: usize, first_bit: usize, view: &View) {
        assert!(view.writable, "a kernel took a buffer to write that is only read");
        let mask = bit(i) << first_bit;
        assert_eq!(self.lent.get() & mask, 0, "a kernel took the same buffer twice");
        let read = u64::from(self.read.get());
        let clash = read != 0 && self.inputs.iter().enumerate().any(|(i, v)| read & bit(i) != 0 && v.overlaps(view));
        assert!(!clash, "{SHARED}");
        self.lent.set(self.lent.get() | mask);
    }

    fn slice_mut<T: Element>(&self, view: View) -> &'a mut [T] {
        assert_eq!(view.dtype, T::DTYPE, "a written buffer of a kernel");
        // SAFETY: valid and unshared by the contract of `new`; lent once, as `lend` has checked.
        unsafe { std::slice::from_raw_parts_mut(view.start.cast(), view.len) }
    }
}
