//! Layers against TensorFlow's own: variables, names of ops, losses and weights over five steps; what they refuse.

mod errors;
mod in_step;
mod models;
mod recorded;
mod towers;
mod training;

use turret::base::Array;

/// Numbers in [-0.5, 0.5) that `record.py` has too, without rounding.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let number = |k: u64| {
        let h = (k * 2_654_435_761 + seed * 2_246_822_519 + 374_761_393) & 0xFFFF_FFFF;
        let h = ((h ^ (h >> 15)) * 2_246_822_519) & 0xFFFF_FFFF;
        ((h ^ (h >> 13)) >> 8) as f64 / (1u64 << 24) as f64 - 0.5
    };
    (0..count as u64).map(number).collect()
}

/// As an array.
fn array(dims: &[usize], seed: u64) -> Array {
    let values: Vec<f32> = numbers(dims.iter().product(), seed).into_iter().map(|v| v as f32).collect();
    Array::new(dims, &values).expect("as many as there are")
}
