//! Element types and the Rust types that store them.
//!
//! Absent: arithmetic; kernels live with their ops.

use half::{bf16, f16};
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
    /// `float16`, IEEE 754's binary16: stored, moved and cast, not computed with.
    F16,
    /// `bfloat16`, the upper half of a `float32`: stored, moved and cast, not computed with.
    BF16,
    /// `uint8`: stored, moved and cast, not computed with.
    U8,
    /// A type whose values turret does not hold; only nodes that are kept, not run, have such inputs or outputs.
    Opaque(OpaqueType),
}

macro_rules! opaque {
    ($($variant:ident = $name:literal,)*) => {
        /// TensorFlow's element types of which turret holds no values.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpaqueType {
            $(#[doc = concat!("`", $name, "`.")] $variant,)*
        }

        impl OpaqueType {
            /// Every such type.
            pub const ALL: &[OpaqueType] = &[$(OpaqueType::$variant),*];

            /// TensorFlow's name, as in `string`.
            pub fn name(self) -> &'static str {
                match self {
                    $(OpaqueType::$variant => $name,)*
                }
            }
        }
    };
}

opaque! {
    String = "string",
    Resource = "resource",
    Variant = "variant",
    I8 = "int8",
    I16 = "int16",
    U16 = "uint16",
    U32 = "uint32",
    U64 = "uint64",
    C64 = "complex64",
    C128 = "complex128",
    QI8 = "qint8",
    QU8 = "quint8",
    QI16 = "qint16",
    QU16 = "quint16",
    QI32 = "qint32",
    // What an op that turret does not know gives, where even TensorFlow's signature leaves the type open.
    Unknown = "unknown",
}

impl DType {
    /// Every element type that turret holds values of.
    pub const ALL: [DType; 8] =
        [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool, DType::F16, DType::BF16, DType::U8];

    /// Bytes per element; 0 for types of which no values are held.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
            DType::F16 | DType::BF16 => 2,
            DType::Bool | DType::U8 => 1,
            DType::Opaque(_) => 0,
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
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::U8 => "uint8",
            DType::Opaque(of) => of.name(),
        }
    }

    /// The type that [`DType::name`] gives this text, if any.
    pub fn from_name(name: &str) -> Option<DType> {
        let opaque = OpaqueType::ALL.iter().map(|&t| DType::Opaque(t));
        DType::ALL.into_iter().chain(opaque).find(|t| t.name() == name)
    }

    /// True for the floating types that are computed with and that gradients flow through: `float32` and `float64`.
    pub fn is_floating(self) -> bool {
        matches!(self, DType::F32 | DType::F64)
    }

    /// True for the types that there is arithmetic on: `float32`, `float64`, `int32`, `int64`.
    pub fn is_number(self) -> bool {
        self.is_floating() || self.is_integer()
    }

    /// True for the types of which turret holds no values.
    pub fn is_opaque(self) -> bool {
        matches!(self, DType::Opaque(_))
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

element!(f32 => DType::F32, f64 => DType::F64, i32 => DType::I32, i64 => DType::I64, Bool8 => DType::Bool,
         f16 => DType::F16, bf16 => DType::BF16, u8 => DType::U8);
