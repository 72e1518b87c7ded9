//! Arguments of slices, transpositions, reversals and tilings, resolved to strided copies.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::strided::StridedCopy;
use crate::kernels::strided::row_major_strides;
use crate::tensor::Shape;

/// The masks of TensorFlow `StridedSlice`: bit `i` applies to entry `i` of its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SliceMasks {
    /// Starts at the first element; `begin` is ignored.
    pub begin: u32,
    /// Ends at the last element; `end` is ignored.
    pub end: u32,
    /// Stands for all dimensions without an entry.
    pub ellipsis: u32,
    /// Inserts a new dimension of size 1.
    pub new_axis: u32,
    /// Selects element `begin` and removes the dimension.
    pub shrink: u32,
}

/// Resolves an axis number for a tensor of this rank; negative ones count from the end.
pub fn axis_index(axis: i64, rank: usize) -> Option<usize> {
    let signed = i64::try_from(rank).ok()?;
    let axis = if axis < 0 {
        axis.checked_add(signed)?
    } else {
        axis
    };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

/// Writes `updates` of shape `parts` to `out` of shape `dims`, from `starts` on (TensorFlow
/// `XlaDynamicUpdateSlice`).
///
/// # Panics
/// If an update is outside of `out`, or the length of a slice does not match its shape.
pub fn update_slice<T: Copy>(
    updates: &[T],
    parts: &[usize],
    starts: &[usize],
    dims: &[usize],
    out: &mut [T],
) {
    let Some((&length, outer)) = parts.split_last() else {
        return out.copy_from_slice(updates);
    };
    if updates.is_empty() {
        return;
    }
    for (row, updates) in updates.chunks_exact(length).enumerate() {
        let (mut rest, mut at, mut stride) = (row, starts[outer.len()], dims[outer.len()]);
        for axis in (0..outer.len()).rev() {
            at += (starts[axis] + rest % outer[axis]) * stride;
            rest /= outer[axis];
            stride *= dims[axis];
        }
        out[at..at + length].copy_from_slice(updates);
    }
}

/// Selects `sizes[i]` elements from `begin[i]` on; `-1` stands for all that follow (TensorFlow
/// `Slice`).
///
/// # Errors
/// [`KernelError::InvalidArgument`] if the number of entries is not the rank, or an element is out
/// of bounds.
pub fn slice(
    input: &Shape,
    begin: &[i64],
    sizes: &[i64],
) -> Result<(Shape, StridedCopy), KernelError> {
    if begin.len() != input.rank() || sizes.len() != input.rank() {
        return Err(KernelError::invalid(format!(
            "expected begin and size arguments to be 1-D tensors of size {}, but got {} and {} elements for shape {input}",
            input.rank(),
            begin.len(),
            sizes.len()
        )));
    }
    let strides = row_major_strides(input.dims());
    let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
    let mut start = 0;
    for (axis, &whole) in input.dims().iter().enumerate() {
        let from = usize::try_from(begin[axis])
            .ok()
            .filter(|&from| from <= whole)
            .ok_or_else(|| {
                KernelError::invalid(format!(
                    "expected begin[{axis}] in [0, {whole}], but got {} for shape {input}",
                    begin[axis]
                ))
            })?;
        let left = whole - from;
        let size = if sizes[axis] == -1 {
            left
        } else {
            usize::try_from(sizes[axis])
                .ok()
                .filter(|&size| size <= left)
                .ok_or_else(|| {
                    KernelError::invalid(format!(
                        "expected size[{axis}] in [0, {left}], but got {} for shape {input}",
                        sizes[axis]
                    ))
                })?
        };
        start += offset(from, strides[axis]);
        dims.push(size);
    }
    let copy = StridedCopy::new(start, dims.iter().copied().zip(strides));
    Ok((Shape::new(&dims), copy))
}

/// Selects the elements from `begin[i]` up to but not including `end[i]` in steps of `strides[i]`,
/// as Python's slices do (TensorFlow `StridedSlice`, `ValidateStridedSliceOp`).
///
/// # Errors
/// [`KernelError::InvalidArgument`] if the lengths differ, a stride is 0, there are several
/// ellipses or too many dimensions, or a single element is out of bounds.
pub fn strided_slice(
    input: &Shape,
    begin: &[i64],
    end: &[i64],
    strides: &[i64],
    masks: SliceMasks,
) -> Result<(Shape, StridedCopy), KernelError> {
    let n_entries = strides.len();
    if begin.len() != n_entries || end.len() != n_entries || n_entries >= 32 {
        return Err(KernelError::invalid(format!(
            "expected begin, end, and strides to be 1D equal size tensors of less than 32 elements, but got {}, {} and {n_entries} elements",
            begin.len(),
            end.len()
        )));
    }
    if masks.ellipsis.count_ones() > 1 {
        return Err(KernelError::invalid(
            "multiple ellipses in slice spec not allowed",
        ));
    }
    let has = |mask: u32, entry: usize| mask >> entry & 1 == 1;
    let n_taken = (0..n_entries)
        .filter(|&i| !has(masks.ellipsis, i) && !has(masks.new_axis, i))
        .count();
    let n_skipped = input.rank().checked_sub(n_taken).ok_or_else(|| {
        KernelError::invalid(format!(
            "index out of range using input dim {}; input has only {} dims: shape {input}",
            input.rank(),
            input.rank()
        ))
    })?;
    let element_strides = row_major_strides(input.dims());
    let mut axes: SmallVec<[(usize, isize); 6]> = SmallVec::new();
    let mut start = 0;
    let mut axis = 0;
    let ellipsis_at = (0..n_entries)
        .find(|&i| has(masks.ellipsis, i))
        .unwrap_or(n_entries);
    for entry in 0..=n_entries {
        if entry == ellipsis_at {
            axes.extend((axis..axis + n_skipped).map(|i| (input.dims()[i], element_strides[i])));
            axis += n_skipped;
        } else if entry == n_entries {
            break;
        } else if has(masks.new_axis, entry) {
            axes.push((1, 0));
        } else {
            let whole = input.dims()[axis];
            let stride = strides[entry];
            if stride == 0 {
                return Err(KernelError::invalid(format!(
                    "strides[{entry}] must be non-zero"
                )));
            }
            if has(masks.shrink, entry) {
                if stride < 0 {
                    return Err(KernelError::invalid(
                        "only stride 1 allowed on non-range indexing",
                    ));
                }
                let index = axis_index(begin[entry], whole).ok_or_else(|| {
                    KernelError::invalid(format!(
                        "slice index {} of dimension {axis} out of bounds: shape {input}",
                        begin[entry]
                    ))
                })?;
                start += offset(index, element_strides[axis]);
            } else {
                let from = (!has(masks.begin, entry)).then_some(begin[entry]);
                let to = (!has(masks.end, entry)).then_some(end[entry]);
                let (first, n) = range(whole, from, to, stride);
                start += offset(first, element_strides[axis]);
                // A stride that does not fit `isize` is never taken: there is only one element
                // then.
                let step = isize::try_from(stride)
                    .ok()
                    .and_then(|stride| stride.checked_mul(element_strides[axis]));
                axes.push((n, step.unwrap_or(0)));
            }
            axis += 1;
        }
    }
    let shape = axes.iter().map(|&(size, _)| size).collect();
    Ok((shape, StridedCopy::new(start, axes)))
}

/// Returns the first element and the number of elements of `from..to` in steps of `stride`, which
/// must not be 0; `None` stands for the end of the axis.
fn range(whole: usize, from: Option<i64>, to: Option<i64>, stride: i64) -> (usize, usize) {
    let size = i64::try_from(whole).unwrap_or(i64::MAX);
    let (lowest, highest) = if stride > 0 {
        (0, size)
    } else {
        (-1, size - 1)
    };
    let bound = |value: Option<i64>, open: i64| {
        value.map_or(open, |value| {
            let from_start = if value < 0 {
                value.saturating_add(size)
            } else {
                value
            };
            from_start.clamp(lowest, highest)
        })
    };
    let (first, last) = if stride > 0 {
        (bound(from, lowest), bound(to, highest))
    } else {
        (bound(from, highest), bound(to, lowest))
    };
    let distance = last - first;
    if distance == 0 || (distance < 0) != (stride < 0) {
        return (0, 0);
    }
    let n = distance / stride + i64::from(distance % stride != 0);
    (
        usize::try_from(first).unwrap_or(0),
        usize::try_from(n).unwrap_or(0),
    )
}

/// Reorders the dimensions by `permutation` (TensorFlow `Transpose`); negative ones count from the
/// end.
///
/// # Errors
/// [`KernelError::InvalidArgument`] if it is not a permutation of the dimensions.
pub fn transpose(input: &Shape, permutation: &[i64]) -> Result<(Shape, StridedCopy), KernelError> {
    if permutation.len() != input.rank() {
        return Err(KernelError::invalid(format!(
            "transpose expects a vector of size {}. But input(1) is a vector of size {}: shape {input}",
            input.rank(),
            permutation.len()
        )));
    }
    let strides = row_major_strides(input.dims());
    let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, input.rank());
    let mut axes: SmallVec<[(usize, isize); 6]> = SmallVec::new();
    for &wanted in permutation {
        let axis = axis_index(wanted, input.rank()).ok_or_else(|| {
            KernelError::invalid(format!(
                "{wanted} is out of range [0 .. {}): shape {input}",
                input.rank()
            ))
        })?;
        if std::mem::replace(&mut seen[axis], true) {
            return Err(KernelError::invalid(format!(
                "{axis} appears twice in the permutation {permutation:?}"
            )));
        }
        axes.push((input.dims()[axis], strides[axis]));
    }
    let shape = axes.iter().map(|&(size, _)| size).collect();
    Ok((shape, StridedCopy::new(0, axes)))
}

