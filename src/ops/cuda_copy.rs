//! Copies between strided views on CUDA: what `copy.rs` is on the host.
//!
//! A box is copied element by element in the target's order, or in tiles where another axis is dense in the source;
//! runs that make up a whole are copied in one launch for about a hundred of them. Absent: overlapping views.

use super::copy::{Axis, Copy, Move};
use super::cuda_index::{Counter, Walk, choose};
use crate::base::DType;
use crate::device::cuda::{BLOCK, CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch};

/// Elements that a thread copies at a time, so that enough loads are under way.
const AT_ONCE: usize = 4;
/// The side of a tile.
const TILE: usize = 32;
/// An axis shorter than this is not worth tiles.
const SHORT: usize = 12;
/// Bytes from which on a copy of what lies together is the device's own.
const LARGE: usize = 64 * 1024;
/// Elements of a run that one block copies.
const PER_BLOCK: usize = 8 * BLOCK as usize;
/// Runs of one launch, as their parameters must fit in 4 KiB.
const RUNS: usize = 100;

/// The type under which elements of a size are moved.
pub(super) fn moved(dtype: DType) -> DType {
    match dtype.size() {
        1 => DType::Bool,
        2 => DType::F16,
        4 => DType::I32,
        _ => DType::I64,
    }
}

/// The kernel that does these copies one after another.
pub(super) fn moves(dtype: DType, moves: &[Move]) -> CudaKernel {
    CudaKernel::new(moves.iter().filter_map(|m| launch(dtype, m)))
}

/// A launch of a copy from input 0 to output 0, between other buffers.
pub(super) fn redirected(mut launch: CudaLaunch, source: CudaBuffer, target: CudaBuffer) -> CudaLaunch {
    let change = |buffer: &mut CudaBuffer| match buffer {
        CudaBuffer::Input(..) => *buffer = source,
        CudaBuffer::Output(..) => *buffer = target,
        _ => {}
    };
    match &mut launch {
        CudaLaunch::Code { args, .. } => args.iter_mut().for_each(|arg| {
            if let CudaArg::Buffer(buffer) = arg {
                change(buffer);
            }
        }),
        CudaLaunch::Copy { from, to, .. } => {
            change(from);
            change(to);
        }
        _ => {}
    }
    launch
}

/// The kernel that zeroes output 0, which has this many bytes, and then does these copies.
pub(super) fn zero_and_moves(dtype: DType, bytes: usize, moves: &[Move]) -> CudaKernel {
    let zero = CudaLaunch::Zero { to: CudaBuffer::Output(0, 0), bytes };
    let launches = moves.iter().filter_map(|m| launch(dtype, m));
    CudaKernel::new((bytes > 0).then_some(zero).into_iter().chain(launches))
}

fn launch(dtype: DType, m: &Move) -> Option<CudaLaunch> {
    let copy = &m.copy;
    let len: usize = copy.axes.iter().map(|a| a.size).product();
    if len == 0 {
        return None;
    }
    let bytes = |elements: isize| elements as usize * dtype.size();
    let from = CudaArg::Buffer(CudaBuffer::Input(m.input, bytes(copy.from)));
    let to = CudaArg::Buffer(CudaBuffer::Output(m.output, bytes(copy.to)));
    // The device's own copy is best at large ones; a small one costs it as much as a launch.
    if len * dtype.size() >= LARGE && matches!(copy.axes[..], [Axis { from: 1, to: 1, .. }]) {
        let (from, to) = (bytes(copy.from), bytes(copy.to));
        let (from, to) = (CudaBuffer::Input(m.input, from), CudaBuffer::Output(m.output, to));
        return Some(CudaLaunch::Copy { from, to, bytes: len * dtype.size() });
    }
    let counter = Counter::for_sizes(&[len, reach(copy, |a| a.from), reach(copy, |a| a.to)]);
    let steps = |axes: &[Axis]| axes.iter().map(|a| (a.size, vec![a.from, a.to])).collect::<Vec<_>>();
    if let (true, [outer @ .., rows, last]) = (copy.tiled, &copy.axes[..])
        && rows.size.min(last.size) >= SHORT
    {
        let walk = Walk::new("walk", counter, 2, steps(outer));
        let code = counter.code(&walk.put(include_str!("cuda/transpose.cu"))).with_type("T", moved(dtype));
        let across = [rows.size.div_ceil(TILE), last.size.div_ceil(TILE)];
        let blocks = outer.iter().map(|a| a.size).product::<usize>() * across[0] * across[1];
        let sizes = [rows.size, last.size, across[0], across[1]].map(|s| counter.size(s));
        let tile = [last.from, rows.to, last.to].map(|s| counter.arg(s));
        let args = [from, to].into_iter().chain(sizes).chain(tile).chain(walk.args()).collect();
        return Some(CudaLaunch::Code { code, blocks: blocks as u32, threads: BLOCK, shared_bytes: 0, args });
    }
    let walk = Walk::new("walk", counter, 2, steps(&copy.axes));
    let text = include_str!("cuda/copy.cu").replace("$value", "values[i]");
    let code = counter.code(&walk.put(&text)).with_type("T", moved(dtype));
    let args = [from, to, counter.size(len)].into_iter().chain(walk.args());
    Some(CudaLaunch::elements(code, len.div_ceil(AT_ONCE), args))
}

