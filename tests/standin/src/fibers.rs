//! Runs the threads of a block: each on a stack of its own from the moment that it waits for another one.
//!
//! A worker starts thread after thread in a loop, so a kernel without barriers costs one loop. When a thread waits, its
//! worker is put aside and another one goes on with the threads that have not started. A barrier that some threads never
//! reach is an error here, while a GPU may hang or go on. A kernel that touches what it may not is left where it is.

#![allow(clippy::needless_borrow)] // Borrows of what a raw pointer leads to are written out, as rustc wants them.

use crate::bridge::{BRIDGE, Bridge, IN_KERNEL, LIVE, Place, Shared};
use crate::codes::{Code, Failure, ILLEGAL_ADDRESS, LAUNCH_FAILED, MISALIGNED_ADDRESS};
use crate::races::Span;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

const STACK: usize = 1 << 20;

/// A kernel's loop over the threads of a block.
pub type Entry = unsafe extern "C" fn(*mut *mut c_void);

#[derive(Clone, Copy, PartialEq)]
enum Why {
    Finished,
    Block,
    Warp,
    Abandoned,
}

struct Fiber {
    pointer: usize,
    stack: usize,
    thread: [u32; 3],
    lane: u32,
    result: u64,
}

/// Lanes of one warp that wait with the same mask.
struct Group {
    mask: u32,
    arrived: u32,
    what: c_int,
    fibers: [usize; 32],
    values: [u64; 32],
    from: [u8; 32],
}

/// The state of the block that runs.
pub struct Scheduler {
    fibers: Vec<Fiber>,
    idle: Vec<usize>,
    ready: VecDeque<usize>,
    waiting: Vec<usize>,
    warps: Vec<Vec<Group>>,
    current: usize,
    pointer: usize,
    why: Why,
    entry: Option<Entry>,
    arguments: *mut *mut c_void,
    place: *mut Place,
    failure: Option<Failure>,
    /// Ranges of registered host memory that the kernel touched.
    pub outside: Vec<Span>,
    /// The registered ranges.
    pub registered: Vec<(usize, usize)>,
    slices: usize,
}

static SCHEDULER: Shared<Scheduler> = Shared::new(Scheduler {
    fibers: Vec::new(),
    idle: Vec::new(),
    ready: VecDeque::new(),
    waiting: Vec::new(),
    warps: Vec::new(),
    current: 0,
    pointer: 0,
    why: Why::Finished,
    entry: None,
    arguments: std::ptr::null_mut(),
    place: std::ptr::null_mut(),
    failure: None,
    outside: Vec::new(),
    registered: Vec::new(),
    slices: 0,
});

/// The thread that runs a kernel, as `pthread_self` names it.
pub static RUNNER: AtomicUsize = AtomicUsize::new(0);

/// Saves the callee's registers and the stack pointer, and goes on with another stack.
#[unsafe(naked)]
unsafe extern "C" fn switch(save: *mut usize, to: usize) {
    core::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret"
    )
}

fn scheduler() -> *mut Scheduler {
    SCHEDULER.get()
}

fn bridge() -> *mut Bridge {
    BRIDGE.get()
}

/// Leaves the running fiber for the scheduler.
fn leave(why: Why) {
    // SAFETY: called on a fiber, whose scheduler waits in `run_block` of the same OS thread.
    unsafe {
        let s = scheduler();
        (*s).why = why;
        let current = (*s).current;
        let save = &raw mut (&mut (*s).fibers)[current].pointer;
        let to = (*s).pointer;
        switch(save, to);
    }
}

/// A fiber's life: the loop over threads, again for every block.
extern "C" fn worker() -> ! {
    loop {
        // SAFETY: the scheduler set the entry and the arguments before it switched here.
        unsafe {
            if let Some(entry) = (*scheduler()).entry {
                entry((*scheduler()).arguments);
            }
        }
        leave(Why::Finished);
    }
}

fn first_pointer(stack: usize) -> usize {
    let top = (stack + STACK) & !15;
    // SAFETY: the words lie at the end of the fiber's own stack.
    unsafe {
        let at = (top - 64) as *mut usize;
        (0..6).for_each(|i| at.add(i).write(0));
        at.add(6).write(worker as *const () as usize);
    }
    top - 64
}

