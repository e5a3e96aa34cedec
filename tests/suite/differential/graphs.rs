//! Random graphs of ops on random devices, with random fetches and feeds of any tensor, against `Graph::evaluate`: the
//! same kernels, one after the other on the host. The bits must agree.

use super::random::Random;
use turret::base::{Array, DType};
use turret::device::{Machine, Peers};
use turret::graph::{Graph, Init, Tensor, Variable};
use turret::run::{Session, SessionOptions};

/// A graph that grows, with the sizes of what is in it.
struct Growing<'g> {
    g: &'g Graph,
    random: Random,
    gpus: usize,
    /// All `float32`, of known shape.
    tensors: Vec<Tensor<'g>>,
    variables: Vec<Variable<'g>>,
    placeholders: Vec<Tensor<'g>>,
    /// What sizes above 1 are multiplied by.
    scale: usize,
}

fn dims(t: Tensor<'_>) -> Vec<usize> {
    t.shape().to_dims().unwrap_or_else(|| panic!("{t:?} has no known shape")).to_vec()
}

impl<'g> Growing<'g> {
    fn new(g: &'g Graph, seed: u64) -> Growing<'g> {
        let mut random = Random::new(seed);
        let gpus = 1 + random.below(4);
        Growing { g, random, gpus, tensors: Vec::new(), variables: Vec::new(), placeholders: Vec::new(), scale: 1 }
    }

    fn device(&mut self) -> String {
        match self.random.below(self.gpus + 2) {
            0 => String::new(),
            1 => "/cpu:0".into(),
            n => format!("/gpu:{}", n - 2),
        }
    }

    fn sizes(&mut self) -> Vec<usize> {
        let rank = self.random.below(4);
        (0..rank)
            .map(|_| if self.random.one_in(40) { 0 } else { self.random.pick(&[1, 2, 3, 4, 6]) })
            .map(|size| if size == 1 { 1 } else { size * self.scale })
            .collect()
    }

    fn array(&mut self, dims: &[usize]) -> Array {
        let values = self.random.numbers(dims.iter().product());
        Array::new(dims, &values).unwrap()
    }

    fn any(&mut self) -> Tensor<'g> {
        self.random.pick(&self.tensors.clone())
    }

