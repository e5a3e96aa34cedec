//! Moving averages: names and figures of TensorFlow's, and which values they take.

use super::*;
use crate::base::{Array, DType};
use crate::graph::{Graph, Init, Tensor, keys};
use crate::run::{Session, SessionOptions};

fn session(g: &Graph) -> Session<'_> {
    Session::new(g, SessionOptions::devices("sim:1").unwrap()).unwrap()
}

fn near(got: &[f64], want: &[f64]) {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * b.abs().max(1e-3);
    assert!(got.len() == want.len() && got.iter().zip(want).all(close), "want {want:?}, got {got:?}");
}

#[test]
fn names_are_tensorflows() {
    let g = Graph::new();
    let w = g.device("/gpu:0", || g.get_variable("w", [2], Init::Ones));
    let x = g.placeholder(DType::F32, [2], "x");
    let step = get_or_create_global_step(&g);
    let ema = ExponentialMovingAverage::new(0.9).num_updates(step).zero_debias();
    assert_eq!(ema.average_name(w), "w/ExponentialMovingAverage");
    assert!(ema.average(w).is_none());
    let op = ema.apply(&[w]);
    let debiased = ema.apply_to_tensors(&[x]);
    assert_eq!((op.name(), debiased.name()), ("ExponentialMovingAverage".into(), "ExponentialMovingAverage_1".into()));
    let names: Vec<String> = g.nodes().into_iter().map(|n| n.name.to_string()).collect();
    let prefix = |p: &str| -> Vec<String> {
        names.iter().filter_map(|n| n.strip_prefix(&format!("{p}/"))).map(String::from).collect()
    };
    // What TensorFlow's graph has there, in its order.
    assert_eq!(
        prefix("ExponentialMovingAverage"),
        [
            "decay",
            "num_updates",
            "add/x",
            "add",
            "add_1/x",
            "add_1",
            "truediv",
            "Minimum",
            "AssignMovingAvg/sub/x",
            "AssignMovingAvg/sub",
            "AssignMovingAvg/sub_1",
            "AssignMovingAvg/mul",
            "AssignMovingAvg"
        ]
    );
    let of_tensor: Vec<String> = prefix("ExponentialMovingAverage_1/AssignMovingAvg");
    let mut sorted = of_tensor.clone();
    sorted.sort();
    assert_eq!(
        sorted,
        [
            "AssignAdd",
            "AssignAdd/value",
            "AssignSub",
            "Pow",
            "mul",
            "sub",
            "sub/x",
            "sub_1",
            "sub_2",
            "sub_2/x",
            "sub_3",
            "sub_3/x",
            "truediv"
        ]
    );
    let average = ema.average(w).unwrap();
    assert_eq!(average.device().to_string(), "/device:GPU:0");
    let update = g.operation("ExponentialMovingAverage/AssignMovingAvg").unwrap();
    assert_eq!(update.device().to_string(), "/device:GPU:0");
    assert_eq!(g.variables_in(keys::MOVING_AVERAGE_VARIABLES), [w]);
    assert_eq!(g.trainable_variables(), [w]);
    let restored: Vec<(String, String)> =
        ema.variables_to_restore(&g).into_iter().map(|(n, v)| (n, v.name())).collect();
    let own = |n: &str| (n.to_string(), n.to_string());
    assert_eq!(
        restored,
        [
            ("w/ExponentialMovingAverage".to_string(), "w".to_string()),
            own("global_step"),
            own("x/ExponentialMovingAverage"),
            own("x/ExponentialMovingAverage/biased"),
            own("x/ExponentialMovingAverage/local_step"),
        ]
    );
    g.check().unwrap();
}

