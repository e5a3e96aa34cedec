//! What is fed: files, and for the built-in model's inputs the article's, `x` uniform in `[0, 1)` and `t = 2x + 1`.

use super::arrays::{cast, read_npy};
use super::model::Model;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use turret::base::Array;
use turret::graph::{Graph, Tensor};

/// `NAME=FILE.npy`.
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
        _ => Err("want NAME=FILE.npy, as in input=x.npy".to_string()),
    }
}

/// The arrays of all feeds: those given as files, and made ones for the model's other inputs.
pub(super) fn feeds<'g>(
    g: &'g Graph,
    model: &Model<'g>,
    files: &[FeedFile],
    seed: u32,
) -> Result<Vec<(Tensor<'g>, Array)>> {
    let mut feeds: Vec<(Tensor<'g>, Array)> = Vec::new();
    for file in files {
        let tensor = g.tensor(&file.name).with_context(|| format!("cannot feed '{}'", file.path.display()))?;
        ensure!(!feeds.iter().any(|(t, _)| *t == tensor), "'{}' is fed twice; feed each tensor once", file.name);
        feeds.push((tensor, read_feed(&file.path, tensor)?));
    }
    for (i, input) in model.inputs.iter().enumerate() {
        if feeds.iter().any(|(t, _)| *t == input.tensor) {
            continue;
        }
        let array = match input.target_of {
            None => uniform(&input.dims, u64::from(seed) << 32 | i as u64)?,
            Some(of) => {
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
    let array = cast(read_npy(path)?, tensor.dtype()).with_context(of)?;
    let (want, got) = (tensor.shape(), array.shape());
    ensure!(
        want.is_compatible_with(&got),
        "{}: want shape {want}, got {got}; reshape the array, or set --batch and --dim-in",
        of()
    );
    Ok(array)
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
    let mut array = Array::zeros(turret::base::DType::F32, dims)?;
    // 24 bits, so that every one is exact and below 1.
    array.as_mut_slice::<f32>()?.iter_mut().for_each(|x| *x = (next() >> 40) as f32 / (1u32 << 24) as f32);
    Ok(array)
}
