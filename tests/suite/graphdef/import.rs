//! Import: unknown ops, variables and handles, forms of files, and what is refused.

use crate::cases::assert_says;
use turret::base::{Array, Bool8, DType};
use turret::graph::{Graph, keys};
use turret::interop::graphdef::{GraphFile, export_graph};
use turret::plan::place_all;
use turret::report::{CopyTable, PlacementTable};
use turret::run::{Session, SessionOptions};

/// One node of a graph's text: `name op input… key=value…`, with values as TensorFlow writes them.
fn node(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut text = format!("node {{ name: {:?} op: {:?}\n", words.next().unwrap(), words.next().unwrap());
    for word in words {
        match word.split_once('=') {
            Some(("device", device)) => text += &format!("device: {device:?}\n"),
            Some((key, value)) => text += &format!("attr {{ key: {key:?} value {{ {} }} }}\n", value.replace('~', " ")),
            None => text += &format!("input: {word:?}\n"),
        }
    }
    text + "}\n"
}

/// A graph of such lines.
fn text(lines: &[&str]) -> String {
    lines.iter().map(|l| node(l)).collect()
}

fn file(text: &str) -> turret::Result<GraphFile> {
    GraphFile::parse(text.to_string().into_bytes(), "graph.pbtxt")
}

#[track_caller]
fn graph(lines: &[&str]) -> Graph {
    let file = file(&text(lines)).unwrap();
    let graph = file.build().unwrap_or_else(|e| panic!("{e}"));
    assert!(export_graph(&graph).unwrap() == file.graph, "it is written again as it was");
    graph
}

#[track_caller]
fn refused(lines: &[&str], parts: &[&str]) {
    let told = file(&text(lines)).and_then(|f| f.build()).err().expect("it is refused").to_string();
    assert_says(&told, parts);
}

fn session(graph: &Graph) -> Session<'_> {
    Session::new(graph, SessionOptions::devices("sim:2").unwrap()).unwrap()
}

const FLOAT: &str = "dtype=type:DT_FLOAT";
const T: &str = "T=type:DT_FLOAT";

/// An input pipeline, whose two outputs two towers use.
fn pipeline() -> Graph {
    let types = "output_types=list{type:[DT_FLOAT,DT_INT32]}";
    let shapes = "output_shapes=list{shape{dim{size:4}~dim{size:3}}~shape{dim{size:4}}}";
    graph(&[
        &format!("it OneShotIterator dataset_factory=func{{name:\"f\"}} {types} {shapes}"),
        &format!("next IteratorGetNext it {types} {shapes} device=/cpu:0"),
        &format!("y Square next {T} device=/gpu:0"),
        "label Mystery next:1 device=/gpu:1 depth=i:3",
        &format!("z Square y {T}"),
        &format!("mean Square label {T}"),
    ])
}

#[test]
fn unknown_ops_are_kept_placed_and_fed_but_not_run() {
    let g = pipeline();
    let kept = |name: &str| g.operation(name).unwrap().node().unwrap().op.is_unknown();
    assert_eq!(["it", "next", "y", "label", "z", "mean"].map(kept), [true, true, false, true, false, false]);
    assert_eq!(g.operation("label").unwrap().op_type(), "Mystery");
    let next = g.operation("next").unwrap();
    assert_eq!(
        next.outputs().iter().map(|t| (t.dtype(), t.shape().to_string())).collect::<Vec<_>>(),
        [(DType::F32, "[4, 3]".to_string()), (DType::I32, "[4]".to_string())]
    );
    let s = session(&g);
    let placed = place_all(&g.nodes(), s.machine(), s.placement_options()).unwrap();
    let table = PlacementTable::new(&g, &placed, s.machine());
    assert_says(&table.text(), &["Mystery", "IteratorGetNext", "/device:GPU:1", "the file's device"]);
    // What a step would copy is known as far as the file tells sizes.
    let (y, z) = (g.tensor("y").unwrap(), g.tensor("z").unwrap());
    let schedule = s.schedule(&[], &[z], &[]).unwrap();
    let copies = CopyTable::new(&schedule, s.machine());
    assert_says(&copies.text(), &["next:0", "y:0", "/device:CPU:0 → /device:GPU:0: 1 copy, 48 B"]);
    // Running tells all op types that are missing at once.
    let told = s.run(&[], &[y], &[g.operation("label").unwrap()]).unwrap_err().to_string();
    assert_says(
        &told,
        &["IteratorGetNext ('next')", "Mystery ('label')", "OneShotIterator ('it')", "feed what they give"],
    );
    // Any tensor can be fed.
    let rows = Array::new(&[4, 3], &[2.0f32; 12]).unwrap();
    let out = s.run(&[(next.output(0), &rows)], &[z], &[]).unwrap();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), [16.0; 12]);
    // Of an op that not even TensorFlow has, readers tell the type.
    let (label, mean) = (g.tensor("label").unwrap(), g.tensor("mean").unwrap());
    assert_eq!((label.dtype(), label.shape().rank()), (DType::F32, None));
    let out = s.run(&[(label, &Array::scalar(3.0f32))], &[mean], &[]).unwrap();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), [9.0]);
}

