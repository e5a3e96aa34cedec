//! How long the stages of building and planning take, one after the other.

use std::time::{Duration, Instant};

/// The stages that have run, in order, each with its time.
#[derive(Clone, Debug)]
pub struct StageTimes {
    stages: Vec<(&'static str, Duration)>,
    last: Instant,
}

impl Default for StageTimes {
    fn default() -> StageTimes {
        StageTimes::start()
    }
}

impl StageTimes {
    /// Nothing yet; the first stage begins now.
    pub fn start() -> StageTimes {
        StageTimes { stages: Vec::new(), last: Instant::now() }
    }

    /// Ends the stage of this name, which began where the last one ended. A stage that comes again adds to its time.
    pub fn lap(&mut self, stage: &'static str) {
        let now = Instant::now();
        let took = now.duration_since(self.last);
        self.last = now;
        self.add(stage, took);
    }

    /// Adds the stages of another; the next one begins now.
    pub fn join(&mut self, other: &StageTimes) {
        other.stages.iter().for_each(|(stage, took)| self.add(stage, *took));
        self.last = Instant::now();
    }

    /// The stages and their times, in the order in which they first ended.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Duration)> + '_ {
        self.stages.iter().copied()
    }

    /// The time of all stages.
    pub fn total(&self) -> Duration {
        self.stages.iter().map(|(_, took)| *took).sum()
    }

    fn add(&mut self, stage: &'static str, took: Duration) {
        match self.stages.iter_mut().find(|(name, _)| *name == stage) {
            Some((_, time)) => *time += took,
            None => self.stages.push((stage, took)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_come_in_order_and_add_up() {
        let mut times = StageTimes::start();
        ["build", "plan", "build"].into_iter().for_each(|stage| times.lap(stage));
        let mut more = StageTimes::start();
        more.lap("load");
        times.join(&more);
        assert_eq!(times.iter().map(|(stage, _)| stage).collect::<Vec<_>>(), ["build", "plan", "load"]);
        assert_eq!(times.total(), times.iter().map(|(_, took)| took).sum());
    }
}
