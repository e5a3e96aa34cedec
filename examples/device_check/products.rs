//! Products with bias and ReLU that start anywhere in memory, hold NaN, or are of doubles, and a traced step.

use super::items::text;
use turret::base::{Array, DType};
use turret::device::Machine;
use turret::graph::{Graph, Tensor};
use turret::run::{Session, SessionOptions};

/// Checks all of these against the host; gives what was checked.
pub fn check() -> Result<String, String> {
    for (dtype, row, bias_at) in [(DType::F32, 0, 0), (DType::F32, 1, 1), (DType::F32, 3, 4), (DType::F64, 1, 0)] {
        let of = |machine: Machine, device: &str| products(machine, device, dtype, row, bias_at).map_err(text);
        let (got, want) = (of(Machine::cuda(&[0]).map_err(text)?, "/gpu:0")?, of(Machine::host(), "/cpu:0")?);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let same = |(a, b): (&f64, &f64)| a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-5;
            if !got.to_f64().iter().zip(&want.to_f64()).all(same) {
                return Err(format!(
                    "{dtype} from row {row}, bias from {bias_at}, result {i}: want {want:?}, got {got:?}"
                ));
            }
        }
    }
    Ok("products with bias and ReLU from odd places, of doubles, with NaN; a traced step".into())
}

/// The results of three runs, the last of which is traced.
fn products(machine: Machine, device: &str, dtype: DType, row: i64, bias_at: i64) -> turret::Result<Vec<Array>> {
    let g = Graph::new();
    let x = g.placeholder(dtype, [8, 5], "x");
    let (w, b) = (g.placeholder(dtype, [5, 3], "w"), g.placeholder(dtype, [9], "b"));
    let y: [Tensor<'_>; 3] = g.device(device, || {
        // Runs of the fed bytes, which start wherever they start.
        let (x, b) = (x.slice(&[row, 0], &[4, 5]), b.slice(&[bias_at], &[3]));
        let sum = x.matmul(w) + b;
        [(x.matmul(w) + b).relu(), x.matmul(w).relu(), sum]
    });
    let session = Session::new(&g, SessionOptions::on(machine))?;
    let array = |dims: &[usize], nan: bool| {
        let len: usize = dims.iter().product();
        let mut drawn: Vec<f64> = (0..len).map(|i| ((i * 37 % 19) as f64 - 9.0) / 4.0).collect();
        if nan {
            drawn[len / 2] = f64::NAN;
        }
        Array::from_f64(dtype, dims, &drawn)
    };
    let mut results = Vec::new();
    for nan in [false, true] {
        let (fx, fw, fb) = (array(&[8, 5], nan)?, array(&[5, 3], false)?, array(&[9], false)?);
        let feeds = [(x, &fx), (w, &fw), (b, &fb)];
        results.extend(session.run(&feeds, &y, &[])?);
        results.extend(session.run(&feeds, &y, &[])?);
        results.extend(session.run_traced(&feeds, &y, &[])?.0);
    }
    Ok(results)
}
