//! Clipping and schedules, by the numbers of their formulas.

use super::*;
use crate::base::{Array, DType};
use crate::graph::{Graph, Init, Tensor};

fn values(graph: &Graph, tensor: Tensor<'_>, feeds: &[(Tensor<'_>, Array)]) -> Vec<f64> {
    graph.evaluate(tensor, feeds).unwrap().to_f64()
}

fn near(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 1e-6 * w.abs().max(1.0), "got {got:?}, want {want:?}");
    }
}

#[test]
fn tensors_are_clipped() {
    let g = Graph::new();
    let t = g.constant(vec![3.0f32, -4.0]);
    near(&values(&g, clip_by_value(t, -1.0, 2.0), &[]), &[2.0, -1.0]);
    near(&values(&g, clip_by_norm(t, 2.5), &[]), &[1.5, -2.0]);
    near(&values(&g, clip_by_norm(t, 6.0), &[]), &[3.0, -4.0]);
    assert_eq!(clip_by_norm(t, 6.0).op().name(), "clip_by_norm_2");
    assert!(g.check().is_ok());
}

#[test]
fn lists_are_clipped_together() {
    let g = Graph::new();
    let entry = |name: &str, values: Option<Vec<f32>>| GradAndVar {
        grad: values.map(|v| g.constant(v).into()),
        var: g.get_variable(name, [1], Init::Ones),
    };
    let list = [entry("a", Some(vec![3.0])), entry("b", None), entry("c", Some(vec![4.0]))];
    near(&values(&g, global_norm(&list).unwrap(), &[]), &[5.0]);
    for (norm, want) in [(2.5, [1.5, 2.0]), (10.0, [3.0, 4.0])] {
        let clipped = clip_by_global_norm(&list, norm);
        assert!(clipped[1].grad.is_none());
        near(&values(&g, clipped[0].grad.unwrap().values(), &[]), &want[..1]);
        near(&values(&g, clipped[2].grad.unwrap().values(), &[]), &want[1..]);
    }
    let broken = clip_by_global_norm(&[entry("d", Some(vec![f32::INFINITY])), list[0]], 1.0);
    assert!(values(&g, broken[1].grad.unwrap().values(), &[])[0].is_nan());
    assert!(global_norm(&list[1..2]).is_none());
    assert!(g.check().is_ok());
}

#[test]
fn schedules_follow_the_counter() {
    let g = Graph::new();
    let step = get_or_create_global_step(&g);
    let mut cases: Vec<(Tensor<'_>, [f64; 4])> = vec![
        (exponential_decay(step, 0.1, 10.0, 0.5, true), [0.1, 0.1, 0.05, 0.025]),
        (exponential_decay(step, 0.1, 10.0, 0.5, false), [0.1, 0.1 * 0.5f64.powf(0.9), 0.05, 0.025]),
        (piecewise_constant(step, &[9, 15], &[1.0, 0.5, 0.1]), [1.0, 1.0, 0.5, 0.1]),
        (polynomial_decay(step, 1.0, 10.0, 0.1, 2.0), [1.0, 0.109, 0.1, 0.1]),
    ];
    let at_9 = 0.6 + 0.4 * (0.9 * std::f64::consts::PI).cos();
    cases.push((cosine_decay(step, 1.0, 10.0, 0.2), [1.0, at_9, 0.2, 0.2]));
    let inverse = |p: f64| 0.5 / (1.0 + 0.5 * p);
    cases.push((inverse_time_decay(step, 0.5, 4.0, 0.5, false), [0.0, 2.25, 2.5, 5.0].map(inverse)));
    cases.push((inverse_time_decay(step, 0.5, 4.0, 0.5, true), [0.0, 2.0, 2.0, 5.0].map(inverse)));
    let natural = |p: f64| 0.5 * (-0.7 * p).exp();
    cases.push((natural_exp_decay(step, 0.5, 4.0, 0.7, false), [0.0, 2.25, 2.5, 5.0].map(natural)));
    let then = exponential_decay(step, 0.8, 10.0, 0.5, true);
    cases.push((warm_up(step, 0.8, 10.0, then), [0.0, 0.72, 0.4, 0.2]));
    assert!(g.check().is_ok(), "{:?}", g.check());
    for (rate, want) in cases {
        let got: Vec<f64> =
            [0i64, 9, 10, 20].iter().map(|&s| values(&g, rate, &[(step.value(), Array::scalar(s))])[0]).collect();
        near(&got, &want);
        assert_eq!((rate.dtype(), rate.device().to_string()), (DType::F32, "/device:CPU:0".into()));
    }
    piecewise_constant(step, &[3, 3], &[1.0, 2.0, 3.0]);
    inverse_time_decay(step, 1.0, 0.0, 1.0, false);
    let messages: Vec<String> = g.diagnostics().into_iter().map(|d| d.message).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert_eq!(messages[1], "InverseTimeDecay wants a number of steps above zero");
}
