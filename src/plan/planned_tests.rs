//! What the tests of fused steps share: graphs with placeholders `x0`, `x1`, …, their plan, and what runs in it.

use super::*;
use crate::base::DType;
use crate::device::Machine;
use crate::graph::{Graph, Operation, Tensor};
use crate::run::{Session, SessionOptions};

/// The step on a machine, with placeholders of these sizes fed.
pub fn plan<'g>(
    g: &'g Graph,
    machine: Machine,
    fetches: &[Tensor<'g>],
    targets: &[Operation<'g>],
    dims: &[&[usize]],
) -> Schedule {
    g.check().unwrap();
    let session = Session::new(g, SessionOptions::on(machine)).unwrap();
    let fed: Vec<Tensor<'g>> = (0..dims.len()).map(|i| g.tensor(&format!("x{i}:0")).unwrap()).collect();
    let feeds: Vec<(Tensor<'g>, &[usize])> = fed.into_iter().zip(dims.iter().copied()).collect();
    session.schedule(&feeds, fetches, targets).unwrap()
}

/// The placeholders.
pub fn inputs<'g>(g: &'g Graph, dims: &[&[usize]]) -> Vec<Tensor<'g>> {
    dims.iter().enumerate().map(|(i, d)| g.placeholder(DType::F32, *d, &format!("x{i}"))).collect()
}

/// What runs beside copies, in order; fused nodes by their ops.
pub fn kernels(schedule: &Schedule) -> Vec<String> {
    let nodes = schedule.step.nodes.iter().filter(|n| !n.silent && n.copy().is_none());
    nodes.map(|n| schedule.step.what(n)).collect()
}
