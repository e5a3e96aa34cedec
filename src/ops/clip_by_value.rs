//! `ClipByValue`: values held between two bounds.
//!
//! Absent: what `tf.clip_by_value` builds, which is `Minimum` and `Maximum` (`train/clip.rs`).

use super::broadcast::reduce_gradients;
use super::elementwise::{GRAIN, Shared};
use super::number::Number;
use super::support::build;
use super::values::{case, float, ints};
use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaMap;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor};

/// TensorFlow's `ClipByValue`: inputs the tensor, the lower and the upper bound, each a scalar or of its shape. Where the
/// bounds cross, the lower one holds.
pub struct ClipByValue;

fn clip<T: Number>(steps: [usize; 2]) -> CpuKernel {
    Box::new(move |l| {
        let (x, low, high) = (l.input::<T>(0), l.input::<T>(1), l.input::<T>(2));
        let o = Shared::new(l.output_ptr::<T>(0).0);
        l.team().chunks(x.len(), GRAIN, |chunk| {
            for i in chunk {
                let held = x[i].smaller(high[i * steps[1]]).larger(low[i * steps[0]]);
                // SAFETY: each element is written once; the output is no input's buffer.
                unsafe { o.get().add(i).write(held) }
            }
        });
        Ok(())
    })
}

impl Op for ClipByValue {
    fn name(&self) -> &'static str {
        "ClipByValue"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        let dtype = c.same_dtype()?;
        if !matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64) {
            return Err(format!("want numbers, got {dtype}; cast the inputs"));
        }
        for (i, bound) in [(1, "clip_value_min"), (2, "clip_value_max")] {
            let shape = c.shape(i);
            if !shape.is_compatible_with(&Shape::scalar()) && !shape.is_compatible_with(c.shape(0)) {
                return Err(format!("{bound} must be a scalar or of shape {}, got {shape}", c.shape(0)));
            }
        }
        Ok(vec![Fact::new(dtype, c.shape(0).clone())])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let &[x, low, high] = &c.inputs[..] else { return None };
        let grad = c.grad();
        let zeros = grad.zeros_like();
        let (below, above) = (x.less(low), x.greater(high));
        let select = |c: Tensor<'g>, x: Tensor<'g>, y: Tensor<'g>| build("Select", "", &[c, x, y]);
        let inside = select(below.logical_or(above), zeros, grad);
        let (of_low, of_high) = (select(below, grad, zeros), select(above, grad, zeros));
        let mut gradients = vec![Some(inside.into())];
        // A scalar bound gets the sum.
        gradients.extend(reduce_gradients(x, low, inside, of_low).into_iter().skip(1));
        gradients.extend(reduce_gradients(x, high, inside, of_high).into_iter().skip(1));
        Some(gradients)
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let len = c.inputs[0].len();
        let steps = [1, 2].map(|i| usize::from(!c.inputs[i].dims.is_empty()));
        if (1..3).any(|i| steps[i - 1] * len != 0 && c.inputs[i].len() != len) {
            return Err("a bound is neither a scalar nor of the tensor's shape".into());
        }
        Ok(match c.inputs[0].dtype {
            DType::F32 => clip::<f32>(steps),
            DType::F64 => clip::<f64>(steps),
            DType::I32 => clip::<i32>(steps),
            DType::I64 => clip::<i64>(steps),
            other => return Err(format!("there is no kernel for {other}")),
        })
    }

    fn cuda_map(&self, _c: &KernelContext<'_>) -> Option<CudaMap> {
        Some(CudaMap::new("turret_larger(turret_smaller($0, $2), $1)"))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = float(&[2, 3], &[-5.0, -0.25, 0.5, 0.75, 1.5, 9.0]);
        let (low, high) = (float(&[], &[-1.0]), float(&[], &[1.25]));
        let each = float(&[2, 3], &[0.0, -1.0, 1.0, 0.0, 2.0, 3.0]);
        let nan = float(&[2], &[f32::NAN, 7.0]);
        vec![
            case(
                vec![x.clone(), low.clone(), high.clone()],
                vec![float(&[2, 3], &[-1.0, -0.25, 0.5, 0.75, 1.25, 1.25])],
                true,
            ),
            case(vec![x, each, high], vec![float(&[2, 3], &[0.0, -0.25, 1.0, 0.75, 2.0, 3.0])], false),
            case(vec![nan, low.clone(), low], vec![float(&[2], &[f32::NAN, -1.0])], false),
            case(
                vec![ints(&[-7, 0, 7]), crate::base::Array::scalar(-1i32), ints(&[1, 1, 2])],
                vec![ints(&[-1, 0, 2])],
                false,
            ),
        ]
    }
}
