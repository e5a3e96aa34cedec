//! LevelDB's table format, in which TensorFlow keeps a checkpoint's index: sorted keys with values, in blocks that share
//! prefixes and carry checksums.
//!
//! Written by hand, as the crates for it check less than a file of unknown origin asks for, and none writes TensorFlow's
//! bytes. Absent: filters, and looking up single keys.

use crate::interop::checksum::mask;

/// What the last eight bytes of a table say.
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// Two handles in at most 20 bytes each, and the magic number.
const FOOTER: usize = 48;
/// Kind of compression and checksum, after each block.
const TRAILER: usize = 5;
/// Bytes after which a block ends.
const BLOCK: usize = 262_144;
/// Keys of a block between two that are stored whole.
const RESTART_EVERY: usize = 16;
/// The longest key that is read.
const MAX_KEY: usize = 1 << 14;
/// The largest block that is unpacked.
const MAX_BLOCK: usize = 1 << 27;

/// Where a block is: offset and length without its trailer.
type Handle = (usize, usize);

/// Why the end of a file is not that of a table.
pub(super) fn not_a_table(tail: &[u8]) -> Option<&'static str> {
    let is_table = tail.len() >= FOOTER && tail.ends_with(&MAGIC.to_le_bytes());
    (!is_table).then_some("it is no index of a checkpoint, or it is cut short")
}

/// Calls `take` with every key and value of a table, in order.
///
/// # Errors
/// What is damaged, or what `take` says.
pub(super) fn read(bytes: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Result<(), String>) -> Result<(), String> {
    if let Some(why) = not_a_table(bytes) {
        return Err(why.into());
    }
    let body = bytes.len() - FOOTER;
    let mut footer = &bytes[body..];
    let _metaindex = handle(&mut footer)?;
    let index = block(bytes, body, handle(&mut footer)?)?;
    let mut end = 0;
    let mut last: Vec<u8> = Vec::new();
    let mut first = true;
    // Keys share prefixes, so that few bytes can stand for long keys.
    let mut allowance = bytes.len().saturating_mul(64) + (1 << 20);
    entries(&index, |_, mut value| {
        let (start, len) = handle(&mut value)?;
        if start < end {
            return Err("its index names overlapping blocks".into());
        }
        end = start.saturating_add(len);
        entries(&block(bytes, body, (start, len))?, |key, value| {
            if !first && key <= &last[..] {
                return Err(format!("its keys are not in order at '{}'", String::from_utf8_lossy(key)));
            }
            allowance = allowance.checked_sub(key.len()).ok_or("its keys are far longer than the file")?;
            first = false;
            last.clear();
            last.extend_from_slice(key);
            take(key, value)
        })
    })
}

/// The contents of a block.
fn block(bytes: &[u8], body: usize, (start, len): Handle) -> Result<std::borrow::Cow<'_, [u8]>, String> {
    let end = start.checked_add(len).filter(|e| e.checked_add(TRAILER).is_some_and(|e| e <= body));
    let end = end.ok_or_else(|| format!("it is cut short: a block of {len} bytes at {start} ends behind the file"))?;
    let (contents, kind) = (&bytes[start..end], bytes[end]);
    let stored = u32_at(bytes, end + 1).ok_or("a block has no checksum")?;
    if mask(crc32c::crc32c(&bytes[start..=end])) != stored {
        return Err(format!("it is damaged: the checksum of its block at {start} is wrong"));
    }
    match kind {
        0 => Ok(contents.into()),
        1 => {
            let len = snap::raw::decompress_len(contents).map_err(|e| format!("a packed block is damaged: {e}"))?;
            // Snappy stands for at most 64 bytes with 3.
            if len > MAX_BLOCK || len > contents.len().saturating_mul(32) {
                return Err(format!("a block of {} bytes claims to be {len} unpacked", contents.len()));
            }
            let unpacked = snap::raw::Decoder::new().decompress_vec(contents);
            unpacked.map(Into::into).map_err(|e| format!("a packed block is damaged: {e}"))
        }
        other => Err(format!("a block is packed in an unknown way ({other})")),
    }
}

