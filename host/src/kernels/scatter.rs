//! Elements written to positions that indices give.

use crate::kernels::gather::NOWHERE;

/// Combines each slice of `size` updates with the slice of `out` that starts at `starts[i]`, in
/// order (TensorFlow `ScatterNd`, `TensorScatterAdd` and the like). [`NOWHERE`] drops a slice.
///
/// # Panics
/// If a slice would end beyond `out`.
pub fn slices<T: Copy>(
    updates: &[T],
    starts: &[usize],
    size: usize,
    out: &mut [T],
    join: impl Fn(T, T) -> T,
) {
    if size == 0 {
        return;
    }
    for (update, &start) in updates.chunks_exact(size).zip(starts) {
        if start == NOWHERE {
            continue;
        }
        for (slot, &update) in out[start..start + size].iter_mut().zip(update) {
            *slot = join(*slot, update);
        }
    }
}

/// Writes the row that `sources[i]` names (a part, and a row of it) to row `i` of `out`. Rows have
/// `size` elements; part [`NOWHERE`] gives the default value (TensorFlow `DynamicStitch`).
///
/// # Panics
/// If a row does not exist.
pub fn rows<'a, T: Copy + Default + 'a>(
    part: impl Fn(usize) -> &'a [T],
    sources: &[[usize; 2]],
    size: usize,
    out: &mut [T],
) {
    if size == 0 {
        return;
    }
    for (slot, &[input, row]) in out.chunks_exact_mut(size).zip(sources) {
        if input == NOWHERE {
            slot.fill(T::default());
        } else {
            slot.copy_from_slice(&part(input)[row * size..][..size]);
        }
    }
}

/// Sorts `0..partitions.len()` by partition, keeping the order inside of each (TensorFlow
/// `DynamicPartition`). `ends` has one element per partition and receives where each one ends.
///
/// # Panics
/// If a partition does not exist, or `order` has another length than `partitions`.
pub fn partition(partitions: &[usize], ends: &mut [usize], order: &mut [usize]) {
    ends.fill(0);
    for &partition in partitions {
        ends[partition] += 1;
    }
    let mut start = 0;
    for end in ends.iter_mut() {
        (*end, start) = (start, start + *end);
    }
    for (index, &partition) in partitions.iter().enumerate() {
        order[ends[partition]] = index;
        ends[partition] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_keep_the_order_of_their_elements() {
        let mut ends = [9; 4];
        let mut order = [9; 6];
        partition(&[2, 0, 2, 3, 0, 2], &mut ends, &mut order);
        assert_eq!(ends, [2, 2, 5, 6]);
        assert_eq!(order, [1, 4, 0, 2, 5, 3]);
    }

    #[test]
    fn dropped_slices_change_nothing() {
        let mut out = [1, 2, 3, 4];
        slices(
            &[10, 20, 30, 40, 50, 60],
            &[2, NOWHERE, 2],
            2,
            &mut out,
            |a, b| a + b,
        );
        assert_eq!(out, [1, 2, 63, 84]);
    }
}
