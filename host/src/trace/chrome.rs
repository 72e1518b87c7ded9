//! Writes the trace event format of Chrome and Perfetto, as JSON.
//!
//! A process of the format is a device, the transfers, or the session (pipeline stages, policy
//! calls, runs). A thread of the format is a lane. A device has three lanes:
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

    /// Whether it may hold slices of the same kind: stages hold other stages, and a call of a
    /// device holds the calls that it makes. Kernels that overlap are never parts of each
    /// other.
    fn may_nest(&self) -> bool {
        let kind = &self.event.kind;
        self.is_wait || matches!(kind, EventKind::Stage { .. } | EventKind::Device { .. })
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
        EventKind::Kernel {
            run,
            node,
            device,
            queue_wait_ns,
            output_bytes,
        } => (
            names.node(*node).to_owned(),
            "kernel",
            json!({
                "run": run,
                "node": names.node(*node),
                "op": names.op(*node),
                "device": names.device(*device),
                "queue_wait_ns": queue_wait_ns,
                "output_bytes": output_bytes,
            }),
        ),
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
            destination,
            bytes,
        } => (
            format!("feed {feed}"),
            "feed",
            json!({"run": run, "destination": names.device(*destination), "bytes": bytes}),
        ),
        EventKind::Fetch {
            run,
            fetch,
            source,
            bytes,
        } => (
            format!("fetch {fetch}"),
            "fetch",
            json!({"run": run, "source": names.device(*source), "bytes": bytes}),
        ),
    }
}