/// Calls `take` with every key and value of a block.
fn entries(block: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Result<(), String>) -> Result<(), String> {
    let cut = || "a block is cut short".to_string();
    let count = block.len().checked_sub(4).and_then(|at| u32_at(block, at)).ok_or_else(cut)?;
    let restarts = (count as usize).checked_mul(4).and_then(|n| block.len().checked_sub(4)?.checked_sub(n));
    let mut rest = &block[..restarts.ok_or_else(cut)?];
    let mut key: Vec<u8> = Vec::new();
    while !rest.is_empty() {
        let mut next = || varint(&mut rest).and_then(|n| usize::try_from(n).ok());
        let (Some(shared), Some(own), Some(value)) = (next(), next(), next()) else { return Err(cut()) };
        let end = own.checked_add(value).filter(|n| *n <= rest.len()).ok_or_else(cut)?;
        if shared > key.len() || shared.saturating_add(own) > MAX_KEY {
            return Err(format!("a key has {shared} bytes of one before it that has {}, and {own} more", key.len()));
        }
        key.truncate(shared);
        key.extend_from_slice(&rest[..own]);
        take(&key, &rest[own..end])?;
        rest = &rest[end..];
    }
    Ok(())
}

fn handle(bytes: &mut &[u8]) -> Result<Handle, String> {
    let mut next = || varint(bytes).and_then(|n| usize::try_from(n).ok());
    next().zip(next()).ok_or_else(|| "it is damaged: it says not where its blocks are".to_string())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(bytes).ok()
}

fn put_varint(out: &mut Vec<u8>, value: usize) {
    prost::encoding::encode_varint(value as u64, out);
}

/// Makes a table byte for byte as TensorFlow does, without compression.
#[derive(Default)]
pub(super) struct TableWriter {
    out: Vec<u8>,
    data: BlockWriter,
    index: BlockWriter,
    /// The last block, whose index entry waits for the next key.
    pending: Option<Handle>,
    last: Vec<u8>,
}

impl TableWriter {
    /// Adds a key above all before it.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        if key.len() + value.len() >= 2 * BLOCK {
            self.flush();
        }
        if let Some(handle) = self.pending.take() {
            let between = separator(&self.last, key);
            self.point(&between, handle);
        }
        self.data.add(key, value, RESTART_EVERY);
        self.last = key.to_vec();
        if self.data.len() >= BLOCK {
            self.flush();
        }
    }

    /// The whole table.
    pub fn finish(mut self) -> Vec<u8> {
        self.flush();
        let metaindex = self.write(BlockWriter::default());
        if let Some(handle) = self.pending.take() {
            let after = successor(&self.last);
            self.point(&after, handle);
        }
        let index = std::mem::take(&mut self.index);
        let index = self.write(index);
        let start = self.out.len();
        for (offset, len) in [metaindex, index] {
            put_varint(&mut self.out, offset);
            put_varint(&mut self.out, len);
        }
        self.out.resize(start + FOOTER - 8, 0);
        self.out.extend(MAGIC.to_le_bytes());
        self.out
    }

    fn point(&mut self, key: &[u8], (offset, len): Handle) {
        let mut value = Vec::new();
        put_varint(&mut value, offset);
        put_varint(&mut value, len);
        self.index.add(key, &value, 1);
    }

    fn flush(&mut self) {
        if !self.data.out.is_empty() {
            let data = std::mem::take(&mut self.data);
            self.pending = Some(self.write(data));
        }
    }

    fn write(&mut self, block: BlockWriter) -> Handle {
        let start = self.out.len();
        self.out.extend(block.finish());
        let len = self.out.len() - start;
        self.out.push(0);
        let sum = mask(crc32c::crc32c(&self.out[start..]));
        self.out.extend(sum.to_le_bytes());
        (start, len)
    }
}

#[derive(Default)]
struct BlockWriter {
    out: Vec<u8>,
    /// Where keys are stored whole, but for the first.
    restarts: Vec<u32>,
    since_restart: usize,
    last: Vec<u8>,
}

impl BlockWriter {
    fn add(&mut self, key: &[u8], value: &[u8], restart_every: usize) {
        let mut shared = 0;
        if self.since_restart < restart_every {
            shared = common_prefix(&self.last, key);
        } else {
            self.restarts.push(self.out.len() as u32);
            self.since_restart = 0;
        }
        put_varint(&mut self.out, shared);
        put_varint(&mut self.out, key.len() - shared);
        put_varint(&mut self.out, value.len());
        self.out.extend_from_slice(&key[shared..]);
        self.out.extend_from_slice(value);
        self.since_restart += 1;
        self.last = key.to_vec();
    }

    fn len(&self) -> usize {
        self.out.len() + 4 * (self.restarts.len() + 2)
    }

