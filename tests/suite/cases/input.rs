//! Cases of inputs, schedules and randomness.

use super::assert_says;
use super::small::{row, session};
use crate::command::turret;
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

#[test]
fn input_04() {
    let says = |args: &[&str], parts: &[&str]| {
        let ran = turret(&[args, &["--dim-in", "4", "--dims", "none"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_says(&ran.err, parts);
    };
    // The option's name says which batch it is.
    let four = ["run", "--devices", "sim:4", "--towers", "4"];
    says(&[&four[..], &["--tower-batch", "96"]].concat(), &["batch: global 384, per tower 96", "towers: 4 on"]);
    says(&[&four[..], &["--global-batch", "96"]].concat(), &["batch: global 96, per tower 24"]);
    says(&[&four[..], &["--batch", "96", "--inputs", "per_tower"]].concat(), &["batch: global 96, per tower 24"]);
    says(&["run", "--batch", "96"], &["towers: 1 on /gpu:0", "global 96, per tower 96", "idle GPUs: 1 of 2 (/gpu:1)"]);
    // From a program, the same lines.
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [96, 4], "x");
    let towers = Towers::new(&g, 4);
    let parts = towers.split(x);
    let optimizer = Optimizer::gradient_descent(0.1);
    let built = towers.build(&optimizer, |t| {
        let w = g.get_variable("w", [4, 1], Init::Zeros);
        parts[t.index()].matmul(w).square().mean()
    });
    let summary = built.summary.on_machine(6).to_string();
    assert_says(&summary, &["towers: 4 on", "batch: global 96, per tower 24", "idle GPUs: 2 of 6 (/gpu:4, /gpu:5)"]);
}
