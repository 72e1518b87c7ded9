//! Searches in sorted values, and sets of values.

use std::cmp::Ordering;

use crate::kernels::Scratch;

/// Compares two values; NaN is equal to NaN and larger than all others.
pub fn total_order<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| {
        #[expect(clippy::eq_op, reason = "the definition of NaN, for any type")]
        let [a_is_nan, b_is_nan] = [a != a, b != b];
        a_is_nan.cmp(&b_is_nan)
    })
}

/// Returns the number of boundaries that are at most `value` (TensorFlow `Bucketize`); NaN exceeds
/// all.
pub fn bucket<T: PartialOrd>(value: &T, boundaries: &[T]) -> usize {
    boundaries.partition_point(|boundary| value.partial_cmp(boundary) != Some(Ordering::Less))
}

/// Returns the first position in ascending values where `value` could be inserted (TensorFlow
/// `LowerBound`).
pub fn lower_bound<T: PartialOrd>(sorted: &[T], value: &T) -> usize {
    sorted.partition_point(|x| x < value)
}

/// Returns the last position in ascending values where `value` could be inserted (TensorFlow
/// `UpperBound`).
pub fn upper_bound<T: PartialOrd>(sorted: &[T], value: &T) -> usize {
    bucket(value, sorted)
}

/// Keeps the positions of `x` whose values are not among `y`, which is sorted first (TensorFlow
/// `ListDiff`). Returns how many they are; they are at the start of `kept`.
///
/// # Panics
/// If `kept` is shorter than `x`.
pub fn difference<T: PartialOrd>(x: &[T], y: &mut [T], kept: &mut [usize]) -> usize {
    y.sort_unstable_by(total_order);
    let mut n_kept = 0;
    for (index, value) in x.iter().enumerate() {
        let found = y.binary_search_by(|y| total_order(y, value)).ok();
        // NaN is not equal to NaN.
        if !found.is_some_and(|position| y[position] == *value) {
            kept[n_kept] = index;
            n_kept += 1;
        }
    }
    n_kept
}

/// Distinct values in the order of their first occurrence.
#[derive(Debug)]
pub struct Distinct {
    /// Number of distinct values.
    pub n: usize,
    /// Position of the first occurrence of each distinct value; `n` elements are in use.
    pub firsts: Scratch<usize>,
}

/// Finds the distinct ones among `groups.len()` values, and writes the number of the distinct value
/// of each one to `groups` (TensorFlow `Unique`). `compare` is a total order of positions by value;
/// values that it calls equal are the same only if `is_same`.
///
/// `order` and `firsts` have as many elements as `groups`; their contents do not matter.
///
/// # Panics
/// If the lengths differ.
pub fn distinct(
    groups: &mut [usize],
    mut order: Scratch<usize>,
    mut firsts: Scratch<usize>,
    compare: impl Fn(usize, usize) -> Ordering,
    is_same: impl Fn(usize, usize) -> bool,
) -> Distinct {
    for (index, slot) in order.iter_mut().enumerate() {
        *slot = index;
    }
    order.sort_unstable_by(|&a, &b| compare(a, b).then(a.cmp(&b)));
    // First, each value refers to the first occurrence of its value.
    let mut first = 0;
    for (rank, &index) in order.iter().enumerate() {
        if rank == 0 || compare(first, index) != Ordering::Equal || !is_same(first, index) {
            first = index;
        }
        groups[index] = first;
    }
    let mut n = 0;
    for index in 0..groups.len() {
        groups[index] = if groups[index] == index {
            firsts[n] = index;
            n += 1;
            n - 1
        } else {
            groups[groups[index]]
        };
    }
    Distinct { n, firsts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Threads;

    #[test]
    fn values_are_numbered_by_their_first_occurrence() {
        let values = [3.0, f32::NAN, -0.0, 3.0, 0.0, f32::NAN, 1.0];
        let scratch = || Threads::single().scratch(values.len()).unwrap();
        let mut groups = [0; 7];
        let found = distinct(
            &mut groups,
            scratch(),
            scratch(),
            |a, b| total_order(&values[a], &values[b]),
            |a, b| values[a] == values[b],
        );
        assert_eq!(groups, [0, 1, 2, 0, 2, 3, 4]);
        assert_eq!(found.n, 5);
        assert_eq!(found.firsts[..5], [0, 1, 2, 5, 6]);
    }

    #[test]
    fn bounds_agree_with_counting() {
        let sorted = [1, 1, 2, 5, 5, 5];
        for value in 0..7 {
            let below = sorted.iter().filter(|&&x| x < value).count();
            let up_to = sorted.iter().filter(|&&x| x <= value).count();
            assert_eq!(lower_bound(&sorted, &value), below);
            assert_eq!(upper_bound(&sorted, &value), up_to);
        }
        assert_eq!(bucket(&f32::NAN, &[0.0, 1.0]), 2);
    }
}
