//! What a subcommand works on: the built-in model, or the graph of a file; its step, and what is fed.

use super::feeds::{FeedFile, made_up, model_feeds, read_feeds};
use super::model::{self, Model};
use super::options::{GlobalOptions, ModelOptions, StepOptions, TowerOptions};
use super::tell;
use anyhow::{Context, Result, bail};
use std::collections::HashSet;
use turret::base::{Array, Shape};
use turret::graph::{CollectionItem, Graph, NodeId, Operation, Tensor, keys};
use turret::interop::graphdef::{GraphFile, read_graph};
use turret::plan::Schedule;
use turret::run::Session;

/// The source file whose line the nodes of a graph file have.
pub(super) const READER: &str = file!();

/// The built-in model or the graph of a file.
pub(super) enum Program<'g> {
    Model(Box<Model<'g>>),
    File,
}

/// What one step computes.
pub(super) struct Step<'g> {
    pub fetches: Vec<Tensor<'g>>,
    pub targets: Vec<Operation<'g>>,
}

/// An empty graph for the built-in model, or the graph of a file, whose calls of functions become what they call.
pub(super) fn graph(options: &ModelOptions) -> Result<Graph> {
    let Some(path) = options.file() else { return Ok(Graph::new()) };
    let of = || format!("cannot read '{}'", path.display());
    let file = GraphFile::read(path)?.inlined().with_context(of)?;
    file.build().with_context(of)
}

/// The same, with the file's nodes as they are.
pub(super) fn graph_as_written(options: &ModelOptions) -> Result<Graph> {
    match options.file() {
        Some(path) => Ok(read_graph(path)?),
        None => Ok(Graph::new()),
    }
}

/// Builds the model if it is asked for, opens a session, and tells what is used.
pub(super) fn open<'g>(
    g: &'g Graph,
    global: &GlobalOptions,
    options: &ModelOptions,
    towers: &TowerOptions,
) -> Result<(Program<'g>, Session<'g>)> {
    let Some(path) = options.file() else {
        let (model, session) = model::open(g, global, options, towers)?;
        return Ok((Program::Model(Box::new(model)), session));
    };
    let session = Session::new(g, global.session_options()?)?;
    let machine = session.machine();
    let (variables, nodes) = (g.all_variables().len(), g.len());
    tell(format_args!("machine: {}\n", global.machine_name(machine)));
    tell(format_args!("graph: {}, {nodes} nodes, {variables} variables\n", path.display()));
    let unknown: HashSet<String> =
        g.nodes().iter().filter(|n| n.op.is_unknown()).map(|n| n.op_type().to_string()).collect();
    if !unknown.is_empty() {
        let mut types: Vec<String> = unknown.into_iter().collect();
        types.sort();
        tell(format_args!("kept, but not run: nodes of types {}\n", types.join(", ")));
    }
    Ok((Program::File, session))
}

