//! Savers: what is kept, what is refused, and saves that stop at every step.

use super::*;
use crate::base::{Array, Code, DType};
use crate::graph::{Graph, Init};
use crate::interop::arrays::{WriteOptions, write_arrays};
use crate::interop::checkpoint::{Checkpoint, latest_checkpoint};
use crate::interop::files::steps;
use crate::run::{Session, SessionOptions};
use crate::train::Optimizer;

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("turret-{}-saver-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn session(g: &Graph) -> Session<'_> {
    Session::new(g, SessionOptions::devices("sim:1").unwrap()).unwrap()
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn set(s: &Session<'_>, variables: &[Variable<'_>], value: f32) {
    for v in variables {
        s.load(*v, &Array::from_f64(v.dtype(), &v.shape().to_dims().unwrap(), &[value.into(), 1.0]).unwrap()).unwrap();
    }
}

/// A graph of two variables on two devices.
fn pair(g: &Graph) -> [Variable<'_>; 2] {
    let a = g.device("/gpu:0", || g.get_variable("a", [2], Init::Zeros));
    [a, g.get_variable("b", [2], Init::Zeros)]
}

#[test]
fn the_newest_are_kept_and_listed() {
    let folder = scratch("kept");
    let g = Graph::new();
    let variables = pair(&g);
    let s = session(&g);
    let saver = Saver::new(&g).max_to_keep(2);
    let prefix = folder.join("model.ckpt");
    let e = saver.save(&s, &prefix, 1).unwrap_err();
    assert!(e.to_string().contains("'a', 'b'") && e.to_string().contains("model.ckpt-1"), "{e}");
    assert_eq!(files(&folder), Vec::<String>::new());
    for step in [10, 20, 30, 20] {
        set(&s, &variables, step as f32);
        assert_eq!(saver.save(&s, &prefix, step).unwrap(), folder.join(format!("model.ckpt-{step}")));
    }
    let want = [
        "checkpoint",
        "model.ckpt-20.data-00000-of-00002",
        "model.ckpt-20.data-00001-of-00002",
        "model.ckpt-20.index",
        "model.ckpt-30.data-00000-of-00001",
        "model.ckpt-30.index",
    ];
    assert_eq!(files(&folder), want);
    let text = std::fs::read_to_string(folder.join("checkpoint")).unwrap();
    assert_eq!(
        text,
        "model_checkpoint_path: \"model.ckpt-20\"\nall_model_checkpoint_paths: \"model.ckpt-30\"\n\
         all_model_checkpoint_paths: \"model.ckpt-20\"\n"
    );
    assert_eq!(saver.last_checkpoints(), [folder.join("model.ckpt-30"), folder.join("model.ckpt-20")]);
    assert_eq!(latest_checkpoint(&folder).unwrap(), Some(folder.join("model.ckpt-20")));
    // Another program that begins anew leaves them alone; one that goes on from them looks after them.
    let anew = Saver::new(&g).max_to_keep(2);
    anew.save(&s, folder.join("other"), None).unwrap();
    assert!(files(&folder).contains(&"model.ckpt-30.index".to_string()));
    saver.save(&s, &prefix, 30).unwrap();
    let next = Saver::new(&g).max_to_keep(2);
    next.restore(&s, folder.join("model.ckpt-30")).unwrap();
    next.save(&s, &prefix, 40).unwrap();
    let left = files(&folder);
    assert!(!left.contains(&"model.ckpt-20.index".to_string()), "{left:?}");
    assert_eq!(next.last_checkpoints(), [folder.join("model.ckpt-30"), folder.join("model.ckpt-40")]);
    // A folder that was moved is still found by.
    let moved = scratch("moved");
    std::fs::remove_dir(&moved).unwrap();
    std::fs::rename(&folder, &moved).unwrap();
    assert_eq!(latest_checkpoint(&moved).unwrap(), Some(moved.join("model.ckpt-40")));
    std::fs::remove_file(moved.join("model.ckpt-40.index")).unwrap();
    let e = latest_checkpoint(&moved).unwrap_err().to_string();
    assert!(e.contains("'model.ckpt-40', which has no index") && e.contains("there are model.ckpt-30"), "{e}");
    std::fs::remove_file(moved.join("checkpoint")).unwrap();
    assert_eq!(latest_checkpoint(&moved).unwrap(), None);
    let _ = std::fs::remove_dir_all(moved);
}

