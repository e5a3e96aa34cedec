//! Place: a device for every node, and the rule that decided.
//!
//! Nodes that must share a device (a variable and what writes it, colocated nodes) form groups; a group's device is the
//! one that satisfies all requests in it. Invariant: without soft placement a request is met or refused, never changed.

use crate::base::{Code, DType, DeviceSpec, Diagnostic, Error, Result};
use crate::device::{DeviceId, DeviceKind, Machine};
use crate::graph::{DEVICE_SCOPE, DeviceRule, Node, NodeId};
use indexmap::IndexMap;
use petgraph::unionfind::UnionFind;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where nodes go that nothing asks a device for.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DefaultDevice {
    /// The host.
    #[default]
    Host,
    /// TensorFlow's rule: the first device that can run it, GPUs before the host.
    FirstCapable,
    /// The device of this name.
    Named(DeviceSpec),
}

/// How nodes are placed.
#[derive(Clone, Debug, Default)]
pub struct PlacementOptions {
    /// Moves nodes whose request cannot be met instead of refusing; every move is marked.
    pub soft: bool,
    /// Where nodes go that nothing asks a device for.
    pub default_device: DefaultDevice,
}

/// Where a node is, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The device.
    pub device: DeviceId,
    /// The rule that decided, in words.
    pub reason: Cow<'static, str>,
    /// True if soft placement moved it from what was asked.
    pub soft: bool,
}

/// Devices for a set of nodes.
pub struct Placed {
    placements: Vec<Option<Placement>>,
}

impl Placed {
    /// A node's placement, if it was among the placed nodes.
    pub fn get(&self, id: NodeId) -> Option<&Placement> {
        self.placements.get(id.index()).and_then(Option::as_ref)
    }

    /// A placed node's device.
    pub fn device(&self, id: NodeId) -> DeviceId {
        self.get(id).map_or(DeviceId::HOST, |p| p.device)
    }

    /// The nodes that soft placement moved.
    pub fn moved(&self) -> impl Iterator<Item = (NodeId, &Placement)> {
        let all = self.placements.iter().enumerate();
        all.filter_map(|(i, p)| Some((NodeId(i as u32), p.as_ref().filter(|p| p.soft)?)))
    }

    /// How many nodes soft placement moved.
    pub fn soft_moves(&self) -> usize {
        self.moved().count()
    }
}

/// Places all nodes of a graph, for tables.
///
/// # Errors
/// As [`place`].
pub fn place_all(nodes: &[Arc<Node>], machine: &Machine, options: &PlacementOptions) -> Result<Placed> {
    let all: Vec<NodeId> = nodes.iter().map(|n| n.id).collect();
    place(nodes, &all, machine, options)
}

/// Places these nodes.
///
/// # Errors
/// All requests that no device of the machine meets, in one error: the device asked for, the nodes with the lines that
/// made them, the devices there are, and the fix; groups whose members ask for different devices.
pub fn place(nodes: &[Arc<Node>], which: &[NodeId], machine: &Machine, options: &PlacementOptions) -> Result<Placed> {
    let default_device = default_device(machine, options)?;
    let mut groups = UnionFind::<u32>::new(nodes.len());
    let mut placed = vec![false; nodes.len()];
    for id in which {
        placed[id.index()] = true;
    }
    for node in which.iter().map(|id| &nodes[id.index()]) {
        // What it writes need not be on its device, nor together; what must be together is colocated by itself.
        let splits = node.op.split(&node.attrs, node.inputs.len(), &|_| 0).is_some();
        let written = node.op.written_inputs(&node.attrs, node.inputs.len());
        let written = written.iter().filter(|_| !splits).map(|&i| node.inputs[i].node);
        for other in node.colocated_with.iter().copied().chain(written) {
            groups.union(node.id.0, other.0);
        }
    }
    // A group's members may be outside the placed nodes (a slot's variable, say); their requests count.
    let mut members: Vec<SmallVec<[NodeId; 2]>> = vec![SmallVec::new(); nodes.len()];
    let mut wanted = vec![false; nodes.len()];
    for id in which {
        wanted[groups.find(id.0) as usize] = true;
    }
    for node in nodes {
        let root = groups.find(node.id.0) as usize;
        if wanted[root] {
            members[root].push(node.id);
        }
    }
    let mut placements: Vec<Option<Placement>> = vec![None; nodes.len()];
    let mut problems = Problems::default();
    for group in members.iter().filter(|m| !m.is_empty()) {
        let decided = place_group(nodes, group, machine, options, default_device);
        match decided {
            Ok(list) => {
                for (id, placement) in group.iter().zip(list) {
                    if placed[id.index()] {
                        placements[id.index()] = Some(placement);
                    }
                }
            }
            Err(found) => problems.join(found),
        }
    }
    if problems.others.is_empty() && problems.missing.is_empty() {
        return Ok(Placed { placements });
    }
    Err(problems.into_error(nodes, machine))
}

