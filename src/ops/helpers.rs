//! What gradient rules and builder methods share: scopes of their own, constants of a tensor's type, problems.

use crate::base::{Array, Code, Diagnostic, IntoArray};
use crate::graph::{Graph, NodeBuilder, OpRef, Tensor};
use std::sync::Arc;

impl Graph {
    /// Records a problem at the user's line, and gives the poison tensor that stands for it.
    #[track_caller]
    pub(super) fn report_invalid(&self, message: String) -> Tensor<'_> {
        self.report(Diagnostic::at(Code::InvalidArgument, message, self.source_line()));
        self.poison_tensor()
    }
}

impl<'g> Tensor<'g> {
    /// The value, if it is known when the graph is built.
    pub(super) fn constant_value(self) -> Option<Arc<Array>> {
        self.graph().known_value(self.id())
    }

    /// A scalar of this tensor's type under a name.
    #[track_caller]
    pub(super) fn scalar_like(self, name: &'static str, value: f64) -> Tensor<'g> {
        let graph = self.graph();
        if self.is_poison() {
            return self;
        }
        let dtype = self.dtype();
        if dtype.is_integer() && value.fract() != 0.0 {
            return graph.report_invalid(format!(
                "{value} is no {dtype}, which '{}' is; cast the tensor, or give a whole number",
                self.name()
            ));
        }
        match Array::from_f64(dtype, &[], &[value]) {
            Ok(array) => graph.constant_named(name, array),
            Err(_) => graph.poison_tensor(),
        }
    }

    /// A node with one constant input more, which is named `name` inside a scope of the node's own name.
    #[track_caller]
    pub(super) fn with_constant(
        self,
        name: &str,
        constant: &'static str,
        value: impl IntoArray,
        build: impl FnOnce(Tensor<'g>) -> NodeBuilder<'g>,
    ) -> Tensor<'g> {
        let graph = self.graph();
        if self.is_poison() {
            return self;
        }
        graph.with_source(graph.source_line(), || {
            graph.name_scope(name, || {
                let scope = graph.current_name_scope();
                build(graph.constant_named(constant, value)).name(format!("{scope}/")).tensor()
            })
        })
    }

    /// The node of this op type with this tensor as its input, named as the type.
    #[track_caller]
    pub(super) fn apply(self, op: OpRef) -> Tensor<'g> {
        self.graph().node_of(op).input(self).tensor()
    }

    /// The node of this op type with this tensor and another as inputs, under a name.
    #[track_caller]
    pub(super) fn apply_with(self, op: OpRef, name: &'static str, other: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.graph().node_of(op).name(name).input(self).input(other).tensor()
    }
}
