//! Reductions over axes.
//!
//! Sums and products are computed as trees: the error grows with the logarithm of the number of
//! terms, and the result does not depend on the number of threads.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::Threads;
use crate::kernels::reducer::Reducer;
use crate::kernels::slice::axis_index;
use crate::tensor::Element;
use crate::tensor::Shape;

/// Minimum number of input elements worth handing to another thread.
const GRAIN: usize = 32 * 1024;

/// Terms that are added sequentially, per lane, before a tree begins.
const BLOCK: usize = 1024;

/// Accumulators of a row, for the compiler to vectorize.
const LANES: usize = 16;

/// Columns that are reduced together.
const TILE: usize = 128;

/// Rows that are reduced sequentially before a tree begins.
const ROWS: usize = 64;

/// A reduction of a shape over some of its axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduction {
    shape: Shape,
    kept: SmallVec<[Axis; 4]>,
    reduced: SmallVec<[Axis; 4]>,
    n_reduced: usize,
    /// Whether the last axis is kept.
    by_columns: bool,
}

/// Adjacent dimensions that are all kept or all reduced, merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    size: usize,
    stride: usize,
}

/// Resolves the axes of a reduction, which may be negative, to one flag per dimension (TensorFlow's
/// rule: each axis at most once).
///
/// # Errors
/// [`KernelError::InvalidArgument`] if the shape does not have an axis, or an axis is named twice.
pub fn reduced_axes(shape: &Shape, axes: &[i64]) -> Result<SmallVec<[bool; 8]>, KernelError> {
    let rank = shape.rank();
    let mut reduced = SmallVec::from_elem(false, rank);
    for &axis in axes {
        let index = axis_index(axis, rank).ok_or_else(|| {
            KernelError::invalid(format!(
                "invalid reduction dimension ({axis} for input with {rank} dimension(s), of shape {shape})"
            ))
        })?;
        if std::mem::replace(&mut reduced[index], true) {
            return Err(KernelError::invalid(format!(
                "invalid reduction arguments: axes contains duplicate dimension: {index}, in {axes:?} of shape {shape}"
            )));
        }
    }
    Ok(reduced)
}

impl Reduction {
    /// Returns the reduction of `input` over the axes that `reduced` marks; with `keep_dims` they
    /// stay as 1.
    ///
    /// # Panics
    /// If there is not one mark per axis.
    pub fn new(input: &Shape, reduced: &[bool], keep_dims: bool) -> Self {
        assert_eq!(reduced.len(), input.rank(), "one mark per axis");
        let dims = input.dims().iter().zip(reduced);
        let shape = dims
            .clone()
            .filter_map(|(&dim, &gone)| match (gone, keep_dims) {
                (false, _) => Some(dim),
                (true, true) => Some(1),
                (true, false) => None,
            })
            .collect();
        let mut axes = [SmallVec::<[Axis; 4]>::new(), SmallVec::new()];
        let (mut stride, mut n_reduced, mut last) = (1usize, 1usize, None);
        for (&size, &gone) in dims.rev() {
            if gone {
                n_reduced = n_reduced.saturating_mul(size);
            }
            if size != 1 {
                let own = &mut axes[usize::from(gone)];
                match own.last_mut() {
                    Some(inner) if last == Some(gone) => {
                        inner.size = inner.size.saturating_mul(size);
                    }
                    _ => own.push(Axis { size, stride }),
                }
                last = Some(gone);
            }
            stride = stride.saturating_mul(size);
        }
        let [mut kept, mut gone] = axes;
        let by_columns = kept.first().is_some_and(|axis| axis.stride == 1);
        kept.reverse();
        gone.reverse();
        Self {
            shape,
            kept,
            reduced: gone,
            n_reduced,
            by_columns,
        }
    }

    /// Returns the shape of the result.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of input elements per result.
    pub fn n_reduced(&self) -> usize {
        self.n_reduced
    }

