//! Attributes: `AttrValue` to and from [`Attr`].

use super::dtype;
use super::proto::{AttrValue, ListValue, attr_value::Value};
use super::signatures::{AttrKind, Kind};
use super::tensor::{self, Budget};
use crate::base::Shape;
use crate::graph::Attr;
use prost::Message;

/// Reads an attribute; `kind` is what the op's signature says of it. What turret has no form for is kept as it is.
///
/// # Errors
/// A value of another kind, and what is wrong in types, shapes and tensors.
pub(super) fn read(proto: &AttrValue, kind: Option<AttrKind>, budget: &mut Budget) -> Result<Attr, String> {
    let raw = || Attr::Raw(proto.encode_to_vec().into());
    let Some(value) = &proto.value else { return Err("it has no value".into()) };
    if let (Some(want), Some(got)) = (kind, kind_of(value))
        && want != got
    {
        return Err(format!("want {want}, got {got}"));
    }
    Ok(match value {
        Value::S(bytes) => match String::from_utf8(bytes.clone()) {
            Ok(text) => Attr::Str(text),
            Err(_) => Attr::Bytes(bytes.clone()),
        },
        Value::I(v) => Attr::Int(*v),
        Value::F(v) => Attr::Float(*v),
        Value::B(v) => Attr::Bool(*v),
        Value::Type(v) => Attr::Type(dtype::checked(*v)?),
        Value::Shape(v) => Attr::Shape(tensor::read_shape(v)?),
        Value::Tensor(v) => match tensor::read(v, budget)? {
            Some(array) => Attr::Tensor(array.into()),
            None => raw(),
        },
        Value::Placeholder(_) | Value::Func(_) => raw(),
        Value::List(list) => match read_list(list, kind)? {
            Some(attr) => attr,
            None => raw(),
        },
    })
}

/// The kind of a value; none where it may be of any.
fn kind_of(value: &Value) -> Option<AttrKind> {
    let of = match value {
        Value::S(_) => Kind::String,
        Value::I(_) => Kind::Int,
        Value::F(_) => Kind::Float,
        Value::B(_) => Kind::Bool,
        Value::Type(_) => Kind::Type,
        Value::Shape(_) => Kind::Shape,
        Value::Tensor(_) => Kind::Tensor,
        Value::Func(_) => Kind::Func,
        Value::Placeholder(_) => return None,
        Value::List(list) => return list_kind(list).map(|of| AttrKind { of, list: true }),
    };
    Some(AttrKind { of, list: false })
}

