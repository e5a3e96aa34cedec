//! Many threads, many GPUs, many sessions.

use super::sim;
use turret::base::{Array, DType};
use turret::graph::{Graph, Init, Operation, Tensor, VariablePlacement};
use turret::run::Session;
use turret::train::{ApplyOptions, Optimizer, Towers, get_or_create_global_step};

/// A small model over some towers: the inputs, the loss and the training step.
fn model<'g>(g: &'g Graph, towers: usize, placement: VariablePlacement) -> ([Tensor<'g>; 2], Operation<'g>) {
    let x = g.placeholder(DType::F32, [None, Some(3)], "x");
    let optimizer = Optimizer::momentum(0.01, 0.9);
    let all = Towers::new(g, towers).variables(placement).average_on("/cpu:0");
    let parts = all.split(x);
    let step = get_or_create_global_step(g);
    let (built, train) = all.train(&optimizer, ApplyOptions::step(step), |tower| {
        let w = g.get_variable("w", [3, 5], Init::Constant(0.2));
        let v = g.get_variable("v", [5, 1], Init::Constant(-0.1));
        (parts[tower.index()].matmul(w).relu().matmul(v) - 1.0).square().mean()
    });
    ([x, built.loss], train)
}

fn rows(count: usize) -> Array {
    let values: Vec<f32> = (0..count * 3).map(|i| (i % 11) as f32 / 11.0 - 0.3).collect();
    Array::new(&[count, 3], &values).unwrap()
}

#[test]
fn eight_gpus_run_five_hundred_steps() {
    let g = Graph::new();
    let ([x, loss], train) = model(&g, 8, VariablePlacement::round_robin(8));
    let s = Session::new(&g, sim(8)).unwrap();
    s.initialize().unwrap();
    let batch = rows(16);
    let first = s.run(&[(x, &batch)], &[loss], &[train]).unwrap();
    for _ in 0..498 {
        s.run(&[(x, &batch)], &[], &[train]).unwrap();
    }
    let last = s.run(&[(x, &batch)], &[loss], &[train]).unwrap();
    assert!(last[0].get_f64(0) < first[0].get_f64(0), "{first:?} {last:?}");
    let step = g.find_variable("global_step").unwrap();
    assert_eq!(s.value(step).unwrap().as_slice::<i64>().unwrap(), [500]);

    // The same program gives the same bits.
    let again = Session::new(&g, sim(8)).unwrap();
    again.initialize().unwrap();
    for _ in 0..500 {
        again.run(&[(x, &batch)], &[], &[train]).unwrap();
    }
    for v in g.all_variables() {
        assert_eq!(s.value(v).unwrap(), again.value(v).unwrap(), "{}", v.name());
    }
}

#[test]
fn three_threads_share_a_session() {
    let g = Graph::new();
    let ([x, loss], train) = model(&g, 2, VariablePlacement::host());
    let s = Session::new(&g, sim(2)).unwrap();
    s.initialize().unwrap();
    std::thread::scope(|scope| {
        for t in 0..3 {
            let s = &s;
            scope.spawn(move || {
                // Each thread has sizes, and so plans, of its own.
                let batch = rows(2 + 2 * t);
                for i in 0..50 {
                    let fetches: &[Tensor<'_>] = if i % 2 == 0 { &[loss] } else { &[] };
                    let out = s.run(&[(x, &batch)], fetches, &[train]).unwrap();
                    assert!(out.iter().all(|l| l.get_f64(0).is_finite()));
                    if i % 10 == t {
                        s.memory_use();
                        s.warnings();
                        assert!(s.uninitialized_variables().unwrap().is_empty());
                    }
                }
            });
        }
    });
    let step = g.find_variable("global_step").unwrap();
    assert_eq!(s.value(step).unwrap().as_slice::<i64>().unwrap(), [150]);
    assert_eq!(s.plans_built(), 1 + 3 * 2);
}

#[test]
fn a_session_is_closed_under_running_threads() {
    let g = Graph::new();
    let ([x, _], train) = model(&g, 2, VariablePlacement::host());
    let s = Session::new(&g, sim(2)).unwrap();
    s.initialize().unwrap();
    let batch = rows(4);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let refused = (0..1_000_000).find_map(|_| s.run(&[(x, &batch)], &[], &[train]).err());
                assert!(refused.is_some_and(|e| e.to_string().contains("the session is closed")));
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        s.close();
    });
    assert!(s.memory_use().iter().all(|m| m.bytes == 0), "{:?}", s.memory_use());
}

/// Threads of this process that belong to GPU 37, which only this test uses.
#[cfg(target_os = "linux")]
fn queues() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
    names.filter(|n| n.starts_with("gpu:37")).count()
}

#[test]
#[cfg(target_os = "linux")]
fn a_hundred_sessions_leave_no_thread() {
    let g = Graph::new();
    let w = g.device("/gpu:37", || g.get_variable("w", [4], Init::Ones));
    let twice = g.device("/gpu:37", || w.value() * 2.0);
    let options = {
        let sim = sim(38);
        turret::run::SessionOptions { machine: sim.machine.with_host_threads(2).with_gpu_threads(2), ..sim }
    };
    for i in 0..100 {
        let s = Session::new(&g, options.clone()).unwrap();
        s.initialize().unwrap();
        assert_eq!(s.run(&[], &[twice], &[]).unwrap()[0].to_f64(), [2.0; 4]);
        assert_eq!(queues(), 2, "session {i}: a queue and one more thread of its team");
        if i % 2 == 0 {
            s.close();
        }
        drop(s);
        // The system may list a thread for a moment after it was joined.
        let gone = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            queues() == 0
        });
        assert!(gone, "session {i} is gone, and so must its threads be");
    }
}