/// The launch that adds the elements of a copy to what is there instead; no two of them go to one place.
pub(super) fn adding(dtype: DType, m: &Move) -> Option<CudaLaunch> {
    let copy = &m.copy;
    let len: usize = copy.axes.iter().map(|a| a.size).product();
    if len == 0 {
        return None;
    }
    let bytes = |elements: isize| elements as usize * dtype.size();
    let from = CudaArg::Buffer(CudaBuffer::Input(m.input, bytes(copy.from)));
    let to = CudaArg::Buffer(CudaBuffer::Output(m.output, bytes(copy.to)));
    let counter = Counter::for_sizes(&[len, reach(copy, |a| a.from), reach(copy, |a| a.to)]);
    let axes = copy.axes.iter().map(|a| (a.size, vec![a.from, a.to])).collect();
    let walk = Walk::new("walk", counter, 2, axes);
    let text = include_str!("cuda/copy.cu").replace("$value", "turret_plus(y[places[i]], values[i])");
    let code = counter.code(&walk.put(&text)).with_type("T", dtype);
    let args = [from, to, counter.size(len)].into_iter().chain(walk.args());
    Some(CudaLaunch::elements(code, len.div_ceil(AT_ONCE), args))
}

/// How far the steps of a copy lead from its start.
fn reach(copy: &Copy, step: fn(&Axis) -> isize) -> usize {
    copy.axes.iter().map(|a| (a.size - 1).saturating_mul(step(a).unsigned_abs())).fold(0, usize::saturating_add)
}

/// One buffer that holds a run of each row of the whole.
pub(super) struct Run {
    /// The buffer.
    pub part: CudaBuffer,
    /// Elements of a run.
    pub len: usize,
}

/// Which way runs are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Runs {
    /// The parts are put together in output 0.
    Join,
    /// Input `.0` is cut into the parts.
    Cut(usize),
}

/// The kernel of parts that lie side by side in each of `rows` rows of a whole.
pub(super) fn runs(dtype: DType, how: Runs, rows: usize, parts: &[Run]) -> CudaKernel {
    let width: usize = parts.iter().map(|r| r.len).sum();
    let counter = Counter::for_sizes(&[rows * width]);
    let starts = parts.iter().scan(0, |next, r| Some(std::mem::replace(next, *next + r.len)));
    let parts: Vec<(&Run, usize)> = parts.iter().zip(starts).filter(|(r, _)| rows * r.len > 0).collect();
    CudaKernel::new(parts.chunks(RUNS).map(|parts| {
        let whole = match how {
            Runs::Join => CudaBuffer::Output(0, 0),
            Runs::Cut(input) => CudaBuffer::Input(input, 0),
        };
        let mut args = vec![CudaArg::Buffer(whole), counter.size(rows), counter.size(width)];
        let mut blocks = 0;
        for &(run, start) in parts {
            blocks += (rows * run.len).div_ceil(PER_BLOCK) as u32;
            args.push(CudaArg::Buffer(run.part));
            args.extend(counter.divisor(run.len));
            args.extend([counter.size(start), CudaArg::U32(blocks)]);
        }
        let code = runs_code(counter, how, parts.len()).with_type("T", moved(dtype));
        CudaLaunch::Code { code, blocks, threads: BLOCK, shared_bytes: 0, args }
    }))
}

fn runs_code(counter: Counter, how: Runs, count: usize) -> CudaCode {
    let (part, whole, source, target) = match how {
        Runs::Join => ("const T*", "T*", "part[at]", "whole[to]"),
        Runs::Cut(_) => ("T*", "const T*", "whole[to]", "part[at]"),
    };
    let parameters: String = (0..count)
        .map(|i| format!(",\n    {part} part{i}, I len{i}, u32 multiplier{i}, u32 shift{i}, I start{i}, u32 end{i}"))
        .collect();
    let choice = choose(count, &|i| {
        let before = if i == 0 { "0".into() } else { format!("end{}", i - 1) };
        let names = ["part", "len", "multiplier", "shift", "start"];
        names.map(|name| format!("{name} = {name}{i}; ")).concat() + &format!("before = {before};")
    });
    let text = include_str!("cuda/runs.cu").replace("$parameters", &parameters).replace("$choice", &choice);
    let text = text.replace("$part", part).replace("$whole", whole);
    counter.code(&text.replace("$source", source).replace("$target", target))
}
