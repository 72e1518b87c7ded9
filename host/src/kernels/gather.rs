//! Elements selected by indices.

use crate::kernels::Threads;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 32 * 1024;

/// A gather whose indices have been checked: `[batch, outer, length, inner]` by `[batch, indices]`
/// -> `[batch, outer, indices, inner]`, row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gather {
    /// Elements of the dimensions between the batch and the indexed axis.
    pub outer: usize,
    /// Length of the indexed axis.
    pub length: usize,
    /// Elements after the indexed axis.
    pub inner: usize,
    /// Indices per batch.
    pub n_indices: usize,
}

impl Gather {
    /// Gathers the elements (TensorFlow `GatherV2`).
    ///
    /// # Panics
    /// If an index is out of range, or the length of a slice does not match its shape.
    pub fn apply<T: Copy + Send + Sync>(
        &self,
        params: &[T],
        indices: &[usize],
        out: &mut [T],
        threads: Threads<'_>,
    ) {
        if out.is_empty() {
            return;
        }
        let Self {
            outer,
            length,
            inner,
            n_indices,
        } = *self;
        threads.fill(out, inner, GRAIN, |start, part| {
            for (row, slot) in (start / inner..).zip(part.chunks_exact_mut(inner)) {
                let (block, index) = (row / n_indices, row % n_indices);
                let element = indices[block / outer * n_indices + index];
                let from = (block * length + element) * inner;
                match slot {
                    [slot] => *slot = params[from],
                    slot => slot.copy_from_slice(&params[from..from + inner]),
                }
            }
        });
    }
}

/// Marks a slice whose index is out of range.
pub const NOWHERE: usize = usize::MAX;

/// Copies slices of `size` elements; `rows[i]` is the start of slice `i`, and [`NOWHERE`] gives the
/// default value (TensorFlow `GatherNd`).
///
/// # Panics
/// If a slice would end beyond the parameters, or the length of `out` is not that of all slices.
pub fn slices<T: Copy + Default + Send + Sync>(
    params: &[T],
    starts: &[usize],
    size: usize,
    out: &mut [T],
    threads: Threads<'_>,
) {
    if out.is_empty() {
        return;
    }
    threads.fill(out, size, GRAIN, |first, part| {
        for (slot, start) in part.chunks_exact_mut(size).zip(&starts[first / size..]) {
            match *start {
                NOWHERE => slot.fill(T::default()),
                start => slot.copy_from_slice(&params[start..start + size]),
            }
        }
    });
}

/// Expands `[prefix, suffix]` indices to `[prefix, depth, suffix]`: `on` where the middle index
/// equals the given one, `off` elsewhere (TensorFlow `OneHot`). Indices out of range give only
/// `off`.
///
/// # Panics
/// If the length of a slice does not match its shape.
pub fn one_hot<I: Copy + Into<i64>, T: Copy>(
    indices: &[I],
    depth: usize,
    suffix: usize,
    on: T,
    off: T,
    out: &mut [T],
) {
    out.fill(off);
    if out.is_empty() {
        return;
    }
    for (block, indices) in out
        .chunks_exact_mut(depth * suffix)
        .zip(indices.chunks_exact(suffix))
    {
        for (position, &index) in indices.iter().enumerate() {
            if let Some(index) = usize::try_from(index.into())
                .ok()
                .filter(|&index| index < depth)
            {
                block[index * suffix + position] = on;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gathered_rows_agree_with_decomposing_every_index(
            batch in 1usize..3, outer in 1usize..4, length in 1usize..5, inner in 1usize..4,
            n_indices in 0usize..5, seed in 0usize..100,
        ) {
            let params: Vec<usize> = (0..batch * outer * length * inner).collect();
            let indices: Vec<usize> = (0..batch * n_indices).map(|i| (i * 7 + seed) % length).collect();
            let gather = Gather { outer, length, inner, n_indices };
            let mut out = vec![usize::MAX; batch * outer * n_indices * inner];
            gather.apply(&params, &indices, &mut out, Threads::single());
            let mut expected = Vec::new();
            for b in 0..batch {
                for o in 0..outer {
                    for i in 0..n_indices {
                        for k in 0..inner {
                            let index = indices[b * n_indices + i];
                            expected.push(params[((b * outer + o) * length + index) * inner + k]);
                        }
                    }
                }
            }
            prop_assert_eq!(out, expected);
        }
    }
}
