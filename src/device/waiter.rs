//! How a thread of a step waits for another: it spins for some microseconds, then sleeps.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::Thread;

/// How often a waiter looks before it sleeps.
const SPINS: u32 = 2_000;

/// A place to wait at, for one thread at a time.
#[derive(Default)]
pub struct Waiter {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Waiter {
    /// Names the thread that waits here from now on. Allocates nothing.
    pub fn claim(&self) {
        *self.thread.lock().unwrap_or_else(|e| e.into_inner()) = Some(std::thread::current());
    }

    /// Waits until `ready`. Whoever makes it so calls [`Waiter::wake`] afterwards.
    pub fn wait(&self, mut ready: impl FnMut() -> bool) {
        for _ in 0..SPINS {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        while !ready() {
            self.asleep.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !ready() {
                std::thread::park();
            }
            self.asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Wakes the thread if it sleeps.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock().unwrap_or_else(|e| e.into_inner())
        {
            thread.unpark();
        }
    }
}
