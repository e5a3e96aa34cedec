//! turret
pub mod base;
pub mod device;
pub mod graph;
pub mod ops;
pub mod plan;
pub mod run;
pub mod train;
