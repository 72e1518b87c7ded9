//! What is shown of a placement: who made it, what is where, what moves.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use super::output::Output;
use super::output::align_right;
use super::output::new_table;
use super::timing::nanoseconds;
use super::units::count;
use super::units::show_bytes;
use super::units::show_ns;
use crate::placement::Evaluator;
use crate::placement::Placement;
use crate::placement::PlacementSummary;
use crate::placement::Replacement;
use crate::policy::LoadReport;
use crate::policy::PolicyReport;
use crate::session::SessionReport;

/// A placement, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct PlacementView {
    graph: String,
    n_nodes: usize,
    n_edges: usize,
    /// `null` where a saved placement was used.
    policy: Option<PolicyView>,
    /// What became of the placement that was to be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<KeptView>,
    /// What the cost model expects of one run.
    expected_ns: f64,
    /// Whether all rates behind it were measured.
    is_calibrated: bool,
    /// Most bytes that each device is expected to hold at once.
    expected_peak_bytes: Vec<u64>,
    #[serde(flatten)]
    summary: PlacementSummary,
}

#[derive(Debug, Serialize)]
struct KeptView {
    n_kept: usize,
    n_new: usize,
    moved: Vec<MovedView>,
}

#[derive(Debug, Serialize)]
struct MovedView {
    node: String,
    from: String,
    to: String,
    reason: String,
    /// Whether it keeps state, which stays behind.
    is_stateful: bool,
}

#[derive(Debug, Serialize)]
struct PolicyView {
    asked: String,
    answered_by: String,
    /// Whether nobody was asked, as the answer was in the cache of placements.
    is_cached: bool,
    /// Why that cache could not be used.
    cache_problem: Option<String>,
    is_fallback: bool,
    failed: Vec<FailureView>,
    /// What ended the call after a plan had been offered.
    cut_off: Option<String>,
    n_offers: u64,
    elapsed_ns: u64,
    /// Fuel of wasm instructions; `--policy-fuel` limits each of the two.
    fuel_used: Option<u64>,
    /// Fuel of host calls.
    host_fuel_used: Option<u64>,
    peak_memory_bytes: Option<usize>,
    load: Option<LoadView>,
    messages: Vec<String>,
    messages_dropped: u64,
    explanations_dropped: u64,
    metrics: Vec<(String, f64)>,
    metrics_dropped: u64,
}

#[derive(Debug, Serialize)]
struct FailureView {
    policy: String,
    /// `policy`, `host` or `user`.
    fault: String,
    error: String,
    /// `load` or `place`, and how long it took until it failed.
    call: &'static str,
    elapsed_ns: u64,
}

#[derive(Debug, Serialize)]
struct LoadView {
    is_cached: bool,
    encode_ns: u64,
    compile_ns: u64,
    start_ns: u64,
    cache_problem: Option<String>,
}

impl PlacementView {
    /// Of a placement, with who made it.
    pub(super) fn new(placement: &Placement, asked: &str, report: &SessionReport) -> Self {
        let (policy, replacement) = (report.policy(), report.replacement.as_ref());
        let graph = placement.graph();
        let mut evaluator = Evaluator::new(placement.candidates());
        evaluator.set_devices(placement.devices());
        evaluator.set_start_order(placement.start_order().map(<[i32]>::to_vec));
        evaluator.set_queues(placement.queues().map(<[u32]>::to_vec));
        let devices = placement.device_set();
        Self {
            graph: graph.name().to_owned(),
            n_nodes: graph.n_nodes(),
            n_edges: graph.n_edges(),
            expected_ns: evaluator.makespan_ns(),
            is_calibrated: devices
                .iter()
                .all(|(id, _)| devices.profile(id).is_calibrated),
            expected_peak_bytes: evaluator.peak_bytes_per_device(),
            policy: policy.map(|report| PolicyView::new(placement, asked, report)),
            kept: replacement.map(|replacement| KeptView::new(placement, replacement)),
            summary: placement.summary(),
        }
    }

    /// For people.
    pub(super) fn show(&self, output: &mut Output) -> Result<()> {
        let used = self
            .summary
            .devices
            .iter()
            .filter(|device| device.n_nodes > 0);
        output.line(format_args!(
            "{}: {} on {} of {}",
            self.graph,
            count(self.n_nodes, "node"),
            used.count(),
            count(self.summary.devices.len(), "device")
        ))?;
        match &self.policy {
            Some(policy) => policy.show(output)?,
            None => output.line("placed as saved, no policy was asked")?,
        }
        if let Some(kept) = &self.kept {
            kept.show(output)?;
        }
        let mut table = new_table(["device", "nodes", "parameters", "peak memory", "work"]);
        align_right(&mut table, &[1, 2, 3, 4]);
        for (device, &peak) in self.summary.devices.iter().zip(&self.expected_peak_bytes) {
            table.add_row([
                device.name.clone(),
                device.n_nodes.to_string(),
                show_bytes(device.resident_bytes),
                show_bytes(peak),
                show_ns(device.work_ns),
            ]);
        }
        output.table(&table)?;
        let unknown = match self.summary.n_transfers_of_unknown_size {
            0 => String::new(),
            n => format!(" and {n} of unknown size"),
        };
        output.line(format_args!(
            "{}, {}{unknown}; one run is expected to take {} (rates: {})",
            count(
                usize::try_from(self.summary.n_transfers).unwrap_or(usize::MAX),
                "transfer"
            ),
            show_bytes(self.summary.transfer_bytes),
            show_ns(self.expected_ns),
            if self.is_calibrated {
                "measured"
            } else {
                "defaults"
            }
        ))
    }
}

