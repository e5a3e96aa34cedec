//! Buffers that the parts of a kernel's jobs work in: one for each thread, kept between launches.

use std::sync::{Mutex, MutexGuard};

/// Equal buffers, taken and given back; their contents are whatever the last user left.
pub struct Scratch<T> {
    free: Mutex<Vec<Vec<T>>>,
    len: usize,
}

impl<T: Copy + Default> Scratch<T> {
    /// Buffers of this many elements; none is made before it is needed.
    pub fn new(len: usize) -> Scratch<T> {
        Scratch { free: Mutex::new(Vec::new()), len }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Vec<T>>> {
        // A panic left nothing that the next user reads.
        self.free.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sees to it that so many parts can work at once without allocating.
    pub fn reserve(&self, count: usize) {
        let mut free = self.free();
        while free.len() < count {
            free.push(vec![T::default(); self.len]);
        }
    }

    /// Lends a buffer.
    pub fn with<R>(&self, body: impl FnOnce(&mut [T]) -> R) -> R {
        let taken = self.free().pop();
        let mut buffer = taken.unwrap_or_else(|| vec![T::default(); self.len]);
        let result = body(&mut buffer);
        self.free().push(buffer);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_are_kept() {
        let scratch = Scratch::<f32>::new(3);
        scratch.reserve(2);
        scratch.with(|a| {
            a[0] = 1.0;
            scratch.with(|b| assert_eq!((a.len(), b.len()), (3, 3)));
        });
        scratch.reserve(1);
        assert_eq!(scratch.free().len(), 2);
    }
}
