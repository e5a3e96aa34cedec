//! What is fed: files, and for the built-in models' inputs the article's, `x` uniform in `[0, 1)` and `t = 2x + 1`, or
//! labels.

use super::model::{Made, Model};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use turret::base::{Array, Bool8, DType};
use turret::graph::{Graph, Tensor};
use turret::interop::arrays::{convert_like, read_npy};

/// `NAME=FILE.npy` or `NAME=FILE.json`.
#[derive(Clone, Debug)]
pub(super) struct FeedFile {
    name: String,
    path: PathBuf,
}

/// Reads `NAME=FILE.npy`.
pub(super) fn feed_file(text: &str) -> Result<FeedFile, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok(FeedFile { name: name.to_string(), path: path.into() })
        }
        _ => Err("want NAME=FILE.npy or NAME=FILE.json, as in input=x.npy".to_string()),
    }
}

/// `NAME=8,600`: the sizes of what would be fed.
#[derive(Clone, Debug)]
pub(super) struct FeedShape {
    name: String,
    dims: Vec<usize>,
}

/// Reads `NAME=8,600`; nothing after the `=` is a scalar.
pub(super) fn feed_shape(text: &str) -> Result<FeedShape, String> {
    let wrong = || "want NAME=SIZES, as in images=8,24,24,3".to_string();
    let (name, sizes) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    let sizes = sizes.split(',').filter(|s| !s.is_empty());
    let dims = sizes.map(|s| s.trim().parse::<u32>().map(|d| d as usize)).collect::<Result<_, _>>();
    Ok(FeedShape { name: name.to_string(), dims: dims.map_err(|_| wrong())? })
}

impl FeedShape {
    /// The tensor and its sizes.
    pub fn of<'g>(&self, g: &'g Graph) -> Result<(Tensor<'g>, Vec<usize>)> {
        Ok((g.tensor(&self.name).context("cannot use --feed-shape")?, self.dims.clone()))
    }
}

