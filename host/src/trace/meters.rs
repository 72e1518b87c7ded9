//! Counters and histograms, for the recorder that an app installs with the `metrics` facade.
//!
//! They count whole runs and calls, never single operations. All keys of a run are static: without
//! a recorder a run costs some tens of ns more.

use std::time::Duration;

use metrics::Unit;
use metrics::counter;
use metrics::describe_counter;
use metrics::describe_histogram;
use metrics::histogram;

/// Runs that ended; label `outcome`: `ok`, `failed`, `cancelled`, `timed-out`.
pub const RUNS: &str = "placewright_runs_total";

/// Kernels that runs with outcome `ok` executed. Constants are made before the first run and are
/// not counted.
pub const OPS: &str = "placewright_ops_total";

/// Bytes that runs with outcome `ok` moved; label `kind`: `feed` (from the caller to a device),
/// `transfer` (between two devices, or two memories of one), `fetch` (from a device to the caller).
/// A feed that several devices read counts once per device. A tensor that is fed and fetched
/// without a copy is not counted.
pub const BYTES: &str = "placewright_bytes_total";

/// Seconds of a run with any outcome.
pub const RUN_SECONDS: &str = "placewright_run_seconds";

/// Runs and new callables whose plan was in the plan cache. Calls of a callable look for no plan.
pub const PLAN_CACHE_HITS: &str = "placewright_plan_cache_hits_total";

/// Runs and new callables whose graph had to be partitioned and prepared.
pub const PLAN_CACHE_MISSES: &str = "placewright_plan_cache_misses_total";

/// Plans compiled for the shapes of their feeds. A plan whose first runs are measured is compiled
/// twice.
pub const VARIANTS_COMPILED: &str = "placewright_variants_compiled_total";

/// Calls into policies that ended; labels `call`: `load`, `place`, `begin`, `pick`, `pick-batch`,
/// `observe`, `end`; `outcome`: `ok`, `cut-off` (a limit ended the call, and its last legal offer
/// counts), `failed`. Calls of a run of an online policy are added when it ends.
pub const POLICY_CALLS: &str = "placewright_policy_calls_total";

/// Policies without a usable answer; label `reason`: the rule that the plan broke (`length`,
/// `device`, `candidate`, `pinned`, `group`, `memory`, `queue`), else how the call ended (`trap`,
/// `deadline`, `no-offer` and others, see `PolicyErrorKind::reason`). Mistakes of the user (a name,
/// a file, a setting) are not counted.
pub const REFUSALS: &str = "placewright_refusals_total";

/// Describes the metrics and their units to the installed recorder. Building a session does so. An
/// app that installs its recorder later, or has no session, calls this itself.
pub fn describe_metrics() {
    describe_counter!(RUNS, Unit::Count, "Runs that ended, by outcome");
    describe_counter!(OPS, Unit::Count, "Ops executed by successful runs");
    describe_counter!(
        BYTES,
        Unit::Bytes,
        "Bytes moved by successful runs: feeds, transfers between devices, fetches"
    );
    describe_histogram!(RUN_SECONDS, Unit::Seconds, "Time of a run");
    describe_counter!(
        PLAN_CACHE_HITS,
        Unit::Count,
        "Runs and new callables whose plan was in the plan cache"
    );
    describe_counter!(
        PLAN_CACHE_MISSES,
        Unit::Count,
        "Runs and new callables whose graph had to be partitioned and prepared"
    );
    describe_counter!(
        VARIANTS_COMPILED,
        Unit::Count,
        "Plans compiled for the shapes of their feeds"
    );
    describe_counter!(
        POLICY_CALLS,
        Unit::Count,
        "Calls into policies that ended, by call and outcome"
    );
    describe_counter!(
        REFUSALS,
        Unit::Count,
        "Policies without a usable answer, by reason"
    );
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    Ok,
    Failed,
    Cancelled,
    TimedOut,
}

impl RunOutcome {
    /// Its name in labels and fields.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed-out",
        }
    }
}

/// Sums over one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RunTotals {
    pub(crate) n_ops: u64,
    pub(crate) feed_bytes: u64,
    pub(crate) transfer_bytes: u64,
    pub(crate) fetch_bytes: u64,
}

/// Counts a run that ended; `totals` are those of a successful run.
pub(crate) fn add_run(outcome: RunOutcome, elapsed: Duration, totals: Option<&RunTotals>) {
    // Literal labels make static keys; a label from `as_str` would be allocated in each run.
    let runs = match outcome {
        RunOutcome::Ok => counter!(RUNS, "outcome" => "ok"),
        RunOutcome::Failed => counter!(RUNS, "outcome" => "failed"),
        RunOutcome::Cancelled => counter!(RUNS, "outcome" => "cancelled"),
        RunOutcome::TimedOut => counter!(RUNS, "outcome" => "timed-out"),
    };
    runs.increment(1);
    histogram!(RUN_SECONDS).record(elapsed);
    if let Some(totals) = totals {
        counter!(OPS).increment(totals.n_ops);
        counter!(BYTES, "kind" => "feed").increment(totals.feed_bytes);
        counter!(BYTES, "kind" => "transfer").increment(totals.transfer_bytes);
        counter!(BYTES, "kind" => "fetch").increment(totals.fetch_bytes);
    }
}

/// Counts a lookup of a plan.
pub(crate) fn add_plan_lookup(was_found: bool) {
    if was_found {
        counter!(PLAN_CACHE_HITS).increment(1);
    } else {
        counter!(PLAN_CACHE_MISSES).increment(1);
    }
}

/// Counts a plan that was compiled.
pub(crate) fn add_variant() {
    counter!(VARIANTS_COMPILED).increment(1);
}

/// Counts calls into a policy.
pub(crate) fn add_policy_calls(call: &'static str, outcome: &'static str, n_calls: u64) {
    counter!(POLICY_CALLS, "call" => call, "outcome" => outcome).increment(n_calls);
}

/// Counts an answer that could not be used.
pub(crate) fn add_refusal(reason: String) {
    counter!(REFUSALS, "reason" => reason).increment(1);
}
