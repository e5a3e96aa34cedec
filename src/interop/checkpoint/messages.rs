//! The messages of `tensor_bundle.proto` and what they hold, as far as checkpoints need them.

use crate::interop::graphdef::{TensorShapeProto, VersionDef};
use prost::Message;

/// `BundleHeaderProto`: what the first key, which is empty, holds.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BundleHeader {
    #[prost(int32, tag = "1")]
    pub num_shards: i32,
    /// 0 is little, 1 big.
    #[prost(int32, tag = "2")]
    pub endianness: i32,
    #[prost(message, optional, tag = "3")]
    pub version: Option<VersionDef>,
}

/// `BundleEntryProto`: where an array is.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BundleEntry {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
    #[prost(int32, tag = "3")]
    pub shard_id: i32,
    #[prost(int64, tag = "4")]
    pub offset: i64,
    #[prost(int64, tag = "5")]
    pub size: i64,
    #[prost(fixed32, tag = "6")]
    pub crc32c: u32,
    /// The parts of a partitioned array, each with an entry of its own.
    #[prost(message, repeated, tag = "7")]
    pub slices: Vec<TensorSlice>,
}

/// `TensorSliceProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorSlice {
    #[prost(message, repeated, tag = "1")]
    pub extent: Vec<Extent>,
}

/// `TensorSliceProto.Extent`: a run of one axis; all of it without a length.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Extent {
    #[prost(int64, tag = "1")]
    pub start: i64,
    #[prost(int64, optional, tag = "2")]
    pub length: Option<i64>,
}
