//! `Placeholder`: a tensor that every run feeds; `PlaceholderWithDefault`: one that a run may feed.

use super::no_kernel;
use super::values::{case_with, float};
use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::graph::{
    Attrs, Case, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};

/// TensorFlow's `Placeholder`, with attributes `dtype` and `shape`.
pub struct Placeholder;

impl Op for Placeholder {
    fn name(&self) -> &'static str {
        "Placeholder"
    }

    fn traits(&self) -> Traits {
        Traits { stateful: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(0)?;
        let dtype = c.attrs.dtype("dtype").ok_or("attribute 'dtype' is missing")?;
        Ok(vec![Fact::new(dtype, c.attrs.shape("shape").cloned().unwrap_or_default())])
    }

    fn must_be_fed(&self) -> bool {
        true
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Err("a placeholder has to be fed".into())
    }
}

/// TensorFlow's `PlaceholderWithDefault`, with attribute `shape`: its input, unless a run feeds it.
pub struct PlaceholderWithDefault;

impl Op for PlaceholderWithDefault {
    fn name(&self) -> &'static str {
        "PlaceholderWithDefault"
    }

    fn traits(&self) -> Traits {
        Traits { forwards: Some(0), ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        let shape = c.attrs.shape("shape").cloned().unwrap_or_default();
        let known = c.shape(0).merge(&shape);
        let known = known.ok_or_else(|| format!("want a default of shape {shape}, got {}", c.shape(0)))?;
        Ok(vec![Fact::new(c.dtype(0), known)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(c.grad().into())])
    }

    fn may_be_fed(&self) -> bool {
        true
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cases(&self) -> Vec<Case> {
        let x = float(&[2], &[1.0, -2.0]);
        let any = Attrs::new().with("shape", Shape::partial([None]));
        vec![case_with(any, vec![x.clone()], vec![x], true)]
    }
}

/// What can be given as the shape of a placeholder: sizes, where `None` is any size, or a [`Shape`].
pub trait IntoPlaceholderShape {
    /// The shape.
    fn into_placeholder_shape(self) -> Shape;
}

macro_rules! into_placeholder_shape {
    ($($rank:literal),*) => {$(
        impl IntoPlaceholderShape for [Option<usize>; $rank] {
            fn into_placeholder_shape(self) -> Shape {
                Shape::partial(self)
            }
        }
    )*};
}

// Not for rank 0, so that `[]` can only mean known sizes, and no type has to be written beside it.
into_placeholder_shape!(1, 2, 3, 4, 5, 6, 7, 8);

impl<const N: usize> IntoPlaceholderShape for [usize; N] {
    fn into_placeholder_shape(self) -> Shape {
        Shape::known(&self)
    }
}

impl IntoPlaceholderShape for &[usize] {
    fn into_placeholder_shape(self) -> Shape {
        Shape::known(self)
    }
}

impl IntoPlaceholderShape for Shape {
    fn into_placeholder_shape(self) -> Shape {
        self
    }
}

impl Graph {
    /// A tensor that every run which needs it must feed. `None` in the shape is any size.
    #[track_caller]
    pub fn placeholder(&self, dtype: DType, shape: impl IntoPlaceholderShape, name: &str) -> Tensor<'_> {
        let shape = shape.into_placeholder_shape();
        self.node_of(&Placeholder).name(name.to_string()).attr("dtype", dtype).attr("shape", shape).tensor()
    }
}
