//! Cases of devices and placement.

use super::{assert_says, sim};
use std::collections::BTreeSet;
use turret::base::{Array, Code, DType, DeviceSpec};
use turret::device::{CpuKernel, DeviceId, Machine, Peers};
use turret::graph::{Fact, Graph, InferContext, Init, KernelContext, Op, Tensor, VariablePlacement};
use turret::plan::{Placed, Route, place_all};
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, Optimizer, Towers, get_or_create_global_step};

const GPU0: DeviceId = DeviceId(1);
const GPU1: DeviceId = DeviceId(2);

fn gpu(index: u32) -> DeviceSpec {
    DeviceSpec::device("GPU", index)
}

fn host() -> DeviceSpec {
    DeviceSpec::device("CPU", 0)
}

fn placed(s: &Session<'_>) -> turret::Result<Placed> {
    place_all(&s.graph().nodes(), s.machine(), s.placement_options())
}

/// A user's op that has no kernel for `int32` on GPUs: the doubled input.
struct Doubled;

impl Op for Doubled {
    fn name(&self) -> &'static str {
        "Doubled"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        Ok(vec![c.inputs[0].clone()])
    }

    fn gpu_lacks(&self, dtype: DType) -> bool {
        dtype == DType::I32
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(Box::new(|l| {
            l.output::<i32>(0).iter_mut().zip(l.input::<i32>(0)).for_each(|(o, v)| *o = 2 * v);
            Ok(())
        }))
    }
}

/// Simulated GPUs hold and assign variables of every type; what an op has no kernel for is refused or moved.
#[test]
fn place_01() {
    let g = Graph::new();
    let ids = g.device("/gpu:0", || g.get_variable("ids", [2], Init::data([7i32, -16777217])));
    let s = Session::new(&g, sim(1)).unwrap();
    s.initialize().unwrap();
    assert_eq!(placed(&s).unwrap().device(ids.op().id()), GPU0);
    assert_eq!(s.run(&[], &[ids.value()], &[]).unwrap()[0].as_slice::<i32>().unwrap(), [7, -16777217]);

    let made = format!("place.rs:{}:", line!() + 1);
    let twice = g.device("/gpu:0", || g.node_of(&Doubled).name("twice").input(ids).tensor());
    let e = s.run(&[], &[twice], &[]).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument);
    let parts = ["'twice' (Doubled)", "'/device:GPU:0'", "no GPU kernel for int32", "the host does", "/cpu:0", &made];
    assert_says(&e.to_string(), &parts);
    assert_says(&e.to_string(), &["soft placement"]);
    let soft = Session::new(&g, sim(1).soft()).unwrap();
    soft.initialize().unwrap();
    assert_eq!(soft.run(&[], &[twice], &[]).unwrap()[0].as_slice::<i32>().unwrap(), [14, -33554434]);
    let table = placed(&soft).unwrap();
    let row = table.get(twice.op().id()).unwrap();
    assert_eq!((row.device, row.soft), (DeviceId::HOST, true));
    assert_says(&row.reason, &["soft placement", "Doubled has no GPU kernel for int32"]);
    assert_eq!(twice.device(), gpu(0), "what was asked stays known");
    assert!(!table.get(ids.op().id()).unwrap().soft);
}

