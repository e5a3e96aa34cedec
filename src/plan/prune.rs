//! Prune: what a step needs, with all shapes and every value that is known before it runs.
//!
//! Small nodes whose inputs are known are computed here, so that target shapes, axes and the arithmetic on them never
//! run. What orders side effects is kept.

use super::conditional::Resolved;
use super::signature::Signature;
use crate::base::{Array, Code, DType, Diagnostic, Error, Result, Shape};
use crate::device::Team;
use crate::graph::{self, FOLDED_ELEMENTS, Fact, InferContext, Node, NodeId, TensorDesc, TensorId};
use indexmap::IndexSet;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A step's part of the graph, with all shapes known.
pub struct Pruned {
    /// The whole graph's nodes.
    pub nodes: Arc<Vec<Arc<Node>>>,
    /// What the plan is for.
    pub signature: Signature,
    /// The nodes that run, in the order of creation.
    pub kept: Vec<NodeId>,
    /// True where a feed's value was needed to know a shape; the plan then holds for that value only.
    pub depends_on_values: bool,
    /// The variables that were asked whether they have a value, and the answers; the plan holds while they stay.
    pub initialized: Vec<(NodeId, bool)>,
    /// How many of the needed nodes were computed while planning.
    pub folded: usize,
    /// What control inputs that do not run stand for: what runs, and they would have waited for.
    stand_for: HashMap<NodeId, Arc<[NodeId]>>,
    info: Vec<Option<Info>>,
}

struct Info {
    descs: SmallVec<[TensorDesc; 1]>,
    values: SmallVec<[Option<Arc<Array>>; 1]>,
    /// It, or something that it depends on, has effects: changes a variable, draws, prints, or may refuse its input.
    effects: bool,
    /// It has effects itself.
    acts: bool,
    kept: bool,
}

/// How a kept node gets one of its inputs.
#[derive(Clone, Debug)]
pub enum Source {
    /// Known before the step runs, and laid down with the plan.
    Known(Arc<Array>),
    /// Known, and needed only to prepare the kernel.
    Planned,
    /// Fed: which of the signature's feeds.
    Fed(usize),
    /// Computed by a kept node.
    Computed,
}

impl Pruned {
    /// A node.
    pub fn node(&self, id: NodeId) -> &Arc<Node> {
        &self.nodes[id.index()]
    }

    /// Type and sizes of a needed tensor.
    pub fn desc(&self, tensor: TensorId) -> TensorDesc {
        if let Some(feed) = self.signature.feed(tensor) {
            let feed = &self.signature.feeds[feed];
            return TensorDesc { dtype: feed.dtype, dims: feed.dims.clone() };
        }
        self.info(tensor.node).descs[tensor.output as usize].clone()
    }

    /// The value of a needed tensor, where it is known before the step runs.
    pub fn value(&self, tensor: TensorId) -> Option<&Arc<Array>> {
        if self.signature.feed(tensor).is_some() {
            return None;
        }
        self.info(tensor.node).values[tensor.output as usize].as_ref()
    }

    /// How a kept node gets its inputs.
    pub fn sources(&self, node: &Node) -> Vec<Source> {
        let planned = node.op.planned_inputs(node.inputs.len());
        (node.inputs.iter().enumerate())
            .map(|(i, &input)| if planned.contains(&i) { Source::Planned } else { self.source(input) })
            .collect()
    }

    /// How whoever reads a tensor gets it.
    pub fn source(&self, tensor: TensorId) -> Source {
        match (self.signature.feed(tensor), self.value(tensor)) {
            (Some(feed), _) => Source::Fed(feed),
            (None, Some(value)) => Source::Known(value.clone()),
            (None, None) => Source::Computed,
        }
    }

    /// The nodes that must have run before a kept node, beyond those that compute its inputs. A node that does not run
    /// stands for what it would have waited for.
    pub fn control_inputs(&self, node: &Node) -> Vec<NodeId> {
        let mut all: IndexSet<NodeId> = IndexSet::new();
        for control in &node.control_inputs {
            let instead = self.stand_for.get(control).map_or(&[][..], |ids| ids);
            let these = if self.is_kept(*control) { std::slice::from_ref(control) } else { instead };
            all.extend(these);
        }
        all.into_iter().collect()
    }