    /// Returns sizes and strides of the kept axes, outermost first, none of size 1.
    pub fn kept_axes(&self) -> impl ExactSizeIterator<Item = (usize, usize)> + '_ {
        self.kept.iter().map(|axis| (axis.size, axis.stride))
    }

    /// Returns sizes and strides of the reduced axes, outermost first, none of size 1.
    pub fn reduced_axes(&self) -> impl ExactSizeIterator<Item = (usize, usize)> + '_ {
        self.reduced.iter().map(|axis| (axis.size, axis.stride))
    }

    /// Returns whether adjacent elements stay adjacent: the last axis that is not 1 is kept.
    pub fn is_by_columns(&self) -> bool {
        self.by_columns
    }

    /// Reduces `input` to `out`.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn apply<T: Element, R: Reducer<T>>(
        &self,
        input: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) {
        assert_eq!(out.len(), self.shape.n_elements(), "result has its shape");
        if out.is_empty() {
            return;
        }
        if input.is_empty() {
            out.fill(R::end(R::START, self.n_reduced));
            return;
        }
        let grain = (GRAIN / self.n_reduced).max(1);
        if self.by_columns {
            threads.fill(out, TILE, grain, |start, part| {
                self.columns::<T, R>(input, start, part);
            });
        } else if let [only] = out {
            *only = R::end(self.all::<T, R>(input, threads), self.n_reduced);
        } else {
            threads.fill(out, 1, grain, |start, part| {
                for (index, o) in part.iter_mut().enumerate() {
                    let base = offset(&self.kept, start + index);
                    *o = R::end(self.rows::<T, R>(&input[base..]), self.n_reduced);
                }
            });
        }
    }

    /// Computes a single result, with several threads if that pays.
    fn all<T: Element, R: Reducer<T>>(&self, input: &[T], threads: Threads<'_>) -> R::Partial {
        let n_parts = input.len().div_ceil(GRAIN);
        if n_parts < 2 {
            return row::<T, R>(input);
        }
        let mut parts = vec![R::START; n_parts];
        threads.fill(&mut parts, 1, 1, |start, parts| {
            for (index, part) in parts.iter_mut().enumerate() {
                let from = (start + index) * GRAIN;
                *part = row::<T, R>(&input[from..(from + GRAIN).min(input.len())]);
            }
        });
        while parts.len() > 1 {
            let half = parts.len().div_ceil(2);
            for index in half..parts.len() {
                parts[index - half] = R::join(parts[index - half], parts[index]);
            }
            parts.truncate(half);
        }
        parts[0]
    }

    /// Computes one result from the elements at the start of `input`: rows along the last reduced
    /// axis, at each index of the other reduced axes.
    fn rows<T: Element, R: Reducer<T>>(&self, input: &[T]) -> R::Partial {
        match self.reduced.split_last() {
            None => R::take(input[0]),
            Some((last, [])) => row::<T, R>(&input[..last.size]),
            Some((last, outer)) => {
                let n_rows = self.n_reduced / last.size;
                tree::<T, R>(0, n_rows, &|index| {
                    let start = offset(outer, index);
                    row::<T, R>(&input[start..start + last.size])
                })
            }
        }
    }

    /// Computes the results `start..start + out.len()`, if the last axis is kept.
    fn columns<T: Element, R: Reducer<T>>(&self, input: &[T], start: usize, out: &mut [T]) {
        let (inner, outer) = self.kept.split_last().expect("the last axis is kept");
        let mut done = 0;
        while done < out.len() {
            let (row, column) = ((start + done) / inner.size, (start + done) % inner.size);
            let n = (inner.size - column).min(out.len() - done).min(TILE);
            let base = offset(outer, row) + column;
            let mut partials = [R::START; TILE];
            self.add_rows::<T, R>(&input[base..], 0, self.n_reduced, &mut partials[..n]);
            for (o, &partial) in out[done..done + n].iter_mut().zip(&partials) {
                *o = R::end(partial, self.n_reduced);
            }
            done += n;
        }
    }

    /// Adds `n_rows` rows, from the one with this index on, to `partials`.
    fn add_rows<T: Element, R: Reducer<T>>(
        &self,
        input: &[T],
        first: usize,
        n_rows: usize,
        partials: &mut [R::Partial],
    ) {
        if n_rows > ROWS {
            let half = n_rows / 2;
            self.add_rows::<T, R>(input, first, half, partials);
            let mut others = [R::START; TILE];
            let others = &mut others[..partials.len()];
            self.add_rows::<T, R>(input, first + half, n_rows - half, others);
            for (partial, &other) in partials.iter_mut().zip(&*others) {
                *partial = R::join(*partial, other);
            }
            return;
        }
        // Rows at equal distances: the sums of some columns stay in registers.
        if let [axis] = &self.reduced[..] {
            let (vectors, rest) = partials.as_chunks_mut::<LANES>();
            let n_vectors = vectors.len();
            for (index, vector) in vectors.iter_mut().enumerate() {
                let mut totals = *vector;
                for row in first..first + n_rows {
                    let elements = &input[row * axis.stride + index * LANES..][..LANES];
                    for (total, &x) in totals.iter_mut().zip(elements) {
                        *total = R::join(*total, R::take(x));
                    }
                }
                *vector = totals;
            }
            for row in first..first + n_rows {
                let elements = &input[row * axis.stride + n_vectors * LANES..];
                for (partial, &x) in rest.iter_mut().zip(elements) {
                    *partial = R::join(*partial, R::take(x));
                }
            }
            return;
        }
        for index in first..first + n_rows {
            let start = offset(&self.reduced, index);
            for (partial, &x) in partials.iter_mut().zip(&input[start..]) {
                *partial = R::join(*partial, R::take(x));
            }
        }
    }
}

/// Returns the offset of element `index` of these axes.
fn offset(axes: &[Axis], mut index: usize) -> usize {
    let Some((first, inner)) = axes.split_first() else {
        return 0;
    };
    let mut offset = 0;
    for axis in inner.iter().rev() {
        offset += index % axis.size * axis.stride;
        index /= axis.size;
    }
    offset + index * first.stride
}

