//! What the runs of a graph took, per node and device, as data that can be kept.

use std::collections::BTreeMap;
use std::collections::HashSet;

use serde::Deserialize;
use serde::Serialize;

use super::event::Event;
use super::event::EventKind;
use super::recorder::Trace;
use super::recorder::TraceNames;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::plan::Payload;

/// Grows when the meaning of a field changes.
const FORMAT: u32 = 2;

/// Times are rounded to tenths of a nanosecond.
const PER_NS: f64 = 10.0;

/// How often kernels are shortened in proportion at most, and how near to the run they must come.
const N_FITS: usize = 8;
const FIT: f64 = 1e-3;

/// Converts the median absolute deviation to the standard deviation of a normal distribution.
const DEVIATIONS_PER_MAD: f64 = 1.4826;

/// Measurements of runs of one graph. Nodes and devices are named, so that it also serves a graph
/// that has grown, or devices that are numbered differently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RunProfile {
    /// The version of the format, for files.
    pub format: u32,
    /// Name of the graph.
    pub graph: String,
    /// Number of measured runs. The first run of a trace is not among them if there are others:
    /// it creates kernels and constants.
    pub n_runs: u32,
    /// Median time of a run, in ns, without being recorded if it was measured that way.
    pub run_ns: f64,
    /// The part of it that the schedule of kernels and transfers does not explain, in ns: feeds,
    /// fetches, waiting.
    pub overhead_ns: f64,
    /// Per node and device that executed it, ordered by node, then device; then the nodes that were
    /// not executed.
    pub nodes: Vec<NodeTimes>,
    /// Per tensor and pair of devices, ordered likewise.
    pub transfers: Vec<TransferTimes>,
}

/// The executions of a node on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NodeTimes {
    /// The node.
    pub node: String,
    /// Full name of the device.
    pub device: String,
    /// Executions in one run: the mean, which need not be whole. 0 for nodes that runs do not need,
    /// or pass by, as those that bring tensors into loops.
    pub executions: f64,
    /// Median time of an execution, in ns. If one kernel computes several nodes, the node of the
    /// most work has its time, and the others have 0.
    pub ns: f64,
    /// Spread of the time, in ns: an estimate of the standard deviation that single slow
    /// executions do not change.
    pub spread_ns: f64,
    /// Number of executions measured; 0 if its time is unknown.
    pub samples: u32,
    /// From the start of a run to the first execution, in ns: the mean.
    pub start_ns: f64,
}

/// The transfers of a tensor from one device to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TransferTimes {
    /// `node:slot`, or `^node` for a control dependency.
    pub tensor: String,
    /// Full name of the sending device.
    pub source: String,
    /// Full name of the receiving device.
    pub destination: String,
    /// Median time, in ns, without waiting for a thread.
    pub ns: f64,
    /// Number of transfers measured.
    pub samples: u32,
}

/// Why a file is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// It is not the JSON of a profile.
    #[error("not a profile of runs; make one with `placewright run --save-profile`")]
    Malformed(#[from] serde_json::Error),
    /// Another version of this crate has written it.
    #[error(
        "the profile has format {found}, this version reads format {FORMAT}; make a new one with \
         `placewright run --save-profile`"
    )]
    Format {
        /// The format of the file.
        found: u32,
    },
    /// A number is negative or not finite.
    #[error("the profile has an impossible time or count for `{0}`; make a new one")]
    Unsound(String),
}

