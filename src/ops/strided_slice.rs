//! `StridedSlice`, what Python's `x[…]` builds, and `StridedSliceGrad`.

use super::copy::{Copy, Move, move_kernel, zero_and_move_kernel};
use super::cuda_copy;
use super::strided::{MASKS, Masks, Selection, known, selection};
use super::support::{int_array, int_vector, node, scoped, shape_of, strides_of};
use crate::base::{Array, DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{
    Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, NodeBuilder, Op, Tensor,
};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `StridedSlice`: inputs the tensor, begin, end, strides; the five masks are attributes.
pub struct StridedSlice;

/// TensorFlow's `StridedSliceGrad`: inputs the shape of the sliced tensor, begin, end, strides, and the gradient.
pub struct StridedSliceGrad;

fn ends(c: &InferContext<'_>) -> Result<[Option<Vec<i64>>; 3], String> {
    Ok([int_vector(c, 1, "begin")?, int_vector(c, 2, "end")?, int_vector(c, 3, "strides")?])
}

fn planned(c: &KernelContext<'_>, dims: &[usize]) -> Result<Selection, String> {
    let dims: Vec<Option<usize>> = dims.iter().map(|&d| Some(d)).collect();
    selection(&dims, [c.ints(1), c.ints(2), c.ints(3)], c.attrs)?.ok_or_else(|| "the ends are not known".into())
}

/// The sizes that are selected, where they start in the tensor, and their strides there.
type Layout = (SmallVec<[usize; 6]>, isize, SmallVec<[isize; 6]>);

fn layout(selection: &Selection, dims: &[usize]) -> Layout {
    let whole = strides_of(dims);
    let sizes = selection.axes.iter().map(|a| a.size.unwrap_or(0)).collect();
    let start = selection.axes.iter().zip(&whole).map(|(a, s)| (a.begin as isize).wrapping_mul(*s)).sum();
    let strides = selection.axes.iter().zip(&whole).map(|(a, s)| (a.stride as isize).wrapping_mul(*s)).collect();
    (sizes, start, strides)
}

fn selected(c: &KernelContext<'_>) -> Result<Vec<Move>, String> {
    let dims = &c.inputs[0].dims;
    let (sizes, start, strides) = layout(&planned(c, dims)?, dims);
    let copy = Copy::new(&sizes, start, &strides, 0, &strides_of(&sizes));
    Ok(vec![Move { input: 0, output: 0, copy }])
}

/// The gradient's elements at their places in the tensor that was sliced.
fn put_back(c: &KernelContext<'_>) -> Result<Vec<Move>, String> {
    let dims = &c.outputs[0].dims;
    let (sizes, start, strides) = layout(&planned(c, dims)?, dims);
    let copy = Copy::new(&sizes, 0, &strides_of(&sizes), start, &strides);
    Ok(vec![Move { input: 4, output: 0, copy }])
}

fn with_masks<'g>(node: NodeBuilder<'g>, values: [i64; 5]) -> NodeBuilder<'g> {
    MASKS.into_iter().zip(values).fold(node, |node, (name, value)| node.attr(name, value))
}

impl Op for StridedSlice {
    fn name(&self) -> &'static str {
        "StridedSlice"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(4)?;
        let ends = ends(c)?;
        let shape = match c.shape(0).dims() {
            Some(dims) => selection(dims, ends, c.attrs)?.map(|s| s.shape),
            None => None,
        };
        Ok(vec![Fact::new(c.dtype(0), shape.unwrap_or_default())])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let &[x, begin, end, strides] = &c.inputs[..] else { return None };
        let masks = c.node.node().map(|n| Masks::of(&n.attrs)).unwrap_or_default();
        let inputs = [shape_of(x, begin.dtype()), begin, end, strides, c.grad()];
        let grad = with_masks(c.node.graph().node_of(&StridedSliceGrad).inputs(inputs), masks.values());
        Some(vec![Some(grad.tensor().into()), None, None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1, 2, 3]
    }

