//! `BiasAdd` and `BiasAddGrad`: a vector along the channels.

use super::cuda_reduce;
use super::number::Number;
use super::support::{GRAIN, by_rows, no_arithmetic};
use super::window::DataFormat;
use crate::base::{Array, DType, Dims, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaKernel, CudaMap, MapStep, Operand, map_kernel};
use crate::graph::{
    Attrs, Case, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Reduction, Tensor, Traits,
};
use std::sync::Mutex;

/// TensorFlow's `BiasAdd`: adds `bias` along the last axis, or with `data_format` `NCHW` along axis 1.
pub struct BiasAdd;

/// TensorFlow's `BiasAddGrad`: sums over all axes but that of the channels.
pub struct BiasAddGrad;

/// The axis of the channels.
fn channels(attrs: &Attrs, rank: usize) -> Result<usize, String> {
    let nchw = match attrs.str("data_format") {
        None | Some("NHWC") => false,
        Some("NCHW") => true,
        Some(other) => return Err(format!("attribute 'data_format' must be NHWC or NCHW, got '{other}'")),
    };
    match rank {
        0 | 1 => Err(format!("the value must have rank 2 or more, got rank {rank}")),
        _ => Ok(if nchw { 1 } else { rank - 1 }),
    }
}

/// Elements outside of the channel axis, channels, elements inside.
fn layout(attrs: &Attrs, dims: &[usize]) -> Result<(usize, usize, usize), String> {
    Ok(super::support::around(dims, channels(attrs, dims.len())?))
}

