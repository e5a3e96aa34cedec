//! Sessions over small graphs: values, copies, order, failures.

use super::*;
use crate::base::{Array, Code, DType};
use crate::device::{DeviceId, Machine, Peers};
use crate::graph::{Graph, IndexedSlices, Init, Operation, Tensor, Variable};
use crate::train::{GradAndVar, Optimizer};

fn sim(gpus: usize) -> SessionOptions {
    SessionOptions::on(Machine::simulated(gpus))
}

#[test]
fn variables_live_on_their_devices_and_travel_once() {
    let g = Graph::new();
    let w = g.device("/gpu:1", || g.get_variable("w", [2, 3], Init::Constant(1.5)));
    let there = g.device("/gpu:0", || w.value().identity("there"));
    let again = g.device("/gpu:0", || w.value().identity("again"));
    let s = Session::new(&g, sim(2)).unwrap();
    let e = s.run(&[], &[there], &[]).unwrap_err();
    assert_eq!(e.code(), Code::FailedPrecondition);
    assert!(e.to_string().contains("'w'"), "{e}");
    s.initialize().unwrap();
    let out = s.run(&[], &[there, again, there], &[]).unwrap();
    assert_eq!(out[0].to_f64(), vec![1.5; 6]);
    assert_eq!(out[0], out[1]);
    let schedule = s.schedule(&[], &[there, again], &[]).unwrap();
    let to_gpu0: Vec<_> = schedule.step.copies().filter(|(_, c)| c.to == DeviceId(1)).collect();
    assert_eq!(to_gpu0.len(), 1, "one copy for both uses");
    assert_eq!(to_gpu0[0].1.bytes, 24);
    assert_eq!(&*to_gpu0[0].0.name, "copy/w/read→gpu:0");
}

#[test]
fn a_fetched_variable_has_the_value_from_before_the_update() {
    let g = Graph::new();
    let w = g.get_variable("w", [], Init::Constant(2.0));
    let c = g.constant(5.0f32);
    let assign = g.node_of(crate::ops::find("Assign").unwrap()).input(w.buffer()).input(c).add();
    let s = Session::new(&g, sim(1)).unwrap();
    s.initialize().unwrap();
    let after = assign.output(0);
    let out = s.run(&[], &[w.value(), after], &[assign]).unwrap();
    assert_eq!((out[0].get_f64(0), out[1].get_f64(0)), (2.0, 5.0));
    assert_eq!(s.run(&[], &[w.value()], &[]).unwrap()[0].get_f64(0), 5.0);
}

#[test]
fn requests_in_another_order_share_a_plan() {
    let g = Graph::new();
    let a = g.placeholder(DType::F32, [None], "a");
    let b = g.placeholder(DType::F32, [None], "b");
    let (x, y) = (a.identity("x"), b.identity("y"));
    let s = Session::new(&g, sim(0)).unwrap();
    let (one, two) = (Array::new(&[1], &[1f32]).unwrap(), Array::new(&[1], &[2f32]).unwrap());
    let first = s.run(&[(a, &one), (b, &two)], &[x, y], &[]).unwrap();
    let second = s.run(&[(b, &two), (a, &one)], &[y, x, y], &[]).unwrap();
    assert_eq!(first[0], second[1]);
    assert_eq!((first[1].clone(), first[1].clone()), (second[0].clone(), second[2].clone()));
    assert_eq!(s.plans_built(), 1);
}

