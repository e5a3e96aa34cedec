//! Cases of inputs, schedules and randomness.

use super::small::{row, session};
use turret::base::DType;
use turret::graph::{Graph, Init};
use turret::train::{Optimizer, Towers, split_batch};

#[test]
fn input_01() {
    let batch = row(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    for size in [Some(8), None] {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [size], "x");
        let sgd = Optimizer::gradient_descent(0.0);
        let towers = Towers::new(&g, 2);
        let parts = towers.split(x);
        let mut sums = Vec::new();
        towers.build(&sgd, |tower| {
            let w = g.get_variable("w", [], Init::Ones);
            sums.push(parts[tower.index()].sum());
            w * sums[tower.index()]
        });
        // The same by hand.
        for (i, part) in split_batch(x, 2).into_iter().enumerate() {
            sums.push(g.device(&format!("/gpu:{i}"), || part.sum()));
        }
        let s = session(&g, 2);
        let out = s.run(&[(x, &batch)], &sums, &[]).unwrap();
        let out: Vec<f64> = out.iter().map(|v| v.get_f64(0)).collect();
        assert_eq!(out, [6.0, 22.0, 6.0, 22.0]);
    }
}
