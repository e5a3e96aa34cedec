//! Reach: what runs after each change of a variable, by the edges that the program gave.
//!
//! The changes of one variable come one after the other, so that what is after a later one is after the earlier ones as
//! well, and each node is noted once for all of them. Absent: what follows from it (`order.rs`).

use super::step::StepNodeId;
use std::collections::HashMap;

/// What runs after each change.
pub(super) struct Reach {
    /// By change: its row, and how many changes of the row come after it.
    places: HashMap<StepNodeId, (usize, usize)>,
    /// By row of changes, each of which comes after the one before: what is after them, with the place of the last one
    /// that it is after.
    rows: Vec<HashMap<StepNodeId, usize>>,
    /// By node: whether it comes after any of these changes.
    any: Vec<bool>,
    /// By node: its place in an order in which every edge points forward.
    positions: Vec<u32>,
}

impl Reach {
    /// Of the changes of several variables, given the nodes that come right after each.
    pub fn new<'a>(changes: impl Iterator<Item = &'a [StepNodeId]>, successors: &[Vec<StepNodeId>]) -> Reach {
        let mut reach = Reach {
            places: HashMap::new(),
            rows: Vec::new(),
            any: vec![false; successors.len()],
            positions: positions(successors),
        };
        let mut walk = Walk { successors, seen: vec![0; successors.len()], turn: 0 };
        for of_one in changes {
            let mut row = HashMap::new();
            let mut next: Option<StepNodeId> = None;
            let mut place = 0;
            // From the last one back. One that changes several variables is in the row of the first.
            for change in reach.in_order(of_one).into_iter().rev() {
                if reach.places.contains_key(&change) {
                    continue;
                }
                let mut found = walk.from(change, &row);
                if next.is_some_and(|next| !found.contains(&next)) {
                    // Nothing orders these two, which is refused later.
                    reach.rows.push(std::mem::take(&mut row));
                    found = walk.from(change, &row);
                    place = 0;
                }
                found.iter().for_each(|n| reach.any[n.index()] = true);
                row.extend(found.into_iter().map(|n| (n, place)));
                reach.places.insert(change, (reach.rows.len(), place));
                (next, place) = (Some(change), place + 1);
            }
            reach.rows.push(row);
        }
        reach
    }

    /// True if a node comes after a change.
    pub fn is_after(&self, node: StepNodeId, change: StepNodeId) -> bool {
        let Some((row, place)) = self.places.get(&change) else { return false };
        self.rows[*row].get(&node).is_some_and(|last| last <= place)
    }

    /// True if a node comes after any change.
    pub fn is_after_any(&self, node: StepNodeId) -> bool {
        self.any[node.index()]
    }

    /// These changes in an order in which every edge points forward, each once.
    pub fn in_order(&self, changes: &[StepNodeId]) -> Vec<StepNodeId> {
        let mut all = changes.to_vec();
        all.sort_by_key(|c| (self.positions[c.index()], *c));
        all.dedup();
        all
    }
}

struct Walk<'a> {
    successors: &'a [Vec<StepNodeId>],
    /// By node: the last turn in which it was reached.
    seen: Vec<u32>,
    turn: u32,
}

impl Walk<'_> {
    /// What comes after a node and is not known to come after a later one.
    fn from(&mut self, node: StepNodeId, known: &HashMap<StepNodeId, usize>) -> Vec<StepNodeId> {
        self.turn += 1;
        let (mut found, mut pending) = (Vec::new(), vec![node]);
        while let Some(node) = pending.pop() {
            for &next in &self.successors[node.index()] {
                if std::mem::replace(&mut self.seen[next.index()], self.turn) != self.turn && !known.contains_key(&next)
                {
                    found.push(next);
                    pending.push(next);
                }
            }
        }
        found
    }
}

/// By node: its place in an order in which every edge points forward; those of a ring are first.
fn positions(successors: &[Vec<StepNodeId>]) -> Vec<u32> {
    let mut waiting = vec![0u32; successors.len()];
    successors.iter().flatten().for_each(|s| waiting[s.index()] += 1);
    let mut ready: Vec<usize> = (0..waiting.len()).filter(|n| waiting[*n] == 0).collect();
    let mut places = vec![0; waiting.len()];
    let mut place = 0;
    while let Some(node) = ready.pop() {
        place += 1;
        places[node] = place;
        for next in &successors[node] {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.push(next.index());
            }
        }
    }
    places
}
