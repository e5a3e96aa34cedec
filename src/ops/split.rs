//! `Split` and `SplitV`: cuts along an axis, in equal parts or parts of given sizes.

use super::copy::{Copy, Move, move_kernel};
use super::cuda_copy::{self, Run, Runs};
use super::support::{
    MAX_OUTPUTS, around, axis_of, int_array, int_scalar, int_vector, node, or_zeros, scoped, with_dim,
};
use crate::base::{Array, POISON_DIM, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaBuffer, CudaKernel};
use crate::graph::{
    Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Operation, Tensor, TensorDesc,
};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `Split`: `num_split` equal parts; the axis is input 0, the value input 1.
pub struct Split;

/// TensorFlow's `SplitV`: parts of given sizes, one of which may be -1 for the rest; inputs value, sizes, axis.
pub struct SplitV;

fn num_split(attrs: &Attrs) -> Result<usize, String> {
    match attrs.int("num_split") {
        Some(n @ 1..=MAX_OUTPUTS) => Ok(n as usize),
        got => Err(format!("the number of parts must be 1 to {MAX_OUTPUTS}, got {}", got.unwrap_or_default())),
    }
}

impl Op for Split {
    fn name(&self) -> &'static str {
        "Split"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let count = num_split(c.attrs)?;
        let axis = int_scalar(c, 0, "the axis")?;
        let shape = match (c.shape(1).dims(), axis) {
            (Some(dims), Some(axis)) => {
                let axis = axis_of(axis, dims.len(), "axis")?;
                let size = dims[axis].filter(|_| !c.shape(1).is_poisoned());
                if let Some(size) = size.filter(|s| s % count != 0) {
                    let remainder = size % count;
                    return Err(format!(
                        "cannot split axis {axis} of size {size} into {count} equal parts: {remainder} would be left \
                         over (remainder {remainder}); drop {remainder}, pad to a multiple of {count}, or split into \
                         given sizes (of a batch, the uneven mode of towers)"
                    ));
                }
                let part = if c.shape(1).is_poisoned() { dims[axis] } else { size.map(|s| s / count) };
                with_dim(dims, axis, part)
            }
            (Some(dims), None) => Shape::of_rank(dims.len()),
            (None, _) => Shape::unknown(),
        };
        Ok(vec![Fact::new(c.dtype(1), shape); count])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None, Some(joined(c, c.inputs[0]).into())])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![0]
    }

    fn aliases(&self, c: &KernelContext<'_>) -> Option<SmallVec<[(usize, usize); 2]>> {
        runs(c, 1, 0)
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        cuts(c, 1, 0)
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        cuda_cuts(c, 1, 0)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).ok()?;
            let part = |values: [f32; 2]| Array::new(&[2, 1], &values).ok();
            let outputs = vec![part([1.0, 3.0])?, part([2.0, 4.0])?];
            let attrs = Attrs::new().with("num_split", 2i64);
            Some(Case { attrs, inputs: vec![Array::scalar(1i32), x], outputs, gradient: true })
        };
        build().into_iter().collect()
    }
}

impl Op for SplitV {
    fn name(&self) -> &'static str {
        "SplitV"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        let count = num_split(c.attrs)?;
        let sizes = int_vector(c, 1, "the sizes")?;
        let axis = int_scalar(c, 2, "the axis")?;
        if let Some(n) = sizes.as_ref().map(Vec::len).or(c.shape(1).dim(0)).filter(|&n| n != count) {
            return Err(format!("want {count} sizes, as 'num_split' says, got {n}"));
        }
        let (Some(dims), Some(axis)) = (c.shape(0).dims(), axis) else {
            let shape = c.shape(0).rank().map_or(Shape::unknown(), Shape::of_rank);
            return Ok(vec![Fact::new(c.dtype(0), shape); count]);
        };
        let axis = axis_of(axis, dims.len(), "axis")?;
        let parts: Vec<Option<usize>> = match sizes {
            Some(sizes) => part_sizes(&sizes, dims[axis].filter(|_| !c.shape(0).is_poisoned()), axis)?,
            None => vec![None; count],
        };
        Ok(parts.into_iter().map(|size| Fact::new(c.dtype(0), with_dim(dims, axis, size))).collect())
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(joined(c, c.inputs[2]).into()), None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1, 2]
    }

    fn aliases(&self, c: &KernelContext<'_>) -> Option<SmallVec<[(usize, usize); 2]>> {
        runs(c, 0, 2)
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        cuts(c, 0, 2)
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        cuda_cuts(c, 0, 2)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let vector = |values: &[f32]| Array::new(&[values.len()], values).ok();
            let inputs = vec![vector(&[1.0, 2.0, 3.0, 4.0])?, int_array(&[3, -1]), Array::scalar(0i32)];
            let outputs = vec![vector(&[1.0, 2.0, 3.0])?, vector(&[4.0])?];
            Some(Case { attrs: Attrs::new().with("num_split", 2i64), inputs, outputs, gradient: true })
        };
        build().into_iter().collect()
    }
}

