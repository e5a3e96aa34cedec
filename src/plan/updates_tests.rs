//! Which gradients an update computes itself, which not, and that variables get the same bits either way.

use super::planned_tests::{self as planned, inputs, kernels};
use crate::base::Array;
use crate::device::Machine;
use crate::graph::{Graph, Init, Operation, Tensor, Variable, keys};
use crate::run::{Session, SessionOptions};
use crate::train::{GradAndVar, Optimizer, clip_by_global_norm};

/// Sizes around those of tiles and of the pieces in which updates are cut.
const SIZES: [&[usize]; 5] = [&[70, 301], &[4097], &[4096], &[3], &[]];

fn variables(g: &Graph) -> Vec<Variable<'_>> {
    SIZES.iter().enumerate().map(|(i, d)| g.get_variable(&format!("v{i}"), *d, Init::Constant(0.5))).collect()
}

/// Two gradients of each variable, fed.
fn fed(g: &Graph) -> Vec<Tensor<'_>> {
    inputs(g, &[SIZES, SIZES].concat())
}

fn list<'g>(gradients: impl IntoIterator<Item = Tensor<'g>>, variables: &[Variable<'g>]) -> Vec<GradAndVar<'g>> {
    gradients
        .into_iter()
        .zip(variables)
        .map(|(gradient, var)| GradAndVar { grad: Some(gradient.into()), var: *var })
        .collect()
}

/// The gradients as towers are averaged.
fn averages<'g>(x: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
    let (one, other) = x.split_at(SIZES.len());
    one.iter().zip(other).map(|(a, b)| (*a + *b) / 2.0).collect()
}

fn optimizer<'g>(number: usize) -> Optimizer<'g> {
    match number {
        0 => Optimizer::gradient_descent(0.1),
        1 => Optimizer::momentum(0.1, 0.9),
        2 => Optimizer::adam(0.01),
        3 => Optimizer::rms_prop(0.01),
        4 => Optimizer::rms_prop(0.01).centered(),
        5 => Optimizer::adagrad(0.1),
        6 => Optimizer::adadelta(1.0),
        _ => Optimizer::ftrl(0.1),
    }
}

/// The kernels of a step that ends in this operation.
fn plan<'g>(g: &'g Graph, fetches: &[Tensor<'g>], train: Operation<'g>) -> Vec<String> {
    kernels(&planned::plan(g, Machine::simulated(1), fetches, &[train], &[SIZES, SIZES].concat()))
}

/// All variables and fetches after three steps: with fusion and one thread, with three threads, and without fusion.
fn values<'g>(g: &'g Graph, x: &[Tensor<'g>], fetches: &[Tensor<'g>], train: Operation<'g>) -> [Vec<Array>; 3] {
    let array = |(i, t): (usize, &Tensor<'g>)| {
        let dims = t.shape().to_dims().unwrap().to_vec();
        let value = |j: usize| ((j * 37 + i * 11) % 101) as f32 / 50.0 - 1.0;
        Array::new(&dims, &(0..dims.iter().product()).map(value).collect::<Vec<f32>>()).unwrap()
    };
    let arrays: Vec<Array> = x.iter().enumerate().map(array).collect();
    let feeds: Vec<(Tensor<'g>, &Array)> = x.iter().copied().zip(&arrays).collect();
    [(true, 1), (true, 3), (false, 1)].map(|(fusion, threads)| {
        let mut options = SessionOptions::on(Machine::simulated(1).with_host_threads(threads));
        options.fusion = fusion;
        let session = Session::new(g, options).unwrap();
        session.initialize().unwrap();
        let mut all = Vec::new();
        for _ in 0..3 {
            all.extend(session.run(&feeds, fetches, &[train]).unwrap());
        }
        let variables: Vec<Tensor<'g>> = g.variables_in(keys::GLOBAL_VARIABLES).iter().map(|v| v.read).collect();
        all.extend(session.run(&[], &variables, &[]).unwrap());
        all
    })
}

fn check_bits<'g>(g: &'g Graph, x: &[Tensor<'g>], fetches: &[Tensor<'g>], train: Operation<'g>) {
    let [one, three, apart] = values(g, x, fetches, train);
    assert_eq!(one, apart, "fusion changes bits");
    assert_eq!(one, three, "threads change bits");
}

#[test]
fn every_update_averages_what_it_applies() {
    for number in 0..8 {
        let g = Graph::new();
        let (x, v) = (fed(&g), variables(&g));
        let train = optimizer(number).apply_gradients(&list(averages(&x), &v));
        assert_eq!(plan(&g, &[], train), ["AddV2+RealDiv+ApplyGradients"]);
        check_bits(&g, &x, &[], train);
    }
}