#[test]
fn types_that_turret_does_not_hold_are_kept() {
    let g = graph(&[
        "names Const dtype=type:DT_STRING value=tensor{dtype:DT_STRING~tensor_shape{dim{size:1}}~string_val:\"a\"}",
        "same Identity names T=type:DT_STRING",
        "half Const dtype=type:DT_HALF value=tensor{dtype:DT_HALF~tensor_shape{}~half_val:15360}",
        "sum AddV2 half half T=type:DT_HALF",
        "again Identity half T=type:DT_HALF",
    ]);
    let kept = |name: &str| g.operation(name).unwrap().node().unwrap().op.is_unknown();
    assert_eq!(["names", "same", "half", "sum", "again"].map(kept), [true, true, false, true, false]);
    let one = session(&g).run(&[], &[g.tensor("again").unwrap()], &[]).unwrap();
    assert_eq!((one[0].dtype(), one[0].get_f64(0)), (DType::F16, 1.0));
}

#[test]
fn variables_are_found_by_their_edges() {
    let shape = "shape=shape{dim{size:2}}";
    let class = "_class=list{s:\"loc:@w\"}";
    let value = "value=tensor{dtype:DT_FLOAT~tensor_shape{dim{size:2}}~float_val:[1,2]}";
    let lines = [
        &format!("w/start Const {FLOAT} {value} {class}"),
        &format!("w VariableV2 {FLOAT} {shape} device=/gpu:1"),
        &format!("w/set Assign w w/start {T} {class}"),
        &format!("w/get Identity w {T} {class}"),
        &format!("rate Const {FLOAT} value=tensor{{dtype:DT_FLOAT~tensor_shape{{}}~float_val:0.5}}"),
        &format!("down ApplyGradientDescent w rate w/get {T}"),
        &format!("count Variable {FLOAT} {shape}"),
    ];
    let g = graph(&lines.each_ref().map(|l| &l[..]));
    let w = g.find_variable("w").unwrap();
    assert_eq!((w.value().name(), w.initializer().name()), ("w/get:0".into(), "w/set".into()));
    let names = |key: &str| g.get_collection(key).iter().map(|v| v.name()).collect::<Vec<_>>();
    assert_eq!(names(keys::GLOBAL_VARIABLES), ["w", "count"]);
    assert_eq!(names(keys::TRAINABLE_VARIABLES), ["w"]);
    let s = session(&g);
    s.initialize().unwrap();
    assert_eq!(s.uninitialized_variables().unwrap(), ["count"], "nothing initializes it");
    s.run_targets(&[g.operation("down").unwrap()]).unwrap();
    assert_eq!(s.value(w).unwrap().as_slice::<f32>().unwrap(), [0.5, 1.0]);
    // A slot goes with its variable, wherever that is.
    let placed = place_all(&g.nodes(), s.machine(), s.placement_options()).unwrap();
    let device = |name: &str| s.machine().device(placed.device(g.operation(name).unwrap().id())).short_name();
    assert_eq!(["w/start", "w/set", "w/get", "down"].map(device), ["/device:GPU:1"; 4]);
}

