//! Cases of names and of graph dumps.

use super::{assert_says, only_problem};
use turret::base::{Array, Code, DType};
use turret::graph::{Graph, Init};
use turret::interop::graphdef::{AttrValue, GraphFile, attr_value, export_graph};
use turret::plan::place_all;
use turret::report::{CopyTable, NodeKind, NodeView, PlacementTable, Stage, StageView, dot_quote, graph_text};
use turret::run::{Session, SessionOptions};

#[test]
fn dump_01() {
    /// Gives a graph a name of its kind; true if what was to have it was refused.
    type Give = fn(&Graph, &str) -> bool;
    // An empty name scope is left out: it is TensorFlow's way back to the root.
    let kinds: [(&str, Give); 4] = [
        ("op", |g, name| g.no_op(name).is_poison()),
        ("scope", |g, name| g.name_scope(name, || g.no_op("inside").is_poison())),
        ("variable", |g, name| g.get_variable(name, [], Init::Zeros).is_poison()),
        ("variable scope", |g, name| g.variable_scope(name, || g.no_op("inside").is_poison())),
    ];
    for (kind, give) in kinds {
        for name in ["fc1", "tower_0/fc", ".x", "a-b"] {
            let g = Graph::new();
            assert_eq!((give(&g, name), g.check()), (false, Ok(())), "{kind} {name}");
        }
        for (name, offence, suggestion) in [
            ("concave points", "character ' ' at index 7", "concave_points"),
            ("x:0", "character ':' at index 1", "x_0"),
            ("chars,", "character ',' at index 5", "chars"),
            ("hey:)", "character ':' at index 3", "hey"),
            ("_lead", "character '_' at index 0", "lead"),
            ("", "it is empty", "x"),
            ("/a", "character '/' at index 0", "a"),
            ("a//b", "character '/' at index 2", "a/b"),
        ] {
            if (kind, name) == ("scope", "") {
                continue;
            }
            let g = Graph::new();
            // In place of a refused scope the suggested one is opened, so that its body raises nothing more.
            assert_eq!(give(&g, name), ["op", "variable"].contains(&kind), "{kind} {name}");
            let problem = only_problem(&g);
            assert_eq!(problem.code, Code::InvalidArgument);
            assert_says(
                &problem.to_string(),
                &[
                    &format!("'{name}' is no legal {kind} name"),
                    offence,
                    "the first character must be a letter, a digit or '.'",
                    "names have letters, digits, '_', '.', '-', and single '/' between parts",
                    &format!("try '{suggestion}'"),
                    "dump.rs:",
                ],
            );
            // The suggestion is legal, and the graph is as usable as before.
            assert!(!give(&g, suggestion));
            assert_eq!(g.no_op("after").name(), "after");
            assert_eq!(g.get_variable("w", [], Init::Zeros).name(), "w");
            only_problem(&g);
        }
    }
}

/// Dot is read back: the labels of its nodes, unescaped as Graphviz unescapes them.
fn dot_labels(dot: &str) -> Vec<String> {
    let mut labels = Vec::new();
    for (at, _) in dot.match_indices("label=\"") {
        let mut label = String::new();
        let mut rest = dot[at + "label=\"".len()..].chars();
        loop {
            match rest.next().expect("a label ends") {
                '"' => break,
                '\\' => match rest.next().expect("an escape has a second character") {
                    'n' => label.push('\n'),
                    c @ ('"' | '\\') => label.push(c),
                    c => panic!("unknown escape \\{c}"),
                },
                '\n' => panic!("a line break within a label"),
                c => label.push(c),
            }
        }
        labels.push(label);
    }
    labels
}

