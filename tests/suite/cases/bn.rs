//! Cases of batch normalization and update operations.

use super::{names, sim};
use turret::base::{Array, DType};
use turret::graph::{Graph, Regularizer, ScopeOptions, Tensor, keys};
use turret::layers::{self, BatchNormOptions, MovingStatistics};
use turret::run::Session;
use turret::train::{
    ApplyOptions, ComputeOptions, Optimizer, Towers, average_gradients, clip_by_global_norm, split_batch,
};

/// Four rows whose halves have the means 2 and 4.
fn rows() -> Array {
    Array::new(&[4, 1], &[1.0f32, 3.0, 3.0, 5.0]).unwrap()
}

fn norm(statistics: MovingStatistics) -> BatchNormOptions {
    BatchNormOptions { momentum: 0.9, statistics, ..BatchNormOptions::named("bn") }
}

fn moving_mean(g: &Graph, session: &Session<'_>) -> f64 {
    session.value(g.find_variable("bn/moving_mean").unwrap()).unwrap().get_f64(0)
}

fn assert_near(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-6, "want {want}, got {got}");
}

/// The moving mean after one step of two towers.
fn after_one_step(build: impl for<'g> Fn(&'g Graph, Tensor<'g>) -> turret::graph::Operation<'g>) -> f64 {
    let mut all = Vec::new();
    // The same again and again, whatever the towers' threads do.
    for _ in 0..10 {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [4, 1], "x");
        let train = build(&g, x);
        let session = Session::new(&g, sim(2)).unwrap();
        session.initialize().unwrap();
        session.run(&[(x, &rows())], &[], &[train]).unwrap();
        all.push(moving_mean(&g, &session));
    }
    assert!(all.iter().all(|m| m.to_bits() == all[0].to_bits()), "{all:?}");
    all[0]
}

#[test]
fn bn_01() {
    let towers = |how: MovingStatistics| {
        after_one_step(move |g, x| {
            let towers = Towers::new(g, 2);
            let parts = towers.split(x);
            let optimizer = Optimizer::gradient_descent(0.1);
            let built =
                towers.build(&optimizer, |t| layers::batch_norm(parts[t.index()], true, norm(how)).square().mean());
            built.apply(&optimizer)
        })
    };
    assert_near(towers(MovingStatistics::FirstTower), 0.2);
    assert_near(towers(MovingStatistics::MeanOfTowers), 0.3);

    // Towers by hand go by the same rules.
    let by_hand = |how: MovingStatistics| {
        after_one_step(move |g, x| {
            let optimizer = Optimizer::gradient_descent(0.1);
            let mut tower_grads = Vec::new();
            for (i, x) in split_batch(x, 2).into_iter().enumerate() {
                g.device(&format!("/gpu:{i}"), || {
                    g.name_scope(&format!("tower_{i}"), || {
                        let loss = layers::batch_norm(x, true, norm(how)).square().mean();
                        g.reuse_variables();
                        tower_grads.push(optimizer.compute_gradients(loss));
                    })
                });
            }
            optimizer.apply_gradients(&average_gradients(&tower_grads, Default::default()))
        })
    };
    assert_near(by_hand(MovingStatistics::FirstTower), 0.2);
    assert_near(by_hand(MovingStatistics::MeanOfTowers), 0.3);

    // All rows together.
    let synchronized = after_one_step(|g, x| {
        let towers = Towers::new(g, 2);
        let optimizer = Optimizer::gradient_descent(0.1);
        let h = towers.batch_norm(&towers.split(x), true, norm(MovingStatistics::FirstTower));
        let losses = towers.each(h, |_, h| h.square().mean());
        towers.build_from_losses(&optimizer, &losses).apply(&optimizer)
    });
    assert_near(synchronized, 0.3);
}

#[test]
fn bn_02() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4, 1], "x");
    let loss = layers::batch_norm(x, true, norm(MovingStatistics::FirstTower)).square().mean();
    let optimizer = Optimizer::gradient_descent(0.1);
    let train = optimizer.minimize(loss, ComputeOptions::default(), ApplyOptions::default());
    assert!(g.warnings().is_empty(), "{:?}", g.warnings());
    let session = Session::new(&g, sim(1)).unwrap();
    session.initialize().unwrap();
    let two = Array::new(&[4, 1], &[1.0f32, 3.0, 0.0, 4.0]).unwrap();
    for want in [0.2, 0.38, 0.542] {
        session.run(&[(x, &two)], &[], &[train]).unwrap();
        assert_near(moving_mean(&g, &session), want);
    }

    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4, 1], "x");
    let loss = layers::batch_norm(x, true, norm(MovingStatistics::FirstTower)).square().mean();
    let by_hand = ApplyOptions { run_update_ops: false, ..ApplyOptions::default() };
    let train = Optimizer::gradient_descent(0.1).minimize(loss, ComputeOptions::default(), by_hand);
    let warnings: Vec<String> = g.warnings().into_iter().map(|w| w.message).collect();
    assert_eq!(
        warnings,
        [
            "2 update operations are not reached by 'GradientDescent': 'bn/AssignMovingAvg', 'bn/AssignMovingAvg_1'; leave \
             run_update_ops on, or run them yourself"
        ]
    );
    // Collected by hand they move the averages too, once.
    let updates = g.get_collection(keys::UPDATE_OPS);
    let updates: Vec<_> = updates.into_iter().map(|u| g.operation(&u.name()).unwrap()).collect();
    let session = Session::new(&g, sim(1)).unwrap();
    session.initialize().unwrap();
    let mut targets = vec![train];
    session.run(&[(x, &two)], &[], &targets).unwrap();
    assert_near(moving_mean(&g, &session), 0.0);
    targets.extend(updates);
    session.run(&[(x, &two)], &[], &targets).unwrap();
    assert_near(moving_mean(&g, &session), 0.2);
}

#[test]
fn bn_04() {
    for how in [MovingStatistics::FirstTower, MovingStatistics::MeanOfTowers] {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [4, 3], "x");
        let towers = Towers::new(&g, 2);
        let parts = towers.split(x);
        let optimizer = Optimizer::momentum(0.1, 0.9);
        let decay = ScopeOptions { regularizer: Some(Regularizer::L2(0.5)), ..ScopeOptions::default() };
        let built = g.variable_scope_with("net", decay, || {
            towers.build(&optimizer, |t| layers::batch_norm(parts[t.index()], true, norm(how)).square().mean())
        });
        let clipped = clip_by_global_norm(&built.grads, 1.0);
        optimizer.apply_gradients(&clipped);
        g.check().unwrap();
        let trained = ["net/bn/gamma", "net/bn/beta"];
        assert_eq!(names(&g.trainable_variables()), trained);
        let all = names(&g.global_variables());
        let moving = ["net/bn/moving_mean", "net/bn/moving_variance"];
        assert_eq!(all[..4], [trained, moving].concat());
        assert!(all[4..].iter().all(|n| n.ends_with("/Momentum")), "{all:?}");
        let clipped: Vec<String> = clipped.iter().map(|gv| gv.var.name()).collect();
        assert_eq!(clipped, trained);
        let penalties: Vec<String> =
            g.get_collection(keys::REGULARIZATION_LOSSES).into_iter().map(|p| p.name()).collect();
        assert_eq!(penalties, trained.map(|n| format!("{n}/Regularizer/l2_regularizer:0")));
        assert_eq!(g.get_collection(keys::UPDATE_OPS).len(), 2);
    }
}
