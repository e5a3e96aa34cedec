//! The graph that programs build: nodes, names, scopes, the variable registry, collections, and the `Op` trait.
//!
//! Invariant: nothing here knows a single op type; `ops` has them, and the methods that build them.

mod attrs;
mod collections;
mod eval;
#[allow(clippy::module_inception)]
mod graph;
mod names;
mod node;
mod op;
mod placement;
mod registry;
mod scopes;
mod tensor;

pub use attrs::{Attr, Attrs};
pub use collections::{CollectionItem, keys};
pub use eval::evaluate;
pub use graph::{Graph, NewNode, NodeBuilder};
pub use node::{DeviceRequest, DeviceRule, Node, NodeId, TensorId};
pub use op::{
    Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, OpRef, Part, TensorDesc, Traits,
};
pub use placement::VariablePlacement;
pub use registry::{Distribution, FanMode, Init, Regularizer, Reuse, ScopeOptions, VariableScope};
pub(crate) use registry::{Entry, Lookup};
pub use tensor::{Gradient, IndexedSlices, Operation, Tensor, Variable};