impl RunProfile {
    /// Reads a profile that [`Self::to_json`] wrote.
    ///
    /// # Errors
    /// [`ProfileError`], which says what is wrong.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ProfileError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let Head { format } = serde_json::from_slice(bytes)?;
        if format != FORMAT {
            return Err(ProfileError::Format { found: format });
        }
        let profile: Self = serde_json::from_slice(bytes)?;
        let is_time = |ns: f64| ns.is_finite() && ns >= 0.0;
        let nodes = profile.nodes.iter().map(|node| {
            let times = [node.executions, node.ns, node.spread_ns, node.start_ns];
            (&node.node, times.into_iter().all(is_time))
        });
        let transfers = profile.transfers.iter();
        let transfers = transfers.map(|transfer| (&transfer.tensor, is_time(transfer.ns)));
        let unsound = nodes.chain(transfers).find(|(_, is_sound)| !is_sound);
        match unsound {
            Some((name, _)) => Err(ProfileError::Unsound(name.clone())),
            None if !is_time(profile.run_ns) || !is_time(profile.overhead_ns) => {
                Err(ProfileError::Unsound(profile.graph))
            }
            None => Ok(profile),
        }
    }

    /// Returns how often nodes are executed, without times: costs then come from other sources, and
    /// what is known of loops and branches is their trip counts and the sides that are taken. What
    /// runs pass by still costs nothing.
    pub fn without_times(&self) -> Self {
        let nodes = self.nodes.iter().map(|times| NodeTimes {
            ns: 0.0,
            spread_ns: 0.0,
            samples: match times.is_passed() {
                true => times.samples,
                false => 0,
            },
            start_ns: 0.0,
            ..times.clone()
        });
        Self {
            run_ns: 0.0,
            overhead_ns: 0.0,
            nodes: nodes.collect(),
            transfers: Vec::new(),
            graph: self.graph.clone(),
            ..*self
        }
    }

    /// Whether it knows what executions take.
    pub(crate) fn has_times(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|times| times.samples > 0 && !times.is_passed())
    }

    /// Sets the time of a run that was not recorded, and fits the times of kernels to it: after
    /// that, `makespan_ns`, the schedule of a profile's kernels, is the time of the run without its
    /// overhead. If the kernels took longer, since recording takes time, each execution is
    /// shortened by an equal part of the difference, at most by half, and then all in proportion.
    pub(crate) fn set_run_time(&mut self, run_ns: u64, makespan_ns: impl Fn(&Self) -> f64) {
        self.run_ns = to_f64(run_ns);
        let executed = self.nodes.iter().filter(|times| times.ns > 0.0);
        let n_executions: f64 = executed.map(|times| times.executions).sum();
        let excess_ns = (makespan_ns(self) - self.run_ns) / n_executions;
        if excess_ns > 0.0 && excess_ns.is_finite() {
            for times in &mut self.nodes {
                times.ns = (times.ns - excess_ns).max(times.ns / 2.0);
            }
        }
        for _ in 0..N_FITS {
            let scheduled_ns = makespan_ns(self);
            if scheduled_ns <= self.run_ns * (1.0 + FIT) {
                break;
            }
            for times in &mut self.nodes {
                times.ns *= self.run_ns / scheduled_ns;
            }
        }
        for times in &mut self.nodes {
            times.ns = rounded(times.ns, PER_NS);
        }
        self.overhead_ns = rounded((self.run_ns - makespan_ns(self)).max(0.0), PER_NS);
    }

    /// Adds the nodes that were not executed: node, device, and whether runs pass the node by, so
    /// that it costs nothing. Nothing is known of what the others cost.
    pub(crate) fn add_others<'a>(&mut self, all: impl Iterator<Item = (&'a str, &'a str, bool)>) {
        let known: HashSet<String> = self.nodes.iter().map(|times| times.node.clone()).collect();
        let others = all.filter(|(node, ..)| !known.contains(*node));
        let n_runs = self.n_runs;
        self.nodes
            .extend(others.map(|(node, device, is_passed)| NodeTimes {
                node: node.to_owned(),
                device: device.to_owned(),
                executions: 0.0,
                ns: 0.0,
                spread_ns: 0.0,
                samples: if is_passed { n_runs } else { 0 },
                start_ns: 0.0,
            }));
    }

    /// Returns the profile as JSON, for a file.
    ///
    /// # Panics
    /// Never: all numbers are finite.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a profile consists of strings and finite numbers")
    }
}

impl NodeTimes {
    /// Whether runs pass the node by.
    fn is_passed(&self) -> bool {
        self.samples > 0 && self.executions == 0.0
    }
}

