//! The driver's functions, each as cudarc's names and layouts have them.

pub mod contexts;
pub mod copies;
pub mod devices;
pub mod memory;
pub mod modules;
pub mod streams;
