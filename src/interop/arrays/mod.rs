//! Files of named arrays, whatever their format: TensorFlow's checkpoints, `.safetensors`, `.npz`.
//!
//! The path tells the format: `.safetensors` and `.npz` by their ends, anything else is a checkpoint's prefix.

mod numpy;
mod safetensors;
mod stored;

pub use numpy::read_npy;
pub use stored::{ArrayInfo, StoredType};

use super::checkpoint::{Checkpoint, Item, latest_checkpoint, write_items};
use super::files::{Folder, damaged, file_name, folder_of};
use super::generators;
use crate::base::{Array, Code, DType, Error, Result, nearest};
use crate::run::GeneratorPlaces;
use indexmap::IndexMap;
use numpy::Npz;
use safetensors::SafetensorsFile;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A format of files of named arrays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// TensorFlow's checkpoint, format V2: an index and data files that share a prefix.
    Checkpoint,
    /// `.safetensors`, as Hugging Face's and PyTorch's programs write them.
    Safetensors,
    /// `.npz`, as `numpy.savez` writes them.
    Npz,
}

impl Format {
    /// The format that a path tells.
    pub fn of(path: impl AsRef<Path>) -> Format {
        match path.as_ref().extension().and_then(|e| e.to_str()) {
            Some("safetensors") => Format::Safetensors,
            Some("npz") => Format::Npz,
            _ => Format::Checkpoint,
        }
    }
}

/// A file of named arrays that is open to read.
pub struct ArrayFile {
    path: PathBuf,
    arrays: IndexMap<String, ArrayInfo>,
    file: Opened,
}

enum Opened {
    Checkpoint(Checkpoint),
    Safetensors(SafetensorsFile),
    Npz(Npz),
}

impl ArrayFile {
    /// Opens a file by its format. A folder stands for its latest checkpoint.
    ///
    /// # Errors
    /// Files that are not there or are damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<ArrayFile> {
        let mut path = path.as_ref().to_path_buf();
        if path.is_dir() {
            path = latest_checkpoint(&path)?.ok_or_else(|| {
                let message =
                    format!("the folder '{}' has no file 'checkpoint'; name a checkpoint's prefix", path.display());
                Error::new(Code::NotFound, message)
            })?;
        }
        let file = match Format::of(&path) {
            Format::Safetensors => Opened::Safetensors(SafetensorsFile::open(&path)?),
            Format::Npz => Opened::Npz(Npz::open(&path)?),
            Format::Checkpoint => Opened::Checkpoint(Checkpoint::open(&path)?),
        };
        let named = |a: &ArrayInfo| (a.name.clone(), a.clone());
        let arrays = match &file {
            Opened::Checkpoint(c) => c.arrays().filter(|a| a.name != generators::ENTRY).map(named).collect(),
            Opened::Safetensors(s) => s.arrays().map(named).collect(),
            Opened::Npz(n) => n.arrays().map(named).collect(),
        };
        Ok(ArrayFile { path, arrays, file })
    }

    /// Its path; a checkpoint's prefix.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds.
    pub fn arrays(&self) -> impl ExactSizeIterator<Item = &ArrayInfo> {
        self.arrays.values()
    }

    /// What it says of one array.
    pub fn array(&self, name: &str) -> Option<&ArrayInfo> {
        self.arrays.get(name)
    }

    /// The value of an array.
    ///
    /// # Errors
    /// A name that is not there, a type of which turret holds no values, damaged bytes.
    pub fn read(&self, name: &str) -> Result<Array> {
        if !self.arrays.contains_key(name) {
            let near = nearest(name, self.arrays.keys().map(String::as_str));
            let near = near.map_or(String::new(), |n| format!("; did you mean '{n}'?"));
            return Err(Error::new(Code::NotFound, format!("'{}' has no '{name}'{near}", self.path.display())));
        }
        match &self.file {
            Opened::Checkpoint(c) => c.read(name),
            Opened::Safetensors(s) => s.read(name),
            Opened::Npz(n) => n.read(name),
        }
    }

    /// Where random nodes stood when it was written; `None` where it does not say.
    ///
    /// # Errors
    /// A damaged entry.
    pub fn generators(&self) -> Result<Option<GeneratorPlaces>> {
        let text = match &self.file {
            Opened::Checkpoint(c) if c.array(generators::ENTRY).is_some() => {
                let bytes = c.read_bytes(generators::ENTRY)?;
                String::from_utf8(bytes).map_err(|_| damaged(&self.path, "its places of random nodes are no text"))?
            }
            Opened::Safetensors(s) => match s.note(generators::ENTRY) {
                Some(text) => text.to_string(),
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        generators::decode(&text).map(Some).map_err(|why| damaged(&self.path, why))
    }
}

/// The array as this type: floats of any width for floats, integers for integers.
///
/// # Errors
/// Types that are not alike, and an integer that does not fit.
pub fn convert_like(array: Array, dtype: DType) -> Result<Array> {
    let from = array.dtype();
    if !is_alike(from, dtype) {
        return Err(Error::invalid(format!(
            "its elements are {from}, want {dtype}; save it with array.astype(numpy.{dtype})"
        )));
    }
    if dtype == DType::I32
        && let Some(value) = array.to_i64().and_then(|all| all.into_iter().find(|v| i32::try_from(*v).is_err()))
    {
        return Err(Error::invalid(format!("its element {value} does not fit into {dtype}")));
    }
    array.cast(dtype)
}

/// True of types that [`convert_like`] takes for one another.
pub(super) fn is_alike(from: DType, to: DType) -> bool {
    let is_float = |t: DType| matches!(t, DType::F32 | DType::F64 | DType::F16 | DType::BF16);
    from == to || is_float(from) && is_float(to) || from.is_integer() && to.is_integer()
}

/// What is written beside the arrays, and how.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Data files of a checkpoint.
    pub shards: usize,
    /// Where random nodes stand; `.npz` files have no place for it.
    pub generators: Option<GeneratorPlaces>,
}

