//! Convolutions of single channels on the host: no products of matrices, but loops over channels (where these are last)
//! or over places of a row.
//!
//! Invariant: every result is summed in the order of its taps, the filter's gradient in a fixed number of runs of rows,
//! so that results are bit-equal for any number of threads.

use super::conv_geometry::{Axis, Conv};
use super::conv_kernel::{Steps, Sweep};
use super::elementwise::{Dispatch, GRAIN, Shared, Wide, fill};
use super::number::Number;
use super::window::DataFormat;
use crate::device::{CpuKernel, Launch};
use pulp::NullaryFnOnce;
use std::ops::Range;
use std::sync::Mutex;

/// Channels or places that are summed side by side.
const LANES: usize = 64;
/// Runs of rows that a filter's gradient is summed in, at most.
const RUNS: usize = 16;

/// How source and target channels meet: each source channel has `multiplier` target channels, or the other way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meet {
    OneToOne,
    /// The source's channel `c` goes into the target's `c * multiplier + m`.
    Spread(usize),
    /// The target's channel `c` is of the source's `c * multiplier + m`.
    Gather(usize),
}

/// One sweep's work on a row of results.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    sweep: &'a Sweep,
    conv: &'a Conv,
    meet: Meet,
    source: &'a [T],
    filter: &'a [T],
    target: Shared<T>,
}

/// The kernel of the output, of image and filter.
pub(super) fn forward<T: Number>(conv: &Conv) -> CpuKernel {
    let meet = if conv.width() == 1 { Meet::OneToOne } else { Meet::Spread(conv.width()) };
    sweeps::<T>(conv, vec![Sweep::forward(conv)], true, meet, (0, 1))
}

/// The kernel of the image's gradient, of the filter (input 1) and the output's gradient (input 2).
pub(super) fn backward<T: Number>(conv: &Conv) -> CpuKernel {
    let meet = if conv.width() == 1 { Meet::OneToOne } else { Meet::Gather(conv.width()) };
    let all = Sweep::backward(conv);
    let covers = Sweep::cover(&all, conv);
    sweeps::<T>(conv, all, covers, meet, (2, 1))
}

/// The kernel of these sweeps, which give every result a value or leave zeros.
fn sweeps<T: Number>(
    conv: &Conv,
    all: Vec<Sweep>,
    covers: bool,
    meet: Meet,
    (source, filter): (usize, usize),
) -> CpuKernel {
    let conv = *conv;
    Box::new(move |l: &Launch<'_>| {
        let (source, filter, target) = (l.input::<T>(source), l.input::<T>(filter), l.output::<T>(0));
        if !covers {
            fill(l.team(), target, T::ZERO);
        }
        let target = Shared::new(target.as_mut_ptr());
        for sweep in &all {
            let rows = Rows { sweep, conv: &conv, meet, source, filter, target };
            let [down, across] = sweep.axes;
            match sweep.format {
                DataFormat::Nhwc => {
                    let work = across.count * sweep.taps() * conv.filters;
                    l.team().chunks(sweep.batch * down.count, (GRAIN / work.max(1)).max(1), |rows_of| {
                        Wide::run(Pixels { rows, range: rows_of });
                    });
                }
                DataFormat::Nchw => {
                    let work = sweep.rows() * sweep.taps();
                    let planes = sweep.batch * sweep.groups * sweep.width;
                    l.team().chunks(planes, (GRAIN / work.max(1)).max(1), |planes| {
                        Wide::run(Planes { rows, range: planes });
                    });
                }
            }
        }
        Ok(())
    })
}

/// Rows of results with channels last.
struct Pixels<'a, T> {
    rows: Rows<'a, T>,
    range: Range<usize>,
}

impl<T: Number> NullaryFnOnce for Pixels<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Rows { sweep, meet, source, filter, target, conv } = self.rows;
        let [down, across] = sweep.axes;
        let channels = sweep.groups * sweep.width;
        for row in self.range {
            let (image, i) = (row / down.count, row % down.count);
            let seen_y = down.seen(i);
            for j in 0..across.count {
                let seen_x = across.seen(j);
                let (y, x) = (down.first + i * down.stride, across.first + j * across.stride);
                let at = image * sweep.target.batch + y * sweep.target.y + x * sweep.target.x;
                for first in (0..channels).step_by(LANES) {
                    let width = LANES.min(channels - first);
                    let mut sums = [T::ZERO; LANES];
                    let sums = &mut sums[..width];
                    for ty in seen_y.clone() {
                        let line = image * sweep.source.batch + source_at(&down, i, ty) * sweep.source.y;
                        for tx in seen_x.clone() {
                            let pixel = &source[line + source_at(&across, j, tx) * sweep.source.x..];
                            let weights = &filter[(down.tap(ty) * conv.taps[1] + across.tap(tx)) * conv.filters..];
                            meet.add(sums, pixel, weights, first);
                        }
                    }
                    // SAFETY: results are within the target, and each row is of one part.
                    unsafe { sums.as_ptr().copy_to_nonoverlapping(target.get().add(at + first), width) }
                }
            }
        }
    }
}