    fn aliases(&self, c: &KernelContext<'_>) -> Option<SmallVec<[(usize, usize); 2]>> {
        let dims = &c.inputs[0].dims;
        let selection = planned(c, dims).ok()?;
        let (sizes, start, _) = layout(&selection, dims);
        let cut = dims.iter().zip(&sizes).rposition(|(d, s)| d != s).unwrap_or(0);
        let step = selection.axes.iter().zip(&sizes).any(|(a, &s)| a.stride != 1 && s > 1);
        if step || sizes.contains(&0) || sizes[..cut.min(sizes.len())].iter().any(|&s| s != 1) {
            return None;
        }
        Some(smallvec![(0, usize::try_from(start).ok()? * c.inputs[0].dtype.size())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(move_kernel(c.inputs[0].dtype, selected(c)?))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(cuda_copy::moves(c.inputs[0].dtype, &selected(c)?))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = |begin: i64, end: i64, stride: i64, masks: Masks, dims: &[usize], values: &[f32]| -> Option<Case> {
            let x = Array::new(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).ok()?;
            let inputs = vec![x, int_array(&[begin]), int_array(&[end]), int_array(&[stride])];
            let attrs = MASKS.into_iter().zip(masks.values()).fold(Attrs::new(), |a, (n, v)| a.with(n, v));
            Some(Case { attrs, inputs, outputs: vec![Array::new(dims, values).ok()?], gradient: true })
        };
        let shrink = Masks { shrink_axis: 1, ..Masks::default() };
        let open = Masks { end: 1, ..Masks::default() };
        let cases = [
            build(-1, 0, 1, shrink, &[2], &[5.0, 6.0]),
            build(-1, 0, -2, open, &[2, 2], &[5.0, 6.0, 1.0, 2.0]),
            build(1, 3, 1, Masks::default(), &[2, 2], &[3.0, 4.0, 5.0, 6.0]),
        ];
        cases.into_iter().flatten().collect()
    }
}

impl Op for StridedSliceGrad {
    fn name(&self) -> &'static str {
        "StridedSliceGrad"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(5)?;
        let ends = ends(c)?;
        let Some(sizes) = int_vector(c, 0, "the shape")? else {
            let shape = c.shape(0).dim(0).map_or(Shape::unknown(), Shape::of_rank);
            return Ok(vec![Fact::new(c.dtype(4), shape)]);
        };
        let dims = known(&sizes)?;
        if let Some(selection) = selection(&dims, ends, c.attrs)?
            && !selection.shape.is_compatible_with(c.shape(4))
        {
            return Err(format!(
                "the gradient must have the slice's shape: want {}, got {}",
                selection.shape,
                c.shape(4)
            ));
        }
        Ok(vec![super::support::sized(c.dtype(4), Shape::partial(dims))?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let &[_, begin, end, strides, _] = &c.inputs[..] else { return None };
        let masks = c.node.node().map(|n| Masks::of(&n.attrs)).unwrap_or_default();
        let slice = c.node.graph().node_of(&StridedSlice).inputs([c.grad(), begin, end, strides]);
        let slice = with_masks(slice, masks.values()).tensor();
        Some(vec![None, None, None, None, Some(slice.into())])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![0, 1, 2, 3]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(zero_and_move_kernel(c.outputs[0].dtype, put_back(c)?))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(cuda_copy::zero_and_moves(c.outputs[0].dtype, c.outputs[0].bytes(), &put_back(c)?))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let dy = Array::new(&[2], &[1.0f32, 2.0]).ok()?;
            let outputs = vec![Array::new(&[2, 2], &[0.0f32, 0.0, 1.0, 2.0]).ok()?];
            let ends = [&[2, 2][..], &[1], &[2], &[1]].map(int_array);
            let inputs = ends.into_iter().chain([dy]).collect();
            Some(Case { attrs: Attrs::new().with("shrink_axis_mask", 1i64), inputs, outputs, gradient: true })
        };
        build().into_iter().collect()
    }
}

/// One entry of an index, as between Python's brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// One position; the axis goes. Negative counts from the end.
    At(i64),
    /// Positions from `start` until before `end`, every `step`-th; `None` is open.
    Span {
        /// The first position.
        start: Option<i64>,
        /// The position that ends it.
        end: Option<i64>,
        /// The step, which may be negative but not zero.
        step: i64,
    },
    /// A new axis of size one.
    NewAxis,
    /// All axes that the other entries leave: Python's `...`.
    Rest,
}

impl From<i64> for Index {
    fn from(at: i64) -> Index {
        Index::At(at)
    }
}

impl From<std::ops::Range<i64>> for Index {
    fn from(r: std::ops::Range<i64>) -> Index {
        Index::Span { start: Some(r.start), end: Some(r.end), step: 1 }
    }
}

impl From<std::ops::RangeFrom<i64>> for Index {
    fn from(r: std::ops::RangeFrom<i64>) -> Index {
        Index::Span { start: Some(r.start), end: None, step: 1 }
    }
}

impl From<std::ops::RangeTo<i64>> for Index {
    fn from(r: std::ops::RangeTo<i64>) -> Index {
        Index::Span { start: None, end: Some(r.end), step: 1 }
    }
}

impl From<std::ops::RangeFull> for Index {
    fn from(_: std::ops::RangeFull) -> Index {
        Index::Span { start: None, end: None, step: 1 }
    }
}

impl<'g> Tensor<'g> {
    /// What Python's `x[…]` selects, as in `x.index([(..).into(), Index::At(0), (1..3).into()])`. Named `strided_slice`.
    #[track_caller]
    pub fn index(self, entries: impl IntoIterator<Item = Index>) -> Tensor<'g> {
        let (mut begin, mut end, mut strides, mut masks) = (Vec::new(), Vec::new(), Vec::new(), Masks::default());
        for (i, entry) in entries.into_iter().enumerate() {
            // More entries than a mask has bits are refused by the shape rule.
            let bit = 1i64.checked_shl(i as u32).unwrap_or(0);
            let (first, last, step) = match entry {
                Index::At(at) => {
                    masks.shrink_axis |= bit;
                    (at, at.saturating_add(1), 1)
                }
                Index::Span { start, end, step } => {
                    masks.begin |= if start.is_none() { bit } else { 0 };
                    masks.end |= if end.is_none() { bit } else { 0 };
                    (start.unwrap_or(0), end.unwrap_or(0), step)
                }
                Index::NewAxis => {
                    masks.new_axis |= bit;
                    (0, 0, 1)
                }
                Index::Rest => {
                    masks.ellipsis |= bit;
                    (0, 0, 1)
                }
            };
            begin.push(first);
            end.push(last);
            strides.push(step);
        }
        let g = self.graph();
        scoped(g, "strided_slice", |name| {
            // The three vectors are of one type.
            let wide = begin.iter().chain(&end).chain(&strides).any(|&v| i32::try_from(v).is_err());
            let dtype = if wide { DType::I64 } else { DType::I32 };
            let ends = [("stack", begin), ("stack_1", end), ("stack_2", strides)].map(|(name, values)| {
                let array = match dtype {
                    DType::I64 => Array::new(&[values.len()], &values).unwrap_or_else(|_| int_array(&values)),
                    _ => int_array(&values),
                };
                g.constant_named(name, array)
            });
            with_masks(node(g, "StridedSlice").name(name).input(self).inputs(ends), masks.values()).tensor()
        })
    }
}
