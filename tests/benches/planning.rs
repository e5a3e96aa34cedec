//! Times of building and planning the article's network by number of towers, and of planning long chains, which is to take
//! time in proportion to their length; `turret bench --plan` has each stage.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use turret::base::DType;
use turret::device::Machine;
use turret::graph::{Graph, Init, Operation, Tensor, VariablePlacement};
use turret::run::{Session, SessionOptions};
use turret::train::{Optimizer, Towers};

/// Rows of each tower.
const ROWS: usize = 4;

/// The article's network in so many towers; gives what is fed, and the train op.
fn network(g: &Graph, towers: usize) -> ([(Tensor<'_>, [usize; 2]); 2], Operation<'_>) {
    let dims = [ROWS * towers, 600];
    let [x, target] = ["input", "target"].map(|name| g.placeholder(DType::F32, dims, name));
    let made = Towers::new(g, towers).variables(VariablePlacement::host()).average_on("/cpu:0");
    let (xs, targets) = (made.split(x), made.split(target));
    let optimizer = Optimizer::gradient_descent(0.01);
    let built = made.build(&optimizer, |tower| {
        let mut h = xs[tower.index()];
        for (i, width) in [512, 128, 128, 1].into_iter().enumerate() {
            let (w, b) = g.variable_scope(&format!("affine{i}"), || {
                (g.get_variable("w", [h.dim(1), width], Init::Ones), g.get_variable("b", [], Init::Zeros))
            });
            let y = h.matmul(w) + b;
            h = if width == 1 { y } else { y.relu() };
        }
        (h - targets[tower.index()]).square().mean()
    });
    ([(x, dims), (target, dims)], built.apply(&optimizer))
}

fn building(c: &mut Criterion) {
    let mut group = c.benchmark_group("building");
    for towers in [1, 8, 64] {
        group.throughput(Throughput::Elements(towers as u64));
        group.bench_function(BenchmarkId::from_parameter(towers), |b| {
            b.iter_batched(Graph::new, |g| (network(&g, towers).1.id(), g).1, BatchSize::SmallInput);
        });
    }
}

fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("planning");
    for towers in [1, 8, 64] {
        let g = Graph::new();
        let (fed, train) = network(&g, towers);
        let feeds: Vec<(Tensor<'_>, &[usize])> = fed.iter().map(|(t, dims)| (*t, &dims[..])).collect();
        let session = Session::new(&g, SessionOptions::on(Machine::simulated(towers))).expect("the graph is right");
        group.throughput(Throughput::Elements(towers as u64));
        group.bench_function(BenchmarkId::from_parameter(towers), |b| {
            b.iter(|| session.schedule(&feeds, &[], &[train]).expect("it can be planned"));
        });
    }
}

/// A chain of so many nodes of a kind.
type Chain = for<'g> fn(&'g Graph, Tensor<'g>, usize) -> Tensor<'g>;

const CHAINS: [(&str, Chain); 3] = [
    ("identities", |_, x, n| (0..n).fold(x, |y, _| y.identity("i"))),
    ("sums", |_, x, n| (0..n).fold(x, |y, _| y + x)),
    ("gates", |g, x, n| {
        let change = g.get_variable("v", [2, 2], Init::Zeros).assign_add(x).op();
        let both = (0..n / 2).fold((change, x), |(gate, y), _| {
            let gate = g.control_dependencies([gate], || g.no_op("gate"));
            (gate, g.control_dependencies([gate], || y.tanh()))
        });
        both.1
    }),
];

fn chains(c: &mut Criterion) {
    let mut group = c.benchmark_group("chains");
    group.sample_size(10);
    for (name, chain) in CHAINS {
        for nodes in [1250, 2500, 5000] {
            let g = Graph::new();
            let x = g.placeholder(DType::F32, [2, 2], "x");
            let end = chain(&g, x, nodes);
            let session = Session::new(&g, SessionOptions::on(Machine::host())).expect("the graph is right");
            group.throughput(Throughput::Elements(nodes as u64));
            group.bench_function(BenchmarkId::new(name, nodes), |b| {
                b.iter(|| session.schedule(&[(x, &[2, 2][..])], &[end], &[]).expect("it can be planned"));
            });
        }
    }
}

criterion_group!(plans, building, planning, chains);
criterion_main!(plans);
