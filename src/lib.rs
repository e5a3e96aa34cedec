//! turret builds and runs data-parallel training graphs the way TensorFlow 1 did: named variables in a variable-scope
//! registry, pinned to the host or a GPU; one graph tower per GPU that reuses the variables by name; a planner that puts
//! in the copies between devices; averaged tower gradients; one apply-gradients node; a session that runs it all.
//!
//! # The data's way
//!
//! ```text
//! declare variables → build towers → gradients → average → apply      graph, ops, layers, train
//! prune → place → partition (copies) → schedule                       plan
//! run: session, programs, variable store                              run
//! other programs' files: checkpoints, arrays, TensorBoard's events     interop
//! tables, copy lists, dot, text                                       report
//! ```
//!
//! The modules below are listed in that order; each uses only those above it (a test sees to it).
//!
//! # A first program
//!
//! ```
//! use turret::base::{Array, DType};
//! use turret::graph::{Graph, Init};
//! use turret::run::{Session, SessionOptions};
//!
//! # fn main() -> turret::Result<()> {
//! let g = Graph::new();
//! // The variable lives on the host; what reads it, on a GPU.
//! let w = g.device("/cpu:0", || g.get_variable("w", [3, 1], Init::Constant(2.0)));
//! let x = g.placeholder(DType::F32, [None, Some(3)], "x");
//! let y = g.device("/gpu:0", || x.matmul(w));
//!
//! let session = Session::new(&g, SessionOptions::devices("sim:1")?)?;
//! session.initialize()?;
//! let rows = Array::new(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let out = session.run(&[(x, &rows)], &[y], &[])?;
//! assert_eq!(out[0].as_slice::<f32>()?, [12.0, 30.0]);
//! # Ok(())
//! # }
//! ```

pub mod base;
pub mod device;
pub mod graph;
pub mod ops;

pub mod layers;

pub mod train;

pub mod plan;

pub mod run;

pub mod interop;

pub mod report;

pub use base::{Error, Result};

/// The README's programs, compiled and run as tests of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
