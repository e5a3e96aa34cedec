//! The dot form of a stage, for Graphviz: devices are clusters with a colour each, towers are clusters within, copies
//! and sums over GPUs are nodes of their own between them.

use super::stage::{NodeKind, NodeView, StageView};
use super::tables::human_bytes;
use indexmap::IndexMap;
use std::collections::HashMap;
use std::fmt::Write;

/// Fill colours of devices, in turn.
const COLOURS: [&str; 8] = ["#e8e8e8", "#cfe8cf", "#cfdcf2", "#f6e3c5", "#ecd3ec", "#d3eeee", "#f2d0d0", "#e6e6b8"];

/// The colour of copies and sums over GPUs.
const COPY: &str = "#ffb347";

/// A text as a quoted dot string that shows as it is: quotes and backslashes escaped, a line break as `\n`.
pub fn dot_quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => {}
            '\0' => quoted.push('\u{fffd}'),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

impl StageView {
    /// The dot form.
    pub fn dot(&self) -> String {
        let mut dot = Dot { text: String::new(), ids: HashMap::new(), colours: IndexMap::new() };
        dot.graph(self);
        dot.text
    }
}

struct Dot<'a> {
    text: String,
    /// By name: the number of the node.
    ids: HashMap<&'a str, usize>,
    colours: IndexMap<&'a str, &'static str>,
}

impl<'a> Dot<'a> {
    fn graph(&mut self, view: &'a StageView) {
        self.ids = view.nodes.iter().enumerate().map(|(i, n)| (n.name.as_str(), i)).collect();
        let mut clusters: IndexMap<&str, IndexMap<Option<&str>, Vec<usize>>> = IndexMap::new();
        for (i, node) in view.nodes.iter().enumerate().filter(|(_, n)| !is_transfer(n)) {
            clusters.entry(&node.device).or_default().entry(tower(&node.name)).or_default().push(i);
        }
        clusters.sort_by(|a, _, b, _| natural(a).cmp(&natural(b)));
        for (i, device) in clusters.keys().enumerate() {
            self.colours.insert(device, COLOURS[i % COLOURS.len()]);
        }
        let title = format!("{}: {}", view.stage, view.summary.join("; "));
        self.line(0, &format!("digraph {} {{", dot_quote(view.stage.name())));
        self.line(1, &format!("label={}; labelloc=t; rankdir=TB; fontname=\"sans-serif\";", dot_quote(&title)));
        self.line(1, "node [shape=box, style=\"filled,rounded\", fontname=\"sans-serif\", fontsize=10];");
        for (d, (device, towers)) in clusters.iter().enumerate() {
            let label = if device.is_empty() { "no device asked" } else { device };
            self.line(1, &format!("subgraph cluster_{d} {{"));
            self.line(2, &format!("label={}; style=rounded; color=\"#888888\";", dot_quote(label)));
            for (t, (tower, nodes)) in towers.iter().enumerate() {
                let depth = if tower.is_some() { 3 } else { 2 };
                if let Some(tower) = tower {
                    self.line(2, &format!("subgraph cluster_{d}_{t} {{"));
                    self.line(3, &format!("label={}; style=dashed; color=\"#888888\";", dot_quote(tower)));
                }
                for &i in nodes {
                    self.node(depth, i, &view.nodes[i]);
                }
                if tower.is_some() {
                    self.line(2, "}");
                }
            }
            self.line(1, "}");
        }
        for (i, node) in view.nodes.iter().enumerate().filter(|(_, n)| is_transfer(n)) {
            self.node(1, i, node);
        }
        for (i, node) in view.nodes.iter().enumerate() {
            for input in &node.inputs {
                self.edge(input, i);
            }
            for control in &node.controls {
                if let Some(from) = self.ids.get(control.as_str()).copied() {
                    self.line(1, &format!("n{from} -> n{i} [style=dashed, color=\"#888888\"];"));
                }
            }
        }
        self.line(0, "}");
    }

