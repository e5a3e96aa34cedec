//! Arrays in NumPy's files: `.npy` for feeds, `.npz` for variables.
//!
//! What a header claims is held against what is there before any memory is taken for it.

use anyhow::{Context, Result, anyhow, bail, ensure};
use npyz::WriterBuilder;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use turret::base::{Array, Bool8, DType, Element};
use zip::ZipArchive;
use zip::write::{SimpleFileOptions, ZipWriter};

/// The longest header that is read; NumPy's own take 128 bytes.
const MAX_HEADER: usize = 2048;

/// The array of a `.npy` file.
pub(super) fn read_npy(path: &Path) -> Result<Array> {
    let of = || format!("cannot read '{}'", path.display());
    let (file, size) = open(path)?;
    read_array(BufReader::new(file), size).with_context(of)
}

/// A file and its size.
fn open(path: &Path) -> Result<(File, u64)> {
    let of = || format!("cannot read '{}'", path.display());
    let file = File::open(path).with_context(of)?;
    let metadata = file.metadata().with_context(of)?;
    ensure!(metadata.is_file(), "{}: it is no file", of());
    Ok((file, metadata.len()))
}

/// An array of at most so many bytes, header included.
fn read_array(mut reader: impl Read, available: u64) -> Result<Array> {
    let header = read_header(&mut reader).context("it is no .npy file")?;
    check_shape(&header, available)?;
    let header = npyz::NpyHeader::from_reader(&header[..]).map_err(|e| {
        // The parser's messages show the header whole.
        let why: String = e.to_string().lines().next().unwrap_or_default().chars().take(80).collect();
        anyhow!("its header cannot be read: {why}")
    })?;
    let dims: Vec<usize> = header.shape().iter().map(|&d| usize::try_from(d)).collect::<Result<_, _>>()?;
    let fortran = header.order() == npyz::Order::Fortran;
    let descr = header.dtype().descr();
    let kind = descr.trim_matches('\'').trim_start_matches(['<', '>', '|', '=']).to_string();
    let file = npyz::NpyFile::with_header(header, reader);
    match &kind[..] {
        "f4" => array(elements::<f32, _>(file)?, &dims, fortran),
        "f8" => array(elements::<f64, _>(file)?, &dims, fortran),
        "i4" => array(elements::<i32, _>(file)?, &dims, fortran),
        "i8" => array(elements::<i64, _>(file)?, &dims, fortran),
        "b1" => array(elements::<bool, _>(file)?.into_iter().map(Bool8::from).collect(), &dims, fortran),
        _ => bail!(
            "its elements are {descr}; want float32, float64, int32, int64 or bool: save it with array.astype(numpy.float32)"
        ),
    }
}

fn elements<T: npyz::Deserialize, R: Read>(file: npyz::NpyFile<R>) -> Result<Vec<T>> {
    let want = file.len();
    file.into_vec().map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => anyhow!("it is cut short: its header promises {want} elements"),
        _ => e.into(),
    })
}

fn array<T: Element>(stored: Vec<T>, dims: &[usize], fortran: bool) -> Result<Array> {
    if !fortran || dims.len() < 2 {
        return Ok(Array::new(dims, &stored)?);
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
    Ok(Array::new(dims, &values)?)
}

/// The bytes before the data: magic, version, length, text.
fn read_header(reader: &mut impl Read) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 8];
    reader.read_exact(&mut bytes).map_err(|_| anyhow!("it has fewer than 8 bytes"))?;
    ensure!(bytes.starts_with(b"\x93NUMPY"), "it does not start as one");
    let length = match bytes[6] {
        1 => 2,
        2 | 3 => 4,
        version => bail!("its format version is {version}; want 1, 2 or 3"),
    };
    let mut field = [0; 4];
    reader.read_exact(&mut field[..length]).map_err(|_| anyhow!("it ends within its header"))?;
    bytes.extend_from_slice(&field[..length]);
    let text = u32::from_le_bytes(field) as usize;
    ensure!(text <= MAX_HEADER, "its header claims {text} bytes, more than the {MAX_HEADER} that an array's takes");
    let start = bytes.len();
    bytes.resize(start + text, 0);
    reader.read_exact(&mut bytes[start..]).map_err(|_| anyhow!("it ends within its header"))?;
    Ok(bytes)
}

/// Holds the sizes in the header against the bytes that there are, before anything multiplies them.
fn check_shape(header: &[u8], available: u64) -> Result<()> {
    let text = String::from_utf8_lossy(header);
    let shape = text.split_once("'shape':").and_then(|(_, rest)| rest.split_once('(')?.1.split_once(')'));
    let (shape, _) = shape.context("its header has no 'shape'")?;
    let sizes = shape.split(',').map(str::trim).filter(|s| !s.is_empty());
    // An axis of size 0 counts as 1, since parts of the product are taken too.
    let elements =
        sizes.map(|s| s.trim_end_matches('L').parse::<u64>().ok()).try_fold(1u64, |n, s| n.checked_mul(s?.max(1)));
    match elements {
        Some(n) if n <= available => Ok(()),
        _ => bail!("it is cut short, or its header is wrong: shape ({shape}) does not fit into {available} bytes"),
    }
}