/// Reduces `part(first..first + n)` as a tree; `n` must not be 0.
fn tree<T, R: Reducer<T>>(
    first: usize,
    n: usize,
    part: &impl Fn(usize) -> R::Partial,
) -> R::Partial {
    if n <= LANES {
        return (first + 1..first + n).fold(part(first), |sum, index| R::join(sum, part(index)));
    }
    let half = n / 2;
    R::join(
        tree::<T, R>(first, half, part),
        tree::<T, R>(first + half, n - half, part),
    )
}

/// Reduces contiguous elements.
fn row<T: Copy, R: Reducer<T>>(input: &[T]) -> R::Partial {
    if input.len() > BLOCK {
        let half = (input.len() / 2).next_multiple_of(LANES);
        return R::join(row::<T, R>(&input[..half]), row::<T, R>(&input[half..]));
    }
    let (chunks, rest) = input.as_chunks::<LANES>();
    let mut partial = R::START;
    if !chunks.is_empty() {
        let mut lanes = [R::START; LANES];
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = R::join(*lane, R::take(x));
            }
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for index in 0..width {
                lanes[index] = R::join(lanes[index], lanes[index + width]);
            }
        }
        partial = lanes[0];
    }
    rest.iter()
        .fold(partial, |partial, &x| R::join(partial, R::take(x)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::reducer::Sum;

    /// Reference implementation: adds each element to its result.
    fn plain(shape: &Shape, reduced: &[bool], values: &[i64]) -> Vec<i64> {
        let n_kept: usize = shape
            .dims()
            .iter()
            .zip(reduced)
            .filter(|(_, gone)| !**gone)
            .map(|(&d, _)| d)
            .product();
        let mut out = vec![0i64; n_kept];
        for (flat, &value) in values.iter().enumerate() {
            let (mut rest, mut index, mut stride) = (flat, 0, 1);
            for (&dim, &gone) in shape.dims().iter().zip(reduced).rev() {
                if !gone {
                    index += rest % dim * stride;
                    stride *= dim;
                }
                rest /= dim;
            }
            // The squares show whether an element is added twice or to a neighbour.
            out[index] = out[index].wrapping_add(value.wrapping_mul(value));
        }
        out
    }

    #[test]
    fn reduced_axes_exist_and_differ() {
        let shape = Shape::from([2, 3]);
        assert_eq!(&reduced_axes(&shape, &[-1]).unwrap()[..], [false, true]);
        assert!(reduced_axes(&shape, &[2]).is_err());
        assert!(reduced_axes(&shape, &[1, -1]).is_err());
    }

    proptest! {
        #[test]
        fn runs_agree_with_adding_element_by_element(
            axes in prop::collection::vec((1usize..5, any::<bool>()), 0..6),
            long in 0usize..7,
            n_long in 1usize..300,
        ) {
            let mut dims: Vec<usize> = axes.iter().map(|&(dim, _)| dim).collect();
            if let Some(dim) = dims.get_mut(long) {
                *dim = n_long;
            }
            let reduced: Vec<bool> = axes.iter().map(|&(_, gone)| gone).collect();
            let shape = Shape::new(&dims);
            let values: Vec<i64> = (1..).take(shape.n_elements()).collect();
            let expected = plain(&shape, &reduced, &values);
            let squares: Vec<i64> = values.iter().map(|x| x * x).collect();
            let plan = Reduction::new(&shape, &reduced, false);
            let mut out = vec![0; plan.shape().n_elements()];
            plan.apply::<i64, Sum>(&squares, &mut out, Threads::single());
            prop_assert_eq!(&out, &expected);
            // Parts may start anywhere, as they do for threads.
            if plan.by_columns {
                for start in 0..out.len().min(20) {
                    let mut part = vec![0; (out.len() - start).min(7)];
                    plan.columns::<i64, Sum>(&squares, start, &mut part);
                    prop_assert_eq!(&part[..], &expected[start..start + part.len()]);
                }
            }
        }
    }

    #[test]
    fn sums_of_many_terms_keep_their_digits() {
        // Added sequentially, a million tenths are off by one in a thousand.
        let values = vec![0.1f32; 1_000_000];
        for (dims, gone) in [
            (&[1_000_000][..], &[true][..]),
            (&[1_000_000, 1], &[true, false]),
            (&[500_000, 2], &[true, false]),
            (&[2, 500_000], &[false, true]),
            (&[1000, 2, 500], &[true, false, true]),
        ] {
            let plan = Reduction::new(&Shape::new(dims), gone, false);
            let mut out = vec![0.0; plan.shape().n_elements()];
            plan.apply::<f32, Sum>(&values, &mut out, Threads::single());
            let expected = 100_000.0 / if out.len() == 2 { 2.0 } else { 1.0 };
            for sum in out {
                assert!((sum - expected).abs() < 1e-6 * expected, "{dims:?}: {sum}");
            }
        }
    }
}
