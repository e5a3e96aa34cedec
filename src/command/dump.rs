//! `turret dump`: the graph at a stage of planning, to standard output or to a file.

use super::options::{GlobalOptions, ModelOptions, StepOptions, TowerOptions};
use super::{check_output, print, print_json, program, write_out};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use turret::graph::Graph;
use turret::interop::events::EventWriter;
use turret::interop::graphdef::{GraphDef, export_graph, export_placed};
use turret::plan::place_all;
use turret::report::{Stage, StageView, graph_text};
use turret::run::Session;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// For Graphviz
    Dot,
    /// One node a line
    Text,
    /// TensorFlow's GraphDef
    Pb,
    /// GraphDef as text, with large constants in short
    Pbtxt,
    /// An event file for TensorBoard, in the folder that --output names
    Tensorboard,
    /// A page (comes later)
    Html,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StageName {
    Built,
    Pruned,
    Placed,
    Partitioned,
    Scheduled,
}

#[derive(Args)]
pub(super) struct DumpArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    towers: TowerOptions,
    #[command(flatten)]
    step: StepOptions,
    /// The form
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// The stage
    #[arg(long, value_enum, default_value = "built")]
    stage: StageName,
    /// Large constants whole in pbtxt too, so that TensorFlow can read it
    #[arg(long)]
    full: bool,
    /// Every change that passes made to the scheduled step, in lines at the top
    #[arg(long)]
    passes: bool,
    /// The file to write, instead of standard output; for tensorboard the folder
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn dump(global: &GlobalOptions, args: &DumpArgs) -> Result<()> {
    if args.format == Format::Html {
        bail!("--format html is not offered yet; want dot, text, pb, pbtxt or tensorboard");
    }
    let stage = match args.stage {
        StageName::Built => Stage::Built,
        StageName::Pruned => Stage::Pruned,
        StageName::Placed => Stage::Placed,
        StageName::Partitioned => Stage::Partitioned,
        StageName::Scheduled => Stage::Scheduled,
    };
    match &args.output {
        None if args.format == Format::Tensorboard => bail!("--format tensorboard wants a folder: --output FOLDER"),
        Some(path) if args.format != Format::Tensorboard => check_output(path)?,
        _ => {}
    }
    // What a step runs has no calls of functions left.
    let g = match stage {
        Stage::Built | Stage::Placed => program::graph_as_written(&args.model)?,
        _ => program::graph(&args.model)?,
    };
    let (program, session) = program::open(&g, global, &args.model, &args.towers)?;
    if matches!(args.format, Format::Pb | Format::Pbtxt | Format::Tensorboard) {
        if global.json {
            bail!("--json and --format pb, pbtxt or tensorboard are two forms; leave one out");
        }
        let def = graph_def(&g, &session, stage)?;
        if let (Format::Tensorboard, Some(folder)) = (args.format, &args.output) {
            let mut events = EventWriter::new(folder)?;
            events.graph(&def)?;
            events.flush()?;
            return print(&format!("{}\n", events.path().display()));
        }
        return match args.format {
            Format::Pb => write(args, &def.to_bytes()),
            _ => write(args, graph_text(&g, &def, args.full)?.as_bytes()),
        };
    }
    let view = match stage {
        Stage::Built => StageView::built(&g.nodes()),
        _ => {
            let schedule = program.schedule(&session, &program.step(&g, &args.step)?, &args.step)?;
            StageView::of(&schedule, session.machine(), stage)
        }
    };
    let view = if args.passes { view.with_changes() } else { view };
    match args.format {
        _ if global.json && args.output.is_none() => print_json(&view),
        _ if global.json => write(args, serde_json::to_string_pretty(&view)?.as_bytes()),
        Format::Dot => write(args, view.dot().as_bytes()),
        _ => write(args, view.text().as_bytes()),
    }
}

/// The whole graph, with the devices that it asks for or gets.
fn graph_def(g: &Graph, session: &Session<'_>, stage: Stage) -> Result<GraphDef> {
    match stage {
        Stage::Built => Ok(export_graph(g)?),
        Stage::Placed => {
            let placed = place_all(&g.nodes(), session.machine(), session.placement_options())?;
            Ok(export_placed(g, &placed, session.machine())?)
        }
        other => bail!("a GraphDef is of the stages built and placed; for {other} use --format text or dot"),
    }
}

fn write(args: &DumpArgs, bytes: &[u8]) -> Result<()> {
    match &args.output {
        Some(path) => std::fs::write(path, bytes).with_context(|| format!("cannot write '{}'", path.display())),
        None => match std::str::from_utf8(bytes) {
            Ok(text) if args.format != Format::Pb => print(text),
            _ => write_out(bytes),
        },
    }
}