/// The kind of a list's values; none if it is empty.
fn list_kind(list: &ListValue) -> Option<Kind> {
    let filled = [
        (Kind::String, list.s.is_empty()),
        (Kind::Int, list.i.is_empty()),
        (Kind::Float, list.f.is_empty()),
        (Kind::Bool, list.b.is_empty()),
        (Kind::Type, list.r#type.is_empty()),
        (Kind::Shape, list.shape.is_empty()),
        (Kind::Tensor, list.tensor.is_empty()),
        (Kind::Func, list.func.is_empty()),
    ];
    filled.into_iter().find(|(_, empty)| !empty).map(|(kind, _)| kind)
}

fn read_list(list: &ListValue, kind: Option<AttrKind>) -> Result<Option<Attr>, String> {
    if let (Some(want), None) = (kind, list_kind(list))
        && !want.list
    {
        return Err(format!("want {want}, got a list"));
    }
    let of = list_kind(list).or(kind.map(|k| k.of));
    Ok(Some(match of {
        Some(Kind::String) => {
            let texts = list.s.iter().map(|s| String::from_utf8(s.clone())).collect::<Result<_, _>>();
            let Ok(texts) = texts else { return Ok(None) };
            Attr::Strs(texts)
        }
        Some(Kind::Int) => Attr::Ints(list.i.clone()),
        Some(Kind::Float) => Attr::Floats(list.f.clone()),
        Some(Kind::Bool) => Attr::Bools(list.b.clone()),
        Some(Kind::Type) => Attr::Types(list.r#type.iter().map(|t| dtype::checked(*t)).collect::<Result<_, _>>()?),
        Some(Kind::Shape) => Attr::Shapes(list.shape.iter().map(tensor::read_shape).collect::<Result<_, _>>()?),
        Some(Kind::Tensor | Kind::Func) | None => return Ok(None),
    }))
}

/// Writes an attribute.
///
/// # Errors
/// When bytes that are kept as they were are no attribute's.
pub(super) fn write(attr: &Attr) -> Result<AttrValue, String> {
    let list = |list: ListValue| Value::List(list);
    let value = match attr {
        Attr::Bool(v) => Value::B(*v),
        Attr::Int(v) => Value::I(*v),
        Attr::Float(v) => Value::F(*v),
        Attr::Str(v) => Value::S(v.clone().into_bytes()),
        Attr::Bytes(v) => Value::S(v.clone()),
        Attr::Type(v) => Value::Type(dtype::number(*v)),
        Attr::Shape(v) => Value::Shape(tensor::write_shape(v)),
        Attr::Tensor(v) => Value::Tensor(Box::new(tensor::write(v))),
        Attr::Ints(v) => list(ListValue { i: v.clone(), ..ListValue::default() }),
        Attr::Bools(v) => list(ListValue { b: v.clone(), ..ListValue::default() }),
        Attr::Floats(v) => list(ListValue { f: v.clone(), ..ListValue::default() }),
        Attr::Strs(v) => {
            list(ListValue { s: v.iter().map(|s| s.clone().into_bytes()).collect(), ..ListValue::default() })
        }
        Attr::Types(v) => {
            list(ListValue { r#type: v.iter().map(|t| dtype::number(*t)).collect(), ..ListValue::default() })
        }
        Attr::Shapes(v) => list(ListValue { shape: v.iter().map(write_shape).collect(), ..ListValue::default() }),
        Attr::Raw(bytes) => return AttrValue::decode(&bytes[..]).map_err(|e| format!("kept bytes are no value: {e}")),
    };
    Ok(AttrValue { value: Some(value) })
}

fn write_shape(shape: &Shape) -> super::proto::TensorShapeProto {
    tensor::write_shape(shape)
}

/// The kind of an attribute of turret's; none where it may be of several.
pub(super) fn kind(attr: &Attr) -> Option<AttrKind> {
    let (of, list) = match attr {
        Attr::Bool(_) => (Kind::Bool, false),
        Attr::Int(_) => (Kind::Int, false),
        Attr::Float(_) => (Kind::Float, false),
        Attr::Str(_) | Attr::Bytes(_) => (Kind::String, false),
        Attr::Type(_) => (Kind::Type, false),
        Attr::Shape(_) => (Kind::Shape, false),
        Attr::Tensor(_) => (Kind::Tensor, false),
        Attr::Ints(_) => (Kind::Int, true),
        Attr::Bools(_) => (Kind::Bool, true),
        Attr::Floats(_) => (Kind::Float, true),
        Attr::Strs(_) => (Kind::String, true),
        Attr::Types(_) => (Kind::Type, true),
        Attr::Shapes(_) => (Kind::Shape, true),
        Attr::Raw(_) => return None,
    };
    Some(AttrKind { of, list })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Array, DType};

    #[test]
    fn every_kind_goes_both_ways() {
        let attrs = [
            Attr::Bool(true),
            Attr::Int(-3),
            Attr::Float(0.5),
            "text".into(),
            Attr::Bytes(vec![0xff, 0xfe]),
            DType::F64.into(),
            Shape::partial([Some(2), None]).into(),
            Shape::unknown().into(),
            Attr::Tensor(Array::scalar(3i64).into()),
            vec![1i64, 2].into(),
            vec![true].into(),
            vec![1.5f32].into(),
            vec!["a".to_string()].into(),
            vec![DType::F32, DType::Bool].into(),
            vec![Shape::scalar()].into(),
        ];
        for attr in attrs {
            let proto = write(&attr).unwrap();
            assert_eq!(read(&proto, kind(&attr), &mut Budget::new()), Ok(attr.clone()), "{attr:?}");
            assert_eq!(read(&proto, None, &mut Budget::new()), Ok(attr));
        }
    }

    #[test]
    fn empty_lists_go_by_the_signature() {
        let empty = AttrValue { value: Some(Value::List(ListValue::default())) };
        let list = |of| Some(AttrKind { of, list: true });
        let read = |kind| read(&empty, kind, &mut Budget::new());
        assert_eq!(read(list(Kind::Int)), Ok(Attr::Ints(Vec::new())));
        assert_eq!(read(list(Kind::String)), Ok(Attr::Strs(Vec::new())));
        assert!(matches!(read(None), Ok(Attr::Raw(_))));
        assert!(read(Some(AttrKind { of: Kind::Int, list: false })).is_err());
    }

    #[test]
    fn other_kinds_are_refused() {
        let int = Some(AttrKind { of: Kind::Int, list: false });
        let read = |attr: Attr| read(&write(&attr).unwrap(), int, &mut Budget::new());
        assert_eq!(read(true.into()), Err("want int, got bool".into()));
        assert_eq!(read(vec![1i64].into()), Err("want int, got list(int)".into()));
        assert!(super::read(&AttrValue { value: None }, int, &mut Budget::new()).is_err());
    }
}