#[test]
fn place_03() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [3], "x");
    let (w, far) = g.device("/gpu:3", || (g.get_variable("w", [3], Init::Constant(0.1)), x * 3.0));
    let near = g.device("/gpu:1", || (far + w).square());
    let further = g.device("/job:localhost/gpu:9", || near.sum());
    let strict = Session::new(&g, sim(2)).unwrap();
    let v = Array::new(&[3], &[0.1f32, 0.7, -1e-8]).unwrap();
    let e = strict.run(&[(x, &v)], &[further], &[]).unwrap_err();
    let text = e.to_string();
    for name in ["'w'", "'mul'", "'Sum'"] {
        assert!(text.contains(name), "want {name} in {text}");
    }
    assert!(!text.contains("'Square'"), "{text}");
    assert_eq!(e.diagnostics().len(), 2, "one for each device that is not there: {text}");
    for d in e.diagnostics() {
        assert!(d.source.is_some_and(|s| s.file().ends_with("place.rs")), "{d}");
        let asked = if d.message.contains("GPU:3") { "/device:GPU:3" } else { "/device:GPU:9" };
        assert_says(&d.message, &[asked, "is not there", "/device:CPU:0, /device:GPU:0, /device:GPU:1"]);
        assert_says(&d.message, &["soft placement"]);
    }
    assert_says(&text, &[&format!("{} problems", e.diagnostics().len())]);

    let soft = Session::new(&g, sim(2).soft()).unwrap();
    soft.initialize().unwrap();
    let moved = soft.run(&[(x, &v)], &[further, far], &[]).unwrap();
    soft.run(&[(x, &v)], &[far], &[]).unwrap();
    let warnings = soft.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let table = placed(&soft).unwrap();
    let rows = g.operations().into_iter().filter(|o| table.get(o.id()).unwrap().soft).count();
    assert_eq!(rows, table.soft_moves());
    let asked = |o: &turret::graph::Operation<'_>| o.device().device_index.is_some_and(|i| i > 1);
    assert_eq!(rows, g.operations().iter().filter(|o| asked(o)).count(), "every moved node is marked");
    assert_says(&warnings[0], &["soft placement moved", "/device:GPU:3", "/device:GPU:9"]);
    // What a run needed and had to move is what is counted.
    let ran = warnings[0].split_whitespace().find_map(|w| w.parse::<usize>().ok()).unwrap();
    assert!(ran > 3 && ran <= rows, "{ran} of {rows}: {}", warnings[0]);

    // The numbers are those of a machine that has the devices.
    let whole = Session::new(&g, sim(10)).unwrap();
    whole.initialize().unwrap();
    assert_eq!(whole.run(&[(x, &v)], &[further, far], &[]).unwrap(), moved);
    assert!(whole.warnings().is_empty());
}

#[test]
fn place_05() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4, 3], "x");
    let towers = Towers::new(&g, 2).variables(VariablePlacement::host()).average_on("/cpu:0");
    let parts = towers.split(x);
    let optimizer = Optimizer::gradient_descent(0.1);
    let (_, train) = towers.train(&optimizer, ApplyOptions::default(), |tower| {
        g.variable_scope("fc", || {
            let w = g.get_variable("w", [3, 2], Init::Ones);
            let b = g.get_variable("b", [2], Init::Zeros);
            (parts[tower.index()].matmul(w) + b).square().mean()
        })
    });
    let s = Session::new(&g, sim(2)).unwrap();
    let table = placed(&s).unwrap();
    let row = |name: &str| {
        let op = g.operation(name).unwrap();
        let row = table.get(op.id()).unwrap_or_else(|| panic!("no row for {name}"));
        (op.device(), row.device, row.reason.to_string())
    };
    for name in ["fc/w", "fc/b"] {
        assert_eq!(row(name), (host(), DeviceId::HOST, "variable rule: host".to_string()));
    }
    assert_eq!(row("tower_0/fc/MatMul"), (gpu(0), GPU0, "device scope".to_string()));
    assert_eq!(row("tower_1/fc/MatMul"), (gpu(1), GPU1, "device scope".to_string()));
    let averages: Vec<String> = g.operations().iter().map(|o| o.name()).filter(|n| n.starts_with("average/")).collect();
    assert!(averages.len() >= 4, "{averages:?}");
    for name in &averages {
        assert_eq!(row(name).1, DeviceId::HOST, "{name}");
    }
    let (_, given, reason) = row(&train.name());
    assert_eq!(given, DeviceId::HOST, "{reason}");
    assert_eq!(g.operations().iter().filter(|o| table.get(o.id()).is_none()).count(), 0, "a row for each node");
    s.initialize().unwrap();
    let v = Array::new(&[4, 3], &[0.5f32; 12]).unwrap();
    s.run(&[(x, &v)], &[], &[train]).unwrap();
    // Each column is 1.5, so the gradient of b is 1.5 (mean of squares over 2 columns) and of each w 0.75.
    let (w, b) = (g.find_variable("fc/w").unwrap(), g.find_variable("fc/b").unwrap());
    assert!(s.value(w).unwrap().to_f64().iter().all(|v| (v - 0.925).abs() < 1e-6), "{:?}", s.value(w));
    assert!(s.value(b).unwrap().to_f64().iter().all(|v| (v + 0.15).abs() < 1e-6), "{:?}", s.value(b));
}

