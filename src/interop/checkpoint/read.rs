//! Reading a checkpoint: its index at once, its arrays one by one.
//!
//! Invariant: opening checks every claim of the index against the files; after that, only damaged bytes of an array can
//! be wrong, which its checksum shows.

use super::messages::{BundleEntry, BundleHeader};
use super::{slices, table};
use crate::base::{Array, Code, Error, Result, num_elements};
use crate::interop::arrays::{ArrayInfo, StoredType};
use crate::interop::checksum::masked;
use crate::interop::files::{damaged, failed, file_name, folder_of, open};
use indexmap::IndexMap;
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The largest index that is read; those of a million variables take a tenth of it.
const MAX_INDEX: u64 = 1 << 30;

/// A checkpoint in TensorFlow's V2 format: `PREFIX.index` and `PREFIX.data-00000-of-00001`, of as many parts as it has.
pub struct Checkpoint {
    prefix: PathBuf,
    shards: i32,
    arrays: IndexMap<String, (ArrayInfo, Place)>,
}

/// Where an array's bytes are.
enum Place {
    Whole(Run),
    /// Parts, each with its ranges.
    Parts(Vec<(Vec<Range<usize>>, Run)>),
}

/// A run of bytes in one of the data files, and its checksum.
#[derive(Clone, Copy)]
struct Run {
    shard: i32,
    offset: u64,
    size: u64,
    crc32c: u32,
}

/// `PREFIX.index`.
pub(super) fn index_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".index")
}

/// The suffix of data file `shard` of `shards`.
pub(super) fn data_suffix(shard: i32, shards: i32) -> String {
    format!(".data-{shard:05}-of-{shards:05}")
}

fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// The bytes of an index file.
fn index_bytes(path: &Path) -> Result<Vec<u8>> {
    let (mut file, len) = open(path)?;
    if len > MAX_INDEX {
        return Err(damaged(path, format!("it has {len} bytes; no index of a checkpoint has more than {MAX_INDEX}")));
    }
    // What is no table is told by its end, before all of it is read.
    let end = len.min(48);
    let mut tail = vec![0; end as usize];
    let read = file.seek(SeekFrom::End(-(end as i64))).and_then(|_| file.read_exact(&mut tail));
    read.map_err(|e| failed("read", path, &e))?;
    if let Some(why) = table::not_a_table(&tail) {
        return Err(damaged(path, why));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(len).read_to_end(&mut bytes));
    read.map_err(|e| failed("read", path, &e))?;
    Ok(bytes)
}

/// The error of an index that is not there, with what there is instead.
fn absent(prefix: &Path, error: Error) -> Error {
    const SHOWN: usize = 4;
    if prefix.is_file() {
        let what = "it is a file by itself; turret reads checkpoints of format V2, which are an index and data files";
        return damaged(prefix, what);
    }
    let (Ok(entries), Ok(name)) = (std::fs::read_dir(folder_of(prefix)), file_name(prefix)) else { return error };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut like: Vec<String> =
        names.filter_map(|n| n.strip_suffix(".index").filter(|n| n.starts_with(name)).map(str::to_string)).collect();
    like.sort();
    let more = if like.len() > SHOWN { ", …" } else { "" };
    match like.is_empty() {
        true => error,
        false => {
            let shown = like[..like.len().min(SHOWN)].join(", ");
            Error::new(error.code(), format!("{error}; there are {shown}{more}, or name the folder for its latest"))
        }
    }
}

/// How many data files the checkpoint of this prefix has, if there is one that can be read.
pub(super) fn shards_of(prefix: &Path) -> Option<i32> {
    let mut shards = None;
    let _ = table::read(&index_bytes(&index_path(prefix)).ok()?, |key, value| {
        if key.is_empty() {
            shards = BundleHeader::decode(value).ok().map(|h| h.num_shards);
        }
        Err("that was it".into())
    });
    shards
}

