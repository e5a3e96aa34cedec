//! `Identity`, `ReadVariableOp`, `Snapshot` and `NoOp`: nodes that only order and name things. Nothing runs for them.

use super::support::by_dtype;
use super::values::{case, float};
use super::{like_input, no_kernel};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{
    Attrs, Case, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Operation, Tensor, Traits,
};
use smallvec::SmallVec;

/// An op that gives its input's bytes another name.
pub struct RenameOp {
    name: &'static str,
    /// Whether gradients pass it; if not, to ask for one is an error.
    has_gradient: bool,
}

/// TensorFlow's `Identity`.
pub static IDENTITY: RenameOp = RenameOp { name: "Identity", has_gradient: true };
/// TensorFlow's `ReadVariableOp`: the value of a resource variable.
pub static READ_VARIABLE: RenameOp = RenameOp { name: "ReadVariableOp", has_gradient: true };
/// TensorFlow's `Snapshot`, which has no gradient there.
pub static SNAPSHOT: RenameOp = RenameOp { name: "Snapshot", has_gradient: false };

impl Op for RenameOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { forwards: Some(0), ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let facts = like_input(c)?;
        match c.attrs.dtype("dtype").filter(|&dtype| dtype != facts[0].dtype) {
            Some(dtype) => Err(format!("attribute 'dtype' is {dtype}, but the input is {}", facts[0].dtype)),
            None => Ok(facts),
        }
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        self.has_gradient.then(|| vec![Some(c.grad().into())])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cases(&self) -> Vec<Case> {
        vec![case(vec![float(&[2], &[1.0, -2.0])], vec![float(&[2], &[1.0, -2.0])], self.has_gradient)]
    }
}

/// TensorFlow's `IdentityN`: each output is the bytes of one input.
pub struct IdentityN;

impl Op for IdentityN {
    fn name(&self) -> &'static str {
        "IdentityN"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        Ok(c.inputs.to_vec())
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(c.grads.iter().map(|g| g.map(Into::into)).collect())
    }

    fn aliases(&self, c: &KernelContext<'_>) -> Option<SmallVec<[(usize, usize); 2]>> {
        Some((0..c.inputs.len()).map(|i| (i, 0)).collect())
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        // Runs only where known values are computed while planning.
        let types: Vec<_> = c.inputs.iter().map(|d| d.dtype).collect();
        Ok(Box::new(move |l| {
            for (i, &dtype) in types.iter().enumerate() {
                by_dtype!(dtype, T => l.output::<T>(i).copy_from_slice(l.input::<T>(i)));
            }
            Ok(())
        }))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let (x, y) = (float(&[2], &[1.0, -2.0]), float(&[], &[3.0]));
        vec![case(vec![x.clone(), y.clone()], vec![x, y], true)]
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
        self.graph().node_of(&IDENTITY).name(name.to_string()).input(self).tensor()
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