    /// The nodes that the step needs, whether they run or were computed while planning, in the order of creation.
    pub fn needed(&self) -> impl Iterator<Item = NodeId> + '_ {
        let all = self.info.iter().enumerate().filter(|(_, info)| info.is_some());
        all.map(|(i, _)| NodeId(i as u32))
    }

    /// Notes what runs and a node, which does not, would have waited for. Of several such nodes in a row each goes by
    /// what was found of the one before it.
    fn note_instead_of(&mut self, id: NodeId) {
        let mut pending = vec![id];
        while let Some(&id) = pending.last() {
            if self.stand_for.contains_key(&id) {
                pending.pop();
                continue;
            }
            let node = &self.nodes[id.index()];
            let data = node.inputs.iter().filter(|t| self.signature.feed(**t).is_none()).map(|t| t.node);
            let before = data.chain(node.control_inputs.iter().copied());
            let (run, others): (Vec<NodeId>, Vec<NodeId>) = before.partition(|id| self.is_kept(*id));
            let others: BTreeSet<NodeId> = others.into_iter().filter(|id| self.info(*id).effects).collect();
            let asked = pending.len();
            pending.extend(others.iter().filter(|id| !self.stand_for.contains_key(id)));
            if pending.len() > asked {
                continue;
            }
            let mut found = others.iter().map(|id| &self.stand_for[id]);
            let found: Arc<[NodeId]> = match (&run[..], found.len(), found.next()) {
                ([], 1, Some(only)) => only.clone(),
                (_, _, first) => {
                    let all = first.into_iter().chain(found).flat_map(|ids| ids.iter().copied()).chain(run);
                    all.collect::<BTreeSet<NodeId>>().into_iter().collect()
                }
            };
            self.stand_for.insert(id, found);
            pending.pop();
        }
    }

    /// True if the node runs.
    pub fn is_kept(&self, id: NodeId) -> bool {
        self.info[id.index()].as_ref().is_some_and(|i| i.kept)
    }

    /// True if a needed node has effects, or comes after one that has.
    pub(super) fn has_effects(&self, id: NodeId) -> bool {
        self.info(id).effects
    }

    fn info(&self, id: NodeId) -> &Info {
        self.info[id.index()].as_ref().expect("asked only of needed nodes")
    }
}

/// The nodes that fetches and targets depend on, whether they then run or are computed while planning, and the nodes of
/// fed tensors: what has to have a place.
///
/// # Errors
/// Placeholders that are needed and not fed: all of them, each with its source line.
pub fn needed(nodes: &[Arc<Node>], signature: &Signature) -> Result<Vec<NodeId>> {
    let mut needed = reachable(nodes, signature, |_, _| true, |_| true);
    check_fed(nodes, signature, &needed)?;
    signature.feeds.iter().for_each(|f| needed[f.tensor.node.index()] = true);
    Ok((0..nodes.len() as u32).map(NodeId).filter(|id| needed[id.index()]).collect())
}

/// Refuses steps with nodes whose op types turret does not have: they can be planned, but not run.
///
/// # Errors
/// All of these op types in one message, each with nodes that have it.
pub fn check_known(nodes: &[Arc<Node>], signature: &Signature) -> Result<()> {
    const SHOWN: usize = 3;
    if !nodes.iter().any(|n| n.op.is_unknown()) {
        return Ok(());
    }
    let needed = reachable(nodes, signature, |_, _| true, |_| true);
    let mut types: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in nodes.iter().filter(|n| n.op.is_unknown() && needed[n.id.index()]) {
        types.entry(node.op_type()).or_default().push(node);
    }
    let Some(first) = types.values().next().map(|nodes| nodes[0]) else { return Ok(()) };
    let of_type = |(op_type, nodes): (&&str, &Vec<&Node>)| {
        let mut names: Vec<String> = nodes.iter().take(SHOWN).map(|n| format!("'{}'", n.name)).collect();
        if nodes.len() > SHOWN {
            names.push(format!("… {} in all", nodes.len()));
        }
        format!("{op_type} ({})", names.join(", "))
    };
    let all: Vec<String> = types.iter().map(of_type).collect();
    let message = format!(
        "cannot run this: turret does not have, or not for these types, {}; feed what {} or fetch what does not need it",
        all.join(", "),
        if all.len() == 1 { "it gives" } else { "they give" }
    );
    Err(Diagnostic::at(Code::Unimplemented, message, first.source).into())
}