#[test]
fn one_of_some_hours_is_kept_for_good() {
    let folder = scratch("hours");
    let g = Graph::new();
    let variables = pair(&g);
    let s = session(&g);
    set(&s, &variables, 1.0);
    let prefix = folder.join("m");
    let names = |hours: f64| {
        let saver = Saver::new(&g).max_to_keep(1).keep_every_hours(hours);
        (0..5).for_each(|step| {
            saver.save(&s, &prefix, step).unwrap();
        });
        files(&folder).into_iter().filter(|f| f.ends_with(".index")).count()
    };
    assert_eq!(names(1.0), 1);
    assert_eq!(names(1e-9), 5);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_save_that_stops_at_any_step_leaves_a_whole_latest_checkpoint() {
    let folder = scratch("stops");
    let g = Graph::new();
    let variables = pair(&g);
    let s = session(&g);
    let reader = session(&g);
    let prefix = folder.join("model.ckpt");
    // With numbers of steps and without, so that files are replaced.
    let mut latest = 0;
    for (numbered, rounds) in [(true, 1..4), (false, 4..7)] {
        let mut stops = 0;
        for round in rounds {
            let mut done = false;
            let mut allowed = 0;
            while !done {
                // A program that begins again each time, from what is there.
                let saver = Saver::new(&g).max_to_keep(2);
                if let Some(path) = latest_checkpoint(&folder).unwrap() {
                    saver.restore(&s, path).unwrap();
                }
                set(&s, &variables, (round * 100) as f32);
                steps::allow(Some(allowed));
                done = saver.save(&s, &prefix, numbered.then_some(round)).is_ok();
                steps::allow(None);
                allowed += 1;
                stops += 1;
                let Some(path) = latest_checkpoint(&folder).unwrap() else {
                    assert_eq!(latest, 0);
                    continue;
                };
                Saver::new(&g).restore(&reader, path).unwrap();
                let values = variables.map(|v| reader.value(v).unwrap().get_f64(0));
                assert_eq!(values[0], values[1]);
                let now = values[0] as i64;
                assert!(now == latest || now == round * 100, "{now} after {latest}");
                latest = now;
            }
            assert_eq!(latest, round * 100);
        }
        assert!(stops > 30, "{stops}");
    }
    // What stopped saves left is gone; removals that stopped may leave one checkpoint of each kind.
    let left = files(&folder);
    assert!(left.iter().all(|f| !f.starts_with(".saving")), "{left:?}");
    let _ = std::fs::remove_dir_all(folder);
}

/// Writes these arrays as a checkpoint.
fn write(path: &Path, arrays: &[(&str, Array)]) {
    let list: Vec<_> = arrays.iter().map(|(n, a)| (*n, a)).collect();
    write_arrays(path, &list, &WriteOptions::default()).unwrap();
}

#[test]
fn everything_that_does_not_fit_is_told_at_once_and_nothing_changes() {
    let folder = scratch("refused");
    let g = Graph::new();
    let a = g.get_variable("net/a", [2], Init::Zeros);
    let b = g.get_variable("b", [2, 2], Init::Zeros);
    let n = g.scalar_variable("n", DType::I32, 3.0, None);
    let gone = g.get_variable("gone", [], Init::Zeros);
    let s = session(&g);
    s.initialize().unwrap();
    let path = folder.join("file.ckpt");
    let one = |dims: &[usize]| Array::from_f64(DType::F32, dims, &vec![1.0; dims.iter().product()]).unwrap();
    write(&path, &[("a", one(&[2])), ("b", one(&[4])), ("n", Array::scalar(4i64)), ("z", one(&[]))]);
    let before: Vec<Array> = [a, b, n, gone].iter().map(|v| s.value(*v).unwrap()).collect();
    let saver = Saver::new(&g);
    let e = saver.restore(&s, &path).unwrap_err();
    assert_eq!((e.code(), e.diagnostics().len()), (Code::NotFound, 1));
    let text = e.to_string();
    for part in [
        "file.ckpt': 0 of 4 variables match; nothing was restored",
        "missing from the file: 'net/a' float32 [2], did you mean its 'a'?",
        "missing from the file: 'gone' float32 []",
        "of another shape: 'b' is float32 [4] in the file, float32 [2, 2] in the graph",
        "of another type: 'n' is int64 [] in the file, int32 [] in the graph",
        "unused keys of the file: 'a', 'z'",
        "Saver::renamed",
        "RestoreOptions::skip_mismatched",
    ] {
        assert!(text.contains(part), "want {part} in {text}");
    }
    let options = RestoreOptions { partial: true, skip_mismatched: true, ..RestoreOptions::default() };
    assert!(saver.restore_with(&s, &path, options).is_err(), "no variable matches");
    let after: Vec<Array> = [a, b, n, gone].iter().map(|v| s.value(*v).unwrap()).collect();
    assert_eq!(before, after);
    let report = saver.restore_with(&s, &path, RestoreOptions { cast: true, ..options }).unwrap();
    assert_eq!((&report.restored[..], &report.missing[..]), (&["n".into()][..], &["net/a".into(), "gone".into()][..]));
    assert_eq!((report.wrong_shape.len(), report.wrong_dtype.len(), report.unused.len()), (1, 0, 2));
    assert_eq!(
        report.to_string(),
        format!(
            "restored 1 of 4 variables from '{}'; 2 missing, 1 of another shape, 2 of the file's names unused",
            path.display()
        )
    );
    assert_eq!(s.value(n).unwrap().get_f64(0), 4.0);
    let report = Saver::renamed(&g, [("a", a)]).restore(&s, &path).unwrap();
    assert_eq!((report.restored, s.value(a).unwrap()), (vec!["a".to_string()], one(&[2])));
    assert!(Saver::renamed(&g, [("a", a), ("a", b)]).restore(&s, &path).unwrap_err().to_string().contains("twice"));
    let other = Graph::new();
    let foreign = other.get_variable("a", [2], Init::Zeros);
    assert!(Saver::of(&g, &[foreign]).restore(&s, &path).unwrap_err().to_string().contains("not one of the saver's"));
    assert!(Saver::new(&other).restore(&s, &path).unwrap_err().to_string().contains("different graphs"));
    // An integer too large is told, and nothing is cut.
    write(&path, &[("n", Array::scalar(1i64 << 40))]);
    let cast = RestoreOptions { cast: true, ..RestoreOptions::default() };
    let e = Saver::of(&g, &[n]).restore_with(&s, &path, cast).unwrap_err().to_string();
    assert!(e.contains("1099511627776 does not fit"), "{e}");
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn damaged_bytes_change_no_variable() {
    let folder = scratch("damaged");
    let g = Graph::new();
    let variables = pair(&g);
    let s = session(&g);
    set(&s, &variables, 1.0);
    let path = Saver::new(&g).save(&s, folder.join("m"), None).unwrap();
    let data = folder.join("m.data-00000-of-00001");
    let mut bytes = std::fs::read(&data).unwrap();
    // The last array's, so that the first could have been assigned.
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&data, bytes).unwrap();
    set(&s, &variables, 5.0);
    let e = Saver::new(&g).restore(&s, &path).unwrap_err();
    assert!(e.code() == Code::DataLoss && e.to_string().contains("'b' is damaged"), "{e}");
    assert_eq!(variables.map(|v| s.value(v).unwrap().get_f64(0)), [5.0, 5.0]);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn every_format_restores_and_a_folder_stands_for_its_latest() {
    let folder = scratch("formats");
    let g = Graph::new();
    let variables = pair(&g);
    let s = session(&g);
    set(&s, &variables, 7.0);
    Saver::new(&g).save(&s, folder.join("m"), 1).unwrap();
    let values = variables.map(|v| s.value(v).unwrap());
    let list = [("a", &values[0]), ("b", &values[1])];
    for name in ["m.npz", "m.safetensors", "plain"] {
        write_arrays(folder.join(name), &list, &WriteOptions::default()).unwrap();
    }
    for name in ["", "m-1", "m-1.index", "m.npz", "m.safetensors", "plain"] {
        set(&s, &variables, 0.0);
        let report = Saver::new(&g).restore(&s, folder.join(name)).unwrap();
        assert_eq!(report.restored, ["a", "b"], "{name}");
        assert_eq!(variables.map(|v| s.value(v).unwrap()), values, "{name}");
    }
    assert!(Saver::new(&g).save(&s, folder.join("m.npz"), None).unwrap_err().to_string().contains("several files"));
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn the_state_of_optimizers_is_told_apart() {
    let g = Graph::new();
    let w = g.get_variable("w", [2], Init::Ones);
    let loss = w.value().square().sum();
    let step = crate::train::get_or_create_global_step(&g);
    let apply = || crate::train::ApplyOptions::step(step);
    Optimizer::adam(0.1).minimize(loss, Default::default(), apply());
    Optimizer::rms_prop(0.1).named("Other").minimize(loss, Default::default(), apply());
    let roles = super::roles::optimizer_state(&g);
    let mut found: Vec<(String, &str)> =
        (g.all_variables().iter()).filter_map(|v| Some((v.name(), roles.get(&v.op().id())?.as_str()))).collect();
    found.sort();
    let want = [
        ("beta1_power", "Adam"),
        ("beta2_power", "Adam"),
        ("w/Adam", "Adam"),
        ("w/Adam_1", "Adam"),
        ("w/Other", "RMSProp"),
        ("w/Other_1", "RMSProp"),
    ];
    assert_eq!(found, want.map(|(n, o)| (n.to_string(), o)));
}

#[test]
fn the_places_of_random_nodes_are_beside_the_variables() {
    let folder = scratch("random");
    let g = Graph::new();
    let w = g.get_variable("w", [2], Init::Zeros);
    let x = g.device("/gpu:0", || g.random_uniform([3], 0.0, 1.0, 5));
    let s = session(&g);
    s.initialize().unwrap();
    let draw = |s: &Session<'_>| s.run(&[], &[x], &[]).unwrap().remove(0);
    let saver = Saver::new(&g);
    let first = draw(&s);
    let path = saver.save(&s, folder.join("m"), 1).unwrap();
    let want = draw(&s);
    let names: Vec<String> = Checkpoint::open(&path).unwrap().arrays().map(|a| a.name.clone()).collect();
    assert_eq!(names, ["_TURRET_GENERATORS", "w"]);
    let report = saver.restore(&s, &path).unwrap();
    assert_eq!((report.generators, &report.restored[..], report.unused.len()), (1, &["w".to_string()][..], 0));
    assert_eq!(draw(&s), want);
    let other = session(&g);
    saver.restore(&other, &path).unwrap();
    assert_eq!(draw(&other), want);
    // A saver of some variables, or of the model alone, leaves them.
    let other = session(&g);
    Saver::of(&g, &[w]).restore(&other, &path).unwrap();
    assert_eq!(draw(&other), first);
    let other = session(&g);
    let model = RestoreOptions { model_only: true, ..RestoreOptions::default() };
    saver.restore_with(&other, &path, model).unwrap();
    assert_eq!(draw(&other), first);
    Saver::of(&g, &[w]).save(&s, folder.join("some"), None).unwrap();
    assert_eq!(Checkpoint::open(folder.join("some")).unwrap().arrays().count(), 1);
    let _ = std::fs::remove_dir_all(folder);
}
