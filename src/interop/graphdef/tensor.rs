//! Constants and shapes: `TensorProto` and `TensorShapeProto`, to and from arrays and shapes.

use super::dtype;
use super::proto::{Dim, TensorProto, TensorShapeProto};
use crate::base::{Array, Bool8, DType, Element, Shape, bf16, f16, num_elements};
use prost::bytes::Bytes;

/// TensorFlow's own bound.
const MAX_RANK: usize = 254;

/// What a file's constants may take beyond what the file holds of them, since a `TensorProto` may give one element for
/// all: 64 MiB for one graph.
pub(super) const MAX_EXPANDED: usize = 64 << 20;

/// What is left of [`MAX_EXPANDED`].
pub(super) struct Budget(usize);

impl Budget {
    /// The whole.
    pub fn new() -> Budget {
        Budget(MAX_EXPANDED)
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.0 = self.0.checked_sub(bytes).ok_or_else(|| {
            format!(
                "it lists fewer elements than it has, and what is to be filled up is over {} MiB in this graph; write \
                 it with all its elements, or as a Fill",
                MAX_EXPANDED >> 20
            )
        })?;
        Ok(())
    }
}

/// Reads a shape.
///
/// # Errors
/// Sizes below -1, and ranks that no tensor has.
pub(super) fn read_shape(shape: &TensorShapeProto) -> Result<Shape, String> {
    if shape.unknown_rank {
        return Ok(Shape::unknown());
    }
    if shape.dim.len() > MAX_RANK {
        return Err(format!("a shape has {} axes; no tensor has more than {MAX_RANK}", shape.dim.len()));
    }
    let size = |d: &Dim| match d.size {
        -1 => Ok(None),
        n => usize::try_from(n).map(Some).map_err(|_| format!("a shape has an axis of size {n}")),
    };
    Ok(Shape::partial(shape.dim.iter().map(size).collect::<Result<Vec<_>, _>>()?))
}

/// Writes a shape.
pub(in crate::interop) fn write_shape(shape: &Shape) -> TensorShapeProto {
    let size = |d: &Option<usize>| d.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1);
    let dim = |d: &Option<usize>| Dim { size: size(d), name: String::new() };
    TensorShapeProto {
        dim: shape.dims().into_iter().flatten().map(dim).collect(),
        unknown_rank: shape.rank().is_none(),
    }
}

/// Reads a constant: given as bytes, as a list of elements, or as a list of which the last element stands for the rest.
/// `None` if turret holds no values of its type.
///
/// # Errors
/// Sizes that are unknown, negative or too large, and bytes or elements that do not fit them.
pub(super) fn read(proto: &TensorProto, budget: &mut Budget) -> Result<Option<Array>, String> {
    let dtype = dtype::checked(proto.dtype)?;
    let shape = proto.tensor_shape.as_ref().map_or(Ok(Shape::scalar()), read_shape)?;
    let dims = shape.to_dims().ok_or_else(|| format!("a constant must have a known shape, got {shape}"))?;
    let elements = num_elements(&dims).filter(|n| n.checked_mul(dtype.size().max(1)).is_some_and(|b| b < 1 << 40));
    let elements = elements.ok_or_else(|| format!("a constant of shape {shape} is too large"))?;
    if dtype.is_opaque() {
        return Ok(None);
    }
    let bytes = elements * dtype.size();
    if !proto.tensor_content.is_empty() {
        if proto.tensor_content.len() != bytes {
            let got = proto.tensor_content.len();
            return Err(format!("a constant of {dtype} {shape} takes {bytes} bytes, its tensor_content has {got}"));
        }
        let mut array = Array::zeros(dtype, &dims).map_err(|e| e.to_string())?;
        array.bytes_mut().copy_from_slice(&proto.tensor_content);
        return Ok(Some(array));
    }
    let mut fill = Fill { dims: &dims, elements, budget };
    Ok(Some(match dtype {
        DType::F32 => fill.with(&proto.float_val, |v| v)?,
        DType::F64 => fill.with(&proto.double_val, |v| v)?,
        DType::I32 => fill.with(&proto.int_val, |v| v)?,
        DType::I64 => fill.with(&proto.int64_val, |v| v)?,
        DType::Bool => fill.with(&proto.bool_val, Bool8::from)?,
        DType::U8 => fill.with(&proto.int_val, |v| v as u8)?,
        DType::F16 => fill.with(&proto.half_val, |v| f16::from_bits(v as u16))?,
        DType::BF16 => fill.with(&proto.half_val, |v| bf16::from_bits(v as u16))?,
        DType::Opaque(_) => return Ok(None),
    }))
}

struct Fill<'a> {
    dims: &'a [usize],
    elements: usize,
    budget: &'a mut Budget,
}

impl Fill<'_> {
    fn with<S: Copy, T: Element>(&mut self, listed: &[S], element: impl Fn(S) -> T) -> Result<Array, String> {
        let missing = self.elements.checked_sub(listed.len()).ok_or_else(|| {
            format!("a constant of shape {} lists {} elements", Shape::known(self.dims), listed.len())
        })?;
        self.budget.take(missing * size_of::<T>())?;
        let mut array = Array::zeros(T::DTYPE, self.dims).map_err(|e| e.to_string())?;
        let elements = array.as_mut_slice::<T>().map_err(|e| e.to_string())?;
        elements.iter_mut().zip(listed).for_each(|(e, &l)| *e = element(l));
        if let Some(&last) = listed.last() {
            elements[listed.len()..].fill(element(last));
        }
        Ok(array)
    }
}

