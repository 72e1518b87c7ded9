//! Searches in sorted values, and sets of values.

use std::cmp::Ordering;

use crate::device::KernelError;
use crate::kernels::Scratch;
use crate::kernels::Threads;

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

/// Values between two checks of [`distinct`] whether the run was interrupted.
const INTERRUPT_CHECK: usize = 1 << 16;

/// Largest size of the first table of [`distinct`].
const FIRST_TABLE_LEN: usize = 1024;

/// Finds the distinct ones among `groups.len()` values, and writes the number of the distinct value
/// of each one to `groups` (TensorFlow `Unique`). Both functions take positions: values that are
/// the same have the same hash.
///
/// # Errors
/// If there is not enough memory.
pub fn distinct(
    groups: &mut [usize],
    threads: Threads<'_>,
    hash: impl Fn(usize) -> u64,
    is_same: impl Fn(usize, usize) -> bool,
) -> Result<Distinct, KernelError> {
    let mut firsts = threads.scratch::<usize>(groups.len())?;
    let mut n = 0;
    // Open addressing: a place contains the number of a distinct value plus one, or 0.
    let len = groups.len().saturating_mul(2).next_power_of_two();
    let mut table = threads.scratch::<usize>(len.min(FIRST_TABLE_LEN))?;
    for (index, group) in groups.iter_mut().enumerate() {
        // Not before the first value: the groups of the rest are that of number 0.
        if (index + 1).is_multiple_of(INTERRUPT_CHECK) && threads.is_interrupted() {
            break;
        }
        let mut place = slot(hash(index), table.len());
        let found = loop {
            match table[place] {
                0 => break None,
                number if is_same(firsts[number - 1], index) => break Some(number - 1),
                _ => place = (place + 1) % table.len(),
            }
        };
        *group = found.unwrap_or(n);
        if found.is_some() {
            continue;
        }
        table[place] = n + 1;
        firsts[n] = index;
        n += 1;
        if 2 * n > table.len() {
            table = threads.scratch(4 * table.len())?;
            for (number, &first) in firsts[..n].iter().enumerate() {
                let mut place = slot(hash(first), table.len());
                while table[place] != 0 {
                    place = (place + 1) % table.len();
                }
                table[place] = number + 1;
            }
        }
    }
    Ok(Distinct { n, firsts })
}

/// Returns the first place of a hash in a table, whose length is a power of two.
fn slot(hash: u64, len: usize) -> usize {
    usize::try_from(hash % len as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Threads;

    #[test]
    fn values_are_numbered_by_their_first_occurrence() {
        let values = [3.0, f32::NAN, -0.0, 3.0, 0.0, f32::NAN, 1.0];
        let mut groups = [0; 7];
        let threads = Threads::single();
        let is_same = |a: usize, b: usize| values[a] == values[b];
        // One hash for all: nothing but `is_same` tells them apart.
        let found = distinct(&mut groups, threads, |_| 7, is_same).unwrap();
        assert_eq!(groups, [0, 1, 2, 0, 2, 3, 4]);
        assert_eq!(found.n, 5);
        assert_eq!(found.firsts[..5], [0, 1, 2, 5, 6]);
    }

    #[test]
    fn tables_of_distinct_values_grow() {
        let value = |index: usize| index * index % 10_007;
        let mut groups = vec![0; 30_000];
        let hash = |index: usize| value(index) as u64;
        let is_same = |a: usize, b: usize| value(a) == value(b);
        let found = distinct(&mut groups, Threads::single(), hash, is_same).unwrap();
        let mut numbers = std::collections::HashMap::new();
        for (index, &group) in groups.iter().enumerate() {
            let n = numbers.len();
            assert_eq!(group, *numbers.entry(value(index)).or_insert(n), "{index}");
            assert_eq!(value(found.firsts[group]), value(index));
        }
        assert_eq!(found.n, numbers.len());
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
