//! `BroadcastTo` and `ReverseV2`: copies with strides of zero and below.

use super::copy::{Copy, Move, move_kernel};
use super::cuda_copy;
use super::support::{
    axis_of, build, dims_array, int_array, int_vector, node, scoped, shape_of, sized, sizes_from, strides_of,
};
use crate::base::{Array, DType, Dims, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{
    Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Stretched, Tensor,
};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `BroadcastTo`: input 1 is the shape to repeat the input to.
pub struct BroadcastTo;

fn repeated(c: &KernelContext<'_>) -> Result<Vec<Move>, String> {
    let (from, to) = (&c.inputs[0].dims, &c.outputs[0].dims);
    let lead = to.len().checked_sub(from.len()).ok_or("the output has fewer axes than the input")?;
    let mut strides: SmallVec<[isize; 6]> = smallvec![0; lead];
    strides.extend(strides_of(from).into_iter().zip(from).map(|(s, &d)| if d == 1 { 0 } else { s }));
    let copy = Copy::new(to, 0, &strides, 0, &strides_of(to));
    Ok(vec![Move { input: 0, output: 0, copy }])
}

impl Op for BroadcastTo {
    fn name(&self) -> &'static str {
        "BroadcastTo"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let target = int_vector(c, 1, "the shape")?;
        let Some(sizes) = target else {
            let shape = c.shape(1).dim(0).map_or(Shape::unknown(), Shape::of_rank);
            return Ok(vec![Fact::new(c.dtype(0), shape)]);
        };
        let shape = Shape::known(&sizes_from(&sizes, "sizes")?);
        let refuse = || Err(format!("cannot broadcast {} to {shape}: sizes must be equal or 1", c.shape(0)));
        if let Some(dims) = c.shape(0).dims() {
            let Some(lead) = sizes.len().checked_sub(dims.len()) else { return refuse() };
            if dims.iter().enumerate().any(|(i, d)| d.is_some_and(|d| d != 1 && Some(d) != shape.dim(lead + i))) {
                return refuse();
            }
        }
        Ok(vec![sized(c.dtype(0), shape)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (&x, &y, g) = (c.inputs.first()?, c.outputs.first()?, c.node.graph());
        let axes = match (x.shape().to_dims(), y.shape().to_dims()) {
            (Some(from), Some(to)) => {
                let lead = to.len().checked_sub(from.len())?;
                let repeated = |&i: &usize| i < lead || from[i - lead] != to[i];
                let axes: Vec<i64> = (0..to.len()).filter(repeated).map(|i| i as i64).collect();
                g.constant_named("Sum/reduction_indices", int_array(&axes))
            }
            _ => {
                let shapes = [shape_of(y, DType::I32), shape_of(x, DType::I32)];
                let axes = node(g, "BroadcastGradientArgs").inputs(shapes).add();
                if axes.is_poison() { g.poison_tensor() } else { axes.output(1) }
            }
        };
        let sum = node(g, "Sum").inputs([c.grad(), axes]).attr("keep_dims", true).tensor();
        Some(vec![Some(build("Reshape", "", &[sum, shape_of(x, DType::I32)]).into()), None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(move_kernel(c.inputs[0].dtype, repeated(c)?))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(cuda_copy::moves(c.inputs[0].dtype, &repeated(c)?))
    }

    fn stretches(&self, _c: &KernelContext<'_>) -> Option<Stretched> {
        Some(Stretched::Input(0))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[2, 1], &[1.0f32, 2.0]).ok()?;
            let y = Array::new(&[2, 2], &[1.0f32, 1.0, 2.0, 2.0]).ok()?;
            let inputs = vec![x, int_array(&[2, 2])];
            Some(Case { attrs: Attrs::new(), inputs, outputs: vec![y], gradient: true })
        };
        build().into_iter().collect()
    }
}

/// TensorFlow's `ReverseV2`: input 1 lists the axes that run backwards.
pub struct ReverseV2;

fn reversed(axes: &[i64], rank: usize) -> Result<Dims, String> {
    let mut seen = Dims::new();
    for &axis in axes {
        let index = axis_of(axis, rank, "axis")?;
        if seen.contains(&index) {
            return Err(format!("axis {axis} is there twice; each axis can be reversed once"));
        }
        seen.push(index);
    }
    Ok(seen)
}

fn turned(c: &KernelContext<'_>) -> Result<Vec<Move>, String> {
    let dims = &c.inputs[0].dims;
    let axes = reversed(&c.ints(1).ok_or("the axes are not known")?, dims.len())?;
    let to = strides_of(dims);
    let (mut from, mut start) = (to.clone(), 0);
    for axis in axes {
        start += dims[axis].saturating_sub(1) as isize * from[axis];
        from[axis] = -from[axis];
    }
    let copy = Copy::new(dims, start, &from, 0, &to);
    Ok(vec![Move { input: 0, output: 0, copy }])
}

impl Op for ReverseV2 {
    fn name(&self) -> &'static str {
        "ReverseV2"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if let (Some(axes), Some(rank)) = (int_vector(c, 1, "the axes")?, c.shape(0).rank()) {
            reversed(&axes, rank)?;
        }
        Ok(vec![c.inputs[0].clone()])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(build("ReverseV2", "", &[c.grad(), *c.inputs.get(1)?]).into()), None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(move_kernel(c.inputs[0].dtype, turned(c)?))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(cuda_copy::moves(c.inputs[0].dtype, &turned(c)?))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).ok()?;
            let y = Array::new(&[2, 2], &[2.0f32, 1.0, 4.0, 3.0]).ok()?;
            Some(Case { attrs: Attrs::new(), inputs: vec![x, int_array(&[-1])], outputs: vec![y], gradient: true })
        };
        build().into_iter().collect()
    }
}

impl<'g> Tensor<'g> {
    /// This repeated along axes of size one, and new leading axes, to a shape. Named `BroadcastTo`.
    #[track_caller]
    pub fn broadcast_to(self, dims: &[usize]) -> Tensor<'g> {
        let g = self.graph();
        if dims.contains(&crate::base::POISON_DIM) {
            return g.poison_tensor();
        }
        scoped(g, "BroadcastTo", |name| {
            let shape = g.constant_named("shape", dims_array(dims));
            g.node_of(&BroadcastTo).name(name).inputs([self, shape]).tensor()
        })
    }

    /// This with some axes backwards. Named `ReverseV2`.
    #[track_caller]
    pub fn reverse(self, axes: &[i64]) -> Tensor<'g> {
        let g = self.graph();
        scoped(g, "ReverseV2", |name| {
            let axes = g.constant_named("axis", int_array(axes));
            g.node_of(&ReverseV2).name(name).inputs([self, axes]).tensor()
        })
    }
}
