//! Reductions over any axes, in an order that depends on the shape alone: lanes within a block, blocks one after the
//! other, parts of a long reduction merged in order.
//!
//! Absent: which reductions there are. Of `float32`, what is summed over blocks is kept in `float64`, so that sums of
//! millions of elements lose nothing that their own type could hold.

use super::elementwise::{Dispatch, GRAIN, Shared};
use crate::base::Element;
use crate::device::{CpuKernel, Launch};
use pulp::NullaryFnOnce;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Mutex;

/// A reduction: how elements go into a lane, lanes into a total, and a total into the result.
pub(super) trait Fold<T: Element>: Copy + Send + Sync + 'static {
    /// What totals are kept in.
    type Total: Copy + Send + Sync + 'static;
    /// The lane of no elements.
    fn start(self) -> T;
    /// A lane and one element more.
    fn step(self, lane: T, x: T) -> T;
    /// Two lanes as one.
    fn combine(self, a: T, b: T) -> T;
    /// A lane as a total.
    fn total(self, lane: T) -> Self::Total;
    /// Two totals as one.
    fn merge(self, a: Self::Total, b: Self::Total) -> Self::Total;
    /// The result of a total of `count` elements.
    fn finish(self, total: Self::Total, count: usize) -> T;
}

/// Elements that side by side make a block's lanes.
const LANES: usize = 32;
/// Elements that go into lanes before these go into the total.
const BLOCK: usize = 64 * LANES;
/// Columns that are reduced together.
const STRIP: usize = 256;
/// Rows that go into the columns' lanes before these go into their totals.
const ROWS: usize = 64;
/// The most parts that a long reduction is cut into.
const PARTS: usize = 16;

type Axes = SmallVec<[(usize, usize); 4]>;

/// A reduction's loops: axes of one kind that lie together are one, axes of size 1 are gone.
struct Plan {
    /// Sizes and steps of the kept axes, without the innermost axis.
    kept: Axes,
    /// Sizes and steps of the reduced axes, without the innermost axis.
    reduced: Axes,
    /// The size of the innermost axis.
    inner: usize,
    /// Whether the innermost axis is reduced.
    inner_reduced: bool,
    /// Elements of each result.
    count: usize,
}

impl Plan {
    fn new(dims: &[usize], is_reduced: &[bool]) -> Plan {
        let mut axes: SmallVec<[(usize, bool); 4]> = SmallVec::new();
        for (&size, &reduced) in dims.iter().zip(is_reduced) {
            match axes.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.1 == reduced => last.0 *= size,
                _ => axes.push((size, reduced)),
            }
        }
        let count = axes.iter().filter(|a| a.1).map(|a| a.0).product();
        let (inner, inner_reduced) = axes.pop().unwrap_or((1, true));
        let (mut kept, mut reduced, mut step) = (Axes::new(), Axes::new(), inner);
        for &(size, is_reduced) in axes.iter().rev() {
            if is_reduced {
                reduced.insert(0, (size, step))
            } else {
                kept.insert(0, (size, step))
            }
            step *= size;
        }
        Plan { kept, reduced, inner, inner_reduced, count }
    }

    fn kept_rows(&self) -> usize {
        self.kept.iter().map(|a| a.0).product()
    }

    fn reduced_rows(&self) -> usize {
        self.reduced.iter().map(|a| a.0).product()
    }
}

/// Where row number `row` of these axes starts, in elements.
#[inline(always)]
fn offset(axes: &Axes, mut row: usize) -> usize {
    if let [(_, step)] = axes[..] {
        return row * step;
    }
    let mut offset = 0;
    for &(size, step) in axes.iter().rev() {
        offset += row % size * step;
        row /= size;
    }
    offset
}

/// The kernel that reduces input 0 over the axes marked in `reduced`.
pub(super) fn reduce<T: Element, F: Fold<T>, D: Dispatch>(dims: &[usize], reduced: &[bool], f: F) -> CpuKernel {
    let plan = Plan::new(dims, reduced);
    // What one result's reduction is cut into, and how many results one part works on.
    let (tasks, length) = if plan.inner_reduced {
        (plan.kept_rows(), if plan.reduced.is_empty() { plan.inner } else { 1 })
    } else {
        (plan.kept_rows() * plan.inner.div_ceil(STRIP), plan.reduced_rows())
    };
    let work = plan.count * if plan.inner_reduced { 1 } else { plan.inner.min(STRIP) };
    let parts = if tasks < 8 { (work / GRAIN).min(length).clamp(1, PARTS) } else { 1 };
    let results = plan.kept_rows() * if plan.inner_reduced { 1 } else { plan.inner };
    // Kernels without totals are launched by several threads at once, for tiles of fused nodes.
    let totals = (parts > 1).then(|| Mutex::new(vec![f.total(f.start()); results * parts]));
    Box::new(move |l: &Launch<'_>| {
        // A panic while the lock was held left nothing that the next launch reads.
        let mut totals = totals.as_ref().map(|t| t.lock().unwrap_or_else(|e| e.into_inner()));
        let input = l.input::<T>(0);
        let output = l.output::<T>(0);
        let job = Job {
            f,
            plan: &plan,
            x: Shared::new(input.as_ptr().cast_mut()),
            o: Shared::new(output.as_mut_ptr()),
            totals: Shared::new(totals.as_mut().map_or(std::ptr::null_mut(), |t| t.as_mut_ptr())),
            parts,
        };
        if parts == 1 {
            let grain = (GRAIN / work.max(1)).max(1);
            l.team().chunks(tasks, grain, |tasks| D::run(Tasks { job, tasks, range: 0..length, part: 0 }));
            return Ok(());
        }
        l.team().run(tasks * parts, |i| {
            let (task, part) = (i / parts, i % parts);
            let range = length * part / parts..length * (part + 1) / parts;
            D::run(Tasks { job, tasks: task..task + 1, range, part });
        });
        for (o, totals) in output_of(&job, results).iter_mut().zip(totals.iter().flat_map(|t| t.chunks_exact(parts))) {
            let total = totals[1..].iter().fold(totals[0], |a, &b| f.merge(a, b));
            *o = f.finish(total, plan.count);
        }
        Ok(())
    })
}

