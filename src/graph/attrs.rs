//! Node attributes, as TensorFlow's NodeDef has them.

use crate::base::{Array, DType, Shape};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The value of one attribute.
#[derive(Clone, PartialEq)]
pub enum Attr {
    /// `bool`.
    Bool(bool),
    /// `int`.
    Int(i64),
    /// `float`.
    Float(f32),
    /// `string`.
    Str(String),
    /// `type`.
    Type(DType),
    /// `shape`.
    Shape(Shape),
    /// `tensor`: shared, since constants can be large.
    Tensor(Arc<Array>),
    /// `list(int)`.
    Ints(Vec<i64>),
    /// `list(bool)`.
    Bools(Vec<bool>),
    /// `list(string)`.
    Strs(Vec<String>),
    /// `list(type)`.
    Types(Vec<DType>),
    /// `list(float)`.
    Floats(Vec<f32>),
    /// `list(shape)`.
    Shapes(Vec<Shape>),
    /// A `string` that is no UTF-8.
    Bytes(Vec<u8>),
    /// An `AttrValue` that turret has no form for (functions, tensors of strings, …), as the protocol buffer has it.
    Raw(Arc<[u8]>),
}

impl fmt::Debug for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Bool(v) => write!(f, "{v}"),
            Attr::Int(v) => write!(f, "{v}"),
            Attr::Float(v) => write!(f, "{v}"),
            Attr::Str(v) => write!(f, "{v:?}"),
            Attr::Type(v) => write!(f, "{v}"),
            Attr::Shape(v) => write!(f, "{v}"),
            Attr::Tensor(v) => write!(f, "{v:?}"),
            Attr::Ints(v) => write!(f, "{v:?}"),
            Attr::Bools(v) => write!(f, "{v:?}"),
            Attr::Strs(v) => write!(f, "{v:?}"),
            Attr::Types(v) => write!(f, "{v:?}"),
            Attr::Floats(v) => write!(f, "{v:?}"),
            Attr::Shapes(v) => f.debug_list().entries(v.iter().map(|s| s.to_string())).finish(),
            Attr::Bytes(v) => write!(f, "\"{}\"", v.escape_ascii()),
            Attr::Raw(v) => write!(f, "<{} bytes>", v.len()),
        }
    }
}

macro_rules! from {
    ($($t:ty => $variant:ident),*) => {
        $(impl From<$t> for Attr {
            fn from(value: $t) -> Attr {
                Attr::$variant(value)
            }
        })*
    };
}

from!(bool => Bool, i64 => Int, f32 => Float, String => Str, DType => Type, Shape => Shape, Arc<Array> => Tensor,
      Vec<i64> => Ints, Vec<bool> => Bools, Vec<String> => Strs, Vec<DType> => Types,
      Vec<f32> => Floats, Vec<Shape> => Shapes, Vec<u8> => Bytes, Arc<[u8]> => Raw);

impl From<&str> for Attr {
    fn from(value: &str) -> Attr {
        Attr::Str(value.to_string())
    }
}

/// The attributes of a node, in the order in which they were given.
#[derive(Clone, Default, Debug, PartialEq)]
pub struct Attrs(Vec<(Cow<'static, str>, Attr)>);

impl Attrs {
    /// No attributes.
    pub fn new() -> Attrs {
        Attrs::default()
    }

    /// These attributes and one more; a later value replaces an earlier one.
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Attr>) -> Attrs {
        self.set(name, value);
        self
    }

    /// Sets one attribute.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Attr>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of an attribute, if it is set.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// All attributes.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attr)> {
        self.0.iter().map(|(n, v)| (n.as_ref(), v))
    }

    /// A bool; false where unset.
    pub fn bool(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Attr::Bool(true)))
    }

    /// An integer, if set.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.get(name) {
            Some(Attr::Int(v)) => Some(*v),
            _ => None,
        }
    }

    /// A float, if set.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.get(name) {
            Some(Attr::Float(v)) => Some(*v),
            _ => None,
        }
    }

    /// A string, if set.
    pub fn str(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Attr::Str(v)) => Some(v),
            _ => None,
        }
    }

    /// An element type, if set.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        match self.get(name) {
            Some(Attr::Type(v)) => Some(*v),
            _ => None,
        }
    }

    /// A shape, if set.
    pub fn shape(&self, name: &str) -> Option<&Shape> {
        match self.get(name) {
            Some(Attr::Shape(v)) => Some(v),
            _ => None,
        }
    }

    /// An array, if set.
    pub fn tensor(&self, name: &str) -> Option<&Arc<Array>> {
        match self.get(name) {
            Some(Attr::Tensor(v)) => Some(v),
            _ => None,
        }
    }

    /// A list of integers; empty where unset.
    pub fn ints(&self, name: &str) -> &[i64] {
        match self.get(name) {
            Some(Attr::Ints(v)) => v,
            _ => &[],
        }
    }

    /// A list of floats; empty where unset.
    pub fn floats(&self, name: &str) -> &[f32] {
        match self.get(name) {
            Some(Attr::Floats(v)) => v,
            _ => &[],
        }
    }

    /// A list of element types; empty where unset.
    pub fn types(&self, name: &str) -> &[DType] {
        match self.get(name) {
            Some(Attr::Types(v)) => v,
            _ => &[],
        }
    }

    /// A list of bools; empty where unset.
    pub fn bools(&self, name: &str) -> &[bool] {
        match self.get(name) {
            Some(Attr::Bools(v)) => v,
            _ => &[],
        }
    }

    /// A list of strings; empty where unset.
    pub fn strs(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(Attr::Strs(v)) => v,
            _ => &[],
        }
    }
}
