//! `GatherV2` and `Gather`: slices by number; the gradient along axis 0 is rows, not a dense tensor.

use super::cuda_indices::Indices;
use super::number::Number;
use super::strided_slice::Index;
use super::support::{
    MAX_OUTPUTS, around, axis_of, build, by_dtype, by_rows, index_at, int_array, int_scalar, no_arithmetic, node,
    scoped, shape_of, sized,
};
use crate::base::{Array, DType, Element, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaKernel, CudaLaunch, FailureText};
use crate::graph::{
    Attrs, Case, Fact, GradContext, Graph, IndexedSlices, InferContext, InputGradients, KernelContext, Op, Tensor,
    Traits,
};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// TensorFlow's `GatherV2` and `Gather`: slices along an axis.
pub struct GatherOp {
    name: &'static str,
    /// Whether the axis is input 2; else it is the first.
    with_axis: bool,
}

/// TensorFlow's `GatherV2`: inputs params, indices (any shape), axis. Attribute `batch_dims` must be 0.
pub static GATHER_V2: GatherOp = GatherOp { name: "GatherV2", with_axis: true };
/// TensorFlow's `Gather`, its older form: inputs params and indices of rows.
pub static GATHER: GatherOp = GatherOp { name: "Gather", with_axis: false };

/// TensorFlow's `ResourceGather`: as [`GATHER`], of a resource variable.
pub static RESOURCE_GATHER: GatherOp = GatherOp { name: "ResourceGather", with_axis: false };

impl GatherOp {
    /// The sizes before the axis, along it, and after it.
    fn around(&self, c: &KernelContext<'_>) -> Result<(usize, usize, usize), String> {
        let axis = match self.with_axis {
            true => c.ints(2).and_then(|a| a.first().copied()).ok_or("the axis is not known")?,
            false => 0,
        };
        Ok(around(&c.inputs[0].dims, axis_of(axis, c.inputs[0].dims.len(), "axis")?))
    }
}

