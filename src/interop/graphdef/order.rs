//! The order of a file's nodes: who reads whom, inputs first, and the cycle where there is none.

use super::proto::NodeDef;
use crate::base::{Code, Diagnostic, nearest};
use std::borrow::Cow;
use std::collections::HashMap;

/// An input of a node: which node, and which of its outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub node: usize,
    pub output: usize,
}

/// The inputs of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Inputs {
    pub data: Vec<Edge>,
    pub control: Vec<usize>,
}

impl Inputs {
    /// The nodes that it reads or waits for.
    pub fn all(&self) -> impl Iterator<Item = usize> + '_ {
        self.data.iter().map(|e| e.node).chain(self.control.iter().copied())
    }
}

/// The most problems of one kind that are told.
const MAX_PROBLEMS: usize = 20;

/// Comparing with every name of a large graph is worth it for so many missing inputs.
const NEAR_NAMES: usize = 3;

/// A text of a file as messages show it: no longer than a line.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    const SHOWN: usize = 120;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Reads the names and inputs of all nodes.
///
/// # Errors
/// Names that are no names or are there twice, nodes without an op type, and inputs that are not there.
pub(super) fn inputs(nodes: &[NodeDef]) -> Result<Vec<Inputs>, Vec<Diagnostic>> {
    let mut problems = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::with_capacity(nodes.len());
    for (i, node) in nodes.iter().enumerate() {
        if !is_name(&node.name) {
            let message = format!(
                "node {i} ({}) has the name {:?}, which is none: names have letters, digits, '_', '.', '-', '/' and '>'",
                shown(&node.op),
                shown(&node.name)
            );
            problems.push(Diagnostic::new(Code::InvalidArgument, message));
        } else if node.op.is_empty() {
            problems.push(Diagnostic::new(Code::InvalidArgument, format!("node '{}' has no op type", node.name)));
        } else if let Some(first) = by_name.insert(&node.name, i) {
            let message = format!("there are two nodes '{}', node {first} and node {i}", node.name);
            problems.push(Diagnostic::new(Code::AlreadyExists, message));
        }
        if problems.len() == MAX_PROBLEMS {
            return Err(problems);
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut all = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut inputs = Inputs::default();
        for text in &node.input {
            match read_input(text, &by_name, problems.len() < NEAR_NAMES) {
                Ok((edge, true)) => inputs.control.push(edge.node),
                Ok((_, false)) if !inputs.control.is_empty() => {
                    problems.push(bad_input(node, text, "it comes after a control input; data inputs come first"));
                }
                Ok((edge, false)) => inputs.data.push(edge),
                Err(why) => problems.push(bad_input(node, text, &why)),
            }
            if problems.len() == MAX_PROBLEMS {
                return Err(problems);
            }
        }
        all.push(inputs);
    }
    if problems.is_empty() { Ok(all) } else { Err(problems) }
}

fn bad_input(node: &NodeDef, text: &str, why: &str) -> Diagnostic {
    let message = format!("input '{}' of '{}' ({}): {why}", shown(text), shown(&node.name), shown(&node.op));
    Diagnostic::new(Code::InvalidArgument, message)
}

/// TensorFlow's rule for names in files, where internal names may begin with '_'.
fn is_name(name: &str) -> bool {
    let first = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
    name.starts_with(first) && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-/>\\".contains(c))
}

/// Reads `a`, `b:1` or `^d`; true for the last.
fn read_input(text: &str, by_name: &HashMap<&str, usize>, tell_near: bool) -> Result<(Edge, bool), String> {
    let (name, control) = text.strip_prefix('^').map_or((text, false), |name| (name, true));
    let (name, output) = match name.rsplit_once(':') {
        Some((node, output)) if !control => {
            let output: u16 = output.parse().map_err(|_| format!("'{output}' is no output's number"))?;
            (node, output.into())
        }
        _ => (name, 0),
    };
    match by_name.get(name) {
        Some(&node) => Ok((Edge { node, output }, control)),
        None => {
            let near = nearest(name, by_name.keys().copied().filter(|_| tell_near));
            let near = near.map_or(String::new(), |n| format!("; did it mean '{}'?", shown(n)));
            Err(format!("there is no node '{}'{near}", shown(name)))
        }
    }
}

/// The nodes with every one after those that it reads or waits for, otherwise as in the file.
///
/// # Errors
/// The first cycle, by name.
pub(super) fn sorted(nodes: &[NodeDef], inputs: &[Inputs]) -> Result<Vec<usize>, Diagnostic> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let count = |i: usize| inputs[i].data.len() + inputs[i].control.len();
    let input = |i: usize, at: usize| match inputs[i].data.get(at) {
        Some(edge) => edge.node,
        None => inputs[i].control[at - inputs[i].data.len()],
    };
    let mut marks = vec![Mark::New; nodes.len()];
    let mut order = Vec::with_capacity(nodes.len());
    // The nodes on the way to the one being looked at, each with the next input to look at.
    let mut path: Vec<(usize, usize)> = Vec::new();
    for start in 0..nodes.len() {
        if marks[start] == Mark::New {
            marks[start] = Mark::Open;
            path.push((start, 0));
        }
        while let Some((node, at)) = path.last_mut() {
            if *at == count(*node) {
                marks[*node] = Mark::Done;
                order.push(*node);
                path.pop();
                continue;
            }
            let next = input(*node, *at);
            *at += 1;
            match marks[next] {
                Mark::Done => {}
                Mark::New => {
                    marks[next] = Mark::Open;
                    path.push((next, 0));
                }
                Mark::Open => {
                    let from = path.iter().position(|(n, _)| *n == next).unwrap_or(0);
                    // Each node of the path reads the one after it.
                    let cycle: Vec<usize> = path[from..].iter().rev().map(|(n, _)| *n).collect();
                    return Err(cycle_error(nodes, &cycle));
                }
            }
        }
    }
    Ok(order)
}

