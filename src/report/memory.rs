//! What a scheduled step needs on each device: variables, constants, and the arena with its two lanes.

use super::tables::{human_bytes, table};
use crate::device::Machine;
use crate::plan::{Origin, Schedule};
use serde::Serialize;

/// The memory of one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryRow {
    /// The device.
    pub device: String,
    /// Bytes of the variables there that the step uses.
    pub variables: u64,
    /// Bytes of constants laid down with the plan.
    pub constants: u64,
    /// Bytes of the arena for results of operations; buffers there are used again within the step.
    pub compute: u64,
    /// Bytes of the arena for results of copies.
    pub copies: u64,
    /// All of these.
    pub total: u64,
}

/// The memory that one step needs, by device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryTable {
    /// The devices that take part, in the machine's order.
    pub devices: Vec<MemoryRow>,
}

impl MemoryTable {
    /// The memory of a scheduled step.
    pub fn new(schedule: &Schedule, machine: &Machine) -> MemoryTable {
        let sum = |device, which: fn(&Origin) -> bool| {
            let values = schedule.step.values.iter().filter(|v| v.device == device && v.alias_of.is_none());
            values.filter(|v| which(&v.origin)).map(|v| v.desc.bytes() as u64).sum::<u64>()
        };
        let row = |device: crate::device::DeviceId| {
            let variables = sum(device, |o| matches!(o, Origin::Variable(_)));
            let constants = sum(device, |o| matches!(o, Origin::Known(_)));
            let compute = schedule.memory.compute_bytes[device.index()] as u64;
            let copies = schedule.memory.copy_bytes[device.index()] as u64;
            let total = variables + constants + compute + copies;
            let device = machine.device(device).short_name();
            MemoryRow { device, variables, constants, compute, copies, total }
        };
        MemoryTable { devices: schedule.devices().into_iter().map(row).collect() }
    }

    /// The table, for people.
    pub fn text(&self) -> String {
        let heads = ["device", "variables", "constants", "compute", "copies", "total"];
        let rows = self.devices.iter().map(|r| {
            let counts = [r.variables, r.constants, r.compute, r.copies, r.total];
            std::iter::once(r.device.clone()).chain(counts.into_iter().map(human_bytes)).collect()
        });
        table(&heads, &heads[1..], rows)
    }
}
