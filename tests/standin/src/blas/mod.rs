//! cuBLAS and cuBLASLt: products by the `gemm` crate, at full precision whatever the math mode says.

pub mod handle;
pub mod lt;
pub mod product;
