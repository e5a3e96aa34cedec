//! The command on the stand-in driver's GPUs, as a user runs it.

use super::{in_child, with_stand_in};
use serde_json::Value;
use std::path::Path;

const MODEL: [&str; 10] = ["--model", "mlp", "--batch", "48", "--dim-in", "6", "--dims", "16,8", "--optimizer", "adam"];

/// What the command prints with these GPUs; it must succeed.
fn turret(gpus: usize, args: &[&str], vars: &[(&str, &str)]) -> Option<String> {
    let mut command = with_stand_in(Path::new(env!("CARGO_BIN_EXE_turret")), gpus, 13)?;
    let output = command.args(args).envs(vars.iter().copied()).output().expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("stand-in: race"), "{}", text(&output.stderr));
    Some(text(&output.stdout))
}

fn json(gpus: usize, args: &[&str], vars: &[(&str, &str)]) -> Option<Value> {
    let text = turret(gpus, &[args, &["--json"]].concat(), vars)?;
    Some(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}\n{text}")))
}

#[test]
fn devices_show_logical_beside_physical() {
    if in_child() {
        return;
    }
    let Some(doc) = json(4, &["devices", "--devices", "cuda"], &[("CUDA_VISIBLE_DEVICES", "2,0")]) else { return };
    let gpus = &doc["devices"].as_array().unwrap()[1..];
    let field = |name: &str| gpus.iter().map(|d| d[name].as_str().unwrap_or("").to_string()).collect::<Vec<_>>();
    assert_eq!(field("name"), ["/device:GPU:0", "/device:GPU:1"]);
    assert_eq!(field("physical_index"), ["2", "0"]);
    assert_eq!(field("pci"), ["0000:02:00.0", "0000:00:00.0"]);
    assert!(gpus.iter().all(|d| d["simulated"] == false && d["memory_bytes"].as_u64() == Some(2 << 30)));
    assert!(doc["cuda"]["libraries"].as_array().unwrap().iter().all(|l| l["found"] == true), "{doc}");
    let text = turret(2, &["devices"], &[]).unwrap();
    assert!(
        text.contains("CUDA can be used: 2 GPUs") && text.contains("Stand-in GPU 1, GPU 1 at 0000:01:00.0"),
        "{text}"
    );
}

#[test]
fn runs_on_four_gpus_give_the_simulated_ones_figures() {
    if in_child() {
        return;
    }
    for (variables, average) in [("cpu", "cpu"), ("gpu", "gpu"), ("spread", "spread"), ("gpu", "all-reduce")] {
        let args = |devices: &'static str| {
            let way = ["run", "--devices", devices, "--towers", "4", "--variables", variables, "--average-on", average];
            [&way[..], &MODEL[..], &["--steps", "6"]].concat()
        };
        let Some(got) = json(4, &args("cuda:0,1,2,3"), &[]) else { return };
        let want = json(4, &args("sim:4"), &[]).unwrap();
        let losses = |doc: &Value| -> Vec<f64> {
            let steps = doc["steps"].as_array().unwrap().iter();
            steps
                .flat_map(|s| s["fetches"].as_object().unwrap().values().filter_map(Value::as_f64).collect::<Vec<_>>())
                .collect()
        };
        let (got, want) = (losses(&got), losses(&want));
        assert!(got.len() == want.len() && !got.is_empty(), "{got:?}, want {want:?}");
        for (g, w) in got.iter().zip(&want) {
            assert!((g - w).abs() <= 1e-5 * w.abs(), "{variables}, {average}: {got:?}, want {want:?}");
        }
    }
}

#[test]
fn tables_are_the_simulated_ones() {
    if in_child() {
        return;
    }
    for what in ["copies", "place"] {
        let args = |devices: &'static str| [&[what, "--devices", devices, "--towers", "2"], &MODEL[..]].concat();
        let Some(got) = json(2, &args("cuda:0,1"), &[]) else { return };
        assert_eq!(got, json(2, &args("sim:2"), &[]).unwrap(), "{what}");
    }
}

#[test]
fn benches_run_with_and_without_graphs() {
    if in_child() {
        return;
    }
    for switch in ["on", "off"] {
        let args =
            ["bench", "--devices", "cuda:0,1,2,3", "--towers", "1,2,4", "--variables", "cpu,gpu", "--steps", "3"];
        let args = [&args[..], &MODEL[..], &["--cuda-graphs", switch, "--tf32"]].concat();
        let Some(doc) = json(4, &args, &[]) else { return };
        let rows = doc["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 6);
        assert!(rows.iter().all(|r| r["devices"] == "cuda:0,1,2,3" && r["ms_median"].as_f64() > Some(0.0)), "{doc}");
    }
}

#[test]
fn gpus_that_are_not_there_are_told() {
    if in_child() {
        return;
    }
    let Some(mut command) = with_stand_in(Path::new(env!("CARGO_BIN_EXE_turret")), 2, 1) else { return };
    let output = command.args(["place", "--devices", "cuda:5"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("there is no CUDA GPU 5; the driver shows 0 to 1"), "{text}");
}

#[test]
fn nvidias_compiler_is_found_with_its_parts() {
    use crate::kernels::{file, wheels};
    let Some(stand_in) = super::stand_in().filter(|_| !in_child()) else { return };
    let of = wheels(&Path::new(env!("CARGO_MANIFEST_DIR")).join("target/cuda-wheels"));
    let parts =
        |folder: &std::path::PathBuf| Some([file(folder, "libnvrtc.so.1")?, file(folder, "libnvrtc-builtins.so.")?]);
    let Some(parts) = of.iter().find_map(parts) else {
        println!("skipped: there is no libnvrtc in target/cuda-wheels (.ci/run puts it there)");
        return;
    };
    // The real compiler beside the stand-in's driver, which then cannot read what it makes.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-nvrtc");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("cache")).unwrap();
    for name in ["libcuda.so", "libcublas.so", "libcublasLt.so"] {
        std::fs::copy(stand_in.join(name), folder.join(name)).unwrap();
    }
    for part in &parts {
        std::os::unix::fs::symlink(part, folder.join(part.file_name().unwrap())).unwrap();
    }
    let Some(mut command) = with_stand_in(Path::new(env!("CARGO_BIN_EXE_turret")), 1, 1) else { return };
    command.env("TURRET_CUDA_LIBS", &folder).env("TURRET_CACHE", folder.join("cache"));
    let output = command.args(["run", "--devices", "cuda", "--steps", "1"]).args(MODEL).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("cuModuleLoadData failed with CUDA_ERROR_INVALID_IMAGE"), "{text}");
}
