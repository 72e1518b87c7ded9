//! Broadcasting of any number of operands to one shape (NumPy's rule), in runs as long as possible.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::Threads;
use crate::tensor::Shape;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 32 * 1024;

/// How `N` operands are broadcast to one shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread<const N: usize> {
    axes: SmallVec<[Axis<N>; 4]>,
    n_elements: usize,
}

/// Adjacent output dimensions, merged, over which each operand either advances (its stride) or
/// stays (0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis<const N: usize> {
    size: usize,
    strides: [usize; N],
}

/// Returns the shape that all these shapes broadcast to.
///
/// # Errors
/// [`KernelError::InvalidArgument`] with all shapes if they are incompatible.
pub fn common_shape(shapes: &[&Shape]) -> Result<Shape, KernelError> {
    let rank = shapes.iter().map(|shape| shape.rank()).max().unwrap_or(0);
    let mut dims: SmallVec<[usize; 4]> = SmallVec::from_elem(1, rank);
    for shape in shapes {
        for (dim, &own) in dims[rank - shape.rank()..].iter_mut().zip(shape.dims()) {
            if *dim == 1 {
                *dim = own;
            } else if own != 1 && own != *dim {
                let names: Vec<String> = shapes.iter().map(ToString::to_string).collect();
                return Err(KernelError::invalid(format!(
                    "incompatible shapes: {}",
                    names.join(" vs. ")
                )));
            }
        }
    }
    Ok(Shape::new(&dims))
}

impl<const N: usize> Spread<N> {
    /// Returns the broadcast of operands of these shapes to `shape`.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] with both shapes if an operand does not broadcast to
    /// `shape`, or if the shape exceeds the address space.
    pub fn new(shape: &Shape, operands: [&Shape; N]) -> Result<Self, KernelError> {
        if shape.n_elements() == usize::MAX {
            return Err(KernelError::invalid(format!(
                "a tensor of shape {shape} is more than this machine can address"
            )));
        }
        let mut axes: SmallVec<[Axis<N>; 4]> = SmallVec::new();
        let mut strides = [1usize; N];
        for axis in (0..shape.rank()).rev() {
            let size = shape.dims()[axis];
            let mut own = [0; N];
            for (operand, (stride, own)) in operands.iter().zip(strides.iter_mut().zip(&mut own)) {
                let dim = (axis + operand.rank())
                    .checked_sub(shape.rank())
                    .map_or(1, |own| operand.dims()[own]);
                if dim != 1 && dim != size {
                    return Err(refusal(operand, shape));
                }
                if dim == size {
                    *own = *stride;
                }
                *stride = stride.saturating_mul(dim);
            }
            if size == 1 {
                continue;
            }
            // From the last axis to the first: `previous` is the inner one.
            match axes.last_mut() {
                Some(previous)
                    if own
                        .iter()
                        .zip(&previous.strides)
                        .all(|(&outer, &inner)| outer == inner.saturating_mul(previous.size)) =>
                {
                    previous.size = previous.size.saturating_mul(size);
                }
                _ => axes.push(Axis { size, strides: own }),
            }
        }
        if let Some(longer) = operands.iter().find(|o| o.rank() > shape.rank()) {
            return Err(refusal(longer, shape));
        }
        axes.reverse();
        Ok(Self {
            axes,
            n_elements: shape.n_elements(),
        })
    }

    /// Returns sizes, and strides of each operand, outermost first, none of size 1.
    pub fn axes(&self) -> impl Iterator<Item = (usize, [usize; N])> + '_ {
        self.axes.iter().map(|axis| (axis.size, axis.strides))
    }

    /// Calls `run(offsets, advances, part)` for runs that together cover `out`. Operand `i` begins
    /// at `offsets[i]` and has one element per element of the run, or one for all if it does not
    /// advance.
    ///
    /// # Panics
    /// If the length of `out` does not match the shape.
    pub fn fill<O: Send>(
        &self,
        out: &mut [O],
        threads: Threads<'_>,
        run: impl Fn([usize; N], [bool; N], &mut [O]) + Sync,
    ) {
        assert_eq!(out.len(), self.n_elements, "result has its shape");
        if out.is_empty() {
            return;
        }
        threads.fill(out, 1, GRAIN, |start, part| {
            self.fill_part(start, part, &run);
        });
    }

    fn fill_part<O>(
        &self,
        start: usize,
        out: &mut [O],
        run: &impl Fn([usize; N], [bool; N], &mut [O]),
    ) {
        let Some((inner, outer)) = self.axes.split_last() else {
            run([0; N], [false; N], out);
            return;
        };
        let advances = inner.strides.map(|stride| stride != 0);
        let (mut row, mut column) = (start / inner.size, start % inner.size);
        let mut rest = out;
        while !rest.is_empty() {
            let n = (inner.size - column).min(rest.len());
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(n);
            let mut offsets = inner.strides.map(|stride| stride * column);
            let mut left = row;
            for axis in outer.iter().rev() {
                let index = left % axis.size;
                left /= axis.size;
                for (offset, stride) in offsets.iter_mut().zip(axis.strides) {
                    *offset += index * stride;
                }
            }
            run(offsets, advances, part);
            rest = tail;
            column = 0;
            row += 1;
        }
    }
}

impl Spread<1> {
    /// Broadcasts `values` to `out` (TensorFlow `BroadcastTo`).
    pub fn repeat<T: Copy + Send + Sync>(&self, values: &[T], out: &mut [T], threads: Threads<'_>) {
        self.fill(out, threads, |[at], [advances], part| {
            if advances {
                part.copy_from_slice(&values[at..at + part.len()]);
            } else {
                part.fill(values[at]);
            }
        });
    }
}

