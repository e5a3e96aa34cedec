//! `Transpose` and `InvertPermutation`.

use super::copy::{Copy, Move, move_kernel};
use super::cuda_copy;
use super::cuda_index::Counter;
use super::cuda_indices::Indices;
use super::support::{axis_of, build, int_array, int_vector, scoped, strides_of};
use crate::base::{Array, Dims, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaKernel, CudaLaunch, FailureText};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// TensorFlow's `Transpose`: axis `i` of the output is axis `perm[i]` of the input.
pub struct Transpose;

/// The axes of a permutation of `0..rank`.
fn permutation(perm: &[i64], rank: usize) -> Result<Dims, String> {
    let refuse = |why: String| Err(format!("the permutation must hold each of 0 to {rank} (not included) once, {why}"));
    if perm.len() != rank {
        return refuse(format!("got {} entries", perm.len()));
    }
    let mut seen: SmallVec<[bool; 8]> = smallvec![false; rank];
    let mut axes = Dims::new();
    for &p in perm {
        let Some(axis) = usize::try_from(p).ok().filter(|&a| a < rank) else { return refuse(format!("got {p}")) };
        if std::mem::replace(&mut seen[axis], true) {
            return refuse(format!("got {p} twice"));
        }
        axes.push(axis);
    }
    Ok(axes)
}

fn moves(c: &KernelContext<'_>) -> Result<Vec<Move>, String> {
    let perm = c.ints(1).ok_or("the permutation is not known")?;
    let dims = &c.inputs[0].dims;
    let axes = permutation(&perm, dims.len())?;
    let strides = strides_of(dims);
    let from: SmallVec<[isize; 6]> = axes.iter().map(|&a| strides[a]).collect();
    let to = &c.outputs[0].dims;
    let copy = Copy::new(to, 0, &from, 0, &strides_of(to));
    Ok(vec![Move { input: 0, output: 0, copy }])
}

