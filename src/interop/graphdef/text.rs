//! The text form of TensorFlow's messages, both ways, through descriptors: also of parts that turret only carries along.
//!
//! `tensorflow.fds` is a `FileDescriptorSet` of TensorFlow 2.21's own descriptors of `meta_graph.proto`,
//! `saved_model.proto` and what they import, without options and JSON names (Apache-2.0). Written from Python:
//! `descriptor.CopyToProto` of each file, dependencies first. Reading is prost-reflect's; writing is done here, since
//! its writer gives maps in random order and messages in brackets, which no TensorFlow user would recognise.

use crate::base::{Code, Error, Result};
use miette::Diagnostic;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, EnumDescriptor, Kind, MapKey, MessageDescriptor, Value};
use std::fmt::Write;
use std::sync::OnceLock;

/// The most levels of messages within messages, as in the binary form.
const MAX_DEPTH: usize = 100;

/// A message that is read and written as text.
pub(super) trait Text: Message + Default {
    /// Its full name.
    const NAME: &'static str;
}

impl Text for super::proto::GraphDef {
    const NAME: &'static str = "tensorflow.GraphDef";
}

impl Text for super::proto::MetaGraphDef {
    const NAME: &'static str = "tensorflow.MetaGraphDef";
}

impl Text for super::proto::SavedModel {
    const NAME: &'static str = "tensorflow.SavedModel";
}

fn descriptor(name: &str) -> Result<MessageDescriptor> {
    static POOL: OnceLock<Option<DescriptorPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| DescriptorPool::decode(include_bytes!("tensorflow.fds").as_slice()).ok());
    pool.as_ref()
        .and_then(|p| p.get_message_by_name(name))
        .ok_or_else(|| Error::new(Code::Internal, format!("there is no descriptor of {name}")))
}

/// Reads a message from its text form.
///
/// # Errors
/// What is wrong, with line and column.
pub(super) fn parse<M: Text>(text: &str) -> Result<M> {
    check_depth(text)?;
    let message = DynamicMessage::parse_text_format(descriptor(M::NAME)?, text).map_err(|e| {
        let at = e.labels().and_then(|mut labels| labels.next()).map(|l| position(text, l.offset()));
        Error::invalid(format!("{}: {e}", at.unwrap_or_else(|| "at the end".into())))
    })?;
    M::decode(&message.encode_to_vec()[..]).map_err(|e| Error::invalid(format!("it is no {}: {e}", M::NAME)))
}

fn position(text: &str, offset: usize) -> String {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
    format!("line {line}, column {column}")
}

/// The parser descends by recursion, so that depth is held in bounds before it starts.
fn check_depth(text: &str) -> Result<()> {
    let mut depth = 0usize;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'#' => {
                bytes.find(|(_, b)| *b == b'\n');
            }
            b'"' | b'\'' => {
                let mut escaped = false;
                bytes.find(|(_, b)| {
                    let ends = !escaped && (*b == byte || *b == b'\n');
                    escaped = !escaped && *b == b'\\';
                    ends
                });
            }
            b'{' | b'<' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    let at = position(text, at);
                    return Err(Error::invalid(format!("{at}: messages lie more than {MAX_DEPTH} deep in each other")));
                }
            }
            b'}' | b'>' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Writes a message as text, as TensorFlow does: fields by number, maps by key.
///
/// # Errors
/// When the message holds parts that are not what they should be, such as a function library of other bytes.
pub(super) fn write<M: Text>(message: &M) -> Result<String> {
    let message = DynamicMessage::decode(descriptor(M::NAME)?, &message.encode_to_vec()[..])
        .map_err(|e| Error::invalid(format!("a part of it is no text: {e}")))?;
    let mut writer = Writer { out: String::new(), indent: 0 };
    writer.fields(&message);
    Ok(writer.out)
}

struct Writer {
    out: String,
    indent: usize,
}

impl Writer {
    fn fields(&mut self, message: &DynamicMessage) {
        for (field, value) in message.fields() {
            let name = field.name();
            match (value, field.kind()) {
                (Value::List(values), kind) => values.iter().for_each(|v| self.field(name, v, &kind)),
                (Value::Map(map), Kind::Message(entry)) => {
                    let mut entries: Vec<(&MapKey, &Value)> = map.iter().collect();
                    entries.sort_by(|a, b| a.0.cmp(b.0));
                    for (key, value) in entries {
                        self.open(name);
                        let key: Value = key.clone().into();
                        self.field("key", &key, &entry.map_entry_key_field().kind());
                        self.field("value", value, &entry.map_entry_value_field().kind());
                        self.close();
                    }
                }
                (value, kind) => self.field(name, value, &kind),
            }
        }
    }

    fn open(&mut self, name: &str) {
        self.line(format_args!("{name} {{"));
        self.indent += 1;
    }

