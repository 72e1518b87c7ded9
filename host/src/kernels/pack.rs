//! Stacking of tensors along a new axis, and the inverse (TensorFlow `Pack` and `Unpack`).

use crate::kernels::Threads;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 64 * 1024;

/// Stacks `parts`, `[outer, inner]` each, into `out`, `[outer, n_parts, inner]` (TensorFlow
/// `Pack`).
///
/// # Panics
/// If the lengths disagree.
pub fn pack<T: Copy + Send + Sync>(
    parts: &[&[T]],
    inner: usize,
    out: &mut [T],
    threads: Threads<'_>,
) {
    if out.is_empty() {
        return;
    }
    let n = parts.len();
    assert!(
        parts.iter().all(|part| part.len() * n == out.len()),
        "parts of equal size"
    );
    threads.fill(out, inner, GRAIN, |start, block| {
        let first = start / inner;
        if inner == 1 {
            for (row, o) in (first..).zip(block) {
                *o = parts[row % n][row / n];
            }
            return;
        }
        for (row, o) in (first..).zip(block.chunks_exact_mut(inner)) {
            o.copy_from_slice(&parts[row % n][row / n * inner..][..inner]);
        }
    });
}

/// Copies part `index` of `input`, `[outer, n_parts, inner]`, to `out`, `[outer, inner]`
/// (TensorFlow `Unpack`).
///
/// # Panics
/// If the lengths disagree.
pub fn unpack<T: Copy + Send + Sync>(
    input: &[T],
    n_parts: usize,
    index: usize,
    inner: usize,
    out: &mut [T],
    threads: Threads<'_>,
) {
    if out.is_empty() {
        return;
    }
    assert_eq!(out.len() * n_parts, input.len(), "parts of equal size");
    threads.fill(out, inner, GRAIN, |start, block| {
        let first = start / inner;
        if inner == 1 {
            for (row, o) in (first..).zip(block) {
                *o = input[row * n_parts + index];
            }
            return;
        }
        for (row, o) in (first..).zip(block.chunks_exact_mut(inner)) {
            o.copy_from_slice(&input[(row * n_parts + index) * inner..][..inner]);
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn unpack_is_the_inverse_of_pack(outer in 1usize..5, n in 1usize..5, inner in 1usize..4) {
            let parts: Vec<Vec<usize>> = (0..n).map(|i| (i * 1000..).take(outer * inner).collect()).collect();
            let views: Vec<&[usize]> = parts.iter().map(Vec::as_slice).collect();
            let mut out = vec![0; outer * n * inner];
            pack(&views, inner, &mut out, Threads::single());
            for (flat, &found) in out.iter().enumerate() {
                let (row, part, column) = (flat / inner / n, flat / inner % n, flat % inner);
                prop_assert_eq!(found, part * 1000 + row * inner + column);
            }
            for (index, part) in parts.iter().enumerate() {
                let mut back = vec![0; outer * inner];
                unpack(&out, n, index, inner, &mut back, Threads::single());
                prop_assert_eq!(&back, part);
            }
        }
    }
}
