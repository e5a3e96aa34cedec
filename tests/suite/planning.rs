//! Steps of thousands of nodes in chains of every kind are planned, and give the same figures fused and apart.

use turret::base::{Array, DType};
use turret::graph::{Graph, Init, Operation, Tensor};
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, ComputeOptions, Optimizer};

/// What is fetched, and what is asked for besides.
type Asked<'g> = (Vec<Tensor<'g>>, Vec<Operation<'g>>);

type Build = for<'g> fn(&'g Graph, Tensor<'g>, usize) -> Asked<'g>;

fn chain<'g>(x: Tensor<'g>, size: usize, link: impl Fn(Tensor<'g>) -> Tensor<'g>) -> Tensor<'g> {
    (0..size).fold(x, |x, _| link(x))
}

const CASES: [(&str, Build); 15] = [
    ("identities", |_, x, n| (vec![chain(x, n, |x| x.identity("i"))], vec![])),
    ("identities of a variable", |g, x, n| {
        let v = g.get_variable("v", [2, 2], Init::Zeros);
        let read = chain(v.value(), n, |x| x.identity("i"));
        (vec![read + x], vec![v.assign_add(x).op()])
    }),
    ("identities, all read", |g, x, n| {
        let mut links = vec![x];
        (0..n).for_each(|i| links.push(links[i].identity("i")));
        (vec![g.add_n(links.iter().map(|x| x.exp()).collect::<Vec<_>>())], vec![])
    }),
    ("identities, each read otherwise", |g, x, n| {
        let mut links = vec![x];
        (0..n).for_each(|i| links.push(links[i].identity("i")));
        (vec![g.add_n((0..n).map(|i| links[i] * i as f64).collect::<Vec<_>>())], vec![])
    }),
    ("identities that wait", |g, x, n| {
        let v = g.get_variable("v", [2, 2], Init::Zeros);
        let change = v.assign_add(x).op();
        (vec![chain(x, n, |x| g.control_dependencies([change], || x.identity("i")))], vec![])
    }),
    ("reshapes", |_, x, n| (vec![chain(x, n / 2, |x| x.reshape([4]).reshape([2, 2]))], vec![])),
    ("sums", |_, x, n| (vec![chain(x, n, |y| y + x)], vec![])),
    ("sums of itself, stretched", |g, x, n| {
        let q = x.sum();
        let end = chain(q.broadcast_to(&[2, 2]), n, |y| y + y);
        let read = g.control_dependencies([end.op()], || x.identity("after"));
        (vec![x * end, read], vec![])
    }),
    ("gates", |g, x, n| {
        let v = g.get_variable("v", [2, 2], Init::Zeros);
        let first = v.assign_add(x).op();
        let last = (0..n).fold(first, |op, _| g.control_dependencies([op], || g.no_op("gate")));
        (vec![g.control_dependencies([last], || x.identity("after"))], vec![])
    }),
    ("gates, each waited for", |g, x, n| {
        let v = g.get_variable("v", [2, 2], Init::Zeros);
        let mut gate = v.assign_add(x).op();
        let mut y = x;
        for _ in 0..n / 2 {
            gate = g.control_dependencies([gate], || g.no_op("gate"));
            y = g.control_dependencies([gate], || y.tanh());
        }
        (vec![y], vec![])
    }),
    ("changes, one after the other", |g, x, n| {
        let v = g.get_variable("v", [2, 2], Init::Zeros);
        let last = (0..n / 4).fold(v.assign_add(x), |c, _| g.control_dependencies([c.op()], || v.assign_add(x)));
        (vec![last], vec![])
    }),
    ("copies to and fro", |g, x, n| {
        let mut y = x;
        for _ in 0..n / 2 {
            y = g.device("/gpu:0", || y.tanh());
            y = g.device("/cpu:0", || y.tanh());
        }
        (vec![y], vec![])
    }),
    ("variables with one apply", |g, x, n| {
        let variables: Vec<_> = (0..n / 4).map(|i| g.get_variable(&format!("v{i}"), [2, 2], Init::Zeros)).collect();
        let loss = g.add_n(variables.iter().map(|v| (*v * x).sum()).collect::<Vec<_>>());
        let optimizer = Optimizer::gradient_descent(0.1);
        let train = optimizer.minimize(loss, ComputeOptions::default(), ApplyOptions::default());
        (vec![], vec![train])
    }),
    ("variables that are initialised", |g, _, n| {
        (0..n / 4).for_each(|i| {
            g.get_variable(&format!("v{i}"), [2, 2], Init::truncated_normal(0.0, 1.0));
        });
        (vec![], vec![g.global_variables_initializer()])
    }),
    ("fetches", |_, x, n| ((0..n / 4).map(|i| (x + i as f64).relu()).collect(), vec![])),
];

/// The fetches of a step of so many nodes.
fn values(build: Build, size: usize, fusion: bool) -> Vec<Array> {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [2, 2], "x");
    let (fetches, targets) = build(&g, x, size);
    let mut options = SessionOptions::devices("sim:1").unwrap();
    options.fusion = fusion;
    let session = Session::new(&g, options).unwrap();
    session.initialize().unwrap();
    let fed = Array::new(&[2, 2], &[0.0f32, 0.25, -0.5, 1e-3]).unwrap();
    session.run(&[(x, &fed)], &fetches, &targets).unwrap()
}

/// What took time in the square of the number of nodes, or a stack as deep, would be noticed here; `cargo bench -p
/// turret-benches --bench planning -- chains` measures it. `TURRET_PLAN_NODES` sets the number of nodes.
#[test]
fn chains_of_thousands_of_nodes_are_planned_and_run() {
    let most = std::env::var("TURRET_PLAN_NODES").ok().and_then(|n| n.parse().ok()).unwrap_or(2400);
    for (name, build) in CASES {
        assert_eq!(values(build, most, true), values(build, most, false), "{name}: fusion changes bits");
    }
}
