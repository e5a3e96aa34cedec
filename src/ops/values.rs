//! Short forms for the values in test cases.

use crate::base::{Array, Bool8, Element};
use crate::graph::{Attrs, Case};

/// A case without attributes.
pub(super) fn case(inputs: Vec<Array>, outputs: Vec<Array>, gradient: bool) -> Case {
    Case { attrs: Attrs::new(), inputs, outputs, gradient }
}

/// A case with attributes.
pub(super) fn case_with(attrs: Attrs, inputs: Vec<Array>, outputs: Vec<Array>, gradient: bool) -> Case {
    Case { attrs, inputs, outputs, gradient }
}

/// An array of any element type.
///
/// # Panics
/// When the number of values is not the sizes' product: a fault of the case.
pub(super) fn array<T: Element>(dims: &[usize], values: &[T]) -> Array {
    Array::new(dims, values).expect("a case's values fit its shape")
}

/// A `float32` array.
pub(super) fn float(dims: &[usize], values: &[f32]) -> Array {
    array(dims, values)
}

/// A vector of `int32`.
pub(super) fn ints(values: &[i32]) -> Array {
    array(&[values.len()], values)
}

/// A `bool` array.
pub(super) fn bools(dims: &[usize], values: &[bool]) -> Array {
    array(dims, &values.iter().map(|&v| Bool8::from(v)).collect::<Vec<_>>())
}
