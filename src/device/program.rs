//! One device's part of a step: a flat list of commands over buffers whose places are fixed.
//!
//! Invariant: running a program allocates nothing and takes no decision; order between devices is in its events alone.

use super::kernel::{CpuKernel, Launch, View};
use super::machine::DeviceId;
use super::shared::Shared;
use super::team::Team;
use super::waiter::Waiter;
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// One thing that a device does.
#[derive(Clone, Debug)]
pub enum Command {
    /// Runs a kernel.
    Launch {
        /// Which of the program's kernels.
        kernel: u32,
        /// Its inputs among the program's views.
        inputs: Range<u32>,
        /// Its outputs among the program's views.
        outputs: Range<u32>,
        /// The step's node, for messages and traces.
        node: u32,
        /// True if it changes variables.
        writes: bool,
    },
    /// Copies a buffer into this device's memory, or within it.
    Copy {
        /// The source among the program's views.
        from: u32,
        /// The destination among the program's views.
        to: u32,
        /// The step's node.
        node: u32,
        /// True if the two devices do not reach each other, so that it goes through the host.
        staged: bool,
    },
    /// Leaves the next launch out unless these views, bools, are as said.
    Guard {
        /// The bools among the program's views.
        predicates: Range<u32>,
        /// What each must be.
        wanted: SmallVec<[bool; 1]>,
    },
    /// Waits for an event of this step.
    Wait(u32),
    /// Marks an event of this step.
    Signal(u32),
}

/// The commands of one device in one step.
pub struct Program {
    /// The device that runs it.
    pub device: DeviceId,
    /// The commands, in order.
    pub commands: Vec<Command>,
    /// The kernels that they launch.
    pub kernels: Vec<Arc<CpuKernel>>,
    views: UnsafeCell<Vec<View>>,
    /// Host memory that staged copies pass through.
    staging: UnsafeCell<Vec<u8>>,
}

// SAFETY: `views` is written only by `patch`, whose contract excludes a run; `staging` is used only by the one thread
// that executes the program.
unsafe impl Sync for Program {}
// SAFETY: the addresses in the views belong to memory that the owner of the program keeps; any thread may use them.
unsafe impl Send for Program {}

impl Program {
    /// A program.
    pub fn new(
        device: DeviceId,
        commands: Vec<Command>,
        kernels: Vec<Arc<CpuKernel>>,
        views: Vec<View>,
        staging_bytes: usize,
    ) -> Program {
        Program {
            device,
            commands,
            kernels,
            views: UnsafeCell::new(views),
            staging: UnsafeCell::new(vec![0; staging_bytes]),
        }
    }

    /// Points one view at another address, such as this step's feed.
    ///
    /// # Safety
    /// The program must not be running, and the address must stay valid for every step until it is patched again.
    pub unsafe fn patch(&self, view: u32, start: *mut u8) {
        // SAFETY: by the contract nobody reads the views now.
        unsafe { (&mut *self.views.get())[view as usize].start = start };
    }

    /// Runs all commands, or stops at the first failure of any device.
    ///
    /// # Safety
    /// One thread at a time; every view is valid; the events order all accesses to shared buffers.
    pub unsafe fn execute(&self, step: &Step, team: &Team) {
        // SAFETY: by this function's contract.
        unsafe { self.execute_part(0..self.commands.len(), step, team) }
    }

