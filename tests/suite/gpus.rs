//! The GPUs that tests run on: simulated ones, or CUDA's where `TURRET_TEST_DEVICES` is `cuda`, so that one suite judges
//! both. CUDA GPUs are used in turn where a test wants more than there are.

use turret::device::{Machine, cuda};

/// True where tests run on CUDA GPUs.
pub fn are_cuda() -> bool {
    std::env::var("TURRET_TEST_DEVICES").is_ok_and(|d| d == "cuda")
}

/// A machine with this many GPUs.
pub fn machine(gpus: usize) -> Machine {
    if !are_cuda() || gpus == 0 {
        return Machine::simulated(gpus);
    }
    let there = cuda::device_count().unwrap_or_else(|e| panic!("TURRET_TEST_DEVICES is cuda, but {e}"));
    let which: Vec<usize> = (0..gpus).map(|i| i % there).collect();
    Machine::cuda(&which).unwrap_or_else(|e| panic!("{e}"))
}
