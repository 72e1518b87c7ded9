//! NumPy broadcasting of two operands.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::Threads;
use crate::kernels::simd::vectorize;
use crate::tensor::Element;
use crate::tensor::Shape;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 64 * 1024;

/// A row shorter than this is repeated side by side before it is combined with the other operand.
const SHORT: usize = 64;

/// How two operands of different shapes are combined. NumPy's rule: shapes are aligned at the last
/// dimension, and a dimension of 1 repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broadcast {
    shape: Shape,
    axes: SmallVec<[Axis; 4]>,
}

/// Adjacent output dimensions, merged, over which each operand either advances or repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    size: usize,
    lhs_stride: usize,
    rhs_stride: usize,
}

impl Broadcast {
    /// Returns the broadcast of operands of these shapes.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] with both shapes if they are incompatible or the result
    /// exceeds the address space.
    pub fn new(lhs: &Shape, rhs: &Shape) -> Result<Self, KernelError> {
        let rank = lhs.rank().max(rhs.rank());
        let dim = |shape: &Shape, axis: usize| {
            (axis + shape.rank())
                .checked_sub(rank)
                .map_or(1, |own| shape.dims()[own])
        };
        let mut dims: SmallVec<[usize; 4]> = SmallVec::new();
        let mut axes: SmallVec<[Axis; 4]> = SmallVec::new();
        // Strides are computed from the last dimension to the first.
        let (mut lhs_stride, mut rhs_stride) = (1usize, 1usize);
        let mut last_kind = None;
        for axis in (0..rank).rev() {
            let (l, r) = (dim(lhs, axis), dim(rhs, axis));
            let size = match (l, r) {
                _ if l == r => l,
                (1, _) => r,
                (_, 1) => l,
                _ => {
                    return Err(KernelError::invalid(format!(
                        "incompatible shapes: {lhs} vs. {rhs}"
                    )));
                }
            };
            dims.push(size);
            let kind = (l == size, r == size);
            if size != 1 {
                match axes.last_mut() {
                    Some(previous) if last_kind == Some(kind) => {
                        previous.size = previous.size.saturating_mul(size);
                    }
                    _ => axes.push(Axis {
                        size,
                        lhs_stride: if kind.0 { lhs_stride } else { 0 },
                        rhs_stride: if kind.1 { rhs_stride } else { 0 },
                    }),
                }
                last_kind = Some(kind);
            }
            lhs_stride = lhs_stride.saturating_mul(l);
            rhs_stride = rhs_stride.saturating_mul(r);
        }
        dims.reverse();
        axes.reverse();
        let shape = Shape::new(&dims);
        if shape.n_elements() == usize::MAX {
            return Err(KernelError::invalid(format!(
                "broadcasting {lhs} with {rhs} gives {shape}, more than this machine can address"
            )));
        }
        Ok(Self { shape, axes })
    }

    /// Returns the size and both operand strides, in elements, of each group of merged dimensions,
    /// outermost first.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn axes(&self) -> impl Iterator<Item = (usize, [usize; 2])> {
        let axes = self.axes.iter();
        axes.map(|axis| (axis.size, [axis.lhs_stride, axis.rhs_stride]))
    }

    /// Returns the shape of the result.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Computes `out[i] = f(lhs[..], rhs[..])` for every element of the result, row-major.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn apply<L, R, O, F>(&self, lhs: &[L], rhs: &[R], out: &mut [O], threads: Threads<'_>, f: F)
    where
        L: Element,
        R: Copy + Sync,
        O: Send,
        F: Fn(L, R) -> O + Sync,
    {
        assert_eq!(out.len(), self.shape.n_elements(), "result has its shape");
        if out.is_empty() {
            return;
        }
        threads.fill(out, 1, GRAIN, |start, part| {
            vectorize::<L, _>(|| match (self.is_repeated_row(), rhs.len()) {
                (true, 1..SHORT) => apply_repeated(lhs, rhs, start, part, &f),
                _ => self.apply_part(lhs, rhs, start, part, &f),
            });
        });
    }

    /// Returns whether the right operand is a row that repeats for each row of the left one, as a
    /// bias does.
    fn is_repeated_row(&self) -> bool {
        matches!(self.axes[..], [outer, inner] if outer.rhs_stride == 0 && inner.rhs_stride == 1 && inner.lhs_stride == 1)
    }

    /// Computes the elements `start..start + out.len()` of the result.
    #[inline(always)]
    fn apply_part<L: Copy, R: Copy, O>(
        &self,
        lhs: &[L],
        rhs: &[R],
        start: usize,
        out: &mut [O],
        f: &impl Fn(L, R) -> O,
    ) {
        let Some((inner, outer)) = self.axes.split_last() else {
            out[0] = f(lhs[0], rhs[0]);
            return;
        };
        let mut position = Position::at(outer, start / inner.size);
        let mut column = start % inner.size;
        let mut rest = out;
        while !rest.is_empty() {
            let n = (inner.size - column).min(rest.len());
            let (row, tail) = std::mem::take(&mut rest).split_at_mut(n);
            let l = &lhs[position.lhs + column * inner.lhs_stride..];
            let r = &rhs[position.rhs + column * inner.rhs_stride..];
            apply_row(l, inner.lhs_stride != 0, r, inner.rhs_stride != 0, row, f);
            rest = tail;
            column = 0;
            position.advance(outer);
        }
    }
}

