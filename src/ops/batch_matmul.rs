//! Batches of products of matrices: `BatchMatMul`, whose batches are alike, and `BatchMatMulV2` and `V3`, which broadcast.
//!
//! Absent: products of different types, which `BatchMatMulV3` has in TensorFlow, and the loops (`matmul_kernel.rs`).

use super::broadcast::broadcast;
use super::cuda_index::{Counter, Walk};
use super::matmul_kernel::{Sizes, batched_floats, batched_integers};
use super::strided_slice::Index;
use super::support::{no_arithmetic, node, sized};
use super::values::{array, case, case_with, float};
use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaKernel, CudaLaunch, Gemm};
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};

/// TensorFlow's `BatchMatMul…`: the last two axes are matrices, the others count them; attributes `adj_x`, `adj_y` say
/// which side is transposed.
pub struct BatchMatMulOp {
    name: &'static str,
    broadcasts: bool,
}

/// TensorFlow's `BatchMatMul`: both sides have one batch shape.
pub static BATCH_MAT_MUL: BatchMatMulOp = BatchMatMulOp { name: "BatchMatMul", broadcasts: false };
/// TensorFlow's `BatchMatMulV2`: batch shapes broadcast.
pub static BATCH_MAT_MUL_V2: BatchMatMulOp = BatchMatMulOp { name: "BatchMatMulV2", broadcasts: true };
/// TensorFlow's `BatchMatMulV3`, of one type.
pub static BATCH_MAT_MUL_V3: BatchMatMulOp = BatchMatMulOp { name: "BatchMatMulV3", broadcasts: true };

/// Multiplications and additions of one product from which on a CUDA GPU's library is worth a call for each.
const LARGE_FLOPS: usize = 1 << 22;
/// The most calls of the library for one node.
const MOST_CALLS: usize = 512;

/// A batch of products of known sizes.
struct Batch {
    sizes: Sizes,
    /// Rows, inner size, columns.
    dims: [usize; 3],
    transposed: (bool, bool),
    /// Sizes of the result's batch axes, and the steps of either side along them, in matrices.
    axes: Vec<(usize, usize, usize)>,
}

impl Batch {
    fn new(c: &KernelContext<'_>) -> Result<Batch, String> {
        let transposed = (c.attrs.bool("adj_x"), c.attrs.bool("adj_y"));
        let split = |dims: &[usize]| -> Option<(Vec<usize>, [usize; 2])> {
            let (batch, matrix) = dims.split_at(dims.len().checked_sub(2)?);
            Some((batch.to_vec(), [matrix[0], matrix[1]]))
        };
        let sides = (split(&c.inputs[0].dims), split(&c.inputs[1].dims), split(&c.outputs[0].dims));
        let (Some((x, of_x)), Some((y, _)), Some((o, [m, n]))) = sides else {
            return Err("want two tensors of matrices".into());
        };
        let k = of_x[usize::from(!transposed.0)];
        let mut axes = vec![(0, 0, 0); o.len()];
        let (mut x_step, mut y_step) = (1, 1);
        for back in 0..o.len() {
            let step = |dims: &[usize], next: &mut usize| {
                let own = dims.len().checked_sub(back + 1).map_or(1, |i| dims[i]);
                let step = if own == 1 { 0 } else { *next };
                *next *= own;
                step
            };
            let at = o.len() - 1 - back;
            axes[at] = (o[at], step(&x, &mut x_step), step(&y, &mut y_step));
        }
        Ok(Batch { sizes: Sizes::new(m, k, n, transposed), dims: [m, k, n], transposed, axes })
    }

    fn count(&self) -> usize {
        self.axes.iter().map(|a| a.0).product()
    }

    /// Which matrices each product takes.
    fn takes(&self) -> Vec<(usize, usize)> {
        let take = |product: usize| {
            let (mut rest, mut x, mut y) = (product, 0, 0);
            for &(size, x_step, y_step) in self.axes.iter().rev() {
                let at = rest % size;
                (rest, x, y) = (rest / size, x + at * x_step, y + at * y_step);
            }
            (x, y)
        };
        (0..self.count()).map(take).collect()
    }
}

