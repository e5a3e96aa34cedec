//! `.safetensors` files: a JSON header, then the bytes of all arrays.
//!
//! The header is the crate's to read, check and write. Absent: checksums, which the format has not.

use super::stored::{ArrayInfo, StoredType};
use crate::base::{Array, Code, DType, Error, Result};
use crate::interop::files::{damaged, failed, open, replace};
use indexmap::IndexMap;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The longest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// The types that both have.
const TYPES: [(Dtype, &str, usize); 15] = [
    (Dtype::F32, "float32", 4),
    (Dtype::F64, "float64", 8),
    (Dtype::I32, "int32", 4),
    (Dtype::I64, "int64", 8),
    (Dtype::BOOL, "bool", 1),
    (Dtype::F16, "float16", 2),
    (Dtype::BF16, "bfloat16", 2),
    (Dtype::U8, "uint8", 1),
    (Dtype::I8, "int8", 1),
    (Dtype::I16, "int16", 2),
    (Dtype::U16, "uint16", 2),
    (Dtype::U32, "uint32", 4),
    (Dtype::U64, "uint64", 8),
    (Dtype::F8_E5M2, "float8_e5m2", 1),
    (Dtype::F8_E4M3, "float8_e4m3fn", 1),
];

/// A `.safetensors` file.
pub(super) struct SafetensorsFile {
    path: PathBuf,
    /// Each array, and where its bytes start.
    arrays: IndexMap<String, (ArrayInfo, u64)>,
    notes: HashMap<String, String>,
}

impl SafetensorsFile {
    /// Opens a file, and reads its header.
    pub fn open(path: &Path) -> Result<SafetensorsFile> {
        let (mut file, len) = open(path)?;
        let read = |e: std::io::Error| failed("read", path, &e);
        let mut field = [0; 8];
        if len < 8 {
            return Err(damaged(path, "it has fewer than 8 bytes, so it is no .safetensors file"));
        }
        file.read_exact(&mut field).map_err(read)?;
        let header = u64::from_le_bytes(field);
        if header > MAX_HEADER || header > len - 8 {
            let why = format!("its header claims {header} bytes, the file has {len}; is it a .safetensors file?");
            return Err(damaged(path, why));
        }
        let mut text = vec![0; header as usize];
        file.read_exact(&mut text).map_err(read)?;
        let metadata: Metadata =
            serde_json::from_slice(&text).map_err(|e| damaged(path, format!("its header is damaged: {e}")))?;
        let data = len - 8 - header;
        if metadata.data_len() as u64 != data {
            let why = format!("its header promises {} bytes of data, there are {data}", metadata.data_len());
            return Err(damaged(path, why));
        }
        let of = |(name, info): (String, &TensorInfo)| {
            let (start, end) = info.data_offsets;
            let known = TYPES.iter().find(|t| t.0 == info.dtype);
            let stored = known.map_or_else(
                || StoredType::new(format!("{:?}", info.dtype), None),
                |t| StoredType::new(t.1, Some(t.2)),
            );
            let bytes = (end - start) as u64;
            let info = ArrayInfo { name: name.clone(), stored, shape: info.shape.clone(), bytes, parts: 1 };
            (name, (info, 8 + header + start as u64))
        };
        let mut arrays: IndexMap<_, _> = metadata.tensors().into_iter().map(of).collect();
        arrays.sort_unstable_keys();
        let notes = metadata.metadata().clone().unwrap_or_default();
        Ok(SafetensorsFile { path: path.into(), arrays, notes })
    }

    /// What it holds, in the order of names.
    pub fn arrays(&self) -> impl Iterator<Item = &ArrayInfo> {
        self.arrays.values().map(|(info, _)| info)
    }

    /// A text that the header has beside the arrays.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.notes.get(key).map(String::as_str)
    }

    /// The array of a name that is there.
    pub fn read(&self, name: &str) -> Result<Array> {
        let Some((info, start)) = self.arrays.get(name) else {
            return Err(damaged(&self.path, format!("it has no '{name}'")));
        };
        let Some(dtype) = info.stored.dtype() else {
            let what = format!("its elements are {}, of which turret holds no values", info.stored);
            let message = format!("cannot read '{name}' in '{}': {what}", self.path.display());
            return Err(Error::new(Code::Unimplemented, message));
        };
        let mut array = Array::zeros(dtype, &info.shape)?;
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(*start))?;
            file.read_exact(array.bytes_mut())
        });
        read.map_err(|e| failed("read", &self.path, &e))?;
        Ok(array)
    }
}

/// Writes arrays to a file, and texts beside them; one that is there is replaced only when all is written.
pub(super) fn write_safetensors(path: &Path, arrays: &[(&str, &Array)], notes: HashMap<String, String>) -> Result<()> {
    let invalid = |why: String| Error::invalid(format!("cannot write '{}': {why}", path.display()));
    let mut arrays = arrays.to_vec();
    // Larger elements first, so that all are aligned.
    arrays.sort_by(|a, b| b.1.dtype().size().cmp(&a.1.dtype().size()).then_with(|| a.0.cmp(b.0)));
    let mut infos: Vec<(String, TensorInfo)> = Vec::with_capacity(arrays.len());
    let mut end = 0;
    for (name, array) in &arrays {
        let dtype = dtype_of(array.dtype()).ok_or_else(|| invalid(format!("it cannot hold {}", array.dtype())))?;
        let start = end;
        end += array.bytes().len();
        if *name == "__metadata__" {
            return Err(invalid("an array cannot have the name '__metadata__' there".into()));
        }
        let info = TensorInfo { dtype, shape: array.dims().to_vec(), data_offsets: (start, end) };
        infos.push((name.to_string(), info));
    }
    let notes = (!notes.is_empty()).then_some(notes);
    let metadata = Metadata::new(notes, infos).map_err(|e| invalid(e.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| invalid(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    replace(path, |mut file| {
        file.put(&(header.len() as u64).to_le_bytes())?;
        file.put(&header)?;
        arrays.iter().try_for_each(|(_, array)| file.put(array.bytes()))?;
        Ok(file)
    })
}

fn dtype_of(dtype: DType) -> Option<Dtype> {
    TYPES.iter().find(|t| t.1 == dtype.name()).map(|t| t.0)
}
