//! Functions: calls become the nodes of what they call, and `If` becomes `Switch` and `Merge`, as TensorFlow itself does
//! before it runs a graph.
//!
//! Absent: `While` and `Case`, which are kept, and so cannot be run.

use super::dtype;
use super::proto::{AttrValue, GraphDef, ListValue, NodeDef, OpDef, attr_value::Value};
use super::signatures::{Signature, signature};
use crate::base::{Code, Diagnostic, Error, Result};
use crate::graph::{Attr, Attrs};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

/// How deep functions may call each other; deeper is a function that calls itself.
const DEPTH: usize = 32;
/// The most nodes that the bodies of functions may become.
const NODES: usize = 200_000;
/// `DT_BOOL`.
const BOOL: i32 = 10;
/// `DT_RESOURCE`.
const RESOURCE: i32 = 20;

/// `tensorflow.FunctionDefLibrary`.
#[derive(Clone, PartialEq, Message)]
struct Library {
    #[prost(message, repeated, tag = "1")]
    function: Vec<Function>,
}

/// `tensorflow.FunctionDef`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(message, optional, tag = "1")]
    signature: Option<OpDef>,
    #[prost(message, repeated, tag = "3")]
    node_def: Vec<NodeDef>,
    /// By output argument: the tensor of the body.
    #[prost(btree_map = "string, string", tag = "4")]
    ret: BTreeMap<String, String>,
    /// Nodes of the body that always run.
    #[prost(btree_map = "string, string", tag = "6")]
    control_ret: BTreeMap<String, String>,
}

/// `tensorflow.NameAttrList`.
#[derive(Clone, PartialEq, Message)]
struct NameAttrList {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(btree_map = "string, message", tag = "2")]
    attr: BTreeMap<String, AttrValue>,
}

/// The graph in which calls of its library's functions are what they call. The names of calls stay, as nodes that give
/// the same outputs, so that whatever reads, fetches or runs them finds them.
///
/// # Errors
/// Calls that do not fit their function, functions that call themselves, and bodies that refer to what is not there.
pub fn inline_functions(def: &GraphDef) -> Result<GraphDef> {
    let Some(bytes) = &def.library else { return Ok(def.clone()) };
    let library = Library::decode(bytes.clone())
        .map_err(|e| Error::invalid(format!("the graph's function library cannot be read: {e}")))?;
    let mut functions = HashMap::new();
    for function in &library.function {
        if let Some(signature) = &function.signature {
            functions.insert(&signature.name[..], function);
        }
    }
    let mut inliner =
        Inliner { functions, names: def.node.iter().map(|n| n.name.clone()).collect(), nodes: Vec::new(), made: 0 };
    for node in &def.node {
        inliner.add(node.clone(), 0)?;
    }
    Ok(GraphDef { node: inliner.nodes, ..def.clone() })
}

struct Inliner<'a> {
    functions: HashMap<&'a str, &'a Function>,
    names: BTreeSet<String>,
    nodes: Vec<NodeDef>,
    made: usize,
}

/// What a body gives to whoever calls it.
struct Inlined {
    outputs: Vec<String>,
    /// Nodes that must have run, as control inputs.
    effects: Vec<String>,
}

