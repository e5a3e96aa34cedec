//! Partitioned arrays: the keys under which TensorFlow keeps the parts, and the whole made of them.
//!
//! Absent: writing parts; turret's variables are whole.

use super::messages::TensorSlice;
use crate::base::Array;
use std::ops::Range;

/// The most parts of one array that are read.
const MAX_PARTS: usize = 4096;

/// The key of a part: 0, the name, the rank, and start and length of each axis, in TensorFlow's ordered code. An axis that
/// is there whole has length -1.
pub(super) fn key(name: &str, slice: &TensorSlice) -> Vec<u8> {
    let mut key = Vec::new();
    put_count(&mut key, 0);
    for &byte in name.as_bytes() {
        match byte {
            0 => key.extend([0, 0xff]),
            0xff => key.extend([0xff, 0]),
            byte => key.push(byte),
        }
    }
    key.extend([0, 1]);
    put_count(&mut key, slice.extent.len() as u64);
    for extent in &slice.extent {
        put_signed(&mut key, extent.start);
        put_signed(&mut key, extent.length.unwrap_or(-1));
    }
    key
}

/// True of keys that are parts' and no names.
pub(super) fn is_part(key: &[u8]) -> bool {
    key.first() == Some(&0)
}

/// The number of bytes, then those without leading zeros.
fn put_count(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let used = &bytes[value.leading_zeros() as usize / 8..];
    out.push(used.len() as u8);
    out.extend_from_slice(used);
}

/// Big-endian in two's complement; as many leading bits as there are bytes repeat the sign, the next is its opposite.
fn put_signed(out: &mut Vec<u8>, value: i64) {
    let sign: u8 = if value < 0 { 0xff } else { 0 };
    let magnitude = if value < 0 { !value } else { value } as u64;
    let bits = 64 - magnitude.leading_zeros() as usize;
    // One bit of each byte goes to the length, one of all to the sign.
    let len = (bits / 7 + 1).min(10);
    let mut bytes = [sign; 10];
    bytes[2..].copy_from_slice(&value.to_be_bytes());
    let bytes = &mut bytes[10 - len..];
    for i in 0..len {
        bytes[i / 8] ^= 0x80 >> (i % 8);
    }
    out.extend_from_slice(bytes);
}

/// The ranges of a part in an array of these sizes.
///
/// # Errors
/// A part that is not inside.
pub(super) fn ranges(slice: &TensorSlice, shape: &[usize]) -> Result<Vec<Range<usize>>, String> {
    if slice.extent.len() != shape.len() {
        return Err(format!("a part has {} axes, the array {}", slice.extent.len(), shape.len()));
    }
    let axis = |(extent, &size): (&super::messages::Extent, &usize)| {
        let start = usize::try_from(extent.start).ok()?;
        let end = match extent.length {
            None => size,
            Some(length) => start.checked_add(usize::try_from(length).ok()?)?,
        };
        (start <= end && end <= size).then_some(start..end)
    };
    let all: Option<Vec<_>> = slice.extent.iter().zip(shape).map(axis).collect();
    all.ok_or_else(|| format!("a part is not inside of {shape:?}"))
}

/// Checks that parts make a whole: that they are apart, and together as large.
///
/// # Errors
/// What is missing or twice there.
pub(super) fn check_whole(parts: &[Vec<Range<usize>>], shape: &[usize]) -> Result<(), String> {
    if parts.len() > MAX_PARTS {
        return Err(format!("it has {} parts, more than the {MAX_PARTS} that are read", parts.len()));
    }
    let overlap =
        |a: &[Range<usize>], b: &[Range<usize>]| a.iter().zip(b).all(|(a, b)| a.start.max(b.start) < a.end.min(b.end));
    for (i, a) in parts.iter().enumerate() {
        if parts[..i].iter().any(|b| overlap(a, b)) {
            return Err(format!("its parts overlap at {a:?}"));
        }
    }
    let whole = shape.iter().try_fold(1u64, |n, &size| n.checked_mul(size as u64)).unwrap_or(u64::MAX);
    let volume =
        |part: &Vec<Range<usize>>| part.iter().try_fold(1u64, |n, r| n.checked_mul(r.len() as u64)).unwrap_or(u64::MAX);
    let sum = parts.iter().map(volume).fold(0u64, u64::saturating_add);
    match sum == whole {
        true => Ok(()),
        false => Err(format!("its parts have {sum} of {whole} elements")),
    }
}

/// Puts a part's bytes, in its own row-major order, where they belong in the whole.
pub(super) fn put(whole: &mut Array, part: &[Range<usize>], bytes: &[u8]) {
    let size = whole.dtype().size();
    let dims = whole.dims().to_vec();
    let (Some(last), false) = (part.last(), bytes.is_empty()) else {
        whole.bytes_mut().copy_from_slice(bytes);
        return;
    };
    let mut at: Vec<usize> = part.iter().map(|r| r.start).collect();
    for run in bytes.chunks_exact(last.len() * size) {
        let start = at.iter().zip(&dims).fold(0, |n, (i, d)| n * d + i) * size;
        whole.bytes_mut()[start..start + run.len()].copy_from_slice(run);
        for axis in (0..part.len() - 1).rev() {
            at[axis] += 1;
            if at[axis] < part[axis].end {
                break;
            }
            at[axis] = part[axis].start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(value: i64) -> Vec<u8> {
        let mut out = Vec::new();
        put_signed(&mut out, value);
        out
    }

    /// The examples in TensorFlow's `ordered_code.cc`, and its bounds of lengths.
    #[test]
    fn numbers_are_in_ordered_code() {
        assert_eq!(signed(0x424242), [0xf0, 0x42, 0x42, 0x42]);
        assert_eq!(signed(-0x800), [0x38, 0x00]);
        assert_eq!((signed(0), signed(-1)), (vec![0x80], vec![0x7f]));
        for (value, len) in [(63, 1), (-64, 1), (64, 2), (-65, 2), (8191, 2), (8192, 3), (i64::MAX, 10), (i64::MIN, 10)]
        {
            assert_eq!(signed(value).len(), len, "{value}");
        }
        let values =
            [i64::MIN, -1 << 55, -8193, -65, -1, 0, 1, 63, 64, 8192, 1 << 40, (1 << 55) - 1, 1 << 55, i64::MAX];
        let codes: Vec<_> = values.iter().map(|&v| signed(v)).collect();
        assert!(codes.is_sorted(), "{codes:x?}");
        let mut count = Vec::new();
        [0, 2, 300].into_iter().for_each(|n| put_count(&mut count, n));
        assert_eq!(count, [0, 1, 2, 2, 1, 44]);
    }

    #[test]
    fn parts_make_the_whole() {
        let mut whole = Array::zeros(crate::base::DType::I32, &[3, 4]).unwrap();
        let ints = |v: &[i32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let parts = [vec![0..3, 0..1], vec![0..1, 1..4], vec![1..3, 1..4]];
        check_whole(&parts, &[3, 4]).unwrap();
        put(&mut whole, &parts[0], &ints(&[0, 4, 8]));
        put(&mut whole, &parts[1], &ints(&[1, 2, 3]));
        put(&mut whole, &parts[2], &ints(&[5, 6, 7, 9, 10, 11]));
        assert_eq!(whole.to_i64().unwrap(), (0..12).collect::<Vec<_>>());
        assert!(check_whole(&parts[..2], &[3, 4]).unwrap_err().contains("6 of 12"));
        let from = |start: usize| std::iter::once(start..2).collect();
        assert!(check_whole(&[from(0), from(1)], &[2]).unwrap_err().contains("overlap"));
    }
}
