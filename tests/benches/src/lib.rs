//! What the benches share: a session around one operation, fed with made-up values.
//!
//! A kernel is timed through a whole step of a graph of one node, since that is how it runs: some hundred nanoseconds of
//! each time are the step's.

use turret::base::{Array, DType};
use turret::device::Machine;
use turret::graph::{Graph, Operation, Tensor};
use turret::run::{Session, SessionOptions};

/// A prepared step: runs one operation.
pub struct OneOp<'g> {
    session: Session<'g>,
    feeds: Vec<(Tensor<'g>, Array)>,
    target: Operation<'g>,
}

/// Numbers around 0 that differ from element to element.
pub fn made_up(dims: &[usize], seed: usize) -> turret::Result<Array> {
    let mut array = Array::zeros(DType::F32, dims)?;
    let elements = array.as_mut_slice::<f32>()?.iter_mut().enumerate();
    elements.for_each(|(i, x)| *x = ((i * 2_654_435_761 + seed * 40_503) % 2001) as f32 / 1000.0 - 1.0);
    Ok(array)
}

impl<'g> OneOp<'g> {
    /// The operation that `build` makes of inputs of these sizes, on a host with so many threads; variables are
    /// initialized.
    ///
    /// # Errors
    /// What was wrong with the operation.
    pub fn new(
        graph: &'g Graph,
        threads: usize,
        inputs: &[&[usize]],
        build: impl FnOnce(&[Tensor<'g>]) -> Operation<'g>,
    ) -> turret::Result<OneOp<'g>> {
        let tensors: Vec<Tensor<'g>> =
            inputs.iter().enumerate().map(|(i, dims)| graph.placeholder(DType::F32, *dims, &format!("x{i}"))).collect();
        let target = build(&tensors);
        let session = Session::new(graph, SessionOptions::on(Machine::host().with_host_threads(threads)))?;
        session.initialize()?;
        let arrays = inputs.iter().enumerate().map(|(i, dims)| made_up(dims, i)).collect::<turret::Result<Vec<_>>>()?;
        Ok(OneOp { session, feeds: tensors.into_iter().zip(arrays).collect(), target })
    }

    /// A function that runs the step once, to be timed.
    ///
    /// # Errors
    /// What the first step, which is run here, says.
    pub fn step(&self) -> turret::Result<impl FnMut() + '_> {
        let tensors: Vec<Tensor<'g>> = self.feeds.iter().map(|f| f.0).collect();
        let callable = self.session.callable(&tensors, &[], &[self.target]);
        let arrays: Vec<&Array> = self.feeds.iter().map(|f| &f.1).collect();
        let mut fetched = Vec::new();
        callable.run_into(&arrays, &mut fetched)?;
        Ok(move || callable.run_into(&arrays, &mut fetched).expect("it ran before"))
    }
}