/// Writes a constant as TensorFlow does: a single element in a list, more as bytes.
pub(super) fn write(array: &Array) -> TensorProto {
    let mut proto = TensorProto {
        dtype: dtype::number(array.dtype()),
        tensor_shape: Some(write_shape(&array.shape())),
        ..TensorProto::default()
    };
    if array.len() != 1 {
        proto.tensor_content = Bytes::copy_from_slice(array.bytes());
        return proto;
    }
    fn first<T: Element>(array: &Array) -> Option<T> {
        array.as_slice::<T>().ok()?.first().copied()
    }
    match array.dtype() {
        DType::F32 => proto.float_val.extend(first::<f32>(array)),
        DType::F64 => proto.double_val.extend(first::<f64>(array)),
        DType::I32 => proto.int_val.extend(first::<i32>(array)),
        DType::I64 => proto.int64_val.extend(first::<i64>(array)),
        DType::Bool => proto.bool_val.extend(first::<Bool8>(array).map(Bool8::get)),
        DType::U8 => proto.int_val.extend(first::<u8>(array).map(i32::from)),
        DType::F16 => proto.half_val.extend(first::<f16>(array).map(|v| i32::from(v.to_bits()))),
        DType::BF16 => proto.half_val.extend(first::<bf16>(array).map(|v| i32::from(v.to_bits()))),
        DType::Opaque(_) => {}
    }
    proto
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(sizes: &[i64]) -> Option<TensorShapeProto> {
        let dim = sizes.iter().map(|&size| Dim { size, name: String::new() }).collect();
        Some(TensorShapeProto { dim, unknown_rank: false })
    }

    fn floats(sizes: &[i64], float_val: &[f32]) -> TensorProto {
        TensorProto { dtype: 1, tensor_shape: shape(sizes), float_val: float_val.into(), ..TensorProto::default() }
    }

    fn array(proto: &TensorProto) -> Result<Array, String> {
        read(proto, &mut Budget::new()).map(|a| a.expect("a type with values"))
    }

    #[test]
    fn every_form_is_read() {
        let of = |dims: &[usize], values: &[f32]| Array::new(dims, values).unwrap();
        assert_eq!(array(&floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0])), Ok(of(&[2, 2], &[1.0, 2.0, 3.0, 4.0])));
        assert_eq!(array(&floats(&[2, 2], &[1.0, 2.0])), Ok(of(&[2, 2], &[1.0, 2.0, 2.0, 2.0])));
        assert_eq!(array(&floats(&[3], &[7.0])), Ok(of(&[3], &[7.0; 3])));
        assert_eq!(array(&floats(&[2], &[])), Ok(of(&[2], &[0.0; 2])));
        assert_eq!(array(&floats(&[0, 4], &[])), Ok(of(&[0, 4], &[])));
        assert_eq!(array(&TensorProto { tensor_shape: None, ..floats(&[], &[5.0]) }), Ok(of(&[], &[5.0])));
        let half = TensorProto { dtype: 19, half_val: vec![0x3c00], ..floats(&[2], &[]) };
        assert_eq!(array(&half), Ok(Array::new(&[2], &[f16::ONE; 2]).unwrap()));
        let strings = TensorProto { dtype: 7, ..floats(&[2], &[]) };
        assert_eq!(read(&strings, &mut Budget::new()), Ok(None));
    }

    #[test]
    fn what_is_written_is_read_back_in_every_type() {
        for dtype in DType::ALL {
            for values in [vec![1.0], vec![0.0, 1.0, 3.0]] {
                let dims: &[usize] = if values.len() == 1 { &[] } else { &[3] };
                let written = Array::from_f64(dtype, dims, &values).unwrap();
                let proto = write(&written);
                assert_eq!(proto.tensor_content.is_empty(), values.len() == 1);
                assert_eq!(array(&proto), Ok(written));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let content = TensorProto { tensor_content: Bytes::from_static(&[0; 12]), ..floats(&[2], &[]) };
        for (proto, want) in [
            (content, "takes 8 bytes, its tensor_content has 12"),
            (floats(&[2], &[1.0; 3]), "lists 3 elements"),
            (floats(&[-1], &[]), "must have a known shape"),
            (floats(&[-7], &[]), "axis of size -7"),
            (floats(&[1 << 40, 1 << 40], &[1.0]), "too large"),
            (floats(&[i64::MAX], &[1.0]), "too large"),
            (floats(&[17 << 20], &[1.0]), "over 64 MiB"),
            (floats(&[1; 255], &[1.0]), "255 axes"),
            (TensorProto { dtype: 99, ..floats(&[], &[]) }, "no element type 99"),
        ] {
            assert!(array(&proto).is_err_and(|e| e.contains(want)), "{want}");
        }
        // The bound is for a whole graph.
        let mut budget = Budget::new();
        let part = floats(&[10 << 20], &[1.0]);
        assert!(read(&part, &mut budget).is_ok() && read(&part, &mut budget).is_err());
    }
}
