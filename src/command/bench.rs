//! `turret bench`: step times, copies and memory, side by side for tower counts and variable placements.
//!
//! Rows take turns, step by step, so that what slows the machine for a while slows all of them.

use super::bench_plan::{Case, bench_plan};
use super::options::{GlobalOptions, ModelOptions, StepOptions, TowerOptions, Variables, towers};
use super::program::{self, Program};
use super::{print, print_json};
use anyhow::{Result, ensure};
use clap::Args;
use indexmap::IndexMap;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Instant;
use turret::base::Array;
use turret::device::{DeviceId, peak_resident_bytes};
use turret::graph::{Cost, Graph, Tensor};
use turret::report::{CopyTable, MemoryTable, StepParts, human_bytes, table};
use turret::run::Callable;

/// How many steps of each row are traced.
const TRACED_STEPS: usize = 5;

/// Measured steps where nothing is said.
const STEPS: u32 = 20;

#[derive(Args)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    pub model: ModelOptions,
    #[command(flatten)]
    step: StepOptions,
    /// Tower counts [default: 1,2, or 1 where there is one GPU]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = towers)]
    pub towers: Option<Vec<usize>>,
    /// Where variables live, as in cpu,gpu
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cpu,gpu")]
    pub variables: Vec<Variables>,
    /// Fetches the model's loss beside what else is asked for; without it, the train op alone is timed
    #[arg(long)]
    fetch_loss: bool,
    /// One line of JSON a row, with the keys that other frameworks' programs print: peer, variant, workload, towers,
    /// threads, ms, min_ms, rss_mb
    #[arg(long, conflicts_with = "json")]
    lines: bool,
    /// Measured steps of each row [default: 20; with --plan, 3 plans]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: Option<u32>,
    /// Steps of each row before measuring
    #[arg(long, value_name = "N", default_value = "3")]
    warmup: u32,
    /// Times building, planning and loading instead of steps, stage by stage, as towers of the model grow, or variables in
    /// deep or wide networks
    #[arg(long, value_enum, value_name = "CASE,…", value_delimiter = ',', num_args = 0..=1, require_equals = true,
          default_missing_value = "towers,deep,wide",
          conflicts_with_all = ["lines", "fetch_loss", "warmup", "fetch", "target", "feed", "feed_shape"])]
    plan: Option<Vec<Case>>,
    /// Numbers of variables for --plan
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "10,100,1000,10000", value_parser = variables,
          requires = "plan")]
    pub variable_counts: Vec<usize>,
}

/// A number of variables for `--plan`.
fn variables(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (2..=1 << 20).contains(&n) => Ok(n),
        _ => Err(format!("want a number from 2 to {}", 1 << 20)),
    }
}

#[derive(Serialize)]
struct Row {
    /// None for the graph of a file.
    towers: Option<usize>,
    variables: &'static str,
    /// The machine; `sim` says that its GPUs are simulated.
    devices: String,
    ms_median: f64,
    ms_min: f64,
    ms_max: f64,
    copies: usize,
    copy_bytes: u64,
    /// Variables, constants and arena by device.
    peak_bytes: IndexMap<String, u64>,
    /// Threads of the host.
    threads: usize,
    /// Floating-point operations of a step, on all devices.
    flops: f64,
    /// These over the median time, in 10^9 a second.
    gflops_per_s: f64,
    /// Bytes that the kernels of a step read and write, by the cost model.
    kernel_bytes: f64,
    /// Where the time of a traced step goes: the median of several, run after the measured ones.
    step: StepParts,
    #[serde(skip)]
    line: Line,
}

/// What other frameworks' programs say of their measurements, beside times.
#[derive(Default)]
struct Line {
    variant: String,
    workload: String,
}

#[derive(Serialize)]
struct Rows {
    rows: Vec<Row>,
    /// The most memory that the whole process has held at once; only on Linux.
    peak_rss_bytes: Option<u64>,
}

