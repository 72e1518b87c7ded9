//! Whole sessions: TensorFlow's models and numbers, under every policy, on devices that reject each
//! other's memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use placewright::Error;
use placewright::builder::GraphBuilder;
use placewright::candidates::Proposal;
use placewright::device::AllocatorAttributes;
use placewright::device::FactoryRegistry;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::error::NameRole;
use placewright::execute::CancelToken;
use placewright::execute::ExecuteError;
use placewright::execute::RunOptions;
use placewright::names::DeviceId;
use placewright::partition::PartitionError;
use placewright::placement::SavedPlacement;
use placewright::placement::SavedPlacementError;
use placewright::plan::Payload;
use placewright::policy::PlacementCache;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright::policy::PolicyRequest;
use placewright::policy::PolicySource;
use placewright::policy::ShippedPolicy;
use placewright::session::PlacedBy;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::DType;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;

use crate::npz;
use crate::sample::cpus;
use crate::strict_cpu::StrictCpuFactory;

fn model(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/models")
        .join(name)
}

/// A session of a model on `n_cpus` devices that poison tensors outside their own memory.
fn strict(file: &str, n_cpus: u32) -> SessionBuilder {
    let mut factories = FactoryRegistry::empty();
    factories
        .register("CPU", 60, Arc::new(StrictCpuFactory))
        .unwrap();
    let mut options = cpus(n_cpus);
    options.intra_op_parallelism_threads = 1;
    Session::builder()
        .with_graph_def_file(model(file))
        .with_factories(factories)
        .with_device_options(options)
}

/// The same, with nodes distributed round-robin.
fn distributed(file: &str, n_cpus: u32) -> SessionBuilder {
    let n_nodes = strict(file, 1).build().unwrap().graph().n_nodes();
    strict(file, n_cpus).with_proposal(Proposal {
        devices: (0..n_cpus).cycle().take(n_nodes).collect(),
        ..Proposal::default()
    })
}

type Arrays = Vec<(String, Tensor)>;

/// Returns the feeds, and the results of TensorFlow.
fn numbers(name: &str) -> (Arrays, Arrays) {
    let arrays: BTreeMap<String, Tensor> = npz::read(&model(&format!("{name}.npz")));
    let with = |prefix: &str| {
        arrays
            .iter()
            .filter_map(|(name, tensor)| {
                Some((name.strip_prefix(prefix)?.to_owned(), tensor.clone()))
            })
            .collect()
    };
    (with("in/"), with("out/"))
}

fn by_str(arrays: &Arrays) -> Vec<(&str, Tensor)> {
    arrays
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.clone()))
        .collect()
}

fn names(arrays: &Arrays) -> Vec<&str> {
    arrays.iter().map(|(name, _)| name.as_str()).collect()
}

fn values(tensor: &Tensor) -> &[f32] {
    tensor.as_slice().unwrap()
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    for (index, (a, b)) in values(found).iter().zip(values(expected)).enumerate() {
        // Sums of a few hundred terms in another order than TensorFlow's; a NaN is never close.
        assert!(
            (a - b).abs() <= 1e-4,
            "{what}: element {index} is {a}, expected {b}"
        );
    }
}

#[track_caller]
fn check(session: &Session, name: &str, what: &str) {
    let (fed, expected) = numbers(name);
    let found = session.run(&by_str(&fed), &names(&expected)).unwrap();
    assert_eq!(found.len(), expected.len());
    for (found, (fetch, expected)) in found.iter().zip(&expected) {
        assert_close(found, expected, &format!("{what} {fetch}"));
    }
}

#[test]
fn models_give_tensorflows_numbers_under_every_policy() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let files = [
        ("lenet", "lenet.pb"),
        ("lenet", "lenet.skel.pb"),
        ("mlp", "mlp.skel.pb"),
        ("mlp_b64", "mlp_b64.skel.pb"),
        ("tiny_add", "tiny_add.pb"),
        ("tiny_broadcast", "tiny_broadcast.pb"),
    ];
    for (name, file) in files {
        for policy in ShippedPolicy::all() {
            for n_cpus in [1, 4] {
                let session = strict(file, n_cpus)
                    .with_policy_engine(engine.clone())
                    .with_policy(PolicyRequest::new(policy).with_strict(true))
                    .build()
                    .unwrap();
                check(
                    &session,
                    name,
                    &format!("{file} {} {n_cpus}", policy.name()),
                );
            }
        }
    }
}

