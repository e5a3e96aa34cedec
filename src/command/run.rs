//! `turret run`: runs steps and shows what they fetch.

use super::options::{GlobalOptions, ModelOptions, StepOptions, TowerOptions};
use super::program::{self, Program, Step};
use super::{check_output, print, print_json, tell};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use turret::base::{Array, Bool8};
use turret::graph::Tensor;
use turret::interop::arrays::{WriteOptions, write_arrays};
use turret::interop::events::{EventWriter, Histogram};
use turret::interop::graphdef::export_graph;
use turret::interop::{RestoreOptions, Saver};
use turret::report::{Profile, timeline_with_plan};
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
    /// Where a trace of the last step is written, measured and as planned, for Perfetto or chrome://tracing
    #[arg(long, visible_alias = "timeline", value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Times every op or node of all steps but the first, where there are several, and shows a table of them
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "ops")]
    profile: Option<ProfileOf>,
    /// A folder for TensorBoard: the graph, fetched scalars of every step, other fetches as histograms, the last step's
    /// times
    #[arg(long, value_name = "FOLDER")]
    events: Option<PathBuf>,
}

/// What the rows of a profile are.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProfileOf {
    /// Op types
    Ops,
    /// Nodes
    Nodes,
}

pub(super) fn run(global: &GlobalOptions, args: &RunArgs) -> Result<()> {
    let g = program::graph(&args.model)?;
    for path in args.save_variables.iter().chain(&args.trace) {
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

    let mut events = match &args.events {
        Some(folder) => {
            let mut events = EventWriter::new(folder)?;
            events.graph(&export_graph(&g)?)?;
            Some(events)
        }
        None => None,
    };
    ensure!(args.profile.is_none() || args.steps > 0, "--profile needs a step to time; give --steps 1 or more");
    let mut steps = Vec::new();
    let mut profile = Profile::default();
    for step in 1..=args.steps {
        let is_last = step == args.steps && (args.trace.is_some() || events.is_some());
        // The first step of a plan takes its memory into use.
        let is_profiled = args.profile.is_some() && (step > 1 || args.steps == 1);
        let (values, metadata) = match is_last || is_profiled {
            true => session.run_traced(&fed, &fetches, &targets).map(|(values, run)| (values, Some(run)))?,
            false => (session.run(&fed, &fetches, &targets)?, None),
        };
        if let Some(metadata) = metadata.as_ref().filter(|_| is_profiled) {
            profile.add(metadata);
        }
        let metadata = metadata.filter(|_| is_last);
        if let (Some(path), Some(metadata)) = (&args.trace, &metadata) {
            let feeds: Vec<(Tensor<'_>, &[usize])> = fed.iter().map(|(t, a)| (*t, a.dims())).collect();
            let schedule = session.schedule(&feeds, &fetches, &targets)?;
            let trace = serde_json::to_vec(&timeline_with_plan(metadata, &schedule, session.machine()))?;
            std::fs::write(path, trace).with_context(|| format!("cannot write '{}'", path.display()))?;
        }
        if let Some(events) = &mut events {
            note_values(events, &names, &values, step as i64)?;
            if let Some(metadata) = &metadata {
                events.run_metadata(&format!("step {step}"), metadata, session.machine(), step as i64)?;
            }
        }
        if global.json {
            let fetched: Map<String, Value> = names.iter().cloned().zip(values.iter().map(as_json)).collect();
            steps.push(json!({"fetches": fetched}));
        } else {
            let shown: Vec<String> = names.iter().zip(&values).map(|(n, v)| format!("{n} {}", in_words(v))).collect();
            print(&format!("step {step}: {}\n", if shown.is_empty() { "done".to_string() } else { shown.join(", ") }))?;
        }
    }
    if let Some(mut events) = events {
        events.flush()?;
        tell(format_args!("events: {}\n", events.path().display()));
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
    let profile = args.profile.map(|of| match of {
        ProfileOf::Ops => profile.by_op(),
        ProfileOf::Nodes => profile.by_node(session.machine()),
    });
    match profile {
        Some(profile) if global.json => print_json(&json!({"steps": steps, "profile": profile})),
        Some(profile) => print(&format!("\n{}", profile.text())),
        None if global.json => print_json(&json!({"steps": steps})),
        None => Ok(()),
    }
}

/// Fetched values as events: numbers as they are, arrays by their distribution.
fn note_values(events: &mut EventWriter, names: &[String], values: &[Array], step: i64) -> Result<()> {
    for (name, value) in names.iter().zip(values) {
        match value.dims() {
            [] => events.scalar(name, value.get_f64(0) as f32, step)?,
            // What is no number, or not finite, has none.
            _ if Histogram::of(value).is_err() => {}
            _ => events.histogram(name, value, step)?,
        }
    }
    Ok(())
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
