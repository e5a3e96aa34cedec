//! TensorFlow's op signatures: how many inputs and outputs, of which types, and the attributes with their defaults.
//!
//! `signatures.txt` is the table; its head tells the form of a line and where it is from.

use super::proto::OpDef;
use crate::base::{DType, OpaqueType, Shape};
use crate::graph::{Attr, Attrs};
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

/// The most tensors that one argument of an op stands for; a file that claims more is wrong.
pub(super) const MAX_TENSORS: usize = 1 << 16;

/// An op's inputs, outputs and attributes.
#[derive(Clone, Debug, Default)]
pub struct Signature {
    /// The op type.
    pub name: String,
    /// True if it has effects or keeps state.
    pub stateful: bool,
    /// The inputs.
    pub inputs: Vec<Arg>,
    /// The outputs.
    pub outputs: Vec<Arg>,
    /// The attributes.
    pub attrs: Vec<AttrDecl>,
}

/// An input or output, which may stand for several tensors.
#[derive(Clone, Debug)]
pub struct Arg {
    /// Its name.
    pub name: String,
    /// How many tensors of which types.
    pub tensors: Tensors,
    /// True if it is the buffer of a variable rather than a value.
    pub is_ref: bool,
}

/// The tensors that an argument stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensors {
    /// One.
    One(TypeOf),
    /// As many as this attribute says, all of one type.
    Many(String, TypeOf),
    /// One of each type that this attribute lists.
    List(String),
}

/// The element type of an argument.
#[derive(Clone, Debug, PartialEq)]
pub enum TypeOf {
    /// Always this one.
    Fixed(DType),
    /// What this attribute says.
    Attr(String),
}

/// An attribute: its kind, and its value where it is left out.
#[derive(Clone, Debug)]
pub struct AttrDecl {
    /// Its name.
    pub name: String,
    /// The kind of its value.
    pub kind: AttrKind,
    /// The value where it is left out; `None` if it must be given.
    pub default: Option<Attr>,
}

/// A kind of attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrKind {
    /// The kind of a value, or of each value of a list.
    pub of: Kind,
    /// True for lists.
    pub list: bool,
}

/// The kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string of bytes.
    String,
    /// A 64-bit integer.
    Int,
    /// A 32-bit float.
    Float,
    /// A truth value.
    Bool,
    /// An element type.
    Type,
    /// A shape.
    Shape,
    /// A tensor.
    Tensor,
    /// A function of the library with attributes.
    Func,
}

const KINDS: [(Kind, &str); 8] = [
    (Kind::String, "string"),
    (Kind::Int, "int"),
    (Kind::Float, "float"),
    (Kind::Bool, "bool"),
    (Kind::Type, "type"),
    (Kind::Shape, "shape"),
    (Kind::Tensor, "tensor"),
    (Kind::Func, "func"),
];

impl fmt::Display for AttrKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(k, _)| *k == self.of).map_or("?", |(_, n)| n);
        if self.list { write!(f, "list({name})") } else { f.write_str(name) }
    }
}

/// The signature of an op type, if it is one that graphs of TensorFlow 1 have.
pub fn signature(op_type: &str) -> Option<Signature> {
    static LINES: OnceLock<HashMap<&str, &str>> = OnceLock::new();
    let lines = LINES.get_or_init(|| {
        let lines = include_str!("signatures.txt").lines().filter(|l| !l.starts_with('#'));
        lines.map(|l| (l.split(['(', '!']).next().unwrap_or(l), l)).collect()
    });
    lines.get(op_type).and_then(|line| parse(line))
}

/// The types of the table, in its order.
#[cfg(test)]
fn all() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("signatures.txt").lines().filter(|l| !l.starts_with('#'));
    lines.map(|l| l.split(['(', '!']).next().unwrap_or(l))
}

/// Reads `NAME!(inputs) -> (outputs) attributes`.
fn parse(line: &'static str) -> Option<Signature> {
    let (head, rest) = line.split_once('(')?;
    let (inputs, rest) = rest.split_once(") -> (")?;
    let (outputs, attrs) = rest.split_once(')')?;
    let attrs: Vec<AttrDecl> = attrs.split_whitespace().map(attr).collect::<Option<_>>()?;
    let args = |text: &'static str| -> Option<Vec<Arg>> {
        text.split(',').filter(|a| !a.is_empty()).map(|a| arg(a, &attrs)).collect()
    };
    Some(Signature {
        name: head.trim_end_matches('!').to_string(),
        stateful: head.ends_with('!'),
        inputs: args(inputs)?,
        outputs: args(outputs)?,
        attrs: attrs.clone(),
    })
}

