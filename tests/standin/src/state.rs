//! The driver's state behind one lock: GPUs, contexts, streams, events, what is pending, and what was counted.

use crate::clock::{Clock, Clocks};
use crate::codes::{Code, DEVICE_UNAVAILABLE, Failure, INVALID_CONTEXT, INVALID_HANDLE};
use crate::faults::Faults;
use crate::graph::{Capture, Exec, Graph};
use crate::kernel::{Function, Module};
use crate::nccl::Nccl;
use crate::queue::{Op, OpId};
use crate::races::Races;
use crate::space::Space;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// One GPU as the program sees it.
pub struct Gpu {
    /// Its number on the machine, whatever `CUDA_VISIBLE_DEVICES` makes of it.
    pub physical: usize,
    /// The handle of its primary context.
    pub primary: u64,
    /// True when a fault took it away.
    pub lost: bool,
}

/// A context.
pub struct Context {
    /// Its GPU.
    pub gpu: usize,
    /// How often the primary context is retained; none for one that was created.
    pub retained: Option<u32>,
    /// The error that stays, or 0.
    pub sticky: Code,
    /// The GPUs whose memory its kernels may reach beside their own.
    pub peers: BTreeSet<usize>,
    /// Its default stream.
    pub null: u64,
    /// Streams made so far, for their names.
    pub streams: usize,
}

/// A stream.
pub struct Stream {
    /// Its context.
    pub context: u64,
    /// Its slot in the clocks.
    pub slot: usize,
    /// True for the default stream.
    pub null: bool,
    /// True when it waits for the default stream and is waited for.
    pub blocking: bool,
    /// As asked for.
    pub priority: i32,
    /// The last operation.
    pub last: Option<OpId>,
    /// What the next operation waits for beside it.
    pub waits: Vec<OpId>,
    /// What is ordered before the next operation.
    pub clock: Clock,
    /// The capture it takes part in.
    pub capture: Option<u64>,
    /// The nodes that the next node depends on.
    pub frontier: Vec<usize>,
    /// The name in messages.
    pub name: String,
}

/// An event.
#[derive(Default)]
pub struct Event {
    /// Its context.
    pub context: u64,
    /// What it was recorded behind.
    pub ops: Vec<OpId>,
    /// What is ordered before it.
    pub clock: Clock,
    /// When it was reached; only where it keeps time.
    pub at: Option<Instant>,
    /// True when it keeps time.
    pub timing: bool,
    /// True once it was recorded.
    pub recorded: bool,
    /// Where it was last recorded in a capture: the capture and its nodes.
    pub captured: Option<(u64, Vec<usize>)>,
}

/// What the environment asks for.
pub struct Config {
    /// Which pairs of GPUs are peers: `all`, `pairs` or `none`.
    pub peers: String,
    /// True when a race fails the stream's context.
    pub races_fail: bool,
    /// True when every operation is printed as it runs.
    pub trace: bool,
    /// How long a wait for another rank of a collective lasts.
    pub patience: Duration,
}

/// All of it.
pub struct State {
    /// What was asked for.
    pub config: Config,
    /// The GPUs by the program's numbers.
    pub gpus: Vec<Gpu>,
    /// The contexts by handle; so with the rest.
    pub contexts: BTreeMap<u64, Context>,
    /// Streams.
    pub streams: BTreeMap<u64, Stream>,
    /// Events.
    pub events: BTreeMap<u64, Event>,
    /// Modules.
    pub modules: BTreeMap<u64, Module>,
    /// Functions.
    pub functions: BTreeMap<u64, Function>,
    /// Captures that go on.
    pub captures: BTreeMap<u64, Capture>,
    /// Graphs.
    pub graphs: BTreeMap<u64, Graph>,
    /// Their instances.
    pub execs: BTreeMap<u64, Exec>,
    /// Memory.
    pub space: Space,
    /// What is enqueued and has not run.
    pub ops: HashMap<OpId, Op>,
    /// Clocks.
    pub clocks: Clocks,
    /// Races.
    pub races: Races,
    /// Faults to come.
    pub faults: Faults,
    /// Communicators.
    pub nccl: Nccl,
    /// Calls by name.
    pub calls: BTreeMap<String, u64>,
    /// Bytes copied by kind: `htod`, `dtoh`, `dtod`, `peer`.
    pub bytes: BTreeMap<&'static str, u64>,
    next: u64,
    random: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::from_environment()));
/// Told whenever an operation was enqueued or has run.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The stack of current contexts of a thread; the last is current.
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The handle of the thread's current context, or 0. A thread that ends has none any more.
pub fn current_handle() -> u64 {
    CURRENT.try_with(|c| c.borrow().last().copied().unwrap_or(0)).unwrap_or(0)
}

/// Changes the thread's stack of contexts.
pub fn change_current<T: Default>(change: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    CURRENT.try_with(|c| change(&mut c.borrow_mut())).unwrap_or_default()
}

