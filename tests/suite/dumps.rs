//! The golden dumps: the article's program at the stages of planning, by tower count and variable mode.
//!
//! `graph_dumps/` holds the text form of all stages with host variables, and of the placed and the scheduled stage with
//! the other modes (the stages before hardly differ), dot of each stage once, and GraphDef of the placed one. With `TURRET_UPDATE_DUMPS=1` the files
//! are written instead of compared.

use super::command::turret;
use std::path::PathBuf;

const STAGES: [&str; 5] = ["built", "pruned", "placed", "partitioned", "scheduled"];

/// Every golden file: its name, and what to dump.
fn goldens() -> Vec<(String, Vec<String>)> {
    let mut files = Vec::new();
    let mut add = |towers: usize, variables: &str, stage: &str, format: &str| {
        // Four towers of the plain affine map keep the files short.
        let dims = if towers == 4 { "none" } else { "3" };
        let (count, devices) = (towers.to_string(), format!("sim:{towers}"));
        let args = ["dump", "--towers", &count, "--devices", &devices, "--variables", variables];
        let shape = ["--batch", "8", "--dim-in", "4", "--dims", dims, "--stage", stage, "--format", format];
        let extension = if format == "text" { "txt" } else { format };
        let name = format!("towers{towers}_{variables}_{stage}.{extension}");
        files.push((name, args.iter().chain(&shape).map(|a| a.to_string()).collect()));
    };
    for towers in [1, 2, 4] {
        STAGES.iter().for_each(|stage| add(towers, "cpu", stage, "text"));
        for variables in ["gpu", "spread"] {
            add(towers, variables, "placed", "text");
            add(towers, variables, "scheduled", "text");
        }
    }
    STAGES.iter().for_each(|stage| add(2, "cpu", stage, "dot"));
    add(2, "cpu", "placed", "pbtxt");
    files
}

#[test]
fn dumps_are_as_recorded() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("graph_dumps");
    let update = std::env::var_os("TURRET_UPDATE_DUMPS").is_some();
    let mut differ = Vec::new();
    for (name, args) in goldens() {
        let ran = turret(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(ran.code, 0, "{name}: {}", ran.err);
        let path = folder.join(&name);
        if update {
            std::fs::create_dir_all(&folder).expect("the folder can be made");
            std::fs::write(&path, &ran.out).unwrap_or_else(|e| panic!("cannot write {name}: {e}"));
            continue;
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
        if recorded != ran.out {
            let lines = recorded.lines().zip(ran.out.lines()).position(|(a, b)| a != b);
            let line = lines.unwrap_or_else(|| recorded.lines().count().min(ran.out.lines().count()));
            let at = |text: &str| text.lines().nth(line).unwrap_or("<end>").to_string();
            differ.push(format!("{name}:{}:\n  recorded {}\n  now      {}", line + 1, at(&recorded), at(&ran.out)));
        }
    }
    assert!(differ.is_empty(), "dumps differ (TURRET_UPDATE_DUMPS=1 records them anew):\n{}", differ.join("\n"));
}

#[test]
fn no_dump_is_left_over() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("graph_dumps");
    let wanted: Vec<String> = goldens().into_iter().map(|(name, _)| name).collect();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let name = entry.expect("an entry can be read").file_name().to_string_lossy().into_owned();
        assert!(wanted.contains(&name), "graph_dumps/{name} belongs to no test");
    }
}
