//! Room: whether a plan fits the devices' memory limits, checked on all devices before any memory is taken.

use super::cuda::cuda_error;
use super::store::VariableStore;
use crate::base::{Array, Code, Diagnostic, Error, Result};
use crate::device::cuda::Context;
use crate::device::{DeviceId, DeviceInfo, Machine, MemoryUse};
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

/// Checks that variables and buffers of a plan fit beside what is in use and stays: within a device's limit, or within
/// what a CUDA GPU has free.
///
/// # Errors
/// The first device where they do not: the node with the largest buffer, bytes asked, in use or free, the holders.
pub(super) fn check_room(
    schedule: &Schedule,
    machine: &Machine,
    accounts: &[Arc<MemoryUse>],
    store: &VariableStore,
    give_way: GiveWay,
) -> Result<()> {
    for device in schedule.devices() {
        let info = machine.device(device);
        let held = accounts[device.index()].bytes();
        let stays = match give_way {
            GiveWay::Nothing => held,
            GiveWay::Plans => store.on_device(device).map(|(_, bytes)| bytes as u64).sum(),
        };
        // Bytes that can be had, and in words what there is.
        let (room, there) = if let Some(limit) = info.memory_limit {
            (limit.saturating_sub(stays), format!("{stays} of {limit} in use"))
        } else if let Some(identity) = &info.cuda {
            // A plan that is only looked at opens no GPU.
            let context = match (Context::opened(identity), give_way) {
                (None, GiveWay::Plans) => None,
                _ => Some(Context::open(identity).map_err(|e| cuda_error(info, e))?),
            };
            let total = identity.memory_bytes as usize;
            let memory = context.map_or(Ok((total, total)), |c| c.memory()).map_err(|e| cuda_error(info, e))?;
            let room = memory.0 as u64 + held.saturating_sub(stays);
            (room, format!("{room} of {} free", memory.1))
        } else {
            continue;
        };
        let asked = bytes_asked(schedule, device, store);
        if asked > room {
            return Err(out_of_memory(schedule, info, store, asked, &there).into());
        }
    }
    Ok(())
}

/// A device that cannot hold its part of a step.
fn out_of_memory(
    schedule: &Schedule,
    device: &DeviceInfo,
    store: &VariableStore,
    asked: u64,
    there: &str,
) -> Diagnostic {
    let step = &schedule.step;
    // What would be taken, and what is taken, by bytes.
    let mut holders = schedule.largest_buffers(device.id, NAMED);
    let held = store.on_device(device.id).map(|(id, bytes)| (step.pruned.node(id).name.to_string(), bytes));
    holders.extend(held);
    holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    holders.dedup_by(|a, b| a.0 == b.0);
    let named: Vec<String> = holders.iter().take(NAMED).map(|(name, bytes)| format!("'{name}' {bytes}")).collect();
    let node = largest(schedule, device.id).map(|v| step.pruned.node(step.value(v).tensor.node));
    let such_as = node.map_or(String::new(), |n| match n.name.split_once('/') {
        Some((scope, _)) => format!(", such as '{}' ({}) of {scope}", n.name, n.op_type()),
        None => format!(", such as '{}' ({})", n.name, n.op_type()),
    });
    let message = format!(
        "{} is out of memory for its part of the step{such_as}: {asked} bytes asked, {there}; the largest holders are \
         {} (bytes); use a smaller batch, more towers, or {}",
        device.short_name(),
        named.join(", "),
        if device.cuda.is_some() { "a GPU with more memory" } else { "a higher limit" }
    );
    Diagnostic { source: node.map(|n| n.source), ..Diagnostic::new(Code::ResourceExhausted, message) }
}

/// The error of memory that was refused; other errors as they are.
pub(super) fn not_enough(
    schedule: &Schedule,
    device: &DeviceInfo,
    store: &VariableStore,
    asked: usize,
    error: Error,
) -> Error {
    match error.code() {
        Code::ResourceExhausted => out_of_memory(schedule, device, store, asked as u64, &error.to_string()).into(),
        _ => error,
    }
}

/// Bytes that loading the plan takes on a device: arena, constants, variables that are not there yet.
pub(super) fn bytes_asked(schedule: &Schedule, device: DeviceId, store: &VariableStore) -> u64 {
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
