//! Constants, and identities of them: the weights of frozen models.

use std::sync::Arc;

use placewright::builder::GraphBuilder;
use placewright::device::AllocatorAttributes;
use placewright::graph::Graph;
use placewright::graph::NodeId;
use placewright::names::DeviceId;
use placewright::plan::StepKind;
use placewright::session::Session;
use placewright::tensor::Tensor;

use crate::sample::cpus;

const SIZE: usize = 64;
const WEIGHT_BYTES: u64 = (SIZE * SIZE * 4) as u64;

/// `x * weights`, where `weights` is read as it is, or behind two identities, or both.
fn product(device_of_identity: &str, reads: [bool; 2]) -> Arc<Graph> {
    let b = GraphBuilder::new("product");
    let x = b.placeholder::<f32>("x", [4, SIZE]).unwrap();
    let weights: Vec<f32> = (0..SIZE * SIZE).map(|i| (i % 7) as f32 - 3.0).collect();
    let weights = b.named("weights").constant([SIZE, SIZE], &weights).unwrap();
    if reads[0] {
        b.named("plain").matmul(x, weights).unwrap();
    }
    if reads[1] {
        let elsewhere = b.device(device_of_identity).unwrap();
        let read = elsewhere.named("read").identity(weights).unwrap();
        let again = elsewhere.named("again").identity(read).unwrap();
        elsewhere.named("passed").matmul(x, again).unwrap();
    }
    Arc::new(b.finish())
}

fn session(graph: &Arc<Graph>, n_cpus: u32) -> Session {
    Session::builder()
        .with_graph(Arc::clone(graph))
        .with_device_options(cpus(n_cpus))
        .with_inter_op_parallelism_threads(1)
        .build()
        .unwrap()
}

fn x() -> Tensor {
    let values: Vec<f32> = (0..4 * SIZE).map(|i| (i % 5) as f32).collect();
    Tensor::from_values([4, SIZE], &values).unwrap()
}

fn node(graph: &Graph, name: &str) -> NodeId {
    graph.find_node(name).unwrap()
}

#[test]
fn constants_behind_identities_are_prepacked_and_held_once() {
    let run = |reads: [bool; 2], fetches: &[&str]| {
        let session = session(&product("", reads), 1);
        let plan = session.memory_plan(&["x:0"], fetches, &[]).unwrap();
        let found = session.run(&[("x:0", x())], fetches).unwrap();
        let devices = session.devices();
        let device = devices.get(DeviceId(0)).unwrap();
        let held = device.allocator(AllocatorAttributes::default()).stats();
        let [memory] = plan.memories[..] else {
            panic!("{plan:?}")
        };
        let found: Vec<Vec<f32>> = found
            .iter()
            .map(|tensor| tensor.as_slice::<f32>().unwrap().to_vec())
            .collect();
        let fetched_bytes = memory.fetched_bytes;
        let planned = memory.peak_bytes();
        assert_eq!(held.in_use_bytes, planned, "{reads:?}");
        assert_eq!(fetched_bytes, found.len() as u64 * 4 * SIZE as u64 * 4);
        (found, memory)
    };
    let (plain, of_plain) = run([true, false], &["plain:0"]);
    let (passed, of_passed) = run([false, true], &["passed:0"]);
    assert_eq!(plain, passed);
    assert!(of_plain.prepacked_bytes > 0);
    assert_eq!(of_plain.prepacked_bytes, of_passed.prepacked_bytes);
    assert_eq!(of_plain.constant_bytes, of_passed.constant_bytes);
    // Plans of one session share the tensor, whichever comes first.
    let session = session(&product("", [true, true]), 1);
    for fetch in ["passed:0", "plain:0", "passed:0"] {
        session.run(&[("x:0", x())], &[fetch]).unwrap();
        let devices = session.devices();
        let device = devices.get(DeviceId(0)).unwrap();
        let held = device.allocator(AllocatorAttributes::default()).stats();
        let of_plan = of_plain.prepacked_bytes + of_plain.run_bytes;
        let most = WEIGHT_BYTES + 2 * of_plan;
        assert!(held.in_use_bytes <= most, "{fetch}: {held:?} {most}");
    }
    let (both, of_both) = run([true, true], &["plain:0", "passed:0"]);
    assert_eq!(both, [plain[0].clone(), passed[0].clone()]);
    assert_eq!(of_both.constant_bytes, of_plain.constant_bytes);
}

