//! NumPy's files: `.npy` with one array, `.npz` with named ones.
//!
//! What a header claims is held against what is there before any memory is taken for it.

use super::stored::{ArrayInfo, StoredType};
use crate::base::{Array, Bool8, DType, Element, Error, Result};
use crate::interop::files::{Aside, damaged, failed, open, replace};
use half::f16;
use indexmap::IndexMap;
use npyz::WriterBuilder;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use zip::ZipArchive;
use zip::write::{SimpleFileOptions, ZipWriter};

/// The longest header that is read; NumPy's own take 128 bytes.
const MAX_HEADER: usize = 2048;

/// How much deflate can make of a byte.
const MAX_RATIO: u64 = 1032;

/// The array of a `.npy` file.
///
/// # Errors
/// A file that is not there, is damaged, or has elements of which turret holds no values.
pub fn read_npy(path: impl AsRef<Path>) -> Result<Array> {
    let path = path.as_ref();
    let (file, size) = open(path)?;
    let mut reader = BufReader::new(file);
    let read = Header::read(&mut reader, size).and_then(|header| header.array(reader));
    read.map_err(|why| damaged(path, why))
}

/// What precedes the elements.
struct Header {
    parsed: npyz::NpyHeader,
    dims: Vec<usize>,
    stored: StoredType,
    /// Bytes of all elements, where they have one size.
    bytes: Option<u64>,
}

impl Header {
    /// Reads a header; it and the array may have so many bytes together.
    fn read(reader: &mut impl Read, available: u64) -> Result<Header, String> {
        let text = header_bytes(reader).map_err(|why| format!("it is no .npy file: {why}"))?;
        check_shape(&text, available)?;
        let parsed = npyz::NpyHeader::from_reader(&text[..]).map_err(|e| {
            // The parser's messages show the header whole.
            let why: String = e.to_string().lines().next().unwrap_or_default().chars().take(80).collect();
            format!("its header cannot be read: {why}")
        })?;
        let dims = parsed.shape().iter().map(|&d| usize::try_from(d)).collect::<Result<Vec<_>, _>>();
        let dims = dims.map_err(|e| e.to_string())?;
        let stored = stored_type(&parsed.dtype().descr());
        let bytes = stored.size().map(|size| dims.iter().fold(size as u64, |n, &d| n.saturating_mul(d as u64)));
        if let Some(bytes) = bytes.filter(|b| b.saturating_add(text.len() as u64) > available) {
            return Err(format!(
                "it is cut short: {stored} {dims:?} has {bytes} bytes, which do not fit into {available}"
            ));
        }
        Ok(Header { parsed, dims, stored, bytes })
    }

    /// The array that follows.
    fn array(self, mut reader: impl Read) -> Result<Array, String> {
        let descr = self.parsed.dtype().descr();
        let Some(dtype) = self.stored.dtype() else {
            let shown: String = descr.chars().take(60).collect();
            return Err(format!(
                "its elements are {shown}; want float32, float64, int32, int64, uint8, float16 or bool: save it with \
                 array.astype(numpy.float32)"
            ));
        };
        let fortran = self.parsed.order() == npyz::Order::Fortran && self.dims.len() > 1;
        if !fortran && !descr.contains('>') {
            let mut array = Array::zeros(dtype, &self.dims).map_err(|e| e.to_string())?;
            reader.read_exact(array.bytes_mut()).map_err(|e| cut(e, array.len()))?;
            return Ok(array);
        }
        let dims = self.dims;
        let file = npyz::NpyFile::with_header(self.parsed, reader);
        match dtype {
            DType::F32 => array(elements::<f32, _>(file)?, &dims, fortran),
            DType::F64 => array(elements::<f64, _>(file)?, &dims, fortran),
            DType::I32 => array(elements::<i32, _>(file)?, &dims, fortran),
            DType::I64 => array(elements::<i64, _>(file)?, &dims, fortran),
            DType::F16 => array(elements::<f16, _>(file)?, &dims, fortran),
            DType::U8 => array(elements::<u8, _>(file)?, &dims, fortran),
            DType::Bool => array(elements::<bool, _>(file)?.into_iter().map(Bool8::from).collect(), &dims, fortran),
            other => Err(format!("its elements are {other}, which NumPy has not")),
        }
    }
}

/// NumPy's type by TensorFlow's name.
fn stored_type(descr: &str) -> StoredType {
    let kind = descr.trim_matches('\'').trim_start_matches(['<', '>', '|', '=']);
    let (name, size) = match kind {
        "f4" => ("float32", 4),
        "f8" => ("float64", 8),
        "i4" => ("int32", 4),
        "i8" => ("int64", 8),
        "b1" => ("bool", 1),
        "f2" => ("float16", 2),
        "u1" => ("uint8", 1),
        "i1" => ("int8", 1),
        "i2" => ("int16", 2),
        "u2" => ("uint16", 2),
        "u4" => ("uint32", 4),
        "u8" => ("uint64", 8),
        "c8" => ("complex64", 8),
        "c16" => ("complex128", 16),
        other => return StoredType::new(other.chars().take(40).collect::<String>(), None),
    };
    StoredType::new(name, Some(size))
}

