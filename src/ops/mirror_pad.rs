//! Rims that mirror what they are around: `MirrorPad`, and `MirrorPadGrad`, which adds a rim back.
//!
//! Along each axis there are at most three pieces: the rim before, the tensor, the rim after. A kernel copies (or adds)
//! the boxes that these make, one after another, so that sums have a fixed order.

use super::copy::{Axis, Copy, Move, move_kernel};
use super::cuda_copy;
use super::number::Number;
use super::pad::{grown, padded_shape, paddings, paddings_of};
use super::support::{no_arithmetic, scoped, sized, strides_of};
use super::values::{array, case_with, float};
use crate::base::DType;
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `MirrorPad`: inputs the tensor and `[rank, 2]` widths. Attribute `mode`: `REFLECT` leaves the edge out of
/// the mirrored rim, `SYMMETRIC` repeats it.
pub struct MirrorPad;

/// TensorFlow's `MirrorPadGrad`: inputs a tensor with a rim and the widths; the rim is added to what it mirrors.
pub struct MirrorPadGrad;

/// The most axes with a rim, as in TensorFlow.
const MOST_AXES: usize = 5;

/// How many elements at the edge are not repeated.
fn left_out(attrs: &Attrs) -> Result<usize, String> {
    match attrs.str("mode") {
        Some("REFLECT") => Ok(1),
        Some("SYMMETRIC") => Ok(0),
        Some(mode) => Err(format!("attribute 'mode' must be REFLECT or SYMMETRIC, got '{mode}'")),
        None => Err("attribute 'mode' is missing; want REFLECT or SYMMETRIC".into()),
    }
}

fn check_width(dim: usize, before: usize, after: usize, left_out: usize) -> Result<(), String> {
    let most = dim.saturating_sub(left_out);
    if before.max(after) <= most {
        return Ok(());
    }
    Err(format!("mirror more than there is: at most {most} of {dim} elements"))
}

/// A stretch of one axis: where it starts and its direction without the rim, where it starts with it, and its length.
#[derive(Clone, Copy)]
struct Piece {
    inner: isize,
    step: isize,
    outer: isize,
    len: usize,
}

fn pieces(dim: usize, (before, after): (usize, usize), left_out: usize) -> SmallVec<[Piece; 3]> {
    let (own, left) = (dim as isize, left_out as isize);
    let all = [
        Piece { inner: 0, step: 1, outer: before as isize, len: dim },
        Piece { inner: before as isize - 1 + left, step: -1, outer: 0, len: before },
        Piece { inner: own - 1 - left, step: -1, outer: before as isize + own, len: after },
    ];
    all.into_iter().filter(|p| p.len > 0).collect()
}

/// The boxes between a tensor of these sizes and one with a rim: without any rim first. `adds` says that they go from the
/// larger to the smaller.
fn boxes(dims: &[usize], pads: &[(usize, usize)], left_out: usize, adds: bool) -> Result<Vec<Move>, String> {
    if pads.iter().filter(|p| p.0 + p.1 > 0).count() > MOST_AXES {
        return Err(format!("at most {MOST_AXES} axes can have a mirrored rim"));
    }
    let around: Vec<usize> = dims.iter().zip(pads).map(|(d, p)| d + p.0 + p.1).collect();
    let (inner, outer) = (strides_of(dims), strides_of(&around));
    let by_axis: Vec<_> = dims.iter().zip(pads).map(|(&d, &p)| pieces(d, p, left_out)).collect();
    let count: usize = by_axis.iter().map(|p| p.len()).product();
    let one = |number: usize| {
        let mut rest = number;
        let mut chosen: SmallVec<[Piece; 6]> = SmallVec::new();
        for pieces in by_axis.iter().rev() {
            chosen.push(pieces[rest % pieces.len()]);
            rest /= pieces.len();
        }
        chosen.reverse();
        let sizes: SmallVec<[usize; 6]> = chosen.iter().map(|p| p.len).collect();
        let start =
            |strides: &[isize], at: fn(&Piece) -> isize| chosen.iter().zip(strides).map(|(p, s)| at(p) * s).sum();
        let inner_at: isize = start(&inner, |p| p.inner);
        let outer_at: isize = start(&outer, |p| p.outer);
        let steps: SmallVec<[isize; 6]> = chosen.iter().zip(&inner).map(|(p, s)| p.step * s).collect();
        let copy = match adds {
            false => Copy::new(&sizes, inner_at, &steps, outer_at, &outer),
            true => Copy::new(&sizes, outer_at, &outer, inner_at, &steps),
        };
        Move { input: 0, output: 0, copy }
    };
    Ok((0..count).map(one).collect())
}

