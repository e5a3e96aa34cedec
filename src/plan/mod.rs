//! From a graph to a schedule: prune, place, partition, schedule. Each stage is a type of its own.
//!
//! ```text
//! nodes + signature → Placed, Pruned → Partitioned (fused) → Schedule
//! ```
//!
//! A pass is a function from one stage to the next. Invariant: passes only read the graph; what they find out is in
//! the stage, with the rule that decided.

#[cfg(test)]
mod all_reduce_tests;
mod buffers;
mod claims;
mod conditional;
mod fuse;
#[cfg(test)]
mod fuse_tests;
mod fusion;
mod memory;
mod narrow;
mod order;
#[cfg(test)]
mod order_tests;
mod partition;
mod passes;
#[cfg(test)]
mod passes_tests;
mod phases;
mod place;
#[cfg(test)]
mod planned_tests;
mod prune;
mod reach;
mod roots;
mod schedule;
mod sides;
mod signature;
mod stages;
mod step;
mod sweep;
mod tiling;
#[cfg(test)]
mod tiling_tests;
mod transposes;
mod twins;
mod updates;
#[cfg(test)]
mod updates_tests;

pub use conditional::{Resolved, resolve};
pub use fuse::fuse;
pub use fusion::{Fusion, Part, Streamed, Tiled};
pub use memory::{MemoryPlan, Region};
pub use partition::partition;
pub use passes::PassReport;
pub use phases::Phase;
pub use place::{DefaultDevice, Placed, Placement, PlacementOptions, place, place_all};
pub use prune::{Pruned, check_known, needed, prune};
pub use roots::Roots;
pub use schedule::{Schedule, lay_out, lay_out_timed, schedule};
pub use signature::{FeedSpec, Signature};
pub use stages::StageTimes;
pub use step::{
    AllReduceInfo, CopyInfo, Fetch, Origin, Partitioned, Route, StepNode, StepNodeId, StepNodeKind, Value, ValueId,
};
pub use tiling::tile;
pub(crate) use tiling::tile_desc;
