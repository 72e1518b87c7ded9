//! Copies with a strided source: slices, reversals, transpositions, repetitions.

use smallvec::SmallVec;

use crate::kernels::Threads;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 32 * 1024;

/// Rows and columns that are transposed at a time: at most the elements of a cache line.
const BLOCK: usize = 16;

/// A copy `out[i, j, ..] = input[start + i * stride_0 + j * stride_1 + ..]`; `out` is row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StridedCopy {
    start: usize,
    /// Outermost first, none of size 1. Adjacent axes that one stride covers are merged.
    axes: SmallVec<[Axis; 6]>,
    n_elements: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    size: usize,
    stride: isize,
}

/// Returns the strides of a row-major tensor, in elements.
pub fn row_major_strides(dims: &[usize]) -> SmallVec<[isize; 6]> {
    let mut strides = SmallVec::from_elem(0, dims.len());
    let mut stride = 1usize;
    for (slot, &dim) in strides.iter_mut().zip(dims).rev() {
        // Saturates only if another dimension is 0, and then no stride is taken.
        *slot = isize::try_from(stride).unwrap_or(isize::MAX);
        stride = stride.saturating_mul(dim);
    }
    strides
}

impl StridedCopy {
    /// Returns a copy from element `start` on. `axes` holds the size of each dimension of the
    /// result and its stride in the input, outermost first.
    pub fn new(start: usize, axes: impl IntoIterator<Item = (usize, isize)>) -> Self {
        let mut merged: SmallVec<[Axis; 6]> = SmallVec::new();
        let mut n_elements = 1usize;
        for (size, stride) in axes {
            n_elements = n_elements.saturating_mul(size);
            if size == 1 {
                continue;
            }
            let span = isize::try_from(size)
                .ok()
                .and_then(|size| size.checked_mul(stride));
            match merged.last_mut() {
                Some(outer) if span == Some(outer.stride) => {
                    outer.size = outer.size.saturating_mul(size);
                    outer.stride = stride;
                }
                _ => merged.push(Axis { size, stride }),
            }
        }
        Self {
            start,
            axes: merged,
            n_elements,
        }
    }

    /// Returns the number of elements of the result.
    pub fn n_elements(&self) -> usize {
        self.n_elements
    }

