//! The queue of a simulated GPU: a thread of its own that runs what is submitted, in order.

use super::team::Team;
use super::waiter::Waiter;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Something to run on a device's queue.
pub trait Job: Send + Sync {
    /// Runs the part of this device.
    fn run(&self, device: usize, team: &Team);
}

/// A device's queue, with a thread that starts with it.
pub struct Queue {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    pending: Mutex<VecDeque<(Arc<dyn Job>, usize)>>,
    submitted: AtomicUsize,
    waiter: Waiter,
    stop: AtomicBool,
}

impl Queue {
    /// Starts a queue whose kernels use this many threads.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(name: &str, threads: usize) -> std::io::Result<Queue> {
        let shared = Arc::new(Shared {
            pending: Mutex::new(VecDeque::with_capacity(16)),
            submitted: AtomicUsize::new(0),
            waiter: Waiter::default(),
            stop: AtomicBool::new(false),
        });
        let for_thread = shared.clone();
        let team_name = name.to_string();
        let thread = std::thread::Builder::new().name(name.to_string()).spawn(move || {
            let team = Team::new(threads, &team_name);
            for_thread.work(&team);
        })?;
        Ok(Queue { shared, thread: Some(thread) })
    }

    /// Appends a job; returns at once. Allocates nothing while few jobs wait.
    pub fn submit(&self, job: Arc<dyn Job>, device: usize) {
        self.shared.lock().push_back((job, device));
        self.shared.submitted.fetch_add(1, Ordering::SeqCst);
        self.shared.waiter.wake();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Arc<dyn Job>, usize)>> {
        self.pending.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn work(&self, team: &Team) {
        self.waiter.claim();
        let mut done = 0;
        loop {
            self.waiter.wait(|| self.submitted.load(Ordering::Acquire) != done || self.stop.load(Ordering::Acquire));
            let next = self.lock().pop_front();
            match next {
                Some((job, device)) => {
                    job.run(device, team);
                    done += 1;
                }
                None if self.stop.load(Ordering::Acquire) => return,
                None => {}
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.waiter.wake();
        if let Some(thread) = self.thread.take() {
            // A panic was caught by the job and reported by its step.
            let _ = thread.join();
        }
    }
}
