//! Writes the trace event format of Chrome and Perfetto, as JSON.
//!
//! A process of the format is a device, the transfers, or the session (pipeline stages, policy
//! calls, runs, loops with their iterations). A thread of the format is a lane. A device has three
//! lanes:
//!
//! | lane | slices |
//! |---|---|
//! | `kernels` | executions of nodes |
//! | `queue waits` | the time for which an operation could have started and did not |
//! | `device calls` | everything else: constants, kernels created, fused nodes, end of runs |
//!
//! Slices are named by their node, with the op as an argument. Complete events (`"ph": "X"`) of one
//! thread must nest. Kernels that execute at one time on one device therefore need further lanes:
//! `kernels 2`, `kernels 3`.
//!
//! A wait is not part of its operation's slice, so that the lane of kernels shows computing alone.
//! Hundreds of operations may wait at one time: their lane shows as many as nest in each other, up
//! to [`WAIT_DEPTH_MAX`]. The counter `waiting` counts all of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::io::{self, Write};

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::event::{Event, EventKind};
use super::recorder::{Trace, TraceNames};
use crate::graph::TensorId;
use crate::names::DeviceId;
use crate::plan::Payload;

/// Process ids: the session, the transfers, then the devices.
const SESSION: usize = 1;
const TRANSFERS: usize = 2;
const FIRST_DEVICE: usize = 3;

/// Waits that one lane shows within each other; the others are only counted.
const WAIT_DEPTH_MAX: usize = 8;

impl Trace {
    /// Writes the events for `chrome://tracing` and <https://ui.perfetto.dev>. Times are in us, as the
    /// format requires.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_chrome(&self, mut writer: impl Write) -> io::Result<()> {
        writer.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        let mut separator = "\n";
        let mut put = |value: &Value| -> io::Result<()> {
            writer.write_all(separator.as_bytes())?;
            separator = ",\n";
            serde_json::to_writer(&mut writer, value)?;
            Ok(())
        };
        for (process, name) in processes(&self.names) {
            put(&metadata("process_name", process, 0, json!({"name": name})))?;
            put(&metadata(
                "process_sort_index",
                process,
                0,
                json!({"sort_index": process}),
            ))?;
        }
        let mut threads = Threads::new();
        let mut n_waits_hidden = 0_u64;
        for slice in self.slices() {
            let lane = slice.lane();
            let Some(Place { thread, number }) = threads.place(&lane, &slice) else {
                n_waits_hidden += 1;
                continue;
            };
            if let Some(number) = number {
                let name = match number {
                    1 => lane.label.to_owned(),
                    number => format!("{} {number}", lane.label),
                };
                let name = json!({"name": name});
                put(&metadata("thread_name", lane.process, thread, name))?;
                let order = json!({"sort_index": 1000 * lane.order + number});
                put(&metadata("thread_sort_index", lane.process, thread, order))?;
            }
            put(&complete(&slice, &lane, thread, &self.names))?;
            // Between its send and its receive, a transfer waits within its own slice.
            if let Some(wait) = slice.receive_wait() {
                put(&complete(&wait, &lane, thread, &self.names))?;
            }
        }
        for (process, at_ns, n_waiting) in self.waiting() {
            put(&json!({
                "ph": "C",
                "name": "waiting",
                "pid": process,
                "ts": microseconds(at_ns),
                "args": {"operations": n_waiting},
            }))?;
        }
        write!(
            writer,
            "\n],\"otherData\":{{\"waits_not_shown\":{n_waits_hidden}}}}}\n"
        )
    }

    /// Returns what is drawn: events and the waits before them, ordered by start; of those that
    /// start together, the longer first.
    fn slices(&self) -> Vec<Slice<'_>> {
        let mut slices: Vec<Slice<'_>> = Vec::with_capacity(self.events.len());
        // A device reports the nodes that it fuses in one call by an event each, all of which start
        // with the call.
        let mut calls: FxHashMap<(DeviceId, &str, u64), usize> = FxHashMap::default();
        for event in &self.events {
            slices.extend(Slice::wait_before(event));
            if let EventKind::Device { device, call, .. } = event.kind {
                match calls.entry((device, call, event.start_ns)) {
                    Entry::Occupied(at) => {
                        let slice = &mut slices[*at.get()];
                        slice.duration_ns = slice.duration_ns.max(event.duration_ns);
                        slice.alike.push(event);
                        continue;
                    }
                    Entry::Vacant(at) => {
                        at.insert(slices.len());
                    }
                }
            }
            slices.push(Slice {
                event,
                alike: Vec::new(),
                is_wait: false,
                start_ns: event.start_ns,
                duration_ns: event.duration_ns,
            });
        }
        slices.sort_by_key(|slice| (slice.start_ns, Reverse(slice.duration_ns)));
        slices
    }

    /// Returns how many operations wait, by process, whenever the number changes: process, time in
    /// ns, number.
    fn waiting(&self) -> Vec<(usize, u64, i64)> {
        let mut changes: BTreeMap<(usize, u64), i64> = BTreeMap::new();
        for wait in self.events.iter().filter_map(Slice::wait_before) {
            let process = wait.lane().process;
            *changes.entry((process, wait.start_ns)).or_default() += 1;
            *changes.entry((process, wait.end_ns())).or_default() -= 1;
        }
        let (mut current, mut n_waiting) = (0, 0);
        let counts = changes.into_iter().filter(|&(_, change)| change != 0);
        counts
            .map(|((process, at_ns), change)| {
                if process != current {
                    (current, n_waiting) = (process, 0);
                }
                n_waiting += change;
                (process, at_ns, n_waiting)
            })
            .collect()
    }
}

