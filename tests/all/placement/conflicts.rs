//! Errors about graphs that cannot be placed: the smallest set of conflicting constraints, and the
//! remedy.

use std::sync::Arc;

use placewright::candidates::Conflict;
use placewright::candidates::Constraint;
use placewright::candidates::PlacementOptions;
use placewright::candidates::Suggestion;
use placewright::candidates::conflicts;
use placewright::candidates::unsupported_nodes;
use placewright::graph::Graph;
use placewright::graph::NodeId;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::ops::OpRegistry;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::Builder;
use super::CPU0;
use super::TASK;
use super::candidates;
use super::devices;
use super::kernels;
use super::soft;

fn all(graph: &Arc<Graph>, options: &PlacementOptions) -> Vec<Conflict> {
    conflicts(graph, &devices(), &kernels(), options).unwrap()
}

/// Returns the only conflict of a graph, which is also the error of its placement.
fn only(graph: &Arc<Graph>, options: &PlacementOptions) -> Conflict {
    let found = all(graph, options);
    assert_eq!(found.len(), 1, "{found:?}");
    let error = candidates(graph, options).unwrap_err();
    assert_eq!(error.conflict(), Some(&found[0]), "{error}");
    assert!(error.to_string().contains(&found[0].to_string()), "{error}");
    found.into_iter().next().unwrap()
}

