//! Damaged graph files, made from good ones by seed: bytes and text that are cut, flipped and repeated, and graphs that
//! say what cannot be.

use turret::interop::graphdef::{
    AttrValue, Dim, GraphDef, GraphFile, ListValue, NodeDef, TensorProto, TensorShapeProto, attr_value::Value,
};

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if that is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A file: its bytes, and a name that tells its form.
#[derive(Clone)]
pub struct File {
    pub bytes: Vec<u8>,
    pub name: String,
}

/// Damages some of the bytes, whatever they mean.
pub fn bytes(file: &File, random: &mut Random) -> File {
    let mut bytes = file.bytes.clone();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(at),
            1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 if !bytes.is_empty() => bytes[at] = *random.of(&[0, 0x7f, 0x80, 0xff, b'{', b'"', b'\n']),
            // Lengths of gigabytes, and beyond what a length can be.
            3 => drop(bytes.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0x07])),
            4 => drop(bytes.splice(at..at, [0xff; 10])),
            5 => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.drain(at..end);
            }
            6 => {
                let end = (at + random.below(200)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, part);
            }
            _ => {
                let noise: Vec<u8> = (0..random.below(16)).map(|_| random.next() as u8).collect();
                bytes.splice(at..at, noise);
            }
        }
    }
    File { bytes, name: file.name.clone() }
}

/// Kinds of graphs that cannot be, each with what its error must say.
pub const LIES: [(&str, &str); 27] = [
    ("cycle", "cycle"),
    ("control cycle", "cycle"),
    ("missing input", "there is no node"),
    ("missing control", "there is no node"),
    ("output", "output"),
    ("huge output", "no output's number"),
    ("two names", "two nodes"),
    ("no name", "which is none"),
    ("odd name", "which is none"),
    ("no op", "has no op type"),
    ("unknown type", "no element type"),
    ("negative size", "axis of size -7"),
    ("overflow", "too large"),
    ("open constant", "known shape"),
    ("huge splat", "over 64 MiB"),
    ("short content", "tensor_content"),
    ("many elements", "lists"),
    ("many axes", "axes"),
    ("attribute kind", "want"),
    ("attribute gone", "missing"),
    ("attribute without value", "no value"),
    ("device", "device"),
    ("colocation", "colocated"),
    ("too many inputs", "inputs"),
    ("data after control", "after a control input"),
    ("variable size", ""),
    ("loop", "closes a loop"),
];

fn attr(value: Value) -> AttrValue {
    AttrValue { value: Some(value) }
}

fn tensor(dims: &[i64]) -> TensorProto {
    let dim = dims.iter().map(|&size| Dim { size, name: String::new() }).collect();
    let shape = TensorShapeProto { dim, unknown_rank: false };
    TensorProto { dtype: 1, tensor_shape: Some(shape), float_val: vec![1.0], ..TensorProto::default() }
}

