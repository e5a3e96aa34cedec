//! Test cases of convolutions, with results from the definition: every product of an image's and a filter's element, and
//! where it goes.

use super::conv_geometry::{Kind, Of};
use super::values::{array, case_with, ints};
use super::window::{DataFormat, Padding, Window};
use crate::base::Array;
use crate::graph::{Attrs, Case};

/// What differs between cases; pairs are of height and width.
struct Sizes {
    format: DataFormat,
    batch: usize,
    image: [usize; 2],
    channels: usize,
    taps: [usize; 2],
    groups: usize,
    /// Filters of a group, or the multiplier.
    width: usize,
    strides: [usize; 2],
    dilations: [usize; 2],
    padding: Padding,
}

const PLAIN: Sizes = Sizes {
    format: DataFormat::Nhwc,
    batch: 2,
    image: [4, 5],
    channels: 2,
    taps: [3, 3],
    groups: 1,
    width: 3,
    strides: [1, 1],
    dilations: [1, 1],
    padding: Padding::Same,
};

fn all(kind: Kind) -> Vec<Sizes> {
    let (same, explicit) = (Padding::Same, Padding::Explicit([(2, 0), (1, 3)]));
    let mut all = Vec::new();
    for format in [DataFormat::Nhwc, DataFormat::Nchw] {
        let plain = Sizes { format, ..PLAIN };
        all.extend([
            Sizes { padding: Padding::Valid, ..plain },
            Sizes { strides: [2, 3], ..plain },
            Sizes { dilations: [2, 1], padding: explicit, ..plain },
            Sizes { image: [5, 4], strides: [3, 2], dilations: [2, 3], ..plain },
            Sizes { taps: [1, 1], ..plain },
            // The window leaves out elements between its places.
            Sizes { taps: [1, 2], strides: [2, 3], padding: Padding::Valid, width: 1, ..plain },
            Sizes { batch: 1, image: [2, 1], taps: [4, 2], ..plain },
            Sizes { batch: 0, padding: same, ..plain },
        ]);
        match kind {
            Kind::Full => all.extend([
                Sizes { channels: 4, groups: 2, width: 2, strides: [1, 2], ..plain },
                Sizes { channels: 3, groups: 3, width: 2, ..plain },
                Sizes { channels: 4, groups: 2, width: 1, taps: [1, 1], ..plain },
                Sizes { channels: 9, groups: 9, width: 1, strides: [2, 1], ..plain },
            ]),
            // From 8 channels these are vectors, and part of one.
            Kind::Depthwise => all.extend([
                Sizes { width: 1, strides: [2, 2], ..plain },
                Sizes { channels: 9, width: 1, dilations: [2, 1], padding: explicit, ..plain },
                Sizes { channels: 9, width: 1, strides: [2, 3], ..plain },
                Sizes { channels: 9, width: 1, image: [5, 4], strides: [2, 3], dilations: [2, 1], ..plain },
            ]),
        }
        all.push(plain);
    }
    all
}

/// Numbers of which no two neighbours are alike.
fn values(dims: &[usize], seed: usize) -> Array {
    let count: usize = dims.iter().product();
    array(dims, &(0..count).map(|i| ((i * 7 + i / 5 + seed) % 13) as f32 / 4.0 - 1.5).collect::<Vec<f32>>())
}

/// One product: the places of output, image and filter that meet.
type Meeting = [usize; 3];

impl Sizes {
    fn attrs(&self) -> Attrs {
        let all = |[y, x]: [usize; 2]| self.format.arrange(1, [y as i64, x as i64], 1).to_vec();
        Attrs::new()
            .with("strides", all(self.strides))
            .with("dilations", all(self.dilations))
            .with("padding", self.padding.name())
            .with("explicit_paddings", self.padding.explicit(self.format))
            .with("data_format", self.format.name())
    }

    /// The shapes of output, image and filter, and all meetings.
    fn meetings(&self, kind: Kind) -> Option<([[usize; 4]; 3], Vec<Meeting>)> {
        let Sizes { format, batch, image, channels, taps, width, .. } = *self;
        let groups = if kind == Kind::Full { self.groups } else { channels };
        let (depth, filters) = (channels / groups, width * groups);
        let window = Window::of(&self.attrs()).ok()?;
        let places = [window.places(0, image[0], taps[0]).ok()?, window.places(1, image[1], taps[1]).ok()?];
        let out = places.map(|p| p.count);
        let shapes = [format.arrange(batch, out, filters), format.arrange(batch, image, channels)];
        let filter =
            if kind == Kind::Full { [taps[0], taps[1], depth, filters] } else { [taps[0], taps[1], channels, width] };
        let at = |dims: [usize; 4], place: [usize; 4]| place.iter().zip(dims).fold(0, |at, (p, d)| at * d + p);
        let mut meetings = Vec::new();
        let source = |axis: usize, place: usize, tap: usize| {
            let at = (place * self.strides[axis] + tap * self.dilations[axis]).checked_sub(places[axis].before)?;
            (at < image[axis]).then_some(at)
        };
        for (n, y, x, f) in (0..batch).flat_map(|n| {
            (0..out[0]).flat_map(move |y| (0..out[1]).flat_map(move |x| (0..filters).map(move |f| (n, y, x, f))))
        }) {
            for (i, j, c) in
                (0..taps[0]).flat_map(|i| (0..taps[1]).flat_map(move |j| (0..depth).map(move |c| (i, j, c))))
            {
                let (Some(from_y), Some(from_x)) = (source(0, y, i), source(1, x, j)) else { continue };
                let channel = f / width * depth + c;
                meetings.push([
                    at(shapes[0], format.arrange(n, [y, x], f)),
                    at(shapes[1], format.arrange(n, [from_y, from_x], channel)),
                    at([taps[0], taps[1], depth, filters], [i, j, c, f]),
                ]);
            }
        }
        Some(([shapes[0], shapes[1], filter], meetings))
    }

    fn case(&self, kind: Kind, of: Of) -> Option<Case> {
        let (shapes, meetings) = self.meetings(kind)?;
        let tensors = [values(&shapes[0], 3), values(&shapes[1], 0), values(&shapes[2], 5)];
        let result = match of {
            Of::Output => 0,
            Of::Image => 1,
            Of::Filter => 2,
        };
        let mut sums = vec![0.0; tensors[result].len()];
        for meeting in meetings {
            let factors = (0..3).filter(|&i| i != result).map(|i| tensors[i].get_f64(meeting[i]));
            sums[meeting[result]] += factors.product::<f64>();
        }
        let want = array(&shapes[result], &sums.iter().map(|&s| s as f32).collect::<Vec<f32>>());
        let sizes = ints(&shapes[result].map(|n| n as i32));
        let [gradient, image, filter] = tensors;
        let inputs = match of {
            Of::Output => vec![image, filter],
            Of::Image => vec![sizes, filter, gradient],
            Of::Filter => vec![image, sizes, gradient],
        };
        Some(case_with(self.attrs(), inputs, vec![want], true))
    }
}

/// The cases of an op of this kind that computes this.
pub(super) fn cases(kind: Kind, of: Of) -> Vec<Case> {
    all(kind).iter().filter_map(|sizes| sizes.case(kind, of)).collect()
}