impl Op for BatchMatMulOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { product: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let dtype = c.same_dtype()?;
        if !dtype.is_number() {
            return Err(no_arithmetic(dtype));
        }
        if let Some(wanted) = c.attrs.dtype("Tout").filter(|&wanted| wanted != dtype) {
            return Err(format!(
                "attribute 'Tout' must be the inputs' {dtype}, got {wanted}; cast the product instead"
            ));
        }
        let (Some(x), Some(y)) = (c.shape(0).dims(), c.shape(1).dims()) else {
            return Ok(vec![Fact::new(dtype, Shape::unknown())]);
        };
        if x.len() < 2 || y.len() < 2 {
            let (x, y) = (c.shape(0), c.shape(1));
            return Err(format!("want two tensors of matrices, got {x} and {y}; reshape the one without two axes"));
        }
        let ((of_x, x), (of_y, y)) = (x.split_at(x.len() - 2), y.split_at(y.len() - 2));
        let (adj_x, adj_y) = (c.attrs.bool("adj_x"), c.attrs.bool("adj_y"));
        let (rows, from_x) = (x[usize::from(adj_x)], x[usize::from(!adj_x)]);
        let (from_y, columns) = (y[usize::from(adj_y)], y[usize::from(!adj_y)]);
        if let (Some(a), Some(b)) = (from_x, from_y)
            && a != b
        {
            let of = |transposed| if transposed { " transposed" } else { "" };
            return Err(format!(
                "inner sizes differ: {}{} has {a} columns, {}{} has {b} rows; transpose or reshape one of them",
                c.shape(0),
                of(adj_x),
                c.shape(1),
                of(adj_y)
            ));
        }
        let (of_x, of_y) = (Shape::partial(of_x.iter().copied()), Shape::partial(of_y.iter().copied()));
        let batch = match self.broadcasts {
            true => broadcast(&of_x, &of_y)?,
            false => of_x.merge(&of_y).ok_or_else(|| format!("batch shapes differ: {of_x} and {of_y}"))?,
        };
        let shape = match batch.dims() {
            Some(batch) => Shape::partial(batch.iter().copied().chain([rows, columns])),
            None => Shape::unknown(),
        };
        Ok(vec![sized(dtype, shape)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (x, y, grad) = (c.inputs[0], c.inputs[1], c.grad());
        let attrs = &c.node.node()?.attrs.clone();
        let product = |a: Tensor<'g>, b: Tensor<'g>, adj_x: bool, adj_y: bool| {
            let node = c.node.graph().node_of(&BATCH_MAT_MUL_V2).name("MatMul").inputs([a, b]);
            node.attr("adj_x", adj_x).attr("adj_y", adj_y).tensor()
        };
        let (gx, gy) = match (attrs.bool("adj_x"), attrs.bool("adj_y")) {
            (false, false) => (product(grad, y, false, true), product(x, grad, true, false)),
            (false, true) => (product(grad, y, false, false), product(grad, x, true, false)),
            (true, false) => (product(y, grad, false, true), product(x, grad, false, false)),
            (true, true) => (product(y, grad, true, true), product(grad, x, true, true)),
        };
        let batch = |t: Tensor<'g>| {
            let shape = t.shape();
            let batch =
                shape.dims().and_then(|d| d[..d.len().checked_sub(2)?].iter().copied().collect::<Option<Vec<_>>>());
            batch.map(|b| b.to_vec())
        };
        let (of_x, of_y) = (batch(x), batch(y));
        if !self.broadcasts || of_x.is_some() && of_x == of_y || x.rank() == Some(2) && y.rank() == Some(2) {
            return Some(vec![Some(gx.into()), Some(gy.into())]);
        }
        let (x_sizes, y_sizes) = (x.shape_tensor(), y.shape_tensor());
        let batches = [x_sizes, y_sizes].map(|sizes| sizes.index([Index::from(..-2)]));
        let axes = node(c.node.graph(), "BroadcastGradientArgs").inputs(batches).add();
        let sum = |g: Tensor<'g>, axes: Tensor<'g>, sizes: Tensor<'g>, of: Tensor<'g>| {
            g.sum_over(axes, false).reshape_as(sizes, &of.shape())
        };
        let gx = sum(gx, axes.output(0), x_sizes, x);
        Some(vec![Some(gx.into()), Some(sum(gy, axes.output(1), y_sizes, y).into())])
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        let Ok(batch) = Batch::new(c) else { return Cost { flops: 0.0, bytes } };
        Cost { flops: 2.0 * c.outputs[0].len() as f64 * batch.dims[1] as f64, bytes }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let batch = Batch::new(c)?;
        let takes = if c.outputs[0].is_empty() { Vec::new() } else { batch.takes() };
        Ok(match c.inputs[0].dtype {
            DType::F32 => batched_floats::<f32>(batch.sizes, takes),
            DType::F64 => batched_floats::<f64>(batch.sizes, takes),
            DType::I32 => batched_integers::<i32>(batch.sizes, takes),
            DType::I64 => batched_integers::<i64>(batch.sizes, takes),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn transposing_attr(&self, input: usize) -> Option<&'static str> {
        ["adj_x", "adj_y"].get(input).copied()
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let batch = Batch::new(c)?;
        let (dtype, [m, k, n]) = (c.outputs[0].dtype, batch.dims);
        let to = CudaBuffer::Output(0, 0);
        if c.outputs[0].is_empty() {
            return Ok(CudaKernel::default());
        }
        if k == 0 {
            return Ok(CudaKernel::new([CudaLaunch::Zero { to, bytes: c.outputs[0].bytes() }]));
        }
        let (transpose_a, transpose_b) = batch.transposed;
        if dtype.is_floating() && batch.sizes.flops() >= LARGE_FLOPS && batch.count() <= MOST_CALLS {
            let product = |(i, (x, y)): (usize, (usize, usize))| {
                let bytes = dtype.size();
                let (a, b) = (CudaBuffer::Input(0, x * m * k * bytes), CudaBuffer::Input(1, y * k * n * bytes));
                let c = CudaBuffer::Output(0, i * m * n * bytes);
                CudaLaunch::Gemm(Gemm { dtype, m, n, k, transpose_a, transpose_b, a, b, c, bias: None, relu: false })
            };
            return Ok(CudaKernel::new(batch.takes().into_iter().enumerate().map(product)));
        }
        let counter = Counter::for_sizes(&[c.inputs[0].len(), c.inputs[1].len(), c.outputs[0].len()]);
        let steps = |&(size, x, y): &(usize, usize, usize)| (size, vec![(x * m * k) as isize, (y * k * n) as isize]);
        // Axes of size 1 count nothing.
        let axes = batch.axes.iter().filter(|a| a.0 != 1).map(steps).collect();
        let walk = Walk::new("walk", counter, 2, axes);
        let code = counter.code(&walk.put(include_str!("cuda/batch_matmul.cu"))).with_type("T", dtype);
        let [a_row, a_column, b_row, b_column] = batch.sizes.steps().map(|s| counter.size(s));
        let (down, across) = (m.div_ceil(16), n.div_ceil(16));
        let blocks = u32::try_from(batch.count() * down * across).map_err(|_| "too many products for one launch")?;
        let buffers = [CudaArg::input(0), CudaArg::input(1), CudaArg::output(0)];
        let sizes = [m, n, k, down, across].map(|s| counter.size(s));
        let args = buffers.into_iter().chain(sizes).chain([a_row, a_column, b_row, b_column]).chain(walk.args());
        let launch = CudaLaunch::Code { code, blocks, threads: 256, shared_bytes: 0, args: args.collect() };
        Ok(CudaKernel::new([launch]))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
        outputs.iter().all(|o| o.dtype.is_number())
    }

    fn cases(&self) -> Vec<Case> {
        let value = |seed: usize, i: usize| ((i * 7 + seed) % 11) as f32 / 4.0 - 1.25;
        let laid = |dims: &[usize], seed: usize| {
            float(dims, &(0..dims.iter().product()).map(|i| value(seed, i)).collect::<Vec<_>>())
        };
        let adjoint = |x: bool, y: bool| Attrs::new().with("adj_x", x).with("adj_y", y);
        let (x, y) = (float(&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]), float(&[2, 2, 1], &[1.0, -1.0, 0.5, 2.0]));
        let mut cases = vec![
            case(vec![x, y], vec![float(&[2, 1, 1], &[-1.0, 9.5])], true),
            case(vec![laid(&[0, 2, 3], 1), laid(&[0, 3, 2], 2)], vec![float(&[0, 2, 2], &[])], false),
            case(vec![laid(&[2, 2, 0], 1), laid(&[2, 0, 3], 2)], vec![float(&[2, 2, 3], &[0.0; 12])], false),
            case(
                vec![array(&[2, 1, 2], &[1, 2, 3, i32::MAX]), array(&[2, 2, 1], &[4, 2, 4, 2])],
                vec![array(&[2, 1, 1], &[8, 10])],
                false,
            ),
            case_with(adjoint(true, false), vec![laid(&[3, 4, 2], 3), laid(&[3, 4, 5], 4)], vec![], true),
            case_with(adjoint(false, true), vec![laid(&[3, 17, 33], 3), laid(&[3, 20, 33], 4)], vec![], false),
            case_with(adjoint(true, true), vec![laid(&[2, 2, 4, 3], 3), laid(&[2, 2, 2, 4], 4)], vec![], true),
        ];
        if self.broadcasts {
            let (x, y) = (float(&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]), float(&[2, 1], &[1.0, -1.0]));
            cases.push(case(vec![x, y], vec![float(&[2, 1, 1], &[-1.0, -1.0])], true));
            cases.push(case(vec![laid(&[3, 1, 2, 3], 1), laid(&[2, 3, 2], 2)], vec![], true));
            cases.push(case_with(adjoint(true, true), vec![laid(&[4, 3], 5), laid(&[2, 1, 2, 4], 6)], vec![], true));
            cases.push(case(vec![laid(&[2, 3], 5), laid(&[3, 2], 6)], vec![], true));
        }
        cases
    }
}

impl<'g> Tensor<'g> {
    /// The products of the matrices in the last two axes, either of which may be transposed; the other axes broadcast.
    /// Named `MatMul`.
    #[track_caller]
    pub fn batch_matmul(self, other: impl Into<Tensor<'g>>, adj_x: bool, adj_y: bool) -> Tensor<'g> {
        let node = self.graph().node_of(&BATCH_MAT_MUL_V2).name("MatMul").input(self).input(other);
        node.attr("adj_x", adj_x).attr("adj_y", adj_y).tensor()
    }
}
