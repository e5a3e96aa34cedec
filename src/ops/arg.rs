//! `ArgMax` and `ArgMin`: where along an axis the extreme element is.

use super::cuda_rows::Parts;
use super::elementwise::{GRAIN, Shared};
use super::number::Number;
use super::support::no_arithmetic;
use super::values::{array, case, case_with, float, ints};
use crate::base::{Array, DType, Element, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch};
use crate::graph::{
    Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, OpRef, Tensor, Traits,
};
use smallvec::{SmallVec, smallvec};

/// `ArgMax` or `ArgMin` of input 0 along the axis in input 1, of type `output_type` (`int64`). The first of equal
/// elements counts.
pub struct ArgOp {
    name: &'static str,
    largest: bool,
}

/// TensorFlow's `ArgMax`.
pub static ARG_MAX: ArgOp = ArgOp { name: "ArgMax", largest: true };

/// TensorFlow's `ArgMin`.
pub static ARG_MIN: ArgOp = ArgOp { name: "ArgMin", largest: false };

fn resolve(axes: &[i64], rank: usize) -> Result<usize, String> {
    let &[axis] = axes else { return Err(format!("want one axis, got {}", axes.len())) };
    let at = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(at).ok().filter(|&at| at < rank).ok_or_else(|| format!("axis {axis} is outside [-{rank}, {rank})"))
}