/// The last lines that were said, for tests to look at.
static SAID: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Prints a line for whoever runs the tests, unless `TURRET_STANDIN_QUIET` is set, and keeps it.
pub fn say(message: &str) {
    static QUIET: LazyLock<bool> = LazyLock::new(|| std::env::var_os("TURRET_STANDIN_QUIET").is_some());
    if !*QUIET {
        eprintln!("stand-in: {message}");
    }
    let mut said = SAID.lock().unwrap_or_else(|e| e.into_inner());
    said.push_back(message.to_owned());
    if said.len() > 200 {
        said.pop_front();
    }
}

/// What was said, oldest first; it is forgotten.
pub fn said() -> VecDeque<String> {
    std::mem::take(&mut SAID.lock().unwrap_or_else(|e| e.into_inner()))
}

fn variable<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    match std::env::var(name) {
        Err(_) => otherwise,
        Ok(text) => text.trim().parse().unwrap_or_else(|_| {
            say(&format!("{name} is '{text}', which is no number; it is left out"));
            otherwise
        }),
    }
}

/// The GPUs that `CUDA_VISIBLE_DEVICES` shows, in its order, up to the first that is not there.
fn visible(gpus: usize, list: Option<&str>) -> Vec<usize> {
    let Some(list) = list else { return (0..gpus).collect() };
    let mut shown = Vec::new();
    for entry in list.split(',') {
        match entry.trim().parse::<usize>() {
            Ok(g) if g < gpus && !shown.contains(&g) => shown.push(g),
            _ => break,
        }
    }
    shown
}