/// Repeats a short row, from element `first` on, until it is long or has `n` elements; the result
/// consists of whole rows.
#[inline(never)]
fn side_by_side<R: Copy>(row: &[R], first: usize, n: usize) -> SmallVec<[R; 4 * SHORT]> {
    let n_repeats = (4 * SHORT / row.len()).min(n.div_ceil(row.len()));
    let (head, tail) = row.split_at(first);
    let mut repeated = SmallVec::new();
    for _ in 0..n_repeats {
        repeated.extend(tail.iter().copied());
        repeated.extend(head.iter().copied());
    }
    repeated
}

/// Repeats the short row of the right operand side by side, so that loops over it can be
/// vectorized.
#[inline(always)]
fn apply_repeated<L: Copy, R: Copy, O>(
    lhs: &[L],
    rhs: &[R],
    start: usize,
    out: &mut [O],
    f: &impl Fn(L, R) -> O,
) {
    let row = side_by_side(rhs, start % rhs.len(), out.len());
    let lhs = &lhs[start..start + out.len()];
    let (mut out, mut lhs) = (out, lhs);
    while !out.is_empty() {
        let (to, others) = std::mem::take(&mut out).split_at_mut(row.len().min(lhs.len()));
        let (from, rest) = lhs.split_at(to.len());
        apply_row(from, true, &row, true, to, f);
        (out, lhs) = (others, rest);
    }
}

/// Computes one run: each operand either advances by one element or stays.
#[inline(always)]
fn apply_row<L: Copy, R: Copy, O>(
    lhs: &[L],
    lhs_advances: bool,
    rhs: &[R],
    rhs_advances: bool,
    out: &mut [O],
    f: &impl Fn(L, R) -> O,
) {
    let n = out.len();
    match (lhs_advances, rhs_advances) {
        (true, true) => {
            for ((o, &l), &r) in out.iter_mut().zip(&lhs[..n]).zip(&rhs[..n]) {
                *o = f(l, r);
            }
        }
        (true, false) => {
            let r = rhs[0];
            for (o, &l) in out.iter_mut().zip(&lhs[..n]) {
                *o = f(l, r);
            }
        }
        (false, true) => {
            let l = lhs[0];
            for (o, &r) in out.iter_mut().zip(&rhs[..n]) {
                *o = f(l, r);
            }
        }
        (false, false) => unreachable!("an axis that neither operand has was left out"),
    }
}

/// Operand offsets at the start of a run.
struct Position {
    index: SmallVec<[usize; 4]>,
    lhs: usize,
    rhs: usize,
}

impl Position {
    fn at(axes: &[Axis], mut row: usize) -> Self {
        let mut position = Self {
            index: SmallVec::from_elem(0, axes.len()),
            lhs: 0,
            rhs: 0,
        };
        for (slot, axis) in position.index.iter_mut().zip(axes).rev() {
            *slot = row % axis.size;
            row /= axis.size;
            position.lhs += *slot * axis.lhs_stride;
            position.rhs += *slot * axis.rhs_stride;
        }
        position
    }

