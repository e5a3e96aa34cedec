//! Reductions over any axes on CUDA: `reduce_kernel.rs` on the host.
//!
//! Axes of one kind that lie together are one. Results are spread over blocks, and where these are few, a result's
//! elements too, by way of scratch memory and a second launch. As on the host, `float32` is totalled in `float64`.

use super::cuda_index::{Counter, Walk};
use crate::base::DType;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch};
use std::sync::Arc;

/// A reduction in CUDA C: `lane` and `x` are of the elements' type, `a`, `b` and `total` of the totals'.
#[derive(Clone, Copy)]
pub(super) struct CudaFold {
    /// What a lane starts with.
    pub start: Start,
    /// A lane and one element more.
    pub step: &'static str,
    /// Two totals as one.
    pub merge: &'static str,
    /// The result of a total of `count` elements.
    pub finish: &'static str,
}

/// What a reduction of nothing is.
#[derive(Clone, Copy)]
pub(super) enum Start {
    Zero,
    One,
    Lowest,
    Highest,
}

pub(super) const SUM: CudaFold =
    CudaFold { start: Start::Zero, step: "turret_plus(lane, x)", merge: "turret_plus(a, b)", finish: "total" };
pub(super) const MEAN: CudaFold = CudaFold { finish: "total / count", ..SUM };
pub(super) const HALF_SUM_OF_SQUARES: CudaFold =
    CudaFold { step: "turret_plus(lane, turret_times(x, x))", finish: "total / 2", ..SUM };
pub(super) const PRODUCT: CudaFold =
    CudaFold { start: Start::One, step: "turret_times(lane, x)", merge: "turret_times(a, b)", finish: "total" };
pub(super) const LARGEST: CudaFold =
    CudaFold { start: Start::Lowest, step: "turret_larger(lane, x)", merge: "turret_larger(a, b)", finish: "total" };
pub(super) const SMALLEST: CudaFold =
    CudaFold { start: Start::Highest, step: "turret_smaller(lane, x)", merge: "turret_smaller(a, b)", finish: "total" };
pub(super) const ALL: CudaFold =
    CudaFold { start: Start::One, step: "lane & (x != 0)", merge: "a & b", finish: "total" };
pub(super) const ANY: CudaFold =
    CudaFold { start: Start::Zero, step: "lane | (x != 0)", merge: "a | b", finish: "total" };

/// Threads of a block, as the text has it.
const THREADS: usize = 256;
/// Blocks that fill a large GPU.
const BLOCKS: usize = 1024;
/// Elements of a result that are worth a thread of their own.
const GRAIN: usize = 16;

type Axes = Vec<(usize, Vec<isize>)>;

/// The kernel that reduces input 0 over the axes marked in `reduced`.
pub(super) fn reduce(dtype: DType, dims: &[usize], reduced: &[bool], fold: CudaFold) -> CudaKernel {
    let mut axes: Vec<(usize, bool)> = Vec::new();
    for (&size, &reduced) in dims.iter().zip(reduced) {
        match axes.last_mut() {
            _ if size == 1 => {}
            Some(last) if last.1 == reduced => last.0 *= size,
            _ => axes.push((size, reduced)),
        }
    }
    let inner = axes.last().copied().unwrap_or((1, true));
    let (mut kept, mut folded, mut step) = (Axes::new(), Axes::new(), 1usize);
    for &(size, reduced) in axes.iter().rev() {
        if reduced { &mut folded } else { &mut kept }.insert(0, (size, vec![step as isize]));
        step *= size;
    }
    let product = |axes: &Axes| axes.iter().map(|a| a.0).product::<usize>();
    let (results, length) = (product(&kept), product(&folded));
    if results == 0 {
        return CudaKernel::default();
    }
    let counter = Counter::for_sizes(&[step, results, length]);
    let input = CudaArg::input(0);
    let total = total_type(dtype);
    let shape = Shape::new(results, length, (!inner.1).then_some(inner.0));
    let first = Round { fold, dtype, total, result: dtype, counter, kept, folded, results, length, shape };
    if shape.parts == 1 {
        return CudaKernel::new([first.launch(fold.finish, input, CudaArg::output(0), length)]);
    }
    let parts = shape.parts;
    let scratch = CudaArg::Buffer(CudaBuffer::Scratch(0));
    let second = Round {
        fold: CudaFold { step: "merge(lane, x)", ..fold },
        dtype: total,
        total,
        result: dtype,
        counter: Counter::for_sizes(&[results * parts]),
        kept: vec![(results, vec![parts as isize])],
        folded: vec![(parts, vec![1])],
        results,
        length: parts,
        shape: Shape { parts: 1, ..Shape::new(results, parts, None) },
    };
    let first = Round { result: total, ..first };
    let launches = [
        first.launch("total", input, scratch, length),
        second.launch(fold.finish, scratch, CudaArg::output(0), length),
    ];
    CudaKernel { scratch_bytes: results * parts * total.size(), ..CudaKernel::new(launches) }
}

