//! Times of repeated work: first, median, 90th percentile.

use std::time::Duration;
use std::time::Instant;

use serde::Serialize;

/// Times of runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Timing {
    /// The first run, including what only the first run does.
    pub(super) first_ns: u64,
    /// Median of the timed runs; the first run if there are no others.
    pub(super) median_ns: u64,
    /// 90th percentile of the same.
    pub(super) p90_ns: u64,
    /// Timed runs, the first one not counted.
    pub(super) n_runs: usize,
}

impl Timing {
    /// Summarizes a first run and the timed ones after it.
    pub(super) fn new(first: Duration, mut runs: Vec<Duration>) -> Self {
        runs.sort_unstable();
        let n_runs = runs.len();
        if runs.is_empty() {
            runs.push(first);
        }
        Self {
            first_ns: nanoseconds(first),
            median_ns: nanoseconds(median(&mut runs)),
            p90_ns: nanoseconds(quantile(&runs, 9, 10)),
            n_runs,
        }
    }
}

/// Parses a time in seconds, such as `2` or `0.5`.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        format!("`{text}` is not a time; expected seconds such as 0.5, at most 3600")
    })
}

/// Returns the result of `work`, and its time.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let value = work();
    (value, started.elapsed())
}

/// Returns the median of these times, or the mean of the two in the middle; sorts them.
///
/// # Panics
/// Without times.
pub(super) fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let middle = times.len() / 2;
    if times.len() % 2 == 1 {
        times[middle]
    } else {
        (times[middle - 1] + times[middle]) / 2
    }
}

/// Returns the smallest time that at least `n / d` of the sorted times do not exceed.
///
/// # Panics
/// Without times.
pub(super) fn quantile(sorted: &[Duration], n: usize, d: usize) -> Duration {
    let rank = (sorted.len() * n).div_ceil(d).max(1);
    sorted[rank - 1]
}

/// A time in ns, as a number to divide by.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(super) fn nanoseconds_f64(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// A time in ns, as a number for reports.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(values: &[u64]) -> Vec<Duration> {
        values.iter().copied().map(Duration::from_nanos).collect()
    }

    #[test]
    fn medians_and_quantiles_are_those_of_the_sorted_times() {
        let timing = Timing::new(
            Duration::from_nanos(99),
            times(&[5, 1, 4, 2, 3, 6, 7, 8, 10, 9]),
        );
        assert_eq!(
            (timing.first_ns, timing.median_ns, timing.p90_ns),
            (99, 5, 9)
        );
        assert_eq!(timing.n_runs, 10);
        assert_eq!(median(&mut times(&[3, 1, 2])), Duration::from_nanos(2));
        assert_eq!(median(&mut times(&[4, 2])), Duration::from_nanos(3));
    }

    #[test]
    fn one_run_is_its_own_median() {
        let timing = Timing::new(Duration::from_nanos(7), Vec::new());
        assert_eq!((timing.median_ns, timing.p90_ns, timing.n_runs), (7, 7, 0));
    }
}
