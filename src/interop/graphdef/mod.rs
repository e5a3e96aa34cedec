//! TensorFlow's `GraphDef`, in and out, as protocol buffer and as text.

mod apply;
mod attr;
mod dtype;
mod expand;
mod export;
mod file;
mod import;
mod inline;
mod order;
mod origin;
mod proto;
mod signatures;
mod tensor;
mod text;
mod variables;

pub use export::{export_graph, export_placed};
pub use file::{GraphFile, read_graph, write_graph};
pub(crate) use import::LEFT_OUT;
pub use import::import_graph;
pub use inline::inline_functions;
pub use proto::{AttrValue, Dim, GraphDef, ListValue, NodeDef, TensorProto, TensorShapeProto, VersionDef, attr_value};
pub use signatures::{Arg, AttrDecl, AttrKind, Kind, Signature, Tensors, TypeOf, signature};
pub(super) use tensor::write_shape;
