//! `Select` and `SelectV2`: one of two tensors, element by element.
//!
//! Absent: `Where`, whose output's size depends on values.

use super::broadcast::{broadcast, reduce_gradients};
use super::elementwise::{GRAIN, Shared};
use super::support::by_dtype;
use super::values::{bools, case, float};
use crate::base::{Bool8, DType, Dims, Element};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaKernel, CudaMap, MapStep, Operand, map_kernel};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor};

/// TensorFlow's `Select` and `SelectV2`: input 1 where input 0 is true, else input 2.
pub struct SelectOp {
    name: &'static str,
    /// Whether all three broadcast; else the condition is a scalar, a row of decisions, or of the others' shape.
    broadcasts: bool,
}

/// TensorFlow's `Select`: both choices have one shape; the condition too, or it is a scalar, or decides on whole rows.
pub static SELECT: SelectOp = SelectOp { name: "Select", broadcasts: false };

/// TensorFlow's `SelectV2`: condition and choices broadcast.
pub static SELECT_V2: SelectOp = SelectOp { name: "SelectV2", broadcasts: true };

/// One element in CUDA C.
const CHOICE: &str = "$0 ? $1 : $2";

impl SelectOp {
    /// The sizes by which the condition broadcasts to the output.
    fn condition(&self, c: &KernelContext<'_>) -> Dims {
        let (own, output) = (&c.inputs[0].dims, &c.outputs[0].dims);
        if self.broadcasts || own.len() == output.len() {
            return own.clone();
        }
        // A vector decides on rows: [n] is [n, 1, …].
        let ones = output.len().saturating_sub(own.len());
        own.iter().copied().chain(std::iter::repeat_n(1, ones)).collect()
    }
}