    fn line(&mut self, depth: usize, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:1$}{line}", "", 2 * depth);
    }

    fn node(&mut self, depth: usize, i: usize, node: &NodeView) {
        let mut label = vec![node.name.clone()];
        let (mut shape, mut fill) = ("", self.colours.get(node.device.as_str()).copied().unwrap_or(COLOURS[0]));
        match &node.kind {
            NodeKind::Op | NodeKind::Fed => label.push(node.op.clone()),
            NodeKind::Constant(value) => {
                shape = "note";
                label.push(value.clone());
            }
            NodeKind::Variable => {
                shape = "cylinder";
                label.push(node.op.clone());
            }
            NodeKind::AllReduce { devices, bytes } => {
                (shape, fill) = ("hexagon", COPY);
                label.push(format!("{}, {} each", devices.join(" + "), human_bytes(*bytes)));
            }
            NodeKind::Copy { from, to, bytes } => {
                (shape, fill) = ("cds", COPY);
                label.push(format!("{from} → {to}, {}", human_bytes(*bytes)));
            }
        }
        if matches!(node.kind, NodeKind::Fed) {
            shape = "invhouse";
        }
        if !node.outputs.is_empty() && !matches!(node.kind, NodeKind::Constant(_)) {
            label.push(node.outputs.join(" "));
        }
        // Of the notes, the label has the short ones of a schedule; the rest is in the text form.
        let shown = node.notes.iter().filter(|(k, _)| ["order", "buffers", "soft"].contains(&&k[..]));
        let shown: Vec<String> =
            shown.map(|(k, v)| if k == "order" { v.clone() } else { format!("{k} {v}") }).collect();
        if !shown.is_empty() {
            label.push(shown.join(" "));
        }
        let shape = if shape.is_empty() { String::new() } else { format!(", shape={shape}, style=filled") };
        let label = dot_quote(&label.join("\n"));
        self.line(depth, &format!("n{i} [label={label}, fillcolor=\"{fill}\"{shape}];"));
    }

    fn edge(&mut self, input: &str, to: usize) {
        let (from, output) = match self.ids.get(input) {
            Some(from) => (*from, ""),
            None => {
                let Some((name, output)) = input.rsplit_once(':') else { return };
                let Some(from) = self.ids.get(name) else { return };
                (*from, output)
            }
        };
        let label = if output.is_empty() { String::new() } else { format!(" [label={}]", dot_quote(output)) };
        self.line(1, &format!("n{from} -> n{to}{label};"));
    }
}

fn is_transfer(node: &NodeView) -> bool {
    matches!(node.kind, NodeKind::Copy { .. } | NodeKind::AllReduce { .. })
}

/// The tower that a node belongs to, by the first part of its name.
fn tower(name: &str) -> Option<&str> {
    let (first, _) = name.split_once('/')?;
    let digits = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_digit());
    first.strip_prefix("tower_").is_some_and(|n| n.split('_').all(digits)).then_some(first)
}

/// Sorts `GPU:2` before `GPU:10`, and what asked for no device last.
fn natural(device: &str) -> (bool, &str, u64) {
    let (kind, index) = device.rsplit_once(':').unwrap_or((device, ""));
    (device.is_empty(), kind, index.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn towers_are_known_by_their_names() {
        assert_eq!(tower("tower_1/MatMul"), Some("tower_1"));
        assert_eq!(tower("tower_1_2/MatMul"), Some("tower_1_2"));
        assert_eq!((tower("tower_x/MatMul"), tower("tower_1"), tower("a/tower_1/b")), (None, None, None));
    }

    #[test]
    fn devices_sort_by_number() {
        let mut devices = ["", "/device:GPU:10", "/device:GPU:2", "/device:CPU:0"];
        devices.sort_by_key(|d| natural(d));
        assert_eq!(devices, ["/device:CPU:0", "/device:GPU:2", "/device:GPU:10", ""]);
    }
}