    /// Runs some of the commands, or stops at the first failure of any device.
    ///
    /// # Safety
    /// As [`Program::execute`].
    pub unsafe fn execute_part(&self, part: Range<usize>, step: &Step, team: &Team) {
        // SAFETY: nobody patches while the program runs.
        let views: &[View] = unsafe { &*self.views.get() };
        let epoch = step.epoch.load(Ordering::Acquire);
        let waiter = &step.waiters[self.device.index()];
        let mut left_out = false;
        let mut trace = step.trace(self.device);
        for command in &self.commands[part] {
            match command {
                Command::Guard { predicates, wanted } => {
                    let predicates = &views[predicates.start as usize..predicates.end as usize];
                    // SAFETY: a predicate is a bool scalar, so that its buffer holds one byte.
                    let is = |view: &View| unsafe { *view.start != 0 };
                    left_out = predicates.iter().zip(wanted).any(|(view, want)| is(view) != *want);
                }
                Command::Launch { .. } if std::mem::take(&mut left_out) => {}
                Command::Wait(event) => {
                    let event = &step.events[*event as usize];
                    waiter.wait(|| event.done.load(Ordering::Acquire) == epoch || step.aborted());
                }
                Command::Signal(event) => {
                    let event = &step.events[*event as usize];
                    event.done.store(epoch, Ordering::Release);
                    event.waiters.iter().for_each(|d| step.waiters[d.index()].wake());
                }
                Command::Launch { kernel, inputs, outputs, node, writes } => {
                    let started = trace.as_ref().map(Trace::now);
                    if *writes {
                        step.about_to_write();
                    }
                    let inputs = &views[inputs.start as usize..inputs.end as usize];
                    let outputs = &views[outputs.start as usize..outputs.end as usize];
                    // SAFETY: by this function's contract.
                    let launch = unsafe { Launch::new(inputs, outputs, team) };
                    let kernel = &self.kernels[*kernel as usize];
                    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kernel(&launch)));
                    match result {
                        Ok(Ok(())) => Trace::finished(&mut trace, *node, started),
                        Ok(Err(message)) => step.fail(Failure { node: *node, message, kind: FailureKind::Refused }),
                        Err(panic) => {
                            let (message, kind) = (panic_text(&*panic), FailureKind::Panicked);
                            step.fail(Failure { node: *node, message, kind });
                        }
                    }
                }
                Command::Copy { from, to, node, staged } => {
                    let started = trace.as_ref().map(Trace::now);
                    let (from, to) = (views[*from as usize], views[*to as usize]);
                    let bytes = to.len * to.dtype.size();
                    // SAFETY: both buffers hold `bytes` bytes and are no part of each other; the staging buffer is as
                    // large as the largest staged copy.
                    unsafe {
                        if *staged {
                            let staging = (*self.staging.get()).as_mut_ptr();
                            std::ptr::copy_nonoverlapping(from.start, staging, bytes);
                            std::ptr::copy_nonoverlapping(staging, to.start, bytes);
                        } else {
                            copy(team, from.start, to.start, bytes);
                        }
                    }
                    Trace::finished(&mut trace, *node, started);
                }
            }
            if step.aborted() {
                return;
            }
        }
    }
}

/// Bytes that one thread copies at a time.
const COPY_GRAIN: usize = 1 << 18;

/// Copies with all threads of a team.
///
/// # Safety
/// Both buffers hold `bytes` bytes, are no part of each other, and are used by nobody else meanwhile.
unsafe fn copy(team: &Team, from: *const u8, to: *mut u8, bytes: usize) {
    let (from, to) = (Shared::new(from.cast_mut()), Shared::new(to));
    team.chunks(bytes, COPY_GRAIN, |piece| {
        // SAFETY: the piece lies in both buffers, by the contract.
        unsafe { std::ptr::copy_nonoverlapping(from.get().add(piece.start), to.get().add(piece.start), piece.len()) }
    });
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the kernel panicked: {}", text.unwrap_or_else(|| "no message".into()))
}

/// Something that one device tells others in a step.
#[derive(Default)]
pub struct Event {
    done: AtomicU64,
    /// The devices that wait for it.
    pub waiters: SmallVec<[DeviceId; 2]>,
}

/// Why a step ended early.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The step's node that failed first.
    pub node: u32,
    /// What its kernel said.
    pub message: String,
    /// What kind of failure it is.
    pub kind: FailureKind,
}

/// What a failure means for what comes after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// A kernel refused its input.
    Refused,
    /// A check on a CUDA GPU did; the changes that come after it were held back.
    Checked,
    /// A fault of the program.
    Panicked,
    /// A call of the device's driver failed; the device goes on.
    Device,
    /// A device was lost, with what it held.
    Lost,
}

/// When a node of a step ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The step's node.
    pub node: u32,
    /// Nanoseconds since the step began.
    pub start_ns: u64,
    /// Nanoseconds since the step began.
    pub end_ns: u64,
}

