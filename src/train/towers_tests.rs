//! Towers: names and devices against TensorFlow's figures, and the numbers of averaging.

use super::recorded_names::{STATIC, UNKNOWN_BATCH};
use super::*;
use crate::base::{Array, DType};
use crate::graph::{
    Gradient, Graph, IndexedSlices, Init, Reuse, ScopeOptions, Tensor, Variable, VariablePlacement, keys,
};

fn messages(graph: &Graph) -> String {
    graph.check().err().map(|e| e.to_string()).unwrap_or_default()
}

fn warnings(graph: &Graph) -> Vec<String> {
    graph.warnings().into_iter().map(|w| w.message).collect()
}

fn scalar(graph: &Graph, tensor: Tensor<'_>, feeds: &[(Tensor<'_>, Array)]) -> f64 {
    graph.evaluate(tensor, feeds).unwrap().get_f64(0)
}

fn dense<'g>(list: &[GradAndVar<'g>], var: Variable<'g>) -> Tensor<'g> {
    match GradAndVar::find(list, var).and_then(|gv| gv.grad) {
        Some(Gradient::Dense(tensor)) => tensor,
        other => panic!("no dense gradient of {}: {other:?}", var.name()),
    }
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "got {got}, want {want}");
}

/// The article's tower.
fn article<'g>(g: &'g Graph, x: Tensor<'g>, target: Tensor<'g>, dims: &[usize]) -> Tensor<'g> {
    let affine = |scope: &str, x: Tensor<'g>, width: usize, init: Init| {
        let (w, b) = g.variable_scope(scope, || {
            g.device("/cpu:0", || (g.get_variable("w", [x.dim(1), width], init), g.get_variable("b", [], Init::Zeros)))
        });
        x.matmul(w) + b
    };
    let mut h = x;
    for (i, &d) in dims.iter().enumerate() {
        h = affine(&format!("affine{i}"), h, d, Init::Constant(0.5)).relu();
    }
    (affine("affine_last", h, 1, Init::Constant(1.0)) - target).square().mean()
}

