//! Shapes of values ([`Shape`]), and shapes as far as they are known before a run
//! ([`PartialShape`]).

use std::fmt;
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use super::DType;

/// Dimensions of a value, outermost first; a scalar has none. Tensors are row-major.
#[derive(Clone, Eq, Default)]
pub struct Shape(SmallVec<[usize; 4]>);

// The derived one calls `memcmp`, even for scalars: 8 % of a loop over scalars.
impl PartialEq for Shape {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let (left, right) = (self.0.as_slice(), other.0.as_slice());
        left.len() == right.len() && left.iter().zip(right).all(|(left, right)| left == right)
    }
}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// The number of bytes exceeds the address space.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a tensor of shape {shape} and type {dtype} is larger than this machine can address")]
pub struct ShapeTooLarge {
    /// The shape in question.
    pub shape: Shape,
    /// Its element type.
    pub dtype: DType,
}

impl Shape {
    /// Returns the shape `[]`, which has one element.
    pub fn scalar() -> Self {
        Self::default()
    }

    /// Returns the shape with these dimensions.
    pub fn new(dims: &[usize]) -> Self {
        Self(SmallVec::from_slice(dims))
    }

    /// Returns the dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of elements: 1 for a scalar, 0 if any dimension is 0. Saturates; every
    /// [`super::Tensor`] is smaller.
    pub fn n_elements(&self) -> usize {
        if self.0.contains(&0) {
            return 0;
        }
        self.0
            .iter()
            .fold(1, |product: usize, &dim| product.saturating_mul(dim))
    }

    /// Returns the bytes of a tensor of this shape.
    ///
    /// # Errors
    /// [`ShapeTooLarge`] above `isize::MAX` bytes. Types without a fixed size count one byte per
    /// element.
    pub fn size_bytes(&self, dtype: DType) -> Result<usize, ShapeTooLarge> {
        let element = dtype.size_bytes().unwrap_or(1);
        self.n_elements()
            .checked_mul(element)
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| ShapeTooLarge {
                shape: self.clone(),
                dtype,
            })
    }
}

/// Maximum number of dimensions of a tensor: TensorFlow's limit.
pub(crate) const RANK_MAX: usize = 254;

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self::new(dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self::new(&dims)
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Self {
        Self(dims.into_iter().collect())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Shape {
    /// Writes `[1,28,28,6]`, as TensorFlow prints shapes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

/// What is known of a shape before a run: nothing, the rank, or the rank and some dimensions.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct PartialShape(Option<SmallVec<[Option<usize>; 4]>>);

impl PartialShape {
    /// Returns a shape of which nothing is known.
    pub fn unknown() -> Self {
        Self(None)
    }

    /// Returns the shape of a scalar.
    pub fn scalar() -> Self {
        Self(Some(SmallVec::new()))
    }

    /// Returns a shape of known rank and unknown dimensions.
    pub fn of_rank(rank: usize) -> Self {
        Self(Some(SmallVec::from_elem(None, rank)))
    }

    /// Returns a shape of known rank; an unknown dimension is `None`.
    pub fn new(dims: &[Option<usize>]) -> Self {
        Self(Some(SmallVec::from_slice(dims)))
    }

    /// Returns the dimensions, if the rank is known.
    pub fn dims(&self) -> Option<&[Option<usize>]> {
        self.0.as_deref()
    }

    /// Returns the number of dimensions, if known.
    pub fn rank(&self) -> Option<usize> {
        self.0.as_ref().map(SmallVec::len)
    }

    /// Returns one dimension; `None` if it or the rank is unknown, or it does not exist.
    pub fn dim(&self, axis: usize) -> Option<usize> {
        self.dims()
            .and_then(|dims| dims.get(axis).copied().flatten())
    }

    /// Returns the shape, if all of it is known.
    pub fn to_shape(&self) -> Option<Shape> {
        self.dims()?
            .iter()
            .copied()
            .collect::<Option<SmallVec<_>>>()
            .map(Shape)
    }

    /// Returns the bytes of a tensor of this shape, if all of it is known and the type has a fixed
    /// size; [`u64::MAX`] if they exceed the address space.
    pub fn size_bytes(&self, dtype: DType) -> Option<u64> {
        dtype.size_bytes()?;
        let bytes = self.to_shape()?.size_bytes(dtype);
        Some(bytes.map_or(u64::MAX, |bytes| bytes as u64))
    }

    /// Returns whether a value of shape `shape` agrees with this shape.
    pub fn matches(&self, shape: &Shape) -> bool {
        self.dims().is_none_or(|dims| {
            dims.len() == shape.rank()
                && dims
                    .iter()
                    .zip(shape.dims())
                    .all(|(known, &dim)| known.is_none_or(|k| k == dim))
        })
    }

    /// Merges what is known of both; `None` if they contradict each other.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Option<Self> {
        let (Some(a), Some(b)) = (&self.0, &other.0) else {
            return Some(if self.0.is_some() {
                self.clone()
            } else {
                other.clone()
            });
        };
        if a.len() != b.len() {
            return None;
        }
        a.iter()
            .zip(b)
            .map(|(a, b)| match (a, b) {
                (Some(a), Some(b)) if a != b => None,
                (Some(dim), _) | (None, Some(dim)) => Some(Some(*dim)),
                (None, None) => Some(None),
            })
            .collect::<Option<SmallVec<_>>>()
            .map(|dims| Self(Some(dims)))
    }

    /// Returns what holds for both: dimensions and ranks that differ are unknown.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        match (self.dims(), other.dims()) {
            (Some(a), Some(b)) if a.len() == b.len() => {
                let both = a.iter().zip(b);
                both.map(|(a, b)| a.filter(|_| a == b)).collect()
            }
            _ => Self::unknown(),
        }
    }

    /// Returns whether each shape that agrees with `self` also agrees with `other`.
    pub fn implies(&self, other: &Self) -> bool {
        self.common(other) == *other
    }
}

impl From<&Shape> for PartialShape {
    fn from(shape: &Shape) -> Self {
        Self(Some(shape.dims().iter().map(|&dim| Some(dim)).collect()))
    }
}

impl From<Shape> for PartialShape {
    fn from(shape: Shape) -> Self {
        Self::from(&shape)
    }
}

impl From<&[usize]> for PartialShape {
    /// All dimensions are known.
    fn from(dims: &[usize]) -> Self {
        dims.iter().map(|&dim| Some(dim)).collect()
    }
}

impl<const N: usize> From<[usize; N]> for PartialShape {
    /// All dimensions are known.
    fn from(dims: [usize; N]) -> Self {
        Self::from(dims.as_slice())
    }
}

impl From<&[Option<usize>]> for PartialShape {
    fn from(dims: &[Option<usize>]) -> Self {
        Self::new(dims)
    }
}

impl<const N: usize> From<[Option<usize>; N]> for PartialShape {
    fn from(dims: [Option<usize>; N]) -> Self {
        Self::new(&dims)
    }
}

impl FromIterator<Option<usize>> for PartialShape {
    fn from_iter<I: IntoIterator<Item = Option<usize>>>(dims: I) -> Self {
        Self(Some(dims.into_iter().collect()))
    }
}

impl fmt::Debug for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PartialShape {
    /// Writes `[?,28]`, or `<unknown>` if the rank is unknown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(dims) = self.dims() else {
            return f.write_str("<unknown>");
        };
        f.write_str("[")?;
        for (i, dim) in dims.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match dim {
                Some(dim) => write!(f, "{dim}")?,
                None => f.write_str("?")?,
            }
        }
        f.write_str("]")
    }
}
