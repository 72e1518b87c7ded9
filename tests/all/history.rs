//! Measured times: profiles of runs, the history of kernels, and what placements take from them.

use std::sync::Arc;

use placewright::builder::GraphBuilder;
use placewright::candidates::PlacementOptions;
use placewright::cost::CostSource;
use placewright::cost::History;
use placewright::cost::KernelCosts;
use placewright::cost::NodeWork;
use placewright::cost::Prediction;
use placewright::device::Device;
use placewright::graph::Graph;
use placewright::names::DeviceId;
use placewright::placement::Placement;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::store::CacheFolder;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;
use placewright::trace::RunProfile;

const SIDE: usize = 64;

/// Returns a dense layer with a bias, which one kernel computes, and a second activation that has
/// another input as well.
fn layers() -> Arc<Graph> {
    let b = GraphBuilder::new("layers");
    let x = b.placeholder::<f32>("x", [SIDE, SIDE]).unwrap();
    let weights = b
        .named("w")
        .constant([SIDE, SIDE], &[0.01f32; SIDE * SIDE])
        .unwrap();
    let bias = b.constant([SIDE], &[0.5f32; SIDE]).unwrap();
    let product = b.named("matmul").matmul(x, weights).unwrap();
    let sum = b.named("bias").bias_add(product, bias).unwrap();
    let active = b.named("relu").relu(sum).unwrap();
    b.named("y").add(active, x).unwrap();
    Arc::new(b.finish())
}

fn builder(graph: &Arc<Graph>) -> SessionBuilder {
    Session::builder()
        .with_graph(Arc::clone(graph))
        .with_device_count("CPU", 1)
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
        .with_intra_op_parallelism_threads(1)
}

fn x() -> Tensor {
    Tensor::from_values([SIDE, SIDE], &[1.0f32; SIDE * SIDE]).unwrap()
}

fn measured(session: &Session) -> RunProfile {
    session.measure(&[("x", x())], &["y"], &[], 5).unwrap()
}

/// Returns cost and samples of a node on the first device.
fn cost(placement: &Placement, node: &str) -> (f64, u32) {
    let node = placement.graph().find_node(node).unwrap();
    let candidates = placement.candidates();
    let device = DeviceId(0);
    let samples = candidates.cost_samples(node, device);
    (candidates.cost_ns(node, device), samples)
}

#[test]
fn a_profile_has_each_node_and_the_time_of_fused_ones_once() {
    let session = builder(&layers()).build().unwrap();
    let profile = measured(&session);
    assert_eq!(profile.n_runs, 5);
    let times = |name: &str| {
        let mut found = profile.nodes.iter().filter(|times| times.node == name);
        let times = found.next().unwrap();
        assert!(found.next().is_none() && times.device.ends_with("/device:CPU:0"));
        times
    };
    for node in ["matmul", "bias", "relu", "y"] {
        assert_eq!((times(node).executions, times(node).samples), (1.0, 5));
    }
    assert!(times("matmul").ns > 0.0 && times("y").ns > 0.0);
    assert_eq!((times("bias").ns, times("relu").ns), (0.0, 0.0));
    assert!(times("y").start_ns >= times("matmul").start_ns);
    let read = RunProfile::from_json(&profile.to_json()).unwrap();
    assert_eq!(read, profile);
}

#[test]
fn costs_are_those_measured_also_in_another_process_and_another_graph() {
    let folder = tempfile::tempdir().unwrap();
    let open = || History::in_folder(CacheFolder::open(folder.path()).unwrap());
    let graph = layers();
    let session = builder(&graph).build().unwrap();
    assert_eq!(cost(&session.placement(), "matmul").1, 0);
    let profile = measured(&session);
    let learned = open().learn(&profile, &graph, &session.devices()).unwrap();
    assert_eq!(learned, profile.nodes.len());
    // A handle of its own stands for another process; an equal graph has other node ids.
    let placed = builder(&graph).with_history(open()).build().unwrap();
    for times in &profile.nodes {
        let (cost_ns, samples) = cost(&placed.placement(), &times.node);
        assert_eq!((cost_ns, samples), (times.ns, 5), "{}", times.node);
    }
    // Twice the samples.
    open().learn(&profile, &graph, &session.devices()).unwrap();
    let placed = builder(&graph).with_history(open()).build().unwrap();
    assert_eq!(cost(&placed.placement(), "matmul").1, 10);
    // Other threads are another kind of device.
    let other = builder(&graph).with_history(open());
    let other = other.with_intra_op_parallelism_threads(2).build().unwrap();
    assert_eq!(cost(&other.placement(), "matmul").1, 0);
}