    fn finish(mut self) -> Vec<u8> {
        let restarts = std::iter::once(0).chain(self.restarts.iter().copied());
        self.out.extend(restarts.flat_map(u32::to_le_bytes));
        self.out.extend((self.restarts.len() as u32 + 1).to_le_bytes());
        self.out
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A short key from `last` on that is below `next`.
fn separator(last: &[u8], next: &[u8]) -> Vec<u8> {
    let at = common_prefix(last, next);
    match (last.get(at), next.get(at)) {
        (Some(&a), Some(&b)) if a < 0xff && a + 1 < b => [&last[..at], &[a + 1]].concat(),
        _ => last.to_vec(),
    }
}

/// A short key from `last` on.
fn successor(last: &[u8]) -> Vec<u8> {
    match last.iter().position(|&b| b != 0xff) {
        Some(at) => [&last[..at], &[last[at] + 1]].concat(),
        None => last.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    fn all(bytes: &[u8]) -> Result<Entries, String> {
        let mut found = Vec::new();
        read(bytes, |k, v| {
            found.push((k.to_vec(), v.to_vec()));
            Ok(())
        })?;
        Ok(found)
    }

    fn table(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let mut writer = TableWriter::default();
        pairs.iter().for_each(|(k, v)| writer.add(k, v));
        writer.finish()
    }

    #[test]
    fn what_is_written_is_read() {
        let name = |i: usize| format!("layer_{:05}/kernel", i).into_bytes();
        for count in [0, 1, 2, 17, 40_000] {
            let pairs: Vec<_> = (0..count).map(|i| (name(i), vec![i as u8; i % 40])).collect();
            assert_eq!(all(&table(&pairs)).unwrap(), pairs, "{count}");
        }
        // A value that is larger than a block.
        let pairs = vec![(b"a".to_vec(), vec![1]), (b"b".to_vec(), vec![2; 3 * BLOCK]), (b"c".to_vec(), vec![])];
        assert_eq!(all(&table(&pairs)).unwrap(), pairs);
    }

    #[test]
    fn packed_blocks_are_read() {
        let pairs: Vec<_> = (0..50u8).map(|i| (vec![b'k', i], vec![i; 100])).collect();
        let mut block = BlockWriter::default();
        pairs.iter().for_each(|(k, v)| block.add(k, v, RESTART_EVERY));
        let packed = snap::raw::Encoder::new().compress_vec(&block.finish()).unwrap();
        let mut writer = TableWriter::default();
        let mut trailed = packed.clone();
        trailed.push(1);
        let sum = mask(crc32c::crc32c(&trailed));
        writer.out.extend(trailed);
        writer.out.extend(sum.to_le_bytes());
        writer.pending = Some((0, packed.len()));
        writer.last = vec![b'k', 49];
        let bytes = writer.finish();
        assert_eq!(all(&bytes).unwrap(), pairs);
    }

    #[test]
    fn claims_are_held_against_what_is_there() {
        // A packed block that says it is huge.
        let mut claim = Vec::new();
        put_varint(&mut claim, u32::MAX as usize);
        claim.extend([0, 0, 0, 1]);
        let sum = mask(crc32c::crc32c(&claim));
        let mut writer = TableWriter::default();
        writer.out.extend(&claim);
        writer.out.extend(sum.to_le_bytes());
        writer.pending = Some((0, claim.len() - 1));
        writer.last = b"k".to_vec();
        let e = all(&writer.finish()).unwrap_err();
        assert!(e.contains("claims to be 4294967295"), "{e}");
        // One block that the index names twice.
        let mut writer = TableWriter::default();
        writer.add(b"a", b"1");
        writer.flush();
        let at = writer.pending.unwrap();
        writer.point(b"a", at);
        assert!(all(&writer.finish()).unwrap_err().contains("overlapping"));
        // Keys that go back.
        let mut writer = TableWriter::default();
        writer.add(b"b", b"1");
        writer.add(b"a", b"1");
        assert!(all(&writer.finish()).unwrap_err().contains("not in order"));
    }

    #[test]
    fn separators_are_short_and_between() {
        assert_eq!(separator(b"the quick brown fox", b"the who"), b"the r");
        assert_eq!(separator(b"abc", b"abd"), b"abc");
        assert_eq!(separator(b"ab", b"abc"), b"ab");
        assert_eq!((successor(b"ids"), successor(b"\xff\xff")), (b"j".to_vec(), b"\xff\xff".to_vec()));
    }
}