/// The sizes of the parts, with the rest filled in where the whole is known.
fn part_sizes(sizes: &[i64], whole: Option<usize>, axis: usize) -> Result<Vec<Option<usize>>, String> {
    if let Some(size) = sizes.iter().find(|s| **s < -1) {
        return Err(format!("a part's size must be -1 (the rest) or more, got {size}"));
    }
    let open = sizes.iter().filter(|s| **s == -1).count();
    if open > 1 {
        return Err(format!("only one part can take the rest (-1), got {open}"));
    }
    let given = sizes.iter().filter(|s| **s >= 0).try_fold(0usize, |n, &s| n.checked_add(s as usize));
    let given = given.ok_or("the parts' sizes are too large")?;
    if let Some(whole) = whole.filter(|&w| if open == 1 { given > w } else { given != w }) {
        return Err(format!("the parts' sizes {sizes:?} add up to {given}, but axis {axis} has size {whole}"));
    }
    let rest = whole.map(|w| w - given);
    Ok(sizes.iter().map(|&s| if s == -1 { rest } else { Some(s as usize) }).collect())
}

/// The gradients of all parts, concatenated along the forward node's axis.
fn joined<'g>(c: &GradContext<'g>, axis: Tensor<'g>) -> Tensor<'g> {
    let grads: Vec<Tensor<'g>> = c.grads.iter().zip(&c.outputs).map(|(g, &o)| or_zeros(*g, o)).collect();
    node(axis.graph(), "ConcatV2").name("concat").inputs(grads).input(axis).tensor()
}

fn axis(c: &KernelContext<'_>, value: usize, axis: usize) -> Option<usize> {
    axis_of(*c.ints(axis)?.first()?, c.inputs[value].dims.len(), "axis").ok()
}

/// The parts as runs of the value's bytes, where the axis is outermost but for sizes of one.
fn runs(c: &KernelContext<'_>, value: usize, axis_input: usize) -> Option<SmallVec<[(usize, usize); 2]>> {
    let axis = axis(c, value, axis_input)?;
    if c.inputs[value].dims[..axis].iter().any(|&d| d != 1) {
        return None;
    }
    let start = |next: &mut usize, bytes: usize| Some(std::mem::replace(next, *next + bytes));
    Some(c.outputs.iter().map(|o| o.bytes()).scan(0, start).map(|byte| (value, byte)).collect())
}

fn cuts(c: &KernelContext<'_>, value: usize, axis_input: usize) -> Result<CpuKernel, String> {
    let axis = axis(c, value, axis_input).ok_or("the axis is not known")?;
    let (outer, total, inner) = around(&c.inputs[value].dims, axis);
    let mut start = 0;
    let mut moves = Vec::with_capacity(c.outputs.len());
    for (output, desc) in c.outputs.iter().enumerate() {
        let run = desc.dims[axis] * inner;
        let from = [(total * inner) as isize, 1];
        let copy = Copy::new(&[outer, run], start as isize, &from, 0, &[run as isize, 1]);
        moves.push(Move { input: value, output, copy });
        start += run;
    }
    Ok(move_kernel(c.inputs[value].dtype, moves))
}

fn cuda_cuts(c: &KernelContext<'_>, value: usize, axis_input: usize) -> Result<CudaKernel, String> {
    let axis = axis(c, value, axis_input).ok_or("the axis is not known")?;
    let (outer, _, inner) = around(&c.inputs[value].dims, axis);
    let run = |(i, part): (usize, &TensorDesc)| Run { part: CudaBuffer::Output(i, 0), len: part.dims[axis] * inner };
    let parts: Vec<Run> = c.outputs.iter().enumerate().map(run).collect();
    Ok(cuda_copy::runs(c.inputs[value].dtype, Runs::Cut(value), outer, &parts))
}

/// All outputs of a node that cuts, or as many poison tensors.
pub(super) fn parts<'g>(op: Operation<'g>, count: usize) -> Vec<Tensor<'g>> {
    if op.is_poison() { vec![op.graph().poison_tensor(); count] } else { op.outputs() }
}

impl<'g> Tensor<'g> {
    /// `num` equal parts along an axis, which may count from the end. Named `split`. A size that is not a multiple
    /// of `num` is reported.
    #[track_caller]
    pub fn split(self, num: usize, axis: i32) -> Vec<Tensor<'g>> {
        let g = self.graph();
        if num == POISON_DIM {
            return vec![g.poison_tensor()];
        }
        let op = scoped(g, "split", |name| {
            let axis = g.constant_named("split_dim", axis);
            let count = i64::try_from(num).unwrap_or(i64::MAX);
            g.node_of(&Split).name(name).input(axis).input(self).attr("num_split", count).add()
        });
        parts(op, num.min(MAX_OUTPUTS as usize))
    }

    /// Parts of these sizes along an axis; one size may be -1, for the rest. Named `split`.
    #[track_caller]
    pub fn split_sizes(self, sizes: &[i64], axis: i32) -> Vec<Tensor<'g>> {
        let g = self.graph();
        let op = scoped(g, "split", |name| {
            let count = sizes.len() as i64;
            let given = g.constant_named("Const", int_array(sizes));
            let axis = g.constant_named("split_dim", axis);
            let op = g.node_of(&SplitV).name(name).inputs([self, given, axis]);
            op.attr("num_split", count).add()
        });
        parts(op, sizes.len().min(MAX_OUTPUTS as usize))
    }
}

#[cfg(test)]
mod tests {
    use crate::base::DType;
    use crate::graph::Graph;

    #[test]
    fn uneven_splits_name_tensor_size_count_and_remainder() {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [10, 2], "x");
        let parts = x.split(3, 0);
        assert_eq!(parts.len(), 3);
        let message = g.check().err().map(|e| e.to_string()).unwrap_or_default();
        for part in ["'split' (Split)", "'x:0'", "size 10", "into 3 equal parts", "1 would be left over"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
