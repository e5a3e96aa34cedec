//! Room: whether a plan fits the devices' memory limits, checked on all devices before any memory is taken.

use super::store::VariableStore;
use crate::base::{Array, Code, Diagnostic, Result};
use crate::device::{DeviceId, Machine, MemoryUse};
use crate::graph::NodeId;
use crate::plan::{Origin, Schedule, ValueId};
use std::sync::Arc;

/// How many of the largest holders a message names.
const NAMED: usize = 4;

/// What may give way to a plan.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum GiveWay {
    /// Nothing that is in use.
    Nothing,
    /// Other plans; only variables stay.
    Plans,
}

/// Checks that variables and buffers of a plan fit beside what is in use and stays.
///
/// # Errors
/// The first device where they do not: the node with the largest buffer, bytes asked, in use, the limit, the holders.
pub(super) fn check_room(
    schedule: &Schedule,
    machine: &Machine,
    accounts: &[Arc<MemoryUse>],
    store: &VariableStore,
    give_way: GiveWay,
) -> Result<()> {
    for device in schedule.devices() {
        let info = machine.device(device);
        let Some(limit) = info.memory_limit else { continue };
        let asked = bytes_asked(schedule, device, store);
        let used = match give_way {
            GiveWay::Nothing => accounts[device.index()].bytes(),
            GiveWay::Plans => store.on_device(device).map(|(_, bytes)| bytes as u64).sum(),
        };
        if used.saturating_add(asked) <= limit {
            continue;
        }
        let step = &schedule.step;
        // What would be taken, and what is taken, by bytes.
        let mut holders = schedule.largest_buffers(device, NAMED);
        let held = store.on_device(device).map(|(id, bytes)| (step.pruned.node(id).name.to_string(), bytes));
        holders.extend(held);
        holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        holders.dedup_by(|a, b| a.0 == b.0);
        let named: Vec<String> = holders.iter().take(NAMED).map(|(name, bytes)| format!("'{name}' {bytes}")).collect();
        let largest = largest(schedule, device);
        let node = largest.map(|v| step.pruned.node(step.value(v).tensor.node));
        let such_as = node.map_or(String::new(), |n| format!(", such as '{}' ({})", n.name, n.op.name()));
        let message = format!(
            "{} is out of memory for its part of the step{such_as}: {asked} bytes asked, {used} of {limit} in use; \
             the largest holders are {} (bytes); use a smaller batch, more towers, or a higher limit",
            info.short_name(),
            named.join(", ")
        );
        let diagnostic = Diagnostic::new(Code::ResourceExhausted, message);
        return Err(Diagnostic { source: node.map(|n| n.source), ..diagnostic }.into());
    }
    Ok(())
}

/// Bytes that loading the plan takes on a device: arena, constants, variables that are not there yet.
fn bytes_asked(schedule: &Schedule, device: DeviceId, store: &VariableStore) -> u64 {
    let mut new: Vec<NodeId> = Vec::new();
    let mut asked = schedule.memory.arena_bytes(device) as u64;
    for value in schedule.step.values.iter().filter(|v| v.device == device) {
        match &value.origin {
            Origin::Known(array) if !device.is_host() => asked = asked.saturating_add(padded(array) as u64),
            Origin::Variable(id) if store.device(*id).is_none() && !new.contains(id) => {
                new.push(*id);
                asked = asked.saturating_add(value.desc.bytes() as u64);
            }
            _ => {}
        }
    }
    asked
}

/// The value with the largest buffer on a device.
fn largest(schedule: &Schedule, device: DeviceId) -> Option<ValueId> {
    let values = schedule.step.values.iter().enumerate();
    let here =
        values.filter(|(_, v)| v.device == device && v.alias_of.is_none() && !matches!(v.origin, Origin::Fed(_)));
    // The first of equals: what it was computed from comes before what is computed from it.
    here.min_by_key(|(_, v)| std::cmp::Reverse(v.desc.bytes())).map(|(i, _)| ValueId(i as u32))
}

/// The bytes that a constant takes on a GPU.
pub(super) fn padded(array: &Array) -> usize {
    array.bytes().len().div_ceil(64) * 64
}