impl KeptView {
    fn new(placement: &Placement, replacement: &Replacement) -> Self {
        let moved = replacement.moved.iter().map(|moved| MovedView {
            node: placement.graph().node_name(moved.node).to_owned(),
            from: moved.from.to_string(),
            to: placement.candidates().device_name(moved.to.0).to_owned(),
            reason: moved.reason.to_string(),
            is_stateful: moved.is_stateful,
        });
        Self {
            n_kept: replacement.n_kept,
            n_new: replacement.n_new,
            moved: moved.collect(),
        }
    }

    /// How many moved, by reason.
    fn show(&self, output: &mut Output) -> Result<()> {
        let mut n_by_reason: BTreeMap<&str, usize> = BTreeMap::new();
        for moved in &self.moved {
            *n_by_reason.entry(&moved.reason).or_default() += 1;
        }
        let mut line = format!("{} kept where saved", count(self.n_kept, "node"));
        for (reason, n) in n_by_reason {
            line.push_str(&format!(", {n} moved ({reason})"));
        }
        if self.n_new > 0 {
            line.push_str(&format!(", {} new", self.n_new));
        }
        output.line(line)?;
        let n_stateful = self.moved.iter().filter(|moved| moved.is_stateful).count();
        if n_stateful > 0 {
            output.note(format_args!(
                "the state of {} stayed behind",
                count(n_stateful, "node")
            ));
        }
        Ok(())
    }
}

impl PolicyView {
    fn new(placement: &Placement, asked: &str, report: &PolicyReport) -> Self {
        let answer = &report.answer;
        // After a fallback it is the failed policy that was loaded.
        let load = report.load.as_ref().filter(|_| !report.is_fallback());
        let messages = || {
            let at_start = load.map(|load| &load.messages);
            at_start.into_iter().chain([&answer.messages])
        };
        Self {
            asked: asked.to_owned(),
            answered_by: report.answered_by.to_string(),
            is_cached: report.is_cached,
            cache_problem: report.cache_problem.clone(),
            is_fallback: report.is_fallback(),
            failed: report
                .failed
                .iter()
                .map(|failed| FailureView {
                    policy: failed.rung.to_string(),
                    fault: failed.error.fault().to_string(),
                    error: failed.error.to_string(),
                    call: failed.call,
                    elapsed_ns: nanoseconds(failed.elapsed),
                })
                .collect(),
            cut_off: answer.cut_off.as_ref().map(ToString::to_string),
            n_offers: answer.n_offers,
            elapsed_ns: nanoseconds(answer.elapsed),
            fuel_used: answer.fuel_used,
            host_fuel_used: answer.host_fuel_used,
            peak_memory_bytes: answer.peak_memory_bytes,
            load: load.map(LoadView::new),
            messages: messages()
                .flat_map(|messages| &messages.kept)
                .map(ToString::to_string)
                .collect(),
            messages_dropped: messages().map(|messages| messages.dropped).sum(),
            explanations_dropped: answer.dropped.explanations,
            metrics: placement.metrics().to_vec(),
            metrics_dropped: answer.dropped.metrics,
        }
    }

    fn show(&self, output: &mut Output) -> Result<()> {
        for failed in &self.failed {
            output.line(format_args!(
                "FAILED {}: {} (after {})",
                failed.policy,
                failed.error,
                show_ns_u64(failed.elapsed_ns)
            ))?;
        }
        let how = match (self.is_fallback, self.is_cached) {
            (true, _) => "placed instead",
            (false, true) => "answered by cache: placed before",
            (false, false) => "placed",
        };
        let mut line = format!(
            "{how} by policy {}{} {}",
            self.answered_by,
            if self.is_cached { ", found in" } else { " in" },
            show_ns_u64(self.elapsed_ns)
        );
        if let Some(load) = &self.load {
            let how = if load.is_cached {
                "from the cache"
            } else {
                "compiled"
            };
            let time = load.encode_ns + load.compile_ns + load.start_ns;
            line.push_str(&format!(", loaded in {} ({how})", show_ns_u64(time)));
        }
        if let Some(fuel) = self.fuel_used {
            let host_fuel = self.host_fuel_used.unwrap_or(0);
            line.push_str(&format!(
                ", used {fuel} fuel for wasm instructions and {host_fuel} for host calls"
            ));
        }
        if let Some(cut_off) = &self.cut_off {
            line.push_str(&format!("; {cut_off}, after {} offers", self.n_offers));
        }
        output.line(line)?;
        if let Some(problem) = self
            .load
            .as_ref()
            .and_then(|load| load.cache_problem.as_ref())
        {
            output.note(format_args!("the compiled policy was not kept: {problem}"));
        }
        if let Some(problem) = &self.cache_problem {
            output.note(format_args!("the cache of placements: {problem}"));
        }
        for message in &self.messages {
            output.line(format_args!("  {message}"))?;
        }
        for (dropped, what) in [
            (self.messages_dropped, "message"),
            (self.explanations_dropped, "explanation"),
            (self.metrics_dropped, "metric"),
        ] {
            if dropped > 0 {
                let n = usize::try_from(dropped).unwrap_or(usize::MAX);
                output.line(format_args!("  {} dropped", count(n, what)))?;
            }
        }
        for (name, value) in &self.metrics {
            output.line(format_args!("  {name} = {}", (value * 1e3).round() / 1e3))?;
        }
        Ok(())
    }
}

impl LoadView {
    fn new(report: &LoadReport) -> Self {
        Self {
            is_cached: report.is_cached,
            encode_ns: nanoseconds(report.encode),
            compile_ns: nanoseconds(report.compile),
            start_ns: nanoseconds(report.start),
            cache_problem: report.cache_problem.clone(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn show_ns_u64(ns: u64) -> String {
    show_ns(ns as f64)
}
