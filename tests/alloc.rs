//! A warm training step allocates nothing, on any thread; a damaged file makes nothing take memory that it does not have.
//!
//! The `gemm` crate takes one small vector in each product of two matrices; exactly these are counted and allowed. A model
//! whose products are all of matrices by vectors, or of tiny matrices, takes nothing at all.
//!
//! A binary of its own: a program has one `#[global_allocator]`, and this one counts what all threads of the process
//! allocate, so that no other test may run beside one that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use turret::base::{Array, DType};
use turret::device::Machine;
use turret::graph::{Graph, Init, Tensor, VariablePlacement};
use turret::interop::arrays::{ArrayFile, WriteOptions, write_arrays};
use turret::ops::{ConvOptions, Padding, PoolOptions};
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, ComputeOptions, Optimizer, Towers, get_or_create_global_step};

struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);
/// Held by the test that counts.
static TURN: Mutex<()> = Mutex::new(());

fn count(size: usize) {
    if ARMED.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(size, Ordering::Relaxed);
        LARGEST.fetch_max(size, Ordering::Relaxed);
    }
}

// SAFETY: everything is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What the body allocates, on all threads: number and bytes.
fn allocations(body: impl FnOnce()) -> (usize, usize) {
    COUNT.store(0, Ordering::SeqCst);
    BYTES.store(0, Ordering::SeqCst);
    LARGEST.store(0, Ordering::SeqCst);
    ARMED.store(true, Ordering::SeqCst);
    body();
    ARMED.store(false, Ordering::SeqCst);
    (COUNT.load(Ordering::SeqCst), BYTES.load(Ordering::SeqCst))
}

const STEPS: usize = 1000;

fn affine<'g>(g: &'g Graph, scope: &str, x: Tensor<'g>, width: usize) -> Tensor<'g> {
    g.variable_scope(scope, || {
        let w = g.get_variable("w", [x.dim(1), width], Init::truncated_normal(0.0, 0.3));
        let b = g.get_variable("b", [width], Init::Zeros);
        x.matmul(w) + b
    })
}

/// `hidden` units; `products` of two matrices in one step.
fn warm_steps(optimizer: usize, placement: VariablePlacement, hidden: usize, products: usize) {
    let g = &Graph::new();
    let optimizer = match optimizer {
        0 => Optimizer::gradient_descent(0.01),
        1 => Optimizer::momentum(0.01, 0.9),
        2 => Optimizer::adam(0.01),
        3 => Optimizer::rms_prop(0.01),
        _ => Optimizer::adagrad(0.01),
    };
    let name = format!("{}, {hidden} hidden units", optimizer.name());
    let x = g.placeholder(DType::F32, [None, Some(6)], "x");
    let t = g.placeholder(DType::F32, [None, Some(1)], "t");
    let towers = Towers::new(g, 2).variables(placement).average_on("/cpu:0");
    let (xs, ts) = (towers.split(x), towers.split(t));
    let step = get_or_create_global_step(g);
    let (built, train) = towers.train(&optimizer, ApplyOptions::step(step), |tower| {
        let h = affine(g, "affine0", xs[tower.index()], hidden).relu();
        let y = affine(g, "affine1", h, 1);
        (y - ts[tower.index()]).square().mean()
    });
    let session = Session::new(g, SessionOptions::on(Machine::simulated(2).with_host_threads(2))).expect("a session");
    session.initialize().expect("initial values");
    let rows: Vec<f32> = (0..48).map(|i| (i % 7) as f32 / 7.0).collect();
    let rows = Array::new(&[8, 6], &rows).expect("48 elements");
    let targets = Array::new(&[8, 1], &[0.5f32; 8]).expect("8 elements");
    let feeds = [(x, &rows), (t, &targets)];
    let callable = session.callable(&[x, t], &[built.loss], &[train]);
    let mut out = Vec::new();
    let warm_up = || {
        for _ in 0..3 {
            session.run(&feeds, &[], &[train]).expect("a step");
        }
    };
    warm_up();
    let run = allocations(|| {
        for _ in 0..STEPS {
            session.run(&feeds, &[], &[train]).expect("a step");
        }
    });
    assert_eq!(run.0, products * STEPS, "{name}: allocations of {STEPS} runs, {} bytes", run.1);
    for _ in 0..3 {
        callable.run_into(&[&rows, &targets], &mut out).expect("a step");
    }
    let called = allocations(|| {
        for _ in 0..STEPS {
            callable.run_into(&[&rows, &targets], &mut out).expect("a step");
        }
    });
    assert_eq!(called.0, products * STEPS, "{name}: allocations of {STEPS} calls that fetch, {} bytes", called.1);
    assert!(out[0].get_f64(0).is_finite());
    assert_eq!(session.plans_built(), 3);
    let steps = session.value(step).expect("a value").as_slice::<i64>().expect("int64")[0];
    assert_eq!(steps as usize, 2 * STEPS + 6, "{name}");
}

