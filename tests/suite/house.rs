//! The rules that a reviewer would check by eye, read off the sources: layers, headers, file sizes, leftovers.
//!
//! Code under `#[cfg(test)]` and in files named `tests.rs` or `…_tests.rs` may import upward and unwrap.

use std::path::{Path, PathBuf};

/// The layers, lowest first: each may use itself and those before it. `command` is the binary's own; `lib.rs` and
/// `main.rs` stand above them all.
const LAYERS: [&str; 11] =
    ["base", "device", "graph", "ops", "layers", "train", "plan", "run", "interop", "report", "command"];

const MAX_LINES: usize = 500;

/// One text file of the project.
struct Source {
    /// Relative to the project, with forward slashes.
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// True for the library and the command; false for tests, examples and documents.
    fn in_src(&self) -> bool {
        self.is_rust() && self.path.starts_with("src/")
    }

    fn layer(&self) -> Option<&str> {
        let (first, rest) = self.path.strip_prefix("src/")?.split_once('/').map_or((None, ""), |(a, b)| (Some(a), b));
        first.filter(|_| !rest.is_empty())
    }

    /// Line numbers, from 1, and lines that are neither comments nor test code.
    fn code(&self) -> Vec<(usize, &str)> {
        if self.path.ends_with("/tests.rs") || self.path.ends_with("_tests.rs") {
            return Vec::new();
        }
        let mut code = Vec::new();
        let mut lines = self.text.lines().enumerate().peekable();
        while let Some((i, line)) = lines.next() {
            let item = |l: &str| l.contains("mod ") && l.trim_end().ends_with('{');
            if line == "#[cfg(test)]" && lines.peek().is_some_and(|(_, l)| item(l)) {
                lines.by_ref().find(|(_, l)| *l == "}");
            } else if !line.trim_start().starts_with("//") {
                code.push((i + 1, line));
            }
        }
        code
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All sources and documents; no build output, no recorded figures.
fn sources() -> Vec<Source> {
    fn walk(folder: &Path, sources: &mut Vec<Source>) {
        let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("cannot list {}: {e}", folder.display()));
        let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("a folder's entry can be read").path()).collect();
        paths.sort();
        for path in paths {
            let relative =
                path.strip_prefix(root()).expect("walked from the root").to_string_lossy().replace('\\', "/");
            let skipped = ["target", "tests/fixtures", "shared", "Cargo.lock"].contains(&relative.as_str());
            if skipped || relative.starts_with('.') {
                continue;
            }
            if path.is_dir() {
                walk(&path, sources);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                sources.push(Source { path: relative, text });
            }
        }
    }
    let mut sources = Vec::new();
    walk(&root(), &mut sources);
    assert!(sources.iter().filter(|s| s.in_src()).count() > LAYERS.len(), "the sources were not found");
    sources
}

fn none(problems: Vec<String>, rule: &str) {
    assert!(problems.is_empty(), "{rule}:\n{}", problems.join("\n"));
}

/// The modules of the crate's root that a line of code names, as in `crate::graph::Op` or `crate::{base, graph}`.
fn named_modules(line: &str) -> Vec<&str> {
    let word = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let mut found = Vec::new();
    for start in ["crate::", "super::super::"] {
        for (at, _) in line.match_indices(start) {
            let rest = &line[at + start.len()..];
            let Some(list) = rest.strip_prefix('{') else {
                found.push(&rest[..word(rest)]);
                continue;
            };
            let mut depth = 0;
            let mut expecting = true;
            for (i, c) in list.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => expecting = true,
                    c if expecting && !c.is_whitespace() => {
                        found.push(&list[i..i + word(&list[i..])]);
                        expecting = false;
                    }
                    _ => {}
                }
            }
        }
    }
    found
}

#[test]
fn imports_are_found() {
    for (line, want) in [
        ("use crate::graph::{Op, Graph};", vec!["graph"]),
        ("use crate::{base::{A, B}, run};", vec!["base", "run"]),
        ("    fn f(x: crate::plan::Plan, y: super::super::run::Y) {}", vec!["plan", "run"]),
        ("use super::graph::Graph;", vec![]),
    ] {
        assert_eq!(named_modules(line), want, "{line}");
    }
}

#[test]
fn layers_import_only_downward() {
    let rank = |layer: &str| LAYERS.iter().position(|l| *l == layer);
    let mut problems = Vec::new();
    for source in sources().iter().filter(|s| s.in_src()) {
        let Some(layer) = source.layer() else { continue };
        let Some(own) = rank(layer) else {
            problems.push(format!("{}: '{layer}' is no layer; the layers are {}", source.path, LAYERS.join(", ")));
            continue;
        };
        // Lists of imports may go over several lines, so the code is read as one, with the line found afterwards.
        let code = source.code();
        let joined: String = code.iter().map(|(_, l)| format!("{l} ")).collect();
        for module in named_modules(&joined) {
            if rank(module).is_some_and(|r| r > own) {
                let line = code.iter().find(|(_, l)| l.contains(module)).map_or(0, |(n, _)| *n);
                problems.push(format!("{}:{line}: {layer} uses {module}, which is above it", source.path));
            }
        }
    }
    none(problems, "a layer may use only those below it");
}

#[test]
fn every_file_has_a_header() {
    let bare =
        |s: &&Source| s.is_rust() && !s.text.lines().next().is_some_and(|l| l.len() > 10 && l.starts_with("//! "));
    let problems = sources().iter().filter(bare).map(|s| s.path.clone()).collect();
    none(problems, "the first line of a file is a //! header that says its purpose");
}

#[test]
fn files_are_short_or_say_why_not() {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|s| s.is_rust()) {
        let header: String = source.text.lines().take_while(|l| l.starts_with("//!")).collect();
        let lines = source.text.lines().count();
        if lines > MAX_LINES && !header.replace("//! ", " ").contains("over 500 lines because") {
            problems.push(format!("{}: {lines} lines", source.path));
        }
    }
    none(problems, "files have at most 500 lines, or a header with 'over 500 lines because …'");
}

#[test]
fn nothing_is_left_over() {
    let leftovers = [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("db", "g!(")];
    let mut problems = Vec::new();
    for source in sources().iter().filter(|s| s.is_rust()) {
        for (n, line) in source.text.lines().enumerate() {
            if leftovers.iter().any(|l| line.contains(l)) {
                problems.push(format!("{}:{}: {}", source.path, n + 1, line.trim()));
            }
        }
    }
    none(problems, "no placeholders and no debug prints");
}

#[test]
fn every_unwrap_has_its_reason() {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|s| s.in_src()) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (n, line) in source.code().into_iter().filter(|(_, l)| l.contains(".unwrap()")) {
            let above = n.checked_sub(2).map_or("", |i| lines[i].trim_start());
            if !line.contains("// ") && !above.starts_with("// ") {
                problems.push(format!("{}:{n}: {}", source.path, line.trim()));
            }
        }
    }
    none(problems, "an unwrap outside tests carries a comment, on its line or the one above, on why it cannot fail");
}

#[test]
fn no_file_names_a_machines_folders() {
    let folders = [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
    let mut problems = Vec::new();
    for source in sources() {
        for (n, line) in source.text.lines().enumerate() {
            if folders.iter().any(|f| line.contains(f)) {
                problems.push(format!("{}:{}: {}", source.path, n + 1, line.trim()));
            }
        }
    }
    none(problems, "no absolute paths of one machine");
}
