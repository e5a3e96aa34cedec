//! `Cumsum` and `Cumprod`: running sums and products along one axis.

use super::cuda_rows::Parts;
use super::number::Number;
use super::support::no_arithmetic;
use super::values::{case, case_with, float};
use crate::base::{Array, DType};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, OpRef, Tensor};
use smallvec::{SmallVec, smallvec};

/// `Cumsum` or `Cumprod`, with attributes `exclusive` (an element's own value is left out) and `reverse`.
pub struct CumulativeOp {
    name: &'static str,
    product: bool,
}

/// TensorFlow's `Cumsum`.
pub static CUMSUM: CumulativeOp = CumulativeOp { name: "Cumsum", product: false };

/// TensorFlow's `Cumprod`.
pub static CUMPROD: CumulativeOp = CumulativeOp { name: "Cumprod", product: true };

fn resolve(axes: &[i64], rank: usize) -> Result<usize, String> {
    let &[axis] = axes else { return Err(format!("want one axis, got {}", axes.len())) };
    let at = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(at).ok().filter(|&at| at < rank).ok_or_else(|| format!("axis {axis} is outside [-{rank}, {rank})"))
}

impl Op for CumulativeOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        if !c.dtype(0).is_number() || !c.dtype(1).is_integer() {
            return Err(format!("want numbers and an integer axis, got {} and {}", c.dtype(0), c.dtype(1)));
        }
        if let (Some(rank), Some(axes)) = (c.shape(0).rank(), c.ints(1)) {
            resolve(&axes, rank)?;
        }
        Ok(vec![c.inputs[0].clone()])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let node = c.node.node()?;
        let (exclusive, reverse) = (node.attrs.bool("exclusive"), node.attrs.bool("reverse"));
        let cumsum = |x: Tensor<'g>| x.cumulative(&CUMSUM, c.inputs[1], exclusive, !reverse);
        let gradient = match self.product {
            false => cumsum(c.grad()),
            // As TensorFlow has it: no gradient where an input is 0.
            true => cumsum(c.outputs[0] * c.grad()) / c.inputs[0],
        };
        Some(vec![Some(gradient.into()), None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let dims = &c.inputs[0].dims;
        let axis = resolve(&c.ints(1).ok_or("the axis must be known when the step is planned")?, dims.len())?;
        let inner: usize = dims[axis + 1..].iter().product();
        let way =
            Way { length: dims[axis], inner, exclusive: c.attrs.bool("exclusive"), reverse: c.attrs.bool("reverse") };
        Ok(match (c.inputs[0].dtype, self.product) {
            (DType::F32, false) => run::<f32>(way, 0.0, f32::plus),
            (DType::F64, false) => run::<f64>(way, 0.0, f64::plus),
            (DType::I32, false) => run::<i32>(way, 0, i32::plus),
            (DType::I64, false) => run::<i64>(way, 0, i64::plus),
            (DType::F32, true) => run::<f32>(way, 1.0, f32::times),
            (DType::F64, true) => run::<f64>(way, 1.0, f64::times),
            (DType::I32, true) => run::<i32>(way, 1, i32::times),
            (DType::I64, true) => run::<i64>(way, 1, i64::times),
            (other, _) => return Err(no_arithmetic(other)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (desc, dims) = (&c.inputs[0], &c.inputs[0].dims);
        let axis = resolve(&c.ints(1).ok_or("the axis must be known when the step is planned")?, dims.len())?;
        if desc.is_empty() {
            return Ok(CudaKernel::default());
        }
        let (length, inner): (usize, usize) = (dims[axis], dims[axis + 1..].iter().product());
        let columns = desc.len() / length;
        let Parts { lanes, count, length: part } = Parts::new(columns, length, inner);
        let code = |text: &str| {
            CudaCode::new(format!("{}{text}", include_str!("cuda/cumulative_step.cu")))
                .with_type("T", desc.dtype)
                .with_constant("PRODUCT", self.product.into())
                .with_constant("LANES", lanes as i64)
        };
        let x = CudaArg::input(0);
        // Without chunks nothing comes before, and the parameter is not read.
        let starts = if count == 1 { x } else { CudaArg::Buffer(CudaBuffer::Scratch(0)) };
        let sizes = [columns, length, inner, count, part].map(CudaArg::size);
        let flag = |name: &str| CudaArg::I32(c.attrs.bool(name).into());
        let threads = columns * count * lanes;
        let mut launches = Vec::new();
        if count > 1 {
            let args = [x, starts].into_iter().chain(sizes).chain([flag("reverse")]);
            launches.push(CudaLaunch::elements(code(include_str!("cuda/cumulative_totals.cu")), threads, args));
            let args = [starts, CudaArg::size(columns), CudaArg::size(count)];
            launches.push(CudaLaunch::elements(code(include_str!("cuda/cumulative_starts.cu")), columns, args));
        }
        let whole = code(include_str!("cuda/cumulative.cu")).with_constant("CHUNKED", (count > 1).into());
        let buffers = [x, starts, CudaArg::output(0)].into_iter();
        let args = buffers.chain(sizes).chain([flag("reverse"), flag("exclusive")]);
        launches.push(CudaLaunch::elements(whole, threads, args));
        let scratch_bytes = if count > 1 { columns * count * desc.dtype.size() } else { 0 };
        Ok(CudaKernel { scratch_bytes, ..CudaKernel::new(launches) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = float(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let axis = || Array::scalar(-1i32);
        let expected = if self.product { [1.0, 2.0, 6.0, 4.0, 20.0, 120.0] } else { [1.0, 3.0, 6.0, 4.0, 9.0, 15.0] };
        let reversed = if self.product { [6.0, 3.0, 1.0, 30.0, 6.0, 1.0] } else { [5.0, 3.0, 0.0, 11.0, 6.0, 0.0] };
        let attrs = Attrs::new().with("exclusive", true).with("reverse", true);
        vec![
            case(vec![x.clone(), axis()], vec![float(&[2, 3], &expected)], true),
            case(vec![x.clone(), Array::scalar(0i64)], vec![], true),
            case_with(attrs, vec![x, axis()], vec![float(&[2, 3], &reversed)], true),
        ]
    }
}

#[derive(Clone, Copy)]
struct Way {
    length: usize,
    inner: usize,
    exclusive: bool,
    reverse: bool,
}

fn run<T: Number>(way: Way, start: T, step: fn(T, T) -> T) -> CpuKernel {
    Box::new(move |l| {
        let (x, o) = (l.input::<T>(0), l.output::<T>(0));
        let Way { length, inner, exclusive, reverse } = way;
        if x.is_empty() {
            return Ok(());
        }
        for block in 0..x.len() / (length * inner) {
            for column in 0..inner {
                let mut total = start;
                for i in 0..length {
                    let i = if reverse { length - 1 - i } else { i };
                    let at = (block * length + i) * inner + column;
                    let next = step(total, x[at]);
                    o[at] = if exclusive { total } else { next };
                    total = next;
                }
            }
        }
        Ok(())
    })
}

impl<'g> Tensor<'g> {
    /// Running sums along an axis.
    #[track_caller]
    pub fn cumsum(self, axis: i32, exclusive: bool, reverse: bool) -> Tensor<'g> {
        self.with_constant("Cumsum", "axis", axis, |axis| self.cumulative_node(&CUMSUM, axis, exclusive, reverse))
    }

    /// Running products along an axis.
    #[track_caller]
    pub fn cumprod(self, axis: i32, exclusive: bool, reverse: bool) -> Tensor<'g> {
        self.with_constant("Cumprod", "axis", axis, |axis| self.cumulative_node(&CUMPROD, axis, exclusive, reverse))
    }

    #[track_caller]
    fn cumulative(self, op: OpRef, axis: Tensor<'g>, exclusive: bool, reverse: bool) -> Tensor<'g> {
        self.cumulative_node(op, axis, exclusive, reverse).tensor()
    }

    fn cumulative_node(
        self,
        op: OpRef,
        axis: Tensor<'g>,
        exclusive: bool,
        reverse: bool,
    ) -> crate::graph::NodeBuilder<'g> {
        let node = self.graph().node_of(op).input(self).input(axis);
        node.attr("exclusive", exclusive).attr("reverse", reverse)
    }
}
