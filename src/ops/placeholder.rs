//! `Placeholder`: a tensor that every run feeds.

use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::graph::{Fact, Graph, InferContext, KernelContext, Op, Tensor, Traits};

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
