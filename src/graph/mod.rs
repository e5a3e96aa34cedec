//! The graph that programs build: nodes, names, scopes, the variable registry, collections, and the `Op` trait.
//!
//! Invariant: nothing here knows a single op type; `ops` has them, and the methods that build them.

mod attrs;
mod builder;
mod collections;
#[cfg(test)]
mod devices_tests;
mod eval;
mod generator;
#[allow(clippy::module_inception)]
mod graph;
mod imported;
mod init;
mod known;
mod names;
mod node;
mod op;
mod placement;
mod registry;
mod scopes;
#[cfg(test)]
mod scopes_tests;
mod tensor;
mod unknown;
mod variable_scope;

pub use attrs::{Attr, Attrs};
pub use builder::NodeBuilder;
pub use collections::{CollectionItem, keys};
pub(crate) use eval::FOLDED_ELEMENTS;
pub use eval::evaluate;
#[cfg(test)]
pub(crate) use eval::evaluate_by;
pub use generator::{Generator, Seeds};
pub use graph::{Graph, NewNode};
pub(crate) use imported::Imported;
pub use init::{Distribution, FanMode, Init, Regularizer};
pub use node::{DEVICE_SCOPE, DeviceRequest, DeviceRule, Guards, Node, NodeId, TensorId};
pub use op::{
    Case, ControlFlow, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, MergeKernel, Op, OpRef,
    Part, ReduceKernel, Reduction, Stretched, TensorDesc, Traits,
};
pub use placement::VariablePlacement;
pub(crate) use registry::{Entry, Lookup};
pub(crate) use scopes::ScopeCounts;
pub use tensor::{Gradient, IndexedSlices, Operation, Tensor, Variable};
pub use unknown::Unknown;
pub use variable_scope::{Reuse, ScopeOptions, VariableScope};
