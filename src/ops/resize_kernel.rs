//! Resized images on the host: where each place is taken from is worked out once, rows are shared out.
//!
//! Invariant: gradients are gathered by the rows that get them, so that results do not depend on the threads.

use super::elementwise::{GRAIN, Shared};
use super::number::Number;
use crate::base::Element;
use crate::device::{CpuKernel, Launch};

/// Where a result lies between two places of the image.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Sample {
    lower: usize,
    upper: usize,
    /// How far from the lower to the upper.
    lerp: f32,
}

/// How results and images meet along an axis.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub size: usize,
    pub out: usize,
    /// How far results lie apart in the image.
    pub scale: f32,
    align: bool,
    half: bool,
    nearest: bool,
}

impl Axis {
    /// An axis of `size` places and `out` results.
    pub fn new(size: usize, out: usize, align: bool, half: bool, nearest: bool) -> Axis {
        let scale = match align && out > 1 {
            true => (size.saturating_sub(1)) as f32 / (out - 1) as f32,
            false => size as f32 / out as f32,
        };
        Axis { size, out, scale, align, half, nearest }
    }

    fn sample(&self, i: usize) -> Sample {
        let (last, scale) = (self.size.saturating_sub(1), self.scale);
        let at = if self.half { (i as f32 + 0.5) * scale } else { i as f32 * scale };
        if self.nearest {
            let place = (if self.align { at.round() } else { at.floor() } as usize).min(last);
            return Sample { lower: place, upper: place, lerp: 0.0 };
        }
        let at = if self.half { at - 0.5 } else { at };
        // What is below zero becomes zero.
        let (lower, upper) = (at.floor() as usize, (at.ceil() as usize).min(last));
        Sample { lower: lower.min(upper), upper, lerp: at - at.floor() }
    }

    /// Where every result lies.
    fn samples(&self) -> Vec<Sample> {
        (0..self.out).map(|i| self.sample(i)).collect()
    }

    /// For each place the results that take something of it, and how much.
    fn takers(&self) -> Vec<Vec<(usize, f32)>> {
        let mut takers = vec![Vec::new(); self.size];
        for (result, sample) in self.samples().into_iter().enumerate() {
            if sample.lower == sample.upper {
                takers[sample.lower].push((result, 1.0));
            } else {
                takers[sample.lower].push((result, 1.0 - sample.lerp));
                takers[sample.upper].push((result, sample.lerp));
            }
        }
        takers
    }
}

/// An element that can stand as a `float32`.
pub(super) trait Pixel: Element {
    fn float(self) -> f32;
}

macro_rules! pixel {
    ($($t:ty),*) => {
        $(impl Pixel for $t {
            #[inline(always)]
            fn float(self) -> f32 {
                self as f32
            }
        })*
    };
}
pixel!(f32, f64, i32, i64, u8);

/// Gives each row of the result, its image and its number, to a function that fills it.
fn rows<T: Element>(l: &Launch<'_>, height: usize, width: usize, f: impl Fn(usize, usize, &mut [T]) + Sync) {
    let y = l.output::<T>(0);
    if y.is_empty() {
        return;
    }
    let (count, start) = (y.len() / width, Shared::new(y.as_mut_ptr()));
    l.team().chunks(count, (GRAIN / width).max(1), |rows| {
        for row in rows {
            // SAFETY: rows are disjoint parts of the output.
            let y = unsafe { std::slice::from_raw_parts_mut(start.get().add(row * width), width) };
            f(row / height, row % height, y);
        }
    });
}

