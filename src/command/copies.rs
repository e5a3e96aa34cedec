//! `turret copies`: what travels between devices in one step.

use super::options::{GlobalOptions, ModelOptions, StepOptions, TowerOptions};
use super::{print, print_json, program};
use anyhow::Result;
use clap::Args;
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
    let g = program::graph(&args.model)?;
    let (program, session) = program::open(&g, global, &args.model, &args.towers)?;
    let schedule = program.schedule(&session, &program.step(&g, &args.step)?, &args.step)?;
    let table = CopyTable::new(&schedule, session.machine());
    match (global.json, args.csv) {
        (true, _) => print_json(&table),
        (false, true) => print(&table.csv()),
        (false, false) => {
            print(&format!("{}\n{}", table.text(), MemoryTable::new(&schedule, session.machine()).text()))
        }
    }
}