/// Sizes without the rim, the rim, and what the mirror leaves out.
type Rim = (Vec<usize>, Vec<(usize, usize)>, usize);

/// The rim of a kernel whose input or output of these sizes has none.
fn rim(c: &KernelContext<'_>, dims: &[usize]) -> Result<Rim, String> {
    let pads = paddings(&c.ints(1).ok_or("the paddings are not known")?, dims.len())?;
    let left_out = left_out(c.attrs)?;
    dims.iter().zip(&pads).try_for_each(|(&d, &(b, a))| check_width(d, b, a, left_out))?;
    Ok((dims.to_vec(), pads, left_out))
}

impl Op for MirrorPad {
    fn name(&self) -> &'static str {
        "MirrorPad"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let left_out = left_out(c.attrs)?;
        let shape = padded_shape(c, |dim, before, after| {
            check_width(dim, before, after, left_out)?;
            grown(dim, before, after)
        })?;
        Ok(vec![sized(c.dtype(0), shape)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        mirrored(c, &MirrorPadGrad)
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (dims, pads, left_out) = rim(c, &c.inputs[0].dims)?;
        Ok(move_kernel(c.inputs[0].dtype, boxes(&dims, &pads, left_out, false)?))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (dims, pads, left_out) = rim(c, &c.inputs[0].dims)?;
        Ok(cuda_copy::moves(c.inputs[0].dtype, &boxes(&dims, &pads, left_out, false)?))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = float(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let reflect = || Attrs::new().with("mode", "REFLECT");
        let symmetric = || Attrs::new().with("mode", "SYMMETRIC");
        let row = [3.0, 2.0, 1.0, 2.0, 3.0, 2.0];
        let other = [6.0, 5.0, 4.0, 5.0, 6.0, 5.0];
        vec![
            case_with(
                reflect(),
                vec![x.clone(), array(&[2, 2], &[1i32, 0, 2, 1])],
                vec![float(&[3, 6], &[other, row, other].concat())],
                true,
            ),
            case_with(
                symmetric(),
                vec![x.clone(), array(&[2, 2], &[0i64, 2, 0, 1])],
                vec![float(&[4, 4], &[1.0, 2.0, 3.0, 3.0, 4.0, 5.0, 6.0, 6.0, 4.0, 5.0, 6.0, 6.0, 1.0, 2.0, 3.0, 3.0])],
                true,
            ),
            case_with(symmetric(), vec![x.clone(), array(&[2, 2], &[0i32; 4])], vec![x], false),
            case_with(
                symmetric(),
                vec![float(&[0, 2], &[]), array(&[2, 2], &[0i32, 0, 1, 0])],
                vec![float(&[0, 3], &[])],
                false,
            ),
        ]
    }
}

impl Op for MirrorPadGrad {
    fn name(&self) -> &'static str {
        "MirrorPadGrad"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if !c.dtype(0).is_number() {
            return Err(no_arithmetic(c.dtype(0)));
        }
        let left_out = left_out(c.attrs)?;
        let shape = padded_shape(c, |dim, before, after| {
            let own = before.checked_add(after).and_then(|rim| dim.checked_sub(rim));
            let own = own.ok_or_else(|| format!("are wider than the {dim} elements"))?;
            check_width(own, before, after, left_out)?;
            Ok(own)
        })?;
        Ok(vec![sized(c.dtype(0), shape)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        mirrored(c, &MirrorPad)
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (dims, pads, left_out) = rim(c, &c.outputs[0].dims)?;
        let boxes = boxes(&dims, &pads, left_out, true)?;
        Ok(match c.inputs[0].dtype {
            DType::F32 => adding::<f32>(boxes),
            DType::F64 => adding::<f64>(boxes),
            DType::I32 => adding::<i32>(boxes),
            DType::I64 => adding::<i64>(boxes),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (dims, pads, left_out) = rim(c, &c.outputs[0].dims)?;
        let boxes = boxes(&dims, &pads, left_out, true)?;
        let mut kernel = cuda_copy::moves(c.inputs[0].dtype, &boxes[..boxes.len().min(1)]);
        kernel.launches.extend(boxes.iter().skip(1).filter_map(|b| cuda_copy::adding(c.inputs[0].dtype, b)));
        Ok(kernel)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
        outputs.iter().all(|o| o.dtype.is_number())
    }

    fn cases(&self) -> Vec<Case> {
        let line: Vec<f32> = (0..8).map(|i| i as f32).collect();
        let reflect = || Attrs::new().with("mode", "REFLECT");
        let symmetric = || Attrs::new().with("mode", "SYMMETRIC");
        let square: Vec<f32> = (0..16).map(|i| i as f32).collect();
        vec![
            case_with(
                reflect(),
                vec![float(&[7], &line[..7]), array(&[1, 2], &[2i32, 2])],
                vec![float(&[3], &[8.0, 9.0, 4.0])],
                true,
            ),
            case_with(
                symmetric(),
                vec![float(&[8], &line), array(&[1, 2], &[3i32, 2])],
                vec![float(&[3], &[5.0, 12.0, 11.0])],
                true,
            ),
            case_with(
                symmetric(),
                vec![float(&[4, 4], &square), array(&[2, 2], &[1i32, 1, 1, 1])],
                vec![float(&[2, 2], &[10.0, 18.0, 42.0, 50.0])],
                true,
            ),
        ]
    }
}

/// The gradient of either op is the other.
fn mirrored<'g>(c: &GradContext<'g>, other: &'static dyn Op) -> Option<InputGradients<'g>> {
    let mode = c.node.node()?.attrs.get("mode")?.clone();
    let node = c.node.graph().node_of(other).inputs([c.grad(), c.inputs[1]]).attr("mode", mode);
    Some(vec![Some(node.tensor().into()), None])
}

/// Copies the first box, which is the whole output, and adds the others.
fn adding<T: Number>(boxes: Vec<Move>) -> CpuKernel {
    Box::new(move |l| {
        let (x, out) = (l.input::<T>(0), l.output::<T>(0));
        for (number, m) in boxes.iter().enumerate() {
            add(&m.copy.axes, (m.copy.from, m.copy.to), &mut |from, to| {
                let (value, sum) = (x[from as usize], &mut out[to as usize]);
                *sum = if number == 0 { value } else { sum.plus(value) };
            });
        }
        Ok(())
    })
}

/// Calls for the places of each element of a box.
fn add(axes: &[Axis], (from, to): (isize, isize), each: &mut impl FnMut(isize, isize)) {
    match axes {
        [] => each(from, to),
        [axis, inner @ ..] => {
            (0..axis.size as isize).for_each(|i| add(inner, (from + i * axis.from, to + i * axis.to), each));
        }
    }
}

impl<'g> Tensor<'g> {
    /// A mirrored rim, `(before, after)` by axis; where `symmetric`, the edge is repeated. Named `MirrorPad`.
    #[track_caller]
    pub fn mirror_pad(self, paddings: &[(usize, usize)], symmetric: bool) -> Tensor<'g> {
        let g = self.graph();
        scoped(g, "MirrorPad", |name| {
            let pads = paddings_of(self, paddings);
            let mode = if symmetric { "SYMMETRIC" } else { "REFLECT" };
            g.node_of(&MirrorPad).name(name).inputs([self, pads]).attr("mode", mode).tensor()
        })
    }
}