/// The kernel of bilinear interpolation of input 0.
pub(super) fn bilinear<T: Pixel>(down: &Axis, across: &Axis, channels: usize) -> CpuKernel {
    let (down, across, ys, xs) = (*down, *across, down.samples(), across.samples());
    Box::new(move |l| {
        let x = l.input::<T>(0);
        let line = across.size * channels;
        rows::<f32>(l, down.out, across.out * channels, |image, i, y| {
            let sample = ys[i];
            let row = |place: usize| &x[(image * down.size + place) * line..][..line];
            let (top, bottom) = (row(sample.lower), row(sample.upper));
            for (y, column) in y.chunks_exact_mut(channels).zip(&xs) {
                let pixel = |row: &'_ [T], place: usize| place * channels..row.len().min((place + 1) * channels);
                let (lower, upper) = (pixel(top, column.lower), pixel(top, column.upper));
                let above = top[lower.clone()].iter().zip(&top[upper.clone()]);
                let below = bottom[lower].iter().zip(&bottom[upper]);
                for (y, ((&a, &b), (&c, &d))) in y.iter_mut().zip(above.zip(below)) {
                    let (a, b, c, d) = (a.float(), b.float(), c.float(), d.float());
                    let (above, below) = (a + (b - a) * column.lerp, c + (d - c) * column.lerp);
                    *y = above + (below - above) * sample.lerp;
                }
            }
        });
        Ok(())
    })
}

/// The kernel of its gradient, of the `float32` in input 0.
pub(super) fn bilinear_gradient<T: Number>(down: &Axis, across: &Axis, channels: usize) -> CpuKernel {
    let (takers, down, across, xs) = (down.takers(), *down, *across, across.samples());
    Box::new(move |l| {
        let gradient = l.input::<f32>(0);
        let line = across.out * channels;
        rows::<T>(l, down.size, across.size * channels, |image, place, y| {
            y.fill(T::ZERO);
            for &(result, share) in &takers[place] {
                let gradient = &gradient[(image * down.out + result) * line..][..line];
                for (gradient, column) in gradient.chunks_exact(channels).zip(&xs) {
                    let mut add = |place: usize, share: f64| {
                        let y = &mut y[place * channels..][..channels];
                        for (y, &g) in y.iter_mut().zip(gradient) {
                            *y = y.plus(T::from_f64(f64::from(g)).times(T::from_f64(share)));
                        }
                    };
                    let (share, lerp) = (f64::from(share), f64::from(column.lerp));
                    if column.lower == column.upper {
                        add(column.lower, share);
                    } else {
                        add(column.lower, share * (1.0 - lerp));
                        add(column.upper, share * lerp);
                    }
                }
            }
        });
        Ok(())
    })
}

/// The kernel of the nearest elements of input 0.
pub(super) fn nearest<T: Element>(down: &Axis, across: &Axis, channels: usize) -> CpuKernel {
    let (down, across, ys, xs) = (*down, *across, down.samples(), across.samples());
    Box::new(move |l| {
        let x = l.input::<T>(0);
        let line = across.size * channels;
        rows::<T>(l, down.out, across.out * channels, |image, i, y| {
            let row = &x[(image * down.size + ys[i].lower) * line..][..line];
            for (y, column) in y.chunks_exact_mut(channels).zip(&xs) {
                y.copy_from_slice(&row[column.lower * channels..][..channels]);
            }
        });
        Ok(())
    })
}

/// The kernel of its gradient, of input 0.
pub(super) fn nearest_gradient<T: Number>(down: &Axis, across: &Axis, channels: usize) -> CpuKernel {
    let (takers, down, across, xs) = (down.takers(), *down, *across, across.samples());
    Box::new(move |l| {
        let gradient = l.input::<T>(0);
        let line = across.out * channels;
        rows::<T>(l, down.size, across.size * channels, |image, place, y| {
            y.fill(T::ZERO);
            for &(result, _) in &takers[place] {
                let gradient = &gradient[(image * down.out + result) * line..][..line];
                for (gradient, column) in gradient.chunks_exact(channels).zip(&xs) {
                    let y = &mut y[column.lower * channels..][..channels];
                    y.iter_mut().zip(gradient).for_each(|(y, &g)| *y = y.plus(g));
                }
            }
        });
        Ok(())
    })
}
