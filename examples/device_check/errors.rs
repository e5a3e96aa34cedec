//! Errors on a GPU: they say what the host would say, change nothing, and the session works on.

use super::items::{Items, text};
use turret::base::{Array, Code, DType};
use turret::device::{Machine, cuda};
use turret::graph::{Graph, Init};
use turret::run::{Session, SessionOptions};

/// Checks a bad index and an allocation that cannot fit.
pub fn run(items: &mut Items) {
    items.check("a gather with a bad index", || bad_index().map(|told| format!("a bad index: {told}")));
    items.check("an allocation that cannot fit", || cannot_fit().map(|told| format!("no room: {told}")));
}

fn want(is: bool, what: &str) -> Result<(), String> {
    if is { Ok(()) } else { Err(format!("want {what}")) }
}

/// Gathers with a bad index beside an update; gives the error, after the session has worked on.
fn gather(machine: Machine, device: &str) -> Result<turret::Error, String> {
    let g = Graph::new();
    let ids = g.placeholder(DType::I32, [3], "ids");
    let (rows, counter, bump) = g.device(device, || {
        let table = Array::new(&[5, 2], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        let table = g.get_variable("table", [5, 2], table.map_or(Init::Zeros, Init::data));
        let counter = g.get_variable("counter", [], Init::Zeros);
        let rows = g.name_scope("look", || table.value().gather(ids, 0));
        (rows, counter, counter.assign_add(rows.sum()))
    });
    let session = Session::new(&g, SessionOptions::on(machine)).map_err(text)?;
    session.initialize().map_err(text)?;
    let step = |which: [i32; 3]| {
        let fed = Array::new(&[3], &which)?;
        session.run(&[(ids, &fed)], &[rows], &[bump.op()])
    };
    let value = || session.value(counter).map(|a| a.to_f64()).map_err(text);
    // Enough good steps that the plan is replayed as a graph.
    for _ in 0..3 {
        step([0, 4, 1]).map_err(text)?;
    }
    let before = value()?;
    let Err(error) = step([0, 9, 1]) else { return Err("want an error, got rows of nowhere".into()) };
    want(error.code() == Code::InvalidArgument, &format!("an invalid argument, got {:?}: {error}", error.code()))?;
    want(value()? == before, "variables as they were")?;
    let good = step([4, 0, 1]).map_err(|e| format!("the session does not work on: {e}"))?;
    want(good[0].to_f64() == [8.0, 9.0, 0.0, 1.0, 2.0, 3.0], "the rows of a good step afterwards")?;
    want(value()? == before.iter().map(|v| v + 23.0).collect::<Vec<_>>(), "one more update afterwards")?;
    Ok(error)
}

fn bad_index() -> Result<String, String> {
    let on_host = gather(Machine::host(), "/cpu:0")?.to_string();
    let on_gpu = gather(Machine::cuda(&[0]).map_err(text)?, "/gpu:0")?.to_string();
    let cause = |text: &str| text.split_once("failed: ").map(|(_, c)| c.lines().next().unwrap_or_default().to_string());
    want(on_gpu.contains("look/") && on_gpu.contains("gpu:0"), &format!("node and device, got: {on_gpu}"))?;
    want(cause(&on_gpu).is_some() && cause(&on_gpu) == cause(&on_host), &format!("'{on_host}', got: {on_gpu}"))?;
    Ok(on_gpu.lines().next().unwrap_or_default().to_string())
}

fn cannot_fit() -> Result<String, String> {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [None, Some(1)], "x");
    let spread = g.device("/gpu:0", || g.name_scope("spread", || (x * x.transpose(&[1, 0])).square().sum()));
    let session = Session::new(&g, SessionOptions::on(Machine::cuda(&[0]).map_err(text)?)).map_err(text)?;
    let step = |rows: usize| -> turret::Result<f64> {
        let fed = Array::new(&[rows, 1], &vec![1.0f32; rows])?;
        Ok(session.run(&[(x, &fed)], &[spread], &[])?[0].get_f64(0))
    };
    want(step(100).map_err(text)? == 10_000.0, "10000 from 100 rows")?;
    // Twice the card's memory, and more than any other program may have left.
    let memory = cuda::identities()?.first().map_or(0, |gpu| gpu.memory_bytes);
    let rows = ((memory / 2) as f64).sqrt() as usize + 1;
    let Err(error) = step(rows) else { return Err(format!("want an error for {rows} rows, got a sum")) };
    let message = error.to_string();
    let code = error.code();
    want(code == Code::ResourceExhausted, &format!("'resource exhausted', got {code:?}: {message}"))?;
    let parts = ["/device:GPU:0", "out of memory", "spread"];
    want(parts.iter().all(|p| message.contains(p)), &format!("{parts:?}, got: {message}"))?;
    want(step(200).map_err(|e| format!("the session does not work on: {e}"))? == 40_000.0, "40000 from 200 rows")?;
    Ok(message.lines().next().unwrap_or_default().to_string())
}
