//! Running: sessions, the plans that they keep, their variables.
//!
//! A session plans each (feeds, fetches, targets, sizes) once, loads the plan, and from then on only launches it: the
//! host's part on the caller's thread, each GPU's on its queue. Invariant: one step at a time; the first failure ends
//! the step everywhere and leaves all variables as they were.

mod callable;
mod cuda;
mod executable;
mod feeds;
mod generators;
mod prepare;
mod remarks;
mod request;
mod room;
mod session;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
mod tiling;
mod trace;

pub use callable::Callable;
pub use session::{CudaOptions, DeviceMemoryUse, Session, SessionOptions};
pub use snapshot::{GeneratorPlaces, Snapshot};
pub use trace::{NodeSpan, RunMetadata};
