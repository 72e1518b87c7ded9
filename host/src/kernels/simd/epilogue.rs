//! What is computed of sums while they are in registers.

use rten_simd::Isa;
use rten_simd::ops::BitOps;
use rten_simd::ops::NumOps;

use crate::device::Activation;

/// What is computed of each element of a result before it is written: `activation(sum + bias +
/// addend)`, from left to right.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a> {
    /// One value per column.
    pub bias: &'a [f32],
    /// A matrix of the shape of the result, row by row.
    pub addend: Option<&'a [f32]>,
    /// What follows the sums.
    pub activation: Activation,
}

impl Epilogue<'_> {
    /// Returns whether the lengths are those of a result with these rows and columns.
    pub(crate) fn fits(&self, n_rows: usize, n_columns: usize) -> bool {
        let n_elements = n_rows.checked_mul(n_columns);
        self.bias.len() == n_columns && self.addend.is_none_or(|it| Some(it.len()) == n_elements)
    }

    /// Returns the epilogue of some rows of the result: those from element `start` on, `len`
    /// elements.
    pub(crate) fn of_rows(self, start: usize, len: usize) -> Self {
        Self {
            addend: self.addend.map(|addend| &addend[start..start + len]),
            ..self
        }
    }
}

/// Computes an activation.
#[inline(always)]
pub(super) fn activate<I: Isa>(isa: I, sum: I::F32, activation: Activation) -> I::F32 {
    let ops = isa.f32();
    let (zero, six) = (ops.zero(), ops.splat(6.0));
    // NaN is neither less nor greater, and stays.
    match activation {
        Activation::None => sum,
        Activation::Relu => ops.select(zero, sum, ops.lt(sum, zero)),
        Activation::Relu6 => {
            let sum = ops.select(zero, sum, ops.lt(sum, zero));
            ops.select(six, sum, ops.gt(sum, six))
        }
    }
}
