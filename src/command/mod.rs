//! The subcommands of `turret`, each in a file of its own, over the library's public interface.
//!
//! Results go to standard output, as one JSON document with `--json`; everything else goes to standard error. The exit
//! code is 0, or 1 with one message.

mod bench;
mod bench_plan;
mod checkpoint;
mod copies;
mod devices;
mod dump;
mod feeds;
mod model;
mod options;
mod place;
mod program;
mod run;

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Parser, Subcommand};
use options::GlobalOptions;
use serde::Serialize;
use std::fmt::Arguments;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Problems of one error that are shown.
const SHOWN_PROBLEMS: usize = 3;

/// Builds and runs TensorFlow 1's multi-GPU towers, and shows where things live, what travels and what it costs.
#[derive(Parser)]
#[command(name = "turret", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    subcommand: Sub,
}

#[derive(Subcommand)]
enum Sub {
    /// The devices, their memory, and which reach each other directly
    Devices,
    /// Where variables and operations live: asked, given, and why
    Place(place::PlaceArgs),
    /// The copies between devices of one step
    Copies(copies::CopiesArgs),
    /// Runs steps and shows the fetched values
    Run(run::RunArgs),
    /// Step times, copies and memory, side by side for tower counts and variable placements
    Bench(bench::BenchArgs),
    /// The graph at a stage of planning
    Dump(dump::DumpArgs),
    /// What files of variables hold, and their conversion
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    /// The predicted step on given hardware (not offered yet)
    #[command(hide = true)]
    Simulate {
        /// What the predicted machine is described by.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
}

/// Runs the command that the arguments ask for.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let is_error = e.use_stderr();
            // Where even this cannot be written there is nobody to tell.
            let _ = e.print();
            return if is_error { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let global = &cli.global;
    let done = match &cli.subcommand {
        Sub::Devices => devices::devices(global),
        Sub::Place(args) => place::place(global, args),
        Sub::Copies(args) => copies::copies(global, args),
        Sub::Run(args) => run::run(global, args),
        Sub::Bench(args) => bench::bench(global, args),
        Sub::Dump(args) => dump::dump(global, args),
        Sub::Checkpoint(command) => checkpoint::checkpoint(global, command),
        Sub::Simulate { .. } => Err(anyhow!(
            "simulate is not offered yet: it needs the cost model; bench measures steps on the machine at hand"
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough of it.
        Err(e) if is_closed_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            tell(format_args!("error: {}\n", message(&e)));
            ExitCode::FAILURE
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The one message: the context and the first problems. Nodes of a file were made by no line of a program, but by the
/// one that reads it.
fn message(error: &anyhow::Error) -> String {
    let reader = format!("at {}:", program::READER);
    let lines = problems(error);
    let lines = lines.lines().filter(|l| !l.trim_start().starts_with(&reader));
    let lines = lines.map(|l| l.split_once(&format!(", made {reader}")).map_or(l, |(before, _)| before));
    lines.collect::<Vec<_>>().join("\n")
}

fn problems(error: &anyhow::Error) -> String {
    let problems = match error.root_cause().downcast_ref::<turret::Error>() {
        Some(e) if e.diagnostics().len() > SHOWN_PROBLEMS => e.diagnostics(),
        _ => return format!("{error:#}"),
    };
    let shown: Vec<String> = problems.iter().take(SHOWN_PROBLEMS).map(|d| format!("  {d}")).collect();
    let more = problems.len() - SHOWN_PROBLEMS;
    format!("{} problems, first of all:\n{}\n  … and {more} more", problems.len(), shown.join("\n"))
}

/// Writes to standard output.
fn print(text: &str) -> Result<()> {
    write_out(text.as_bytes())
}

/// Writes to standard error. Where that cannot be written there is nobody to tell, and the results still count.
fn tell(text: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// Writes one JSON document to standard output.
fn print_json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    print(&text)
}

/// Writes bytes to standard output.
fn write_out(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// An error now rather than after the last step.
fn check_output(path: &Path) -> Result<()> {
    let of = || format!("cannot write '{}'", path.display());
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "{}: there is no folder '{}'", of(), folder.display());
    if let Ok(there) = path.metadata() {
        ensure!(!there.is_dir(), "{}: it is a folder; name a file in it", of());
        ensure!(!there.permissions().readonly(), "{}: it is read-only; name another file", of());
    }
    Ok(())
}