#[test]
fn a_session_without_a_policy_asks_auto_if_there_is_a_choice() {
    let build = |n_cpus| {
        Session::builder()
            .with_graph_def_file(model("lenet.skel.pb"))
            .with_device_options(cpus(n_cpus))
            .build()
            .unwrap()
    };
    let alone = build(1);
    assert!(matches!(alone.report().placed_by, PlacedBy::NoChoice));
    assert!(alone.report().policy().is_none());
    let stages: Vec<&str> = alone.report().stages.iter().map(|it| it.name).collect();
    assert!(stages.contains(&"place"), "{stages:?}");
    check(&alone, "lenet", "without a choice");
    // The engine of the process compiles a shipped policy once.
    let _first = build(2);
    let second = build(2);
    let report = second.report();
    let report = report.policy().unwrap();
    assert_eq!(report.answered_by.to_string(), "auto");
    assert!(!report.is_fallback());
    assert!(report.load.as_ref().unwrap().is_cached);
    check(&second, "lenet", "placed by auto");
    // What does not fit is refused with the words of the policies.
    let mut options = cpus(1);
    options.memory_bytes.insert("CPU:0".to_owned(), 1_000);
    let refused = Session::builder()
        .with_graph_def_file(model("lenet.skel.pb"))
        .with_device_options(options)
        .build()
        .unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("no plan fits") && text.contains("--memory"),
        "{text}"
    );
}

#[test]
fn a_distributed_graph_transfers_tensors_between_devices() {
    for (name, file) in [
        ("lenet", "lenet.pb"),
        ("tiny_broadcast", "tiny_broadcast.pb"),
    ] {
        let session = distributed(file, 4).build().unwrap();
        let (fed, expected) = numbers(name);
        let plan = session.plan(&names(&fed), &names(&expected), &[]).unwrap();
        assert!(plan.partitions().len() == 4 && plan.transfers().len() > 3);
        check(&session, name, file);
        assert!(matches!(session.report().placed_by, PlacedBy::App));
    }
}

#[test]
fn a_memory_plan_equals_the_memory_of_runs() {
    for (name, n_cpus) in [("lenet", 1), ("lenet", 3), ("mlp", 2)] {
        let options = cpus(n_cpus);
        let policy = ShippedPolicy::find("round-robin").unwrap();
        let session = Session::builder()
            .with_graph_def_file(model(&format!("{name}.skel.pb")))
            .with_device_options(options)
            .with_policy(PolicyRequest::new(policy))
            .with_inter_op_parallelism_threads(1)
            .build()
            .unwrap();
        let (fed, expected) = numbers(name);
        let plan = session
            .memory_plan(&names(&fed), &names(&expected), &[])
            .unwrap();
        assert_eq!(plan.n_unplanned, 0);
        // The second run shows that nothing is left over from the first.
        for _ in 0..2 {
            check(&session, name, "planned");
            assert_eq!(plan.memories.len(), usize::try_from(n_cpus).unwrap());
            for memory in &plan.memories {
                let devices = session.devices();
                let device = devices.get(memory.device).unwrap();
                let held = device.allocator(AllocatorAttributes::default()).stats();
                // The caller has dropped the fetched tensors.
                let left = memory.peak_bytes() - memory.fetched_bytes;
                assert_eq!(held.in_use_bytes, left, "{name} {memory:?}");
            }
        }
        assert!(
            plan.memories
                .iter()
                .any(|memory| memory.prepacked_bytes > 0)
        );
        assert!(plan.memories.iter().any(|memory| memory.run_bytes > 0));
        let fetched = plan.memories.iter().map(|memory| memory.fetched_bytes);
        assert_eq!(fetched.sum::<u64>(), 10 * 4, "{name}: ten probabilities");
    }
}

