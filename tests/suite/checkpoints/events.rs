//! `turret run --events`, `--trace` and `turret dump --format tensorboard`.

use super::scratch;
use crate::command::{SMALL, turret};
use serde_json::Value;
use std::path::{Path, PathBuf};
use turret::interop::events::{Event, EventKind, EventReader, SummaryFigure};
use turret::interop::graphdef::GraphDef;

fn ok(args: &[&str]) -> String {
    let ran = turret(args);
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    ran.out
}

/// The events of a folder's one file.
fn events(folder: &Path) -> Vec<Event> {
    let files: Vec<PathBuf> = std::fs::read_dir(folder).expect("a folder").map(|f| f.expect("a file").path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    EventReader::open(&files[0]).expect("it is there").collect::<turret::Result<_>>().expect("it is whole")
}

#[test]
fn a_run_leaves_its_figures_for_tensorboard() {
    let folder = scratch("events");
    let at = folder.join("run/events");
    let args = ["--towers", "2", "--steps", "3", "--fetch", "loss", "--fetch", "affine_last/w", "--target"];
    let events_at = at.to_str().expect("a path in UTF-8");
    ok(&[&["run"], &SMALL[..], &args, &["GradientDescent", "--events", events_at]].concat());
    let all = events(&at);
    assert_eq!(all.iter().map(|e| e.step).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2, 3, 3, 3]);
    let EventKind::Graph(bytes) = &all[1].kind else { panic!("{:?}", all[1]) };
    let graph: GraphDef = prost::Message::decode(&bytes[..]).expect("a graph");
    assert!(graph.node.iter().any(|n| n.name == "tower_1/MatMul"));
    let losses: Vec<f32> = (all.iter())
        .filter_map(|e| match &e.kind {
            EventKind::Summary(figures) if figures[0].0 == "loss" => match figures[0].1 {
                SummaryFigure::Scalar(value) => Some(value),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert!(losses.len() == 3 && losses[2] < losses[0], "{losses:?}");
    let is_histogram = |e: &&Event| matches!(&e.kind, EventKind::Summary(f) if f[0].0 == "affine_last/w" && matches!(f[0].1, SummaryFigure::Histogram(_)));
    assert_eq!(all.iter().filter(is_histogram).count(), 3);
    let EventKind::RunMetadata { tag, nodes } = &all[8].kind else { panic!("{:?}", all[8]) };
    assert_eq!(tag, "step 3");
    assert!(nodes.iter().any(|n| n.name == "tower_1/MatMul" && n.device.ends_with("device:GPU:1")));

    let dumped = folder.join("dump");
    let dumped = dumped.to_str().expect("a path in UTF-8");
    ok(&[&["dump"], &SMALL[..], &["--format", "tensorboard", "--stage", "placed", "--output", dumped]].concat());
    let all = events(Path::new(dumped));
    assert!(all.len() == 2 && matches!(all[1].kind, EventKind::Graph(_)));
    let refused = turret(&[&["dump"], &SMALL[..], &["--format", "tensorboard"]].concat());
    assert!(refused.code == 1 && refused.err.contains("--output FOLDER"), "{}", refused.err);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_trace_has_the_step_as_measured_and_as_planned() {
    let folder = scratch("trace");
    let path = folder.join("trace.json");
    let args = ["--towers", "2", "--variables", "gpu", "--devices", "sim:2@none", "--trace"];
    ok(&[&["run"], &SMALL[..], &args, &[path.to_str().expect("a path in UTF-8")]].concat());
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).expect("it is there")).expect("a document");
    let all = trace["traceEvents"].as_array().expect("a list");
    for process in [2, 1002] {
        let copy = all.iter().find(|e| e["pid"] == process && e["name"] == "copy/affine0/w/read→gpu:1");
        let args = &copy.expect("it is there")["args"];
        assert_eq!((args["bytes"].as_u64(), args["route"].as_str()), (Some(48), Some("through host")));
    }
    let named = |name: &str| all.iter().filter(|e| e["name"] == name).count();
    assert_eq!((named("process_name"), named("tower_1/MatMul")), (6, 2));
    let _ = std::fs::remove_dir_all(folder);
}
