//! Concatenation of tensors along an axis.

use crate::kernels::Threads;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 32 * 1024;

/// Concatenates rows: each row of the result is a row of each part in order,
/// `[rows, a] ++ [rows, b] ++ .. -> [rows, a + b + ..]` (TensorFlow `ConcatV2`). `parts` holds the
/// elements and the row length of each part.
///
/// # Panics
/// If a part has another number of rows than the result.
pub fn concat<T: Copy + Send + Sync>(parts: &[(&[T], usize)], out: &mut [T], threads: Threads<'_>) {
    let row: usize = parts.iter().map(|&(_, length)| length).sum();
    if out.is_empty() {
        return;
    }
    // Pieces of the result may start and end within a row: concatenated along the first axis, there
    // is only one row.
    threads.fill(out, 1, GRAIN, |start, piece| {
        let (mut index, mut column) = (start / row, start % row);
        let mut rest = piece;
        while !rest.is_empty() {
            for &(elements, length) in parts {
                if column >= length {
                    column -= length;
                    continue;
                }
                let n = (length - column).min(rest.len());
                let (line, tail) = std::mem::take(&mut rest).split_at_mut(n);
                line.copy_from_slice(&elements[index * length + column..][..n]);
                rest = tail;
                column = 0;
                if rest.is_empty() {
                    return;
                }
            }
            index += 1;
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn concat_agrees_with_appending_rows(
            rows in 0usize..4, lengths in prop::collection::vec(0usize..4, 1..5),
        ) {
            let parts: Vec<Vec<u32>> = (0..).zip(&lengths)
                .map(|(i, &length)| (i * 100..).take(rows * length).collect())
                .collect();
            let mut expected = Vec::new();
            for row in 0..rows {
                for (part, &length) in parts.iter().zip(&lengths) {
                    expected.extend_from_slice(&part[row * length..][..length]);
                }
            }
            let views: Vec<(&[u32], usize)> = parts.iter().map(Vec::as_slice).zip(lengths).collect();
            let mut out = vec![u32::MAX; expected.len()];
            concat(&views, &mut out, Threads::single());
            prop_assert_eq!(out, expected);
        }
    }
}
