//! What the program shows of a placement: the policy that made it, the devices, the transfers.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::output::Output;
use super::table::Table;
use super::units::count;
use super::units::show_bytes;
use super::units::show_ns;
use crate::placement::Placement;
use crate::placement::PlacementSummary;
use crate::placement::Replacement;
use crate::policy::Messages;
use crate::policy::PolicyReport;
use crate::session::SessionReport;

/// A placement as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct PlacementView<'a> {
    graph: String,
    n_nodes: usize,
    n_edges: usize,
    /// `null` if a saved placement was used.
    policy: Option<PolicyView<'a>>,
    /// What became of the placement of `--keep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<KeptView>,
    /// Time of one run by the cost model.
    expected_ns: f64,
    /// Whether all rates of the cost model were measured.
    is_calibrated: bool,
    /// Whether the devices are those of a cluster file.
    #[serde(skip)]
    is_on_paper: bool,
    /// Most bytes that the plan needs on each device at one time: what the memory rule compares
    /// with the capacity.
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
    /// Whether the node has state, which does not move with it.
    is_stateful: bool,
}

/// The library's report, with the name that the user gave and the metrics of the placement.
#[derive(Debug, Serialize)]
struct PolicyView<'a> {
    requested: &'a str,
    is_fallback: bool,
    #[serde(flatten)]
    report: &'a PolicyReport,
    metrics: &'a [(String, f64)],
}

impl<'a> PlacementView<'a> {
    /// The view of a placement. `requested`: the policy that the user named.
    pub(super) fn new(
        placement: &'a Placement,
        requested: &'a str,
        report: &'a SessionReport,
    ) -> Self {
        let (policy, replacement) = (report.policy(), report.replacement.as_ref());
        let graph = placement.graph();
        let mut evaluator = placement.evaluator();
        let devices = placement.device_set();
        Self {
            graph: graph.name().to_owned(),
            n_nodes: graph.n_nodes(),
            n_edges: graph.n_edges(),
            expected_ns: placement.expected_ns(),
            is_on_paper: false,
            is_calibrated: devices
                .iter()
                .all(|(id, _)| devices.rates(id).is_calibrated),
            expected_peak_bytes: evaluator.peak_bytes_per_device(),
            policy: policy.map(|report| PolicyView {
                requested,
                is_fallback: report.is_fallback(),
                report,
                metrics: placement.metrics(),
            }),
            kept: replacement.map(|replacement| KeptView::new(placement, replacement)),
            summary: placement.summary(),
        }
    }

    /// The same view, of a placement on the devices of a cluster file.
    pub(super) fn on_paper(self, is_on_paper: bool) -> Self {
        Self {
            is_on_paper,
            ..self
        }
    }

    /// Time of one run by the cost model.
    pub(super) fn expected_ns(&self) -> f64 {
        self.expected_ns
    }

    /// Prints it for people.
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
            None => output.line("placed as saved; no policy was asked")?,
        }
        if let Some(kept) = &self.kept {
            kept.show(output)?;
        }
        let mut table = Table::new(["device", "nodes", "parameters", "expected peak", "work"])
            .with_numbers(&[1, 2, 3, 4]);
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
        let signals = match self.summary.n_signals {
            0 => String::new(),
            n => format!(", and {}", counted(n, "control signal")),
        };
        if self.summary.n_streamed > 0 {
            output.line(format_args!(
                "{} ({}) stay where their nodes are, and each run copies them to their readers",
                counted(self.summary.n_streamed, "constant"),
                show_bytes(self.summary.streamed_bytes)
            ))?;
        }
        output.line(format_args!(
            "{}, {}{unknown}{signals}; one run is expected to take {} (rates: {})",
            counted(self.summary.n_transfers, "transfer"),
            show_bytes(self.summary.transfer_bytes),
            show_ns(self.expected_ns),
            match self.is_calibrated {
                _ if self.is_on_paper => "of the cluster file",
                true => "measured",
                false => "defaults",
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

    /// Prints how many nodes moved, by reason.
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
                "the state of {} is left behind",
                count(n_stateful, "node")
            ));
        }
        Ok(())
    }
}

impl PolicyView<'_> {
    fn show(&self, output: &mut Output) -> Result<()> {
        let report = self.report;
        let answer = &report.answer;
        for failed in &report.failed {
            let reason = match &failed.same_cause_as {
                Some(first) => format!("same cause as {first}"),
                None => {
                    let text = failed.error.to_string();
                    let named = format!("policy `{}`: ", failed.error.policy);
                    text.strip_prefix(&named).unwrap_or(&text).to_owned()
                }
            };
            let elapsed = show_duration(failed.elapsed);
            output.alert(
                "FAILED",
                format_args!(" {}: {reason} (after {elapsed})", failed.rung),
            )?;
        }
        let how = match (self.is_fallback, report.is_cached) {
            (true, _) => "placed instead",
            (false, true) => "placed earlier",
            (false, false) => "placed",
        };
        let mut line = format!(
            "{how} by policy {}{} {}",
            report.answered_by,
            if report.is_cached {
                ", found in the cache in"
            } else {
                " in"
            },
            show_duration(answer.elapsed)
        );
        // After a fallback, the loaded policy is the one that failed.
        let load = report.load.as_ref().filter(|_| !self.is_fallback);
        if let Some(load) = load {
            let how = if load.is_cached {
                "from the cache"
            } else {
                "compiled"
            };
            let time = load.encode + load.compile + load.start;
            line.push_str(&format!(", loaded in {} ({how})", show_duration(time)));
        }
        if let Some(fuel) = answer.fuel_used {
            let host_fuel = answer.host_fuel_used.unwrap_or(0);
            line.push_str(&format!(
                ", used {fuel} fuel for wasm instructions and {host_fuel} for host calls"
            ));
        }
        if let Some(cut_off) = &answer.cut_off {
            let offers = counted(answer.n_offers, "offer");
            line.push_str(&format!("; {cut_off}, after {offers}"));
        }
        output.line(line)?;
        if let Some(problem) = load.and_then(|load| load.cache_problem.as_ref()) {
            output.note(format_args!(
                "the compiled policy was not cached: {problem}"
            ));
        }
        if let Some(problem) = &report.cache_problem {
            output.note(format_args!(
                "the cache of placements was not used: {problem}"
            ));
        }
        let at_start = load.map(|load| &load.messages);
        let messages: Vec<&Messages> = at_start.into_iter().chain([&answer.messages]).collect();
        for message in messages.iter().flat_map(|messages| &messages.kept) {
            output.line(format_args!("  {message}"))?;
        }
        let dropped = messages.iter().map(|messages| messages.dropped).sum();
        for (dropped, what) in [
            (dropped, "message"),
            (answer.dropped.explanations, "explanation"),
            (answer.dropped.metrics, "metric"),
        ] {
            if dropped > 0 {
                output.line(format_args!("  {} dropped", counted(dropped, what)))?;
            }
        }
        for (name, value) in self.metrics {
            output.line(format_args!(
                "  metric {name} = {}",
                (value * 1e3).round() / 1e3
            ))?;
        }
        Ok(())
    }
}

fn counted(n: u64, noun: &str) -> String {
    count(usize::try_from(n).unwrap_or(usize::MAX), noun)
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn show_duration(duration: Duration) -> String {
    show_ns(duration.as_nanos() as f64)
}