/// A graph with one such lie in it.
pub fn lie(kind: &str, graph: &GraphDef, random: &mut Random) -> GraphDef {
    let mut graph = graph.clone();
    let has_data = |n: &NodeDef| n.input.first().is_some_and(|i| !i.starts_with('^'));
    let readers: Vec<usize> = (0..graph.node.len()).filter(|&i| has_data(&graph.node[i])).collect();
    let constants: Vec<usize> = (0..graph.node.len()).filter(|&i| graph.node[i].op == "Const").collect();
    let (reader, constant) = (*random.of(&readers), *random.of(&constants));
    let source = graph.node[reader].input[0].split(':').next().unwrap_or_default().to_string();
    let source_at = graph.node.iter().position(|n| n.name == source).unwrap_or(0);
    let reader_name = graph.node[reader].name.clone();
    let mut value = |tensor: TensorProto| {
        graph.node[constant].attr.insert("dtype".into(), attr(Value::Type(1)));
        graph.node[constant].attr.insert("value".into(), attr(Value::Tensor(Box::new(tensor))));
    };
    match kind {
        "cycle" => graph.node[source_at].input.insert(0, reader_name),
        "control cycle" => graph.node[source_at].input.push(format!("^{reader_name}")),
        "missing input" => graph.node[reader].input[0] = "no/such/node".into(),
        "missing control" => graph.node[reader].input.push("^no/such/node".into()),
        "output" => graph.node[reader].input[0] = format!("{source}:77"),
        "huge output" => graph.node[reader].input[0] = format!("{source}:4294967296"),
        "two names" => graph.node[source_at].name = reader_name,
        "no name" => graph.node[reader].name.clear(),
        "odd name" => graph.node[reader].name = random.of(&["a b", "é", "a:b", "^a", "-a"]).to_string(),
        "no op" => graph.node[reader].op.clear(),
        "unknown type" => {
            let number = *random.of(&[-1, 77, 9999, i32::MIN]);
            graph.node[constant].attr.insert("dtype".into(), attr(Value::Type(number)));
        }
        "negative size" => value(tensor(&[2, -7])),
        "overflow" => value(tensor(random.of::<&[i64]>(&[&[1 << 32, 1 << 32], &[i64::MAX], &[1 << 62]]))),
        "open constant" => value(tensor(&[-1, 3])),
        "huge splat" => value(tensor(&[20, 1 << 20])),
        "short content" => value(TensorProto { tensor_content: vec![0; 7].into(), float_val: vec![], ..tensor(&[2]) }),
        "many elements" => value(TensorProto { float_val: vec![0.0; 9], ..tensor(&[2]) }),
        "many axes" => value(tensor(&[1; 300])),
        "attribute kind" => {
            let wrong = *random.of(&["T", "dtype", "N", "num_split", "transpose_a"]);
            let node = graph.node.iter_mut().find(|n| n.attr.contains_key(wrong) && n.op != "Mystery");
            node.expect("it is there").attr.insert(wrong.into(), attr(Value::F(1.0)));
        }
        "attribute gone" => {
            graph.node[constant].attr.remove("dtype");
        }
        "attribute without value" => {
            graph.node[constant].attr.insert("dtype".into(), AttrValue { value: None });
        }
        "device" => {
            graph.node[reader].device =
                random.of(&["/gpu:x", "/nonsense:1", "/cpu:0/gpu:0", "/job", "/device:"]).to_string()
        }
        "colocation" => {
            let s = vec![b"loc:@no/such/node".to_vec()];
            graph.node[reader].attr.insert("_class".into(), attr(Value::List(ListValue { s, ..ListValue::default() })));
        }
        "too many inputs" => {
            let input = graph.node[reader].input[0].clone();
            let node = graph.node.iter_mut().find(|n| n.op == "MatMul").expect("there is a product");
            node.input.insert(0, input);
        }
        "data after control" => {
            let input = graph.node[reader].input[0].clone();
            graph.node[reader].input.extend([format!("^{source}"), input]);
        }
        "variable size" => {
            let shape =
                TensorShapeProto { dim: vec![Dim { size: i64::MAX, name: String::new() }; 2], unknown_rank: false };
            let node = graph.node.iter_mut().find(|n| n.op == "VariableV2").expect("there is a variable");
            node.attr.insert("shape".into(), attr(Value::Shape(shape)));
        }
        "loop" => {
            let next = |name: &str, op: &str, input: &str| NodeDef {
                name: name.into(),
                op: op.into(),
                input: vec![input.into()],
                attr: [("T".to_string(), attr(Value::Type(1)))].into(),
                ..NodeDef::default()
            };
            let mut merge = next("loop/Merge", "Merge", "loop/Next");
            merge.input.push(source);
            merge.attr.insert("N".into(), attr(Value::I(2)));
            graph.node.extend([merge, next("loop/Next", "NextIteration", "loop/Merge")]);
        }
        other => panic!("no lie of kind {other}"),
    }
    graph
}

/// Text with mistakes that only text can have.
pub fn text(graph: &str, random: &mut Random) -> String {
    let at = (0..20).map(|_| random.below(graph.len())).find(|&i| graph.is_char_boundary(i)).unwrap_or(0);
    let (before, after) = graph.split_at(at);
    match random.below(9) {
        0 => before.to_string(),
        1 => format!("{before}{}{after}", "{".repeat(3000)),
        2 => format!("{before}\"{after}"),
        3 => format!("{before}{}{after}", "node { name: 3 "),
        4 => graph.replacen("DT_FLOAT", "DT_FLOTA", 1),
        5 => graph.replacen("i: ", "i: 99999999999999999999", 1),
        6 => format!("{before}\u{0}\\x{after}"),
        7 => format!(
            "{}{graph}",
            "library { function { node_def { attr { value { func { attr { value { list { func { ".repeat(500)
        ),
        _ => format!("{before}}}{after}"),
    }
}

