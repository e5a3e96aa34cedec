//! Element-wise kernels: one loop for one op, or for a chain of ops whose values between stay in registers.
//!
//! Absent: which ops there are, and which are fused. Invariant: every element is computed alone, by the same
//! operations as on the host, so that fusing never changes a result.

use super::code::{CudaKernel, CudaMap};
use crate::base::{DType, Dims};

/// Where an operand of a fused op comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    /// An input of the whole chain.
    Input(usize),
    /// The value of an earlier step.
    Step(usize),
}

/// One op of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct MapStep {
    /// What it computes.
    pub map: CudaMap,
    /// The type of its value.
    pub dtype: DType,
    /// Its operands, in the order of `$0`, `$1`, ….
    pub operands: Vec<Operand>,
}

/// The kernel of a chain of element-wise ops over `output` elements; its last step is the output. Inputs are
/// broadcast to the output as NumPy does; all steps have the output's sizes.
///
/// # Errors
/// None yet known of; a fault of the caller (a step that refers forward) is told as text.
pub fn map_kernel(steps: &[MapStep], inputs: &[(DType, Dims)], output: &Dims) -> Result<CudaKernel, String> {
    let _ = (steps, inputs, output);
    Err("not written".into())
}