fn default_device(machine: &Machine, options: &PlacementOptions) -> Result<Option<DeviceId>> {
    match &options.default_device {
        DefaultDevice::Host => Ok(Some(DeviceId::HOST)),
        DefaultDevice::FirstCapable => Ok(None),
        DefaultDevice::Named(spec) => match machine.matching(spec).first() {
            Some(device) => Ok(Some(*device)),
            None => Err(Error::new(
                Code::NotFound,
                format!("the default device '{spec}' is not there; the devices are {}", device_list(machine)),
            )),
        },
    }
}

fn device_list(machine: &Machine) -> String {
    let names: Vec<String> = machine.devices().iter().map(|d| d.short_name()).collect();
    match names.len() {
        0..=6 => names.join(", "),
        n => format!("{}, … {} ({n} in all)", names[..3].join(", "), names[n - 1]),
    }
}

/// What cannot be placed: nodes whose device is not there, by device, and everything else.
#[derive(Default)]
struct Problems {
    missing: BTreeMap<String, Vec<NodeId>>,
    others: Vec<(NodeId, Diagnostic)>,
}

impl Problems {
    fn one(node: &Node, message: String) -> Problems {
        let diagnostic = Diagnostic::at(Code::InvalidArgument, message, node.source);
        Problems { others: vec![(node.id, diagnostic)], ..Problems::default() }
    }

    fn join(&mut self, more: Problems) {
        self.others.extend(more.others);
        for (device, nodes) in more.missing {
            self.missing.entry(device).or_default().extend(nodes);
        }
    }

    /// One diagnostic for each device that is not there, with all nodes that asked for it by the lines that made them.
    fn into_error(self, nodes: &[Arc<Node>], machine: &Machine) -> Error {
        let devices = device_list(machine);
        let mut all = self.others;
        for (device, mut ids) in self.missing {
            ids.sort_unstable();
            let first = &nodes[ids[0].index()];
            let more = match ids.len() {
                1 => String::new(),
                2 => " and one more node".to_string(),
                n => format!(" and {} more nodes", n - 1),
            };
            let mut message = format!(
                "cannot assign a device for '{}' ({}){more}: could not satisfy explicit device specification '{device}': \
                 it is not there; the devices are {devices}; ask for one of these, run with more devices, or turn soft \
                 placement on",
                first.name,
                first.op_type()
            );
            let mut by_line: IndexMap<String, Vec<&str>> = IndexMap::new();
            for node in ids.iter().map(|id| &nodes[id.index()]) {
                by_line.entry(node.source.to_string()).or_default().push(&node.name);
            }
            for (line, names) in by_line.iter().filter(|_| ids.len() > 1) {
                let shown: Vec<String> = names.iter().take(SHOWN_NAMES).map(|n| format!("'{n}'")).collect();
                let rest = names.len() - shown.len();
                let rest = if rest == 0 { String::new() } else { format!(" and {rest} more") };
                message += &format!("\n  asked by {}{rest}, made at {line}", shown.join(", "));
            }
            all.push((first.id, Diagnostic::at(Code::InvalidArgument, message, first.source)));
        }
        all.sort_by_key(|(id, _)| *id);
        Error::from_all(all.into_iter().map(|(_, d)| d).collect())
    }
}

/// How many of the nodes that one line made a message names.
const SHOWN_NAMES: usize = 4;

/// One group's placements, in the order of its members.
fn place_group(
    nodes: &[Arc<Node>],
    group: &[NodeId],
    machine: &Machine,
    options: &PlacementOptions,
    default_device: Option<DeviceId>,
) -> std::result::Result<Vec<Placement>, Problems> {
    // Variables are asked first: what writes them follows them, as TensorFlow's reference edges do.
    let mut order: SmallVec<[&Arc<Node>; 2]> = group.iter().map(|id| &nodes[id.index()]).collect();
    order.sort_by_key(|n| (!n.op.traits().variable, n.id));
    let mut request = DeviceSpec::any();
    let mut asked_by: Option<&Node> = None;
    for node in order.iter().filter(|n| !n.device.spec.is_empty()) {
        let spec = &node.device.spec;
        match asked_by {
            Some(first) if conflicts(&request, spec) => {
                let is_follower = !node.op.written_inputs(&node.attrs, node.inputs.len()).is_empty()
                    || matches!(node.device.rule, DeviceRule::Colocated(_));
                if options.soft || is_follower {
                    continue;
                }
                let message = format!(
                    "cannot colocate '{}' and '{}': the first asks for {}, the second for {spec}; \
                     ask for one device, or turn soft placement on",
                    first.name, node.name, request
                );
                return Err(Problems::one(node, message));
            }
            _ => {
                request = request.merged_into(spec);
                asked_by.get_or_insert(node);
            }
        }
    }
    let candidates = if request.is_empty() { Vec::new() } else { machine.matching(&request) };
    let capable = |device: &DeviceId| order.iter().all(|n| lacks(n, *device, machine).is_none());
    let chosen = if request.is_empty() {
        default_device.filter(capable).or_else(|| gpus_first(machine).into_iter().find(capable))
    } else {
        candidates.iter().copied().find(capable)
    };
    let device = match chosen {
        Some(device) => device,
        None if options.soft => DeviceId::HOST,
        None => return Err(refusals(&order, &request, &candidates, machine)),
    };
    let moved_from = if chosen.is_none() { Some(why_moved(&order, &request, &candidates, machine)) } else { None };
    let unasked = || match (&options.default_device, device) {
        (DefaultDevice::FirstCapable, _) => "no device asked: the first that can run it".into(),
        (DefaultDevice::Host, DeviceId::HOST) => "no device asked: the host".into(),
        _ => Cow::Owned(format!("no device asked: the default, {device}")),
    };
    Ok(group
        .iter()
        .map(|id| {
            let node = &nodes[id.index()];
            let own = &node.device;
            let differs = !own.spec.is_empty() && !own.spec.allows(&machine.device(device).name);
            let reason: Cow<'static, str> = match (&moved_from, &own.rule) {
                (Some(why), _) if !own.spec.is_empty() || asked_by.is_some() => why.clone().into(),
                (_, DeviceRule::Unset) if asked_by.is_none() => unasked(),
                (_, DeviceRule::Unset) => format!("with {}", asked_by.map_or("", |n| &n.name)).into(),
                (None, _) if differs => format!("follows {}", asked_by.map_or("", |n| &n.name)).into(),
                (_, DeviceRule::Colocated(with)) if own.spec.is_empty() && asked_by.is_none() => {
                    format!("colocated with {with}, which asked for none").into()
                }
                // The rule of most nodes, whose text is not made anew for each.
                (_, DeviceRule::Scope) => DEVICE_SCOPE.into(),
                (_, rule) => rule.to_string().into(),
            };
            Placement { device, reason, soft: differs && moved_from.is_some() }
        })
        .collect())
}