impl<'a> Inliner<'a> {
    fn add(&mut self, node: NodeDef, depth: usize) -> Result<()> {
        let refuse = |what: String| {
            let message = format!("cannot inline '{}' ({}): {what}", node.name, node.op);
            Error::from(Diagnostic::new(Code::InvalidArgument, message))
        };
        let called = match &node.op[..] {
            "PartitionedCall" | "StatefulPartitionedCall" => function_attr(&node, "f").map_err(&refuse)?,
            "If" | "StatelessIf" => {
                let then = function_attr(&node, "then_branch").map_err(&refuse)?;
                let otherwise = function_attr(&node, "else_branch").map_err(&refuse)?;
                let (known, kinds) =
                    (|f: &NameAttrList| self.functions.contains_key(&f.name[..]), types(&node, "Tout"));
                let is_bool = matches!(node.attr.get("Tcond"), Some(AttrValue { value: Some(Value::Type(BOOL)) }));
                // What it cannot do is kept, and told of where it would run.
                if !is_bool || kinds.contains(&RESOURCE) || !known(&then) || !known(&otherwise) {
                    self.nodes.push(node);
                    return Ok(());
                }
                self.check_depth(depth).map_err(refuse)?;
                return self.branch(&node, &then, &otherwise, depth).map_err(|what| match what {
                    Problem::Here(what) => refuse(what),
                    Problem::Told(e) => e,
                });
            }
            name if self.functions.contains_key(name) => {
                NameAttrList { name: name.to_string(), attr: node.attr.clone() }
            }
            _ => {
                self.nodes.push(node);
                return Ok(());
            }
        };
        let Some(&function) = self.functions.get(&called.name[..]) else {
            self.nodes.push(node);
            return Ok(());
        };
        self.check_depth(depth).map_err(refuse)?;
        let (data, controls) = parted(&node);
        let prefix = self.prefix(&node.name);
        let inlined = self.body(function, &called.attr, &prefix, (&data, &controls), &node.device, depth);
        let inlined = inlined.map_err(|what| match what {
            Problem::Here(what) => refuse(what),
            Problem::Told(e) => e,
        })?;
        let waits = inlined.effects.into_iter().chain(controls).collect();
        let kinds = types(&node, "Tout");
        let kinds =
            if kinds.len() == inlined.outputs.len() { kinds } else { self.output_types(function, &called.attr) };
        self.stand_in(&node, inlined.outputs, kinds, waits);
        Ok(())
    }

    fn check_depth(&self, depth: usize) -> std::result::Result<(), String> {
        if depth >= DEPTH {
            return Err(format!("its function calls functions {DEPTH} deep; does one call itself?"));
        }
        Ok(())
    }

    /// A prefix for the names of a body that no node has.
    fn prefix(&self, name: &str) -> String {
        let mut prefix = format!("{name}/");
        let taken = |p: &String| {
            let from = (Bound::Included(p), Bound::Unbounded);
            self.names.range::<String, _>(from).next().is_some_and(|n| n.starts_with(&p[..]))
        };
        while taken(&prefix) {
            prefix.insert(prefix.len() - 1, '_');
        }
        prefix
    }

    /// A node in the place of a call, with its name and outputs.
    fn stand_in(&mut self, node: &NodeDef, outputs: Vec<String>, kinds: Vec<i32>, waits: Vec<String>) {
        let (op, attr) = match outputs.len() {
            0 => ("NoOp", BTreeMap::new()),
            1 => ("Identity", BTreeMap::from([("T".to_string(), of_type(kinds.first().copied().unwrap_or(1)))])),
            _ => ("IdentityN", BTreeMap::from([("T".to_string(), of_types(kinds))])),
        };
        let input = outputs.into_iter().chain(waits).collect();
        let device = node.device.clone();
        self.nodes.push(NodeDef { name: node.name.clone(), op: op.into(), input, device, attr, ..NodeDef::default() });
    }

    fn output_types(&self, function: &Function, attrs: &BTreeMap<String, AttrValue>) -> Vec<i32> {
        let args = function.signature.iter().flat_map(|s| &s.output_arg);
        let of = |a: &super::proto::ArgDef| match attrs.get(&a.type_attr) {
            Some(AttrValue { value: Some(Value::Type(kind)) }) => *kind,
            _ => a.r#type,
        };
        args.map(of).collect()
    }

