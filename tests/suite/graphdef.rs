//! TensorFlow's graphs, in and out.

use super::fixtures::graphs::files;
use turret::interop::graphdef::{GraphFile, export_graph};

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