impl<'g> Program<'g> {
    /// What a step fetches and runs: what is asked for, or the train op.
    pub fn step(&self, g: &'g Graph, options: &StepOptions) -> Result<Step<'g>> {
        if options.fetch.is_empty() && options.target.is_empty() {
            let train = match self {
                Program::Model(model) => model.train,
                Program::File => train_op(g)?,
            };
            return Ok(Step { fetches: Vec::new(), targets: vec![train] });
        }
        let fetches = options.fetch.iter().map(|name| g.tensor(name)).collect::<turret::Result<_>>()?;
        let targets = options.target.iter().map(|name| g.operation(name)).collect::<turret::Result<_>>()?;
        Ok(Step { fetches, targets })
    }

    /// The schedule of a step. What is not fed from a file counts with the sizes that it is known to have.
    pub fn schedule(&self, session: &Session<'g>, step: &Step<'g>, options: &StepOptions) -> Result<Schedule> {
        let g = session.graph();
        let mut sizes = options.feed_shape.iter().map(|s| s.of(g)).collect::<Result<Vec<_>>>()?;
        for (tensor, array) in read_feeds(g, &options.feed)? {
            sizes.push((tensor, array.dims().to_vec()));
        }
        let is_fed = |sizes: &[(Tensor<'g>, Vec<usize>)], t: Tensor<'g>| sizes.iter().any(|(fed, _)| *fed == t);
        match self {
            Program::Model(model) => {
                let missing = model.inputs.iter().filter(|i| !is_fed(&sizes, i.tensor));
                let missing: Vec<_> = missing.map(|i| (i.tensor, i.dims.to_vec())).collect();
                sizes.extend(missing);
            }
            Program::File => {
                let mut open = Vec::new();
                for tensor in placeholders(g, step) {
                    match tensor.shape().to_dims() {
                        _ if is_fed(&sizes, tensor) => {}
                        Some(dims) => sizes.push((tensor, dims.to_vec())),
                        None => open.push(tensor),
                    }
                }
                not_fed(&open, Why::Sizes, |t| format!("--feed-shape {}={}", t.op().name(), example(t)))?;
            }
        }
        let feeds: Vec<(Tensor<'g>, &[usize])> = sizes.iter().map(|(t, dims)| (*t, &dims[..])).collect();
        Ok(session.schedule(&feeds, &step.fetches, &step.targets)?)
    }

    /// The arrays that a step is fed. For the model, those that are not given are made up.
    pub fn feeds(
        &self,
        g: &'g Graph,
        step: &Step<'g>,
        files: &[FeedFile],
        seed: u32,
    ) -> Result<Vec<(Tensor<'g>, Array)>> {
        let given = read_feeds(g, files)?;
        if let Program::Model(model) = self {
            return model_feeds(model, given, seed);
        }
        let is_given = |t: &Tensor<'g>| given.iter().any(|(fed, _)| fed == t);
        let missing: Vec<Tensor<'g>> = placeholders(g, step).into_iter().filter(|t| !is_given(t)).collect();
        not_fed(&missing, Why::Run, |t| format!("--feed {}=FILE.npy", t.op().name()))?;
        Ok(given)
    }

    /// As [`Program::feeds`], with made up values for all placeholders of known sizes.
    pub fn feeds_to_measure(
        &self,
        g: &'g Graph,
        step: &Step<'g>,
        options: &StepOptions,
        seed: u32,
    ) -> Result<Vec<(Tensor<'g>, Array)>> {
        let mut given = read_feeds(g, &options.feed)?;
        if let Program::Model(model) = self {
            return model_feeds(model, given, seed);
        }
        let sizes = options.feed_shape.iter().map(|s| s.of(g)).collect::<Result<Vec<_>>>()?;
        let mut open = Vec::new();
        for (i, tensor) in placeholders(g, step).into_iter().enumerate() {
            let told = sizes.iter().find(|(t, _)| *t == tensor).map(|(_, dims)| dims.clone());
            match told.or_else(|| tensor.shape().to_dims().map(|d| d.to_vec())) {
                _ if given.iter().any(|(fed, _)| *fed == tensor) => {}
                Some(dims) => given.push((tensor, made_up(tensor.dtype(), &dims, seed, i)?)),
                None => open.push(tensor),
            }
        }
        not_fed(&open, Why::Sizes, |t| format!("--feed-shape {}={}", t.op().name(), example(t)))?;
        Ok(given)
    }
}

/// What a feed is needed for.
enum Why {
    Run,
    Sizes,
}

/// An error that lists these placeholders, if there are any.
fn not_fed(missing: &[Tensor<'_>], why: Why, fix: impl Fn(Tensor<'_>) -> String) -> Result<()> {
    const SHOWN: usize = 8;
    let Some(first) = missing.first() else { return Ok(()) };
    let mut names: Vec<String> =
        (missing.iter().take(SHOWN)).map(|t| format!("'{}' {} {}", t.op().name(), t.dtype(), t.shape())).collect();
    if missing.len() > SHOWN {
        names.push(format!("… ({} in all)", missing.len()));
    }
    let (what, it) = if missing.len() == 1 { ("placeholder", "it") } else { ("placeholders", "them") };
    let why = match why {
        Why::Run => format!("the step needs {it}"),
        Why::Sizes => format!("the sizes of {it} are needed"),
    };
    bail!("nothing is fed for {what} {}: {why}; use {}", names.join(", "), fix(*first))
}

/// Sizes as `--feed-shape` takes them, with 8 for those that are open.
fn example(tensor: Tensor<'_>) -> String {
    let shape: Shape = tensor.shape();
    let sizes = shape.dims().map(|dims| dims.iter().map(|d| d.unwrap_or(8).to_string()).collect::<Vec<_>>());
    sizes.map_or_else(|| "8,…".to_string(), |sizes| sizes.join(","))
}

/// The placeholders that a step reads, in the order of the graph.
fn placeholders<'g>(g: &'g Graph, step: &Step<'g>) -> Vec<Tensor<'g>> {
    let nodes = g.nodes();
    let mut seen = HashSet::new();
    let asked = step.fetches.iter().map(|t| t.op().id()).chain(step.targets.iter().map(|o| o.id()));
    let mut pending: Vec<NodeId> = asked.collect();
    while let Some(id) = pending.pop() {
        if seen.insert(id) {
            let node = &nodes[id.index()];
            pending.extend(node.inputs.iter().map(|t| t.node).chain(node.control_inputs.iter().copied()));
        }
    }
    let needed = nodes.iter().filter(|n| seen.contains(&n.id) && n.op.must_be_fed());
    needed.filter_map(|n| g.tensor(&format!("{}:0", n.name)).ok()).collect()
}

/// The train op of a file's graph: what its collections say, or the one operation that nothing reads or waits for and
/// that changes variables as optimizers do.
fn train_op(g: &Graph) -> Result<Operation<'_>> {
    let told: Vec<Operation<'_>> = (g.get_collection(keys::TRAIN_OP).into_iter())
        .filter_map(|item| match item {
            CollectionItem::Operation(op) => Some(op),
            CollectionItem::Tensor(t) => Some(t.op()),
            CollectionItem::Variable(_) => None,
        })
        .collect();
    if let [one] = told[..] {
        return Ok(one);
    }
    let nodes = g.nodes();
    let trains = |op_type: &str| {
        let op_type = op_type.strip_prefix("Resource").unwrap_or(op_type);
        op_type.starts_with("Apply") || op_type.starts_with("SparseApply")
    };
    // A node's inputs come before it, so one pass finds who depends on an update.
    let mut depends = vec![false; nodes.len()];
    let mut read = vec![false; nodes.len()];
    for node in &nodes {
        let before = node.inputs.iter().map(|t| t.node).chain(node.control_inputs.iter().copied());
        let mut of_it = trains(node.op_type());
        for id in before {
            read[id.index()] = true;
            of_it |= depends[id.index()];
        }
        depends[node.id.index()] = of_it;
    }
    let last: Vec<String> =
        nodes.iter().filter(|n| depends[n.id.index()] && !read[n.id.index()]).map(|n| n.name.to_string()).collect();
    match &last[..] {
        [one] => Ok(g.operation(one)?),
        [] => bail!("the graph has no train op; say what to compute with --fetch TENSOR or --target OPERATION"),
        many => bail!(
            "the graph may be trained by any of {}; say which with --target",
            many.iter().take(5).map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ")
        ),
    }
}
