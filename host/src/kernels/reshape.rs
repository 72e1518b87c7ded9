//! The shape that a reshape with at most one open dimension requests.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::tensor::RANK_MAX;
use crate::tensor::Shape;

/// Resolves the requested `sizes` for a tensor of shape `input`; `-1` stands for the remaining
/// elements (TensorFlow `Reshape`). Dimensions of 0 on both sides are left out of that division, so
/// reshaping `[0,5]` to `[0,-1]` gives `[0,5]`.
///
/// # Errors
/// [`KernelError::InvalidArgument`] if there are more than 253 sizes (TensorFlow's limit), a size
/// is negative, more than one is open, or the number of elements differs.
pub fn resolve(input: &Shape, sizes: &[i64]) -> Result<Shape, KernelError> {
    if sizes.len() >= RANK_MAX {
        return Err(KernelError::invalid(format!(
            "too many dimensions: must be < {RANK_MAX}, but received {} (input {input})",
            sizes.len()
        )));
    }
    let n_elements = input.n_elements();
    let mut open = None;
    let mut known = 1usize;
    let mut dims: SmallVec<[usize; 8]> = SmallVec::new();
    for (axis, &size) in sizes.iter().enumerate() {
        if size == -1 {
            if let Some(first) = open {
                return Err(KernelError::invalid(format!(
                    "only one input size may be -1, not both {first} and {axis}"
                )));
            }
            open = Some(axis);
            dims.push(1);
            continue;
        }
        let dim = usize::try_from(size).map_err(|_| {
            KernelError::invalid(format!("size {axis} must be non-negative, not {size}"))
        })?;
        if dim > 0 {
            known = known.saturating_mul(dim);
        }
        dims.push(dim);
    }
    if let Some(axis) = open {
        let left = if dims.contains(&0) {
            let positive = input.dims().iter().filter(|&&dim| dim > 0);
            positive.fold(1usize, |product, &dim| product.saturating_mul(dim))
        } else if n_elements.is_multiple_of(known) {
            n_elements
        } else {
            return Err(KernelError::invalid(format!(
                "input to reshape is a tensor with {n_elements} values, but the requested shape {sizes:?} requires a multiple of {known}"
            )));
        };
        dims[axis] = left / known;
    }
    let shape = Shape::new(&dims);
    if shape.n_elements() != n_elements {
        return Err(KernelError::invalid(format!(
            "input to reshape is a tensor with {n_elements} values, but the requested shape {sizes:?} has {}",
            shape.n_elements()
        )));
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_open_dimension_takes_the_remaining_elements() {
        for (input, sizes, expected) in [
            (&[6][..], &[3, -1][..], &[3, 2][..]),
            (&[2, 3], &[-1], &[6]),
            (&[], &[], &[]),
            (&[0], &[0, -1], &[0, 1]),
            (&[0, 5], &[0, -1], &[0, 5]),
            (&[0], &[2, -1], &[2, 0]),
            (&[0], &[0, i64::MAX], &[0, usize::MAX >> 1]),
        ] {
            assert_eq!(
                resolve(&Shape::new(input), sizes).unwrap(),
                Shape::new(expected)
            );
        }
    }

    #[test]
    fn impossible_requests_are_rejected() {
        for (input, sizes, expected) in [
            (6, &[4, -1][..], "requires a multiple of 4"),
            (6, &[-1, -1], "not both 0 and 1"),
            (6, &[7], "has 7"),
            (6, &[-2, 3], "must be non-negative, not -2"),
            (6, &[i64::MAX, i64::MAX], "with 6 values"),
            (2, &[], "has 1"),
            (6, &[0, -1], "has 0"),
        ] {
            let error = resolve(&[input].into(), sizes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
