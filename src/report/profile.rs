//! Where the time of steps goes, from traced runs: by op type, by node, and by the kind of work.
//!
//! Invariant: everything adds up. What no row has is the row of waiting: time in which a queue runs nothing, between nodes
//! and beside other queues. A device is one queue, but a CUDA GPU, whose copies run in queues of their own.

use super::tables::table;
use crate::device::{DeviceId, Machine, QueueId};
use crate::run::{NodeSpan, RunMetadata};
use indexmap::IndexMap;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where one step's time goes; the four parts sum to the whole. While several devices run something, each has an equal
/// share of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepParts {
    /// Milliseconds from the step's beginning to its end on all devices.
    pub ms: f64,
    /// Products of matrices and convolutions, with what is fused with them.
    pub products_ms: f64,
    /// All other kernels.
    pub others_ms: f64,
    /// Copies between devices, and sums over them.
    pub copies_ms: f64,
    /// Nothing runs on any device.
    pub waiting_ms: f64,
}

/// Kinds of work, in the order of [`StepParts`].
const KINDS: usize = 3;

fn kind(span: &NodeSpan) -> usize {
    match (span.product, &span.copy) {
        (true, _) => 0,
        (false, None) => 1,
        (false, Some(_)) => 2,
    }
}

impl StepParts {
    /// The parts of a traced step.
    pub fn new(step: &RunMetadata) -> StepParts {
        // Where something begins or ends: how many of each kind run from there on.
        let mut changes: Vec<(u64, usize, i32)> = Vec::with_capacity(2 * step.spans.len());
        for span in &step.spans {
            changes.push((span.start_ns, kind(span), 1));
            changes.push((span.end_ns, kind(span), -1));
        }
        changes.sort_unstable();
        let (mut running, mut parts, mut waiting, mut at) = ([0i32; KINDS], [0f64; KINDS], 0f64, 0u64);
        let total = changes.last().map_or(step.total_ns, |(end, ..)| step.total_ns.max(*end));
        for (time, kind, change) in changes.into_iter().chain([(total, 0, 0)]) {
            let (ns, all) = ((time - at) as f64, running.iter().sum::<i32>());
            match all {
                0 => waiting += ns,
                _ => parts.iter_mut().zip(&running).for_each(|(p, n)| *p += ns * f64::from(*n) / f64::from(all)),
            }
            running[kind] += change;
            at = time;
        }
        let ms = |ns: f64| ns / 1e6;
        StepParts {
            ms: ms(total as f64),
            products_ms: ms(parts[0]),
            others_ms: ms(parts[1]),
            copies_ms: ms(parts[2]),
            waiting_ms: ms(waiting),
        }
    }

    /// The step of median length among these, as it was.
    pub fn median(steps: &[RunMetadata]) -> Option<StepParts> {
        let mut all: Vec<StepParts> = steps.iter().map(StepParts::new).collect();
        all.sort_by(|a, b| a.ms.total_cmp(&b.ms));
        all.get(all.len() / 2).copied()
    }
}

/// The sums of several traced steps, from which tables are made.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    steps: u64,
    total_ns: u64,
    queues: BTreeSet<QueueId>,
    nodes: IndexMap<(Arc<str>, DeviceId), Sums>,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    what: String,
    count: u64,
    ns: u64,
    flops: f64,
    bytes: f64,
}

impl Sums {
    fn add(&mut self, other: &Sums) {
        self.count += other.count;
        self.ns += other.ns;
        self.flops += other.flops;
        self.bytes += other.bytes;
    }
}

/// A row of a profile: an op type, or a node. All figures are of one step, on average.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileRow {
    /// The op type, those of a fused chain, or `copy` and the like.
    pub op: String,
    /// The node; none in a profile of op types.
    pub node: Option<String>,
    /// The node's device; none in a profile of op types.
    pub device: Option<String>,
    /// How often it runs.
    pub count: f64,
    /// Milliseconds, summed over queues.
    pub ms: f64,
    /// Its part of the queues' time, from 0 to 1.
    pub share: f64,
    /// Floating-point operations a second while it runs, in 10^9.
    pub gflops_per_s: f64,
    /// Bytes that its kernels read and write, or that it copies, a second while it runs, in 10^9.
    pub gbytes_per_s: f64,
}