/// Finds what a step runs, and all shapes.
///
/// # Errors
/// Placeholders that are needed and not fed (all of them), shapes that do not fit, and shapes that depend on values
/// which only the run computes; each with the node and its source line.
pub fn prune(resolved: Resolved, signature: Signature) -> Result<Pruned> {
    let Resolved { nodes, depends_on_values: decided, initialized } = resolved;
    let needed = reachable(&nodes, &signature, |_, _| true, |_| true);
    check_fed(&nodes, &signature, &needed)?;
    let attempt = |with_values: bool| specialise(&nodes, &signature, &needed, with_values);
    let (info, depends_on_values) = match attempt(false) {
        Ok(info) => (info, false),
        Err(e) if signature.feeds.iter().any(|f| f.value.is_some()) => match attempt(true) {
            Ok(info) => (info, true),
            Err(_) => return Err(e),
        },
        Err(e) => return Err(e),
    };
    let depends_on_values = depends_on_values || decided;
    let mut pruned = Pruned {
        nodes,
        signature,
        kept: Vec::new(),
        depends_on_values,
        initialized,
        folded: 0,
        stand_for: HashMap::new(),
        info,
    };
    let nodes = pruned.nodes.clone();
    let has_effects = |id: NodeId| pruned.info(id).effects;
    let follow = |node: &Node, input: usize| {
        let tensor = node.inputs[input];
        let known = pruned.value(tensor).is_some() || node.op.planned_inputs(node.inputs.len()).contains(&input);
        !known || has_effects(tensor.node)
    };
    // Waiting for what has no effect is no reason to run it: the gates around gradients fall away here, and with them
    // gradients that nobody asked for. What they wait for in turn, and has effects, runs.
    let kept = running(&nodes, &pruned.signature, follow, |id| pruned.info(id));
    for i in (0..nodes.len()).filter(|i| needed[*i]) {
        let info = pruned.info[i].as_mut().expect("needed");
        let all_known = !info.values.is_empty() && info.values.iter().all(Option::is_some);
        // A placeholder that is asked for as an op is fed, and there is nothing to run.
        info.kept = kept[i] && (!all_known || info.effects) && !nodes[i].op.must_be_fed();
        if info.kept {
            pruned.kept.push(NodeId(i as u32));
        } else {
            pruned.folded += 1;
        }
    }
    for control in pruned.kept.iter().flat_map(|id| nodes[id.index()].control_inputs.clone()).collect::<Vec<_>>() {
        if !pruned.is_kept(control) && pruned.info(control).effects {
            pruned.note_instead_of(control);
        }
    }
    Ok(pruned)
}

/// Marks what runs: what fetches and targets depend on by data edges that `follow` lets through, and of what is only
/// waited for, what has effects itself.
fn running<'a>(
    nodes: &[Arc<Node>],
    signature: &Signature,
    follow: impl Fn(&Node, usize) -> bool,
    info: impl Fn(NodeId) -> &'a Info,
) -> Vec<bool> {
    let (mut runs, mut passed) = (vec![false; nodes.len()], vec![false; nodes.len()]);
    let fetched = signature.fetches.iter().filter(|t| signature.feed(**t).is_none()).map(|t| t.node);
    let mut pending: Vec<(NodeId, bool)> =
        fetched.chain(signature.targets.iter().copied()).map(|id| (id, true)).collect();
    while let Some((id, run)) = pending.pop() {
        if runs[id.index()] || !run && passed[id.index()] {
            continue;
        }
        let node = &nodes[id.index()];
        let unfed = |t: &TensorId| signature.feed(*t).is_none();
        let waited = |id: NodeId| info(id).effects.then(|| (id, info(id).acts));
        if run {
            runs[id.index()] = true;
            let inputs = node.inputs.iter().enumerate().filter(|(i, t)| unfed(t) && follow(node, *i));
            pending.extend(inputs.map(|(_, t)| (t.node, true)));
            pending.extend(node.guards.iter().map(|(t, _)| t).filter(|t| unfed(t)).map(|t| (t.node, true)));
        } else {
            passed[id.index()] = true;
            pending.extend(node.inputs.iter().filter(|t| unfed(t)).filter_map(|t| waited(t.node)));
        }
        pending.extend(node.control_inputs.iter().filter_map(|&c| waited(c)));
    }
    runs
}

