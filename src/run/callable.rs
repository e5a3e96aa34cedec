//! A request that is prepared once and run many times without allocating.

use super::session::Session;
use crate::base::{Array, Error, Result};
use crate::graph::{Operation, Tensor};

/// A prepared request: which tensors are fed, fetched and run. Its runs take only the arrays.
pub struct Callable<'s, 'g> {
    session: &'s Session<'g>,
    feeds: Vec<Tensor<'g>>,
    fetches: Vec<Tensor<'g>>,
    targets: Vec<Operation<'g>>,
}

impl<'g> Session<'g> {
    /// Prepares a request.
    pub fn callable<'s>(
        &'s self,
        feeds: &[Tensor<'g>],
        fetches: &[Tensor<'g>],
        targets: &[Operation<'g>],
    ) -> Callable<'s, 'g> {
        Callable { session: self, feeds: feeds.into(), fetches: fetches.into(), targets: targets.into() }
    }
}

impl Callable<'_, '_> {
    /// Runs with these arrays, one for each prepared feed, and writes the fetches into `outputs`. Arrays there that
    /// already have the right type and sizes are used again, so that nothing is allocated.
    ///
    /// # Errors
    /// As [`Session::run`]; also when the number of arrays is not the number of feeds.
    pub fn run_into(&self, feeds: &[&Array], outputs: &mut Vec<Array>) -> Result<()> {
        if feeds.len() != self.feeds.len() {
            return Err(Error::invalid(format!(
                "the callable was made for {} feeds, got {} arrays",
                self.feeds.len(),
                feeds.len()
            )));
        }
        let pairs: smallvec::SmallVec<[(Tensor<'_>, &Array); 64]> =
            self.feeds.iter().copied().zip(feeds.iter().copied()).collect();
        let mut state = self.session.lock()?;
        let plan = self.session.plan_for(&mut state, &pairs, &self.fetches, &self.targets)?;
        self.session.execute(&mut state, &plan, feeds.iter().copied(), false)?;
        outputs.truncate(plan.num_fetches());
        while outputs.len() < plan.num_fetches() {
            outputs.push(Array::scalar(0f32));
        }
        for (i, output) in outputs.iter_mut().enumerate() {
            plan.fetch_into(i, feeds, output)?;
        }
        Ok(())
    }

    /// As [`Callable::run_into`], with new arrays.
    ///
    /// # Errors
    /// As [`Callable::run_into`].
    pub fn run(&self, feeds: &[&Array]) -> Result<Vec<Array>> {
        let mut outputs = Vec::new();
        self.run_into(feeds, &mut outputs)?;
        Ok(outputs)
    }
}
