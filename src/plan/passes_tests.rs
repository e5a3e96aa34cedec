//! What passes leave of a step, and that it computes what the graph says.

use super::*;
use crate::base::{Array, DType};
use crate::graph::{Gradient, Graph, Init, Operation, Tensor};
use crate::run::{Session, SessionOptions};
use crate::train::{GradOptions, gradients};

/// The op types that run, in order, of a step that fetches these; its values must be those of the graph as it is.
fn runs(g: &Graph, devices: &str, feeds: &[(Tensor<'_>, &Array)], fetches: &[Tensor<'_>]) -> Vec<&'static str> {
    g.check().unwrap();
    // What is fused afterwards shows in tests of its own.
    let options = SessionOptions { fusion: false, ..SessionOptions::devices(devices).unwrap() };
    let session = Session::new(g, options).unwrap();
    let values = session.run(feeds, fetches, &[]).unwrap();
    let given: Vec<(Tensor<'_>, Array)> = feeds.iter().map(|(t, a)| (*t, (*a).clone())).collect();
    for (fetch, value) in fetches.iter().zip(&values) {
        let want = g.evaluate(*fetch, &given).unwrap();
        // A product's sums depend on how its sides lie.
        let near = |(a, b): (f64, f64)| (a - b).abs() < 1e-6 && fetch.op().op_type() == "MatMul";
        let alike = *value == *want || value.to_f64().into_iter().zip(want.to_f64()).all(near);
        assert!(alike, "{}: {value:?}, not {want:?}", fetch.name());
    }
    let dims: Vec<(Tensor<'_>, &[usize])> = feeds.iter().map(|(t, a)| (*t, a.dims())).collect();
    let schedule = session.schedule(&dims, fetches, &[]).unwrap();
    passes::check(&schedule.step, true).unwrap();
    schedule.step.nodes.iter().filter(|n| !n.silent).map(|n| n.what()).collect()
}

fn count(kinds: &[&str], kind: &str) -> usize {
    kinds.iter().filter(|k| **k == kind).count()
}

fn wave(dims: &[usize]) -> Array {
    let values: Vec<f32> = (0..dims.iter().product()).map(|i: usize| (i as f32 * 0.37).sin()).collect();
    Array::new(dims, &values).unwrap()
}

#[test]
fn the_gradient_of_a_mean_is_not_spread_before_it_is_multiplied() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [40, 50], "x");
    let found = gradients([x.square().mean()], [x], GradOptions::default());
    let Some(Gradient::Dense(grad)) = found[0] else { panic!("no dense gradient") };
    let kinds = runs(&g, "cpu", &[(x, &wave(&[40, 50]))], &[grad]);
    assert_eq!(kinds, ["Mul", "Mul"], "2 x, times what each element's share of the mean is");
}

#[test]
fn a_fed_placeholder_may_be_asked_for_as_an_op() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [2], "x");
    let gated = g.control_dependencies([x.op()], || (x + 1.0).exp());
    let session = Session::new(&g, SessionOptions::devices("cpu").unwrap()).unwrap();
    assert!(session.run(&[], &[], &[x.op()]).unwrap_err().to_string().contains("you must feed"));
    let got = session.run(&[(x, &wave(&[2]))], &[x, gated], &[x.op()]).unwrap();
    assert_eq!(got[0], wave(&[2]));
}

#[test]
fn what_only_orders_effects_computes_nothing() {
    fn grad<'g>(h: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let found = gradients([h.square().mean() * 0.01], [x], GradOptions::default());
        let Some(Gradient::Dense(grad)) = found[0] else { panic!("no dense gradient") };
        grad
    }
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [40, 50], "x");
    let feeds = [(x, &wave(&[40, 50]))];
    // A quotient of floats never fails.
    assert_eq!(runs(&g, "cpu", &feeds, &[grad(x / 3.0, x)]), ["RealDiv", "Mul", "Mul", "RealDiv"]);
    let checked = runs(&g, "cpu", &feeds, &[grad(x.check_numerics("x"), x)]);
    assert_eq!(checked, ["CheckNumerics", "Mul", "Mul", "CheckNumerics"]);
}

#[test]
fn what_is_stretched_is_read_small_unless_it_is_asked_for() {
    let g = Graph::new();
    let (x, row) = (g.placeholder(DType::F32, [40, 50], "x"), g.placeholder(DType::F32, [50], "row"));
    let wide = row.broadcast_to(&[40, 50]).exp();
    let sum = x + wide;
    let feeds = [(x, &wave(&[40, 50])), (row, &wave(&[50]))];
    assert_eq!(runs(&g, "cpu", &feeds, &[sum]), ["Exp", "AddV2"]);
    assert_eq!(count(&runs(&g, "cpu", &feeds, &[sum, wide]), "BroadcastTo"), 1);
    // What would come out smaller keeps one whole input; products read whole ones.
    let both = wide * row.broadcast_to(&[40, 50]);
    assert_eq!(count(&runs(&g, "cpu", &feeds, &[both]), "BroadcastTo"), 1);
    let product = wide.matmul_with(x, false, true);
    assert_eq!(count(&runs(&g, "cpu", &feeds, &[product]), "BroadcastTo"), 1);
}