fn cut(error: io::Error, elements: impl std::fmt::Display) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => format!("it is cut short: its header promises {elements} elements"),
        _ => error.to_string(),
    }
}

fn elements<T: npyz::Deserialize, R: Read>(file: npyz::NpyFile<R>) -> Result<Vec<T>, String> {
    let want = file.len();
    file.into_vec().map_err(|e| cut(e, want))
}

fn array<T: Element>(stored: Vec<T>, dims: &[usize], fortran: bool) -> Result<Array, String> {
    if !fortran {
        return Array::new(dims, &stored).map_err(|e| e.to_string());
    }
    // Fortran's order has the first axis run fastest.
    let mut strides = vec![1; dims.len()];
    for i in 1..dims.len() {
        strides[i] = strides[i - 1] * dims[i - 1];
    }
    let mut index = vec![0; dims.len()];
    let mut values = Vec::with_capacity(stored.len());
    for _ in 0..stored.len() {
        values.push(stored[index.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>()]);
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Array::new(dims, &values).map_err(|e| e.to_string())
}

/// The bytes before the data: magic, version, length, text.
fn header_bytes(reader: &mut impl Read) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; 8];
    reader.read_exact(&mut bytes).map_err(|_| "it has fewer than 8 bytes")?;
    if !bytes.starts_with(b"\x93NUMPY") {
        return Err("it does not start as one".into());
    }
    let length = match bytes[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(format!("its format version is {version}; want 1, 2 or 3")),
    };
    let mut field = [0; 4];
    reader.read_exact(&mut field[..length]).map_err(|_| "it ends within its header")?;
    bytes.extend_from_slice(&field[..length]);
    let text = u32::from_le_bytes(field) as usize;
    if text > MAX_HEADER {
        return Err(format!("its header claims {text} bytes, more than the {MAX_HEADER} that an array's takes"));
    }
    let start = bytes.len();
    bytes.resize(start + text, 0);
    reader.read_exact(&mut bytes[start..]).map_err(|_| "it ends within its header")?;
    Ok(bytes)
}

/// Holds the sizes in the header against the bytes that there are, before anything multiplies them.
fn check_shape(header: &[u8], available: u64) -> Result<(), String> {
    let text = String::from_utf8_lossy(header);
    let shape = text.split_once("'shape':").and_then(|(_, rest)| rest.split_once('(')?.1.split_once(')'));
    let (shape, _) = shape.ok_or("its header has no 'shape'")?;
    let sizes = shape.split(',').map(str::trim).filter(|s| !s.is_empty());
    // An axis of size 0 counts as 1, since parts of the product are taken too.
    let elements =
        sizes.map(|s| s.trim_end_matches('L').parse::<u64>().ok()).try_fold(1u64, |n, s| n.checked_mul(s?.max(1)));
    match elements {
        Some(n) if n <= available => Ok(()),
        _ => {
            Err(format!("it is cut short, or its header is wrong: shape ({shape}) does not fit into {available} bytes"))
        }
    }
}

/// A `.npz` file.
pub(super) struct Npz {
    path: PathBuf,
    archive: Mutex<ZipArchive<BufReader<File>>>,
    arrays: IndexMap<String, (ArrayInfo, usize)>,
}

impl Npz {
    /// Opens a file, and reads the headers of its arrays.
    pub fn open(path: &Path) -> Result<Npz> {
        let (file, _) = open(path)?;
        let mut locals = File::open(path).map_err(|e| failed("read", path, &e))?;
        let archive = ZipArchive::new(BufReader::new(file));
        let mut archive = archive.map_err(|e| damaged(path, format!("it is no .npz file: {e}")))?;
        let mut arrays = IndexMap::new();
        for i in 0..archive.len() {
            check_name(&mut archive, i, &mut locals).map_err(|why| damaged(path, why))?;
            let (name, header) = match entry(&mut archive, i) {
                Ok(Some((name, _, header))) => (name, header),
                Ok(None) => continue,
                Err(why) => return Err(damaged(path, why)),
            };
            let Header { stored, dims: shape, bytes, .. } = header;
            let info = ArrayInfo { name: name.clone(), stored, shape, bytes: bytes.unwrap_or(0), parts: 1 };
            if arrays.insert(name.clone(), (info, i)).is_some() {
                return Err(damaged(path, format!("it has '{name}' twice")));
            }
        }
        Ok(Npz { path: path.into(), archive: Mutex::new(archive), arrays })
    }

    /// What it holds, in the file's order.
    pub fn arrays(&self) -> impl Iterator<Item = &ArrayInfo> {
        self.arrays.values().map(|(info, _)| info)
    }

