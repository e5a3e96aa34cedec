//! TensorFlow's graphs, in and out.

use super::fixtures;
use std::path::PathBuf;
use turret::interop::graphdef::{GraphFile, export_graph};

/// The recorded graphs, and those in the folder that `TURRET_GRAPHS` names.
pub fn files() -> Vec<PathBuf> {
    let folders = [Some(fixtures::path("graphs")), std::env::var_os("TURRET_GRAPHS").map(PathBuf::from)];
    let mut files = Vec::new();
    for folder in folders.into_iter().flatten() {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("cannot read {}: {e}", folder.display()));
        files.extend(
            entries
                .map(|e| e.expect("an entry can be read").path())
                .filter(|p| p.extension().is_some_and(|e| e == "pb")),
        );
    }
    files.sort();
    assert!(!files.is_empty(), "no graphs are recorded");
    files
}

#[test]
fn what_is_read_is_written_again() {
    for path in files() {
        let file = GraphFile::read(&path).unwrap();
        let graph = file.build().unwrap();
        let written = export_graph(&graph).unwrap();
        for (read, written) in file.graph.node.iter().zip(&written.node) {
            assert_eq!(read, written, "{}", path.display());
        }
        assert!(file.graph == written, "{}: versions or library differ", path.display());
        // The text form says the same.
        let text = written.to_text().unwrap();
        let again = GraphFile::parse(text.into_bytes(), "graph.pbtxt").unwrap();
        assert!(again.graph == written, "{}: the text differs", path.display());
        assert_eq!(again.build().unwrap().len(), graph.len());
    }
}
