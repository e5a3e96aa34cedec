//! Ops that write variables, and their twins for resources, against what TensorFlow left in the variables after two steps:
//! `updates.json`, which `record.py` made.

mod optimizers;

use crate::fixtures::recorded;
use serde_json::Value;
use turret::base::{Array, DType};
use turret::graph::{Graph, Operation, Tensor};
use turret::ops::find;
use turret::run::{Session, SessionOptions};

#[test]
fn variables_are_left_as_tensorflow_leaves_them() {
    let cases: Value = serde_json::from_str(include_str!("updates.json")).expect("the recorded file is JSON");
    let cases = cases.as_array().expect("a list of cases");
    for device in ["/cpu:0", "/gpu:0"] {
        let failures: Vec<String> = (cases.iter().enumerate())
            .filter_map(|(i, case)| {
                let what = format!("case {i}, {} {} on {device}", case["op"], case["attrs"]);
                check(case, device).err().map(|why| format!("{what}: {why}"))
            })
            .collect();
        assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), cases.len(), failures.join("\n"));
    }
    assert!(cases.len() > 100);
}

fn check(case: &Value, device: &str) -> Result<(), String> {
    let g = Graph::new();
    let kind = case["op"].as_str().ok_or("no op type")?;
    let resource = kind.starts_with("Resource") || kind.ends_with("VariableOp");
    let (mut variables, mut starts) = (Vec::new(), Vec::new());
    let op = g.device(device, || -> Result<Operation<'_>, String> {
        let mut node = g.node_of(find(kind).ok_or("there is no such op type")?);
        for input in case["inputs"].as_array().ok_or("no inputs")? {
            let array = recorded(input)?;
            let start = g.constant(&array);
            node = node.input(match input["variable"] == true {
                true => {
                    let (made, assigned) = variable(&g, &array, start, resource);
                    variables.push(made);
                    starts.push(assigned);
                    made
                }
                false => start,
            });
        }
        for (name, value) in case["attrs"].as_object().ok_or("no attributes")? {
            node = node.attr(name.clone(), value.as_bool().ok_or("an attribute that is no bool")?);
        }
        Ok(node.add())
    })?;
    let read = if resource { "ReadVariableOp" } else { "Identity" };
    let read = find(read).ok_or("no reads")?;
    let reads: Vec<Tensor<'_>> =
        g.device(device, || variables.iter().map(|&v| g.node_of(read).input(v).tensor()).collect());
    g.check().map_err(|e| e.to_string())?;
    let options = SessionOptions::on(crate::gpus::machine(1));
    let session = Session::new(&g, options).map_err(|e| e.to_string())?;
    session.run(&[], &[], &starts).map_err(|e| e.to_string())?;
    for _ in 0..case["steps"].as_u64().ok_or("no number of steps")? {
        session.run(&[], &[], &[op]).map_err(|e| e.to_string())?;
    }
    let got = session.run(&[], &reads, &[]).map_err(|e| e.to_string())?;
    let after = case["after"].as_array().ok_or("no values")?;
    if got.len() != after.len() {
        return Err(format!("{} variables, want {}", got.len(), after.len()));
    }
    for (i, (got, want)) in got.iter().zip(after).enumerate() {
        let want = recorded(want)?;
        let largest = want.to_f64().into_iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let bound = largest * if want.dtype() == DType::F64 { 1e-13 } else { 1e-6 };
        let near = got.to_f64().iter().zip(want.to_f64()).all(|(g, w)| (g - w).abs() <= bound);
        if got.dtype() != want.dtype() || got.dims() != want.dims() || !near {
            return Err(format!("variable {i}: want {want:?}, got {got:?}"));
        }
    }
    Ok(())
}

/// A variable, by reference or as a resource, and the operation that gives it its first value.
fn variable<'g>(g: &'g Graph, array: &Array, start: Tensor<'g>, resource: bool) -> (Tensor<'g>, Operation<'g>) {
    let (made, assign) = if resource { ("VarHandleOp", "AssignVariableOp") } else { ("VariableV2", "Assign") };
    let [made, assign] = [made, assign].map(|name| find(name).expect("the op set has it"));
    let variable = g.node_of(made).attr("dtype", array.dtype()).attr("shape", array.shape()).tensor();
    (variable, g.node_of(assign).inputs([variable, start]).add())
}

#[test]
fn updates_refuse_what_does_not_fit_by_name() {
    let refused = |kind: &str, build: &dyn Fn(&Graph) -> Vec<Array>| {
        let g = Graph::new();
        let mut node = g.node_of(find(kind).expect("the op set has it"));
        for (i, array) in build(&g).into_iter().enumerate() {
            let x = g.constant(&array);
            node = node.input(if i == 0 { variable(&g, &array, x, kind.starts_with("Resource")).0 } else { x });
        }
        node.add();
        g.check().expect_err("it is refused").to_string()
    };
    let vector = |values: &[f32]| Array::new(&[values.len()], values).expect("sizes fit");
    let scalar = |value: f32| Array::scalar(value);
    let said = refused("ApplyGradientDescent", &|_| vec![vector(&[1.0, 2.0]), scalar(0.1), vector(&[1.0; 3])]);
    assert!(said.contains("the gradient of variable 0 must have its shape: want [2], got [3]"), "{said}");
    let said = refused("ApplyGradientDescent", &|_| vec![vector(&[1.0, 2.0]), vector(&[0.1]), vector(&[1.0; 2])]);
    assert!(said.contains("learning_rate must be a scalar, got shape [1]"), "{said}");
    let said = refused("ResourceApplyGradientDescent", &|_| vec![Array::scalar(1i32), scalar(0.1), scalar(1.0)]);
    assert!(said.contains("must be float32 or float64 to be trained, got int32"), "{said}");
    // A slot that is no variable.
    let said = refused("ApplyMomentum", &|_| vec![scalar(1.0); 5]);
    assert!(said.contains("input 1 is written, so it must be a variable"), "{said}");
    let said = refused("AssignVariableOp", &|_| vec![scalar(1.0), vector(&[1.0])]);
    assert!(said.contains("must have the variable's shape"), "{said}");
}
