//! The command on graph files.

use crate::command::{self, good, turret};
use crate::fixtures;
use serde_json::Value;
use std::path::PathBuf;
use turret::interop::graphdef::{GraphFile, read_graph};

fn graph() -> String {
    fixtures::path("graphs/lstm_2towers_vars-gpu.pb").to_str().expect("the path is UTF-8").to_string()
}

fn scratch(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    path.to_str().expect("the path is UTF-8").to_string()
}

fn document(args: &[&str]) -> Value {
    command::document(&good(args))
}

#[track_caller]
fn refused(args: &[&str], parts: &[&str]) {
    let ran = turret(args);
    assert_eq!((ran.code, &ran.out[..]), (1, ""), "{args:?}: {}", ran.err);
    crate::cases::assert_says(&ran.err, parts);
    assert!(!ran.err.contains("src/"), "nodes of a file have no source line: {}", ran.err);
}

/// Feeds of the recorded graph, as files.
fn feeds() -> Vec<String> {
    let figures = fixtures::json("graphs/lstm_2towers_vars-gpu.json");
    let feeds = figures["feeds"].as_object().expect("feeds").iter().map(|(name, value)| {
        let file = scratch(&format!("graph_{}.json", name.replace(':', "_")));
        std::fs::write(&file, value.to_string()).expect("the scratch folder can be written");
        format!("{name}={file}")
    });
    feeds.flat_map(|feed| ["--feed".to_string(), feed]).collect()
}

#[test]
fn tables_are_those_of_the_graph() {
    let (graph, figures) = (graph(), fixtures::json("graphs/lstm_2towers_vars-gpu.json"));
    let doc = document(&["place", &graph, "--devices", "sim:2", "--ops", "--json"]);
    let variables = doc["variables"].as_array().expect("variables");
    assert_eq!(variables.len(), figures["variables"].as_array().expect("variables").len());
    assert!(variables.iter().all(|v| v["device"] == "/device:GPU:0" && v["requested"] == v["device"]));
    let ops = doc["ops"].as_array().expect("ops");
    assert_eq!(ops.len(), read_graph(&graph).unwrap().len());
    assert!(ops.iter().any(|o| o["op"] == "ApplyAdam" && o["soft"] == false));
    // The train op is found by itself.
    let doc = document(&["copies", "--graph", &graph, "--devices", "sim:2", "--json"]);
    let copies = doc["copies"].as_array().expect("copies").iter().filter(|c| c["from"] != "fed").count();
    assert!(copies >= figures["copies"].as_array().expect("copies").len());
    let named = document(&["copies", &graph, "--devices", "sim:2", "--target", "train", "--json"]);
    assert_eq!(named, doc);
    let row = &document(&["bench", &graph, "--devices", "sim:2", "--steps", "2", "--json"])["rows"][0];
    assert_eq!((&row["towers"], &row["variables"]), (&Value::Null, &Value::from("file")));
    assert!(
        row["ms_median"].as_f64().is_some_and(|ms| ms > 0.0)
            && row["copies"] == named["copies"].as_array().unwrap().len()
    );
}

#[test]
fn steps_run_from_saved_variables() {
    let (graph, feeds, file) = (graph(), feeds(), scratch("graph_variables.npz"));
    let run = |args: &[&str]| {
        let feeds = feeds.iter().map(String::as_str);
        let start = ["run", &graph, "--devices", "sim:2", "--json", "--fetch", "tower_0/Mean:0", "--target", "train"];
        let doc = document(&start.into_iter().chain(feeds).chain(args.iter().copied()).collect::<Vec<_>>());
        let steps = doc["steps"].as_array().expect("steps").iter();
        steps.map(|s| s["fetches"]["tower_0/Mean:0"].as_f64().expect("a loss")).collect::<Vec<_>>()
    };
    let first = run(&["--init", "init", "--steps", "2", "--save-variables", &file]);
    let more = run(&["--variables-from", &file, "--steps", "2"]);
    let falls: Vec<f64> = first.iter().chain(&more).copied().collect();
    assert!(falls.is_sorted_by(|a, b| a > b), "{falls:?}");
    assert_eq!(more, run(&["--variables-from", &file, "--steps", "2"]));
}

#[test]
fn dumps_are_the_graph() {
    let (graph, file) = (graph(), scratch("dumped.pb"));
    let def = GraphFile::read(&graph).unwrap().graph;
    good(&["dump", &graph, "--devices", "sim:2", "--format", "pb", "--output", &file]);
    assert!(GraphFile::read(&file).unwrap().graph == def);
    let text = good(&["dump", &graph, "--devices", "sim:2", "--format", "pbtxt", "--full"]).out;
    assert!(GraphFile::parse(text.into_bytes(), "dumped.pbtxt").unwrap().graph == def);
    good(&["dump", &graph, "--devices", "sim:2", "--format", "pb", "--stage", "placed", "--output", &file]);
    let placed = GraphFile::read(&file).unwrap().graph;
    assert!(placed.node.iter().all(|n| n.device.starts_with("/device:")), "every node has its device");
    let dot = good(&["dump", &graph, "--devices", "sim:2", "--format", "dot", "--stage", "placed"]).out;
    assert!(dot.starts_with("digraph") && dot.contains("ApplyAdam"));
    // A model that is built here is a graph file like any other.
    let model = ["--batch", "8", "--dim-in", "4", "--dims", "3", "--towers", "2", "--devices", "sim:2"];
    let file = scratch("model.pbtxt");
    good(&[&["dump", "--format", "pbtxt", "--output", &file], &model[..]].concat());
    let own = document(&[&["copies", "--json"], &model[..]].concat());
    let read = document(&["copies", &file, "--devices", "sim:2", "--target", "GradientDescent", "--json"]);
    assert_eq!(read["total_bytes"], own["total_bytes"]);
}

#[test]
fn mistakes_are_told_with_the_fix() {
    let graph = graph();
    let run = ["run", &graph, "--devices", "sim:2"];
    let refused_run = |args: &[&str], parts: &[&str]| refused(&[&run[..], args].concat(), parts);
    refused_run(
        &[],
        &["placeholders 'ids' int32 [6, 4], 'targets' float32 [6, 7]", "needs them", "--feed ids=FILE.npy"],
    );
    refused_run(&["--fetch", "tower_0/Men"], &["'tower_0/Men'", "did you mean 'tower_0/Mean'?"]);
    refused_run(&["--feed", "idz=x.json"], &["'idz'", "did you mean 'ids'?"]);
    refused_run(&["--feed", "ids=nothing.json"], &["cannot feed 'nothing.json'", "cannot read"]);
    let text = scratch("graph_text.json");
    std::fs::write(&text, "[[1, 2], [3]]").expect("the scratch folder can be written");
    refused_run(&["--feed", &format!("ids={text}")], &["not equally long"]);
    std::fs::write(&text, "[[1, 2.5]]").expect("the scratch folder can be written");
    refused_run(&["--feed", &format!("ids={text}")], &["2.5 is no int32"]);
    refused(&["copies", &graph, "--feed-shape", "ids=x"], &["images=8,24,24,3"]);
    refused(&["place", &graph, "--devices", "sim:1"], &["'/device:GPU:1'", "not there"]);
    let file = scratch("graph_damaged.pb");
    std::fs::write(&file, &std::fs::read(&graph).unwrap()[..1000]).expect("the scratch folder can be written");
    refused(&["place", &file], &["cannot read", "graph_damaged.pb", "it is no GraphDef"]);
    refused(&["place", env!("CARGO_TARGET_TMPDIR")], &["a folder without saved_model.pb"]);
}
