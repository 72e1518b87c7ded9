//! Session options about devices and threads, from a user's view. Compiles and passes without
//! default features.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::thread;
use std::thread::ThreadId;
use std::time::Duration;

use placewright::Error;
use placewright::backend::default_factories;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::PlacementOptions;
use placewright::candidates::Proposal;
use placewright::device::DeviceOptions;
use placewright::device::DeviceSet;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::device::StatusCode;
use placewright::execute::InterOpPool;
use placewright::execute::RunOptions;
use placewright::graph::AttrSet;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::names::DeviceName;
use placewright::ops::OpRegistry;
use placewright::placement::SavedPlacement;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::registry::Registry;
#[cfg(feature = "graphdef")]
use placewright::saved_model::SavedModelOptions;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;
use placewright::trace::targets;
use tracing::Event;
use tracing::Level;
use tracing::Metadata;
use tracing::Subscriber;
use tracing::field::Field;
use tracing::field::Visit;
use tracing::span;

use crate::fakes::FakeDevice;
use crate::fakes::FakeFactory;

/// `a` and `b` both read only `x`; `b` requests a device.
fn graph(op: &str, request: &str) -> Graph {
    let mut assembler = GraphAssembler::new("two at a time");
    let output = Output {
        dtype: DType::F32,
        is_ref: false,
        shape: PartialShape::new(&[Some(1)]),
    };
    let mut add = |name: &str, op: &str, inputs: &[Input], requested_device: &str| {
        let spec = NodeSpec {
            name,
            op,
            inputs,
            requested_device,
            attrs: AttrSet::default(),
            outputs: std::slice::from_ref(&output),
            stateful: false,
            work: Work::default(),
        };
        assembler.add_node(&spec).unwrap()
    };
    let x = add("x", "Source", &[], "");
    let x = [Input::Data { node: x, slot: 0 }];
    add("a", op, &x, "");
    add("b", op, &x, request);
    assembler.finish()
}

fn run(session: &Session, options: &RunOptions) -> Result<(), Box<Error>> {
    let x = Tensor::from_values([1], &[0f32]).unwrap();
    session.run_with(&[("x", x)], &["a", "b"], &[], options)?;
    Ok(())
}

/// Records which threads execute kernels. `Meet` waits until two threads execute kernels at the
/// same time; `Pass` does not.
#[derive(Clone, Default)]
struct Watch(Arc<Watched>);

#[derive(Default)]
struct Watched {
    state: Mutex<State>,
    met: Condvar,
}

#[derive(Default)]
struct State {
    n_arrived: usize,
    threads: BTreeSet<String>,
}

struct Note {
    watch: Watch,
    meets: bool,
}

impl Kernel for Note {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let watched = &self.watch.0;
        let mut state = watched.state.lock().unwrap();
        state.threads.insert(thread_text(thread::current().id()));
        if self.meets {
            state.n_arrived += 1;
            let n_met = state.n_arrived.next_multiple_of(2);
            watched.met.notify_all();
            let limit = Duration::from_secs(60);
            let wait = |state: &mut State| state.n_arrived < n_met;
            let (_state, waited) = watched.met.wait_timeout_while(state, limit, wait).unwrap();
            if waited.timed_out() {
                return Err(KernelError::invalid("nobody else came"));
            }
        } else {
            drop(state);
        }
        context.fill_output(0, context.input(0)?.shape(), |output: &mut [f32]| {
            output.fill(0.0);
            Ok(())
        })
    }
}

fn thread_text(id: ThreadId) -> String {
    format!("{id:?}")
}

impl Watch {
    /// A session whose kernels this watches.
    fn session(&self, op: &str) -> SessionBuilder {
        let kernel = |op: &str, meets: bool| {
            let watch = self.clone();
            KernelDef::new(op, "CPU").with_factory(move |_| {
                Ok(Box::new(Note {
                    watch: watch.clone(),
                    meets,
                }))
            })
        };
        Session::builder()
            .with_graph(graph(op, ""))
            .with_device_count("SYCL", 0)
            .with_kernels([kernel("Meet", true), kernel("Pass", false)])
    }

    /// The threads that executed kernels since the last call, other than this one.
    fn take_helpers(&self) -> BTreeSet<String> {
        let mut threads = std::mem::take(&mut self.0.state.lock().unwrap().threads);
        threads.remove(&thread_text(thread::current().id()));
        threads
    }
}

