//! Rims around a tensor: `Pad` of zeros, `PadV2` of a value.
//!
//! Absent: rims that mirror what they are around (`mirror_pad.rs`).

use super::copy::{Copy, Move, move_kernel, zero_and_move_kernel};
use super::cuda_copy;
use super::elementwise::fill;
use super::support::{build, by_dtype, int_array, node, rank_of, scoped, shape_of, sized, sizes_from, strides_of};
use super::values::{array, case, float};
use crate::base::{Array, DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaBuffer, CudaKernel, CudaLaunch, CudaMap, MapStep, Operand};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor};
use smallvec::{SmallVec, smallvec};

/// A rim: input 1 is `[rank, 2]`, its width before and after by axis.
pub struct PadOp {
    name: &'static str,
    /// Whether input 2 is the rim's value; else it is 0.
    with_value: bool,
}

/// TensorFlow's `Pad`: zeros around a tensor.
pub static PAD: PadOp = PadOp { name: "Pad", with_value: false };
/// TensorFlow's `PadV2`: input 2 around a tensor.
pub static PAD_V2: PadOp = PadOp { name: "PadV2", with_value: true };

/// The paddings of an input of this rank: before and after, by axis.
pub(super) fn paddings(values: &[i64], rank: usize) -> Result<Vec<(usize, usize)>, String> {
    if values.len() != rank.saturating_mul(2) {
        return Err(format!("want paddings [{rank}, 2], got {} numbers", values.len()));
    }
    let flat = sizes_from(values, "paddings")?;
    Ok(flat.chunks_exact(2).map(|p| (p[0], p[1])).collect())
}

/// The shape rule of rims: checks the paddings, input 1, and gives each axis the size that `resized` makes of its own and
/// the rim's before and after.
pub(super) fn padded_shape(
    c: &InferContext<'_>,
    resized: impl Fn(usize, usize, usize) -> Result<usize, String>,
) -> Result<Shape, String> {
    let of_pairs = Shape::partial([c.shape(0).rank(), Some(2)]);
    if !c.dtype(1).is_integer() || !c.shape(1).is_compatible_with(&of_pairs) {
        return Err(format!("paddings must be int32 or int64 {of_pairs}, got {} {}", c.dtype(1), c.shape(1)));
    }
    let Some(rank) = c.shape(0).rank().or(c.shape(1).dim(0)) else { return Ok(Shape::unknown()) };
    let Some(values) = c.ints(1) else { return Ok(Shape::of_rank(rank)) };
    let size = |(axis, (before, after)): (usize, (usize, usize))| {
        let resized = c.shape(0).dim(axis).map(|dim| resized(dim, before, after)).transpose();
        resized.map_err(|why| format!("the paddings {before} and {after} of axis {axis} {why}"))
    };
    Ok(Shape::partial(paddings(&values, rank)?.into_iter().enumerate().map(size).collect::<Result<Vec<_>, _>>()?))
}

/// A size with a rim.
pub(super) fn grown(dim: usize, before: usize, after: usize) -> Result<usize, String> {
    dim.checked_add(before).and_then(|d| d.checked_add(after)).ok_or_else(|| "are too large".into())
}

fn padded(c: &KernelContext<'_>) -> Result<Vec<Move>, String> {
    let dims = &c.inputs[0].dims;
    let pads = paddings(&c.ints(1).ok_or("the paddings are not known")?, dims.len())?;
    let to = strides_of(&c.outputs[0].dims);
    let start = pads.iter().zip(&to).map(|((before, _), s)| *before as isize * s).sum();
    let copy = Copy::new(dims, 0, &strides_of(dims), start, &to);
    Ok(vec![Move { input: 0, output: 0, copy }])
}

