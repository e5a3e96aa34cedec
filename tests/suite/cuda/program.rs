//! The tower program that these tests train: layers with biases, an optimizer with slots, feeds that are split.

use turret::base::{Array, DType};
use turret::device::Machine;
use turret::graph::{Graph, Init, Operation, Tensor, VariablePlacement};
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, Optimizer, Towers};

/// What a program is like.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub towers: usize,
    /// Where variables live: `cpu`, `gpu`, `spread`.
    pub variables: &'static str,
    /// Where averages run: a device, or `beside`, `spread`, `all-reduce`.
    pub average: &'static str,
}

/// The ways in which towers are usually laid out.
pub const WAYS: [Way; 6] = [
    Way { towers: 1, variables: "cpu", average: "beside" },
    Way { towers: 1, variables: "gpu", average: "beside" },
    Way { towers: 2, variables: "cpu", average: "/cpu:0" },
    Way { towers: 2, variables: "gpu", average: "/gpu:0" },
    Way { towers: 4, variables: "spread", average: "spread" },
    Way { towers: 4, variables: "gpu", average: "all-reduce" },
];

/// A built program.
pub struct Program<'g> {
    pub x: Tensor<'g>,
    pub target: Tensor<'g>,
    pub loss: Tensor<'g>,
    pub train: Operation<'g>,
}

/// Builds the program on a graph.
pub fn build<'g>(g: &'g Graph, way: Way) -> Program<'g> {
    let x = g.placeholder(DType::F32, [None, Some(6)], "x");
    let target = g.placeholder(DType::F32, [None, Some(1)], "target");
    let variables = match way.variables {
        "cpu" => VariablePlacement::host(),
        "gpu" => VariablePlacement::gpu(0),
        _ => VariablePlacement::least_bytes(way.towers as u32),
    };
    let towers = Towers::new(g, way.towers).variables(variables);
    let towers = match way.average {
        "beside" => towers,
        "spread" => towers.average_spread(),
        "all-reduce" => towers.average_all_reduce(),
        device => towers.average_on(device),
    };
    let (xs, targets) = (towers.split(x), towers.split(target));
    let (built, train) = towers.train(&Optimizer::adam(0.01), ApplyOptions::default(), |tower| {
        let layer = |scope: &str, x: Tensor<'g>, width: usize| {
            g.variable_scope(scope, || {
                let w = g.get_variable("w", [x.shape().dims().unwrap()[1].unwrap(), width], Init::glorot_uniform());
                x.matmul(w) + g.get_variable("b", [width], Init::Constant(0.1))
            })
        };
        let h = layer("one", xs[tower.index()], 16).relu();
        let h = layer("two", h, 8).tanh();
        (layer("last", h, 1) - targets[tower.index()]).square().mean()
    });
    Program { x, target, loss: built.loss, train }
}

/// Rows and targets of a batch.
pub fn batch(rows: usize) -> [Array; 2] {
    let x: Vec<f32> = (0..rows * 6).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
    let y: Vec<f32> = x.chunks(6).map(|r| r[0] * r[1] - r[2] + 0.3 * r[5]).collect();
    [Array::new(&[rows, 6], &x).unwrap(), Array::new(&[rows, 1], &y).unwrap()]
}

impl<'g> Program<'g> {
    /// The loss before a step, which is taken.
    pub fn step(&self, session: &Session<'g>, batch: &[Array; 2]) -> turret::Result<f64> {
        let feeds = [(self.x, &batch[0]), (self.target, &batch[1])];
        session.run(&feeds, &[self.loss], &[self.train]).map(|v| v[0].get_f64(0))
    }
}

/// All variables by name.
pub fn values(g: &Graph, session: &Session<'_>) -> Vec<(String, Array)> {
    g.global_variables().into_iter().map(|v| (v.name(), session.value(v).unwrap())).collect()
}

/// Starts variables at values that do not depend on who draws them.
pub fn start(g: &Graph, session: &Session<'_>) {
    session.initialize().unwrap();
    for (i, v) in g.trainable_variables().into_iter().enumerate() {
        let old = session.value(v).unwrap();
        let drawn: Vec<f64> = (0..old.len()).map(|k| (((k + i) * 53 % 97) as f64 - 48.0) / 150.0).collect();
        session.load(v, &Array::from_f64(old.dtype(), old.dims(), &drawn).unwrap()).unwrap();
    }
}

/// Losses of some steps and the variables after them.
pub fn train(way: Way, options: SessionOptions, steps: usize) -> (Vec<f64>, Vec<(String, Array)>) {
    let g = Graph::new();
    let program = build(&g, way);
    let session = Session::new(&g, options).unwrap_or_else(|e| panic!("{way:?}: {e}"));
    start(&g, &session);
    let rows = batch(24);
    let losses = (0..steps).map(|_| program.step(&session, &rows).unwrap_or_else(|e| panic!("{way:?}: {e}"))).collect();
    // Where GPUs do not reach each other the session says so, and has nothing else to say.
    let other = |w: &String| !w.contains("copies go through host memory, between GPUs that do not reach each other");
    assert!(!session.warnings().iter().any(other), "{way:?}: {:?}", session.warnings());
    (losses, values(&g, &session))
}

/// A session's options for CUDA GPUs, in turn where there are fewer.
pub fn cuda(gpus: usize) -> SessionOptions {
    let there = turret::device::cuda::device_count().unwrap();
    SessionOptions::on(Machine::cuda(&(0..gpus).map(|i| i % there).collect::<Vec<_>>()).unwrap())
}
