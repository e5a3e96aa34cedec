//! `Identity`, `Snapshot` and `NoOp`: nodes that only order and name things. Nothing runs for them.

use super::values::{case, float};
use super::{like_input, no_kernel};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{
    Attrs, Case, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Operation, Tensor, Traits,
};

/// TensorFlow's `Identity`: the bytes of its input under another name.
pub struct Identity;

/// TensorFlow's `Snapshot`: as [`Identity`]. It has no gradient, as in TensorFlow.
pub struct Snapshot;

impl Op for Snapshot {
    fn name(&self) -> &'static str {
        "Snapshot"
    }

    fn traits(&self) -> Traits {
        Traits { forwards: Some(0), ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        like_input(c)
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cases(&self) -> Vec<Case> {
        vec![case(vec![float(&[2], &[1.0, -2.0])], vec![float(&[2], &[1.0, -2.0])], false)]
    }
}

impl Op for Identity {
    fn name(&self) -> &'static str {
        "Identity"
    }

    fn traits(&self) -> Traits {
        Traits { forwards: Some(0), ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        like_input(c)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(c.grad().into())])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cases(&self) -> Vec<Case> {
        vec![case(vec![float(&[2], &[1.0, -2.0])], vec![float(&[2], &[1.0, -2.0])], true)]
    }
}

/// TensorFlow's `NoOp`: control inputs, no outputs.
pub struct NoOp;

impl Op for NoOp {
    fn name(&self) -> &'static str {
        "NoOp"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(0)?;
        Ok(Vec::new())
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cuda_kernel(&self, _c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(CudaKernel::default())
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        vec![case(vec![], vec![], false)]
    }
}

impl<'g> Tensor<'g> {
    /// The same values under a new name.
    #[track_caller]
    pub fn identity(self, name: &str) -> Tensor<'g> {
        self.graph().node_of(&Identity).name(name.to_string()).input(self).tensor()
    }
}

impl Graph {
    /// One operation that waits for all of these; as a target it runs them.
    #[track_caller]
    pub fn group<'g>(&'g self, ops: impl IntoIterator<Item = Operation<'g>>, name: &str) -> Operation<'g> {
        ops.into_iter().fold(self.node_of(&NoOp).name(name.to_string()), |b, op| b.control(op)).add()
    }

    /// An operation that does nothing.
    #[track_caller]
    pub fn no_op(&self, name: &str) -> Operation<'_> {
        self.node_of(&NoOp).name(name.to_string()).add()
    }
}
