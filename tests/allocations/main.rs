//! Checks that names of nodes and devices are looked up by `&str`, and compared, without
//! allocating, and that a prepared call allocates little.

#[expect(dead_code, reason = "other suites use the rest")]
#[path = "../support/fakes.rs"]
mod fakes;

use std::hint::black_box;
#[cfg(feature = "kernels")]
use std::sync::Arc;

#[cfg(feature = "kernels")]
use placewright::backend::cpu::ThreadPoolDeviceFactory;
#[cfg(feature = "kernels")]
use placewright::builder::GraphBuilder;
use placewright::candidates::synthetic;
#[cfg(feature = "kernels")]
use placewright::device::Device;
#[cfg(feature = "kernels")]
use placewright::device::DeviceFactory;
use placewright::device::DeviceManager;
#[cfg(feature = "kernels")]
use placewright::device::DeviceOptions;
use placewright::device::DeviceSet;
#[cfg(feature = "kernels")]
use placewright::device::{Kernel, KernelConstruction, KernelContext, KernelRegistry};
#[cfg(feature = "kernels")]
use placewright::execute::N_RUNS_TO_SETTLE;
#[cfg(feature = "kernels")]
use placewright::graph::{AttrSet, AttrValue};
use placewright::names::DeviceId;
use placewright::names::DeviceName;
use placewright::names::MergeMode;
use placewright::names::NameArena;
#[cfg(feature = "kernels")]
use placewright::session::Session;
#[cfg(feature = "kernels")]
use placewright::tensor::{DType, Shape, Tensor};

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
        // The executor may be measuring which mode is fastest, which allocates, too.
        let least = |call: &dyn Fn()| (0..9).map(|_| n_allocations(call)).min();
        let of_call = least(&|| drop(callable.call(&tensors)));
        let of_run = least(&|| drop(session.run(&feeds, &["y"])));
        let (of_call, of_run) = (of_call.unwrap_or(0), of_run.unwrap_or(0));
        assert!(of_call < of_run, "{of_call} of a call, {of_run} of a run");
        of_call
    };
    assert_eq!(of_graph(1), of_graph(300));
}

/// A loop makes another list in each iteration, while the old one is still there. If it copied all
/// elements, ten times as many iterations would allocate a hundred times as much.
#[cfg(feature = "kernels")]
#[test]
fn a_change_of_a_list_copies_few_of_its_elements() {
    let bytes = |op: &str, n: i32| {
        let lists = Lists::new(op);
        let mut list = lists.reserved(n);
        let element = lists.number(1.5);
        allocation_counter::measure(|| {
            for index in 0..n {
                list = lists.changed(&list, index, &element);
            }
            assert_eq!(black_box(&list).len_bytes(), 4 * n as usize);
        })
        .bytes_total
    };
    for op in ["TensorListSetItem", "TensorListPushBack"] {
        let (few, many) = (bytes(op, 10_000), bytes(op, 100_000));
        // A path from the root of a tree to a leaf, which is one node longer in the larger list.
        assert!(many < 20 * few, "{op}: {few} bytes, {many} bytes");
        assert!(many / 100_000 < 64 << 10, "{op}: {many} bytes");
    }
}

/// A kernel that changes a list of floats.
#[cfg(feature = "kernels")]
struct Lists {
    device: Arc<dyn Device>,
    registry: KernelRegistry,
    op: String,
    kernel: Box<dyn Kernel>,
}

#[cfg(feature = "kernels")]
impl Lists {
    fn new(op: &str) -> Self {
        let factory = ThreadPoolDeviceFactory::default();
        let devices = factory.create(&DeviceOptions::default(), "/job:localhost/replica:0/task:0");
        let device = devices.unwrap().swap_remove(0);
        let mut registry = KernelRegistry::empty();
        factory.register_kernels(&mut registry);
        let kernel = Self::kernel(&registry, &*device, op);
        Self {
            kernel,
            device,
            registry,
            op: op.to_owned(),
        }
    }