#[test]
fn each_pass_reports_what_it_did_itself() {
    let g = Graph::new();
    let (x, v) = (fed(&g), variables(&g));
    let train = Optimizer::gradient_descent(0.1).apply_gradients(&list(averages(&x), &v));
    let large = (x[0].exp() + 1.0).relu();
    let dims = [SIZES, SIZES].concat();
    let schedule = planned::plan(&g, Machine::simulated(1), &[large], &[train], &dims);
    let changes = |name: &str| schedule.step.passes.iter().find(|p| p.name == name).map(|p| p.changes.clone());
    assert_eq!(changes("update").unwrap(), ["'GradientDescent' does AddV2+RealDiv+ApplyGradients"]);
    assert_eq!(changes("tile").unwrap(), ["'Relu' does Exp+AddV2+Relu"]);
}

#[test]
fn gradients_are_cut_to_the_norm_as_they_are_applied() {
    let g = Graph::new();
    let (x, v) = (fed(&g), variables(&g));
    let clipped = clip_by_global_norm(&list(x[..5].to_vec(), &v), 2.0);
    let train = Optimizer::gradient_descent(0.1).apply_gradients(&clipped);
    let norm = ["L2Loss", "L2Loss", "L2Loss", "L2Loss", "L2Loss", "AddN", "Mul", "Sqrt"];
    let factor = ["Maximum", "RealDiv", "Sub", "AddV2"];
    assert_eq!(plan(&g, &[], train), [&norm[..], &factor, &["Mul+ApplyGradients"]].concat());
    check_bits(&g, &x, &[], train);
}

#[test]
fn what_is_read_elsewhere_or_waited_for_is_made_before() {
    type Make = dyn for<'g> Fn(&'g Graph, &[Tensor<'g>]) -> (Vec<Tensor<'g>>, Vec<Tensor<'g>>);
    let check = |make: &Make, want: &[&str]| {
        let g = Graph::new();
        let (x, v) = (fed(&g), variables(&g));
        let (gradients, fetches) = make(&g, &x);
        let train = Optimizer::gradient_descent(0.1).apply_gradients(&list(gradients, &v));
        assert_eq!(plan(&g, &fetches, train), want);
        check_bits(&g, &x, &fetches, train);
    };
    // Fetched.
    check(
        &|_, x| {
            let all = averages(x);
            (all.clone(), vec![all[0]])
        },
        &["AddV2+RealDiv", "AddV2+RealDiv+ApplyGradients"],
    );
    // Read by another node.
    check(
        &|_, x| {
            let all = averages(x);
            (all.clone(), vec![all[1].exp()])
        },
        &["AddV2+RealDiv+Exp", "AddV2+RealDiv+ApplyGradients"],
    );
    // On another device.
    check(
        &|g, x| {
            let mut all = averages(x);
            all[0] = g.device("/gpu:0", || x[0].exp());
            (all, vec![])
        },
        &["Exp", "AddV2+RealDiv+ApplyGradients"],
    );
    // Another node waits for it.
    check(
        &|g, x| {
            let all = averages(x);
            let after = g.control_dependencies([all[2].op()], || x[2].exp());
            (all, vec![after])
        },
        &["AddV2", "RealDiv", "Exp", "AddV2+RealDiv+ApplyGradients"],
    );
}

#[test]
fn an_update_reads_no_variable_that_it_changes() {
    let g = Graph::new();
    let (x, v) = (fed(&g), variables(&g));
    let other = g.get_variable("other", [4096], Init::Constant(2.0));
    let mut gradients = averages(&x);
    // Weight decay, the same of another variable of the update, and of one that stays.
    gradients[0] = x[0] + v[0].read * 0.1;
    gradients[1] = x[1] * v[4].read;
    gradients[2] = x[2] + other.read * 0.1;
    let train = Optimizer::gradient_descent(0.1).apply_gradients(&list(gradients, &v));
    let kernels = plan(&g, &[], train);
    assert_eq!(kernels, ["Mul", "Mul", "AddV2+Mul+AddV2+AddV2+RealDiv+ApplyGradients"]);
    check_bits(&g, &x, &[], train);
}

#[test]
fn what_is_read_first_may_be_a_number() {
    let g = Graph::new();
    let (x, v) = (fed(&g), variables(&g));
    let gradients = (0..4).map(|i| x[9] * x[i] + x[4] * x[5 + i]);
    let train = Optimizer::momentum(0.1, 0.9).apply_gradients(&list(gradients, &v));
    assert_eq!(plan(&g, &[], train), ["Mul+Mul+AddV2+ApplyGradients"]);
    check_bits(&g, &x, &[], train);
}

#[test]
fn one_gradient_of_two_variables_is_made_once() {
    let g = Graph::new();
    let (x, v) = (fed(&g), variables(&g));
    let twin = g.get_variable("twin", SIZES[0], Init::Constant(2.0));
    let gradients = averages(&x);
    let mut list = list(gradients.clone(), &v);
    list.push(GradAndVar { grad: Some(gradients[0].into()), var: twin });
    let train = Optimizer::gradient_descent(0.1).apply_gradients(&list);
    assert_eq!(plan(&g, &[], train), ["AddV2+RealDiv", "AddV2+RealDiv+ApplyGradients"]);
    check_bits(&g, &x, &[], train);
}