#[test]
fn an_identity_of_a_constant_costs_nothing_and_moves_nothing() {
    let graph = product("/device:CPU:1", [false, true]);
    let session = session(&graph, 2);
    let placement = session.placement();
    let candidates = placement.candidates();
    for name in ["weights", "read", "again"] {
        let node = node(&graph, name);
        assert!(graph.is_preloaded(node), "{name}");
        assert_eq!(candidates.work_ns(node, placement.device(node)), 0.0);
    }
    let again = placement.device(node(&graph, "again"));
    assert_eq!(again, DeviceId(1));
    let summary = placement.summary();
    assert_eq!(
        summary.n_transfers, 0,
        "the placeholder is fed where it is read"
    );
    let resident: Vec<u64> = summary
        .devices
        .iter()
        .map(|row| row.resident_bytes)
        .collect();
    assert_eq!(resident, [0, WEIGHT_BYTES]);
    let plan = session.memory_plan(&["x:0"], &["passed:0"], &[]).unwrap();
    for memory in &plan.memories {
        // The product prepacks the weights, so the constant itself is released.
        let expected = u64::from(memory.device.0) * WEIGHT_BYTES;
        assert_eq!(memory.prepacked_bytes, expected, "{memory:?}");
        assert_eq!(memory.constant_bytes, 0, "{memory:?}");
    }
    let found = session.run(&[("x:0", x())], &["passed:0"]).unwrap();
    assert_eq!(found[0].shape().dims(), [4, SIZE]);
}

#[test]
fn a_constant_that_is_fed_reaches_the_readers_of_its_identities() {
    let session = session(&product("", [true, true]), 1);
    let fetches = ["plain:0", "passed:0"];
    let as_built = session.run(&[("x:0", x())], &fetches).unwrap();
    let other = Tensor::from_values([SIZE, SIZE], &[1.0f32; SIZE * SIZE]).unwrap();
    for fed in ["weights:0", "read:0", "again:0"] {
        let feeds = [("x:0", x()), (fed, other.clone())];
        let found = session.run(&feeds, &fetches).unwrap();
        let plain = found[0].as_slice::<f32>().unwrap();
        let passed = found[1].as_slice::<f32>().unwrap();
        let sum: f32 = (0..SIZE).map(|i| (i % 5) as f32).sum();
        assert_eq!(passed[0], sum, "{fed}");
        if fed == "weights:0" {
            assert_eq!(plain, passed);
        } else {
            assert_eq!(plain, as_built[0].as_slice::<f32>().unwrap());
        }
        let again = session.run(&[("x:0", x())], &fetches).unwrap();
        assert_eq!(again[1].as_slice::<f32>(), as_built[1].as_slice::<f32>());
    }
}

#[test]
fn an_identity_that_waits_for_something_runs() {
    let b = GraphBuilder::new("waiting");
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let weights = b.named("weights").constant([2], &[1.0f32, 2.0]).unwrap();
    let doubled = b.named("doubled").add(x, x).unwrap();
    let after = b.control_dependencies([doubled]);
    let read = after.named("read").identity(weights).unwrap();
    b.named("sum").add(read, x).unwrap();
    let graph = Arc::new(b.finish());
    assert!(!graph.is_preloaded(node(&graph, "read")));
    let session = session(&graph, 1);
    let plan = session.plan(&["x:0"], &["sum:0"], &[]).unwrap();
    let executed = plan.steps().iter().filter_map(|step| match step.kind {
        StepKind::Execute(node) => Some(graph.node_name(node)),
        _ => None,
    });
    let executed: Vec<&str> = executed.collect();
    assert!(executed.contains(&"doubled"), "{executed:?}");
    let x = Tensor::from_values([2], &[10.0f32, 20.0]).unwrap();
    let found = session.run(&[("x:0", x)], &["sum:0"]).unwrap();
    assert_eq!(found[0].as_slice::<f32>().unwrap(), [11.0, 22.0]);
}