/// The measurements of one node and device, or of one transfer.
#[derive(Debug, Default)]
struct Times {
    durations_ns: Vec<u64>,
    n_executions: u64,
    /// Sum of the starts of the first execution in each run, and their number.
    starts_ns: u64,
    n_starts: u32,
    last_run: Option<u64>,
}

impl Trace {
    /// Returns what the recorded runs took. Record them with `RunOptions::sync_kernels` to measure
    /// kernels of devices that work on after a kernel has returned.
    pub fn profile(&self) -> RunProfile {
        let starts: BTreeMap<u64, &Event> = self
            .events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Run { run } => Some((run, event)),
                _ => None,
            })
            .collect();
        // The first run creates kernels and constants.
        let n_skipped = usize::from(starts.len() > 1);
        let measured: BTreeMap<u64, &Event> = starts.into_iter().skip(n_skipped).collect();
        let mut nodes: BTreeMap<(NodeId, DeviceId), Times> = BTreeMap::new();
        let mut transfers: BTreeMap<(String, DeviceId, DeviceId), Times> = BTreeMap::new();
        for event in &self.events {
            match &event.kind {
                EventKind::Kernel {
                    run,
                    node,
                    fused,
                    device,
                    ..
                } if let Some(began) = measured.get(run) => {
                    let start_ns = event.start_ns.saturating_sub(began.start_ns);
                    let mut add = |node, ns| {
                        let times = nodes.entry((node, *device)).or_default();
                        times.add(*run, start_ns, ns);
                    };
                    let Some(fused) = fused else {
                        add(*node, event.duration_ns);
                        continue;
                    };
                    let main = self.names.node_of_most_work(&fused.nodes);
                    for &node in &fused.nodes {
                        let is_main = Some(node) == main;
                        add(node, if is_main { event.duration_ns } else { 0 });
                    }
                }
                EventKind::Transfer {
                    run,
                    payload,
                    source,
                    destination,
                    receive_wait_ns,
                    ..
                } if let Some(began) = measured.get(run) => {
                    let key = (self.names.payload(*payload), *source, *destination);
                    let start_ns = event.start_ns.saturating_sub(began.start_ns);
                    let times = transfers.entry(key).or_default();
                    let ns = event.duration_ns.saturating_sub(*receive_wait_ns);
                    times.add(*run, start_ns, ns);
                }
                _ => {}
            }
        }
        let n_runs = measured.len();
        let nodes = nodes.into_iter().map(|((node, device), mut times)| {
            let (ns, spread_ns) = times.median_and_spread();
            NodeTimes {
                node: self.names.node(node).to_owned(),
                device: self.names.device(device).to_owned(),
                executions: rounded(to_f64(times.n_executions) / to_f64(n_runs as u64), 1e6),
                ns: rounded(ns, PER_NS),
                spread_ns: rounded(spread_ns, PER_NS),
                samples: times.samples(),
                start_ns: rounded(
                    to_f64(times.starts_ns) / f64::from(times.n_starts.max(1)),
                    PER_NS,
                ),
            }
        });
        let transfers = transfers.into_iter();
        let transfers = transfers.map(|((tensor, source, destination), mut times)| TransferTimes {
            tensor,
            source: self.names.device(source).to_owned(),
            destination: self.names.device(destination).to_owned(),
            ns: times.median_and_spread().0,
            samples: times.samples(),
        });
        let mut runs_ns: Vec<u64> = measured.values().map(|run| run.duration_ns).collect();
        RunProfile {
            format: FORMAT,
            graph: self.names.graph.name().to_owned(),
            n_runs: u32::try_from(n_runs).unwrap_or(u32::MAX),
            run_ns: median(&mut runs_ns),
            overhead_ns: 0.0,
            nodes: nodes.collect(),
            transfers: transfers.collect(),
        }
    }
}