impl Op for SelectOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        if c.dtype(0) != DType::Bool {
            return Err(format!("the condition must be bool, got {}; compare it with something", c.dtype(0)));
        }
        if c.dtype(1) != c.dtype(2) {
            return Err(format!("both choices must have one type, got {} and {}", c.dtype(1), c.dtype(2)));
        }
        if self.broadcasts {
            let shape = broadcast(c.shape(0), &broadcast(c.shape(1), c.shape(2))?)?;
            return Ok(vec![Fact::new(c.dtype(1), shape)]);
        }
        let shape = c.shape(1).merge(c.shape(2));
        let shape =
            shape.ok_or_else(|| format!("both choices must have one shape, got {} and {}", c.shape(1), c.shape(2)))?;
        let fits = match (c.shape(0).dims(), shape.dims()) {
            (Some([]), _) | (None, _) | (_, None) => true,
            (Some([rows]), Some([first, ..])) => rows.is_none() || first.is_none() || rows == first,
            _ => c.shape(0).is_compatible_with(&shape),
        };
        if !fits {
            return Err(format!("the condition must be a scalar, a vector of rows, or {shape}, got {}", c.shape(0)));
        }
        Ok(vec![Fact::new(c.dtype(1), shape)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let grad = c.grad();
        let zeros = if self.broadcasts { grad.zeros_like() } else { c.inputs[1].zeros_like() };
        let graph = c.node.graph();
        let op = if self.broadcasts { &SELECT_V2 } else { &SELECT };
        let select = |x: Tensor<'g>, y: Tensor<'g>| graph.node_of(op).input(c.inputs[0]).input(x).input(y).tensor();
        let (gx, gy) = (select(grad, zeros), select(zeros, grad));
        if !self.broadcasts {
            return Some(vec![None, Some(gx.into()), Some(gy.into())]);
        }
        let mut gradients = vec![None];
        // The choices may have been stretched to each other and to the condition: each is summed back from the output.
        gradients.extend(reduce_gradients(c.inputs[1], c.outputs[0], gx, gx).into_iter().take(1));
        gradients.extend(reduce_gradients(c.inputs[2], c.outputs[0], gy, gy).into_iter().take(1));
        Some(gradients)
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (condition, output) = (self.condition(c), &c.outputs[0].dims);
        let steps = [&condition, &c.inputs[1].dims, &c.inputs[2].dims].map(|d| steps(d, output));
        Ok(by_dtype!(c.inputs[1].dtype, T => select::<T>(output.clone(), steps)))
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        // Not where a vector decides on rows, which is no broadcasting of NumPy's.
        let by_rows = c.inputs[0].dims.len() == 1 && c.outputs[0].dims.len() > 1;
        (self.broadcasts || !by_rows).then(|| CudaMap::new(CHOICE))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let dtype = c.outputs[0].dtype;
        let step = MapStep { map: CudaMap::new(CHOICE), dtype, operands: (0..3).map(Operand::Input).collect() };
        let choices = c.inputs[1..].iter().map(|d| (dtype, d.dims.clone()));
        let inputs: Vec<_> = std::iter::once((DType::Bool, self.condition(c))).chain(choices).collect();
        map_kernel(&[step], &inputs, &c.outputs[0].dims)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = float(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        let y = float(&[2, 2], &[-1.0, -2.0, -3.0, -4.0]);
        let mut cases = vec![
            case(
                vec![bools(&[2, 2], &[true, false, false, true]), x.clone(), y.clone()],
                vec![float(&[2, 2], &[1.0, -2.0, -3.0, 4.0])],
                true,
            ),
            case(vec![bools(&[], &[false]), x.clone(), y.clone()], vec![y.clone()], true),
        ];
        cases.push(match self.broadcasts {
            true => case(
                vec![bools(&[2], &[true, false]), x, float(&[], &[9.0])],
                vec![float(&[2, 2], &[1.0, 9.0, 3.0, 9.0])],
                true,
            ),
            false => case(vec![bools(&[2], &[true, false]), x, y], vec![float(&[2, 2], &[1.0, 2.0, -3.0, -4.0])], true),
        });
        cases
    }
}

/// The step of an input along each axis of the output, in elements.
fn steps(dims: &[usize], output: &[usize]) -> Dims {
    let mut step = 1;
    let mut steps: Dims = (0..output.len())
        .map(|back| {
            let own = dims.len().checked_sub(back + 1).map_or(1, |i| dims[i]);
            let this = if own == 1 { 0 } else { step };
            step *= own;
            this
        })
        .collect();
    steps.reverse();
    steps
}

fn select<T: Element>(output: Dims, steps: [Dims; 3]) -> CpuKernel {
    let inner = output.last().copied().unwrap_or(1);
    let rows: usize = output.iter().rev().skip(1).product();
    let last = [0, 1, 2].map(|i| steps[i].last().copied().unwrap_or(0));
    Box::new(move |l| {
        if inner == 0 {
            return Ok(());
        }
        let (condition, x, y) = (l.input::<Bool8>(0), l.input::<T>(1), l.input::<T>(2));
        let o = Shared::new(l.output_ptr::<T>(0).0);
        l.team().chunks(rows, (GRAIN / inner).max(1), |chunk| {
            for row in chunk {
                let mut at = [0; 3];
                let mut rest = row;
                for axis in (0..output.len().saturating_sub(1)).rev() {
                    let index = rest % output[axis];
                    rest /= output[axis];
                    (0..3).for_each(|i| at[i] += index * steps[i][axis]);
                }
                // SAFETY: rows are disjoint parts of the output, which is no input's buffer.
                let o = unsafe { std::slice::from_raw_parts_mut(o.get().add(row * inner), inner) };
                for (i, o) in o.iter_mut().enumerate() {
                    let take = condition[at[0] + i * last[0]].get();
                    *o = if take { x[at[1] + i * last[1]] } else { y[at[2] + i * last[2]] };
                }
            }
        });
        Ok(())
    })
}

impl<'g> Tensor<'g> {
    /// The first where this (a bool tensor) is true, else the second; all three broadcast. Named `SelectV2`.
    #[track_caller]
    pub fn select(self, then: impl Into<Tensor<'g>>, otherwise: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.graph().node_of(&SELECT_V2).input(self).input(then).input(otherwise).tensor()
    }
}