#[test]
fn place_06() {
    let g = Graph::new();
    let optimizer = Optimizer::gradient_descent(0.1);
    let towers = Towers::new(&g, 4);
    let mut counter = None;
    let built = towers.build(&optimizer, |_| {
        // Even where a tower asks for it first.
        counter.get_or_insert_with(|| get_or_create_global_step(&g));
        g.get_variable("w", [2], Init::Ones).value().square().sum()
    });
    let step = counter.unwrap();
    let train = built.apply_with(&optimizer, ApplyOptions::step(get_or_create_global_step(&g)));
    let s = Session::new(&g, sim(4)).unwrap();
    s.initialize().unwrap();
    for _ in 0..3 {
        s.run_targets(&[train]).unwrap();
    }
    assert_eq!(s.value(step).unwrap().as_slice::<i64>().unwrap(), [3]);
    assert_eq!((step.name(), step.dtype(), step.device()), ("global_step".into(), DType::I64, host()));
    assert_eq!(placed(&s).unwrap().device(step.op().id()), DeviceId::HOST);
    assert!(g.global_variables().contains(&step), "saved");
    assert!(!g.trainable_variables().contains(&step));
    let copies: Vec<String> = (s.schedule(&[], &[], &[train]).unwrap().step.copies())
        .map(|(n, _)| n.name.to_string())
        .filter(|n| n.contains("global_step"))
        .collect();
    assert!(copies.is_empty(), "the counter moves nowhere: {copies:?}");
}

#[test]
fn place_07() {
    let g = Graph::new();
    let on_host = |name, shape: [usize; 2]| g.device("/cpu:0", || g.get_variable(name, shape, Init::Constant(0.5)));
    let (w0, w1) = (on_host("w0", [3, 4]), on_host("w1", [4, 1]));
    let spread = g.device("/gpu:1", || g.get_variable("spread", [4], Init::Zeros));
    let x = g.placeholder(DType::F32, [2, 3], "x");
    let tower = |i: usize| {
        g.device(&format!("/gpu:{i}"), || {
            g.name_scope(&format!("tower_{i}"), || {
                let hidden = (x.matmul(w0) + spread).relu();
                hidden.matmul(w1).square().mean()
            })
        })
    };
    let losses = [tower(0), tower(1)];
    let total = g.device("/cpu:0", || {
        let penalty = g.name_scope("penalty", || w0.value().l2_loss() * 0.1);
        (losses[0] + losses[1]) / 2.0 + penalty
    });
    // Outside of any device scope.
    let optimizer = Optimizer::adam(0.1);
    let grads = optimizer.compute_gradients(total);
    let train = optimizer.apply_gradients(&grads);
    let s = Session::new(&g, sim(2)).unwrap();
    let table = placed(&s).unwrap();
    let mut counts = [0; 3];
    for op in g.operations() {
        let name = op.name();
        if !name.starts_with("gradients/") {
            continue;
        }
        let given = table.device(op.id());
        let want = match () {
            _ if name.contains("tower_0") => GPU0,
            _ if name.contains("tower_1") => GPU1,
            _ if name.contains("penalty") => DeviceId::HOST,
            _ => continue,
        };
        counts[want.index()] += 1;
        assert_eq!(given, want, "{name}: {}", table.get(op.id()).unwrap().reason);
    }
    assert!(counts.iter().all(|c| *c > 1), "{counts:?}");
    for (variable, device) in [(w0, DeviceId::HOST), (w1, DeviceId::HOST), (spread, GPU1)] {
        let slots = optimizer.slots(variable);
        assert_eq!(slots.len(), 2);
        for slot in slots {
            assert_eq!(table.device(slot.op().id()), device, "{}", slot.name());
        }
    }
    s.initialize().unwrap();
    s.run(&[(x, &Array::new(&[2, 3], &[1f32; 6]).unwrap())], &[], &[train]).unwrap();
}

