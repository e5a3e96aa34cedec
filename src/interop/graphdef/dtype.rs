//! TensorFlow's `DataType` numbers.

use crate::base::{DType, OpaqueType};

/// Types and their numbers; reference types are 100 above.
const NUMBERS: [(DType, i32); 23] = [
    (DType::F32, 1),
    (DType::F64, 2),
    (DType::I32, 3),
    (DType::U8, 4),
    (DType::Opaque(OpaqueType::I16), 5),
    (DType::Opaque(OpaqueType::I8), 6),
    (DType::Opaque(OpaqueType::String), 7),
    (DType::Opaque(OpaqueType::C64), 8),
    (DType::I64, 9),
    (DType::Bool, 10),
    (DType::Opaque(OpaqueType::QI8), 11),
    (DType::Opaque(OpaqueType::QU8), 12),
    (DType::Opaque(OpaqueType::QI32), 13),
    (DType::BF16, 14),
    (DType::Opaque(OpaqueType::QI16), 15),
    (DType::Opaque(OpaqueType::QU16), 16),
    (DType::Opaque(OpaqueType::U16), 17),
    (DType::Opaque(OpaqueType::C128), 18),
    (DType::F16, 19),
    (DType::Opaque(OpaqueType::Resource), 20),
    (DType::Opaque(OpaqueType::Variant), 21),
    (DType::Opaque(OpaqueType::U32), 22),
    (DType::Opaque(OpaqueType::U64), 23),
];

/// The last number that a type may have: some newer types have numbers, but no names here.
const LAST: i32 = 40;

/// References to variables have their type's number and this.
const REFERENCE: i32 = 100;

/// The number of a type; 0, TensorFlow's invalid type, for one that is not known.
pub(super) fn number(dtype: DType) -> i32 {
    NUMBERS.iter().find(|(d, _)| *d == dtype).map_or(0, |(_, n)| *n)
}

/// The type of a number; references count as what they refer to.
pub(super) fn from_number(number: i32) -> DType {
    let number = if number > REFERENCE { number - REFERENCE } else { number };
    NUMBERS.iter().find(|(_, n)| *n == number).map_or(DType::Opaque(OpaqueType::Unknown), |(d, _)| *d)
}

/// As [`from_number`].
///
/// # Errors
/// For a number that no type has.
pub(super) fn checked(number: i32) -> Result<DType, String> {
    let is_type = |n: i32| (0..=LAST).contains(&n);
    if is_type(number) || is_type(number.wrapping_sub(REFERENCE)) {
        return Ok(from_number(number));
    }
    Err(format!("there is no element type {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_number() {
        let opaque = OpaqueType::ALL.iter().map(|&t| DType::Opaque(t));
        for dtype in DType::ALL.into_iter().chain(opaque) {
            let known = dtype != DType::Opaque(OpaqueType::Unknown);
            assert_eq!(number(dtype) != 0, known, "{dtype}");
            assert_eq!(checked(number(dtype)), Ok(dtype));
            assert!(!known || from_number(number(dtype) + REFERENCE) == dtype);
        }
        assert!([-1, 41, 99, 9999, i32::MIN].into_iter().all(|n| checked(n).is_err()));
    }
}
