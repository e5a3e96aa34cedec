//! The CUDA backend on the stand-in driver: this binary runs itself again with the stand-in's libraries, so that each
//! number of GPUs, seed and fault has a process of its own. Tests whose name begins with `child` do nothing elsewhere.
//!
//! On a machine with a GPU, `TURRET_TEST_CUDA=real` lets those children run on it that ask nothing of the stand-in.

mod checks;
mod command;
mod compare;
mod dnn;
mod faults;
mod functions;
mod images;
mod moves;
mod nccl;
mod ops;
mod plans;
mod program;
mod sizes;
mod steps;
mod variables;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// True in a process that has CUDA to test: the stand-in's, or a real one.
fn in_child() -> bool {
    std::env::var_os("TURRET_TEST_CUDA").is_some()
}

/// The folder with the stand-in's libraries, or `None` (and one line) where it cannot be built.
fn stand_in() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let install = || {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
        match turret_standin::install(&folder) {
            Ok(()) => Some(folder),
            Err(why) => {
                println!("skipped: the stand-in driver cannot be used: {why}");
                None
            }
        }
    };
    FOLDER.get_or_init(install).as_ref()
}

/// A command that runs with the stand-in's libraries.
fn with_stand_in(program: &std::path::Path, gpus: usize, seed: u64) -> Option<Command> {
    let folder = stand_in()?;
    let mut command = Command::new(program);
    command.env("TURRET_CUDA_LIBS", folder);
    command.env("TURRET_CACHE", PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    command.env("TURRET_STANDIN_GPUS", gpus.to_string()).env("TURRET_STANDIN_SEED", seed.to_string());
    command.env_remove("CUDA_VISIBLE_DEVICES");
    Some(command)
}

/// Runs tests of this binary on the stand-in; fails with their output if any fails.
fn run_tests(filters: &[&str], gpus: usize, seed: u64, vars: &[(&str, &str)]) {
    if in_child() {
        return;
    }
    let this = std::env::current_exe().expect("a test knows its program");
    let Some(mut command) = with_stand_in(&this, gpus, seed) else { return };
    command.env("TURRET_TEST_CUDA", "stand-in").env("TURRET_TEST_DEVICES", "cuda").envs(vars.iter().copied());
    let output = command.args(filters).args(["--nocapture", "--test-threads=2"]).output().expect("it starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let what = format!("{filters:?} on {gpus} GPUs, seed {seed}, {vars:?}");
    assert!(output.status.success(), "{what}: {}\n{text}", output.status);
    assert!(!text.contains(" 0 passed"), "{what}: no test ran\n{text}");
    assert!(!text.contains("stand-in: race"), "{what}: races\n{text}");
}

#[test]
fn every_op_of_the_table_agrees_with_the_host() {
    run_tests(&["cuda::ops::child"], 1, 1, &[]);
}

#[test]
fn convolutions_agree_with_the_host_with_and_without_cudnn() {
    run_tests(&["cuda::dnn::child_convolutions_are_cudnns"], 1, 31, &[]);
    run_tests(&["cuda::dnn::child_convolutions_without"], 1, 32, &[("TURRET_STANDIN_DNN", "none")]);
}

#[test]
fn kernels_of_images_agree_with_the_host_at_several_sizes() {
    run_tests(&["cuda::images::child"], 1, 1, &[("TURRET_STANDIN_DNN", "none")]);
}

#[test]
fn kernels_agree_with_the_host_at_every_size() {
    run_tests(&["cuda::sizes::child", "cuda::moves::child", "cuda::variables::child"], 1, 1, &[]);
    run_tests(&["cuda::functions::child", "updates::"], 1, 1, &[]);
}

#[test]
fn recorded_ops_pass() {
    run_tests(&["fixtures::ops"], 1, 1, &[]);
}

#[test]
fn fixtures_pass_on_one_two_and_four_gpus() {
    for (gpus, seed) in [(1, 1), (2, 2), (4, 3)] {
        run_tests(&["fixtures::towers", "fixtures::scopes"], gpus, seed, &[]);
    }
}

#[test]
fn cases_pass() {
    for (gpus, seed) in [(1, 21), (2, 22), (4, 4)] {
        run_tests(&["cases::", "classifier::"], gpus, seed, &[]);
    }
}

#[test]
fn training_goes_on_from_checkpoints() {
    for (gpus, seed) in [(1, 25), (2, 26), (4, 27)] {
        run_tests(&["checkpoints::resume"], gpus, seed, &[]);
    }
}

#[test]
fn random_programs_give_what_their_nodes_give_alone() {
    // The convolutions are about the host alone.
    let tests = ["graphs", "steps", "training", "variables"].map(|t| format!("differential::{t}"));
    for (gpus, seed) in [(1, 23), (2, 24), (4, 12)] {
        run_tests(&tests.each_ref().map(String::as_str), gpus, seed, &[]);
    }
}

#[test]
fn towers_and_placements_are_equivalent() {
    run_tests(&["equivalence::"], 2, 5, &[]);
    run_tests(&["equivalence::"], 4, 6, &[]);
}

#[test]
fn towers_train_to_the_hosts_figures_whatever_the_order() {
    run_tests(&["cuda::steps::child_towers"], 4, 7, &[]);
    run_tests(&["cuda::steps::child_towers"], 1, 8, &[]);
    run_tests(&["cuda::steps::child_an_untrained"], 2, 8, &[]);
    run_tests(&["cuda::steps::child_products"], 1, 8, &[]);
}

#[test]
fn ten_seeds_show_no_race() {
    run_tests(&["cuda::steps::child_no_race"], 4, 1, &[("TURRET_STANDIN_RACES", "log")]);
}

#[test]
fn a_warm_step_is_one_launch() {
    for gpus in [1, 2, 4] {
        run_tests(&["cuda::steps::child_a_warm_step"], gpus, 9, &[]);
    }
    run_tests(&["cuda::steps::child_only_gpus"], 4, 9, &[]);
}

#[test]
fn gpus_that_do_not_reach_each_other_train_too() {
    for peers in ["pairs", "none"] {
        run_tests(&["cuda::steps::child_towers"], 4, 10, &[("TURRET_STANDIN_PEERS", peers)]);
    }
}

#[test]
fn faults_give_their_errors() {
    let children = [
        "child_memory_that",
        "child_launches",
        "child_what_cannot",
        "child_a_route",
        "child_a_refused",
        "child_an_illegal_address_beside",
        "child_an_illegal_address",
        "child_a_gpu_falls",
    ];
    // What is compiled must not be there from an earlier test.
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels-of-faults");
    let _ = std::fs::remove_dir_all(&cache);
    let vars = [("TURRET_CACHE", cache.to_str().expect("a path in UTF-8"))];
    for child in children {
        let exact = child == "child_an_illegal_address";
        let name = format!("cuda::faults::{child}");
        let filters: &[&str] = if exact { &["--exact", &name] } else { &[&name] };
        run_tests(filters, 2, 11, &vars);
    }
}

#[test]
fn the_device_check_passes() {
    let check = |vars: &[(&str, &str)], parts: &[&str]| {
        let program = crate::examples::example_binary("device_check");
        let mut command = with_stand_in(&program, 2, 1)?;
        let output = command.envs(vars.iter().copied()).arg("--quick").args(parts).output().expect("it starts");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let last = out.lines().last().unwrap_or_default().to_string();
        Some((output.status.code(), last, format!("{out}{err}")))
    };
    let Some((code, last, text)) = check(&[], &[]) else { return };
    assert!(code == Some(0) && last.ends_with(" passed, 0 failed") && !text.contains("RACE"), "{text}");
    // A lost context costs the case that lost it; the others go on in another process.
    let Some((code, last, text)) = check(&[("TURRET_STANDIN_FAULT", "async:90")], &["--parts", "ops"]) else { return };
    let numbers: Vec<usize> = last.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(code == Some(1) && numbers[0] > 50 && (1..12).contains(&numbers[1]), "{text}");
    assert_eq!(text.matches("is lost to this program").count(), numbers[1], "{text}");
}

#[test]
fn sums_over_gpus_are_right_in_any_order() {
    for (gpus, seed) in [(2, 1), (2, 2), (4, 3), (4, 4)] {
        run_tests(&["cuda::nccl::child"], gpus, seed, &[]);
    }
    run_tests(&["averaging::"], 4, 5, &[]);
}

#[test]
fn failed_checks_change_no_variable() {
    run_tests(&["cuda::checks::child"], 2, 14, &[]);
}

#[test]
fn plans_share_and_hold_what_they_should() {
    run_tests(&["cuda::plans::child"], 1, 15, &[]);
}

#[test]
fn kernels_on_disk_that_cannot_be_used_are_compiled_anew() {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels-on-disk");
    let _ = std::fs::remove_dir_all(&cache);
    let child = |compiles: &str| {
        let vars = [("TURRET_CACHE", cache.to_str().expect("a path in UTF-8")), ("TURRET_TEST_COMPILES", compiles)];
        run_tests(&["cuda::plans::child_kernels_from_disk"], 1, 16, &vars);
    };
    if in_child() || stand_in().is_none() {
        return;
    }
    child("some");
    child("none");
    let files = |kind: &str| -> Vec<PathBuf> {
        let folders = std::fs::read_dir(&cache).expect("a cache folder").map(|f| f.expect("a folder").path());
        let all = folders.flat_map(|f| std::fs::read_dir(f).expect("a folder").map(|f| f.expect("a file").path()));
        all.filter(|f| f.extension().is_some_and(|e| e == kind)).collect()
    };
    let read = |file: &PathBuf| std::fs::read(file).expect("a file");
    let write = |file: &PathBuf, bytes: &[u8]| std::fs::write(file, bytes).expect("a file is written");
    let (images, pointers) = (files("cubin"), files("in"));
    assert!(images.len() >= 2 && pointers.len() >= 2, "{images:?}, {pointers:?}");
    // Each way of damage is repaired by the program that meets it.
    let spoil: [&dyn Fn(); 5] = [
        &|| images.iter().for_each(|f| write(f, b"no module")),
        &|| images.iter().for_each(|f| write(f, &read(f)[..read(f).len() / 2])),
        &|| images.iter().for_each(|f| write(f, b"")),
        &|| pointers.iter().for_each(|f| write(f, b"no number")),
        &|| {
            // Each names a module that is there and has other kernels.
            let other = |own: &[u8]| pointers.iter().map(read).find(|text| text != own).expect("two modules");
            let others: Vec<Vec<u8>> = pointers.iter().map(|f| other(&read(f))).collect();
            pointers.iter().zip(others).for_each(|(f, text)| write(f, &text));
        },
    ];
    for spoil in spoil {
        spoil();
        child("some");
        child("none");
    }
    images.iter().for_each(|f| std::fs::remove_file(f).expect("a file goes"));
    child("some");
}
