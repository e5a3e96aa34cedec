//! `Unknown`: the op of nodes whose type turret does not have. They are kept, placed and drawn, and never run.
//!
//! Invariant: what is known of their outputs comes from whoever adds them, as an importer does from TensorFlow's
//! signatures. A node of a known op type is one, too, if turret holds no values of the type of an input or output.

use super::op::{Fact, InferContext, KernelContext, Op, Traits};
use crate::device::CpuKernel;

/// The op of a node whose type turret cannot run; [`Node::op_type`](super::Node::op_type) tells the type.
pub struct Unknown;

impl Op for Unknown {
    fn name(&self) -> &'static str {
        "Unknown"
    }

    fn traits(&self) -> Traits {
        // It may have effects, so it is never taken out or merged with another.
        Traits { stateful: true, ..Traits::default() }
    }

    fn is_unknown(&self) -> bool {
        true
    }

    fn infer(&self, _c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        Err("turret does not have this op type, so it can be placed and drawn, but not run".into())
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Err("turret does not have this op type".into())
    }

    fn has_cuda_kernel(&self, _attrs: &super::Attrs, _outputs: &[Fact]) -> bool {
        // Nobody knows; it stays where it asks to be.
        true
    }
}