#[test]
fn sessions_share_the_threads_of_a_common_pool() {
    let pool = InterOpPool::new(2).unwrap();
    let watch = Watch::default();
    let session = || {
        let session = watch.session("Meet").with_inter_op_pool(pool.clone());
        session.build().unwrap()
    };
    let sessions = [session(), session()];
    let helpers = sessions.each_ref().map(|session| {
        run(session, &RunOptions::default()).unwrap();
        watch.take_helpers()
    });
    assert_eq!(helpers[0].len(), 1);
    assert_eq!(helpers[0], helpers[1]);
    // The pool lives as long as anyone uses it.
    let [first, second] = sessions;
    drop(first);
    drop(pool);
    run(&second, &RunOptions::default()).unwrap();
    assert_eq!(watch.take_helpers(), helpers[0]);
}

#[test]
fn a_session_uses_its_own_threads_a_given_pool_or_its_own_pools() {
    let pool = InterOpPool::new(2).unwrap();
    let watch = Watch::default();
    let helpers = |session: SessionBuilder| {
        let session = session.build().unwrap();
        run(&session, &RunOptions::default()).unwrap();
        (watch.take_helpers(), session)
    };
    let own = || watch.session("Meet").with_inter_op_parallelism_threads(2);
    let shared = || watch.session("Meet").with_inter_op_pool(pool.clone());
    // All sessions stay alive, so that no thread id is reused.
    let (first, _stay) = helpers(own());
    let (second, _stay) = helpers(own());
    assert!(first.is_disjoint(&second), "{first:?} {second:?}");
    let (given, _stay) = helpers(shared());
    let per_session = shared()
        .with_inter_op_parallelism_threads(2)
        .with_per_session_threads(true);
    let (wanted, _stay) = helpers(per_session);
    assert!(given.is_disjoint(&wanted), "{given:?} {wanted:?}");
    let (given_again, _stay) = helpers(shared().with_per_session_threads(false));
    assert_eq!(given, given_again);
}

#[test]
fn concurrent_callers_of_sessions_with_one_pool_all_finish() {
    let pool = InterOpPool::new(3).unwrap();
    let watch = Watch::default();
    let sessions: Vec<Session> = (0..3)
        .map(|_| {
            let session = watch.session("Pass").with_inter_op_pool(pool.clone());
            session.build().unwrap()
        })
        .collect();
    thread::scope(|scope| {
        for session in &sessions {
            scope.spawn(move || {
                for _ in 0..50 {
                    run(session, &RunOptions::default()).unwrap();
                }
            });
        }
    });
}

#[test]
fn runs_choose_one_of_the_sessions_pools_or_none() {
    let watch = Watch::default();
    let pools = [InterOpPool::new(2), InterOpPool::new(2)].map(Result::unwrap);
    let session = |op: &str| {
        let session = watch.session(op).with_session_inter_op_pools(pools.clone());
        session.build().unwrap()
    };
    let meets = session("Meet");
    let helpers = |pool| {
        run(
            &meets,
            &RunOptions::default().with_inter_op_thread_pool(pool),
        )
        .unwrap();
        watch.take_helpers()
    };
    let (first, second) = (helpers(0), helpers(1));
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first, second);
    assert_eq!(
        helpers(0),
        first,
        "what the other pool did is not remembered"
    );
    // Without helpers, the caller executes everything: always, not only if measurements suggest it.
    let passes = session("Pass");
    for _ in 0..8 {
        let alone = RunOptions::default().with_inter_op_thread_pool(-1);
        run(&passes, &alone).unwrap();
        assert!(watch.take_helpers().is_empty());
    }
}

#[test]
fn an_unknown_pool_is_rejected_by_its_number() {
    let refusal = |session: &Session, pool| {
        let options = RunOptions::default().with_inter_op_thread_pool(pool);
        let error = run(session, &options).unwrap_err();
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        error.to_string()
    };
    let watch = Watch::default();
    let plain = watch.session("Pass").build().unwrap();
    assert_eq!(
        refusal(&plain, 1),
        "invalid inter_op_thread_pool 1: expected 0, or -1 for the caller's thread alone"
    );
    let pools = [InterOpPool::new(1).unwrap(), InterOpPool::new(1).unwrap()];
    let two = watch.session("Pass").with_session_inter_op_pools(pools);
    let two = two.build().unwrap();
    assert!(refusal(&two, 2).starts_with("invalid inter_op_thread_pool 2: expected 0 to 1, or -1"));
    assert!(refusal(&two, -2).starts_with("invalid inter_op_thread_pool -2"));
    run(&two, &RunOptions::default().with_inter_op_thread_pool(1)).unwrap();
}

