//! Shapes with unknown parts, and the fully known dimensions of a buffer.

use smallvec::SmallVec;
use std::fmt;

/// The sizes of a tensor whose shape is fully known.
pub type Dims = SmallVec<[usize; 4]>;

/// The size that stands for a dimension whose error is already reported; nothing more is said about it.
pub const POISON_DIM: usize = usize::MAX;

/// Elements of a tensor with these sizes; `None` when the count does not fit.
pub fn num_elements(dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

/// A shape of which single sizes (`?`) or even the rank may be unknown.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Option<SmallVec<[Option<usize>; 4]>>);

impl Shape {
    /// A shape of unknown rank.
    pub fn unknown() -> Shape {
        Shape(None)
    }

    /// The shape `[]`.
    pub fn scalar() -> Shape {
        Shape(Some(SmallVec::new()))
    }

    /// A shape of this rank whose sizes are all unknown.
    pub fn of_rank(rank: usize) -> Shape {
        Shape(Some(smallvec::smallvec![None; rank]))
    }

    /// A fully known shape.
    pub fn known(dims: &[usize]) -> Shape {
        Shape(Some(dims.iter().map(|&d| Some(d)).collect()))
    }

    /// A shape of known rank; `None` is an unknown size.
    pub fn partial(dims: impl IntoIterator<Item = Option<usize>>) -> Shape {
        Shape(Some(dims.into_iter().collect()))
    }

    /// The rank, if known.
    pub fn rank(&self) -> Option<usize> {
        self.0.as_ref().map(|d| d.len())
    }

    /// The sizes, if the rank is known.
    pub fn dims(&self) -> Option<&[Option<usize>]> {
        self.0.as_deref()
    }

    /// The size of one axis: `None` when it, or the rank, is unknown or the axis is not there.
    pub fn dim(&self, axis: usize) -> Option<usize> {
        self.0.as_ref().and_then(|d| d.get(axis).copied().flatten())
    }

    /// The sizes, if all are known.
    pub fn to_dims(&self) -> Option<Dims> {
        self.0.as_ref()?.iter().copied().collect()
    }

    /// True if rank and sizes are all known.
    pub fn is_fully_defined(&self) -> bool {
        self.0.as_ref().is_some_and(|d| d.iter().all(Option::is_some))
    }

    /// The number of elements, if fully known and representable.
    pub fn num_elements(&self) -> Option<usize> {
        num_elements(&self.to_dims()?)
    }

    /// True if a tensor of the other shape could be of this one: unknown sizes match anything.
    pub fn is_compatible_with(&self, other: &Shape) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_none() || b.is_none() || a == b)
            }
            _ => true,
        }
    }

    /// What is known when both hold; `None` if they contradict each other.
    pub fn merge(&self, other: &Shape) -> Option<Shape> {
        match (&self.0, &other.0) {
            (None, _) => Some(other.clone()),
            (_, None) => Some(self.clone()),
            (Some(a), Some(b)) if self.is_compatible_with(other) => {
                Some(Shape(Some(a.iter().zip(b).map(|(a, b)| a.or(*b)).collect())))
            }
            _ => None,
        }
    }

    /// True if this was made with a size whose error is already reported.
    pub fn is_poisoned(&self) -> bool {
        self.0.as_ref().is_some_and(|d| d.contains(&Some(POISON_DIM)))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(dims) = &self.0 else { return f.write_str("<unknown>") };
        f.write_str("[")?;
        for (i, d) in dims.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            match d {
                Some(d) => write!(f, "{separator}{d}")?,
                None => write!(f, "{separator}?")?,
            }
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What can be given as a fully known shape: `[2, 3]`, `[]`, a slice or a vector of sizes.
pub trait IntoShape {
    /// The shape.
    fn into_shape(self) -> Shape;
}

impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self) -> Shape {
        Shape::known(&self)
    }
}

impl IntoShape for &[usize] {
    fn into_shape(self) -> Shape {
        Shape::known(self)
    }
}

impl IntoShape for Vec<usize> {
    fn into_shape(self) -> Shape {
        Shape::known(&self)
    }
}

impl IntoShape for Shape {
    fn into_shape(self) -> Shape {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_keeps_what_either_knows() {
        let a = Shape::partial([None, Some(3)]);
        let b = Shape::partial([Some(2), None]);
        assert_eq!(a.merge(&b), Some(Shape::known(&[2, 3])));
        assert_eq!(a.merge(&Shape::known(&[2, 4])), None);
        assert_eq!(a.merge(&Shape::unknown()), Some(a.clone()));
        assert_eq!(a.to_string(), "[?, 3]");
    }

    #[test]
    fn element_counts_that_do_not_fit_are_none() {
        assert_eq!(num_elements(&[usize::MAX, 2]), None);
        assert_eq!(num_elements(&[]), Some(1));
    }
}
