//! Checks that names of nodes and devices are looked up by `&str`, and compared, without
//! allocating, and that a prepared call allocates little.

#[expect(dead_code, reason = "other suites use the rest")]
#[path = "../support/fakes.rs"]
mod fakes;

use std::hint::black_box;

#[cfg(feature = "kernels")]
use placewright::builder::GraphBuilder;
use placewright::candidates::synthetic;
use placewright::device::DeviceManager;
use placewright::device::DeviceSet;
#[cfg(feature = "kernels")]
use placewright::execute::N_RUNS_TO_SETTLE;
use placewright::names::DeviceId;
use placewright::names::DeviceName;
use placewright::names::MergeMode;
use placewright::names::NameArena;
#[cfg(feature = "kernels")]
use placewright::session::Session;
#[cfg(feature = "kernels")]
use placewright::tensor::Tensor;

use crate::fakes::FakeDevice;

/// Returns the number of allocations of a call on this thread.
fn n_allocations(call: impl FnOnce()) -> u64 {
    allocation_counter::measure(call).count_total
}

fn set() -> DeviceSet {
    let devices = (0..100).map(|index| {
        let name = format!(
            "/job:worker/replica:0/task:{}/device:CPU:{}",
            index / 8,
            index % 8
        );
        FakeDevice::new(&name, "CPU").shared()
    });
    DeviceSet::new(devices)
}

#[test]
fn allocations_are_counted() {
    assert!(n_allocations(|| drop(black_box("a string".to_owned()))) > 0);
}

#[test]
fn nodes_are_found_without_allocating() {
    let graph = synthetic::graph(1_000, 7);
    let last = graph.nodes().next_back().expect("it has nodes");
    let name = graph.node_name(last);
    let allocated = n_allocations(|| {
        assert_eq!(black_box(&graph).find_node(black_box(name)), Some(last));
        assert_eq!(black_box(&graph).find_node(black_box("no such node")), None);
        assert_eq!(black_box(&graph).node_name(last), name);
    });
    assert_eq!(allocated, 0);
}

#[test]
fn devices_are_found_without_allocating() {
    let set = set();
    let legacy = "/job:worker/replica:0/task:12/cpu:3";
    let canonical = "/job:worker/replica:0/task:12/device:CPU:3";
    let allocated = n_allocations(|| {
        assert_eq!(set.find_by_name(black_box(canonical)), Some(DeviceId(99)));
        assert_eq!(set.find_by_name(black_box(legacy)), Some(DeviceId(99)));
        assert_eq!(set.find_by_name(black_box("/device:CPU:3")), None);
    });
    assert_eq!(allocated, 0);
    // A manager also knows the local names.
    let manager = DeviceManager::new(set.iter().map(|(_, device)| device.clone()));
    let allocated = n_allocations(|| {
        for spelling in [canonical, legacy, "/device:CPU:3", "CPU:3"] {
            let found = manager.lookup(black_box(spelling)).expect("it is known");
            assert_eq!(found.name().index, Some(3));
        }
    });
    assert_eq!(allocated, 0);
}

#[test]
fn an_arena_stores_names_once() {
    let mut arena = NameArena::default();
    let names: Vec<String> = (0..10_000)
        .map(|id| format!("layer_{id}/weights"))
        .collect();
    let n_bytes: usize = names.iter().map(String::len).sum();
    let mut info = allocation_counter::measure(|| {
        for name in &names {
            arena.insert(name).expect("far fewer than 4 GiB");
        }
    });
    // The arena grows by doubling; 10,000 separate strings would be 10,000 allocations.
    assert!(info.count_total < 100, "{info:?}");
    assert!(
        (info.bytes_current as usize) < 2 * n_bytes + 200_000,
        "{info:?}"
    );
    info = allocation_counter::measure(|| {
        for (id, name) in names.iter().enumerate() {
            assert_eq!(arena.find(name), Some(id as u32));
        }
        assert_eq!(arena.find("layer"), None);
    });
    assert_eq!(info.count_total, 0);
}

#[test]
fn relations_and_merges_of_names_allocate_nothing() {
    let parse = |text: &str| DeviceName::parse_full(text).expect("a name");
    let full = parse("/job:worker/replica:0/task:1/device:GPU:2");
    let partial = parse("/job:worker/device:GPU:*");
    let mut target = DeviceName::default();
    let allocated = n_allocations(|| {
        assert!(black_box(&partial).matches(black_box(&full)));
        assert!(full.is_compatible_with(&partial));
        assert!(!full.is_different_address_space(&partial));
        // Parts are shared, not copied.
        target.merge_unset(&partial);
        assert!(target.merge(&full, MergeMode::Hard).is_ok());
    });
    assert_eq!((allocated, target), (0, full));
}

/// A call needs its feeds, its results and its bookkeeping, whatever the graph; a run also resolves
/// names and looks for the plan.
#[cfg(feature = "kernels")]
#[test]
fn a_call_allocates_less_than_a_run() {
    let of_graph = |n_nodes: usize| {
        let b = GraphBuilder::new("chain");
        let x = b.placeholder::<f32>("x", [2]).expect("a shape");
        let mut last = x;
        for node in 0..n_nodes {
            let node = b.named(format!("a_rather_long_name_{node}"));
            last = node.relu(last).expect("of the same type");
        }
        b.named("y").neg(last).expect("of the same type");
        let session = Session::builder()
            .with_graph(b.finish())
            .with_device_count("SYCL", 0)
            .with_device_count("GPU", 0)
            .with_inter_op_parallelism_threads(1)
            .build()
            .expect("CPUs have kernels for it");
        let callable = session.callable(&["x"], &["y"]).expect("they exist");
        let x = Tensor::from_values([2], &[-1f32, 1.0]).expect("two values");
        let (feeds, tensors) = ([("x", x.clone())], [x]);
        for _ in 0..2 * N_RUNS_TO_SETTLE {
            callable.call(&tensors).expect("it runs");
        }
        let of_call = n_allocations(|| drop(callable.call(&tensors)));
        let of_run = n_allocations(|| drop(session.run(&feeds, &["y"])));
        assert!(of_call < of_run, "{of_call} of a call, {of_run} of a run");
        of_call
    };
    assert_eq!(of_graph(1), of_graph(300));
}