fn grad_names(list: &[GradAndVar<'_>]) -> Vec<String> {
    list.iter().map(|gv| gv.grad.map_or("None".into(), |g| g.op().name())).collect()
}

/// The gradient nodes of a tower, without its prefix, sorted.
fn gradient_nodes(graph: &Graph, tower: usize) -> Vec<String> {
    let prefix = format!("tower_{tower}/gradients/");
    let nodes = graph.nodes();
    let mut names: Vec<String> =
        nodes.iter().filter_map(|n| n.name.strip_prefix(&prefix)).map(str::to_string).collect();
    names.sort();
    names
}

fn sorted(names: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
    names.sort();
    names
}

#[test]
fn the_article_written_line_by_line_has_tensorflows_names() {
    let g = Graph::new();
    let input = g.placeholder(DType::F32, [8, 6], "input");
    let target = g.placeholder(DType::F32, [8, 6], "target");
    let (inputs, targets) = (split_batch(input, 2), split_batch(target, 2));
    let opt = Optimizer::gradient_descent(1e-2);
    let mut tower_grads = Vec::new();
    for i in 0..2 {
        g.device(&format!("/gpu:{i}"), || {
            g.name_scope(&format!("tower_{i}"), || {
                let loss = article(&g, inputs[i], targets[i], &[5, 4]);
                g.reuse_variables();
                tower_grads.push(opt.compute_gradients(loss));
            })
        });
    }
    let averaged = average_gradients(&tower_grads, AverageOptions::device("/cpu:0"));
    let train = opt.apply_gradients(&averaged);
    assert_eq!(messages(&g), "");
    assert_eq!(warnings(&g), Vec::<String>::new());
    assert_eq!(gradient_nodes(&g, 1), sorted(STATIC));
    for (i, list) in tower_grads.iter().enumerate() {
        let scope = format!("tower_{i}/gradients/tower_{i}");
        let want = ["MatMul", "add", "MatMul_1", "add_1", "MatMul_2", "add_2"]
            .map(|op| format!("{scope}/{op}_grad/tuple/control_dependency_1"));
        assert_eq!(grad_names(list), want);
        for gv in list {
            assert_eq!(gv.grad.unwrap().values().device().to_string(), format!("/device:GPU:{i}"));
        }
    }
    assert_eq!(grad_names(&averaged)[0], "average/affine0/w");
    assert!(averaged.iter().all(|gv| gv.grad.unwrap().values().device().to_string() == "/device:CPU:0"));
    assert_eq!(train.name(), "GradientDescent");
    assert!(g.nodes().iter().all(|n| n.source.file().ends_with("towers_tests.rs")));
}

#[test]
fn towers_build_the_same_names_and_let_no_reuse_out() {
    let g = Graph::new();
    let opt = Optimizer::adam(1e-2);
    let (built, train) = Towers::new(&g, 4).variables(VariablePlacement::host()).average_on("/cpu:0").train(
        &opt,
        ApplyOptions::step(get_or_create_global_step(&g)),
        |tower| {
            let x = tower.placeholder(DType::F32, [None, Some(3)], "input");
            let t = tower.placeholder(DType::F32, [None, Some(3)], "target");
            article(&g, x, t, &[])
        },
    );
    assert_eq!(messages(&g), "");
    assert!(g.operation("tower_3/input_3").is_ok() && g.operation("tower_0/target_0").is_ok());
    assert_eq!(gradient_nodes(&g, 3), sorted(UNKNOWN_BATCH));
    assert_eq!(g.trainable_variables().len(), 2);
    assert_eq!(g.current_variable_scope().reuse(), Reuse::Inherit);
    assert_eq!((built.loss.op().name(), train.name()), ("loss".into(), "Adam".into()));
    assert_eq!(built.losses[2].op().name(), "tower_2/Mean");
    assert_eq!(
        built.summary.clone().on_machine(6).to_string(),
        "towers: 4 on /gpu:0, /gpu:1, /gpu:2, /gpu:3\nbatch: known when run\nvariables: host\n\
         idle GPUs: 2 of 6 (/gpu:4, /gpu:5)\n"
    );
}

#[test]
fn the_variable_rule_wins_over_the_towers_device() {
    let g = Graph::new();
    let input = g.placeholder(DType::F32, [4, 3], "input");
    let towers = Towers::new(&g, 2).variables(VariablePlacement::host()).average_on("/cpu:0");
    let x = towers.split(input);
    let built = towers.build(&Optimizer::gradient_descent(0.1), |tower| {
        g.variable_scope("fc", || {
            let w = g.get_variable("w", [3, 2], Init::Ones);
            let b = g.get_variable("b", [2], Init::Zeros);
            (x[tower.index()].matmul(w) + b).mean()
        })
    });
    assert_eq!(messages(&g), "");
    for gv in &built.grads {
        assert_eq!(gv.var.device().to_string(), "/device:CPU:0");
    }
    for i in 0..2 {
        assert_eq!(
            g.operation(&format!("tower_{i}/fc/MatMul")).unwrap().device().to_string(),
            format!("/device:GPU:{i}")
        );
    }
    assert_eq!(built.summary.to_string().lines().nth(1), Some("batch: global 4, per tower 2"));
}

/// Towers of `w·x` against `t` by mean square, with the rows given per tower.
fn linear<'g>(g: &'g Graph, rows: &[(&[f64], &[f64])]) -> (Variable<'g>, BuiltTowers<'g>) {
    let built = Towers::new(g, rows.len()).build(&Optimizer::gradient_descent(0.1), |tower| {
        let (x, t) = rows[tower.index()];
        let w = g.get_variable_with(
            "w",
            [],
            Init::Zeros,
            crate::ops::VariableOptions { dtype: Some(DType::F64), ..Default::default() },
        );
        (g.constant(x.to_vec()) * w - g.constant(t.to_vec())).square().mean()
    });
    assert_eq!(messages(g), "");
    (g.find_variable("w").unwrap(), built)
}