/// A profile of steps, with the longest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileTable {
    /// How many steps it is the average of.
    pub steps: u64,
    /// Milliseconds of a step.
    pub step_ms: f64,
    /// The number of devices' queues that run something.
    pub queues: usize,
    /// Milliseconds of a step, times the queues: what rows and waiting sum to.
    pub queue_ms: f64,
    /// Milliseconds in which queues run nothing, summed over them.
    pub waiting_ms: f64,
    /// What runs.
    pub rows: Vec<ProfileRow>,
}

impl Profile {
    /// Adds a traced step.
    pub fn add(&mut self, step: &RunMetadata) {
        self.steps += 1;
        // The step ends when the last of its nodes does.
        self.total_ns += step.spans.iter().map(|s| s.end_ns).max().unwrap_or(0).max(step.total_ns);
        for span in &step.spans {
            self.queues.insert(span.queue);
            let bytes = span.copy.map_or(span.cost.bytes, |c| c.bytes as f64);
            let sums = self.nodes.entry((span.name.clone(), span.queue.device)).or_default();
            if sums.count == 0 {
                sums.what.clone_from(&span.what);
            }
            let ns = span.end_ns - span.start_ns;
            sums.add(&Sums { what: String::new(), count: 1, ns, flops: span.cost.flops, bytes });
        }
    }

    /// A row for each node and device.
    pub fn by_node(&self, machine: &Machine) -> ProfileTable {
        let rows = self.nodes.iter().map(|((name, device), sums)| ProfileRow {
            node: Some(name.to_string()),
            device: Some(machine.device(*device).short_name()),
            ..self.row(&sums.what, sums)
        });
        self.table(rows.collect())
    }

    /// A row for each op type.
    pub fn by_op(&self) -> ProfileTable {
        let mut ops: BTreeMap<&str, Sums> = BTreeMap::new();
        self.nodes.values().for_each(|sums| ops.entry(&sums.what).or_default().add(sums));
        self.table(ops.iter().map(|(what, sums)| self.row(what, sums)).collect())
    }

    /// An average over the steps.
    fn mean(&self, sum: f64) -> f64 {
        sum / self.steps.max(1) as f64
    }

    fn queue_ns(&self) -> f64 {
        self.total_ns as f64 * self.queues.len() as f64
    }

    fn row(&self, what: &str, sums: &Sums) -> ProfileRow {
        // 10^9 a second is one a nanosecond.
        let rate = |amount: f64| if sums.ns == 0 { 0.0 } else { amount / sums.ns as f64 };
        ProfileRow {
            op: what.to_string(),
            node: None,
            device: None,
            count: self.mean(sums.count as f64),
            ms: self.mean(sums.ns as f64) / 1e6,
            share: if self.queue_ns() == 0.0 { 0.0 } else { sums.ns as f64 / self.queue_ns() },
            gflops_per_s: rate(sums.flops),
            gbytes_per_s: rate(sums.bytes),
        }
    }

    fn table(&self, mut rows: Vec<ProfileRow>) -> ProfileTable {
        let busy: u64 = self.nodes.values().map(|s| s.ns).sum();
        rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        ProfileTable {
            steps: self.steps,
            step_ms: self.mean(self.total_ns as f64) / 1e6,
            queues: self.queues.len(),
            queue_ms: self.mean(self.queue_ns()) / 1e6,
            waiting_ms: self.mean(self.queue_ns() - busy as f64) / 1e6,
            rows,
        }
    }
}

