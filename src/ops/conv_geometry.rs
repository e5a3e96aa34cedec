//! The sizes of a two-dimensional convolution, in one place for the shape rules, the host's kernels, CUDA's and a
//! library's, and how results and sources meet along an axis, forward and backward.
//!
//! Absent: arithmetic (`conv_kernel.rs`, `depthwise_kernel.rs`, `cuda_conv.rs`).

use super::support::{int_vector, sized, sizes_from};
use super::window::{DataFormat, Window};
use crate::base::Shape;
use crate::graph::{Attrs, Fact, InferContext, KernelContext};

/// Which of the two kinds of filter an op has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `[height, width, channels of a group, filters]`: each filter looks at all channels of its group.
    Full,
    /// `[height, width, channels, multiplier]`: each channel has filters of its own. In memory this is what a full filter
    /// of as many groups as channels is.
    Depthwise,
}

/// A convolution of known sizes. Pairs are of height and width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Conv {
    pub format: DataFormat,
    pub batch: usize,
    pub image: [usize; 2],
    /// Channels of the image, over all groups.
    pub channels: usize,
    /// Elements of the window.
    pub taps: [usize; 2],
    pub groups: usize,
    /// Channels of the result, over all groups.
    pub filters: usize,
    pub out: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    /// Padding before height and width.
    pub before: [usize; 2],
    /// Padding after them.
    pub after: [usize; 2],
}

impl Conv {
    /// The convolution of an image by a filter, of these sizes and attributes.
    ///
    /// # Errors
    /// As [`output_shape`].
    pub fn new(kind: Kind, attrs: &Attrs, image: &[usize], filter: &[usize]) -> Result<Conv, String> {
        let window = Window::of(attrs)?;
        let out = output_shape(kind, attrs, &Shape::known(image), &Shape::known(filter))?;
        let (&[_, _, _, _], &[taps_y, taps_x, depth, last], Some(out)) = (image, filter, out.to_dims()) else {
            return Err(format!("a convolution needs known sizes, got {image:?} by {filter:?}"));
        };
        let ([y, x], channels) = (window.format.spatial(), window.format.channels());
        let [py, px] = [window.places(0, image[y], taps_y)?, window.places(1, image[x], taps_x)?];
        let (groups, filters) = match kind {
            Kind::Full => (image[channels].checked_div(depth).unwrap_or(0), last),
            Kind::Depthwise => (depth, out[channels]),
        };
        Ok(Conv {
            format: window.format,
            batch: image[0],
            image: [image[y], image[x]],
            channels: image[channels],
            taps: [taps_y, taps_x],
            groups,
            filters,
            out: [py.count, px.count],
            strides: window.strides,
            dilations: window.dilations,
            before: [py.before, px.before],
            after: [py.after, px.after],
        })
    }

    /// The convolution of a node: the forward one, or that whose image's or filter's gradient it computes.
    pub fn of(kind: Kind, of: Of, c: &KernelContext<'_>) -> Result<Conv, String> {
        let (image, filter) = match of {
            Of::Output => (&c.inputs[0], &c.inputs[1]),
            Of::Image => (&c.outputs[0], &c.inputs[1]),
            Of::Filter => (&c.inputs[0], &c.outputs[0]),
        };
        Conv::new(kind, c.attrs, &image.dims, &filter.dims)
    }

    /// Channels of the image that one filter looks at.
    pub fn depth(&self) -> usize {
        self.channels / self.groups.max(1)
    }

    /// Filters of one group.
    pub fn width(&self) -> usize {
        self.filters / self.groups.max(1)
    }

    /// Multiplications and additions.
    pub fn flops(&self) -> f64 {
        let results = [self.batch, self.out[0], self.out[1], self.filters];
        let terms = [self.taps[0], self.taps[1], self.depth(), 2];
        results.into_iter().chain(terms).map(|n| n as f64).product()
    }