#[test]
fn dump_03() {
    assert_eq!(dot_quote("a\"b\\w\n"), r#""a\"b\\w\n""#);
    let names = ["a\"b\\w\n", "a:b/c", "x -> y", "{record|field}", "größe…", "ends with \\", "//comment", "#1"];
    let node = |name: &&str| NodeView {
        name: name.to_string(),
        op: "No\"Op".into(),
        kind: NodeKind::Op,
        device: "/device:\"GPU\":0\\".into(),
        inputs: vec!["ends with \\".into()],
        controls: vec!["a\"b\\w\n".into()],
        outputs: Vec::new(),
        attrs: Vec::new(),
        notes: Vec::new(),
    };
    let view = StageView {
        stage: Stage::Built,
        summary: vec!["a \"summary\"\\".into()],
        passes: Vec::new(),
        nodes: names.iter().map(node).collect(),
    };
    let labels = dot_labels(&view.dot());
    assert!(labels.contains(&"built: a \"summary\"\\".to_string()));
    assert!(labels.contains(&"/device:\"GPU\":0\\".to_string()));
    for name in names {
        assert!(labels.contains(&format!("{name}\nNo\"Op")), "{name:?} in {labels:?}");
    }
    // Every line of the text form is one node, whatever the names.
    assert_eq!(view.text().lines().filter(|l| !l.starts_with("# ")).count(), names.len());
}

#[test]
fn dump_05() {
    let g = Graph::new();
    let a = g.constant_named("a", [[1.0f32, 2.0]]);
    let axis = g.constant_named("axis", 0i32);
    let pair = g.constant_named("pair", [[3.0f32, 4.0], [5.0, 6.0]]);
    let op = |name| turret::ops::find(name).expect("it is in the table");
    let b = g.node_of(op("Split")).name("b").input(axis).input(pair).attr("num_split", 2i64).add();
    let d = g.no_op("d");
    let c = g.node_of(op("ConcatV2")).name("c").inputs([a, b.output(1), axis]).control(d).add();
    let note = g.node_of(op("NoOp")).name("note").attr("_text", "say \"a\\b\"\nand go").add();
    g.check().unwrap();
    let view = StageView::built(&g.nodes());
    let text = view.text();
    assert_says(&text, &["\nc ConcatV2 - (a, b:1, axis, ^d) -> float32[2, 2]", r#"_text="say \"a\\b\"\nand go""#]);
    assert_eq!(text.lines().filter(|l| !l.starts_with("# ")).count(), g.len());
    assert_inputs_exist(&view);
    // Nor is anything missing in a step's own views, where variables, feeds and constants are no nodes of the step.
    let s = Session::new(&g, SessionOptions::devices("sim:2").unwrap()).unwrap();
    let schedule = s.schedule(&[], &[], &[c, note]).unwrap();
    for stage in Stage::ALL {
        assert_inputs_exist(&StageView::of(&schedule, s.machine(), stage));
    }
    // TensorFlow's own form says the same, and its text reads back.
    let def = export_graph(&g).unwrap();
    let node = |name: &str| def.node.iter().find(|n| n.name == name).expect("the node is exported");
    assert_eq!(node("c").input, ["a", "b:1", "axis", "^d"]);
    for input in def.node.iter().flat_map(|n| &n.input) {
        let name = input.strip_prefix('^').unwrap_or(input);
        node(name.rsplit_once(':').map_or(name, |(name, _)| name));
    }
    let text = graph_text(&g, &def, false).unwrap();
    assert_says(&text, &["\n  input: \"a\"\n  input: \"b:1\"\n  input: \"axis\"\n  input: \"^d\"\n"]);
    assert!(GraphFile::parse(text.into_bytes(), "c.pbtxt").unwrap().graph == def);
    let mut odd = def.clone();
    let says = attr_value::Value::S(b"say \"a\\b\"\nand go".to_vec());
    odd.node[0].attr.insert("_text".into(), AttrValue { value: Some(says) });
    let text = odd.to_text().unwrap();
    assert_says(&text, &[r#"s: "say \"a\\b\"\nand go""#]);
    assert!(GraphFile::parse(text.into_bytes(), "c.pbtxt").unwrap().graph == odd);
}

fn assert_inputs_exist(view: &StageView) {
    let has = |name: &str| view.nodes.iter().any(|n| n.name == name);
    for node in &view.nodes {
        for input in &node.inputs {
            assert!(has(input) || input.rsplit_once(':').is_some_and(|(n, _)| has(n)), "{input} of {}", node.name);
        }
        for control in &node.controls {
            assert!(has(control), "^{control} of {}", node.name);
        }
    }
}

#[test]
fn dump_07() {
    let g = Graph::new();
    let large = g.constant_named("large", Array::zeros(DType::F32, &[1024, 1024]).unwrap());
    let towers: Vec<_> = (0..8)
        .map(|i| g.device(&format!("/gpu:{i}"), || g.name_scope(&format!("tower_{i}"), || large.identity("use"))))
        .collect();
    assert_eq!(g.nodes().iter().filter(|n| n.op.name() == "Const").count(), 1, "stored once");
    let s = Session::new(&g, SessionOptions::devices("sim:8").unwrap()).unwrap();
    let schedule = s.schedule(&[], &towers, &[]).unwrap();
    for stage in Stage::ALL {
        let view = StageView::of(&schedule, s.machine(), stage);
        let (dot, text) = (view.dot(), view.text());
        assert!(dot.len() < 100 << 10 && text.len() < 100 << 10, "{stage}: {} and {} bytes", dot.len(), text.len());
        assert_says(&text, &["float32[1024, 1024] fnv1a:", " [0, 0, 0, 0, …]"]);
        assert_says(&dot, &["float32[1024, 1024] fnv1a:"]);
    }
    // So does GraphDef as text, and nobody takes it for the whole; that is a form of its own.
    let def = export_graph(&g).unwrap();
    let text = graph_text(&g, &def, false).unwrap();
    assert!(text.len() < 100 << 10, "{} bytes", text.len());
    assert_says(&text, &["float32[1024, 1024] fnv1a:", " [0, 0, 0, 0, "]);
    let short = GraphFile::parse(text.into_bytes(), "short.pbtxt").unwrap();
    assert_says(
        &short.build().err().expect("it is refused").to_string(),
        &["'large'", "large constants are left out", "--full"],
    );
    let full = GraphFile::parse(graph_text(&g, &def, true).unwrap().into_bytes(), "full.pbtxt").unwrap();
    assert!(full.graph == def && def.to_bytes().len() > 4 << 20);
    // A small one shows whole.
    let small = Graph::new();
    small.constant(vec![0.25f32; 256]);
    let text = StageView::built(&small.nodes()).text();
    assert_eq!((text.matches("0.25").count(), text.contains("fnv1a")), (256, false));
}

#[test]
fn dump_09() {
    let g = Graph::new();
    let w = g.device("/cpu:0", || g.get_variable("w", [4, 2], Init::Zeros));
    let uses: Vec<_> = (0..2)
        .map(|i| g.device(&format!("/gpu:{i}"), || g.name_scope(&format!("tower_{i}"), || w.value().identity("use"))))
        .collect();
    let s = Session::new(&g, SessionOptions::devices("sim:2").unwrap()).unwrap();
    let schedule = s.schedule(&[], &uses, &[]).unwrap();
    for stage in [Stage::Partitioned, Stage::Scheduled] {
        let view = StageView::of(&schedule, s.machine(), stage);
        let device = |name: &str| view.nodes.iter().find(|n| n.name == name).map(|n| n.device.clone());
        assert_eq!(device("w"), Some("/device:CPU:0".into()));
        for i in 0..2 {
            let gpu = format!("/device:GPU:{i}");
            assert_eq!(device(&format!("tower_{i}/use")), Some(gpu.clone()));
            let copy =
                view.nodes.iter().find(|n| n.name == format!("copy/w/read→gpu:{i}")).expect("the copy is a node");
            assert_eq!(copy.kind, NodeKind::Copy { from: "/device:CPU:0".into(), to: gpu, bytes: 32 });
        }
        let labels = dot_labels(&view.dot());
        for label in ["/device:CPU:0", "/device:GPU:0", "/device:GPU:1", "tower_0", "tower_1"] {
            assert!(labels.contains(&label.to_string()), "{label} in {labels:?}");
        }
        assert!(labels.iter().any(|l| l.contains("/device:CPU:0 → /device:GPU:1, 32 B")), "{labels:?}");
    }
    let placed = place_all(&g.nodes(), s.machine(), s.placement_options()).unwrap();
    let table = PlacementTable::new(&g, &placed, s.machine());
    assert_eq!(table.short(), "w: /device:CPU:0\n");
    assert_says(&table.text(), &["| w ", "[4, 2]", "/device:CPU:0", "device scope", "tower_1/use", "32 B"]);
    assert!(table.variables_csv().ends_with("w,\"[4, 2]\",float32,32,/device:CPU:0,/device:CPU:0,device scope,\n"));
    let data = serde_json::to_value(&table).unwrap();
    assert_eq!(data["variables"][0]["shape"], serde_json::json!([4, 2]));
    assert_eq!(data["summary"]["variable_bytes"]["/device:CPU:0"], 32);
    let copies = CopyTable::new(&schedule, s.machine());
    let data = serde_json::to_value(&copies).unwrap();
    assert_eq!(data["copies"][0]["consumers"], serde_json::json!(["tower_0/use"]));
    let bytes: u64 = data["copies"].as_array().unwrap().iter().map(|c| c["bytes"].as_u64().unwrap()).sum();
    assert_eq!((data["total_bytes"].as_u64(), copies.total_bytes), (Some(bytes), bytes));
    assert_says(&copies.text(), &["w/read:0", "/device:CPU:0 → /device:GPU:0: 1 copy, 32 B", "total: "]);
}
