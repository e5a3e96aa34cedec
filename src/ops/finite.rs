//! What kind of a number each element is: `IsNan`, `IsInf`, `IsFinite`. No gradient flows through.

use super::elementwise::{Map1, Plain, Wide, unary};
use super::values::{bools, case, float};
use crate::base::{Bool8, DType};
use crate::device::CpuKernel;
use crate::device::cuda::CudaMap;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};

/// A question about each element of a floating tensor, answered with a bool.
pub struct KindOp {
    name: &'static str,
    kernel: fn(&KernelContext<'_>) -> Result<CpuKernel, String>,
    /// One element in CUDA C.
    cuda: &'static str,
    /// The answers for 1, NaN, infinity and minus infinity.
    answers: [bool; 4],
}

impl Op for KindOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        if !matches!(c.dtype(0), DType::F32 | DType::F64) {
            return Err(format!("want float32 or float64, got {}; cast the input", c.dtype(0)));
        }
        Ok(vec![Fact::new(DType::Bool, c.shape(0).clone())])
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        (self.kernel)(c)
    }

    fn cuda_map(&self, _c: &KernelContext<'_>) -> Option<CudaMap> {
        Some(CudaMap::new(self.cuda))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = float(&[4], &[1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        vec![case(vec![x], vec![bools(&[4], &self.answers)], false)]
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $op:ident = $name:literal, $method:ident, $function:ident: $test:ident, $cuda:literal, $answers:expr;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $function;

            impl Map1<f32, Bool8> for $function {
                #[inline(always)]
                fn at(self, x: f32) -> Bool8 {
                    Bool8::from(x.$test())
                }
            }

            impl Map1<f64, Bool8> for $function {
                #[inline(always)]
                fn at(self, x: f64) -> Bool8 {
                    Bool8::from(x.$test())
                }
            }

            $(#[$doc])*
            pub static $op: KindOp = KindOp {
                name: $name,
                kernel: |c| match c.inputs[0].dtype {
                    DType::F32 => Ok(unary::<f32, Bool8, _, Wide>(0, $function)),
                    DType::F64 => Ok(unary::<f64, Bool8, _, Plain>(0, $function)),
                    other => Err(format!("there is no kernel for {other}")),
                },
                cuda: $cuda,
                answers: $answers,
            };
        )*

        impl<'g> Tensor<'g> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $method(self) -> Tensor<'g> {
                self.apply(&$op)
            })*
        }
    };
}

kinds! {
    /// TensorFlow's `IsNan`: true where an element is no number.
    IS_NAN = "IsNan", is_nan, Nan: is_nan, "$0 != $0", [false, true, false, false];
    /// TensorFlow's `IsInf`: true where an element is infinite, of either sign.
    IS_INF = "IsInf", is_inf, Infinite: is_infinite, "$0 == $0 && $0 - $0 != 0", [false, false, true, true];
    /// TensorFlow's `IsFinite`: true where an element is a number, and not infinite.
    IS_FINITE = "IsFinite", is_finite, Finite: is_finite, "$0 - $0 == 0", [true, false, false, false];
}
