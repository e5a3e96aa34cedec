//! Test cases of pools, with results from the definition: the elements of every window.

use super::pool::Make;
use super::values::{array, case_with, float, ints};
use super::window::{DataFormat, Padding, Window};
use crate::base::Array;
use crate::graph::{Attrs, Case};

struct Sizes {
    format: DataFormat,
    batch: usize,
    image: [usize; 2],
    channels: usize,
    ksize: [usize; 2],
    strides: [usize; 2],
    padding: Padding,
}

fn all(explicit: bool) -> Vec<Sizes> {
    let mut all = Vec::new();
    for format in [DataFormat::Nhwc, DataFormat::Nchw] {
        let plain = Sizes {
            format,
            batch: 2,
            image: [4, 5],
            channels: 3,
            ksize: [2, 2],
            strides: [2, 2],
            padding: Padding::Valid,
        };
        let padding = Padding::Explicit([(1, 0), (1, 2)]);
        // From 8 channels these are vectors, and part of one.
        for channels in [3, 11] {
            all.extend(explicit.then_some(Sizes { channels, ksize: [2, 3], strides: [1, 2], padding, ..plain }));
        }
        all.extend([
            Sizes { ksize: [3, 3], padding: Padding::Same, ..plain },
            Sizes { ksize: [3, 2], strides: [1, 1], padding: Padding::Same, ..plain },
            Sizes { ksize: [1, 2], strides: [3, 3], ..plain },
            Sizes { ksize: [4, 5], ..plain },
            Sizes { channels: 9, ksize: [3, 3], padding: Padding::Same, ..plain },
            Sizes { channels: 9, ksize: [1, 2], strides: [3, 3], ..plain },
            Sizes { channels: 11, ksize: [3, 2], strides: [1, 1], ..plain },
            Sizes { batch: 0, ..plain },
            plain,
        ]);
    }
    all
}

/// A window: the place of its result, and those of its elements in the image.
type Contents = (usize, Vec<usize>);

impl Sizes {
    fn attrs(&self) -> Attrs {
        let all = |[y, x]: [usize; 2]| self.format.arrange(1, [y as i64, x as i64], 1).to_vec();
        Attrs::new()
            .with("ksize", all(self.ksize))
            .with("strides", all(self.strides))
            .with("padding", self.padding.name())
            .with("explicit_paddings", self.padding.explicit(self.format))
            .with("data_format", self.format.name())
    }

    /// The shapes of image and output, and all windows.
    fn windows(&self) -> Option<([[usize; 4]; 2], Vec<Contents>)> {
        let Sizes { format, batch, image, channels, ksize, strides, .. } = *self;
        let window = Window::of(&self.attrs()).ok()?;
        let places = [window.places(0, image[0], ksize[0]).ok()?, window.places(1, image[1], ksize[1]).ok()?];
        let out = places.map(|p| p.count);
        let shapes = [format.arrange(batch, image, channels), format.arrange(batch, out, channels)];
        let at = |dims: [usize; 4], place: [usize; 4]| place.iter().zip(dims).fold(0, |at, (p, d)| at * d + p);
        let inside = |axis: usize, place: usize| {
            let first = (place * strides[axis]) as isize - places[axis].before as isize;
            let end = (first + ksize[axis] as isize).min(image[axis] as isize);
            (first.max(0) as usize)..(end as usize)
        };
        let mut windows = Vec::new();
        for (n, i) in (0..batch).flat_map(|n| (0..out[0]).map(move |i| (n, i))) {
            for (j, c) in (0..out[1]).flat_map(|j| (0..channels).map(move |c| (j, c))) {
                let elements = inside(0, i).flat_map(|y| inside(1, j).map(move |x| (y, x)));
                let elements = elements.map(|(y, x)| at(shapes[0], format.arrange(n, [y, x], c))).collect();
                windows.push((at(shapes[1], format.arrange(n, [i, j], c)), elements));
            }
        }
        Some((shapes, windows))
    }

