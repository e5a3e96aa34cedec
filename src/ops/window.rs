//! Windows that move over images: data format, strides, dilations and padding as attributes, and how many places a
//! window has along an axis.
//!
//! Absent: what is computed in a window (`conv.rs`, `depthwise.rs`, `pool.rs`).

use crate::graph::Attrs;

/// Where the axes of an image tensor are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DataFormat {
    /// `[batch, height, width, channels]`.
    #[default]
    Nhwc,
    /// `[batch, channels, height, width]`.
    Nchw,
}

impl DataFormat {
    /// TensorFlow's name, as in `NHWC`.
    pub fn name(self) -> &'static str {
        match self {
            DataFormat::Nhwc => "NHWC",
            DataFormat::Nchw => "NCHW",
        }
    }

    /// The axes of height and width.
    pub fn spatial(self) -> [usize; 2] {
        match self {
            DataFormat::Nhwc => [1, 2],
            DataFormat::Nchw => [2, 3],
        }
    }

    /// The axis of the channels.
    pub fn channels(self) -> usize {
        match self {
            DataFormat::Nhwc => 3,
            DataFormat::Nchw => 1,
        }
    }

    /// What attribute `data_format` says; `NHWC` where it is not set.
    pub(super) fn of(attrs: &Attrs) -> Result<DataFormat, String> {
        match attrs.str("data_format") {
            None | Some("NHWC") => Ok(DataFormat::Nhwc),
            Some("NCHW") => Ok(DataFormat::Nchw),
            Some(other) => Err(format!("attribute 'data_format' must be NHWC or NCHW, got '{other}'")),
        }
    }

    /// A tensor's batch, spatial and channel entries, in the order of its axes.
    pub(super) fn arrange<T: Copy>(self, batch: T, spatial: [T; 2], channels: T) -> [T; 4] {
        match self {
            DataFormat::Nhwc => [batch, spatial[0], spatial[1], channels],
            DataFormat::Nchw => [batch, channels, spatial[0], spatial[1]],
        }
    }
}

/// What lies around an image.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Padding {
    /// As much on either side as gives `ceil(size / stride)` places; where it is odd, the more lies after.
    Same,
    /// Nothing.
    #[default]
    Valid,
    /// So many before and after the height, and before and after the width.
    Explicit([(usize, usize); 2]),
}

impl Padding {
    /// TensorFlow's name, as in `SAME`.
    pub fn name(self) -> &'static str {
        match self {
            Padding::Same => "SAME",
            Padding::Valid => "VALID",
            Padding::Explicit(_) => "EXPLICIT",
        }
    }

    /// The value of attribute `explicit_paddings`.
    pub(super) fn explicit(self, format: DataFormat) -> Vec<i64> {
        let Padding::Explicit(pads) = self else { return Vec::new() };
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let pads = pads.map(|(before, after)| [number(before), number(after)]);
        format.arrange([0, 0], pads, [0, 0]).concat()
    }
}

/// The largest padded size: offsets within it can be added and subtracted without a thought.
const MOST: usize = isize::MAX as usize / 4;

/// A window's attributes, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub format: DataFormat,
    /// Of height and width, as all below.
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub padding: Padding,
}

/// A window's places along an axis, and the padding that they need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Places {
    pub count: usize,
    /// Padding before the image.
    pub before: usize,
    /// Padding after it that some window sees.
    pub after: usize,
}

/// A number of an attribute, all of which TensorFlow keeps in 32 bits.
fn number(value: i64, least: i64, name: &str) -> Result<usize, String> {
    match i32::try_from(value) {
        Ok(small) if value >= least => Ok(small as usize),
        _ => Err(format!("attribute '{name}' must have numbers of {least} to {}, got {value}", i32::MAX)),
    }
}

