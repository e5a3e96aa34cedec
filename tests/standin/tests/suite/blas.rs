//! cuBLAS and cuBLASLt against products by hand.

use super::harness::{gpu, lab, values};
use super::pipelines::TEXT;
use cudarc::cublas::{
    CudaBlas, Gemm, GemmConfig, Gemv, GemvConfig, StridedBatchedConfig, sys::cublasOperation_t as Op,
};
use cudarc::cublaslt::{Activation, CudaBlasLT, Matmul, MatmulConfig};
use cudarc::driver::CudaContext;

/// Column-major; `t` as stored.
fn at(x: &[f32], ld: usize, t: bool, row: usize, column: usize) -> f32 {
    if t { x[row * ld + column] } else { x[column * ld + row] }
}

fn by_hand(m: usize, n: usize, k: usize, a: (&[f32], usize, bool), b: (&[f32], usize, bool)) -> Vec<f32> {
    let cell = |i: usize| (0..k).map(|l| at(a.0, a.1, a.2, i % m, l) * at(b.0, b.1, b.2, l, i / m)).sum();
    (0..m * n).map(cell).collect()
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| (x - y).abs() <= 1e-3 * y.abs().max(1.0))
}

#[test]
fn products_are_right_in_every_orientation() {
    let Some(lab) = lab() else { return };
    let g = gpu(0, TEXT);
    let blas = CudaBlas::new(g.stream.clone()).unwrap();
    let (m, n, k) = (7usize, 5usize, 9usize);
    let (x, y) = (values(m * k), values(k * n + 3)[3..].to_vec());
    let (a, b) = (g.put(&x), g.put(&y));
    for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut c = g.stream.alloc_zeros::<f32>(m * n).unwrap();
        let op = |t: bool| if t { Op::CUBLAS_OP_T } else { Op::CUBLAS_OP_N };
        let (lda, ldb) = (if ta { k } else { m }, if tb { n } else { k });
        let config = GemmConfig {
            transa: op(ta),
            transb: op(tb),
            m: m as i32,
            n: n as i32,
            k: k as i32,
            alpha: 1.0f32,
            lda: lda as i32,
            ldb: ldb as i32,
            beta: 0.0,
            ldc: m as i32,
        };
        // SAFETY: the sizes are those of the buffers.
        unsafe { blas.gemm(config, &a, &b, &mut c) }.unwrap();
        let want = by_hand(m, n, k, (&x, lda, ta), (&y, ldb, tb));
        assert!(close(&g.stream.clone_dtoh(&c).unwrap(), &want), "{ta} {tb}");
        // Once more, onto what is there.
        // SAFETY: as above.
        unsafe { blas.gemm(GemmConfig { alpha: 2.0, beta: 1.0, ..config }, &a, &b, &mut c) }.unwrap();
        let want: Vec<f32> = want.iter().map(|w| 3.0 * w).collect();
        assert!(close(&g.stream.clone_dtoh(&c).unwrap(), &want), "{ta} {tb}");
    }
    assert_eq!(lab.standin.calls("cublasSgemm_v2"), 8);
}

