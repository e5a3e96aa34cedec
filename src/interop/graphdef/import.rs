//! Import: a `GraphDef` becomes a graph whose nodes are the file's, one for one.
//!
//! Nodes of op types that turret has become those ops; all others are kept as unknown nodes, which can be placed, fed,
//! fetched from and written again, but not run. What turret's form of a node cannot say of it (how its device is
//! spelt, which attributes were left out) is kept beside the graph, so that export gives the same file.

use super::attr;
use super::order::{self, Edge, Inputs};
use super::origin::Kept;
use super::proto::{FunctionDefLibrary, GraphDef, NodeDef};
use super::signatures::{Kind, Signature, Tensors, TypeOf, signature};
use super::tensor::Budget;
use super::variables::{self, Roles};
use crate::base::{Code, DType, DeviceSpec, Diagnostic, Error, OpaqueType, Result, Shape, SourceLine};
use crate::graph::{Attr, Attrs, DeviceRequest, DeviceRule, Fact, Graph, Imported, NodeId, OpRef, TensorId, Unknown};
use crate::ops;
use prost::Message;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

/// Builds the graph of a file.
///
/// Variables are registered: each with its read and its initializer, found by their edges; those that an `Apply…` op
/// changes count as trainable. Any tensor can be fed and fetched.
///
/// # Errors
/// Everything that is wrong with the file's nodes, each by name: names, inputs, cycles and loops, attributes, devices,
/// shapes.
#[track_caller]
pub fn import_graph(def: &GraphDef) -> Result<Graph> {
    import_at(def, &Roles::default(), Location::caller())
}

pub(super) fn import_at(def: &GraphDef, roles: &Roles, source: SourceLine) -> Result<Graph> {
    let inputs = order::inputs(&def.node).map_err(Error::from_all)?;
    let order = order::sorted(&def.node, &inputs)?;
    let graph = Graph::new();
    let mut ids = vec![NodeId::POISON; def.node.len()];
    for (place, &node) in order.iter().enumerate() {
        let place = u32::try_from(place).map_err(|_| Error::invalid("the graph has too many nodes"))?;
        ids[node] = NodeId(place);
    }
    let by_name = def.node.iter().zip(&ids).map(|(n, id)| (&n.name[..], *id)).collect();
    let mut importer = Importer {
        graph: &graph,
        nodes: &def.node,
        inputs: &inputs,
        order: &order,
        ids: &ids,
        by_name,
        library: library(def)?,
        signatures: HashMap::new(),
        read_outputs: read_outputs(&inputs),
        read_types: HashMap::new(),
        aliases: variables::aliases(&def.node),
        budget: Budget::new(),
        source,
    };
    importer.ask_readers();
    let mut problems: Vec<Diagnostic> = Vec::new();
    let mut failed = vec![false; def.node.len()];
    for &node in &order {
        // What reads a node that could not be built says nothing new.
        failed[node] = inputs[node].all().any(|i| failed[i]);
        if !failed[node] {
            problems.extend(importer.add(node).inspect_err(|_| failed[node] = true).err());
        }
        if failed[node] {
            importer.leave_out(node);
        }
        if problems.len() == MAX_PROBLEMS {
            break;
        }
    }
    if !problems.is_empty() {
        return Err(Error::from_all(problems));
    }
    variables::register(&graph, roles, source);
    graph.set_origin(Arc::new(Kept::new(&graph, def, &ids)?));
    Ok(graph)
}

/// The most problems that are told.
const MAX_PROBLEMS: usize = 20;

/// The attribute by which a dump says that a constant's content is left out.
pub(crate) const LEFT_OUT: &str = "_digest";

/// The signatures of the functions of a graph.
fn library(def: &GraphDef) -> Result<HashMap<String, Signature>> {
    let Some(bytes) = &def.library else { return Ok(HashMap::new()) };
    let library = FunctionDefLibrary::decode(bytes.clone())
        .map_err(|e| Error::invalid(format!("the graph's function library cannot be read: {e}")))?;
    let signatures = library.function.iter().filter_map(|f| f.signature.as_ref());
    Ok(signatures.map(|s| (s.name.clone(), Signature::of_function(s))).collect())
}