#[test]
fn place_09() {
    let machine = Machine::simulated(4).with_gpu_memory(1 << 20);
    assert_eq!(machine.devices().len(), 5);
    let g = Graph::new();
    let w = g.device("/gpu:2", || g.get_variable("w", [64], Init::Ones));
    let twice = g.device("/gpu:2", || w.value() * 2.0);
    let s = Session::new(&g, SessionOptions::on(machine)).unwrap();
    let held = |s: &Session<'_>| -> Vec<u64> { s.memory_use().iter().map(|m| m.bytes).collect() };
    assert_eq!((held(&s), s.started_devices()), (vec![0; 5], vec![]), "making a session takes nothing");
    s.schedule(&[], &[twice], &[]).unwrap();
    assert_eq!((held(&s), s.started_devices()), (vec![0; 5], vec![]), "planning takes nothing");
    s.initialize().unwrap();
    let [_, 0, 0, used, 0] = held(&s)[..] else { panic!("{:?}", held(&s)) };
    assert!((256..1 << 20).contains(&used), "{used}");
    assert_eq!(s.run(&[], &[twice], &[]).unwrap()[0].to_f64(), vec![2.0; 64]);
    assert_eq!(s.started_devices(), [DeviceId(3)]);
    let [_, 0, 0, after, 0] = held(&s)[..] else { panic!("{:?}", held(&s)) };
    assert!(after > used, "memory is taken as it is needed: {used} then {after}");
}

#[test]
fn place_11() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [5], "x");
    let made: Vec<Tensor<'_>> = (0..4)
        .map(|i| g.device(&format!("/gpu:{i}"), || (x * (i as f64 + 0.3)).identity(&format!("made_{i}"))))
        .collect();
    // Each GPU reads what every other one made.
    let sums: Vec<Tensor<'_>> = (0..4)
        .map(|i| {
            g.device(&format!("/gpu:{i}"), || {
                (0..4).filter(|j| *j != i).map(|j| made[j] / 3.0).reduce(|a, b| a + b).unwrap()
            })
        })
        .collect();
    let v = Array::new(&[5], &[1.5f32, -2.0, 1e-7, 3e8, 0.1]).unwrap();
    let run = |peers: Peers| {
        let s = Session::new(&g, SessionOptions::on(Machine::simulated(4).with_peers(peers))).unwrap();
        let values = s.run(&[(x, &v)], &sums, &[]).unwrap();
        let schedule = s.schedule(&[(x, &[5])], &sums, &[]).unwrap();
        let (mut direct, mut staged) = (BTreeSet::new(), BTreeSet::new());
        for (node, copy) in schedule.step.copies().filter(|(_, c)| !c.from.is_host() && !c.to.is_host()) {
            let pair = [copy.from.0.min(copy.to.0) - 1, copy.from.0.max(copy.to.0) - 1];
            assert!(node.name.contains(&copy.to.to_string()), "{}", node.name);
            match copy.route {
                Route::Direct => direct.insert(pair),
                Route::ThroughHost => staged.insert(pair),
            };
        }
        (values, direct, staged, s.warnings())
    };
    let (values, direct, staged, remarks) = run(Peers::Pairs);
    assert_eq!(direct, BTreeSet::from([[0, 1], [2, 3]]));
    assert_eq!(staged, BTreeSet::from([[0, 2], [0, 3], [1, 2], [1, 3]]));
    assert_eq!(remarks.len(), 1, "one line, not one a pair: {remarks:?}");
    assert_says(
        &remarks[0],
        &["through host memory", "8 copies", "gpu:0–gpu:2, gpu:0–gpu:3, gpu:1–gpu:2, gpu:1–gpu:3"],
    );
    let (same, all, none, silent) = run(Peers::All);
    assert_eq!(same, values);
    assert_eq!((all.len(), none.len(), silent.len()), (6, 0, 0));
}