/// Reverses the order of elements in these dimensions (TensorFlow `ReverseV2`).
///
/// # Errors
/// [`KernelError::InvalidArgument`] if a dimension does not exist, or is named twice.
pub fn reverse(input: &Shape, axes: &[i64]) -> Result<StridedCopy, KernelError> {
    let mut strides = row_major_strides(input.dims());
    let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, input.rank());
    let mut start = 0;
    for &wanted in axes {
        let axis = axis_index(wanted, input.rank()).ok_or_else(|| {
            KernelError::invalid(format!(
                "axis {wanted} is out of valid range [0, {}): shape {input}",
                input.rank()
            ))
        })?;
        if std::mem::replace(&mut seen[axis], true) {
            return Err(KernelError::invalid(format!(
                "axis {axis} specified more than once: {axes:?}"
            )));
        }
        // If another dimension is 0 nothing is read, and the start does not matter.
        start += offset(input.dims()[axis].saturating_sub(1), strides[axis]);
        strides[axis] = -strides[axis];
    }
    Ok(StridedCopy::new(
        start,
        input.dims().iter().copied().zip(strides),
    ))
}

/// Repeats the whole tensor `multiples[i]` times along dimension `i` (TensorFlow `Tile`).
///
/// # Errors
/// [`KernelError::InvalidArgument`] if the number of multiples is not the rank, one is negative, or
/// the result exceeds the address space.
pub fn tile(input: &Shape, multiples: &[i64]) -> Result<(Shape, StridedCopy), KernelError> {
    if multiples.len() != input.rank() {
        return Err(KernelError::invalid(format!(
            "expected multiples argument to be a vector of length {} but got length {}: shape {input}",
            input.rank(),
            multiples.len()
        )));
    }
    let strides = row_major_strides(input.dims());
    let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
    let mut axes: SmallVec<[(usize, isize); 12]> = SmallVec::new();
    for (axis, (&dim, &multiple)) in input.dims().iter().zip(multiples).enumerate() {
        let times = usize::try_from(multiple).map_err(|_| {
            KernelError::invalid(format!(
                "expected multiples[{axis}] >= 0, but got {multiple}"
            ))
        })?;
        dims.push(dim.checked_mul(times).ok_or_else(|| {
            KernelError::invalid(format!(
                "shape {input} repeated {multiples:?} times is more than this machine can address"
            ))
        })?);
        axes.push((times, 0));
        axes.push((dim, strides[axis]));
    }
    Ok((Shape::new(&dims), StridedCopy::new(0, axes)))
}

