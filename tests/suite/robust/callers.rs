//! Callers that throw odd arguments at everything public: nothing panics, hangs or takes giant memory.
//!
//! Programs are drawn from seeds. A panic's message and the calls that led to it are what a failure prints.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use turret::base::{Array, DType, DeviceSpec};
use turret::device::{Machine, Peers};
use turret::graph::{Graph, Init, Operation, Reuse, ScopeOptions, Tensor, Variable, VariablePlacement};
use turret::plan::{DefaultDevice, place_all};
use turret::run::{Session, SessionOptions};

#[path = "callers_ops.rs"]
mod ops;

/// Steele and others' splitmix64.
pub(super) struct Dice {
    state: u64,
    /// Absurd numbers are only those that nothing can be made of, so that what runs stays small.
    modest: bool,
}

impl Dice {
    fn new(state: u64, modest: bool) -> Dice {
        Dice { state, modest }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// A size: mostly small, now and then absurd.
    pub fn size(&mut self) -> usize {
        match self.below(12) {
            0 => self.of(&[usize::MAX / 2, usize::MAX - 1, 1 << 62, 1 << 40, isize::MAX as usize / 4]),
            1 => 0,
            _ => self.of(&[1, 2, 2, 3, 4]),
        }
    }

    pub fn sizes(&mut self) -> Vec<usize> {
        (0..self.of(&[0, 1, 1, 2, 2, 2, 3, 5])).map(|_| self.size()).collect()
    }

    /// An integer: mostly small, now and then absurd.
    pub fn int(&mut self) -> i64 {
        match self.below(10) {
            0 if self.modest => self.of(&[-100, 100, 1000]),
            0 => self.of(&[i64::MIN, i64::MAX, i64::MAX / 2, i64::from(i32::MIN), i64::from(i32::MAX), -1 << 40]),
            _ => self.below(8) as i64 - 3,
        }
    }

    pub fn int32(&mut self) -> i32 {
        self.int().clamp(i32::MIN.into(), i32::MAX.into()) as i32
    }

    pub fn ints(&mut self) -> Vec<i64> {
        (0..self.below(4)).map(|_| self.int()).collect()
    }

    pub fn float(&mut self) -> f64 {
        self.of(&[0.0, 1.0, -1.0, 0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e-300, f64::MIN_POSITIVE])
    }

    pub fn dtype(&mut self) -> DType {
        self.of(&[DType::F32, DType::F32, DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool])
    }

    pub fn name(&mut self) -> &'static str {
        self.of(&["a", "b", "w", "w", "scope/x", "", "/", "a/", "a//b", "_x", "ü", "x:0", "\0", "a b", "^c", "//", "-"])
    }

    pub fn device(&mut self) -> &'static str {
        self.of(&[
            "/gpu:0",
            "/gpu:1",
            "/cpu:0",
            "",
            "/gpu:9",
            "gpu",
            "/gpu:*",
            "/cpu:1",
            "/tpu:0",
            "/gpu:x",
            ":::",
            "/job:",
            "/device:GPU:99999999999",
            "/cpu:0/gpu:0",
            "ö",
            "/device:*:0",
            "/task:0/gpu:0",
        ])
    }

    pub fn init(&mut self) -> Init {
        let seed = self.of(&[None, Some(0), Some(i64::MIN)]);
        match self.below(9) {
            0 => Init::Zeros,
            1 => Init::Ones,
            2 => Init::Constant(self.float()),
            3 => Init::data([1f32, 2.0]),
            4 => Init::TruncatedNormal { mean: self.float(), stddev: self.float(), seed },
            5 => Init::RandomUniform { min: self.float(), max: self.float(), seed },
            6 => Init::glorot_uniform(),
            7 => Init::orthogonal(self.float()),
            _ => Init::RandomNormal { mean: self.float(), stddev: self.float(), seed },
        }
    }

    /// A small array of any type and shape; never of an absurd size.
    pub fn array(&mut self) -> Array {
        let dims: Vec<usize> = self.sizes().into_iter().map(|d| if d > 4 { 3 } else { d }).collect();
        Array::from_f64(self.dtype(), &dims, &vec![self.float(); dims.iter().product()]).unwrap()
    }
}