fn arg(text: &str, attrs: &[AttrDecl]) -> Option<Arg> {
    let (name, tensors) = text.split_once(':')?;
    let type_of = |text: &str| match attrs.iter().any(|a| a.name == text) {
        true => TypeOf::Attr(text.to_string()),
        false => TypeOf::Fixed(DType::from_name(text).unwrap_or(DType::Opaque(OpaqueType::Unknown))),
    };
    let list = tensors.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let (many, one) = tensors.split_once('*').map_or((None, tensors), |(n, t)| (Some(n), t));
    let (is_ref, one) = one.strip_prefix('&').map_or((false, one), |t| (true, t));
    let tensors = match (list, many) {
        (Some(attr), _) => Tensors::List(attr.to_string()),
        (None, Some(number)) => Tensors::Many(number.to_string(), type_of(one)),
        (None, None) => Tensors::One(type_of(one)),
    };
    Some(Arg { name: name.to_string(), tensors, is_ref })
}

fn attr(text: &'static str) -> Option<AttrDecl> {
    let (name, rest) = text.split_once(':')?;
    let (kind, default) = rest.split_once('=').map_or((rest, None), |(k, d)| (k, Some(d)));
    let inner = kind.strip_prefix("list(").and_then(|k| k.strip_suffix(')'));
    let of = KINDS.iter().find(|(_, n)| *n == inner.unwrap_or(kind))?.0;
    let kind = AttrKind { of, list: inner.is_some() };
    let default = match default {
        // A default that is a tensor is left to TensorFlow.
        None | Some("<tensor>") => None,
        Some(text) => Some(value(kind, text)?),
    };
    Some(AttrDecl { name: name.to_string(), kind, default })
}

/// Reads a default.
fn value(kind: AttrKind, text: &str) -> Option<Attr> {
    if kind.list {
        let parts: Vec<&str> =
            text.strip_prefix('[')?.strip_suffix(']')?.split(',').filter(|p| !p.is_empty()).collect();
        return Some(match kind.of {
            Kind::Int => Attr::Ints(parts.iter().map(|p| p.parse().ok()).collect::<Option<_>>()?),
            Kind::Float => Attr::Floats(parts.iter().map(|p| p.parse().ok()).collect::<Option<_>>()?),
            Kind::Bool => Attr::Bools(parts.iter().map(|p| p.parse().ok()).collect::<Option<_>>()?),
            Kind::Type => Attr::Types(parts.iter().map(|p| DType::from_name(p)).collect::<Option<_>>()?),
            Kind::String => Attr::Strs(parts.iter().map(|p| serde_json::from_str(p).ok()).collect::<Option<_>>()?),
            // The table has no defaults of further entries.
            Kind::Shape | Kind::Tensor | Kind::Func => Attr::Shapes(Vec::new()),
        });
    }
    Some(match kind.of {
        Kind::String => Attr::Str(serde_json::from_str(text).ok()?),
        Kind::Int => Attr::Int(text.parse().ok()?),
        Kind::Float => Attr::Float(text.parse().ok()?),
        Kind::Bool => Attr::Bool(text.parse().ok()?),
        Kind::Type => Attr::Type(DType::from_name(text)?),
        Kind::Shape if text == "?" => Attr::Shape(Shape::unknown()),
        Kind::Shape => {
            let dims = text.strip_prefix('[')?.strip_suffix(']')?.split(',').filter(|p| !p.is_empty());
            Attr::Shape(Shape::partial(dims.map(|d| d.parse().ok())))
        }
        Kind::Tensor | Kind::Func => return None,
    })
}

