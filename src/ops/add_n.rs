//! `AddN`: the sum of tensors of one shape, always in the order of the inputs.

use super::elementwise::{GRAIN, Shared};
use super::number::Number;
use super::values::{case, float, ints};
use crate::base::DType;
use crate::device::CpuKernel;
use crate::graph::{Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Traits};
use smallvec::SmallVec;

/// TensorFlow's `AddN`.
pub struct AddN;

/// Elements that are summed before they are written: an output may be the buffer of an input that is read twice.
const BLOCK: usize = 64;

impl Op for AddN {
    fn name(&self) -> &'static str {
        "AddN"
    }

    fn traits(&self) -> Traits {
        Traits { in_place: &[0], ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let dtype = c.same_dtype()?;
        if dtype == DType::Bool {
            return Err("a sum of bool tensors is not defined; cast them".into());
        }
        let mut shape = c.shape(0).clone();
        for i in 1..c.inputs.len() {
            shape = shape.merge(c.shape(i)).ok_or_else(|| {
                let (first, other) = (c.shape(0), c.shape(i));
                format!("inputs must have one shape: input 0 has {first}, input {i} has {other}")
            })?;
        }
        Ok(vec![Fact::new(dtype, shape)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(c.inputs.iter().map(|_| Some(c.grad().into())).collect())
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        Cost { flops: (c.outputs[0].len() * (c.inputs.len() - 1)) as f64, bytes }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let n = c.inputs.len();
        Ok(match c.inputs[0].dtype {
            DType::F32 => summed::<f32>(n),
            DType::F64 => summed::<f64>(n),
            DType::I32 => summed::<i32>(n),
            DType::I64 => summed::<i64>(n),
            DType::Bool => return Err("a sum of bool tensors is not defined".into()),
        })
    }

    fn cases(&self) -> Vec<Case> {
        let (a, b, c) = ([1.0, -2.0, 3.0], [0.5, 0.25, 4.0], [10.0, 20.0, 30.0]);
        let sum: Vec<f32> = (0..3).map(|i| a[i] + b[i] + c[i]).collect();
        vec![
            case([a, b, c].iter().map(|v| float(&[3], v)).collect(), vec![float(&[3], &sum)], true),
            case(vec![float(&[3], &a)], vec![float(&[3], &a)], true),
            case(vec![ints(&[1, i32::MAX]), ints(&[2, 1])], vec![ints(&[3, i32::MIN])], false),
            case(vec![float(&[0, 2], &[]), float(&[0, 2], &[])], vec![float(&[0, 2], &[])], false),
        ]
    }
}

fn summed<T: Number>(n: usize) -> CpuKernel {
    Box::new(move |l| {
        let (o, len) = l.output_ptr::<T>(0);
        let o = Shared::new(o);
        let inputs: SmallVec<[Shared<T>; 32]> = (0..n).map(|i| Shared::new(l.input_ptr::<T>(i).0.cast_mut())).collect();
        l.team().chunks(len, GRAIN, |r| {
            for start in r.clone().step_by(BLOCK) {
                let count = BLOCK.min(r.end - start);
                let mut sums = [T::ZERO; BLOCK];
                for (i, input) in inputs.iter().enumerate() {
                    let x = input.get().cast_const();
                    for (k, sum) in sums[..count].iter_mut().enumerate() {
                        // SAFETY: every input has `len` elements, and the block is read before it is written.
                        let x = unsafe { x.add(start + k).read() };
                        *sum = if i == 0 { x } else { sum.plus(x) };
                    }
                }
                // SAFETY: chunks are disjoint parts of the output.
                unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), o.get().add(start), count) };
            }
        });
        Ok(())
    })
}