/// What a program has made so far.
pub(super) struct Made<'g> {
    pub g: &'g Graph,
    other: &'g Graph,
    poison: bool,
    pub tensors: Vec<Tensor<'g>>,
    pub ops: Vec<Operation<'g>>,
    pub variables: Vec<Variable<'g>>,
}

impl<'g> Made<'g> {
    /// `poison` puts handles among them whose error nobody reported.
    fn new(g: &'g Graph, other: &'g Graph, poison: bool) -> Made<'g> {
        let foreign = other.placeholder(DType::F32, [2], "foreign");
        let first = g.get_variable("first", [2], Init::Ones);
        let mut made = Made {
            g,
            other,
            poison,
            tensors: vec![foreign, first.value(), g.constant(1f32), g.constant([1f32, 2.0])],
            ops: vec![foreign.op(), g.no_op("nothing")],
            variables: vec![first],
        };
        if poison {
            made.tensors.push(g.poison_tensor());
            made.ops.push(g.poison_operation());
            made.variables.push(g.poison_variable());
        }
        made
    }

    /// Any tensor; mostly one of the newest.
    pub fn tensor(&self, d: &mut Dice) -> Tensor<'g> {
        let n = self.tensors.len();
        if d.below(3) == 0 { self.tensors[d.below(n)] } else { self.tensors[n - 1 - d.below(n.min(4))] }
    }

    pub fn op(&self, d: &mut Dice) -> Operation<'g> {
        self.ops[d.below(self.ops.len())]
    }

    pub fn variable(&self, d: &mut Dice) -> Variable<'g> {
        self.variables[d.below(self.variables.len())]
    }

    fn keep(&mut self, tensor: Tensor<'g>) {
        self.tensors.push(tensor);
        self.ops.push(tensor.op());
    }
}

thread_local! {
    /// The calls of the program that is being drawn.
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn note(call: String) {
    CALLS.with(|c| c.borrow_mut().push(call));
}

/// Runs a body; gives the panic, if there is one, with the calls that led to it.
fn panic_of(body: impl FnOnce()) -> Option<String> {
    CALLS.with(|c| c.borrow_mut().clear());
    let panic = catch_unwind(AssertUnwindSafe(body)).err()?;
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| panic.downcast_ref::<String>().cloned());
    let calls = CALLS.with(|c| c.borrow().join("; "));
    Some(format!("{} after {calls}", text.unwrap_or_default()))
}

/// Runs a program of so many calls for each seed.
fn no_panic(seeds: std::ops::Range<u64>, modest: bool, program: impl Fn(&mut Dice)) {
    let panics: Vec<String> = seeds
        .filter_map(|seed| panic_of(|| program(&mut Dice::new(seed, modest))).map(|p| format!("seed {seed}: {p}")))
        .take(10)
        .collect();
    assert!(panics.is_empty(), "panics:\n{}", panics.join("\n"));
}

fn scope_call<'g>(made: &mut Made<'g>, d: &mut Dice, depth: usize) {
    let (g, name, device) = (made.g, d.name(), d.device());
    let body = |made: &mut Made<'g>, d: &mut Dice| (0..2).for_each(|_| call(made, d, depth + 1));
    match d.below(11) {
        0 => g.name_scope(name, || body(made, d)),
        1 => g.variable_scope(name, || body(made, d)),
        2 => {
            let reuse = d.of(&[Reuse::Inherit, Reuse::True, Reuse::Auto]);
            g.variable_scope_with(name, ScopeOptions::reuse(reuse), || body(made, d))
        }
        3 => g.variable_scope_default(name, || body(made, d)),
        4 => g.device(device, || body(made, d)),
        5 => {
            let op = made.op(d);
            g.colocate_with(op, || body(made, d))
        }
        6 => {
            let ops = [made.op(d), made.op(d)];
            g.control_dependencies(ops, || body(made, d))
        }
        7 => g.no_device(|| body(made, d)),
        8 => g.device_function(|_| DeviceSpec::parse("nonsense"), || body(made, d)),
        9 => {
            let placement = placement(d);
            let options = ScopeOptions { placement: Some(placement), ..ScopeOptions::default() };
            g.variable_scope_with("placed", options, || body(made, d))
        }
        _ => {
            let scope = g.current_variable_scope();
            g.reenter(&scope, ScopeOptions::reuse(Reuse::Auto), || body(made, d))
        }
    }
}

