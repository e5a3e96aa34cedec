//! Cases of copies, memory and speed.

use super::{assert_says, sim};
use crate::command::{SMALL, turret};
use std::time::Duration;
use turret::base::{Array, DType};
use turret::device::{CpuKernel, DeviceId, Machine};
use turret::graph::{Fact, Graph, InferContext, Init, KernelContext, Op, Tensor, Traits};
use turret::run::{Session, SessionOptions};
use turret::train::{AverageOptions, GradAndVar, Optimizer, average_gradients};

#[test]
fn perf_01() {
    let g = Graph::new();
    let (u, v) = g.device("/cpu:0", || {
        (g.get_variable("u", [4], Init::Constant(2.0)), g.get_variable("v", [4], Init::Constant(3.0)))
    });
    let optimizer = Optimizer::gradient_descent(0.1);
    let towers: Vec<Vec<GradAndVar<'_>>> = (0..2)
        .map(|i| {
            g.device(&format!("/gpu:{i}"), || {
                g.name_scope(&format!("tower_{i}"), || {
                    // Each variable is used three times; its gradients are added up in the tower.
                    let uses = (0..3).map(|k| (u.value() * f64::from(k + 1) + v.value() * 2.0).square().mean());
                    let loss = uses.reduce(|a, b| a + b).unwrap();
                    optimizer.compute_gradients(loss)
                })
            })
        })
        .collect();
    let averaged = average_gradients(&towers, AverageOptions::device("/cpu:0"));
    let train = g.device("/cpu:0", || optimizer.apply_gradients(&averaged));
    let s = Session::new(&g, sim(2)).unwrap();
    let schedule = s.schedule(&[], &[], &[train]).unwrap();
    let copies: Vec<(String, DeviceId, usize)> =
        schedule.step.copies().map(|(_, c)| (schedule.step.tensor_name(c.tensor), c.to, c.bytes)).collect();
    let of_variables = |gpu: u16| -> Vec<&str> {
        let there = copies.iter().filter(|(_, to, _)| *to == DeviceId(gpu + 1));
        there.map(|(name, _, _)| name.as_str()).collect()
    };
    for gpu in 0..2u16 {
        assert_eq!(of_variables(gpu), ["u/read:0", "v/read:0"], "gpu:{gpu}: {copies:?}");
    }
    let to_host: Vec<_> = copies.iter().filter(|(_, to, _)| to.is_host()).collect();
    assert_eq!((to_host.len(), copies.len()), (4, 8), "{copies:?}");
    assert!(to_host.iter().all(|(name, _, _)| name.contains("gradients")), "{copies:?}");
    assert!(copies.iter().all(|(_, _, bytes)| *bytes == 16), "{copies:?}");

    // The numbers are right, too: of k = 1, 2, 3, mean((k u + 2 v)²) has gradients k (k u + 2 v) / 2 and (k u + 2 v).
    s.initialize().unwrap();
    s.run_targets(&[train]).unwrap();
    let (du, dv) = ((1..=3).map(f64::from)).fold((0.0, 0.0), |(du, dv), k| {
        let inner = k * 2.0 + 2.0 * 3.0;
        (du + k * inner / 2.0, dv + inner)
    });
    for (variable, want) in [(u, 2.0 - 0.1 * du), (v, 3.0 - 0.1 * dv)] {
        for got in s.value(variable).unwrap().to_f64() {
            assert!((got - want).abs() < 1e-5, "{}: {got} {want}", variable.name());
        }
    }
}

/// A user's op: its input, 50 ms later.
struct Sleep;

const NAP: Duration = Duration::from_millis(50);

impl Op for Sleep {
    fn name(&self) -> &'static str {
        "Sleep"
    }

    fn traits(&self) -> Traits {
        Traits { stateful: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        Ok(vec![c.inputs[0].clone()])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(Box::new(|l| {
            std::thread::sleep(NAP);
            l.output::<f32>(0).copy_from_slice(l.input::<f32>(0));
            Ok(())
        }))
    }
}

