//! The largest elements of rows.

use std::cmp::Ordering;

use crate::kernels::Number;

/// Returns the order of two positions of a row: larger elements first, then lower positions. NaN
/// comes last.
fn larger_first<T: Number>(row: &[T], a: usize, b: usize) -> Ordering {
    let (x, y) = (row[a], row[b]);
    let by_value = y.partial_cmp(&x).unwrap_or_else(|| {
        let is_nan = |x: T| x.is_not_a_number();
        is_nan(x).cmp(&is_nan(y))
    });
    by_value.then(a.cmp(&b))
}

/// Writes the `k` first positions of a row in descending order of its elements to the start of
/// `order`, which has as many elements as the row (TensorFlow `TopKV2`).
///
/// # Panics
/// If `k` exceeds the length of the row, or lengths differ.
pub fn top_k<T: Number>(row: &[T], k: usize, order: &mut [usize]) {
    for (index, slot) in order.iter_mut().enumerate() {
        *slot = index;
    }
    if k == 0 {
        return;
    }
    if k < order.len() {
        order.select_nth_unstable_by(k - 1, |&a, &b| larger_first(row, a, b));
    }
    order[..k].sort_unstable_by(|&a, &b| larger_first(row, a, b));
}

/// Returns whether fewer than `k` predictions exceed that of the target (TensorFlow `InTopK`). If
/// the target does not exist, or a prediction is not finite, the result is false.
pub fn is_in_top_k(predictions: &[f32], target: i64, k: i64) -> bool {
    let target = usize::try_from(target).ok();
    let Some(&target) = target.and_then(|target| predictions.get(target)) else {
        return false;
    };
    let mut n_larger = 0;
    for &prediction in predictions {
        if !prediction.is_finite() {
            return false;
        }
        n_larger += i64::from(prediction > target);
        if n_larger > k {
            return false;
        }
    }
    n_larger < k
}
