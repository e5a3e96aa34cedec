//! The vocabulary that every layer speaks: element types, shapes, device names, host arrays, diagnostics.
//!
//! Invariant: nothing here knows of graphs, devices or running; it is data and its text forms.

mod array;
mod device_spec;
mod dtype;
mod error;
mod shape;

pub use array::{AlignedBytes, Array, IntoArray};
pub use device_spec::DeviceSpec;
pub use dtype::{Bool8, DType, Element, OpaqueType};
pub use error::{Code, Diagnostic, Error, Result, SourceLine, nearest};
pub use half::{bf16, f16};
pub use shape::{Dims, IntoShape, POISON_DIM, Shape, num_elements};