impl Default for WriteOptions {
    fn default() -> WriteOptions {
        WriteOptions { shards: 1, generators: None }
    }
}

/// Writes named arrays in the format that the path tells. What is there is replaced only when all is written.
///
/// # Errors
/// Names that are empty or twice there, types that the format has not, what the file system says.
pub fn write_arrays<N: AsRef<str>>(
    path: impl AsRef<Path>,
    arrays: &[(N, &Array)],
    options: &WriteOptions,
) -> Result<()> {
    let path = path.as_ref();
    let arrays: Vec<(&str, &Array)> = arrays.iter().map(|(name, array)| (name.as_ref(), *array)).collect();
    let mut names: Vec<&str> = arrays.iter().map(|a| a.0).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid(format!("cannot write '{}': '{}' is there twice", path.display(), pair[0])));
    }
    match Format::of(path) {
        Format::Npz => numpy::write_npz(path, &arrays),
        Format::Safetensors => {
            let note = options.generators.as_ref().filter(|g| !g.is_empty());
            let notes = note.map(|g| (generators::ENTRY.to_string(), generators::encode(g)));
            safetensors::write_safetensors(path, &arrays, notes.into_iter().collect::<HashMap<_, _>>())
        }
        Format::Checkpoint => {
            let folder = Folder::lock(folder_of(path))?;
            write_with_generators(&folder, file_name(path)?, &arrays, options)
        }
    }
}

/// Writes a checkpoint, with where random nodes stand, in a folder that is locked.
pub(super) fn write_with_generators(
    folder: &Folder,
    name: &str,
    arrays: &[(&str, &Array)],
    options: &WriteOptions,
) -> Result<()> {
    let text = options.generators.as_ref().filter(|g| !g.is_empty()).map(generators::encode);
    let dims = [text.as_ref().map_or(0, String::len)];
    let mut items = arrays.iter().map(|(name, array)| Item::of(name, array)).collect::<Result<Vec<_>>>()?;
    if let Some(text) = &text {
        // TensorFlow's number for bytes.
        items.push(Item { name: generators::ENTRY, dtype: 4, dims: &dims, bytes: text.as_bytes() });
    }
    write_items(folder, name, items, options.shards)
}
