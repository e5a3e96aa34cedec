//! Making a request ready without running it, and what that took.

use super::session::Session;
use crate::base::{Array, Result};
use crate::graph::{Operation, Tensor};
use crate::plan::StageTimes;

impl Session<'_> {
    /// Plans and loads a request without running it, and tells what each stage took: `check`, `resolve`, `place`, `prune`,
    /// `partition`, `passes`, `schedule`, `memory`, `load` (memory, kernels, programs) and `start` (threads). Of a request
    /// that is ready already, it tells how long they took then.
    ///
    /// # Errors
    /// As [`Session::run`], short of running.
    pub fn prepare(
        &self,
        feeds: &[(Tensor<'_>, &Array)],
        fetches: &[Tensor<'_>],
        targets: &[Operation<'_>],
    ) -> Result<StageTimes> {
        let mut state = self.lock()?;
        Ok(self.plan_for(&mut state, feeds, fetches, targets)?.times.clone())
    }
}
