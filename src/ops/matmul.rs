//! `MatMul`: products of matrices, either of which may be transposed.
//!
//! Absent: the loops (`matmul_kernel.rs`) and batches of products (`BatchMatMulV2`).

use super::matmul_kernel as kernel;
use super::support::no_arithmetic;
use super::values::{array, case, case_with, float};
use crate::base::{DType, Shape};
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, Gemm};
use crate::device::{CpuKernel, RowKernel};
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};

/// TensorFlow's `MatMul`, with attributes `transpose_a` and `transpose_b`: `[m, k]` by `[k, n]` is `[m, n]`.
pub struct MatMul;

impl Op for MatMul {
    fn name(&self) -> &'static str {
        "MatMul"
    }

    fn traits(&self) -> Traits {
        Traits { product: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let dtype = c.same_dtype()?;
        if dtype == DType::Bool {
            return Err("want numbers, got bool; cast both inputs".into());
        }
        for i in 0..2 {
            if c.shape(i).rank().is_some_and(|r| r != 2) {
                return Err(format!("want two matrices, got {} as input {i}; reshape it", c.shape(i)));
            }
        }
        let (a, b) = (c.attrs.bool("transpose_a"), c.attrs.bool("transpose_b"));
        let (rows, from_a) = (c.shape(0).dim(usize::from(a)), c.shape(0).dim(usize::from(!a)));
        let (from_b, columns) = (c.shape(1).dim(usize::from(b)), c.shape(1).dim(usize::from(!b)));
        if let (Some(from_a), Some(from_b)) = (from_a, from_b)
            && from_a != from_b
        {
            let of = |transposed| if transposed { " transposed" } else { "" };
            return Err(format!(
                "inner sizes differ: {}{} has {from_a} columns, {}{} has {from_b} rows; transpose or reshape one of them",
                c.shape(0),
                of(a),
                c.shape(1),
                of(b)
            ));
        }
        Ok(vec![Fact::new(dtype, Shape::partial([rows, columns]))])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (a, b, grad) = (c.inputs[0], c.inputs[1], c.grad());
        let node = c.node.node()?;
        let (ga, gb) = match (node.attrs.bool("transpose_a"), node.attrs.bool("transpose_b")) {
            (false, false) => (grad.matmul_with(b, false, true), a.matmul_with(grad, true, false)),
            (false, true) => (grad.matmul_with(b, false, false), grad.matmul_with(a, true, false)),
            (true, false) => (b.matmul_with(grad, false, true), a.matmul_with(grad, false, false)),
            (true, true) => (b.matmul_with(grad, true, true), grad.matmul_with(a, true, true)),
        };
        Some(vec![Some(ga.into()), Some(gb.into())])
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let inner = c.inputs[0].dims[usize::from(!c.attrs.bool("transpose_a"))];
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        Cost { flops: 2.0 * c.outputs[0].len() as f64 * inner as f64, bytes }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let sizes = sizes(c);
        Ok(match c.inputs[0].dtype {
            DType::F32 => kernel::floats::<f32>(sizes),
            DType::F64 => kernel::floats::<f64>(sizes),
            DType::I32 => kernel::integers::<i32>(sizes),
            DType::I64 => kernel::integers::<i64>(sizes),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn transposing_attr(&self, input: usize) -> Option<&'static str> {
        ["transpose_a", "transpose_b"].get(input).copied()
    }

    fn row_kernel(&self, c: &KernelContext<'_>) -> Option<RowKernel> {
        match c.inputs[0].dtype {
            DType::F32 => kernel::rows::<f32>(sizes(c)),
            DType::F64 => kernel::rows::<f64>(sizes(c)),
            _ => None,
        }
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (transpose_a, transpose_b) = (c.attrs.bool("transpose_a"), c.attrs.bool("transpose_b"));
        let (m, n) = (c.outputs[0].dims[0], c.outputs[0].dims[1]);
        let k = c.inputs[0].dims[usize::from(!transpose_a)];
        let dtype = c.outputs[0].dtype;
        let [a, b, to] = [CudaBuffer::Input(0, 0), CudaBuffer::Input(1, 0), CudaBuffer::Output(0, 0)];
        let launch = match dtype {
            _ if m == 0 || n == 0 => return Ok(CudaKernel::default()),
            _ if k == 0 => CudaLaunch::Zero { to, bytes: c.outputs[0].bytes() },
            DType::F32 | DType::F64 => CudaLaunch::Gemm(Gemm {
                dtype,
                m,
                n,
                k,
                transpose_a,
                transpose_b,
                a,
                b,
                c: to,
                bias: None,
                relu: false,
            }),
            DType::I32 | DType::I64 => {
                let code = CudaCode::new(include_str!("cuda/matmul.cu")).with_type("T", dtype);
                let steps = kernel::Sizes::new(m, k, n, (transpose_a, transpose_b)).steps();
                let sizes = [m, n, k].into_iter().chain(steps).map(CudaArg::size);
                let args = [a, b, to].map(CudaArg::Buffer).into_iter().chain(sizes).collect();
                let blocks = (m.div_ceil(16) * n.div_ceil(16)) as u32;
                CudaLaunch::Code { code, blocks, threads: 256, shared_bytes: 0, args }
            }
            other => return Err(no_arithmetic(other)),
        };
        Ok(CudaKernel::new([launch]))
    }

    fn takes_epilogue(&self, c: &KernelContext<'_>) -> bool {
        // Without sums there is no product to call.
        let depth = c.inputs[0].len().checked_div(c.outputs[0].dims[0]).unwrap_or(0);
        // cuBLASLt has no bias and no ReLU for float64.
        c.outputs[0].dtype == DType::F32 && depth > 0 && !c.outputs[0].is_empty()
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
        outputs.iter().all(|o| o.dtype != DType::Bool)
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (m, k, n) in [(5, 7, 3), (1, 4, 1), (4, 6, 1), (1, 5, 4), (3, 1, 4), (17, 33, 20)] {
            for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
                cases.push(product(m, k, n, a, b, k < 30));
            }
        }
        cases.push(case(vec![float(&[0, 4], &[]), float(&[4, 1], &[1.0; 4])], vec![float(&[0, 1], &[])], false));
        cases.push(case(vec![float(&[3, 0], &[]), float(&[0, 2], &[])], vec![float(&[3, 2], &[0.0; 6])], false));
        let (a, b) = (array(&[2, 2], &[1, 2, 3, i32::MAX]), array(&[2, 1], &[4, 2]));
        cases.push(case(vec![a, b], vec![array(&[2, 1], &[8, 10])], false));
        cases
    }
}

fn sizes(c: &KernelContext<'_>) -> kernel::Sizes {
    let transposed = (c.attrs.bool("transpose_a"), c.attrs.bool("transpose_b"));
    let k = c.inputs[0].dims[usize::from(!transposed.0)];
    kernel::Sizes::new(c.outputs[0].dims[0], k, c.outputs[0].dims[1], transposed)
}

/// A case with the output from the definition.
fn product(m: usize, k: usize, n: usize, a: bool, b: bool, gradient: bool) -> Case {
    let value = |seed: usize, i: usize| ((i * 7 + seed) % 11) as f32 / 4.0 - 1.25;
    let (left, right) = (|i, j| value(1, i * k + j), |i, j| value(5, i * n + j));
    let laid = |rows: usize, columns: usize, transposed: bool, at: &dyn Fn(usize, usize) -> f32| {
        let values: Vec<f32> = match transposed {
            false => (0..rows * columns).map(|i| at(i / columns, i % columns)).collect(),
            true => (0..rows * columns).map(|i| at(i % rows, i / rows)).collect(),
        };
        float(&if transposed { [columns, rows] } else { [rows, columns] }, &values)
    };
    let output = laid(m, n, false, &|i, j| (0..k).map(|x| left(i, x) * right(x, j)).sum());
    let attrs = Attrs::new().with("transpose_a", a).with("transpose_b", b);
    case_with(attrs, vec![laid(m, k, a, &left), laid(k, n, b, &right)], vec![output], gradient)
}

impl<'g> Tensor<'g> {
    /// The product of two matrices.
    #[track_caller]
    pub fn matmul(self, other: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.matmul_with(other, false, false)
    }

    /// The product of two matrices, of which either may be transposed.
    #[track_caller]
    pub fn matmul_with(self, other: impl Into<Tensor<'g>>, transpose_a: bool, transpose_b: bool) -> Tensor<'g> {
        let node = self.graph().node_of(&MatMul).input(self).input(other);
        node.attr("transpose_a", transpose_a).attr("transpose_b", transpose_b).tensor()
    }
}