impl State {
    fn from_environment() -> State {
        let gpus = variable("TURRET_STANDIN_GPUS", 2usize).min(32);
        let shown = visible(gpus, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
        let text = |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.into());
        let mut state = State {
            config: Config {
                peers: text("TURRET_STANDIN_PEERS", "all"),
                races_fail: text("TURRET_STANDIN_RACES", "fail") != "log",
                trace: std::env::var_os("TURRET_STANDIN_TRACE").is_some(),
                patience: Duration::from_millis(variable("TURRET_STANDIN_PATIENCE", 5000)),
            },
            space: Space::new(shown.len(), variable("TURRET_STANDIN_MEMORY", 2usize << 30)),
            gpus: shown.into_iter().map(|physical| Gpu { physical, primary: 0, lost: false }).collect(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            captures: BTreeMap::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            ops: HashMap::new(),
            clocks: Clocks::default(),
            races: Races::default(),
            faults: Faults::default(),
            nccl: Nccl::default(),
            calls: BTreeMap::new(),
            bytes: BTreeMap::new(),
            next: 0x5000_0000,
            random: 0,
        };
        state.seed(variable("TURRET_STANDIN_SEED", 1));
        for gpu in 0..state.gpus.len() {
            state.gpus[gpu].primary = state.add_context(gpu, Some(0));
        }
        match crate::faults::parse(&text("TURRET_STANDIN_FAULT", "")) {
            Ok(faults) => state.set_faults(faults),
            Err(m) => say(&format!("TURRET_STANDIN_FAULT: {m}; no faults are set")),
        }
        state
    }

    /// Starts the random order anew.
    pub fn seed(&mut self, seed: u64) {
        self.random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    }

    /// Puts faults in place of those there were.
    pub fn set_faults(&mut self, faults: Vec<crate::faults::Fault>) {
        if faults.is_empty() {
            self.gpus.iter_mut().for_each(|g| g.lost = false);
        }
        self.faults = Faults(faults);
        for gpu in self.faults.lost_now() {
            self.lose(gpu);
        }
    }

    /// Takes a GPU away.
    pub fn lose(&mut self, gpu: usize) {
        if let Some(g) = self.gpus.get_mut(gpu) {
            g.lost = true;
            say(&format!("GPU {gpu} is lost"));
        }
    }

    /// The next random number.
    pub fn random(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize
    }

    /// A handle or a number that was not used before.
    pub fn id(&mut self) -> u64 {
        self.next += 16;
        self.next
    }

    /// Makes a context with its default stream.
    pub fn add_context(&mut self, gpu: usize, retained: Option<u32>) -> u64 {
        let id = self.id();
        let context = Context { gpu, retained, sticky: 0, peers: BTreeSet::new(), null: 0, streams: 0 };
        self.contexts.insert(id, context);
        let null = self.add_stream(id, true, 0, true);
        self.contexts.entry(id).and_modify(|c| c.null = null);
        id
    }

    /// Makes a stream.
    pub fn add_stream(&mut self, context: u64, blocking: bool, priority: i32, null: bool) -> u64 {
        let id = self.id();
        let slot = self.clocks.slot();
        let name = self.contexts.get_mut(&context).map_or_else(String::new, |c| {
            c.streams += usize::from(!null);
            let which = if null { "default stream".to_owned() } else { format!("stream {}", c.streams) };
            let created = if c.retained.is_none() { format!(" context {context:#x}") } else { String::new() };
            format!("GPU {}{created} {which}", c.gpu)
        });
        let stream = Stream {
            context,
            slot,
            null,
            blocking,
            priority,
            last: None,
            waits: Vec::new(),
            clock: Clock::default(),
            capture: None,
            frontier: Vec::new(),
            name,
        };
        self.streams.insert(id, stream);
        id
    }

    /// An error if a context cannot be used: it is not there, its GPU is lost, or an error stays in it.
    pub fn usable(&self, context: u64) -> Result<(), Code> {
        let c = self.contexts.get(&context).ok_or(INVALID_CONTEXT)?;
        if self.gpus[c.gpu].lost {
            return Err(DEVICE_UNAVAILABLE);
        }
        if c.sticky != 0 { Err(c.sticky) } else { Ok(()) }
    }

    /// The current context and its GPU.
    pub fn current(&self) -> Result<(u64, usize), Code> {
        let context = current_handle();
        if context == 0 {
            return Err(INVALID_CONTEXT);
        }
        self.usable(context)?;
        Ok((context, self.contexts[&context].gpu))
    }

    /// An error where no context is current: the driver wants one, though a stream's own may be another.
    pub fn any_current(&self) -> Result<(), Code> {
        if current_handle() != 0 { Ok(()) } else { Err(INVALID_CONTEXT) }
    }

    /// The stream of a handle; 0, 1 and 2 are the current context's default stream.
    pub fn stream(&self, handle: u64) -> Result<u64, Code> {
        if handle <= 2 {
            let (context, _) = self.current()?;
            return Ok(self.contexts[&context].null);
        }
        let stream = self.streams.get(&handle).ok_or(INVALID_HANDLE)?;
        self.usable(stream.context)?;
        Ok(handle)
    }

    /// The GPU of a context.
    pub fn gpu(&self, context: u64) -> usize {
        self.contexts.get(&context).map_or(0, |c| c.gpu)
    }

    /// True when two GPUs are peers.
    pub fn peers(&self, a: usize, b: usize) -> bool {
        let pair = |g: usize| self.gpus[g].physical / 2;
        match self.config.peers.as_str() {
            "none" => false,
            "pairs" => a != b && pair(a) == pair(b),
            _ => a != b,
        }
    }

    /// Puts an error into a context for good, and prints why.
    pub fn fail(&mut self, context: u64, label: &str, failure: &Failure) {
        say(&format!("{label}: {} (error {})", failure.message, failure.code));
        if let Some(c) = self.contexts.get_mut(&context)
            && c.sticky == 0
        {
            c.sticky = failure.code;
        }
    }

    /// Counts bytes copied.
    pub fn count_bytes(&mut self, kind: &'static str, n: usize) {
        *self.bytes.entry(kind).or_default() += n as u64;
    }
}

/// The lock, held; it can be let go for a while.
pub struct Held(Option<MutexGuard<'static, State>>);

impl Held {
    /// Takes the lock.
    pub fn take() -> Held {
        Held(Some(STATE.lock().unwrap_or_else(|e| e.into_inner())))
    }

    /// Does something without the lock.
    pub fn unlocked<T>(&mut self, action: impl FnOnce() -> T) -> T {
        self.0 = None;
        let value = action();
        *self = Held::take();
        value
    }

    /// Lets others in until something changed or the time is over.
    pub fn wait(&mut self, limit: Duration) {
        if let Some(guard) = self.0.take() {
            let (guard, _) = CHANGED.wait_timeout(guard, limit).unwrap_or_else(|e| e.into_inner());
            self.0 = Some(guard);
        }
    }

    /// Tells those who wait.
    pub fn tell(&self) {
        CHANGED.notify_all();
    }
}

impl Deref for Held {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().expect("the lock is held outside of unlocked and wait")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("the lock is held outside of unlocked and wait")
    }
}

/// One call of the driver: counted, under the lock.
pub fn call(name: &str, action: impl FnOnce(&mut Held) -> Result<(), Code>) -> Code {
    let mut held = Held::take();
    match held.calls.get_mut(name) {
        Some(n) => *n += 1,
        None => {
            held.calls.insert(name.to_owned(), 1);
        }
    }
    let code = action(&mut held).err().unwrap_or(0);
    if code != 0 && held.config.trace {
        say(&format!("{name} gives {code}"));
    }
    code
}

/// Exported functions: the name, the parameters, and a body that sees the state and gives `Result<(), Code>`.
#[macro_export]
macro_rules! api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) |$s:ident| $body:block)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.")]
        $(#[$meta])*
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $crate::codes::Code {
            $crate::state::call(stringify!($name), |$s: &mut $crate::state::Held| -> Result<(), $crate::codes::Code> {
                // SAFETY: the caller's pointers are as the driver's interface wants them.
                #[allow(unused_unsafe)]
                unsafe { $body }
            })
        }
    )* };
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn visible_devices_are_read_as_the_driver_reads_them() {
        assert_eq!(visible(4, None), [0, 1, 2, 3]);
        assert_eq!(visible(4, Some("2,0")), [2, 0]);
        assert_eq!(visible(4, Some("1,9,0")), [1]);
        assert_eq!(visible(4, Some("")), Vec::<usize>::new());
        assert_eq!(visible(4, Some("-1")), Vec::<usize>::new());
    }
}