fn placement(d: &mut Dice) -> VariablePlacement {
    let gpus = d.of(&[0, 1, 2, 5000, u32::MAX]);
    match d.below(4) {
        0 => VariablePlacement::host(),
        1 => VariablePlacement::gpu(gpus),
        2 => VariablePlacement::round_robin(gpus),
        _ => VariablePlacement::least_bytes(gpus),
    }
}

/// One call of a program.
fn call<'g>(made: &mut Made<'g>, d: &mut Dice, depth: usize) {
    if depth < 3 && d.below(6) == 0 {
        return scope_call(made, d, depth);
    }
    let before = made.tensors.len();
    ops::call(made, d);
    // A poison handle without a reported problem would be a riddle later on.
    let riddle = !made.poison && made.tensors[before..].iter().any(|t| t.is_poison()) && made.g.check().is_ok();
    // Of tensors of two graphs the first one's graph reports.
    let riddle = riddle && made.other.check().is_ok();
    assert!(!riddle, "a poison tensor that nothing is reported for");
}

#[test]
fn no_call_that_builds_panics() {
    no_panic(0..3000, false, |d| {
        let (g, other) = (Graph::new(), Graph::new());
        let mut made = Made::new(&g, &other, d.below(2) == 0);
        let calls = 1 + d.below(12);
        for i in 0..calls {
            if i == 9 && d.below(4) == 0 {
                g.finalize();
            }
            call(&mut made, d, 0);
        }
        for t in made.tensors {
            let _ =
                (format!("{t:?}"), t.dim(d.below(3)), t.rank(), t.device(), t.op().output(d.size()), t.op().inputs());
        }
        let _ = (g.check(), g.tensor(d.name()), g.operation(d.name()), g.find_variable(d.name()));
    });
}

fn machine(d: &mut Dice) -> Machine {
    let mut machine = Machine::simulated(d.of(&[0, 1, 2, 2, 3, 5000, usize::MAX]));
    if d.below(3) == 0 {
        machine = machine.with_gpu_memory(d.of(&[0, 1, 100, 1 << 20, u64::MAX]));
    }
    if d.below(20) == 0 {
        machine = machine.with_gpu_threads(d.of(&[0, 2]));
    }
    machine.with_host_threads(d.of(&[0, 1, 2])).with_peers(d.of(&[Peers::All, Peers::Pairs, Peers::None]))
}

#[test]
fn no_run_panics() {
    no_panic(0..500, true, |d| {
        let (g, other) = (Graph::new(), Graph::new());
        let mut made = Made::new(&g, &other, false);
        // Calls that leave a problem are taken out by building without them again, so that most programs run.
        let start = d.state;
        let dice = |i: usize| Dice::new(start.wrapping_add(i as u64 * 7919), true);
        let mut skip = Vec::new();
        for i in 0..1 + d.below(8) {
            let trial = Graph::new();
            let mut probe = Made::new(&trial, &other, false);
            for j in (0..i).filter(|j| !skip.contains(j)) {
                call(&mut probe, &mut dice(j), 0);
            }
            call(&mut probe, &mut dice(i), 0);
            if trial.check().is_err() {
                skip.push(i);
            } else {
                call(&mut made, &mut dice(i), 0);
            }
        }
        let mut options = SessionOptions::on(machine(d));
        options.placement.soft = d.below(2) == 0;
        options.placement.default_device = match d.below(4) {
            0 => DefaultDevice::FirstCapable,
            1 => DefaultDevice::Named(DeviceSpec::parse(d.device()).unwrap_or_default()),
            _ => DefaultDevice::Host,
        };
        let s = match Session::new(&g, options) {
            Ok(s) => s,
            Err(e) => return note(format!("refused: {e}")),
        };
        let _ = place_all(&g.nodes(), s.machine(), s.placement_options());
        for _ in 0..4 {
            run_call(&s, &made, d);
        }
    });
}

