//! Buffers that two nodes share: what is written, what is only read, and who waits for whom.

use super::{assert_says, sim};
use std::time::Duration;
use turret::base::{Array, DType};
use turret::device::{CpuKernel, Launch};
use turret::graph::{Attrs, Fact, Graph, InferContext, Init, KernelContext, Op, OpRef, Tensor, Traits, Variable};
use turret::ops::find;
use turret::run::Session;

fn floats(values: &[f32]) -> Array {
    Array::new(&[values.len()], values).unwrap()
}

fn change<'g>(op: &'static str, target: Tensor<'g>, value: f32) -> Tensor<'g> {
    let g = target.graph();
    g.node_of(find(op).unwrap()).input(target).input(g.constant(vec![value; 4])).tensor()
}

fn variable(g: &Graph, value: f64) -> Variable<'_> {
    g.get_variable("w", [4], Init::Constant(value))
}

/// A user's op of one input and an output like it, with these traits and kernel.
struct Own {
    traits: Traits,
    writes: &'static [usize],
    kernel: fn(&Launch<'_>) -> Result<(), String>,
}

impl Op for Own {
    fn name(&self) -> &'static str {
        "Own"
    }

    fn traits(&self) -> Traits {
        self.traits
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        Ok(vec![c.inputs[0].clone()])
    }

    fn written_inputs(&self, _attrs: &Attrs, _num_inputs: usize) -> smallvec::SmallVec<[usize; 4]> {
        self.writes.into()
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(Box::new(self.kernel))
    }
}

const NONE: Traits = Traits {
    stateful: false,
    variable: false,
    forwards: None,
    in_place: &[],
    fallible: false,
    checks_before_writing: false,
    product: false,
    host_only: false,
    overwrites: false,
    no_gradient: false,
};

fn copy(l: &Launch<'_>) -> Result<(), String> {
    l.output::<f32>(0).copy_from_slice(l.input::<f32>(0));
    Ok(())
}

fn late(l: &Launch<'_>) -> Result<(), String> {
    std::thread::sleep(Duration::from_millis(40));
    copy(l)
}

static SLOW: Own = Own { traits: NONE, writes: &[], kernel: late };

fn slow<'g>(device: &str, x: Tensor<'g>) -> Tensor<'g> {
    x.graph().device(device, || x.graph().node_of(&SLOW).input(x).tensor())
}

/// The values of these tensors with `x` fed as 1, 2, 3, 4, on two GPUs.
fn run<'g>(
    g: &'g Graph,
    x: Tensor<'g>,
    fetches: &[Tensor<'g>],
    targets: &[turret::graph::Operation<'g>],
) -> Vec<Array> {
    let s = Session::new(g, sim(2)).unwrap();
    s.initialize().unwrap();
    s.run(&[(x, &floats(&[1.0, 2.0, 3.0, 4.0]))], fetches, targets).unwrap()
}

#[test]
fn each_value_from_a_slow_device_is_waited_for() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4], "x");
    // Each device learns of the early value long before the late one is there, directly and through the other.
    let early = g.device("/gpu:0", || x * 2f32);
    let here = g.device("/gpu:1", || early + 1f32);
    let there = slow("/gpu:0", early);
    let out = run(&g, x, &[early, here, there + 0f32, slow("/gpu:1", there) - early], &[]);
    let want: [&[f32]; 4] = [&[2.0, 4.0, 6.0, 8.0], &[3.0, 5.0, 7.0, 9.0], &[2.0, 4.0, 6.0, 8.0], &[0.0; 4]];
    assert_eq!(out, want.map(floats));
}

#[test]
fn a_change_waits_for_a_slow_device_that_reads_the_variable() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4], "x");
    let w = g.device("/cpu:0", || variable(&g, 1.0));
    let read = slow("/gpu:0", x) + g.device("/gpu:0", || w.value() * 3f32);
    let changed = g.device("/cpu:0", || change("Assign", w.buffer(), 9.0));
    let out = run(&g, x, &[read], &[changed.op()]);
    assert_eq!(out[0], floats(&[4.0, 5.0, 6.0, 7.0]));
}

#[test]
fn memory_that_a_slow_device_still_reads_is_not_used_again() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4], "x");
    let mut made = g.device("/gpu:0", || x * 2f32);
    let busy = slow("/gpu:1", x);
    let read = g.device("/gpu:1", || made - busy);
    g.device("/gpu:0", || (0..4).for_each(|_| made = (made + 1f32).square()));
    let out = run(&g, x, &[read, made], &[]);
    assert_eq!(out[0], floats(&[1.0, 2.0, 3.0, 4.0]));
}

static LATE_FAILURE: Own =
    Own { traits: Traits { fallible: true, ..NONE }, writes: &[], kernel: |l| late(l).and(Err("too late".into())) };

#[test]
fn a_change_waits_for_a_slow_device_that_may_fail() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4], "x");
    let w = g.device("/gpu:1", || variable(&g, 1.0));
    let fails = g.device("/gpu:0", || g.node_of(&LATE_FAILURE).input(x).add());
    let changed = g.device("/gpu:1", || change("Assign", w.buffer(), 9.0));
    let s = Session::new(&g, sim(2)).unwrap();
    s.initialize().unwrap();
    let e = s.run(&[(x, &floats(&[1.0; 4]))], &[], &[changed.op(), fails]).unwrap_err();
    assert_says(&e.to_string(), &["too late"]);
    assert_eq!(s.value(w).unwrap(), floats(&[1.0; 4]));
    s.run(&[], &[w.value()], &[]).unwrap();
}