    /// A tensor of the same sizes, often another one.
    fn alike(&mut self, t: Tensor<'g>) -> Tensor<'g> {
        let same: Vec<Tensor<'g>> = self.tensors.iter().copied().filter(|o| dims(*o) == dims(t)).collect();
        self.random.pick(&same)
    }

    fn add_source(&mut self) {
        let (g, device, sizes) = (self.g, self.device(), self.sizes());
        let array = self.array(&sizes);
        let tensor = match self.random.below(3) {
            0 => g.device(&device, || g.constant(array)),
            1 => {
                let name = format!("v{}", self.variables.len());
                let variable = g.device(&device, || g.get_variable(&name, &sizes[..], Init::data(array)));
                self.variables.push(variable);
                variable.value()
            }
            _ => {
                let placeholder = g.device(&device, || g.placeholder(DType::F32, &sizes[..], "p"));
                self.placeholders.push(placeholder);
                placeholder
            }
        };
        self.tensors.push(tensor);
    }

    fn add_op(&mut self) {
        let (g, device) = (self.g, self.device());
        let x = self.any();
        let y = self.alike(x);
        let kind = self.random.below(37);
        let (number, coin) = (self.random.number(), self.random.one_in(2));
        let xs = dims(x);
        let axis = if xs.is_empty() { 0 } else { self.random.below(xs.len()) };
        let index =
            Array::new(&[3], &[0i32, self.random.below(xs.get(axis).copied().unwrap_or(1).max(1)) as i32, 0]).unwrap();
        let mut others = self.tensors.clone();
        others.retain(|o| match (&xs[..], &dims(*o)[..]) {
            ([_, k], [n, m]) => {
                if coin {
                    n == k
                } else {
                    m == k
                }
            }
            _ => false,
        });
        let other = if others.is_empty() { None } else { Some(self.random.pick(&others)) };
        let made: Vec<Tensor<'g>> = g.device(&device, || match kind {
            0 => vec![x.relu()],
            1 => vec![x.tanh()],
            2 => vec![x.sigmoid()],
            3 => vec![-x],
            4 => vec![x.abs()],
            5 => vec![x.identity("same")],
            6 => vec![x.stop_gradient()],
            7 => vec![x + y],
            8 => vec![x - y],
            9 => vec![x * y],
            10 => vec![x.maximum(y)],
            11 => vec![x.minimum(y).squared_difference(x)],
            12 => vec![x * f64::from(number)],
            13 => vec![f64::from(number) - x],
            14 => vec![x.sum() + y],
            15 if !xs.is_empty() => vec![x.sum_axes(&[axis as i32], coin)],
            16 if !xs.is_empty() => vec![x.mean_axes(&[axis as i32 - xs.len() as i32], coin)],
            17 if !xs.is_empty() => vec![x.max_axes(&[axis as i32], coin)],
            18 => vec![x.mean()],
            19 if xs.iter().product::<usize>().is_multiple_of(2) => {
                vec![x.reshape([2, (xs.iter().product::<usize>() / 2) as i32])]
            }
            20 => vec![x.reshape([-1])],
            21 if xs.len() < 3 => vec![x.expand_dims(axis as i32)],
            22 if !xs.is_empty() && xs[axis] < 8 * self.scale => vec![g.concat([x, y, x], axis as i32)],
            23 if !xs.is_empty() && xs[axis].is_multiple_of(2) => x.split(2, axis as i32),
            24 if !xs.is_empty() && xs[axis] > 1 => x.split_sizes(&[1, -1], axis as i32),
            25 if !xs.is_empty() && xs[axis] > 0 => vec![x.gather(g.constant(index), axis as i32)],
            26 if xs.len() == 2 => vec![x.transpose(&[1, 0])],
            27 if xs.len() == 2 => vec![x.softmax()],
            28 | 29 => other.map(|o| x.matmul_with(o, false, !coin)).into_iter().collect(),
            30 => vec![x.greater(y).select(x, y)],
            31 => vec![x.cast(DType::F64).square().cast(DType::F32)],
            32 => vec![g.node_of(turret::ops::find("AddN").unwrap()).inputs([x, y, x]).tensor()],
            33 if !xs.is_empty() => vec![x.tile(&vec![2; xs.len()])],
            34 if !xs.is_empty() => vec![x.cumsum(axis as i32, coin, !coin)],
            35 => vec![x.check_numerics("never"), x.l2_loss()],
            36 => vec![x.reshape(x.shape_tensor()) + x.zeros_like()],
            _ => vec![],
        });
        // Values that grow without bound end in NaN, which compares well but tells little.
        let count = |t: &Tensor<'g>| dims(*t).iter().product::<usize>();
        self.tensors.extend(made.into_iter().filter(|t| count(t) <= 512 * self.scale * self.scale));
    }
}