fn run_call(s: &Session<'_>, made: &Made<'_>, d: &mut Dice) {
    let array = d.array();
    // Mostly what fits a placeholder, so that something runs.
    let feeds: Vec<(Tensor<'_>, Array)> = (made.tensors.iter())
        .filter(|t| t.op().op_type() == "Placeholder" && std::ptr::eq(t.graph(), s.graph()))
        .map(|t| {
            let dims: Vec<usize> = match t.shape().dims() {
                Some(dims) => dims.iter().map(|d| d.unwrap_or(2)).collect(),
                None => vec![2],
            };
            (*t, Array::zeros(t.dtype(), &dims).unwrap_or(Array::scalar(0f32)))
        })
        .collect();
    let mut feeds: Vec<(Tensor<'_>, &Array)> = feeds.iter().map(|(t, a)| (*t, a)).collect();
    if d.below(4) == 0 {
        feeds.push((made.tensor(d), &array));
    }
    let fetches: Vec<Tensor<'_>> = (0..d.below(3)).map(|_| made.tensor(d)).collect();
    let targets: Vec<Operation<'_>> = (0..d.below(2)).map(|_| made.op(d)).collect();
    note(format!("run of {fetches:?} {targets:?} on {} GPUs", s.machine().gpus()));
    let variable = made.variable(d);
    let ok = match d.below(12) {
        0 => s.initialize().is_ok(),
        1 => s.value(variable).is_ok(),
        2 => s.load(variable, &array).is_ok(),
        3 => s.callable(&[], &fetches, &targets).run(&[&array]).is_ok(),
        4 => {
            let dims = d.sizes();
            s.schedule(&[(made.tensor(d), &dims)], &fetches, &targets).is_ok()
        }
        5 => {
            s.close();
            s.run(&feeds, &fetches, &targets).is_ok()
        }
        6 => s.run_traced(&feeds, &fetches, &targets).is_ok(),
        _ => s.run(&feeds, &fetches, &targets).is_ok(),
    };
    let _ = (ok, s.memory_use(), s.warnings(), s.plans_built(), s.started_devices(), s.uninitialized_variables());
}

#[test]
fn no_odd_machine_or_text_panics() {
    no_panic(0..500, false, |d| {
        let text: String =
            (0..d.below(4)).map(|_| d.of(&["sim:", "2", "@", "pairs", "-1", "cpu", "é", "99999", "auto"])).collect();
        let _ = Machine::parse(&text).map(|m| m.gpus());
        let _ = SessionOptions::devices(&text).map(|o| o.machine.gpus());
        let m = machine(d).with_gpu_threads(d.of(&[0, 3, usize::MAX])).with_host_threads(d.of(&[0, usize::MAX]));
        let _ = m.matching(&DeviceSpec::parse(d.device()).unwrap_or_default());
        let _ = (Array::zeros(d.dtype(), &d.sizes()), Array::new(&d.sizes(), &[1f32, 2.0]));
        let a = d.array();
        let _ = (a.cast(d.dtype()), a.to_i64(), a.to_f64(), format!("{a:?}"), a.as_slice::<f32>().map(<[f32]>::len));
        let _ = Array::from_f64(d.dtype(), &d.sizes(), &[d.float()]);
        // A session on it runs, whatever the numbers of threads.
        if d.below(50) == 0 {
            let g = Graph::new();
            let x = g.constant([1f32, 2.0]) + g.get_variable("w", [2], Init::Ones);
            let s = Session::new(&g, SessionOptions::on(Machine::host().with_host_threads(d.of(&[0, usize::MAX]))))
                .unwrap();
            s.initialize().unwrap();
            s.run(&[], &[x], &[]).unwrap();
        }
    });
}