    /// Returns the index of the first element that is read.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Returns sizes and strides, outermost first, none of size 1. Adjacent axes that one stride
    /// covers are merged.
    pub fn axes(&self) -> impl DoubleEndedIterator<Item = (usize, isize)> + ExactSizeIterator + '_ {
        self.axes.iter().map(|axis| (axis.size, axis.stride))
    }

    /// Returns whether the copy leaves an input of `n_input` elements unchanged.
    pub fn is_identity(&self, n_input: usize) -> bool {
        let whole = match self.axes[..] {
            [] => true,
            [axis] => axis.stride == 1,
            _ => false,
        };
        n_input == self.n_elements && (n_input == 0 || whole && self.start == 0)
    }

    /// Returns the index in the input of each element of the result, in the order of the result.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        // Not by `Position::at`, which divides by sizes: they may be 0.
        let mut position = Position {
            index: SmallVec::from_elem(0, self.axes.len()),
            offset: self.start,
        };
        (0..self.n_elements).map(move |_| {
            let offset = position.offset;
            position.advance(&self.axes);
            offset
        })
    }

    /// Copies `input` to `out`.
    ///
    /// # Panics
    /// If the length of `out` is not that of the result, or a stride leaves the input.
    pub fn apply<T: Copy + Send + Sync>(&self, input: &[T], out: &mut [T], threads: Threads<'_>) {
        assert_eq!(out.len(), self.n_elements, "the result has its shape");
        if out.is_empty() {
            return;
        }
        match self.contiguous_axis() {
            Some(across) => {
                let unit = self.axes[across + 1..]
                    .iter()
                    .map(|axis| axis.size)
                    .product();
                threads.fill(out, unit, GRAIN, |start, part| {
                    self.apply_blocks(across, unit, input, start / unit, part);
                });
            }
            None => threads.fill(out, 1, GRAIN, |start, part| {
                self.apply_rows(input, start, part);
            }),
        }
    }

    /// Returns the axis that is contiguous in the input, if the last axis of the result is not and
    /// both are long: a copy row by row would then touch one cache line per element.
    pub fn contiguous_axis(&self) -> Option<usize> {
        let (last, outer) = self.axes.split_last()?;
        let strided = last.size >= 4 && last.stride.unsigned_abs() > 1;
        let across = outer
            .iter()
            .rposition(|axis| axis.stride == 1 && axis.size >= 4)?;
        strided.then_some(across)
    }

    /// Copies the elements from `first` on, row by row.
    fn apply_rows<T: Copy>(&self, input: &[T], first: usize, out: &mut [T]) {
        let Some((inner, outer)) = self.axes.split_last() else {
            out[0] = input[self.start];
            return;
        };
        let mut position = Position::at(self.start, outer, first / inner.size);
        let mut column = first % inner.size;
        let mut rest = out;
        while !rest.is_empty() {
            let n = (inner.size - column).min(rest.len());
            let (row, tail) = std::mem::take(&mut rest).split_at_mut(n);
            let offset = step(position.offset, inner.stride, column);
            match inner.stride {
                1 => row.copy_from_slice(&input[offset..offset + n]),
                0 => row.fill(input[offset]),
                stride => {
                    for (i, o) in row.iter_mut().enumerate() {
                        *o = input[step(offset, stride, i)];
                    }
                }
            }
            rest = tail;
            column = 0;
            position.advance(outer);
        }
    }

    /// Copies whole indices from `first` on of the axes up to `across`, `unit` elements of the
    /// result each, block by block.
    fn apply_blocks<T: Copy>(
        &self,
        across: usize,
        unit: usize,
        input: &[T],
        first: usize,
        out: &mut [T],
    ) {
        let (outer, rest) = self.axes.split_at(across);
        let [contiguous, middle @ .., last] = rest else {
            unreachable!("the contiguous axis is not the last one");
        };
        let n_middle: usize = middle.iter().map(|axis| axis.size).product();
        let mut position = Position::at(self.start, outer, first / contiguous.size);
        let mut row = first % contiguous.size;
        let mut rest = out;
        while !rest.is_empty() {
            let n = (contiguous.size - row).min(rest.len() / unit);
            let (group, tail) = std::mem::take(&mut rest).split_at_mut(n * unit);
            let mut inner = Position::at(position.offset + row, middle, 0);
            for index in 0..n_middle {
                let columns = index * last.size..(index + 1) * last.size;
                transpose(input, inner.offset, last.stride, group, unit, columns);
                inner.advance(middle);
            }
            rest = tail;
            row = 0;
            position.advance(outer);
        }
    }
}

/// Computes `out[i, columns.start + j] = input[offset + i + j * stride]`; rows of `out` are
/// `row_stride` elements apart.
fn transpose<T: Copy>(
    input: &[T],
    offset: usize,
    stride: isize,
    out: &mut [T],
    row_stride: usize,
    columns: std::ops::Range<usize>,
) {
    let n_rows = out.len() / row_stride;
    for row in (0..n_rows).step_by(BLOCK) {
        for column in columns.clone().step_by(BLOCK) {
            let n = BLOCK.min(columns.end - column);
            let from = step(offset, stride, column - columns.start);
            for i in row..n_rows.min(row + BLOCK) {
                let line = &mut out[i * row_stride + column..][..n];
                for (j, o) in line.iter_mut().enumerate() {
                    *o = input[step(from + i, stride, j)];
                }
            }
        }
    }
}

/// Returns `offset + stride * n`.
#[inline]
fn step(offset: usize, stride: isize, n: usize) -> usize {
    #[expect(
        clippy::cast_possible_wrap,
        reason = "an index of a slice, far below isize::MAX"
    )]
    let distance = stride.wrapping_mul(n as isize);
    offset.wrapping_add_signed(distance)
}

/// Offset in the input at the start of a run.
struct Position {
    index: SmallVec<[usize; 6]>,
    offset: usize,
}

impl Position {
    fn at(start: usize, axes: &[Axis], mut row: usize) -> Self {
        let mut position = Self {
            index: SmallVec::from_elem(0, axes.len()),
            offset: start,
        };
        for (slot, axis) in position.index.iter_mut().zip(axes).rev() {
            *slot = row % axis.size;
            row /= axis.size;
            position.offset = step(position.offset, axis.stride, *slot);
        }
        position
    }

