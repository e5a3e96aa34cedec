//! TFRecord framing: length, its checksum, bytes, their checksum.

use crate::interop::checksum::masked;
use std::io::{self, Read};

/// The largest record that is read; a protocol buffer cannot be larger.
const MAX_RECORD: u64 = 1 << 31;

/// Appends a record.
pub(super) fn put(out: &mut Vec<u8>, record: &[u8]) {
    let length = (record.len() as u64).to_le_bytes();
    out.extend(length);
    out.extend(masked(&length).to_le_bytes());
    out.extend_from_slice(record);
    out.extend(masked(record).to_le_bytes());
}

/// What the next bytes of a file are.
pub(super) enum Next {
    /// A whole record.
    Record(Vec<u8>),
    /// The file ends, or ends within a record: its writer is not done, or was killed.
    End,
}

/// Reads a record.
///
/// # Errors
/// What is damaged, or what the file system says.
pub(super) fn next(reader: &mut impl Read) -> Result<Next, String> {
    let mut head = [0; 12];
    if !fill(reader, &mut head)? {
        return Ok(Next::End);
    }
    let (length, sum) = head.split_at(8);
    if masked(length).to_le_bytes() != sum {
        return Err("it is damaged, or no file of records: the checksum of a length is wrong".into());
    }
    let length = length.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    if length > MAX_RECORD {
        return Err(format!("it has a record of {length} bytes, more than any event has"));
    }
    // Memory is taken as bytes come, not as the length claims.
    let mut record = Vec::new();
    let read = reader.by_ref().take(length).read_to_end(&mut record).map_err(|e| e.to_string())?;
    let mut sum = [0; 4];
    if (read as u64) < length || !fill(reader, &mut sum)? {
        return Ok(Next::End);
    }
    match masked(&record).to_le_bytes() == sum {
        true => Ok(Next::Record(record)),
        false => Err("it is damaged: the checksum of a record is wrong".into()),
    }
}

/// Fills the buffer; false if the file ends before.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> Result<bool, String> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e.to_string()),
    }
}