    /// `If`: both bodies behind switches, and a merge for each output.
    fn branch(
        &mut self,
        node: &NodeDef,
        then: &NameAttrList,
        otherwise: &NameAttrList,
        depth: usize,
    ) -> std::result::Result<(), Problem> {
        let (data, controls) = parted(node);
        let Some((predicate, data)) = data.split_first() else {
            return Err(Problem::Here("it has no predicate".into()));
        };
        let (into, out) = (types(node, "Tin"), types(node, "Tout"));
        if into.len() != data.len() {
            return Err(Problem::Here(format!(
                "attribute 'Tin' has {} types, it has {} inputs",
                into.len(),
                data.len()
            )));
        }
        let prefix = self.prefix(&node.name);
        let name = |last: &str| format!("{prefix}{last}");
        let push = |this: &mut Self, last: &str, op: &str, kind: i32, input: Vec<String>| {
            let mut attr = BTreeMap::from([("T".to_string(), of_type(kind))]);
            if op == "Merge" {
                attr.insert("N".into(), AttrValue { value: Some(Value::I(2)) });
            }
            let device = node.device.clone();
            this.push(NodeDef { name: name(last), op: op.into(), input, device, attr, ..NodeDef::default() })
        };
        let with = |tensor: String, waits: &[String]| [tensor].into_iter().chain(waits.iter().cloned()).collect();
        push(self, "pred_id", "Identity", BOOL, with(predicate.clone(), &controls))?;
        push(self, "Switch", "Switch", BOOL, vec![name("pred_id"), name("pred_id")])?;
        push(self, "switch_f", "Identity", BOOL, vec![name("Switch")])?;
        push(self, "switch_t", "Identity", BOOL, vec![name("Switch:1")])?;
        let mut switched = [Vec::new(), Vec::new()];
        for (i, (tensor, &kind)) in data.iter().zip(&into).enumerate() {
            // A variable's handle is no value; what reads it waits for its branch.
            if kind == RESOURCE {
                switched.iter_mut().for_each(|s| s.push(tensor.clone()));
                continue;
            }
            let switch = format!("Switch_{}", i + 1);
            push(self, &switch, "Switch", kind, vec![tensor.clone(), name("pred_id")])?;
            switched[0].push(name(&switch));
            switched[1].push(name(&format!("{switch}:1")));
        }
        let mut done = Vec::new();
        let mut outputs = Vec::new();
        for (i, (called, last)) in [(otherwise, "else"), (then, "then")].into_iter().enumerate() {
            let function = self.functions[&called.name[..]];
            let pivot = name(if i == 0 { "switch_f" } else { "switch_t" });
            let waits = [format!("^{pivot}")];
            let prefix = name(&format!("{last}/"));
            let inlined = self.body(function, &called.attr, &prefix, (&switched[i], &waits), &node.device, depth)?;
            if inlined.outputs.len() != out.len() {
                let message = format!(
                    "function '{}' gives {} outputs, attribute 'Tout' has {}",
                    called.name,
                    inlined.outputs.len(),
                    out.len()
                );
                return Err(Problem::Here(message));
            }
            push(self, &format!("{last}_done"), "Identity", BOOL, with(pivot, &inlined.effects))?;
            done.push(name(&format!("{last}_done")));
            outputs.push(inlined.outputs);
        }
        push(self, "done", "Merge", BOOL, done)?;
        let mut merged = Vec::new();
        for (i, (otherwise, then)) in outputs[0].iter().zip(&outputs[1]).enumerate() {
            let merge = format!("Merge_{i}");
            push(self, &merge, "Merge", out[i], vec![otherwise.clone(), then.clone()])?;
            merged.push(name(&merge));
        }
        let waits = vec![format!("^{}", name("done"))];
        self.stand_in(node, merged, out, waits);
        Ok(())
    }

    fn push(&mut self, node: NodeDef) -> std::result::Result<(), Problem> {
        self.count()?;
        self.names.insert(node.name.clone());
        self.nodes.push(node);
        Ok(())
    }

    fn count(&mut self) -> std::result::Result<(), Problem> {
        self.made += 1;
        match self.made <= NODES {
            true => Ok(()),
            false => Err(Problem::Here(format!("the bodies of the functions would be more than {NODES} nodes"))),
        }
    }

