//! TensorFlow's `GraphDef`, in and out, as protocol buffer and as text.

mod attr;
mod dtype;
mod proto;
mod signatures;
mod tensor;
mod text;

pub use proto::{AttrValue, Dim, GraphDef, ListValue, NodeDef, TensorProto, TensorShapeProto, VersionDef, attr_value};
pub use signatures::{Arg, AttrDecl, AttrKind, Kind, Signature, Tensors, TypeOf, signature};