#[test]
fn batches_and_vectors_are_products_too() {
    let Some(_lab) = lab() else { return };
    let g = gpu(0, TEXT);
    let blas = CudaBlas::new(g.stream.clone()).unwrap();
    let (m, n, k) = (3usize, 4usize, 5usize);
    let (x, y) = (values(2 * m * k), values(2 * k * n));
    let (a, b, mut c) = (g.put(&x), g.put(&y), g.stream.alloc_zeros::<f32>(2 * m * n).unwrap());
    let gemm = GemmConfig {
        transa: Op::CUBLAS_OP_N,
        transb: Op::CUBLAS_OP_N,
        m: 3,
        n: 4,
        k: 5,
        alpha: 1.0f32,
        lda: 3,
        ldb: 5,
        beta: 0.0,
        ldc: 3,
    };
    let config = StridedBatchedConfig { gemm, batch_size: 2, stride_a: 15, stride_b: 20, stride_c: 12 };
    // SAFETY: the sizes are those of the buffers.
    unsafe { blas.gemm_strided_batched(config, &a, &b, &mut c) }.unwrap();
    let c = g.stream.clone_dtoh(&c).unwrap();
    for i in 0..2 {
        let want = by_hand(m, n, k, (&x[i * 15..], 3, false), (&y[i * 20..], 5, false));
        assert!(close(&c[i * 12..][..12], &want));
    }
    for t in [false, true] {
        let (rows, inner) = if t { (5, 3) } else { (3, 5) };
        let (v, mut w) = (g.put(&values(inner)), g.stream.alloc_zeros::<f32>(2 * rows).unwrap());
        let trans = if t { Op::CUBLAS_OP_T } else { Op::CUBLAS_OP_N };
        let config = GemvConfig { trans, m: 3, n: 5, alpha: 1.0f32, lda: 3, incx: 1, beta: 0.0, incy: 2 };
        // SAFETY: as above.
        unsafe { blas.gemv(config, &a, &v, &mut w) }.unwrap();
        let want = by_hand(rows, 1, inner, (&x, 3, t), (&values(inner), inner, false));
        let got: Vec<f32> = g.stream.clone_dtoh(&w).unwrap().into_iter().step_by(2).collect();
        assert!(close(&got, &want), "{t} {got:?} {want:?}");
    }
}

#[test]
fn another_contexts_handle_is_refused() {
    let Some(lab) = lab() else { return };
    let g = gpu(0, TEXT);
    let blas = CudaBlas::new(g.stream.clone()).unwrap();
    let (a, mut c) = (g.put(&[1.0f32; 4]), g.put(&[0.0f32; 4]));
    CudaContext::new(1).unwrap().bind_to_thread().unwrap();
    let config = GemmConfig {
        transa: Op::CUBLAS_OP_N,
        transb: Op::CUBLAS_OP_N,
        m: 2,
        n: 2,
        k: 2,
        alpha: 1.0f32,
        lda: 2,
        ldb: 2,
        beta: 0.0,
        ldc: 2,
    };
    // SAFETY: the sizes are those of the buffers.
    assert!(unsafe { blas.gemm(config, &a, &a, &mut c) }.is_err());
    assert!(lab.standin.said().iter().any(|s| s.contains("bind the handle's context")));
    g.context.bind_to_thread().unwrap();
}

#[test]
fn epilogues_add_the_bias_and_cut() {
    let Some(_lab) = lab() else { return };
    let g = gpu(0, TEXT);
    let lt = CudaBlasLT::new(g.stream.clone()).unwrap();
    let (m, n, k) = (6usize, 4usize, 3usize);
    let (x, y, z) = (values(m * k), values(k * n), values(m));
    let (a, b, bias) = (g.put(&x), g.put(&y), g.put(&z));
    let plain = by_hand(m, n, k, (&x, k, true), (&y, k, false));
    for (with_bias, relu) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut c = g.stream.alloc_zeros::<f32>(m * n).unwrap();
        let config = MatmulConfig {
            transa: true,
            transb: false,
            transc: false,
            m: m as u64,
            n: n as u64,
            k: k as u64,
            alpha: 1.0,
            lda: k as i64,
            ldb: k as i64,
            beta: 0.0,
            ldc: m as i64,
            stride_a: None,
            stride_b: None,
            stride_c: None,
            stride_bias: None,
            batch_size: None,
        };
        let act = relu.then_some(Activation::Relu);
        // SAFETY: the sizes are those of the buffers.
        unsafe { lt.matmul(config, &a, &b, &mut c, with_bias.then_some(&bias), act.as_ref()) }.unwrap();
        let want: Vec<f32> = (0..m * n)
            .map(|i| plain[i] + if with_bias { z[i % m] } else { 0.0 })
            .map(|v| if relu { v.max(0.0) } else { v })
            .collect();
        assert!(close(&g.stream.clone_dtoh(&c).unwrap(), &want), "{with_bias} {relu}");
    }
}
