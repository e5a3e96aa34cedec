//! Layers against TensorFlow's own: variables, names of ops, losses and weights over five steps; what they refuse.

mod errors;
mod in_step;
mod recorded;
mod towers;
mod training;

use turret::base::Array;

/// Numbers in [-0.5, 0.5) that `record.py` has too, without rounding.
fn numbers(count: usize, seed: i64) -> Vec<f64> {
    (0..count as i64).map(|k| ((k * 37 + seed * 101 + (k * k) / 7).rem_euclid(64) as f64 - 31.5) / 64.0).collect()
}

/// As an array.
fn array(dims: &[usize], seed: i64) -> Array {
    let values: Vec<f32> = numbers(dims.iter().product(), seed).into_iter().map(|v| v as f32).collect();
    Array::new(dims, &values).expect("as many as there are")
}