/// How many outputs of each node are read.
fn read_outputs(inputs: &[Inputs]) -> Vec<usize> {
    let mut counts = vec![0; inputs.len()];
    for edge in inputs.iter().flat_map(|i| &i.data) {
        counts[edge.node] = counts[edge.node].max(edge.output + 1);
    }
    counts
}

struct Importer<'a> {
    graph: &'a Graph,
    nodes: &'a [NodeDef],
    inputs: &'a [Inputs],
    /// The node of the file that each node of the graph is.
    order: &'a [usize],
    /// The id that each node of the file has in the graph.
    ids: &'a [NodeId],
    by_name: HashMap<&'a str, NodeId>,
    library: HashMap<String, Signature>,
    signatures: HashMap<&'a str, Option<Arc<Signature>>>,
    read_outputs: Vec<usize>,
    /// The types that readers want of outputs whose op has no signature.
    read_types: HashMap<(usize, usize), DType>,
    /// Variables that are others under another name.
    aliases: HashMap<usize, usize>,
    budget: Budget,
    source: SourceLine,
}

impl<'a> Importer<'a> {
    /// Finds out which types the readers of nodes without a signature want.
    fn ask_readers(&mut self) {
        for (reader, inputs) in self.nodes.iter().zip(self.inputs) {
            let is_open = |importer: &mut Self, e: &Edge| importer.signature(&importer.nodes[e.node].op).is_none();
            if !inputs.data.iter().any(|e| is_open(self, e)) {
                continue;
            }
            let Some(signature) = self.signature(&reader.op) else { continue };
            // What is wrong with the reader is told when it is added.
            let types = attrs(reader, Some(&signature), &mut Budget::new())
                .and_then(|attrs| signature.types(&signature.inputs, &attrs));
            for (edge, dtype) in inputs.data.iter().zip(types.unwrap_or_default()) {
                self.read_types.entry((edge.node, edge.output)).or_insert(dtype);
            }
        }
    }

    /// Puts something in the place of a node that cannot be built, so that the others get their ids.
    fn leave_out(&self, index: usize) {
        let node = Imported {
            name: self.nodes[index].name.clone(),
            op: &Unknown,
            unknown: Some((self.nodes[index].op.as_str().into(), Vec::new())),
            attrs: Attrs::new(),
            outputs: None,
            inputs: SmallVec::new(),
            control_inputs: SmallVec::new(),
            device: DeviceRequest::default(),
            colocated_with: SmallVec::new(),
        };
        // The graph is dropped in the end, since there is a problem.
        let _ = self.graph.add_imported(&node, self.source);
    }

    fn signature(&mut self, op_type: &'a str) -> Option<Arc<Signature>> {
        let library = &self.library;
        let found = || signature(op_type).or_else(|| library.get(op_type).cloned()).map(Arc::new);
        self.signatures.entry(op_type).or_insert_with(found).clone()
    }

    fn add(&mut self, index: usize) -> Result<(), Diagnostic> {
        let def = &self.nodes[index];
        let source = self.source;
        let refuse =
            |why: String| Diagnostic::at(Code::InvalidArgument, format!("'{}' ({}): {why}", def.name, def.op), source);
        let signature = self.signature(&def.op);
        let mut attrs = attrs(def, signature.as_deref(), &mut self.budget).map_err(refuse)?;
        let outputs = self.outputs(index, signature.as_deref(), &attrs).map_err(refuse)?;
        let mut inputs: SmallVec<[TensorId; 4]> = SmallVec::new();
        for edge in &self.inputs[index].data {
            inputs.push(self.tensor(*edge).map_err(refuse)?);
        }
        if let Some(signature) = &signature {
            let want = signature.types(&signature.inputs, &attrs).map_err(refuse)?.len();
            if want != inputs.len() {
                return Err(refuse(format!("want {want} inputs, got {}", inputs.len())));
            }
        }
        let op = ops::find(&def.op).filter(|op| !self.is_opaque(*op, &inputs, &outputs));
        let mut control_inputs: SmallVec<[NodeId; 2]> =
            self.inputs[index].control.iter().map(|&c| self.ids[c]).collect();
        if let (Some(op), Some(signature)) = (op, &signature) {
            fill_in(signature, &mut attrs);
            self.reach_handles(op, signature, &attrs, &mut inputs, &mut control_inputs);
        }
        let device = DeviceSpec::parse(&def.device).map_err(|e| refuse(e.to_string()))?;
        let colocated_with = self.colocated(&attrs).map_err(refuse)?;
        let rule = match (device.is_empty(), colocated_with.first()) {
            (false, _) => DeviceRule::File,
            (true, Some(with)) => DeviceRule::Colocated(self.name_of(*with)),
            (true, None) => DeviceRule::Unset,
        };
        let unknown = || Some((def.op.as_str().into(), outputs.clone()));
        let mut node = Imported {
            name: def.name.clone(),
            op: op.unwrap_or(&Unknown),
            unknown: if op.is_none() { unknown() } else { None },
            outputs: with_default(&def.op, &attrs, &inputs, self.graph),
            attrs,
            inputs,
            control_inputs,
            device: DeviceRequest { spec: device, rule },
            colocated_with,
        };
        match self.graph.add_imported(&node, self.source) {
            Ok(_) => Ok(()),
            // Values of such types are stored, but few ops compute with them: what cannot run can still be shown.
            Err(_) if op.is_some() && self.is_only_stored(&node.inputs, &outputs) => {
                (node.op, node.unknown) = (&Unknown, unknown());
                self.graph.add_imported(&node, self.source).map(|_| ())
            }
            Err(e) => Err(e),
        }
    }

