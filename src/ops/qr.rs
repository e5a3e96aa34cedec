//! `Qr` and `DiagPart`, which orthogonal initial values are made of.
//!
//! Absent: batches of matrices, full factors, and gradients; initial values need none of them.

use super::number::Number;
use crate::base::{Array, DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaCode, CudaKernel};
use crate::graph::{Attrs, Case, Fact, InferContext, KernelContext, Op, Traits};

/// TensorFlow's `Qr` of one matrix `[m, n]`, by Householder reflections: outputs `q` `[m, k]` and `r` `[k, n]`, where
/// `k` is the smaller size. Attribute `full_matrices` must be false.
pub struct Qr;

/// TensorFlow's `DiagPart` of a matrix `[k, k]`.
pub struct DiagPart;

impl Op for Qr {
    fn name(&self) -> &'static str {
        "Qr"
    }

    fn traits(&self) -> Traits {
        Traits { host_only: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        if c.attrs.bool("full_matrices") {
            return Err("attribute 'full_matrices' must be false".into());
        }
        if !c.dtype(0).is_floating() {
            return Err(format!("the matrix must be float32 or float64, got {}", c.dtype(0)));
        }
        let shape = c.shape(0).merge(&Shape::of_rank(2)).ok_or_else(|| format!("want a matrix, got {}", c.shape(0)))?;
        let (m, n) = (shape.dim(0), shape.dim(1));
        let k = m.zip(n).map(|(m, n)| m.min(n));
        let fact = |dims| Fact::new(c.dtype(0), Shape::partial(dims));
        Ok(vec![fact([m, k]), fact([k, n])])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let [m, n] = c.inputs[0].dims[..] else { return Err("want a matrix".into()) };
        Ok(match c.inputs[0].dtype {
            DType::F64 => factor::<f64>(m, n),
            _ => factor::<f32>(m, n),
        })
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[2, 2], &[3.0f32, 1.0, 4.0, 2.0]).ok()?;
            let q = Array::new(&[2, 2], &[-0.6f32, -0.8, -0.8, 0.6]).ok()?;
            let r = Array::new(&[2, 2], &[-5.0f32, -2.2, 0.0, 0.4]).ok()?;
            Some(Case { attrs: Attrs::new(), inputs: vec![x], outputs: vec![q, r], gradient: false })
        };
        build().into_iter().collect()
    }
}

/// Works in double precision, in memory of its own: an initial value is made once.
fn factor<T: Number + Into<f64>>(m: usize, n: usize) -> CpuKernel {
    Box::new(move |l| {
        let k = m.min(n);
        let mut a: Vec<f64> = l.input::<T>(0).iter().map(|&v| v.into()).collect();
        let mut reflections: Vec<(Vec<f64>, f64)> = Vec::with_capacity(k);
        for j in 0..k {
            let mut v: Vec<f64> = (j..m).map(|i| a[i * n + j]).collect();
            let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
            // LAPACK's sign: the diagonal gets the sign opposite to the entry that was there, and a column of
            // zeros below the diagonal is left alone.
            let tail = v[1..].iter().any(|&x| x != 0.0);
            let factor = if tail {
                let diagonal = if v[0] > 0.0 { -norm } else { norm };
                v[0] -= diagonal;
                2.0 / v.iter().map(|x| x * x).sum::<f64>()
            } else {
                0.0
            };
            reflect(&v, factor, &mut a, n, j, j);
            reflections.push((v, factor));
        }
        let r = l.output::<T>(1);
        for i in 0..k {
            for j in 0..n {
                r[i * n + j] = if j < i { T::default() } else { T::from_f64(a[i * n + j]) };
            }
        }
        let mut q = vec![0.0; m * k];
        (0..k).for_each(|i| q[i * k + i] = 1.0);
        for (j, (v, factor)) in reflections.iter().enumerate().rev() {
            reflect(v, *factor, &mut q, k, j, 0);
        }
        l.output::<T>(0).iter_mut().zip(q).for_each(|(o, q)| *o = T::from_f64(q));
        Ok(())
    })
}

/// Applies `1 - factor · v · vᵀ` to rows `row..` of a matrix with `n` columns, from `column` on.
fn reflect(v: &[f64], factor: f64, a: &mut [f64], n: usize, row: usize, column: usize) {
    for j in column..n {
        let dot: f64 = v.iter().enumerate().map(|(i, v)| v * a[(row + i) * n + j]).sum();
        v.iter().enumerate().for_each(|(i, v)| a[(row + i) * n + j] -= factor * dot * v);
    }
}

impl Op for DiagPart {
    fn name(&self) -> &'static str {
        "DiagPart"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        if !c.dtype(0).is_floating() {
            return Err(format!("the matrix must be float32 or float64, got {}", c.dtype(0)));
        }
        let refuse = || format!("want a square matrix, got {}", c.shape(0));
        let shape = c.shape(0).merge(&Shape::of_rank(2)).ok_or_else(refuse)?;
        let size = match (shape.dim(0), shape.dim(1)) {
            (Some(m), Some(n)) if m != n => return Err(refuse()),
            (m, n) => m.or(n),
        };
        Ok(vec![Fact::new(c.dtype(0), Shape::partial([size]))])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn kernel<T: Number>(n: usize) -> CpuKernel {
            Box::new(move |l| {
                let diagonal = l.input::<T>(0).iter().step_by(n + 1);
                l.output::<T>(0).iter_mut().zip(diagonal).for_each(|(o, &d)| *o = d);
                Ok(())
            })
        }
        let n = c.outputs[0].len();
        Ok(match c.inputs[0].dtype {
            DType::F64 => kernel::<f64>(n),
            _ => kernel::<f32>(n),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let n = c.outputs[0].len();
        let code = CudaCode::new(include_str!("cuda/diag_part.cu")).with_type("T", c.outputs[0].dtype);
        Ok(CudaKernel::elements(code, n, [CudaArg::input(0), CudaArg::output(0), CudaArg::size(n)]))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let x = Array::new(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).ok()?;
            let outputs = vec![Array::new(&[2], &[1.0f32, 4.0]).ok()?];
            Some(Case { attrs: Attrs::new(), inputs: vec![x], outputs, gradient: false })
        };
        build().into_iter().collect()
    }
}