    fn advance(&mut self, axes: &[Axis]) {
        for (slot, axis) in self.index.iter_mut().zip(axes).rev() {
            *slot += 1;
            self.lhs += axis.lhs_stride;
            self.rhs += axis.rhs_stride;
            if *slot < axis.size {
                return;
            }
            *slot = 0;
            self.lhs -= axis.size * axis.lhs_stride;
            self.rhs -= axis.size * axis.rhs_stride;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation: every output index is decomposed on its own.
    fn plain(lhs: &Shape, rhs: &Shape, out: &Shape, a: &[u32], b: &[u32]) -> Vec<(u32, u32)> {
        let offset = |shape: &Shape, index: &[usize]| {
            let skipped = index.len() - shape.rank();
            shape
                .dims()
                .iter()
                .zip(&index[skipped..])
                .fold(0, |offset, (&dim, &i)| {
                    offset * dim + if dim == 1 { 0 } else { i }
                })
        };
        (0..out.n_elements())
            .map(|flat| {
                let mut rest = flat;
                let mut index = vec![0; out.rank()];
                for (slot, &dim) in index.iter_mut().zip(out.dims()).rev() {
                    *slot = rest % dim;
                    rest /= dim;
                }
                (a[offset(lhs, &index)], b[offset(rhs, &index)])
            })
            .collect()
    }

    fn check(lhs: &Shape, rhs: &Shape) {
        let plan = Broadcast::new(lhs, rhs).unwrap();
        let a: Vec<u32> = (0..).take(lhs.n_elements()).collect();
        let b: Vec<u32> = (1000..).take(rhs.n_elements()).collect();
        let expected = plain(lhs, rhs, plan.shape(), &a, &b);
        let mut out = vec![(0, 0); plan.shape().n_elements()];
        plan.apply(&a, &b, &mut out, Threads::single(), |x, y| (x, y));
        assert_eq!(out, expected, "{lhs} with {rhs}");
        // Parts may start anywhere, as they do for threads.
        for start in 0..out.len() {
            let mut part = vec![(0, 0); (out.len() - start).min(5)];
            plan.apply_part(&a, &b, start, &mut part, &|x, y| (x, y));
            assert_eq!(part, expected[start..start + part.len()]);
        }
    }

    proptest! {
        #[test]
        fn runs_agree_with_decomposing_every_index(
            dims in prop::collection::vec((1usize..4, 0u8..3), 0..6),
            cut_lhs in 0usize..6,
            cut_rhs in 0usize..6,
        ) {
            // Kind 0: both have the dimension; 1: only lhs; 2: only rhs.
            let side = |other: u8, cut: usize| -> Shape {
                let all: Vec<usize> = dims.iter().map(|&(d, kind)| if kind == other { 1 } else { d }).collect();
                all[cut.min(all.len())..].iter().copied().collect()
            };
            let (lhs, rhs) = (side(2, cut_lhs), side(1, cut_rhs));
            check(&lhs, &rhs);
        }
    }

    #[test]
    fn an_empty_dimension_gives_an_empty_result() {
        let plan = Broadcast::new(&[2, 0].into(), &[1].into()).unwrap();
        assert_eq!(plan.shape(), &[2, 0].into());
        plan.apply(&[], &[1.0], &mut [], Threads::single(), |x: f32, y: f32| {
            x + y
        });
    }

    #[test]
    fn incompatible_shapes_are_both_named() {
        let error = Broadcast::new(&[2, 3].into(), &[4].into()).unwrap_err();
        assert_eq!(error.to_string(), "incompatible shapes: [2,3] vs. [4]");
        assert!(Broadcast::new(&[0].into(), &[2].into()).is_err());
    }

    #[test]
    fn a_result_beyond_the_address_space_is_rejected() {
        let error = Broadcast::new(&[1 << 40, 1].into(), &[1 << 40].into()).unwrap_err();
        assert!(
            error.to_string().contains("more than this machine"),
            "{error}"
        );
    }

    #[test]
    fn a_short_row_continues_at_the_start_of_a_part() {
        for columns in [1, 3, 7, 63] {
            let lhs: Vec<u32> = (0..900).collect();
            let rhs: Vec<u32> = (0..columns).map(|j| 10_000 * (j + 1)).collect();
            for (start, n) in [(0, 900), (1, 500), (columns as usize, 1), (64, 0), (899, 1)] {
                let mut out = vec![0; n];
                apply_repeated(&lhs, &rhs, start, &mut out, &|l: u32, r: u32| l + r);
                let expected: Vec<u32> = (start..start + n)
                    .map(|i| lhs[i] + rhs[i % rhs.len()])
                    .collect();
                assert_eq!(out, expected, "{columns} columns, from {start}");
            }
        }
    }
}
