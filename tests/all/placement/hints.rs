//! Hints: cases in which TensorFlow's placer does not take the most preferred device.

use placewright::candidates::PlacementHint;
use placewright::candidates::PlacementOptions;
use placewright::graph::NodeId;
use placewright::names::DeviceId;
use placewright::names::DeviceName;

use super::Builder;
use super::CPU1;
use super::candidates;

#[test]
fn hints_mark_generators_and_metadata() {
    let mut builder = Builder::new();
    let source = builder.node("source", "Any", &[]);
    let user = builder.node("user", "Any", &[source]);
    let shape = builder.node("shape", "Shape", &[user]);
    let variable = builder.node("variable", "Var", &[]);
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let hints = |node: NodeId| found.nodes().placement_hints[node.index()];
    assert_eq!(hints(source), PlacementHint::GENERATOR);
    assert_eq!(hints(user), 0);
    assert_eq!(hints(shape), PlacementHint::METADATA);
    assert_eq!(
        hints(variable),
        PlacementHint::STATEFUL,
        "a reference is no generator"
    );
    assert_eq!(found.nodes().follow[shape.index()], user.0);
    assert_eq!(found.nodes().follow[user.index()], u32::MAX);
}

/// A pair of nodes with requests, and an `Identity` between them.
#[test]
fn identities_between_equal_requests_follow_their_producers() {
    let follows = |change: &dyn Fn(&mut Builder, NodeId, NodeId), asked: [&str; 3], pin: bool| {
        let mut builder = Builder::new();
        let source = builder.node("source", "Any", &[]);
        let start = builder.on("start", "Any", &[source], asked[0]);
        let identity = builder.on("identity", "Identity", &[start], asked[1]);
        change(&mut builder, start, identity);
        builder.on("end", "Any", &[identity], asked[2]);
        let mut options = PlacementOptions::default();
        if pin {
            options = options.with_pin(identity, DeviceId(CPU1));
        }
        let found = candidates(&builder.finish(), &options).unwrap();
        let nodes = found.nodes();
        let is_hinted = nodes.placement_hints[identity.index()] == PlacementHint::MATCHING_IDENTITY;
        let follow = nodes.follow[identity.index()];
        assert_eq!(follow, if is_hinted { start.0 } else { u32::MAX });
        is_hinted
    };
    let unchanged = |_: &mut Builder, _: NodeId, _: NodeId| {};
    for (asked, expected) in [
        (["", "", ""], true),
        (["/cpu:1", "", "/cpu:1"], true),
        (["/cpu:1", "", "/device:CPU:1"], false),
        (["/cpu:1", "", ""], false),
        (["", "", "/cpu:1"], false),
        (["/cpu:1", "/cpu:1", "/cpu:1"], false),
    ] {
        assert_eq!(follows(&unchanged, asked, false), expected, "{asked:?}");
    }
    assert!(!follows(&unchanged, [""; 3], true), "pinned");
    let second_consumer = |builder: &mut Builder, _: NodeId, identity: NodeId| {
        builder.node("second", "Any", &[identity]);
    };
    assert!(!follows(&second_consumer, [""; 3], false));
    let waits = |builder: &mut Builder, _: NodeId, identity: NodeId| {
        builder.node_after("waits", "Any", &[identity]);
    };
    assert!(!follows(&waits, [""; 3], false), "control edges count");
}

/// The successor of an unread identity is TensorFlow's sink, which requests nothing. Several
/// control edges between two nodes count as one edge there.
#[test]
fn identities_at_the_end_of_a_graph_follow_producers_without_a_request() {
    let mut builder = Builder::new();
    let source = builder.node("source", "Any", &[]);
    let free = builder.node("free", "Any", &[source]);
    let last = builder.node("last", "Identity", &[free]);
    let asks = builder.on("asks", "Any", &[source], "/cpu:1");
    let other = builder.node("other", "Identity", &[asks]);
    let waited_for = builder.node("waited_for", "Identity", &[free]);
    builder.node_after("waits", "Any", &[waited_for, waited_for]);
    let graph = builder.finish();
    let found = candidates(&graph, &PlacementOptions::default()).unwrap();
    let follow = &found.nodes().follow;
    assert_eq!(follow[last.index()], free.0);
    assert_eq!(follow[other.index()], u32::MAX);
    assert_eq!(follow[waited_for.index()], free.0);

    // Inside a scope every node requests a device.
    let scope = DeviceName::parse_full("/device:CPU:*").unwrap();
    let options = PlacementOptions::default().with_device_scope(scope);
    let found = candidates(&graph, &options).unwrap();
    assert!(found.nodes().follow.iter().all(|&node| node == u32::MAX));
}