    fn kernel(registry: &KernelRegistry, device: &dyn Device, op: &str) -> Box<dyn Kernel> {
        let dtype = AttrValue::Type {
            dtype: DType::F32,
            is_ref: false,
        };
        let attrs = AttrSet::new([("element_dtype".into(), dtype)]);
        let def = registry.find(op, "CPU", &attrs).unwrap().unwrap();
        let factory = def.factory.as_ref().unwrap();
        let construction = KernelConstruction {
            node: "node",
            op,
            attrs: &attrs,
            input_dtypes: &[],
            input_shapes: &[],
            output_dtypes: &[],
            device: device.as_kernel_device().unwrap(),
        };
        factory(&construction).unwrap()
    }

    fn call(&self, kernel: &dyn Kernel, inputs: Vec<Tensor>) -> Tensor {
        let device = self.device.as_kernel_device().unwrap();
        let mut context = KernelContext::new(device, "node", inputs, &[false]);
        device.compute(kernel, &mut context).unwrap();
        context.into_outputs().unwrap().swap_remove(0)
    }

    fn on_device(&self, tensor: &Tensor) -> Tensor {
        let device = self.device.as_kernel_device().unwrap();
        device.default_context().copy_from_host(tensor).unwrap()
    }

    fn number(&self, value: f32) -> Tensor {
        self.on_device(&Tensor::from_values(Shape::scalar(), &[value]).unwrap())
    }

    /// Returns a list of `n` elements for `TensorListSetItem`, and an empty one for others.
    fn reserved(&self, n: i32) -> Tensor {
        let reserve = Self::kernel(&self.registry, &*self.device, "TensorListReserve");
        let n = if self.op == "TensorListSetItem" { n } else { 0 };
        let shape = self.on_device(&Tensor::from_values(Shape::scalar(), &[-1i32]).unwrap());
        let n = self.on_device(&Tensor::from_values(Shape::scalar(), &[n]).unwrap());
        self.call(&*reserve, vec![shape, n])
    }

    fn changed(&self, list: &Tensor, index: i32, element: &Tensor) -> Tensor {
        let index = self.on_device(&Tensor::from_values(Shape::scalar(), &[index]).unwrap());
        let inputs = match &*self.op {
            "TensorListSetItem" => vec![list.clone(), index, element.clone()],
            _ => vec![list.clone(), element.clone()],
        };
        self.call(&*self.kernel, inputs)
    }
}

/// Policies that place online are called for every task.
#[test]
fn picks_of_shipped_policies_allocate_nothing() {
    use placewright_guest::Graph as PolicyGraph;
    use placewright_guest::log::Log;
    use placewright_guest::testing::cluster;
    use placewright_guest::{Completion, DeviceSet as PolicyDevices, OnlinePolicy, ReadyTask};

    fn check<P: OnlinePolicy>() {
        let devices = cluster("2xA,1xB").with_links(5.0, 0.1);
        let mut builder = placewright_guest::testing::GraphBuilder::new(&devices);
        let mut last = None;
        for index in 0..300 {
            let weights = builder.constant("weights", 8);
            let node = builder.node("node", &[10.0, 20.0]);
            builder.edge(weights, node, 8);
            if let Some(last) = last.filter(|_| index % 3 > 0) {
                builder.edge(last, node, 100);
            }
            last = Some(node);
        }
        let (graph, log) = (builder.build(), Log::silent());
        let (graph, devices) = (
            PolicyGraph::new(&graph, &log),
            PolicyDevices::new(&devices, &log),
        );
        let tasks = graph.nodes().filter(|node| node % 2 == 1);
        let tasks: Vec<ReadyTask> = tasks
            .map(|node| ReadyTask {
                run: 1,
                node,
                cost_row: graph.cost_row()[node as usize],
                candidate_set: graph.candidate_set()[node as usize],
                input_bytes: 100,
                home: node % 3,
                now_ns: 10.0 * f64::from(node),
            })
            .collect();
        let mut policy = P::default();
        policy.begin(1, &graph, &devices, 0).unwrap();
        let allocated = n_allocations(|| {
            for task in &tasks {
                let device = policy.pick(task).unwrap();
                let done = Completion {
                    run: 1,
                    node: task.node,
                    device,
                    started_ns: task.now_ns,
                    finished_ns: task.now_ns + 15.0,
                };
                policy.observe(&[done], &[]);
            }
        });
        assert_eq!(allocated, 0, "{}", P::NAME);
    }
    check::<policy_dmda::Dmda>();
    check::<policy_dmdas::Dmdas>();
    check::<policy_lws::Lws>();
    check::<policy_round_robin::RoundRobin>();
}
