//! Element-wise loops: one or two inputs, NumPy broadcasting, run-time choice of the instruction set, fixed chunks.
//!
//! Absent: which ops there are, and what they compute. Invariant: every element is computed alone, so chunks never
//! change a result; an output may be the buffer of an input of its own size.

use crate::base::{Dims, Element};
pub(super) use crate::device::Shared;
use crate::device::{CpuKernel, Launch, Team};
use pulp::NullaryFnOnce;
use smallvec::SmallVec;
use std::ops::Range;

/// Elements that one thread takes at a time: some ten microseconds of work.
pub(super) const GRAIN: usize = 1 << 15;

/// A function of one element.
pub(super) trait Map1<T, R>: Copy + Send + Sync + 'static {
    /// The value.
    fn at(self, x: T) -> R;
}

/// A function of two elements.
pub(super) trait Map2<T, R>: Copy + Send + Sync + 'static {
    /// The value.
    fn at(self, x: T, y: T) -> R;
}

/// Whether loops are built for each instruction set and chosen at run time.
pub(super) trait Dispatch: 'static {
    /// Runs a loop.
    fn run(body: impl NullaryFnOnce<Output = ()>);
}

/// Loops for AVX-512, AVX2 and the build's own instruction set.
pub(super) struct Wide;

/// Loops for the build's own instruction set alone: for types where speed does not pay for the code.
pub(super) struct Plain;

impl Dispatch for Wide {
    fn run(body: impl NullaryFnOnce<Output = ()>) {
        // At the dev profile's optimisation nothing is vectorised, so that three copies of each loop would only take
        // time to compile.
        #[cfg(debug_assertions)]
        body.call();
        #[cfg(not(debug_assertions))]
        pulp::Arch::new().dispatch(body)
    }
}

impl Dispatch for Plain {
    fn run(body: impl NullaryFnOnce<Output = ()>) {
        body.call()
    }
}

/// Sets every element.
pub(super) fn fill<T: Element>(team: &Team, output: &mut [T], value: T) {
    let (start, len) = (Shared::new(output.as_mut_ptr()), output.len());
    team.chunks(len, GRAIN, |r| {
        // SAFETY: chunks are disjoint parts of `output`.
        unsafe { std::slice::from_raw_parts_mut(start.get().add(r.start), r.len()) }.fill(value);
    });
}

/// The kernel that maps input `input`.
pub(super) fn unary<T: Element, R: Element, F: Map1<T, R>, D: Dispatch>(input: usize, f: F) -> CpuKernel {
    Box::new(move |l| {
        let ((x, len), (o, _)) = (l.input_ptr::<T>(input), l.output_ptr::<R>(0));
        let (x, o) = (Shared::new(x.cast_mut()), Shared::new(o));
        l.team().chunks(len, GRAIN, |r| {
            // SAFETY: the chunk lies in both buffers, which have `len` elements.
            let (x, o) = unsafe { (x.get().add(r.start).cast_const(), o.get().add(r.start)) };
            D::run(Line1 { f, o, x, n: r.len() });
        });
        Ok(())
    })
}

struct Line1<T, R, F> {
    f: F,
    o: *mut R,
    x: *const T,
    n: usize,
}

impl<T: Copy, R, F: Map1<T, R>> NullaryFnOnce for Line1<T, R, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Line1 { f, o, x, n } = self;
        if o.cast_const().cast() == x {
            for i in 0..n {
                // SAFETY: both have `n` elements; this is one buffer, read before it is written.
                unsafe { o.add(i).write(f.at(o.add(i).cast::<T>().read())) }
            }
        } else {
            for i in 0..n {
                // SAFETY: both have `n` elements.
                unsafe { o.add(i).write(f.at(x.add(i).read())) }
            }
        }
    }
}

/// How two shapes meet: axes that both step through alike are one, axes of size 1 are gone.
pub(super) struct Broadcast {
    /// The outer axes: size, and the steps of both inputs, in elements.
    outer: SmallVec<[(usize, usize, usize); 4]>,
    /// The innermost axis.
    inner: usize,
    /// Whether each input steps along the innermost axis.
    steps: (bool, bool),
}

impl Broadcast {
    /// The plan for these sizes, which must be compatible.
    pub(super) fn new(x: &[usize], y: &[usize], output: &[usize]) -> Broadcast {
        let mut axes: SmallVec<[(usize, usize, usize); 4]> = SmallVec::new();
        let (mut x_step, mut y_step) = (1, 1);
        for back in 0..output.len() {
            let size = output[output.len() - 1 - back];
            let step = |dims: &[usize], next: &mut usize| {
                let own = dims.len().checked_sub(back + 1).map_or(1, |i| dims[i]);
                let step = if own == 1 { 0 } else { *next };
                *next *= own;
                step
            };
            let (xs, ys) = (step(x, &mut x_step), step(y, &mut y_step));
            match axes.last_mut() {
                _ if size == 1 => {}
                Some(inner) if (inner.1 == 0) == (xs == 0) && (inner.2 == 0) == (ys == 0) => inner.0 *= size,
                _ => axes.push((size, xs, ys)),
            }
        }
        axes.reverse();
        let (inner, xs, ys) = axes.pop().unwrap_or((1, 1, 1));
        Broadcast { outer: axes, inner, steps: (xs != 0, ys != 0) }
    }

