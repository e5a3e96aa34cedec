//! `L2Loss`: half the sum of squares.

use super::cuda_reduce as cuda;
use super::reduce::{numbers, sum};
use super::reduce_folds::HalfSumOfSquares;
use super::values::{case, float};
use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Reduction, Tensor,
};

fn halves(dtype: DType, dims: &[usize], reduced: &[bool]) -> Result<CpuKernel, String> {
    numbers(dtype, dims, reduced, HalfSumOfSquares)
}

/// TensorFlow's `L2Loss`: half the sum of the squares of all elements.
pub struct L2Loss;

impl Op for L2Loss {
    fn name(&self) -> &'static str {
        "L2Loss"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        if !c.dtype(0).is_floating() {
            return Err(format!("want float32 or float64, got {}; cast the input", c.dtype(0)));
        }
        Ok(vec![Fact::new(c.dtype(0), Shape::scalar())])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some((c.inputs[0] * c.grad()).into())])
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        Cost { flops: 2.0 * c.inputs[0].len() as f64, bytes: c.inputs[0].bytes() as f64 }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let dims = &c.inputs[0].dims;
        halves(c.inputs[0].dtype, dims, &vec![true; dims.len()])
    }

    fn reduction(&self, c: &KernelContext<'_>) -> Option<Reduction> {
        let axes = smallvec::smallvec![true; c.inputs[0].dims.len()];
        (!c.inputs[0].is_empty()).then_some(Reduction {
            axes,
            whole: halves,
            piece: halves,
            merge: |dtype, dims, reduced, _| sum(dtype, dims, reduced),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let dims = &c.inputs[0].dims;
        Ok(cuda::reduce(c.inputs[0].dtype, dims, &vec![true; dims.len()], cuda::HALF_SUM_OF_SQUARES))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            case(vec![float(&[2, 2], &[1.0, -2.0, 3.0, 0.5])], vec![float(&[], &[7.125])], true),
            case(vec![float(&[0], &[])], vec![float(&[], &[0.0])], false),
        ]
    }
}

impl<'g> Tensor<'g> {
    /// Half the sum of the squares of all elements.
    #[track_caller]
    pub fn l2_loss(self) -> Tensor<'g> {
        self.apply(&L2Loss)
    }
}
