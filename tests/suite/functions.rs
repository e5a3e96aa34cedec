//! Graphs with functions: calls and `If` become nodes, and give what TensorFlow gives.
//!
//! `tests/data/functions.pb` is TensorFlow 2.21's: `pick = tf.cond(sum(x) > 0, …)` over resource variables, with another
//! conditional in its second branch and an update in its first, and a call of a `tf.function`.

use std::path::Path;
use turret::Result;
use turret::base::Array;
use turret::interop::graphdef::{GraphDef, GraphFile, import_graph, inline_functions};
use turret::run::{Session, SessionOptions};

fn file() -> GraphFile {
    GraphFile::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/functions.pb")).expect("it is sound")
}

fn calls(graph: &GraphDef) -> Vec<&str> {
    let is_call = |op: &str| ["If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"].contains(&op);
    graph.node.iter().filter(|n| is_call(&n.op)).map(|n| &n.name[..]).collect()
}

#[test]
fn branches_and_calls_give_what_tensorflow_gives() -> Result<()> {
    let inlined = inline_functions(&file().graph)?;
    assert_eq!(calls(&inlined), Vec::<&str>::new());
    let g = import_graph(&inlined)?;
    let s = Session::new(&g, SessionOptions::devices("sim:2")?)?;
    s.run_targets(&[g.operation("init")?])?;
    let floats = |v: &[f32]| Array::new(&[v.len()], v).expect("as many");
    let fetches = ["y:0", "b:0", "count/Read/ReadVariableOp:0"].map(|name| g.tensor(name).expect("its name stayed"));
    // What TensorFlow 2.21 gave; the third is the count before or after its update, which nothing orders.
    let recorded = [
        ([1.0, 2.0], [3.0, 10.0], [7.0, 8.0], 1.0),
        ([-1.0, -2.0], [-3.0, -6.0], [1.5, 2.5], 1.0),
        ([-10.0, -20.0], [-21.0, -42.0], [100.0, 200.0], 1.0),
        ([3.0, 3.0], [7.0, 14.0], [7.0, 8.0], 2.0),
    ];
    let x = g.tensor("x:0")?;
    for (fed, y, b, count) in recorded {
        let got = s.run(&[(x, &floats(&fed))], &fetches[..2], &[])?;
        assert_eq!((&got[0], &got[1]), (&floats(&y), &floats(&b)), "x = {fed:?}");
        assert_eq!(s.run(&[], &fetches[2..], &[])?[0].get_f64(0), count, "x = {fed:?}");
    }
    Ok(())
}

#[test]
fn what_does_not_fit_its_function_is_an_error() {
    let sound = file().graph;
    assert_eq!(calls(&sound).len(), 2);
    let spoilt = |change: &dyn Fn(&mut GraphDef)| {
        let mut graph = sound.clone();
        change(&mut graph);
        inline_functions(&graph)
    };
    let node = |graph: &mut GraphDef, name: &str, change: &dyn Fn(&mut Vec<String>)| {
        graph.node.iter_mut().filter(|n| n.name == name).for_each(|n| change(&mut n.input));
    };
    let few = spoilt(&|g| node(g, "StatefulPartitionedCall", &|input| input.truncate(1))).unwrap_err();
    assert!(few.to_string().contains("'StatefulPartitionedCall'") && few.to_string().contains("inputs"), "{few}");
    let few = spoilt(&|g| node(g, "pick", &|input| input.truncate(2))).unwrap_err();
    assert!(few.to_string().contains("'pick'") && few.to_string().contains("'Tin'"), "{few}");
    let cut = spoilt(&|g| g.library = g.library.as_ref().map(|l| l.slice(..l.len() - 3))).unwrap_err();
    assert!(cut.to_string().contains("function library"), "{cut}");
    // Without the functions the calls are kept as they are.
    let kept = spoilt(&|g| g.library = Some(Default::default())).expect("nothing to inline");
    assert_eq!(kept.node, sound.node);
}
