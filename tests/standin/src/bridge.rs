//! What modules of kernels and the driver share: the layout is that of `Bridge` in `shim/hooks.cpp`.
//!
//! There is one, and one kernel runs at a time, under the driver's lock; so it is plain memory behind a pointer.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicBool;

/// An access by a kernel, in the shadow's bits.
pub const READ: u8 = 1;
/// A plain write.
pub const WRITE: u8 = 2;
/// A read through a volatile pointer, or an atomic one.
pub const SOFT_READ: u8 = 4;
/// A write through a volatile pointer, or an atomic one.
pub const SOFT_WRITE: u8 = 8;
/// The byte belongs to a live allocation.
pub const LIVE: u8 = 128;

/// The shared block.
#[repr(C)]
pub struct Bridge {
    /// Where the memory of all GPUs, and pinned host memory, lies.
    pub base: usize,
    /// Its length.
    pub size: usize,
    /// One byte of marks for each byte of it.
    pub shadow: *mut u8,
    /// One byte for each 4096 bytes of it: 1 when the running kernel touched it.
    pub dirty: *mut u8,
    /// The numbers of the touched pages.
    pub pages: *mut u32,
    /// How many there are.
    pub page_count: usize,
    /// A GPU's part is 2 to this power bytes long.
    pub slice_shift: usize,
    /// The parts that the running kernel's GPU may reach, one bit each.
    pub reach: u64,
    /// Not 0 when host memory outside is registered.
    pub registered: usize,
    /// The next thread of the block to start.
    pub next: c_uint,
    /// Threads in the block.
    pub count: c_uint,
    /// Not 0 when the threads start from the last one.
    pub reversed: c_uint,
    /// Not 0 when the running fiber is inside a thread.
    pub have: c_uint,
    /// Threads that returned.
    pub done_count: c_uint,
    /// Unused.
    pub lane: c_uint,
    /// The threads of each warp that returned.
    pub done: [c_uint; 32],
    /// Called for an address outside.
    pub outside: extern "C" fn(*const c_void, usize, c_uint),
    /// Called for an access that is not allowed.
    pub bad: extern "C" fn(*const c_void, usize, c_uint),
    /// `__syncthreads`.
    pub sync_block: extern "C" fn(),
    /// The warp's synchronising functions.
    pub sync_warp: extern "C" fn(c_uint, c_int, u64, c_int) -> u64,
    /// `__trap`.
    pub trap: extern "C" fn(),
}

/// A module's variables with the indices: the layout of `standin_place`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Place {
    /// `threadIdx`.
    pub thread: [u32; 3],
    /// The thread's number in its block.
    pub lane: u32,
    /// `blockIdx`.
    pub block: [u32; 3],
    /// `blockDim`.
    pub block_size: [u32; 3],
    /// `gridDim`.
    pub grid_size: [u32; 3],
}

/// Room for the bridge, shared under the driver's lock.
pub struct Shared<T>(UnsafeCell<T>);

// SAFETY: the contents are used only while the driver's lock is held, or on the thread that holds it.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Shared<T> {
        Shared(UnsafeCell::new(value))
    }

    /// The value's address.
    pub const fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// The one bridge.
pub static BRIDGE: Shared<Bridge> = Shared::new(Bridge {
    base: 0,
    size: 0,
    shadow: std::ptr::null_mut(),
    dirty: std::ptr::null_mut(),
    pages: std::ptr::null_mut(),
    page_count: 0,
    slice_shift: 0,
    reach: 0,
    registered: 0,
    next: 0,
    count: 0,
    reversed: 0,
    have: 0,
    done_count: 0,
    lane: 0,
    done: [0; 32],
    outside: crate::fibers::outside,
    bad: crate::fibers::bad,
    sync_block: crate::fibers::sync_block,
    sync_warp: crate::fibers::sync_warp,
    trap: crate::fibers::trap,
});

/// True while a kernel's code runs on the thread that holds the driver's lock.
pub static IN_KERNEL: AtomicBool = AtomicBool::new(false);
