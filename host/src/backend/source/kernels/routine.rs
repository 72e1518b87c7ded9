//! Matmuls by the vendor's routines: converts the strides of a batch to the routines' arguments.

use smallvec::SmallVec;

use crate::backend::source::call::Call;
use crate::backend::source::kernels::epilogue::Epilogue;
use crate::device::KernelError;
use crate::device::RoutineMatmul;
use crate::device::RoutineMatrices;
use crate::device::RoutineSite;
use crate::tensor::Tensor;

/// Maximum number of routine calls for one node. Beyond, our own program computes all in one
/// launch.
const CALLS_MAX: usize = 16;

/// Maximum number of matrices of one call: routines may have CUDA's limit for launches.
const BATCHES_MAX: usize = 65_535;

/// An axis of a batch: its size, and the strides of the left side, the right side and the result.
pub(super) type BatchAxis = (usize, [usize; 3]);

/// The operands and their strides. Columns of the result are contiguous.
pub(super) struct Operands<'a> {
    pub(super) left: &'a Tensor,
    pub(super) right: &'a Tensor,
    pub(super) out: &'a Tensor,
    pub(super) bias: Option<&'a Tensor>,
    pub(super) left_row: usize,
    pub(super) left_column: usize,
    pub(super) right_row: usize,
    pub(super) right_column: usize,
    pub(super) out_row: usize,
}

impl Call<'_, '_> {
    /// The node and run of this execution's routine calls.
    pub(super) fn routine_site(&self) -> RoutineSite<'_> {
        RoutineSite {
            site: self.site,
            step: self.context.run_number(),
            context: Some(self.context.device_context()),
        }
    }
}

/// Computes matmuls with a routine, and then the epilogue. Returns `false`, without doing anything,
/// if the routines do not support them.
pub(super) fn matmul(
    call: &Call<'_, '_>,
    epilogue: Option<&Epilogue>,
    size: [usize; 3],
    batch: &[BatchAxis],
    operands: &Operands<'_>,
) -> Result<bool, KernelError> {
    let Some(routines) = call.device.routines() else {
        return Ok(false);
    };
    let mut axes = joined(batch);
    let (n_batches, strides) = axes.pop().unwrap_or((1, [0; 3]));
    let n_outer: usize = axes.iter().map(|(n, _)| n).product();
    if n_outer.saturating_mul(n_batches.div_ceil(BATCHES_MAX)) > CALLS_MAX {
        return Ok(false);
    }
    for index in 0..n_outer {
        let outer = starts(&axes, index);
        for first in (0..n_batches).step_by(BATCHES_MAX) {
            let matrices = |tensor, row, column, operand: usize| RoutineMatrices {
                tensor,
                first: outer[operand] + first * strides[operand],
                row,
                column,
                batch: strides[operand],
            };
            let matmul = RoutineMatmul {
                origin: call.routine_site(),
                size,
                n_batches: BATCHES_MAX.min(n_batches - first),
                left: matrices(operands.left, operands.left_row, operands.left_column, 0),
                right: matrices(operands.right, operands.right_row, operands.right_column, 1),
                out: matrices(operands.out, operands.out_row, 1, 2),
                bias: operands.bias,
                activation: epilogue.map(Epilogue::of_routines).unwrap_or_default(),
            };
            // The first call decides for all, which differ only in their starts. If a later one is
            // not supported, the program computes all of them again.
            if !routines.matmul(&matmul)? {
                return Ok(false);
            }
        }
    }
    if let Some(epilogue) = epilogue {
        epilogue.finish(call, operands.out)?;
    }
    Ok(true)
}

/// Merges the axes of a batch as far as strides allow, outermost first.
fn joined(batch: &[BatchAxis]) -> SmallVec<[BatchAxis; 4]> {
    let mut joined: SmallVec<[BatchAxis; 4]> = SmallVec::new();
    for &(n, strides) in batch {
        match joined.last_mut() {
            Some((outer_n, outer)) if (0..3).all(|side| outer[side] == n * strides[side]) => {
                *outer_n *= n;
                *outer = strides;
            }
            _ => joined.push((n, strides)),
        }
    }
    joined
}

/// Returns the offsets of the matrices of a position.
fn starts(axes: &[BatchAxis], mut index: usize) -> [usize; 3] {
    let mut first = [0; 3];
    for (n, strides) in axes.iter().rev() {
        for (start, stride) in first.iter_mut().zip(strides) {
            *start += index % n * stride;
        }
        index /= n;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_a_batch_are_merged_if_strides_allow() {
        // Three consecutive left sides with the same right side; then a repeated left side.
        let batch = [(2, [12, 0, 30]), (3, [4, 0, 10])];
        assert_eq!(joined(&batch).as_slice(), [(6, [4, 0, 10])]);
        let batch = [(2, [0, 0, 30]), (3, [4, 0, 10])];
        assert_eq!(joined(&batch).as_slice(), batch);
        assert_eq!(joined(&[]).as_slice(), []);
    }

    #[test]
    fn positions_follow_the_strides() {
        let axes = [(2, [100, 0, 60]), (3, [7, 5, 20])];
        assert_eq!(starts(&axes, 0), [0, 0, 0]);
        assert_eq!(starts(&axes, 2), [14, 10, 40]);
        assert_eq!(starts(&axes, 4), [107, 5, 80]);
        assert_eq!(starts(&[], 0), [0, 0, 0]);
    }
}
