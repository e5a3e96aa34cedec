//! `LinSpace`: numbers at equal distances.

use super::support::{int_scalar, no_arithmetic, sized};
use super::values::{array, case, float};
use crate::base::{Array, DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaCode, CudaKernel};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Traits};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `LinSpace`: inputs start, stop and how many: from `start` to `stop`, both included. No gradient flows
/// through.
pub struct LinSpace;

fn count(num: i64) -> Result<usize, String> {
    usize::try_from(num).ok().filter(|&n| n > 0).ok_or_else(|| format!("want one number or more, got {num}"))
}

impl Op for LinSpace {
    fn name(&self) -> &'static str {
        "LinSpace"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        let dtype = c.dtype(0);
        if !dtype.is_floating() || c.dtype(1) != dtype {
            return Err(format!("start and stop must be float32 or float64, got {dtype} and {}", c.dtype(1)));
        }
        for (i, name) in ["start", "stop"].into_iter().enumerate() {
            if !c.shape(i).is_compatible_with(&Shape::scalar()) {
                return Err(format!("{name} must be a scalar, got shape {}", c.shape(i)));
            }
        }
        let num = int_scalar(c, 2, "the number of elements")?.map(count).transpose()?;
        Ok(vec![sized(dtype, Shape::partial([num]))?])
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None, None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![2]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        macro_rules! kernel {
            ($t:ty) => {
                Box::new(move |l| {
                    let (start, stop, out) = (l.input::<$t>(0)[0], l.input::<$t>(1)[0], l.output::<$t>(0));
                    let last = out.len() - 1;
                    let step = (stop - start) / last.max(1) as $t;
                    // The last is `stop` itself, however the steps are rounded.
                    let at = |i| if i == last && i > 0 { stop } else { start + step * i as $t };
                    out.iter_mut().enumerate().for_each(|(i, o)| *o = at(i));
                    Ok(())
                })
            };
        }
        Ok(match c.outputs[0].dtype {
            _ if c.outputs[0].is_empty() => return Err("want one number or more".into()),
            DType::F32 => kernel!(f32),
            DType::F64 => kernel!(f64),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let len = c.outputs[0].len();
        let code = CudaCode::new(include_str!("cuda/lin_space.cu")).with_type("T", c.outputs[0].dtype);
        let args = [CudaArg::input(0), CudaArg::input(1), CudaArg::output(0), CudaArg::size(len)];
        Ok(CudaKernel::elements(code, len, args))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let ends =
            |start: f32, stop: f32, num: i32| vec![float(&[], &[start]), float(&[], &[stop]), Array::scalar(num)];
        vec![
            case(ends(0.0, 1.0, 5), vec![float(&[5], &[0.0, 0.25, 0.5, 0.75, 1.0])], false),
            case(ends(2.0, 1.0, 1), vec![float(&[1], &[2.0])], false),
            case(
                vec![Array::scalar(1.0f64), Array::scalar(-1.0f64), Array::scalar(3i64)],
                vec![array(&[3], &[1.0f64, 0.0, -1.0])],
                false,
            ),
        ]
    }
}