impl Signature {
    /// The signature of a function of a graph's library.
    pub(super) fn of_function(function: &OpDef) -> Signature {
        let args = |args: &[super::proto::ArgDef]| {
            let arg = |a: &super::proto::ArgDef| {
                let of = match a.type_attr.is_empty() {
                    true => TypeOf::Fixed(super::dtype::from_number(a.r#type)),
                    false => TypeOf::Attr(a.type_attr.clone()),
                };
                let tensors = match (&a.type_list_attr[..], &a.number_attr[..]) {
                    ("", "") => Tensors::One(of),
                    ("", number) => Tensors::Many(number.to_string(), of),
                    (list, _) => Tensors::List(list.to_string()),
                };
                Arg { name: a.name.clone(), tensors, is_ref: false }
            };
            args.iter().map(arg).collect()
        };
        Signature {
            name: function.name.clone(),
            stateful: true,
            inputs: args(&function.input_arg),
            outputs: args(&function.output_arg),
            attrs: Vec::new(),
        }
    }

    /// The declaration of an attribute.
    pub fn attr(&self, name: &str) -> Option<&AttrDecl> {
        self.attrs.iter().find(|a| a.name == name)
    }

    /// An attribute of a node, or its default.
    fn value<'a>(&'a self, attrs: &'a Attrs, name: &str) -> Option<&'a Attr> {
        attrs.get(name).or_else(|| self.attr(name)?.default.as_ref())
    }

    /// The element types of all tensors of these arguments, for a node with these attributes.
    ///
    /// # Errors
    /// The attribute that is missing, or stands for too many tensors.
    pub fn types(&self, args: &[Arg], attrs: &Attrs) -> Result<Vec<DType>, String> {
        let missing = |name: &str| format!("attribute '{name}' is missing");
        let type_of = |of: &TypeOf| match of {
            TypeOf::Fixed(dtype) => Ok(*dtype),
            TypeOf::Attr(name) => match self.value(attrs, name) {
                Some(Attr::Type(dtype)) => Ok(*dtype),
                _ => Err(missing(name)),
            },
        };
        let mut types = Vec::new();
        for arg in args {
            match &arg.tensors {
                Tensors::One(of) => types.push(type_of(of)?),
                Tensors::Many(number, of) => {
                    let Some(Attr::Int(count)) = self.value(attrs, number) else { return Err(missing(number)) };
                    let room = MAX_TENSORS - types.len();
                    let count = usize::try_from(*count)
                        .ok()
                        .filter(|c| *c <= room)
                        .ok_or_else(|| format!("attribute '{number}' must be from 0 to {room}, got {count}"))?;
                    types.extend(std::iter::repeat_n(type_of(of)?, count));
                }
                Tensors::List(list) => match self.value(attrs, list) {
                    Some(Attr::Types(all)) if all.len() <= MAX_TENSORS - types.len() => types.extend(all),
                    Some(Attr::Types(all)) => return Err(format!("attribute '{list}' lists {} types", all.len())),
                    _ => return Err(missing(list)),
                },
            }
        }
        Ok(types)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read() {
        let mut names: Vec<&str> = Vec::new();
        for name in all() {
            let signature = signature(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(signature.name, name);
            for arg in signature.inputs.iter().chain(&signature.outputs) {
                let (of, number) = match &arg.tensors {
                    Tensors::One(of) => (Some(of), None),
                    Tensors::Many(number, of) => (Some(of), Some((number, Kind::Int))),
                    Tensors::List(list) => (None, Some((list, Kind::Type))),
                };
                if let Some(TypeOf::Attr(attr)) = of {
                    let kind = signature.attr(attr).unwrap_or_else(|| panic!("{name}: {attr}")).kind;
                    assert_eq!(kind, AttrKind { of: Kind::Type, list: false }, "{name}");
                }
                if let Some((attr, of)) = number {
                    assert_eq!(signature.attr(attr).map(|a| a.kind.of), Some(of), "{name}: {attr}");
                }
            }
            names.push(name);
        }
        assert!(names.len() > 900 && names.is_sorted_by(|a, b| a < b), "sorted, and none twice");
    }

    #[test]
    fn defaults_and_types_are_tensorflows() {
        let conv = signature("Conv2D").unwrap();
        assert!(!conv.stateful && conv.inputs.len() == 2);
        let default = |name: &str| conv.attr(name).unwrap().default.clone();
        assert_eq!(default("data_format"), Some(Attr::Str("NHWC".into())));
        assert_eq!(default("dilations"), Some(Attr::Ints(vec![1; 4])));
        assert_eq!(default("strides"), None);
        assert!(signature("VariableV2").is_some_and(|s| s.stateful && s.outputs[0].is_ref));
        let concat = signature("ConcatV2").unwrap();
        let attrs = Attrs::new().with("N", 2i64).with("T", DType::F64);
        assert_eq!(concat.types(&concat.inputs, &attrs), Ok(vec![DType::F64, DType::F64, DType::I32]));
        for count in [-1i64, 1 << 40] {
            let attrs = Attrs::new().with("N", count).with("T", DType::F64);
            assert!(concat.types(&concat.inputs, &attrs).is_err_and(|e| e.contains("'N' must be from 0")));
        }
        assert_eq!(concat.types(&concat.inputs, &Attrs::new()), Err("attribute 'N' is missing".into()));
        assert!(signature("NoSuchOp").is_none());
    }

    #[test]
    fn every_op_of_turret_is_tensorflows() {
        // Those that the exporter takes apart.
        let own = ["ApplyGradients", "AllReduceN"];
        for op in crate::ops::TABLE {
            assert!(own.contains(&op.name()) || signature(op.name()).is_some(), "{}", op.name());
        }
    }
}