    /// The nodes of a function's body, under a prefix, with these inputs. What reads no node of the body and no switched
    /// input waits for `controls`.
    fn body(
        &mut self,
        function: &'a Function,
        attrs: &BTreeMap<String, AttrValue>,
        prefix: &str,
        (inputs, controls): (&[String], &[String]),
        device: &str,
        depth: usize,
    ) -> std::result::Result<Inlined, Problem> {
        let here = |what: String| Problem::Here(what);
        let scope = Scope::new(self, function, attrs, prefix, inputs).map_err(here)?;
        let mut effects: Vec<String> = Vec::new();
        for node in &function.node_def {
            self.count()?;
            let mut input = Vec::new();
            let mut has_own = false;
            for text in &node.input {
                let own = scope.input(text).map_err(here)?;
                has_own |= own.starts_with(prefix) || own.strip_prefix('^').is_some_and(|o| o.starts_with(prefix));
                input.push(own);
            }
            // Data inputs come first.
            let (data, mut waits): (Vec<String>, Vec<String>) = input.into_iter().partition(|i| !i.starts_with('^'));
            if !has_own {
                waits.extend(controls.iter().filter(|c| !waits.contains(c)).cloned().collect::<Vec<_>>());
            }
            let name = format!("{prefix}{}", node.name);
            if scope.signature(self, node).is_none_or(|s| s.stateful) {
                effects.push(format!("^{name}"));
            }
            let attr = node.attr.iter().map(|(key, value)| (key.clone(), substituted(value, attrs))).collect();
            let device = if node.device.is_empty() { device.to_string() } else { node.device.clone() };
            self.names.insert(name.clone());
            let input = data.into_iter().chain(waits).collect();
            self.add(NodeDef { name, input, device, attr, ..node.clone() }, depth + 1).map_err(Problem::Told)?;
        }
        for node in function.control_ret.values() {
            let wait = format!("^{prefix}{node}");
            if !effects.contains(&wait) {
                effects.push(wait);
            }
        }
        let outputs = function.signature.iter().flat_map(|s| &s.output_arg);
        let outputs = outputs.map(|arg| match function.ret.get(&arg.name) {
            Some(text) => scope.input(text),
            None => Err(format!("its function does not say what output '{}' is", arg.name)),
        });
        Ok(Inlined { outputs: outputs.collect::<std::result::Result<_, _>>().map_err(here)?, effects })
    }
}

enum Problem {
    /// To be told of the call.
    Here(String),
    /// Of a call within it.
    Told(Error),
}

/// What names mean in a body.
struct Scope<'a> {
    prefix: &'a str,
    /// By argument: its tensors.
    arguments: HashMap<&'a str, &'a [String]>,
    /// By node of the body: where each of its outputs' tensors begin, by name.
    outputs: HashMap<&'a str, HashMap<String, usize>>,
}

impl<'a> Scope<'a> {
    fn new(
        inliner: &Inliner<'_>,
        function: &'a Function,
        attrs: &BTreeMap<String, AttrValue>,
        prefix: &'a str,
        inputs: &'a [String],
    ) -> std::result::Result<Scope<'a>, String> {
        let mut arguments = HashMap::new();
        let mut next = 0;
        let number = |name: &str| match attrs.get(name) {
            Some(AttrValue { value: Some(Value::I(n)) }) => usize::try_from(*n).ok(),
            Some(AttrValue { value: Some(Value::List(list)) }) => Some(list.r#type.len()),
            _ => None,
        };
        let args = function.signature.as_ref().map_or(&[][..], |s| &s.input_arg);
        for arg in args {
            let count = match (&arg.number_attr[..], &arg.type_list_attr[..]) {
                ("", "") => Some(1),
                ("", list) => number(list),
                (count, _) => number(count),
            };
            let count = count.ok_or_else(|| format!("how many tensors argument '{}' has is not said", arg.name))?;
            let end = usize::checked_add(next, count).filter(|end| *end <= inputs.len());
            let end = end
                .ok_or_else(|| format!("its function has {} arguments, it has {} inputs", args.len(), inputs.len()))?;
            arguments.insert(&arg.name[..], &inputs[next..end]);
            next = end;
        }
        if next != inputs.len() {
            return Err(format!("its function takes {next} inputs, it has {}", inputs.len()));
        }
        let mut scope = Scope { prefix, arguments, outputs: HashMap::new() };
        for node in &function.node_def {
            let mut starts = HashMap::new();
            if let Some(signature) = scope.signature(inliner, node) {
                let values = node.attr.iter().map(|(key, value)| (key.clone(), substituted(value, attrs)));
                let values = known_attrs(values);
                let mut at = 0;
                for output in &signature.outputs {
                    starts.insert(output.name.clone(), at);
                    at += signature.types(std::slice::from_ref(output), &values)?.len();
                }
            }
            scope.outputs.insert(&node.name[..], starts);
        }
        Ok(scope)
    }

