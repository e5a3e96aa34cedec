//! `turret bench --plan`: what building, planning and loading take, stage by stage, as towers and variables grow.
//!
//! Cases take turns, round by round. A row is the round whose sum is the median, so that its stages add up. Growth is
//! what a stage's time is multiplied by when the size doubles: 2 is in proportion, 4 is quadratic.

use super::bench::{BenchArgs, progress};
use super::feeds::model_feeds;
use super::model;
use super::options::{GlobalOptions, Variables};
use super::{print, print_json};
use anyhow::{Result, ensure};
use clap::ValueEnum;
use indexmap::IndexMap;
use serde::Serialize;
use turret::base::{Array, DType};
use turret::device::{peak_resident_bytes, reset_peak_resident, resident_bytes};
use turret::graph::{Graph, Init, Operation, Tensor};
use turret::plan::StageTimes;
use turret::report::{human_bytes, table};
use turret::run::{Session, SessionOptions};
use turret::train::{Optimizer, Towers};

/// The stages that build the graph; the others plan, load and start.
const BUILD: [&str; 4] = ["forward", "gradients", "average", "apply"];
/// Stages that run something, which are not part of getting ready.
const RUN: [&str; 2] = ["initialize", "first step"];

/// Milliseconds below which a stage's time says nothing of its growth.
const TELLING_MS: f64 = 0.005;

/// What grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Case {
    /// Towers of the model, each on its GPU
    Towers,
    /// Variables of one tower, in layers one after the other
    Deep,
    /// Variables of one tower, in layers side by side
    Wide,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Case::Towers => "towers",
            Case::Deep => "deep",
            Case::Wide => "wide",
        }
    }
}

