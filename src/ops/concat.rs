//! `ConcatV2`, and `ConcatOffset`, which its gradient slices by.

use super::copy::{Copy, Move, move_kernel};
use super::cuda_copy::{self, Run, Runs};
use super::support::{around, axis_of, build, int_array, int_scalar, node, rank_of, scoped, shape_of, sized, with_dim};
use crate::base::{Array, DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, FailureText};
use crate::graph::{
    Attrs, Case, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Tensor, TensorDesc, Traits,
};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// TensorFlow's `ConcatV2`: the values one after another along an axis, which is the last input.
pub struct ConcatV2;

/// The axis and the values.
fn known_axis<'a>(c: &KernelContext<'a>) -> Result<(usize, &'a [TensorDesc]), String> {
    let count = c.inputs.len() - 1;
    let axis = c.ints(count).and_then(|a| a.first().copied()).ok_or("the axis is not known")?;
    Ok((axis_of(axis, c.outputs[0].dims.len(), "axis")?, &c.inputs[..count]))
}

impl Op for ConcatV2 {
    fn name(&self) -> &'static str {
        "ConcatV2"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let count = c.inputs.len().saturating_sub(1);
        if count == 0 {
            return Err(format!("want at least one value and the axis, got {} inputs", c.inputs.len()));
        }
        let axis = int_scalar(c, count, "the axis")?;
        let dtype = c.dtype(0);
        if let Some(i) = (0..count).find(|&i| c.dtype(i) != dtype) {
            return Err(format!("values must have one type: value 0 is {dtype}, value {i} is {}", c.dtype(i)));
        }
        let Some(rank) = (0..count).find_map(|i| c.shape(i).rank()) else {
            return Ok(vec![Fact::new(dtype, Shape::unknown())]);
        };
        if rank == 0 {
            return Err("scalars have no axis to concatenate along; stack them instead".into());
        }
        let axis = axis.map(|a| axis_of(a, rank, "axis")).transpose()?;
        let mut merged = Shape::of_rank(rank);
        let mut total = Some(0usize);
        for i in 0..count {
            let shape = c.shape(i);
            let others = match (shape.dims(), axis) {
                (Some(dims), _) if dims.len() != rank => {
                    return Err(format!("values must have one rank: want {rank}, value {i} has shape {shape}"));
                }
                (Some(dims), Some(axis)) => {
                    total = total.zip(dims[axis]).and_then(|(t, d)| t.checked_add(d));
                    with_dim(dims, axis, None)
                }
                _ => {
                    total = None;
                    Shape::of_rank(rank)
                }
            };
            merged = merged.merge(&others).ok_or_else(|| {
                let axis = axis.unwrap_or_default();
                format!(
                    "all sizes but that of axis {axis} must agree: values before have {merged}, value {i} has {shape}"
                )
            })?;
        }
        let dims: Vec<Option<usize>> = merged.dims().unwrap_or_default().to_vec();
        let shape = axis.map_or(Shape::of_rank(rank), |axis| with_dim(&dims, axis, total));
        Ok(vec![sized(dtype, shape)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (axis, values) = c.inputs.split_last()?;
        if let [_] = values {
            return Some(vec![Some(c.grad().into()), None]);
        }
        let g = c.node.graph();
        let positive = build("FloorMod", "mod", &[*axis, rank_of(values[0])]);
        let sizes: Vec<Tensor<'g>> = values.iter().map(|&v| shape_of(v, DType::I32)).collect();
        let offsets = g.node_of(&ConcatOffset).input(positive).inputs(sizes.iter().copied()).add();
        let slice = |(i, &size): (usize, &Tensor<'g>)| {
            let offset = if offsets.is_poison() { g.poison_tensor() } else { offsets.output(i) };
            Some(build("Slice", "", &[c.grad(), offset, size]).into())
        };
        Some(sizes.iter().enumerate().map(slice).chain([None]).collect())
    }

    fn planned_inputs(&self, num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![num_inputs.saturating_sub(1)]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (axis, values) = known_axis(c)?;
        let (outer, total, inner) = around(&c.outputs[0].dims, axis);
        let mut moves = Vec::with_capacity(values.len());
        let mut start = 0;
        for (input, desc) in values.iter().enumerate() {
            let run = desc.dims[axis] * inner;
            let to = [(total * inner) as isize, 1];
            let copy = Copy::new(&[outer, run], 0, &[run as isize, 1], start as isize, &to);
            moves.push(Move { input, output: 0, copy });
            start += run;
        }
        Ok(move_kernel(c.outputs[0].dtype, moves))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (axis, values) = known_axis(c)?;
        let (outer, _, inner) = around(&c.outputs[0].dims, axis);
        let run = |(i, v): (usize, &TensorDesc)| Run { part: CudaBuffer::Input(i, 0), len: v.dims[axis] * inner };
        let parts: Vec<Run> = values.iter().enumerate().map(run).collect();
        Ok(cuda_copy::runs(c.outputs[0].dtype, Runs::Join, outer, &parts))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let case = |axis: i32, dims: &[usize], values: &[f32]| -> Option<Case> {
            let a = Array::new(&[2, 1], &[1.0f32, 2.0]).ok()?;
            let b = Array::new(&[2, 1], &[3.0f32, 4.0]).ok()?;
            let outputs = vec![Array::new(dims, values).ok()?];
            Some(Case { attrs: Attrs::new(), inputs: vec![a, b, Array::scalar(axis)], outputs, gradient: true })
        };
        let cases = [case(0, &[4, 1], &[1.0, 2.0, 3.0, 4.0]), case(-1, &[2, 2], &[1.0, 3.0, 2.0, 4.0])];
        cases.into_iter().flatten().collect()
    }
}

/// TensorFlow's `ConcatOffset`: where each of some shapes starts when they are concatenated along an axis.
pub struct ConcatOffset;

impl Op for ConcatOffset {
    fn name(&self) -> &'static str {
        "ConcatOffset"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        if c.inputs.len() < 2 {
            return Err(format!("want the axis and at least one shape, got {} inputs", c.inputs.len()));
        }
        int_scalar(c, 0, "the axis")?;
        let mut common = Shape::of_rank(1);
        for i in 1..c.inputs.len() {
            if c.dtype(i) != c.dtype(1) || !c.dtype(i).is_integer() {
                return Err(format!("shapes must be int32 or int64, all the same, got {}", c.dtype(i)));
            }
            let differs = || format!("shapes must be vectors of one length, shape {} is {}", i - 1, c.shape(i));
            common = common.merge(c.shape(i)).ok_or_else(differs)?;
        }
        Ok(vec![Fact::new(c.dtype(1), common); c.inputs.len() - 1])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn offsets<T: crate::base::Element + std::ops::Add<Output = T>>(
            l: &crate::device::Launch<'_>,
            add: impl Fn(T, T) -> T,
        ) -> Result<(), String> {
            let axis = match l.input_dtype(0) {
                DType::I32 => l.input::<i32>(0)[0].into(),
                _ => l.input::<i64>(0)[0],
            };
            let rank = l.input::<T>(1).len();
            let axis = axis_of(axis, rank, "axis")?;
            let mut start = T::default();
            for i in 1..l.num_inputs() {
                let out = l.output::<T>(i - 1);
                out.fill(T::default());
                out[axis] = start;
                start = add(start, l.input::<T>(i)[axis]);
            }
            Ok(())
        }
        Ok(match c.inputs[1].dtype {
            DType::I32 => Box::new(|l| offsets::<i32>(l, i32::wrapping_add)),
            _ => Box::new(|l| offsets::<i64>(l, i64::wrapping_add)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let rank = c.inputs[1].len();
        // Two pointers a shape, within 4 KiB of parameters.
        let starts = (0..c.outputs.len()).step_by(200);
        let launches = starts.map(|start| {
            let shapes = start..c.outputs.len().min(start + 200);
            let parameters: String = shapes.clone().map(|i| format!(", const T* shape{i}, T* out{i}")).collect();
            let each: String =
                shapes.clone().map(|i| format!("put(shape{i}, out{i}, rank, axis, &sum);\n    ")).collect();
            let text =
                include_str!("cuda/concat_offset.cu").replace("$parameters", &parameters).replace("$each", &each);
            let code = CudaCode::new(text);
            let code = code.with_type("T", c.inputs[1].dtype).with_type("A", c.inputs[0].dtype);
            let shared = [CudaArg::input(0), CudaArg::Buffer(CudaBuffer::Scratch(0)), CudaArg::size(rank)];
            let args = shared.into_iter().chain([CudaArg::I32((start > 0).into()), CudaArg::Failure]);
            let args = args.chain(shapes.flat_map(|i| [CudaArg::input(i + 1), CudaArg::output(i)])).collect();
            CudaLaunch::Code { code, blocks: 1, threads: 1, shared_bytes: 0, args }
        });
        let failure: FailureText = Arc::new(move |_, axis| axis_of(axis, rank, "axis").err().unwrap_or_default());
        Ok(CudaKernel { scratch_bytes: 8, failure: Some(failure), ..CudaKernel::new(launches) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let inputs = vec![Array::scalar(1i32), int_array(&[2, 3]), int_array(&[2, 5])];
        let outputs = vec![int_array(&[0, 0]), int_array(&[0, 3])];
        vec![Case { attrs: Attrs::new(), inputs, outputs, gradient: false }]
    }
}

impl Graph {
    /// The tensors one after another along an axis, which may count from the end. Named `concat`. One tensor alone
    /// is passed on.
    #[track_caller]
    pub fn concat<'g>(&'g self, values: impl IntoIterator<Item = Tensor<'g>>, axis: i32) -> Tensor<'g> {
        let values: Vec<Tensor<'g>> = values.into_iter().collect();
        scoped(self, "concat", |name| match values[..] {
            [only] => only.identity("concat"),
            _ => {
                let axis = self.constant_named("axis", axis);
                node(self, "ConcatV2").name(name).inputs(values).input(axis).tensor()
            }
        })
    }
}