#[test]
fn ops_that_say_wrong_things_of_their_buffers_are_refused() {
    static BEYOND: Own = Own { traits: Traits { forwards: Some(3), ..NONE }, writes: &[], kernel: copy };
    static WRITES_BEYOND: Own = Own { traits: NONE, writes: &[7], kernel: copy };
    static TWICE: Own = Own { traits: NONE, writes: &[0, 1], kernel: copy };
    let cases: [(OpRef, &str); 3] = [(&BEYOND, "fault of the op"), (&WRITES_BEYOND, "input 7"), (&TWICE, "twice")];
    for (op, says) in cases {
        let g = Graph::new();
        let w = variable(&g, 1.0);
        let node = g.node_of(op).input(w.buffer()).input(w.buffer()).add();
        let run = |s: Session<'_>| s.initialize().and_then(|()| s.run(&[], &[], &[node]).map(|_| ()));
        let e = Session::new(&g, sim(0)).and_then(run).unwrap_err();
        assert_says(&e.to_string(), &["'Own' (Own)", says]);
    }
}

/// Buffers that are only lent to read cannot be written with safe code, whatever a kernel does.
#[test]
fn kernels_cannot_write_what_they_only_read() {
    static CALLERS: Own = Own {
        traits: NONE,
        writes: &[],
        kernel: |l| {
            l.variable::<f32>(0).fill(0.0);
            Ok(())
        },
    };
    static PASSED_ON: Own = Own {
        traits: Traits { stateful: true, forwards: Some(0), ..NONE },
        writes: &[],
        kernel: |l| {
            l.output::<f32>(0).fill(0.0);
            Ok(())
        },
    };
    static SHARED: Own = Own { traits: Traits { in_place: &[0], ..NONE }, writes: &[], kernel: copy };
    for op in [&CALLERS, &PASSED_ON, &SHARED] {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [4], "x");
        let through = if op.traits.in_place.is_empty() { x } else { x + 1f32 };
        let y = g.node_of(op).input(through).tensor();
        let fed = floats(&[1.0; 4]);
        let e = Session::new(&g, sim(0)).unwrap().run(&[(x, &fed)], &[y], &[]).unwrap_err();
        assert_says(&e.to_string(), &["'Own' (Own)", "the kernel panicked"]);
        assert_eq!(fed, floats(&[1.0; 4]));
    }
}

#[test]
fn what_is_fed_is_never_written() {
    let g = Graph::new();
    let w = variable(&g, 1.0);
    let changed = change("Assign", w.buffer(), 5.0);
    let s = Session::new(&g, sim(1)).unwrap();
    s.initialize().unwrap();
    let fed = floats(&[1.0; 4]);
    let e = s.run(&[(w.buffer(), &fed)], &[], &[changed.op()]).unwrap_err().to_string();
    assert_says(&e, &["'Assign' (Assign) writes 'w:0'", "no variable in this run", "fed"]);
    assert_eq!(fed, floats(&[1.0; 4]), "the caller's array");
    assert_eq!(s.run(&[(w.buffer(), &fed)], &[w.value()], &[]).unwrap()[0], fed);
}

#[test]
fn runs_of_a_variables_bytes_are_kept_from_before_a_change() {
    let g = Graph::new();
    let w = g.get_variable("w", [4], Init::Data(floats(&[1.0, 2.0, 3.0, 4.0]).into()));
    let slice = g.node_of(find("Slice").unwrap()).input(w.buffer()).input(g.constant([1i32])).input(g.constant([2i32]));
    let slice = slice.tensor();
    let parts = g.node_of(find("Split").unwrap()).input(g.constant(0i32)).input(w.buffer()).attr("num_split", 2i64);
    let parts = parts.add();
    let assign = change("Assign", w.buffer(), 9.0);
    let late = g.control_dependencies([assign.op()], || [slice + 0f32, parts.output(0) + 0f32, parts.output(1) + 0f32]);
    let s = Session::new(&g, sim(1)).unwrap();
    s.initialize().unwrap();
    let out = s.run(&[], &late, &[]).unwrap();
    assert_eq!(out, [floats(&[2.0, 3.0]), floats(&[1.0, 2.0]), floats(&[3.0, 4.0])]);
    assert_eq!(s.value(w).unwrap(), floats(&[9.0; 4]));
}

#[test]
fn a_sum_is_not_written_over_a_buffer_whose_part_it_still_reads() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4], "x");
    let y = (x * 2f32).reshape([2, 2]);
    let out = run(&g, x, &[(y + y.slice(&[0, 0], &[1, 2])).reshape([4])], &[]);
    assert_eq!(out[0], floats(&[4.0, 8.0, 8.0, 12.0]));
}

#[test]
fn a_sum_is_not_written_over_a_part_that_is_broadcast() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4], "x");
    let table = g.constant(Array::new(&[2, 2], &[10f32, 20.0, 30.0, 40.0]).unwrap());
    let out = run(&g, x, &[((x * 2f32).slice(&[0], &[2]) + table).reshape([4])], &[]);
    assert_eq!(out[0], floats(&[12.0, 24.0, 32.0, 44.0]));
}