impl Checkpoint {
    /// Opens the checkpoint of a prefix such as `checkpoints/model.ckpt-7`; the path of its index will do too.
    ///
    /// # Errors
    /// Files that are not there, are damaged, or contradict each other.
    pub fn open(prefix: impl AsRef<Path>) -> Result<Checkpoint> {
        let given = prefix.as_ref();
        let prefix = match given.extension() {
            Some(extension) if extension == "index" => given.with_extension(""),
            _ => given.to_path_buf(),
        };
        let path = index_path(&prefix);
        let bytes = index_bytes(&path).map_err(|e| if e.code() == Code::NotFound { absent(&prefix, e) } else { e })?;
        let mut header = None;
        let mut entries: IndexMap<String, BundleEntry> = IndexMap::new();
        let mut parts: HashMap<Vec<u8>, BundleEntry> = HashMap::new();
        let read = table::read(&bytes, |key, value| {
            if header.is_none() {
                header = Some(check_header(key, value)?);
                return Ok(());
            }
            let text = String::from_utf8_lossy(key);
            let entry = BundleEntry::decode(value).map_err(|e| format!("its entry '{text}' is damaged: {e}"))?;
            if slices::is_part(key) {
                parts.insert(key.to_vec(), entry);
                return Ok(());
            }
            let name = std::str::from_utf8(key).map_err(|_| format!("its key '{text}' is no text"))?;
            entries.insert(name.to_string(), entry);
            Ok(())
        });
        read.map_err(|why| damaged(&path, why))?;
        let shards = header.ok_or_else(|| damaged(&path, "it is empty"))?;
        let mut checkpoint = Checkpoint { prefix, shards, arrays: IndexMap::with_capacity(entries.len()) };
        for (name, entry) in entries {
            let (info, place) =
                checkpoint.locate(&name, &entry, &parts).map_err(|why| damaged(&path, format!("'{name}' {why}")))?;
            checkpoint.arrays.insert(name, (info, place));
        }
        checkpoint.check_runs()?;
        Ok(checkpoint)
    }

    /// The prefix of its files.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// What it holds, in the order of names.
    pub fn arrays(&self) -> impl Iterator<Item = &ArrayInfo> {
        self.arrays.values().map(|(info, _)| info)
    }

    /// What it says of one array.
    pub fn array(&self, name: &str) -> Option<&ArrayInfo> {
        self.arrays.get(name).map(|(info, _)| info)
    }

    /// The value of an array; one in parts is put together.
    ///
    /// # Errors
    /// A name that is not there, a type of which turret holds no values, damaged bytes.
    pub fn read(&self, name: &str) -> Result<Array> {
        let (info, place) = self.find(name)?;
        let Some(dtype) = info.stored.dtype() else {
            return Err(Error::new(
                Code::Unimplemented,
                format!(
                    "cannot read '{name}' in '{}': its elements are {}, of which turret holds no values",
                    self.prefix.display(),
                    info.stored
                ),
            ));
        };
        let mut array = Array::zeros(dtype, &info.shape)?;
        match place {
            Place::Whole(run) => self.read_run(name, run, array.bytes_mut())?,
            Place::Parts(parts) => {
                for (ranges, run) in parts {
                    let mut bytes = vec![0; run.size as usize];
                    self.read_run(name, run, &mut bytes)?;
                    slices::put(&mut array, ranges, &bytes);
                }
            }
        }
        Ok(array)
    }

    /// The bytes of an array in one piece, whatever its type.
    ///
    /// # Errors
    /// As [`Checkpoint::read`], and an array in parts.
    pub(in crate::interop) fn read_bytes(&self, name: &str) -> Result<Vec<u8>> {
        let (_, place) = self.find(name)?;
        let Place::Whole(run) = place else {
            return Err(damaged(&self.prefix, format!("'{name}' is in parts")));
        };
        let mut bytes = vec![0; run.size as usize];
        self.read_run(name, run, &mut bytes)?;
        Ok(bytes)
    }

    fn find(&self, name: &str) -> Result<&(ArrayInfo, Place)> {
        self.arrays.get(name).ok_or_else(|| {
            let near = crate::base::nearest(name, self.arrays.keys().map(String::as_str));
            let near = near.map_or(String::new(), |n| format!("; did you mean '{n}'?"));
            Error::new(Code::NotFound, format!("'{}' has no '{name}'{near}", self.prefix.display()))
        })
    }

    /// What an entry says, checked as far as it can be without the data files.
    fn locate(
        &self,
        name: &str,
        entry: &BundleEntry,
        parts: &HashMap<Vec<u8>, BundleEntry>,
    ) -> Result<(ArrayInfo, Place), String> {
        let stored = StoredType::from_tensorflow(entry.dtype);
        let shape = shape_of(entry)?;
        if entry.slices.is_empty() {
            let run = self.run_of(entry, &stored, &shape)?;
            let info = ArrayInfo { name: name.into(), stored, shape, bytes: run.size, parts: 1 };
            return Ok((info, Place::Whole(run)));
        }
        let mut found = Vec::with_capacity(entry.slices.len());
        for slice in &entry.slices {
            let ranges = slices::ranges(slice, &shape)?;
            let part = parts.get(&slices::key(name, slice)).ok_or_else(|| format!("lacks its part at {ranges:?}"))?;
            let sizes: Vec<usize> = ranges.iter().map(|r| r.len()).collect();
            if part.dtype != entry.dtype || shape_of(part)? != sizes || !part.slices.is_empty() {
                return Err(format!("has a part at {ranges:?} that contradicts it"));
            }
            found.push((ranges, self.run_of(part, &stored, &sizes)?));
        }
        let ranges: Vec<_> = found.iter().map(|(r, _)| r.clone()).collect();
        slices::check_whole(&ranges, &shape)?;
        let bytes = found.iter().map(|(_, run)| run.size).fold(0u64, u64::saturating_add);
        let info = ArrayInfo { name: name.into(), stored, shape, bytes, parts: found.len() };
        Ok((info, Place::Parts(found)))
    }

