//! `Slice`: a box of a tensor, by where it begins and its sizes.

use super::copy::{Copy, Move, move_kernel};
use super::cuda_copy;
use super::support::{build, int_array, int_vector, node, rank_of, scoped, shape_of, sizes_from, strides_of};
use crate::base::{Array, Dims, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `Slice`: inputs the tensor, begin, size; a size of -1 is all that is left.
pub struct Slice;

/// Checks one axis; the size of the slice there, where known.
fn axis_size(axis: usize, dim: Option<usize>, begin: Option<i64>, size: Option<i64>) -> Result<Option<usize>, String> {
    let begin = match begin.map(usize::try_from) {
        Some(Err(_)) => return Err(format!("begin must not be negative, got {} on axis {axis}", begin.unwrap_or(0))),
        Some(Ok(begin)) => Some(begin),
        None => None,
    };
    if let (Some(begin), Some(dim)) = (begin, dim)
        && begin > dim
    {
        return Err(format!("the slice begins at {begin} on axis {axis}, which has size {dim}"));
    }
    match size {
        None => Ok(None),
        Some(-1) => Ok(dim.zip(begin).map(|(dim, begin)| dim - begin)),
        Some(size) => {
            let size = usize::try_from(size)
                .map_err(|_| format!("a size must be -1 (all that is left) or more, got {size} on axis {axis}"))?;
            if let Some(dim) = dim
                && begin.unwrap_or(0).checked_add(size).is_none_or(|end| end > dim)
            {
                let begin = begin.unwrap_or(0);
                return Err(format!("a slice of {size} from {begin} leaves axis {axis}, which has size {dim}"));
            }
            Ok(Some(size))
        }
    }
}

/// Begin and sizes of a slice of a buffer.
fn known(c: &KernelContext<'_>) -> Option<(Dims, Dims)> {
    Some((sizes_from(&c.ints(1)?, "begin").ok()?, c.outputs[0].dims.clone()))
}

fn sliced(c: &KernelContext<'_>) -> Result<Vec<Move>, String> {
    let (begin, size) = known(c).ok_or("begin is not known")?;
    let strides = strides_of(&c.inputs[0].dims);
    let start: isize = begin.iter().zip(&strides).map(|(&b, s)| b as isize * s).sum();
    let copy = Copy::new(&size, start, &strides, 0, &strides_of(&size));
    Ok(vec![Move { input: 0, output: 0, copy }])
}

impl Op for Slice {
    fn name(&self) -> &'static str {
        "Slice"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        let (begin, size) = (int_vector(c, 1, "begin")?, int_vector(c, 2, "size")?);
        let lengths = [c.shape(0).rank(), begin.as_ref().map(Vec::len), size.as_ref().map(Vec::len)];
        let lengths = lengths.into_iter().chain([c.shape(1).dim(0), c.shape(2).dim(0)]);
        let Some(rank) = lengths.clone().flatten().next() else {
            return Ok(vec![Fact::new(c.dtype(0), Shape::unknown())]);
        };
        if lengths.flatten().any(|n| n != rank) {
            return Err(format!(
                "begin and size must have one entry an axis: the tensor has shape {}, begin {}, size {}",
                c.shape(0),
                c.shape(1),
                c.shape(2)
            ));
        }
        let at = |v: &Option<Vec<i64>>, i: usize| v.as_ref().and_then(|v| v.get(i).copied());
        let sizes: Vec<Option<usize>> = (0..rank)
            .map(|i| axis_size(i, c.shape(0).dim(i), at(&begin, i), at(&size, i)))
            .collect::<Result<_, _>>()?;
        Ok(vec![Fact::new(c.dtype(0), Shape::partial(sizes))])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (&x, &begin, &y) = (c.inputs.first()?, c.inputs.get(1)?, c.outputs.first()?);
        let g = c.node.graph();
        let rank = rank_of(x);
        let size = shape_of(y, begin.dtype());
        let column = scoped(g, "stack", |name| {
            node(g, "Pack").name(name).inputs([rank, g.constant_named("1", 1i32)]).attr("axis", 0i64).tensor()
        });
        let before = build("Reshape", "", &[begin, column]);
        let rest = build("Sub", "sub", &[shape_of(x, begin.dtype()), size]);
        let after = build("Reshape", "", &[build("Sub", "sub_1", &[rest, begin]), column]);
        let paddings = g.concat([before, after], 1);
        Some(vec![Some(build("Pad", "", &[c.grad(), paddings]).into()), None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1, 2]
    }

    fn aliases(&self, c: &KernelContext<'_>) -> Option<SmallVec<[(usize, usize); 2]>> {
        let (begin, size) = known(c)?;
        let dims = &c.inputs[0].dims;
        // All axes after the first that is cut must be whole, and all before it of size one in the slice.
        let cut = dims.iter().zip(&size).rposition(|(d, s)| d != s).unwrap_or(0);
        if size[..cut.min(size.len())].iter().any(|&s| s != 1) {
            return None;
        }
        let start: isize = begin.iter().zip(strides_of(dims)).map(|(&b, s)| b as isize * s).sum();
        Some(smallvec![(0, start as usize * c.inputs[0].dtype.size())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(move_kernel(c.inputs[0].dtype, sliced(c)?))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(cuda_copy::moves(c.inputs[0].dtype, &sliced(c)?))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).ok()?;
            let y = Array::new(&[1, 2], &[5.0f32, 6.0]).ok()?;
            let inputs = vec![x, int_array(&[1, 1]), int_array(&[1, -1])];
            Some(Case { attrs: Attrs::new(), inputs, outputs: vec![y], gradient: true })
        };
        build().into_iter().collect()
    }
}

impl<'g> Tensor<'g> {
    /// The box that begins at `begin` and has these sizes; -1 is all that is left of an axis. Named `Slice`.
    #[track_caller]
    pub fn slice(self, begin: &[i64], size: &[i64]) -> Tensor<'g> {
        let g = self.graph();
        scoped(g, "Slice", |name| {
            let ends = [g.constant_named("begin", int_array(begin)), g.constant_named("size", int_array(size))];
            g.node_of(&Slice).name(name).input(self).inputs(ends).tensor()
        })
    }
}