#[test]
fn bad_requests_are_explained_and_leave_the_session_usable() {
    let g = Graph::new();
    let images = g.placeholder(DType::F32, [None, Some(784)], "images");
    let out = images.identity("out");
    let s = Session::new(&g, sim(1)).unwrap();
    let bad = Array::zeros(DType::F32, &[50, 2352]).unwrap();
    let e = s.run(&[(images, &bad)], &[out], &[]).unwrap_err().to_string();
    assert!(e.contains("'images:0'") && e.contains("[?, 784]") && e.contains("axis 1 is 2352 against 784"), "{e}");
    let ints = Array::zeros(DType::I32, &[1, 784]).unwrap();
    let e = s.run(&[(images, &ints)], &[out], &[]).unwrap_err().to_string();
    assert!(e.contains("int32") && e.contains("float32") && e.contains("cast"), "{e}");
    let e = s.run(&[], &[out], &[]).unwrap_err().to_string();
    assert!(e.contains("must feed") && e.contains("'images'"), "{e}");
    let other = Graph::new();
    let foreign = other.placeholder(DType::F32, [None, Some(784)], "images");
    let good = Array::zeros(DType::F32, &[2, 784]).unwrap();
    let e = s.run(&[(foreign, &good)], &[out], &[]).unwrap_err().to_string();
    assert!(e.contains("belongs to graph"), "{e}");
    assert_eq!(s.run(&[(images, &good)], &[out], &[]).unwrap()[0], good);
    let none = Array::zeros(DType::F32, &[0, 784]).unwrap();
    assert_eq!(s.run(&[(images, &none)], &[out], &[]).unwrap()[0].dims(), [0, 784]);
    assert!(s.run(&[], &[], &[]).unwrap().is_empty());
    s.close();
    assert_eq!(s.run(&[], &[], &[]).unwrap_err().code(), Code::FailedPrecondition);
}

#[test]
fn devices_that_are_not_there_are_all_listed() {
    let g = Graph::new();
    let x = g.constant(1f32);
    let a = g.device("/gpu:2", || x.identity("a"));
    let b = g.device("/gpu:3", || a.identity("b"));
    let s = Session::new(&g, sim(2)).unwrap();
    // Both values are known when planned, so placing is asked for directly.
    let e = crate::plan::place_all(&g.nodes(), s.machine(), s.placement_options()).err().unwrap();
    assert_eq!(e.diagnostics().len(), 2);
    let text = e.to_string();
    assert!(text.contains("could not satisfy explicit device specification '/device:GPU:2'"), "{text}");
    assert!(text.contains("'b'") && text.contains("/device:GPU:1") && text.contains("src/run/tests.rs"), "{text}");
    let soft = Session::new(&g, sim(2).soft()).unwrap();
    let placed = crate::plan::place_all(&g.nodes(), soft.machine(), soft.placement_options()).unwrap();
    assert_eq!(placed.soft_moves(), 2);
    assert_eq!(soft.run(&[], &[b], &[]).unwrap()[0].get_f64(0), 1.0);
}

#[test]
fn gpus_that_do_not_reach_each_other_go_through_the_host() {
    let g = Graph::new();
    let w = g.device("/gpu:0", || g.get_variable("w", [4], Init::Constant(3.0)));
    let near = g.device("/gpu:1", || w.value().identity("near"));
    let far = g.device("/gpu:2", || w.value().identity("far"));
    let s = Session::new(&g, SessionOptions::on(Machine::simulated(4).with_peers(Peers::Pairs))).unwrap();
    s.initialize().unwrap();
    let out = s.run(&[], &[near, far], &[]).unwrap();
    assert_eq!((out[0].to_f64(), out[1].to_f64()), (vec![3.0; 4], vec![3.0; 4]));
    let schedule = s.schedule(&[], &[near, far], &[]).unwrap();
    let routes: Vec<_> = schedule.step.copies().map(|(n, c)| (n.name.to_string(), c.route)).collect();
    assert!(routes.contains(&("copy/w/read→gpu:1".into(), crate::plan::Route::Direct)), "{routes:?}");
    assert!(routes.contains(&("copy/w/read→gpu:2".into(), crate::plan::Route::ThroughHost)), "{routes:?}");
}

