//! `Cast`: values in another element type.

use super::elementwise::{Map1, Plain, Wide, unary};
use super::values::{array, bools, case_with, float, ints};
use crate::base::{Bool8, DType, Element};
use crate::device::CpuKernel;
use crate::device::cuda::CudaMap;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor};

/// TensorFlow's `Cast` with attribute `DstT`. To integers it rounds toward zero, and values out of range become the
/// nearest in range (NaN becomes 0); to bool, all but 0 is true.
pub struct Cast;

#[derive(Clone, Copy)]
struct As;

macro_rules! casts {
    ($($from:ty => $($to:ty),*;)*) => {$($(
        impl Map1<$from, $to> for As {
            #[inline(always)]
            fn at(self, x: $from) -> $to {
                x as $to
            }
        }
    )*)*};
}
casts! {
    f32 => f64, i32, i64;
    f64 => f32, i32, i64;
    i32 => f32, f64, i64;
    i64 => f32, f64, i32;
}

macro_rules! truth {
    ($($t:ty, $zero:expr, $one:expr;)*) => {$(
        impl Map1<$t, Bool8> for As {
            #[inline(always)]
            fn at(self, x: $t) -> Bool8 {
                Bool8::from(x != $zero)
            }
        }
        impl Map1<Bool8, $t> for As {
            #[inline(always)]
            fn at(self, x: Bool8) -> $t {
                if x.get() { $one } else { $zero }
            }
        }
    )*};
}
truth! {
    f32, 0.0, 1.0;
    f64, 0.0, 1.0;
    i32, 0, 1;
    i64, 0, 1;
}

fn copy<T: Element>() -> CpuKernel {
    Box::new(|l| {
        l.output::<T>(0).copy_from_slice(l.input::<T>(0));
        Ok(())
    })
}

impl Op for Cast {
    fn name(&self) -> &'static str {
        "Cast"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        let to = c.attrs.dtype("DstT").ok_or("attribute 'DstT' is missing")?;
        Ok(vec![Fact::new(to, c.shape(0).clone())])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (from, to) = (c.inputs[0].dtype(), c.outputs[0].dtype());
        let flows = from.is_floating() && to.is_floating();
        Some(vec![flows.then(|| c.grad().cast(from).into())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        use DType::{Bool, F32, F64, I32, I64};
        Ok(match (c.inputs[0].dtype, c.outputs[0].dtype) {
            (F32, F32) => copy::<f32>(),
            (F64, F64) => copy::<f64>(),
            (I32, I32) => copy::<i32>(),
            (I64, I64) => copy::<i64>(),
            (Bool, Bool) => copy::<Bool8>(),
            (F32, F64) => unary::<f32, f64, As, Wide>(0, As),
            (F64, F32) => unary::<f64, f32, As, Wide>(0, As),
            (I32, F32) => unary::<i32, f32, As, Wide>(0, As),
            (F32, I32) => unary::<f32, i32, As, Plain>(0, As),
            (F32, I64) => unary::<f32, i64, As, Plain>(0, As),
            (F64, I32) => unary::<f64, i32, As, Plain>(0, As),
            (F64, I64) => unary::<f64, i64, As, Plain>(0, As),
            (I32, F64) => unary::<i32, f64, As, Plain>(0, As),
            (I32, I64) => unary::<i32, i64, As, Plain>(0, As),
            (I64, F32) => unary::<i64, f32, As, Plain>(0, As),
            (I64, F64) => unary::<i64, f64, As, Plain>(0, As),
            (I64, I32) => unary::<i64, i32, As, Plain>(0, As),
            (F32, Bool) => unary::<f32, Bool8, As, Plain>(0, As),
            (F64, Bool) => unary::<f64, Bool8, As, Plain>(0, As),
            (I32, Bool) => unary::<i32, Bool8, As, Plain>(0, As),
            (I64, Bool) => unary::<i64, Bool8, As, Plain>(0, As),
            (Bool, F32) => unary::<Bool8, f32, As, Wide>(0, As),
            (Bool, F64) => unary::<Bool8, f64, As, Plain>(0, As),
            (Bool, I32) => unary::<Bool8, i32, As, Plain>(0, As),
            (Bool, I64) => unary::<Bool8, i64, As, Plain>(0, As),
            (from, to) => return Err(format!("there is no cast from {from} to {to}")),
        })
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        Some(CudaMap::new(match (c.inputs[0].dtype, c.outputs[0].dtype) {
            (_, DType::Bool) => "$0 != 0",
            (from, DType::I32) if from.is_floating() => "turret_to_int($0)",
            (from, DType::I64) if from.is_floating() => "turret_to_i64($0)",
            _ => "$0",
        }))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let to = |dtype: DType| Attrs::new().with("DstT", dtype);
        let x = float(&[4], &[1.9, -1.9, 0.0, f32::NAN]);
        vec![
            case_with(to(DType::I32), vec![x.clone()], vec![ints(&[1, -1, 0, 0])], false),
            case_with(to(DType::Bool), vec![x], vec![bools(&[4], &[true, true, false, true])], false),
            case_with(to(DType::F32), vec![ints(&[1, 0, -3])], vec![float(&[3], &[1.0, 0.0, -3.0])], false),
            case_with(to(DType::F32), vec![bools(&[2], &[true, false])], vec![float(&[2], &[1.0, 0.0])], false),
            case_with(to(DType::I64), vec![ints(&[7])], vec![array(&[1], &[7i64])], false),
            case_with(to(DType::F64), vec![float(&[2], &[0.5, -2.0])], vec![array(&[2], &[0.5f64, -2.0])], true),
        ]
    }
}

impl<'g> Tensor<'g> {
    /// The values in another element type; the tensor itself where it has that type already.
    #[track_caller]
    pub fn cast(self, dtype: DType) -> Tensor<'g> {
        if self.is_poison() || self.dtype() == dtype {
            return self;
        }
        self.graph().node_of(&Cast).input(self).attr("DstT", dtype).tensor()
    }
}