/// What the devices of a step share while it runs.
pub struct Step {
    /// The events, by number.
    pub events: Vec<Event>,
    /// Where each device of the machine waits.
    pub waiters: Vec<Arc<Waiter>>,
    epoch: AtomicU64,
    abort: AtomicBool,
    wrote: AtomicBool,
    failure: Mutex<Option<Failure>>,
    tracing: AtomicBool,
    began: Mutex<Instant>,
    total_ns: AtomicU64,
    spans: Vec<Mutex<Vec<Span>>>,
}

impl Step {
    /// The state of a step with these events, on a machine with these waiters.
    pub fn new(events: Vec<Event>, waiters: Vec<Arc<Waiter>>) -> Step {
        Step {
            events,
            spans: waiters.iter().map(|_| Mutex::new(Vec::new())).collect(),
            waiters,
            epoch: AtomicU64::new(0),
            abort: AtomicBool::new(false),
            wrote: AtomicBool::new(false),
            failure: Mutex::new(None),
            tracing: AtomicBool::new(false),
            began: Mutex::new(Instant::now()),
            total_ns: AtomicU64::new(0),
        }
    }

    /// Begins a new step; all events are unmarked again.
    pub fn begin(&self, trace: bool) {
        self.abort.store(false, Ordering::Relaxed);
        self.wrote.store(false, Ordering::Relaxed);
        self.tracing.store(trace, Ordering::Relaxed);
        if trace {
            *lock(&self.began) = Instant::now();
            self.spans.iter().for_each(|s| lock(s).clear());
        }
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// True if some device failed.
    pub fn aborted(&self) -> bool {
        self.abort.load(Ordering::Acquire)
    }

    /// True if a kernel that changes variables has begun.
    pub fn wrote(&self) -> bool {
        self.wrote.load(Ordering::Acquire)
    }

    /// Notes that a kernel that changes variables is about to begin.
    pub fn about_to_write(&self) {
        self.wrote.store(true, Ordering::Relaxed);
    }

    /// Ends the step on all devices; the first failure is kept.
    pub fn fail(&self, failure: Failure) {
        lock(&self.failure).get_or_insert(failure);
        self.abort.store(true, Ordering::SeqCst);
        self.waiters.iter().for_each(|w| w.wake());
    }

    /// Takes the failure of the step that just ended, if it failed.
    pub fn take_failure(&self) -> Option<Failure> {
        if !self.aborted() {
            return None;
        }
        lock(&self.failure).take()
    }

    /// When the nodes of the last traced step ran, by device.
    pub fn spans(&self) -> Vec<Vec<Span>> {
        self.spans.iter().map(|s| lock(s).clone()).collect()
    }

    /// Notes that the step has ended on all devices.
    pub fn ended(&self) {
        if let Some(now) = self.now() {
            self.total_ns.store(now, Ordering::Relaxed);
        }
    }

    /// Nanoseconds that the last traced step took on all devices together.
    pub fn total_ns(&self) -> u64 {
        self.total_ns.load(Ordering::Relaxed)
    }

    /// Nanoseconds since the step began, if it is traced.
    pub fn now(&self) -> Option<u64> {
        self.tracing.load(Ordering::Relaxed).then(|| lock(&self.began).elapsed().as_nanos() as u64)
    }

    /// The trace of one device's part, if the step is traced. Only that device's thread asks.
    fn trace(&self, device: DeviceId) -> Option<Trace<'_>> {
        let traced = self.tracing.load(Ordering::Relaxed);
        traced.then(|| Trace { began: *lock(&self.began), spans: lock(&self.spans[device.index()]) })
    }
}

/// What one device notes while its part of a traced step runs. The lock is taken once, and nobody else wants it meanwhile.
struct Trace<'s> {
    began: Instant,
    spans: MutexGuard<'s, Vec<Span>>,
}

impl Trace<'_> {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Notes what has just ended.
    fn finished(trace: &mut Option<Trace<'_>>, node: u32, started: Option<u64>) {
        if let (Some(trace), Some(start_ns)) = (trace, started) {
            let end_ns = trace.now();
            trace.spans.push(Span { node, start_ns, end_ns });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
