//! Files of graphs: a `GraphDef`, `MetaGraphDef` or `SavedModel`, as protocol buffer or as text, told apart by name and
//! by what is in them.

use super::import::import_at;
use super::inline::inline_functions;
use super::proto::{CollectionDef, GraphDef, MetaGraphDef, NodeDef, SavedModel, VariableDef};
use super::text;
use super::variables::Roles;
use crate::base::{Code, Error, Result};
use crate::graph::Graph;
use prost::Message;
use prost::bytes::Bytes;
use std::collections::BTreeMap;
use std::fs;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// The largest file: a protocol buffer has no more bytes.
const MAX_BYTES: u64 = (1 << 31) - 1;

/// A graph as a file has it.
#[derive(Clone, Debug, Default)]
pub struct GraphFile {
    /// The graph.
    pub graph: GraphDef,
    /// Names of variables, tensors and operations by collection; only a `MetaGraphDef` has them.
    pub collections: BTreeMap<String, Vec<String>>,
    roles: Roles,
}

impl GraphFile {
    /// Reads a file: a `.pb`, a `.pbtxt`, a `.meta` beside a checkpoint, a `saved_model.pb`, or a folder with one.
    /// Of a SavedModel's graphs it is the one with tag `train`, else the first.
    ///
    /// # Errors
    /// What cannot be read, or is not of that form, with the file's name.
    pub fn read(path: impl AsRef<Path>) -> Result<GraphFile> {
        let path = inside(path.as_ref())?;
        let context = |e: Error| e.context(format!("cannot read '{}'", path.display()));
        let bytes = bytes(&path).map_err(context)?;
        GraphFile::parse(bytes, &path.file_name().unwrap_or_default().to_string_lossy()).map_err(context)
    }

    /// As [`GraphFile::read`], of bytes; `name` is the file's, which helps to tell what they are.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(bytes: impl Into<Bytes>, name: &str) -> Result<GraphFile> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(Error::invalid("it is empty"));
        }
        match as_text(&bytes, name) {
            Some(text) => from_text(text?),
            None => from_binary(bytes, name),
        }
    }

    /// The same with calls of functions replaced by what they call: see [`inline_functions`].
    ///
    /// # Errors
    /// As [`inline_functions`].
    pub fn inlined(&self) -> Result<GraphFile> {
        Ok(GraphFile { graph: inline_functions(&self.graph)?, ..self.clone() })
    }

    /// Builds the graph: see [`import_graph`](super::import_graph). What a `MetaGraphDef` says of variables and
    /// collections counts.
    ///
    /// # Errors
    /// As [`import_graph`](super::import_graph).
    #[track_caller]
    pub fn build(&self) -> Result<Graph> {
        let source = Location::caller();
        let graph = import_at(&self.graph, &self.roles, source)?;
        for (key, names) in &self.collections {
            for name in names {
                if let Ok(variable) = graph.find_variable(name) {
                    graph.add_to_collection(key, variable);
                } else if let (true, Ok(tensor)) = (name.contains(':'), graph.tensor(name)) {
                    graph.add_to_collection(key, tensor);
                } else if let Ok(operation) = graph.operation(name) {
                    graph.add_to_collection(key, operation);
                }
            }
        }
        Ok(graph)
    }

    fn of_meta_graph(meta: MetaGraphDef) -> Result<GraphFile> {
        let graph = meta.graph_def.ok_or_else(|| Error::invalid("it is a MetaGraphDef without a graph"))?;
        let mut roles = Roles::default();
        let mut collections = BTreeMap::new();
        for (key, collection) in meta.collection_def {
            collections.insert(key, members(collection, &mut roles)?);
        }
        Ok(GraphFile { graph, collections, roles })
    }

    fn of_saved_model(mut model: SavedModel) -> Result<GraphFile> {
        let is_train = |m: &MetaGraphDef| m.meta_info_def.as_ref().is_some_and(|i| i.tags.iter().any(|t| t == "train"));
        let chosen = model.meta_graphs.iter().position(is_train).unwrap_or(0);
        if model.meta_graphs.is_empty() {
            return Err(Error::invalid("it is a SavedModel without graphs"));
        }
        GraphFile::of_meta_graph(model.meta_graphs.swap_remove(chosen))
    }
}

/// Reads a file and builds its graph: [`GraphFile::read`] and [`GraphFile::build`].
///
/// # Errors
/// As those two, with the file's name.
#[track_caller]
pub fn read_graph(path: impl AsRef<Path>) -> Result<Graph> {
    let path = path.as_ref();
    let file = GraphFile::read(path)?;
    file.build().map_err(|e| e.context(format!("cannot read '{}'", path.display())))
}

/// Writes a graph to a file: as text where the name ends in `.pbtxt`, else as protocol buffer. A file that is there is
/// replaced only when all is written.
///
/// # Errors
/// What the system says, with the file's name.
pub fn write_graph(path: impl AsRef<Path>, graph: &GraphDef) -> Result<()> {
    let path = path.as_ref();
    let bytes = match path.extension().is_some_and(|e| e == "pbtxt") {
        true => graph.to_text()?.into_bytes(),
        false => graph.encode_to_vec(),
    };
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, path)).map_err(|e| {
        // The error to tell is the first one.
        let _ = fs::remove_file(&partial);
        Error::new(Code::FailedPrecondition, format!("cannot write '{}': {e}", path.display()))
    })
}