fn strings(conflict: &Conflict) -> Vec<String> {
    conflict
        .constraints
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn suggestions(conflict: &Conflict) -> Vec<String> {
    conflict
        .suggestions
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn a_graph_that_can_be_placed_has_no_refusals() {
    let mut builder = Builder::new();
    let a = builder.on("a", "Any", &[], "/cpu:1");
    builder.with("b", "Any", &[a], "", "a");
    let graph = builder.finish();
    assert_eq!(all(&graph, &PlacementOptions::default()), []);
    assert!(candidates(&graph, &PlacementOptions::default()).is_ok());
}

#[test]
fn a_request_for_a_missing_device_suggests_the_nearest_one() {
    let mut builder = Builder::new();
    builder.on("n", "Any", &[], "/device:GPU:7");
    let found = only(&builder.finish(), &PlacementOptions::default());
    assert_eq!(
        strings(&found),
        [
            "`/device:GPU:7` requested by `n`: no such device; available devices: CPU:0, CPU:1, GPU:0, GPU:1"
        ]
    );
    assert_eq!(
        suggestions(&found),
        ["request `/device:GPU:1` for `n`", "allow soft placement"]
    );
}

/// TensorFlow does not print it.
#[test]
fn a_request_with_only_an_index_is_shown() {
    let mut builder = Builder::new();
    builder.on("n", "Any", &[], "/device:*:7");
    let graph = builder.finish();
    let found = only(&graph, &PlacementOptions::default());
    assert_eq!(
        strings(&found),
        [
            "`/device:*:7` requested by `n`: no such device; available devices: CPU:0, CPU:1, GPU:0, GPU:1"
        ]
    );
    let error = candidates(&graph, &PlacementOptions::default()).unwrap_err();
    assert!(error.to_string().contains("`/device:*:7`"), "{error}");

    let mut builder = Builder::new();
    builder.on("a", "Any", &[], "/device:*:0");
    builder.with("b", "Any", &[], "/device:*:1", "a");
    let graph = builder.finish();
    let error = candidates(&graph, &PlacementOptions::default()).unwrap_err();
    let text = error.to_string();
    for request in ["`/device:*:0`", "`/device:*:1`"] {
        assert!(text.contains(request), "{text}");
    }
    assert!(!text.contains("``"), "{text}");

    let mut builder = Builder::new();
    builder.on("a", "CpuOnly", &[], "/device:*:0");
    builder.with("b", "GpuOnly", &[], "", "a");
    let error = candidates(&builder.finish(), &PlacementOptions::default()).unwrap_err();
    assert!(error.to_string().contains("/device:*:0"), "{error}");

    let mut builder = Builder::new();
    let variable = builder.on("variable", "Var", &[], "/device:*:1");
    let assigned = builder.node("assigned", "Var", &[]);
    builder.node("assign", "Any", &[assigned, variable]);
    let options = PlacementOptions::default().with_pin(assigned, DeviceId(CPU0));
    let error = candidates(&builder.finish(), &options).unwrap_err();
    assert!(error.to_string().contains("/device:*:1"), "{error}");
}

/// Nodes that request `device`, among them some that share a device with others, and some with
/// kernels on CPU devices only; and one without a request.
fn many_requests(device: &str, for_cpu: &str) -> Arc<Graph> {
    let mut builder = Builder::new();
    builder.node("fine", "Any", &[]);
    for index in 0..20 {
        builder.on(&format!("alone{index}"), "Any", &[], device);
    }
    for index in 0..20 {
        builder.with(&format!("tied{index}"), "Any", &[], device, "all");
    }
    for index in 0..5 {
        builder.on(&format!("cpu{index}"), "CpuOnly", &[], for_cpu);
    }
    builder.finish()
}

#[test]
fn an_impossible_request_of_many_nodes_is_one_conflict() {
    let graph = many_requests("/device:TPU:0", "/device:TPU:0");
    let found = only(&graph, &PlacementOptions::default());
    assert_eq!(
        strings(&found),
        [
            "`/device:TPU:0` requested by 45 nodes (`alone0`, `alone1`, `alone2` and 42 more): \
             no device of type TPU; available devices: CPU:0, CPU:1, GPU:0, GPU:1"
        ]
    );
    let Constraint::Request { nodes, .. } = &found.constraints[0] else {
        panic!("{found}");
    };
    assert_eq!((nodes.len(), nodes[44].as_str()), (45, "cpu4"));
    assert_eq!(
        suggestions(&found),
        [
            "request `/device:GPU:0` for 40 nodes (`alone0`, `alone1`, `alone2` and 37 more)",
            "request `/device:CPU:0` for 5 nodes (`cpu0`, `cpu1`, `cpu2` and 2 more)",
            "allow soft placement",
        ]
    );
    let mended = many_requests("/device:GPU:0", "/device:CPU:0");
    assert!(candidates(&mended, &PlacementOptions::default()).is_ok());
    assert!(candidates(&graph, &soft()).is_ok());

    let graph = many_requests("/job:other/device:GPU:0", "");
    let found = only(&graph, &PlacementOptions::default());
    let text = found.to_string();
    assert!(
        text.contains("40 nodes") && text.contains("no device in `/job:other`"),
        "{text}"
    );
}

#[test]
fn nodes_of_one_op_with_the_same_request_and_kernels_are_one_conflict() {
    let mut builder = Builder::new();
    for name in ["a", "b", "c"] {
        builder.on(name, "CpuOnly", &[], "/device:GPU:1");
    }
    builder.on("other", "CpuOnly", &[], "/device:GPU:0");
    for name in ["fine", "fine too"] {
        builder.on(name, "GpuOnly", &[], "/device:GPU:1");
    }
    let found = all(&builder.finish(), &PlacementOptions::default());
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        strings(&found[0]),
        [
            "3 nodes (`a`, `b` and `c`) request `/device:GPU:1`",
            "3 nodes (`a`, `b` and `c`) of op CpuOnly have kernels on [CPU] only",
        ]
    );
    assert_eq!(
        suggestions(&found[0])[0],
        "request `/device:CPU:1` for 3 nodes (`a`, `b` and `c`)"
    );
    assert_eq!(strings(&found[1])[0], "`other` requests `/device:GPU:0`");
}

#[test]
fn nodes_of_an_op_without_a_kernel_are_one_conflict() {
    let mut builder = Builder::new();
    builder.node("a", "Nothing", &[]);
    builder.node("fine", "Any", &[]);
    builder.node("b", "Nothing", &[]);
    builder.node("c", "Nil", &[]);
    let found = all(&builder.finish(), &PlacementOptions::default());
    let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "2 nodes (`a` and `b`) of op Nothing have no kernel => register a kernel of `Nothing` for device type CPU",
            "`c` (Nil) has no kernel => register a kernel of `Nil` for device type CPU",
        ]
    );
}

#[test]
fn a_request_without_a_kernel_is_two_constraints() {
    let mut builder = Builder::new();
    builder.on("n", "CpuOnly", &[], &format!("{TASK}/device:GPU:1"));
    let found = only(&builder.finish(), &PlacementOptions::default());
    assert_eq!(
        strings(&found),
        [
            format!("`n` requests `{TASK}/device:GPU:1`"),
            "`n` (CpuOnly) has kernels on [CPU] only".to_owned(),
        ]
    );
    assert_eq!(
        suggestions(&found),
        [
            format!("request `{TASK}/device:CPU:1` for `n`"),
            "allow soft placement".to_owned(),
            "register a kernel of `CpuOnly` for device type GPU".to_owned(),
        ]
    );
}