#[test]
fn constants_are_prepacked_if_memory_is_left_and_a_run_without_memory_names_the_device() {
    let build = |capacity: u64| {
        let mut options = cpus(1);
        options.memory_bytes.insert("CPU:0".to_owned(), capacity);
        Session::builder()
            .with_graph_def_file(model("lenet.skel.pb"))
            .with_device_options(options)
            .with_inter_op_parallelism_threads(1)
            .build()
            .unwrap()
    };
    let (fed, expected) = numbers("lenet");
    let (feeds, fetches) = (names(&fed), names(&expected));
    let session = build(1 << 30);
    let plan = session.memory_plan(&feeds, &fetches, &[]).unwrap();
    let memory = plan.memories[0];
    let graph = session.graph();
    let weights = graph.nodes().filter_map(|node| {
        let value = graph.attrs(node).tensor("value")?;
        (value.dtype() == DType::F32).then(|| value.size_bytes())
    });
    let weight_bytes: u64 = weights.sum();
    // Prepacked weights are padded, and take the place of those of the graph.
    assert!(memory.prepacked_bytes > 16_384);
    assert!(memory.constant_bytes < weight_bytes / 10);
    let unprepacked = memory.run_bytes + memory.fetched_bytes + weight_bytes;
    assert!(unprepacked + 4_096 < memory.peak_bytes());
    for (room, is_prepacked) in [
        // The largest weight, most of this network, takes memory twice while it is prepacked.
        (2 * memory.peak_bytes(), true),
        (memory.peak_bytes() - 1, false),
        (unprepacked + 4_096, false),
    ] {
        let session = build(room);
        check(&session, "lenet", "tight");
        let plan = session.memory_plan(&feeds, &fetches, &[]).unwrap();
        let prepacked = plan.memories[0].prepacked_bytes;
        assert_eq!(
            prepacked == memory.prepacked_bytes,
            is_prepacked,
            "{prepacked}"
        );
        assert!(plan.memories[0].peak_bytes() <= room);
    }
    let session = build(unprepacked + 4_096);
    let devices = session.devices();
    let device = devices.get(memory.device).unwrap();
    let allocator = device.allocator(AllocatorAttributes::default());
    let taken = allocator.allocate(8_192).unwrap();
    let error = session.run(&by_str(&fed), &fetches).unwrap_err();
    assert!(
        matches!(&error, Error::Execute(ExecuteError::Arena { device, bytes, .. })
            if device.ends_with("CPU:0") && *bytes as u64 == memory.run_bytes),
        "{error}"
    );
    drop(taken);
    check(&session, "lenet", "with room again");
}

/// The memory of a run is planned before the first one, even if the graph leaves the batch open.
#[test]
fn fed_shapes_plan_the_memory_of_the_first_run() {
    const N: usize = 64;
    let b = GraphBuilder::new("batch");
    let x = b.placeholder::<f32>("x", [None, Some(N)]).unwrap();
    let identity: Vec<f32> = (0..N * N)
        .map(|i| if i % (N + 1) == 0 { 1.0 } else { 0.0 })
        .collect();
    let weights = b.constant([N, N], &identity).unwrap();
    let scores = b.matmul(x, weights).unwrap();
    let parts = b.softmax(scores).unwrap();
    b.named("y").matmul(parts, weights).unwrap();
    let session = Session::builder()
        .with_graph(b.finish())
        .with_device_options(cpus(1))
        .with_inter_op_parallelism_threads(1)
        .build()
        .unwrap();
    let held_after = |rows: usize| {
        let x = Tensor::from_values([rows, N], &vec![2.0f32; rows * N]).unwrap();
        let found = session.run(&[("x:0", x)], &["y:0"]).unwrap();
        assert_eq!(
            found[0].as_slice::<f32>().unwrap(),
            vec![1.0 / 64.0; rows * N]
        );
        drop(found);
        let devices = session.devices();
        let device = devices.get(DeviceId(0)).unwrap();
        let allocator = device.allocator(AllocatorAttributes::default());
        allocator.stats().in_use_bytes
    };
    let plan = session.memory_plan(&["x:0"], &["y:0"], &[]).unwrap();
    assert_eq!(plan.n_unplanned, 4, "{plan:?}");
    let staying = plan.memories[0].constant_bytes + plan.memories[0].prepacked_bytes;
    let arena_bytes = |rows: usize| (rows * N * 4) as u64;
    // What is left besides weights is the arena, which the next run uses.
    let first = held_after(8);
    assert!(first >= staying + arena_bytes(8), "{first} {plan:?}");
    assert_eq!(held_after(8), first);
    // Another batch has an arena of its own.
    assert!(held_after(16) >= first + arena_bytes(16));
}

