//! Buffers: that every value is still in its buffer whenever it is read; debug builds check each memory plan.
//!
//! Absent: where buffers are put, which is `memory.rs`.

use super::memory::MemoryPlan;
use super::step::{Fetch, Origin, Partitioned, ValueId};
use std::collections::BTreeMap;

/// What a device's arena holds, by the byte where it starts: where it ends, and the value.
type Held = BTreeMap<usize, (usize, ValueId)>;

/// Goes through an ordered step as it will run.
///
/// # Errors
/// A value that is read and was never written, or has been overwritten.
pub(super) fn check(p: &Partitioned, plan: &MemoryPlan) -> Result<(), String> {
    let mut devices: Vec<Held> = vec![Held::new(); plan.compute_bytes.len()];
    // What is read by another queue, or after the step, at a time of its own.
    let mut at_the_end: Vec<ValueId> = Vec::new();
    for node in &p.nodes {
        for &input in &node.inputs {
            holds(p, plan, &devices, input).map_err(|e| format!("'{}' reads {e}", node.name))?;
        }
        if node.is_transfer() {
            at_the_end.extend(&node.inputs);
        }
        for &output in node.outputs.iter().filter(|v| p.value(**v).alias_of.is_none()) {
            let refuse = |what: &str| Err(format!("'{}' {what}", node.name));
            let Some((device, start, end)) = place(p, plan, output) else {
                return refuse("has no buffer for its result");
            };
            let held = &mut devices[device];
            let in_place_of = plan.in_place_of[output.index()].map(|of| plan.roots.get(of).0);
            let over: Vec<(usize, ValueId)> = overlapping(held, start, end).collect();
            for (_, other) in &over {
                let is_read = node.inputs.iter().any(|input| plan.roots.get(*input).0 == *other);
                if is_read && in_place_of != Some(*other) || node.outputs.contains(other) {
                    return refuse("writes where it reads, or two of its results in one place");
                }
            }
            over.into_iter().for_each(|(at, _)| _ = held.remove(&at));
            if start < end {
                held.insert(start, (end, output));
            }
        }
    }
    at_the_end.extend(p.fetches.iter().filter_map(|f| match f {
        Fetch::Value(value) => Some(*value),
        _ => None,
    }));
    at_the_end.into_iter().try_for_each(|value| holds(p, plan, &devices, value).map_err(|e| format!("at the end, {e}")))
}

/// A value's device, and where its buffer begins and ends.
fn place(p: &Partitioned, plan: &MemoryPlan, value: ValueId) -> Option<(usize, usize, usize)> {
    let of = p.value(value);
    let start = plan.offset(of.device, value)?;
    Some((of.device.index(), start, start.saturating_add(of.desc.bytes())))
}

fn overlapping(held: &Held, start: usize, end: usize) -> impl Iterator<Item = (usize, ValueId)> + '_ {
    let before = held.range(..start).next_back().filter(|(_, (other_end, _))| *other_end > start);
    before.into_iter().chain(held.range(start..end)).map(|(at, (_, value))| (*at, *value))
}

/// Checks that a value's bytes are those that were written for it.
fn holds(p: &Partitioned, plan: &MemoryPlan, devices: &[Held], value: ValueId) -> Result<(), String> {
    let root = plan.roots.get(value).0;
    if !matches!(p.value(root).origin, Origin::Computed(_)) || p.value(root).desc.bytes() == 0 {
        return Ok(());
    }
    let name = || p.tensor_name(p.value(value).tensor);
    let Some((device, start, end)) = place(p, plan, root) else {
        return Err(format!("'{}', which has no buffer", name()));
    };
    match devices[device].get(&start) {
        Some((held_end, held)) if *held == root && *held_end >= end => Ok(()),
        _ => Err(format!("'{}', which is not in its buffer", name())),
    }
}
