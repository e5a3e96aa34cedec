//! Conditionals as `tf.cond` builds them: predicates that are known before a step, and ones that it computes.

use turret::Result;
use turret::base::{Array, Bool8, Code, DType, OpaqueType, Shape};
use turret::graph::{Fact, Gradient, Graph, Init, Tensor};
use turret::ops::find;
use turret::run::{Session, SessionOptions};
use turret::train::{GradOptions, gradients};

/// `tf.cond(predicate, yes, no)`: each branch gets its switched input, and a pivot to depend on.
fn cond<'g>(
    g: &'g Graph,
    predicate: Tensor<'g>,
    x: Tensor<'g>,
    yes: impl Fn(Tensor<'g>, Tensor<'g>) -> Tensor<'g>,
    no: impl Fn(Tensor<'g>, Tensor<'g>) -> Tensor<'g>,
) -> Tensor<'g> {
    let op = |name: &str| g.node_of(find(name).expect("an op of the table"));
    g.name_scope("cond", || {
        let pivot = op("Switch").input(predicate).input(predicate).add();
        let (t, f) = (pivot.output(1).identity("switch_t"), pivot.output(0).identity("switch_f"));
        let id = predicate.identity("pred_id");
        let x = op("Switch").input(x).input(id).add();
        let (yes, no) = (yes(x.output(1), t), no(x.output(0), f));
        op("Merge").input(no).input(yes).add().output(0)
    })
}

fn floats(values: &[f32]) -> Array {
    Array::new(&[values.len()], values).expect("as many as there are")
}

fn truth(value: bool) -> Array {
    Array::scalar(Bool8::from(value))
}

fn session<'g>(g: &'g Graph) -> Session<'g> {
    Session::new(g, SessionOptions::devices("sim:2").expect("a machine")).expect("a sound graph")
}

