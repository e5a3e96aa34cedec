//! Read-only views of graphs, plans and runs: tables, lists, copies, memory, stage dumps as text and dot, timelines.
//!
//! Every view is data first (serialisable, for programs) with its text form beside it (for people). Invariant: nothing
//! here changes or runs anything, and equal inputs give equal bytes.

mod constants;
mod copies;
mod cuda;
mod dot;
mod graph_text;
mod listing;
mod memory;
mod placement;
mod profile;
mod stage;
mod step_view;
mod tables;
mod text;
mod timeline;

pub use constants::{SHOWN_BYTES, describe_array};
pub use copies::{AllReduceRow, CopyRow, CopyTable};
pub use cuda::{CudaReport, LibraryRow};
pub use dot::dot_quote;
pub use graph_text::graph_text;
pub use listing::{gradient_listing, variable_listing};
pub use memory::{MemoryRow, MemoryTable};
pub use placement::{OpRow, PlacementSummary, PlacementTable, VariableRow};
pub use profile::{Profile, ProfileRow, ProfileTable, StepParts};
pub use stage::{NodeKind, NodeView, Stage, StageView};
pub use tables::{csv, human_bytes, table};
pub use timeline::{timeline, timeline_with_plan};
