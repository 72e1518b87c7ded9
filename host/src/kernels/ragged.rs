//! Rows of different lengths.

use crate::tensor::Shape;

/// How the rows of an axis are given (TensorFlow `RowPartitionType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// The size of the first axis.
    FirstSize,
    /// Per value the number of its row.
    RowIds,
    /// The starts of rows, and the end of the last one.
    Splits,
}

impl Partition {
    /// Returns the one of this name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        match name {
            b"FIRST_DIM_SIZE" => Some(Self::FirstSize),
            b"VALUE_ROWIDS" => Some(Self::RowIds),
            b"ROW_SPLITS" => Some(Self::Splits),
            _ => None,
        }
    }
}

/// Where the values of a ragged tensor are in a dense one (TensorFlow `RaggedTensorToTensor`).
#[derive(Debug)]
pub struct Dense {
    /// The shape of the dense tensor.
    pub shape: Shape,
    /// The number of ragged axes.
    n_ragged: usize,
    /// Per row of values its row in the dense tensor, if it is there.
    pub places: smallvec::SmallVec<[Option<usize>; 8]>,
}

impl Dense {
    /// Plans a conversion. `requested` is the shape that is asked for, in which -1 is as large as
    /// necessary.
    ///
    /// # Errors
    /// TensorFlow's message, if partitions, values and shape contradict each other.
    pub fn plan(
        partitions: &[(Partition, impl AsRef<[i64]>)],
        requested: Option<&[i64]>,
        values: &Shape,
    ) -> Result<Self, String> {
        let (first, rest) = partitions
            .split_first()
            .ok_or("No row_partition_types given.")?;
        let n_first = match (first.0, first.1.as_ref()) {
            (Partition::FirstSize, &[n, ..]) => n,
            (Partition::Splits, splits) if !splits.is_empty() => {
                i64::try_from(splits.len() - 1).unwrap_or(i64::MAX)
            }
            (Partition::RowIds, _) => {
                return Err("Cannot handle VALUE_ROWIDS in first dimension.".to_owned());
            }
            _ => {
                return Err(
                    "Invalid first partition input. Tensor requires at least one element."
                        .to_owned(),
                );
            }
        };
        let n_first = size(n_first)?;
        let levels = if first.0 == Partition::FirstSize {
            rest
        } else {
            partitions
        };
        let n_ragged = levels.len();
        let inner = values.dims().get(1..).unwrap_or_default();
        let rank = n_ragged + 1 + inner.len();
        let mut sizes: smallvec::SmallVec<[usize; 8]> = smallvec::SmallVec::new();
        if let Some(requested) = requested
            && requested.len() != rank
        {
            return Err(format!(
                "rt_input.shape and shape={requested:?} are incompatible: rt_input.rank = {rank} \
                 but shape.rank = {}",
                requested.len()
            ));
        }
        for axis in 0..rank {
            let asked = requested.map_or(-1, |requested| requested[axis]);
            let natural = match axis {
                0 => n_first,
                axis if axis <= n_ragged => widest(&levels[axis - 1])?,
                axis => inner[axis - n_ragged - 1],
            };
            sizes.push(match asked {
                -1 => natural,
                asked => size(asked)?,
            });
            if axis > n_ragged && sizes[axis] != natural {
                return Err(format!(
                    "Inconsistent shapes: shape[{axis}] = {asked} but rt_input.shape[{axis}] = \
                     {natural}"
                ));
            }
        }
        let shape: Shape = sizes.iter().copied().collect();
        // The place of each row of an axis, in rows of the axis after it.
        let mut places: smallvec::SmallVec<[Option<usize>; 8]> = smallvec::SmallVec::new();
        let asked_for = sizes[0];
        places
            .try_reserve(n_first)
            .map_err(|_| format!("there is not enough memory for {n_first} rows"))?;
        places.extend((0..n_first).map(|row| (row < asked_for).then_some(row)));
        for (axis, level) in levels.iter().enumerate() {
            places = inside(level, &places, sizes[axis + 1])?;
        }
        let n_rows = values.dims().first().copied().unwrap_or(0);
        if n_rows != places.len() {
            return Err(format!(
                "The last dimension of values must match the partitions: there are {n_rows} values, \
                 expected {}",
                places.len()
            ));
        }
        Ok(Self {
            shape,
            n_ragged,
            places,
        })
    }

    /// Returns the shape of one row of values.
    pub fn element(&self) -> Shape {
        Shape::new(&self.shape.dims()[self.n_ragged + 1..])
    }
}

fn size(size: i64) -> Result<usize, String> {
    usize::try_from(size).map_err(|_| format!("Invalid dimension size: {size}"))
}

/// Returns the length of the longest row.
fn widest((partition, tensor): &(Partition, impl AsRef<[i64]>)) -> Result<usize, String> {
    let tensor = tensor.as_ref();
    match partition {
        Partition::Splits => {
            let widths = tensor
                .windows(2)
                .map(|pair| pair[1].saturating_sub(pair[0]));
            size(widths.max().unwrap_or(0).max(0))
        }
        Partition::RowIds => Ok(tensor
            .chunk_by(|first, second| first == second)
            .map(<[i64]>::len)
            .max()
            .unwrap_or(0)),
        Partition::FirstSize => Err("Cannot handle partition type FIRST_DIM_SIZE".to_owned()),
    }
}