/// Marks what fetches and targets depend on. Fed tensors need nothing; `follow` says which data edges count, and
/// `wait_for` which control inputs.
pub(super) fn reachable(
    nodes: &[Arc<Node>],
    signature: &Signature,
    follow: impl Fn(&Node, usize) -> bool,
    wait_for: impl Fn(NodeId) -> bool,
) -> Vec<bool> {
    let mut marked = vec![false; nodes.len()];
    let fetched = signature.fetches.iter().filter(|t| signature.feed(**t).is_none()).map(|t| t.node);
    let mut pending: Vec<NodeId> = fetched.chain(signature.targets.iter().copied()).collect();
    while let Some(id) = pending.pop() {
        if std::mem::replace(&mut marked[id.index()], true) {
            continue;
        }
        let node = &nodes[id.index()];
        let inputs = node.inputs.iter().enumerate();
        pending.extend(inputs.filter(|(i, t)| signature.feed(**t).is_none() && follow(node, *i)).map(|(_, t)| t.node));
        pending.extend(node.guards.iter().map(|(t, _)| *t).filter(|t| signature.feed(*t).is_none()).map(|t| t.node));
        pending.extend(node.control_inputs.iter().copied().filter(|&c| wait_for(c)));
    }
    marked
}

fn check_fed(nodes: &[Arc<Node>], signature: &Signature, needed: &[bool]) -> Result<()> {
    let is_fed = |id: NodeId| {
        let at = signature.feeds.partition_point(|f| f.tensor.node < id);
        signature.feeds.get(at).is_some_and(|f| f.tensor.node == id)
    };
    let missing: Vec<Diagnostic> = (nodes.iter().zip(needed))
        .filter(|(n, needed)| **needed && n.op.must_be_fed() && !is_fed(n.id))
        .map(|(n, _)| {
            let fact = &n.outputs[0];
            let message = format!(
                "you must feed a value for placeholder '{}' with dtype {} and shape {}: the run needs it",
                n.name, fact.dtype, fact.shape
            );
            Diagnostic::at(Code::InvalidArgument, message, n.source)
        })
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::from_all(missing)) }
}

fn specialise(
    nodes: &[Arc<Node>],
    signature: &Signature,
    needed: &[bool],
    with_values: bool,
) -> Result<Vec<Option<Info>>> {
    let team = Team::new(1, "plan");
    let mut info: Vec<Option<Info>> = Vec::new();
    info.resize_with(nodes.len(), || None);
    for node in nodes.iter().filter(|n| needed[n.id.index()]) {
        let found = node_info(node, signature, &info, with_values, &team).map_err(|message| {
            let inputs = inputs_in_words(nodes, node, signature, &info);
            let message = format!("cannot plan '{}' ({}): {message}{inputs}", node.name, node.op_type());
            Error::from(Diagnostic::at(Code::InvalidArgument, message, node.source))
        })?;
        info[node.id.index()] = Some(found);
    }
    Ok(info)
}

/// The names, types and sizes of a node's inputs in this step.
fn inputs_in_words(nodes: &[Arc<Node>], node: &Node, signature: &Signature, info: &[Option<Info>]) -> String {
    let one = |&input: &TensorId| {
        let name = nodes[input.node.index()].output_name(input.output);
        match (signature.feed(input).map(|i| &signature.feeds[i]), &info[input.node.index()]) {
            (Some(feed), _) => format!("'{name}' {} {}, fed", feed.dtype, Shape::known(&feed.dims)),
            (None, Some(info)) => {
                let desc = &info.descs[input.output as usize];
                format!("'{name}' {} {}", desc.dtype, Shape::known(&desc.dims))
            }
            (None, None) => format!("'{name}'"),
        }
    };
    let inputs: Vec<String> = node.inputs.iter().map(one).collect();
    if inputs.is_empty() { String::new() } else { format!("; inputs: {}", inputs.join(", ")) }
}

