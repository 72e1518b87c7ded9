//! What listening costs a run: the tables of `bench dispatch` about the recorder and about a
//! subscriber.
//!
//! The graph does real work, matmuls of small matrices that take some us each. Runs without a
//! listener, with a recorder, and with a subscriber that counts all spans follow each other in
//! turn, so that all meet the same state of the machine.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use anyhow::Result;
use serde::Serialize;
use tracing::Dispatch;
use tracing::Event;
use tracing::Metadata;
use tracing::Subscriber;
use tracing::dispatcher;
use tracing::span;

use crate::builder::GraphBuilder;
use crate::cli::output::Output;
use crate::cli::table::Table;
use crate::cli::timing::median;
use crate::cli::timing::nanoseconds_f64;
use crate::cli::timing::timed;
use crate::execute::RunOptions;
use crate::graph::Graph;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::trace::EventKind;
use crate::trace::Recorder;
use crate::trace::targets;

/// Nodes of a layer.
const WIDTH: usize = 100;

/// Rows and columns of the matrices: a power of two, so that matmuls of matrices of `1 / SIDE` are
/// exact.
const SIDE: usize = 64;

/// Each element of the feed, and so of the result of each matmul.
#[expect(clippy::cast_precision_loss, reason = "small")]
const ELEMENT: f32 = 1.0 / SIDE as f32;

/// Runs before the measured ones: more than it takes to decide how many threads work on one run.
const N_WARMUP: u32 = 20;

/// What listening costs runs of one graph on a number of threads.
#[derive(Debug, Serialize)]
pub(super) struct TracingRow {
    case: &'static str,
    nodes: u32,
    threads: usize,
    /// Without a listener.
    ns_per_node: f64,
    /// The median of the runs with a recorder, by that without a listener.
    recorder_ratio: f64,
    /// The same with a subscriber that counts spans.
    subscriber_ratio: f64,
    /// Kernels of one run, as the recorder and the subscriber counted them.
    kernels: u64,
}

/// Measures `repetitions` runs per listener. `session`: opens a session on a graph.
pub(super) fn measure(
    n_nodes: u32,
    threads: usize,
    repetitions: u32,
    session: impl FnOnce(Graph) -> Result<Session>,
) -> Result<TracingRow> {
    let session = session(graph(n_nodes)?)?;
    let n_kernels = u64::from(n_nodes) + 1; // `done` is one, too.
    let counter = Counter::default();
    let timed_run = |recorder: &Recorder| {
        let options = RunOptions::default().with_recorder(recorder.clone());
        let (fetched, time) = timed(|| run(&session, &options));
        check(&fetched?).map(|()| time)
    };
    let (mut alone, mut recorded, mut subscribed) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 0..N_WARMUP + repetitions {
        let recorder = Recorder::on();
        let times = [
            timed_run(&Recorder::off())?,
            timed_run(&recorder)?,
            // A new subscriber each time: while the only live subscriber is another thread's,
            // `tracing` caches for new call sites that nobody listens to them.
            dispatcher::with_default(&Dispatch::new(counter.clone()), || {
                timed_run(&Recorder::off())
            })?,
        ];
        let (n_recorded, n_spans) = (recorded_kernels(&recorder), counter.take());
        anyhow::ensure!(
            (n_recorded, n_spans) == (n_kernels, n_kernels),
            "the recorder counted {n_recorded} kernels and the subscriber {n_spans}; expected {n_kernels}"
        );
        if repetition >= N_WARMUP {
            alone.push(times[0]);
            recorded.push(times[1]);
            subscribed.push(times[2]);
        }
    }
    let alone = nanoseconds_f64(median(&mut alone));
    Ok(TracingRow {
        case: "matmul",
        nodes: n_nodes,
        threads,
        ns_per_node: alone / f64::from(n_nodes),
        recorder_ratio: nanoseconds_f64(median(&mut recorded)) / alone,
        subscriber_ratio: nanoseconds_f64(median(&mut subscribed)) / alone,
        kernels: n_kernels,
    })
}

/// Shows the rows.
pub(super) fn show(rows: &[TracingRow], output: &mut Output) -> Result<()> {
    let columns = [
        "case",
        "nodes",
        "threads",
        "us/node",
        "recorder",
        "subscriber",
    ];
    let mut table = Table::new(columns).with_numbers(&[1, 2, 3, 4, 5]);
    for row in rows {
        table.add_row([
            row.case.to_owned(),
            row.nodes.to_string(),
            row.threads.to_string(),
            format!("{:.2}", row.ns_per_node / 1_000.0),
            format!("{:.3}x", row.recorder_ratio),
            format!("{:.3}x", row.subscriber_ratio),
        ]);
    }
    output.table(&table)
}

fn run(session: &Session, options: &RunOptions) -> Result<Tensor> {
    let fed = Tensor::from_values([SIDE, SIDE], &[ELEMENT; SIDE * SIDE])?;
    let mut fetched = session.run_with(&[("x", fed)], &["last"], &["done"], options)?;
    Ok(fetched.remove(0))
}

fn check(matmul: &Tensor) -> Result<()> {
    let elements = matmul.as_slice::<f32>()?;
    let is_right = elements.iter().all(|&element| element == ELEMENT);
    anyhow::ensure!(is_right, "the result of a matmul is wrong");
    Ok(())
}

fn recorded_kernels(recorder: &Recorder) -> u64 {
    let events = recorder.events().into_iter();
    let kernels = events.filter(|event| matches!(event.kind, EventKind::Kernel { .. }));
    kernels.count() as u64
}

/// `x`, then layers of matmuls of two neighbours of the layer before; the last one is `last`.
/// `done` after all of the last layer.
fn graph(n_nodes: u32) -> Result<Graph> {
    let builder = GraphBuilder::new("matmul");
    let mut before = vec![builder.placeholder::<f32>("x", [SIDE, SIDE])?];
    let mut layer = Vec::new();
    for index in 0..n_nodes {
        let place = layer.len();
        let of_layer = |place: usize| before[place % before.len()];
        let name = if index + 1 == n_nodes {
            "last".to_owned()
        } else {
            format!("a{index}")
        };
        let matmul = builder.named(name);
        layer.push(matmul.matmul(of_layer(place), of_layer(place + 1))?);
        if layer.len() == WIDTH && index + 1 < n_nodes {
            before = std::mem::take(&mut layer);
        }
    }
    // Of a last layer that is not full, some of the one before have no reader.
    let unread = before.into_iter().chain(layer);
    builder.control_dependencies(unread).named("done").no_op()?;
    Ok(builder.finish())
}

/// Counts the spans of kernels, and wants all others, too.
#[derive(Debug, Clone, Default)]
struct Counter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    spans: AtomicU64,
    kernels: AtomicU64,
}

impl Counter {
    fn take(&self) -> u64 {
        self.0.kernels.swap(0, Ordering::Relaxed)
    }
}

impl Subscriber for Counter {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        if attributes.metadata().target() == targets::KERNEL {
            self.0.kernels.fetch_add(1, Ordering::Relaxed);
        }
        span::Id::from_u64(1 + self.0.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, _event: &Event<'_>) {}

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}
