//! TensorFlow's messages, as far as turret reads or writes them, derived by hand for prost.
//!
//! Field numbers are those of tensorflow/core/framework and tensorflow/core/protobuf (Apache-2.0). Parts that are only
//! carried along (functions, debug information, full types) are kept as bytes, which have the same form on the wire.

use prost::bytes::Bytes;
use prost::{Message, Oneof};
use std::collections::BTreeMap;

/// A graph: `tensorflow.GraphDef`.
#[derive(Clone, PartialEq, Message)]
pub struct GraphDef {
    /// The nodes, in any order.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeDef>,
    /// The versions of who wrote it.
    #[prost(message, optional, tag = "4")]
    pub versions: Option<VersionDef>,
    /// The version of old files.
    #[prost(int32, tag = "3")]
    pub version: i32,
    /// A `FunctionDefLibrary`.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub library: Option<Bytes>,
    /// A `GraphDebugInfo`.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub debug_info: Option<Bytes>,
}

/// `tensorflow.VersionDef`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VersionDef {
    /// The version of the code that wrote the graph.
    #[prost(int32, tag = "1")]
    pub producer: i32,
    /// The oldest version that can read it.
    #[prost(int32, tag = "2")]
    pub min_consumer: i32,
    /// Versions that cannot.
    #[prost(int32, repeated, tag = "3")]
    pub bad_consumers: Vec<i32>,
}

/// A node: `tensorflow.NodeDef`.
#[derive(Clone, PartialEq, Message)]
pub struct NodeDef {
    /// Its unique name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its op type.
    #[prost(string, tag = "2")]
    pub op: String,
    /// `a`, `b:1`, then control inputs `^d`.
    #[prost(string, repeated, tag = "3")]
    pub input: Vec<String>,
    /// The device that it asks for; empty if none.
    #[prost(string, tag = "4")]
    pub device: String,
    /// The attributes, by name.
    #[prost(btree_map = "string, message", tag = "5")]
    pub attr: BTreeMap<String, AttrValue>,
    /// A `NodeDef.ExperimentalDebugInfo`.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub experimental_debug_info: Option<Bytes>,
    /// A `FullTypeDef`.
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub experimental_type: Option<Bytes>,
}

/// An attribute's value: `tensorflow.AttrValue`.
#[derive(Clone, PartialEq, Message)]
pub struct AttrValue {
    /// The value, of one of the kinds.
    #[prost(oneof = "attr_value::Value", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub value: Option<attr_value::Value>,
}

/// The kinds of an [`AttrValue`].
pub mod attr_value {
    use super::{Bytes, ListValue, Oneof, TensorProto, TensorShapeProto};

    /// The value, of one of the kinds.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Value {
        /// A list.
        #[prost(message, tag = "1")]
        List(ListValue),
        /// `string`.
        #[prost(bytes = "vec", tag = "2")]
        S(Vec<u8>),
        /// `int`.
        #[prost(int64, tag = "3")]
        I(i64),
        /// `float`.
        #[prost(float, tag = "4")]
        F(f32),
        /// `bool`.
        #[prost(bool, tag = "5")]
        B(bool),
        /// `type`: a `DataType`.
        #[prost(int32, tag = "6")]
        Type(i32),
        /// `shape`.
        #[prost(message, tag = "7")]
        Shape(TensorShapeProto),
        /// `tensor`.
        #[prost(message, boxed, tag = "8")]
        Tensor(Box<TensorProto>),
        /// The name of an attribute of the function around it.
        #[prost(string, tag = "9")]
        Placeholder(String),
        /// `func`: a `NameAttrList`.
        #[prost(bytes = "bytes", tag = "10")]
        Func(Bytes),
    }
}

/// `tensorflow.AttrValue.ListValue`; at most one of the lists has entries.
#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    /// `list(string)`.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub s: Vec<Vec<u8>>,
    /// `list(int)`.
    #[prost(int64, repeated, tag = "3")]
    pub i: Vec<i64>,
    /// `list(float)`.
    #[prost(float, repeated, tag = "4")]
    pub f: Vec<f32>,
    /// `list(bool)`.
    #[prost(bool, repeated, tag = "5")]
    pub b: Vec<bool>,
    /// `list(type)`.
    #[prost(int32, repeated, tag = "6")]
    pub r#type: Vec<i32>,
    /// `list(shape)`.
    #[prost(message, repeated, tag = "7")]
    pub shape: Vec<TensorShapeProto>,
    /// `list(tensor)`: `TensorProto`s.
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub tensor: Vec<Bytes>,
    /// `list(func)`: `NameAttrList`s.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub func: Vec<Bytes>,
}

/// `tensorflow.TensorShapeProto`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TensorShapeProto {
    /// The sizes.
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<Dim>,
    /// True if not even the rank is known.
    #[prost(bool, tag = "3")]
    pub unknown_rank: bool,
}