fn output_of<'a, T: Element, F: Fold<T>>(job: &Job<'a, T, F>, results: usize) -> &'a mut [T] {
    // SAFETY: the output has one element for each result, and the parts that wrote it are done.
    unsafe { std::slice::from_raw_parts_mut(job.o.get(), results) }
}

struct Job<'a, T: Element, F: Fold<T>> {
    f: F,
    plan: &'a Plan,
    x: Shared<T>,
    o: Shared<T>,
    totals: Shared<F::Total>,
    parts: usize,
}

impl<T: Element, F: Fold<T>> Clone for Job<'_, T, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element, F: Fold<T>> Copy for Job<'_, T, F> {}

impl<T: Element, F: Fold<T>> Job<'_, T, F> {
    /// # Safety
    /// There is such a result, and no other part writes this total.
    #[inline(always)]
    unsafe fn put(&self, result: usize, part: usize, total: F::Total) {
        // SAFETY: by the contract.
        unsafe {
            if self.parts == 1 {
                self.o.get().add(result).write(self.f.finish(total, self.plan.count));
            } else {
                self.totals.get().add(result * self.parts + part).write(total);
            }
        }
    }
}

/// Some tasks of a job: whole results, or one part of one.
struct Tasks<'a, T: Element, F: Fold<T>> {
    job: Job<'a, T, F>,
    tasks: Range<usize>,
    range: Range<usize>,
    part: usize,
}

impl<T: Element, F: Fold<T>> NullaryFnOnce for Tasks<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Tasks { job, tasks, range, part } = self;
        let (f, plan) = (job.f, job.plan);
        for task in tasks {
            if plan.inner_reduced {
                let start = offset(&plan.kept, task);
                let mut total = f.total(f.start());
                let piece = if plan.reduced.is_empty() { range.clone() } else { 0..plan.inner };
                for row in 0..plan.reduced_rows() {
                    // SAFETY: the plan's offsets stay within the input.
                    let x = unsafe { job.x.get().add(start + offset(&plan.reduced, row) + piece.start).cast_const() };
                    // SAFETY: the row goes on for this many elements.
                    total = f.merge(total, unsafe { line(f, x, piece.len()) });
                }
                // SAFETY: results are one for each task here.
                unsafe { job.put(task, part, total) };
            } else {
                let strips = plan.inner.div_ceil(STRIP);
                let (row, from) = (task / strips, task % strips * STRIP);
                let width = STRIP.min(plan.inner - from);
                // SAFETY: the plan's offsets stay within the input.
                let x = unsafe { job.x.get().add(offset(&plan.kept, row) + from).cast_const() };
                // SAFETY: from here each reduced row has `width` elements, which are results of this task alone.
                unsafe { strip(&job, x, row * plan.inner + from, width, range.clone(), part) };
            }
        }
    }
}

/// The total of contiguous elements.
///
/// # Safety
/// `x` is valid for `n` elements.
#[inline(always)]
unsafe fn line<T: Element, F: Fold<T>>(f: F, x: *const T, n: usize) -> F::Total {
    let mut total = f.total(f.start());
    // SAFETY: by the contract.
    let x = unsafe { std::slice::from_raw_parts(x, n) };
    for block in x.chunks(BLOCK) {
        let whole = block.chunks_exact(LANES);
        let rest = whole.remainder();
        let mut lanes = [f.start(); LANES];
        for xs in whole {
            for (lane, &x) in lanes.iter_mut().zip(xs) {
                *lane = f.step(*lane, x);
            }
        }
        let mut width = LANES / 2;
        while width >= 4 {
            for i in 0..width {
                lanes[i] = f.combine(lanes[i], lanes[i + width]);
            }
            width /= 2;
        }
        for lane in &lanes[..4] {
            total = f.merge(total, f.total(*lane));
        }
        total = f.merge(total, f.total(rest.iter().fold(f.start(), |lane, &x| f.step(lane, x))));
    }
    total
}

/// Reduces rows `range` of `width` columns side by side into the results from `result` on.
///
/// # Safety
/// The rows lie within the input, the results are there, and no other part writes them.
#[inline(always)]
unsafe fn strip<T: Element, F: Fold<T>>(
    job: &Job<'_, T, F>,
    x: *const T,
    result: usize,
    width: usize,
    range: Range<usize>,
    part: usize,
) {
    let f = job.f;
    let mut totals = [f.total(f.start()); STRIP];
    let mut row = range.start;
    while row < range.end {
        let block = ROWS.min(range.end - row);
        let mut lanes = [f.start(); STRIP];
        let lanes = &mut lanes[..width];
        for row in row..row + block {
            // SAFETY: by the contract.
            let xs = unsafe { std::slice::from_raw_parts(x.add(offset(&job.plan.reduced, row)), width) };
            for (lane, &x) in lanes.iter_mut().zip(xs) {
                *lane = f.step(*lane, x);
            }
        }
        for (total, lane) in totals.iter_mut().zip(lanes) {
            *total = f.merge(*total, f.total(*lane));
        }
        row += block;
    }
    for (i, total) in totals[..width].iter().enumerate() {
        // SAFETY: by the contract.
        unsafe { job.put(result + i, part, *total) };
    }
}