#[test]
fn a_fed_predicate_leaves_the_other_branch_out() -> Result<()> {
    let g = Graph::new();
    let training = g.placeholder(DType::Bool, [], "training");
    let x = g.placeholder(DType::F32, [None], "x");
    let unfed = g.placeholder(DType::F32, [], "unfed");
    let y = cond(&g, training, x, |x, _| x * unfed, |x, _| x + g.constant(1.0f32));
    let s = session(&g);
    let x_value = floats(&[1.0, 2.0]);
    let run = |feeds: &[(Tensor<'_>, &Array)]| s.run(feeds, &[y], &[]).map(|mut v| v.remove(0));
    // What only the other branch needs need not be fed, and the two runs have a plan each.
    assert_eq!(run(&[(training, &truth(false)), (x, &x_value)])?, floats(&[2.0, 3.0]));
    let three = Array::scalar(3.0f32);
    assert_eq!(run(&[(training, &truth(true)), (x, &x_value), (unfed, &three)])?, floats(&[3.0, 6.0]));
    assert_eq!(run(&[(training, &truth(false)), (x, &x_value)])?, floats(&[2.0, 3.0]));
    let missing = run(&[(training, &truth(true)), (x, &x_value)]).unwrap_err();
    assert!(missing.to_string().contains("'unfed'"), "{missing}");
    Ok(())
}

#[test]
fn a_computed_predicate_chooses_and_guards() -> Result<()> {
    let g = Graph::new();
    let x = g.placeholder(DType::I32, [None], "x");
    let (taken, divisor) = (g.get_variable("taken", [], Init::Constant(0.0)), g.constant(0i32));
    let positive = g.device("/gpu:0", || x.sum().greater(g.constant(0i32)));
    let y = cond(
        &g,
        positive,
        x,
        |x, t| {
            let count = g.node_of(find("AssignAdd").expect("there")).input(taken.op().output(0));
            let count = count.input(g.constant(1.0f32)).control(t.op()).add();
            g.control_dependencies([count], || x * g.constant(2i32))
        },
        // Fails wherever it runs.
        |x, _| g.node_of(find("FloorDiv").expect("there")).input(x).input(divisor).tensor(),
    );
    let s = session(&g);
    s.initialize()?;
    let ints = |v: &[i32]| Array::new(&[v.len()], v).expect("as many");
    assert_eq!(s.run(&[(x, &ints(&[1, 2]))], &[y], &[])?[0], ints(&[2, 4]));
    assert_eq!(s.run(&[(x, &ints(&[5, -2]))], &[y], &[])?[0], ints(&[10, -4]));
    assert_eq!(s.value(taken)?.get_f64(0), 2.0);
    let failed = s.run(&[(x, &ints(&[-5, 2]))], &[y], &[]).unwrap_err();
    assert_eq!(failed.code(), Code::InvalidArgument, "{failed}");
    assert_eq!(s.value(taken)?.get_f64(0), 2.0, "the branch with the count was not taken");
    assert_eq!(s.plans_built(), 2, "one for initialize, one for all three runs");
    Ok(())
}

#[test]
fn a_copy_starts_from_the_value_or_else_the_initial_one() -> Result<()> {
    let g = Graph::new();
    let op = |name: &str| g.node_of(find(name).expect("an op of the table"));
    let v = g.get_variable("v", [2], Init::Constant(3.0));
    let average = g.get_variable("average", [2], Init::Zeros);
    let initial = g.constant(floats(&[3.0, 3.0]));
    let has_value = op("IsVariableInitialized").input(v.op().output(0)).tensor();
    let id = has_value.identity("pred_id");
    let read = op("RefSwitch").input(v.op().output(0)).input(id).add().output(1).identity("read");
    let other = op("Switch").input(initial).input(id).add().output(0);
    let merged = op("Merge").input(other).input(read).add().output(0);
    let start = op("Assign").input(average.op().output(0)).input(merged).add();
    let s = session(&g);
    // As TensorFlow's init operation: both in one step, and nothing orders them.
    s.run_targets(&[v.initializer(), start])?;
    assert_eq!(s.value(average)?, floats(&[3.0, 3.0]));
    s.load(v, &floats(&[1.0, 2.0]))?;
    s.run_targets(&[start])?;
    assert_eq!(s.value(average)?, floats(&[1.0, 2.0]));
    assert!(s.run(&[], &[has_value], &[])?[0].get_f64(0) == 1.0);
    Ok(())
}

#[test]
fn what_is_not_there_cannot_be_fetched() {
    let g = Graph::new();
    let x = g.constant(floats(&[1.0]));
    let switch = g.node_of(find("Switch").expect("there")).input(x).input(g.constant(true)).add();
    let (there, not_there) = (-switch.output(1), -switch.output(0));
    let s = session(&g);
    assert_eq!(s.run(&[], &[there], &[]).expect("its branch is taken")[0], floats(&[-1.0]));
    let error = s.run(&[], &[not_there], &[]).unwrap_err();
    assert!(error.to_string().contains("does not take"), "{error}");
    // As a target it does nothing, as in TensorFlow.
    s.run_targets(&[not_there.op()]).expect("nothing to do");
    let merge = g.node_of(find("Merge").expect("there")).input(x).input(there).add();
    let s = session(&g);
    let error = s.run(&[], &[merge.output(0)], &[]).unwrap_err();
    assert!(error.to_string().contains("predicate"), "{error}");
}

#[test]
fn a_guarded_assertion_with_strings_fails_only_in_its_branch() -> Result<()> {
    let g = Graph::new();
    let op = |name: &str| g.node_of(find(name).expect("an op of the table"));
    let x = g.placeholder(DType::F32, [None], "x");
    let positive = x.sum().greater(g.constant(0.0f32));
    let pivot = op("Switch").input(positive).input(positive).add();
    // As `tf.Assert` builds it: a string constant in the branch where the assertion runs.
    let text = Fact::new(DType::Opaque(OpaqueType::String), Shape::scalar());
    let text = g.unknown_node("Const", vec![text]).control(pivot.output(0).identity("switch_f").op()).tensor();
    let switched = op("Switch").input(positive).input(positive).add().output(0);
    let data = op("Switch").input(x).input(positive).add().output(0);
    let assert = op("Assert").input(switched).input(text).input(data).add();
    let kept = g.control_dependencies([assert], || pivot.output(0).identity("failed"));
    let merged = op("Merge").input(kept).input(pivot.output(1).identity("switch_t")).add().output(0);
    let y = g.control_dependencies([merged.op()], || x * g.constant(2.0f32));
    let s = session(&g);
    assert_eq!(s.run(&[(x, &floats(&[1.0, 2.0]))], &[y], &[])?[0], floats(&[2.0, 4.0]));
    let error = s.run(&[(x, &floats(&[1.0, -2.0]))], &[y], &[]).unwrap_err();
    assert!(error.to_string().contains("assertion failed: [1 -2]"), "{error}");
    Ok(())
}

#[test]
fn gradients_go_through_the_branch_that_is_taken() -> Result<()> {
    let g = Graph::new();
    let training = g.placeholder(DType::Bool, [], "training");
    let inner = g.placeholder(DType::Bool, [], "inner");
    let w = g.get_variable("w", [2], Init::Constant(0.0));
    // Where it is true x³ or 5x, as the inner one says; else 2x. And x itself in any case.
    let (no, yes) = w.value().switch(training);
    let (deep_no, deep_yes) = yes.switch(inner.identity("again"));
    let deep = g.merge(deep_no * 5.0, deep_yes.square() * deep_yes);
    let y = g.merge(no * 2.0, deep) + w;
    let grads = gradients([y], [w.buffer()], GradOptions::default());
    let Some(Gradient::Dense(dw)) = grads[0] else { panic!("no gradient: {grads:?}") };
    g.check()?;
    let s = session(&g);
    s.load(w, &floats(&[3.0, -2.0]))?;
    let run =
        |t: bool, i: bool| s.run(&[(training, &truth(t)), (inner, &truth(i))], &[dw], &[]).map(|mut v| v.remove(0));
    assert_eq!(run(false, false)?, floats(&[3.0, 3.0]));
    assert_eq!(run(false, true)?, floats(&[3.0, 3.0]));
    assert_eq!(run(true, false)?, floats(&[6.0, 6.0]));
    assert_eq!(run(true, true)?, floats(&[28.0, 13.0]));
    Ok(())
}

#[test]
fn a_computed_predicate_chooses_between_gradients() -> Result<()> {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [2], "x");
    let (no, yes) = x.switch(x.sum().greater(g.constant(0.0f32)));
    // One branch does not read the tensor: its gradient is zero there.
    let y = g.merge(no.stop_gradient(), yes.square());
    let grads = gradients([y], [x], GradOptions::default());
    let Some(Gradient::Dense(dx)) = grads[0] else { panic!("no gradient: {grads:?}") };
    let s = session(&g);
    let run = |v: &[f32]| s.run(&[(x, &floats(v))], &[dx], &[]).map(|mut v| v.remove(0));
    assert_eq!(run(&[3.0, -2.0])?, floats(&[6.0, -4.0]));
    assert_eq!(run(&[-3.0, 2.0])?, floats(&[0.0, 0.0]));
    Ok(())
}

#[test]
fn a_merge_without_a_predicate_has_no_gradient() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [2], "x");
    let y = g.merge(x, x.square());
    gradients([y], [x], GradOptions::default());
    let message = g.check().unwrap_err().to_string();
    assert!(message.contains("no gradient defined for operation 'Merge'"), "{message}");
}
