//! `ZerosLike` and `OnesLike`: tensors of another's type and shape.

use super::elementwise::fill;
use super::number::Number;
use super::support::no_arithmetic;
use super::values::{array, case, float, ints};
use crate::base::{Array, Bool8, DType, Element, bf16, f16};
use crate::device::CpuKernel;
use crate::device::cuda::CudaMap;
use crate::graph::{
    Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Stretched, Tensor, Traits,
};

/// TensorFlow's `ZerosLike` and `OnesLike`.
pub struct LikeOp {
    name: &'static str,
    ones: bool,
}

/// TensorFlow's `ZerosLike`.
pub static ZEROS_LIKE: LikeOp = LikeOp { name: "ZerosLike", ones: false };

/// TensorFlow's `OnesLike`.
pub static ONES_LIKE: LikeOp = LikeOp { name: "OnesLike", ones: true };

impl Op for LikeOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        super::like_input(c)
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn filled<T: Element>(value: T) -> CpuKernel {
            Box::new(move |l| {
                fill(l.team(), l.output::<T>(0), value);
                Ok(())
            })
        }
        fn set<T: Number>(ones: bool) -> CpuKernel {
            filled(if ones { T::ONE } else { T::ZERO })
        }
        let ones = self.ones;
        Ok(match c.inputs[0].dtype {
            DType::F32 => set::<f32>(ones),
            DType::F64 => set::<f64>(ones),
            DType::I32 => set::<i32>(ones),
            DType::I64 => set::<i64>(ones),
            DType::Bool => filled(Bool8::from(ones)),
            DType::F16 => filled(if ones { f16::ONE } else { f16::ZERO }),
            DType::BF16 => filled(if ones { bf16::ONE } else { bf16::ZERO }),
            DType::U8 => filled(u8::from(ones)),
            DType::Opaque(_) => return Err(no_arithmetic(c.inputs[0].dtype)),
        })
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        // Types that are stored as their bits have a one of their own.
        let one = match c.outputs[0].dtype {
            DType::F16 => "0x3c00",
            DType::BF16 => "0x3f80",
            _ => "1",
        };
        Some(CudaMap::new(if self.ones { one } else { "0" }))
    }

    fn stretches(&self, c: &KernelContext<'_>) -> Option<Stretched> {
        let value = if self.ones { 1.0 } else { 0.0 };
        Array::from_f64(c.outputs[0].dtype, &[], &[value]).ok().map(Stretched::Value)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let one = i32::from(self.ones);
        vec![
            case(vec![float(&[2, 1], &[5.0, f32::NAN])], vec![float(&[2, 1], &[one as f32; 2])], false),
            case(vec![ints(&[3, 4])], vec![ints(&[one; 2])], false),
            case(vec![array(&[1], &[f16::NAN])], vec![array(&[1], &[f16::from_f32(one as f32)])], false),
            case(vec![array(&[1], &[bf16::NAN])], vec![array(&[1], &[bf16::from_f32(one as f32)])], false),
            case(vec![array(&[1], &[7u8])], vec![array(&[1], &[one as u8])], false),
        ]
    }
}

impl<'g> Tensor<'g> {
    /// Zeros of this tensor's type and shape, named `zeros_like`.
    #[track_caller]
    pub fn zeros_like(self) -> Tensor<'g> {
        self.graph().node_of(&ZEROS_LIKE).name("zeros_like").input(self).tensor()
    }

    /// Ones of this tensor's type and shape, named `ones_like`.
    #[track_caller]
    pub fn ones_like(self) -> Tensor<'g> {
        self.graph().node_of(&ONES_LIKE).name("ones_like").input(self).tensor()
    }
}
