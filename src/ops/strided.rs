//! What a `StridedSlice` selects: TensorFlow's `ValidateStridedSliceOp`, with unknown sizes.

use super::support::sizes_from;
use crate::base::Shape;
use crate::graph::Attrs;

/// The five masks; bit `i` is about entry `i` of begin, end and strides.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Masks {
    pub begin: i64,
    pub end: i64,
    pub ellipsis: i64,
    pub new_axis: i64,
    pub shrink_axis: i64,
}

/// The names of the attributes, in TensorFlow's order.
pub(super) const MASKS: [&str; 5] = ["begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"];

impl Masks {
    /// The masks of a node.
    pub fn of(attrs: &Attrs) -> Masks {
        let [begin, end, ellipsis, new_axis, shrink_axis] = MASKS.map(|name| attrs.int(name).unwrap_or(0));
        Masks { begin, end, ellipsis, new_axis, shrink_axis }
    }

    /// The values in the order of [`MASKS`].
    pub fn values(self) -> [i64; 5] {
        [self.begin, self.end, self.ellipsis, self.new_axis, self.shrink_axis]
    }
}

/// What is selected of one axis of the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selected {
    pub begin: i64,
    pub stride: i64,
    pub size: Option<usize>,
}

/// What is selected of a tensor: by input axis, and the output's shape.
#[derive(Debug)]
pub(super) struct Selection {
    pub axes: Vec<Selected>,
    pub shape: Shape,
}

fn bit(mask: i64, i: usize) -> bool {
    i < 63 && mask >> i & 1 == 1
}

/// The selection of these ends from a tensor whose rank is known.
pub(super) fn select(
    dims: &[Option<usize>],
    begin: &[i64],
    end: &[i64],
    strides: &[i64],
    masks: Masks,
) -> Result<Selection, String> {
    let entries = begin.len();
    if end.len() != entries || strides.len() != entries {
        let (b, e, s) = (begin.len(), end.len(), strides.len());
        return Err(format!("begin, end and strides must have one length, got {b}, {e} and {s}"));
    }
    if entries > 62 {
        return Err(format!("at most 62 entries can be masked, got {entries}"));
    }
    let ellipses: Vec<usize> = (0..entries).filter(|&i| bit(masks.ellipsis, i)).collect();
    if ellipses.len() > 1 {
        return Err("there can be only one ellipsis".into());
    }
    // An ellipsis is implied at the end.
    let ellipsis = ellipses.first().copied().unwrap_or(entries);
    let used = (0..entries).filter(|&i| i != ellipsis && !(bit(masks.new_axis, i))).count();
    if used > dims.len() {
        return Err(format!("{used} axes are indexed, but the tensor has rank {}", dims.len()));
    }
    let mut axes = Vec::with_capacity(dims.len());
    let mut shape = Vec::new();
    for i in 0..=entries {
        if i == ellipsis {
            for &size in &dims[axes.len()..][..dims.len() - used] {
                axes.push(Selected { begin: 0, stride: 1, size });
                shape.push(size);
            }
        } else if i == entries {
            break;
        } else if bit(masks.new_axis, i) {
            shape.push(Some(1));
        } else {
            let axis = axes.len();
            let shrink = bit(masks.shrink_axis, i);
            let open = [bit(masks.begin, i), bit(masks.end, i)];
            let selected = select_axis(axis, dims[axis], [begin[i], end[i]], strides[i], open, shrink)?;
            if !shrink {
                shape.push(selected.size);
            }
            axes.push(selected);
        }
    }
    Ok(Selection { axes, shape: Shape::partial(shape) })
}

fn select_axis(
    axis: usize,
    dim: Option<usize>,
    ends: [i64; 2],
    stride: i64,
    open: [bool; 2],
    shrink: bool,
) -> Result<Selected, String> {
    if stride == 0 {
        return Err(format!("the stride of axis {axis} must not be 0"));
    }
    if shrink && stride < 0 {
        return Err(format!("a single index wants stride 1, got {stride} on axis {axis}"));
    }
    let Some(size) = dim.and_then(|d| i64::try_from(d).ok()) else {
        return Ok(Selected { begin: ends[0], stride, size: shrink.then_some(1) });
    };
    let from_end = |x: i64| if x < 0 { size + x } else { x };
    if shrink {
        let begin = from_end(ends[0]);
        if !(0..size).contains(&begin) {
            return Err(format!("index {} is out of range for axis {axis} of size {size}", ends[0]));
        }
        return Ok(Selected { begin, stride: 1, size: Some(1) });
    }
    let bounds = if stride > 0 { [0, size] } else { [size - 1, -1] };
    let (low, high) = (bounds[0].min(bounds[1]), bounds[0].max(bounds[1]));
    let end_of = |c: usize| if open[c] { bounds[c] } else { from_end(ends[c]).clamp(low, high) };
    let (begin, interval) = (end_of(0), end_of(1) - end_of(0));
    let count = match interval == 0 || (interval < 0) != (stride < 0) {
        true => 0,
        false => interval / stride + i64::from(interval % stride != 0),
    };
    Ok(Selected { begin, stride, size: usize::try_from(count).ok() })
}

/// The selection that a node makes of a tensor of these sizes, from the values of its inputs.
pub(super) fn selection(
    dims: &[Option<usize>],
    ends: [Option<Vec<i64>>; 3],
    attrs: &Attrs,
) -> Result<Option<Selection>, String> {
    let [Some(begin), Some(end), Some(strides)] = ends else { return Ok(None) };
    select(dims, &begin, &end, &strides, Masks::of(attrs)).map(Some)
}

/// The sizes that a shape vector gives, all known.
pub(super) fn known(sizes: &[i64]) -> Result<Vec<Option<usize>>, String> {
    Ok(sizes_from(sizes, "sizes")?.into_iter().map(Some).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize], begin: &[i64], end: &[i64], strides: &[i64], masks: Masks) -> Result<String, String> {
        let dims: Vec<Option<usize>> = dims.iter().map(|&d| Some(d)).collect();
        select(&dims, begin, end, strides, masks).map(|s| s.shape.to_string())
    }

    #[test]
    fn ends_are_clamped_and_never_overflow() {
        let all = Masks::default();
        assert_eq!(shape(&[5], &[i64::MIN], &[i64::MAX], &[1], all).as_deref(), Ok("[5]"));
        assert_eq!(shape(&[5], &[i64::MAX], &[i64::MIN], &[i64::MIN], all).as_deref(), Ok("[1]"));
        assert_eq!(shape(&[5], &[3], &[1], &[1], all).as_deref(), Ok("[0]"));
        assert!(shape(&[5], &[0], &[1], &[0], all).is_err());
    }

    #[test]
    fn masks_add_drop_and_fill_axes() {
        let masks = Masks { ellipsis: 1, new_axis: 2, ..Masks::default() };
        assert_eq!(shape(&[2, 3, 4], &[0, 0, 1], &[0, 0, 3], &[1, 1, 1], masks).as_deref(), Ok("[2, 3, 1, 2]"));
        let masks = Masks { shrink_axis: 1, ..Masks::default() };
        assert_eq!(shape(&[2, 3], &[-1], &[0], &[1], masks).as_deref(), Ok("[3]"));
        assert!(shape(&[2, 3], &[2], &[3], &[1], masks).is_err());
        assert!(shape(&[2], &[0, 0], &[1, 1], &[1, 1], Masks::default()).is_err());
    }
}