/// An event, or the wait of its operation.
#[derive(Debug, Clone)]
struct Slice<'a> {
    event: &'a Event,
    /// Other events of the same call of a device.
    alike: Vec<&'a Event>,
    /// Whether it is the wait of the event's operation, not the event.
    is_wait: bool,
    start_ns: u64,
    duration_ns: u64,
}

impl<'a> Slice<'a> {
    /// The wait of the event's operation before it started.
    fn wait_before(event: &'a Event) -> Option<Self> {
        let duration_ns = match event.kind {
            EventKind::Kernel { queue_wait_ns, .. } | EventKind::Transfer { queue_wait_ns, .. } => {
                queue_wait_ns.min(event.start_ns)
            }
            _ => 0,
        };
        (duration_ns > 0).then(|| Self {
            event,
            alike: Vec::new(),
            is_wait: true,
            start_ns: event.start_ns - duration_ns,
            duration_ns,
        })
    }

    /// The wait of a transfer between its send and its receive.
    fn receive_wait(&self) -> Option<Self> {
        match self.event.kind {
            EventKind::Transfer {
                send_ns,
                receive_wait_ns,
                ..
            } if !self.is_wait && receive_wait_ns > 0 => Some(Self {
                event: self.event,
                alike: Vec::new(),
                is_wait: true,
                start_ns: self.start_ns + send_ns,
                duration_ns: receive_wait_ns,
            }),
            _ => None,
        }
    }

    fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }

    fn lane(&self) -> Lane {
        let mut lane = Lane::of(&self.event.kind);
        if self.is_wait {
            (lane.label, lane.order) = ("queue waits", 2);
        }
        lane
    }

    /// Whether it may hold slices of the same kind: stages hold other stages, loops hold their
    /// iterations, and a call of a device holds the calls that it makes. Kernels that overlap are
    /// never parts of each other.
    fn may_nest(&self) -> bool {
        let kind = &self.event.kind;
        let nests = matches!(
            kind,
            EventKind::Stage { .. } | EventKind::Device { .. } | EventKind::Loop { .. }
        );
        self.is_wait || nests
    }
}

/// Where events of a kind are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lane {
    process: usize,
    label: &'static str,
    /// Place among the lanes of its process.
    order: usize,
}

impl Lane {
    fn of(kind: &EventKind) -> Self {
        let (process, label, order) = match kind {
            EventKind::Stage { .. } => (SESSION, "stages", 1),
            EventKind::PolicyCall { .. } => (SESSION, "policy calls", 2),
            EventKind::Run { .. } => (SESSION, "runs", 3),
            EventKind::Loop { .. } => (SESSION, "loops", 4),
            EventKind::Device { device, .. } => (FIRST_DEVICE + device.index(), "device calls", 3),
            EventKind::Kernel { device, .. } => (FIRST_DEVICE + device.index(), "kernels", 1),
            EventKind::Transfer { .. } => (TRANSFERS, "between devices", 1),
            EventKind::Feed { .. } => (TRANSFERS, "feeds", 3),
            EventKind::Fetch { .. } => (TRANSFERS, "fetches", 4),
        };
        Self {
            process,
            label,
            order,
        }
    }
}