#[test]
fn place_13() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [None, Some(4)], "x");
    let towers = Towers::new(&g, 2).average_on("/cpu:0").variables(VariablePlacement::host());
    let optimizer = Optimizer::gradient_descent(0.1);
    // Beside the towers, something holds 400 kB of the second GPU's 1 MiB.
    let kept = g.device("/gpu:1", || g.get_variable("kept", [100_000], Init::Zeros));
    let wide = g.device("/cpu:0", || g.constant(Array::new(&[4, 8000], &vec![0.25f32; 32_000]).unwrap()));
    let mut blown_at = String::new();
    // Tower 1 alone blows its rows up, to 32 kB a row.
    let (built, train) = towers.train(&optimizer, ApplyOptions::default(), |tower| {
        let w = g.get_variable("w", [4], Init::Ones);
        let h = (x * w).square();
        if tower.index() == 0 {
            return h.mean();
        }
        blown_at = format!("place.rs:{}:", line!() + 1);
        h.matmul(wide).mean()
    });
    let s = Session::new(&g, SessionOptions::on(Machine::simulated(2).with_gpu_memory(1 << 20))).unwrap();
    s.initialize().unwrap();
    let w = g.find_variable("w").unwrap();
    let before = s.value(w).unwrap();
    let in_use = s.memory_use();
    // 66 rows are 2.1 MB in tower 1.
    let large = Array::zeros(DType::F32, &[66, 4]).unwrap();
    for _ in 0..2 {
        let e = s.run(&[(x, &large)], &[built.loss], &[train]).unwrap_err();
        assert_eq!(e.code(), Code::ResourceExhausted);
        let text = e.to_string();
        assert_says(&text, &["/device:GPU:1 is out of memory", "tower_1/MatMul", "2112000", "1048576", &blown_at]);
        assert_says(&text, &["bytes asked", "in use", "largest", "'kept' 400000", "smaller batch"]);
        assert_eq!(s.memory_use(), in_use, "what failed holds nothing");
    }
    assert_eq!(s.value(w).unwrap(), before);
    // A smaller run fits; the variable, the plan's constants and its buffers count together.
    let small = Array::new(&[1, 4], &[1f32; 4]).unwrap();
    let loss = s.run(&[(x, &small)], &[built.loss], &[train]).unwrap();
    assert_eq!(loss[0].to_f64(), [1.0]);
    let on_gpu1 = &s.memory_use()[2];
    assert!((400_000 + 128_000 + 32_000..=1 << 20).contains(&on_gpu1.bytes), "{on_gpu1:?}");
    // Plans for other sizes give way before a run is refused.
    for rows in [2, 1, 2] {
        s.run(&[(x, &Array::zeros(DType::F32, &[rows, 4]).unwrap())], &[built.loss], &[train]).unwrap();
        assert!(s.memory_use()[2].bytes <= 1 << 20);
    }
    assert_eq!(s.value(kept).unwrap().len(), 100_000);
    // A variable alone can be too much.
    let large = g.device("/gpu:0", || g.get_variable("large", [300_000], Init::Zeros));
    let e = s.load(large, &Array::zeros(DType::F32, &[300_000]).unwrap()).unwrap_err();
    assert_says(
        &e.to_string(),
        &["variable 'large'", "/device:GPU:0 is out of memory", "1200000 bytes asked", "1048576"],
    );
}