    fn case(&self, make: Make) -> Option<Case> {
        let (shapes, windows) = self.windows()?;
        let count = shapes.map(|s| s.iter().product::<usize>());
        // Every value once, so that no two are equal.
        let x: Vec<f64> = (0..count[0]).map(|i| ((i * 37) % 251) as f64 / 16.0 - 7.0).collect();
        let g: Vec<f64> = (0..count[1]).map(|i| ((i * 7) % 13) as f64 / 4.0 - 1.5).collect();
        let taken: Vec<f64> = (0..count[0]).map(|i| ((i * 5) % 17) as f64 / 4.0 - 2.0).collect();
        let largest = |elements: &[usize]| elements.iter().copied().reduce(|a, b| if x[b] > x[a] { b } else { a });
        let (mut y, mut average, mut taken_from) = (vec![0.0; count[1]], vec![0.0; count[1]], vec![0.0; count[1]]);
        let (mut to_largest, mut to_all) = (vec![0.0; count[0]], vec![0.0; count[0]]);
        for (result, elements) in &windows {
            let best = largest(elements)?;
            (y[*result], taken_from[*result]) = (x[best], taken[best]);
            to_largest[best] += g[*result];
            for &e in elements {
                average[*result] += x[e] / elements.len() as f64;
                to_all[e] += g[*result] / elements.len() as f64;
            }
        }
        let array = |which: usize, values: &[f64]| -> Array {
            float(&shapes[which], &values.iter().map(|&v| v as f32).collect::<Vec<f32>>())
        };
        let (image, output, gradient) = (array(0, &x), array(1, &y), array(1, &g));
        let (inputs, result) = match make {
            Make::Largest => (vec![image], output),
            Make::Average => (vec![image], array(1, &average)),
            Make::LargestGradient => (vec![image, output, gradient], array(0, &to_largest)),
            Make::AverageGradient => (vec![ints(&shapes[0].map(|n| n as i32)), gradient], array(0, &to_all)),
            Make::LargestTaken => (vec![image, output, array(0, &taken)], array(1, &taken_from)),
        };
        Some(case_with(self.attrs(), inputs, vec![result], true))
    }
}

/// The cases of an op that makes this.
pub(super) fn cases(make: Make) -> Vec<Case> {
    let explicit = !matches!(make, Make::Average | Make::AverageGradient);
    let mut cases: Vec<Case> = all(explicit).iter().filter_map(|sizes| sizes.case(make)).collect();
    let attrs = || {
        let pair = vec![1i64, 2, 2, 1];
        Attrs::new().with("ksize", pair.clone()).with("strides", pair).with("padding", "VALID")
    };
    // Ties go to the first element, also where it is no number; otherwise what is no number is passed over.
    let nan = f32::NAN;
    let x = float(&[1, 2, 4, 1], &[nan, 5.0, 3.0, nan, 1.0, 5.0, 3.0, 3.0]);
    let y = float(&[1, 1, 2, 1], &[5.0, 3.0]);
    match make {
        Make::Largest => {
            cases.push(case_with(attrs(), vec![x], vec![y.clone()], false));
            let x = array(&[1, 2, 4, 1], &[i32::MIN, -3, 7, i32::MAX, -9, -2, 7, 0]);
            cases.push(case_with(attrs(), vec![x], vec![array(&[1, 1, 2, 1], &[-2, i32::MAX])], false));
        }
        Make::LargestGradient => {
            let want = float(&[1, 2, 4, 1], &[1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
            let g = float(&[1, 1, 2, 1], &[1.0, 2.0]);
            cases.push(case_with(attrs(), vec![x, y.clone(), g.clone()], vec![want], false));
            let same = float(&[1, 2, 4, 1], &[3.0; 8]);
            let want = float(&[1, 2, 4, 1], &[1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
            cases.push(case_with(attrs(), vec![same, y, g], vec![want], false));
        }
        _ => {}
    }
    // The same in every second channel; in the others NaN comes second or last, and nothing goes to it.
    for channels in [9, 11] {
        let spread = |width: usize, even: &[f32], odd: &[f32]| {
            let of = |at: usize, channel: usize| if channel.is_multiple_of(2) { even[at] } else { odd[at] };
            let values = (0..even.len()).flat_map(|at| (0..channels).map(move |channel| of(at, channel)));
            float(&[1, even.len() / width, width, channels], &values.collect::<Vec<f32>>())
        };
        let even = [nan, 5.0, 3.0, nan, 1.0, 5.0, 3.0, 3.0];
        let x = spread(4, &even, &[2.0, nan, 1.0, 4.0, 6.0, 6.0, 4.0, nan]);
        let y = spread(2, &[5.0, 3.0], &[6.0, 4.0]);
        match make {
            Make::Largest => cases.push(case_with(attrs(), vec![x], vec![y], false)),
            Make::LargestGradient => {
                let g = spread(2, &[1.0, 2.0], &[3.0, 4.0]);
                let even = [1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0];
                let want = spread(4, &even, &[0.0, 0.0, 0.0, 4.0, 3.0, 0.0, 0.0, 0.0]);
                cases.push(case_with(attrs(), vec![x, y, g], vec![want], false));
            }
            Make::LargestTaken => {
                let taken: Vec<f32> = (0..8).map(|i| i as f32).collect();
                let want = spread(2, &[0.0, 2.0], &[4.0, 3.0]);
                cases.push(case_with(attrs(), vec![x, y, spread(4, &taken, &taken)], vec![want], false));
            }
            _ => {}
        }
    }
    cases
}
