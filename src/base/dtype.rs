//! Element types and the Rust types that store them.
//!
//! Absent: arithmetic; kernels live with their ops.

use std::fmt;

/// The element type of a tensor, named as TensorFlow names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// `float32`.
    F32,
    /// `float64`.
    F64,
    /// `int32`.
    I32,
    /// `int64`.
    I64,
    /// `bool`, one byte an element, 0 or 1.
    Bool,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 5] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool];

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
            DType::Bool => 1,
        }
    }

    /// TensorFlow's name, as in `float32`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::Bool => "bool",
        }
    }

    /// The type that [`DType::name`] gives this text, if any.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|t| t.name() == name)
    }

    /// True for the types that gradients flow through.
    pub fn is_floating(self) -> bool {
        matches!(self, DType::F32 | DType::F64)
    }

    /// True for `int32` and `int64`.
    pub fn is_integer(self) -> bool {
        matches!(self, DType::I32 | DType::I64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A stored `bool`: any byte is a legal value, so a buffer that held something else can be viewed as one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(transparent)]
pub struct Bool8(pub u8);

impl Bool8 {
    /// The stored truth value.
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool8 {
    fn from(value: bool) -> Bool8 {
        Bool8(value as u8)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that stores the elements of one [`DType`]; every bit pattern of it is a legal value.
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The element type that this stores.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:expr),*) => {
        $(impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = $dtype;
        })*
    };
}

element!(f32 => DType::F32, f64 => DType::F64, i32 => DType::I32, i64 => DType::I64, Bool8 => DType::Bool);
