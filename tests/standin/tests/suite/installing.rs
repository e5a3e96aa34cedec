//! Both ways to the libraries: loaded by path first, or found by `LD_LIBRARY_PATH`; and what the environment sets.

use super::harness::lab;
use cudarc::driver::{CudaContext, result};
use std::path::Path;
use std::process::Command;

const CHILD: &str = "STANDIN_TEST_CHILD";

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("standin-path")
}

/// Does nothing by itself; other tests start it as a process of its own.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    turret_standin::install(&folder()).unwrap();
    // SAFETY: the libraries are looked up by name.
    assert!(unsafe { cudarc::driver::sys::is_culib_present() && cudarc::nvrtc::sys::is_culib_present() });
    // SAFETY: as above.
    assert!(unsafe {
        cudarc::cublas::sys::is_culib_present()
            && cudarc::cublaslt::sys::is_culib_present()
            && cudarc::nccl::sys::is_culib_present()
    });
    result::init().unwrap();
    let n = CudaContext::device_count().unwrap();
    let names: Vec<String> = (0..n as usize).map(|i| CudaContext::new(i).unwrap().name().unwrap()).collect();
    let mut peers = String::new();
    for (a, b) in [(0, 1), (1, 2)] {
        let mut can = 0;
        if b < n {
            // SAFETY: the devices are there.
            unsafe { cudarc::driver::sys::cuDeviceCanAccessPeer(&mut can, a, b) }.result().unwrap();
        }
        peers += &can.to_string();
    }
    println!("names: {}; peers {peers}", names.join(", "));
}

fn names(environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "suite::installing::child", "--nocapture"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", folder());
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.lines().find_map(|l| l.split_once("names: ")).map(|(_, n)| n.to_owned());
    found.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_search_path_and_the_environment_are_heeded() {
    if lab().is_none() {
        return;
    }
    let _ = std::fs::remove_dir_all(folder());
    // Several processes at once fill one folder.
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..3).map(|_| scope.spawn(|| turret_standin::install(&folder()))).collect();
        all.into_iter().for_each(|t| t.join().unwrap().unwrap());
    });
    assert_eq!(names(&[("TURRET_STANDIN_GPUS", "3")]), "Stand-in GPU 0, Stand-in GPU 1, Stand-in GPU 2; peers 11");
    let pairs = [("TURRET_STANDIN_GPUS", "3"), ("TURRET_STANDIN_PEERS", "pairs")];
    assert!(names(&pairs).ends_with("peers 10"));
    let shown = [("TURRET_STANDIN_GPUS", "4"), ("CUDA_VISIBLE_DEVICES", "3,1,7,0")];
    assert_eq!(names(&shown), "Stand-in GPU 3, Stand-in GPU 1; peers 10");
}