impl Op for ArgOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if !c.dtype(0).is_number() || !c.dtype(1).is_integer() {
            return Err(format!("want numbers and an integer axis, got {} and {}", c.dtype(0), c.dtype(1)));
        }
        let dtype = c.attrs.dtype("output_type").unwrap_or(DType::I64);
        if !dtype.is_integer() {
            return Err(format!("attribute 'output_type' must be int32 or int64, got {dtype}"));
        }
        let shape = match (c.shape(0).dims(), c.ints(1)) {
            (Some(dims), Some(axes)) => {
                let axis = resolve(&axes, dims.len())?;
                if dims[axis] == Some(0) {
                    return Err(format!("there is no extreme of nothing: axis {axis} of {} is empty", c.shape(0)));
                }
                Shape::partial(dims.iter().enumerate().filter(|(a, _)| *a != axis).map(|(_, d)| *d))
            }
            (Some([]), None) => return Err("a scalar has no axis; reshape it to a vector".into()),
            (Some(dims), None) => Shape::of_rank(dims.len() - 1),
            (None, _) => Shape::unknown(),
        };
        Ok(vec![Fact::new(dtype, shape)])
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let dims = &c.inputs[0].dims;
        let axis = resolve(&c.ints(1).ok_or("the axis must be known when the step is planned")?, dims.len())?;
        let (length, inner) = (dims[axis], dims[axis + 1..].iter().product());
        let (largest, wide) = (self.largest, c.outputs[0].dtype == DType::I64);
        if !wide && i32::try_from(length).is_err() {
            return Err(too_long(length));
        }
        fn to<T: Number>(length: usize, inner: usize, largest: bool, wide: bool) -> CpuKernel {
            if wide {
                find::<T, i64>(length, inner, largest, |i| i as i64)
            } else {
                find::<T, i32>(length, inner, largest, |i| i as i32)
            }
        }
        Ok(match c.inputs[0].dtype {
            DType::F32 => to::<f32>(length, inner, largest, wide),
            DType::F64 => to::<f64>(length, inner, largest, wide),
            DType::I32 => to::<i32>(length, inner, largest, wide),
            DType::I64 => to::<i64>(length, inner, largest, wide),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let dims = &c.inputs[0].dims;
        let axis = resolve(&c.ints(1).ok_or("the axis must be known when the step is planned")?, dims.len())?;
        let (length, inner): (usize, usize) = (dims[axis], dims[axis + 1..].iter().product());
        let (desc, results) = (&c.outputs[0], c.outputs[0].len());
        if desc.dtype != DType::I64 && i32::try_from(length).is_err() {
            return Err(too_long(length));
        }
        if results == 0 || length == 0 {
            return Ok(CudaKernel::default());
        }
        let Parts { lanes, count, length: part } = Parts::new(results, length, inner);
        let code = |text: &str, result: DType| {
            CudaCode::new(format!("{}{text}", include_str!("cuda/arg_best.cu")))
                .with_type("T", c.inputs[0].dtype)
                .with_type("R", result)
                .with_constant("LARGEST", self.largest.into())
        };
        let x = CudaArg::input(0);
        let found = |to: CudaArg, result: DType| {
            let code = code(include_str!("cuda/arg.cu"), result).with_constant("LANES", lanes as i64);
            let sizes = [results, length, inner, count, part].map(CudaArg::size);
            CudaLaunch::elements(code, results * count * lanes, [x, to].into_iter().chain(sizes))
        };
        if count == 1 {
            return Ok(CudaKernel::new([found(CudaArg::output(0), desc.dtype)]));
        }
        let between = CudaArg::Buffer(CudaBuffer::Scratch(0));
        let sizes = [results, length, inner, count].map(CudaArg::size);
        let args = [x, between, CudaArg::output(0)].into_iter().chain(sizes);
        let merge = CudaLaunch::elements(code(include_str!("cuda/arg_merge.cu"), desc.dtype), results, args);
        let launches = [found(between, DType::I64), merge];
        Ok(CudaKernel { scratch_bytes: 8 * results * count, ..CudaKernel::new(launches) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = float(&[2, 3], &[1.0, 5.0, 5.0, -1.0, -1.0, -7.0]);
        let (rows, columns) = if self.largest { ([1i64, 0], [0, 0, 0]) } else { ([0i64, 2], [1, 1, 1]) };
        let small = Attrs::new().with("output_type", DType::I32);
        vec![
            case(vec![x.clone(), Array::scalar(1i32)], vec![array(&[2], &rows)], false),
            case_with(small, vec![x.clone(), Array::scalar(0i64)], vec![ints(&columns)], false),
            case(vec![x, Array::scalar(-1i32)], vec![array(&[2], &rows)], false),
        ]
    }
}

fn too_long(length: usize) -> String {
    format!("places along {length} elements do not fit int32; set output_type to int64")
}

fn find<T: Number, R: Element>(length: usize, inner: usize, largest: bool, place: fn(usize) -> R) -> CpuKernel {
    Box::new(move |l| {
        let (x, o) = (l.input::<T>(0), l.output::<R>(0));
        let (results, o) = (o.len(), Shared::new(o.as_mut_ptr()));
        l.team().chunks(results, (GRAIN / length).max(1), |chunk| {
            for result in chunk {
                let start = result / inner * inner * length + result % inner;
                let mut best = 0;
                for i in 1..length {
                    let (x, y) = (x[start + i * inner], x[start + best * inner]);
                    if if largest { x > y } else { x < y } {
                        best = i;
                    }
                }
                // SAFETY: chunks are disjoint parts of the output.
                unsafe { o.get().add(result).write(place(best)) }
            }
        });
        Ok(())
    })
}

impl<'g> Tensor<'g> {
    /// Where along this axis the largest element is, as `int64`.
    #[track_caller]
    pub fn arg_max(self, axis: i32) -> Tensor<'g> {
        self.arg(&ARG_MAX, axis)
    }

    /// Where along this axis the smallest element is, as `int64`.
    #[track_caller]
    pub fn arg_min(self, axis: i32) -> Tensor<'g> {
        self.arg(&ARG_MIN, axis)
    }

    #[track_caller]
    fn arg(self, op: OpRef, axis: i32) -> Tensor<'g> {
        self.with_constant(op.name(), "dimension", axis, |axis| {
            self.graph().node_of(op).input(self).input(axis).attr("output_type", DType::I64)
        })
    }
}
