//! Remarks of a session that are no errors: one line for each matter, however often it comes up.

use crate::base::{DeviceSpec, SourceLine};
use crate::device::DeviceId;
use crate::graph::{NodeId, TensorId};
use crate::plan::{Route, Schedule};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How often a grown graph may be planned again before the session remarks on it.
const GROWTH_PLANS: usize = 3;

/// What there is to remark on.
#[derive(Default)]
pub(super) struct Remarks {
    grown: usize,
    growth: Option<String>,
    /// What soft placement moved: asked and given.
    moved: BTreeMap<NodeId, (DeviceSpec, DeviceId)>,
    /// Copies between GPUs that do not reach each other.
    staged: BTreeSet<(TensorId, DeviceId, DeviceId)>,
    /// Pairs of GPUs whose copies take another way than the machine's, and why.
    detours: BTreeMap<(DeviceId, DeviceId), String>,
}

impl Remarks {
    /// Looks at a plan that was just made.
    pub fn look_at(&mut self, schedule: &Schedule) {
        let step = &schedule.step;
        for (id, placement) in step.placed.moved() {
            self.moved.insert(id, (step.pruned.node(id).device.spec.clone(), placement.device));
        }
        let staged = step.copies().filter(|(_, c)| c.route == Route::ThroughHost);
        self.staged.extend(staged.map(|(_, c)| (c.tensor, c.from, c.to)));
    }

    /// Notes that copies from one GPU to another go through pinned host memory, and why.
    pub fn detoured(&mut self, from: DeviceId, to: DeviceId, why: String) {
        self.detours.insert((from, to), why);
    }

    /// Notes that the graph has grown and was planned again, and its newest node.
    pub fn grew(&mut self, newest: Option<(&Arc<str>, SourceLine)>) {
        self.grown += 1;
        if self.grown == GROWTH_PLANS {
            let newest = newest.map_or(String::new(), |(name, source)| format!("'{name}' (made at {source})"));
            self.growth = Some(format!(
                "the graph has grown between runs {GROWTH_PLANS} times and was planned again each time, last for {newest}; \
                 build operations once, before the loop, and call Graph::finalize to catch this"
            ));
        }
    }

    /// The lines.
    pub fn lines(&self) -> Vec<String> {
        let growth = self.growth.clone();
        let detours = self.detours.iter().map(|((from, to), why)| {
            format!("copies from {from} to {to} go through pinned host memory, since a trial copy failed: {why}")
        });
        growth.into_iter().chain(self.soft_placement()).chain(self.staging()).chain(detours).collect()
    }

    fn soft_placement(&self) -> Option<String> {
        if self.moved.is_empty() {
            return None;
        }
        let mut counts: BTreeMap<(String, DeviceId), usize> = BTreeMap::new();
        for (asked, given) in self.moved.values() {
            *counts.entry((asked.to_string(), *given)).or_default() += 1;
        }
        let moves: Vec<String> = counts.iter().map(|((asked, given), n)| format!("{asked} → {given} ({n})")).collect();
        let nodes = if self.moved.len() == 1 { "node" } else { "nodes" };
        Some(format!(
            "soft placement moved {} {nodes} from the devices they ask for: {}; the placement table marks them",
            self.moved.len(),
            moves.join(", ")
        ))
    }

    fn staging(&self) -> Option<String> {
        if self.staged.is_empty() {
            return None;
        }
        let pairs: BTreeSet<(DeviceId, DeviceId)> =
            self.staged.iter().map(|&(_, a, b)| if a < b { (a, b) } else { (b, a) }).collect();
        let pairs: Vec<String> = pairs.iter().map(|(a, b)| format!("{a}–{b}")).collect();
        let copies = if self.staged.len() == 1 { "copy goes" } else { "copies go" };
        Some(format!(
            "{} {copies} through host memory, between GPUs that do not reach each other: {}",
            self.staged.len(),
            pairs.join(", ")
        ))
    }
}
