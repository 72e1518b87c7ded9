//! What an app's own recorder of metrics and subscriber of spans receive: exact numbers and names
//! for known sessions.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::Once;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::ThreadId;

use metrics::Counter;
use metrics::Gauge;
use metrics::Histogram;
use metrics::HistogramFn;
use metrics::Key;
use metrics::KeyName;
use metrics::SharedString;
use metrics::Unit;
use placewright::device::DeviceOptions;
use placewright::device::FactoryRegistry;
use placewright::execute::CancelToken;
use placewright::execute::RunOptions;
use placewright::policy::PolicyRequest;
use placewright::policy::PolicySource;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;
use placewright::trace::targets;
use tracing::Event;
use tracing::Metadata;
use tracing::Subscriber;
use tracing::field::Field;
use tracing::field::Visit;
use tracing::span;

use crate::strict_cpu::StrictCpuFactory;

/// Sums by name and labels, as `name{label=value}`.
#[derive(Debug, Default)]
struct Meter {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Values>>>,
    described: Mutex<BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl Meter {
    fn text(key: &Key) -> String {
        let labels: Vec<String> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        format!("{}{{{}}}", key.name(), labels.join(","))
    }

    /// Returns all counters that are not zero, without the common prefix.
    fn counted(&self) -> BTreeMap<String, u64> {
        let counters = self.counters.lock().unwrap();
        let read = counters.iter().map(|(key, count)| {
            let key = key.strip_prefix("placewright_").unwrap();
            (key.to_owned(), count.load(Ordering::Relaxed))
        });
        read.filter(|&(_, count)| count > 0).collect()
    }
}

impl metrics::Recorder for Meter {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(key.as_str().into());
    }
    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(key.as_str().into());
    }
    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(key.as_str().into());
    }
    fn register_counter(&self, key: &Key, _: &metrics::Metadata<'_>) -> Counter {
        let mut counters = self.counters.lock().unwrap();
        Counter::from_arc(Arc::clone(counters.entry(Self::text(key)).or_default()))
    }
    fn register_gauge(&self, key: &Key, _: &metrics::Metadata<'_>) -> Gauge {
        panic!("there are no gauges, and this is {key}")
    }
    fn register_histogram(&self, key: &Key, _: &metrics::Metadata<'_>) -> Histogram {
        let mut histograms = self.histograms.lock().unwrap();
        Histogram::from_arc(Arc::clone(histograms.entry(Self::text(key)).or_default()))
    }
}

/// One span or event, with the names of the spans around it.
#[derive(Debug, Clone, Default)]
struct Received {
    /// `outermost/../innermost`.
    path: String,
    target: String,
    level: String,
    fields: BTreeMap<String, String>,
}