    /// How results (the output's places) and sources (the image's) meet along height (0) or width (1).
    pub fn forward(&self, axis: usize) -> Axis {
        Axis {
            count: self.out[axis],
            first: 0,
            stride: 1,
            step: self.strides[axis],
            origin: -(self.before[axis] as isize),
            taps: self.taps[axis],
            tap_step: self.dilations[axis],
            tap_first: 0,
            tap_stride: 1,
            source: self.image[axis],
        }
    }

    /// How far taps lie apart that fall on the same places of the image.
    pub fn apart(&self, axis: usize) -> usize {
        self.strides[axis] / gcd(self.strides[axis], self.dilations[axis])
    }

    /// The same for the image's gradient: results are the image's places, sources the output's. With a stride, places
    /// of the same remainder see the same elements of the window, so there is one entry for each remainder that sees any.
    pub fn backward(&self, axis: usize) -> Vec<Axis> {
        let (stride, dilation, taps) = (self.strides[axis], self.dilations[axis], self.taps[axis]);
        let tap_stride = self.apart(axis);
        let tap_step = dilation * tap_stride / stride;
        (0..tap_stride.min(taps))
            .filter_map(|tap| {
                let last = tap + (taps - 1 - tap) / tap_stride * tap_stride;
                // The place that sees the first output by this tap; its remainder is this entry's.
                let reach = |tap: usize| (tap * dilation) as isize - self.before[axis] as isize;
                let first = reach(tap).rem_euclid(stride as isize) as usize;
                (first < self.image[axis]).then(|| Axis {
                    count: (self.image[axis] - first).div_ceil(stride),
                    first,
                    stride,
                    step: 1,
                    origin: (first as isize - reach(last)) / stride as isize,
                    taps: last / tap_stride + 1,
                    tap_step,
                    tap_first: last,
                    tap_stride: -(tap_stride as isize),
                    source: self.out[axis],
                })
            })
            .collect()
    }
}

/// What of a convolution an op computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    /// The output, of image and filter.
    Output,
    /// The image's gradient, of its sizes, the filter and the output's gradient.
    Image,
    /// The filter's gradient, of the image, the filter's sizes and the output's gradient.
    Filter,
}

/// How results and sources meet along one axis: result `i < count`, which lies at `first + i * stride`, sees by its tap
/// `j < taps` the source at `i * step + origin + j * tap_step`, times the filter's entry `tap_first + j * tap_stride`.
/// Sources that are not there are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Axis {
    pub count: usize,
    pub first: usize,
    pub stride: usize,
    pub step: usize,
    pub origin: isize,
    pub taps: usize,
    pub tap_step: usize,
    pub tap_first: usize,
    pub tap_stride: isize,
    /// Number of sources.
    pub source: usize,
}

impl Axis {
    /// Where result `i` sees its first source.
    #[inline(always)]
    pub fn start(&self, i: usize) -> isize {
        (i * self.step) as isize + self.origin
    }

    /// The source that result `i` sees by tap `j`.
    #[inline(always)]
    pub fn source(&self, i: usize, j: usize) -> Option<usize> {
        let at = self.start(i) + (j * self.tap_step) as isize;
        usize::try_from(at).ok().filter(|&at| at < self.source)
    }

    /// The filter's entry of tap `j`.
    #[inline(always)]
    pub fn tap(&self, j: usize) -> usize {
        self.tap_first.wrapping_add_signed(j as isize * self.tap_stride)
    }

    /// The taps by which result `i` sees a source.
    #[inline(always)]
    pub fn seen(&self, i: usize) -> std::ops::Range<usize> {
        let start = self.start(i);
        let until = |end: isize| usize::try_from(end).map_or(0, |end| end.div_ceil(self.tap_step)).min(self.taps);
        until(-start)..until(self.source as isize - start)
    }

    /// The results that see a source by tap `j`.
    #[inline(always)]
    pub fn seeing(&self, j: usize) -> std::ops::Range<usize> {
        let start = self.origin + (j * self.tap_step) as isize;
        let until = |end: isize| usize::try_from(end).map_or(0, |end| end.div_ceil(self.step)).min(self.count);
        until(-start)..until(self.source as isize - start)
    }

