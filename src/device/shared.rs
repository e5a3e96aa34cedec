//! A pointer that several threads use.

/// A pointer that the parts of a job share; each part touches elements of its own.
#[derive(Clone, Copy)]
pub struct Shared<T>(*mut T);

// SAFETY: what is done with the pointer is the business of the unsafe code that reads it out.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Shares a pointer.
    pub fn new(pointer: *mut T) -> Shared<T> {
        Shared(pointer)
    }

    /// The pointer.
    pub fn get(self) -> *mut T {
        self.0
    }
}
