//! `turret place`: where variables and operations live.

use super::options::{GlobalOptions, ModelOptions, TowerOptions};
use super::program::{self, Program};
use super::{print, print_json};
use anyhow::Result;
use clap::Args;
use turret::plan::place_all;
use turret::report::{PlacementTable, gradient_listing, variable_listing};

#[derive(Args)]
pub(super) struct PlaceArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    towers: TowerOptions,
    /// All operations, not only variables
    #[arg(long)]
    ops: bool,
    /// One line a variable, as the article prints it
    #[arg(long, conflicts_with_all = ["ops", "csv", "json"])]
    short: bool,
    /// Comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// The article's whole listing: variables with devices, gradients by tower, all variables
    #[arg(long, conflicts_with_all = ["ops", "csv", "short", "json"])]
    listing: bool,
}

pub(super) fn place(global: &GlobalOptions, args: &PlaceArgs) -> Result<()> {
    let g = program::graph(&args.model)?;
    let (program, session) = program::open(&g, global, &args.model, &args.towers)?;
    let placed = place_all(&g.nodes(), session.machine(), session.placement_options())?;
    let table = PlacementTable::new(&g, &placed, session.machine());
    let table = if args.ops { table } else { table.variables_only() };
    if global.json {
        return print_json(&table);
    }
    print(&match args {
        PlaceArgs { short: true, .. } => table.short(),
        PlaceArgs { csv: true, ops: true, .. } => table.ops_csv(),
        PlaceArgs { csv: true, .. } => table.variables_csv(),
        PlaceArgs { listing: true, .. } => {
            let gradients = match &program {
                Program::Model(model) => gradient_listing(&model.towers.tower_grads),
                Program::File => String::new(),
            };
            format!("{}{gradients}{}", table.short(), variable_listing(g.global_variables()))
        }
        _ => table.text(),
    })
}