#[derive(Serialize)]
struct Row {
    /// What grows: `towers`, or variables in `deep` or `wide` networks.
    case: &'static str,
    /// How many of them.
    size: usize,
    graph_nodes: usize,
    step_nodes: usize,
    /// All stages before the first run.
    ready_ms: f64,
    build_ms: f64,
    /// Planning, loading and starting threads.
    plan_ms: f64,
    /// By stage, in order.
    stages_ms: IndexMap<&'static str, f64>,
    /// By stage that takes long enough: what its time is multiplied by for each doubling of the size, since the row before
    /// of the same case.
    growth: Option<IndexMap<&'static str, f64>>,
    /// By how much the process's memory rose at most; only on Linux.
    rss_rise_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Rows {
    plans: Vec<Row>,
}

/// One measured round of a row.
struct Round {
    times: StageTimes,
    graph_nodes: usize,
    step_nodes: usize,
    rise: Option<u64>,
}

pub(super) fn bench_plan(global: &GlobalOptions, args: &BenchArgs, cases: &[Case]) -> Result<()> {
    ensure!(args.model.file().is_none(), "--plan builds its graphs itself; leave the graph file out");
    let doubled = |last: usize| std::iter::successors(Some(1), move |n| (n * 2 <= last).then_some(n * 2));
    let mut what = Vec::new();
    for &case in cases {
        let sizes: Vec<usize> = match case {
            Case::Towers => args.towers.clone().unwrap_or_else(|| doubled(512).collect()),
            _ => args.variable_counts.clone(),
        };
        what.extend(sizes.into_iter().map(|size| (case, size)));
    }
    let rounds = args.steps.unwrap_or(3);
    let bar = progress("planning", u64::from(rounds) * what.len() as u64, "plans")?;
    let mut measured: Vec<Vec<Round>> = what.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((case, size), rounds) in what.iter().zip(&mut measured) {
            rounds.push(measure(global, args, *case, *size)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut plans: Vec<Row> = Vec::new();
    for ((case, size), rounds) in what.into_iter().zip(measured) {
        let mut row = row(case, size, rounds);
        row.growth = plans.last().filter(|p| p.case == row.case && p.size < size).map(|before| growth(before, &row));
        plans.push(row);
    }
    let rows = Rows { plans };
    if global.json { print_json(&rows) } else { print(&rows.text()) }
}

fn row(case: Case, size: usize, mut rounds: Vec<Round>) -> Row {
    let rise = rounds.iter().filter_map(|r| r.rise).max();
    rounds.sort_by_key(|r| r.times.total());
    let middle = rounds.swap_remove(rounds.len() / 2);
    let stages_ms: IndexMap<&str, f64> =
        middle.times.iter().map(|(stage, took)| (stage, took.as_secs_f64() * 1e3)).collect();
    let sum = |which: &dyn Fn(&str) -> bool| stages_ms.iter().filter(|(s, _)| which(s)).map(|(_, ms)| ms).sum::<f64>();
    let build_ms = sum(&|s| BUILD.contains(&s));
    let plan_ms = sum(&|s| !BUILD.contains(&s) && !RUN.contains(&s));
    Row {
        case: case.name(),
        size,
        graph_nodes: middle.graph_nodes,
        step_nodes: middle.step_nodes,
        ready_ms: build_ms + plan_ms,
        build_ms,
        plan_ms,
        stages_ms,
        growth: None,
        rss_rise_bytes: rise,
    }
}

fn growth(before: &Row, now: &Row) -> IndexMap<&'static str, f64> {
    let doublings = (now.size as f64 / before.size as f64).log2();
    let times = now.stages_ms.iter().filter_map(|(stage, ms)| Some((*stage, *ms, *before.stages_ms.get(stage)?)));
    let told = times.filter(|(_, _, earlier)| *earlier >= TELLING_MS);
    told.map(|(stage, ms, earlier)| (stage, (ms / earlier).powf(1.0 / doublings))).collect()
}

fn measure(global: &GlobalOptions, args: &BenchArgs, case: Case, size: usize) -> Result<Round> {
    reset_peak_resident();
    let before = resident_bytes();
    let g = Graph::new();
    let options = global.session_options_for(if case == Case::Towers { size } else { 1 })?;
    let mut times = StageTimes::start();
    let (feeds, targets, made) = match case {
        Case::Towers => {
            global.check_towers(&options.machine, size)?;
            let of = args.model.near_batch(size);
            let variables = args.variables.first().copied().unwrap_or(Variables::Cpu);
            let built = model::build_timed(&g, &of, size, variables, &mut times)?;
            let train = built.train;
            (model_feeds(&built, Vec::new(), of.seed)?, vec![train], options)
        }
        _ => {
            let (feed, train) = network(&g, case, size, &mut times);
            (vec![feed], vec![train], options)
        }
    };
    let (step_nodes, graph_nodes) = (prepared(&g, made, &feeds, &targets, &mut times)?, g.len());
    let rise = peak_resident_bytes().zip(before).map(|(peak, before)| peak.saturating_sub(before));
    Ok(Round { times, graph_nodes, step_nodes, rise })
}

/// Plans and loads a step, then runs it once; gives how many nodes it has.
fn prepared<'g>(
    g: &'g Graph,
    options: SessionOptions,
    feeds: &[(Tensor<'g>, Array)],
    targets: &[Operation<'g>],
    times: &mut StageTimes,
) -> Result<usize> {
    let session = Session::new(g, options)?;
    times.lap("check");
    let fed: Vec<(Tensor<'_>, &Array)> = feeds.iter().map(|(t, a)| (*t, a)).collect();
    times.join(&session.prepare(&fed, &[], targets)?);
    session.initialize()?;
    times.lap("initialize");
    session.run(&fed, &[], targets)?;
    times.lap("first step");
    let sizes: Vec<(Tensor<'_>, &[usize])> = feeds.iter().map(|(t, a)| (*t, a.dims())).collect();
    Ok(session.schedule(&sizes, &[], targets)?.step.nodes.len())
}

/// A network of so many variables, two for each of its layers of 4 units: one after the other, or side by side.
fn network<'g>(
    g: &'g Graph,
    case: Case,
    variables: usize,
    times: &mut StageTimes,
) -> ((Tensor<'g>, Array), Operation<'g>) {
    const UNITS: usize = 4;
    const ROWS: usize = 8;
    let layers = (variables / 2).max(1);
    let x = g.placeholder(DType::F32, [ROWS, UNITS], "input");
    let towers = Towers::new(g, 1).devices(["/cpu:0"]);
    let optimizer = Optimizer::gradient_descent(0.01);
    let layer = |i: usize, x: Tensor<'g>| {
        g.variable_scope(&format!("layer{i}"), || {
            let w = g.get_variable("w", [UNITS, UNITS], Init::truncated_normal(0.0, 0.5));
            (x.matmul(w) + g.get_variable("b", [UNITS], Init::Zeros)).relu()
        })
    };
    let made = towers.gradients(&optimizer, |_| {
        let y = match case {
            Case::Wide => g.add_n((0..layers).map(|i| layer(i, x)).collect::<Vec<_>>()),
            _ => (0..layers).fold(x, |x, i| layer(i, x)),
        };
        let loss = y.square().mean();
        times.lap("forward");
        loss
    });
    times.lap("gradients");
    let built = towers.average(made);
    times.lap("average");
    let train = built.apply(&optimizer);
    times.lap("apply");
    let rows = Array::zeros(DType::F32, &[ROWS, UNITS]);
    ((x, rows.unwrap_or_else(|_| Array::scalar(0f32))), train)
}

impl Rows {
    fn text(&self) -> String {
        let mut text = String::new();
        for case in [Case::Towers, Case::Deep, Case::Wide] {
            let rows: Vec<&Row> = self.plans.iter().filter(|r| r.case == case.name()).collect();
            let Some(last) = rows.last() else { continue };
            let title = match case {
                Case::Towers => "towers",
                Case::Deep => "variables, deep",
                Case::Wide => "variables, wide",
            };
            let heads: Vec<String> =
                std::iter::once(title.to_string()).chain(rows.iter().map(|r| r.size.to_string())).collect();
            let heads: Vec<&str> = heads.iter().map(String::as_str).chain(["growth"]).collect();
            let line = |name: &str, cell: &dyn Fn(&Row) -> String, growth: Option<f64>| {
                let cells = rows.iter().map(|r| cell(r));
                let growth = growth.map_or(String::new(), |g| format!("{g:.2}"));
                std::iter::once(name.to_string()).chain(cells).chain([growth]).collect::<Vec<String>>()
            };
            let mut lines = vec![
                line("graph nodes", &|r| r.graph_nodes.to_string(), None),
                line("step nodes", &|r| r.step_nodes.to_string(), None),
            ];
            for stage in last.stages_ms.keys().copied() {
                let ms = |r: &Row| format!("{:.2}", r.stages_ms.get(stage).copied().unwrap_or(0.0));
                lines.push(line(stage, &ms, last.growth.as_ref().and_then(|g| g.get(stage).copied())));
            }
            lines.push(line("build", &|r| format!("{:.2}", r.build_ms), None));
            lines.push(line("plan", &|r| format!("{:.2}", r.plan_ms), None));
            lines.push(line("ready", &|r| format!("{:.2}", r.ready_ms), None));
            let rise = |r: &Row| r.rss_rise_bytes.map_or_else(|| "-".to_string(), human_bytes);
            lines.push(line("peak rise", &rise, None));
            text += &format!("{}\n", table(&heads, &heads[1..], lines));
        }
        text + "times are milliseconds; build is forward to apply, plan what follows up to the first run, ready both\n\
                growth is what the last doubling multiplies a stage's time by; peak rise is by how much the process's\n\
                memory rose beyond what cases before it left\n"
    }
}