impl Scheduler {
    fn fresh(&mut self) -> usize {
        if let Some(f) = self.idle.pop() {
            return f;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: a fresh mapping; its first page becomes the guard.
        let stack = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), STACK, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert!(at != libc::MAP_FAILED, "no memory for the stack of a thread");
            libc::mprotect(at, 4096, libc::PROT_NONE);
            at as usize
        };
        self.fibers.push(Fiber { pointer: first_pointer(stack), stack, thread: [0; 3], lane: 0, result: 0 });
        self.fibers.len() - 1
    }

    /// Everything back to the start, after a kernel was left in the middle.
    fn reset(&mut self) {
        self.idle = (0..self.fibers.len()).collect();
        self.fibers.iter_mut().for_each(|f| f.pointer = first_pointer(f.stack));
        self.ready.clear();
        self.waiting.clear();
        self.warps.iter_mut().for_each(Vec::clear);
    }
}

/// Prepares for a kernel's blocks.
pub fn start(
    entry: Entry,
    arguments: *mut *mut c_void,
    place: *mut Place,
    slices: usize,
    registered: Vec<(usize, usize)>,
) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(crate::signals::install);
    // SAFETY: the driver's lock is held and no kernel runs.
    let s = unsafe { &mut *scheduler() };
    (s.entry, s.arguments, s.place, s.slices, s.registered) = (Some(entry), arguments, place, slices, registered);
    s.failure = None;
    // SAFETY: pthread_self has no conditions.
    RUNNER.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
    IN_KERNEL.store(true, Ordering::Relaxed);
}

/// Ends a kernel; the registered host memory that it touched.
pub fn finish() -> Vec<Span> {
    IN_KERNEL.store(false, Ordering::Relaxed);
    // SAFETY: the driver's lock is held and no kernel runs.
    unsafe { std::mem::take(&mut (*scheduler()).outside) }
}

/// Runs all threads of the block that the bridge and the place describe.
pub fn run_block() -> Result<(), Failure> {
    // SAFETY: the driver's lock is held; fibers run only inside `switch`, and touch the scheduler through its pointer.
    unsafe {
        let s = scheduler();
        let b = bridge();
        let count = (*b).count as usize;
        while (&(*s).warps).len() < count.div_ceil(32) {
            (&mut (*s).warps).push(Vec::new());
        }
        loop {
            let pick = if let Some(f) = (&mut (*s).ready).pop_front() {
                let fiber = &(&(*s).fibers)[f];
                (*(*s).place).thread = fiber.thread;
                (*(*s).place).lane = fiber.lane;
                (*b).have = 1;
                f
            } else if (*b).next < (*b).count {
                (*b).have = 0;
                (*s).fresh()
            } else {
                break;
            };
            (*s).current = pick;
            let to = (&(*s).fibers)[pick].pointer;
            switch(&raw mut (*s).pointer, to);
            match (*s).why {
                Why::Finished => (&mut (*s).idle).push(pick),
                Why::Warp => {}
                Why::Block => {
                    (&mut (*s).waiting).push(pick);
                    if (&(*s).waiting).len() == count {
                        let waiting = std::mem::take(&mut (*s).waiting);
                        (&mut (*s).ready).extend(waiting);
                    }
                }
                Why::Abandoned => {
                    (*s).reset();
                    return Err((*s)
                        .failure
                        .take()
                        .unwrap_or_else(|| Failure::new(LAUNCH_FAILED, "the kernel was left")));
                }
            }
        }
        let at_block = (&(*s).waiting).len();
        let in_warps: usize = (&(*s).warps).iter().flatten().map(|g| g.arrived.count_ones() as usize).sum();
        if at_block + in_warps == 0 {
            return Ok(());
        }
        (*s).reset();
        let place = (*(*s).place).block;
        Err(Failure::new(
            LAUNCH_FAILED,
            format!(
                "divergent barrier in block {place:?}: of {count} threads {at_block} wait at __syncthreads and {in_warps} at a warp's function, {} returned; let all threads reach it",
                (*b).done_count
            ),
        ))
    }
}