fn payload_name(payload: Payload, names: &TraceNames) -> String {
    match payload {
        Payload::Tensor(tensor) if tensor.index() < names.graph.n_tensors() => {
            names.graph.tensor_name(tensor)
        }
        Payload::Tensor(tensor) => format!("tensor {}", tensor.0),
        Payload::Control(node) => format!("^{}", names.node(node)),
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
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::graph::{AttrSet, GraphAssembler, NodeId, NodeSpec, Output, TensorId, Work};
    use crate::tensor::{DType, PartialShape};
    use crate::trace::TransferWay;

    fn names() -> TraceNames {
        let mut assembler = GraphAssembler::new("test");
        let node = NodeSpec {
            name: "dense \"1\"",
            op: "MatMul",
            inputs: &[],
            requested_device: "",
            attrs: AttrSet::default(),
            outputs: &[Output {
                dtype: DType::F32,
                is_ref: false,
                shape: PartialShape::scalar(),
            }],
            stateful: false,
            work: Work::default(),
        };
        assembler.add_node(&node).unwrap();
        TraceNames {
            graph: Arc::new(assembler.finish()),
            devices: ["/device:CPU:0", "/device:CPU:1"].map(String::from).into(),
        }
    }

    fn kernel(device: u32, start_ns: u64, duration_ns: u64) -> Event {
        Event {
            kind: EventKind::Kernel {
                run: 1,
                node: NodeId(0),
                device: DeviceId(device),
                queue_wait_ns: 0,
                output_bytes: 4,
            },
            start_ns,
            duration_ns,
        }
    }

    /// A kernel after a wait.
    fn waited(device: u32, wait_ns: u64, start_ns: u64, duration_ns: u64) -> Event {
        let mut event = kernel(device, start_ns, duration_ns);
        if let EventKind::Kernel { queue_wait_ns, .. } = &mut event.kind {
            *queue_wait_ns = wait_ns;
        }
        event
    }

    fn stage(name: &'static str, start_ns: u64, duration_ns: u64) -> Event {
        Event {
            kind: EventKind::Stage { name: name.into() },
            start_ns,
            duration_ns,
        }
    }

    fn parse(events: Vec<Event>) -> Vec<Value> {
        let trace = Trace {
            events,
            names: names(),
        };
        let mut bytes = Vec::new();
        trace.write_chrome(&mut bytes).unwrap();
        let mut json: Value = serde_json::from_slice(&bytes).unwrap();
        match json["traceEvents"].take() {
            Value::Array(events) => events,
            other => panic!("traceEvents is {other}"),
        }
    }

    #[test]
    fn devices_have_processes_and_events_their_names_bytes_and_times() {
        let transfer = Event {
            kind: EventKind::Transfer {
                run: 1,
                payload: Payload::Tensor(TensorId(0)),
                edge: 3,
                source: DeviceId(0),
                destination: DeviceId(1),
                way: TransferWay::Direct,
                bytes: 4096,
                queue_wait_ns: 0,
                send_ns: 1_000,
                receive_wait_ns: 0,
            },
            start_ns: 2_500,
            duration_ns: 1_000,
        };
        let events = parse(vec![kernel(1, 1_500, 250), transfer]);
        let is_process = |event: &&Value| {
            event["name"] == "process_name" && event["args"]["name"] == "/device:CPU:1"
        };
        let process = &events.iter().find(is_process).unwrap()["pid"];
        let complete: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(&complete[0]["pid"], process);
        assert_eq!(complete[0]["name"], "dense \"1\"");
        assert_eq!(complete[0]["args"]["op"], "MatMul");
        assert_eq!(complete[0]["args"]["node"], "dense \"1\"");
        assert_eq!(complete[0]["args"]["queue_wait_ns"], 0);
        assert_eq!(
            (&complete[0]["ts"], &complete[0]["dur"]),
            (&json!(1.5), &json!(0.25))
        );
        assert_eq!(complete[1]["name"], "dense \"1\":0");
        assert_eq!(complete[1]["args"]["way"], "direct");
        assert_eq!(complete[1]["args"]["bytes"], 4096);
        assert_eq!(
            complete[1]["args"]["key"],
            "/device:CPU:0;0000000000000001;/device:CPU:1;edge_3_dense \"1\";0:0"
        );
    }

    /// Returns lane, category, start and duration of what is drawn, by start.
    fn drawn(events: &[Value]) -> Vec<(String, String, f64, f64)> {
        let lane_of = |event: &Value| {
            let names =
                |other: &&Value| other["name"] == "thread_name" && other["tid"] == event["tid"];
            let lane = events.iter().find(names).unwrap();
            assert_eq!(lane["pid"], event["pid"]);
            lane["args"]["name"].as_str().unwrap().to_owned()
        };
        let complete = events.iter().filter(|event| event["ph"] == "X");
        complete
            .map(|event| {
                let category = event["cat"].as_str().unwrap().to_owned();
                let number = |key: &str| event[key].as_f64().unwrap();
                (lane_of(event), category, number("ts"), number("dur"))
            })
            .collect()
    }

    #[test]
    fn waits_are_before_kernels_on_a_lane_of_their_own() {
        let events = parse(vec![waited(1, 1_000, 1_500, 250)]);
        let row = |lane: &str, category: &str, start, duration| {
            (lane.to_owned(), category.to_owned(), start, duration)
        };
        assert_eq!(
            drawn(&events),
            [
                row("queue waits", "queue-wait", 0.5, 1.0),
                row("kernels", "kernel", 1.5, 0.25)
            ]
        );
        let pids: Vec<&Value> = events
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| &event["pid"])
            .collect();
        assert_eq!(pids[0], pids[1], "both belong to the device");
    }

    #[test]
    fn a_transfer_waits_before_its_send_and_before_its_receive() {
        let kind = EventKind::Transfer {
            run: 1,
            payload: Payload::Tensor(TensorId(0)),
            edge: 0,
            source: DeviceId(0),
            destination: DeviceId(1),
            way: TransferWay::Staged,
            bytes: 4,
            queue_wait_ns: 2_000,
            send_ns: 1_000,
            receive_wait_ns: 4_000,
        };
        let events = parse(vec![Event {
            kind,
            start_ns: 3_000,
            duration_ns: 6_000,
        }]);
        let times: Vec<(String, f64, f64)> = drawn(&events)
            .into_iter()
            .map(|(_, category, start, duration)| (category, start, duration))
            .collect();
        assert_eq!(
            times,
            [
                ("queue-wait".to_owned(), 1.0, 2.0),
                ("transfer".to_owned(), 3.0, 6.0),
                ("queue-wait".to_owned(), 4.0, 4.0)
            ]
        );
        let threads: Vec<&Value> = events
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| &event["tid"])
            .collect();
        assert_ne!(threads[0], threads[1]);
        assert_eq!(
            threads[1], threads[2],
            "the second wait is part of the transfer"
        );
    }

    #[test]
    fn waits_that_do_not_nest_are_counted() {
        // All ready at 0; each starts when the one before has ended.
        let n_kernels = WAIT_DEPTH_MAX as u64 + 3;
        let mut kernels = vec![kernel(0, 0, 10)];
        kernels.extend((1..=n_kernels).map(|index| waited(0, index * 10, index * 10, 10)));
        let trace = Trace {
            events: kernels,
            names: names(),
        };
        let mut bytes = Vec::new();
        trace.write_chrome(&mut bytes).unwrap();
        let json: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["otherData"]["waits_not_shown"], 3);
        let events = json["traceEvents"].as_array().unwrap();
        let n_waits = drawn(events)
            .iter()
            .filter(|(_, category, ..)| category == "queue-wait")
            .count();
        assert_eq!(n_waits, WAIT_DEPTH_MAX);
        let lanes = lanes(events, "/device:CPU:0");
        assert_eq!(lanes, ["kernels", "queue waits"]);
        let counts: Vec<i64> = events
            .iter()
            .filter(|event| event["ph"] == "C")
            .map(|event| event["args"]["operations"].as_i64().unwrap())
            .collect();
        let expected: Vec<i64> = (0..=i64::try_from(n_kernels).unwrap()).rev().collect();
        assert_eq!(counts, expected, "one less whenever one starts");
    }

    /// Returns the names of a process's lanes, in their order.
    fn lanes(events: &[Value], process: &str) -> Vec<String> {
        let is_process =
            |event: &&Value| event["name"] == "process_name" && event["args"]["name"] == process;
        let process = &events.iter().find(is_process).unwrap()["pid"];
        let of_process = |name: &str| {
            let events = events.iter();
            let found =
                events.filter(move |event| event["name"] == name && event["pid"] == *process);
            found.collect::<Vec<_>>()
        };
        let orders = of_process("thread_sort_index");
        let mut lanes: Vec<(u64, String)> = of_process("thread_name")
            .iter()
            .map(|lane| {
                let order = orders.iter().find(|order| order["tid"] == lane["tid"]);
                let order = order.unwrap()["args"]["sort_index"].as_u64().unwrap();
                (order, lane["args"]["name"].as_str().unwrap().to_owned())
            })
            .collect();
        lanes.sort();
        lanes.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn a_device_has_three_lanes_and_a_call_that_fuses_nodes_is_one_slice() {
        let call = |call, start_ns, duration_ns, detail: &str| Event {
            kind: EventKind::Device {
                device: DeviceId(0),
                call,
                node: Some(NodeId(0)),
                detail: detail.into(),
            },
            start_ns,
            duration_ns,
        };
        let events = parse(vec![
            call("maybe_rewrite_graph", 0, 10, "first"),
            call("maybe_rewrite_graph", 0, 11, "second"),
            call("maybe_rewrite_graph", 0, 12, "third"),
            call("make_tensor", 20, 5, "constant"),
            waited(0, 2, 40, 5),
            // At the same time as the kernel.
            call("create_kernel", 41, 2, "MatMul"),
            call("step_allocator", 50, 1, "memory"),
            call("resource_manager.cleanup", 50, 2, "container"),
        ]);
        let expected = ["kernels", "queue waits", "device calls"];
        assert_eq!(lanes(&events, "/device:CPU:0"), expected);
        let named = |name: &str| {
            let slices = events.iter().filter(|event| event["ph"] == "X");
            slices
                .filter(|event| event["name"] == name)
                .collect::<Vec<_>>()
        };
        let fused = named("maybe_rewrite_graph: 3 nodes");
        assert_eq!(fused.len(), 1);
        let fused = fused[0];
        assert_eq!(fused["args"]["detail"], json!(["first", "second", "third"]));
        assert_eq!(fused["dur"], json!(0.012));
        let created = named("create_kernel: dense \"1\"");
        assert_eq!(created[0]["args"]["op"], "MatMul");
        assert_eq!(created[0]["args"]["detail"], "MatMul");
        // A kernel and its wait.
        assert_eq!(named("dense \"1\"").len(), 2);
    }

    #[test]
    fn kernels_that_overlap_are_on_numbered_lanes() {
        let kernels = vec![kernel(0, 0, 10), kernel(0, 5, 10), kernel(0, 8, 10)];
        let events = parse(kernels);
        let expected = ["kernels", "kernels 2", "kernels 3"];
        assert_eq!(lanes(&events, "/device:CPU:0"), expected);
    }

    #[test]
    fn kernels_that_overlap_go_to_different_threads_and_stages_nest_in_one() {
        let events = parse(vec![
            stage("place", 0, 100),
            stage("enumerate", 10, 20),
            kernel(0, 0, 10),
            kernel(0, 5, 3),
            kernel(0, 10, 10),
        ]);
        let threads: Vec<u64> = events
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| event["tid"].as_u64().unwrap())
            .collect();
        // Ordered by start: `place`, two kernels, `enumerate`, a kernel.
        assert_eq!(threads[0], threads[3]);
        assert_ne!(threads[1], threads[2]);
        assert_eq!(threads[1], threads[4]);
    }
}
