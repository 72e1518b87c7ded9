//! Cumulative sums and products along an axis, and the index of the largest or smallest element.

use half::bf16;
use half::f16;

use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::tensor::Boolean;
use crate::tensor::Element;
use crate::tensor::Shape;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 32 * 1024;

/// Columns that are searched together.
const TILE: usize = 64;

/// A tensor viewed along one axis: `[outer, n, inner]`, row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AxisView {
    n: usize,
    inner: usize,
}

/// Options of a cumulative sum or product.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanOptions {
    /// Whether an element is left out of its own sum.
    pub exclusive: bool,
    /// Whether the sum runs from the end.
    pub reverse: bool,
}

/// An element with an order.
pub trait Ordered: Element + PartialOrd {
    /// The smallest finite value.
    const LEAST: Self;
    /// The largest finite value.
    const MOST: Self;
}

macro_rules! ordered {
    ($($rust:ty),*) => {$(
        impl Ordered for $rust {
            const LEAST: Self = Self::MIN;
            const MOST: Self = Self::MAX;
        }
    )*};
}

ordered!(i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, f16, bf16);

impl Ordered for Boolean {
    const LEAST: Self = Self::FALSE;
    const MOST: Self = Self::TRUE;
}

impl AxisView {
    /// Views a tensor of this shape along axis `axis`.
    ///
    /// # Panics
    /// If the shape has fewer axes.
    pub fn new(shape: &Shape, axis: usize) -> Self {
        let product = |dims: &[usize]| dims.iter().fold(1usize, |n, &dim| n.saturating_mul(dim));
        Self {
            n: shape.dims()[axis],
            inner: product(&shape.dims()[axis + 1..]),
        }
    }

    /// Returns the number of elements along the axis.
    pub fn n(self) -> usize {
        self.n
    }

    /// Returns the number of elements after the axis.
    pub fn inner(self) -> usize {
        self.inner
    }

    /// Computes `out[i] = join(join(start, x[0]), ..)`, in order and in `T` (TensorFlow `Cumsum`,
    /// `Cumprod`).
    ///
    /// # Panics
    /// If the lengths differ, or are not a multiple of the axis.
    pub fn scan<T: Arithmetic>(
        self,
        input: &[T],
        out: &mut [T],
        options: ScanOptions,
        threads: Threads<'_>,
        start: T,
        join: impl Fn(T, T) -> T + Sync,
    ) {
        assert_eq!(input.len(), out.len(), "one result per element");
        if out.is_empty() {
            return;
        }
        let unit = self.n * self.inner;
        threads.fill(out, unit, GRAIN, |first, part| {
            let blocks = input[first..first + part.len()].chunks_exact(unit);
            for (x, o) in blocks.zip(part.chunks_exact_mut(unit)) {
                self.scan_block(x, o, options, start, &join);
            }
        });
    }

    /// Scans one `[n, inner]` block.
    fn scan_block<T: Arithmetic>(
        self,
        input: &[T],
        out: &mut [T],
        options: ScanOptions,
        start: T,
        join: &impl Fn(T, T) -> T,
    ) {
        let at = |index: usize| {
            if options.reverse {
                self.n - 1 - index
            } else {
                index
            }
        };
        if self.inner == 1 {
            let mut sum = start;
            for index in (0..self.n).map(at) {
                let next = join(sum, input[index]);
                out[index] = if options.exclusive { sum } else { next };
                sum = next;
            }
            return;
        }
        let row = |index: usize| at(index) * self.inner..(at(index) + 1) * self.inner;
        if options.exclusive {
            out[row(0)].fill(start);
        } else {
            for (o, &x) in out[row(0)].iter_mut().zip(&input[row(0)]) {
                *o = join(start, x);
            }
        }
        for index in 1..self.n {
            let (previous, this) = (row(index - 1), row(index));
            let x = if options.exclusive {
                &input[previous.clone()]
            } else {
                &input[this.clone()]
            };
            let (sums, o) = if previous.start < this.start {
                let (front, back) = out.split_at_mut(this.start);
                (&front[previous], &mut back[..self.inner])
            } else {
                let (front, back) = out.split_at_mut(previous.start);
                (&back[..self.inner], &mut front[this])
            };
            for ((o, &sum), &x) in o.iter_mut().zip(sums).zip(x) {
                *o = join(sum, x);
            }
        }
    }