pub(super) fn bench(global: &GlobalOptions, args: &BenchArgs) -> Result<()> {
    if let Some(cases) = &args.plan {
        return bench_plan(global, args, cases);
    }
    if args.model.file().is_some() {
        let flag = if args.towers.is_some() { "--towers" } else { "--fetch-loss" };
        ensure!(
            args.towers.is_none() && !args.fetch_loss,
            "{flag} is for built-in models; a graph file has its own towers, and --fetch NAME fetches of it"
        );
    }
    let options = global.session_options()?;
    let mut combinations = Vec::new();
    let few = if options.machine.gpus() == 1 { vec![1] } else { vec![1, 2] };
    if args.model.file().is_some() {
        combinations.push(None);
    } else {
        for &towers in args.towers.as_ref().unwrap_or(&few) {
            global.check_towers(&options.machine, towers)?;
            combinations.extend(args.variables.iter().map(|&v| Some((towers, v))));
        }
    }
    let graphs: Vec<Graph> = combinations.iter().map(|_| program::graph(&args.model)).collect::<Result<_>>()?;
    let mut sessions = Vec::new();
    let mut rows = Vec::new();
    for (g, combination) in graphs.iter().zip(&combinations) {
        // A file says by itself how many towers it has and where its variables are.
        let (towers, variables) = combination.unwrap_or((1, Variables::Cpu));
        let (program, session) = program::open(g, global, &args.model, &TowerOptions { towers, variables })?;
        let mut step = program.step(g, &args.step)?;
        if let (Program::Model(model), true) = (&program, args.fetch_loss) {
            step.fetches.push(model.towers.loss);
        }
        let arrays = program.feeds_to_measure(g, &step, &args.step, args.model.seed)?;
        let schedule = program.schedule(&session, &step, &args.step)?;
        let copies = CopyTable::new(&schedule, session.machine());
        let memory = MemoryTable::new(&schedule, session.machine());
        session.initialize()?;
        let work: Cost = schedule.work().into_iter().sum();
        let devices = global.machine_name(session.machine());
        rows.push(Row {
            line: Line {
                variant: format!(
                    "{devices}, variables {}{}",
                    combination.map_or("file", |(_, variables)| variables.name()),
                    if step.fetches.is_empty() { "" } else { ", fetched" }
                ),
                workload: args.model.workload(),
            },
            towers: combination.map(|(towers, _)| towers),
            variables: combination.map_or("file", |(_, variables)| variables.name()),
            devices,
            threads: session.machine().device(DeviceId::HOST).threads,
            ms_median: 0.0,
            ms_min: 0.0,
            ms_max: 0.0,
            copies: copies.copies.len() + copies.all_reduces.len(),
            copy_bytes: copies.sent_bytes(),
            flops: work.flops,
            gflops_per_s: 0.0,
            kernel_bytes: work.bytes,
            step: StepParts::default(),
            peak_bytes: memory.devices.into_iter().map(|m| (m.device, m.total)).collect(),
        });
        sessions.push((session, step, arrays));
    }
    let prepared: Vec<(Callable<'_, '_>, Vec<&Array>)> = (sessions.iter())
        .map(|(session, step, arrays)| {
            let (tensors, arrays): (Vec<_>, Vec<_>) = arrays.iter().map(|(t, a)| (*t, a)).unzip();
            (session.callable(&tensors, &step.fetches, &step.targets), arrays)
        })
        .collect();
    let times = measure(&prepared, args)?;
    for (row, mut times) in rows.iter_mut().zip(times) {
        times.sort_by(f64::total_cmp);
        let middle = times.len() / 2;
        row.ms_median = if times.len() % 2 == 1 { times[middle] } else { (times[middle - 1] + times[middle]) / 2.0 };
        (row.ms_min, row.ms_max) = (times[0], times[times.len() - 1]);
        row.gflops_per_s = row.flops / row.ms_median.max(1e-9) / 1e6;
    }
    for (row, (session, step, arrays)) in rows.iter_mut().zip(&sessions) {
        let feeds: Vec<(Tensor<'_>, &Array)> = arrays.iter().map(|(t, a)| (*t, a)).collect();
        let traced = (0..TRACED_STEPS).map(|_| Ok(session.run_traced(&feeds, &step.fetches, &step.targets)?.1));
        row.step = StepParts::median(&traced.collect::<Result<Vec<_>>>()?).unwrap_or_default();
    }
    let rows = Rows { rows, peak_rss_bytes: peak_resident_bytes() };
    match (global.json, args.lines) {
        (true, _) => print_json(&rows),
        (_, true) => rows.rows.iter().try_for_each(|row| print(&format!("{}\n", rows.line(row)))),
        _ => print(&rows.text()),
    }
}

/// Milliseconds of each measured step, by row.
fn measure(prepared: &[(Callable<'_, '_>, Vec<&Array>)], args: &BenchArgs) -> Result<Vec<Vec<f64>>> {
    let mut times = vec![Vec::with_capacity(args.steps.unwrap_or(STEPS) as usize); prepared.len()];
    let rounds = u64::from(args.warmup) + u64::from(args.steps.unwrap_or(STEPS));
    let bar = progress("measuring", rounds * prepared.len() as u64, "steps")?;
    let mut fetched = Vec::new();
    for round in 0..rounds {
        for turn in 0..prepared.len() {
            // Another row begins each round, so that none always follows the same one.
            let row = (turn + round as usize) % prepared.len();
            let (callable, arrays) = &prepared[row];
            let start = Instant::now();
            callable.run_into(arrays, &mut fetched)?;
            let elapsed = start.elapsed().as_secs_f64() * 1e3;
            if round >= u64::from(args.warmup) {
                times[row].push(elapsed);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(times)
}

/// A bar, drawn on standard error, and only on a terminal.
pub(super) fn progress(doing: &str, count: u64, what: &str) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template(&format!("{doing} {{bar:30}} {{pos}}/{{len}} {what}, {{eta}} left"))?;
    Ok(ProgressBar::new(count).with_style(style))
}

/// With as many digits as tell short steps apart.
fn milliseconds(ms: f64) -> String {
    if ms < 1.0 { format!("{ms:.5}") } else { format!("{ms:.3}") }
}

impl Row {
    fn towers_text(&self) -> String {
        self.towers.map_or_else(|| "-".to_string(), |towers| towers.to_string())
    }
}

impl Rows {
    fn text(&self) -> String {
        let heads =
            ["towers", "variables", "devices", "ms", "min", "max", "GFLOP/s", "copies", "copied", "peak memory"];
        let number = ["towers", "ms", "min", "max", "GFLOP/s", "copies", "copied"];
        let rows = self.rows.iter().map(|r| {
            let short = |device: &str| device.trim_start_matches("/device:").to_lowercase();
            let peak: Vec<String> =
                r.peak_bytes.iter().map(|(d, b)| format!("{} {}", short(d), human_bytes(*b))).collect();
            vec![
                r.towers_text(),
                r.variables.to_string(),
                r.devices.clone(),
                milliseconds(r.ms_median),
                milliseconds(r.ms_min),
                milliseconds(r.ms_max),
                format!("{:.1}", r.gflops_per_s),
                r.copies.to_string(),
                human_bytes(r.copy_bytes),
                peak.join(", "),
            ]
        });
        let steps = self.rows.iter().map(|r| {
            let parts = [r.step.ms, r.step.products_ms, r.step.others_ms, r.step.copies_ms, r.step.waiting_ms];
            let named = [r.towers_text(), r.variables.to_string()];
            let amounts = [format!("{:.6}", r.flops / 1e9), human_bytes(r.kernel_bytes as u64)];
            named.into_iter().chain(parts.map(milliseconds)).chain(amounts).collect::<Vec<String>>()
        });
        let parts =
            ["towers", "variables", "traced", "products", "others", "copies", "waiting", "GFLOP", "kernels' bytes"];
        let rss = self.peak_rss_bytes.map_or(String::new(), |rss| {
            format!("the process held at most {} of memory, in all rows together\n", human_bytes(rss))
        });
        format!(
            "{}\n{}\nms is the median of a step's milliseconds, GFLOP/s the whole step's work over it; traced is a traced \
             step, and what follows are its parts\n{rss}",
            table(&heads, &number, rows),
            table(&parts, &[&parts[..1], &parts[2..]].concat(), steps)
        )
    }

    /// A row as other frameworks' programs print theirs.
    fn line(&self, row: &Row) -> Value {
        json!({
            "peer": "turret", "variant": row.line.variant, "workload": row.line.workload, "towers": row.towers,
            "threads": row.threads, "ms": row.ms_median, "min_ms": row.ms_min,
            "rss_mb": self.peak_rss_bytes.map(|bytes| bytes as f64 / 1e6),
        })
    }
}