impl Spread<3> {
    /// Selects from `t` where the condition is true, and from `e` elsewhere (TensorFlow
    /// `SelectV2`).
    pub fn select<C: Copy + Sync, T: Copy + Send + Sync>(
        &self,
        condition: &[C],
        t: &[T],
        e: &[T],
        out: &mut [T],
        threads: Threads<'_>,
        is_true: impl Fn(C) -> bool + Sync,
    ) {
        self.fill(out, threads, |offsets, advances, part| {
            let (c, t, e) = (&condition[offsets[0]..], &t[offsets[1]..], &e[offsets[2]..]);
            let n = part.len();
            match advances {
                [false, t_advances, e_advances] => {
                    let (taken, taken_advances) = if is_true(c[0]) {
                        (t, t_advances)
                    } else {
                        (e, e_advances)
                    };
                    if taken_advances {
                        part.copy_from_slice(&taken[..n]);
                    } else {
                        part.fill(taken[0]);
                    }
                }
                [true, true, true] => {
                    for (((o, &c), &t), &e) in
                        part.iter_mut().zip(&c[..n]).zip(&t[..n]).zip(&e[..n])
                    {
                        *o = if is_true(c) { t } else { e };
                    }
                }
                [true, true, false] => {
                    let e = e[0];
                    for ((o, &c), &t) in part.iter_mut().zip(&c[..n]).zip(&t[..n]) {
                        *o = if is_true(c) { t } else { e };
                    }
                }
                [true, false, true] => {
                    let t = t[0];
                    for ((o, &c), &e) in part.iter_mut().zip(&c[..n]).zip(&e[..n]) {
                        *o = if is_true(c) { t } else { e };
                    }
                }
                [true, false, false] => {
                    let (t, e) = (t[0], e[0]);
                    for (o, &c) in part.iter_mut().zip(&c[..n]) {
                        *o = if is_true(c) { t } else { e };
                    }
                }
            }
        });
    }
}

fn refusal(operand: &Shape, shape: &Shape) -> KernelError {
    KernelError::invalid(format!(
        "unable to broadcast tensor of shape {operand} to tensor of shape {shape}"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation: returns the offset in an operand of this shape for element `flat`
    /// of the result.
    fn offset(mut flat: usize, out: &Shape, operand: &Shape) -> usize {
        let (mut offset, mut stride) = (0, 1);
        for axis in (0..out.rank()).rev() {
            let index = flat % out.dims()[axis];
            flat /= out.dims()[axis];
            if let Some(own) = (axis + operand.rank()).checked_sub(out.rank()) {
                let dim = operand.dims()[own];
                offset += if dim == 1 { 0 } else { index * stride };
                stride *= dim;
            }
        }
        offset
    }

    proptest! {
        #[test]
        fn runs_agree_with_decomposing_every_index(
            dims in prop::collection::vec((1usize..4, 0u8..8), 0..6),
            cuts in prop::array::uniform3(0usize..6),
        ) {
            // One bit per operand: whether it has the dimension.
            let shapes = [0, 1, 2].map(|i| -> Shape {
                let all: Vec<usize> = dims.iter().map(|&(d, kind)| if kind >> i & 1 == 1 { d } else { 1 }).collect();
                all[cuts[i].min(all.len())..].iter().copied().collect()
            });
            let operands = [&shapes[0], &shapes[1], &shapes[2]];
            let shape = common_shape(&operands).unwrap();
            let plan = Spread::new(&shape, operands).unwrap();
            let values = [0u32, 1, 2].map(|i| -> Vec<u32> { (i * 10_000..).take(shapes[i as usize].n_elements()).collect() });
            let condition: Vec<bool> = values[0].iter().map(|x| x % 3 == 1).collect();
            let mut out = vec![0; shape.n_elements()];
            plan.select(&condition, &values[1], &values[2], &mut out, Threads::single(), |c| c);
            let expected: Vec<u32> = (0..out.len())
                .map(|flat| {
                    let at = |i: usize| offset(flat, &shape, &shapes[i]);
                    if condition[at(0)] { values[1][at(1)] } else { values[2][at(2)] }
                })
                .collect();
            prop_assert_eq!(&out, &expected);
            for start in 0..out.len() {
                let mut part = vec![[0; 3]; (out.len() - start).min(5)];
                plan.fill_part(start, &mut part, &|offsets, advances, part: &mut [[usize; 3]]| {
                    for (i, o) in part.iter_mut().enumerate() {
                        *o = [0, 1, 2].map(|k| offsets[k] + if advances[k] { i } else { 0 });
                    }
                });
                for (i, found) in part.into_iter().enumerate() {
                    prop_assert_eq!(found, [0, 1, 2].map(|k| offset(start + i, &shape, &shapes[k])));
                }
            }
        }
    }

    #[test]
    fn incompatible_shapes_are_named() {
        let error = common_shape(&[&[2, 3].into(), &[4].into()]).unwrap_err();
        assert_eq!(error.to_string(), "incompatible shapes: [2,3] vs. [4]");
        for (from, to) in [
            (Shape::from([2, 3]), Shape::from([3])),
            ([2].into(), [3].into()),
            ([2].into(), Shape::scalar()),
            ([1, 1].into(), [1].into()),
        ] {
            let error = Spread::new(&to, [&from]).unwrap_err().to_string();
            let expected =
                format!("unable to broadcast tensor of shape {from} to tensor of shape {to}");
            assert_eq!(error, expected);
        }
        assert!(Spread::new(&[1 << 40, 1 << 40].into(), [&[1].into()]).is_err());
    }
}