#[test]
fn device_options_may_be_given_one_by_one() {
    let watch = Watch::default();
    let n_devices = |session: SessionBuilder| {
        let session = session.build()?;
        Ok::<usize, Box<Error>>(session.devices().len())
    };
    let three = watch.session("Pass").with_device_count("CPU", 3);
    assert_eq!(n_devices(three).unwrap(), 3);
    let none = n_devices(watch.session("Pass").with_device_count("CPU", 0));
    assert_eq!(none.unwrap_err().code(), StatusCode::NotFound);

    let with_others = |filters: &[&str]| {
        let mut factories = default_factories();
        let others = FakeFactory::of("OTHER", 2);
        factories.register("OTHER", 100, Arc::new(others)).unwrap();
        let session = watch.session("Pass").with_factories(factories);
        n_devices(session.with_device_filters(filters.iter().copied()))
    };
    assert_eq!(with_others(&[]).unwrap(), 3);
    assert_eq!(with_others(&["/device:OTHER:*"]).unwrap(), 3);
    assert_eq!(with_others(&["/device:CPU:*"]).unwrap(), 1);
    assert_eq!(with_others(&["/job:localhost"]).unwrap(), 3);
    let error = with_others(&["no filter"]).unwrap_err();
    assert_eq!(error.code(), StatusCode::InvalidArgument);
    assert!(error.to_string().contains("no filter"), "{error}");

    let session = watch.session("Pass").with_intra_op_parallelism_threads(3);
    let session = session.build().unwrap();
    let devices = session.devices();
    let (_, device) = devices.iter().next().unwrap();
    let pool = device.as_kernel_device().unwrap().intra_op_pool().unwrap();
    assert_eq!(pool.n_threads(), 3);
}

#[test]
fn soft_placement_is_off_by_default() {
    let watch = Watch::default();
    let session = || {
        let elsewhere = graph("Pass", "/device:CPU:7");
        watch.session("Pass").with_graph(elsewhere)
    };
    let error = session().build().unwrap_err();
    assert_eq!(error.code(), StatusCode::InvalidArgument);
    assert!(error.to_string().contains("/device:CPU:7"), "{error}");
    assert!(session().with_soft_placement(false).build().is_err());
    let soft = session().with_soft_placement(true).build().unwrap();
    run(&soft, &RunOptions::default()).unwrap();
    // Candidates made by the app have already been softened, or not.
    let graph = Arc::new(graph("Pass", ""));
    let devices = soft.devices();
    let candidates = CandidatesBuilder::new(&graph, &devices).build().unwrap();
    let beside = Session::builder()
        .with_candidates(candidates)
        .with_soft_placement(true)
        .build();
    assert!(
        beside
            .unwrap_err()
            .to_string()
            .contains("with_soft_placement")
    );
}

/// Keeps messages of level INFO of the sessions' target.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            *self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == targets::SESSION && *metadata.level() <= Level::INFO
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut message = String::new();
        event.record(&mut Message(&mut message));
        self.0.lock().unwrap().push(message);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn logged(session: SessionBuilder) -> Vec<String> {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || session.build().unwrap());
    Arc::try_unwrap(log.0).unwrap().into_inner().unwrap()
}

#[test]
fn placement_is_logged_on_request() {
    let watch = Watch::default();
    assert!(logged(watch.session("Pass")).is_empty());
    let asked = watch.session("Pass").with_log_device_placement(true);
    let cpu = "/job:localhost/replica:0/task:0/device:CPU:0";
    assert_eq!(
        logged(asked),
        [
            "Device mapping: no known devices.".to_owned(),
            format!("x: (Source): {cpu}"),
            format!("a: (Pass): {cpu}"),
            format!("b: (Pass): {cpu}"),
        ]
    );
}

#[test]
fn devices_with_a_description_are_mapped() {
    let watch = Watch::default();
    let task = "/job:localhost/replica:0/task:0";
    let device = |index: u32, description: &str| {
        FakeDevice::new(&format!("{task}/device:CPU:{index}"), "CPU")
            .with_description(description)
            .shared()
    };
    let devices = [device(0, "a CPU"), device(1, ""), device(2, "another")];
    let devices = Arc::new(DeviceSet::new(devices));
    let session = watch.session("Pass").with_devices(devices);
    let session = session.with_log_device_placement(true);
    let mapping =
        format!("Device mapping:\n{task}/device:CPU:0 -> a CPU\n{task}/device:CPU:2 -> another");
    assert_eq!(logged(session)[0], mapping);
}