#[test]
fn losses_and_gradients_are_means() {
    let g = Graph::new();
    let (w, built) = linear(&g, &[(&[1.0, 2.0], &[2.0, 3.0]), (&[1.0, 1.0], &[4.0, 4.0])]);
    let feeds = [(w.value(), Array::scalar(1f64))];
    let losses: Vec<f64> = built.losses.iter().map(|&l| scalar(&g, l, &feeds)).collect();
    assert_eq!((losses, scalar(&g, built.loss, &feeds)), (vec![1.0, 9.0], 5.0));

    for n in [1, 2, 4, 8] {
        let g = Graph::new();
        let rows: Vec<(&[f64], &[f64])> = vec![(&[1.0, 2.0], &[3.0, 5.0]); n];
        let (w, built) = linear(&g, &rows);
        near(2.0 - 0.1 * scalar(&g, dense(&built.grads, w), &[(w.value(), Array::scalar(2f64))]), 2.3);
    }
}

#[test]
fn the_tower_count_does_not_change_the_steps() {
    let x: Vec<f64> = (1..=8).map(|i| i as f64 / 4.0).collect();
    let t: Vec<f64> = x.iter().map(|x| 3.0 * x - 0.5).collect();
    for n in [1, 2, 4, 8] {
        let g = Graph::new();
        let rows: Vec<(&[f64], &[f64])> = x.chunks(8 / n).zip(t.chunks(8 / n)).collect();
        let (var, built) = linear(&g, &rows);
        let mut w = 0.5;
        for want in [1.184375, 1.650605468750, 1.968224975586] {
            w -= 0.1 * scalar(&g, dense(&built.grads, var), &[(var.value(), Array::scalar(w))]);
            assert!((w - want).abs() < 1e-8, "{n} towers: {w}, want {want}");
        }
    }
}

#[test]
fn a_variable_that_no_loss_uses_stays_without_a_gradient() {
    let g = Graph::new();
    let rows: [([f32; 2], [f32; 2]); 2] = [([1.0, 2.0], [3.0, 5.0]), ([3.0, 4.0], [7.0, 9.0])];
    let opt = Optimizer::gradient_descent(0.1);
    let step = get_or_create_global_step(&g);
    let (built, train) = Towers::new(&g, 2).train(&opt, ApplyOptions::step(step), |tower| {
        let a = g.get_variable("a", [], Init::Constant(2.0));
        g.get_variable("b", [], Init::Constant(4.0));
        let (x, t) = rows[tower.index()];
        (g.constant(x) * a - g.constant(t)).square().mean()
    });
    assert_eq!(messages(&g), "");
    let (a, b) = (g.find_variable("a").unwrap(), g.find_variable("b").unwrap());
    let feeds = [(a.value(), Array::scalar(2f32))];
    let towers: Vec<f64> = built.tower_grads.iter().map(|list| scalar(&g, dense(list, a), &feeds)).collect();
    assert_eq!(towers, [-3.0, -7.0]);
    assert_eq!(scalar(&g, dense(&built.grads, a), &feeds), -5.0);
    assert!(GradAndVar::find(&built.grads, b).is_some_and(|gv| gv.grad.is_none()));
    assert!(!train.inputs().contains(&b.buffer()));
    let warnings = warnings(&g);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("variable 'b' has no gradient: loss 'tower_0/Mean:0'"), "{warnings:?}");
    assert_eq!(g.nodes().iter().filter(|n| n.op.name() == "ApplyGradients").count(), 1);

    // One total loss gives the same, and its gradient nodes lie where their forward nodes do.
    let total = (built.losses[0] + built.losses[1]) * 0.5;
    let grads = g.name_scope("whole", || gradients([total], [a], GradOptions::default()));
    let Some(Gradient::Dense(whole)) = grads[0] else { panic!("{grads:?}") };
    assert_eq!(scalar(&g, whole, &feeds), -5.0);
    for node in g.nodes().iter().filter(|n| n.name.starts_with("whole/gradients/tower_1/")) {
        assert_eq!(node.device.spec.to_string(), "/device:GPU:1", "{}", node.name);
    }
}

#[test]
fn no_gradient_at_all_names_the_variables_and_the_loss() {
    let g = Graph::new();
    let opt = Optimizer::gradient_descent(0.1);
    g.get_variable("a", [], Init::Ones);
    g.get_variable("b", [], Init::Ones);
    let loss = g.constant(vec![1.0f32]).sum();
    let list = opt.compute_gradients(loss);
    opt.apply_gradients(&list);
    let message = messages(&g);
    assert!(message.contains("loss 'Sum:0' depends on none of 'a', 'b'"), "{message}");
    assert_eq!(g.diagnostics().len(), 1);
}

