//! Counts of values.

use crate::kernels::Arithmetic;
use crate::kernels::Number;

/// Adds a weight for each value below the number of bins, or 1 without weights, to the bin of the
/// value (TensorFlow `Bincount`, `DenseBincount`). Binary counts are 1 where a value occurs.
///
/// # Panics
/// If weights are fewer than values.
pub fn count<I: Copy + Into<i64>, T: Arithmetic>(
    values: &[I],
    weights: Option<&[T]>,
    is_binary: bool,
    bins: &mut [T],
) {
    bins.fill(T::ZERO);
    for (index, &value) in values.iter().enumerate() {
        let Some(bin) = usize::try_from(value.into())
            .ok()
            .and_then(|bin| bins.get_mut(bin))
        else {
            continue;
        };
        *bin = match weights {
            _ if is_binary => T::ONE,
            Some(weights) => bin.plus(weights[index]),
            None => bin.plus(T::ONE),
        };
    }
}

/// Returns the bin of a value among `n_bins` equal ones from `lowest` to `highest`; values outside
/// belong to the first or last one (TensorFlow `HistogramFixedWidth`). Differences are those of the
/// type.
pub fn fixed_width_bin<T: Number>(value: T, [lowest, highest]: [T; 2], n_bins: usize) -> usize {
    #[expect(clippy::cast_precision_loss, reason = "a number of bins")]
    let step = highest.minus(lowest).to_f64() / n_bins as f64;
    let value = if value > lowest { value } else { lowest };
    // NaN becomes 0.
    let bin = usize::try_from((value.minus(lowest).to_f64() / step).to_i64()).unwrap_or(0);
    bin.min(n_bins - 1)
}