/// Leaves the kernel for good, from one of its fibers.
fn abandon(failure: Failure) -> ! {
    // SAFETY: called on a fiber; the scheduler only reads the failure after the switch.
    unsafe { (*scheduler()).failure = Some(failure) };
    loop {
        leave(Why::Abandoned);
    }
}

/// Keeps which thread the fiber is in while it waits.
unsafe fn keep_thread() -> (usize, u32) {
    // SAFETY: called on a fiber of the running block.
    unsafe {
        let s = scheduler();
        let (thread, lane) = ((*(*s).place).thread, (*(*s).place).lane);
        let current = (*s).current;
        let fiber = &mut (&mut (*s).fibers)[current];
        (fiber.thread, fiber.lane) = (thread, lane);
        (current, lane)
    }
}

/// `__syncthreads`, on a fiber.
pub extern "C" fn sync_block() {
    // SAFETY: the hooks call this on a fiber.
    unsafe { keep_thread() };
    leave(Why::Block);
}

/// The warp's functions: 0 only waits, 1 exchanges, 2 votes.
pub extern "C" fn sync_warp(mask: c_uint, what: c_int, value: u64, from: c_int) -> u64 {
    // SAFETY: the hooks call this on a fiber.
    unsafe {
        let (current, lane) = keep_thread();
        let s = scheduler();
        let (warp, own) = ((lane / 32) as usize, lane % 32);
        let threads = ((*bridge()).count - warp as u32 * 32).min(32);
        let there = if threads == 32 { u32::MAX } else { (1 << threads) - 1 };
        if mask & (1 << own) == 0 {
            abandon(Failure::new(
                LAUNCH_FAILED,
                format!("lane {own} calls a warp's function with mask {mask:#x}, which leaves it out"),
            ));
        }
        let gone = (*bridge()).done[warp] & mask;
        if gone != 0 {
            abandon(Failure::new(
                LAUNCH_FAILED,
                format!(
                    "divergent warp: lanes {gone:#x} of mask {mask:#x} have returned; let all of them reach the function"
                ),
            ));
        }
        let groups = &mut (&mut (*s).warps)[warp];
        let i = groups.iter().position(|g| g.mask == mask && g.what == what).unwrap_or_else(|| {
            groups.push(Group { mask, arrived: 0, what, fibers: [0; 32], values: [0; 32], from: [0; 32] });
            groups.len() - 1
        });
        let group = &mut groups[i];
        group.arrived |= 1 << own;
        (group.fibers[own as usize], group.values[own as usize], group.from[own as usize]) =
            (current, value, (from & 31) as u8);
        if group.arrived == mask & there {
            let group = groups.swap_remove(i);
            let lanes = (0..32usize).filter(|l| group.arrived >> l & 1 == 1);
            let votes = lanes.clone().filter(|l| group.values[*l] != 0).fold(0u64, |v, l| v | 1 << l);
            for l in lanes {
                let source = group.from[l] as usize;
                let fiber = group.fibers[l];
                (&mut (*s).fibers)[fiber].result = match what {
                    1 if group.arrived >> source & 1 == 1 => group.values[source],
                    1 => u64::MAX,
                    _ => votes,
                };
                (&mut (*s).ready).push_back(fiber);
            }
        }
        leave(Why::Warp);
        (&(*s).fibers)[current].result
    }
}

/// `__trap`.
pub extern "C" fn trap() {
    abandon(Failure::new(LAUNCH_FAILED, "the kernel called __trap"));
}

/// The GPU, or pinned memory, that a part of the reservation is.
unsafe fn device_address(host: usize) -> u64 {
    // SAFETY: the bridge is set up.
    let (base, shift, slices) = unsafe { ((*bridge()).base, (*bridge()).slice_shift, (*scheduler()).slices) };
    let (slice, offset) = ((host - base) >> shift, (host - base) & ((1 << shift) - 1));
    if slice + 1 < slices { ((slice as u64 + 1) << 56) | offset as u64 } else { host as u64 }
}

