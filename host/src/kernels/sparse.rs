//! Coordinates of sparse tensors.

use crate::tensor::Shape;

/// The coordinates of values, one row per value.
#[derive(Debug, Clone, Copy)]
pub struct Coordinates<'a> {
    /// Row-major.
    pub values: &'a [i64],
    /// Number of coordinates of a value.
    pub rank: usize,
}

impl<'a> Coordinates<'a> {
    /// Returns the coordinates of value `index`.
    pub fn row(&self, index: usize) -> &'a [i64] {
        &self.values[index * self.rank..(index + 1) * self.rank]
    }

    /// Returns the place of value `index` in a dense tensor of this shape.
    ///
    /// # Errors
    /// TensorFlow's message, if it lies outside.
    pub fn place(&self, index: usize, dims: &[usize]) -> Result<usize, String> {
        self.check_bounds(index, dims)?;
        let coordinates = self.row(index).iter().zip(dims);
        Ok(coordinates.fold(0, |place, (&coordinate, &size)| {
            place * size + usize::try_from(coordinate).unwrap_or(0)
        }))
    }

    /// Checks that value `index` lies inside of a dense tensor of this shape.
    ///
    /// # Errors
    /// TensorFlow's message, if it lies outside.
    pub fn check_bounds(&self, index: usize, dims: &[usize]) -> Result<(), String> {
        let row = self.row(index);
        let is_inside =
            |(&at, &size): (&i64, &usize)| usize::try_from(at).is_ok_and(|at| at < size);
        if row.iter().zip(dims).all(is_inside) {
            return Ok(());
        }
        Err(format!(
            "indices[{index}] = {row:?} is out of bounds: need 0 <= index < {dims:?}"
        ))
    }

    /// Checks that the values are in the order of a dense tensor of this shape, each in a place of
    /// its own.
    ///
    /// # Errors
    /// TensorFlow's message about the first one that is not.
    pub fn check_order(&self, dims: &[usize]) -> Result<(), String> {
        let n = self.values.len() / self.rank.max(1);
        for index in 0..n {
            self.place(index, dims)?;
            if index == 0 {
                continue;
            }
            let row = self.row(index);
            match self.row(index - 1).cmp(row) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => {
                    return Err(format!("indices[{index}] = {row:?} is repeated"));
                }
                std::cmp::Ordering::Greater => {
                    return Err(format!(
                        "indices[{index}] = {row:?} is out of order. Many sparse ops require \
                         sorted indices.\n  Use `tf.sparse.reorder` to create a correctly ordered \
                         copy."
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns the shape that a sparse tensor is given, in which one dimension may be -1 (TensorFlow
/// `SparseReshape`).
///
/// # Errors
/// TensorFlow's message, if it has another number of elements.
pub fn reshaped(shape: &Shape, requested: &[i64]) -> Result<Shape, String> {
    let n = shape.n_elements();
    let mut missing = None;
    let mut product = 1usize;
    for (axis, &size) in requested.iter().enumerate() {
        match (size, missing) {
            (-1, Some(first)) => {
                return Err(format!(
                    "only one output dimension may be -1, not both {first} and {axis}"
                ));
            }
            (-1, None) => missing = Some(axis),
            _ => {
                let size = usize::try_from(size)
                    .map_err(|_| format!("size {axis} must be non-negative, not {size}"))?;
                product = product
                    .checked_mul(size)
                    .ok_or_else(|| format!("the shape {requested:?} is too large"))?;
            }
        }
    }
    let inferred = match missing {
        None => 0,
        Some(_) if product == 0 => {
            return Err(
                "reshape cannot infer the missing input size for an empty tensor unless all \
                 specified input sizes are non-zero"
                    .to_owned(),
            );
        }
        Some(_) => n / product,
    };
    let total = if missing.is_some() {
        product * inferred
    } else {
        product
    };
    if total != n {
        return Err(match missing {
            Some(_) => format!(
                "Input to reshape is a SparseTensor with {n} dense values, but the requested shape \
                 requires a multiple of {product}. input_shape={shape} output_shape= {requested:?}"
            ),
            None => format!(
                "Input to reshape is a tensor with {n} dense values, but the requested shape has \
                 {total}. input_shape={shape} output_shape={requested:?}"
            ),
        });
    }
    let sizes = requested.iter();
    Ok(sizes
        .map(|&size| usize::try_from(size).unwrap_or(inferred))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_size_is_inferred() {
        let shape = Shape::new(&[2, 3, 4]);
        assert_eq!(reshaped(&shape, &[-1, 6]), Ok(Shape::new(&[4, 6])));
        assert_eq!(reshaped(&shape, &[24]), Ok(Shape::new(&[24])));
        for wrong in [
            &[-1, 5][..],
            &[-1, -1],
            &[23],
            &[-2],
            &[0, -1],
            &[i64::MAX, i64::MAX],
        ] {
            assert!(reshaped(&shape, wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn coordinates_are_checked() {
        let coordinates = |values| Coordinates { values, rank: 2 };
        let dims = [2, 3];
        assert_eq!(coordinates(&[1, 2]).place(0, &dims), Ok(5));
        assert!(coordinates(&[0, 1, 1, 0]).check_order(&dims).is_ok());
        for (wrong, part) in [
            (&[0, 1, 0, 1][..], "repeated"),
            (&[1, 0, 0, 1], "out of order"),
            (&[0, 3], "out of bounds"),
            (&[-1, 0], "out of bounds"),
        ] {
            assert!(
                coordinates(wrong)
                    .check_order(&dims)
                    .unwrap_err()
                    .contains(part)
            );
        }
    }
}