#[test]
fn the_shortest_path_of_a_long_chain_is_shown() {
    let mut builder = Builder::new();
    builder.on("first", "Any", &[], "/device:CPU:0");
    // A long path, and a short one.
    let mut before = "first".to_owned();
    for step in 0..30 {
        let name = format!("step{step}");
        builder.with(&name, "Any", &[], "", &before);
        before = name;
    }
    builder.with("middle", "Any", &[], "", "first");
    builder.full(
        "last",
        "Any",
        &[],
        "/device:CPU:1",
        &["middle", &before],
        Work::default(),
    );
    let found = only(&builder.finish(), &PlacementOptions::default());
    assert_eq!(
        strings(&found),
        [
            "`last` requests `/device:CPU:1`",
            "`last` is in colocation group `middle`",
            "`middle` is in colocation group `first`",
            "`first` requests `/device:CPU:0`",
        ]
    );
    assert_eq!(
        suggestions(&found),
        [
            "request `/device:CPU:0` for `last`",
            "request `/device:CPU:1` for `first`",
            "allow soft placement",
            "take `last` out of colocation group `middle`",
            "take `middle` out of colocation group `first`",
        ]
    );
}

#[test]
fn large_groups_and_long_chains_are_explained_too() {
    let mut builder = Builder::new();
    builder.on("n0", "Any", &[], "/cpu:0");
    let n = 3000;
    for index in 1..n {
        let request = if index + 1 == n { "/cpu:1" } else { "" };
        let before = format!("n{}", index - 1);
        builder.with(&format!("n{index}"), "Any", &[], request, &before);
    }
    let found = only(&builder.finish(), &PlacementOptions::default());
    assert_eq!(found.constraints.len(), n + 1);

    let mut builder = Builder::new();
    for index in 0..500 {
        let request = format!("/cpu:{}", index % 2);
        builder.with(&format!("n{index}"), "Any", &[], &request, "all");
    }
    let found = all(&builder.finish(), &PlacementOptions::default());
    assert_eq!(found.len(), 16, "250 requests conflict with 250 others");
    assert!(found.iter().all(|conflict| conflict.constraints.len() == 4));
}

#[test]
fn three_pairwise_compatible_nodes_are_all_shown() {
    let set = {
        let device = |device_type: &str| {
            let name = format!("{TASK}/device:{device_type}:0");
            crate::fakes::FakeDevice::new(&name, device_type).shared()
        };
        let set =
            placewright::device::DeviceSet::new([device("CPU"), device("GPU"), device("SYCL")]);
        Arc::new(set)
    };
    let mut kernels = placewright::device::KernelRegistry::empty();
    for (op, types) in [
        ("NotCpu", ["GPU", "SYCL"]),
        ("NotGpu", ["CPU", "SYCL"]),
        ("NotSycl", ["CPU", "GPU"]),
    ] {
        for device_type in types {
            kernels.register(placewright::device::KernelDef::new(op, device_type));
        }
    }
    let mut builder = Builder::new();
    builder.node("a", "NotCpu", &[]);
    builder.with("b", "NotGpu", &[], "", "a");
    builder.with("c", "NotSycl", &[], "", "a");
    let found = conflicts(
        &builder.finish(),
        &set,
        &kernels,
        &PlacementOptions::default(),
    )
    .unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    let mut nodes: Vec<_> = found[0]
        .constraints
        .iter()
        .filter_map(|constraint| match constraint {
            Constraint::Kernels { op, .. } => Some(op.as_str()),
            _ => None,
        })
        .collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["NotCpu", "NotGpu", "NotSycl"]);
    assert_eq!(found[0].constraints.len(), 5, "{}", found[0]);
}

#[test]
fn a_reference_edge_between_kernels_of_different_devices_is_a_tie() {
    let mut builder = Builder::new();
    let variable = builder.node("v", "Var", &[]);
    builder.node("reader", "CpuOnly", &[variable]);
    builder.with("other", "GpuOnly", &[], "", "v");
    let found = only(&builder.finish(), &PlacementOptions::default());
    let strings = strings(&found);
    assert_eq!(strings.len(), 4, "{strings:?}");
    for expected in [
        "`reader` (CpuOnly) has kernels on [CPU] only",
        "`reader` reads `v:0` (reference) on the device that produces it",
        "`other` is in colocation group `v`",
        "`other` (GpuOnly) has kernels on [GPU] only",
    ] {
        assert!(
            strings.iter().any(|text| text == expected),
            "{expected} in {strings:?}"
        );
    }
}