fn node_info(
    node: &Node,
    signature: &Signature,
    info: &[Option<Info>],
    with_values: bool,
    team: &Team,
) -> std::result::Result<Info, String> {
    let mut facts: SmallVec<[Fact; 4]> = SmallVec::new();
    let mut values: SmallVec<[Option<Arc<Array>>; 4]> = SmallVec::new();
    for &input in &node.inputs {
        match signature.feed(input).map(|i| &signature.feeds[i]) {
            Some(feed) => {
                facts.push(Fact::new(feed.dtype, Shape::known(&feed.dims)));
                values.push(feed.value.clone().filter(|_| with_values));
            }
            None => {
                let of = info[input.node.index()].as_ref().expect("inputs come first");
                let desc = &of.descs[input.output as usize];
                facts.push(Fact::new(desc.dtype, Shape::known(&desc.dims)));
                values.push(of.values[input.output as usize].clone());
            }
        }
    }
    let context = InferContext { attrs: &node.attrs, inputs: &facts, values: &values };
    let outputs = if node.op.is_unknown() { node.outputs.to_vec() } else { node.op.infer(&context)? };
    let of_shapes = node.op.values_of_shapes(&context);
    let mut descs: SmallVec<[TensorDesc; 1]> = SmallVec::new();
    for (i, (found, built)) in outputs.iter().zip(&node.outputs).enumerate() {
        // What was known when it was built holds too, such as a placeholder's shape that the feed was checked against.
        let shape = found.shape.merge(&built.shape).ok_or_else(|| {
            format!("output {i} was built with shape {}, but would have {}", built.shape, found.shape)
        })?;
        let fed = signature.feed(TensorId { node: node.id, output: i as u32 }).map(|f| &signature.feeds[f].dims);
        // Values that turret does not hold, such as handles, take no room, whatever their shape.
        let unheld = || found.dtype.is_opaque().then(Default::default);
        let dims = fed.cloned().or_else(|| shape.to_dims()).or_else(unheld);
        let dims = dims.ok_or_else(|| unknown_shape(node, i, &shape, &values))?;
        let desc = TensorDesc { dtype: found.dtype, dims };
        let bytes = crate::base::num_elements(&desc.dims).and_then(|n| n.checked_mul(desc.dtype.size()));
        if bytes.is_none_or(|b| b > isize::MAX as usize) {
            return Err(format!("output {i} of shape {shape} is too large to address"));
        }
        descs.push(desc);
    }
    let traits = node.op.traits();
    let upstream = |id: NodeId| info[id.index()].as_ref().is_some_and(|i| i.effects);
    let effects_before = of_shapes.is_none()
        && node.inputs.iter().any(|t| signature.feed(*t).is_none() && upstream(t.node))
        || node.control_inputs.iter().any(|&c| upstream(c));
    let mut known: SmallVec<[Option<Arc<Array>>; 1]> = smallvec::smallvec![None; descs.len()];
    let small = descs.iter().map(TensorDesc::len).sum::<usize>() <= FOLDED_ELEMENTS;
    if let Some(value) = node.op.constant(&node.attrs) {
        known[0] = Some(value.clone());
    } else if let Some(values) = of_shapes {
        known.iter_mut().zip(values).for_each(|(slot, value)| *slot = Some(Arc::new(value)));
    } else if !traits.stateful && !descs.is_empty() && small && values.iter().all(Option::is_some) {
        let inputs: Vec<Arc<Array>> = values.into_iter().flatten().collect();
        match graph::evaluate(node.op, &node.attrs, &inputs, team) {
            Ok(values) => known.iter_mut().zip(values).for_each(|(slot, value)| *slot = Some(value)),
            // What may fail, and does, is left to the run, which says so.
            Err(_) if traits.fallible => {}
            Err(e) => return Err(e),
        }
    }
    let types: SmallVec<[DType; 2]> = descs.iter().map(|d| d.dtype).collect();
    let may_fail = node.op.can_fail(&node.attrs, &types) && !known.iter().any(Option::is_some);
    let acts = (traits.stateful || may_fail) && !traits.variable && !node.op.must_be_fed();
    Ok(Info { descs, values: known, effects: effects_before || acts, acts, kept: false })
}

fn unknown_shape(node: &Node, output: usize, shape: &Shape, values: &[Option<Arc<Array>>]) -> String {
    let planned = node.op.planned_inputs(node.inputs.len());
    match planned.iter().find(|i| values.get(**i).is_some_and(Option::is_none)) {
        Some(i) => format!(
            "the shape of output {output} ({shape}) depends on the value of input {i}, which is only computed by the run; \
             compute it from constants, shapes or small integer feeds"
        ),
        None if node.op.is_unknown() => format!(
            "turret does not have this op type, and the file does not tell the whole shape of output {output}: {shape}; \
             feed it"
        ),
        None => format!("the shape of output {output} is not known before the run: {shape}"),
    }
}
