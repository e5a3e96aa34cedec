//! Conditionals: `Switch` and `Merge`, which `tf.cond` builds, and `IsVariableInitialized`.
//!
//! None of them runs: when a step is planned, what is known of their predicates decides, and [`ControlFlow`] says what
//! they become. Absent: loops (`Enter`, `NextIteration`, …).

use super::branches;
use super::constant::Const;
use super::identity::IDENTITY;
use super::select::SELECT;
use super::support::{bool_scalar, by_dtype, sized};
use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::graph::{
    Attrs, ControlFlow, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `Switch` and `RefSwitch`: the data goes to output 1 where the predicate is true, else to output 0.
pub struct SwitchOp {
    name: &'static str,
}

/// `Switch`.
pub static SWITCH: SwitchOp = SwitchOp { name: "Switch" };
/// `RefSwitch`, whose data is a variable.
pub static REF_SWITCH: SwitchOp = SwitchOp { name: "RefSwitch" };

impl Op for SwitchOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        bool_scalar(c, 1, "the predicate")?;
        Ok(vec![c.inputs[0].clone(), c.inputs[0].clone()])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let [Some(no), Some(yes)] = c.grads[..] else { return Some(vec![None, None]) };
        let merged = no.graph().node_of(&MERGE).name("cond_grad").inputs([no, yes]).tensor();
        Some(vec![Some(merged.into()), None])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        planned_away()
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn control_flow(&self) -> Option<ControlFlow> {
        Some(ControlFlow::Switch { branches: &Branches })
    }
}

/// What a `Switch` becomes: both outputs are its input's bytes, and whoever reads the wrong one does not count.
struct Branches;

impl Op for Branches {
    fn name(&self) -> &'static str {
        "Switch"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        Ok(vec![c.inputs[0].clone(), c.inputs[0].clone()])
    }

    fn aliases(&self, _c: &KernelContext<'_>) -> Option<SmallVec<[(usize, usize); 2]>> {
        Some(smallvec![(0, 0), (0, 0)])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        // Runs only where a known value is computed while planning.
        Ok(by_dtype!(c.inputs[0].dtype, T => Box::new(|l| {
            (0..2).for_each(|i| l.output::<T>(i).copy_from_slice(l.input::<T>(0)));
            Ok(())
        })))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }
}

/// TensorFlow's `Merge` and `RefMerge`: output 0 is the input whose branch was taken, output 1 says which it was.
pub struct MergeOp {
    name: &'static str,
}

/// `Merge`.
pub static MERGE: MergeOp = MergeOp { name: "Merge" };
/// `RefMerge`.
pub static REF_MERGE: MergeOp = MergeOp { name: "RefMerge" };

impl Op for MergeOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let dtype = c.same_dtype()?;
        let first = c.shape(0);
        let same_rank = c.inputs.iter().all(|f| f.shape.rank() == first.rank());
        let shape = match first.rank().filter(|_| same_rank) {
            Some(rank) => Shape::partial((0..rank).map(|axis| {
                let size = first.dim(axis);
                size.filter(|_| c.inputs.iter().all(|f| f.shape.dim(axis) == size))
            })),
            None => Shape::unknown(),
        };
        Ok(vec![sized(dtype, shape)?, Fact::new(DType::I32, Shape::scalar())])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (predicate, yes) = branches::predicate(c.node)?;
        let grad = c.grad();
        let switch = grad.graph().node_of(&SWITCH).name("cond_grad").inputs([grad, predicate]).add();
        let of = |input: usize| Some(switch.output(usize::from(input == yes)).into());
        Some(vec![of(0), of(1)])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        planned_away()
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn control_flow(&self) -> Option<ControlFlow> {
        Some(ControlFlow::Merge { taken: &IDENTITY, select: &SELECT })
    }
}

/// TensorFlow's `IsVariableInitialized` and `VarIsInitializedOp`: whether a variable has a value when the step begins.
pub struct IsInitializedOp {
    name: &'static str,
}

/// `IsVariableInitialized`.
pub static IS_VARIABLE_INITIALIZED: IsInitializedOp = IsInitializedOp { name: "IsVariableInitialized" };
/// `VarIsInitializedOp`.
pub static VAR_IS_INITIALIZED: IsInitializedOp = IsInitializedOp { name: "VarIsInitializedOp" };

impl Op for IsInitializedOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        Ok(vec![Fact::new(DType::Bool, Shape::scalar())])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        planned_away()
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn control_flow(&self) -> Option<ControlFlow> {
        Some(ControlFlow::AsksInitialized { constant: &Const })
    }
}

fn planned_away() -> Result<CpuKernel, String> {
    Err("conditionals are resolved when a step is planned, so that a session has to run them".into())
}

impl<'g> Tensor<'g> {
    /// This tensor in the two branches of a predicate, a bool scalar: where it is false, and where it is true. What is
    /// built of the one is computed only where the predicate is false, of the other only where it is true; a
    /// [`Graph::merge`] brings the results together. Named `Switch`.
    #[track_caller]
    pub fn switch(self, predicate: impl Into<Tensor<'g>>) -> (Tensor<'g>, Tensor<'g>) {
        let node = self.graph().node_of(&SWITCH).input(self).input(predicate).add();
        match node.is_poison() {
            true => (self.graph().poison_tensor(), self.graph().poison_tensor()),
            false => (node.output(0), node.output(1)),
        }
    }
}

impl Graph {
    /// The result of the branch that is taken: one is built of what a [`Tensor::switch`] gives where its predicate is
    /// false, the other of what it gives where it is true. Named `Merge`.
    #[track_caller]
    pub fn merge<'g>(&'g self, no: Tensor<'g>, yes: Tensor<'g>) -> Tensor<'g> {
        self.node_of(&MERGE).inputs([no, yes]).tensor()
    }
}
