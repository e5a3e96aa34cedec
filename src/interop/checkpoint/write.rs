//! Writing a checkpoint, byte for byte as TensorFlow does.
//!
//! Invariant: the index is renamed last and names only data files that are complete. A checkpoint that is there keeps
//! its own until then, since the new one's are named as one of another number of files.

use super::messages::{BundleEntry, BundleHeader};
use super::read::{data_suffix, shards_of};
use super::table::TableWriter;
use crate::base::{Array, Code, Error, Result, Shape};
use crate::interop::arrays::StoredType;
use crate::interop::checksum::masked;
use crate::interop::files::{Folder, file_name, folder_of};
use crate::interop::graphdef::{VersionDef, write_shape};
use prost::Message;
use std::path::Path;

/// The most data files of a checkpoint that is written.
const MAX_SHARDS: usize = 10_000;

/// An array to write: its bytes, and their type as TensorFlow numbers it.
pub(in crate::interop) struct Item<'a> {
    pub name: &'a str,
    pub dtype: i32,
    pub dims: &'a [usize],
    pub bytes: &'a [u8],
}

impl<'a> Item<'a> {
    /// An array under a name.
    pub fn of(name: &'a str, array: &'a Array) -> Result<Item<'a>> {
        let dtype = StoredType::from(array.dtype()).tensorflow().ok_or_else(|| {
            Error::new(Code::Unimplemented, format!("'{name}': TensorFlow has no number for {}", array.dtype()))
        })?;
        Ok(Item { name, dtype, dims: array.dims(), bytes: array.bytes() })
    }
}

/// Writes `PREFIX.index` and `shards` data files `PREFIX.data-00000-of-…`, sorted by name and split by bytes. A checkpoint of
/// that prefix is replaced when all of the new one is on the disk; it then has a data file more, without bytes, if it
/// would have had as many as the old one.
///
/// # Errors
/// Names that are empty or twice there, no data file or too many, what the file system says; a checkpoint that was
/// there is as before.
pub fn write_checkpoint<N: AsRef<str>>(prefix: impl AsRef<Path>, arrays: &[(N, &Array)], shards: usize) -> Result<()> {
    let items = arrays.iter().map(|(name, array)| Item::of(name.as_ref(), array)).collect::<Result<_>>()?;
    let prefix = prefix.as_ref();
    let folder = Folder::lock(folder_of(prefix))?;
    write_items(&folder, file_name(prefix)?, items, shards)
}

/// As [`write_checkpoint`], in a folder that is locked.
pub(in crate::interop) fn write_items(
    folder: &Folder,
    name: &str,
    mut items: Vec<Item<'_>>,
    shards: usize,
) -> Result<()> {
    if !(1..=MAX_SHARDS).contains(&shards) {
        return Err(Error::invalid(format!("cannot write '{name}' as {shards} data files; want 1 to {MAX_SHARDS}")));
    }
    items.sort_by_key(|i| i.name);
    let same = items.windows(2).find(|pair| pair[0].name == pair[1].name);
    let odd = items.iter().find(|i| i.name.is_empty() || i.name.starts_with('\0'));
    if let Some(item) = same.map(|pair| &pair[0]).or(odd) {
        let why = if same.is_some() { "is there twice" } else { "is no name of an array" };
        return Err(Error::invalid(format!("cannot write '{name}': '{}' {why}", item.name)));
    }
    let old = shards_of(&folder.path(name)).filter(|&old| folder.has(&format!("{name}{}", data_suffix(0, old))));
    let files = if old == Some(shards as i32) { shards + 1 } else { shards } as i32;
    let written = write_aside(folder, &items, shards, files).and_then(|index| {
        let mut file = folder.create(INDEX_ASIDE)?;
        file.put(&index)?;
        file.finish()?;
        (0..files).try_for_each(|file| folder.rename(&aside(file), &format!("{name}{}", data_suffix(file, files))))?;
        folder.sync()?;
        folder.rename(INDEX_ASIDE, &format!("{name}.index"))
    });
    if written.is_err() {
        // No index names any of these files. The error to tell is the first one.
        let _ = (0..files).try_for_each(|file| folder.remove(&aside(file)));
        let _ = folder.remove(INDEX_ASIDE).and_then(|()| remove_data(folder, name, Some(files)));
        return written;
    }
    folder.sync()?;
    remove_data(folder, name, old)
}

/// Removes a checkpoint's files. One that is not there is none the less gone.
pub(in crate::interop) fn remove_checkpoint(folder: &Folder, name: &str) -> Result<()> {
    let shards = shards_of(&folder.path(name));
    folder.remove(&format!("{name}.index"))?;
    folder.remove(&format!("{name}.meta"))?;
    remove_data(folder, name, shards)
}

fn remove_data(folder: &Folder, name: &str, shards: Option<i32>) -> Result<()> {
    let shards = shards.unwrap_or(0);
    (0..shards).try_for_each(|shard| folder.remove(&format!("{name}{}", data_suffix(shard, shards))))
}

/// A folder has one writer at a time, so what a killed one left is written over.
const INDEX_ASIDE: &str = ".saving.index";

fn aside(file: i32) -> String {
    format!(".saving.data-{file:05}")
}

/// Writes the data files under names of their own; gives the index. Only the first `shards` of `files` have bytes.
fn write_aside(folder: &Folder, items: &[Item<'_>], shards: usize, files: i32) -> Result<Vec<u8>> {
    let header = BundleHeader {
        num_shards: files,
        endianness: 0,
        version: Some(VersionDef { producer: super::VERSION, ..VersionDef::default() }),
    };
    let mut index = TableWriter::default();
    index.add(b"", &header.encode_to_vec());
    let total: u128 = items.iter().map(|i| i.bytes.len() as u128).sum();
    let mut before = 0u128;
    let mut items = items.iter().peekable();
    for shard in 0..files {
        let mut file = folder.create(&aside(shard))?;
        let mut offset = 0;
        while let Some(item) = items.peek() {
            // The file in which an even split of all bytes has the item's first.
            let own = (before * shards as u128).checked_div(total).unwrap_or(0).min(shards as u128 - 1);
            if own as i32 > shard {
                break;
            }
            file.put(item.bytes)?;
            let entry = BundleEntry {
                dtype: item.dtype,
                shape: Some(write_shape(&Shape::known(item.dims))),
                shard_id: shard,
                offset,
                size: item.bytes.len() as i64,
                crc32c: masked(item.bytes),
                slices: Vec::new(),
            };
            index.add(item.name.as_bytes(), &entry.encode_to_vec());
            offset += item.bytes.len() as i64;
            before += item.bytes.len() as u128;
            items.next();
        }
        file.finish()?;
    }
    Ok(index.finish())
}