#[test]
fn a_pin_that_conflicts_names_the_device_to_pin_to() {
    let mut builder = Builder::new();
    let a = builder.node("a", "Any", &[]);
    builder.with("b", "GpuOnly", &[], "", "a");
    let graph = builder.finish();
    let options = PlacementOptions::default().with_pin(a, DeviceId(CPU0));
    let found = only(&graph, &options);
    assert_eq!(
        strings(&found),
        [
            "`b` (GpuOnly) has kernels on [GPU] only".to_owned(),
            "`b` is in colocation group `a`".to_owned(),
            format!("`a` is assigned to `{TASK}/device:CPU:0`"),
        ]
    );
    assert!(
        suggestions(&found).contains(&format!("assign `a` to `{TASK}/device:GPU:0`")),
        "{:?}",
        found.suggestions
    );
}

#[test]
fn every_conflict_of_a_graph_is_listed() {
    let mut builder = Builder::new();
    builder.node("strange", "Nothing", &[]);
    builder.on("far", "Any", &[], "/job:other");
    let a = builder.on("a", "Any", &[], "/cpu:0");
    builder.with("b", "Any", &[a], "/cpu:1", "a");
    builder.with("c", "GpuOnly", &[a], "", "a");
    builder.node("fine", "Any", &[]);
    let graph = builder.finish();
    let found = all(&graph, &PlacementOptions::default());
    let culprits: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 4, "{culprits:#?}");
    assert!(
        culprits[0].starts_with("`strange` (Nothing) has no kernel"),
        "{culprits:#?}"
    );
    // Soft placement drops neither a job nor a missing kernel.
    let soft: Vec<String> = all(&graph, &soft())
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(soft.len(), 2, "{soft:#?}");
    assert!(soft[1].contains("/job:other"), "{soft:#?}");
    assert!(!soft[1].contains("allow soft placement"), "{soft:#?}");
}

#[test]
fn nodes_without_a_kernel_are_listed_together() {
    let mut builder = Builder::new();
    builder.node("known", "Any", &[]);
    builder.node("first", "Nothing", &[]);
    builder.node("second", "Nothing", &[]);
    let options = PlacementOptions::default().with_op_arguments(Arc::new(OpRegistry::default()));
    let graph = builder.finish();
    let found = unsupported_nodes(&graph, &devices(), &kernels(), &options, None).unwrap();
    let rows: Vec<_> = found
        .iter()
        .map(|row| (&*row.node, &*row.op, &*row.reason))
        .collect();
    assert_eq!(
        rows,
        [
            (
                "known",
                "Any",
                "the kernel is registered for placement only; register it with a factory to execute it"
            ),
            ("first", "Nothing", "the op is not defined"),
            ("second", "Nothing", "the op is not defined"),
        ]
    );
    let plain = PlacementOptions::default();
    let found = unsupported_nodes(&graph, &devices(), &kernels(), &plain, None).unwrap();
    assert_eq!(found[2].reason, "no kernel on [GPU, CPU]");
}

/// A node of a random graph; `PROPTEST_CASES` sets the number of graphs.
#[derive(Debug, Clone)]
struct Drawn {
    op: &'static str,
    request: &'static str,
    groups: Vec<String>,
    /// Distances back to the nodes that it reads.
    reads: Vec<usize>,
    pin: Option<u32>,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let op = select(vec!["Any", "Any", "Var", "Var", "CpuOnly", "GpuOnly"]);
    let request = select(vec![
        "",
        "",
        "",
        "/cpu:0",
        "/cpu:1",
        "/gpu:0",
        "/device:GPU:*",
        "/device:GPU:9",
        "/job:localhost",
        "/job:other/cpu:0",
    ]);
    let group = select(vec!["n0", "n1", "n5", "x", "y"]).prop_map(str::to_owned);
    let pin = prop_oneof![9 => Just(None), 1 => (0u32..4).prop_map(Some)];
    (op, request, vec(group, 0..3), vec(1usize..6, 0..3), pin).prop_map(
        |(op, request, groups, reads, pin)| Drawn {
            op,
            request,
            groups,
            reads,
            pin,
        },
    )
}