    fn name_of(&self, id: NodeId) -> String {
        self.nodes[self.order[id.index()]].name.clone()
    }

    /// What is known of the outputs without turret's own rules.
    fn outputs(&self, index: usize, signature: Option<&Signature>, attrs: &Attrs) -> Result<Vec<Fact>, String> {
        let unknown = DType::Opaque(OpaqueType::Unknown);
        let types = match signature {
            Some(signature) => signature.types(&signature.outputs, attrs)?,
            // What the file reads of it, and one that may be fetched.
            None => {
                let read = |i| self.read_types.get(&(index, i)).copied().unwrap_or(unknown);
                (0..self.read_outputs[index].max(1)).map(read).collect()
            }
        };
        if self.read_outputs[index] > types.len() {
            let last = self.read_outputs[index] - 1;
            return Err(format!("output {last} is read, but it has {} outputs", types.len()));
        }
        let shapes = ["_output_shapes", "output_shapes"].iter().find_map(|name| match attrs.get(name) {
            Some(Attr::Shapes(shapes)) if shapes.len() == types.len() => Some(shapes.clone()),
            _ => None,
        });
        let shapes = shapes.unwrap_or_else(|| vec![Shape::unknown(); types.len()]);
        Ok(types.into_iter().zip(shapes).map(|(dtype, shape)| Fact::new(dtype, shape)).collect())
    }

    fn tensor(&self, edge: Edge) -> Result<TensorId, String> {
        let source = self.aliases.get(&edge.node).copied().unwrap_or(edge.node);
        let id = self.ids[source];
        match self.graph.node(id) {
            Some(node) if edge.output < node.outputs.len() => Ok(TensorId { node: id, output: edge.output as u32 }),
            _ => Err(format!("there is no output {} of '{}'", edge.output, self.nodes[edge.node].name)),
        }
    }

    /// True if turret holds no values of the type of an input or output. A variable's handle counts as its value.
    fn is_opaque(&self, op: OpRef, inputs: &[TensorId], outputs: &[Fact]) -> bool {
        let resource = DType::Opaque(OpaqueType::Resource);
        let mut of_inputs = inputs.iter().filter_map(|t| Some(self.fact(*t)?.dtype));
        if !op.ignores_opaque_inputs() && of_inputs.any(DType::is_opaque) {
            return true;
        }
        let handles = op.traits().variable
            || outputs.iter().any(|f| f.dtype == resource) && inputs.iter().any(|t| self.variable(*t).is_some());
        outputs.iter().any(|f| f.dtype.is_opaque() && !(handles && f.dtype == resource))
    }

    /// True if a type among them is one that turret only stores.
    fn is_only_stored(&self, inputs: &[TensorId], outputs: &[Fact]) -> bool {
        let of_inputs = inputs.iter().filter_map(|t| Some(self.fact(*t)?.dtype));
        let mut all = of_inputs.chain(outputs.iter().map(|f| f.dtype));
        all.any(|d| !d.is_number() && d != DType::Bool && !d.is_opaque())
    }