#[test]
fn a_saved_placement_is_used_again() {
    let first = distributed("lenet.pb", 4).build().unwrap();
    let saved = SavedPlacement::new(&first.placement(), "mine", 0, []);
    let saved = SavedPlacement::from_json(&saved.to_json()).unwrap();
    let again = strict("lenet.pb", 4)
        .with_saved_placement(saved.clone())
        .build()
        .unwrap();
    assert_eq!(again.placement().devices(), first.placement().devices());
    check(&again, "lenet", "saved");
    let softly = strict("lenet.pb", 4).with_soft_placement(true);
    let error = softly.clone().with_saved_placement(saved.clone()).build();
    assert!(matches!(
        error,
        Err(Error::SavedPlacement(SavedPlacementError::MadeForOther(difference)))
            if difference.options && !difference.graph && !difference.devices
    ));
    let unverified = softly.with_unverified_placement(saved.clone()).build();
    check(&unverified.unwrap(), "lenet", "unverified");
    let kept = strict("lenet.pb", 4).with_kept_placement(saved.clone());
    let kept = kept.build().unwrap();
    assert_eq!(kept.placement().devices(), first.placement().devices());
    let report = kept.report();
    let replacement = report.replacement.as_ref().unwrap();
    assert_eq!(replacement.n_kept, kept.graph().n_nodes());
    let error = strict("lenet.pb", 2).with_saved_placement(saved).build();
    assert!(matches!(error, Err(Error::SavedPlacement(_))));
}

#[test]
fn sessions_share_a_cache_of_placements() {
    let cache = PlacementCache::new();
    let engine = PolicyLimits::default().with_fuel(Some(1_000_000_000));
    let engine = PolicyEngine::new(engine).unwrap();
    let build = || {
        let heft = PolicyRequest::new(ShippedPolicy::find("heft").unwrap());
        let builder = strict("lenet.pb", 3).with_policy(heft);
        let builder = builder.with_policy_engine(engine.clone());
        builder.with_placement_cache(cache.clone()).build().unwrap()
    };
    let (first, second) = (build(), build());
    let is_cached = |session: &Session| session.report().policy().unwrap().is_cached;
    assert!(!is_cached(&first) && is_cached(&second));
    assert_eq!(first.placement().devices(), second.placement().devices());
    assert_eq!(first.placement_identity(), second.placement_identity());
    check(&second, "lenet", "answered by the cache");
}

/// Returns some tensor in the middle of lenet, with its producer's name.
fn inner_tensor(session: &Session) -> String {
    let graph = session.graph();
    let node = graph
        .nodes()
        .find(|&node| graph.op(node) == "MaxPool")
        .unwrap();
    graph.node_name(node).to_owned()
}

#[test]
fn inner_tensors_are_fed_and_fetched() {
    let session = distributed("lenet.pb", 3).build().unwrap();
    let (fed, expected) = numbers("lenet");
    let inner = inner_tensor(&session);
    let with_slot = format!("{inner}:0");
    let fetched = session
        .run(&by_str(&fed), &[&inner, &with_slot, "x", &inner])
        .unwrap();
    assert_eq!(values(&fetched[0]), values(&fetched[1]));
    assert_eq!(values(&fetched[0]), values(&fetched[3]));
    assert_eq!(values(&fetched[2]), values(&fed[0].1));
    // With this tensor fed, the placeholder is not needed.
    let rest = session
        .run(&[(&with_slot, fetched[0].clone())], &["probs:0"])
        .unwrap();
    assert_close(&rest[0], &expected[0].1, "from the middle");
    let n_nodes = |feed| {
        session
            .plan(&[feed], &["probs"], &[])
            .unwrap()
            .nodes()
            .count()
    };
    assert!(n_nodes(inner.as_str()) < n_nodes("x"));
}

#[test]
fn many_threads_run_one_session() {
    let session = distributed("lenet.pb", 4)
        .with_inter_op_parallelism_threads(4)
        .build()
        .unwrap();
    let (fed, _) = numbers("lenet");
    let reference = session.run(&by_str(&fed), &["probs"]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let fetched = session.run(&by_str(&fed), &["probs"]).unwrap();
                    assert_eq!(values(&fetched[0]), values(&reference[0]));
                }
            });
        }
    });
}

#[test]
fn a_failing_kernel_is_named_and_the_session_continues() {
    let failing = KernelDef::new("Softmax", "CPU")
        .with_priority(100)
        .with_factory(|_| Err(KernelError::invalid("this softmax has a cold")));
    let session = strict("lenet.pb", 2)
        .with_kernels([failing])
        .build()
        .unwrap();
    let (fed, _) = numbers("lenet");
    let error = session.run(&by_str(&fed), &["probs"]).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::Execute(ExecuteError::Prepare { .. })),
        "{text}"
    );
    assert!(
        text.contains("`probs` (Softmax)") && text.contains("CPU:"),
        "{text}"
    );
    let inner = inner_tensor(&session);
    assert!(session.run(&by_str(&fed), &[&inner]).is_ok());
}