/// The entries for height and width of an attribute that has one for every axis; the others must be 1. Where it is not
/// set all are 1, if that is allowed.
pub(super) fn spatial_pair(
    attrs: &Attrs,
    name: &str,
    format: DataFormat,
    required: bool,
) -> Result<[usize; 2], String> {
    let values = attrs.ints(name);
    if values.is_empty() && !required {
        return Ok([1, 1]);
    }
    let &[_, _, _, _] = values else {
        let of = format.name();
        return Err(format!("attribute '{name}' must have 4 numbers, one for each axis of {of}, got {values:?}"));
    };
    let [y, x] = format.spatial();
    for axis in [0, format.channels()] {
        if values[axis] != 1 {
            let of = if axis == 0 { "the batch" } else { "the channels" };
            return Err(format!("attribute '{name}' must be 1 along {of} (axis {axis}), got {values:?}"));
        }
    }
    Ok([number(values[y], 1, name)?, number(values[x], 1, name)?])
}

impl Window {
    /// The window that attributes `strides`, `dilations`, `padding`, `explicit_paddings` and `data_format` describe.
    pub fn of(attrs: &Attrs) -> Result<Window, String> {
        let format = DataFormat::of(attrs)?;
        let strides = spatial_pair(attrs, "strides", format, true)?;
        let dilations = spatial_pair(attrs, "dilations", format, false)?;
        let explicit = attrs.ints("explicit_paddings");
        let padding = match attrs.str("padding") {
            Some("SAME") => Padding::Same,
            Some("VALID") => Padding::Valid,
            Some("EXPLICIT") => Padding::Explicit(explicit_pads(explicit, format)?),
            other => {
                let got = other.unwrap_or("nothing");
                return Err(format!("attribute 'padding' must be SAME, VALID or EXPLICIT, got {got}"));
            }
        };
        if !explicit.is_empty() && !matches!(padding, Padding::Explicit(_)) {
            let of = padding.name();
            return Err(format!("attribute 'explicit_paddings' is only for padding EXPLICIT; with {of} leave it out"));
        }
        Ok(Window { format, strides, dilations, padding })
    }

    /// The places of a window of `taps` elements on height (axis 0) or width (axis 1) of this size.
    ///
    /// TensorFlow's `GetWindowedOutputSizeVerbose`: with `extent = (taps - 1) * dilation + 1`, `SAME` has
    /// `ceil(size / stride)` places, the others `floor((padded size - extent) / stride) + 1`.
    pub fn places(&self, axis: usize, size: usize, taps: usize) -> Result<Places, String> {
        let what = ["height", "width"][axis];
        let too_large =
            || format!("a window of {taps} along the {what}, which is {size}, is beyond what can be counted");
        let (stride, dilation) = (self.strides[axis], self.dilations[axis]);
        let reach =
            taps.checked_sub(1).ok_or_else(|| format!("a window must have elements, got 0 along the {what}"))?;
        let extent = reach.checked_mul(dilation).and_then(|r| r.checked_add(1)).ok_or_else(too_large)?;
        let (before, after) = match self.padding {
            Padding::Same => {
                let count = size.div_ceil(stride);
                let last = count.saturating_sub(1).checked_mul(stride).ok_or_else(too_large)?;
                let covered = last.checked_add(extent).ok_or_else(too_large)?;
                if covered > MOST {
                    return Err(too_large());
                }
                let missing = if count == 0 { 0 } else { covered.saturating_sub(size) };
                return Ok(Places { count, before: missing / 2, after: missing - missing / 2 });
            }
            Padding::Valid => (0, 0),
            Padding::Explicit(pads) => pads[axis],
        };
        let padded = size.checked_add(before).and_then(|s| s.checked_add(after)).ok_or_else(too_large)?;
        if padded > MOST {
            return Err(too_large());
        }
        match padded.checked_sub(extent) {
            Some(room) => Ok(Places { count: room / stride + 1, before, after }),
            None => Err(format!(
                "the window is larger than the image: it reaches over {extent} along the {what} (size {taps}, dilation \
                 {dilation}), the image has {padded} with its padding; use a smaller window or padding SAME"
            )),
        }
    }
}