#[test]
fn rows_of_different_towers_are_averaged_by_row() {
    let g = Graph::new();
    let ids = [[0, 1], [0, 2]];
    let opt = Optimizer::gradient_descent(0.1);
    let built = Towers::new(&g, 2).build(&opt, |tower| {
        let table = g.get_variable("table", [4, 3], Init::Zeros);
        table.value().gather(g.constant(ids[tower.index()]), 0).sum()
    });
    let Some(Gradient::Slices(IndexedSlices { values, indices, .. })) = built.grads[0].grad else { panic!() };
    assert_eq!(values.op().name(), "average/table");
    assert_eq!(g.evaluate(indices, &[]).unwrap().to_f64(), [0.0, 1.0, 0.0, 2.0]);
    let feeds = [(g.find_variable("table").unwrap().value(), Array::zeros(DType::F32, &[4, 3]).unwrap())];
    assert_eq!(g.evaluate(values, &feeds).unwrap().to_f64(), [0.5; 12]);
    let whole = super::parts::densify(built.grads[0].grad.unwrap());
    let mut want = [1.0, 0.5, 0.5, 0.0].map(|v| [v; 3]).concat();
    assert_eq!(g.evaluate(whole, &feeds).unwrap().to_f64(), want);
    opt.apply_gradients(&built.grads);

    // A tower with a dense gradient makes the mean dense; an absent one counts as zero.
    let table = g.find_variable("table").unwrap();
    let ones = g.constant(Array::from_f64(DType::F32, &[4, 3], &[1.0; 12]).unwrap());
    let other = vec![GradAndVar { grad: Some(ones.into()), var: table }];
    let mixed = average_gradients(&[built.tower_grads[0].clone(), other.clone()], AverageOptions::default());
    want = [1.0, 1.0, 0.5, 0.5].map(|v| [v; 3]).concat();
    assert_eq!(g.evaluate(dense(&mixed, table), &feeds).unwrap().to_f64(), want);
    let absent = vec![GradAndVar { grad: None, var: table }];
    let half = average_gradients(&[other, absent], AverageOptions::default());
    assert_eq!(g.evaluate(dense(&half, table), &feeds).unwrap().to_f64(), [0.5; 12]);
    let warnings = warnings(&g);
    assert!(warnings.iter().any(|w| w.contains("variable 'table' has no gradient in tower 1")), "{warnings:?}");
    assert_eq!(messages(&g), "");
}

