//! Constants that stay in one memory and are copied in each run to the devices that read them.

use std::sync::Arc;

use placewright::builder::GraphBuilder;
use placewright::candidates::Proposal;
use placewright::device::AllocatorAttributes;
use placewright::device::DeviceOptions;
use placewright::graph::Graph;
use placewright::graph::NodeId;
use placewright::names::DeviceId;
use placewright::placement::Placement;
use placewright::placement::SavedPlacement;
use placewright::placement::check;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::Boolean;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;

use crate::hard_requests::Model;
use crate::hard_requests::assert_agree;
use crate::hard_requests::models;
use crate::hard_requests::with_requests;
use crate::sample::Random;
use crate::sample::cpus;

const SIZE: usize = 64;
const LAYERS: usize = 6;
const WEIGHT_BYTES: u64 = (SIZE * SIZE * 4) as u64;
const HIDDEN_BYTES: u64 = (4 * SIZE * 4) as u64;

/// Six layers that must run on the second CPU; every other one reads its weights behind an
/// identity.
fn layers() -> Arc<Graph> {
    let b = GraphBuilder::new("layers");
    let mut hidden = b.placeholder::<f32>("x", [4, SIZE]).unwrap();
    let second = b.device("/device:CPU:1").unwrap();
    for layer in 0..LAYERS {
        let value = |i: usize| ((i * (layer + 3)) % 7) as f32 * 0.125 - 0.25;
        let weights: Vec<f32> = (0..SIZE * SIZE).map(value).collect();
        let weights = b
            .named(format!("weights{layer}"))
            .constant([SIZE, SIZE], &weights)
            .unwrap();
        let read = match layer % 2 {
            0 => weights,
            _ => second
                .named(format!("read{layer}"))
                .identity(weights)
                .unwrap(),
        };
        let product = second
            .named(format!("product{layer}"))
            .matmul(hidden, read)
            .unwrap();
        hidden = second.named(format!("layer{layer}")).tanh(product).unwrap();
    }
    Arc::new(b.finish())
}

fn x() -> Tensor {
    let values: Vec<f32> = (0..4 * SIZE).map(|i| (i % 5) as f32 * 0.25).collect();
    Tensor::from_values([4, SIZE], &values).unwrap()
}

/// Two CPUs, of which the second has this memory.
fn small(capacity_bytes: u64) -> DeviceOptions {
    let mut options = cpus(2);
    options
        .memory_bytes
        .insert("CPU:1".to_owned(), capacity_bytes);
    options
}

fn on(options: DeviceOptions) -> SessionBuilder {
    Session::builder()
        .with_graph(layers())
        .with_device_options(options)
        .with_recorder(Recorder::on())
}

fn by(builder: SessionBuilder, policy: &str) -> SessionBuilder {
    let policy = ShippedPolicy::find(policy).unwrap();
    builder.with_policy(PolicyRequest::new(policy).with_strict(true))
}

fn run(session: &Session) -> Tensor {
    let mut found = session.run(&[("x:0", x())], &["layer5:0"]).unwrap();
    found.swap_remove(0)
}

/// Bytes of the transfers of all runs so far.
fn moved(session: &Session) -> Vec<u64> {
    let events = session.trace().events.into_iter();
    let moved = events.filter_map(|event| match event.kind {
        EventKind::Transfer { bytes, .. } => Some(bytes),
        _ => None,
    });
    moved.collect()
}

fn in_use_bytes(session: &Session, device: u32) -> u64 {
    let devices = session.devices();
    let device = devices.get(DeviceId(device)).unwrap();
    let allocator = device.allocator(AllocatorAttributes::default());
    allocator.stats().in_use_bytes
}

#[test]
fn policies_stream_weights_where_the_only_device_of_their_readers_is_too_small() {
    let expected = run(&by(on(small(1 << 30)), "priority").build().unwrap());
    // Two copies, one that is kept, and what a layer reads and writes.
    let capacity = 3 * WEIGHT_BYTES + 4 * HIDDEN_BYTES;
    let refused = by(on(small(capacity)), "priority").build().unwrap_err();
    assert!(refused.to_string().contains("memory"), "{refused}");
    for policy in ["heft", "peft", "m-etf", "search", "auto"] {
        let session = by(on(small(capacity)), policy).build().unwrap();
        let placement = session.placement();
        let streamed = placement.streamed().to_vec();
        assert!(
            (3..LAYERS).contains(&streamed.len()),
            "{policy}: {streamed:?}"
        );
        let graph = session.graph();
        for &constant in &streamed {
            assert!(graph.node_name(NodeId(constant)).starts_with("weights"));
            assert_eq!(placement.device(NodeId(constant)), DeviceId(0), "{policy}");
        }
        let plan = session.memory_plan(&["x:0"], &["layer5:0"], &[]).unwrap();
        for memory in &plan.memories {
            let n_kept = match memory.device.0 {
                0 => streamed.len(),
                _ => LAYERS - streamed.len(),
            };
            // What is prepacked is not kept besides, and as large here.
            assert_eq!(
                memory.constant_bytes + memory.prepacked_bytes,
                n_kept as u64 * WEIGHT_BYTES,
                "{policy}"
            );
        }
        for n_runs in 1..4 {
            assert_agree(&run(&session), &expected, policy);
            let moved = moved(&session);
            assert_eq!(moved.len(), n_runs * streamed.len(), "{policy}");
            assert!(moved.iter().all(|&bytes| bytes == WEIGHT_BYTES));
            assert!(in_use_bytes(&session, 1) <= capacity, "{policy}");
        }
        let summary = placement.summary();
        assert_eq!(summary.n_transfers, streamed.len() as u64);
        assert_eq!(summary.transfer_bytes, streamed.len() as u64 * WEIGHT_BYTES);
    }
}

