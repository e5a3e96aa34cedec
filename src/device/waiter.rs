//! How a thread of a step waits for another: it spins for some microseconds, then lets others run between looks, then
//! sleeps. So nobody who waits keeps a core for long from one who works, where threads are more than cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::Thread;

/// How often a waiter looks without letting go of its core: some microseconds.
const SPINS: u32 = 400;
/// How often it looks after that before it sleeps, letting other threads run in between: some tens of microseconds.
const YIELDS: u32 = 100;

/// Looks for a while whether it is `ready`; tells whether it was.
pub(super) fn look(mut ready: impl FnMut() -> bool) -> bool {
    for look in 0..SPINS + YIELDS {
        if ready() {
            return true;
        }
        if look < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    false
}

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
        if look(&mut ready) {
            return;
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