/// The source of a result by a tap that sees one.
#[inline(always)]
fn source_at(axis: &Axis, i: usize, tap: usize) -> usize {
    axis.start(i).wrapping_add_unsigned(tap * axis.tap_step) as usize
}

impl Meet {
    /// Adds what some target channels, from `first` on, get from a pixel.
    #[inline(always)]
    fn add<T: Number>(self, sums: &mut [T], pixel: &[T], weights: &[T], first: usize) {
        match self {
            Meet::OneToOne => {
                let (pixel, weights) = (&pixel[first..][..sums.len()], &weights[first..][..sums.len()]);
                for ((sum, &x), &w) in sums.iter_mut().zip(pixel).zip(weights) {
                    *sum = sum.plus(x.times(w));
                }
            }
            Meet::Spread(multiplier) => {
                for (i, (sum, &w)) in sums.iter_mut().zip(&weights[first..]).enumerate() {
                    *sum = sum.plus(pixel[(first + i) / multiplier].times(w));
                }
            }
            Meet::Gather(multiplier) => {
                let (pixel, weights) = (&pixel[first * multiplier..], &weights[first * multiplier..]);
                let each = pixel.chunks_exact(multiplier).zip(weights.chunks_exact(multiplier));
                for (sum, (xs, ws)) in sums.iter_mut().zip(each) {
                    *sum = xs.iter().zip(ws).fold(*sum, |s, (&x, &w)| s.plus(x.times(w)));
                }
            }
        }
    }

    /// The source's channels for a target's channel; these are the filter's columns, unless channels are spread.
    fn sources(self, target: usize) -> Range<usize> {
        match self {
            Meet::OneToOne => target..target + 1,
            Meet::Spread(multiplier) => target / multiplier..target / multiplier + 1,
            Meet::Gather(multiplier) => target * multiplier..(target + 1) * multiplier,
        }
    }
}

/// Channels of images, each a plane.
struct Planes<'a, T> {
    rows: Rows<'a, T>,
    range: Range<usize>,
}

impl<T: Number> NullaryFnOnce for Planes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Rows { sweep, meet, source, filter, target, conv } = self.rows;
        let [down, across] = sweep.axes;
        let channels = sweep.groups * sweep.width;
        for plane in self.range {
            let (image, channel) = (plane / channels, plane % channels);
            let to = image * sweep.target.batch + channel * sweep.target.channel;
            for i in 0..down.count {
                let to = to + (down.first + i * down.stride) * sweep.target.y + across.first;
                for first in (0..across.count).step_by(LANES) {
                    let width = LANES.min(across.count - first);
                    let mut sums = [T::ZERO; LANES];
                    for from in meet.sources(channel) {
                        let plane = image * sweep.source.batch + from * sweep.source.channel;
                        let column = if let Meet::Spread(_) = meet { channel } else { from };
                        for ty in down.seen(i) {
                            let line = plane + source_at(&down, i, ty) * sweep.source.y;
                            for tx in 0..across.taps {
                                let w = filter[(down.tap(ty) * conv.taps[1] + across.tap(tx)) * conv.filters + column];
                                let seeing = across.seeing(tx);
                                let (from, until) = (seeing.start.max(first), seeing.end.min(first + width));
                                if from < until {
                                    let line = &source[line + source_at(&across, from, tx)..];
                                    add_line(&mut sums[from - first..until - first], line, across.step, w);
                                }
                            }
                        }
                    }
                    for (n, &sum) in sums[..width].iter().enumerate() {
                        // SAFETY: results are within the target, and each plane is of one part.
                        unsafe { target.get().add(to + (first + n) * across.stride).write(sum) }
                    }
                }
            }
        }
    }
}

/// Adds elements of a line, `step` apart, times a weight.
#[inline(always)]
fn add_line<T: Number>(sums: &mut [T], line: &[T], step: usize, w: T) {
    if step == 1 {
        sums.iter_mut().zip(line).for_each(|(sum, &x)| *sum = sum.plus(x.times(w)));
    } else {
        sums.iter_mut().zip(line.iter().step_by(step)).for_each(|(sum, &x)| *sum = sum.plus(x.times(w)));
    }
}

