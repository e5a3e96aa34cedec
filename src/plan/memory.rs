//! The static memory plan: where in its device's arena every value of a step lives.
//!
//! Results of copies and all-reduces have a region of their own and are not reused within a step, so that none waits for
//! computing to free its destination; what another device reads, and what is fetched, is kept to the step's end.

use super::step::{Fetch, Origin, Partitioned, ValueId};
use crate::device::DeviceId;
use std::collections::BTreeMap;

/// Buffers start on this boundary.
const ALIGN: usize = 64;

/// A part of a device's arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// Results of ops; reused when their last reader is done.
    Compute,
    /// Results of copies and all-reduces.
    Copy,
}

/// Where the base values of a step live, and how large each device's regions are.
#[derive(Default, Debug)]
pub struct MemoryPlan {
    /// By value: the region and the byte where it starts, for values that the arena holds.
    pub places: Vec<Option<(Region, usize)>>,
    /// By value: the value in whose buffer it is computed, where it is computed in place.
    pub in_place_of: Vec<Option<ValueId>>,
    /// By device: bytes of the compute region.
    pub compute_bytes: Vec<usize>,
    /// By device: bytes of the copy region.
    pub copy_bytes: Vec<usize>,
}

impl MemoryPlan {
    /// Bytes of a device's arena.
    pub fn arena_bytes(&self, device: DeviceId) -> usize {
        self.compute_bytes[device.index()].saturating_add(self.copy_bytes[device.index()])
    }

    /// The byte of the arena where a base value starts.
    pub fn offset(&self, device: DeviceId, value: ValueId) -> Option<usize> {
        self.places[value.index()].map(|(region, at)| match region {
            Region::Compute => at,
            Region::Copy => self.compute_bytes[device.index()].saturating_add(at),
        })
    }
}

/// Plans the memory of ordered nodes on a machine of this many devices.
pub(super) fn plan_memory(p: &Partitioned, devices: usize) -> MemoryPlan {
    let mut plan = MemoryPlan {
        places: vec![None; p.values.len()],
        in_place_of: vec![None; p.values.len()],
        compute_bytes: vec![0; devices],
        copy_bytes: vec![0; devices],
    };
    let mut last_use = last_uses(p);
    let mut arenas: Vec<Arena> = (0..devices).map(|_| Arena::default()).collect();
    // Buffers that end at a node, to be freed after it.
    let mut ends: Vec<Vec<ValueId>> = vec![Vec::new(); p.nodes.len()];
    for (i, node) in p.nodes.iter().enumerate() {
        if node.is_transfer() {
            for &output in &node.outputs {
                let region = &mut plan.copy_bytes[p.value(output).device.index()];
                plan.places[output.index()] = Some((Region::Copy, *region));
                // Sums beyond the address space stay there: no device has that much, which loading says.
                *region = region.saturating_add(rounded(p.value(output).desc.bytes()));
            }
            continue;
        }
        let arena = &mut arenas[node.device.index()];
        for &output in node.outputs.iter().filter(|v| p.value(**v).alias_of.is_none()) {
            let bytes = p.value(output).desc.bytes();
            let end = last_use[output.index()].unwrap_or(LastUse::At(i));
            if let Some((value, buffer)) = in_place(p, &plan, &last_use, i, output) {
                plan.in_place_of[output.index()] = Some(value);
                plan.places[output.index()] = plan.places[buffer.index()];
                // The buffer lives on as the output's.
                ends[i].retain(|v| *v != buffer);
                last_use[buffer.index()] = Some(LastUse::Never);
                arena.rename(buffer, output);
            } else {
                plan.places[output.index()] = Some((Region::Compute, arena.take(output, rounded(bytes))));
            }
            last_use[output.index()] = Some(end);
            if let LastUse::At(at) = end {
                ends[at].push(output);
            }
        }
        for value in std::mem::take(&mut ends[i]) {
            arena.free(value);
        }
    }
    for (bytes, arena) in plan.compute_bytes.iter_mut().zip(&arenas) {
        *bytes = arena.size;
    }
    plan
}

fn rounded(bytes: usize) -> usize {
    bytes.div_ceil(ALIGN) * ALIGN
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum LastUse {
    /// After this node.
    At(usize),
    /// Kept to the step's end, or handed on.
    Never,
}

/// When each base value is read last.
fn last_uses(p: &Partitioned) -> Vec<Option<LastUse>> {
    let mut last: Vec<Option<LastUse>> = vec![None; p.values.len()];
    for (i, node) in p.nodes.iter().enumerate() {
        for &value in &node.inputs {
            let base = p.base(value).0;
            let elsewhere = p.value(base).device != node.device || node.all_reduce().is_some();
            let slot = &mut last[base.index()];
            *slot = match *slot {
                Some(LastUse::Never) => Some(LastUse::Never),
                _ if elsewhere => Some(LastUse::Never),
                _ => Some(LastUse::At(i)),
            };
        }
    }
    for fetch in &p.fetches {
        if let Fetch::Value(value) = fetch {
            last[p.base(*value).0.index()] = Some(LastUse::Never);
        }
    }
    last
}

/// The input in whose buffer this output may be computed, and that buffer's value.
fn in_place(
    p: &Partitioned,
    plan: &MemoryPlan,
    last_use: &[Option<LastUse>],
    at: usize,
    output: ValueId,
) -> Option<(ValueId, ValueId)> {
    let node = &p.nodes[at];
    if node.outputs.first() != Some(&output) {
        return None;
    }
    let candidates = node.in_place_candidates();
    candidates.iter().filter_map(|&i| node.inputs.get(i)).find_map(|&input| {
        let (base, offset) = p.base(input);
        let buffer = p.value(base);
        let computed = matches!(buffer.origin, Origin::Computed(_)) && buffer.device == node.device;
        let desc = &p.value(output).desc;
        // What is broadcast is read again for later elements.
        let alike = p.value(input).desc.len() == desc.len();
        let whole = offset == 0 && alike && buffer.desc.bytes() == desc.bytes();
        let in_compute_region = matches!(plan.places[base.index()], Some((Region::Compute, _)));
        let dies = last_use[base.index()] == Some(LastUse::At(at));
        // Other inputs in the same buffer must be element for element the same.
        let alone = node
            .inputs
            .iter()
            .all(|&other| p.base(other).0 != base || p.value(other).desc.dims == p.value(input).desc.dims);
        (computed && whole && in_compute_region && dies && alone).then_some((input, base))
    })
}

/// A device's compute region: first fit into the gaps between living buffers.
#[derive(Default)]
struct Arena {
    /// By start: bytes and owner.
    living: BTreeMap<usize, (usize, ValueId)>,
    starts: std::collections::HashMap<ValueId, usize>,
    size: usize,
}

impl Arena {
    fn take(&mut self, value: ValueId, bytes: usize) -> usize {
        let mut start = 0;
        if bytes > 0 {
            for (&at, &(len, _)) in &self.living {
                if at >= usize::saturating_add(start, bytes) {
                    break;
                }
                start = start.max(at.saturating_add(len));
            }
            self.living.insert(start, (bytes, value));
            self.starts.insert(value, start);
        }
        self.size = self.size.max(start.saturating_add(bytes));
        start
    }

    fn free(&mut self, value: ValueId) {
        if let Some(start) = self.starts.remove(&value) {
            self.living.remove(&start);
        }
    }

    fn rename(&mut self, from: ValueId, to: ValueId) {
        if let Some(start) = self.starts.remove(&from) {
            if let Some(living) = self.living.get_mut(&start) {
                living.1 = to;
            }
            self.starts.insert(to, start);
        }
    }
}
