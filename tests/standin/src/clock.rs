//! Vector clocks: which of two operations is ordered after the other, whatever order they happened to run in.
//!
//! Every stream has a slot and counts its operations in it; so has every stream that was captured into a graph, once
//! for each instance of the graph. The host has no slot: it only learns what it waited for, and hands it to what it
//! enqueues afterwards. All host threads count as one.

use std::sync::Arc;

/// What has happened before some point, by slot. Shared until changed.
#[derive(Clone, Default, Debug)]
pub struct Clock(Arc<Vec<u32>>);

impl Clock {
    /// The last operation of a slot that is known.
    pub fn of(&self, slot: usize) -> u32 {
        self.0.get(slot).copied().unwrap_or(0)
    }

    /// Takes in all that another clock knows.
    pub fn join(&mut self, other: &Clock) {
        if Arc::ptr_eq(&self.0, &other.0) || other.0.iter().enumerate().all(|(i, t)| self.of(i) >= *t) {
            return;
        }
        if self.0.iter().enumerate().all(|(i, t)| other.of(i) >= *t) {
            self.0 = other.0.clone();
            return;
        }
        let own = Arc::make_mut(&mut self.0);
        if own.len() < other.0.len() {
            own.resize(other.0.len(), 0);
        }
        own.iter_mut().zip(other.0.iter()).for_each(|(a, b)| *a = (*a).max(*b));
    }

    fn set(&mut self, slot: usize, time: u32) {
        let own = Arc::make_mut(&mut self.0);
        if own.len() <= slot {
            own.resize(slot + 1, 0);
        }
        own[slot] = time;
    }
}

/// The slots, each with the time of its last operation, and what the host knows.
#[derive(Default)]
pub struct Clocks {
    times: Vec<u32>,
    free: Vec<usize>,
    /// What the host has waited for.
    pub host: Clock,
}

impl Clocks {
    /// A slot for a new stream; one that is free again where the host knows all that happened in it.
    pub fn slot(&mut self) -> usize {
        if let Some(i) = self.free.iter().position(|s| self.host.of(*s) >= self.times[*s]) {
            return self.free.swap_remove(i);
        }
        self.times.push(0);
        self.times.len() - 1
    }

    /// Gives a slot back when its stream is destroyed.
    pub fn release(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// Counts one more operation in a slot, and notes it in the clock that it gets.
    pub fn tick(&mut self, slot: usize, clock: &mut Clock) -> u32 {
        self.times[slot] += 1;
        clock.set(slot, self.times[slot]);
        self.times[slot]
    }
}