/// The arrays of files, each for its tensor.
pub(super) fn read_feeds<'g>(g: &'g Graph, files: &[FeedFile]) -> Result<Vec<(Tensor<'g>, Array)>> {
    let mut feeds: Vec<(Tensor<'g>, Array)> = Vec::new();
    for file in files {
        let tensor = g.tensor(&file.name).with_context(|| format!("cannot feed '{}'", file.path.display()))?;
        ensure!(!feeds.iter().any(|(t, _)| *t == tensor), "'{}' is fed twice; feed each tensor once", file.name);
        feeds.push((tensor, read_feed(&file.path, tensor)?));
    }
    Ok(feeds)
}

/// The arrays that are given, and made ones for the model's other inputs.
pub(super) fn model_feeds<'g>(
    model: &Model<'g>,
    given: Vec<(Tensor<'g>, Array)>,
    seed: u32,
) -> Result<Vec<(Tensor<'g>, Array)>> {
    let mut feeds = given;
    for (i, input) in model.inputs.iter().enumerate() {
        if feeds.iter().any(|(t, _)| *t == input.tensor) {
            continue;
        }
        let array = match input.made {
            Made::Uniform => made_up(DType::F32, &input.dims, seed, i)?,
            Made::Labels(classes) => labels(&input.dims, classes, seed, i)?,
            Made::TargetOf(of) => {
                let of = model.inputs[of].tensor;
                let Some((_, x)) = feeds.iter().find(|(t, _)| *t == of) else {
                    bail!("'{}' is made from '{}', which is not fed", input.tensor.op().name(), of.op().name())
                };
                let doubled: Vec<f32> = x.as_slice::<f32>()?.iter().map(|x| 2.0 * x + 1.0).collect();
                Array::new(x.dims(), &doubled)?
            }
        };
        feeds.push((input.tensor, array));
    }
    Ok(feeds)
}

fn read_feed(path: &Path, tensor: Tensor<'_>) -> Result<Array> {
    let of = || format!("cannot feed '{}' for '{}'", path.display(), tensor.name());
    let array = match path.extension().is_some_and(|e| e == "json") {
        true => read_json(path, tensor.dtype()).with_context(of)?,
        false => convert_like(read_npy(path)?, tensor.dtype()).with_context(of)?,
    };
    let (want, got) = (tensor.shape(), array.shape());
    ensure!(
        want.is_compatible_with(&got),
        "{}: want shape {want}, got {got}; reshape the array, or set --batch and the model's sizes",
        of()
    );
    Ok(array)
}

/// The array of a JSON file: nested lists of numbers or truth values, or an object with `shape` and `data`.
fn read_json(path: &Path, dtype: DType) -> Result<Array> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read '{}'", path.display()))?;
    let value: Value = serde_json::from_str(&text).context("it is no JSON")?;
    let (mut dims, mut elements) = (Vec::new(), Vec::new());
    match value.as_object() {
        Some(object) => {
            let sizes = object.get("shape").and_then(Value::as_array).context("it has no 'shape'")?;
            let size = |s: &Value| s.as_u64().map(|s| s as usize).with_context(|| format!("{s} is no size"));
            dims = sizes.iter().map(size).collect::<Result<_>>()?;
            flatten(object.get("data").context("it has no 'data'")?, 0, &mut Vec::new(), &mut elements)?;
        }
        None => flatten(&value, 0, &mut dims, &mut elements)?,
    }
    match dtype {
        // As f64, large integers would be rounded.
        DType::I64 => {
            let ints = elements.iter().map(|e| e.as_i64().with_context(|| format!("{e} is no int64")));
            Ok(Array::new(&dims, &ints.collect::<Result<Vec<_>>>()?)?)
        }
        DType::Bool => {
            let bools =
                elements.iter().map(|e| e.as_bool().map(Bool8::from).with_context(|| format!("{e} is no bool")));
            Ok(Array::new(&dims, &bools.collect::<Result<Vec<_>>>()?)?)
        }
        _ => {
            let numbers = elements.iter().map(|e| match e.as_str() {
                Some("NaN") => Ok(f64::NAN),
                Some("inf") => Ok(f64::INFINITY),
                Some("-inf") => Ok(f64::NEG_INFINITY),
                _ => e.as_f64().with_context(|| format!("{e} is no number")),
            });
            let numbers: Vec<f64> = numbers.collect::<Result<_>>()?;
            let fraction = numbers.iter().find(|n| n.fract() != 0.0);
            ensure!(dtype.is_floating() || fraction.is_none(), "{} is no {dtype}", fraction.unwrap_or(&0.0));
            Ok(Array::from_f64(dtype, &dims, &numbers)?)
        }
    }
}

fn flatten<'a>(value: &'a Value, depth: usize, dims: &mut Vec<usize>, elements: &mut Vec<&'a Value>) -> Result<()> {
    let Some(items) = value.as_array() else {
        ensure!(depth == dims.len(), "its lists are not equally deep");
        elements.push(value);
        return Ok(());
    };
    if dims.len() == depth && elements.is_empty() {
        dims.push(items.len());
    }
    ensure!(dims.get(depth) == Some(&items.len()), "its lists are not equally long");
    items.iter().try_for_each(|item| flatten(item, depth + 1, dims, elements))
}

/// Made up values: floats in `[0, 1)`, zeros of other types, so that they are legal row numbers and labels.
pub(super) fn made_up(dtype: DType, dims: &[usize], seed: u32, number: usize) -> Result<Array> {
    if !dtype.is_floating() {
        return Ok(Array::zeros(dtype, dims)?);
    }
    Ok(uniform(dims, u64::from(seed) << 32 | number as u64)?.cast(dtype)?)
}

/// Numbers of classes.
fn labels(dims: &[usize], classes: usize, seed: u32, number: usize) -> Result<Array> {
    let drawn = made_up(DType::F32, dims, seed, number)?;
    let class = |x: &f32| (f64::from(*x) * classes as f64) as i32;
    Ok(Array::new(dims, &drawn.as_slice::<f32>()?.iter().map(class).collect::<Vec<i32>>())?)
}

/// Numbers in `[0, 1)` by SplitMix64 (Steele, Lea and Flood, 2014), the same for the same seed.
fn uniform(dims: &[usize], seed: u64) -> Result<Array> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut array = Array::zeros(DType::F32, dims)?;
    // 24 bits, so that every one is exact and below 1.
    array.as_mut_slice::<f32>()?.iter_mut().for_each(|x| *x = (next() >> 40) as f32 / (1u32 << 24) as f32);
    Ok(array)
}
