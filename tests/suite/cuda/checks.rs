//! Checks that fail on a GPU: the error names the check, and no kind of change of a variable is made, whichever GPU found
//! the fault and however the work is enqueued.

use super::in_child;
use super::program::{cuda, values};
use turret::base::{Array, Code, DType};
use turret::graph::{Graph, Init, Operation};
use turret::run::{CudaOptions, Session, SessionOptions};
use turret::train::{ApplyOptions, ComputeOptions, Optimizer};
use turret_standin::Standin;

/// Every kind of change, each alone, so that nothing is put back where it is to be held back: whole values, rows, rules with and without slots, on all elements and on rows.
fn changes(g: &Graph) -> Vec<Operation<'_>> {
    let made = |name: &str| g.get_variable(name, [8, 3], Init::Constant(0.5));
    let ids = g.constant([1i32, 6, 1, 3]);
    let rows = g.constant(Array::new(&[4, 3], &[0.25f32; 12]).unwrap());
    let set = made("set");
    let mut all: Vec<Operation<'_>> = vec![
        set.assign(set.value() * 2f32).op(),
        made("added").assign_add(g.constant(Array::new(&[8, 3], &[7f32; 24]).unwrap())).op(),
        made("rows-added").scatter_add(ids, rows).op(),
        made("rows-set")
            .scatter_update(g.constant([5i32, 0]), g.constant(Array::new(&[2, 3], &[9f32; 6]).unwrap()))
            .op(),
    ];
    let optimizers = [
        ("descent", Optimizer::gradient_descent(0.1)),
        ("momentum", Optimizer::momentum(0.1, 0.9)),
        ("adam", Optimizer::adam(0.1)),
        ("adagrad", Optimizer::adagrad(0.1)),
    ];
    for (name, optimizer) in optimizers {
        let (dense, table) = (made(&format!("{name}-dense")), made(&format!("{name}-table")));
        let losses = [dense.value().square().sum(), table.value().gather(ids, 0).square().sum()];
        for (loss, variable) in losses.into_iter().zip([dense, table]) {
            let compute = ComputeOptions { var_list: Some(vec![variable]), ..ComputeOptions::default() };
            all.push(optimizer.minimize(loss, compute, ApplyOptions::default()));
        }
    }
    all
}

#[test]
fn child_a_failed_check_changes_no_variable() {
    if !in_child() {
        return;
    }
    let standin = Standin::loaded().unwrap();
    for graphs in [true, false] {
        for checked_on in ["/gpu:0", "/gpu:1"] {
            let g = Graph::new();
            let x = g.placeholder(DType::F32, [40], "x");
            let changes = g.device("/gpu:0", || changes(&g));
            let checked = g.device(checked_on, || (x * 2.0).check_numerics("the checked"));
            let options = SessionOptions { cuda: CudaOptions { graphs, ..CudaOptions::default() }, ..cuda(2) };
            let session = Session::new(&g, options).unwrap();
            session.initialize().unwrap();
            let run = |x_at_7: f32, change: Operation<'_>| {
                let mut fed = [1f32; 40];
                fed[7] = x_at_7;
                session.run(&[(x, &Array::new(&[40], &fed).unwrap())], &[checked], &[change])
            };
            for change in changes {
                let what = format!("{}, checked on {checked_on}, graphs {graphs}", change.name());
                // What the first run of a plan changes is put back; what later ones change is not.
                let old = values(&g, &session);
                for _ in 0..2 {
                    run(1.0, change).unwrap();
                }
                let before = values(&g, &session);
                assert!(before != old, "{what}: no change");
                for seed in 1..=3 {
                    standin.seed(seed);
                    let error = run(f32::NAN, change).unwrap_err();
                    assert_eq!(error.code(), Code::InvalidArgument);
                    let text = error.to_string();
                    assert!(text.contains("the checked: tensor had NaN values") && text.contains(".rs:"), "{text}");
                    assert!(values(&g, &session) == before, "{what}: a change in spite of the check, seed {seed}");
                }
                run(1.0, change).unwrap();
            }
        }
    }
}

#[test]
fn child_what_changed_before_a_check_failed_is_put_back() {
    if !in_child() {
        return;
    }
    let standin = Standin::loaded().unwrap();
    for graphs in [true, false] {
        let g = Graph::new();
        let ids = g.placeholder(DType::I32, [3], "ids");
        let x = g.placeholder(DType::F32, [3], "x");
        let targets = g.device("/gpu:0", || {
            let made = |name: &str| g.get_variable(name, [8, 3], Init::Constant(0.5));
            let (first, second, whole) = (made("first"), made("second"), made("whole"));
            let rows = g.constant(Array::new(&[3, 3], &[0.25f32; 9]).unwrap());
            let other = first.scatter_add(g.constant([0i32, 1, 2]), rows);
            let changed = whole.assign_add(whole.value());
            let after = g.control_dependencies([changed.op()], || (x * 2.0).check_numerics("the late"));
            [other.op(), second.scatter_add(ids, rows).op(), after.op()]
        });
        let options = SessionOptions { cuda: CudaOptions { graphs, ..CudaOptions::default() }, ..cuda(1) };
        let session = Session::new(&g, options).unwrap();
        session.initialize().unwrap();
        let run = |last_id: i32, last_x: f32| {
            let ids_fed = Array::new(&[3], &[0, 1, last_id]).unwrap();
            let x_fed = Array::new(&[3], &[1.0, 2.0, last_x]).unwrap();
            session.run(&[(ids, &ids_fed), (x, &x_fed)], &[], &targets)
        };
        for seed in 1..=3 {
            standin.seed(seed);
            run(2, 1.0).unwrap();
            run(2, 1.0).unwrap();
            let before = values(&g, &session);
            for (id, x, says) in [(8, 1.0, "8"), (2, f32::INFINITY, "the late: tensor had Inf values")] {
                let error = run(id, x).unwrap_err().to_string();
                assert!(error.contains(says), "want '{says}' in: {error}");
                assert!(
                    values(&g, &session) == before,
                    "id {id}, x {x}: a change stayed, graphs {graphs}, seed {seed}"
                );
            }
        }
    }
}
