//! Padding of tensors.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::Threads;
use crate::tensor::Shape;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 32 * 1024;

/// How a margin mirrors the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mirror {
    /// Repeats the elements next to the border, without the border itself: `1 2 3` continues with
    /// `2 1`.
    Reflect,
    /// Repeats the border, too: `1 2 3` continues with `3 2 1`.
    Symmetric,
}

/// A padded tensor (TensorFlow `Pad`, `PadV2`, `MirrorPad`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pad {
    shape: Shape,
    /// Outermost first. An axis without margin is merged into the one before.
    axes: SmallVec<[Axis; 6]>,
    /// Elements below the last axis that has a margin.
    inner: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    before: usize,
    size: usize,
    after: usize,
}

impl Axis {
    fn padded(self) -> usize {
        self.before + self.size + self.after
    }

    /// Returns the input element at `position` of the result.
    fn mirrored(self, position: usize, mirror: Mirror) -> usize {
        let skipped = usize::from(mirror == Mirror::Reflect);
        if position < self.before {
            self.before - position - 1 + skipped
        } else if position < self.before + self.size {
            position - self.before
        } else {
            // One element is its own mirror image.
            (2 * self.size + self.before)
                .saturating_sub(position + 1 + skipped)
                .min(self.size - 1)
        }
    }
}

impl Pad {
    /// Adds `paddings[2 * i]` elements before and `paddings[2 * i + 1]` after dimension `i`.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the number of paddings is wrong, one is negative, or the
    /// result exceeds the address space.
    pub fn new(input: &Shape, paddings: &[i64]) -> Result<Self, KernelError> {
        if paddings.len() != 2 * input.rank() {
            return Err(KernelError::invalid(format!(
                "the first dimension of paddings must be the rank of inputs: [{},2], {input}",
                paddings.len() / 2
            )));
        }
        let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
        let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
        let too_large = || {
            KernelError::invalid(format!(
                "shape {input} padded by {paddings:?} is more than this machine can address"
            ))
        };
        for (&size, pair) in input.dims().iter().zip(paddings.chunks_exact(2)) {
            let amount = |value: i64| {
                usize::try_from(value).map_err(|_| {
                    KernelError::invalid(format!(
                        "paddings must be non-negative: {} {}",
                        pair[0], pair[1]
                    ))
                })
            };
            let (before, after) = (amount(pair[0])?, amount(pair[1])?);
            let padded = size
                .checked_add(before)
                .and_then(|sum| sum.checked_add(after))
                .ok_or_else(too_large)?;
            dims.push(padded);
            axes.push(Axis {
                before,
                size,
                after,
            });
        }
        let shape = Shape::new(&dims);
        if shape.n_elements() == usize::MAX {
            return Err(too_large());
        }
        let mut inner = 1usize;
        while let Some(&last) = axes.last()
            && (last.before, last.after) == (0, 0)
        {
            inner = inner.saturating_mul(last.size);
            axes.pop();
        }
        Ok(Self { shape, axes, inner })
    }