/// Knows another time for each device.
#[derive(Debug)]
struct ByIndex(u32);

impl CostSource for ByIndex {
    fn of_device(&self, device: &dyn Device) -> Option<Arc<dyn KernelCosts>> {
        Some(Arc::new(Self(device.name().index?)))
    }
}

impl KernelCosts for ByIndex {
    fn predict(&self, work: &NodeWork<'_>) -> Option<Prediction> {
        let ns = 100.0 * f64::from(self.0 + 1);
        (work.op() == "MatMul").then_some(Prediction {
            ns,
            spread_ns: 0.0,
            samples: 0,
        })
    }
}

#[test]
fn devices_of_equal_rates_have_the_costs_that_a_source_states() {
    let graph = layers();
    let options = PlacementOptions::default().with_cost_source(Arc::new(ByIndex(0)));
    let session = builder(&graph).with_device_count("CPU", 3);
    let session = session.with_placement_options(options).build().unwrap();
    let placement = session.placement();
    let matmul = placement.graph().find_node("matmul").unwrap();
    let costs = [0, 1, 2].map(|device| placement.candidates().cost_ns(matmul, DeviceId(device)));
    assert_eq!(costs, [100.0, 200.0, 300.0]);
}

/// States times that cannot be.
#[derive(Debug)]
struct Unsound(f64);

impl CostSource for Unsound {
    fn name(&self) -> &'static str {
        "unsound"
    }

    fn of_device(&self, _: &dyn Device) -> Option<Arc<dyn KernelCosts>> {
        Some(Arc::new(Self(self.0)))
    }
}

impl KernelCosts for Unsound {
    fn predict(&self, _: &NodeWork<'_>) -> Option<Prediction> {
        Some(Prediction {
            ns: self.0,
            spread_ns: 0.0,
            samples: 9,
        })
    }
}

#[test]
fn a_source_that_states_an_impossible_time_leaves_it_to_the_next() {
    let graph = layers();
    for ns in [-1.0, f64::NAN] {
        let options = PlacementOptions::default()
            .with_cost_source(Arc::new(Unsound(ns)))
            .with_cost_source(Arc::new(ByIndex(0)));
        let session = builder(&graph).with_placement_options(options);
        let placement = session.build().unwrap().placement();
        let candidates = placement.candidates();
        let found = |name: &str| {
            let node = placement.graph().find_node(name).unwrap();
            let source = candidates.cost_source(node, DeviceId(0));
            (source, candidates.cost_samples(node, DeviceId(0)))
        };
        assert_eq!(found("matmul"), ("app", 0));
        assert_eq!(found("relu"), ("rates", 0));
    }
}

#[test]
fn a_damaged_history_is_not_used_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let open = || History::in_folder(CacheFolder::open(folder.path()).unwrap());
    let graph = layers();
    let session = builder(&graph).build().unwrap();
    let profile = measured(&session);
    open().learn(&profile, &graph, &session.devices()).unwrap();
    let entry = std::fs::read_dir(folder.path()).unwrap();
    let mut paths = entry.map(|entry| entry.unwrap().path());
    let path = paths.find(|path| path.extension().is_some()).unwrap();
    std::fs::write(&path, b"damaged").unwrap();
    let samples = || {
        let placed = builder(&graph).with_history(open()).build().unwrap();
        cost(&placed.placement(), "matmul").1
    };
    assert_eq!(samples(), 0);
    open().learn(&profile, &graph, &session.devices()).unwrap();
    assert_eq!(samples(), 5);
}