/// The threads of each lane, and until when they are in use.
#[derive(Debug)]
struct Threads {
    /// Per lane its threads: id, and the ends of the slices that are open, outermost first.
    by_lane: FxHashMap<Lane, Vec<(usize, Vec<u64>)>>,
    n_threads: usize,
}

/// The thread of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    thread: usize,
    /// The number of the thread in its lane, from 1, if the thread is new.
    number: Option<usize>,
}

impl Threads {
    fn new() -> Self {
        Self {
            by_lane: FxHashMap::default(),
            n_threads: 0,
        }
    }

    /// Returns the first thread of the lane on which the slice nests. Slices come ordered by start.
    /// `None` for a wait that does not nest in those that its lane shows.
    fn place(&mut self, lane: &Lane, slice: &Slice<'_>) -> Option<Place> {
        let depth_max = match slice.may_nest() {
            true if slice.is_wait => WAIT_DEPTH_MAX,
            true => usize::MAX,
            false => 1,
        };
        let threads = self.by_lane.entry(*lane).or_default();
        for (thread, open_ends) in threads.iter_mut() {
            while open_ends.last().is_some_and(|&end| end <= slice.start_ns) {
                open_ends.pop();
            }
            let ends_within = open_ends.last().is_none_or(|&end| slice.end_ns() <= end);
            if ends_within && open_ends.len() < depth_max {
                open_ends.push(slice.end_ns());
                return Some(Place {
                    thread: *thread,
                    number: None,
                });
            }
        }
        if slice.is_wait && !threads.is_empty() {
            return None;
        }
        self.n_threads += 1;
        threads.push((self.n_threads, vec![slice.end_ns()]));
        Some(Place {
            thread: self.n_threads,
            number: Some(threads.len()),
        })
    }
}

fn processes(names: &TraceNames) -> impl Iterator<Item = (usize, &str)> {
    let devices = (FIRST_DEVICE..).zip(names.devices.iter().map(String::as_str));
    [(SESSION, "session"), (TRANSFERS, "transfers")]
        .into_iter()
        .chain(devices)
}

fn metadata(name: &str, process: usize, thread: usize, args: Value) -> Value {
    let mut value = json!({"ph": "M", "name": name, "pid": process, "tid": thread});
    value["args"] = args;
    value
}

fn complete(slice: &Slice<'_>, lane: &Lane, thread: usize, names: &TraceNames) -> Value {
    let (name, category, args) = describe(slice, names);
    let category = if slice.is_wait {
        "queue-wait"
    } else {
        category
    };
    let mut value = json!({
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": lane.process,
        "tid": thread,
        "ts": microseconds(slice.start_ns),
        "dur": microseconds(slice.duration_ns),
    });
    value["args"] = args;
    value
}