/// The file of a graph, as protocol buffer or as text.
pub fn file(graph: &GraphDef, as_text: bool) -> File {
    match as_text {
        true => File { bytes: graph.to_text().expect("it has a text").into_bytes(), name: "graph.pbtxt".into() },
        false => File { bytes: graph.to_bytes(), name: "graph.pb".into() },
    }
}

/// Good files of every form: the recorded graphs, one as text, one with functions, a MetaGraph, a SavedModel.
pub fn good() -> Vec<File> {
    let mut files = Vec::new();
    for path in crate::fixtures::graphs::files() {
        let bytes = std::fs::read(&path).expect("the graph can be read");
        files.push(File { bytes, name: "graph.pb".into() });
    }
    let small = GraphFile::parse(SMALL.as_bytes().to_vec(), "small.pbtxt").expect("it is good").graph;
    let text = small.to_text().expect("it has a text");
    files.push(file(&small, false));
    files.push(file(&small, true));
    let meta = format!("meta_info_def {{ tags: \"train\" }} graph_def {{ {text} }}");
    files.push(File { bytes: meta.clone().into_bytes(), name: "model.meta.pbtxt".into() });
    let saved = format!("saved_model_schema_version: 1 meta_graphs {{ {meta} }}");
    files.push(File { bytes: saved.into_bytes(), name: "saved_model.pbtxt".into() });
    files
}

/// A small graph with a variable, a product, a branch, an op that turret does not have, and a function.
pub const SMALL: &str = r#"
node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "shape" value { shape { dim { size: 2 } dim { size: 3 } } } } }
node { name: "w/zero" op: "Const" attr { key: "dtype" value { type: DT_FLOAT } } attr { key: "value" value {
  tensor { dtype: DT_FLOAT tensor_shape { dim { size: 3 } dim { size: 4 } } float_val: 0.5 } } } }
node { name: "w" op: "VariableV2" device: "/gpu:0" attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "shape" value { shape { dim { size: 3 } dim { size: 4 } } } } }
node { name: "w/Assign" op: "Assign" input: "w" input: "w/zero" attr { key: "T" value { type: DT_FLOAT } }
  attr { key: "_class" value { list { s: "loc:@w" } } } }
node { name: "w/read" op: "Identity" input: "w" attr { key: "T" value { type: DT_FLOAT } } }
node { name: "y" op: "MatMul" input: "x" input: "w/read" attr { key: "T" value { type: DT_FLOAT } }
  attr { key: "transpose_a" value { b: false } } }
node { name: "axis" op: "Const" attr { key: "dtype" value { type: DT_INT32 } } attr { key: "value" value {
  tensor { dtype: DT_INT32 tensor_shape { } int_val: 1 } } } }
node { name: "parts" op: "Split" input: "axis" input: "y" attr { key: "T" value { type: DT_FLOAT } }
  attr { key: "num_split" value { i: 2 } } }
node { name: "joined" op: "ConcatV2" input: "parts:1" input: "parts" input: "axis" input: "^y"
  attr { key: "T" value { type: DT_FLOAT } } attr { key: "N" value { i: 2 } } attr { key: "Tidx" value { type: DT_INT32 } } }
node { name: "odd" op: "Mystery" input: "joined" device: "/gpu:1" attr { key: "f" value { func { name: "g" } } } }
node { name: "called" op: "g" input: "joined" attr { key: "_output_shapes" value { list { shape { dim { size: 2 } } } } } }
library { function { signature { name: "g" input_arg { name: "a" type: DT_FLOAT } output_arg { name: "b" type: DT_FLOAT } }
  node_def { name: "b" op: "Square" input: "a" attr { key: "T" value { type: DT_FLOAT } } } ret { key: "b" value: "b:y:0" } } }
versions { producer: 134 }
"#;