#[test]
fn the_decay_begins_small_and_the_average_from_the_value() {
    let g = Graph::new();
    g.set_random_seed(3);
    let w = g.get_variable("w", [2], Init::truncated_normal(0.0, 1.0));
    let step = get_or_create_global_step(&g);
    let ema = ExponentialMovingAverage::new(0.5).num_updates(step);
    let update = ema.apply(&[w]);
    let count = step.assign_add(g.constant(5i64)).op();
    g.check().unwrap();
    let s = session(&g);
    s.initialize().unwrap();
    let average = ema.average(w).unwrap();
    assert_eq!(s.value(average).unwrap(), s.value(w).unwrap(), "both start from the same draw");
    s.load(w, &Array::new(&[2], &[1.0f32, -2.0]).unwrap()).unwrap();
    s.load(average, &Array::new(&[2], &[0.0f32, 0.0]).unwrap()).unwrap();
    // (1 + 0) / (10 + 0), (1 + 5) / (10 + 5), then 0.5, which is less than 11 / 20.
    let mut want = 0.0;
    for decay in [0.1, 0.4, 0.5] {
        s.run_targets(&[update, count]).unwrap();
        want = want * decay + (1.0 - decay);
        near(&s.value(average).unwrap().to_f64(), &[want, -2.0 * want]);
    }
}

#[test]
fn after_a_train_op_the_average_takes_what_that_left() {
    let run = |after: bool| -> (f64, f64) {
        let g = Graph::new();
        let w = g.get_variable("w", [], Init::Constant(1.0));
        let step = get_or_create_global_step(&g);
        let optimizer = Optimizer::gradient_descent(0.5);
        let train = optimizer.minimize(w.value().square(), ComputeOptions::default(), ApplyOptions::step(step));
        let ema = ExponentialMovingAverage::new(0.9).num_updates(step);
        let update = match after {
            true => g.control_dependencies([train], || ema.apply(&[w])),
            false => ema.apply(&[w]),
        };
        let both = g.group([train, update], "train");
        g.check().unwrap();
        let s = session(&g);
        s.initialize().unwrap();
        s.run_targets(&[both]).unwrap();
        (s.value(w).unwrap().get_f64(0), s.value(ema.average(w).unwrap()).unwrap().get_f64(0))
    };
    // The step takes w from 1 to 0; the counter is 0 before it and 1 after it.
    assert_eq!(run(false), (0.0, 1.0));
    let (w, average) = run(true);
    near(&[w, average], &[0.0, 2.0 / 11.0]);
}

#[test]
fn averages_of_tensors_start_from_zeros_unless_corrected() {
    let after = |debias: bool| -> f64 {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [], "loss");
        let ema = ExponentialMovingAverage::new(0.9).named("avg");
        let ema = if debias { ema.zero_debias() } else { ema };
        let update = ema.apply_to_tensors(&[x]);
        let average = ema.average_of_tensor(x).unwrap();
        assert_eq!(average.name(), "loss/avg");
        g.check().unwrap();
        let s = session(&g);
        s.initialize().unwrap();
        for value in [2.0f32, 4.0] {
            s.run(&[(x, &Array::scalar(value))], &[], &[update]).unwrap();
        }
        s.value(average).unwrap().get_f64(0)
    };
    near(&[after(false)], &[0.9 * 0.2 + 0.1 * 4.0]);
    near(&[after(true)], &[(0.9 * 0.2 + 0.1 * 4.0) / (1.0 - 0.81)]);
}

#[test]
fn what_has_no_average_is_reported() {
    let g = Graph::new();
    let ema = ExponentialMovingAverage::new(0.9);
    assert!(ema.apply(&[get_or_create_global_step(&g)]).is_poison());
    let unknown: Tensor<'_> = g.placeholder(DType::F32, [None], "x");
    assert!(ema.apply_to_tensors(&[unknown]).is_poison());
    let messages: Vec<String> = g.diagnostics().into_iter().map(|d| d.message).collect();
    assert_eq!(
        messages,
        [
            "moving average 'ExponentialMovingAverage': 'global_step' must hold floats; leave them out",
            "moving average 'ExponentialMovingAverage': want tensors of floats whose shapes are known, got 'x:0' float32 [?]"
        ]
    );
    assert!(ema.apply(&[]).is_poison());
}
