//! Cases of checkpoints.

use super::small::{a_of_2, assert_near, linear, rows_of_grad_01, scalar, session};
use super::{assert_says, names};
use std::path::{Path, PathBuf};
use turret::base::{Array, Code, DType};
use turret::graph::{Graph, Init, VariablePlacement};
use turret::interop::arrays::{ArrayFile, WriteOptions, write_arrays};
use turret::interop::checkpoint::Checkpoint;
use turret::interop::{RestoreOptions, Saver, latest_checkpoint};
use turret::train::{GradAndVar, Optimizer, Towers};

/// An empty folder for a case.
fn folder(case: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{case}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn write(path: &Path, arrays: &[(&str, Array)]) {
    let list: Vec<(&str, &Array)> = arrays.iter().map(|(n, a)| (*n, a)).collect();
    write_arrays(path, &list, &WriteOptions::default()).unwrap();
}

fn ones(dims: &[usize]) -> Array {
    Array::from_f64(DType::F32, dims, &vec![1.0; dims.iter().product()]).unwrap()
}

#[test]
fn ckpt_01() {
    let folder = folder("ckpt-01");
    let step = |towers: usize, restore: Option<&Path>| {
        let g = Graph::new();
        let sgd = Optimizer::gradient_descent(0.1);
        let placement = VariablePlacement::least_bytes(towers as u32);
        let program = linear(&g, None, DType::F32, Towers::new(&g, towers).variables(placement), &sgd, a_of_2);
        let train = program.built.apply(&sgd);
        let s = session(&g, towers);
        let saver = Saver::new(&g);
        if let Some(path) = restore {
            let report = saver.restore(&s, path).unwrap();
            assert_eq!((&report.restored[..], report.missing.len()), (&["a".to_string()][..], 0));
            assert_eq!(scalar(&s, g.find_variable("a").unwrap()), 2.5);
        }
        // Eight towers see the rows twice: the mean is the same.
        let (x, t) = rows_of_grad_01();
        let twice = |a: &Array| Array::new(&[8], &[a.as_slice::<f32>().unwrap(); 2].concat()).unwrap();
        let (x, t) = if towers == 8 { (twice(&x), twice(&t)) } else { (x, t) };
        s.run(&[(program.x, &x), (program.t, &t)], &[], &[train]).unwrap();
        let path = saver.save(&s, folder.join("model.ckpt"), 1).unwrap();
        (scalar(&s, g.find_variable("a").unwrap()), path)
    };
    let (w, path) = step(4, None);
    assert_near(&[w], &[2.5], 1e-6);
    let keys: Vec<String> = Checkpoint::open(&path).unwrap().arrays().map(|a| a.name.clone()).collect();
    assert_eq!(keys, ["a"]);
    let kept = folder.join("kept");
    std::fs::create_dir_all(&kept).unwrap();
    for file in ["model.ckpt-1.index", "model.ckpt-1.data-00000-of-00001"] {
        std::fs::copy(folder.join(file), kept.join(file)).unwrap();
    }
    for towers in [1, 2, 8] {
        assert_near(&[step(towers, Some(&kept.join("model.ckpt-1"))).0], &[2.25], 1e-6);
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn ckpt_02() {
    let folder = folder("ckpt-02");
    let g = Graph::new();
    let made = |name: &str, dims: [usize; 2]| g.get_variable(name, dims, Init::Constant(3.0));
    let all = [made("fc/w", [4, 2]), made("fc/b", [1, 2]), made("fc2/w", [2, 2])];
    let s = session(&g, 1);
    let path = folder.join("model.ckpt");
    write(&path, &[("fc/w", ones(&[4, 2])), ("fc/b", ones(&[1, 2])), ("net/fc2/w", ones(&[2, 2]))]);
    let saver = Saver::new(&g);
    let e = saver.restore(&s, &path).unwrap_err();
    assert_eq!((e.code(), e.diagnostics().len()), (Code::NotFound, 1));
    let text = e.to_string();
    assert_says(
        &text,
        &[
            "ckpt-02",
            "2 of 3 variables match; nothing was restored",
            "missing from the file: 'fc2/w'",
            "unused keys of the file: 'net/fc2/w'",
            "did you mean its 'net/fc2/w'?",
            "Saver::renamed",
            "RestoreOptions::partial",
        ],
    );
    assert!(all.iter().all(|v| scalar_of(&s.value(*v).unwrap()) == 3.0), "nothing has been assigned");

    // The ways out that it names.
    let report = saver.restore_with(&s, &path, RestoreOptions { partial: true, ..RestoreOptions::default() }).unwrap();
    assert_eq!((report.restored.len(), &report.missing[..]), (2, &["fc2/w".to_string()][..]));
    assert_eq!(all.map(|v| scalar_of(&s.value(v).unwrap())), [1.0, 1.0, 3.0]);
    let renamed = Saver::renamed(&g, [("fc/w", all[0]), ("fc/b", all[1]), ("net/fc2/w", all[2])]);
    assert_eq!(renamed.restore(&s, &path).unwrap().restored.len(), 3);
    assert_eq!(scalar_of(&s.value(all[2]).unwrap()), 1.0);
    let _ = std::fs::remove_dir_all(folder);
}

fn scalar_of(array: &Array) -> f64 {
    array.get_f64(0)
}

#[test]
fn ckpt_04() {
    let folder = folder("ckpt-04");
    let path = folder.join("sgd.ckpt");
    write(&path, &[("w", Array::scalar(2.5f32))]);
    let g = Graph::new();
    let w = g.get_variable("w", [], Init::Constant(2.0));
    let train = Optimizer::adam(0.1).apply_gradients(&[GradAndVar { grad: Some(g.constant(-5f32).into()), var: w }]);
    let s = session(&g, 1);
    // The state has run on, so that what is left of it would show.
    s.run_targets(&[train]).unwrap();
    let saver = Saver::new(&g);
    let text = saver.restore(&s, &path).unwrap_err().to_string();
    assert_says(
        &text,
        &[
            "optimizer state of Adam: 'beta1_power', 'beta2_power', 'w/Adam', 'w/Adam_1'",
            "1 of 5 variables match; nothing was restored",
            "RestoreOptions::model_only",
        ],
    );
    let model = RestoreOptions { model_only: true, ..RestoreOptions::default() };
    let report = saver.restore_with(&s, &path, model).unwrap();
    assert_eq!((&report.restored[..], report.initialized.len()), (&["w".to_string()][..], 4));
    let value = |name: &str| scalar(&s, g.find_variable(name).unwrap());
    assert_eq!([value("w/Adam"), value("w/Adam_1")], [0.0, 0.0]);
    assert_near(&[value("beta1_power"), value("beta2_power")], &[0.9, 0.999], 1e-7);
    s.run_targets(&[train]).unwrap();
    assert_near(&[value("w")], &[2.59999999], 1e-7);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn ckpt_06() {
    let folder = folder("ckpt-06");
    let path = folder.join("imagenet.ckpt");
    write(&path, &[("logits/w", ones(&[8, 5])), ("logits/b", ones(&[5])), ("body/w", ones(&[3, 8]))]);
    let g = Graph::new();
    let all = [("logits/w", &[8, 2][..]), ("logits/b", &[2]), ("body/w", &[3, 8])]
        .map(|(name, dims)| g.get_variable(name, dims, Init::Constant(3.0)));
    let s = session(&g, 1);
    let saver = Saver::new(&g);
    let e = saver.restore(&s, &path).unwrap_err();
    assert_eq!((e.code(), e.diagnostics().len()), (Code::InvalidArgument, 1));
    assert_says(
        &e.to_string(),
        &[
            "imagenet.ckpt'",
            "'logits/w' is float32 [8, 5] in the file, float32 [8, 2] in the graph",
            "'logits/b' is float32 [5] in the file, float32 [2] in the graph",
            "RestoreOptions::skip_mismatched",
        ],
    );
    assert!(!e.to_string().contains("Assign"));
    assert!(all.iter().all(|v| scalar_of(&s.value(*v).unwrap()) == 3.0), "no variable was assigned");
    let skip = RestoreOptions { skip_mismatched: true, ..RestoreOptions::default() };
    let report = saver.restore_with(&s, &path, skip).unwrap();
    assert_eq!((report.restored.len(), report.wrong_shape.len()), (1, 2));
    assert_eq!(all.map(|v| scalar_of(&s.value(v).unwrap())), [3.0, 3.0, 1.0]);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn ckpt_08() {
    let folder = folder("ckpt-08");
    let path = folder.join("model.ckpt");
    write(&path, &[("w", ones(&[2, 2])), ("n", Array::scalar(3i64)), ("z", ones(&[]))]);
    let g = Graph::new();
    let s = session(&g, 1);
    // Made before any variable, as a program may.
    let saver = Saver::new(&g);
    let text = saver.restore(&s, &path).unwrap_err().to_string();
    assert_says(&text, &["0 of 0 variables match", "'n', 'w', 'z'", "the graph has no variables", "build it before"]);
    assert!(saver.save(&s, &path, None).unwrap_err().to_string().contains("no variables"));
    g.get_variable("other/kernel", [7], Init::Zeros);
    for options in [RestoreOptions::default(), RestoreOptions { partial: true, ..RestoreOptions::default() }] {
        let text = saver.restore_with(&s, &path, options).unwrap_err().to_string();
        assert_says(&text, &["0 of 1 variables match", "'other/kernel' float32 [7]", "'n', 'w', 'z'"]);
    }
    let w = g.get_variable("w", [2, 2], Init::Zeros);
    let partial = RestoreOptions { partial: true, ..RestoreOptions::default() };
    let report = saver.restore_with(&s, &path, partial).unwrap();
    assert_eq!((report.restored.len(), report.missing.len(), report.unused.len()), (1, 1, 2));
    assert_says(&report.to_string(), &["restored 1 of 2 variables", "1 missing", "2 of the file's names unused"]);
    assert_eq!(s.value(w).unwrap(), ones(&[2, 2]));
    // Names, types and shapes without a graph.
    let file = ArrayFile::open(&path).unwrap();
    let listed: Vec<String> = file.arrays().map(|a| format!("{} {} {:?}", a.name, a.stored, a.shape)).collect();
    assert_eq!(listed, ["n int64 []", "w float32 [2, 2]", "z float32 []"]);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn ckpt_09() {
    let folder = folder("ckpt-09");
    let path = folder.join("model.ckpt");
    write(&path, &[("q", 1f32), ("k", 2.0), ("v", 3.0)].map(|(n, v)| (n, Array::new(&[1], &[v]).unwrap())));
    for on in ["/cpu:0", "/gpu:0"] {
        let g = Graph::new();
        let [q, k, v] = ["q", "k", "v"].map(|name| g.device(on, || g.get_variable(name, [1], Init::Zeros)));
        // Read on the variables' device, and on two others.
        let cat = |device: &str| g.device(device, || g.concat([q.value(), k.value(), v.value()], 0));
        let cats = [cat("/cpu:0"), cat("/gpu:0"), cat("/gpu:1")];
        let scaled = g.device("/gpu:1", || cats[2] * 10.0);
        let s = session(&g, 2);
        let fetch = || s.run(&[], &[cats[0], cats[1], cats[2], scaled], &[]).unwrap();
        // Twice, so that a step is warm and, on CUDA, captured.
        for _ in 0..3 {
            assert!(fetch().iter().all(|a| a.to_f64() == [0.0; 3]), "{on}");
        }
        Saver::new(&g).restore(&s, &path).unwrap();
        let plans = s.plans_built();
        for _ in 0..3 {
            let got = fetch();
            assert!(got[..3].iter().all(|a| a.to_f64() == [1.0, 2.0, 3.0]), "{on}: {got:?}");
            assert_eq!(got[3].to_f64(), [10.0, 20.0, 30.0]);
        }
        assert_eq!(s.plans_built(), plans, "the plan is the one from before");
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn ckpt_11() {
    let folder = folder("ckpt-11");
    let g = Graph::new();
    let step = turret::train::get_or_create_global_step(&g);
    let big = Array::from_f64(DType::F32, &[1000], &[0.5; 1000]).unwrap();
    let table = g.get_variable("table", [1000], Init::Data(big.into()));
    let noise = g.random_uniform([10], 0.0, 1.0, 7);
    let grad = table.value() * 1e-3 + noise.sum();
    let sgd = Optimizer::gradient_descent(1e-4);
    let train = sgd.apply_gradients_with(
        &[GradAndVar { grad: Some(grad.into()), var: table }],
        turret::train::ApplyOptions::step(step),
    );
    let s = session(&g, 1);
    let saver = Saver::new(&g);
    let size = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let files = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap());
        let own = files.filter(|f| f.file_name().to_str().unwrap().starts_with(&format!("{name}.")));
        own.map(|f| f.metadata().unwrap().len()).sum::<u64>()
    };
    let mut sizes = Vec::new();
    for (steps, until) in [(10, 10), (9_990, 10_000)] {
        (0..steps).for_each(|_| s.run_targets(&[train]).unwrap());
        let path = saver.save(&s, folder.join("model.ckpt"), until).unwrap();
        sizes.push(size(&path));
    }
    assert_eq!(s.value(step).unwrap().to_i64(), Some(vec![10_000]));
    assert_eq!(sizes[0], sizes[1]);
    // The values, names and checksums; no graph, and no initial value beside the value.
    assert!((4008..5000).contains(&sizes[0]), "{} bytes", sizes[0]);
    assert_eq!(names(&g.global_variables()), ["global_step", "table"]);

    // A save that fails half way leaves the one before whole, and found.
    let path = latest_checkpoint(&folder).unwrap().unwrap();
    let before = s.value(table).unwrap();
    s.run_targets(&[train]).unwrap();
    std::fs::create_dir(folder.join("model.ckpt-10001.index")).unwrap();
    saver.save(&s, folder.join("model.ckpt"), 10_001).unwrap_err();
    assert!(!folder.join("model.ckpt-10001.data-00000-of-00001").exists());
    assert_eq!(latest_checkpoint(&folder).unwrap(), Some(path.clone()));
    saver.restore(&s, &path).unwrap();
    assert_eq!(s.value(table).unwrap(), before);
    let _ = std::fs::remove_dir_all(folder);
}