/// The padding of height and width; there must be none along the other axes.
fn explicit_pads(values: &[i64], format: DataFormat) -> Result<[(usize, usize); 2], String> {
    let name = "explicit_paddings";
    if values.len() != 8 {
        let of = format.name();
        return Err(format!("attribute '{name}' must have 8 numbers, two for each axis of {of}, got {values:?}"));
    }
    let pair = |axis: usize| -> Result<(usize, usize), String> {
        Ok((number(values[2 * axis], 0, name)?, number(values[2 * axis + 1], 0, name)?))
    };
    for axis in [0, format.channels()] {
        if pair(axis)? != (0, 0) {
            let of = if axis == 0 { "the batch" } else { "the channels" };
            return Err(format!("attribute '{name}' must be 0 along {of} (axis {axis}), got {values:?}"));
        }
    }
    let [y, x] = format.spatial();
    Ok([pair(y)?, pair(x)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(stride: usize, dilation: usize, padding: Padding) -> Window {
        Window { format: DataFormat::Nhwc, strides: [stride, 1], dilations: [dilation, 1], padding }
    }

    fn places(count: usize, before: usize, after: usize) -> Result<Places, String> {
        Ok(Places { count, before, after })
    }

    #[test]
    fn places_are_tensorflows() {
        assert_eq!(window(1, 1, Padding::Same).places(0, 5, 3), places(5, 1, 1));
        assert_eq!(window(2, 1, Padding::Same).places(0, 6, 3), places(3, 0, 1));
        assert_eq!(window(2, 1, Padding::Same).places(0, 5, 3), places(3, 1, 1));
        assert_eq!(window(3, 1, Padding::Same).places(0, 7, 2), places(3, 0, 1));
        assert_eq!(window(1, 2, Padding::Same).places(0, 9, 3), places(9, 2, 2));
        assert_eq!(window(1, 1, Padding::Same).places(0, 0, 3), places(0, 0, 0));
        assert_eq!(window(2, 1, Padding::Valid).places(0, 6, 3), places(2, 0, 0));
        assert_eq!(window(3, 1, Padding::Valid).places(0, 4, 1), places(2, 0, 0));
        assert_eq!(window(1, 1, Padding::Explicit([(5, 0), (0, 0)])).places(0, 4, 3), places(7, 5, 0));
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let error = window(2, 2, Padding::Valid).places(0, 4, 3).unwrap_err();
        assert!(error.contains("reaches over 5") && error.contains("the image has 4"), "{error}");
        assert!(window(1, 1, Padding::Valid).places(0, usize::MAX, 3).is_err());
        assert!(window(1, usize::MAX, Padding::Same).places(0, 4, 3).is_err());
        assert!(window(1, 1, Padding::Same).places(0, 4, 0).is_err());
        let attrs = || Attrs::new().with("strides", vec![1i64, 1, 1, 1]).with("padding", "SAME");
        assert!(Window::of(&attrs()).is_ok());
        for (name, values, said) in [
            ("strides", vec![1i64, 0, 1, 1], "numbers of 1 to"),
            ("strides", vec![2, 1, 1, 1], "along the batch"),
            ("strides", vec![1, 1, 1], "must have 4 numbers"),
            ("dilations", vec![1, 1, 1, 2], "along the channels"),
            ("explicit_paddings", vec![0; 8], "only for padding EXPLICIT"),
        ] {
            let error = Window::of(&attrs().with(name, values)).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        for (values, said) in [(vec![0i64; 6], "8 numbers"), (vec![0, 0, -1, 0, 0, 0, 0, 0], "numbers of 0 to")] {
            let attrs = attrs().with("padding", "EXPLICIT").with("explicit_paddings", values);
            let error = Window::of(&attrs).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
