//! `GatherNd` and `ScatterNd`: slices of a tensor by tuples of numbers, one for each of its first axes.
//!
//! Absent: TensorFlow's `bad_indices_policy` of leaving out tuples that are out of range; here they end the step.

use super::cuda_indices::Indices;
use super::number::Number;
use super::support::{
    build, by_dtype, by_rows, index_at, int_array, int_vector, no_arithmetic, shape_of, sized, sizes_from,
};
use super::values::{array, case, float, ints};
use crate::base::{DType, Dims, Element, Shape};
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, FailureText};
use crate::device::{CpuKernel, Launch};
use crate::graph::{
    Attrs, Case, Fact, GradContext, IndexedSlices, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// TensorFlow's `GatherNd`: inputs params and indices `[…, k]`: each `k` numbers name a slice of the first `k` axes.
pub struct GatherNd;

/// TensorFlow's `ScatterNd`: inputs indices `[…, k]`, updates, shape: zeros of that shape, to whose slices the updates are
/// added.
pub struct ScatterNd;

/// How tuples of numbers name slices of a tensor.
#[derive(Clone)]
struct Tuples {
    /// The axes that the tuples index.
    dims: Dims,
    /// Number of tuples.
    count: usize,
    /// Elements of a slice.
    width: usize,
}

impl Tuples {
    /// Of a tensor of these sizes and indices of those.
    fn new(whole: &[usize], indices: &[usize]) -> Result<Tuples, String> {
        let (&depth, outer) = indices.split_last().ok_or("the indices must have an axis of tuples")?;
        let (dims, slice) = whole.split_at_checked(depth).ok_or("the tuples are longer than the tensor's rank")?;
        Ok(Tuples { dims: dims.into(), count: outer.iter().product(), width: slice.iter().product() })
    }

    /// Number of slices of the whole.
    fn bound(&self) -> usize {
        self.dims.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    /// The slice that a tuple names, or the axis along which it is out of range.
    fn slice(&self, index: &impl Fn(usize) -> i64, tuple: usize) -> Result<usize, usize> {
        let depth = self.dims.len();
        self.dims.iter().enumerate().try_fold(0, |at, (axis, &dim)| {
            let i = usize::try_from(index(tuple * depth + axis)).ok().filter(|&i| i < dim);
            i.map(|i| usize::wrapping_add(usize::wrapping_mul(at, dim), i)).ok_or(axis)
        })
    }

    /// Checks all tuples before anything is written.
    fn check(&self, index: &impl Fn(usize) -> i64) -> Result<(), String> {
        let bad = (0..self.count).find_map(|t| Some((t, self.slice(index, t).err()?)));
        bad.map_or(Ok(()), |(tuple, axis)| Err(self.bad(tuple, axis)))
    }

    fn bad(&self, tuple: usize, axis: usize) -> String {
        let bound = self.dims.get(axis).copied().unwrap_or(0);
        format!(
            "tuple {tuple} of the indices is not within {:?}: along axis {axis} want 0 to below {bound}",
            &self.dims[..]
        )
    }

    /// The launch that writes the slices' numbers into scratch memory (or, where a tuple is out of range, -1 less its
    /// axis), those numbers as indices, and the message for a bad one. `input` holds the tuples.
    fn linear(&self, input: usize, dtype: DType) -> (CudaLaunch, Indices, FailureText) {
        let depth = self.dims.len();
        let names: String = (0..depth).map(|axis| format!(", i64 dim{axis}")).collect();
        let steps: String = (0..depth)
            .map(|axis| {
                let at = format!("tuples[t * {depth} + {axis}]");
                format!("        if (bad == 0 && ({at} < 0 || {at} >= dim{axis})) bad = {};\n        at = at * dim{axis} + {at};\n", -1 - axis as i64)
            })
            .collect();
        let text = include_str!("cuda/tuples.cu").replace("$parameters", &names).replace("$steps", &steps);
        let code = CudaCode::new(text).with_type("X", dtype);
        let args = [CudaArg::input(input), CudaArg::Buffer(CudaBuffer::Scratch(0)), CudaArg::size(self.count)];
        let args = args.into_iter().chain(self.dims.iter().map(|&d| CudaArg::size(d)));
        let launch = CudaLaunch::elements(code, self.count, args);
        let (buffer, dtype) = (CudaBuffer::Scratch(0), DType::I64);
        let indices = Indices { buffer, dtype, count: self.count, bound: self.bound(), negative: false, offset: 0 };
        let own = self.clone();
        (
            launch,
            indices,
            Arc::new(move |t, bad| own.bad(usize::try_from(t).unwrap_or(0), usize::try_from(-1 - bad).unwrap_or(0))),
        )
    }

    /// Bytes of the slices' numbers.
    fn scratch_bytes(&self) -> usize {
        8 * self.count
    }
}

/// Checks the indices; the length of their tuples, where known.
fn depth_of(c: &InferContext<'_>, i: usize) -> Result<Option<usize>, String> {
    if !c.dtype(i).is_integer() {
        return Err(format!("indices must be int32 or int64, got {}", c.dtype(i)));
    }
    match c.shape(i).dims() {
        Some([]) => Err("the indices must have an axis of tuples, got a scalar; reshape them to [1]".into()),
        Some(dims) => Ok(dims[dims.len() - 1]),
        None => Ok(None),
    }
}

/// What gathering gives: all axes of the indices but the last, then what the tuples leave of the whole.
fn gathered(whole: &Shape, indices: &Shape, depth: Option<usize>) -> Result<Shape, String> {
    let (Some(whole), Some(indices), Some(depth)) = (whole.dims(), indices.dims(), depth) else {
        return Ok(Shape::unknown());
    };
    let Some(slice) = whole.get(depth..) else {
        return Err(format!("tuples of {depth} numbers index a tensor of rank {}; want at most as many", whole.len()));
    };
    Ok(Shape::partial(indices[..indices.len() - 1].iter().chain(slice).copied()))
}

impl Op for GatherNd {
    fn name(&self) -> &'static str {
        "GatherNd"
    }

    fn traits(&self) -> Traits {
        Traits { fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let depth = depth_of(c, 1)?;
        Ok(vec![sized(c.dtype(0), gathered(c.shape(0), c.shape(1), depth)?)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let &[params, indices] = &c.inputs[..] else { return None };
        let shape = shape_of(params, indices.dtype());
        // Tuples of one number are row numbers.
        if indices.rank() == Some(2) && indices.shape().dim(1) == Some(1) {
            let rows = IndexedSlices { values: c.grad(), indices: indices.squeeze(&[-1]), of: params };
            return Some(vec![Some(rows.into()), None]);
        }
        Some(vec![Some(build("ScatterNd", "", &[indices, c.grad(), shape]).into()), None])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let tuples = Tuples::new(&c.inputs[0].dims, &c.inputs[1].dims)?;
        Ok(by_dtype!(c.inputs[0].dtype, T => gather::<T>(tuples)))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let tuples = Tuples::new(&c.inputs[0].dims, &c.inputs[1].dims)?;
        if tuples.count == 0 {
            return Ok(CudaKernel::default());
        }
        let (linear, indices, failure) = tuples.linear(1, c.inputs[1].dtype);
        let params = CudaArg::input(0);
        Ok(indices.gather_after(linear, tuples.scratch_bytes(), c.inputs[0].dtype, params, tuples.width, failure))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = float(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let pairs = array(&[3, 2], &[1i32, 2, 0, 0, 1, 2]);
        let rows = array(&[2, 1, 1], &[1i64, 0]);
        let cube = float(&[2, 2, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        vec![
            case(vec![x.clone(), pairs], vec![float(&[3], &[6.0, 1.0, 6.0])], true),
            case(vec![x.clone(), rows], vec![float(&[2, 1, 3], &[4.0, 5.0, 6.0, 1.0, 2.0, 3.0])], true),
            case(
                vec![x.clone(), array(&[2, 1], &[1i32, 1])],
                vec![float(&[2, 3], &[4.0, 5.0, 6.0, 4.0, 5.0, 6.0])],
                false,
            ),
            case(vec![cube, array(&[2], &[1i32, 0])], vec![float(&[2], &[5.0, 6.0])], true),
            case(vec![x.clone(), array(&[0, 2], &[0i32; 0])], vec![float(&[0], &[])], false),
            // A tuple of nothing is the whole.
            case(
                vec![x, array(&[2, 0], &[0i32; 0])],
                vec![float(&[2, 2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
                false,
            ),
        ]
    }
}

fn gather<T: Element>(tuples: Tuples) -> CpuKernel {
    Box::new(move |l| {
        let index = index_at(l, 1);
        tuples.check(&index)?;
        let (params, width) = (l.input::<T>(0), tuples.width);
        by_rows(l.team(), l.output::<T>(0), width, |first, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                let from = tuples.slice(&index, first + i).unwrap_or(0) * width;
                row.copy_from_slice(&params[from..from + width]);
            }
        });
        Ok(())
    })
}

impl Op for ScatterNd {
    fn name(&self) -> &'static str {
        "ScatterNd"
    }

    fn traits(&self) -> Traits {
        Traits { fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        let depth = depth_of(c, 0)?;
        if !c.dtype(1).is_number() {
            return Err(no_arithmetic(c.dtype(1)));
        }
        let shape = match int_vector(c, 2, "the shape")? {
            Some(sizes) => Shape::known(&sizes_from(&sizes, "sizes")?),
            None => c.shape(2).dim(0).map_or(Shape::unknown(), Shape::of_rank),
        };
        let want = gathered(&shape, c.shape(0), depth)?;
        if !want.is_compatible_with(c.shape(1)) {
            return Err(format!(
                "updates must have the shape of what the tuples name: want {want}, got {}",
                c.shape(1)
            ));
        }
        Ok(vec![sized(c.dtype(1), shape)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None, Some(build("GatherNd", "", &[c.grad(), c.inputs[0]]).into()), None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![2]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let tuples = Tuples::new(&c.outputs[0].dims, &c.inputs[0].dims)?;
        Ok(match c.inputs[1].dtype {
            DType::F32 => scatter::<f32>(tuples),
            DType::F64 => scatter::<f64>(tuples),
            DType::I32 => scatter::<i32>(tuples),
            DType::I64 => scatter::<i64>(tuples),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let tuples = Tuples::new(&c.outputs[0].dims, &c.inputs[0].dims)?;
        let bytes = c.outputs[0].bytes();
        let zero = CudaLaunch::Zero { to: CudaBuffer::Output(0, 0), bytes };
        let mut launches: Vec<CudaLaunch> = (bytes > 0).then_some(zero).into_iter().collect();
        if tuples.count == 0 {
            return Ok(CudaKernel::new(launches));
        }
        let (linear, indices, failure) = tuples.linear(0, c.inputs[0].dtype);
        launches.push(linear);
        let sorted = indices.sort(tuples.scratch_bytes(), true);
        launches.extend(sorted.launches.iter().cloned());
        if bytes > 0 && tuples.width > 0 {
            let (y, x) = (CudaArg::output(0), CudaArg::input(1));
            launches.push(indices.scatter("turret_plus(old, x)", c.outputs[0].dtype, tuples.width, y, x, &sorted));
        }
        Ok(CudaKernel { scratch_bytes: sorted.scratch_end, failure: Some(failure), ..CudaKernel::new(launches) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
        outputs.iter().all(|o| o.dtype.is_number())
    }

    fn cases(&self) -> Vec<Case> {
        let rows = array(&[3, 1], &[1i32, 1, 0]);
        let pairs = array(&[2, 2], &[1i64, 2, 0, 1]);
        vec![
            case(
                vec![rows.clone(), float(&[3], &[1.0, 2.0, 3.0]), ints(&[3])],
                vec![float(&[3], &[3.0, 3.0, 0.0])],
                true,
            ),
            case(
                vec![rows, float(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), ints(&[2, 2])],
                vec![float(&[2, 2], &[5.0, 6.0, 4.0, 6.0])],
                true,
            ),
            case(
                vec![pairs, float(&[2], &[1.0, 2.0]), int_array(&[2, 3])],
                vec![float(&[2, 3], &[0.0, 2.0, 0.0, 0.0, 0.0, 1.0])],
                true,
            ),
            case(vec![array(&[0, 1], &[0i32; 0]), float(&[0], &[]), ints(&[2])], vec![float(&[2], &[0.0; 2])], false),
        ]
    }
}

fn scatter<T: Number>(tuples: Tuples) -> CpuKernel {
    Box::new(move |l: &Launch<'_>| {
        let index = index_at(l, 0);
        tuples.check(&index)?;
        let (updates, out, width) = (l.input::<T>(1), l.output::<T>(0), tuples.width);
        out.fill(T::ZERO);
        for (tuple, update) in updates.chunks_exact(width.max(1)).enumerate().take(tuples.count) {
            let at = tuples.slice(&index, tuple).unwrap_or(0) * width;
            out[at..at + width].iter_mut().zip(update).for_each(|(o, &u)| *o = o.plus(u));
        }
        Ok(())
    })
}

impl<'g> Tensor<'g> {
    /// The slices that tuples of numbers name: indices `[…, k]` of the first `k` axes. Named `GatherNd`. A tuple that is
    /// out of range ends the step.
    #[track_caller]
    pub fn gather_nd(self, indices: impl Into<Tensor<'g>>) -> Tensor<'g> {
        build("GatherNd", "", &[self, indices.into()])
    }
}