impl Op for GatherOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2 + usize::from(self.with_axis))?;
        if let Some(n) = c.attrs.int("batch_dims").filter(|n| *n != 0) {
            return Err(format!("attribute 'batch_dims' must be 0, got {n}"));
        }
        if !c.dtype(1).is_integer() {
            return Err(format!("indices must be int32 or int64, got {}", c.dtype(1)));
        }
        let axis = if self.with_axis { int_scalar(c, 2, "the axis")? } else { Some(0) };
        let shape = match (c.shape(0).dims(), c.shape(1).dims()) {
            (Some([]), _) => return Err("a scalar has nothing to gather; want rank 1 or more".into()),
            (Some(params), Some(indices)) => match axis {
                Some(axis) => {
                    let axis = axis_of(axis, params.len(), "axis")?;
                    Shape::partial(params[..axis].iter().chain(indices).chain(&params[axis + 1..]).copied())
                }
                None => Shape::of_rank(params.len() - 1 + indices.len()),
            },
            _ => Shape::unknown(),
        };
        Ok(vec![sized(c.dtype(0), shape)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (&params, &indices) = (c.inputs.first()?, c.inputs.get(1)?);
        let graph = c.node.graph();
        let value = match c.inputs.get(2) {
            Some(axis) => axis.constant_value().and_then(|a| a.to_i64()?.first().copied()),
            None => Some(0),
        };
        let zero = value == Some(0) || (params.rank() == Some(1) && value == Some(-1));
        let size = build("Size", "", &[indices]);
        let count = scoped(graph, "ExpandDims", |name| {
            let axis = graph.constant_named("dim", 0i32);
            node(graph, "ExpandDims").name(name).inputs([size, axis]).tensor()
        });
        let rows = build("Reshape", "Reshape_1", &[indices, count]);
        if zero {
            let shape = graph.colocate_with(params, || shape_of(params, DType::I32));
            let whole = graph.concat([count, shape.index([(1..).into()])], 0);
            let values = build("Reshape", "", &[c.grad(), whole]);
            let slices = IndexedSlices { values, indices: rows, of: params };
            let mut gradients = vec![Some(slices.into())];
            gradients.resize(c.inputs.len(), None);
            return Some(gradients);
        }
        // Along another axis: that axis goes to the front, rows are summed, and it goes back.
        let rank = params.rank()?;
        let axis = axis_of(value?, rank, "axis").ok()? as i64;
        let shape = graph.colocate_with(params, || shape_of(params, DType::I32));
        let (outer, inner) = (shape.index([(..axis).into()]), shape.index([(axis + 1..).into()]));
        let values = build("Reshape", "", &[c.grad(), graph.concat([outer, count, inner], 0)]);
        let mut perm: Vec<i64> = (0..rank as i64).collect();
        perm[..=axis as usize].rotate_right(1);
        let segments = shape.index([Index::At(axis)]);
        let sums = build("UnsortedSegmentSum", "", &[values.transpose(&perm), rows, segments]);
        let mut back: Vec<i64> = (0..rank as i64).collect();
        back[..=axis as usize].rotate_left(1);
        Some(vec![Some(sums.transpose(&back).into()), None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        if self.with_axis { smallvec![2] } else { SmallVec::new() }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (_, bound, width) = self.around(c)?;
        let count = c.inputs[1].len();
        Ok(by_dtype!(c.inputs[0].dtype, T => gather::<T>(bound, count, width)))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (outer, bound, width) = self.around(c)?;
        let indices = indices_of(c, bound, false);
        let failure = Arc::new(move |entry, index| bad_index(entry, index, bound));
        Ok(indices.gather(c.inputs[0].dtype, CudaArg::input(0), outer, width, failure))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let case = |axis: i32, indices: &[i64], outputs: Array| -> Option<Case> {
            let x = Array::new(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).ok()?;
            let mut inputs = vec![x, int_array(indices)];
            inputs.extend(self.with_axis.then(|| Array::scalar(axis)));
            Some(Case { attrs: Attrs::new(), inputs, outputs: vec![outputs], gradient: axis != 0 || !self.with_axis })
        };
        let rows = Array::new(&[3, 3], &[4.0f32, 5.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let columns = Array::new(&[2, 2], &[3.0f32, 3.0, 6.0, 6.0]);
        let columns = columns.ok().filter(|_| self.with_axis);
        [rows.ok().and_then(|y| case(0, &[1, 0, 1], y)), columns.and_then(|y| case(1, &[2, 2], y))]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Input 1 of a node, for its CUDA kernel.
fn indices_of(c: &KernelContext<'_>, bound: usize, negative: bool) -> Indices {
    let (dtype, count) = (c.inputs[1].dtype, c.inputs[1].len());
    Indices { buffer: CudaBuffer::Input(1, 0), dtype, count, bound, negative, offset: 0 }
}

fn bad_index(entry: i64, index: i64, bound: usize) -> String {
    format!("index {index} (entry {entry} of the indices) is not in [0, {bound})")
}

fn bad_segment(entry: i64, id: i64, segments: usize) -> String {
    format!("segment id {id} (entry {entry}) is not below {segments}")
}

fn gather<T: Element>(bound: usize, count: usize, width: usize) -> CpuKernel {
    Box::new(move |l| {
        let index = index_at(l, 1);
        if let Some(i) = (0..count).find(|&i| !usize::try_from(index(i)).is_ok_and(|r| r < bound)) {
            return Err(bad_index(i as i64, index(i), bound));
        }
        let params = l.input::<T>(0);
        by_rows(l.team(), l.output::<T>(0), width, |first, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                let (outer, at) = ((first + i) / count, (first + i) % count);
                let from = (outer * bound + index(at) as usize) * width;
                row.copy_from_slice(&params[from..from + width]);
            }
        });
        Ok(())
    })
}

impl<'g> Tensor<'g> {
    /// The slices with these numbers along an axis. Named `GatherV2`. An index that is out of range ends the step.
    #[track_caller]
    pub fn gather(self, indices: impl Into<Tensor<'g>>, axis: i32) -> Tensor<'g> {
        gather_named("GatherV2", self, indices.into(), axis)
    }
}

impl Graph {
    /// The rows of a variable with these numbers, `int32` or `int64`: `[…]` numbers of `[rows, width]` give
    /// `[…, width]`. Named `embedding_lookup`. The variable's gradient is only these rows.
    #[track_caller]
    pub fn embedding_lookup<'g>(&'g self, params: impl Into<Tensor<'g>>, ids: impl Into<Tensor<'g>>) -> Tensor<'g> {
        gather_named("embedding_lookup", params.into(), ids.into(), 0)
    }
}

#[track_caller]
fn gather_named<'g>(name: &'static str, params: Tensor<'g>, indices: Tensor<'g>, axis: i32) -> Tensor<'g> {
    let graph = params.graph();
    scoped(graph, name, |name| {
        let axis = graph.constant_named("axis", axis);
        let node = graph.node_of(&GATHER_V2).name(name).inputs([params, indices, axis]);
        node.attr("batch_dims", 0i64).tensor()
    })
}

/// TensorFlow's `UnsortedSegmentSum`: row `i` of the data is added to row `segment_ids[i]` of the output; negative
/// ids are left out. Inputs data, segment ids, number of segments.
pub struct UnsortedSegmentSum;

impl Op for UnsortedSegmentSum {
    fn name(&self) -> &'static str {
        "UnsortedSegmentSum"
    }

    fn traits(&self) -> Traits {
        Traits { fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        if !c.dtype(1).is_integer() {
            return Err(format!("segment ids must be int32 or int64, got {}", c.dtype(1)));
        }
        if c.dtype(0) == DType::Bool {
            return Err("bools have no sums; cast them".into());
        }
        let segments = match int_scalar(c, 2, "the number of segments")? {
            Some(n) => Some(usize::try_from(n).map_err(|_| format!("want 0 or more segments, got {n}"))?),
            None => None,
        };
        let (Some(data), Some(ids)) = (c.shape(0).dims(), c.shape(1).dims()) else {
            return Ok(vec![Fact::new(c.dtype(0), Shape::unknown())]);
        };
        let prefix = Shape::partial(data.iter().take(ids.len()).copied());
        if !prefix.is_compatible_with(c.shape(1)) {
            return Err(format!("the data's shape must start with that of the ids: want {}, got {prefix}", c.shape(1)));
        }
        let shape = Shape::partial([segments].into_iter().chain(data[ids.len()..].iter().copied()));
        Ok(vec![sized(c.dtype(0), shape)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let ids = *c.inputs.get(1)?;
        let graph = c.node.graph();
        let zeros = build("ZerosLike", "zeros_like", &[ids]);
        let clipped = build("Maximum", "", &[ids, zeros]);
        let gathered = c.grad().gather(clipped, 0);
        let positive = build("GreaterEqual", "", &[ids, zeros]);
        // The mask gets as many trailing axes of size one as a row has.
        let trailing = c.inputs[0].rank()?.checked_sub(ids.rank()?)?;
        let positive = (0..trailing.min(MAX_OUTPUTS as usize)).fold(positive, |mask, _| {
            scoped(graph, "ExpandDims", |name| {
                let axis = graph.constant_named("dim", -1i32);
                node(graph, "ExpandDims").name(name).inputs([mask, axis]).tensor()
            })
        });
        let nothing = build("ZerosLike", "zeros_like_1", &[gathered]);
        Some(vec![Some(build("SelectV2", "", &[positive, gathered, nothing]).into()), None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![2]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn sum<T: Number>(segments: usize, count: usize, width: usize) -> CpuKernel {
            Box::new(move |l| {
                let id = index_at(l, 1);
                if let Some(i) = (0..count).find(|&i| usize::try_from(id(i)).is_ok_and(|s| s >= segments)) {
                    return Err(bad_segment(i as i64, id(i), segments));
                }
                let (data, out) = (l.input::<T>(0), l.output::<T>(0));
                out.fill(T::default());
                for (i, row) in data.chunks_exact(width.max(1)).enumerate().take(count) {
                    let Ok(segment) = usize::try_from(id(i)) else { continue };
                    let sums = &mut out[segment * width..][..width];
                    sums.iter_mut().zip(row).for_each(|(s, &v)| *s = s.plus(v));
                }
                Ok(())
            })
        }
        let segments = *c.outputs[0].dims.first().ok_or("the output is a scalar")?;
        let width = c.outputs[0].dims[1..].iter().product();
        let count = c.inputs[1].len();
        Ok(match c.inputs[0].dtype {
            DType::F32 => sum::<f32>(segments, count, width),
            DType::F64 => sum::<f64>(segments, count, width),
            DType::I32 => sum::<i32>(segments, count, width),
            DType::I64 => sum::<i64>(segments, count, width),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let segments = *c.outputs[0].dims.first().ok_or("the output is a scalar")?;
        let (dtype, width) = (c.outputs[0].dtype, c.outputs[0].dims[1..].iter().product());
        let ids = indices_of(c, segments, true);
        let bytes = c.outputs[0].bytes();
        let mut launches = Vec::new();
        if bytes > 0 {
            launches.push(CudaLaunch::Zero { to: CudaBuffer::Output(0, 0), bytes });
        }
        if ids.count == 0 {
            return Ok(CudaKernel::new(launches));
        }
        let sorted = ids.sort(0, true);
        launches.extend(sorted.launches.iter().cloned());
        if bytes > 0 {
            let (y, x) = (CudaArg::output(0), CudaArg::input(0));
            launches.push(ids.scatter("turret_plus(old, x)", dtype, width, y, x, &sorted));
        }
        let failure: FailureText = Arc::new(move |entry, id| bad_segment(entry, id, segments));
        let scratch_bytes = sorted.scratch_end;
        Ok(CudaKernel { scratch_bytes, failure: Some(failure), ..CudaKernel::new(launches) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
        outputs.iter().all(|o| o.dtype != DType::Bool)
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let data = Array::new(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).ok()?;
            let inputs = vec![data, int_array(&[1, -1, 1]), Array::scalar(2i32)];
            let outputs = vec![Array::new(&[2, 2], &[0.0f32, 0.0, 6.0, 8.0]).ok()?];
            Some(Case { attrs: Attrs::new(), inputs, outputs, gradient: true })
        };
        build().into_iter().collect()
    }
}