#[test]
fn a_warm_step_allocates_nothing() {
    let _turn = TURN.lock();
    // The counter works.
    assert!(allocations(|| drop(std::hint::black_box(vec![0u8; 10]))).0 > 0);
    for optimizer in 0..5 {
        warm_steps(optimizer, VariablePlacement::least_bytes(2), 1, 0);
        warm_steps(optimizer, VariablePlacement::host(), 16, 0);
        // In each tower the hidden layer; the gradient of its weights is tiny.
        warm_steps(optimizer, VariablePlacement::host(), 96, 2);
    }
}

/// The convolutions are products of their own: no part of them, nor of pools, takes memory.
#[test]
fn a_warm_step_of_convolutions_allocates_nothing() {
    let _turn = TURN.lock();
    let g = &Graph::new();
    let x = g.placeholder(DType::F32, [4, 12, 12, 16], "x");
    let weights = |name: &str, shape: [usize; 4]| g.get_variable(name, shape, Init::truncated_normal(0.0, 0.1));
    let same = ConvOptions::new([1, 1], Padding::Same);
    let bias = g.get_variable("bias", [32], Init::Zeros);
    // By Winograd, out of registers, and of single channels.
    let h = x.conv2d(weights("five", [5, 5, 16, 32]), same).bias_add(bias).relu();
    let h = h.max_pool(PoolOptions::new([3, 3], [2, 2], Padding::Same));
    let h = h.conv2d(weights("three", [3, 3, 32, 12]), ConvOptions::new([2, 2], Padding::Same)).relu();
    let h = h.depthwise_conv2d_native(weights("single", [3, 3, 12, 1]), same).relu();
    let optimizer = Optimizer::gradient_descent(0.01);
    let train = optimizer.minimize(h.square().mean(), ComputeOptions::default(), ApplyOptions::default());
    let machine = Machine::simulated(1).with_host_threads(2);
    let session = Session::new(g, SessionOptions::on(machine)).expect("a session");
    session.initialize().expect("initial values");
    let images: Vec<f32> = (0..4 * 12 * 12 * 16).map(|i| (i % 13) as f32 / 13.0).collect();
    let images = Array::new(&[4, 12, 12, 16], &images).expect("as many as there are");
    let step = || session.run(&[(x, &images)], &[], &[train]).map(drop).expect("a step");
    (0..3).for_each(|_| step());
    let count = allocations(|| (0..20).for_each(|_| step()));
    assert_eq!(count, (0, 0));
}

/// Opens a file and reads all that it has.
fn read_all(path: &Path) -> turret::Result<usize> {
    let file = ArrayFile::open(path)?;
    file.arrays().map(|a| file.read(&a.name).map(|a| a.len())).sum()
}

#[test]
fn damaged_files_of_arrays_take_no_memory_that_they_do_not_have() {
    let _turn = TURN.lock();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("damaged");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the scratch folder can be made");
    let w = Array::new(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).expect("6 elements");
    let n = Array::scalar(7i64);
    for (name, spoilt) in [
        ("m.npz", &["m.npz"][..]),
        ("m.safetensors", &["m.safetensors"]),
        ("m.ckpt", &["m.ckpt.index", "m.ckpt.data-00000-of-00001"]),
    ] {
        let path = folder.join(name);
        write_arrays(&path, &[("layer/w", &w), ("n", &n)], &WriteOptions::default()).expect("it is written");
        for spoilt in spoilt.iter().map(|s| folder.join(s)) {
            let whole = std::fs::read(&spoilt).expect("it is there");
            for at in 0..whole.len() {
                // A large number where a small one was, in all widths.
                for bytes in [&[0xff][..], &[0x7f; 4], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]] {
                    let mut file = whole.clone();
                    file.iter_mut().skip(at).zip(bytes).for_each(|(f, b)| *f = *b);
                    std::fs::write(&spoilt, file).expect("it is written");
                    allocations(|| drop(read_all(&path)));
                    let largest = LARGEST.load(Ordering::SeqCst);
                    assert!(largest <= 1 << 20, "{} at {at}, {bytes:x?}: {largest} bytes at once", spoilt.display());
                }
            }
            std::fs::write(&spoilt, whole).expect("it is written");
        }
        assert_eq!(read_all(&path).expect("it is whole again"), 7);
    }
    let _ = std::fs::remove_dir_all(folder);
}
