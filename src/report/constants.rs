//! How constants show in dumps: small ones whole, large ones as type, shape, digest and a few values.

use crate::base::{Array, Bool8};

/// The largest constant, in bytes, whose values are all shown.
pub const SHOWN_BYTES: usize = 1024;

/// Values shown of a larger one.
const FEW: usize = 4;

/// `float32[2] [1, 2]`; above [`SHOWN_BYTES`] `float32[1024] fnv1a:… [0, 0, 0, 0, …]`, the digest being that of the
/// bytes, by FNV-1a with 64 bits.
pub fn describe_array(array: &Array) -> String {
    let of = format!("{}{}", array.dtype(), array.shape());
    if array.bytes().len() <= SHOWN_BYTES {
        return format!("{of} {}", values(array, array.len(), ""));
    }
    format!("{of} fnv1a:{:016x} {}", digest(array.bytes()), values(array, FEW, ", …"))
}

/// The same with few values whatever the size, for labels.
pub(super) fn describe_briefly(array: &Array) -> String {
    let of = format!("{}{}", array.dtype(), array.shape());
    match array.bytes().len() <= SHOWN_BYTES {
        true if array.len() <= FEW => format!("{of} {}", values(array, FEW, "")),
        true => format!("{of} {}", values(array, FEW, ", …")),
        false => describe_array(array),
    }
}

fn values(array: &Array, count: usize, more: &str) -> String {
    let shown: Vec<String> = (0..array.len().min(count)).map(|i| value(array, i)).collect();
    format!("[{}{more}]", shown.join(", "))
}

/// One element in its own precision, so that 0.1 shows as 0.1.
fn value(array: &Array, i: usize) -> String {
    if let Ok(all) = array.as_slice::<f32>() {
        return all[i].to_string();
    }
    if let Ok(all) = array.as_slice::<Bool8>() {
        return all[i].get().to_string();
    }
    match array.to_i64() {
        Some(all) => all[i].to_string(),
        None => array.get_f64(i).to_string(),
    }
}

fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::IntoArray;

    #[test]
    fn large_arrays_show_a_digest_and_a_few_values() {
        assert_eq!(describe_array(&[0.1f32, -2.0].into_array()), "float32[2] [0.1, -2]");
        assert_eq!(describe_array(&true.into_array()), "bool[] [true]");
        let large = vec![1i64; 129].into_array();
        assert_eq!(describe_array(&large), describe_briefly(&large));
        assert!(describe_array(&large).ends_with(" [1, 1, 1, 1, …]"), "{}", describe_array(&large));
        let mut other = vec![1i64; 129];
        other[128] = 2;
        assert_ne!(describe_array(&large), describe_array(&other.into_array()));
    }
}