/// Returns all permutations of a list.
fn permutations<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    let Some((first, rest)) = items.split_first() else {
        return vec![Vec::new()];
    };
    let mut all = Vec::new();
    for shorter in permutations(rest) {
        for at in 0..=shorter.len() {
            let mut longer = shorter.clone();
            longer.insert(at, first.clone());
            all.push(longer);
        }
    }
    all
}

type Call = fn(SessionBuilder) -> SessionBuilder;

#[test]
fn the_order_of_the_builders_calls_does_not_matter() {
    let calls: [Call; 5] = [
        |builder| {
            let options = DeviceOptions::default()
                .with_device_count("CPU", 1)
                .with_intra_op_parallelism_threads(1)
                .with_device_filters(["/job:elsewhere"]);
            builder.with_device_options(options)
        },
        |builder| builder.with_device_count("CPU", 3),
        |builder| builder.with_intra_op_parallelism_threads(2),
        |builder| builder.with_device_filters(["/job:localhost"]),
        |builder| builder.with_pin("a", "CPU:2"),
    ];
    for order in permutations(&calls) {
        let watch = Watch::default();
        let builder = order
            .iter()
            .fold(watch.session("Pass"), |builder, call| call(builder));
        let session = builder.build().unwrap();
        let devices = session.devices();
        assert_eq!(devices.len(), 3);
        let (_, device) = devices.iter().next().unwrap();
        let pool = device.as_kernel_device().unwrap().intra_op_pool().unwrap();
        assert_eq!(pool.n_threads(), 2);
        let a = session.graph().find_node("a").unwrap();
        assert_eq!(session.placement().device(a).index(), 2);
    }
}

#[test]
fn parts_of_a_registry_may_be_replaced_in_any_order() {
    let calls: [Call; 3] = [
        |builder| builder.with_registry(Registry::empty()),
        |builder| builder.with_factories(default_factories()),
        |builder| builder.with_ops(OpRegistry::default()),
    ];
    for order in permutations(&calls) {
        let watch = Watch::default();
        let builder = order
            .iter()
            .fold(watch.session("Pass"), |builder, call| call(builder));
        assert_eq!(builder.build().unwrap().devices().len(), 1);
    }
}