/// A table on each GPU and one SGD step on rows of both, with row numbers that are fed.
fn rows_of_two_tables(g: &Graph, gpus: [u32; 2]) -> (Vec<Tensor<'_>>, Vec<Variable<'_>>, Operation<'_>) {
    let mut list = Vec::new();
    let mut feeds = Vec::new();
    for (i, gpu) in gpus.into_iter().enumerate() {
        let table =
            g.device(&format!("/gpu:{gpu}"), || g.get_variable(&format!("table_{i}"), [3, 2], Init::Constant(1.0)));
        let indices = g.placeholder(DType::I32, [1], &format!("indices_{i}"));
        let values = g.placeholder(DType::F32, [1, 2], &format!("values_{i}"));
        let rows = IndexedSlices { values, indices, of: table.value() };
        list.push(GradAndVar { grad: Some(rows.into()), var: table });
        feeds.extend([indices, values]);
    }
    let tables = list.iter().map(|gv| gv.var).collect();
    (feeds, tables, Optimizer::gradient_descent(1.0).apply_gradients(&list))
}

#[test]
fn a_wrong_row_on_one_device_leaves_the_other_devices_variables_too() {
    let g = Graph::new();
    let (feeds, tables, train) = rows_of_two_tables(&g, [0, 1]);
    let s = Session::new(&g, sim(2)).unwrap();
    s.initialize().unwrap();
    let values = Array::new(&[1, 2], &[0.5f32, 0.5]).unwrap();
    let row = |i: i32| Array::new(&[1], &[i]).unwrap();
    let run = |second: i32| {
        let arrays = [row(2), values.clone(), row(second), values.clone()];
        let pairs: Vec<(Tensor<'_>, &Array)> = feeds.iter().copied().zip(&arrays).collect();
        s.run(&pairs, &[], &[train])
    };
    let before: Vec<Array> = tables.iter().map(|t| s.value(*t).unwrap()).collect();
    for _ in 0..20 {
        let e = run(3).unwrap_err().to_string();
        assert!(e.contains("row number 3") && e.contains("gpu:1"), "{e}");
        let after: Vec<Array> = tables.iter().map(|t| s.value(*t).unwrap()).collect();
        assert_eq!(after, before);
    }
    run(1).unwrap();
    assert_eq!(s.value(tables[0]).unwrap().to_f64(), [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]);
    assert_eq!(s.value(tables[1]).unwrap().to_f64(), [1.0, 1.0, 0.5, 0.5, 1.0, 1.0]);
}

#[test]
fn variables_are_kept_for_undoing_only_where_a_change_can_fail_after_another() {
    let undo = |gpus: [u32; 2]| {
        let g = Graph::new();
        let (feeds, _, train) = rows_of_two_tables(&g, gpus);
        let s = Session::new(&g, sim(2)).unwrap();
        let dims: [&[usize]; 4] = [&[1], &[1, 2], &[1], &[1, 2]];
        let pairs: Vec<(Tensor<'_>, &[usize])> = feeds.into_iter().zip(dims).collect();
        s.schedule(&pairs, &[], &[train]).unwrap().step.undo.len()
    };
    assert_eq!(undo([0, 1]), 2, "one device's change may be there when the other's fails");
    assert_eq!(undo([1, 1]), 0, "one change, which checks before it writes");
    // Other changes wait for the one that can fail.
    let g = Graph::new();
    let (feeds, table, train) = rows_of_two_tables(&g, [1, 1]);
    let counter = g.device("/gpu:0", || g.get_variable("counter", [], Init::Zeros));
    let counted = counter.assign_add(g.constant(1f32));
    let s = Session::new(&g, sim(2)).unwrap();
    s.initialize().unwrap();
    let dims: [&[usize]; 4] = [&[1], &[1, 2], &[1], &[1, 2]];
    let pairs: Vec<(Tensor<'_>, &[usize])> = feeds.iter().copied().zip(dims).collect();
    assert!(s.schedule(&pairs, &[], &[train, counted.op()]).unwrap().step.undo.is_empty());
    let row = |i: i32| Array::new(&[1], &[i]).unwrap();
    let values = Array::new(&[1, 2], &[0.5f32, 0.5]).unwrap();
    let bad = [row(0), values.clone(), row(7), values];
    let fed: Vec<(Tensor<'_>, &Array)> = feeds.into_iter().zip(&bad).collect();
    s.run(&fed, &[], &[train, counted.op()]).unwrap_err();
    assert_eq!((s.value(counter).unwrap().get_f64(0), s.value(table[0]).unwrap().to_f64()[0]), (0.0, 1.0));
    // Unless the program has one of them before it.
    let g = Graph::new();
    let counter = g.device("/gpu:0", || g.get_variable("counter", [], Init::Zeros));
    let counted = counter.assign_add(g.constant(1f32));
    let (feeds, _, train) = g.control_dependencies([counted.op()], || rows_of_two_tables(&g, [1, 1]));
    let s = Session::new(&g, sim(2)).unwrap();
    let pairs: Vec<(Tensor<'_>, &[usize])> = feeds.into_iter().zip(dims).collect();
    assert_eq!(s.schedule(&pairs, &[], &[train]).unwrap().step.undo.len(), 3);
    let g = Graph::new();
    let w = g.get_variable("w", [2], Init::Ones);
    let train =
        Optimizer::gradient_descent(0.1).minimize(w.value().square().sum(), Default::default(), Default::default());
    let s = Session::new(&g, sim(1)).unwrap();
    assert!(s.schedule(&[], &[], &[train]).unwrap().step.undo.is_empty(), "dense updates cannot fail");
}

#[test]
fn a_steps_work_is_counted_by_device() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [Some(8), Some(5)], "x");
    let w = g.device("/gpu:1", || g.get_variable("w", [5, 3], Init::Ones));
    let y = g.device("/gpu:1", || x.matmul(w));
    let z = g.device("/cpu:0", || x * 2.0);
    let s = Session::new(&g, sim(2)).unwrap();
    let work = s.schedule(&[(x, &[8, 5])], &[y, z], &[]).unwrap().work();
    let flops: Vec<f64> = work.iter().map(|c| c.flops).collect();
    assert_eq!(flops, [40.0, 0.0, 2.0 * 8.0 * 5.0 * 3.0]);
    assert_eq!(work[2].bytes, 4.0 * (40.0 + 15.0 + 24.0));
}

#[test]
fn ever_other_sizes_keep_a_bounded_number_of_plans() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [None], "x");
    let y = g.device("/gpu:0", || x * 2.0);
    let s = Session::new(&g, sim(1)).unwrap();
    let run = |rows: usize| s.run(&[(x, &Array::zeros(DType::F32, &[rows]).unwrap())], &[y], &[]).unwrap();
    let buffers = || s.memory_use().iter().map(|m| m.buffers).sum::<usize>();
    run(1);
    for rows in 2..=64 {
        run(rows);
    }
    let full = buffers();
    run(1);
    for rows in 65..=200 {
        run(rows);
        // What is used again and again stays, however many others come.
        run(1);
    }
    assert_eq!(s.plans_built(), 200);
    // A queue lets the newest plan that went go just after its step.
    let start = std::time::Instant::now();
    while buffers() > full && start.elapsed().as_secs() < 5 {
        std::thread::yield_now();
    }
    assert_eq!(buffers(), full);
}

#[test]
fn random_nodes_go_on_from_a_snapshot() {
    // A variable with a random initial value, a seeded draw, one of entropy, on two devices.
    fn build<'g>(g: &'g Graph, seed: i64) -> (Variable<'g>, [Tensor<'g>; 2]) {
        let w = g.get_variable("w", [3], Init::random_uniform(0.0, 1.0));
        let seeded = g.device("/gpu:0", || g.random_uniform([4], 0.0, 1.0, seed));
        let other = g.device("/cpu:0", || g.random_normal([5], 0.0, 1.0, None));
        (w, [seeded, other])
    }
    let draw = |s: &Session<'_>, draws: &[Tensor<'_>]| s.run(&[], draws, &[]).unwrap();
    let g = Graph::new();
    let (w, draws) = build(&g, 5);
    let s = Session::new(&g, sim(1)).unwrap();
    s.initialize().unwrap();
    let before = s.snapshot(&[w]).unwrap().generators;
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        ["random_uniform/RandomUniform"],
        "no initial values, no entropy yet"
    );
    draw(&s, &draws);
    let kept = s.snapshot(&[w]).unwrap();
    let names: Vec<&String> = kept.generators.keys().collect();
    assert_eq!(names, ["random_uniform/RandomUniform", "random_normal/RandomStandardNormal"]);
    let want = [draw(&s, &draws), draw(&s, &draws)];
    assert_ne!(want[0], want[1]);
    // The same session, another one that has drawn, and one that has not.
    let fresh = Session::new(&g, sim(1)).unwrap();
    let drawn = Session::new(&g, sim(1)).unwrap();
    draw(&drawn, &draws);
    for s in [&s, &drawn, &fresh] {
        s.load_snapshot(&[(w, &kept.values[0])], Some(&kept.generators)).unwrap();
        assert_eq!(s.snapshot(&[w]).unwrap().generators, kept.generators);
        assert_eq!([draw(s, &draws), draw(s, &draws)], want);
        assert_eq!(s.value(w).unwrap(), kept.values[0]);
    }
    // What is not named starts again, and values alone move nothing.
    let first = draw(&Session::new(&g, sim(1)).unwrap(), &draws[..1]);
    s.load(w, &kept.values[0]).unwrap();
    assert_ne!(draw(&s, &draws[..1]), first);
    s.load_snapshot(&[], Some(&GeneratorPlaces::new())).unwrap();
    assert_eq!(draw(&s, &draws[..1]), first);
    // Another seed is another stream, at the same place.
    let other = Graph::new();
    let (v, others) = build(&other, 6);
    let t = Session::new(&other, sim(1)).unwrap();
    draw(&t, &others[..1]);
    let second = draw(&t, &others[..1]);
    t.load_snapshot(&[(v, &kept.values[0])], Some(&kept.generators)).unwrap();
    assert_eq!(draw(&t, &others[..1]), second);
    assert_ne!(second, want[0][..1]);
}