fn describe(slice: &Slice<'_>, names: &TraceNames) -> (String, &'static str, Value) {
    match &slice.event.kind {
        EventKind::Stage { name } => (name.to_string(), "stage", json!({})),
        EventKind::PolicyCall {
            policy,
            call,
            outcome,
        } => (
            format!("{policy}: {call}"),
            "policy",
            json!({"policy": policy, "call": call, "outcome": outcome}),
        ),
        EventKind::Device {
            device,
            call,
            node,
            detail,
        } => {
            let mut args = json!({"call": call, "device": names.device(*device)});
            let details = slice.alike.iter().filter_map(|event| match &event.kind {
                EventKind::Device { detail, .. } => Some(detail),
                _ => None,
            });
            let details: Vec<_> = std::iter::once(detail).chain(details).collect();
            let name = match (node, slice.alike.len()) {
                (Some(node), 0) => {
                    args["node"] = names.node(*node).into();
                    args["op"] = names.op(*node).into();
                    format!("{call}: {}", names.node(*node))
                }
                (None, 0) => (*call).to_owned(),
                (_, n_others) => format!("{call}: {} nodes", n_others + 1),
            };
            args["detail"] = match details[..] {
                [detail] => detail.as_ref().into(),
                _ => json!(details),
            };
            (name, "device", args)
        }
        EventKind::Run { run } => (format!("run {run}"), "run", json!({"run": run})),
        EventKind::Loop {
            run,
            body,
            iteration,
        } => {
            let of_graph = names.graph.bodies().ok();
            let of_graph = of_graph.and_then(|bodies| bodies.all().get(body.index()));
            let name = of_graph.map_or("", |body| &body.name);
            let mut args = json!({"run": run, "loop": name});
            let shown = match iteration {
                Some(iteration) => {
                    args["iteration"] = (*iteration).into();
                    format!("{name}: iteration {iteration}")
                }
                None => name.to_owned(),
            };
            (shown, "loop", args)
        }
        EventKind::Kernel {
            run,
            node,
            fused,
            device,
            queue_wait_ns,
            output_bytes,
        } => {
            let mut args = json!({
                "run": run,
                "node": names.node(*node),
                "op": names.op(*node),
                "device": names.device(*device),
                "queue_wait_ns": queue_wait_ns,
                "output_bytes": output_bytes,
            });
            if let Some(fused) = fused {
                let nodes = fused.nodes.iter().map(|&node| names.node(node));
                args["kernel"] = fused.op.as_str().into();
                args["computes"] = nodes.collect::<Vec<_>>().into();
            }
            (names.node(*node).to_owned(), "kernel", args)
        }
        EventKind::Transfer {
            run,
            payload,
            edge,
            source,
            destination,
            way,
            bytes,
            queue_wait_ns,
            send_ns,
            receive_wait_ns,
        } => (
            payload_name(*payload, names),
            "transfer",
            json!({
                "run": run,
                "key": key(*payload, *edge, *source, *destination, names),
                "source": names.device(*source),
                "destination": names.device(*destination),
                "way": way.as_str(),
                "bytes": bytes,
                "queue_wait_ns": queue_wait_ns,
                "send_ns": send_ns,
                "receive_wait_ns": receive_wait_ns,
            }),
        ),
        EventKind::Feed {
            run,
            feed,
            tensor,
            destination,
            bytes,
        } => (
            tensor_name(*tensor, names),
            "feed",
            json!({"run": run, "feed": feed, "destination": names.device(*destination), "bytes": bytes}),
        ),
        EventKind::Fetch {
            run,
            fetch,
            tensor,
            source,
            bytes,
        } => (
            tensor_name(*tensor, names),
            "fetch",
            json!({"run": run, "fetch": fetch, "source": names.device(*source), "bytes": bytes}),
        ),
    }
}

fn payload_name(payload: Payload, names: &TraceNames) -> String {
    match payload {
        Payload::Tensor(tensor) => tensor_name(tensor, names),
        Payload::Control(node) => format!("^{}", names.node(node)),
    }
}

fn tensor_name(tensor: TensorId, names: &TraceNames) -> String {
    match tensor.index() < names.graph.n_tensors() {
        true => names.graph.tensor_name(tensor),
        false => format!("tensor {}", tensor.0),
    }
}

/// Returns the rendezvous key of a transfer. `None` for ids that the graph does not have, and for
/// names that a key cannot hold.
fn key(
    payload: Payload,
    edge: u32,
    source: DeviceId,
    destination: DeviceId,
    names: &TraceNames,
) -> Option<String> {
    let is_known = match payload {
        Payload::Tensor(tensor) => tensor.index() < names.graph.n_tensors(),
        Payload::Control(node) => node.index() < names.graph.n_nodes(),
    };
    let (source, destination) = (names.device(source), names.device(destination));
    let key = is_known.then(|| payload.key(&names.graph, edge, source, destination));
    key.and_then(Result::ok).map(|key| key.to_string())
}

/// The format's unit; an f64 is exact enough for the ns of months.
#[expect(
    clippy::cast_precision_loss,
    reason = "2^53 ns are 104 days, and thousandths of us are what is shown"
)]
fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1_000.0
}

#[cfg(test)]
mod tests;