/// The kernel of the filter's gradient, of the image (input 0) and the output's gradient (input 2).
pub(super) fn filter_gradient<T: Number>(conv: &Conv) -> CpuKernel {
    let (conv, sweep) = (*conv, Sweep::forward(conv));
    let lines = conv.batch * conv.out[0];
    let len = sweep.taps() * conv.filters;
    let work = sweep.taps() * conv.out[1] * conv.filters;
    let runs = match conv.format {
        DataFormat::Nhwc => (lines * work / GRAIN).clamp(1, RUNS).min(lines.max(1)),
        DataFormat::Nchw => 1,
    };
    let sums = Mutex::new(vec![T::ZERO; if runs > 1 { runs * len } else { 0 }]);
    Box::new(move |l: &Launch<'_>| {
        let (source, gradient, filter) = (l.input::<T>(0), l.input::<T>(2), l.output::<T>(0));
        // Every launch overwrites all of it, so a poisoned lock does not matter.
        let mut sums = sums.lock().unwrap_or_else(|e| e.into_inner());
        let to = if runs > 1 { &mut sums[..] } else { &mut filter[..] };
        to.fill(T::ZERO);
        let to = Shared::new(to.as_mut_ptr());
        if conv.format == DataFormat::Nchw {
            l.team().chunks(conv.filters, 1, |columns| {
                Wide::run(FilterOfPlanes { conv: &conv, sweep: &sweep, source, gradient, to, columns });
            });
            return Ok(());
        }
        l.team().run(runs, |run| {
            let lines = lines * run / runs..lines * (run + 1) / runs;
            // SAFETY: each run has sums of its own.
            let sums = unsafe { std::slice::from_raw_parts_mut(to.get().add(run * len), len) };
            Wide::run(FilterOfPixels { conv: &conv, sweep: &sweep, source, gradient, sums, lines });
        });
        if runs > 1 {
            filter.copy_from_slice(&sums[..len]);
            for run in sums.chunks_exact(len).skip(1) {
                filter.iter_mut().zip(run).for_each(|(to, &sum)| *to = to.plus(sum));
            }
        }
        Ok(())
    })
}

/// Adds what some lines of the output give to the filter's gradient, with channels last.
struct FilterOfPixels<'a, T> {
    conv: &'a Conv,
    sweep: &'a Sweep,
    source: &'a [T],
    gradient: &'a [T],
    sums: &'a mut [T],
    lines: Range<usize>,
}

impl<T: Number> NullaryFnOnce for FilterOfPixels<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let FilterOfPixels { conv, sweep, source, gradient, sums, lines } = self;
        let ([down, across], multiplier, filters) = (sweep.axes, conv.width(), conv.filters);
        for line in lines {
            let (image, i) = (line / conv.out[0], line % conv.out[0]);
            let gradient = &gradient[line * conv.out[1] * filters..][..conv.out[1] * filters];
            for ty in down.seen(i) {
                let line = &source[image * sweep.source.batch + source_at(&down, i, ty) * sweep.source.y..];
                for tx in 0..across.taps {
                    let to = &mut sums[(ty * across.taps + tx) * filters..][..filters];
                    for first in (0..filters).step_by(LANES) {
                        let width = LANES.min(filters - first);
                        let mut lanes = [T::ZERO; LANES];
                        let lanes = &mut lanes[..width];
                        for j in across.seeing(tx) {
                            let pixel = &line[source_at(&across, j, tx) * sweep.source.x..];
                            let gradient = &gradient[j * filters + first..][..width];
                            if multiplier == 1 {
                                for ((lane, &x), &g) in lanes.iter_mut().zip(&pixel[first..][..width]).zip(gradient) {
                                    *lane = lane.plus(x.times(g));
                                }
                            } else {
                                for (n, (lane, &g)) in lanes.iter_mut().zip(gradient).enumerate() {
                                    *lane = lane.plus(pixel[(first + n) / multiplier].times(g));
                                }
                            }
                        }
                        to[first..][..width].iter_mut().zip(lanes).for_each(|(to, lane)| *to = to.plus(*lane));
                    }
                }
            }
        }
    }
}

/// Some columns of the filter's gradient, with channels in the middle.
struct FilterOfPlanes<'a, T> {
    conv: &'a Conv,
    sweep: &'a Sweep,
    source: &'a [T],
    gradient: &'a [T],
    to: Shared<T>,
    columns: Range<usize>,
}

impl<T: Number> NullaryFnOnce for FilterOfPlanes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        const WIDE: usize = 16;
        let FilterOfPlanes { conv, sweep, source, gradient, to, columns } = self;
        let [down, across] = sweep.axes;
        let Steps { batch, y: row, channel, .. } = sweep.source;
        for column in columns {
            for tap in 0..sweep.taps() {
                let (ty, tx) = (tap / across.taps, tap % across.taps);
                let seeing = across.seeing(tx);
                let mut sum = T::ZERO;
                for image in 0..conv.batch {
                    let plane = image * batch + column / conv.width() * channel;
                    let gradient = &gradient[(image * conv.filters + column) * sweep.rows()..];
                    for i in down.seeing(ty) {
                        if seeing.is_empty() {
                            continue;
                        }
                        let gradient = &gradient[i * across.count..][seeing.clone()];
                        let first = plane + source_at(&down, i, ty) * row + source_at(&across, seeing.start, tx);
                        let line = &source[first..];
                        let mut lanes = [T::ZERO; WIDE];
                        for (n, part) in gradient.chunks(WIDE).enumerate() {
                            let line = &line[n * WIDE * across.step..];
                            for (lane, (&g, &x)) in
                                lanes.iter_mut().zip(part.iter().zip(line.iter().step_by(across.step)))
                            {
                                *lane = lane.plus(g.times(x));
                            }
                        }
                        sum = lanes.iter().fold(sum, |sum, &lane| sum.plus(lane));
                    }
                }
                // SAFETY: columns are within the filter, and each is of one part.
                unsafe { to.get().add(tap * conv.filters + column).write(sum) }
            }
        }
    }
}