impl Op for Transpose {
    fn name(&self) -> &'static str {
        "Transpose"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let perm = int_vector(c, 1, "the permutation")?;
        let rank = c.shape(0).rank().or(c.shape(1).dim(0));
        let shape = match (rank, perm) {
            (Some(rank), Some(perm)) => {
                let axes = permutation(&perm, rank)?;
                Shape::partial(axes.iter().map(|&a| c.shape(0).dim(a)))
            }
            (Some(rank), None) => Shape::of_rank(rank),
            (None, _) => Shape::unknown(),
        };
        Ok(vec![Fact::new(c.dtype(0), shape)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let inverse = build("InvertPermutation", "", &[c.inputs[1]]);
        Some(vec![Some(build("Transpose", "transpose", &[c.grad(), inverse]).into()), None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(move_kernel(c.inputs[0].dtype, moves(c)?))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(cuda_copy::moves(c.inputs[0].dtype, &moves(c)?))
    }

    fn swaps_last_axes(&self, c: &KernelContext<'_>) -> bool {
        let rank = c.inputs[0].dims.len();
        let swapped = (0..rank as i64).map(|i| match rank as i64 - i {
            1 => i - 1,
            2 => i + 1,
            _ => i,
        });
        rank >= 2 && c.ints(1).is_some_and(|perm| perm.into_iter().eq(swapped))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = Array::new(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let y = Array::new(&[2, 3], &[1.0f32, 3.0, 5.0, 2.0, 4.0, 6.0]);
        let (Ok(x), Ok(y)) = (x, y) else { return Vec::new() };
        vec![Case { attrs: Attrs::new(), inputs: vec![x, int_array(&[1, 0])], outputs: vec![y], gradient: true }]
    }
}

fn bad_entry(entry: i64, value: i64) -> String {
    format!("entry {entry} of the permutation is {value}, which is out of range or there twice")
}

/// TensorFlow's `InvertPermutation`.
pub struct InvertPermutation;

impl Op for InvertPermutation {
    fn name(&self) -> &'static str {
        "InvertPermutation"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        let perm = int_vector(c, 0, "the permutation")?;
        perm.map_or(Ok(Dims::new()), |p| permutation(&p, p.len()))?;
        Ok(vec![Fact::new(c.dtype(0), c.shape(0).merge(&Shape::of_rank(1)).unwrap_or_default())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn invert(perm: impl Iterator<Item = i64>, mut set: impl FnMut(usize, usize) -> bool) -> Result<(), String> {
            for (i, p) in perm.enumerate() {
                if !usize::try_from(p).is_ok_and(|p| set(p, i)) {
                    return Err(bad_entry(i as i64, p));
                }
            }
            Ok(())
        }
        Ok(match c.inputs[0].dtype {
            crate::base::DType::I32 => Box::new(|l| {
                let out = l.output::<i32>(0);
                out.fill(-1);
                let set = |p: usize, i| out.get_mut(p).is_some_and(|o| std::mem::replace(o, i as i32) == -1);
                invert(l.input::<i32>(0).iter().map(|&p| p.into()), set)
            }),
            _ => Box::new(|l| {
                let out = l.output::<i64>(0);
                out.fill(-1);
                let set = |p: usize, i| out.get_mut(p).is_some_and(|o| std::mem::replace(o, i as i64) == -1);
                invert(l.input::<i64>(0).iter().copied(), set)
            }),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (buffer, dtype, count) = (CudaBuffer::Input(0, 0), c.inputs[0].dtype, c.inputs[0].len());
        if count == 0 {
            return Ok(CudaKernel::default());
        }
        let indices = Indices { buffer, dtype, count, bound: count, negative: false, offset: 0 };
        let sorted = indices.sort(0, false);
        let mut launches = sorted.launches;
        // Where the permutation is refused, some places would be left as they were.
        launches.push(CudaLaunch::Zero { to: CudaBuffer::Output(0, 0), bytes: c.outputs[0].bytes() });
        let args = [sorted.keys, CudaArg::Buffer(buffer), CudaArg::output(0), CudaArg::size(count), sorted.shift];
        let code = indices.code(Counter::for_sizes(&[]), include_str!("cuda/invert.cu"));
        let args = args.into_iter().chain([CudaArg::Failure]).collect();
        launches.push(CudaLaunch::Code { code, blocks: 1, threads: 256, shared_bytes: 0, args });
        let failure: FailureText = Arc::new(bad_entry);
        Ok(CudaKernel { scratch_bytes: sorted.scratch_end, failure: Some(failure), ..CudaKernel::new(launches) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let (inputs, outputs) = (vec![int_array(&[2, 0, 1])], vec![int_array(&[1, 2, 0])]);
        vec![Case { attrs: Attrs::new(), inputs, outputs, gradient: false }]
    }
}

impl<'g> Tensor<'g> {
    /// Axis `i` of the result is axis `perm[i]` of this. Named `transpose`.
    #[track_caller]
    pub fn transpose(self, perm: &[i64]) -> Tensor<'g> {
        let g = self.graph();
        scoped(g, "transpose", |name| {
            let perm = g.constant_named("perm", int_array(perm));
            g.node_of(&Transpose).name(name).input(self).input(perm).tensor()
        })
    }

    /// This with two axes swapped; negative axes count from the end. The rank must be known.
    #[track_caller]
    pub fn swap_axes(self, a: i64, b: i64) -> Tensor<'g> {
        let Some(rank) = self.rank() else {
            // The permutation cannot be written down; an empty one is refused, and says of what.
            return self.transpose(&[]);
        };
        match (axis_of(a, rank, "axis"), axis_of(b, rank, "axis")) {
            (Ok(a), Ok(b)) => {
                let mut perm: Vec<i64> = (0..rank as i64).collect();
                perm.swap(a, b);
                self.transpose(&perm)
            }
            _ => self.transpose(&[a, b]),
        }
    }
}
