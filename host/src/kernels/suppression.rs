//! Selection of boxes that overlap little.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::device::KernelError;
use crate::kernels::Real;
use crate::kernels::scratch;

/// Returns the intersection of two boxes (two corners, as y and x) divided by their union; 0 if one
/// is empty.
pub fn overlap(a: [f32; 4], b: [f32; 4]) -> f32 {
    let sorted = |[y1, x1, y2, x2]: [f32; 4]| [y1.min(y2), x1.min(x2), y1.max(y2), x1.max(x2)];
    let area = |[y1, x1, y2, x2]: [f32; 4]| (y2 - y1) * (x2 - x1);
    let (a, b) = (sorted(a), sorted(b));
    let [area_a, area_b] = [area(a), area(b)];
    if area_a <= 0.0 || area_b <= 0.0 {
        return 0.0;
    }
    let height = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let width = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let common = height * width;
    common / (area_a + area_b - common)
}

/// Thresholds of TensorFlow `NonMaxSuppressionV5` and its predecessors.
#[derive(Debug, Clone, Copy)]
pub struct Suppression<T> {
    /// Maximum number of boxes to select.
    pub n_max: usize,
    /// Overlap above which a box suppresses another one with a lower score.
    pub overlap_max: T,
    /// Score that a box must exceed.
    pub score_min: T,
    /// Width of the Gaussian by which overlaps lower scores; 0 for none.
    pub sigma: T,
}

/// A box and its score.
#[derive(Debug, Clone, Copy)]
pub struct Scored<T> {
    /// Number of the box.
    pub index: usize,
    /// Its score, as lowered.
    pub score: T,
}

struct Candidate<T> {
    scored: Scored<T>,
    /// Selected boxes that have lowered its score already.
    n_seen: usize,
}

impl<T: Real> PartialEq for Candidate<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T: Real> Eq for Candidate<T> {}

impl<T: Real> PartialOrd for Candidate<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Real> Ord for Candidate<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (&self.scored, &other.scored);
        // Scores are above a threshold, so none is NaN.
        let by_score = a.score.partial_cmp(&b.score).unwrap_or(Ordering::Equal);
        by_score.then(b.index.cmp(&a.index))
    }
}

impl<T: Real> Suppression<T> {
    /// Selects boxes by descending score; `overlap` compares two boxes (TensorFlow
    /// `NonMaxSuppressionV5`).
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if there is not enough memory.
    pub fn select(
        &self,
        scores: &[T],
        overlap: impl Fn(usize, usize) -> f32,
    ) -> Result<impl ExactSizeIterator<Item = Scored<T>>, KernelError> {
        let is_soft = self.sigma > T::ZERO;
        let scale = if is_soft {
            T::from_f64(-0.5).over(self.sigma)
        } else {
            T::ZERO
        };
        let mut candidates = scratch::list(scores.len())?;
        for (index, &score) in scores.iter().enumerate() {
            if score > self.score_min {
                let scored = Scored { index, score };
                candidates.push(Candidate { scored, n_seen: 0 });
            }
        }
        let mut candidates = BinaryHeap::from(candidates);
        let mut selected = scratch::list(self.n_max.min(scores.len()))?;
        while selected.len() < self.n_max
            && let Some(mut next) = candidates.pop()
        {
            let before = next.scored.score;
            let mut is_suppressed = false;
            for other in selected[next.n_seen..].iter().rev() {
                let other: &Scored<T> = other;
                let similarity = T::from_f64(overlap(next.scored.index, other.index).into());
                if !is_soft && similarity > self.overlap_max {
                    is_suppressed = true;
                    break;
                }
                if is_soft {
                    let weight = scale.times(similarity).times(similarity);
                    let weight = T::from_f64(weight.to_f64().exp());
                    next.scored.score = next.scored.score.times(weight);
                }
                if next.scored.score <= self.score_min {
                    break;
                }
            }
            next.n_seen = selected.len();
            if is_suppressed {
                continue;
            }
            if next.scored.score == before {
                selected.push(next.scored);
            } else if next.scored.score > self.score_min {
                candidates.push(next);
            }
        }
        Ok(selected.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_do_not_depend_on_the_order_of_corners() {
        let (a, b) = ([0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0]);
        assert_eq!(overlap(a, b), 1.0 / 7.0);
        assert_eq!(
            overlap([2.0, 2.0, 0.0, 0.0], [3.0, 1.0, 1.0, 3.0]),
            1.0 / 7.0
        );
        assert_eq!(overlap(a, [5.0, 5.0, 6.0, 6.0]), 0.0);
        assert_eq!(overlap(a, [1.0, 1.0, 1.0, 3.0]), 0.0);
    }
}
