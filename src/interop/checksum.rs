//! CRC-32C as TensorFlow's files have it: rotated and moved, so that a sum over bytes with sums in them is no fixed point.

const DELTA: u32 = 0xa282_ead8;

/// The stored form of the sum of these bytes.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    mask(crc32c::crc32c(bytes))
}

/// The stored form of a sum.
pub(super) fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(DELTA)
}