fn total_type(dtype: DType) -> DType {
    if dtype == DType::F32 { DType::F64 } else { dtype }
}

/// How a launch's blocks are laid out.
#[derive(Clone, Copy)]
struct Shape {
    /// Whether neighbouring threads take neighbouring results.
    across: bool,
    /// Results of a block.
    width: usize,
    /// Blocks that share a result.
    parts: usize,
}

impl Shape {
    /// `columns` is how many results lie side by side, where they do.
    fn new(results: usize, length: usize, columns: Option<usize>) -> Shape {
        // No more lanes than elements, and no more than it takes to fill the GPU; but the elements of a row are read
        // by a warp, and those of columns by as many threads as lie side by side.
        let (least, most) = match columns {
            None => (32, THREADS),
            Some(columns) => (1, THREADS / columns.min(32).next_power_of_two()),
        };
        let mut lanes = most.min(length.max(1).next_power_of_two());
        while lanes > least && results.div_ceil(2 * THREADS / lanes) >= 4 * BLOCKS {
            lanes /= 2;
        }
        let width = THREADS / lanes;
        let blocks = results.div_ceil(width);
        let parts = (BLOCKS / blocks).min(length / (2 * GRAIN * lanes)).max(1);
        Shape { across: columns.is_some(), width, parts }
    }
}

/// One launch.
struct Round {
    fold: CudaFold,
    dtype: DType,
    total: DType,
    result: DType,
    counter: Counter,
    kept: Axes,
    folded: Axes,
    results: usize,
    length: usize,
    shape: Shape,
}

impl Round {
    fn launch(self, finish: &str, from: CudaArg, to: CudaArg, count: usize) -> CudaLaunch {
        let Shape { across, width, parts } = self.shape;
        let kept = Walk::new("kept", self.counter, 1, self.kept);
        let reduced = Walk::new("reduced", self.counter, 1, self.folded);
        let fold = format!(
            "static __device__ __forceinline__ R merge(R a, R b) {{ return {}; }}\n\
             static __device__ __forceinline__ T step(T lane, T x) {{ return {}; }}\n",
            self.fold.merge, self.fold.step
        );
        let text = kept.put(&reduced.put(include_str!("cuda/reduce.cu"))).replace("$finish", finish);
        let parameter = parameter_type(self.total);
        let code = self.counter.code(&(fold + &text));
        let code = code.with_type("T", self.dtype).with_type("R", self.total).with_type("O", self.result);
        let code = code.with_type("P", parameter);
        let blocks = self.results.div_ceil(width) * parts;
        let sizes = [self.results, self.length].map(|s| self.counter.size(s));
        let layout = [parts, across.into(), width].map(|n| CudaArg::I32(n as i32));
        let numbers = [start(self.fold.start, self.dtype, parameter), number(count as f64, parameter)];
        let args =
            [from, to].into_iter().chain(sizes).chain(layout).chain(numbers).chain(kept.args()).chain(reduced.args());
        CudaLaunch::Code { code, blocks: blocks as u32, threads: THREADS as u32, shared_bytes: 0, args: args.collect() }
    }
}

/// The type under which numbers are handed over.
fn parameter_type(total: DType) -> DType {
    if total == DType::Bool { DType::I32 } else { total }
}

fn number(value: f64, parameter: DType) -> CudaArg {
    match parameter {
        DType::F32 => CudaArg::F32(value as f32),
        DType::F64 => CudaArg::F64(value),
        DType::I64 => CudaArg::I64(value as i64),
        // Beyond its type it is the largest, as on the host.
        _ => CudaArg::I32(value as i32),
    }
}

fn start(start: Start, dtype: DType, parameter: DType) -> CudaArg {
    let (lowest, highest) = match dtype {
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::I64 => return number_i64(start),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    };
    let value = match start {
        Start::Zero => 0.0,
        Start::One => 1.0,
        Start::Lowest => lowest,
        Start::Highest => highest,
    };
    number(value, parameter)
}

fn number_i64(start: Start) -> CudaArg {
    CudaArg::I64(match start {
        Start::Zero => 0,
        Start::One => 1,
        Start::Lowest => i64::MIN,
        Start::Highest => i64::MAX,
    })
}

/// The kernel of a node that these sizes make fail; its output is zeros.
pub(super) fn refusal(bytes: usize, message: &'static str) -> CudaKernel {
    let text =
        "extern \"C\" __global__ void ENTRY(volatile u64* failure, u32 node) { turret_fail(failure, node, 0, 0); }";
    let zero = CudaLaunch::Zero { to: CudaBuffer::Output(0, 0), bytes };
    let fail = CudaLaunch::elements(CudaCode::new(text), 1, [CudaArg::Failure]);
    CudaKernel { failure: Some(Arc::new(move |_, _| message.into())), ..CudaKernel::new([zero, fail]) }
}