    /// Finds the index of the largest element (with [`Ordered::LEAST`] and `>`) or the smallest
    /// (with [`Ordered::MOST`] and `<`) along the axis; `out` is `[outer, inner]`. The first of
    /// equal elements wins. As in Eigen, elements that are not beyond `start`, NaN among them, are
    /// skipped; the index is 0 if all are skipped (TensorFlow `ArgMax`, `ArgMin`).
    ///
    /// # Panics
    /// If the axis is empty, or the lengths disagree.
    pub fn arg<T: Ordered, O: Number>(
        self,
        input: &[T],
        out: &mut [O],
        threads: Threads<'_>,
        start: T,
        beyond: impl Fn(T, T) -> bool + Sync,
    ) {
        assert_eq!(out.len() * self.n, input.len(), "one result per run");
        #[expect(clippy::cast_possible_wrap, reason = "an index of memory")]
        let position = |index: usize| O::from_i64(index as i64);
        threads.fill(out, 1, (GRAIN / self.n).max(1), |first, part| {
            if self.inner == 1 {
                for (index, o) in part.iter_mut().enumerate() {
                    let row = &input[(first + index) * self.n..][..self.n];
                    // Two passes, both of which are vectorized.
                    let best = row
                        .iter()
                        .fold(start, |best, &x| if beyond(x, best) { x } else { best });
                    let found = beyond(best, start).then(|| row.iter().position(|&x| x == best));
                    *o = position(found.flatten().unwrap_or(0));
                }
                return;
            }
            let mut done = 0;
            while done < part.len() {
                let (outer, column) = ((first + done) / self.inner, (first + done) % self.inner);
                let n = (self.inner - column).min(part.len() - done).min(TILE);
                let (mut best, mut found) = ([start; TILE], [0usize; TILE]);
                let base = outer * self.n * self.inner + column;
                for index in 0..self.n {
                    let row = &input[base + index * self.inner..][..n];
                    for ((best, found), &x) in best.iter_mut().zip(&mut found).zip(row) {
                        let better = beyond(x, *best);
                        *best = if better { x } else { *best };
                        *found = if better { index } else { *found };
                    }
                }
                for (o, &index) in part[done..done + n].iter_mut().zip(&found) {
                    *o = position(index);
                }
                done += n;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn scans_agree_with_a_sum_per_element(
            outer in 1usize..4,
            n in 1usize..6,
            inner in 1usize..4,
            exclusive in any::<bool>(),
            reverse in any::<bool>(),
        ) {
            let view = AxisView::new(&[outer, n, inner].into(), 1);
            let input: Vec<i64> = (1..).take(outer * n * inner).map(|x| x * x).collect();
            let mut out = vec![0; input.len()];
            let options = ScanOptions { exclusive, reverse };
            view.scan(&input, &mut out, options, Threads::single(), 0, i64::plus);
            for (flat, &sum) in out.iter().enumerate() {
                let (block, index, column) = (flat / inner / n, flat / inner % n, flat % inner);
                let belongs = |other: usize| match (reverse, exclusive) {
                    (false, false) => other <= index,
                    (false, true) => other < index,
                    (true, false) => other >= index,
                    (true, true) => other > index,
                };
                let expected: i64 = (0..n).filter(|&i| belongs(i)).map(|i| input[(block * n + i) * inner + column]).sum();
                prop_assert_eq!(sum, expected);
            }
        }

        #[test]
        fn the_first_of_equal_extremes_wins(
            n in 1usize..9,
            inner in 1usize..70,
            seed in any::<u32>(),
        ) {
            let value = |i: usize| [1.0, f32::NAN, 3.0, -2.0, f32::NEG_INFINITY, 3.0, 0.0][(i.wrapping_mul(seed as usize | 1) >> 4) % 7];
            let input: Vec<f32> = (0..3 * n * inner).map(value).collect();
            let mut out = vec![0i64; 3 * inner];
            AxisView { n, inner }.arg(&input, &mut out, Threads::single(), f32::LEAST, |x, y| x > y);
            for (flat, &found) in out.iter().enumerate() {
                let (mut best, mut expected) = (f32::MIN, 0);
                for index in 0..n {
                    let x = input[(flat / inner * n + index) * inner + flat % inner];
                    if x > best {
                        (best, expected) = (x, i64::try_from(index).unwrap());
                    }
                }
                prop_assert_eq!(found, expected);
            }
        }
    }
}