    /// The results that lie at these places.
    pub fn results(&self, places: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        let before = |place: usize| place.saturating_sub(self.first).div_ceil(self.stride).min(self.count);
        before(places.start)..before(places.end)
    }

    /// True if the results are the sources, one by one.
    pub fn is_plain(&self) -> bool {
        (self.stride, self.step, self.taps, self.origin, self.count) == (1, 1, 1, 0, self.source)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The shape of the output, as far as known.
///
/// # Errors
/// Attributes that make no window, shapes that do not fit each other, a window larger than the padded image.
pub(super) fn output_shape(kind: Kind, attrs: &Attrs, image: &Shape, filter: &Shape) -> Result<Shape, String> {
    let window = Window::of(attrs)?;
    let format = window.format;
    if image.rank().is_some_and(|r| r != 4) {
        return Err(format!("the image must have 4 axes ({}), got shape {image}", format.name()));
    }
    let last = match kind {
        Kind::Full => "filters",
        Kind::Depthwise => "multiplier",
    };
    if filter.rank().is_some_and(|r| r != 4) {
        return Err(format!("the filter must have 4 axes [height, width, channels, {last}], got shape {filter}"));
    }
    if filter.dims().is_some_and(|dims| dims.contains(&Some(0))) {
        return Err(format!("the filter must have elements, got shape {filter}"));
    }
    let (channels, depth, filters) = (image.dim(format.channels()), filter.dim(2), filter.dim(3));
    let filters = match (kind, channels, depth) {
        (Kind::Full, Some(channels), Some(depth)) => {
            if channels % depth != 0 {
                return Err(format!(
                    "the image's channels must be a multiple of the filter's: the image {image} ({}) has {channels}, \
                     the filter {filter} has {depth} (axis 2)",
                    format.name()
                ));
            }
            let groups = channels / depth;
            if filters.is_some_and(|f| groups == 0 || f % groups != 0) {
                return Err(format!(
                    "the filters must be a multiple of the groups: the filter {filter} has {} (axis 3), the image's \
                     {channels} channels are {groups} groups of {depth}",
                    filters.unwrap_or(0)
                ));
            }
            filters
        }
        (Kind::Full, ..) => filters,
        (Kind::Depthwise, channels, depth) => {
            if let (Some(channels), Some(depth)) = (channels, depth)
                && channels != depth
            {
                return Err(format!(
                    "a depthwise filter must have the image's channels on axis 2: the image {image} ({}) has \
                     {channels}, the filter {filter} has {depth}",
                    format.name()
                ));
            }
            match (channels.or(depth), filters) {
                (Some(channels), Some(multiplier)) => {
                    let too_many = || format!("{channels} channels with {multiplier} filters each are too many");
                    Some(channels.checked_mul(multiplier).ok_or_else(too_many)?)
                }
                _ => None,
            }
        }
    };
    let mut places = [None; 2];
    for (axis, place) in places.iter_mut().enumerate() {
        if let (Some(size), Some(taps)) = (image.dim(format.spatial()[axis]), filter.dim(axis)) {
            *place = Some(window.places(axis, size, taps)?.count);
        }
    }
    Ok(Shape::partial(format.arrange(image.dim(0), places, filters)))
}

/// The facts of an op that computes a part of a convolution.
pub(super) fn infer(kind: Kind, of: Of, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
    c.want_inputs(if of == Of::Output { 2 } else { 3 })?;
    let (first, second) = match of {
        Of::Output => (0, 1),
        Of::Image => (1, 2),
        Of::Filter => (0, 2),
    };
    let dtype = c.dtype(first);
    if !dtype.is_floating() || c.dtype(second) != dtype {
        let other = c.dtype(second);
        return Err(format!("image and filter must both be float32 or float64, got {dtype} and {other}; cast them"));
    }
    let (image, filter) = match of {
        Of::Output => {
            return Ok(vec![sized(dtype, output_shape(kind, c.attrs, c.shape(0), c.shape(1))?)?]);
        }
        Of::Image => (image_shape(c)?, c.shape(1).clone()),
        Of::Filter => (c.shape(0).clone(), given_shape(c, 1, "filter_sizes")?),
    };
    let want = output_shape(kind, c.attrs, &image, &filter)?;
    if !want.is_compatible_with(c.shape(2)) {
        return Err(format!(
            "the output's gradient must have the output's shape: image {image} by filter {filter} make {want}, got {}",
            c.shape(2)
        ));
    }
    let result = if of == Of::Image { image } else { filter };
    Ok(vec![sized(dtype, result)?])
}

/// The shape that an input of sizes gives.
fn given_shape(c: &InferContext<'_>, input: usize, what: &str) -> Result<Shape, String> {
    match int_vector(c, input, what)? {
        Some(values) if values.len() == 4 => Ok(Shape::known(&sizes_from(&values, what)?)),
        Some(values) => Err(format!("{what} must have 4 entries, got {values:?}")),
        None => Ok(Shape::of_rank(4)),
    }
}

/// The image's shape, of which `input_sizes` may give height and width alone.
fn image_shape(c: &InferContext<'_>) -> Result<Shape, String> {
    let what = "input_sizes";
    let format = DataFormat::of(c.attrs)?;
    match int_vector(c, 0, what)? {
        Some(values) if values.len() == 2 => {
            let sizes = sizes_from(&values, what)?;
            let spatial = [Some(sizes[0]), Some(sizes[1])];
            Ok(Shape::partial(format.arrange(c.shape(2).dim(0), spatial, c.shape(1).dim(2))))
        }
        _ => given_shape(c, 0, what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conv(size: usize, taps: usize, stride: usize, dilation: usize, padding: &str) -> Option<Conv> {
        let attrs = Attrs::new().with("strides", vec![1, stride as i64, 1, 1]).with("padding", padding);
        let attrs = attrs.with("dilations", vec![1, dilation as i64, 1, 1]);
        Conv::new(Kind::Full, &attrs, &[1, size, 1, 1], &[taps, 1, 1, 1]).ok()
    }

    /// (output, image, tap) of all products.
    fn meetings(axes: &[Axis], forward: bool) -> Vec<(usize, usize, usize)> {
        let mut all = Vec::new();
        for axis in axes {
            for i in 0..axis.count {
                for j in 0..axis.taps {
                    let source = axis.source(i, j);
                    assert_eq!(source.is_some(), axis.seen(i).contains(&j), "{axis:?}");
                    assert_eq!(source.is_some(), axis.seeing(j).contains(&i), "{axis:?}");
                    let (result, tap) = (axis.first + i * axis.stride, axis.tap(j));
                    let pair = source.map(|s| if forward { (result, s, tap) } else { (s, result, tap) });
                    all.extend(pair);
                }
            }
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn backward_meets_what_forward_met() {
        let mut count = 0;
        for size in 1..8 {
            for (taps, stride, dilation) in
                (1..5).flat_map(|t| (1..5).flat_map(move |s| (1..5).map(move |d| (t, s, d))))
            {
                for padding in ["SAME", "VALID"] {
                    let Some(conv) = conv(size, taps, stride, dilation, padding) else { continue };
                    let forward = meetings(&[conv.forward(0)], true);
                    assert_eq!(meetings(&conv.backward(0), false), forward, "{conv:?}");
                    count += forward.len();
                }
            }
        }
        assert!(count > 1000);
    }

    #[test]
    fn a_plain_axis_is_one_to_one() {
        assert!(conv(5, 1, 1, 3, "SAME").is_some_and(|c| c.forward(0).is_plain() && c.backward(0)[0].is_plain()));
        assert!(conv(5, 1, 2, 1, "SAME").is_some_and(|c| !c.forward(0).is_plain()));
        assert!(conv(5, 3, 1, 1, "SAME").is_some_and(|c| !c.forward(0).is_plain()));
    }
}
