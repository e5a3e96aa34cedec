//! `Pack` and `Unpack`: tensors of one shape along a new axis, and back.

use super::copy::{Copy, Move, move_kernel};
use super::cuda_copy::{self, Run, Runs};
use super::split::parts;
use super::support::{MAX_OUTPUTS, around, axis_of, node, or_zeros, sized};
use crate::base::{Array, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaBuffer, CudaKernel};
use crate::graph::{Attrs, Case, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Tensor};
use smallvec::SmallVec;

/// TensorFlow's `Pack`: attribute `axis` is where the new axis goes. Python's `stack`.
pub struct Pack;

/// TensorFlow's `Unpack`: attributes `num` and `axis`. Python's `unstack`.
pub struct Unpack;

fn axis_attr(attrs: &Attrs) -> i64 {
    attrs.int("axis").unwrap_or(0)
}

impl Op for Pack {
    fn name(&self) -> &'static str {
        "Pack"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let dtype = c.same_dtype()?;
        let mut shape = Shape::unknown();
        for (i, input) in c.inputs.iter().enumerate() {
            shape = shape.merge(&input.shape).ok_or_else(|| {
                format!("values must have one shape: values before have {shape}, value {i} has {}", input.shape)
            })?;
        }
        let Some(dims) = shape.dims() else { return Ok(vec![Fact::new(dtype, Shape::unknown())]) };
        let axis = axis_of(axis_attr(c.attrs), dims.len() + 1, "axis")?;
        let size = [Some(c.inputs.len())];
        let stacked = dims[..axis].iter().chain(&size).chain(&dims[axis..]).copied();
        Ok(vec![sized(dtype, Shape::partial(stacked))?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let axis = c.node.node().map_or(0, |n| axis_attr(&n.attrs));
        let count = c.inputs.len();
        Some(unstacked(c.grad(), count, axis).into_iter().map(|g| Some(g.into())).collect())
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let axis = axis_of(axis_attr(c.attrs), c.outputs[0].dims.len(), "axis")?;
        let (outer, count, inner) = around(&c.outputs[0].dims, axis);
        let to = [(count * inner) as isize, 1];
        let boxed = |i: usize| Copy::new(&[outer, inner], 0, &[inner as isize, 1], (i * inner) as isize, &to);
        let moves = (0..count).map(|i| Move { input: i, output: 0, copy: boxed(i) }).collect();
        Ok(move_kernel(c.outputs[0].dtype, moves))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let axis = axis_of(axis_attr(c.attrs), c.outputs[0].dims.len(), "axis")?;
        let (outer, count, inner) = around(&c.outputs[0].dims, axis);
        let parts: Vec<Run> = (0..count).map(|i| Run { part: CudaBuffer::Input(i, 0), len: inner }).collect();
        Ok(cuda_copy::runs(c.outputs[0].dtype, Runs::Join, outer, &parts))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = |axis: i64, values: [f32; 4]| -> Option<Case> {
            let inputs = vec![Array::new(&[2], &[1.0f32, 2.0]).ok()?, Array::new(&[2], &[3.0f32, 4.0]).ok()?];
            let outputs = vec![Array::new(&[2, 2], &values).ok()?];
            Some(Case { attrs: Attrs::new().with("axis", axis), inputs, outputs, gradient: true })
        };
        [build(0, [1.0, 2.0, 3.0, 4.0]), build(-1, [1.0, 3.0, 2.0, 4.0])].into_iter().flatten().collect()
    }
}

impl Op for Unpack {
    fn name(&self) -> &'static str {
        "Unpack"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        let num = match c.attrs.int("num") {
            Some(n @ 0..=MAX_OUTPUTS) => n as usize,
            got => return Err(format!("attribute 'num' must be 0 to {MAX_OUTPUTS}, got {}", got.unwrap_or(-1))),
        };
        let Some(dims) = c.shape(0).dims() else { return Ok(vec![Fact::new(c.dtype(0), Shape::unknown()); num]) };
        let axis = axis_of(axis_attr(c.attrs), dims.len(), "axis")?;
        if let Some(size) = dims[axis].filter(|&s| s != num) {
            return Err(format!(
                "cannot unstack axis {axis} of size {size} into {num} tensors; want as many as its size"
            ));
        }
        let rest = Shape::partial(dims[..axis].iter().chain(&dims[axis + 1..]).copied());
        Ok(vec![Fact::new(c.dtype(0), rest); num])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let axis = c.node.node().map_or(0, |n| axis_attr(&n.attrs));
        let grads = c.grads.iter().zip(&c.outputs).map(|(g, &o)| or_zeros(*g, o)).collect::<Vec<_>>();
        let whole = node(c.node.graph(), "Pack").name("stack").inputs(grads).attr("axis", axis).tensor();
        Some(vec![Some(whole.into())])
    }