impl Op for PadOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(if self.with_value { 3 } else { 2 })?;
        if self.with_value && (c.dtype(2) != c.dtype(0) || !c.shape(2).is_compatible_with(&Shape::scalar())) {
            return Err(format!("the rim's value must be a {} scalar, got {} {}", c.dtype(0), c.dtype(2), c.shape(2)));
        }
        Ok(vec![sized(c.dtype(0), padded_shape(c, grown)?)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (&x, &pads) = (c.inputs.first()?, c.inputs.get(1)?);
        let g = c.node.graph();
        let rank = rank_of(x);
        let column = scoped(g, "stack", |name| {
            node(g, "Pack").name(name).inputs([rank, g.constant_named("1", 1i32)]).attr("axis", 0i64).tensor()
        });
        let before = scoped(g, "Slice", |name| {
            let begin = g.constant_named("begin", int_array(&[0, 0]));
            node(g, "Slice").name(name).inputs([pads, begin, column]).tensor()
        });
        let begin = scoped(g, "Reshape", |name| {
            let flat = g.constant_named("shape", int_array(&[-1]));
            node(g, "Reshape").name(name).inputs([before, flat]).tensor()
        });
        let sizes = shape_of(x, if pads.dtype() == DType::I64 { DType::I64 } else { DType::I32 });
        let mut gradients = vec![Some(build("Slice", "", &[c.grad(), begin, sizes]).into())];
        gradients.resize(c.inputs.len(), None);
        Some(gradients)
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (dtype, moves) = (c.inputs[0].dtype, padded(c)?);
        if !self.with_value {
            return Ok(zero_and_move_kernel(dtype, moves));
        }
        let inside = move_kernel(dtype, moves);
        Ok(by_dtype!(dtype, T => Box::new(move |l| {
            let (start, len) = l.output_ptr::<T>(0);
            // SAFETY: the output, which is no input's buffer, and which the move takes by its pointer afterwards.
            let out = unsafe { std::slice::from_raw_parts_mut(start, len) };
            fill(l.team(), out, l.first::<T>(2));
            inside(l)
        })))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (dtype, moves) = (c.inputs[0].dtype, padded(c)?);
        if !self.with_value {
            return Ok(cuda_copy::zero_and_moves(dtype, c.outputs[0].bytes(), &moves));
        }
        let dtype = cuda_copy::moved(dtype);
        let step = MapStep { map: CudaMap::new("$0"), dtype, operands: vec![Operand::Input(0)] };
        let value = [(CudaBuffer::Input(2, 0), dtype, smallvec![])];
        let rim = CudaLaunch::map(&[step], &value, CudaBuffer::Output(0, 0), &c.outputs[0].dims)?;
        let inside = cuda_copy::moves(dtype, &moves);
        Ok(CudaKernel::new(rim.into_iter().chain(inside.launches)))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let pads = array(&[2, 2], &[1i32, 0, 0, 1]);
        let rim = if self.with_value { 7.5 } else { 0.0 };
        let with = |inputs: Vec<Array>, rim: Array| inputs.into_iter().chain(self.with_value.then_some(rim)).collect();
        vec![
            case(
                with(vec![float(&[1, 2], &[1.0, 2.0]), pads], float(&[], &[rim])),
                vec![float(&[2, 3], &[rim, rim, rim, 1.0, 2.0, rim])],
                true,
            ),
            case(
                with(vec![float(&[0], &[]), array(&[1, 2], &[1i64, 1])], float(&[], &[rim])),
                vec![float(&[2], &[rim; 2])],
                false,
            ),
            case(
                with(vec![array(&[2], &[3i64, 4]), array(&[1, 2], &[0i32, 2])], Array::scalar(rim as i64)),
                vec![array(&[4], &[3, 4, rim as i64, rim as i64])],
                false,
            ),
        ]
    }
}

impl<'g> Tensor<'g> {
    /// Zeros around this: `(before, after)` by axis. Named `Pad`.
    #[track_caller]
    pub fn pad(self, paddings: &[(usize, usize)]) -> Tensor<'g> {
        let g = self.graph();
        scoped(g, "Pad", |name| {
            let pads = paddings_of(self, paddings);
            g.node_of(&PAD).name(name).inputs([self, pads]).tensor()
        })
    }

    /// A value around this: `(before, after)` by axis. Named `PadV2`.
    #[track_caller]
    pub fn pad_with(self, paddings: &[(usize, usize)], value: f64) -> Tensor<'g> {
        let g = self.graph();
        scoped(g, "PadV2", |name| {
            let pads = paddings_of(self, paddings);
            g.node_of(&PAD_V2).name(name).inputs([self, pads, self.scalar_like("constant_values", value)]).tensor()
        })
    }
}

/// The constant `paddings`.
pub(super) fn paddings_of<'g>(x: Tensor<'g>, paddings: &[(usize, usize)]) -> Tensor<'g> {
    let both = paddings.iter().flat_map(|&(before, after)| [before, after]);
    let wide: Vec<i64> = both.map(|n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
    let narrow: Option<Vec<i32>> = wide.iter().map(|&n| i32::try_from(n).ok()).collect();
    let dims = [paddings.len(), 2];
    let pads = narrow.map_or_else(|| Array::new(&dims, &wide), |narrow| Array::new(&dims, &narrow));
    pads.map_or_else(|_| x.graph().poison_tensor(), |pads| x.graph().constant_named("paddings", pads))
}