#[test]
fn plans_of_other_sizes_draw_from_one_stream() {
    let g = Graph::new();
    let n = g.placeholder(DType::I32, [1], "n");
    let x = g.node_of(crate::ops::find("RandomUniform").unwrap()).input(n).attr("seed", 1i64).attr("seed2", 2i64);
    let x = x.attr("dtype", DType::F32).tensor();
    let s = Session::new(&g, sim(1)).unwrap();
    let draw = |len: i32| s.run(&[(n, &Array::new(&[1], &[len]).unwrap())], &[x], &[]).unwrap().remove(0).to_f64();
    let (four, eight) = (draw(4), draw(8));
    let fresh = Session::new(&g, sim(1)).unwrap();
    let first = fresh.run(&[(n, &Array::new(&[1], &[8]).unwrap())], &[x], &[]).unwrap().remove(0).to_f64();
    assert_eq!(first[..4], four);
    assert_ne!(first, eight);
}

#[test]
fn a_snapshot_wants_every_value() {
    let g = Graph::new();
    let (a, b, c) =
        (g.get_variable("a", [], Init::Ones), g.get_variable("b", [], Init::Ones), g.get_variable("c", [], Init::Ones));
    let s = Session::new(&g, sim(0)).unwrap();
    s.load(b, &Array::scalar(1f32)).unwrap();
    let e = s.snapshot(&[a, b, c]).unwrap_err().to_string();
    assert!(e.contains("'a', 'c'"), "{e}");
}
