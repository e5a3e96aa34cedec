//! Cases of tower gradients and their averaging.

use super::small::{a_of_2, assert_near, grad_of, linear, row, rows_of_grad_01, scalar, session, squared_error};
use super::{assert_says, only_problem};
use turret::base::{Array, DType};
use turret::graph::{Gradient, Graph, Init, Regularizer, Variable, VariablePlacement, keys};
use turret::ops::VariableOptions;
use turret::train::{ApplyOptions, GradAndVar, Optimizer, Tower, Towers, get_or_create_global_step};

#[test]
fn grad_01() {
    let g = Graph::new();
    let sgd = Optimizer::gradient_descent(0.1);
    let mut b = None;
    let program = linear(&g, Some(4), DType::F32, Towers::new(&g, 2), &sgd, |tower| {
        b = Some(g.get_variable("b", [], Init::Constant(4.0)));
        a_of_2(tower)
    });
    let (built, b) = (&program.built, b.unwrap());
    let train = built.apply(&sgd);
    let absent: Vec<bool> = built.grads.iter().map(|gv| gv.grad.is_none()).collect();
    let order: Vec<String> = built.grads.iter().map(|gv| gv.var.name()).collect();
    assert_eq!((absent, order), (vec![true, false], vec!["b".to_string(), "a".to_string()]));
    let warnings = g.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_says(&warnings[0].to_string(), &["'b'", &format!("'{}'", built.losses[0].name()), "does not depend on it"]);

    let s = session(&g, 2);
    let (x, t) = rows_of_grad_01();
    let fetches =
        [grad_of(&built.tower_grads[0], "a"), grad_of(&built.tower_grads[1], "a"), grad_of(&built.grads, "a")];
    let grads = s.run(&[(program.x, &x), (program.t, &t)], &fetches, &[train]).unwrap();
    let grads: Vec<f64> = grads.iter().map(|v| v.get_f64(0)).collect();
    assert_near(&grads, &[-3.0, -7.0, -5.0], 1e-5);
    assert_near(&[scalar(&s, g.find_variable("a").unwrap())], &[2.5], 1e-5);
    assert_eq!(s.value(b).unwrap().as_slice::<f32>().unwrap(), [4.0]);

    // No variable has a gradient: refused, with all of them and the loss.
    let g = Graph::new();
    for name in ["a", "b"] {
        g.get_variable(name, [], Init::Zeros);
    }
    let loss = g.placeholder(DType::F32, [2], "x").square().mean();
    let list = sgd_list(&g, loss);
    assert!(list.iter().all(|gv| gv.grad.is_none()));
    assert!(Optimizer::gradient_descent(0.1).minimize(loss, Default::default(), ApplyOptions::default()).is_poison());
    let text = g.check().unwrap_err().to_string();
    assert_says(&text, &["no gradient", "'a', 'b'", &format!("loss '{}'", loss.name()), "grad.rs:"]);
}

fn sgd_list<'g>(g: &'g Graph, loss: turret::graph::Tensor<'g>) -> Vec<GradAndVar<'g>> {
    let list = Optimizer::gradient_descent(0.1).compute_gradients(loss);
    assert_eq!(list.len(), g.trainable_variables().len());
    list
}

#[test]
fn grad_03() {
    let g = Graph::new();
    let sgd = Optimizer::gradient_descent(1.0);
    let towers = Towers::new(&g, 2).variables(VariablePlacement::host());
    let mut ids = Vec::new();
    let (built, train) = towers.train(&sgd, ApplyOptions::default(), |tower| {
        let table = g.get_variable("table", [4, 3], Init::Zeros);
        ids.push(tower.placeholder(DType::I32, [2], "ids"));
        table.value().gather(ids[tower.index()], 0).sum()
    });
    let Some(Gradient::Slices(rows)) = built.grads[0].grad else { panic!("want rows, got {:?}", built.grads[0]) };
    let s = session(&g, 2);
    let fed = [Array::new(&[2], &[0i32, 1]).unwrap(), Array::new(&[2], &[0i32, 2]).unwrap()];
    let feeds = [(ids[0], &fed[0]), (ids[1], &fed[1])];
    let out = s.run(&feeds, &[rows.values, rows.indices], &[train]).unwrap();
    let mut dense = [[0.0; 3]; 4];
    for (i, row) in out[1].to_i64().unwrap().into_iter().enumerate() {
        (0..3).for_each(|k| dense[row as usize][k] += out[0].get_f64(i * 3 + k));
    }
    let want = [[1.0; 3], [0.5; 3], [0.5; 3], [0.0; 3]];
    assert_eq!(dense, want);
    // What is applied are these rows.
    let moved: Vec<f64> = s.value(built.grads[0].var).unwrap().to_f64().iter().map(|v| -v).collect();
    assert_eq!(moved, want.concat());
}