/// True if both set a field, and differently.
fn conflicts(a: &DeviceSpec, b: &DeviceSpec) -> bool {
    fn differ<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
        a.is_some() && b.is_some() && a != b
    }
    differ(&a.job, &b.job)
        || differ(&a.replica, &b.replica)
        || differ(&a.task, &b.task)
        || differ(&a.device_type, &b.device_type)
        || differ(&a.device_index, &b.device_index)
}

fn gpus_first(machine: &Machine) -> Vec<DeviceId> {
    let ids = machine.devices().iter().map(|d| d.id);
    ids.clone().filter(|d| !d.is_host()).chain(ids.filter(|d| d.is_host())).collect()
}

/// Why a node cannot run on a device, if it cannot.
fn lacks(node: &Node, device: DeviceId, machine: &Machine) -> Option<String> {
    if device.is_host() {
        return None;
    }
    if node.op.traits().host_only {
        return Some(format!("{} runs only on the host", node.op_type()));
    }
    let types = node.outputs.iter().map(|f| f.dtype);
    let mut types: Vec<DType> = types.chain(node.attrs.dtype("T")).collect();
    types.sort_unstable();
    if let Some(t) = types.iter().find(|t| node.op.gpu_lacks(**t)) {
        return Some(format!("{} has no GPU kernel for {t}", node.op_type()));
    }
    let is_cuda = machine.device(device).kind == DeviceKind::Cuda;
    if is_cuda && !node.op.has_cuda_kernel(&node.attrs, &node.outputs) {
        let of: Vec<String> = types.iter().map(|t| t.to_string()).collect();
        let of = if of.is_empty() { String::new() } else { format!(" for {}", of.join(", ")) };
        return Some(format!("{} has no CUDA kernel{of}", node.op_type()));
    }
    None
}

fn refusals(order: &[&Arc<Node>], request: &DeviceSpec, candidates: &[DeviceId], machine: &Machine) -> Problems {
    let mut problems = Problems::default();
    let lacking = |n: &Node| candidates.iter().find_map(|d| lacks(n, *d, machine));
    for node in order.iter().filter(|n| !n.device.spec.is_empty()) {
        let spec = &node.device.spec;
        if machine.matching(spec).is_empty() {
            problems.missing.entry(spec.to_string()).or_default().push(node.id);
        } else if let Some((other, why)) = order.iter().find_map(|n| lacking(n).map(|why| (n, why))) {
            let whose = if other.id == node.id { String::new() } else { format!(" ('{}')", other.name) };
            let message = format!(
                "cannot assign a device for '{}' ({}): could not satisfy explicit device specification '{spec}': \
                 {why}{whose}; the host does; pin it to /cpu:0, or turn soft placement on",
                node.name,
                node.op_type()
            );
            problems.join(Problems::one(node, message));
        }
    }
    if problems.missing.is_empty() && problems.others.is_empty() {
        let node = order[0];
        let message = format!(
            "cannot assign a device for '{}' ({}): no device of {} satisfies '{request}'",
            node.name,
            node.op_type(),
            device_list(machine)
        );
        problems = Problems::one(node, message);
    }
    problems
}

fn why_moved(order: &[&Arc<Node>], request: &DeviceSpec, candidates: &[DeviceId], machine: &Machine) -> String {
    let lacking = order.iter().find_map(|n| candidates.iter().find_map(|d| lacks(n, *d, machine)));
    match lacking {
        Some(why) => format!("soft placement: {why}"),
        None => format!("soft placement: {request} is not there"),
    }
}
