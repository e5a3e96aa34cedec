//! What happens when programs, arguments, kernels and threads go wrong: messages, no panics, no hangs, state as before.

mod callers;
mod damage;
mod failures;
mod files;
mod hazards;
mod programs;
mod threads;

use turret::device::Machine;
use turret::run::SessionOptions;

/// A session's options for so many simulated GPUs.
fn sim(gpus: usize) -> SessionOptions {
    SessionOptions::on(Machine::simulated(gpus))
}

/// Fails unless the text has all of these parts, in any order.
#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    let lacks: Vec<&&str> = parts.iter().filter(|p| !text.contains(**p)).collect();
    assert!(lacks.is_empty(), "want {lacks:?} in:\n{text}");
}