#[test]
fn handles_are_their_variables_however_they_come() {
    let shape = "shape=shape{dim{size:2}}";
    let value = "value=tensor{dtype:DT_FLOAT~tensor_shape{dim{size:2}}~float_val:[1,2]}";
    let one = "value=tensor{dtype:DT_FLOAT~tensor_shape{dim{size:2}}~float_val:1}";
    let lines = [
        &format!("h VarHandleOp {FLOAT} {shape} shared_name=s:\"model/w\""),
        "passed Identity h T=type:DT_RESOURCE",
        &format!("start Const {FLOAT} {value}"),
        &format!("one Const {FLOAT} {one}"),
        &format!("set AssignVariableOp passed start {FLOAT}"),
        &format!("up AssignAddVariableOp passed one {FLOAT}"),
        &format!("get ReadVariableOp passed {FLOAT}"),
        &format!("after ReadVariableOp passed {FLOAT} ^up"),
        // The same variable under another name.
        &format!("again VarHandleOp {FLOAT} {shape} shared_name=s:\"model/w\""),
        &format!("other ReadVariableOp again {FLOAT}"),
    ];
    let g = graph(&lines.each_ref().map(|l| &l[..]));
    let s = session(&g);
    s.initialize().unwrap();
    let w = g.find_variable("model/w").unwrap();
    assert_eq!(s.value(w).unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0]);
    let out = s.run(&[], &[g.tensor("after").unwrap()], &[]).unwrap();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), [2.0, 3.0]);
    let out = s.run(&[], &[g.tensor("other").unwrap()], &[]).unwrap();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), [2.0, 3.0]);
}

#[test]
fn references_reach_their_variable_through_other_nodes() {
    let value = |v: &str| format!("value=tensor{{dtype:DT_FLOAT~tensor_shape{{}}~float_val:{v}}}");
    let lines = [
        &format!("v VariableV2 {FLOAT} shape=shape{{}}"),
        &format!("two Const {FLOAT} {}", value("2")),
        &format!("three Const {FLOAT} {}", value("3")),
        &format!("set Assign v two {T}"),
        &format!("up AssignAdd set three {T}"),
        &format!("out Identity up {T}"),
        "p Placeholder dtype=type:DT_BOOL shape=shape{}",
        &format!("sw RefSwitch v p {T}"),
        &format!("in Switch three p {T}"),
        &format!("maybe AssignAdd sw:1 in:1 {T}"),
    ];
    let g = graph(&lines.each_ref().map(|l| &l[..]));
    let s = session(&g);
    let out = s.run(&[], &[g.tensor("out").unwrap()], &[]).unwrap();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), [5.0]);
    let p = g.tensor("p").unwrap();
    for (taken, want) in [(false, 5.0), (true, 8.0)] {
        let fed = Array::scalar(Bool8::from(taken));
        s.run(&[(p, &fed)], &[], &[g.operation("maybe").unwrap()]).unwrap();
        assert_eq!(s.value(g.find_variable("v").unwrap()).unwrap().get_f64(0), want);
    }
}

#[test]
fn left_out_attributes_have_their_defaults() {
    let value = "value=tensor{dtype:DT_FLOAT~tensor_shape{dim{size:1}~dim{size:2}}~float_val:[3,4]}";
    let lines = [&format!("a Const {FLOAT} {value}"), &format!("b MatMul a a {T} transpose_b=b:true")];
    let g = graph(&lines.each_ref().map(|l| &l[..]));
    let out = session(&g).run(&[], &[g.tensor("b").unwrap()], &[]).unwrap();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), [25.0]);
}

#[test]
fn a_default_may_be_fed_with_other_sizes() {
    let value = "value=tensor{dtype:DT_FLOAT~tensor_shape{dim{size:2}}~float_val:[3,4]}";
    let lines = [
        &format!("a Const {FLOAT} {value}"),
        &format!("d PlaceholderWithDefault a {FLOAT} shape=shape{{dim{{size:-1}}}}"),
        &format!("y Square d {T}"),
    ];
    let g = graph(&lines.each_ref().map(|l| &l[..]));
    let (s, y) = (session(&g), g.tensor("y").unwrap());
    assert_eq!(s.run(&[], &[y], &[]).unwrap()[0].as_slice::<f32>().unwrap(), [9.0, 16.0]);
    let fed = Array::new(&[3], &[1.0f32, 2.0, 3.0]).unwrap();
    let out = s.run(&[(g.tensor("d").unwrap(), &fed)], &[y], &[]).unwrap();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 4.0, 9.0]);
}