    fn aliases(&self, c: &KernelContext<'_>) -> Option<SmallVec<[(usize, usize); 2]>> {
        let dims = &c.inputs[0].dims;
        let axis = axis_of(axis_attr(c.attrs), dims.len(), "axis").ok()?;
        if dims[..axis].iter().any(|&d| d != 1) {
            return None;
        }
        Some(c.outputs.iter().enumerate().map(|(i, o)| (0, i * o.bytes())).collect())
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let axis = axis_of(axis_attr(c.attrs), c.inputs[0].dims.len(), "axis")?;
        let (outer, count, inner) = around(&c.inputs[0].dims, axis);
        let from = [(count * inner) as isize, 1];
        let boxed = |i: usize| Copy::new(&[outer, inner], (i * inner) as isize, &from, 0, &[inner as isize, 1]);
        let moves = (0..c.outputs.len()).map(|i| Move { input: 0, output: i, copy: boxed(i) }).collect();
        Ok(move_kernel(c.inputs[0].dtype, moves))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let axis = axis_of(axis_attr(c.attrs), c.inputs[0].dims.len(), "axis")?;
        let (outer, count, inner) = around(&c.inputs[0].dims, axis);
        let parts: Vec<Run> = (0..count).map(|i| Run { part: CudaBuffer::Output(i, 0), len: inner }).collect();
        Ok(cuda_copy::runs(c.inputs[0].dtype, Runs::Cut(0), outer, &parts))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).ok()?;
            let outputs = vec![Array::new(&[2], &[1.0f32, 3.0]).ok()?, Array::new(&[2], &[2.0f32, 4.0]).ok()?];
            let attrs = Attrs::new().with("num", 2i64).with("axis", 1i64);
            Some(Case { attrs, inputs: vec![x], outputs, gradient: true })
        };
        build().into_iter().collect()
    }
}

#[track_caller]
fn unstacked<'g>(value: Tensor<'g>, num: usize, axis: i64) -> Vec<Tensor<'g>> {
    let count = i64::try_from(num).unwrap_or(i64::MAX);
    let node = value.graph().node_of(&Unpack).name("unstack").input(value);
    parts(node.attr("num", count).attr("axis", axis).add(), num.min(MAX_OUTPUTS as usize))
}

impl Graph {
    /// The tensors, all of one shape, along a new axis. Named `stack`.
    #[track_caller]
    pub fn stack<'g>(&'g self, values: impl IntoIterator<Item = Tensor<'g>>, axis: i64) -> Tensor<'g> {
        self.node_of(&Pack).name("stack").inputs(values).attr("axis", axis).tensor()
    }
}

impl<'g> Tensor<'g> {
    /// The slices along an axis, without the axis; its size must be known. Named `unstack`.
    #[track_caller]
    pub fn unstack(self, axis: i64) -> Vec<Tensor<'g>> {
        let Some(rank) = self.rank() else {
            // The axis cannot be found; asking for its size reports that.
            self.dim(0);
            return Vec::new();
        };
        match axis_of(axis, rank, "axis") {
            Ok(index) => match self.dim(index) {
                crate::base::POISON_DIM => Vec::new(),
                num => unstacked(self, num, axis),
            },
            Err(_) => unstacked(self, 0, axis),
        }
    }
}
