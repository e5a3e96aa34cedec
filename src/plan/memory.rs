//! The static memory plan: where in its device's arena every value of a step lives.
//!
//! Results of copies and all-reduces have a region of their own and are not reused within a step, so that none waits for
//! computing to free its destination; what another device reads, and what is fetched, is kept to the step's end.

use super::roots::Roots;
use super::step::{Fetch, Origin, Partitioned, ValueId};
use crate::device::DeviceId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

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
    /// The value in whose buffer each value lies.
    pub roots: Roots,
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
        roots: Roots::find(p),
        places: vec![None; p.values.len()],
        in_place_of: vec![None; p.values.len()],
        compute_bytes: vec![0; devices],
        copy_bytes: vec![0; devices],
    };
    let mut last_use = last_uses(p, &plan.roots);
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
fn last_uses(p: &Partitioned, roots: &Roots) -> Vec<Option<LastUse>> {
    let mut last: Vec<Option<LastUse>> = vec![None; p.values.len()];
    for (i, node) in p.nodes.iter().enumerate() {
        for &value in &node.inputs {
            let base = roots.get(value).0;
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
            last[roots.get(*value).0.index()] = Some(LastUse::Never);
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
        let (base, offset) = plan.roots.get(input);
        let buffer = p.value(base);
        let computed = matches!(buffer.origin, Origin::Computed(_)) && buffer.device == node.device;
        let desc = &p.value(output).desc;
        // What is broadcast is read again for later elements.
        let alike = p.value(input).desc.len() == desc.len();
        let whole = offset == 0 && alike && buffer.desc.bytes() == desc.bytes();
        let in_compute_region = matches!(plan.places[base.index()], Some((Region::Compute, _)));
        let dies = last_use[base.index()] == Some(LastUse::At(at));
        // Other inputs in the same buffer must be element for element the same.
        let alone = || {
            let same = |other: ValueId| p.value(other).desc.dims == p.value(input).desc.dims;
            node.inputs.iter().all(|&other| plan.roots.get(other).0 != base || same(other))
        };
        (computed && whole && in_compute_region && dies && alone()).then_some((input, base))
    })
}

/// A device's compute region: first fit into the gaps between living buffers, which are kept by size class, so that
/// taking and giving back cost the same however many buffers live.
#[derive(Default)]
struct Arena {
    /// By start: bytes; those that touch are one. What comes after `end` is free, and no gap.
    gaps: BTreeMap<usize, usize>,
    /// By the power of two in the bytes of a gap: starts and bytes.
    by_class: Vec<BTreeSet<(usize, usize)>>,
    /// Where the last living buffer ends.
    end: usize,
    /// The start and bytes of living buffers.
    living: HashMap<ValueId, (usize, usize)>,
    /// The furthest that `end` has been.
    size: usize,
}

/// The class of a gap: the power of two in its bytes, which are not 0.
fn class(bytes: usize) -> usize {
    bytes.ilog2() as usize
}

impl Arena {
    fn take(&mut self, value: ValueId, bytes: usize) -> usize {
        if bytes == 0 {
            return 0;
        }
        let start = match self.first_fit(bytes) {
            Some((start, len)) => {
                self.remove_gap(start, len);
                if len > bytes {
                    self.add_gap(start + bytes, len - bytes);
                }
                start
            }
            None => {
                let start = self.end;
                self.end = self.end.saturating_add(bytes);
                start
            }
        };
        self.living.insert(value, (start, bytes));
        self.size = self.size.max(self.end);
        start
    }

    /// The first gap that holds so many bytes. All in larger classes do; in the same one they are tried in turn.
    fn first_fit(&self, bytes: usize) -> Option<(usize, usize)> {
        let own = class(bytes);
        let same = self.by_class.get(own).and_then(|gaps| gaps.iter().find(|(_, len)| *len >= bytes));
        let larger = self.by_class.iter().skip(own + 1).filter_map(BTreeSet::first);
        same.into_iter().chain(larger).min().copied()
    }

    fn free(&mut self, value: ValueId) {
        let Some((mut start, bytes)) = self.living.remove(&value) else { return };
        let mut end = start.saturating_add(bytes);
        if let Some((&before, &len)) = self.gaps.range(..start).next_back()
            && before + len == start
        {
            self.remove_gap(before, len);
            start = before;
        }
        if let Some(&len) = self.gaps.get(&end) {
            self.remove_gap(end, len);
            end += len;
        }
        if end == self.end {
            self.end = start;
        } else {
            self.add_gap(start, end - start);
        }
    }

    fn rename(&mut self, from: ValueId, to: ValueId) {
        if let Some(place) = self.living.remove(&from) {
            self.living.insert(to, place);
        }
    }

    fn add_gap(&mut self, start: usize, bytes: usize) {
        self.gaps.insert(start, bytes);
        let class = class(bytes);
        if self.by_class.len() <= class {
            self.by_class.resize_with(class + 1, BTreeSet::new);
        }
        self.by_class[class].insert((start, bytes));
    }

    fn remove_gap(&mut self, start: usize, bytes: usize) {
        self.gaps.remove(&start);
        self.by_class[class(bytes)].remove(&(start, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First fit by looking at every living buffer in turn.
    fn first_fit(living: &BTreeMap<usize, usize>, bytes: usize) -> usize {
        let mut start = 0;
        for (&at, &len) in living {
            if at >= start + bytes {
                break;
            }
            start = start.max(at + len);
        }
        start
    }

    #[test]
    fn buffers_go_into_the_first_gap_that_holds_them() {
        let mut arena = Arena::default();
        let mut living: BTreeMap<usize, usize> = BTreeMap::new();
        let mut owned: Vec<(ValueId, usize)> = Vec::new();
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut size = 0;
        for i in 0..4000u32 {
            if !owned.is_empty() && draw(100) < 48 {
                let (value, start) = owned.swap_remove(draw(owned.len() as u64) as usize);
                arena.free(value);
                living.remove(&start);
                continue;
            }
            let bytes = 64 * (1 + draw(if i % 3 == 0 { 40 } else { 4 })) as usize;
            let want = first_fit(&living, bytes);
            assert_eq!(arena.take(ValueId(i), bytes), want, "buffer {i} of {bytes} bytes");
            living.insert(want, bytes);
            owned.push((ValueId(i), want));
            size = size.max(want + bytes);
        }
        assert_eq!(arena.size, size);
        owned.into_iter().for_each(|(value, _)| arena.free(value));
        assert!(arena.gaps.is_empty() && arena.end == 0 && arena.by_class.iter().all(BTreeSet::is_empty));
    }
}
