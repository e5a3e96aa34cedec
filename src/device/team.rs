//! The threads of one device: fixed parts, so that results do not depend on how many threads there are.
//!
//! Invariant: what a part computes depends on the part's number alone, never on the thread that runs it.

use super::waiter::look;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::{JoinHandle, Thread};

/// A team of threads that share the parts of one job at a time; the caller's thread is one of them.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: Mutex<()>,
}

struct Shared {
    /// Counts jobs; a change wakes the workers.
    epoch: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    next_part: AtomicUsize,
    working: AtomicUsize,
    asleep: Vec<AtomicBool>,
    failed: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: `job` is written only by the caller while no worker works (working == 0), and read by workers only
// after they saw the new epoch, which is stored after the write.
unsafe impl Sync for Shared {}

#[derive(Clone, Copy)]
struct Job {
    run: *const (dyn Fn(usize) + Sync),
    parts: usize,
}

// SAFETY: the pointee is Sync and outlives the job, since `run` waits for all workers.
unsafe impl Send for Job {}

impl Team {
    /// A team of this many threads (at least one), of which all but one are started now.
    pub fn new(threads: usize, name: &str) -> Team {
        let extra = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next_part: AtomicUsize::new(0),
            working: AtomicUsize::new(0),
            asleep: (0..extra).map(|_| AtomicBool::new(false)).collect(),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let workers = (0..extra)
            .map_while(|i| {
                let shared = shared.clone();
                // A machine that refuses more threads gets a smaller team.
                std::thread::Builder::new().name(format!("{name}/{}", i + 1)).spawn(move || shared.work(i)).ok()
            })
            .collect();
        Team { shared, workers, busy: Mutex::new(()) }
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs every part of a job, and returns when all are done.
    ///
    /// # Panics
    /// When a part panics, after all others are done.
    pub fn run(&self, parts: usize, part: impl Fn(usize) + Sync) {
        if self.workers.is_empty() || parts <= 1 {
            return (0..parts).for_each(part);
        }
        // A nested or concurrent job runs on its own thread alone.
        let _busy = match self.busy.try_lock() {
            Ok(busy) => busy,
            // A part panicked while it was held; all workers were done by then.
            Err(TryLockError::Poisoned(busy)) => busy.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..parts).for_each(part),
        };
        let shared = &*self.shared;
        let run: &(dyn Fn(usize) + Sync) = &part;
        // SAFETY: only the lifetime is erased; `run` waits below until no worker holds the job.
        let run: *const (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(run) };
        // SAFETY: no worker works, so none reads the job.
        unsafe { *shared.job.get() = Some(Job { run, parts }) };
        shared.next_part.store(0, Ordering::Relaxed);
        shared.working.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (worker, asleep) in self.workers.iter().zip(&shared.asleep) {
            if asleep.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let mine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shared.take_parts(&part, parts)));
        let done = || shared.working.load(Ordering::Acquire) == 0;
        if !look(done) {
            while !done() {
                std::thread::yield_now();
            }
        }
        let failed = shared.failed.swap(false, Ordering::Relaxed);
        match mine {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => assert!(!failed, "a part of a parallel job panicked"),
        }
    }

    /// Runs a job over `len` items in chunks of `grain` (the last may be shorter), whatever the number of threads.
    pub fn chunks(&self, len: usize, grain: usize, chunk: impl Fn(Range<usize>) + Sync) {
        let grain = grain.max(1);
        self.run(len.div_ceil(grain), |i| chunk(i * grain..len.min((i + 1) * grain)));
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        let threads: Vec<Thread> = self.workers.iter().map(|w| w.thread().clone()).collect();
        threads.iter().for_each(Thread::unpark);
        for worker in self.workers.drain(..) {
            // A worker's panic was reported by the job that it happened in.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.await_job(worker, seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: the caller wrote the job before the epoch that was just seen, and writes no other until
            // `working` is zero.
            let Some(job) = (unsafe { *self.job.get() }) else { continue };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // SAFETY: the caller waits in `run` until this worker is done.
                self.take_parts(unsafe { &*job.run }, job.parts)
            }));
            if result.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            self.working.fetch_sub(1, Ordering::Release);
        }
    }

    fn await_job(&self, worker: usize, seen: u64) -> u64 {
        loop {
            if look(|| self.epoch.load(Ordering::Acquire) != seen) {
                return self.epoch.load(Ordering::Acquire);
            }
            self.asleep[worker].store(true, Ordering::SeqCst);
            if self.epoch.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            self.asleep[worker].store(false, Ordering::SeqCst);
        }
    }

    fn take_parts(&self, part: &(dyn Fn(usize) + Sync), parts: usize) {
        loop {
            let i = self.next_part.fetch_add(1, Ordering::Relaxed);
            if i >= parts {
                return;
            }
            part(i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once_whatever_the_threads() {
        for threads in [1, 2, 5] {
            let team = Team::new(threads, "test");
            for parts in [0, 1, 7, 100] {
                let hits: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                team.run(parts, |i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(2, "test");
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| team.run(8, |i| assert_ne!(i, 5))));
        assert!(result.is_err());
        // Each of two parts waits for the other, so that one thread alone would never end.
        let here = AtomicUsize::new(0);
        let began = std::time::Instant::now();
        team.run(2, |_| {
            here.fetch_add(1, Ordering::SeqCst);
            while here.load(Ordering::SeqCst) < 2 {
                assert!(began.elapsed().as_secs() < 2, "the team works with one thread");
                std::thread::yield_now();
            }
        });
    }
}
