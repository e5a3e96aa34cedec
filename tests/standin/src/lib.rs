//! A stand-in for CUDA on machines without a GPU: driver, NVRTC, cuBLAS, cuBLASLt, cuDNN and NCCL in one library, for tests.
//!
//! An unmodified cudarc runs on it, with as many GPUs as `TURRET_STANDIN_GPUS` says. Kernels are the very CUDA C texts,
//! compiled for the host. It is made to find mistakes: what is enqueued runs as late as it may and in a seeded random
//! order, memory starts as NaN, every access of a kernel is checked, two operations that share bytes without an order
//! are a race, and faults come on demand. What it does not have: time, a GPU's rounding, textures, managed memory,
//! cooperative launches, memory nodes of graphs, half precision.
//!
//! A test calls [`install()`] with a folder and gives that folder to the program, and asks [`Standin`] afterwards.
//!
//! | variable | meaning |
//! |---|---|
//! | `TURRET_STANDIN_GPUS` | how many GPUs there are; 2 |
//! | `TURRET_STANDIN_SEED` | of the order in which operations run; 1 |
//! | `TURRET_STANDIN_MEMORY` | bytes of a GPU; 2 GiB |
//! | `TURRET_STANDIN_PEERS` | `all`, `pairs` (0 with 1, 2 with 3) or `none` |
//! | `TURRET_STANDIN_FAULT` | see [`faults`] |
//! | `TURRET_STANDIN_DNN` | `none`: cuDNN has no algorithm for anything |
//! | `TURRET_STANDIN_RACES` | `fail` (races fail the context) or `log` |
//! | `TURRET_STANDIN_PATIENCE` | milliseconds that a collective waits for its ranks; 5000 |
//! | `TURRET_STANDIN_TRACE` | prints what runs |
//! | `TURRET_STANDIN_QUIET` | prints no reasons; [`Standin::said`] gives them |
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod blas;
mod bridge;
mod client;
mod clock;
mod codes;
mod control;
mod dnn;
mod driver;
pub mod faults;
mod fibers;
mod graph;
mod install;
mod kernel;
mod nccl;
mod nvrtc;
mod queue;
mod races;
mod scan;
mod signals;
mod space;
mod state;

pub use client::{Live, Standin};
pub use install::{NAMES, install, library, preload};
