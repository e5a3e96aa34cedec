//! `turret copies`: what travels between devices in one step.

use super::options::{GlobalOptions, ModelOptions, StepOptions, TowerOptions};
use super::{model, print, print_json};
use anyhow::Result;
use clap::Args;
use turret::graph::Graph;
use turret::report::{CopyTable, MemoryTable};

#[derive(Args)]
pub(super) struct CopiesArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    towers: TowerOptions,
    #[command(flatten)]
    step: StepOptions,
    /// Comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

pub(super) fn copies(global: &GlobalOptions, args: &CopiesArgs) -> Result<()> {
    let g = Graph::new();
    let (model, session) = model::open(&g, global, &args.model, &args.towers)?;
    let schedule = model.schedule(&session, &args.step)?;
    let table = CopyTable::new(&schedule, session.machine());
    match (global.json, args.csv) {
        (true, _) => print_json(&table),
        (false, true) => print(&table.csv()),
        (false, false) => {
            print(&format!("{}\n{}", table.text(), MemoryTable::new(&schedule, session.machine()).text()))
        }
    }
}