#[test]
fn ordinary_runs_teach_a_session_that_learns() {
    let graph = layers();
    let history = History::new();
    let session = builder(&graph)
        .with_history(history.clone())
        .with_learning(true)
        .build()
        .unwrap();
    let samples = || {
        let placed = builder(&graph).with_history(history.clone());
        cost(&placed.build().unwrap().placement(), "y").1
    };
    for (n_runs, expected) in [(3, 0), (1, 1), (11, 1), (1, 2)] {
        for _ in 0..n_runs {
            session.run(&[("x", x())], &["y"]).unwrap();
        }
        assert_eq!(samples(), expected);
    }
}

/// Returns a loop whose condition does not tell its trip count.
fn open_loop() -> Arc<Graph> {
    let b = GraphBuilder::new("loop");
    let limit = b
        .placeholder::<i32>("limit", PartialShape::scalar())
        .unwrap();
    let zero = b.scalar(0).unwrap();
    let n = b
        .named("while")
        .while_loop(
            zero,
            |b, n| b.less(n, limit),
            |b, n| b.named("next").add(n, 1),
        )
        .unwrap();
    b.named("n").identity(n).unwrap();
    Arc::new(b.finish())
}

fn executions(session: &Session, node: &str) -> f64 {
    let placement = session.placement();
    let node = placement.graph().find_node(node).unwrap();
    placement.candidates().nodes().executions[node.index()]
}

#[test]
fn trip_counts_are_assumed_stated_or_measured() {
    let graph = open_loop();
    let assumed = builder(&graph).build().unwrap();
    assert_eq!(executions(&assumed, "while/body/next"), 10.0);
    let stated = builder(&graph).with_trip_count("while", 1000.0).build();
    assert_eq!(executions(&stated.unwrap(), "while/body/next"), 1000.0);
    let limit = Tensor::from_values(Shape::scalar(), &[37]).unwrap();
    let profile = assumed
        .measure(&[("limit", limit)], &["n"], &[], 3)
        .unwrap();
    let counts = profile.without_times();
    let measured = builder(&graph).with_profile(profile).build().unwrap();
    assert_eq!(executions(&measured, "while/body/next"), 37.0);
    assert_eq!(source(&measured, "while/body/next"), "profile");
    let counted = builder(&graph).with_profile(counts).build().unwrap();
    assert_eq!(executions(&counted, "while/body/next"), 37.0);
    assert_eq!(source(&counted, "while/body/next"), "rates");
    // The executor carries loop variables on without a kernel.
    let lowered = counted.graph();
    let merge = lowered.nodes().find(|&node| lowered.op(node) == "Merge");
    let merge = lowered.node_name(merge.unwrap());
    assert_eq!(source(&counted, merge), "profile");
    let expected = builder(&graph).with_trip_count("while", 37.0).build();
    let expected_ns = expected.unwrap().placement().expected_ns();
    let relative = counted.placement().expected_ns() / expected_ns;
    assert!((0.7..1.3).contains(&relative), "{relative}");
}

fn source(session: &Session, node: &str) -> String {
    let placement = session.placement();
    let node = placement.graph().find_node(node).unwrap();
    let candidates = placement.candidates();
    candidates
        .cost_source(node, placement.device(node))
        .to_owned()
}

#[test]
fn priorities_are_attributes_or_options() {
    let graph = layers();
    let session = builder(&graph).with_priority("relu", 7).build().unwrap();
    let placement = session.placement();
    let of = |name: &str| {
        let node = placement.graph().find_node(name).unwrap();
        placement.candidates().nodes().user_priority[node.index()]
    };
    assert_eq!((of("relu"), of("matmul")), (7, 0));
    let error = builder(&graph)
        .with_priority("rleu", 7)
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("`rleu`"), "{error}");
}
