//! Devices whose largest allocation is smaller than a tensor of a node.

use std::sync::Arc;

use placewright::candidates::Candidates;
use placewright::candidates::CandidatesError;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::device::Device;
use placewright::device::DeviceAttributes;
use placewright::device::DeviceSet;
use placewright::device::SimpleDevice;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::names::DeviceName;

use super::Builder;
use super::kernels;

const CPU: u32 = 0;
const GPU: u32 = 1;

/// A CPU without a limit, and a GPU that allocates up to 100 bytes in one piece.
fn devices() -> Arc<DeviceSet> {
    let device = |device_type: &str, max_allocation_bytes| {
        let name = DeviceName::full("localhost", 0, 0, device_type, 0);
        let attributes = DeviceAttributes::new(&name, device_type, 1 << 20);
        let device = SimpleDevice::new(attributes).unwrap();
        Arc::new(device.with_max_allocation_bytes(max_allocation_bytes)) as Arc<dyn Device>
    };
    let set = DeviceSet::new([device("CPU", u64::MAX), device("GPU", 100)]);
    Arc::new(set.with_type_priorities([("CPU", 60), ("GPU", 210)]))
}

/// A builder of nodes that output tensors of this size.
fn nodes_of(bytes: usize) -> Builder {
    Builder(GraphAssembler::new("test"), Some(bytes / 4))
}

fn candidates(
    graph: &Arc<Graph>,
    options: &PlacementOptions,
) -> Result<Candidates, CandidatesError> {
    enumerate(graph, &devices(), &kernels(), options)
}

fn message(graph: &Arc<Graph>, options: &PlacementOptions) -> String {
    let error = candidates(graph, options).unwrap_err();
    assert!(
        matches!(error, CandidatesError::TensorTooLarge { .. }),
        "{error}"
    );
    error.to_string()
}

#[test]
fn a_device_is_a_candidate_up_to_its_largest_allocation() {
    for (bytes, expected) in [(100, vec![GPU, CPU]), (104, vec![CPU])] {
        let mut builder = nodes_of(bytes);
        builder.node("a", "Any", &[]);
        let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
        assert_eq!(found.of_node(NodeId(0)), expected, "{bytes}");
    }
}

#[test]
fn readers_and_colocated_nodes_of_a_large_tensor_stay_off_the_device_too() {
    let mut builder = nodes_of(104);
    let large = builder.with("large", "Any", &[], "", "group");
    builder.1 = Some(1);
    builder.node("reader", "Any", &[large]);
    builder.with("colocated", "Any", &[], "", "group");
    builder.node("other", "Any", &[]);
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let sets: Vec<&[u32]> = (0..4).map(|node| found.of_node(NodeId(node))).collect();
    assert_eq!(sets, [&[CPU][..], &[CPU], &[CPU], &[GPU, CPU]]);
}

#[test]
fn a_tensor_in_host_memory_may_be_larger() {
    for host_memory in [false, true] {
        let mut builder = nodes_of(104);
        let large = builder.on("large", "Any", &[], "/device:CPU:0");
        let slots = AttrValue::List([AttrValue::Int(0)].into());
        let attrs = match host_memory {
            true => AttrSet::new([("_input_hostmem".into(), slots)]),
            false => AttrSet::default(),
        };
        let reader = NodeSpec {
            name: "reader",
            op: "Any",
            inputs: &[Input::Data {
                node: large,
                slot: 0,
            }],
            requested_device: "",
            attrs,
            outputs: &[],
            stateful: false,
            work: Work::default(),
        };
        let reader = builder.0.add_node(&reader).unwrap();
        let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
        assert_eq!(found.is_legal(reader, GPU), host_memory);
    }
}

#[test]
fn a_node_that_no_device_can_allocate_for_is_refused_with_both_sizes() {
    let mut builder = nodes_of(1 << 20);
    builder.on("large", "Any", &[], "/device:GPU:0");
    let requested = builder.finish();
    let expected = "node `large`: tensor `large:0` takes 1.0 MiB, but one allocation on \
        `/job:localhost/replica:0/task:0/device:GPU:0` has at most 100 B; split the tensor, or let \
        the node run on another device";
    let hard = PlacementOptions::default();
    assert_eq!(message(&requested, &hard), expected);

    let mut builder = nodes_of(1 << 20);
    let large = builder.node("large", "Any", &[]);
    let graph = builder.finish();
    let pinned = PlacementOptions::default().with_pin(large, DeviceId(GPU));
    assert_eq!(message(&graph, &pinned), expected);
    let pinned = PlacementOptions::default().with_pin(large, DeviceId(CPU));
    let found = candidates(&graph, &pinned).unwrap();
    assert_eq!(found.nodes().pinned, [CPU]);
}
