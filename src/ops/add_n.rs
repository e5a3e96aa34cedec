//! `AddN`: the sum of any number of tensors of one shape, as gradients that meet are summed.

use super::elementwise::{Dispatch, GRAIN, Plain, Shared, Wide};
use super::number::Number;
use super::support::no_arithmetic;
use super::values::{case, float, ints};
use crate::base::DType;
use crate::device::CpuKernel;
use crate::device::cuda::{CudaBuffer, CudaKernel, CudaLaunch, CudaMap, MapStep, Operand};
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};
use pulp::NullaryFnOnce;
use smallvec::SmallVec;

/// TensorFlow's `AddN`: the inputs' sum, from the first to the last. Attribute `N` is their number.
pub struct AddN;

impl Op for AddN {
    fn name(&self) -> &'static str {
        "AddN"
    }

    fn traits(&self) -> Traits {
        Traits { in_place: &[0], ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        Ok(vec![summed(c)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(c.inputs.iter().map(|_| Some(c.grad().into())).collect())
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        Cost { flops: (c.inputs.len() - 1) as f64 * c.outputs[0].len() as f64, bytes }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        sum_kernel(c.outputs[0].dtype)
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        (c.inputs.len() <= AT_ONCE).then(|| total(c.inputs.len()))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (n, desc) = (c.inputs.len(), &c.outputs[0]);
        let mut launches = Vec::new();
        let (mut taken, mut before) = (0, None);
        while taken < n {
            // The sum so far stays apart from the output, which may be the buffer of an input that is still to come.
            let end = n.min(taken + AT_ONCE - usize::from(before.is_some()));
            let sources = before.into_iter().chain((taken..end).map(|i| CudaBuffer::Input(i, 0)));
            let sources: Vec<_> = sources.map(|buffer| (buffer, desc.dtype, desc.dims.clone())).collect();
            let to = if end == n { CudaBuffer::Output(0, 0) } else { CudaBuffer::Scratch(0) };
            let operands = (0..sources.len()).map(Operand::Input).collect();
            let step = MapStep { map: total(sources.len()), dtype: desc.dtype, operands };
            launches.extend(CudaLaunch::map(&[step], &sources, to, &desc.dims)?);
            (taken, before) = (end, Some(to));
        }
        let scratch_bytes = if n > AT_ONCE { desc.bytes() } else { 0 };
        Ok(CudaKernel { scratch_bytes, ..CudaKernel::new(launches) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = |values: &[f32; 4]| float(&[2, 2], values);
        let (a, b, c) = (x(&[1.0, 2.0, 3.0, 4.0]), x(&[0.5, -2.0, 1.0, 0.0]), x(&[-1.0, 1.0, 0.25, 8.0]));
        let many: Vec<f32> = (0..1500).map(|i| i as f32).collect();
        let twice: Vec<f32> = many.iter().map(|v| 2.0 * v).collect();
        vec![
            case(vec![a.clone(), b, c], vec![x(&[0.5, 1.0, 4.25, 12.0])], true),
            case(vec![a.clone()], vec![a], true),
            case(vec![float(&[1500], &many), float(&[1500], &many)], vec![float(&[1500], &twice)], false),
            case(vec![ints(&[1, 2]), ints(&[3, i32::MAX])], vec![ints(&[4, i32::MIN + 1])], false),
        ]
    }
}

/// Inputs that one CUDA launch takes: more, and their elements leave the registers.
const AT_ONCE: usize = 16;

/// The sum of this many operands in CUDA C, from the first to the last.
fn total(count: usize) -> CudaMap {
    CudaMap::new((1..count).fold("$0".to_string(), |sum, i| format!("turret_plus({sum}, ${i})")))
}

/// What is known of a sum of all inputs.
pub(super) fn summed(c: &InferContext<'_>) -> Result<Fact, String> {
    let dtype = c.same_dtype()?;
    if dtype == DType::Bool {
        return Err("want numbers, got bool; cast the inputs".into());
    }
    let mut shape = c.shape(0).clone();
    for i in 1..c.inputs.len() {
        shape = shape
            .merge(c.shape(i))
            .ok_or_else(|| format!("all inputs must have one shape: want {shape}, got {} as input {i}", c.shape(i)))?;
    }
    Ok(Fact::new(dtype, shape))
}

/// The kernel that writes the sum of all inputs, from the first to the last, to every output. Output 0 may be an input's
/// buffer.
pub(super) fn sum_kernel(dtype: DType) -> Result<CpuKernel, String> {
    Ok(match dtype {
        DType::F32 => sum::<f32, Wide>(),
        DType::F64 => sum::<f64, Plain>(),
        DType::I32 => sum::<i32, Plain>(),
        DType::I64 => sum::<i64, Plain>(),
        other => return Err(no_arithmetic(other)),
    })
}

fn sum<T: Number, D: Dispatch>() -> CpuKernel {
    Box::new(|l| {
        let len = l.output_ptr::<T>(0).1;
        // On the stack for up to 32 inputs.
        let inputs: SmallVec<[Shared<T>; 32]> =
            (0..l.num_inputs()).map(|i| Shared::new(l.input_ptr::<T>(i).0.cast_mut())).collect();
        let outputs: SmallVec<[Shared<T>; 32]> =
            (0..l.num_outputs()).map(|i| Shared::new(l.output_ptr::<T>(i).0)).collect();
        l.team().chunks(len, GRAIN, |chunk| {
            // The chunk lies within each output and each input, which have `len` elements.
            D::run(Sum { inputs: &inputs, outputs: &outputs, from: chunk.start, to: chunk.end });
        });
        Ok(())
    })
}

struct Sum<'a, T> {
    inputs: &'a [Shared<T>],
    outputs: &'a [Shared<T>],
    from: usize,
    to: usize,
}

impl<T: Number> NullaryFnOnce for Sum<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        // Sums are laid aside and written when all inputs are read, since the output may be one of the inputs.
        const BLOCK: usize = 1024;
        let mut aside = [T::ZERO; BLOCK];
        let mut at = self.from;
        while at < self.to {
            let n = BLOCK.min(self.to - at);
            let aside = &mut aside[..n];
            for (i, x) in self.inputs.iter().enumerate() {
                // SAFETY: the block lies within every input, and nothing is written while this is borrowed.
                let x = unsafe { std::slice::from_raw_parts(x.get().add(at).cast_const(), n) };
                if i == 0 {
                    aside.copy_from_slice(x);
                    continue;
                }
                for (sum, x) in aside.iter_mut().zip(x) {
                    *sum = sum.plus(*x);
                }
            }
            for o in self.outputs {
                // SAFETY: the block lies within the output, and no input's block is borrowed any more.
                unsafe { std::slice::from_raw_parts_mut(o.get().add(at), n) }.copy_from_slice(aside);
            }
            at += n;
        }
    }
}

impl Graph {
    /// The sum of tensors of one shape, named `AddN`. Of no tensors it is reported.
    #[track_caller]
    pub fn add_n<'g>(&'g self, tensors: impl IntoIterator<Item = Tensor<'g>>) -> Tensor<'g> {
        let tensors: Vec<Tensor<'g>> = tensors.into_iter().collect();
        let count = tensors.len() as i64;
        self.node_of(&AddN).inputs(tensors).attr("N", count).tensor()
    }
}
