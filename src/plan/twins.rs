//! Twins: common subexpressions. A node that would compute what another already computes on the same device is that
//! other, so that its copies to other devices are shared as well.
//!
//! Twins have one op type, equal attributes, the same inputs (equal constants count as the same, as do the same bytes
//! under several names), and wait for the same nodes. Absent: nodes with effects or state, those that can fail, and those
//! at which nothing runs.

use super::passes::PassReport;
use super::step::{Origin, Partitioned, StepNodeId, ValueId};
use crate::base::{DType, Dims};
use crate::device::DeviceId;
use crate::graph::{Attrs, OpRef};
use smallvec::SmallVec;
use std::collections::HashMap;

/// The largest constant, in bytes, that is compared by its contents.
const COMPARED_BYTES: usize = 1 << 12;

/// The bytes of a value under whatever name: where they are, and how they are read.
type Bytes = (ValueId, usize, DType, Dims);

/// What twins have in common, but for their attributes. Ops of one name may be several; each is a static of its own.
type Key = (&'static str, usize, DeviceId, SmallVec<[Bytes; 3]>, SmallVec<[StepNodeId; 2]>);

/// A constant by its contents.
type Contents = (DeviceId, DType, Dims, Box<[u8]>);

/// The nodes so far, by what they compute.
#[derive(Default)]
pub(super) struct Twins {
    nodes: HashMap<Key, SmallVec<[StepNodeId; 1]>>,
    constants: HashMap<Contents, ValueId>,
    /// By value that is another's bytes under another name: which, and from which byte of them.
    passed_on: HashMap<ValueId, (ValueId, usize)>,
    changes: Vec<String>,
}

/// A node that may have a twin.
pub(super) struct Candidate<'a> {
    pub name: &'a str,
    pub op: OpRef,
    pub attrs: &'a Attrs,
    pub device: DeviceId,
    pub inputs: &'a [ValueId],
    pub controls: &'a [StepNodeId],
}

impl Twins {
    /// The earlier node that computes what this one would; without one, this one is the first, as `id`.
    pub fn find(&mut self, step: &Partitioned, node: &Candidate<'_>, id: StepNodeId) -> Option<StepNodeId> {
        let traits = node.op.traits();
        if traits.stateful || traits.variable || traits.fallible {
            return None;
        }
        let inputs = node.inputs.iter().map(|v| self.bytes(step, *v)).collect();
        let mut controls: SmallVec<[StepNodeId; 2]> = node.controls.into();
        controls.sort_unstable();
        controls.dedup();
        let alike = self
            .nodes
            .entry((node.op.name(), std::ptr::from_ref(node.op).addr(), node.device, inputs, controls))
            .or_default();
        let twin = alike.iter().copied().find(|twin| *step.node(*twin).attrs == *node.attrs);
        match twin {
            Some(twin) => self.changes.push(format!("'{}' is '{}'", node.name, step.node(twin).name)),
            None => alike.push(id),
        }
        twin
    }

    /// Where the bytes of a value are. A variable's are those that were read.
    fn bytes(&mut self, step: &Partitioned, value: ValueId) -> Bytes {
        let desc = &step.value(value).desc;
        let (mut at, mut offset) = (value, 0);
        // The other names of these bytes, and how far into what was asked for they start.
        let mut names: SmallVec<[(ValueId, usize); 4]> = SmallVec::new();
        loop {
            if let Some((of, from)) = self.passed_on.get(&at) {
                (at, offset) = (*of, offset + from);
                break;
            }
            let Some((of, from)) = step.passed_on(at) else { break };
            let changes = matches!(step.value(at).origin, Origin::Computed(by) if !step.node(by).written().is_empty());
            if changes || matches!(step.value(of).origin, Origin::Variable(_)) {
                break;
            }
            names.push((at, offset));
            (at, offset) = (of, offset + from);
        }
        self.passed_on.extend(names.into_iter().map(|(name, skipped)| (name, (at, offset - skipped))));
        if let Some(array) = step.value(at).known().filter(|array| array.bytes().len() <= COMPARED_BYTES) {
            let contents = (step.value(at).device, array.dtype(), array.dims().into(), array.bytes().into());
            at = *self.constants.entry(contents).or_insert(at);
        }
        (at, offset, desc.dtype, desc.dims.clone())
    }

    /// What was found, in a step of so many nodes.
    pub fn report(self, nodes: usize) -> PassReport {
        let nodes_before = nodes + self.changes.len();
        PassReport { name: "twins", nodes_before, nodes_after: nodes, changes: self.changes }
    }
}