    fn advance(&mut self, axes: &[Axis]) {
        for (slot, axis) in self.index.iter_mut().zip(axes).rev() {
            *slot += 1;
            self.offset = step(self.offset, axis.stride, 1);
            if *slot < axis.size {
                return;
            }
            *slot = 0;
            self.offset = step(self.offset, axis.stride.wrapping_neg(), axis.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation: every output index is decomposed on its own.
    fn plain(start: usize, axes: &[(usize, isize)], input: &[u32]) -> Vec<u32> {
        let n: usize = axes.iter().map(|axis| axis.0).product();
        (0..n)
            .map(|mut flat| {
                let mut offset = isize::try_from(start).unwrap();
                for &(size, stride) in axes.iter().rev() {
                    offset += isize::try_from(flat % size).unwrap() * stride;
                    flat /= size;
                }
                input[usize::try_from(offset).unwrap()]
            })
            .collect()
    }

    fn check(axes: &[(usize, isize)]) {
        // The lowest element that the strides reach is element 0.
        let reach = |sign: isize| -> usize {
            axes.iter()
                .filter(|axis| axis.1 * sign > 0)
                .map(|&(size, stride)| size.saturating_sub(1) * stride.unsigned_abs())
                .sum()
        };
        let input: Vec<u32> = (0..).take(reach(1) + reach(-1) + 1).collect();
        let copy = StridedCopy::new(reach(-1), axes.iter().copied());
        let expected = plain(reach(-1), axes, &input);
        let mut out = vec![u32::MAX; expected.len()];
        copy.apply(&input, &mut out, Threads::single());
        assert_eq!(out, expected, "{axes:?}");
        let positions: Vec<u32> = copy.positions().map(|index| input[index]).collect();
        assert_eq!(positions, expected, "{axes:?}");
        // Parts may start anywhere, as they do for threads.
        for first in 0..out.len() {
            let mut part = vec![u32::MAX; (out.len() - first).min(5)];
            copy.apply_rows(&input, first, &mut part);
            assert_eq!(part, expected[first..first + part.len()], "{axes:?}");
        }
        if let Some(across) = copy.contiguous_axis().filter(|_| !out.is_empty()) {
            let unit: usize = copy.axes[across + 1..]
                .iter()
                .map(|axis| axis.size)
                .product();
            for first in 0..out.len() / unit {
                let n = (out.len() / unit - first).min(3) * unit;
                let mut part = vec![u32::MAX; n];
                copy.apply_blocks(across, unit, &input, first, &mut part);
                assert_eq!(part, expected[first * unit..][..n], "{axes:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn runs_and_blocks_agree_with_decomposing_every_index(
            axes in prop::collection::vec((0usize..6, -7isize..8), 0..5),
        ) {
            check(&axes);
        }

        #[test]
        fn transpositions_agree_with_decomposing_every_index(
            dims in prop::collection::vec(1usize..21, 2..4),
            order in any::<prop::sample::Index>(),
        ) {
            let strides = row_major_strides(&dims);
            let mut axes: Vec<(usize, isize)> = dims.iter().copied().zip(strides).collect();
            let n = axes.len();
            axes.rotate_left(order.index(n));
            check(&axes);
            axes.swap(0, n - 1);
            check(&axes);
        }
    }

    #[test]
    fn identities_are_recognized() {
        assert!(StridedCopy::new(0, [(2, 3), (3, 1)]).is_identity(6));
        assert!(StridedCopy::new(0, []).is_identity(1));
        assert!(StridedCopy::new(0, [(1, 5), (4, 1)]).is_identity(4));
        assert!(StridedCopy::new(3, [(0, 5), (4, 1)]).is_identity(0));
        assert!(!StridedCopy::new(0, [(2, 3), (2, 1)]).is_identity(6));
        assert!(!StridedCopy::new(3, [(1, 3), (3, 1)]).is_identity(6));
        assert!(!StridedCopy::new(0, [(2, 1), (3, 2)]).is_identity(6));
    }
}