fn cycle_error(nodes: &[NodeDef], cycle: &[usize]) -> Diagnostic {
    const SHOWN: usize = 8;
    let back = cycle.iter().map(|&i| &nodes[i]).find(|n| n.op.ends_with("NextIteration"));
    if let Some(node) = back {
        let message = format!(
            "'{}' ({}) closes a loop, and turret has no loops; unroll it where the graph is built (a Python loop for \
             tf.while_loop, static_rnn for dynamic_rnn), or cut the graph before it and feed what it gives",
            node.name, node.op
        );
        return Diagnostic::new(Code::Unimplemented, message);
    }
    let mut names: Vec<String> = cycle.iter().take(SHOWN).map(|&i| format!("'{}'", nodes[i].name)).collect();
    if cycle.len() > SHOWN {
        names.push(format!("… ({} in all)", cycle.len()));
    }
    names.push(format!("'{}'", nodes[cycle[0]].name));
    let message = format!("the graph has a cycle, so nothing of it could run first: {}", names.join(" → "));
    Diagnostic::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, op: &str, input: &[&str]) -> NodeDef {
        let input = input.iter().map(|i| i.to_string()).collect();
        NodeDef { name: name.into(), op: op.into(), input, ..NodeDef::default() }
    }

    fn order(nodes: &[NodeDef]) -> Result<Vec<usize>, String> {
        let told = |d: Vec<Diagnostic>| d.iter().map(|d| d.message.clone()).collect::<Vec<_>>().join("\n");
        sorted(nodes, &inputs(nodes).map_err(told)?).map_err(|d| d.message)
    }

    #[test]
    fn inputs_come_first_and_else_the_order_stays() {
        let nodes =
            [node("c", "X", &["a", "b:1", "^d"]), node("a", "X", &[]), node("b", "X", &[]), node("d", "X", &[])];
        assert_eq!(order(&nodes), Ok(vec![1, 2, 3, 0]));
        let read = &inputs(&nodes).unwrap()[0];
        assert_eq!(read.data, [Edge { node: 1, output: 0 }, Edge { node: 2, output: 1 }]);
        assert_eq!(read.control, [3]);
        let sorted = [node("a", "X", &[]), node("z", "X", &[]), node("b", "X", &["z", "a"])];
        assert_eq!(order(&sorted), Ok(vec![0, 1, 2]));
        // As deep as it is long.
        let chain: Vec<NodeDef> =
            (0..100_000).map(|i| node(&format!("n{i}"), "X", &[&format!("n{}", i + 1)])).collect();
        let chain: Vec<NodeDef> = chain.into_iter().chain([node("n100000", "X", &[])]).collect();
        assert_eq!(order(&chain).unwrap()[0], 100_000);
    }

    #[test]
    fn cycles_are_named() {
        let nodes = [node("a", "X", &["^b"]), node("b", "X", &["c"]), node("c", "X", &["b"])];
        assert!(order(&nodes).unwrap_err().contains("'c' → 'b' → 'c'"), "{:?}", order(&nodes));
        assert!(order(&[node("a", "X", &["a"])]).unwrap_err().contains("'a' → 'a'"));
        let looped = [node("w/Merge", "Merge", &["w/Next"]), node("w/Next", "NextIteration", &["w/Merge"])];
        let message = order(&looped).unwrap_err();
        assert!(message.contains("'w/Next' (NextIteration) closes a loop") && message.contains("unroll"), "{message}");
    }

    #[test]
    fn bad_names_and_inputs_are_told_together() {
        for (nodes, want) in [
            (vec![node("", "X", &[])], "has the name \"\""),
            (vec![node("a b", "X", &[])], "has the name \"a b\""),
            (vec![node("a", "", &[])], "node 'a' has no op type"),
            (vec![node("a", "X", &[]), node("a", "Y", &[])], "two nodes 'a', node 0 and node 1"),
            (vec![node("abcd", "X", &["abce", "^zzzz"])], "no node 'abce'; did it mean 'abcd'?"),
            (vec![node("a", "X", &["abce", "^zzzz"])], "no node 'zzzz'"),
            (vec![node("a", "X", &[]), node("b", "X", &["a:-1"])], "'-1' is no output's number"),
            (vec![node("a", "X", &[]), node("b", "X", &["a:99999999"])], "'99999999' is no output's number"),
            (vec![node("a", "X", &[]), node("b", "X", &["^a", "a"])], "after a control input"),
            (vec![node("b", "X", &[""])], "input '' of 'b'"),
        ] {
            assert!(order(&nodes).is_err_and(|e| e.contains(want)), "{want}: {:?}", order(&nodes));
        }
    }
}