#[test]
fn grad_05() {
    let g = Graph::new();
    let sgd = Optimizer::gradient_descent(0.1);
    let program =
        linear(&g, Some(4), DType::F32, Towers::new(&g, 2), &sgd, |_| g.get_variable("w", [], Init::Constant(1.0)));
    let s = session(&g, 2);
    let (x, t) = (row(&[1.0, 2.0, 1.0, 1.0]), row(&[2.0, 3.0, 4.0, 4.0]));
    let by_name: Vec<_> = program.built.losses.iter().map(|l| g.tensor(&l.name()).unwrap()).collect();
    assert!(by_name[0].name().starts_with("tower_0/") && by_name[1].name().starts_with("tower_1/"));
    let fetches = [by_name[0], by_name[1], g.tensor("loss:0").unwrap()];
    assert_eq!(fetches[2], program.built.loss);
    let out = s.run(&[(program.x, &x), (program.t, &t)], &fetches, &[]).unwrap();
    let out: Vec<f64> = out.iter().map(|v| v.get_f64(0)).collect();
    assert_near(&out, &[1.0, 9.0, 5.0], 1e-5);
}

#[test]
fn grad_06() {
    let rows: Vec<f64> = (1..=8).map(|i| f64::from(i) / 4.0).collect();
    let targets: Vec<f64> = rows.iter().map(|x| 3.0 * x - 0.5).collect();
    let mut w = 0.5;
    let want: Vec<f64> = (0..3)
        .map(|_| {
            w -= 0.1 * rows.iter().zip(&targets).map(|(x, t)| 2.0 * x * (w * x - t)).sum::<f64>() / 8.0;
            w
        })
        .collect();
    assert_near(&want, &[1.184375, 1.65060547, 1.96822498], 1e-8);
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-12)] {
        for count in [1, 2, 4, 8] {
            let g = Graph::new();
            let sgd = Optimizer::gradient_descent(0.1);
            let program = linear(&g, Some(8), dtype, Towers::new(&g, count), &sgd, |_| {
                let options = VariableOptions { dtype: Some(dtype), ..VariableOptions::default() };
                g.get_variable_with("w", [], Init::Constant(0.5), options)
            });
            let train = program.built.apply(&sgd);
            let s = session(&g, count);
            let (x, t) =
                (Array::from_f64(dtype, &[8], &rows).unwrap(), Array::from_f64(dtype, &[8], &targets).unwrap());
            let got: Vec<f64> = (0..3)
                .map(|_| {
                    s.run(&[(program.x, &x), (program.t, &t)], &[], &[train]).unwrap();
                    scalar(&s, g.find_variable("w").unwrap())
                })
                .collect();
            assert_near(&got, &want, tolerance);
        }
    }
}

#[test]
fn grad_07() {
    let step = |count: usize, sum: bool| {
        let g = Graph::new();
        let sgd = Optimizer::gradient_descent(0.1);
        let towers = Towers::new(&g, count).variables(VariablePlacement::host());
        let towers = if sum { towers.sum_gradients() } else { towers };
        let (x, t) = (g.placeholder(DType::F32, [2], "x"), g.placeholder(DType::F32, [2], "t"));
        let (_, train) = towers.train(&sgd, ApplyOptions::default(), |tower| squared_error(a_of_2(tower), x, t));
        let s = session(&g, count);
        s.run(&[(x, &row(&[1.0, 2.0])), (t, &row(&[3.0, 5.0]))], &[], &[train]).unwrap();
        scalar(&s, g.find_variable("a").unwrap())
    };
    for count in [1, 2, 4, 8] {
        assert_near(&[step(count, false)], &[2.3], 1e-5);
    }
    // The sum is another mode, asked for by its name.
    assert_near(&[step(4, true)], &[3.2], 1e-5);
}

