//! Cases that libraries in Rust have met.

use super::small::{a_of_2, assert_near, linear, rows_of_grad_01, scalar, session};
use super::{assert_says, names};
use turret::base::{Array, Code, DType};
use turret::device::DeviceId;
use turret::graph::{Graph, Init, Tensor};
use turret::train::{GradOptions, Optimizer, Towers, gradients};

#[test]
fn rust_02() {
    let g = Graph::new();
    g.variable_scope("fc", || {
        g.get_variable("w", [2], Init::Zeros);
        g.get_variable("b", [2], Init::Zeros);
    });
    let nodes = g.len();
    g.variable_scope("net", || {
        assert_eq!(g.current_variable_scope().name(), "net");
        let error = g.find_variable("fc/v").unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert_says(
            &error.to_string(),
            &["'fc/v' does not exist", "scope 'net'", "did you mean 'fc/", "get_variable makes one"],
        );
        assert_says(&g.find_variable("w").unwrap_err().to_string(), &["did you mean 'fc/w'?"]);
        assert_eq!(g.find_variable("fc/w").unwrap().name(), "fc/w");
    });
    // Looking up made nothing, and is no error of the graph.
    assert_eq!((g.len(), g.check(), names(&g.all_variables())), (nodes, Ok(()), vec!["fc/w".into(), "fc/b".into()]));
    g.variable_scope("net", || g.get_variable("v", [2], Init::Ones));
    assert_eq!(g.find_variable("net/v").unwrap().name(), "net/v");
}

#[test]
fn rust_03() {
    for order in [["foo", "bar"], ["bar", "foo"]] {
        let g = Graph::new();
        for name in order {
            let made: Vec<String> = (0..3).map(|_| g.no_op(name).name()).collect();
            assert_eq!(made, [name.to_string(), format!("{name}_1"), format!("{name}_2")]);
        }
        // Variables count apart from each other, and a second one is an error, not a suffix.
        g.variable_scope("v", || {
            for name in order {
                assert_eq!(g.get_variable(name, [], Init::Zeros).name(), format!("v/{name}"));
                assert!(g.get_variable(name, [], Init::Zeros).is_poison());
            }
        });
        let codes: Vec<Code> = g.diagnostics().iter().map(|d| d.code).collect();
        assert_eq!(codes, [Code::AlreadyExists; 2]);
    }
}

/// Kernels see buffers of one device only, by their types; a backend cannot be called with a mix.
#[test]
fn rust_01() {
    let g = Graph::new();
    let near = g.device("/gpu:0", || g.get_variable("near", [2, 3], Init::Constant(2.0)));
    let far = g.device("/cpu:0", || g.get_variable("far", [3, 5], Init::Constant(0.5)));
    let product = g.device("/gpu:0", || near.value().matmul(far));
    let s = session(&g, 1);
    let schedule = s.schedule(&[], &[], &[product.op()]).unwrap();
    let copies: Vec<_> = schedule.step.copies().map(|(n, c)| (&*n.name, c.from, c.to, c.bytes)).collect();
    assert_eq!(copies, [("copy/far/read→gpu:0", DeviceId::HOST, DeviceId(1), 60)]);
    let out = s.run(&[], &[product], &[]).unwrap();
    assert_eq!((out[0].dims(), out[0].to_f64()), (&[2, 5][..], vec![3.0; 10]));
}

#[test]
fn rust_06() {
    /// `sum(w·x + Σ f(c))`; each `f` is a chain of operations on a constant. The loss and its gradient for `w`.
    fn build(g: &Graph, branches: usize, length: usize) -> [Tensor<'_>; 2] {
        let w = g.device("/gpu:0", || g.get_variable("w", [256], Init::Ones));
        let values: Vec<f32> = (0..256).map(|i| i as f32 / 256.0).collect();
        g.device("/gpu:0", || {
            let x = g.placeholder(DType::F32, [256], "x");
            let mut total = w * x;
            for _ in 0..branches {
                total = g.name_scope("f", || {
                    let constant = g.constant(&values[..]) + x.stop_gradient();
                    total + (0..length).fold(constant, |c, _| c.tanh())
                });
            }
            let loss = total.sum();
            let grads = gradients([loss], [w], GradOptions::default());
            [loss, grads[0].map(|g| g.values()).unwrap()]
        })
    }
    let gradient_nodes = |g: &Graph| -> Vec<String> {
        g.nodes().iter().map(|n| n.name.to_string()).filter(|n| n.starts_with("gradients/")).collect()
    };
    let g = Graph::new();
    build(&g, 0, 0);
    let without = gradient_nodes(&g).len();
    let x = Array::new(&[256], &[3f32; 256]).unwrap();
    let mut peaks = Vec::new();
    for (branches, length) in [(1, 10), (8, 10), (8, 40)] {
        let g = Graph::new();
        let [loss, grad] = build(&g, branches, length);
        let of_f: Vec<String> = gradient_nodes(&g).into_iter().filter(|n| n.contains("Tanh")).collect();
        assert_eq!(of_f, Vec::<String>::new());
        // The additions that bring the branches in are on the way to w; nothing else is added.
        let additions = gradient_nodes(&g).iter().filter(|n| n.contains("/f")).count();
        assert_eq!(gradient_nodes(&g).len(), without + additions);
        let s = session(&g, 1);
        let feed = g.tensor("x:0").unwrap();
        assert_eq!(s.run(&[(feed, &x)], &[loss, grad], &[]).unwrap()[1], x);
        let schedule = s.schedule(&[(feed, &[256])], &[loss, grad], &[]).unwrap();
        peaks.push(schedule.memory.arena_bytes(DeviceId(1)));
    }
    // A fused kernel holds what all its parts read.
    let bound = if crate::gpus::are_cuda() { 2 * peaks[0] } else { peaks[0] };
    assert!(peaks.iter().all(|p| *p <= bound), "{peaks:?}");
}

/// The half of the towers; the mirrored strategy, which has to give the same, is not there yet.
#[test]
fn rust_08() {
    let g = Graph::new();
    let sgd = Optimizer::gradient_descent(0.1);
    let program = linear(&g, Some(4), DType::F32, Towers::new(&g, 2), &sgd, a_of_2);
    let train = program.built.apply(&sgd);
    let s = session(&g, 2);
    let (x, t) = rows_of_grad_01();
    s.run(&[(program.x, &x), (program.t, &t)], &[], &[train]).unwrap();
    assert_near(&[scalar(&s, g.find_variable("a").unwrap())], &[2.5], 1e-5);
}