/// A kernel that fails, or panics, at each call.
struct Broken {
    panics: bool,
}

impl Kernel for Broken {
    fn compute(&self, _: &mut KernelContext<'_>) -> Result<(), KernelError> {
        assert!(!self.panics, "this softmax has lost its mind");
        Err(KernelError::invalid("this softmax has a cold"))
    }
}

#[test]
fn a_kernel_that_fails_fails_only_its_run() {
    let (fed, expected) = numbers("lenet");
    for panics in [false, true] {
        let broken = KernelDef::new("Softmax", "CPU")
            .with_priority(100)
            .with_factory(move |_| Ok(Box::new(Broken { panics })));
        let session = distributed("lenet.pb", 2)
            .with_kernels([broken])
            .build()
            .unwrap();
        let feeds = by_str(&fed);
        for _ in 0..3 {
            let error = session.run(&feeds, &["probs"]).unwrap_err();
            let text = error.to_string();
            let is_expected = match error {
                Error::Execute(ExecuteError::Kernel { .. }) => !panics && text.contains("a cold"),
                Error::Execute(ExecuteError::Panic { .. }) => panics && text.contains("its mind"),
                _ => false,
            };
            assert!(is_expected && text.contains("`probs` (Softmax)"), "{text}");
        }
        // The input of the broken kernel can be fetched, and gives the right numbers elsewhere.
        let graph = session.graph();
        let probs = graph.find_node("probs").unwrap();
        let logits = graph.tensor_name(graph.data_inputs(probs).next().unwrap());
        let fetched = session.run(&feeds, &[&logits]).unwrap();
        let whole = strict("lenet.pb", 1).build().unwrap();
        let rest = [(logits.as_str(), fetched[0].clone())];
        let found = whole.run(&rest, &["probs"]).unwrap();
        assert_close(&found[0], &expected[0].1, "after the failure");
    }
}

#[test]
fn a_fed_inner_tensor_of_the_wrong_shape_is_rejected() {
    let wrong = Tensor::from_values([3, 5], &[0f32; 15]).unwrap();
    let session = strict("mlp.skel.pb", 1).build().unwrap();
    let graph = session.graph();
    let matmul = graph
        .nodes()
        .find(|&node| graph.op(node) == "MatMul")
        .unwrap();
    let product = graph.node_name(matmul);
    let weights = graph.tensor_name(graph.data_inputs(matmul).nth(1).unwrap());
    let (fed, expected) = numbers("mlp");
    let mut feeds = by_str(&fed);
    feeds.push((&weights, wrong));
    let error = session.run(&feeds, &[product]).unwrap_err().to_string();
    assert!(
        error.contains("[3,5]") && error.contains(&weights),
        "{error}"
    );
    let found = session.run(&by_str(&fed), &names(&expected)).unwrap();
    assert_close(&found[0], &expected[0].1, "after the refusal");
}

#[test]
fn invalid_feeds_and_fetches_are_explained() {
    let session = strict("lenet.pb", 1).build().unwrap();
    let image = || Tensor::from_values([1, 28, 28, 1], &[0f32; 784]).unwrap();
    let run = |feeds: &[(&str, Tensor)], fetches: &[&str]| session.run(feeds, fetches).unwrap_err();
    let error = run(&[("x", image())], &["prob"]);
    assert_eq!(
        error.to_string(),
        "fetch `prob`: the graph has no node `prob`; did you mean `probs`?"
    );
    let error = run(&[("x:1", image())], &["probs"]);
    assert_eq!(error.to_string(), "feed `x:1`: node `x` has 1 output");
    let error = run(&[], &["probs"]);
    assert!(
        matches!(&error, Error::Partition(PartitionError::UnfedPlaceholder { node, .. }) if node == "x"),
        "{error}"
    );
    let error = run(&[("x", image()), ("x:0", image())], &["probs"]);
    assert_eq!(error.to_string(), "tensor `x:0` is fed twice");
    let wrong = Tensor::from_values([1, 28, 28, 1], &[0i32; 784]).unwrap();
    let error = run(&[("x", wrong)], &["probs"]);
    assert_eq!(
        error.to_string(),
        "feed `x:0`: expected float [1,28,28,1], found int32 [1,28,28,1]"
    );
    let error = session
        .run_with(&[], &[], &["nowhere"], &RunOptions::default())
        .unwrap_err();
    assert!(matches!(
        error,
        Error::UnknownNode {
            role: NameRole::Target,
            ..
        }
    ));
    let error = Session::builder()
        .with_graph_def_file("/nowhere/at/all.pb")
        .build()
        .unwrap_err();
    assert!(
        error.to_string().starts_with("/nowhere/at/all.pb: "),
        "{error}"
    );
    assert!(matches!(Session::builder().build(), Err(Error::NoGraph)));
}