/// Returns the distance from the first element to element `index` of an axis.
fn offset(index: usize, stride: isize) -> usize {
    // Saturates only if another dimension is 0, and then nothing is read.
    index
        .saturating_mul(stride.unsigned_abs())
        .min(usize::MAX >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Threads;

    fn elements(input: &Shape, copy: &StridedCopy) -> Vec<u32> {
        let values: Vec<u32> = (0..).take(input.n_elements()).collect();
        let mut out = vec![u32::MAX; copy.n_elements()];
        copy.apply(&values, &mut out, Threads::single());
        out
    }

    #[test]
    fn axes_count_from_either_end() {
        assert_eq!(axis_index(1, 3), Some(1));
        assert_eq!(axis_index(-1, 3), Some(2));
        assert_eq!(axis_index(-3, 3), Some(0));
        for bad in [3, -4, i64::MAX, i64::MIN] {
            assert_eq!(axis_index(bad, 3), None);
        }
        assert_eq!(axis_index(0, 0), None);
    }

    #[test]
    fn ranges_are_those_of_python() {
        // (whole, from, to, stride) -> the indices of Python's `range(whole)[from:to:stride]`.
        for (whole, from, to, stride, expected) in [
            (5, None, None, 1, &[0, 1, 2, 3, 4][..]),
            (5, Some(1), Some(-1), 1, &[1, 2, 3]),
            (5, None, None, -1, &[4, 3, 2, 1, 0]),
            (5, Some(5), Some(0), -2, &[4, 2]),
            (5, Some(-100), Some(100), 3, &[0, 3]),
            (5, Some(100), Some(-100), -3, &[4, 1]),
            (5, Some(3), Some(3), 1, &[]),
            (5, Some(3), Some(1), 1, &[]),
            (5, Some(1), Some(3), -1, &[]),
            (0, None, None, 1, &[]),
            (0, None, None, -1, &[]),
            (5, Some(i64::MIN), Some(i64::MAX), i64::MAX, &[0]),
            (5, Some(i64::MAX), Some(i64::MIN), i64::MIN, &[4]),
        ] {
            let (first, n) = range(whole, from, to, stride);
            let found: Vec<i64> = (0..i64::try_from(n).unwrap())
                .map(|i| i64::try_from(first).unwrap() + i.wrapping_mul(stride))
                .collect();
            assert_eq!(found, expected, "{whole} {from:?} {to:?} {stride}");
        }
    }

    #[test]
    fn masks_add_skip_and_drop_dimensions() {
        let input = Shape::from([2, 3, 4]);
        // x[1, ..., None, ::2]
        let masks = SliceMasks {
            begin: 0b1000,
            end: 0b1000,
            ellipsis: 0b10,
            new_axis: 0b100,
            shrink: 0b1,
        };
        let (shape, copy) =
            strided_slice(&input, &[1, 0, 0, 0], &[2, 0, 0, 0], &[1, 1, 1, 2], masks).unwrap();
        assert_eq!(shape, [3, 1, 2].into());
        assert_eq!(elements(&input, &copy), [12, 14, 16, 18, 20, 22]);
    }

    #[test]
    fn empty_dimensions_read_nothing() {
        let input = Shape::from([0, 3]);
        assert!(elements(&input, &reverse(&input, &[0, 1]).unwrap()).is_empty());
        let (shape, copy) = transpose(&input, &[1, 0]).unwrap();
        assert_eq!((shape, elements(&input, &copy)), ([3, 0].into(), vec![]));
        let (shape, copy) = tile(&input, &[5, 2]).unwrap();
        assert_eq!((shape, elements(&input, &copy)), ([0, 6].into(), vec![]));
        let huge = Shape::from([0, usize::MAX, usize::MAX]);
        assert!(elements(&huge, &reverse(&huge, &[1, 2]).unwrap()).is_empty());
    }

    #[test]
    fn too_many_repetitions_are_rejected() {
        assert!(tile(&[4].into(), &[i64::MAX]).is_err());
    }
}