/// Builds the graph with all drawn constraints, or with only these.
fn built(
    drawn: &[Drawn],
    only: Option<&[&Constraint]>,
    soft: bool,
) -> (Arc<Graph>, PlacementOptions) {
    let has =
        |test: &dyn Fn(&Constraint) -> bool| only.is_none_or(|only| only.iter().any(|it| test(it)));
    let mut builder = Builder::new();
    let mut options = PlacementOptions::default().with_soft_placement(soft);
    // Read instead of the producer of a removed edge: a node that reads nothing is another kind of
    // node, which is placed last.
    let anchor = builder.node("anchor", "Any", &[]);
    for (index, it) in drawn.iter().enumerate() {
        let name = format!("n{index}");
        let kept =
            |test: &dyn Fn(&Constraint, &str) -> bool| has(&|constraint| test(constraint, &name));
        let op = match it.op {
            "CpuOnly" | "GpuOnly"
                if !kept(
                    &|it, name| matches!(it, Constraint::Kernels { nodes, .. } if nodes.iter().any(|node| node == name)),
                ) =>
            {
                "Any"
            }
            op => op,
        };
        let request = match it.request {
            request
                if kept(
                    &|it, name| matches!(it, Constraint::Request { nodes, .. } if nodes.iter().any(|node| node == name)),
                ) =>
            {
                request
            }
            _ => "",
        };
        let groups: Vec<&str> = it
            .groups
            .iter()
            .map(String::as_str)
            .filter(|wanted| {
                kept(&|it, name| matches!(it, Constraint::ColocationGroup { node, group } if node == name && group == wanted))
            })
            .collect();
        let reads: Vec<NodeId> = it
            .reads
            .iter()
            .filter(|&&back| back <= index)
            .map(|back| {
                let producer = index - back;
                let wanted = format!("n{producer}:0");
                let is_kept = drawn[producer].op != "Var"
                    || kept(&|it, name| {
                        matches!(it, Constraint::Edge { tensor, consumer, .. } if *tensor == wanted && consumer == name)
                    });
                match is_kept {
                    true => NodeId(anchor.0 + 1 + u32::try_from(producer).unwrap()),
                    false => anchor,
                }
            })
            .collect();
        let node = builder.full(&name, op, &reads, request, &groups, Work::default());
        if let Some(pin) = it.pin
            && kept(&|it, name| matches!(it, Constraint::Assigned { node, .. } if node == name))
        {
            options = options.with_pin(node, DeviceId(pin));
        }
    }
    (builder.finish(), options)
}

proptest! {
    #[test]
    fn a_conflict_is_real_and_without_any_one_of_its_constraints_there_is_none(
        drawn in vec(drawn(), 1..14),
        soft in any::<bool>(),
    ) {
        let (graph, options) = built(&drawn, None, soft);
        let found = all(&graph, &options);
        prop_assert_eq!(found.is_empty(), candidates(&graph, &options).is_ok());
        for conflict in &found {
            let set: Vec<&Constraint> = conflict.constraints.iter().collect();
            let (graph, options) = built(&drawn, Some(&set), soft);
            prop_assert!(candidates(&graph, &options).is_err(), "no conflict: {}", conflict);
            for without in 0..set.len() {
                let mut others = set.clone();
                let lifted = others.remove(without);
                let (graph, options) = built(&drawn, Some(&others), soft);
                let placed = candidates(&graph, &options);
                prop_assert!(placed.is_ok(), "still without `{lifted}`: {conflict}: {placed:?}");
            }
        }
    }
}

#[test]
fn suggested_remedies_work() {
    let mut builder = Builder::new();
    builder.on("a", "Any", &[], "/device:GPU:0");
    builder.with("b", "CpuOnly", &[], "", "a");
    let found = only(&builder.finish(), &PlacementOptions::default());
    let Some(Suggestion::Request { nodes, request }) = found.suggestions.first() else {
        panic!("{:?}", found.suggestions);
    };
    assert_eq!(
        (&nodes[..], request.as_str()),
        (&["a".to_owned()][..], "/device:CPU:0")
    );
    let mut builder = Builder::new();
    builder.on("a", "Any", &[], request);
    builder.with("b", "CpuOnly", &[], "", "a");
    assert!(candidates(&builder.finish(), &PlacementOptions::default()).is_ok());
}