#[test]
fn grad_08() {
    let (x, t) = (row(&[1.0, 2.0, 3.0, 4.0, 5.0]), row(&[2.0, 4.0, 6.0, 8.0, 11.0]));
    let refusal = ["'x", "size 5", "2", "remainder 1", "drop", "pad", "uneven"];
    let sgd = Optimizer::gradient_descent(0.01);

    // Known when it is built.
    let g = Graph::new();
    Towers::new(&g, 2).split(g.placeholder(DType::F32, [5], "x"));
    assert_says(&only_problem(&g).to_string(), &refusal);

    // Known when it is run: nothing has started, nothing has changed, and the session goes on.
    let g = Graph::new();
    let program = linear(&g, None, DType::F32, Towers::new(&g, 2), &sgd, w1);
    let train = program.built.apply(&sgd);
    let s = session(&g, 2);
    let w = g.find_variable("w").unwrap();
    let started = s.started_devices();
    let error = s.run(&[(program.x, &x), (program.t, &t)], &[], &[train]).unwrap_err().to_string();
    assert_says(&error, &refusal);
    assert_eq!((s.started_devices(), scalar(&s, w)), (started, 1.0));
    assert!(s.memory_use()[1..].iter().all(|d| d.bytes == 0));
    let (even_x, even_t) = (row(&[1.0, 2.0]), row(&[1.0, 2.0]));
    s.run(&[(program.x, &even_x), (program.t, &even_t)], &[], &[train]).unwrap();

    // The uneven mode: 3 and 2 rows, and the mean is over rows.
    let g = Graph::new();
    let sgd = Optimizer::gradient_descent(0.01);
    let program = linear(&g, Some(5), DType::F32, Towers::new(&g, 2).uneven(), &sgd, w1);
    let built = &program.built;
    let train = built.apply(&sgd);
    let s = session(&g, 2);
    let fetches =
        [grad_of(&built.tower_grads[0], "w"), grad_of(&built.tower_grads[1], "w"), grad_of(&built.grads, "w")];
    let out = s.run(&[(program.x, &x), (program.t, &t)], &fetches, &[train]).unwrap();
    let out: Vec<f64> = out.iter().map(|v| v.get_f64(0)).collect();
    assert_near(&out, &[-9.33333333, -46.0, -24.0], 1e-5);
    assert_near(&[scalar(&s, g.find_variable("w").unwrap())], &[1.24], 1e-5);
    assert_eq!(built.summary.tower_batches, [3, 2]);
}

/// The variable `w = 1`.
fn w1(tower: Tower<'_>) -> Variable<'_> {
    tower.graph().get_variable("w", [], Init::Constant(1.0))
}

#[test]
fn grad_10() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Penalty {
        /// Added to the loss by hand.
        Added,
        /// Put into the collection by each tower.
        Collected,
        /// Made with the variable.
        Regularizer,
    }
    for way in [Penalty::Added, Penalty::Collected, Penalty::Regularizer] {
        for count in [1, 2, 4] {
            let g = Graph::new();
            let sgd = Optimizer::gradient_descent(0.1);
            let towers = Towers::new(&g, count).variables(VariablePlacement::host());
            let data = g.placeholder(DType::F32, [4], "data");
            let parts = towers.split(data);
            let built = towers.build(&sgd, |tower| {
                let regularizer = (way == Penalty::Regularizer).then_some(Regularizer::L2(0.1));
                let options = VariableOptions { regularizer, ..VariableOptions::default() };
                let w = g.get_variable_with("w", [], Init::Constant(3.0), options);
                let loss = (w * parts[tower.index()]).mean();
                let penalty = || w.value().l2_loss() * 0.1;
                match way {
                    Penalty::Added => loss + penalty(),
                    Penalty::Collected => {
                        g.add_to_collection(keys::REGULARIZATION_LOSSES, penalty());
                        loss
                    }
                    Penalty::Regularizer => loss,
                }
            });
            let s = session(&g, count);
            let rows = row(&[1.0, 1.0, 2.0, 2.0]);
            let out = s.run(&[(data, &rows)], &[grad_of(&built.grads, "w")], &[]).unwrap();
            assert_near(&out[0].to_f64(), &[1.8], 1e-5);
        }
    }
}

