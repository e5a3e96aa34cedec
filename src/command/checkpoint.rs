//! `turret checkpoint`: what files of variables hold, and one format made of another.

use super::options::GlobalOptions;
use super::{print, print_json, tell};
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use turret::base::{Array, nearest};
use turret::interop::arrays::{ArrayFile, Format, WriteOptions, write_arrays};
use turret::report::{human_bytes, table};

#[derive(Subcommand)]
pub(super) enum CheckpointCommand {
    /// Names, types, shapes and bytes of a checkpoint, a .safetensors or an .npz file
    Ls {
        /// A checkpoint's prefix, a folder for its latest, or a file
        #[arg(value_name = "PATH")]
        path: PathBuf,
    },
    /// Writes a file's arrays in the format that the other name tells
    Convert(ConvertArgs),
}

#[derive(Args)]
pub(super) struct ConvertArgs {
    /// A checkpoint's prefix, a folder for its latest, or a file
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// A checkpoint's prefix, or FILE.safetensors, or FILE.npz
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// A text file with a line 'OLD NEW' for each array that is to have another name
    #[arg(long, value_name = "FILE")]
    name_map: Option<PathBuf>,
    /// Data files of a checkpoint
    #[arg(long, value_name = "N", default_value = "1")]
    shards: usize,
    /// Leaves out arrays of types that turret does not hold, such as string
    #[arg(long)]
    skip_unreadable: bool,
}

pub(super) fn checkpoint(global: &GlobalOptions, command: &CheckpointCommand) -> Result<()> {
    match command {
        CheckpointCommand::Ls { path } => ls(global, path),
        CheckpointCommand::Convert(args) => convert(global, args),
    }
}

#[derive(Serialize)]
struct Listing {
    path: String,
    format: &'static str,
    arrays: Vec<Row>,
    total_bytes: u64,
    /// Random nodes whose places it has.
    generators: usize,
}

#[derive(Serialize)]
struct Row {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
    /// In how many parts it is stored.
    parts: usize,
}

impl Listing {
    /// One line.
    fn summary(&self) -> String {
        let arrays = match self.arrays.len() {
            1 => "1 array".to_string(),
            n => format!("{n} arrays"),
        };
        let places = match self.generators {
            0 => String::new(),
            1 => "; the place of 1 random node".to_string(),
            n => format!("; the places of {n} random nodes"),
        };
        format!("{}: {arrays}, {}{places}\n", self.path, human_bytes(self.total_bytes))
    }
}

fn listing(file: &ArrayFile) -> Result<Listing> {
    let row = |a: &turret::interop::arrays::ArrayInfo| Row {
        name: a.name.clone(),
        dtype: a.stored.to_string(),
        shape: a.shape.clone(),
        bytes: a.bytes,
        parts: a.parts,
    };
    let arrays: Vec<Row> = file.arrays().map(row).collect();
    Ok(Listing {
        path: file.path().display().to_string(),
        format: match Format::of(file.path()) {
            Format::Checkpoint => "checkpoint",
            Format::Safetensors => "safetensors",
            Format::Npz => "npz",
        },
        total_bytes: arrays.iter().map(|a| a.bytes).sum(),
        arrays,
        generators: file.generators()?.map_or(0, |g| g.len()),
    })
}

fn ls(global: &GlobalOptions, path: &Path) -> Result<()> {
    let listing = listing(&ArrayFile::open(path)?)?;
    if global.json {
        return print_json(&listing);
    }
    let in_parts = listing.arrays.iter().any(|a| a.parts > 1);
    let mut header = vec!["name", "dtype", "shape", "bytes"];
    header.extend(in_parts.then_some("parts"));
    let rows = listing.arrays.iter().map(|a| {
        let mut row = vec![a.name.clone(), a.dtype.clone(), format!("{:?}", a.shape), a.bytes.to_string()];
        row.extend(in_parts.then(|| a.parts.to_string()));
        row
    });
    let text = table(&header, &["bytes", "parts"], rows.collect::<Vec<_>>());
    print(&format!("{text}\n{}", listing.summary()))
}

fn convert(global: &GlobalOptions, args: &ConvertArgs) -> Result<()> {
    let file = ArrayFile::open(&args.from)?;
    let unreadable: Vec<_> = file.arrays().filter(|a| a.stored.dtype().is_none()).collect();
    if let (Some(first), false) = (unreadable.first(), args.skip_unreadable) {
        let more = if unreadable.len() > 1 { format!(" and {} more", unreadable.len() - 1) } else { String::new() };
        anyhow::bail!(
            "cannot convert '{}': '{}'{more} cannot be read, its elements are {}; leave such arrays out with \
             --skip-unreadable",
            args.from.display(),
            first.name,
            first.stored
        );
    }
    for array in &unreadable {
        tell(format_args!("left out: '{}' {} {:?}\n", array.name, array.stored, array.shape));
    }
    let names = match &args.name_map {
        Some(path) => name_map(path, &file)?,
        None => HashMap::new(),
    };
    let mut arrays: Vec<(String, Array)> = Vec::new();
    let mut taken = HashSet::new();
    for info in file.arrays().filter(|a| a.stored.dtype().is_some()) {
        let name = names.get(&info.name).unwrap_or(&info.name).clone();
        ensure!(taken.insert(name.clone()), "two arrays would have the name '{name}'; change the name map");
        arrays.push((name, file.read(&info.name)?));
    }
    let list: Vec<(&str, &Array)> = arrays.iter().map(|(n, a)| (&n[..], a)).collect();
    write_arrays(&args.to, &list, &WriteOptions { shards: args.shards, generators: file.generators()? })?;
    let written = listing(&ArrayFile::open(&args.to)?)?;
    if global.json {
        return print_json(&written);
    }
    print(&written.summary())
}

/// The lines `OLD NEW` of a file.
fn name_map(path: &Path, file: &ArrayFile) -> Result<HashMap<String, String>> {
    let of = || format!("cannot read '{}'", path.display());
    let text = std::fs::read_to_string(path).with_context(of)?;
    let mut map = HashMap::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [old, new] = fields[..] else { anyhow::bail!("{}: line {} is not 'OLD NEW': {line}", of(), i + 1) };
        if file.array(old).is_none() {
            let near = nearest(old, file.arrays().map(|a| &a.name[..]));
            let near = near.map_or(String::new(), |n| format!("; did you mean '{n}'?"));
            anyhow::bail!("{}: line {}: '{}' has no '{old}'{near}", of(), i + 1, file.path().display());
        }
        ensure!(map.insert(old.to_string(), new.to_string()).is_none(), "{}: '{old}' is there twice", of());
    }
    Ok(map)
}
