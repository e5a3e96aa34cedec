//! Cases of automatic differentiation at its edges.

use super::small::{assert_near, rows_of_grad_01, session, squared_error};
use super::{assert_says, only_problem};
use turret::base::{Code, DType};
use turret::device::{CpuKernel, DeviceId};
use turret::graph::{Fact, Gradient, Graph, InferContext, Init, KernelContext, Op, Tensor};
use turret::plan::place_all;
use turret::train::{ComputeOptions, GradOptions, Optimizer, UnconnectedGradients, gradients};

fn dense<'g>(gradient: &Option<Gradient<'g>>) -> Tensor<'g> {
    match gradient {
        Some(Gradient::Dense(tensor)) => *tensor,
        other => panic!("want a dense gradient, got {other:?}"),
    }
}

#[test]
fn auto_01() {
    let g = Graph::new();
    let u = g.get_variable("u", [2], Init::Ones);
    let v = g.get_variable("v", [3], Init::Ones);
    let loss = u.value().square().sum();
    let by_default = gradients([loss], [v], GradOptions::default());
    assert!(matches!(by_default[..], [None]));
    let options = GradOptions { unconnected: UnconnectedGradients::Zero, ..GradOptions::default() };
    let zeros = gradients([loss], [v, u], options);
    assert!(gradients([loss], Vec::<Tensor<'_>>::new(), GradOptions::default()).is_empty());
    assert_eq!((g.check(), g.warnings().len()), (Ok(()), 0));
    let s = session(&g, 1);
    let out = s.run(&[], &[dense(&zeros[0]), dense(&zeros[1])], &[]).unwrap();
    assert_eq!((out[0].to_f64(), out[1].to_f64()), (vec![0.0; 3], vec![2.0; 2]));

    // What is said later is that the loss does not depend on v.
    let sgd = Optimizer::gradient_descent(0.1);
    sgd.compute_gradients(loss);
    let warnings = g.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_says(&warnings[0].message, &["'v'", &format!("loss '{}' does not depend on it", loss.name())]);
    let options = ComputeOptions { var_list: Some(vec![v]), ..ComputeOptions::default() };
    let list = sgd.compute_gradients_with(loss, options);
    assert!(sgd.apply_gradients(&list).is_poison());
    assert_says(&only_problem(&g).message, &[&format!("loss '{}' depends on none of 'v'", loss.name())]);
}

/// Doubles, and has no gradient rule.
struct Unruled;

impl Op for Unruled {
    fn name(&self) -> &'static str {
        "Unruled"
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        Ok(vec![c.inputs[0].clone()])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(Box::new(|l| {
            let values = l.input::<f32>(0);
            l.output::<f32>(0).iter_mut().zip(values).for_each(|(o, v)| *o = 2.0 * v);
            Ok(())
        }))
    }
}

/// That every rule agrees with finite differences is tested where the op table is walked.
#[test]
fn auto_03() {
    let g = Graph::new();
    let x = g.get_variable("x", [], Init::Constant(2.0));
    let y = g.get_variable("y", [3], Init::Constant(7.0));
    let slopes: Vec<Tensor<'_>> = [(x.value().log(), x), (x.value().exp(), x), (y.value().sum(), y)]
        .into_iter()
        .map(|(value, of)| dense(&gradients([value], [of], GradOptions::default())[0]))
        .collect();
    let s = session(&g, 1);
    let out = s.run(&[], &slopes, &[]).unwrap();
    assert_near(&out[0].to_f64(), &[0.5], 1e-5);
    assert_near(&out[1].to_f64(), &[7.3890561], 1e-5);
    assert_eq!(out[2].to_f64(), [1.0; 3]);

    // The op runs forward, and is refused on the way back.
    let doubled = g.node_of(&Unruled).name("doubled").input(x).tensor();
    assert_eq!(s.run(&[], &[doubled], &[]).unwrap()[0].get_f64(0), 4.0);
    let refused = gradients([doubled + y.value().sum()], [x, y], GradOptions::default());
    assert!(dense(&refused[0]).is_poison());
    let problem = only_problem(&g);
    assert_eq!(problem.code, Code::Unimplemented);
    assert_says(&problem.to_string(), &["'doubled'", "op type: Unruled", "variable 'x'", "stop_gradient", "auto.rs:"]);
}

#[test]
fn auto_05() {
    let g = Graph::new();
    let a = g.device("/cpu:0", || g.get_variable("a", [], Init::Constant(2.0)));
    let (x, t) = (g.placeholder(DType::F32, [4], "x"), g.placeholder(DType::F32, [4], "t"));
    let (xs, ts) = (x.split(2, 0), t.split(2, 0));
    let losses: Vec<Tensor<'_>> = (0..2)
        .map(|i| {
            g.device(&format!("/gpu:{i}"), || g.name_scope(&format!("tower_{i}"), || squared_error(a, xs[i], ts[i])))
        })
        .collect();
    let total = (losses[0] + losses[1]) / 2.0;
    let built = g.len();
    let whole = dense(&gradients([total], [a], GradOptions::default())[0]);
    let nodes = g.nodes();
    let parts: Vec<Tensor<'_>> =
        losses.iter().map(|&l| dense(&gradients([l], [a], GradOptions::default())[0])).collect();
    let s = session(&g, 2);
    let (rows, targets) = rows_of_grad_01();
    let out = s.run(&[(x, &rows), (t, &targets)], &[whole, parts[0], parts[1]], &[]).unwrap();
    let out: Vec<f64> = out.iter().map(|v| v.get_f64(0)).collect();
    assert_near(&out, &[-5.0, -3.0, -7.0], 1e-5);

    // Gradient nodes lie where their forward nodes do.
    let placed = place_all(&g.nodes(), s.machine(), s.placement_options()).unwrap();
    for (i, gpu) in [DeviceId(1), DeviceId(2)].into_iter().enumerate() {
        let prefix = format!("gradients/tower_{i}/");
        let of_tower: Vec<_> = nodes[built..].iter().filter(|n| n.name.starts_with(&prefix)).collect();
        assert!(of_tower.len() >= 5, "{of_tower:?}");
        for node in of_tower {
            assert_eq!(placed.device(node.id), gpu, "{}", node.name);
        }
    }
}