    /// The array of a name that is there.
    pub fn read(&self, name: &str) -> Result<Array> {
        let of = |why: String| damaged(&self.path, format!("'{name}': {why}"));
        let Some((_, i)) = self.arrays.get(name) else { return Err(of("it is not there".into())) };
        let mut archive = self.archive.lock().unwrap_or_else(|e| e.into_inner());
        let Some((_, mut reader, header)) = entry(&mut archive, *i).map_err(of)? else {
            return Err(of("it is not there".into()));
        };
        let array = header.array(&mut reader).map_err(of)?;
        // The archive's checksum is looked at where an entry ends.
        match reader.read(&mut [0; 1]) {
            Ok(0) => Ok(array),
            Ok(_) => Err(of("there are more bytes than its header says".into())),
            Err(e) => Err(of(e.to_string())),
        }
    }
}

/// Holds the name in the archive's directory against the one beside the data, as no checksum guards either.
fn check_name<R: Read + Seek>(archive: &mut ZipArchive<R>, i: usize, file: &mut File) -> Result<(), String> {
    let of = |e: &dyn std::fmt::Display| format!("its entry {i} cannot be read: {e}");
    let (start, name) = {
        let entry = archive.by_index_raw(i).map_err(|e| of(&e))?;
        (entry.header_start(), entry.name_raw().to_vec())
    };
    let mut fixed = [0; 30];
    let mut there = vec![0; name.len()];
    let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(&mut fixed));
    read.and_then(|()| file.read_exact(&mut there)).map_err(|e| of(&e))?;
    match usize::from(u16::from_le_bytes([fixed[26], fixed[27]])) == name.len() && there == name {
        true => Ok(()),
        false => Err(format!(
            "it is damaged: its entry {i} has two names, '{}' in its directory",
            String::from_utf8_lossy(&name)
        )),
    }
}

type Entry<'a> = (String, Box<dyn Read + 'a>, Header);

/// An entry that is an array: its name, what follows its header, and that.
fn entry<R: Read + Seek>(archive: &mut ZipArchive<R>, i: usize) -> Result<Option<Entry<'_>>, String> {
    let mut entry = archive.by_index(i).map_err(|e| format!("its entry {i} cannot be read: {e}"))?;
    let file_name = entry.name().map_err(|e| format!("its entry {i} has no name: {e}"))?.into_owned();
    let Some(name) = npyz::npz::array_name_from_file_name(&file_name) else { return Ok(None) };
    let available = entry.size().min(entry.compressed_size().saturating_mul(MAX_RATIO).saturating_add(MAX_RATIO));
    let header = Header::read(&mut entry, available).map_err(|why| format!("'{name}': {why}"))?;
    Ok(Some((name.to_string(), Box::new(entry), header)))
}

/// Writes arrays to a `.npz` file; one that is there is replaced only when all is written.
pub(super) fn write_npz(path: &Path, arrays: &[(&str, &Array)]) -> Result<()> {
    if let Some((name, array)) = arrays.iter().find(|(_, a)| matches!(a.dtype(), DType::BF16 | DType::Opaque(_))) {
        let of = array.dtype();
        return Err(Error::invalid(format!(
            "cannot write '{}': NumPy files cannot hold '{name}', which is {of}; cast it to float32, or write a \
             .safetensors file",
            path.display()
        )));
    }
    replace(path, |file| write_archive(file, arrays).map_err(|e| failed("write", path, &io::Error::other(e))))
}

fn write_archive(file: Aside, arrays: &[(&str, &Array)]) -> Result<Aside, Box<dyn std::error::Error + Send + Sync>> {
    // As numpy.savez does it, without compression.
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored).large_file(true);
    let mut zip = ZipWriter::new(file);
    for (name, array) in arrays {
        zip.start_file(npyz::npz::file_name_from_array_name(name), options)?;
        write_array(&mut zip, array)?;
    }
    Ok(zip.finish()?)
}

fn write_array(out: &mut impl Write, array: &Array) -> io::Result<()> {
    fn write<T: Element, S: npyz::AutoSerialize>(
        out: &mut impl Write,
        array: &Array,
        stored: impl Fn(T) -> S,
    ) -> io::Result<()> {
        let shape: Vec<u64> = array.dims().iter().map(|&d| d as u64).collect();
        let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(out).begin_nd()?;
        writer.extend(array.as_slice::<T>().map_err(io::Error::other)?.iter().map(|&v| stored(v)))?;
        writer.finish()
    }
    match array.dtype() {
        DType::F32 => write(out, array, |v: f32| v),
        DType::F64 => write(out, array, |v: f64| v),
        DType::I32 => write(out, array, |v: i32| v),
        DType::I64 => write(out, array, |v: i64| v),
        DType::Bool => write(out, array, |v: Bool8| v.get()),
        DType::F16 => write(out, array, |v: f16| v),
        DType::U8 => write(out, array, |v: u8| v),
        other => Err(io::Error::other(format!("NumPy files cannot hold {other}"))),
    }
}
