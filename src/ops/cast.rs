//! `Cast`: values in another element type.

use super::elementwise::{Map1, Plain, Wide, unary};
use super::support::by_dtype;
use super::values::{array, bools, case_with, float, ints};
use crate::base::{Bool8, DType, Element, bf16, f16};
use crate::device::CpuKernel;
use crate::device::cuda::CudaMap;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor};

/// TensorFlow's `Cast` with attribute `DstT`. Floats become integers by rounding toward zero, and values out of range the
/// nearest in range (NaN becomes 0); integers that do not fit are cut to their low bits; all but 0 is true. To `float16`
/// and `bfloat16` values go through `float32`, as in TensorFlow, each time to the nearest, of two to the even one.
pub struct Cast;

#[derive(Clone, Copy)]
struct As;

/// The value of a stored number as a `float32`, and back.
trait Half: Element {
    fn single(self) -> f32;
    fn of(value: f32) -> Self;
}

impl Half for f16 {
    #[inline(always)]
    fn single(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn of(value: f32) -> f16 {
        f16::from_f32(value)
    }
}

impl Half for bf16 {
    #[inline(always)]
    fn single(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn of(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}

macro_rules! cast {
    ($from:ty => $to:ty: $x:ident => $value:expr) => {
        impl Map1<$from, $to> for As {
            #[inline(always)]
            fn at(self, $x: $from) -> $to {
                $value
            }
        }
    };
}

macro_rules! casts_of_numbers {
    ($($from:ty),*) => {$(
        cast!($from => f32: x => x as f32);
        cast!($from => f64: x => x as f64);
        cast!($from => i32: x => x as i32);
        cast!($from => i64: x => x as i64);
        cast!($from => u8: x => x as u8);
        cast!($from => f16: x => f16::of(x as f32));
        cast!($from => bf16: x => bf16::of(x as f32));
        cast!($from => Bool8: x => Bool8::from(x != 0 as $from));
    )*};
}
casts_of_numbers!(f32, f64, i32, i64, u8);

macro_rules! casts_of_halves {
    ($($from:ty),*) => {$(
        cast!($from => f32: x => x.single());
        cast!($from => f64: x => x.single().into());
        cast!($from => i32: x => x.single() as i32);
        cast!($from => i64: x => x.single() as i64);
        cast!($from => u8: x => x.single() as u8);
        cast!($from => f16: x => f16::of(x.single()));
        cast!($from => bf16: x => bf16::of(x.single()));
        cast!($from => Bool8: x => Bool8::from(x.single() != 0.0));
    )*};
}
casts_of_halves!(f16, bf16);

macro_rules! casts_of_truth {
    ($($to:ty: $one:expr, $zero:expr;)*) => {$(
        cast!(Bool8 => $to: x => if x.get() { $one } else { $zero });
    )*};
}
casts_of_truth! {
    f32: 1.0, 0.0;
    f64: 1.0, 0.0;
    i32: 1, 0;
    i64: 1, 0;
    u8: 1, 0;
    f16: f16::ONE, f16::ZERO;
    bf16: bf16::ONE, bf16::ZERO;
    Bool8: Bool8(1), Bool8(0);
}

fn copy<T: Element>() -> CpuKernel {
    Box::new(|l| {
        l.output::<T>(0).copy_from_slice(l.input::<T>(0));
        Ok(())
    })
}

/// One element in CUDA C: its value as a `float32` where it is stored in half of one.
pub(super) fn single(dtype: DType, operand: &str) -> String {
    match dtype {
        DType::F16 => format!("turret_half_to_float({operand})"),
        DType::BF16 => format!("turret_bfloat_to_float({operand})"),
        _ => operand.to_string(),
    }
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
        use DType::{Bool, F32, F64, I32};
        Ok(match (c.inputs[0].dtype, c.outputs[0].dtype) {
            (from, to) if from.is_opaque() || to.is_opaque() => {
                return Err(format!("there is no cast from {from} to {to}"));
            }
            (from, to) if from == to && from != Bool => by_dtype!(from, T => copy::<T>()),
            (F32, F64) => unary::<f32, f64, As, Wide>(0, As),
            (F64, F32) => unary::<f64, f32, As, Wide>(0, As),
            (I32, F32) => unary::<i32, f32, As, Wide>(0, As),
            (Bool, F32) => unary::<Bool8, f32, As, Wide>(0, As),
            (from, to) => by_dtype!(from, A => by_dtype!(to, B => unary::<A, B, As, Plain>(0, As))),
        })
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        let (from, to) = (c.inputs[0].dtype, c.outputs[0].dtype);
        let value = single(from, "$0");
        let floats = from.is_floating() || value != "$0";
        Some(CudaMap::new(match to {
            _ if from == to => "$0".to_string(),
            DType::Bool => format!("{value} != 0"),
            DType::I32 if floats => format!("turret_to_int({value})"),
            DType::I64 if floats => format!("turret_to_i64({value})"),
            DType::U8 if floats => format!("turret_to_u8({value})"),
            DType::F16 => format!("turret_float_to_half((float){value})"),
            DType::BF16 => format!("turret_float_to_bfloat((float){value})"),
            _ => value,
        }))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let to = |dtype: DType| Attrs::new().with("DstT", dtype);
        let x = float(&[4], &[1.9, -1.9, 0.0, f32::NAN]);
        // Numbers at the edges: the largest half, what rounds beyond it, the smallest, ties to even.
        let edge =
            [65504.0, 65519.0, 65520.0, 6e-8, 2.980_232_2e-8, -0.0, 1.000_488_3, 1.001_464_8, 1.003_906_3, 3.4e38];
        let halves = float(&[10], &edge);
        let as_f16 = [0x7bff, 0x7bff, 0x7c00, 1, 0, 0x8000, 0x3c00, 0x3c02, 0x3c04, 0x7c00];
        let as_bf16 = [0x4780, 0x4780, 0x4780, 0x3381, 0x3300, 0x8000, 0x3f80, 0x3f80, 0x3f80, 0x7f80];
        vec![
            case_with(to(DType::I32), vec![x.clone()], vec![ints(&[1, -1, 0, 0])], false),
            case_with(to(DType::Bool), vec![x], vec![bools(&[4], &[true, true, false, true])], false),
            case_with(to(DType::F32), vec![ints(&[1, 0, -3])], vec![float(&[3], &[1.0, 0.0, -3.0])], false),
            case_with(to(DType::F32), vec![bools(&[2], &[true, false])], vec![float(&[2], &[1.0, 0.0])], false),
            case_with(to(DType::I64), vec![ints(&[7])], vec![array(&[1], &[7i64])], false),
            case_with(to(DType::F64), vec![float(&[2], &[0.5, -2.0])], vec![array(&[2], &[0.5f64, -2.0])], true),
            case_with(to(DType::F16), vec![halves.clone()], vec![array(&[10], &as_f16.map(f16::from_bits))], false),
            case_with(to(DType::BF16), vec![halves], vec![array(&[10], &as_bf16.map(bf16::from_bits))], false),
            case_with(to(DType::U8), vec![ints(&[0, 256, -1, 300])], vec![array(&[4], &[0u8, 0, 255, 44])], false),
            case_with(
                to(DType::U8),
                vec![float(&[4], &[255.7, 1e9, -1.5, f32::NAN])],
                vec![array(&[4], &[255u8, 255, 0, 0])],
                false,
            ),
            case_with(
                to(DType::BF16),
                vec![array(&[3], &[1.5, -65504.0, f32::NAN].map(f16::from_f32))],
                vec![array(&[3], &[1.5, -65504.0, f32::NAN].map(bf16::from_f32))],
                false,
            ),
            case_with(
                to(DType::F32),
                vec![array(&[4], &[0u16, 0x8001, 0x7bff, 0xfc00].map(f16::from_bits))],
                vec![float(&[4], &[0.0, -5.960_464_5e-8, 65504.0, f32::NEG_INFINITY])],
                false,
            ),
            case_with(
                to(DType::F16),
                vec![bools(&[2], &[true, false])],
                vec![array(&[2], &[f16::ONE, f16::ZERO])],
                false,
            ),
            // By way of float32, as in TensorFlow: the last bit is lost on the way.
            case_with(
                to(DType::F16),
                vec![array(&[1], &[1.0f64 + 2f64.powi(-11) + 2f64.powi(-40)])],
                vec![array(&[1], &[f16::ONE])],
                false,
            ),
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
