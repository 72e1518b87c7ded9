//! Diagonals and bands of matrices.

/// Diagonals of a matrix, and how they are laid out as rows: the last diagonal first (TensorFlow
/// `MatrixDiagPartV3`). Diagonal `d` starts in column `d`, or in row `-d` if it is negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Diagonals {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub columns: usize,
    /// First diagonal; more than `-rows`, or 0.
    pub first: isize,
    /// Last diagonal; less than `columns`, or 0.
    pub last: isize,
    /// Length of a row of the layout, which is that of the longest diagonal.
    pub len: usize,
    /// Whether diagonals above the main one start at the left of their rows.
    pub upper_at_left: bool,
    /// Whether diagonals below the main one do.
    pub lower_at_left: bool,
}

impl Diagonals {
    /// Returns the number of diagonals.
    pub fn n(&self) -> usize {
        (self.last - self.first).unsigned_abs() + 1
    }

    /// Returns the length of the longest diagonal from `first` to `last`.
    pub fn longest(rows: usize, columns: usize, first: isize, last: isize) -> usize {
        let rows = rows.saturating_sub(last.min(0).unsigned_abs());
        rows.min(columns.saturating_sub(first.max(0).unsigned_abs()))
    }

    /// Calls `visit` with the position of each element in the layout and in the matrix.
    pub fn for_each(&self, mut visit: impl FnMut(usize, usize)) {
        for (row, diagonal) in (self.first..=self.last).rev().enumerate() {
            let (y, x) = (
                diagonal.min(0).unsigned_abs(),
                diagonal.max(0).unsigned_abs(),
            );
            let n = self
                .rows
                .saturating_sub(y)
                .min(self.columns.saturating_sub(x));
            let is_at_left =
                diagonal >= 0 && self.upper_at_left || diagonal <= 0 && self.lower_at_left;
            let start = row * self.len + if is_at_left { 0 } else { self.len - n };
            for index in 0..n {
                visit(start + index, (y + index) * self.columns + x + index);
            }
        }
    }
}

/// Copies the elements of a matrix with `columns` columns from `lower` diagonals below the main one
/// to `upper` above it, and zeroes the others (TensorFlow `MatrixBandPart`). `None` is all.
///
/// # Panics
/// If the lengths of the slices differ.
pub fn band<T: Copy + Default>(
    matrix: &[T],
    columns: usize,
    [lower, upper]: [Option<usize>; 2],
    out: &mut [T],
) {
    if columns == 0 {
        return;
    }
    let rows = matrix
        .chunks_exact(columns)
        .zip(out.chunks_exact_mut(columns));
    for (row, (x, out)) in rows.enumerate() {
        let start = lower
            .map_or(0, |lower| row.saturating_sub(lower))
            .min(columns);
        let end = upper.map_or(columns, |upper| row.saturating_add(upper).saturating_add(1));
        let end = end.clamp(start, columns);
        out.fill(T::default());
        out[start..end].copy_from_slice(&x[start..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_of_a_band_is_visited_once() {
        let diagonals = Diagonals {
            rows: 3,
            columns: 4,
            first: -1,
            last: 2,
            len: 3,
            upper_at_left: false,
            lower_at_left: true,
        };
        assert_eq!(Diagonals::longest(3, 4, -1, 2), 3);
        let mut found = [None; 12];
        diagonals.for_each(|place, element| {
            assert!(found[place].replace(element).is_none());
        });
        let expected = [
            [None, Some(2), Some(7)],
            [Some(1), Some(6), Some(11)],
            [Some(0), Some(5), Some(10)],
            [Some(4), Some(9), None],
        ];
        assert_eq!(found, *expected.as_flattened());
    }

    #[test]
    fn bands_end_at_the_edges() {
        let x: [i32; 6] = [1, 2, 3, 4, 5, 6];
        let mut out = [9; 6];
        band(&x, 3, [Some(0), Some(1)], &mut out);
        assert_eq!(out, [1, 2, 0, 0, 5, 6]);
        band(&x, 2, [Some(1), None], &mut out);
        assert_eq!(out, [1, 2, 3, 4, 0, 6]);
    }
}