impl ProfileTable {
    /// The table, for people.
    pub fn text(&self) -> String {
        let of_nodes = self.rows.iter().any(|r| r.node.is_some());
        let mut heads = vec!["op", "count", "ms", "share", "GFLOP/s", "GB/s"];
        if of_nodes {
            heads.splice(0..0, ["node", "device"]);
        }
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let cells = |r: &ProfileRow| {
            let named = of_nodes.then(|| [r.node.clone(), r.device.clone()].map(Option::unwrap_or_default));
            let rate = |rate: f64| if rate == 0.0 { String::new() } else { format!("{rate:.1}") };
            let count = if r.count.fract() == 0.0 { r.count.to_string() } else { format!("{:.2}", r.count) };
            let rest = [r.op.clone(), count, format!("{:.4}", r.ms), percent(r.share)];
            let rates = [rate(r.gflops_per_s), rate(r.gbytes_per_s)];
            named.into_iter().flatten().chain(rest).chain(rates).collect::<Vec<String>>()
        };
        let waiting = ProfileRow {
            op: "(waiting)".to_string(),
            node: None,
            device: None,
            count: 0.0,
            ms: self.waiting_ms,
            share: if self.queue_ms == 0.0 { 0.0 } else { self.waiting_ms / self.queue_ms },
            gflops_per_s: 0.0,
            gbytes_per_s: 0.0,
        };
        let rows = self.rows.iter().chain([&waiting]).map(cells);
        let queues = if self.queues == 1 { "1 queue".to_string() } else { format!("{} queues", self.queues) };
        format!(
            "{}\n{:.4} ms a step on {queues} of devices, the average of {} traced; shares are of the queues' time\n",
            table(&heads, &["count", "ms", "share", "GFLOP/s", "GB/s"], rows),
            self.step_ms,
            self.steps
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Lane;
    use crate::graph::Cost;

    fn span(name: &str, product: bool, device: u16, from: u64, to: u64) -> NodeSpan {
        NodeSpan {
            name: name.into(),
            what: if product { "MatMul" } else { "Relu" }.to_string(),
            queue: QueueId::compute(DeviceId(device)),
            start_ns: from,
            end_ns: to,
            outputs: Vec::new(),
            copy: None,
            product,
            cost: Cost { flops: 1000.0, bytes: 500.0 },
        }
    }

    fn step() -> RunMetadata {
        let spans = vec![span("a", true, 0, 100, 500), span("b", false, 1, 300, 700), span("c", false, 0, 900, 1000)];
        RunMetadata { spans, copies: Vec::new(), total_ns: 1100 }
    }

    #[test]
    fn parts_of_a_step_sum_to_it() {
        let parts = StepParts::new(&step());
        let ns = |ms: f64| (ms * 1e6).round();
        // From 300 to 500 both run, and each has half of the time.
        assert_eq!((ns(parts.products_ms), ns(parts.others_ms), ns(parts.copies_ms)), (300.0, 400.0, 0.0));
        assert_eq!((ns(parts.waiting_ms), ns(parts.ms)), (400.0, 1100.0));
        assert_eq!(StepParts::median(&[]), None);
    }

    #[test]
    fn rows_and_waiting_sum_to_the_devices_time() {
        let mut profile = Profile::default();
        profile.add(&step());
        profile.add(&step());
        for (table, rows) in [(profile.by_op(), 2), (profile.by_node(&Machine::simulated(1)), 3)] {
            assert_eq!((table.rows.len(), table.steps, table.queues), (rows, 2, 2));
            let sum = table.rows.iter().map(|r| r.ms).sum::<f64>() + table.waiting_ms;
            assert!((sum - table.queue_ms).abs() < 1e-9 && (table.queue_ms - 0.0022).abs() < 1e-9, "{table:?}");
        }
        // What a GPU copies beside its kernels is in a queue of its own.
        let mut beside = step();
        beside.spans[1].queue = QueueId { device: DeviceId(0), lane: Lane::ToHost };
        let mut overlapping = Profile::default();
        overlapping.add(&beside);
        let table = overlapping.by_op();
        assert!(table.queues == 2 && (table.waiting_ms * 1e6 - 1300.0).abs() < 1e-6, "{table:?}");
        let ops = profile.by_op();
        assert_eq!((&ops.rows[0].op[..], ops.rows[0].count), ("Relu", 2.0));
        assert_eq!((ops.rows[1].gflops_per_s, ops.rows[1].gbytes_per_s), (2.5, 1.25));
        assert!(ops.text().contains("(waiting)"), "{}", ops.text());
    }
}
