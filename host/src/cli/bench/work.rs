//! Repeats and times work, by one caller or by several concurrent ones.

use std::sync::RwLock;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context as _;
use anyhow::Result;
use anyhow::anyhow;

use crate::cli::timing::median;
use crate::cli::timing::nanoseconds;
use crate::cli::timing::quantile;
use crate::execute::N_RUNS_TO_SETTLE;

/// Longest time of [`settle`].
const SETTLING_MAX: Duration = Duration::from_secs(10);

/// Work that any number of threads may repeat concurrently.
pub(super) trait Work: Sync {
    /// Does the work once, checks the results, and returns the time: making fresh feeds counts, the
    /// check does not. `number` counts up; the work may vary with it.
    ///
    /// # Errors
    /// What failed, or where the results differ from the expected ones.
    fn run(&self, number: u64) -> Result<Duration>;
}

/// Repeats `work` for `duration`, at least three times, and returns the time of each run.
pub(super) fn repeat(work: &dyn Work, duration: Duration) -> Result<Vec<Duration>> {
    let started = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || started.elapsed() < duration {
        times.push(work.run(times.len() as u64)?);
    }
    Ok(times)
}

/// Repeats `work` until the session has chosen how it executes it, for a limited time: earlier runs
/// try several execution modes.
pub(super) fn settle(work: &dyn Work) -> Result<()> {
    let started = Instant::now();
    for number in 0..N_RUNS_TO_SETTLE.into() {
        if started.elapsed() > SETTLING_MAX {
            break;
        }
        work.run(number)?;
    }
    Ok(())
}

/// What one session served to several callers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Served {
    pub(super) n_requests: usize,
    /// Requests of all callers per second of wall-clock time, which includes checking the results.
    pub(super) requests_per_s: f64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
}

/// Runs a closed loop: each of `n_callers` threads repeats `work` for `duration`, and begins the
/// next run when it has checked the last.
pub(super) fn serve(work: &dyn Work, n_callers: usize, duration: Duration) -> Result<Served> {
    // Callers wait until all have been started, or one could not be started.
    let gate = RwLock::new(());
    let (times, elapsed) = thread::scope(|scope| {
        let call = || {
            drop(gate.read());
            repeat(work, duration)
        };
        let closed = gate.write();
        let callers: Result<Vec<_>, _> = (0..n_callers)
            .map(|_| thread::Builder::new().spawn_scoped(scope, call))
            .collect();
        drop(closed);
        let callers = callers.context("the system has no thread for another caller")?;
        let started = Instant::now();
        let mut times = Vec::new();
        for caller in callers {
            let of_caller = caller.join().map_err(|_| anyhow!("a caller panicked"))??;
            times.extend(of_caller);
        }
        anyhow::Ok((times, started.elapsed()))
    })?;
    Ok(Served::new(times, elapsed))
}

impl Served {
    fn new(mut times: Vec<Duration>, elapsed: Duration) -> Self {
        let p50 = median(&mut times);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let n_requests = times.len() as f64;
        Self {
            n_requests: times.len(),
            requests_per_s: n_requests / elapsed.as_secs_f64(),
            p50_ns: nanoseconds(p50),
            p99_ns: nanoseconds(quantile(&times, 99, 100)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering;

    use super::*;

    /// Counts its runs; fails from run `n_good` on.
    struct Counter {
        n_runs: AtomicU64,
        n_good: u64,
    }

    impl Work for Counter {
        fn run(&self, number: u64) -> Result<Duration> {
            anyhow::ensure!(number < self.n_good, "run {number} differs");
            self.n_runs.fetch_add(1, Ordering::Relaxed);
            Ok(Duration::from_nanos(number + 1))
        }
    }

    fn counter(n_good: u64) -> Counter {
        Counter {
            n_runs: AtomicU64::new(0),
            n_good,
        }
    }

    #[test]
    fn every_caller_works_and_every_request_counts() {
        let work = counter(u64::MAX);
        let served = serve(&work, 4, Duration::ZERO).expect("no run fails");
        assert_eq!(work.n_runs.into_inner(), 12);
        assert_eq!(
            (served.n_requests, served.p50_ns, served.p99_ns),
            (12, 2, 3)
        );
        assert!(served.requests_per_s > 0.0);
    }

    #[test]
    fn a_run_that_fails_fails_all() {
        let served = serve(&counter(2), 3, Duration::ZERO);
        assert!(served.is_err_and(|err| err.to_string() == "run 2 differs"));
        assert!(repeat(&counter(0), Duration::ZERO).is_err());
    }
}