    fn signature(&self, inliner: &Inliner<'_>, node: &NodeDef) -> Option<Signature> {
        let of_function = || Some(Signature::of_function(inliner.functions.get(&node.op[..])?.signature.as_ref()?));
        signature(&node.op).or_else(of_function)
    }

    /// The graph's name for `argument`, `argument:i`, `node:output:i` or `^node` of the body.
    fn input(&self, text: &str) -> std::result::Result<String, String> {
        let missing = || format!("its function refers to '{text}', which it does not have");
        if let Some(node) = text.strip_prefix('^') {
            return match (self.outputs.contains_key(node), self.arguments.get(node)) {
                (true, _) => Ok(format!("^{}{node}", self.prefix)),
                (false, Some(tensors)) => {
                    let tensor = tensors.first().ok_or_else(missing)?;
                    Ok(format!("^{}", tensor.split(':').next().unwrap_or(tensor)))
                }
                _ => Err(missing()),
            };
        }
        let mut parts = text.split(':');
        let (first, second, third) = (parts.next().unwrap_or(text), parts.next(), parts.next());
        let index = |text: Option<&str>| text.map_or(Some(0), |t| t.parse::<usize>().ok()).ok_or_else(missing);
        if let Some(tensors) = self.arguments.get(first) {
            return tensors.get(index(second)?).cloned().ok_or_else(missing);
        }
        let starts = self.outputs.get(first).ok_or_else(missing)?;
        let output = match (second, third) {
            (Some(name), Some(_)) => {
                let start = match starts.get(name) {
                    Some(start) => *start,
                    // The only output of an op that is not known.
                    None if starts.is_empty() => 0,
                    None => return Err(missing()),
                };
                start.checked_add(index(third)?).ok_or_else(missing)?
            }
            (other, _) => index(other)?,
        };
        Ok(match output {
            0 => format!("{}{first}", self.prefix),
            n => format!("{}{first}:{n}", self.prefix),
        })
    }
}

/// Data inputs and control inputs of a node.
fn parted(node: &NodeDef) -> (Vec<String>, Vec<String>) {
    node.input.iter().cloned().partition(|i| !i.starts_with('^'))
}

fn function_attr(node: &NodeDef, name: &str) -> std::result::Result<NameAttrList, String> {
    match node.attr.get(name) {
        Some(AttrValue { value: Some(Value::Func(bytes)) }) => {
            NameAttrList::decode(bytes.clone()).map_err(|e| format!("attribute '{name}' cannot be read: {e}"))
        }
        _ => Err(format!("attribute '{name}' is no function")),
    }
}

fn types(node: &NodeDef, name: &str) -> Vec<i32> {
    match node.attr.get(name) {
        Some(AttrValue { value: Some(Value::List(list)) }) => list.r#type.clone(),
        _ => Vec::new(),
    }
}

fn of_type(kind: i32) -> AttrValue {
    AttrValue { value: Some(Value::Type(kind)) }
}

fn of_types(kinds: Vec<i32>) -> AttrValue {
    AttrValue { value: Some(Value::List(ListValue { r#type: kinds, ..ListValue::default() })) }
}

/// The attributes that say how many tensors an output has.
fn known_attrs(values: impl Iterator<Item = (String, AttrValue)>) -> Attrs {
    let mut attrs = Attrs::new();
    for (name, value) in values {
        match value.value {
            Some(Value::I(n)) => attrs.set(name, n),
            Some(Value::Type(kind)) => attrs.set(name, dtype::from_number(kind)),
            Some(Value::List(list)) if !list.r#type.is_empty() || list == ListValue::default() => {
                let types = list.r#type.iter().map(|t| dtype::from_number(*t)).collect();
                attrs.set(name, Attr::Types(types));
            }
            _ => {}
        }
    }
    attrs
}

/// An attribute of a body's node, in which attributes of the function have the values of the call.
fn substituted(value: &AttrValue, attrs: &BTreeMap<String, AttrValue>) -> AttrValue {
    match &value.value {
        Some(Value::Placeholder(name)) => attrs.get(name).unwrap_or(value).clone(),
        _ => value.clone(),
    }
}
