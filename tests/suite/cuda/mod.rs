//! The CUDA backend on the stand-in driver: this binary runs itself again with the stand-in's libraries, so that each
//! number of GPUs, seed and fault has a process of its own. Tests whose name begins with `child` do nothing elsewhere.
//!
//! On a machine with a GPU, `TURRET_TEST_CUDA=real` lets the same children run on it.

mod ops;

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
    assert!(!text.contains("RACE"), "{what}: races\n{text}");
}

#[test]
fn every_op_of_the_table_agrees_with_the_host() {
    run_tests(&["cuda::ops::child"], 1, 1, &[]);
}

#[test]
fn fixtures_pass_on_one_two_and_four_gpus() {
    for (gpus, seed) in [(1, 1), (2, 2), (4, 3)] {
        run_tests(&["fixtures::towers", "fixtures::scopes"], gpus, seed, &[]);
    }
}

#[test]
fn cases_pass() {
    run_tests(&["cases::", "classifier::"], 4, 4, &[]);
}

#[test]
fn towers_and_placements_are_equivalent() {
    run_tests(&["equivalence::"], 2, 5, &[]);
    run_tests(&["equivalence::"], 4, 6, &[]);
}