    fn rows(&self) -> usize {
        self.outer.iter().map(|a| a.0).product()
    }

    /// Runs `part` over row and column ranges that cover everything once.
    fn parts(&self, team: &Team, part: impl Fn(Range<usize>, Range<usize>) + Sync) {
        let (rows, inner) = (self.rows(), self.inner);
        if rows == 0 || inner == 0 {
            return;
        }
        if inner > 2 * GRAIN {
            let pieces = inner.div_ceil(GRAIN);
            return team.run(rows * pieces, |i| {
                let (row, from) = (i / pieces, i % pieces * GRAIN);
                part(row..row + 1, from..inner.min(from + GRAIN));
            });
        }
        team.chunks(rows, (GRAIN / inner).max(1), |r| part(r, 0..inner));
    }
}

/// The kernel that maps inputs 0 and 1 with broadcasting.
pub(super) fn binary<T: Element, R: Element, F: Map2<T, R>, D: Dispatch>(
    x: &Dims,
    y: &Dims,
    output: &Dims,
    f: F,
) -> CpuKernel {
    let plan = Broadcast::new(x, y, output);
    Box::new(move |l: &Launch<'_>| {
        let (x, y) = (Shared::new(l.input_ptr::<T>(0).0.cast_mut()), Shared::new(l.input_ptr::<T>(1).0.cast_mut()));
        let o = Shared::new(l.output_ptr::<R>(0).0);
        plan.parts(l.team(), |rows, columns| {
            D::run(Rows { f, plan: &plan, o: o.get(), x: x.get(), y: y.get(), rows, columns });
        });
        Ok(())
    })
}

struct Rows<'a, T, R, F> {
    f: F,
    plan: &'a Broadcast,
    o: *mut R,
    x: *const T,
    y: *const T,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<T: Copy, R, F: Map2<T, R>> NullaryFnOnce for Rows<'_, T, R, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Rows { f, plan, o, x, y, rows, columns } = self;
        let n = columns.len();
        let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, plan.outer.len());
        let (mut xo, mut yo, mut rest) = (0, 0, rows.start);
        for (i, &(size, xs, ys)) in plan.outer.iter().enumerate().rev() {
            index[i] = rest % size;
            rest /= size;
            xo += index[i] * xs;
            yo += index[i] * ys;
        }
        let at = |steps: bool| if steps { columns.start } else { 0 };
        for row in rows {
            // SAFETY: the plan's offsets stay within the inputs' and the output's elements; the output is another
            // buffer than the inputs, or is an input of its own size, whose element is read before it is written.
            unsafe {
                let o = o.add(row * plan.inner + columns.start);
                let (x, y) = (x.add(xo + at(plan.steps.0)), y.add(yo + at(plan.steps.1)));
                match plan.steps {
                    (true, true) => both(f, o, x, y, n),
                    (true, false) => one(move |x, y| f.at(x, y), o, x, y.read(), n),
                    (false, _) => one(move |y, x| f.at(x, y), o, y, x.read(), n),
                }
            }
            for (i, &(size, xs, ys)) in plan.outer.iter().enumerate().rev() {
                index[i] += 1;
                xo += xs;
                yo += ys;
                if index[i] < size {
                    break;
                }
                xo -= size * xs;
                yo -= size * ys;
                index[i] = 0;
            }
        }
    }
}

/// `o[i] = f(x[i], y[i])`. Loops on one buffer are apart, so that those on several are free of overlap.
#[inline(always)]
unsafe fn both<T: Copy, R, F: Map2<T, R>>(f: F, o: *mut R, x: *const T, y: *const T, n: usize) {
    // SAFETY: the caller's pointers are valid for `n` elements.
    unsafe {
        let same = o.cast_const().cast::<T>();
        if same == x && same == y {
            for i in 0..n {
                let v = o.add(i).cast::<T>().read();
                o.add(i).write(f.at(v, v));
            }
        } else if same == x {
            for i in 0..n {
                o.add(i).write(f.at(o.add(i).cast::<T>().read(), y.add(i).read()));
            }
        } else if same == y {
            for i in 0..n {
                o.add(i).write(f.at(x.add(i).read(), o.add(i).cast::<T>().read()));
            }
        } else {
            for i in 0..n {
                o.add(i).write(f.at(x.add(i).read(), y.add(i).read()));
            }
        }
    }
}

/// `o[i] = f(x[i], y)`.
#[inline(always)]
unsafe fn one<T: Copy, R>(f: impl Fn(T, T) -> R, o: *mut R, x: *const T, y: T, n: usize) {
    // SAFETY: the caller's pointers are valid for `n` elements.
    unsafe {
        if o.cast_const().cast::<T>() == x {
            for i in 0..n {
                o.add(i).write(f(o.add(i).cast::<T>().read(), y));
            }
        } else {
            for i in 0..n {
                o.add(i).write(f(x.add(i).read(), y));
            }
        }
    }
}