#[test]
fn the_estimate_of_a_run_contains_the_copies() {
    let session = by(on(small(1 << 30)), "priority").build().unwrap();
    let placement = session.placement();
    let graph = session.graph();
    let node = |name: &str| graph.find_node(name).unwrap();
    let mut plan = placement.evaluator();
    let before_ns = plan.makespan_ns();
    let mut devices = placement.devices().to_vec();
    for name in ["weights2", "weights3"] {
        devices[node(name).index()] = 0;
    }
    plan.set_devices(&devices);
    assert_eq!(
        plan.makespan_ns(),
        before_ns,
        "constants are held where they are read"
    );
    plan.set_streamed(&[node("weights3").0, node("weights2").0]);
    let link = placement.candidates().link(DeviceId(0), DeviceId(1));
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let copy_ns = link.latency_ns + WEIGHT_BYTES as f64 * link.ns_per_byte;
    assert!(copy_ns > 0.0);
    let expected_ns = before_ns + 2.0 * copy_ns;
    let found_ns = plan.makespan_ns();
    assert!(
        (found_ns / expected_ns - 1.0).abs() < 1e-9,
        "{found_ns} {expected_ns}"
    );
    assert_eq!(plan.transfer_bytes(), 2 * WEIGHT_BYTES);
    // Moved to their readers, they are not copied.
    plan.move_nodes(&[node("weights2").0, node("weights3").0], 1);
    assert_eq!(plan.makespan_ns(), before_ns);
    assert_eq!(plan.transfer_bytes(), 0);
}

#[test]
fn each_reader_gets_its_own_copy_and_a_branch_that_is_not_taken_gets_none() {
    let b = GraphBuilder::new("branches");
    let x = b.placeholder::<f32>("x", [1, SIZE]).unwrap();
    let flag = b.placeholder::<bool>("flag", [0usize; 0]).unwrap();
    let weights = b
        .named("weights")
        .constant([SIZE, SIZE], &[0.5f32; SIZE * SIZE])
        .unwrap();
    let shared = b
        .named("shared")
        .constant([SIZE, SIZE], &[0.25f32; SIZE * SIZE])
        .unwrap();
    let on_second = b.device("/device:CPU:1").unwrap();
    // As TensorFlow 1 writes it: the branch reads the weights without a switch.
    let switch = on_second.op("Switch").input(x).input(flag);
    let switch = switch.finish().unwrap();
    let usual = b.output::<f32>(switch, 0).unwrap();
    let rare = b.output::<f32>(switch, 1).unwrap();
    let rare = on_second.named("before").neg(rare).unwrap();
    let rare = on_second.named("rare").matmul(rare, weights).unwrap();
    let usual = on_second.named("usual").add(usual, usual).unwrap();
    let merge = on_second.op("Merge").inputs([usual, rare]);
    let chosen = b.output::<f32>(merge.finish().unwrap(), 0).unwrap();
    let product = on_second.named("product").matmul(chosen, shared).unwrap();
    let again = on_second.named("again").matmul(product, shared).unwrap();
    on_second.named("y").neg(again).unwrap();
    let graph = Arc::new(b.finish());
    let base = Session::builder()
        .with_graph(Arc::clone(&graph))
        .with_device_options(cpus(2));
    let base = by(base, "priority").build().unwrap();
    let placed = base.placement();
    let node = |name: &str| placed.graph().find_node(name).unwrap();
    let mut devices = placed.devices().to_vec();
    for name in ["weights", "shared"] {
        devices[node(name).index()] = 0;
    }
    let session = Session::builder()
        .with_graph(Arc::clone(&graph))
        .with_device_options(cpus(2))
        .with_recorder(Recorder::on())
        .with_proposal(Proposal {
            devices,
            streamed: vec![node("weights").0, node("shared").0],
            ..Proposal::default()
        })
        .build()
        .unwrap();
    let values = Tensor::from_values([1, SIZE], &[1.0f32; SIZE]).unwrap();
    let mut n_before = 0;
    for (flag, n_copies) in [(false, 2), (true, 3), (false, 2)] {
        let feeds = [
            ("x:0", values.clone()),
            (
                "flag:0",
                Tensor::from_values([], &[Boolean::from(flag)]).unwrap(),
            ),
        ];
        let found = session.run(&feeds, &["y:0"]).unwrap();
        let expected = base.run(&feeds, &["y:0"]).unwrap();
        assert_agree(&found[0], &expected[0], "y");
        let moved = moved(&session);
        let weights = moved.iter().filter(|&&bytes| bytes == WEIGHT_BYTES).count();
        assert_eq!(weights - n_before, n_copies, "{flag}");
        n_before = weights;
    }
}

