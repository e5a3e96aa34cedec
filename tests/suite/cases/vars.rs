//! Cases of variables, scopes and reuse.

use super::{assert_says, names, only_problem};
use turret::base::{Code, DType};
use turret::graph::{Graph, Init, Reuse, ScopeOptions, Tensor, Variable};
use turret::run::{Session, SessionOptions};
use turret::train::{GradAndVar, Optimizer};

/// A dense layer in a scope of its own: its product, named as the op type, and its variables.
fn dense<'g>(g: &'g Graph, scope: &str, inputs: usize, outputs: usize) -> [Variable<'g>; 2] {
    g.variable_scope(scope, || {
        let w = g.get_variable("w", [inputs, outputs], Init::Zeros);
        let b = g.get_variable("b", [outputs], Init::Zeros);
        product(w.value());
        [w, b]
    })
}

/// Stands for a product; only its name matters here.
fn product(w: Tensor<'_>) -> Tensor<'_> {
    w.identity("MatMul")
}

/// Towers in name scopes `tower_i`.
fn towers(g: &Graph, count: usize, mut body: impl FnMut(usize)) {
    for i in 0..count {
        g.device(&format!("/gpu:{i}"), || g.name_scope(&format!("tower_{i}"), || body(i)));
    }
}

/// The names of all operations that are no part of a variable.
fn op_names(g: &Graph) -> Vec<String> {
    g.operations().into_iter().map(|o| o.name()).filter(|n| n.ends_with("MatMul")).collect()
}

/// The average of the tower gradients of the cases with `w = 2`: -5, given as a constant.
fn given<'g>(g: &'g Graph, var: Variable<'g>, grad: f32) -> GradAndVar<'g> {
    GradAndVar { grad: Some(g.constant(grad).into()), var }
}

#[test]
fn vars_01() {
    let g = Graph::new();
    let mut w = None;
    towers(&g, 2, |i| {
        w = Some(g.get_variable("w", [], Init::Constant(2.0)));
        if i == 0 {
            g.reuse_variables();
        }
    });
    let w = w.unwrap();
    let adam = Optimizer::adam(0.1);
    let train = adam.apply_gradients(&[given(&g, w, -5.0)]);
    assert_eq!(g.check(), Ok(()));
    let mut all = names(&g.all_variables());
    all.sort();
    assert_eq!(all, ["beta1_power", "beta2_power", "w", "w/Adam", "w/Adam_1"]);
    assert_eq!(names(&g.trainable_variables()), ["w"]);

    let session = Session::new(&g, SessionOptions::devices("sim:2").unwrap()).unwrap();
    session.initialize().unwrap();
    session.run_targets(&[train]).unwrap();
    for (name, want, tolerance) in [
        ("w", 2.09999999, 1e-5),
        ("w/Adam", -0.5, 1e-5),
        // In f32 arithmetic, TensorFlow's too, 1 - 0.999 is off by 1.3e-5 of itself.
        ("w/Adam_1", 0.025, 1.5e-5),
        ("beta1_power", 0.81, 1e-5),
        ("beta2_power", 0.998001, 1e-5),
    ] {
        let got = session.value(g.find_variable(name).unwrap()).unwrap().to_f64()[0];
        assert!((got - want).abs() <= tolerance * want.abs(), "{name}: want {want}, got {got}");
    }

    // A reuse that is set inside a scope around the tower loop ends with it.
    let g = Graph::new();
    g.reenter(&g.current_variable_scope(), ScopeOptions::default(), || {
        towers(&g, 2, |_| {
            g.get_variable("w", [], Init::Zeros);
            g.reuse_variables();
        });
    });
    g.get_variable("later", [], Init::Zeros);
    assert_eq!((g.check(), g.current_variable_scope().reuse()), (Ok(()), Reuse::Inherit));
}

#[test]
fn vars_02() {
    fn build(g: &Graph) -> Vec<String> {
        let w = g.get_variable("w", [], Init::Constant(2.0));
        for grad in [-5.0, 1.0] {
            Optimizer::adam(0.1).apply_gradients(&[given(g, w, grad)]);
        }
        assert_eq!(g.check(), Ok(()));
        names(&g.global_variables())
    }
    let (a, b) = (Graph::new(), Graph::new());
    let mut all = build(&a);
    assert_eq!(all, build(&b));
    all.sort();
    let first = ["beta1_power", "beta1_power_1", "beta2_power", "beta2_power_1"];
    assert_eq!(all, [&first[..], &["w", "w/Adam", "w/Adam_1", "w/Adam_2", "w/Adam_3"]].concat());
}

#[test]
fn vars_03() {
    let g = Graph::new();
    let first = line!() + 2;
    towers(&g, 2, |_| {
        g.variable_scope("fc", || g.get_variable("w", [4, 2], Init::Zeros));
    });
    let problem = only_problem(&g);
    assert_eq!(problem.code, Code::AlreadyExists);
    assert_says(
        &problem.to_string(),
        &[
            "'fc/w'",
            "first made in 'tower_0/fc'",
            &format!("vars.rs:{first}:"),
            "reuse is off in scope 'fc'",
            "Reuse::Auto",
        ],
    );
    assert_eq!(names(&g.all_variables()), ["fc/w"]);
    assert!(g.operation("fc/w_1").is_err() && g.operation("fc_1/w").is_err());
    assert_eq!(g.check().unwrap_err().code(), Code::AlreadyExists);
}

#[test]
fn vars_05() {
    // Other sizes; and the same count of elements, transposed.
    for (asked, text) in [([9, 4], "[9, 4]"), ([4, 6], "[4, 6]")] {
        let g = Graph::new();
        let in_h2 = |body: &dyn Fn()| g.variable_scope("disc", || g.variable_scope("h2", body));
        in_h2(&|| {
            g.get_variable("w", [6, 4], Init::Zeros);
        });
        let first = format!("vars.rs:{}:", line!() - 2);
        g.reuse_variables();
        in_h2(&|| {
            assert!(g.get_variable("w", asked, Init::Zeros).is_poison());
        });
        let second = format!("vars.rs:{}:", line!() - 2);
        let problem = only_problem(&g);
        assert_says(
            &problem.to_string(),
            &["'disc/h2/w'", text, "[6, 4]", &first, &second, "sizes of the inputs differ"],
        );
        assert_eq!(g.find_variable("disc/h2/w").unwrap().shape().to_string(), "[6, 4]");
    }
}

#[test]
fn vars_07() {
    let g = Graph::new();
    towers(&g, 2, |i| {
        let reuse = if i == 0 { Reuse::Inherit } else { Reuse::True };
        let scope = g.current_variable_scope();
        g.reenter(&scope, ScopeOptions::reuse(reuse), || dense(&g, "fc", 4, 2));
    });
    assert_eq!(g.check(), Ok(()));
    let mut all = names(&g.all_variables());
    all.sort();
    assert_eq!(all, ["fc/b", "fc/w"]);
    assert_eq!(op_names(&g), ["tower_0/fc/MatMul", "tower_1/fc/MatMul"]);
    assert_eq!(names(&g.trainable_variables()), ["fc/w", "fc/b"]);
}

#[test]
fn vars_08() {
    fn build(g: &Graph) {
        let x = g.placeholder(DType::F32, [None, Some(4)], "x");
        g.variable_scope_with("net", ScopeOptions::reuse(Reuse::Inherit), || {
            towers(g, 2, |i| {
                x.identity("slice");
                dense(g, "fc", 4, 2);
                if i == 0 {
                    g.reuse_variables();
                }
            });
        });
        g.global_variables_initializer();
    }
    let all = |g: &Graph| g.operations().into_iter().map(|o| o.name()).collect::<Vec<_>>();
    let (a, b) = (Graph::new(), Graph::new());
    build(&a);
    build(&b);
    assert_eq!((a.check(), all(&a)), (Ok(()), all(&b)));

    // The second build in one graph: op scopes get a suffix, variables are refused, never renamed.
    let once = names(&a.all_variables());
    build(&a);
    assert!(all(&a).iter().any(|n| n == "net_1/tower_0/slice"), "{:?}", all(&a));
    assert_eq!(names(&a.all_variables()), once);
    let problems = a.diagnostics();
    assert_eq!(problems.len(), 2, "{problems:?}");
    for (problem, name) in problems.iter().zip(["'net/fc/w'", "'net/fc/b'"]) {
        assert_eq!(problem.code, Code::AlreadyExists);
        assert_says(&problem.message, &[name, "first made in 'net/tower_0/fc'"]);
    }
}

#[test]
fn vars_11() {
    let build = |count: usize| {
        let g = Graph::new();
        g.auto_reuse_variables();
        towers(&g, count, |_| {
            dense(&g, "fc", 4, 2);
            dense(&g, "out", 2, 1);
        });
        assert_eq!(g.check(), Ok(()));
        (names(&g.all_variables()), names(&g.trainable_variables()), op_names(&g))
    };
    let (one, two) = (build(1), build(2));
    assert_eq!((&two.0, &two.1), (&one.0, &one.1));
    assert_eq!(one.0, ["fc/w", "fc/b", "out/w", "out/b"]);
    assert_eq!(two.2, ["tower_0/fc/MatMul", "tower_0/out/MatMul", "tower_1/fc/MatMul", "tower_1/out/MatMul"]);
}
