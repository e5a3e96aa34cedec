//! What files say of their arrays: names, element types that turret may not have, sizes.

use crate::base::DType;
use std::borrow::Cow;
use std::fmt;

/// The element type of an array in a file, by TensorFlow's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredType {
    name: Cow<'static, str>,
    size: Option<usize>,
}

/// TensorFlow's types: number in `types.proto`, name, bytes of an element where all have one size.
const TENSORFLOW: [(i32, &str, Option<usize>); 28] = [
    (1, "float32", Some(4)),
    (2, "float64", Some(8)),
    (3, "int32", Some(4)),
    (4, "uint8", Some(1)),
    (5, "int16", Some(2)),
    (6, "int8", Some(1)),
    (7, "string", None),
    (8, "complex64", Some(8)),
    (9, "int64", Some(8)),
    (10, "bool", Some(1)),
    (11, "qint8", Some(1)),
    (12, "quint8", Some(1)),
    (13, "qint32", Some(4)),
    (14, "bfloat16", Some(2)),
    (15, "qint16", Some(2)),
    (16, "quint16", Some(2)),
    (17, "uint16", Some(2)),
    (18, "complex128", Some(16)),
    (19, "float16", Some(2)),
    (20, "resource", None),
    (21, "variant", None),
    (22, "uint32", Some(4)),
    (23, "uint64", Some(8)),
    (24, "float8_e5m2", Some(1)),
    (25, "float8_e4m3fn", Some(1)),
    (29, "int4", None),
    (30, "uint4", None),
    (26, "float8_e4m3fnuz", Some(1)),
];

impl StoredType {
    /// A type by its name, with the bytes of an element where all have one size.
    pub(super) fn new(name: impl Into<Cow<'static, str>>, size: Option<usize>) -> StoredType {
        StoredType { name: name.into(), size }
    }

    /// The type of this number in TensorFlow's `DataType`.
    pub(in crate::interop) fn from_tensorflow(number: i32) -> StoredType {
        match TENSORFLOW.iter().find(|t| t.0 == number) {
            Some(&(_, name, size)) => StoredType::new(name, size),
            None => StoredType::new(format!("type {number}"), None),
        }
    }

    /// The number of this type in TensorFlow's `DataType`.
    pub(in crate::interop) fn tensorflow(&self) -> Option<i32> {
        TENSORFLOW.iter().find(|t| t.1 == self.name).map(|t| t.0)
    }

    /// The name, as in `float32`; of an unknown type what the file says.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of an element, where all have one size.
    pub fn size(&self) -> Option<usize> {
        self.size
    }

    /// The type as turret has it, if it holds such values.
    pub fn dtype(&self) -> Option<DType> {
        DType::from_name(&self.name).filter(|t| !t.is_opaque())
    }
}

impl From<DType> for StoredType {
    fn from(dtype: DType) -> StoredType {
        StoredType::new(dtype.name(), Some(dtype.size()))
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// One array of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArrayInfo {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub stored: StoredType,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Bytes of its elements.
    pub bytes: u64,
    /// In how many parts it is stored: TensorFlow's partitioned variables have several.
    pub parts: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_that_has_values_has_tensorflows_number() {
        for dtype in DType::ALL {
            let stored = StoredType::from(dtype);
            let number = stored.tensorflow().unwrap();
            let back = StoredType::from_tensorflow(number);
            assert_eq!((back.dtype(), back.size()), (Some(dtype), Some(dtype.size())));
        }
        assert_eq!(StoredType::from_tensorflow(7).dtype(), None);
        assert_eq!(StoredType::from_tensorflow(99).to_string(), "type 99");
    }
}