    fn fact(&self, tensor: TensorId) -> Option<Fact> {
        self.graph.node(tensor.node)?.outputs.get(tensor.output as usize).cloned()
    }

    /// The variable whose reference or handle a tensor is, with the nodes that it came through.
    fn variable(&self, mut tensor: TensorId) -> Option<(TensorId, SmallVec<[NodeId; 2]>)> {
        let mut through = SmallVec::new();
        loop {
            let node = self.graph.node(tensor.node)?;
            if node.op.traits().variable {
                return Some((tensor, through));
            }
            let signature = signature(node.op_type())?;
            let gives_ref = signature.outputs.first().is_some_and(|o| o.is_ref);
            let takes_ref = signature.inputs.first().is_some_and(|i| i.is_ref);
            let passes_handle = matches!(node.op_type(), "Identity" | "Switch");
            if !(gives_ref && takes_ref || passes_handle) || node.inputs.is_empty() {
                return None;
            }
            through.push(node.id);
            tensor = node.inputs[0];
        }
    }

    /// Ops that write a variable, or take its handle, get the variable itself, however its reference reached them; what
    /// it came through has then to be waited for.
    fn reach_handles(
        &self,
        op: OpRef,
        signature: &Signature,
        attrs: &Attrs,
        inputs: &mut [TensorId],
        controls: &mut SmallVec<[NodeId; 2]>,
    ) {
        let mut places = op.written_inputs(attrs, inputs.len());
        let resource = Tensors::One(TypeOf::Fixed(DType::Opaque(OpaqueType::Resource)));
        places.extend(signature.inputs.iter().enumerate().filter(|(_, a)| a.tensors == resource).map(|(i, _)| i));
        for place in places {
            let Some((variable, through)) = inputs.get(place).and_then(|t| self.variable(*t)) else { continue };
            inputs[place] = variable;
            controls.extend(through);
        }
    }

    /// The nodes that attribute `_class` names.
    fn colocated(&self, attrs: &Attrs) -> Result<SmallVec<[NodeId; 1]>, String> {
        let mut nodes = SmallVec::new();
        for class in attrs.strs("_class") {
            let Some(name) = class.strip_prefix("loc:@") else { continue };
            match self.by_name.get(name) {
                Some(id) => nodes.push(*id),
                None => return Err(format!("it is colocated with '{name}', which is not there")),
            }
        }
        Ok(nodes)
    }
}

/// The attributes, each of the kind that the signature says.
fn attrs(def: &NodeDef, signature: Option<&Signature>, budget: &mut Budget) -> Result<Attrs, String> {
    if def.attr.contains_key(LEFT_OUT) {
        return Err("the file is a dump whose large constants are left out; write it with --full, or as .pb".into());
    }
    let mut attrs = Attrs::new();
    for (name, value) in &def.attr {
        let kind = signature.and_then(|s| s.attr(name)).map(|a| a.kind);
        let value = attr::read(value, kind, budget).map_err(|why| format!("attribute '{name}': {why}"))?;
        attrs.set(name.clone(), value);
    }
    let required = |a: &&super::AttrDecl| a.default.is_none() && a.kind.of != Kind::Tensor;
    for decl in signature.iter().flat_map(|s| &s.attrs).filter(required) {
        if attrs.get(&decl.name).is_none() {
            return Err(format!("attribute '{}' ({}) is missing", decl.name, decl.kind));
        }
    }
    Ok(attrs)
}

/// What may be fed in place of a default: any size where the node's shape says so.
fn with_default(op_type: &str, attrs: &Attrs, inputs: &[TensorId], graph: &Graph) -> Option<Vec<Fact>> {
    if op_type != "PlaceholderWithDefault" {
        return None;
    }
    let default = graph.node(inputs.first()?.node)?.outputs.get(inputs[0].output as usize)?.dtype;
    Some(vec![Fact::new(default, attrs.shape("shape")?.clone())])
}

/// Sets what was left out to its default, so that no op of turret's has to know it.
fn fill_in(signature: &Signature, attrs: &mut Attrs) {
    for decl in &signature.attrs {
        if let (Some(default), None) = (&decl.default, attrs.get(&decl.name)) {
            attrs.set(decl.name.clone(), default.clone());
        }
    }
}