impl Times {
    fn add(&mut self, run: u64, start_ns: u64, ns: u64) {
        self.durations_ns.push(ns);
        self.n_executions += 1;
        if self.last_run != Some(run) {
            self.last_run = Some(run);
            self.starts_ns = self.starts_ns.saturating_add(start_ns);
            self.n_starts += 1;
        }
    }

    fn median_and_spread(&mut self) -> (f64, f64) {
        let middle = median(&mut self.durations_ns);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a median of such numbers"
        )]
        let around = middle as u64;
        for ns in &mut self.durations_ns {
            *ns = ns.abs_diff(around);
        }
        (middle, DEVIATIONS_PER_MAD * median(&mut self.durations_ns))
    }

    fn samples(&self) -> u32 {
        u32::try_from(self.n_executions).unwrap_or(u32::MAX)
    }
}

impl TraceNames {
    /// Returns the node of the most floating-point operations; of equal ones, of the most traffic.
    fn node_of_most_work(&self, nodes: &[NodeId]) -> Option<NodeId> {
        let known = |node: &&NodeId| node.index() < self.graph.n_nodes();
        let work = |node: &NodeId| {
            let index = node.index();
            (self.graph.flops()[index], self.graph.traffic_bytes()[index])
        };
        let most = nodes.iter().filter(known).max_by(|first, second| {
            let (first, second) = (work(first), work(second));
            first.0.total_cmp(&second.0).then(first.1.cmp(&second.1))
        });
        most.copied()
    }

    fn payload(&self, payload: Payload) -> String {
        match payload {
            Payload::Tensor(tensor) if tensor.index() < self.graph.n_tensors() => {
                self.graph.tensor_name(tensor)
            }
            Payload::Tensor(_) => "<no such tensor>".to_owned(),
            Payload::Control(node) => format!("^{}", self.node(node)),
        }
    }
}

/// Rounds to a multiple of `1 / per_unit`. Further digits would be noise, and these survive JSON
/// unchanged.
fn rounded(value: f64, per_unit: f64) -> f64 {
    (value * per_unit).round() / per_unit
}

/// Returns the median, the mean of the two middle numbers if their count is even; 0 of none.
fn median(values: &mut [u64]) -> f64 {
    values.sort_unstable();
    let middle = values.len() / 2;
    match values {
        [] => 0.0,
        _ if values.len() % 2 == 1 => to_f64(values[middle]),
        _ => f64::midpoint(to_f64(values[middle - 1]), to_f64(values[middle])),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "times and counts are far smaller"
)]
fn to_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads_ignore_single_slow_executions() {
        let mut times = Times::default();
        for ns in [10, 12, 11, 9_000, 10] {
            times.add(0, 0, ns);
        }
        let (middle, spread) = times.median_and_spread();
        assert_eq!(middle, 11.0);
        assert!((spread - DEVIATIONS_PER_MAD).abs() < 1e-9);
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [4, 2]), 3.0);
    }

    #[test]
    fn a_profile_survives_json_and_impossible_ones_are_refused() {
        let profile = RunProfile {
            format: FORMAT,
            graph: "g".to_owned(),
            n_runs: 3,
            run_ns: 1e6,
            overhead_ns: 2e3,
            nodes: vec![NodeTimes {
                node: "n".to_owned(),
                device: "d".to_owned(),
                executions: 0.5,
                ns: 10.0,
                spread_ns: 1.0,
                samples: 2,
                start_ns: 0.0,
            }],
            transfers: Vec::new(),
        };
        let json = profile.to_json();
        assert_eq!(RunProfile::from_json(&json).unwrap(), profile);
        let text = String::from_utf8(json).unwrap();
        for (from, to, problem) in [
            ("\"ns\":10.0", "\"ns\":-1.0", "`n`"),
            ("\"format\":2", "\"format\":9", "format 9"),
            ("\"n_runs\":3", "\"n_runs\":-3", "not a profile"),
            ("\"graph\":\"g\"", "\"grave\":\"g\"", "not a profile"),
        ] {
            let text = text.replace(from, to);
            let error = RunProfile::from_json(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
    }
}