    /// Returns the shape of the result.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of elements before, inside and after the input along each axis, outermost
    /// first. [`Self::inner`] elements below the last axis stay contiguous.
    pub fn axes(&self) -> impl DoubleEndedIterator<Item = [usize; 3]> + '_ {
        self.axes
            .iter()
            .map(|axis| [axis.before, axis.size, axis.after])
    }

    /// Returns the number of elements below the last axis that has a margin.
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// Returns whether there is no margin at all.
    pub fn is_identity(&self) -> bool {
        self.axes.is_empty()
    }

    /// Checks that each margin has elements to repeat.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] with the margin that is too large.
    pub fn check_mirror(&self, mirror: Mirror) -> Result<(), KernelError> {
        let rule = match mirror {
            Mirror::Reflect => "less than",
            Mirror::Symmetric => "no greater than",
        };
        if mirror == Mirror::Reflect && self.inner == 0 {
            return Err(KernelError::invalid(format!(
                "paddings must be less than the dimension size: a dimension of {} is 0",
                self.shape
            )));
        }
        for axis in &self.axes {
            let limit = match mirror {
                Mirror::Reflect => axis.size.saturating_sub(1),
                Mirror::Symmetric => axis.size,
            };
            let is_empty = mirror == Mirror::Reflect && axis.size == 0;
            if is_empty || axis.before > limit || axis.after > limit {
                return Err(KernelError::invalid(format!(
                    "paddings must be {rule} the dimension size: {}, {} for {}",
                    axis.before, axis.after, axis.size
                )));
            }
        }
        Ok(())
    }

    /// Copies the input and fills the margin with `value`.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn constant<T: Copy + Send + Sync>(
        &self,
        input: &[T],
        value: T,
        out: &mut [T],
        threads: Threads<'_>,
    ) {
        assert_eq!(out.len(), self.shape.n_elements(), "result has its shape");
        if out.is_empty() {
            return;
        }
        let Some((last, outer)) = self.axes.split_last() else {
            out.copy_from_slice(input);
            return;
        };
        let row = last.padded() * self.inner;
        let (before, size) = (last.before * self.inner, last.size * self.inner);
        threads.fill(out, row, GRAIN, |start, part| {
            for (index, line) in part.chunks_exact_mut(row).enumerate() {
                match source_row(outer, start / row + index) {
                    None => line.fill(value),
                    Some(source) => {
                        line[..before].fill(value);
                        line[before..before + size]
                            .copy_from_slice(&input[source * size..][..size]);
                        line[before + size..].fill(value);
                    }
                }
            }
        });
    }

    /// Copies the input and fills the margin with its mirror image. [`Self::check_mirror`] must
    /// have accepted the margins.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape, or a margin is longer than the input that
    /// it mirrors.
    pub fn mirrored<T: Copy + Send + Sync>(
        &self,
        mirror: Mirror,
        input: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) {
        assert_eq!(out.len(), self.shape.n_elements(), "result has its shape");
        if out.is_empty() {
            return;
        }
        let Some((last, outer)) = self.axes.split_last() else {
            out.copy_from_slice(input);
            return;
        };
        let inner = self.inner;
        let row = last.padded() * inner;
        threads.fill(out, row, GRAIN, |start, part| {
            for (index, line) in part.chunks_exact_mut(row).enumerate() {
                let (mut rest, mut source, mut stride) = (start / row + index, 0, 1);
                for axis in outer.iter().rev() {
                    source += axis.mirrored(rest % axis.padded(), mirror) * stride;
                    rest /= axis.padded();
                    stride *= axis.size;
                }
                let source = &input[source * last.size * inner..][..last.size * inner];
                for (position, o) in line.chunks_exact_mut(inner).enumerate() {
                    let from = last.mirrored(position, mirror) * inner;
                    o.copy_from_slice(&source[from..from + inner]);
                }
            }
        });
    }
}

/// Returns the row of the input that row `row` of the result contains; `None` in the margin.
fn source_row(outer: &[Axis], mut row: usize) -> Option<usize> {
    let (mut source, mut stride) = (0, 1);
    for axis in outer.iter().rev() {
        let position = (row % axis.padded()).checked_sub(axis.before)?;
        if position >= axis.size {
            return None;
        }
        row /= axis.padded();
        source += position * stride;
        stride *= axis.size;
    }
    Some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margins_contain_the_value_or_the_mirror_image() {
        let input = [1, 2, 3];
        let pad = Pad::new(&[3].into(), &[2, 2]).unwrap();
        let mut out = [-1; 7];
        pad.constant(&input, 9, &mut out, Threads::single());
        assert_eq!(out, [9, 9, 1, 2, 3, 9, 9]);
        pad.mirrored(Mirror::Reflect, &input, &mut out, Threads::single());
        assert_eq!(out, [3, 2, 1, 2, 3, 2, 1]);
        pad.mirrored(Mirror::Symmetric, &input, &mut out, Threads::single());
        assert_eq!(out, [2, 1, 1, 2, 3, 3, 2]);
    }

    #[test]
    fn dimensions_without_margin_move_as_a_whole() {
        let pad = Pad::new(&[2, 1, 2].into(), &[0, 0, 1, 1, 0, 0]).unwrap();
        let mut out = [-1; 12];
        pad.constant(&[1, 2, 3, 4], 0, &mut out, Threads::single());
        assert_eq!(out, [0, 0, 1, 2, 0, 0, 0, 0, 3, 4, 0, 0]);
    }

    #[test]
    fn a_margin_longer_than_its_mirror_is_rejected() {
        let pad = Pad::new(&[3].into(), &[3, 0]).unwrap();
        assert!(pad.check_mirror(Mirror::Symmetric).is_ok());
        let error = pad.check_mirror(Mirror::Reflect).unwrap_err().to_string();
        assert_eq!(
            error,
            "paddings must be less than the dimension size: 3, 0 for 3"
        );
        assert!(Pad::new(&[3].into(), &[i64::MAX, i64::MAX]).is_err());
        assert!(Pad::new(&[3].into(), &[-1, 0]).is_err());
    }
}