#[test]
fn methods_that_contradict_each_other_are_an_error_in_any_order() {
    let watch = Watch::default();
    let session = watch.session("Pass").build().unwrap();
    let saved = || SavedPlacement::new(&session.placement(), "mine", 0, []);
    let proposal = || Proposal {
        devices: session.placement().devices().to_vec(),
        ..Proposal::default()
    };
    let with = || watch.session("Pass");
    for builder in [
        with()
            .with_saved_placement(saved())
            .with_proposal(proposal()),
        with()
            .with_proposal(proposal())
            .with_saved_placement(saved()),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        assert_eq!(
            error.to_string(),
            "`with_proposal`, `with_saved_placement` set the placement; call only one of them"
        );
    }
    let twice = with()
        .with_saved_placement(saved())
        .with_unverified_placement(saved());
    // Conflicting calls are found before anything else, here before a pin to a device that does not
    // exist.
    let found = [
        twice.clone().with_pin("a", "CPU:7").build().err(),
        twice.with_pin("a", "CPU:7").conflicts().err(),
    ];
    for error in found {
        assert_eq!(
            error.map(|error| error.to_string()).as_deref(),
            Some(
                "`with_saved_placement`, `with_unverified_placement` set the placement; call only one of them"
            )
        );
    }
    #[cfg(feature = "graphdef")]
    for (builder, calls) in [
        (
            with().with_graph_def(&b""[..]),
            "`with_graph`, `with_graph_def`",
        ),
        (
            with().with_graph_def_file("none").with_graph_def(&b""[..]),
            "`with_graph`, `with_graph_def`, `with_graph_def_file`",
        ),
        (
            with().with_saved_model("none", SavedModelOptions::default()),
            "`with_graph`, `with_saved_model`",
        ),
    ] {
        assert_eq!(
            builder.build().unwrap_err().to_string(),
            format!("{calls} set the graph; call only one of them")
        );
    }
    // A policy may be combined with a proposal: it is used later.
    let policy = || PolicyRequest::new(ShippedPolicy::find("heft").unwrap());
    for builder in [
        with().with_policy(policy()).with_proposal(proposal()),
        with().with_proposal(proposal()).with_policy(policy()),
    ] {
        assert!(builder.build().unwrap().report().policy().is_none());
    }
    // Candidates provide graph and devices, whenever the others are set.
    let placement = session.placement();
    let candidates = placement.candidates();
    for builder in [
        with().with_candidates(candidates.clone()),
        Session::builder()
            .with_candidates(candidates.clone())
            .with_graph(graph("Pass", "")),
    ] {
        let error = builder.build().unwrap_err();
        assert!(
            matches!(
                error,
                Error::BesideCandidates {
                    call: "with_graph",
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn pins_name_nodes_and_devices() {
    let watch = Watch::default();
    let three = || watch.session("Pass").with_device_count("CPU", 3);
    let full = "/job:localhost/replica:0/task:0/device:CPU:1";
    for name in [
        full,
        "/device:CPU:1",
        "CPU:1",
        "/job:localhost/device:CPU:1",
    ] {
        let session = three().with_pin("b", name).build().unwrap();
        let b = session.graph().find_node("b").unwrap();
        assert_eq!(session.placement().device(b).index(), 1, "{name}");
    }
    let error = |node: &str, device: &str| {
        let error = three().with_pin(node, device).build().unwrap_err();
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        assert!(matches!(error, Error::Pin { .. }), "{error}");
        error.to_string()
    };
    let text = error("c", "CPU:1");
    assert!(
        text.contains("`c`") && text.contains("no such node"),
        "{text}"
    );
    let text = error("b", "CPU:7");
    assert!(
        text.contains("`b`") && text.contains("`CPU:7`") && text.contains(full),
        "{text}"
    );
    let text = error("b", "/device:CPU:*");
    assert!(text.contains("matches 3 devices"), "{text}");
    let text = error("b", "no device");
    assert!(text.contains("`no device`"), "{text}");
    // Two contradicting pins of one node.
    let twice = three()
        .with_pin("b", "CPU:1")
        .with_pin("b", "CPU:2")
        .build();
    let text = twice.unwrap_err().to_string();
    assert!(
        text.contains("`b`") && text.contains("another device"),
        "{text}"
    );
    assert!(
        three()
            .with_pin("b", "CPU:1")
            .with_pin("b", full)
            .build()
            .is_ok()
    );
}

#[test]
fn pins_by_name_also_apply_to_other_devices() {
    let watch = Watch::default();
    let session = |n_cpus| watch.session("Pass").with_device_count("CPU", n_cpus);
    let pinned = session(3).with_pin("b", "CPU:2").build().unwrap();
    let all: Vec<_> = pinned
        .devices()
        .iter()
        .map(|(_, device)| Arc::clone(device))
        .collect();
    let set =
        |indices: &[usize]| DeviceSet::new(indices.iter().map(|&index| Arc::clone(&all[index])));
    pinned.replace_devices(set(&[2, 0])).unwrap();
    let b = pinned.graph().find_node("b").unwrap();
    assert_eq!(pinned.placement().device(b).index(), 0);
    let error = pinned.replace_devices(set(&[0, 1])).unwrap_err();
    assert!(matches!(error, Error::CannotReplace(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("`b`") && text.contains("CPU:2"), "{text}");
}

#[test]
fn an_unknown_device_type_or_scope_is_an_error_with_a_remedy() {
    let session = |change: fn(SessionBuilder) -> SessionBuilder| {
        let builder = Session::builder()
            .with_graph(graph("Relu", ""))
            .with_device_count("SYCL", 0)
            .with_device_count("GPU", 0);
        change(builder).build().map_err(|error| error.to_string())
    };
    let found = session(|builder| builder.with_device_count("cpu", 2));
    let expected = "there is no device type `cpu`; did you mean `CPU`?";
    assert_eq!(found.unwrap_err(), expected);
    let found = session(|builder| builder.with_device_count("NPU", 2)).unwrap_err();
    let expected = "there is no device type `NPU`; types are CPU, ";
    assert!(found.starts_with(expected), "{found}");
    let scoped = |builder: SessionBuilder, soft: bool| {
        let scope = DeviceName::parse_full_or_local("CPU:7").unwrap();
        let options = PlacementOptions::default()
            .with_device_scope(scope)
            .with_soft_placement(soft);
        builder.with_placement_options(options)
    };
    let found = Session::builder()
        .with_graph(graph("Relu", ""))
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0);
    let error = scoped(found, false).build().unwrap_err();
    assert_eq!(error.code(), StatusCode::InvalidArgument);
    assert_eq!(
        error.to_string(),
        "no device matches `/device:CPU:7`; devices are `/job:localhost/replica:0/task:0/device:CPU:0`; \
         use one of them, or allow soft placement"
    );
}