#[test]
fn twins_are_computed_and_copied_once() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [3], "x");
    let (a, b) = g.device("/cpu:0", || ((x * 2.0).exp(), (x * 2.0).exp()));
    let sum = g.device("/gpu:0", || a * 3.0 - b);
    let feeds = [(x, &wave(&[3]))];
    let kinds = runs(&g, "sim:1", &feeds, &[sum, b, a]);
    assert_eq!([count(&kinds, "Exp"), count(&kinds, "copy")], [1, 2], "{kinds:?}");
    // Other attributes, other devices, other waits: others.
    let elsewhere = g.device("/gpu:0", || (x * 2.0).exp());
    assert_eq!(count(&runs(&g, "sim:1", &feeds, &[a, elsewhere]), "Exp"), 2);
    let (m, n) = (wave(&[3, 3]), g.placeholder(DType::F32, [3, 3], "m"));
    let products = [n.matmul(n), n.matmul_with(n, true, false), n.matmul_with(n, true, false)];
    assert_eq!(count(&runs(&g, "sim:1", &[(n, &m)], &products), "MatMul"), 2);
}

#[test]
fn twins_that_draw_stay_two() {
    let g = Graph::new();
    let draw = || g.random_uniform([8], 0.0, 1.0, None);
    let difference = draw() - draw();
    g.check().unwrap();
    let session = Session::new(&g, SessionOptions::devices("cpu").unwrap()).unwrap();
    let values = session.run(&[], &[difference], &[]).unwrap();
    assert!(values[0].to_f64().iter().any(|d| *d != 0.0));
}

#[test]
fn a_product_takes_transposes_in() {
    let g = Graph::new();
    let (x, y) = (g.placeholder(DType::F32, [4, 5], "x"), g.placeholder(DType::F32, [6, 4], "y"));
    let transposed = x.transpose(&[1, 0]);
    let product = transposed.matmul_with(y, false, true);
    let feeds = [(x, &wave(&[4, 5])), (y, &wave(&[6, 4]))];
    assert_eq!(runs(&g, "cpu", &feeds, &[product]), ["MatMul"]);
    assert_eq!(runs(&g, "cpu", &feeds, &[product, transposed]).len(), 2);
    let batch = g.placeholder(DType::F32, [2, 3, 4], "batch");
    let turned = batch.transpose(&[1, 0, 2]).sum();
    assert_eq!(count(&runs(&g, "cpu", &[(batch, &wave(&[2, 3, 4]))], &[turned]), "Transpose"), 1);
}

/// What a fetch is that reads a variable, 0 before, after `end`, which waits for its change to 1 in the way that `build`
/// says; `other` is fetched besides.
fn reads_after(build: for<'g> fn(&'g Graph, Tensor<'g>, Tensor<'g>, Operation<'g>) -> (Tensor<'g>, Tensor<'g>)) {
    for with_other in [false, true] {
        let g = Graph::new();
        let (x, q) = (g.placeholder(DType::F32, [6, 6], "x"), g.placeholder(DType::F32, [], "q"));
        let v = g.get_variable("v", [], Init::Zeros);
        let change = v.assign(g.constant(1.0f32)).op();
        let (end, other) = build(&g, x, q, change);
        let read = g.control_dependencies([end.op()], || v.buffer().identity("r"));
        let sum = v.buffer() + end;
        let session = Session::new(&g, SessionOptions::devices("cpu").unwrap()).unwrap();
        session.initialize().unwrap();
        let feeds = [(x, &wave(&[6, 6])), (q, &Array::scalar(0.0f32))];
        let mut fetches = vec![read, end, sum];
        fetches.extend(with_other.then_some(other));
        let got = session.run(&feeds, &fetches, &[]).unwrap();
        assert_eq!(got[0].get_f64(0), 1.0, "read before the change, with the other fetched: {with_other}");
        // A product that takes a transpose in may be summed in another order.
        let near = |(sum, end): (f64, f64)| (sum - end - 1.0).abs() < 1e-5;
        assert!(got[2].to_f64().into_iter().zip(got[1].to_f64()).all(near), "{with_other}");
    }
}

#[test]
fn what_is_stepped_over_is_still_waited_for() {
    // Twins: what is read through a gate that waits is no twin of what is read at once.
    reads_after(|g, x, _, change| {
        let gated = g.control_dependencies([change], || x.identity("y"));
        (gated.exp(), x.exp())
    });
    // A transpose that waits, and one of what waits.
    reads_after(|g, x, _, change| (g.control_dependencies([change], || x.transpose(&[1, 0])).matmul(x), x.exp()));
    reads_after(|g, x, _, change| {
        let turned = x.transpose(&[1, 0]);
        (g.control_dependencies([change], || turned.identity("t")).matmul(x), x.exp())
    });
    // What is stretched and waits, or is passed on by what waits, or is of what waits.
    reads_after(|g, x, q, change| (g.control_dependencies([change], || q.broadcast_to(&[6, 6])) * x, x.exp()));
    reads_after(|g, x, q, change| {
        let wide = q.broadcast_to(&[6, 6]);
        (g.control_dependencies([change], || wide.identity("w")) * x, x.exp())
    });
    reads_after(|g, x, _, change| {
        let gated = g.control_dependencies([change], || x.identity("y"));
        (gated.zeros_like() + x, x.exp())
    });
}

#[test]
fn reports_name_what_changed() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [40, 50], "x");
    let y = x * g.constant_named("one", 1.0f32).broadcast_to(&[40, 50]) + x.exp() * x.exp();
    let session = Session::new(&g, SessionOptions::devices("cpu").unwrap()).unwrap();
    let schedule = session.schedule(&[(x, &[40, 50])], &[y], &[]).unwrap();
    let of = |name: &str| schedule.step.passes.iter().find(|p| p.name == name).unwrap().clone();
    assert_eq!(of("twins").changes, ["'Exp_1' is 'Exp'"]);
    let narrow = of("narrow");
    assert_eq!(narrow.changes, ["'mul' reads 'BroadcastTo:0' as [] instead of [40, 50]"]);
    assert_eq!((narrow.nodes_before, narrow.nodes_after), (5, 4));
    assert_eq!(narrow.summary(), "narrow: 5 → 4 nodes, 1 change");
}