#[test]
fn metagraphs_and_saved_models_tell_collections() {
    let nodes = text(&[
        &format!("w VariableV2 {FLOAT} shape=shape{{}}"),
        &format!("zero Const {FLOAT} value=tensor{{dtype:DT_FLOAT~tensor_shape{{}}~float_val:0}}"),
        &format!("w/Assign Assign w zero {T}"),
        &format!("w/read Identity w {T}"),
        &format!("loss Square w/read {T}"),
        "train NoOp ^loss",
    ]);
    // A VariableDef: its name, initializer and read.
    let variable = "value: \"\\n\\003w:0\\022\\010w/Assign\\032\\010w/read:0\"";
    let meta = format!(
        "meta_info_def {{ tags: \"train\" }}\ngraph_def {{ {nodes} versions {{ producer: 27 }} }}\n\
         collection_def {{ key: \"trainable_variables\" value {{ bytes_list {{ {variable} }} }} }}\n\
         collection_def {{ key: \"losses\" value {{ node_list {{ value: \"loss:0\" }} }} }}\n\
         collection_def {{ key: \"train_op\" value {{ node_list {{ value: \"train\" }} }} }}\n"
    );
    let other = "meta_graphs { meta_info_def { tags: \"serve\" } graph_def { } }";
    let saved = format!("saved_model_schema_version: 1\n{other}\nmeta_graphs {{ {meta} }}\n");
    for text in [&meta, &saved] {
        let g = file(text).unwrap().build().unwrap();
        let names = |key: &str| g.get_collection(key).iter().map(|v| v.name()).collect::<Vec<_>>();
        assert_eq!(names("trainable_variables"), ["w"]);
        assert_eq!(names("losses"), ["loss:0"]);
        assert_eq!(names("train_op"), ["train"]);
        assert_eq!(g.find_variable("w").unwrap().initializer().name(), "w/Assign");
        assert_eq!(export_graph(&g).unwrap().versions.unwrap().producer, 27);
    }
}

#[test]
fn wrong_graphs_are_refused_with_the_node() {
    let x = &format!("x Placeholder {FLOAT} shape=shape{{dim{{size:2}}~dim{{size:3}}}}")[..];
    refused(&[x, "y Square x"], &["'y' (Square)", "attribute 'T' (type) is missing"]);
    refused(&[x, &format!("y Square x x {T}")], &["'y' (Square)", "want 1 inputs, got 2"]);
    refused(&[x, &format!("y Square x:1 {T}")], &["'x' (Placeholder)", "output 1 is read, but it has 1 outputs"]);
    refused(&[x, &format!("y MatMul x x {T}")], &["'y' (MatMul)", "inner sizes differ", "'x:0' float32 [2, 3]"]);
    refused(&[x, &format!("y Square x {T} device=/gpu:x")], &["'y' (Square)", "'x' is not an index"]);
    refused(&[x, &format!("y Square x {T} _class=list{{s:\"loc:@q\"}}")], &["'y'", "colocated with 'q'", "not there"]);
    refused(&[x, &format!("y MatMul x x {T} transpose_a=i:1")], &["attribute 'transpose_a'", "want bool, got int"]);
    refused(&[x, &format!("y Sqare q {T}")], &["input 'q' of 'y'", "no node 'q'"]);
    refused(&[x, x], &["two nodes 'x'"]);
    refused(&["a Identity b T=type:DT_FLOAT", "b Identity a T=type:DT_FLOAT"], &["cycle", "'b' → 'a' → 'b'"]);
    // Each of several problems is told, but not what follows from it.
    let square = |name: &str, of: &str| format!("{name} Square {of}");
    refused(&[x, &square("y", "x"), &square("z", "x"), &format!("u Square y {T}")], &["2 problems", "'y'", "'z'"]);
    let next = "l/next NextIteration l/body T=type:DT_FLOAT";
    let merge = "l/merge Merge l/enter l/next N=i:2 T=type:DT_FLOAT";
    let enter = "l/enter Enter x frame_name=s:\"l\" T=type:DT_FLOAT";
    let told = &["'l/next' (NextIteration) closes a loop", "turret has no loops", "unroll it"];
    refused(&[x, enter, merge, "l/body Square l/merge T=type:DT_FLOAT", next], told);
}
