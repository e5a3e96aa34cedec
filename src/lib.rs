//! turret
pub mod base;
pub mod device;
pub mod graph;
pub mod ops;
pub mod train;