#[test]
fn only_constants_can_be_streamed() {
    let session = by(on(small(1 << 30)), "priority").build().unwrap();
    let placement = session.placement();
    let refused = |node: u32| {
        let proposal = Proposal {
            devices: placement.devices().to_vec(),
            streamed: vec![node],
            ..Proposal::default()
        };
        let violation = check(placement.candidates(), proposal).unwrap_err();
        assert_eq!(violation.rule(), "streamed");
        (violation.node(), violation.to_string())
    };
    let layer = session.graph().find_node("layer2").unwrap();
    let (node, text) = refused(layer.0);
    assert_eq!(node, layer);
    assert!(text.contains("node `layer2` (op Tanh)"), "{text}");
    let read = session.graph().find_node("read1").unwrap();
    assert!(refused(read.0).1.contains("node `read1` (op Identity)"));
    let (node, text) = refused(u32::MAX);
    assert_eq!(node, NodeId(0));
    assert!(text.contains("does not exist"), "{text}");
}

#[test]
fn a_saved_placement_keeps_what_is_streamed() {
    let capacity = 3 * WEIGHT_BYTES + 4 * HIDDEN_BYTES;
    let session = by(on(small(capacity)), "heft").build().unwrap();
    let placement: &Placement = &session.placement();
    let saved = SavedPlacement::new(placement, "heft", 0, []);
    assert_eq!(saved.streamed.len(), placement.streamed().len());
    let text = saved.to_json();
    let read = SavedPlacement::from_json(&text).unwrap();
    assert_eq!(read, saved);
    let again = read.resolve(placement.candidates()).unwrap();
    assert_eq!(again.streamed(), placement.streamed());
    let reused = on(small(capacity))
        .with_saved_placement(read.clone())
        .build()
        .unwrap();
    assert_agree(&run(&reused), &run(&session), "reused");
    let mut other = read;
    other.streamed = vec!["weights9".to_owned()];
    let error = other.resolve(placement.candidates()).unwrap_err();
    assert!(error.to_string().contains("`weights9`"), "{error}");
}

/// Random nodes on random devices, and a random half of the constants streamed.
#[test]
fn models_give_tensorflows_numbers_whatever_is_streamed() {
    let mut random = Random::new(20_261_127);
    let mut n_streamed = 0;
    for name in models() {
        let model = Model::read(&name);
        let mut options = cpus(3);
        options.intra_op_parallelism_threads = 1;
        let graph_def = with_requests(&model.graph_def, |_| {
            Some(format!("/device:CPU:{}", random.below(3)))
        });
        let builder = || {
            Session::builder()
                .with_graph_def(graph_def.clone())
                .with_device_options(options.clone())
                .with_recorder(Recorder::on())
        };
        let placed = by(builder().with_passes([]), "priority").build().unwrap();
        let (graph, placement) = (placed.graph(), placed.placement());
        let constants = graph
            .nodes()
            .filter(|&node| graph.op(node) == "Const" && graph.is_preloaded(node));
        let streamed: Vec<u32> = constants
            .filter(|_| random.below(2) == 0)
            .map(|node| node.0)
            .collect();
        let session = builder()
            .with_passes([])
            .with_proposal(Proposal {
                devices: placement.devices().to_vec(),
                streamed: streamed.clone(),
                ..Proposal::default()
            })
            .build()
            .unwrap();
        let feeds: Vec<(&str, Tensor)> = model
            .fed
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor.clone()))
            .collect();
        let fetches: Vec<&str> = model
            .expected
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        for n_runs in 1..3 {
            let found = session.run(&feeds, &fetches);
            let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
            for (found, (output, expected)) in found.iter().zip(&model.expected) {
                assert_agree(found, expected, &format!("{name}: {output}"));
            }
            // Branches and loops move other numbers of tensors.
            if !name.starts_with("cf_") && name != "tiny_control_dep" {
                let names: Vec<&str> = feeds.iter().map(|(name, _)| *name).collect();
                let plan = session.plan(&names, &fetches, &[]).unwrap();
                let n_moved = plan.run_transfers().count();
                assert_eq!(moved(&session).len(), n_runs * n_moved, "{name}");
            }
        }
        n_streamed += streamed.len();
    }
    assert!(n_streamed > 150, "{n_streamed}");
}