#[test]
fn grad_13() {
    for (bad, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "Inf")] {
        let g = Graph::new();
        let adam = Optimizer::adam(0.1);
        let towers = Towers::new(&g, 2).check_finite();
        let program = linear(&g, Some(4), DType::F32, towers, &adam, |_| g.get_variable("w", [], Init::Constant(2.0)));
        let step = get_or_create_global_step(&g);
        let train = program.built.apply_with(&adam, ApplyOptions::step(step));
        let s = session(&g, 2);
        let values = || -> Vec<Array> { g.all_variables().into_iter().map(|v| s.value(v).unwrap()).collect() };
        let before = values();
        assert_eq!(before.len(), 6);
        let (_, t) = rows_of_grad_01();
        // A NaN in x makes the gradient NaN; so large a number makes it infinite.
        let x = row(&[1.0, 2.0, 3.0, if bad.is_nan() { bad } else { f32::MAX }]);
        let error = s.run(&[(program.x, &x), (program.t, &t)], &[], &[train]).unwrap_err().to_string();
        assert_says(&error, &["tower 1", "GPU:1", "'w'", word]);
        assert_eq!(values(), before);
        assert_eq!((scalar(&s, g.find_variable("w").unwrap()), scalar(&s, step)), (2.0, 0.0));
        // The session goes on.
        let (x, t) = rows_of_grad_01();
        s.run(&[(program.x, &x), (program.t, &t)], &[], &[train]).unwrap();
        assert_eq!(scalar(&s, step), 1.0);
    }
    // Nor does a variable change whose own gradient is finite, on a device that waits for no other.
    let g = Graph::new();
    let adam = Optimizer::adam(0.1);
    let towers = Towers::new(&g, 2).variables(VariablePlacement::round_robin(2)).check_finite();
    let x = g.placeholder(DType::F32, [2], "x");
    let xs = towers.split(x);
    let (built, _) = towers.train(&adam, ApplyOptions::default(), |tower| {
        let [w, c] = ["w", "c"].map(|name| g.get_variable(name, [], Init::Constant(2.0)));
        (w * xs[tower.index()]).sum() + c.value().square()
    });
    let train = built.apply_with(&adam, ApplyOptions::step(get_or_create_global_step(&g)));
    let s = session(&g, 2);
    let values = || -> Vec<Array> { g.all_variables().into_iter().map(|v| s.value(v).unwrap()).collect() };
    let before = values();
    let error = s.run(&[(x, &row(&[1.0, f32::NAN]))], &[], &[train]).unwrap_err().to_string();
    assert_says(&error, &["tower 1", "GPU:1", "'w'", "NaN"]);
    assert_eq!(values(), before);

    // Without the check the NaN reaches w.
    let g = Graph::new();
    let sgd = Optimizer::gradient_descent(0.1);
    let program = linear(&g, Some(4), DType::F32, Towers::new(&g, 2), &sgd, a_of_2);
    let train = program.built.apply(&sgd);
    let s = session(&g, 2);
    let (_, t) = rows_of_grad_01();
    s.run(&[(program.x, &row(&[1.0, 2.0, 3.0, f32::NAN])), (program.t, &t)], &[], &[train]).unwrap();
    assert!(scalar(&s, g.find_variable("a").unwrap()).is_nan());
}

#[test]
fn grad_15() {
    let g = Graph::new();
    let sgd = Optimizer::gradient_descent(0.1);
    let program = linear(&g, Some(4), DType::F32, Towers::new(&g, 2), &sgd, a_of_2);
    let step = get_or_create_global_step(&g);
    let train = program.built.apply_with(&sgd, ApplyOptions::step(step));
    let a = g.find_variable("a").unwrap();
    let writes_a = |n: &std::sync::Arc<turret::graph::Node>| {
        let written = n.op.written_inputs(&n.attrs, n.inputs.len());
        n.id != a.initializer().id() && written.iter().any(|&i| n.inputs[i].node == a.op().id())
    };
    let applies: Vec<String> = g.nodes().iter().filter(|n| writes_a(n)).map(|n| n.name.to_string()).collect();
    assert_eq!(applies, ["GradientDescent"]);
    let s = session(&g, 2);
    let (x, t) = rows_of_grad_01();
    let feeds = [(program.x, &x), (program.t, &t)];
    s.run(&feeds, &[], &[train]).unwrap();
    assert_near(&[scalar(&s, a)], &[2.5], 1e-5);
    assert_eq!(scalar(&s, step), 1.0);

    // A second apply in the same run is refused, unless it waits for the first.
    let again = program.built.apply(&sgd);
    let error = s.run(&feeds, &[], &[train, again]).unwrap_err().to_string();
    assert_says(&error, &["'GradientDescent' and 'GradientDescent_1'", "variable 'a'", "nothing orders them"]);
    assert_near(&[scalar(&s, a)], &[2.5], 1e-5);
    let ordered = g.control_dependencies([train], || program.built.apply(&sgd));
    s.load(a, &Array::scalar(2f32)).unwrap();
    s.run(&feeds, &[], &[train, ordered]).unwrap();
    assert_near(&[scalar(&s, a)], &[3.0], 1e-5);
    assert_eq!(scalar(&s, step), 2.0);
}