/// `tensorflow.TensorShapeProto.Dim`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Dim {
    /// The size; -1 if unknown.
    #[prost(int64, tag = "1")]
    pub size: i64,
    /// A name that nothing reads.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A constant: `tensorflow.TensorProto`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// A `DataType`.
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    /// The sizes.
    #[prost(message, optional, tag = "2")]
    pub tensor_shape: Option<TensorShapeProto>,
    /// Always 0.
    #[prost(int32, tag = "3")]
    pub version_number: i32,
    /// All elements, little-endian; instead of one of the lists below.
    #[prost(bytes = "bytes", tag = "4")]
    pub tensor_content: Bytes,
    /// `float32`; of each list the last entry stands for all further elements.
    #[prost(float, repeated, tag = "5")]
    pub float_val: Vec<f32>,
    /// `float64`.
    #[prost(double, repeated, tag = "6")]
    pub double_val: Vec<f64>,
    /// `int32` and all narrower integers.
    #[prost(int32, repeated, tag = "7")]
    pub int_val: Vec<i32>,
    /// `string`.
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub string_val: Vec<Bytes>,
    /// `complex64`, real and imaginary parts in turn.
    #[prost(float, repeated, tag = "9")]
    pub scomplex_val: Vec<f32>,
    /// `int64`.
    #[prost(int64, repeated, tag = "10")]
    pub int64_val: Vec<i64>,
    /// `bool`.
    #[prost(bool, repeated, tag = "11")]
    pub bool_val: Vec<bool>,
    /// `complex128`.
    #[prost(double, repeated, tag = "12")]
    pub dcomplex_val: Vec<f64>,
    /// `float16` and `bfloat16`: the bits.
    #[prost(int32, repeated, tag = "13")]
    pub half_val: Vec<i32>,
    /// `ResourceHandleProto`s.
    #[prost(bytes = "bytes", repeated, tag = "14")]
    pub resource_handle_val: Vec<Bytes>,
    /// `VariantTensorDataProto`s.
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub variant_val: Vec<Bytes>,
    /// `uint32`.
    #[prost(uint32, repeated, tag = "16")]
    pub uint32_val: Vec<u32>,
    /// `uint64`.
    #[prost(uint64, repeated, tag = "17")]
    pub uint64_val: Vec<u64>,
    /// The float8 types: the bits.
    #[prost(bytes = "bytes", tag = "18")]
    pub float8_val: Bytes,
}

/// The part of `tensorflow.FunctionDefLibrary` that tells what a call gives.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FunctionDefLibrary {
    #[prost(message, repeated, tag = "1")]
    pub function: Vec<FunctionDef>,
}

/// The head of `tensorflow.FunctionDef`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FunctionDef {
    #[prost(message, optional, tag = "1")]
    pub signature: Option<OpDef>,
}

/// The part of `tensorflow.OpDef` that tells inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OpDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub input_arg: Vec<ArgDef>,
    #[prost(message, repeated, tag = "3")]
    pub output_arg: Vec<ArgDef>,
}

/// `tensorflow.OpDef.ArgDef`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ArgDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int32, tag = "3")]
    pub r#type: i32,
    #[prost(string, tag = "4")]
    pub type_attr: String,
    #[prost(string, tag = "5")]
    pub number_attr: String,
    #[prost(string, tag = "6")]
    pub type_list_attr: String,
}

/// `tensorflow.SavedModel`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SavedModel {
    #[prost(int64, tag = "1")]
    pub saved_model_schema_version: i64,
    #[prost(message, repeated, tag = "2")]
    pub meta_graphs: Vec<MetaGraphDef>,
}

/// `tensorflow.MetaGraphDef`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MetaGraphDef {
    #[prost(message, optional, tag = "1")]
    pub meta_info_def: Option<MetaInfoDef>,
    #[prost(message, optional, tag = "2")]
    pub graph_def: Option<GraphDef>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub collection_def: BTreeMap<String, CollectionDef>,
}

/// `tensorflow.MetaGraphDef.MetaInfoDef`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MetaInfoDef {
    #[prost(string, repeated, tag = "4")]
    pub tags: Vec<String>,
}

/// `tensorflow.CollectionDef`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CollectionDef {
    #[prost(message, optional, tag = "1")]
    pub node_list: Option<NodeList>,
    #[prost(message, optional, tag = "2")]
    pub bytes_list: Option<BytesList>,
}

/// Names of nodes or tensors.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeList {
    #[prost(string, repeated, tag = "1")]
    pub value: Vec<String>,
}

/// Messages, such as `VariableDef`s.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BytesList {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub value: Vec<Bytes>,
}

/// `tensorflow.VariableDef`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct VariableDef {
    #[prost(string, tag = "1")]
    pub variable_name: String,
    #[prost(string, tag = "2")]
    pub initializer_name: String,
    #[prost(string, tag = "3")]
    pub snapshot_name: String,
}
