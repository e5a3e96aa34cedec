//! The text form of a stage: one node a line, the same bytes for the same stage, made for `diff` and `grep`.
//!
//! ```text
//! tower_0/MatMul MatMul /device:GPU:0 (copy/split→gpu:0, copy/affine0/w/read→gpu:0) -> float32[4, 5] {…} order=#3
//! ```
//!
//! Fields: name, op type, device (`-` if none was asked for), inputs with control inputs last, outputs, attributes, and
//! what the stage found out. Lines that start with `#` are about the stage as a whole.

use super::stage::{NodeView, StageView};
use std::borrow::Cow;
use std::fmt::Write;

impl StageView {
    /// The text form.
    pub fn text(&self) -> String {
        let mut text = format!("# stage: {}\n", self.stage);
        for line in &self.summary {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# {line}");
        }
        for node in &self.nodes {
            write_node(&mut text, node);
        }
        text
    }
}

fn write_node(text: &mut String, node: &NodeView) {
    let device = if node.device.is_empty() { "-" } else { &node.device };
    let inputs: Vec<String> = (node.inputs.iter().map(|i| quoted(i).into_owned()))
        .chain(node.controls.iter().map(|c| quoted(&format!("^{c}")).into_owned()))
        .collect();
    let _ = write!(text, "{} {} {device} ({})", quoted(&node.name), quoted(&node.op), inputs.join(", "));
    if !node.outputs.is_empty() {
        let _ = write!(text, " -> {}", node.outputs.join(" "));
    }
    if !node.attrs.is_empty() {
        let attrs: Vec<String> = node.attrs.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let _ = write!(text, " {{{}}}", attrs.join(", "));
    }
    for (name, value) in &node.notes {
        let _ = write!(text, " {name}={value}");
    }
    text.push('\n');
}

/// The text itself, or in quotes with quotes, backslashes and line breaks escaped where it would not read as one word.
fn quoted(text: &str) -> Cow<'_, str> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\\' | ',' | '(' | ')');
    if text.is_empty() || text.contains(odd) { Cow::Owned(format!("{text:?}")) } else { Cow::Borrowed(text) }
}