#[test]
fn the_trace_shows_the_failed_policies_and_calls() {
    let calls = |fixture: &'static str| {
        let bytes = placewright_fixtures::wasm(fixture).to_vec();
        let source = PolicySource::Bytes(fixture.to_owned(), bytes);
        let session = strict("tiny_add.pb", 1)
            .with_policy(PolicyRequest::new(source))
            .with_recorder(Recorder::on())
            .build()
            .unwrap();
        let mut events = session.trace().events;
        events.sort_by_key(|event| event.start_ns);
        let calls = events.into_iter().filter_map(|event| match event.kind {
            EventKind::PolicyCall { policy, call, .. } => Some(format!("{call} {policy}")),
            _ => None,
        });
        calls.collect::<Vec<_>>()
    };
    assert_eq!(
        calls("fails"),
        ["load fails", "place fails", "place heft (native)"]
    );
    assert_eq!(
        calls("old-contract"),
        ["load old-contract", "place heft (native)"]
    );
}

#[test]
fn targets_run_and_cancelled_runs_end() {
    let session = strict("lenet.pb", 2).build().unwrap();
    let (fed, _) = numbers("lenet");
    let feeds = by_str(&fed);
    let nothing = session.run_with(&feeds, &[], &["probs"], &RunOptions::default());
    assert!(nothing.unwrap().is_empty());
    let token = CancelToken::new();
    token.cancel();
    let options = RunOptions::default().with_cancel(token);
    let error = session.run_with(&feeds, &["probs"], &[], &options);
    assert!(matches!(
        error,
        Err(Error::Execute(ExecuteError::Cancelled))
    ));
    assert!(session.run(&feeds, &["probs"]).is_ok());
}

#[test]
fn the_trace_shows_stages_policy_kernels_and_transfers() {
    let recorder = Recorder::on();
    let policy = ShippedPolicy::find("round-robin").unwrap();
    let session = strict("lenet.pb", 2)
        .with_policy(PolicyRequest::new(policy).with_strict(true))
        .with_recorder(recorder)
        .build()
        .unwrap();
    let (fed, _) = numbers("lenet");
    let unheard = RunOptions::default().with_recorder(Recorder::off());
    session
        .run_with(&by_str(&fed), &["probs"], &[], &unheard)
        .unwrap();
    session.run(&by_str(&fed), &["probs"]).unwrap();
    let trace = session.trace();
    let stages: Vec<&str> = trace
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Stage { name } => Some(&**name),
            _ => None,
        })
        .collect();
    assert_eq!(
        stages,
        [
            "import",
            "discover",
            "optimize",
            "enumerate",
            "place",
            "partition",
            "prepare"
        ]
    );
    let called = |event: &&placewright::trace::Event| matches!(&event.kind, EventKind::PolicyCall { call, .. } if call == "place");
    assert_eq!(trace.events.iter().filter(called).count(), 1);
    let summary = trace.summary();
    let plan = session.plan(&["x"], &["probs"], &[]).unwrap();
    let n_executions: u64 = summary.kernels.iter().map(|row| row.n_executions).sum();
    // Constants are created and transferred once, before the first run.
    let graph = session.graph();
    let executed = plan.nodes().filter(|&(node, _)| graph.op(node) != "Const");
    assert_eq!(n_executions, executed.count() as u64);
    let moved: u64 = summary.transfers.iter().map(|row| row.bytes).sum();
    let expected = plan
        .transfers()
        .iter()
        .map(|transfer| match transfer.payload {
            Payload::Tensor(tensor) if graph.op(graph.producer(tensor).0) == "Const" => 0,
            _ => transfer.bytes.unwrap(),
        });
    assert_eq!(moved, expected.sum::<u64>());
    assert!(0 < moved && moved <= plan.transfer_bytes().0);
    let mut json = Vec::new();
    trace.write_chrome(&mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let shown = json["traceEvents"].as_array().unwrap();
    let is_event = |event: &&serde_json::Value| event["ph"] == "X" && event["cat"] != "queue-wait";
    let n_shown = shown.iter().filter(is_event).count();
    assert_eq!(n_shown, trace.events.len());
}