    fn run_of(&self, entry: &BundleEntry, stored: &StoredType, shape: &[usize]) -> Result<Run, String> {
        let (Ok(offset), Ok(size)) = (u64::try_from(entry.offset), u64::try_from(entry.size)) else {
            return Err(format!("has {} bytes at {}", entry.size, entry.offset));
        };
        if !(0..self.shards).contains(&entry.shard_id) {
            return Err(format!("is in data file {} of {}", entry.shard_id, self.shards));
        }
        let elements = num_elements(shape).ok_or_else(|| format!("has {shape:?} elements, more than can be"))?;
        if let Some(each) = stored.size()
            && elements.checked_mul(each).map(|n| n as u64) != Some(size)
        {
            return Err(format!("is {stored} {shape:?} but has {size} bytes"));
        }
        Ok(Run { shard: entry.shard_id, offset, size, crc32c: entry.crc32c })
    }

    /// Holds all runs against the data files, and against each other.
    fn check_runs(&self) -> Result<()> {
        let mut by_shard: BTreeMap<i32, Vec<(u64, u64, &str)>> = BTreeMap::new();
        for (name, (_, place)) in &self.arrays {
            let mut note = |run: &Run| {
                by_shard.entry(run.shard).or_default().push((run.offset, run.size, name));
            };
            match place {
                Place::Whole(run) => note(run),
                Place::Parts(parts) => parts.iter().for_each(|(_, run)| note(run)),
            }
        }
        for (shard, mut runs) in by_shard {
            let path = self.data_path(shard);
            let (_, len) = open(&path)?;
            runs.sort_unstable();
            let mut before = (0, "");
            for (offset, size, name) in runs {
                let end = offset.checked_add(size).filter(|end| *end <= len);
                let Some(end) = end else {
                    let why = format!("it is cut short: '{name}' has {size} bytes at {offset}, the file has {len}");
                    return Err(damaged(&path, why));
                };
                if size > 0 && offset < before.0 {
                    let why = format!("'{name}' at {offset} overlaps '{}', which ends at {}", before.1, before.0);
                    return Err(damaged(&index_path(&self.prefix), why));
                }
                if size > 0 {
                    before = (end, name);
                }
            }
        }
        Ok(())
    }

    fn data_path(&self, shard: i32) -> PathBuf {
        with_suffix(&self.prefix, &data_suffix(shard, self.shards))
    }

    fn read_run(&self, name: &str, run: &Run, into: &mut [u8]) -> Result<()> {
        let path = self.data_path(run.shard);
        let read = File::open(&path).and_then(|mut file| {
            file.seek(SeekFrom::Start(run.offset))?;
            file.read_exact(into)
        });
        read.map_err(|e| failed("read", &path, &e))?;
        match masked(into) == run.crc32c {
            true => Ok(()),
            false => Err(damaged(&path, format!("'{name}' is damaged: its checksum is wrong"))),
        }
    }
}

fn check_header(key: &[u8], value: &[u8]) -> Result<i32, String> {
    if !key.is_empty() {
        return Err("it does not begin as the index of a checkpoint".into());
    }
    let header = BundleHeader::decode(value).map_err(|e| format!("its header is damaged: {e}"))?;
    if header.endianness != 0 {
        return Err("its numbers are big-endian, which turret does not read".into());
    }
    let wants = header.version.map_or(0, |v| v.min_consumer);
    if wants > super::VERSION {
        return Err(format!("it wants a reader of version {wants}; this is version {}", super::VERSION));
    }
    match header.num_shards {
        1..=99_999 => Ok(header.num_shards),
        n => Err(format!("it has {n} data files")),
    }
}

fn shape_of(entry: &BundleEntry) -> Result<Vec<usize>, String> {
    let dims = entry.shape.as_ref().map(|s| &s.dim[..]).unwrap_or_default();
    let unknown = entry.shape.as_ref().is_some_and(|s| s.unknown_rank);
    let sizes = dims.iter().map(|d| usize::try_from(d.size).ok()).collect::<Option<Vec<_>>>();
    sizes.filter(|s| !unknown && s.len() <= 254).ok_or_else(|| "has a shape with unknown or negative sizes".to_string())
}
