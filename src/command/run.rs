//! `turret run`: runs steps and shows what they fetch.

use super::options::{GlobalOptions, ModelOptions, StepOptions, TowerOptions};
use super::program::{self, Program, Step};
use super::{check_output, print, print_json, tell};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use turret::base::{Array, Bool8};
use turret::graph::Tensor;
use turret::interop::arrays::{WriteOptions, write_arrays};
use turret::interop::{RestoreOptions, Saver};
use turret::report::timeline;
use turret::run::Session;

#[derive(Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    towers: TowerOptions,
    #[command(flatten)]
    step: StepOptions,
    /// An operation to run before the first step; without it and --variables-from, all initializers
    #[arg(long, value_name = "OPERATION")]
    init: Vec<String>,
    /// Values of variables to start from: a checkpoint's prefix, or FILE.safetensors, or FILE.npz
    #[arg(long, value_name = "PREFIX|FILE")]
    variables_from: Option<PathBuf>,
    /// Where the values of all variables are written at the end, in the format that the name tells
    #[arg(long, value_name = "PREFIX|FILE")]
    save_variables: Option<PathBuf>,
    /// Number of steps
    #[arg(long, value_name = "N", default_value = "1")]
    steps: usize,
    /// Where a trace of the last step is written, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE.json")]
    timeline: Option<PathBuf>,
}

pub(super) fn run(global: &GlobalOptions, args: &RunArgs) -> Result<()> {
    let g = program::graph(&args.model)?;
    for path in args.save_variables.iter().chain(&args.timeline) {
        check_output(path)?;
    }
    if let Some(path) = &args.save_variables {
        check_arrays(path)?;
    }
    let (program, session) = program::open(&g, global, &args.model, &args.towers)?;
    let mut step = program.step(&g, &args.step)?;
    let mut names = args.step.fetch.clone();
    if let (Program::Model(model), true) = (&program, args.step.fetch.is_empty() && args.step.target.is_empty()) {
        names.push("loss".to_string());
        step.fetches.push(model.towers.loss);
    }
    let arrays = program.feeds(&g, &step, &args.step.feed, args.model.seed)?;
    let Step { fetches, targets } = step;
    let fed: Vec<(Tensor<'_>, &Array)> = arrays.iter().map(|(t, a)| (*t, a)).collect();
    start(&session, args)?;

    let mut steps = Vec::new();
    for step in 1..=args.steps {
        let values = match &args.timeline {
            Some(path) if step == args.steps => {
                let (values, metadata) = session.run_traced(&fed, &fetches, &targets)?;
                let trace = serde_json::to_vec(&timeline(&metadata, session.machine()))?;
                std::fs::write(path, trace).with_context(|| format!("cannot write '{}'", path.display()))?;
                values
            }
            _ => session.run(&fed, &fetches, &targets)?,
        };
        if global.json {
            let fetched: Map<String, Value> = names.iter().cloned().zip(values.iter().map(as_json)).collect();
            steps.push(json!({"fetches": fetched}));
        } else {
            let shown: Vec<String> = names.iter().zip(&values).map(|(n, v)| format!("{n} {}", in_words(v))).collect();
            print(&format!("step {step}: {}\n", if shown.is_empty() { "done".to_string() } else { shown.join(", ") }))?;
        }
    }
    for warning in session.warnings() {
        tell(format_args!("warning: {warning}\n"));
    }
    if let Some(path) = &args.save_variables {
        let all = g.all_variables();
        let snapshot = session.snapshot(&all)?;
        let named: Vec<(String, &Array)> = all.iter().map(|v| v.name()).zip(&snapshot.values).collect();
        write_arrays(path, &named, &WriteOptions { generators: Some(snapshot.generators), ..WriteOptions::default() })?;
    }
    if global.json { print_json(&json!({"steps": steps})) } else { Ok(()) }
}

/// An error now where arrays could not be written later.
fn check_arrays(path: &Path) -> Result<()> {
    let of = || format!("cannot write '{}'", path.display());
    // Taking the place of a device or pipe would remove it.
    ensure!(!path.exists() || path.is_file(), "{}: it is no file", of());
    let mut probe = path.as_os_str().to_owned();
    probe.push(".probe");
    std::fs::File::create(&probe).and_then(|_| std::fs::remove_file(&probe)).with_context(of)
}

/// Gives variables their first values.
fn start(session: &Session<'_>, args: &RunArgs) -> Result<()> {
    let g = session.graph();
    if args.init.is_empty() && args.variables_from.is_none() {
        return Ok(session.initialize()?);
    }
    let init = args.init.iter().map(|name| g.operation(name)).collect::<turret::Result<Vec<_>>>()?;
    session.run_targets(&init)?;
    let Some(path) = &args.variables_from else { return Ok(()) };
    let options = RestoreOptions { partial: true, cast: true, ..RestoreOptions::default() };
    let saver = Saver::of(g, &g.all_variables()).random_nodes(true);
    let report = saver.restore_with(session, path, options)?;
    let missing = session.uninitialized_variables()?;
    ensure!(
        missing.is_empty(),
        "'{}' has {} of {} variables; '{}' {} missing; add --init init to start from initial values",
        path.display(),
        report.restored.len(),
        g.all_variables().len(),
        missing[0],
        if missing.len() == 1 { "is".to_string() } else { format!("and {} more are", missing.len() - 1) }
    );
    tell(format_args!("{report}\n"));
    Ok(())
}

/// The value of a scalar, or type, shape and first values.
fn in_words(array: &Array) -> String {
    match array.dims() {
        [] => element(array, 0).to_string().replace('"', ""),
        _ => format!("{array:?}"),
    }
}

/// Nested lists of numbers; numbers that JSON has not are the strings `NaN`, `inf` and `-inf`.
fn as_json(array: &Array) -> Value {
    fn nested(array: &Array, dims: &[usize], at: &mut usize) -> Value {
        match dims {
            [] => {
                *at += 1;
                element(array, *at - 1)
            }
            [size, inner @ ..] => (0..*size).map(|_| nested(array, inner, at)).collect(),
        }
    }
    nested(array, array.dims(), &mut 0)
}

fn element(array: &Array, i: usize) -> Value {
    if let Ok(all) = array.as_slice::<Bool8>() {
        return all[i].get().into();
    }
    if let Ok(all) = array.as_slice::<i64>() {
        return all[i].into();
    }
    if let Ok(all) = array.as_slice::<i32>() {
        return all[i].into();
    }
    // The shortest text of a float32 is not that of the same number as a float64.
    let text = array.as_slice::<f32>().map_or_else(|_| array.get_f64(i).to_string(), |all| all[i].to_string());
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => number.into(),
        _ => text.into(),
    }
}