/// An access to a GPU's or to pinned memory that is not allowed.
pub extern "C" fn bad(at: *const c_void, n: usize, bits: c_uint) {
    let host = at as usize;
    // SAFETY: the hooks call this on a fiber, with an address inside of the reservation.
    unsafe {
        let b = bridge();
        let (address, place) = (device_address(host), *(*scheduler()).place);
        let what = if bits & 10 != 0 { "writes" } else { "reads" };
        let who = format!("thread {:?} of block {:?} {what} {n} bytes at {address:#x}", place.thread, place.block);
        let slice = (host - (*b).base) >> (*b).slice_shift;
        if (*b).reach >> slice & 1 == 0 {
            abandon(Failure::new(
                ILLEGAL_ADDRESS,
                format!("{who}, memory of GPU {slice}, to which it has no peer access"),
            ));
        }
        let live = (0..n).all(|i| *(*b).shadow.add(host - (*b).base + i) & LIVE != 0);
        if !live {
            abandon(Failure::new(ILLEGAL_ADDRESS, format!("{who}, which is in no live allocation")));
        }
        abandon(Failure::new(MISALIGNED_ADDRESS, format!("{who}, which is not a multiple of {n}")));
    }
}

/// The place of a device address, live or not.
pub fn translated(address: usize) -> Option<usize> {
    // SAFETY: the bridge is set up.
    let (base, shift, slices) = unsafe { ((*bridge()).base, (*bridge()).slice_shift, (*scheduler()).slices) };
    let (tag, offset) = (address >> 56, address & ((1 << 56) - 1));
    (tag >= 1 && tag < slices && offset < 1 << shift).then(|| base + ((tag - 1) << shift) + offset)
}

/// An access outside of the reservation: a device address that was read from memory, or registered host memory.
pub extern "C" fn outside(at: *const c_void, n: usize, bits: c_uint) {
    let address = at as usize;
    if let Some(host) = translated(address) {
        // SAFETY: the place lies in the reservation, whose shadow and dirty marks are as long.
        unsafe {
            let b = bridge();
            let offset = host - (*b).base;
            let live = (0..n).all(|i| *(*b).shadow.add(offset + i) & LIVE != 0);
            if !live || (*b).reach >> (offset >> (*b).slice_shift) & 1 == 0 || !offset.is_multiple_of(n) {
                bad(host as *const c_void, n, bits);
            }
            (0..n).for_each(|i| *(*b).shadow.add(offset + i) |= bits as u8);
            let page = offset / 4096;
            if *(*b).dirty.add(page) == 0 {
                *(*b).dirty.add(page) = 1;
                (*b).pages.add((*b).page_count).write(page as u32);
                (*b).page_count += 1;
            }
        }
        return;
    }
    // SAFETY: the hooks call this on a fiber, and the scheduler is not in use meanwhile.
    let s = unsafe { &mut *scheduler() };
    if s.registered.iter().any(|(lo, hi)| address >= *lo && address + n <= *hi) {
        match s.outside.last_mut() {
            Some(last) if last.bits == bits as u8 && last.hi == address => last.hi += n,
            Some(last) if last.bits == bits as u8 && last.lo <= address && address + n <= last.hi => {}
            _ => s.outside.push(Span { lo: address, hi: address + n, bits: bits as u8 }),
        }
    } else if address >> 47 != 0 {
        abandon(Failure::new(
            ILLEGAL_ADDRESS,
            format!("the kernel follows {address:#x}, which is no address of a GPU or of pinned memory"),
        ));
    }
}

/// Goes on in the scheduler after a fault, whose message is set already.
pub extern "C" fn abandoned() -> ! {
    loop {
        leave(Why::Abandoned);
    }
}

/// Notes why the running thread cannot go on; the end of its stack.
///
/// # Safety
/// Called while a fiber runs, on its OS thread.
pub unsafe fn fail_current(code: Code, message: &str) -> usize {
    // SAFETY: the scheduler waits for the fiber.
    unsafe {
        let s = scheduler();
        let place = *(*s).place;
        (*s).failure =
            Some(Failure::new(code, format!("thread {:?} of block {:?} {message}", place.thread, place.block)));
        let current = (*s).current;
        ((&(*s).fibers)[current].stack + STACK) & !15
    }
}
