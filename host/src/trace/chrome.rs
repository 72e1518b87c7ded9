//! Chrome and Perfetto: the trace event format, as JSON.
//!
//! One process per device with its kernels, one for transfers, and one for the session: pipeline stages, policy calls,
//! runs. Complete events (`"ph": "X"`) of one thread must nest, so what overlaps otherwise (two kernels at one time on
//! one device) goes to a further thread of the same process.

use std::io::{self, Write};

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::event::{Event, EventKind};
use super::recorder::{Trace, TraceNames};
use crate::plan::Payload;

/// Process ids: the session, the transfers, then the devices.
const SESSION: usize = 1;
const TRANSFERS: usize = 2;
const FIRST_DEVICE: usize = 3;

impl Trace {
    /// Writes the events for `chrome://tracing` and <https://ui.perfetto.dev>. Times are in us, as the format has it.
    ///
    /// # Errors
    /// The writer's.
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
        let mut threads = Threads::default();
        for event in &self.events {
            let lane = Lane::of(&event.kind);
            let (thread, is_new) = threads.place(&lane, event);
            if is_new {
                let name = json!({"name": lane.label});
                put(&metadata("thread_name", lane.process, thread, name))?;
            }
            put(&complete(event, &lane, thread, &self.names))?;
        }
        writer.write_all(b"\n]}\n")
    }
}

/// Where events of a kind are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lane {
    process: usize,
    label: &'static str,
}

impl Lane {
    fn of(kind: &EventKind) -> Self {
        let (process, label) = match kind {
            EventKind::Stage { .. } => (SESSION, "stages"),
            EventKind::PolicyCall { .. } => (SESSION, "policy calls"),
            EventKind::Run { .. } => (SESSION, "runs"),
            EventKind::Kernel { device, .. } => (FIRST_DEVICE + device.index(), "kernels"),
            EventKind::Transfer { .. } => (TRANSFERS, "between devices"),
            EventKind::Feed { .. } => (TRANSFERS, "feeds"),
            EventKind::Fetch { .. } => (TRANSFERS, "fetches"),
        };
        Self { process, label }
    }
}

/// Which threads of each lane are taken until when.
#[derive(Debug, Default)]
struct Threads {
    /// Per lane its threads: number, and the ends of the events that are open, outermost first.
    by_lane: FxHashMap<Lane, Vec<(usize, Vec<u64>)>>,
    n_threads: usize,
}

impl Threads {
    /// The first thread of the lane on which the event nests, and whether it is new. Events come ordered by start.
    fn place(&mut self, lane: &Lane, event: &Event) -> (usize, bool) {
        // Stages hold other stages; two kernels that overlap are never parts of each other.
        let may_nest = matches!(event.kind, EventKind::Stage { .. });
        let threads = self.by_lane.entry(*lane).or_default();
        for (thread, open_ends) in threads.iter_mut() {
            while open_ends.last().is_some_and(|&end| end <= event.start_ns) {
                open_ends.pop();
            }
            let fits = open_ends
                .last()
                .is_none_or(|&end| may_nest && event.end_ns() <= end);
            if fits {
                open_ends.push(event.end_ns());
                return (*thread, false);
            }
        }
        self.n_threads += 1;
        threads.push((self.n_threads, vec![event.end_ns()]));
        (self.n_threads, true)
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

fn complete(event: &Event, lane: &Lane, thread: usize, names: &TraceNames) -> Value {
    let (name, category, args) = describe(&event.kind, names);
    let mut value = json!({
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": lane.process,
        "tid": thread,
        "ts": microseconds(event.start_ns),
        "dur": microseconds(event.duration_ns),
    });
    value["args"] = args;
    value
}

fn describe(kind: &EventKind, names: &TraceNames) -> (String, &'static str, Value) {
    match kind {
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
        EventKind::Run { run } => (format!("run {run}"), "run", json!({"run": run})),
        EventKind::Kernel {
            run,
            node,
            device,
            queue_wait_ns,
            output_bytes,
        } => (
            names.op(*node).to_owned(),
            "kernel",
            json!({
                "run": run,
                "node": names.node(*node),
                "device": names.device(*device),
                "queue_wait_ns": queue_wait_ns,
                "output_bytes": output_bytes,
            }),
        ),
        EventKind::Transfer {
            run,
            payload,
            source,
            destination,
            bytes,
        } => (
            payload_name(*payload, names),
            "transfer",
            json!({
                "run": run,
                "source": names.device(*source),
                "destination": names.device(*destination),
                "bytes": bytes,
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

/// The format's unit; a double holds the ns of a trace of months exactly enough.
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
    use crate::names::DeviceId;
    use crate::tensor::{DType, PartialShape};

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
            devices: ["CPU:0", "CPU:1"].map(String::from).into(),
        }
    }

    fn kernel(device: u32, start_ns: u64, duration_ns: u64) -> Event {
        Event {
            kind: EventKind::Kernel {
                run: 1,
                node: NodeId(0),
                device: DeviceId(device),
                queue_wait_ns: 5,
                output_bytes: 4,
            },
            start_ns,
            duration_ns,
        }
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
                source: DeviceId(0),
                destination: DeviceId(1),
                bytes: 4096,
            },
            start_ns: 2_500,
            duration_ns: 1_000,
        };
        let events = parse(vec![kernel(1, 1_500, 250), transfer]);
        let is_process =
            |event: &&Value| event["name"] == "process_name" && event["args"]["name"] == "CPU:1";
        let process = &events.iter().find(is_process).unwrap()["pid"];
        let complete: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(&complete[0]["pid"], process);
        assert_eq!(complete[0]["name"], "MatMul");
        assert_eq!(complete[0]["args"]["node"], "dense \"1\"");
        assert_eq!(complete[0]["args"]["queue_wait_ns"], 5);
        assert_eq!(
            (&complete[0]["ts"], &complete[0]["dur"]),
            (&json!(1.5), &json!(0.25))
        );
        assert_eq!(complete[1]["name"], "dense \"1\":0");
        assert_eq!(complete[1]["args"]["bytes"], 4096);
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
        assert_eq!(threads[0], threads[1]);
        assert_ne!(threads[2], threads[3]);
        assert_eq!(threads[2], threads[4]);
    }
}