    fn close(&mut self) {
        self.indent -= 1;
        self.line(format_args!("}}"));
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "{:indent$}{text}", "", indent = self.indent * 2);
    }

    fn field(&mut self, name: &str, value: &Value, kind: &Kind) {
        match value {
            Value::Message(message) => {
                self.open(name);
                self.fields(message);
                self.close();
            }
            Value::Bool(v) => self.line(format_args!("{name}: {v}")),
            Value::I32(v) => self.line(format_args!("{name}: {v}")),
            Value::I64(v) => self.line(format_args!("{name}: {v}")),
            Value::U32(v) => self.line(format_args!("{name}: {v}")),
            Value::U64(v) => self.line(format_args!("{name}: {v}")),
            Value::F32(v) if v.is_nan() => self.line(format_args!("{name}: nan")),
            Value::F64(v) if v.is_nan() => self.line(format_args!("{name}: nan")),
            // The shortest text that is this number, with an exponent where that is shorter.
            Value::F32(v) => self.line(format_args!("{name}: {v:?}")),
            Value::F64(v) => self.line(format_args!("{name}: {v:?}")),
            Value::EnumNumber(v) => match kind {
                Kind::Enum(of) => self.line(format_args!("{name}: {}", enum_name(of, *v))),
                _ => self.line(format_args!("{name}: {v}")),
            },
            Value::String(v) => self.quoted(name, v.as_bytes()),
            Value::Bytes(v) => self.quoted(name, v),
            // Lists and maps are taken apart by `fields`, and are no elements of others.
            Value::List(_) | Value::Map(_) => {}
        }
    }

    /// Bytes in quotes; all that is not printable ASCII is octal.
    fn quoted(&mut self, name: &str, bytes: &[u8]) {
        let _ = write!(self.out, "{:indent$}{name}: \"", "", indent = self.indent * 2);
        for &byte in bytes {
            match byte {
                b'\n' => self.out.push_str("\\n"),
                b'\r' => self.out.push_str("\\r"),
                b'\t' => self.out.push_str("\\t"),
                b'"' | b'\'' | b'\\' => {
                    self.out.push('\\');
                    self.out.push(byte.into());
                }
                b' '..=b'~' => self.out.push(byte.into()),
                _ => {
                    let _ = write!(self.out, "\\{byte:03o}");
                }
            }
        }
        self.out.push_str("\"\n");
    }
}

fn enum_name(of: &EnumDescriptor, number: i32) -> String {
    of.get_value(number).map_or_else(|| number.to_string(), |v| v.name().to_string())
}

#[cfg(test)]
mod tests {
    use super::super::proto::{AttrValue, GraphDef, NodeDef, attr_value::Value as Attr};
    use super::*;

    #[test]
    fn text_is_written_and_read_back() {
        let attr = |value| AttrValue { value: Some(value) };
        let node = NodeDef {
            name: "größe".into(),
            op: "Const".into(),
            input: vec!["a".into(), "b:1".into(), "^d".into()],
            attr: [
                ("s", attr(Attr::S(b"say \"a\\b\"\nand 'go'\0\xff".to_vec()))),
                ("f", attr(Attr::F(1e-45))),
                ("inf", attr(Attr::F(f32::NEG_INFINITY))),
                ("one", attr(Attr::F(1.0))),
                ("i", attr(Attr::I(i64::MIN))),
                ("t", attr(Attr::Type(1))),
                ("odd", attr(Attr::Type(77))),
            ]
            .map(|(k, v)| (k.to_string(), v))
            .into(),
            ..NodeDef::default()
        };
        let graph = GraphDef { node: vec![node], ..GraphDef::default() };
        let text = write(&graph).unwrap();
        let lines = [
            "name: \"gr\\303\\266\\303\\237e\"",
            "input: \"^d\"",
            r#"s: "say \"a\\b\"\nand \'go\'\000\377""#,
            "f: 1e-45",
            "f: -inf",
            "f: 1.0",
            "i: -9223372036854775808",
            "type: DT_FLOAT",
            "type: 77",
        ];
        for line in lines {
            assert!(text.lines().any(|l| l.trim() == line), "{line} in\n{text}");
        }
        assert!(text.starts_with("node {\n  name: "), "{text}");
        assert_eq!(parse::<GraphDef>(&text).unwrap(), graph);
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, want) in [
            ("node {\n  nam: \"x\"\n}", "line 2, column 3: field 'nam' not found"),
            ("node {\n  name: \"x\"\n", "at the end: expected"),
            ("node { name: 3 }", "line 1, column 14"),
            ("node { attr { key: \"t\" value { type: DT_FLOTA } } }", "line 1, column 38"),
        ] {
            let message = parse::<GraphDef>(text).unwrap_err().to_string();
            assert!(message.starts_with(want), "{message}");
        }
        let deep = "library { function { signature { ".repeat(40);
        assert!(parse::<GraphDef>(&deep).unwrap_err().to_string().contains("more than 100 deep"));
        // Braces in strings and comments are no depth.
        let flat = format!("# {0}\nnode {{ name: \"{0}\\\"{0}\" }}", "{".repeat(200));
        assert_eq!(parse::<GraphDef>(&flat).unwrap().node.len(), 1);
    }
}