/// The arrays of a `.npz` file that are wanted, in the file's order; `wanted` says of what type and sizes a name is to
/// be, or why it is not wanted at all.
pub(super) fn read_npz(
    path: &Path,
    wanted: impl Fn(&str) -> Result<(DType, Vec<usize>)>,
) -> Result<Vec<(String, Array)>> {
    let of = || format!("cannot read '{}'", path.display());
    let (file, _) = open(path)?;
    let mut archive = ZipArchive::new(BufReader::new(file)).with_context(|| format!("{}: it is no .npz file", of()))?;
    let mut arrays = Vec::new();
    for i in 0..archive.len() {
        let entry = archive.by_index(i).with_context(of)?;
        let file_name = entry.name().with_context(of)?.into_owned();
        let Some(name) = npyz::npz::array_name_from_file_name(&file_name) else { continue };
        let of = || format!("cannot read '{name}' in '{}'", path.display());
        let (dtype, dims) = wanted(name).with_context(of)?;
        // No more than what is wanted is taken, whatever the file says of itself.
        let want = dims.iter().product::<usize>().saturating_mul(8) as u64 + MAX_HEADER as u64;
        let array = read_array(entry.take(want), want).with_context(of)?;
        ensure!(
            array.dims() == &dims[..],
            "cannot load '{name}' from '{}': want {dtype} {dims:?}, got {} {:?}",
            path.display(),
            array.dtype(),
            array.dims()
        );
        let array = cast(array, dtype).with_context(of)?;
        arrays.push((name.to_string(), array));
    }
    Ok(arrays)
}

/// The array as that type: floats for floats, integers for integers of the other width.
pub(super) fn cast(array: Array, dtype: DType) -> Result<Array> {
    let from = array.dtype();
    let same_kind = from.is_floating() == dtype.is_floating() && from.is_integer() == dtype.is_integer();
    ensure!(same_kind, "its elements are {from}, want {dtype}; save it with array.astype(numpy.{dtype})");
    if dtype == DType::I32
        && let Some(value) = array.to_i64().and_then(|all| all.into_iter().find(|v| i32::try_from(*v).is_err()))
    {
        bail!("its element {value} does not fit into {dtype}");
    }
    Ok(array.cast(dtype)?)
}

/// Where an archive grows before it takes its name.
fn partial(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    partial.into()
}

/// An error now where a `.npz` file could not be written later.
pub(super) fn check_npz(path: &Path) -> Result<()> {
    let of = || format!("cannot write '{}'", path.display());
    // Taking the place of a device or pipe would remove it.
    ensure!(!path.exists() || path.is_file(), "{}: it is no file", of());
    File::create(partial(path)).and_then(|_| std::fs::remove_file(partial(path))).with_context(of)
}

/// Writes arrays to a `.npz` file; one that is there is replaced only when all is written.
pub(super) fn write_npz(path: &Path, arrays: &[(String, Array)]) -> Result<()> {
    let partial = partial(path);
    let written = File::create(&partial).map_err(anyhow::Error::from).and_then(|file| {
        let mut zip = ZipWriter::new(BufWriter::new(file));
        for (name, array) in arrays {
            zip.start_file(npyz::npz::file_name_from_array_name(name), SimpleFileOptions::default().large_file(true))?;
            write_array(&mut zip, array)?;
        }
        let mut file = zip.finish()?;
        file.flush()?;
        Ok(std::fs::rename(&partial, path)?)
    });
    if written.is_err() {
        // The error to tell is the first one.
        let _ = std::fs::remove_file(&partial);
    }
    written.with_context(|| format!("cannot write '{}'", path.display()))
}

fn write_array(out: &mut impl Write, array: &Array) -> Result<()> {
    fn write<T: Element, S: npyz::AutoSerialize>(
        out: &mut impl Write,
        array: &Array,
        stored: impl Fn(T) -> S,
    ) -> Result<()> {
        let shape: Vec<u64> = array.dims().iter().map(|&d| d as u64).collect();
        let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(out).begin_nd()?;
        writer.extend(array.as_slice::<T>()?.iter().map(|&v| stored(v)))?;
        Ok(writer.finish()?)
    }
    match array.dtype() {
        DType::F32 => write(out, array, |v: f32| v),
        DType::F64 => write(out, array, |v: f64| v),
        DType::I32 => write(out, array, |v: i32| v),
        DType::I64 => write(out, array, |v: i64| v),
        DType::Bool => write(out, array, |v: Bool8| v.get()),
        DType::U8 => write(out, array, |v: u8| v),
        other => anyhow::bail!("NumPy files cannot hold {other}; cast it to float32"),
    }
}
