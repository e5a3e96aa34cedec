//! Where averages run: every place gives the same means, spreads are balanced, and wrong places are explained.

use super::*;
use crate::base::{Array, DType};
use crate::graph::{Gradient, Graph, Init, Tensor, Variable, VariablePlacement};

/// A graph's problems, in one text.
fn messages(g: &Graph) -> String {
    g.check().err().map(|e| e.to_string()).unwrap_or_default()
}

/// The sum of vectors of these sizes, which are variables.
fn loss<'g>(g: &'g Graph, sizes: &[usize]) -> Tensor<'g> {
    let parts = sizes.iter().enumerate().map(|(i, &n)| g.get_variable(&format!("v{i}"), [n], Init::Ones).value().sum());
    g.add_n(parts.collect::<Vec<_>>())
}

/// The device that each mean asks for.
fn devices(grads: &[GradAndVar<'_>]) -> Vec<String> {
    grads.iter().map(|gv| gv.grad.unwrap().values().device().to_string()).collect()
}

/// Whether each mean is made of an `AllReduceN`.
fn reduces(grads: &[GradAndVar<'_>]) -> Vec<bool> {
    let op = |gv: &GradAndVar<'_>| gv.grad.unwrap().op().inputs()[0].op().op_type();
    grads.iter().map(|gv| op(gv) == "AllReduceN").collect()
}

#[test]
fn a_spread_is_balanced_by_bytes() {
    let g = Graph::new();
    let sizes = [10, 400, 300, 300, 100, 90];
    let built = Towers::new(&g, 3)
        .variables(VariablePlacement::host())
        .average_spread()
        .build(&Optimizer::gradient_descent(0.1), |_| loss(&g, &sizes));
    assert_eq!(messages(&g), "");
    // 400 | 300, 100 (the first of equals) | 300, 90, 10.
    let want = ["GPU:2", "GPU:0", "GPU:1", "GPU:2", "GPU:1", "GPU:2"].map(|d| format!("/device:{d}"));
    assert_eq!(devices(&built.grads), want);
    let rule = g.operation("average/v1").unwrap().node().unwrap().device.rule.to_string();
    assert_eq!(rule, "averaging rule: spread");
}

#[test]
fn an_all_reduce_gives_each_variable_the_sum_of_its_own_device() {
    let g = Graph::new();
    let sizes = [4, 4, 4];
    let built = Towers::new(&g, 2)
        .variables(VariablePlacement::round_robin(2))
        .average_all_reduce()
        .build(&Optimizer::gradient_descent(0.1), |_| loss(&g, &sizes));
    assert_eq!(messages(&g), "");
    assert_eq!(reduces(&built.grads), [true; 3]);
    assert_eq!(devices(&built.grads), ["/device:GPU:0", "/device:GPU:1", "/device:GPU:0"]);
    let sum = built.grads[1].grad.unwrap().op().inputs()[0];
    assert_eq!((sum.name(), sum.op().outputs().len()), ("average/v1/sum:1".to_string(), 2));

    // Variables that are on no tower's device take the first tower's.
    let g = Graph::new();
    let built = Towers::new(&g, 2)
        .variables(VariablePlacement::host())
        .average_all_reduce()
        .sum_gradients()
        .build(&Optimizer::gradient_descent(0.1), |_| loss(&g, &sizes));
    assert_eq!((messages(&g), devices(&built.grads)), (String::new(), vec!["/device:GPU:0".to_string(); 3]));
    assert_eq!(g.operation("sum/v0").unwrap().op_type(), "Identity");
}

#[test]
fn sizes_decide_between_latency_and_links() {
    let large = SMALL_GRADIENT_BYTES / 4;
    let sizes = [large, large - 1, large];
    let build = |placement: VariablePlacement| {
        let g = Graph::new();
        let built = Towers::new(&g, 2)
            .variables(placement)
            .average_by_size()
            .build(&Optimizer::gradient_descent(0.1), |_| loss(&g, &sizes));
        assert_eq!(messages(&g), "");
        (devices(&built.grads), reduces(&built.grads))
    };
    let on = |names: [&str; 3]| names.map(|n| format!("/device:{n}")).to_vec();
    assert_eq!(build(VariablePlacement::host()), (on(["GPU:0", "CPU:0", "GPU:1"]), vec![false; 3]));
    assert_eq!(build(VariablePlacement::gpu(1)), (on(["GPU:0", "GPU:1", "GPU:1"]), vec![false; 3]));
    let several = (on(["GPU:0", "GPU:1", "GPU:0"]), vec![true, false, true]);
    assert_eq!(build(VariablePlacement::round_robin(2)), several);
}

#[test]
fn rows_stay_beside_their_variables() {
    for place in [AveragePlace::Spread, AveragePlace::AllReduce, AveragePlace::BySize] {
        let g = Graph::new();
        let table = VariablePlacement::host();
        let built = Towers::new(&g, 2).variables(table).average_at(place.clone()).build(
            &Optimizer::gradient_descent(0.1),
            |tower| {
                let table = g.get_variable("table", [40_000, 3], Init::Zeros);
                table.value().gather(g.constant([[0, 1], [0, 2]][tower.index()]), 0).sum()
            },
        );
        assert_eq!(messages(&g), "");
        assert!(matches!(built.grads[0].grad, Some(Gradient::Slices(_))), "{place:?}");
        assert_eq!(devices(&built.grads), ["/device:CPU:0"], "{place:?}");
    }
}

/// One gradient of `w` for each of these devices; none where the text is empty.
fn by_hand<'g>(g: &'g Graph, w: Variable<'g>, devices: &[&str]) -> Vec<Vec<GradAndVar<'g>>> {
    let grad = |(i, device): (usize, &&str)| {
        let value = g.device(device, || g.constant(vec![i as f32 + 1.0; 3]).square());
        vec![GradAndVar { grad: (!device.is_empty()).then_some(value.into()), var: w }]
    };
    devices.iter().enumerate().map(grad).collect()
}

#[test]
fn a_tower_without_a_gradient_is_left_out_of_the_all_reduce() {
    let g = Graph::new();
    let w = g.device("/gpu:0", || g.get_variable("w", [3], Init::Zeros));
    let means = average_gradients(&by_hand(&g, w, &["", "/gpu:1", "/gpu:2"]), AverageOptions::all_reduce());
    assert_eq!(messages(&g), "");
    assert_eq!((devices(&means), reduces(&means)), (vec!["/device:GPU:1".to_string()], vec![true]));
    let got = g.evaluate(means[0].grad.unwrap().values(), &[]).unwrap();
    assert_eq!(*got, Array::new(&[3], &[13.0f32 / 3.0; 3]).unwrap());
    // One alone is no sum.
    let g = Graph::new();
    let w = g.get_variable("w", [3], Init::Zeros);
    let means = average_gradients(&by_hand(&g, w, &["", "/gpu:1"]), AverageOptions::all_reduce());
    assert_eq!((messages(&g), reduces(&means)), (String::new(), vec![false]));
}

#[test]
fn rows_of_the_batch_weigh_on_the_towers_own_devices() {
    let g = Graph::new();
    let w = g.device("/gpu:0", || g.get_variable("w", [3], Init::Zeros));
    let options = AverageOptions { rows: Some(vec![3, 1]), ..AverageOptions::all_reduce() };
    let means = average_gradients(&by_hand(&g, w, &["/gpu:0", "/gpu:1"]), options);
    assert_eq!(messages(&g), "");
    let weighted = g.operation("average/w/times_rows_1").unwrap();
    assert_eq!(weighted.device().to_string(), "/device:GPU:1");
    let got = g.evaluate(means[0].grad.unwrap().values(), &[]).unwrap();
    assert_eq!(got.to_f64(), [(3.0 + 4.0) / 4.0; 3]);
}

#[test]
fn places_that_are_none_are_explained() {
    let plain = |g: &Graph, options: AverageOptions| {
        let w = g.get_variable("w", [3], Init::Zeros);
        let one = |v: f32| vec![GradAndVar { grad: Some(g.constant(vec![v; 3]).into()), var: w }];
        let means = average_gradients(&[one(1.0), one(2.0)], options);
        assert_eq!(means.len(), 1);
        messages(g)
    };
    let spread = plain(&Graph::new(), AverageOptions::spread());
    assert!(spread.contains("cannot be spread over the towers: no gradient asks for a device"), "{spread}");
    let reduce = plain(&Graph::new(), AverageOptions::all_reduce());
    assert!(reduce.contains("cannot be all-reduced: no gradient asks for a device"), "{reduce}");
    let nowhere = plain(&Graph::new(), AverageOptions::device("/nonsense:1"));
    assert!(nowhere.contains("unknown attribute: 'nonsense:1'") && !nowhere.contains("problems"), "{nowhere}");
    assert_eq!(plain(&Graph::new(), AverageOptions::by_size()), "");
}

#[test]
fn all_reduce_refuses_what_it_cannot_sum() {
    let g = Graph::new();
    let (a, b) = (g.placeholder(DType::F32, [2], "a"), g.placeholder(DType::F32, [3], "b"));
    assert_eq!(g.all_reduce_n([a, b]).len(), 2);
    g.node_of(&crate::ops::AllReduceN).inputs([a, a]).attr("reduction", "max").add();
    g.node_of(&crate::ops::AllReduceN).inputs([a, a]).attr("N", 3i64).add();
    let message = messages(&g);
    let parts = ["want [2], got [3] as input 1", "must be 'sum', got 'max'", "want 3 inputs, as 'N' says, got 2"];
    assert!(parts.iter().all(|p| message.contains(p)), "{message}");
}
