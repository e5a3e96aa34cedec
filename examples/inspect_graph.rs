//! What a TensorFlow graph file holds: its op types, where its variables live, and what one step would copy.

#[macro_use]
mod printing;

use clap::Parser;
use std::collections::BTreeMap;
use std::path::PathBuf;
use turret::graph::{Graph, Operation, Tensor};
use turret::interop::graphdef::GraphFile;
use turret::plan::place_all;
use turret::report::{CopyTable, PlacementTable, table};
use turret::run::{Session, SessionOptions};

/// Prints the op types, the placement and, for a target, the copies of a graph file: .pb, .pbtxt, .meta, or a SavedModel.
#[derive(Parser)]
struct Args {
    /// The file, or a SavedModel's folder
    graph: PathBuf,
    /// The devices: auto:N (CUDA GPUs, or simulated ones), cuda:0,1, sim:N, sim:N@all|pairs|none
    #[arg(long, default_value = "auto:2")]
    devices: String,
    /// An operation, such as the train op, whose copies are shown
    #[arg(long)]
    target: Option<String>,
    /// Rows of a batch, where the graph leaves sizes open
    #[arg(long, default_value_t = 8)]
    batch: usize,
}

fn main() -> turret::Result<()> {
    let args = Args::parse();
    let file = GraphFile::read(&args.graph)?;
    let graph = file.build()?;
    if let Some(versions) = &file.graph.versions {
        println!("written by version {} of TensorFlow's graphs", versions.producer);
    }
    println!("{}", op_types(&graph));

    // Devices of other machines are moved here, and marked.
    let session = Session::new(&graph, SessionOptions::devices(&args.devices)?.soft())?;
    let machine = session.machine();
    let placed = place_all(&graph.nodes(), machine, session.placement_options())?;
    println!("{}", PlacementTable::new(&graph, &placed, machine).variables_only().text());
    if let Some(target) = &args.target {
        print_copies(&session, graph.operation(target)?, args.batch)?;
    }
    Ok(())
}

/// How many nodes there are of each op type, and which of them turret runs.
fn op_types(graph: &Graph) -> String {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for node in graph.nodes() {
        let (all, run) = counts.entry(node.op_type().to_string()).or_default();
        *all += 1;
        *run += usize::from(!node.op.is_unknown());
    }
    let rows = counts.into_iter().map(|(op, (all, run))| vec![op, all.to_string(), run.to_string()]);
    table(&["op type", "nodes", "turret runs"], &["nodes", "turret runs"], rows)
}

/// What one run of the target copies. Placeholders count with the sizes that they have, others with the batch's.
fn print_copies(session: &Session<'_>, target: Operation<'_>, batch: usize) -> turret::Result<()> {
    let graph = session.graph();
    let placeholders = graph.operations().into_iter().filter(|o| o.op_type() == "Placeholder").map(|o| o.output(0));
    let sizes: Vec<(Tensor<'_>, Vec<usize>)> = placeholders
        .filter_map(|t| Some((t, t.shape().dims()?.iter().map(|d| d.unwrap_or(batch)).collect())))
        .collect();
    let feeds: Vec<(Tensor<'_>, &[usize])> = sizes.iter().map(|(t, dims)| (*t, &dims[..])).collect();
    let step = session.schedule(&feeds, &[], &[target])?;
    println!("{}", CopyTable::new(&step, session.machine()).text());
    Ok(())
}