impl Visit for Received {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields
            .insert(field.name().to_owned(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields
            .insert(field.name().to_owned(), value.to_owned());
    }
}

/// Keeps all spans and events that match.
#[derive(Clone)]
struct Listener {
    notes: Arc<Mutex<Notes>>,
    wants: fn(&Metadata<'_>) -> bool,
}

#[derive(Default)]
struct Notes {
    spans: Vec<Received>,
    events: Vec<Received>,
    open: HashMap<ThreadId, Vec<u64>>,
}

impl Notes {
    fn path(&self, parent: Option<&span::Id>, name: &str) -> String {
        let innermost = self.open.get(&thread::current().id());
        let current = innermost.and_then(|open| open.last().copied());
        match parent.map(span::Id::into_u64).or(current) {
            Some(id) => format!("{}/{name}", self.spans[id as usize - 1].path),
            None => name.to_owned(),
        }
    }
}

impl Listener {
    fn new(wants: fn(&Metadata<'_>) -> bool) -> Self {
        let notes = Arc::default();
        Self { notes, wants }
    }

    /// Listens while `work` runs.
    fn listen<T>(&self, work: impl FnOnce() -> T) -> T {
        // If there is only one subscriber, `tracing` asks the thread that first reaches an event
        // whether it is enabled, and caches the answer: another test's thread would answer for this
        // one. So there is always a second subscriber.
        static SILENT: Once = Once::new();
        SILENT.call_once(|| {
            tracing::subscriber::set_global_default(Self::new(|_| false))
                .expect("no other test sets the process's subscriber");
        });
        tracing::subscriber::with_default(self.clone(), work)
    }

    fn spans(&self) -> Vec<Received> {
        self.notes.lock().unwrap().spans.clone()
    }

    fn events(&self) -> Vec<Received> {
        self.notes.lock().unwrap().events.clone()
    }

    fn paths(&self) -> Vec<String> {
        self.spans().into_iter().map(|span| span.path).collect()
    }
}

fn received(metadata: &Metadata<'_>, path: String) -> Received {
    Received {
        path,
        target: metadata.target().to_owned(),
        level: metadata.level().to_string(),
        fields: BTreeMap::new(),
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("placewright") && (self.wants)(metadata)
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut notes = self.notes.lock().unwrap();
        let metadata = attributes.metadata();
        let mut span = received(metadata, notes.path(attributes.parent(), metadata.name()));
        attributes.record(&mut span);
        notes.spans.push(span);
        span::Id::from_u64(notes.spans.len() as u64)
    }
    fn record(&self, id: &span::Id, values: &span::Record<'_>) {
        let mut notes = self.notes.lock().unwrap();
        values.record(&mut notes.spans[id.into_u64() as usize - 1]);
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut notes = self.notes.lock().unwrap();
        let mut note = received(event.metadata(), notes.path(event.parent(), "event"));
        event.record(&mut note);
        notes.events.push(note);
    }
    fn enter(&self, id: &span::Id) {
        let mut notes = self.notes.lock().unwrap();
        let open = notes.open.entry(thread::current().id()).or_default();
        open.push(id.into_u64());
    }
    fn exit(&self, id: &span::Id) {
        let mut notes = self.notes.lock().unwrap();
        let open = notes.open.entry(thread::current().id()).or_default();
        assert_eq!(open.pop(), Some(id.into_u64()), "spans end inside out");
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A session of a model on CPU devices, on a single thread.
fn session(file: &str, n_cpus: u32) -> SessionBuilder {
    let mut factories = FactoryRegistry::empty();
    let cpu = Arc::new(StrictCpuFactory);
    factories.register("CPU", 60, cpu).unwrap();
    let mut options = DeviceOptions::default();
    options.device_count.insert("CPU".to_owned(), n_cpus);
    options.intra_op_parallelism_threads = 1;
    Session::builder()
        .with_graph_def_file(root().join("tests/models").join(file))
        .with_factories(factories)
        .with_device_options(options)
        .with_inter_op_parallelism_threads(1)
}

fn shipped(name: &str) -> PolicyRequest {
    PolicyRequest::new(ShippedPolicy::find(name).unwrap()).with_strict(true)
}

fn fixture(name: &str) -> PolicyRequest {
    let bytes = placewright_fixtures::wasm(name).to_vec();
    PolicyRequest::new(PolicySource::Bytes(name.to_owned(), bytes))
}

fn three() -> Tensor {
    Tensor::from_values([3], &[1f32, 2.0, 3.0]).unwrap()
}

#[test]
fn a_known_session_counts_its_runs_ops_bytes_and_calls() {
    let meter = Meter::default();
    metrics::with_local_recorder(&meter, || {
        // A session without a policy asks none on one device.
        let session = session("tiny_add.pb", 1)
            .with_policy(shipped("priority"))
            .build()
            .unwrap();
        for _ in 0..3 {
            let feeds = [("a", three()), ("b", three())];
            let fetched = session.run(&feeds, &["y:0"]).unwrap();
            assert_eq!(fetched[0].as_slice::<f32>().unwrap(), [2.0, 4.0, 6.0]);
        }
        let wrong = Tensor::from_values([3], &[1i32; 3]).unwrap();
        session
            .run(&[("a", wrong), ("b", three())], &["y:0"])
            .unwrap_err();
        let feeds = [("a", three()), ("b", three())];
        let token = CancelToken::new();
        token.cancel();
        let cancelled = RunOptions::default().with_cancel(token);
        session
            .run_with(&feeds, &["y:0"], &[], &cancelled)
            .unwrap_err();
        let late = RunOptions::default().with_timeout(std::time::Duration::ZERO);
        session.run_with(&feeds, &["y:0"], &[], &late).unwrap_err();
    });
    let expected = [
        ("bytes_total{kind=feed}", 3 * 2 * 12),
        ("bytes_total{kind=fetch}", 3 * 12),
        // The addition; feeds are not executed.
        ("ops_total{}", 3),
        ("plan_cache_hits_total{}", 5),
        ("plan_cache_misses_total{}", 1),
        ("policy_calls_total{call=load,outcome=ok}", 1),
        ("policy_calls_total{call=place,outcome=ok}", 1),
        ("runs_total{outcome=cancelled}", 1),
        ("runs_total{outcome=failed}", 1),
        ("runs_total{outcome=ok}", 3),
        ("runs_total{outcome=timed-out}", 1),
        ("variants_compiled_total{}", 1),
    ];
    let expected: BTreeMap<String, u64> = expected
        .into_iter()
        .map(|(key, count)| (key.to_owned(), count))
        .collect();
    assert_eq!(meter.counted(), expected);
    let histograms = meter.histograms.lock().unwrap();
    let seconds = histograms["placewright_run_seconds{}"].0.lock().unwrap();
    assert_eq!(seconds.len(), 6);
    assert!(seconds.iter().all(|&seconds| seconds > 0.0));
}

#[test]
fn transferred_bytes_are_those_of_the_trace() {
    let (meter, recorder) = (Meter::default(), Recorder::on());
    metrics::with_local_recorder(&meter, || {
        let session = session("lenet.pb", 2)
            .with_policy(shipped("round-robin"))
            .with_recorder(recorder.clone())
            .build()
            .unwrap();
        for _ in 0..2 {
            let image = Tensor::from_values([1, 28, 28, 1], &[0.5f32; 784]).unwrap();
            session.run(&[("x", image)], &["probs"]).unwrap();
        }
    });
    let events = recorder.events().into_iter();
    let moved = events.map(|event| match event.kind {
        EventKind::Transfer { bytes, .. } => bytes,
        _ => 0,
    });
    let moved: u64 = moved.sum();
    assert!(moved > 0, "round-robin uses both devices");
    assert_eq!(meter.counted()["bytes_total{kind=transfer}"], moved);
}

#[test]
fn transfers_have_the_keys_of_the_plan_in_the_trace() {
    let session = session("lenet.pb", 2)
        .with_policy(shipped("round-robin"))
        .with_recorder(Recorder::on())
        .build()
        .unwrap();
    let image = Tensor::from_values([1, 28, 28, 1], &[0.5f32; 784]).unwrap();
    session.run(&[("x", image)], &["probs"]).unwrap();
    let mut json = Vec::new();
    session.trace().write_chrome(&mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let recorded: BTreeSet<String> = events
        .iter()
        .filter(|event| event["cat"] == "transfer")
        .map(|event| event["args"]["key"].as_str().expect("a key").to_owned())
        .collect();

    let plan = session.plan(&["x"], &["probs"], &[]).unwrap();
    let (graph, devices) = (session.graph(), session.devices());
    let name = |id| &devices.get(id).unwrap().attributes().name;
    let planned: BTreeSet<String> = plan
        .transfers()
        .iter()
        .map(|transfer| {
            let (from, to) = (name(transfer.source), name(transfer.destination));
            let key = transfer
                .payload
                .key(&graph, transfer.edge, from, to)
                .unwrap();
            let producer = graph.node_name(transfer.payload.producer(&graph));
            assert_eq!(
                key.edge_name(),
                format!("edge_{}_{producer}", transfer.edge)
            );
            key.to_string()
        })
        .collect();
    assert_eq!(planned.len(), plan.transfers().len());
    // Constants are transferred before any run.
    assert!(!recorded.is_empty() && recorded.is_subset(&planned));
}

#[test]
fn misbehaving_policies_are_counted_by_kind() {
    let count = |name: &str| {
        let meter = Meter::default();
        metrics::with_local_recorder(&meter, || {
            let request = fixture(name);
            let built = session("tiny_add.pb", 1).with_policy(request).build();
            assert!(built.unwrap().report().policy().unwrap().is_fallback());
        });
        let counted = meter.counted().into_iter();
        counted
            .map(|(key, count)| format!("{key} {count}"))
            .collect::<Vec<_>>()
    };
    let place = |reason: &str| {
        [
            "policy_calls_total{call=load,outcome=ok} 1".to_owned(),
            "policy_calls_total{call=place,outcome=failed} 1".to_owned(),
            "policy_calls_total{call=place,outcome=ok} 1".to_owned(),
            format!("refusals_total{{reason={reason}}} 1"),
        ]
    };
    assert_eq!(count("traps"), place("trap"));
    assert_eq!(count("answers-unknown-device"), place("device"));
    assert_eq!(count("never-offers"), place("no-offer"));
    assert_eq!(
        count("old-contract"),
        [
            "policy_calls_total{call=load,outcome=failed} 1",
            "policy_calls_total{call=place,outcome=ok} 1",
            "refusals_total{reason=incompatible} 1",
        ]
    );
}

#[test]
fn user_errors_are_not_counted_as_refusals() {
    let meter = Meter::default();
    metrics::with_local_recorder(&meter, || {
        let request = shipped("heft").with_setting("no-such-key", "1");
        session("tiny_add.pb", 1)
            .with_policy(request)
            .build()
            .unwrap_err();
    });
    let counted: Vec<String> = meter.counted().into_keys().collect();
    assert_eq!(counted, ["policy_calls_total{call=load,outcome=failed}"]);
}

#[test]
fn every_metric_is_described_and_documented() {
    let meter = Meter::default();
    metrics::with_local_recorder(&meter, placewright::trace::describe_metrics);
    let described = meter.described.lock().unwrap();
    assert_eq!(described.len(), 9);
    let documentation = std::fs::read_to_string(root().join("host/src/trace/mod.rs")).unwrap();
    for name in &*described {
        assert!(documentation.contains(&format!("//! | `{name}`")), "{name}");
    }
}

#[test]
fn a_session_and_its_runs_are_spans() {
    let listener = Listener::new(|_| true);
    listener.listen(|| {
        let session = session("tiny_add.pb", 1)
            .with_policy(shipped("priority"))
            .build()
            .unwrap();
        for _ in 0..2 {
            let feeds = [("a", three()), ("b", three())];
            session.run(&feeds, &["y:0"]).unwrap();
        }
    });
    assert_eq!(
        listener.paths(),
        [
            "build",
            "build/import",
            "build/discover",
            "build/optimize",
            "build/enumerate",
            "build/place",
            "build/place/ask",
            "build/place/ask/load",
            "build/place/ask/call",
            "build/place/ask/check",
            "partition",
            "prepare",
            "run",
            "run/compile",
            "run/kernel",
            "run",
            "run/kernel",
        ]
    );
    let spans = listener.spans();
    let fields = |path: &str| &spans.iter().rfind(|span| span.path == path).unwrap().fields;
    assert_eq!(fields("build")["nodes"], "3");
    assert_eq!(fields("build")["devices"], "1");
    assert_eq!(fields("build/place/ask/call")["policy"], "priority");
    assert_eq!(fields("build/place/ask/call")["outcome"], "ok");
    let run = fields("run");
    assert_eq!(
        ["run", "feeds", "fetches", "outcome"].map(|key| run[key].as_str()),
        ["1", "2", "1", "ok"]
    );
    let kernel = fields("run/kernel");
    assert_eq!(
        ["node", "op", "output_bytes"].map(|key| kernel[key].as_str()),
        ["y", "AddV2", "12"]
    );
    assert!(kernel["device"].ends_with("/device:CPU:0"));
    assert!(kernel.contains_key("queue_wait_ns"));
    let targets: BTreeSet<&str> = spans.iter().map(|span| span.target.as_str()).collect();
    let expected = [
        targets::EXECUTE,
        targets::KERNEL,
        targets::POLICY,
        targets::SESSION,
    ];
    assert_eq!(targets, BTreeSet::from(expected));
    assert!(listener.events().is_empty(), "nothing went wrong");
}

/// Worker threads have no subscriber: spans go to that of the calling thread.
#[test]
fn kernels_on_worker_threads_are_spans_of_the_caller() {
    let listener = Listener::new(|_| true);
    let n_kernels = listener.listen(|| {
        let session = session("lenet.pb", 2)
            .with_policy(shipped("round-robin"))
            .with_inter_op_parallelism_threads(3)
            .build()
            .unwrap();
        let image = Tensor::from_values([1, 28, 28, 1], &[0.5f32; 784]).unwrap();
        session.run(&[("x", image)], &["probs"]).unwrap();
        let plan = session.plan(&["x"], &["probs"], &[]).unwrap();
        let is_executed = |node| session.graph().op(node) != "Const";
        plan.nodes().filter(|&(node, _)| is_executed(node)).count()
    });
    let paths = listener.paths();
    let n_received = paths.iter().filter(|path| *path == "run/kernel").count();
    assert_eq!(n_received, n_kernels);
    assert!(n_kernels > 5);
}

#[test]
fn kernels_are_silent_unless_their_target_is_enabled() {
    let listener = Listener::new(|metadata| metadata.target() != targets::KERNEL);
    listener.listen(|| {
        let session = session("tiny_add.pb", 1).build().unwrap();
        let feeds = [("a", three()), ("b", three())];
        session.run(&feeds, &["y:0"]).unwrap();
    });
    let paths = listener.paths();
    assert!(paths.iter().any(|path| path == "run"), "{paths:?}");
    assert!(
        !paths.iter().any(|path| path.ends_with("kernel")),
        "{paths:?}"
    );
}

#[test]
fn problems_are_warnings_in_their_span() {
    let listener = Listener::new(|_| true);
    listener.listen(|| {
        let session = session("tiny_add.pb", 1)
            .with_policy(fixture("traps"))
            .build()
            .unwrap();
        let wrong = Tensor::from_values([3], &[1i32; 3]).unwrap();
        session
            .run(&[("a", wrong), ("b", three())], &["y:0"])
            .unwrap_err();
        Session::builder().build().unwrap_err();
    });
    let events = listener.events();
    let shown: Vec<(&str, &str, &str)> = events
        .iter()
        .map(|event| {
            let message = event.fields["message"].as_str();
            (event.path.as_str(), event.level.as_str(), message)
        })
        .collect();
    assert_eq!(
        shown,
        [
            (
                "build/place/ask/call/event",
                "WARN",
                "a policy gave no usable answer"
            ),
            (
                "build/place/ask/event",
                "WARN",
                "the requested policy failed; another policy placed the graph"
            ),
            ("run/event", "WARN", "a run failed"),
            ("build/event", "WARN", "the session was not built"),
        ]
    );
    let refused = &events[0].fields;
    assert_eq!(
        ["policy", "call", "reason", "fault"].map(|key| refused[key].as_str()),
        ["traps", "place", "trap", "policy"]
    );
    assert!(refused["error"].contains("panicked"), "{refused:?}");
    assert_eq!(events[1].fields["answered_by"], "heft (native)");
    assert!(events[2].fields["error"].contains("int32"));
}

#[test]
fn a_stopped_policy_is_a_warning_and_counts_as_cut_off() {
    let (meter, listener) = (Meter::default(), Listener::new(|_| true));
    metrics::with_local_recorder(&meter, || {
        listener.listen(|| {
            let request = fixture("ends-after-offer").with_setting("how", "fail");
            session("tiny_add.pb", 1)
                .with_policy(request)
                .build()
                .unwrap();
        });
    });
    assert_eq!(
        meter.counted()["policy_calls_total{call=place,outcome=cut-off}"],
        1
    );
    let events = listener.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].fields["policy"], "ends-after-offer");
    assert!(events[0].fields["reason"].contains("no better plan"));
}

#[test]
fn each_disabled_factory_is_reported_once() {
    let listener = Listener::new(|metadata| metadata.target() == targets::DEVICE);
    listener.listen(|| {
        let factories = FactoryRegistry::empty();
        let mut factories = factories.with_enabled_types("CPU,SYCL");
        for device_type in ["CPU", "GPU", "SYCL"] {
            let factory = Arc::new(StrictCpuFactory);
            factories.register(device_type, 60, factory).unwrap();
        }
        let absent = Arc::new(StrictCpuFactory);
        factories.register_placeholder("TPU", 50, absent).unwrap();
        let _ = factories.with_enabled_types("CPU");
    });
    let reported: Vec<_> = listener
        .events()
        .into_iter()
        .map(|event| (event.level, event.fields["device_type"].clone()))
        .collect();
    let info = |name: &str| ("INFO".to_owned(), name.to_owned());
    assert_eq!(reported, [info("GPU"), info("SYCL")]);
}
