//! `Tile` and `Fill`: elements repeated along axes, and one value everywhere.
//!
//! Absent: `BroadcastTo`.

use super::copy::{Copy, Move};
use super::cuda_copy;
use super::elementwise::fill;
use super::shape_ops::SHAPE_HINT;
use super::support::{by_dtype, node, scoped, shape_of, strides_of};
use super::values::{case, float, ints};
use crate::base::{Array, Element, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Stretched};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `Tile`: input 0 repeated `multiples[i]` times along each axis `i`.
pub struct Tile;

impl Op for Tile {
    fn name(&self) -> &'static str {
        "Tile"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if !c.dtype(1).is_integer() {
            return Err(format!("the multiples must be int32 or int64, got {}", c.dtype(1)));
        }
        let (dims, multiples) = (c.shape(0).dims(), c.ints(1));
        let count = multiples.as_ref().map(Vec::len).or(c.shape(1).dim(0));
        if let (Some(dims), Some(count)) = (dims, count)
            && dims.len() != count
        {
            return Err(format!("want one multiple for each axis of {}, got {count}", c.shape(0)));
        }
        let shape = match (dims, multiples) {
            (Some(dims), Some(multiples)) => {
                if let Some(bad) = multiples.iter().find(|&&m| m < 0) {
                    return Err(format!("a multiple must not be negative, got {bad} in {multiples:?}"));
                }
                let sizes: Option<Vec<Option<usize>>> = (dims.iter().zip(&multiples))
                    .map(|(d, &m)| match d {
                        Some(d) => d.checked_mul(m as usize).map(Some),
                        None => Some(None),
                    })
                    .collect();
                Shape::partial(sizes.ok_or_else(|| format!("{} times {multiples:?} is too large", c.shape(0)))?)
            }
            _ => dims.map(<[_]>::len).or(count).map_or_else(Shape::unknown, Shape::of_rank),
        };
        let shape = match c.attrs.shape(SHAPE_HINT) {
            Some(hint) => {
                shape.merge(hint).ok_or_else(|| format!("the tiled shape {shape} is not the expected {hint}"))?
            }
            None => shape,
        };
        Ok(vec![Fact::new(c.dtype(0), shape)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        // The gradient is [multiples[0], dims[0], multiples[1], dims[1], …], summed over the even axes.
        let (x, multiples, graph) = (c.inputs[0], c.inputs[1], c.node.graph());
        let known = multiples.constant_value().and_then(|a| a.to_i64()).zip(x.shape().to_dims());
        if let Some((multiples, dims)) = known {
            let split: Vec<i64> = multiples.iter().zip(&dims).flat_map(|(&m, &d)| [m, d as i64]).collect();
            let axes: Vec<i32> = (0..dims.len() as i32).map(|i| 2 * i).collect();
            return Some(vec![Some(c.grad().reshape(split).sum_axes(&axes, false).into()), None]);
        }
        let sizes = shape_of(x, multiples.dtype());
        let both = node(graph, "Pack").name("stack").inputs([multiples, sizes]).attr("axis", 0i64).tensor();
        let split = both.transpose(&[1, 0]).reshape([-1]);
        let axes = scoped(graph, "range", |name| {
            let (start, step) = (graph.constant_named("start", 0i32), graph.constant_named("delta", 2i32));
            node(graph, "Range").name(name).inputs([start, split.size_tensor(), step]).tensor()
        });
        let sum = c.grad().reshape(split).sum_over(axes, false);
        Some(vec![Some(sum.reshape_as(sizes, &x.shape()).into()), None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (from, to) = (c.inputs[0].dims.to_vec(), c.outputs[0].dims.to_vec());
        Ok(by_dtype!(c.inputs[0].dtype, T => tile::<T>(from, to)))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        // Each axis is two: which repetition, and which element of it.
        let dims = &c.inputs[0].dims;
        let (mut sizes, mut from) = (Vec::new(), Vec::new());
        for ((&dim, &total), stride) in dims.iter().zip(&c.outputs[0].dims).zip(strides_of(dims)) {
            sizes.extend([total.checked_div(dim).unwrap_or(0), dim]);
            from.extend([0, stride]);
        }
        let copy = Copy::new(&sizes, 0, &from, 0, &strides_of(&sizes));
        Ok(cuda_copy::moves(c.inputs[0].dtype, &[Move { input: 0, output: 0, copy }]))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn stretches(&self, c: &KernelContext<'_>) -> Option<Stretched> {
        let mut sizes = c.inputs[0].dims.iter().zip(&c.outputs[0].dims);
        sizes.all(|(&from, &to)| from == to || from == 1).then_some(Stretched::Input(0))
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            case(
                vec![float(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), ints(&[2, 2])],
                vec![float(&[4, 4], &[1., 2., 1., 2., 3., 4., 3., 4., 1., 2., 1., 2., 3., 4., 3., 4.])],
                true,
            ),
            case(vec![float(&[1, 1], &[3.0]), ints(&[2, 3])], vec![float(&[2, 3], &[3.0; 6])], true),
            case(vec![float(&[2], &[1.0, 2.0]), ints(&[0])], vec![float(&[0], &[])], false),
        ]
    }
}

fn tile<T: Element>(from: Vec<usize>, to: Vec<usize>) -> CpuKernel {
    Box::new(move |l| {
        let (input, output) = (l.input::<T>(0), l.output::<T>(0));
        if let [value] = input {
            fill(l.team(), output, *value);
        } else if !output.is_empty() {
            tile_axis(&from, &to, input, output);
        }
        Ok(())
    })
}

/// Lays down the outermost axis once, then repeats it.
fn tile_axis<T: Element>(from: &[usize], to: &[usize], input: &[T], output: &mut [T]) {
    let ([size, inner_from @ ..], [total, inner_to @ ..]) = (from, to) else {
        output.copy_from_slice(input);
        return;
    };
    let (input_row, output_row) = (input.len() / size, output.len() / total);
    let (first, rest) = output.split_at_mut(size * output_row);
    if inner_from == inner_to {
        first.copy_from_slice(input);
    } else {
        for (i, o) in input.chunks_exact(input_row).zip(first.chunks_exact_mut(output_row)) {
            tile_axis(inner_from, inner_to, i, o);
        }
    }
    rest.chunks_exact_mut(first.len()).for_each(|r| r.copy_from_slice(first));
}

/// TensorFlow's `Fill`: a tensor of the sizes in input 0 with the value of input 1 everywhere.
pub struct Fill;

impl Op for Fill {
    fn name(&self) -> &'static str {
        "Fill"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if c.shape(1).rank().is_some_and(|r| r != 0) {
            return Err(format!("the value must be a scalar, got {}", c.shape(1)));
        }
        Ok(vec![Fact::new(c.dtype(1), super::shape_ops::target_shape(c, 0, false)?)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None, Some(c.grad().sum().into())])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![0]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn kernel<T: Element>() -> CpuKernel {
            Box::new(|l| {
                fill(l.team(), l.output::<T>(0), l.input::<T>(1)[0]);
                Ok(())
            })
        }
        Ok(by_dtype!(c.inputs[1].dtype, T => kernel::<T>()))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let copy = Copy::new(&[c.outputs[0].len()], 0, &[0], 0, &[1]);
        Ok(cuda_copy::moves(c.inputs[1].dtype, &[Move { input: 1, output: 0, copy }]))
    }

    fn stretches(&self, _c: &KernelContext<'_>) -> Option<Stretched> {
        Some(Stretched::Input(1))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            case(vec![ints(&[2, 3]), float(&[], &[1.5])], vec![float(&[2, 3], &[1.5; 6])], true),
            case(vec![ints(&[]), Array::scalar(7i64)], vec![Array::scalar(7i64)], false),
        ]
    }
}

impl<'g> crate::graph::Tensor<'g> {
    /// The tensor repeated this many times along each axis.
    #[track_caller]
    pub fn tile(self, multiples: &[i32]) -> crate::graph::Tensor<'g> {
        self.with_constant("Tile", "multiples", multiples, |m| self.graph().node_of(&Tile).input(self).input(m))
    }
}

impl crate::graph::Graph {
    /// A tensor of these sizes with one value everywhere, named `Fill`.
    #[track_caller]
    pub fn fill<'g>(
        &'g self,
        sizes: crate::graph::Tensor<'g>,
        value: crate::graph::Tensor<'g>,
    ) -> crate::graph::Tensor<'g> {
        self.node_of(&Fill).input(sizes).input(value).tensor()
    }
}
