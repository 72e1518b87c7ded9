//! Rows that are combined by segment.

use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::gather::NOWHERE;
use crate::kernels::reducer::Accumulate;

/// Combines the rows of each segment; `ids[i]` is the segment of row `i`, and [`NOWHERE`] drops it
/// (TensorFlow `UnsortedSegmentSum` and the like). Segments without rows are `start`.
///
/// # Panics
/// If a segment does not exist, or the length of a slice does not match its shape.
pub fn unsorted<T: Copy>(
    data: &[T],
    ids: &[usize],
    inner: usize,
    out: &mut [T],
    start: T,
    join: impl Fn(T, T) -> T,
) {
    out.fill(start);
    for (row, &id) in ids.iter().enumerate().filter(|&(_, &id)| id != NOWHERE) {
        let row = &data[row * inner..][..inner];
        for (slot, &x) in out[id * inner..][..inner].iter_mut().zip(row) {
            *slot = join(*slot, x);
        }
    }
}

/// Combines the rows of each segment of ascending ids (TensorFlow `SegmentSum` and the like).
/// Segments without rows are `gap`.
///
/// # Panics
/// If a segment does not exist, or the length of a slice does not match its shape.
pub fn sorted<T: Copy>(
    data: &[T],
    ids: &[usize],
    inner: usize,
    out: &mut [T],
    gap: T,
    join: impl Fn(T, T) -> T,
) {
    out.fill(gap);
    let mut previous = NOWHERE;
    for (row, &id) in ids.iter().enumerate() {
        let row = &data[row * inner..][..inner];
        let out = &mut out[id * inner..][..inner];
        if id == previous {
            for (slot, &x) in out.iter_mut().zip(row) {
                *slot = join(*slot, x);
            }
        } else {
            out.copy_from_slice(row);
        }
        previous = id;
    }
}

/// Computes the mean of the rows of each segment of ascending ids (TensorFlow `SegmentMean`).
/// Segments without rows are 0.
///
/// # Panics
/// If a segment does not exist, or the length of a slice does not match its shape.
pub fn mean<T: Accumulate>(data: &[T], ids: &[usize], inner: usize, out: &mut [T]) {
    out.fill(T::ZERO);
    let mut first = 0;
    for rows in ids.chunk_by(|a, b| a == b) {
        let out = &mut out[rows[0] * inner..][..inner];
        for (column, slot) in out.iter_mut().enumerate() {
            let terms = (first..first + rows.len()).map(|row| data[row * inner + column].to_sum());
            let sum = terms.fold(T::Sum::ZERO, T::Sum::plus);
            *slot = T::mean(sum, rows.len());
        }
        first += rows.len();
    }
}

/// Returns the largest finite value.
pub fn highest_finite<T: Number>() -> T {
    if T::HIGHEST.minus(T::HIGHEST).is_not_a_number() {
        T::LOWEST_FINITE.negated()
    } else {
        T::HIGHEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_value_is_finite() {
        assert_eq!(highest_finite::<f32>(), f32::MAX);
        assert_eq!(highest_finite::<half::bf16>(), half::bf16::MAX);
        assert_eq!(highest_finite::<u8>(), 255);
        assert_eq!(highest_finite::<i64>(), i64::MAX);
    }
}