impl GraphDef {
    /// The graph as a protocol buffer.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// The graph in protocol buffers' text form.
    ///
    /// # Errors
    /// When parts that are only carried along, such as the function library, are not what they should be.
    pub fn to_text(&self) -> Result<String> {
        text::write(self)
    }
}

/// The members of a collection by name; what it says of variables goes to their roles.
fn members(collection: CollectionDef, roles: &mut Roles) -> Result<Vec<String>> {
    let mut names = collection.node_list.map(|l| l.value).unwrap_or_default();
    for bytes in collection.bytes_list.iter().flat_map(|l| &l.value) {
        // Other messages than variables, such as queue runners, are none of turret's business.
        let Ok(variable) = VariableDef::decode(bytes.clone()) else { continue };
        let Some((name, "0")) = variable.variable_name.rsplit_once(':') else { continue };
        names.push(name.to_string());
        roles.add(name, &variable.initializer_name, &variable.snapshot_name);
    }
    Ok(names)
}

/// The file itself, or the one in a SavedModel's folder.
fn inside(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_path_buf());
    }
    let known = ["saved_model.pb", "saved_model.pbtxt"].map(|name| path.join(name));
    known.into_iter().find(|p| p.is_file()).ok_or_else(|| {
        let message =
            format!("'{}' is a folder without saved_model.pb or saved_model.pbtxt; name the file", path.display());
        Error::new(Code::NotFound, message)
    })
}

fn bytes(path: &Path) -> Result<Bytes> {
    let refuse = |e: std::io::Error| Error::new(Code::NotFound, e.to_string());
    let metadata = fs::metadata(path).map_err(refuse)?;
    if metadata.len() > MAX_BYTES {
        return Err(Error::invalid(format!("it has {} bytes, more than a protocol buffer can have", metadata.len())));
    }
    fs::read(path).map(Bytes::from).map_err(refuse)
}

/// The text, if the name or the first bytes say that it is one.
fn as_text<'a>(bytes: &'a [u8], name: &str) -> Option<Result<&'a str>> {
    let named = [".pbtxt", ".txt", ".prototxt", ".textproto"].iter().any(|e| name.ends_with(e));
    let looks = || {
        let start = &bytes[..bytes.len().min(256)];
        let printable = |b: &u8| (b' '..=b'~').contains(b) || b"\t\r\n".contains(b);
        start.iter().all(printable) && start.iter().any(|b| b"{:".contains(b))
    };
    (named || looks()).then(|| {
        std::str::from_utf8(bytes)
            .map_err(|e| Error::invalid(format!("it is no text: byte {} is no UTF-8", e.valid_up_to())))
    })
}

fn from_text(text: &str) -> Result<GraphFile> {
    let lines = text.lines().map(str::trim_start).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let first = lines.map(|l| l.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or("")).next();
    match first {
        Some("saved_model_schema_version" | "meta_graphs") => GraphFile::of_saved_model(text::parse(text)?),
        Some("node" | "versions" | "version" | "library" | "debug_info") => {
            Ok(GraphFile { graph: text::parse(text)?, ..GraphFile::default() })
        }
        Some(
            "meta_info_def" | "graph_def" | "saver_def" | "collection_def" | "signature_def" | "asset_file_def"
            | "object_graph_def",
        ) => GraphFile::of_meta_graph(text::parse(text)?),
        Some(word) => {
            let word: String = word.chars().take(40).collect();
            Err(Error::invalid(format!(
                "it is no graph: it begins with '{word}'; want node, meta_info_def or meta_graphs"
            )))
        }
        None => Err(Error::invalid("it is empty")),
    }
}

fn from_binary(bytes: Bytes, name: &str) -> Result<GraphFile> {
    let no = |what: &str, e: prost::DecodeError| Error::invalid(format!("it is no {what}: {e}"));
    if name.starts_with("saved_model.") || bytes[0] == 8 {
        let model = SavedModel::decode(bytes).map_err(|e| no("SavedModel", e))?;
        return GraphFile::of_saved_model(model);
    }
    let as_graph = if name.ends_with(".meta") { None } else { Some(GraphDef::decode(bytes.clone())) };
    let sound = |n: &NodeDef| !n.op.is_empty() && !n.name.is_empty();
    match as_graph {
        Some(Ok(graph)) if graph.node.iter().all(sound) => return Ok(GraphFile { graph, ..GraphFile::default() }),
        _ => {}
    }
    match (MetaGraphDef::decode(bytes), as_graph) {
        (Ok(meta), _) if meta.graph_def.as_ref().is_some_and(|g| g.node.iter().all(sound)) => {
            GraphFile::of_meta_graph(meta)
        }
        // What is neither is told of as a graph, if it may be one.
        (_, Some(Err(e))) => Err(no("GraphDef", e)),
        (_, Some(Ok(graph))) => Ok(GraphFile { graph, ..GraphFile::default() }),
        (Err(e), None) => Err(no("MetaGraphDef", e)),
        (Ok(meta), None) => GraphFile::of_meta_graph(meta),
    }
}
