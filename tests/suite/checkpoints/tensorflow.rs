//! What TensorFlow 2.21 wrote beyond plain variables: an array in three parts, types that turret stores and such that it
//! does not. The files are those of `tf.raw_ops.SaveV2`.

use std::path::PathBuf;
use turret::base::{Array, Code};
use turret::graph::Variable;
use turret::interop::arrays::{WriteOptions, write_arrays};
use turret::interop::checkpoint::Checkpoint;
use turret::interop::graphdef::read_graph;
use turret::interop::{RestoreOptions, Saver};
use turret::run::{Session, SessionOptions};

#[test]
fn parts_and_rare_types_are_read() {
    let prefix = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/suite/checkpoints/tensorflow/parts");
    let checkpoint = Checkpoint::open(&prefix).expect("it is whole");
    let listed: Vec<String> =
        checkpoint.arrays().map(|a| format!("{} {} {:?} {}", a.name, a.stored, a.shape, a.parts)).collect();
    let want = [
        "bf bfloat16 [2] 1",
        "c complex64 [1] 1",
        "h float16 [1] 1",
        "p float32 [4, 6, 3] 3",
        "q int32 [2] 1",
        "sc float64 [] 1",
        "str string [2] 1",
        "u uint8 [2] 1",
    ];
    assert_eq!(listed, want);
    let read = |name: &str| checkpoint.read(name).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(read("p").to_f64(), (0..72).map(f64::from).collect::<Vec<_>>());
    assert_eq!(read("bf"), Array::new(&[2], &[1.5f32, 2.0].map(half::bf16::from_f32)).expect("it fits"));
    assert_eq!(read("h"), Array::new(&[1], &[half::f16::from_f32(1.5)]).expect("it fits"));
    assert_eq!(read("u"), Array::new(&[2], &[1u8, 255]).expect("it fits"));
    assert_eq!(read("sc"), Array::scalar(3.5f64));
    for (name, part) in [("c", "complex64"), ("str", "string")] {
        let e = checkpoint.read(name).expect_err("turret holds no such values");
        assert!(e.code() == Code::Unimplemented && e.to_string().contains(part), "{e}");
    }
}

/// Graphs of TensorFlow's own: their optimizers' state is told apart by the ops that update it.
#[test]
fn optimizers_of_imported_graphs_start_anew() {
    let folder = super::scratch("imported");
    for (name, optimizer, slots, powers) in [
        ("resnet_2towers_vars-cpu", "Momentum", &["/Momentum"][..], 0),
        ("lstm_2towers_vars-cpu", "Adam", &["/Adam", "/Adam_1"], 2),
        ("mobilenet_2towers_vars-gpu", "RMSProp", &["/RMSProp", "/RMSProp_1"], 0),
    ] {
        let g = read_graph(crate::fixtures::path(&format!("graphs/{name}.pb"))).unwrap_or_else(|e| panic!("{e}"));
        let is_state =
            |n: &str| slots.iter().any(|s| n.ends_with(s)) || n.contains("beta1_power") || n.contains("beta2_power");
        let (state, model): (Vec<Variable<'_>>, Vec<Variable<'_>>) =
            g.global_variables().into_iter().partition(|v| is_state(&v.name()));
        assert!(state.len() > powers && !model.is_empty(), "{name}");
        let ones = |v: &Variable<'_>| {
            let dims = v.shape().to_dims().expect("known sizes");
            Array::from_f64(v.dtype(), &dims, &vec![1.0; dims.iter().product()]).expect("it fits")
        };
        let values: Vec<(String, Array)> = model.iter().map(|v| (v.name(), ones(v))).collect();
        let list: Vec<(&str, &Array)> = values.iter().map(|(n, a)| (&n[..], a)).collect();
        let path = folder.join(name);
        write_arrays(&path, &list, &WriteOptions::default()).expect("it is written");
        let s = Session::new(&g, SessionOptions::on(crate::gpus::machine(2))).expect("a session");
        let e = Saver::new(&g).restore(&s, &path).expect_err("the state is missing").to_string();
        let told = e.lines().find(|l| l.contains("optimizer state of")).unwrap_or_else(|| panic!("{name}: {e}"));
        assert!(told.contains(&format!("optimizer state of {optimizer}: ")), "{name}: {told}");
        assert_eq!(told.matches('\'').count(), 2 * state.len(), "{name}: {told}");
        assert!(!e.contains("missing from the file: '"), "{name}: {e}");
        let options = RestoreOptions { model_only: true, ..RestoreOptions::default() };
        let report = Saver::new(&g).restore_with(&s, &path, options).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((report.restored.len(), report.initialized.len()), (model.len(), state.len()), "{name}");
        assert!(s.uninitialized_variables().expect("a list").is_empty(), "{name}");
        let start = s.value(state[0]).expect("a value").get_f64(0);
        assert!([0.0, 1.0, 0.9f32.into()].contains(&start), "{name}: {} starts at {start}", state[0].name());
    }
    let _ = std::fs::remove_dir_all(folder);
}