#[test]
fn perf_04() {
    let g = Graph::new();
    let w = g.device("/cpu:0", || g.get_variable("w", [3], Init::Constant(1.5)));
    let x = g.placeholder(DType::F32, [None, Some(3)], "x");
    let towers: Vec<Tensor<'_>> = (x.split(2, 0).into_iter().enumerate())
        .map(|(i, rows)| {
            g.device(&format!("/gpu:{i}"), || {
                g.name_scope(&format!("tower_{i}"), || g.node_of(&Sleep).input(rows * w).tensor().mean())
            })
        })
        .collect();
    let loss = g.device("/cpu:0", || (towers[0] + towers[1]) / 2.0);
    // An op of the test's own has no kernel on other GPUs.
    let s = Session::new(&g, SessionOptions::on(Machine::simulated(2))).unwrap();
    s.load(w, &Array::new(&[3], &[1.5f32; 3]).unwrap()).unwrap();
    let rows = Array::new(&[2, 3], &[2f32; 6]).unwrap();
    s.run(&[(x, &rows)], &[loss], &[]).unwrap();
    assert_eq!(s.plans_built(), 1);
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let began = std::time::Instant::now();
        let (values, metadata) = s.run_traced(&[(x, &rows)], &[loss], &[]).unwrap();
        best = best.min(began.elapsed());
        assert_eq!(values[0].to_f64(), [3.0]);
        // The two naps overlap, whatever else the machine does: each begins before the other ends.
        let mut naps: Vec<_> = metadata.spans.iter().filter(|s| s.name.ends_with("/Sleep")).collect();
        naps.sort_by_key(|s| s.queue);
        let [first, second] = naps[..] else { panic!("{naps:?}") };
        assert_eq!((first.queue.device, second.queue.device), (DeviceId(1), DeviceId(2)));
        assert!(first.start_ns < second.end_ns && second.start_ns < first.end_ns, "{naps:?}");
        for span in [first, second] {
            assert!(span.end_ns - span.start_ns >= NAP.as_nanos() as u64, "{naps:?}");
        }
    }
    // One after the other would be 100 ms; the best of five stands for a machine that is not busy otherwise.
    assert!(best < Duration::from_millis(75), "{best:?}");
    assert_eq!(s.plans_built(), 1, "planned once");
}

#[test]
fn perf_05() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [None, Some(2)], "x");
    let w = g.device("/cpu:0", || g.get_variable("w", [2, 1], Init::Constant(0.5)));
    let optimizer = Optimizer::adam(0.01);
    let towers: Vec<Vec<GradAndVar<'_>>> = (x.split(2, 0).into_iter().enumerate())
        .map(|(i, rows)| {
            g.device(&format!("/gpu:{i}"), || optimizer.compute_gradients((rows.matmul(w) - 1.0).square().mean()))
        })
        .collect();
    let train = optimizer.apply_gradients(&average_gradients(&towers, AverageOptions::device("/cpu:0")));
    let s = Session::new(&g, sim(2)).unwrap();
    g.finalize();
    s.initialize().unwrap();
    let mut counts = Vec::new();
    for step in 1..=1000 {
        let values: Vec<f32> = (0..8).map(|i| (step * 7 + i) as f32 % 5.0 - 2.0).collect();
        let fresh = Array::new(&[4, 2], &values).unwrap();
        s.run(&[(x, &fresh)], &[w.value()], &[train]).unwrap();
        if [10, 100, 1000].contains(&step) {
            counts.push(s.memory_use());
        }
    }
    assert!(counts.iter().all(|c| *c == counts[0]), "{counts:?}");
    assert_eq!(counts[0].len(), 3);
    assert!(counts[0].iter().all(|c| c.bytes > 0 && c.buffers > 0), "{counts:?}");
    s.close();
    assert!(s.memory_use().iter().all(|c| (c.bytes, c.buffers) == (0, 0)), "{:?}", s.memory_use());
}

#[test]
fn perf_07() {
    // One tower on a machine of two GPUs: the summary says what is used and what is idle.
    let ran = turret(&[&["run"], &SMALL[..]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_says(&ran.err, &["machine: sim:2", "towers: 1 on /gpu:0", "idle GPUs: 1 of 2 (/gpu:1)"]);
    let both = turret(&[&["run", "--towers", "2"], &SMALL[..]].concat());
    assert_says(&both.err, &["towers: 2 on /gpu:0, /gpu:1", "idle GPUs: none of 2"]);
    // A misspelt option is never ignored.
    for (wrong, near) in [("--tower", "--towers"), ("--varibles", "--variables"), ("--device", "--devices")] {
        let ran = turret(&["run", wrong, "2"]);
        assert_eq!((ran.code, &ran.out[..]), (1, ""), "{wrong}");
        assert_says(&ran.err, &[wrong, near]);
    }
}