/// Returns the places of the rows in the rows at `parents`, which have `size` places each.
fn inside(
    (partition, tensor): &(Partition, impl AsRef<[i64]>),
    parents: &[Option<usize>],
    size: usize,
) -> Result<smallvec::SmallVec<[Option<usize>; 8]>, String> {
    let tensor = tensor.as_ref();
    let mut places = smallvec::SmallVec::new();
    let place = |parent: Option<usize>, column: usize| {
        parent
            .filter(|_| column < size)
            .map(|parent| parent * size + column)
    };
    match partition {
        Partition::Splits => {
            if tensor.len() > parents.len() + 1 {
                return Err(format!(
                    "Row partition size is greater than output size: {} > {}",
                    tensor.len() - 1,
                    parents.len()
                ));
            }
            if tensor.first().is_some_and(|&first| first != 0) {
                return Err("Invalid row split size.".to_owned());
            }
            for (pair, &parent) in tensor.windows(2).zip(parents) {
                let n = usize::try_from(pair[1].saturating_sub(pair[0]))
                    .map_err(|_| "Invalid row split size.".to_owned())?;
                places
                    .try_reserve(n)
                    .map_err(|_| "Invalid row split size.".to_owned())?;
                places.extend((0..n).map(|column| place(parent, column)));
            }
        }
        Partition::RowIds => {
            for row in tensor.chunk_by(|first, second| first == second) {
                let parent = usize::try_from(row[0])
                    .ok()
                    .and_then(|row| parents.get(row));
                let parent = parent.ok_or_else(|| {
                    format!(
                        "Got next_value_rowid={} which is not less than {}",
                        row[0],
                        parents.len()
                    )
                })?;
                places.extend((0..row.len()).map(|column| place(*parent, column)));
            }
        }
        Partition::FirstSize => return Err("Unsupported partition type:FIRST_DIM_SIZE".to_owned()),
    }
    Ok(places)
}

/// A number of which there are ranges.
pub trait RangeNumber: Sized {
    /// Returns the number of elements from `start` to `limit` in steps of `delta`, which is not 0;
    /// `None` if there are too many.
    fn range_len(start: Self, limit: Self, delta: Self) -> Option<i64>;
}

macro_rules! integer_ranges {
    ($($rust:ty),*) => {$(
        impl RangeNumber for $rust {
            fn range_len(start: Self, limit: Self, delta: Self) -> Option<i64> {
                let (start, limit, delta) = (i128::from(start), i128::from(limit), i128::from(delta));
                let distance = if delta > 0 { limit - start } else { start - limit };
                let step = delta.abs();
                i64::try_from((distance.max(0) + step - 1) / step).ok()
            }
        }
    )*};
}

macro_rules! float_ranges {
    ($($rust:ty),*) => {$(
        impl RangeNumber for $rust {
            #[expect(clippy::cast_possible_truncation, reason = "checked before")]
            fn range_len(start: Self, limit: Self, delta: Self) -> Option<i64> {
                if (delta > 0.0 && limit <= start) || (delta < 0.0 && limit >= start) {
                    return Some(0);
                }
                let n = ((limit - start) / delta).abs().ceil();
                (n < 9.2e18).then_some(n as i64)
            }
        }
    )*};
}

integer_ranges!(i32, i64);
float_ranges!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_placed_one_below_the_other() {
        let splits = (Partition::Splits, &[0i64, 2, 2, 3][..]);
        let dense = Dense::plan(&[splits], None, &Shape::new(&[3])).unwrap();
        assert_eq!(dense.shape, Shape::new(&[3, 2]));
        assert_eq!(&dense.places[..], &[Some(0), Some(1), Some(4)]);
        let dense = Dense::plan(&[splits], Some(&[2, 1]), &Shape::new(&[3])).unwrap();
        assert_eq!(&dense.places[..], &[Some(0), None, None]);
        let ids = [
            (Partition::FirstSize, &[4i64][..]),
            (Partition::RowIds, &[0, 0, 2][..]),
        ];
        let dense = Dense::plan(&ids, Some(&[-1, 3, 5]), &Shape::new(&[3, 5])).unwrap();
        assert_eq!(dense.shape, Shape::new(&[4, 3, 5]));
        assert_eq!(&dense.places[..], &[Some(0), Some(1), Some(6)]);
    }

    #[test]
    fn contradictions_are_errors() {
        let plan = |splits: &[i64], requested: Option<&[i64]>, n: usize| {
            let splits = [(Partition::Splits, splits)];
            Dense::plan(&splits, requested, &Shape::new(&[n])).map(|_| ())
        };
        assert!(plan(&[0, 2], None, 2).is_ok());
        assert!(plan(&[0, 2], None, 3).is_err());
        assert!(plan(&[0, 2, 1], None, 1).is_err());
        assert!(plan(&[], None, 0).is_err());
        assert!(plan(&[0, i64::MAX], None, 1).is_err());
        assert!(plan(&[0, 2], Some(&[1]), 2).is_err());
        assert!(plan(&[0, 2], Some(&[1, -2]), 2).is_err());
    }

    #[test]
    fn ranges_have_lengths() {
        assert_eq!(i32::range_len(0, 5, 2), Some(3));
        assert_eq!(i32::range_len(5, 0, -2), Some(3));
        assert_eq!(i64::range_len(5, 0, 2), Some(0));
        assert_eq!(i64::range_len(i64::MIN, i64::MAX, 1), None);
        assert_eq!(f32::range_len(0.0, 1.0, 0.3), Some(4));
        assert_eq!(f64::range_len(0.0, f64::INFINITY, 1.0), None);
    }
}
