//! The messages of `event.proto`, `summary.proto` and `step_stats.proto`, as far as they are written and read here.

use crate::interop::graphdef::TensorShapeProto;
use prost::{Message, Oneof};

/// `Event`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventProto {
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(oneof = "What", tags = "3, 4, 5, 8")]
    pub what: Option<What>,
}

/// What an event is.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(bytes = "vec", tag = "4")]
    GraphDef(Vec<u8>),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "8")]
    TaggedRunMetadata(TaggedRunMetadata),
}

/// `Summary`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<SummaryValue>,
}

/// `Summary.Value`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SummaryValue {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(oneof = "Figure", tags = "2, 5")]
    pub figure: Option<Figure>,
}

/// The value of a `Summary.Value`.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Figure {
    #[prost(float, tag = "2")]
    Simple(f32),
    #[prost(message, tag = "5")]
    Histogram(HistogramProto),
}

/// `HistogramProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HistogramProto {
    #[prost(double, tag = "1")]
    pub min: f64,
    #[prost(double, tag = "2")]
    pub max: f64,
    #[prost(double, tag = "3")]
    pub num: f64,
    #[prost(double, tag = "4")]
    pub sum: f64,
    #[prost(double, tag = "5")]
    pub sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    pub bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub bucket: Vec<f64>,
}

/// `TaggedRunMetadata`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TaggedRunMetadata {
    #[prost(string, tag = "1")]
    pub tag: String,
    /// A `RunMetadata`.
    #[prost(bytes = "vec", tag = "2")]
    pub run_metadata: Vec<u8>,
}

/// `RunMetadata`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RunMetadataProto {
    #[prost(message, optional, tag = "1")]
    pub step_stats: Option<StepStats>,
}

/// `StepStats`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StepStats {
    #[prost(message, repeated, tag = "1")]
    pub dev_stats: Vec<DeviceStepStats>,
}

/// `DeviceStepStats`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DeviceStepStats {
    #[prost(string, tag = "1")]
    pub device: String,
    #[prost(message, repeated, tag = "2")]
    pub node_stats: Vec<NodeExecStats>,
}

/// `NodeExecStats`; times relative to `all_start_micros`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeExecStats {
    #[prost(string, tag = "1")]
    pub node_name: String,
    #[prost(int64, tag = "2")]
    pub all_start_micros: i64,
    #[prost(int64, tag = "3")]
    pub op_start_rel_micros: i64,
    #[prost(int64, tag = "4")]
    pub op_end_rel_micros: i64,
    #[prost(int64, tag = "5")]
    pub all_end_rel_micros: i64,
    #[prost(message, repeated, tag = "6")]
    pub memory: Vec<AllocatorMemoryUsed>,
    #[prost(message, repeated, tag = "7")]
    pub output: Vec<NodeOutput>,
    #[prost(string, tag = "8")]
    pub timeline_label: String,
    #[prost(uint32, tag = "10")]
    pub thread_id: u32,
    #[prost(int64, tag = "13")]
    pub all_start_nanos: i64,
    #[prost(int64, tag = "15")]
    pub op_end_rel_nanos: i64,
    #[prost(int64, tag = "16")]
    pub all_end_rel_nanos: i64,
}

/// `AllocatorMemoryUsed`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AllocatorMemoryUsed {
    #[prost(string, tag = "1")]
    pub allocator_name: String,
    #[prost(int64, tag = "2")]
    pub total_bytes: i64,
    #[prost(int64, tag = "3")]
    pub peak_bytes: i64,
}

/// `NodeOutput`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeOutput {
    #[prost(int32, tag = "1")]
    pub slot: i32,
    #[prost(message, optional, tag = "3")]
    pub tensor_description: Option<TensorDescription>,
}

/// `TensorDescription`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorDescription {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
    #[prost(message, optional, tag = "4")]
    pub allocation_description: Option<AllocationDescription>,
}

/// `AllocationDescription`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AllocationDescription {
    #[prost(int64, tag = "1")]
    pub requested_bytes: i64,
    #[prost(string, tag = "3")]
    pub allocator_name: String,
}
