//! The op set: one file per op or tight family, the table of all op types, and the methods that build nodes.
//!
//! To add an op: write its file (or add to its family's), implement [`crate::graph::Op`] with cases, and add one line
//! to [`TABLE`]. Tests walk the table; nothing else needs to know of it.

mod apply;
mod apply_kernels;
mod apply_rules;
mod barrier;
mod bias;
mod broadcast_to;
mod concat;
mod constant;
mod copy;
mod gather;
mod identity;
mod initializer;
mod philox;
mod placeholder;
mod qr;
mod random;
mod random_build;
mod sequence;
mod slice;
mod softmax;
mod split;
mod stack;
mod state;
mod strided;
mod strided_slice;
mod support;
#[cfg(test)]
mod table_tests;
mod transpose;
mod updates;

use crate::graph::OpRef;

pub use apply::{ApplyGradients, ApplyLayout, UpdateRule, VariableInputs};
pub use placeholder::IntoPlaceholderShape;
pub use state::VariableOptions;
pub use strided_slice::Index;

/// Every op type, by family.
pub static TABLE: &[OpRef] = &[
    &placeholder::Placeholder,
    &constant::Const,
    &state::VariableV2,
    &state::Assign,
    &identity::Identity,
    &identity::NoOp,
    &transpose::Transpose,
    &transpose::InvertPermutation,
    &concat::ConcatV2,
    &concat::ConcatOffset,
    &split::Split,
    &split::SplitV,
    &slice::Slice,
    &slice::Pad,
    &strided_slice::StridedSlice,
    &strided_slice::StridedSliceGrad,
    &stack::Pack,
    &stack::Unpack,
    &broadcast_to::BroadcastTo,
    &broadcast_to::ReverseV2,
    &sequence::Range,
    &sequence::OneHot,
    &barrier::StopGradient,
    &barrier::Print,
    &gather::GatherV2,
    &gather::UnsortedSegmentSum,
    &softmax::Softmax,
    &softmax::LogSoftmax,
    &softmax::SoftmaxCrossEntropyWithLogits,
    &softmax::SparseSoftmaxCrossEntropyWithLogits,
    &bias::BiasAdd,
    &bias::BiasAddGrad,
    &random::RandomUniform,
    &random::RandomStandardNormal,
    &random::TruncatedNormal,
    &random::RandomUniformInt,
    &qr::Qr,
    &qr::DiagPart,
    &updates::AssignAdd,
    &updates::AssignSub,
    &updates::ScatterAdd,
    &updates::ScatterSub,
    &updates::ScatterUpdate,
    &apply::ApplyGradients,
];

/// The op type of this name, if turret has it.
pub fn find(name: &str) -> Option<OpRef> {
    TABLE.iter().copied().find(|op| op.name() == name)
}

/// The shape rule of ops whose output is like input 0.
fn like_input(c: &crate::graph::InferContext<'_>) -> Result<Vec<crate::graph::Fact>, String> {
    c.want_inputs(1)?;
    Ok(vec![c.inputs[0].clone()])
}

/// The kernel of ops that never run: their output is another's buffer, or they have none.
fn no_kernel() -> Result<crate::device::CpuKernel, String> {
    Ok(Box::new(|_| Ok(())))
}