impl Op for BiasAdd {
    fn name(&self) -> &'static str {
        "BiasAdd"
    }

    fn traits(&self) -> Traits {
        Traits { in_place: &[0], ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if c.same_dtype()? == DType::Bool {
            return Err("bools have no sums; cast them".into());
        }
        if c.shape(1).rank().is_some_and(|r| r != 1) {
            return Err(format!("the bias must be a vector, got shape {}", c.shape(1)));
        }
        let Some(dims) = c.shape(0).dims() else { return Ok(vec![c.inputs[0].clone()]) };
        let axis = channels(c.attrs, dims.len())?;
        let bias = c.shape(1).dim(0);
        if let (Some(want), Some(got)) = (dims[axis], bias)
            && want != got
        {
            return Err(format!("the bias must have one entry a channel (axis {axis}): want {want}, got {got}"));
        }
        let shape = super::support::with_dim(dims, axis, dims[axis].or(bias));
        Ok(vec![Fact::new(c.dtype(0), shape)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let format = c.node.node().and_then(|n| n.attrs.str("data_format").map(String::from));
        let format = format.unwrap_or_else(|| "NHWC".into());
        let sum = c.node.graph().node_of(&BiasAddGrad).input(c.grad()).attr("data_format", format).tensor();
        Some(vec![Some(c.grad().into()), Some(sum.into())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn kernel<T: Number>(channels: usize, inner: usize) -> CpuKernel {
            struct From<T>(*const T);
            // SAFETY: only read, each element before its place is written.
            unsafe impl<T> Sync for From<T> {}
            let arch = pulp::Arch::new();
            Box::new(move |l| {
                let bias = l.input::<T>(1);
                let value = From(l.input_ptr::<T>(0).0);
                let value = &value;
                let row = if inner == 1 { channels } else { inner };
                by_rows(l.team(), l.output::<T>(0), row, |first, rows| {
                    arch.dispatch(|| {
                        for (i, y) in rows.chunks_exact_mut(row).enumerate() {
                            // SAFETY: the value has the output's size.
                            let x = unsafe { value.0.add((first + i) * row) };
                            let line = (channels, inner, first + i);
                            let apart = !std::ptr::eq(x, y.as_ptr());
                            // SAFETY: different buffers do not overlap.
                            let x = apart.then(|| unsafe { std::slice::from_raw_parts(x, row) });
                            add_bias(y, x, bias, line);
                        }
                    });
                });
                Ok(())
            })
        }
        let (_, channels, inner) = layout(c.attrs, &c.inputs[0].dims)?;
        Ok(match c.inputs[0].dtype {
            DType::F32 => kernel::<f32>(channels, inner),
            DType::F64 => kernel::<f64>(channels, inner),
            DType::I32 => kernel::<i32>(channels, inner),
            DType::I64 => kernel::<i64>(channels, inner),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        // Channels that are not last are no broadcasting of NumPy's.
        let last = channels(c.attrs, c.inputs[0].dims.len()).is_ok_and(|axis| axis + 1 == c.inputs[0].dims.len());
        last.then(|| CudaMap::new(CudaMap::SUM))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (dtype, dims) = (c.outputs[0].dtype, &c.outputs[0].dims);
        let after = dims.len() - 1 - channels(c.attrs, dims.len())?;
        let bias: Dims = c.inputs[1].dims.iter().copied().chain(std::iter::repeat_n(1, after)).collect();
        let step =
            MapStep { map: CudaMap::new(CudaMap::SUM), dtype, operands: vec![Operand::Input(0), Operand::Input(1)] };
        map_kernel(&[step], &[(dtype, dims.clone()), (dtype, bias)], dims)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Vec<Case>> {
            let x = Array::new(&[1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]).ok()?;
            let b = Array::new(&[2], &[10.0f32, 20.0]).ok()?;
            let case = |format: &str, values: [f32; 4]| {
                let attrs = Attrs::new().with("data_format", format);
                let outputs = vec![Array::new(&[1, 2, 2], &values).ok()?];
                Some(Case { attrs, inputs: vec![x.clone(), b.clone()], outputs, gradient: true })
            };
            Some(vec![case("NHWC", [11.0, 22.0, 13.0, 24.0])?, case("NCHW", [11.0, 12.0, 23.0, 24.0])?])
        };
        build().unwrap_or_default()
    }
}

impl Op for BiasAddGrad {
    fn name(&self) -> &'static str {
        "BiasAddGrad"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        if !c.dtype(0).is_floating() {
            return Err(format!("the gradient must be float32 or float64, got {}", c.dtype(0)));
        }
        let size = match c.shape(0).dims() {
            Some(dims) => dims[channels(c.attrs, dims.len())?],
            None => None,
        };
        Ok(vec![Fact::new(c.dtype(0), Shape::partial([size]))])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        // The second derivative: each channel's gradient goes to all its elements.
        let graph: &'g Graph = c.node.graph();
        let zeros = super::support::build("ZerosLike", "zeros_like", &[c.inputs[0]]);
        let node = graph.node_of(&BiasAdd).inputs([zeros, c.grad()]);
        let format = c.node.node().and_then(|n| n.attrs.str("data_format").map(String::from));
        Some(vec![Some(node.attr("data_format", format.unwrap_or_else(|| "NHWC".into())).tensor().into())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let layout = layout(c.attrs, &c.inputs[0].dims)?;
        Ok(match c.inputs[0].dtype {
            DType::F64 => sums::<f64>(layout),
            _ => sums::<f32>(layout),
        })
    }

    fn reduction(&self, c: &KernelContext<'_>) -> Option<Reduction> {
        let rank = c.inputs[0].dims.len();
        let channels = channels(c.attrs, rank).ok()?;
        let axes = (0..rank).map(|axis| axis != channels).collect();
        let (piece, merge) = super::reduce::SUM.pieces;
        (!c.inputs[0].is_empty()).then_some(Reduction { axes, whole: piece, piece, merge })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (outer, channels, inner) = layout(c.attrs, &c.inputs[0].dims)?;
        Ok(cuda_reduce::reduce(c.inputs[0].dtype, &[outer, channels, inner], &[true, false, true], cuda_reduce::SUM))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).ok()?;
            let outputs = vec![Array::new(&[2], &[4.0f32, 6.0]).ok()?];
            Some(Case { attrs: Attrs::new(), inputs: vec![x], outputs, gradient: true })
        };
        build().into_iter().collect()
    }
}

/// Writes a row of values, or of what is there, and their bias: a pixel's channels, or a channel's places.
#[inline(always)]
fn add_bias<T: Number>(y: &mut [T], x: Option<&[T]>, bias: &[T], (channels, inner, row): (usize, usize, usize)) {
    match (x, inner) {
        (None, 1) => y.iter_mut().zip(bias).for_each(|(y, &b)| *y = y.plus(b)),
        (Some(x), 1) => y.iter_mut().zip(x).zip(bias).for_each(|((y, &x), &b)| *y = x.plus(b)),
        (x, _) => {
            let b = bias[row % channels];
            match x {
                None => y.iter_mut().for_each(|y| *y = y.plus(b)),
                Some(x) => y.iter_mut().zip(x).for_each(|(y, &x)| *y = x.plus(b)),
            }
        }
    }
}

/// Sums blocks of rows apart, and then the blocks, in an order that does not depend on the threads.
fn sums<T: Number>((outer, channels, inner): (usize, usize, usize)) -> CpuKernel {
    let per_block = (GRAIN / (channels * inner).max(1)).max(outer.div_ceil(64)).max(1);
    let blocks = outer.div_ceil(per_block);
    let scratch = Mutex::new(vec![T::default(); blocks * channels]);
    let arch = pulp::Arch::new();
    Box::new(move |l| {
        // Every launch overwrites all of it, so a poisoned lock does not matter.
        let mut scratch = scratch.lock().unwrap_or_else(|e| e.into_inner());
        let x = l.input::<T>(0);
        by_rows_of_blocks(l, &mut scratch, channels, |block, sums| {
            sums.fill(T::default());
            let rows = block * per_block..outer.min((block + 1) * per_block);
            arch.dispatch(|| {
                let mut rows = rows;
                // Four rows are added first, so that sums are read and written less often.
                while inner == 1 && rows.len() >= 4 {
                    let at = |row: usize| &x[(rows.start + row) * channels..][..channels];
                    let pairs = at(0).iter().zip(at(1)).zip(at(2).iter().zip(at(3)));
                    for (s, ((&a, &b), (&c, &d))) in sums.iter_mut().zip(pairs) {
                        *s = s.plus(a.plus(b).plus(c.plus(d)));
                    }
                    rows.start += 4;
                }
                for row in rows {
                    let x = &x[row * channels * inner..][..channels * inner];
                    if inner == 1 {
                        sums.iter_mut().zip(x).for_each(|(s, &v)| *s = s.plus(v));
                    } else {
                        let channel =
                            x.chunks_exact(inner.max(1)).map(|x| x.iter().fold(T::default(), |s, &v| s.plus(v)));
                        sums.iter_mut().zip(channel).for_each(|(s, v)| *s = s.plus(v));
                    }
                }
            });
        });
        let out = l.output::<T>(0);
        out.fill(T::default());
        for block in scratch.chunks_exact(channels.max(1)) {
            out.iter_mut().zip(block).for_each(|(s, &v)| *s = s.plus(v));
        }
        Ok(())
    })
}

/// One job a block, whatever its size.
fn by_rows_of_blocks<T: Number>(
    l: &crate::device::Launch<'_>,
    scratch: &mut [T],
    width: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    struct Blocks<T>(*mut T);
    // SAFETY: each block is one job's alone.
    unsafe impl<T> Sync for Blocks<T> {}
    if width == 0 {
        return;
    }
    let (count, start) = (scratch.len() / width, Blocks(scratch.as_mut_ptr()));
    let start = &start;
    l.team().run(count, |block| {
        // SAFETY: inside of the scratch, and this job's alone.
        f(block, unsafe { std::slice::from_raw_parts_mut(start.0.add(block * width), width) });
    });
}

impl<'g> Tensor<'g> {
    /// Adds a vector along the last axis. Named `BiasAdd`.
    #[track_caller]
    pub fn bias_add(self, bias: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.bias_add_with(bias, DataFormat::Nhwc)
    }

    /// Adds a vector along the channels: the last axis, or with `Nchw` axis 1. Named `BiasAdd`.
    #[track_caller]
    pub fn bias_add_with(self, bias: impl Into<Tensor<'g>>, format: DataFormat) -> Tensor<'g> {
        self.graph().node_of(&BiasAdd).inputs([self, bias.into()]).attr("data_format", format.name()).tensor()
    }
}
