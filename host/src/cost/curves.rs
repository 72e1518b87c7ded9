//! Times of kernels as functions of their work, from measurements of a few sizes.

use super::calibration::Calibration;
use super::families::Family;
use super::families::family_of;
use super::source::KernelCosts;
use super::source::NodeWork;
use super::source::Prediction;

impl Calibration {
    /// Returns the time of so much work of a family, in ns, and its spread; `None` if the family
    /// was not measured. Between two sizes the time grows evenly, and beyond the last one as
    /// between the last two.
    fn time_ns(&self, family: &Family, work: f64) -> Option<(f64, f64)> {
        let sizes = || {
            self.kernels
                .iter()
                .filter(|kernel| kernel.family == family.name)
        };
        let below = sizes().rev().find(|kernel| kernel.work <= work);
        let above = sizes().find(|kernel| kernel.work > work);
        let (first, second) = match (below, above) {
            (Some(below), Some(above)) => (below, above),
            // Less than was measured takes as long as the least.
            (None, Some(only)) => (only, only),
            (Some(last), None) => {
                let before = sizes().rev().find(|kernel| kernel.work < last.work);
                (before.unwrap_or(last), last)
            }
            (None, None) => return None,
        };
        if second.work <= first.work {
            return Some((first.ns, first.spread_ns));
        }
        let part = (work - first.work) / (second.work - first.work);
        let ns = first.ns + part * (second.ns - first.ns);
        // More work is never faster than the most that was measured.
        let ns = if part > 1.0 { ns.max(second.ns) } else { ns };
        let relative = first.spread_ns / first.ns.max(1.0);
        Some((ns, ns * relative))
    }
}

impl KernelCosts for Calibration {
    fn predict(&self, node: &NodeWork<'_>) -> Option<Prediction> {
        let family = family_of(node)?;
        let work = family.work(node.flops(), node.traffic_bytes());
        let (ns, spread_ns) = self.time_ns(family, work)?;
        let ns = match node.is_epilogue() {
            // Its kernel writes the result of the node before it, in registers.
            true => 0.0,
            false => ns,
        };
        Some(Prediction {
            ns,
            spread_ns,
            samples: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::calibration::MeasuredKernel;
    use crate::cost::families::families;

    #[test]
    fn times_lie_between_the_sizes_and_grow_beyond_them() {
        let family = &families()[1];
        let kernel = |work: f64, ns: f64| MeasuredKernel {
            family: family.name.to_owned(),
            of: String::new(),
            work,
            ns,
            spread_ns: 0.1 * ns,
        };
        let calibration = Calibration {
            kernels: vec![
                kernel(10.0, 100.0),
                kernel(20.0, 120.0),
                kernel(40.0, 200.0),
            ],
            ..Calibration::default()
        };
        let ns = |work| calibration.time_ns(family, work).map(|(ns, _)| ns);
        for (work, expected) in [
            (0.0, 100.0),
            (10.0, 100.0),
            (15.0, 110.0),
            (30.0, 160.0),
            (40.0, 200.0),
            (60.0, 280.0),
        ] {
            assert_eq!(ns(work), Some(expected), "{work}");
        }
        assert_eq!(calibration.time_ns(&families()[0], 1.0), None);
        let one = Calibration {
            kernels: vec![kernel(10.0, 100.0)],
            ..Calibration::default()
        };
        assert_eq!(one.time_ns(family, 1e9).map(|(ns, _)| ns), Some(100.0));
    }
}