#[test]
fn uneven_batches_are_refused_or_weighted() {
    let build = |g: &Graph, uneven: bool| -> Option<f64> {
        let x = g.placeholder(DType::F64, [5], "x");
        let t = g.placeholder(DType::F64, [5], "t");
        let towers = Towers::new(g, 2);
        let towers = if uneven { towers.uneven() } else { towers };
        let (xs, ts) = (towers.split(x), towers.split(t));
        let built = towers.build(&Optimizer::gradient_descent(0.01), |tower| {
            let options = crate::ops::VariableOptions { dtype: Some(DType::F64), ..Default::default() };
            let w = g.get_variable_with("w", [], Init::Ones, options);
            (xs[tower.index()] * w - ts[tower.index()]).square().mean()
        });
        g.check().ok()?;
        assert_eq!(built.summary.to_string().lines().nth(1), Some("batch: global 5, by tower 3 + 2"));
        let w = g.find_variable("w").unwrap();
        let feeds = [
            (x, Array::new(&[5], &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap()),
            (t, Array::new(&[5], &[2.0, 4.0, 6.0, 8.0, 11.0]).unwrap()),
            (w.value(), Array::scalar(1f64)),
        ];
        near(scalar(g, dense(&built.tower_grads[1], w), &feeds), -46.0);
        Some(scalar(g, dense(&built.grads, w), &feeds))
    };
    near(build(&Graph::new(), true).unwrap(), -24.0);
    let g = Graph::new();
    assert_eq!(build(&g, false), None);
    let message = messages(&g);
    for part in ["batch 'x' of size 5", "2 towers: remainder 1", "drop 1 rows", "pad", "uneven mode"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_penalty_counts_once_however_many_towers() {
    for n in [1, 2, 4] {
        for collected in [false, true] {
            let g = Graph::new();
            let data: Vec<f32> = (0..n).map(|i| if n == 1 { 1.5 } else { 1.0 + (i % 2) as f32 }).collect();
            let built = Towers::new(&g, n).build(&Optimizer::gradient_descent(0.1), |tower| {
                let w = g.get_variable("w", [], Init::Constant(3.0));
                let penalty = w.value().square() * 0.05;
                let loss = w * g.constant(data[tower.index()]);
                if collected {
                    g.add_to_collection(keys::REGULARIZATION_LOSSES, penalty);
                    return loss;
                }
                loss + penalty
            });
            assert_eq!(messages(&g), "");
            let w = g.find_variable("w").unwrap();
            near(scalar(&g, dense(&built.grads, w), &[(w.value(), Array::scalar(3f32))]), 1.8);
        }
    }
}

#[test]
fn the_finite_check_names_tower_device_and_variable() {
    let g = Graph::new();
    let built = Towers::new(&g, 2).check_finite().build(&Optimizer::gradient_descent(0.1), |tower| {
        let x = if tower.index() == 1 { f32::NAN } else { 1.0 };
        (g.get_variable("w", [], Init::Constant(2.0)) * g.constant(x)).square()
    });
    assert_eq!(messages(&g), "");
    let w = g.find_variable("w").unwrap();
    let check = g.operation("average/w/check_1").unwrap();
    assert_eq!(check.device().to_string(), "/device:GPU:1");
    let error = g.evaluate(dense(&built.grads, w), &[(w.value(), Array::scalar(2f32))]).unwrap_err();
    for part in ["'w'", "tower 1", "/device:GPU:1", "NaN"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn towers_with_different_variables_are_refused() {
    let g = Graph::new();
    let make = |name: &str| {
        let var = g.get_variable(name, [], Init::Ones);
        GradAndVar { grad: Some(var.value().square().into()), var }
    };
    let (a, b, c) = (make("a"), make("b"), make("c"));
    let swapped = average_gradients(&[vec![a, b], vec![b, a]], AverageOptions::default());
    assert_eq!(grad_names(&swapped), ["average/a", "average/b"]);
    assert_eq!(messages(&g), "");
    average_gradients(&[vec![a, b], vec![a, c]], AverageOptions::default());
    let message = messages(&g);
    assert!(message.contains("tower 1 lacks 'b', only tower 1 has 'c'"), "{message}");
}

#[test]
fn one_tower_keeps_its_list_and_a_sum_is_no_mean() {
    let g = Graph::new();
    let w = g.get_variable("w", [], Init::Ones);
    let list = vec![GradAndVar { grad: Some(w.value().square().into()), var: w }];
    let alone = average_gradients(std::slice::from_ref(&list), AverageOptions::default());
    assert_eq!(grad_names(&alone), ["Square"]);
    let sum = AverageOptions { reduction: Reduction::Sum, ..AverageOptions::default() };
    let sum = average_gradients(&[list.clone(), list], sum);
    assert_eq!(grad_names(&sum), ["sum/w"]);
    assert_eq!(scalar(&g, dense(&sum, w), &[(w.value(), Array::scalar(3f32))]), 18.0);
}

#[test]
fn auto_reuse_gives_the_names_of_one_tower() {
    let build = |n: usize| {
        let g = Graph::new();
        let auto = ScopeOptions::reuse(Reuse::Auto);
        let scope = g.current_variable_scope();
        g.reenter(&scope, ScopeOptions { no_name_scope: true, ..auto }, || {
            for i in 0..n {
                let x = g.placeholder(DType::F32, [2, 3], "x");
                g.name_scope(&format!("tower_{i}"), || article(&g, x, x, &[4]));
            }
        });
        assert_eq!(messages(&g), "");
        g.global_variables().iter().map(|v| v.name()).collect::<Vec<_>>()
    };
    assert_eq!(build(1), build(2));
}
