//! `Const`: a tensor whose value is an attribute.

use crate::base::{Array, IntoArray};
use crate::device::CpuKernel;
use crate::graph::{
    Attrs, Case, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};
use std::borrow::Cow;
use std::sync::Arc;

/// TensorFlow's `Const`, with attributes `dtype` and `value`.
pub struct Const;

impl Op for Const {
    fn name(&self) -> &'static str {
        "Const"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(0)?;
        let value = c.attrs.tensor("value").ok_or("attribute 'value' is missing")?;
        Ok(vec![Fact::new(value.dtype(), value.shape())])
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(Vec::new())
    }

    fn constant<'a>(&self, attrs: &'a Attrs) -> Option<&'a Arc<Array>> {
        attrs.tensor("value")
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let _ = c;
        Err("a constant is laid down when the step is planned".into())
    }

    fn cases(&self) -> Vec<Case> {
        let value = super::values::ints(&[3, 4]);
        let attrs = Attrs::new().with("dtype", value.dtype()).with("value", Arc::new(value.clone()));
        vec![super::values::case_with(attrs, vec![], vec![value], false)]
    }
}

impl Graph {
    /// A constant, named `Const`.
    #[track_caller]
    pub fn constant(&self, value: impl IntoArray) -> Tensor<'_> {
        self.constant_named("Const", value)
    }

    /// A constant with a name.
    #[track_caller]
    pub fn constant_named(&self, name: impl Into<Cow<'static, str>>, value: impl IntoArray) -> Tensor<'_> {
        let value = Arc::new(value.into_array());
        self.node_of(&Const).name(name).attr("dtype", value.dtype()).attr("value", value).tensor()
    }
}