/// Fetches and feeds of one run.
fn compare(w: &mut Growing<'_>, s: &Session<'_>, seed: u64) {
    let mut feeds: Vec<(Tensor<'_>, Array)> = Vec::new();
    for p in w.placeholders.clone() {
        let array = w.array(&dims(p));
        feeds.push((p, array));
    }
    for _ in 0..w.random.below(3) {
        let t = w.any();
        if !feeds.iter().any(|(f, _)| *f == t) {
            let array = w.array(&dims(t));
            feeds.push((t, array));
        }
    }
    let fetches: Vec<Tensor<'_>> = (0..1 + w.random.below(5)).map(|_| w.any()).collect();
    let given: Vec<(Tensor<'_>, &Array)> = feeds.iter().map(|(t, a)| (*t, a)).collect();
    let mut known = feeds.clone();
    known.extend(w.variables.iter().map(|v| (v.buffer(), s.value(*v).unwrap())));
    // Twice, since the second run finds the buffers of the first.
    for run in 0..2 {
        let got = match s.run(&given, &fetches, &[]) {
            Ok(got) => got,
            Err(e) => {
                let refusals = fetches.iter().filter_map(|f| w.g.evaluate(*f, &known).err());
                let all: Vec<String> = refusals.collect();
                assert!(refused(&e.to_string()) && all.iter().any(|m| refused(m)), "graph {seed}: {e}\nwant {all:?}");
                return;
            }
        };
        for (fetch, got) in fetches.iter().zip(&got) {
            let want = w.g.evaluate(*fetch, &known).unwrap_or_else(|e| panic!("graph {seed}: {e}"));
            assert!(
                same(got, &want),
                "graph {seed}, run {run}: {fetch:?} of {fetches:?} with feeds {:?}: want {want:?}, got {got:?}",
                feeds.iter().map(|f| f.0).collect::<Vec<_>>()
            );
        }
    }
}

/// The same bits; a CUDA GPU's kernels round sums in another order, and functions by another library.
fn same(got: &Array, want: &Array) -> bool {
    let alike = (got.dtype(), got.dims()) == (want.dtype(), want.dims());
    if !crate::gpus::are_cuda() || !got.dtype().is_floating() {
        return alike && got.bytes() == want.bytes();
    }
    let near = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-4 * b.abs().max(1.0);
    alike && got.to_f64().iter().zip(&want.to_f64()).all(near)
}

/// How many random programs are tried; `TURRET_RANDOM` multiplies them.
pub fn seeds(count: u64) -> u64 {
    let times = std::env::var("TURRET_RANDOM").ok().and_then(|t| t.parse::<u64>().ok());
    count * times.unwrap_or(1)
}

#[test]
fn a_part_is_fed_beside_parts_that_are_computed() {
    let g = Graph::new();
    let x = g.device("/gpu:0", || g.placeholder(DType::F32, [4], "x"));
    let parts = g.device("/gpu:1", || x.split(2, 0));
    let both = g.device("/gpu:0", || g.concat([parts[0], parts[1], parts[0]], 0));
    let feeds =
        [(x, Array::new(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap()), (parts[0], Array::new(&[2], &[8f32, 9.0]).unwrap())];
    let s = Session::new(&g, SessionOptions::on(crate::gpus::machine(2))).unwrap();
    let given: Vec<(Tensor<'_>, &Array)> = feeds.iter().map(|(t, a)| (*t, a)).collect();
    let got = s.run(&given, &[both, parts[0], parts[1]], &[]).unwrap();
    assert_eq!(got[0].to_f64(), [8.0, 9.0, 3.0, 4.0, 8.0, 9.0]);
    assert_eq!((got[1].to_f64(), got[2].to_f64()), (vec![8.0, 9.0], vec![3.0, 4.0]));
    assert_eq!(*g.evaluate(both, &feeds).unwrap(), got[0]);
    assert_eq!(*g.evaluate(parts[0], &feeds).unwrap(), got[1]);
}

/// Feeds may hold infinities once they are computed with; that a check refuses them is no failure of the session.
fn refused(message: &str) -> bool {
    message.contains("tensor had")
}

#[test]
fn random_graphs_give_the_same_bits_as_their_nodes_alone() {
    for seed in 0..seeds(300) {
        let g = Graph::new();
        let mut w = Growing::new(&g, seed);
        for _ in 0..3 {
            w.add_source();
        }
        for _ in 0..8 + seed as usize % 24 {
            if w.random.one_in(6) { w.add_source() } else { w.add_op() }
        }
        g.check().unwrap_or_else(|e| panic!("graph {seed}: {e}"));
        let peers = w.random.pick(&[Peers::All, Peers::Pairs, Peers::None]);
        let machine = crate::gpus::machine(w.gpus).with_peers(peers).with_host_threads(1 + seed as usize % 2);
        let s = Session::new(&g, SessionOptions::on(machine)).unwrap();
        s.initialize().unwrap_or_else(|e| panic!("graph {seed}: {e}"));
        for _ in 0..3 {
            compare(&mut w, &s, seed);
        }
    }
}

#[test]
fn large_graphs_give_the_same_figures_fused_and_apart() {
    let (mut compared, mut fused_nodes) = (0, 0);
    for seed in 0..seeds(60) {
        let g = Graph::new();
        let mut w = Growing::new(&g, seed + 10_000);
        // All on the host, of few sizes and nothing that is known beforehand, so that much can be fused.
        (w.scale, w.gpus) = (16, 0);
        for sizes in [[96, 64], [96, 64], [64, 96], [80, 64]] {
            let placeholder = g.placeholder(DType::F32, sizes, "p");
            w.placeholders.push(placeholder);
            w.tensors.push(placeholder);
        }
        for _ in 0..24 + seed as usize % 24 {
            w.add_op();
        }
        g.check().unwrap_or_else(|e| panic!("graph {seed}: {e}"));
        let feeds: Vec<(Tensor<'_>, Array)> =
            w.placeholders.clone().into_iter().map(|p| (p, w.array(&dims(p)))).collect();
        let given: Vec<(Tensor<'_>, &Array)> = feeds.iter().map(|(t, a)| (*t, a)).collect();
        let last = w.tensors.iter().rev().step_by(3).take(4).copied().collect::<Vec<_>>();
        let fetches: Vec<Tensor<'_>> = last.into_iter().chain([w.any()]).collect();
        let run = |fusion: bool, threads: usize| {
            let machine = Machine::host().with_host_threads(threads);
            let s = Session::new(&g, SessionOptions { fusion, ..SessionOptions::on(machine) }).unwrap();
            s.initialize().unwrap_or_else(|e| panic!("graph {seed}: {e}"));
            let shapes: Vec<(Tensor<'_>, &[usize])> = given.iter().map(|(t, a)| (*t, a.dims())).collect();
            let nodes = s
                .schedule(&shapes, &fetches, &[])
                .map_or(0, |plan| plan.step.nodes.iter().filter(|n| n.fusion.is_some()).count());
            (s.run(&given, &fetches, &[]), nodes)
        };
        let (fused, again, apart) = (run(true, 1), run(true, 3), run(false, 1));
        assert_eq!(apart.1, 0, "graph {seed}");
        fused_nodes += fused.1;
        // Only what a check refuses is no answer, and then it is refused each time.
        let (fused, again, apart) = match (fused.0, again.0, apart.0) {
            (Ok(fused), Ok(again), Ok(apart)) => (fused, again, apart),
            (Err(fused), Err(again), Err(apart)) => {
                let messages = [fused, again, apart].map(|e| e.to_string());
                assert!(messages.iter().all(|m| refused(m)), "graph {seed}: {messages:?}");
                continue;
            }
            (fused, again, apart) => panic!("graph {seed}: {:?}", [fused, again, apart].map(|r| r.err())),
        };
        compared += 1;
        for (((fused, again), apart), fetch) in fused.iter().zip(&again).zip(&apart).zip(&fetches) {
            assert!(fused.bytes() == again.bytes(), "graph {seed}: {fetch:?} has other bits with other threads");
            let (got, want) = (fused.to_f64(), apart.to_f64());
            let largest = want.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
            let near = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-5 * largest;
            let far = got.iter().zip(&want).position(|pair| !near(pair));
            let pair = far.map(|i| (i, got[i], want[i]));
            assert!(fused.dims() == apart.dims() && far.is_none(), "graph {seed}: {fetch:?} {pair:?} of {largest}");
        }
    }
    assert!(compared > 40 && fused_nodes > 60, "{compared} graphs compared, {fused_nodes} nodes fused");
}
