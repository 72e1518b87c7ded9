//! Devices that replace nodes of their part of a plan.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use rustc_hash::FxHashSet;

use super::threads;
use crate::device::Device;
use crate::device::DeviceContext;
use crate::device::DeviceError;
use crate::device::DeviceSet;
use crate::device::FusedNode;
use crate::device::KernelDevice;
use crate::device::PartitionGraph;
use crate::execute::ExecuteError;
use crate::execute::Executor;
use crate::execute::PreparedPlan;
use crate::execute::RunOptions;
use crate::execute::fake::FakeDevice;
use crate::execute::fake::FakeWorld;
use crate::execute::fake::Sketch;
use crate::execute::fake::in_front_of_a_fake_device;
use crate::graph::AttrSet;
use crate::graph::Function;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Work;
use crate::partition::RunRequest;
use crate::plan::ExecutionPlan;
use crate::plan::StepKind;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Tensor;

type Rewrite = dyn Fn(&mut PartitionGraph<'_>) -> Result<(), DeviceError> + Send + Sync;

/// A fake CPU that may rewrite its part of plans.
struct Fusing {
    device: Arc<FakeDevice>,
    rewrite: Arc<Rewrite>,
}

impl std::fmt::Debug for Fusing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fusing")
    }
}

in_front_of_a_fake_device!(Fusing);

impl KernelDevice for Fusing {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        self.device.default_context()
    }
    fn maybe_rewrite_graph(
        &self,
        _: &[Function],
        graph: &mut PartitionGraph<'_>,
    ) -> Result<(), DeviceError> {
        (self.rewrite)(graph)
    }
}

/// Kernels that the fusing devices use: `NegNeg` is its input, `NegSum` adds and negates; they
/// count their calls.
struct Fused {
    world: FakeWorld,
    n_calls: Arc<AtomicU64>,
}

impl Fused {
    fn new(types: &[&str]) -> Self {
        let mut world = FakeWorld::new(types);
        let n_calls = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&n_calls);
        world.add("NegNeg", move |_, inputs| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(inputs[0].clone())
        });
        let counter = Arc::clone(&n_calls);
        world.add("NegSum", move |_, inputs| {
            counter.fetch_add(1, Ordering::Relaxed);
            let sum = |at: usize| inputs.iter().map(|input| input[at]).sum::<f32>();
            Ok((0..4).map(|at| -sum(at)).collect())
        });
        Self { world, n_calls }
    }

    fn executor(
        &self,
        graph: &Arc<Graph>,
        rewrite: impl Fn(&mut PartitionGraph<'_>) -> Result<(), DeviceError> + Send + Sync + 'static,
    ) -> Executor {
        let rewrite: Arc<Rewrite> = Arc::new(rewrite);
        let devices = self.world.devices.iter().map(|device| {
            Arc::new(Fusing {
                device: Arc::clone(device),
                rewrite: Arc::clone(&rewrite),
            }) as Arc<dyn Device>
        });
        let devices = Arc::new(DeviceSet::new(devices));
        let registry = Arc::new(self.world.registry.clone());
        Executor::new(Arc::clone(graph), devices, registry, &threads(2)).unwrap()
    }

    fn plan(&self, sketch: &Sketch, request: &RunRequest) -> Arc<ExecutionPlan> {
        let plan = sketch.partition(&self.world.has_one_memory(), request);
        Arc::new(plan.unwrap())
    }

    fn n_calls(&self) -> u64 {
        self.n_calls.swap(0, Ordering::Relaxed)
    }
}

/// Fuses all that it can: pairs of `Neg`, and `Neg` of a `Sum`.
fn fuse_all(graph: &mut PartitionGraph<'_>) -> Result<(), DeviceError> {
    let whole = graph.graph();
    let mut taken = FxHashSet::default();
    for node in graph.nodes().collect::<Vec<_>>() {
        let Some((inner, 0)) = graph.input_node(node, 0) else {
            continue;
        };
        let op = match (whole.op(inner), whole.op(node)) {
            ("Neg", "Neg") => "NegNeg",
            ("Sum", "Neg") => "NegSum",
            _ => continue,
        };
        if taken.contains(&inner) || !graph.is_read_only_by(inner, node) {
            continue;
        }
        taken.extend([inner, node]);
        let n_inputs = whole.data_inputs(inner).count();
        let fused = FusedNode {
            nodes: vec![inner, node],
            op: op.to_owned(),
            attrs: AttrSet::default(),
            inputs: (0..n_inputs).map(|index| (inner, index)).collect(),
        };
        graph
            .fuse(fused)
            .map_err(|error| DeviceError::InvalidArgument(error.to_string()))?;
    }
    Ok(())
}

fn leave(_: &mut PartitionGraph<'_>) -> Result<(), DeviceError> {
    Ok(())
}

fn run(executor: &Executor, prepared: &Arc<PreparedPlan>, x: f32) -> Vec<Vec<f32>> {
    let n_feeds = prepared.plan().feeds().len();
    let feeds = vec![Tensor::from_values([4], &[x; 4]).unwrap(); n_feeds];
    let fetched = executor.run(prepared, &feeds, &RunOptions::default());
    let fetched = fetched.unwrap();
    let values = fetched
        .iter()
        .map(|tensor| tensor.as_slice().unwrap().to_vec());
    values.collect()
}

/// What all plans hold, fused or not.
fn check_invariants(plan: &ExecutionPlan) {
    let mut n_waits = vec![0; plan.steps().len()];
    for (from, _) in plan.steps().iter().enumerate() {
        for &to in plan.successors().row(from) {
            assert!(to as usize > from, "topological order");
            n_waits[to as usize] += 1;
        }
    }
    let mut n_readers = vec![0; plan.values().len()];
    let mut writers = vec![None; plan.values().len()];
    for (id, step) in plan.steps().iter().enumerate() {
        assert_eq!(step.n_waits, n_waits[id]);
        for value in step.outputs() {
            assert_eq!(writers[value.index()].replace(id), None, "one writer");
            assert_eq!(plan.values()[value.index()].device, step.device);
        }
    }
    for (id, step) in plan.steps().iter().enumerate() {
        for value in &step.inputs {
            n_readers[value.index()] += 1;
            let writer = writers[value.index()].unwrap();
            let id = u32::try_from(id).unwrap();
            assert!(
                plan.successors().row(writer).contains(&id),
                "waits for what it reads"
            );
        }
        match step.kind {
            StepKind::Send(id) => {
                let sent = plan.transfers()[id.index()].sent;
                assert!(sent.is_none_or(|sent| writers[sent.index()].is_some()));
            }
            StepKind::Receive(id) => {
                let received = plan.transfers()[id.index()].received;
                assert_eq!(received, step.outputs().next());
            }
            StepKind::Feed(feed) => {
                let steps = &plan.feeds()[feed as usize].steps;
                assert!(steps.iter().any(|step| step.index() == id));
            }
            StepKind::Fetch(_) | StepKind::Execute(_) => {}
        }
    }
    assert!(writers.iter().all(Option::is_some));
    let counted: Vec<u32> = plan.values().iter().map(|value| value.n_readers).collect();
    assert_eq!(counted, n_readers);
    let mut in_partitions: Vec<_> = plan
        .partitions()
        .iter()
        .flat_map(|part| {
            let of_device = |id: &crate::plan::StepId| plan.step(*id).device == part.device;
            assert!(part.steps.iter().all(of_device));
            part.steps.iter().map(|id| id.index())
        })
        .collect();
    in_partitions.sort_unstable();
    assert_eq!(in_partitions, (0..plan.steps().len()).collect::<Vec<_>>());
}

const CHAIN: &str = "
    x = Placeholder() @ 0
    c = Const() @ 0
    n0 = Neg(x) @ 0
    n1 = Neg(n0) @ 0
    s = Sum(n1, c) @ 0
    n2 = Neg(s) @ 0
    n3 = Neg(n2) @ 0
";

#[test]
fn fused_nodes_compute_the_same_in_fewer_steps() {
    let fused = Fused::new(&["CPU"]);
    let sketch = Sketch::parse(CHAIN);
    let plan = fused.plan(&sketch, &sketch.request(&["x"], &["n3"], &[]));
    let plain = fused.executor(&sketch.graph, leave);
    let fusing = fused.executor(&sketch.graph, fuse_all);
    let (plain_plan, fused_plan) = (
        plain.prepare(&plan).unwrap(),
        fusing.prepare(&plan).unwrap(),
    );
    assert_eq!(plain_plan.plan().steps().len(), plan.steps().len());
    // n0 and s are gone.
    assert_eq!(fused_plan.plan().steps().len(), plan.steps().len() - 2);
    check_invariants(fused_plan.plan());
    for round in 0u8..30 {
        let x = f32::from(round);
        let expected = [vec![x + 1.0, x + 2.0, x + 3.0, x + 4.0]];
        assert_eq!(run(&plain, &plain_plan, x), expected);
        assert_eq!(fused.n_calls(), 0);
        assert_eq!(run(&fusing, &fused_plan, x), expected);
        assert_eq!(fused.n_calls(), 2);
    }
}

#[test]
fn plans_of_one_graph_may_fuse_differently() {
    // The device fuses the two into one kernel, into another, and not at all.
    let fused = Fused::new(&["CPU"]);
    let sketch = Sketch::parse("c = Const() @ 0\n a = Neg(c) @ 0\n b = Neg(a) @ 0");
    let wanted: Arc<Mutex<Option<&str>>> = Arc::default();
    let shared = Arc::clone(&wanted);
    let node = |name: &str| sketch.graph.find_node(name).unwrap();
    let (a, b) = (node("a"), node("b"));
    let executor = fused.executor(&sketch.graph, move |graph| {
        if let Some(op) = *shared.lock().unwrap() {
            let fusion = FusedNode {
                nodes: vec![a, b],
                op: op.to_owned(),
                attrs: AttrSet::default(),
                inputs: vec![(a, 0)],
            };
            graph.fuse(fusion).unwrap();
        }
        Ok(())
    });
    let plan = fused.plan(&sketch, &sketch.request(&[], &["b"], &[]));
    let prepared = [None, Some("NegNeg"), Some("NegSum")].map(|op| {
        *wanted.lock().unwrap() = op;
        executor.prepare(&plan).unwrap()
    });
    for _ in 0..3 {
        let values = prepared
            .each_ref()
            .map(|prepared| run(&executor, prepared, 0.0).remove(0)[3]);
        assert_eq!(values, [4.0, 4.0, -4.0]);
    }
}

/// The message when a device fuses `nodes` of the sketch.
fn refusal(text: &str, request: (&[&str], &[&str], &[&str]), nodes: &[&str]) -> String {
    let fused = Fused::new(&["CPU", "CPU"]);
    let sketch = Sketch::parse(text);
    let node = |name: &&str| sketch.graph.find_node(name).unwrap();
    let nodes: Vec<NodeId> = nodes.iter().map(node).collect();
    let executor = fused.executor(&sketch.graph, move |graph| {
        if !graph.nodes().any(|node| node == nodes[nodes.len() - 1]) {
            return Ok(());
        }
        let fusion = FusedNode {
            nodes: nodes.clone(),
            op: "NegNeg".to_owned(),
            attrs: AttrSet::default(),
            inputs: vec![(nodes[0], 0)],
        };
        let fused = graph.fuse(fusion);
        fused.map_err(|error| DeviceError::InvalidArgument(error.to_string()))
    });
    let plan = fused.plan(&sketch, &sketch.request(request.0, request.1, request.2));
    let error = executor.prepare(&plan).map(|_| ()).unwrap_err();
    assert!(matches!(error, ExecuteError::Device { .. }));
    error.to_string()
}

#[test]
fn what_somebody_else_needs_is_not_fused_away() {
    let chain = "x = Placeholder() @ 0\n a = Neg(x) @ 0\n b = Neg(a) @ 0\n";
    let prefix = "device /job:localhost/replica:0/task:0/device:CPU:0 failed at rewriting its part of the graph: fusing `a`, `b` into `NegNeg`: ";
    let message = refusal(chain, (&["x"], &["b", "a"], &[]), &["a", "b"]);
    assert_eq!(message, format!("{prefix}the caller needs `a`, too"));
    let sent = format!("{chain} far = Neg(a) @ 1");
    let message = refusal(&sent, (&["x"], &["b", "far"], &[]), &["a", "b"]);
    assert_eq!(message, format!("{prefix}another device needs `a`, too"));
    let read = format!("{chain} other = Neg(a) @ 0");
    let message = refusal(&read, (&["x"], &["b", "other"], &[]), &["a", "b"]);
    assert_eq!(message, format!("{prefix}`other` needs `a`, too"));
    let waited = format!("{chain} late = Neg(x, ^a) @ 0");
    let message = refusal(&waited, (&["x"], &["b", "late"], &[]), &["a", "b"]);
    assert_eq!(message, format!("{prefix}`late` needs `a`, too"));
}

#[test]
fn nodes_that_are_not_the_devices_or_in_disorder_are_not_fused() {
    let text = "x = Placeholder() @ 0\n far = Neg(x) @ 1\n a = Neg(x) @ 0\n b = Neg(a) @ 0\n unused = Neg(b) @ 0";
    let request: (&[&str], &[&str], &[&str]) = (&["x"], &["b", "far"], &[]);
    let message = |nodes: &[&str]| refusal(text, request, nodes);
    assert!(message(&["b", "a"]).ends_with("`a` is not in topological order"));
    assert!(message(&["a", "a"]).ends_with("`a` is not in topological order"));
    assert!(message(&["far", "b"]).ends_with("`far` is not in this partition"));
    assert!(message(&["unused", "b"]).ends_with("`unused` is not in this partition"));
    let fed: (&[&str], &[&str], &[&str]) = (&["a"], &["b"], &[]);
    assert!(refusal(text, fed, &["a", "b"]).ends_with("`a` is not in this partition"));
}

#[test]
fn stateful_nodes_are_not_fused() {
    let mut assembler = GraphAssembler::new("stateful");
    let outputs = [crate::graph::Output {
        dtype: DType::F32,
        is_ref: false,
        shape: PartialShape::new(&[Some(4)]),
    }];
    let mut previous = None;
    for (name, op) in [("x", "Placeholder"), ("a", "Neg"), ("b", "Neg")] {
        let inputs = previous.map(|node| crate::graph::Input::Data { node, slot: 0 });
        let inputs: Vec<_> = inputs.into_iter().collect();
        let spec = NodeSpec {
            name,
            op,
            inputs: &inputs,
            requested_device: "",
            attrs: AttrSet::default(),
            outputs: &outputs,
            stateful: name == "a",
            work: Work::default(),
        };
        previous = Some(assembler.add_node(&spec).unwrap());
    }
    let sketch = Sketch {
        graph: Arc::new(assembler.finish()),
        devices: vec![0; 3],
        start_order: None,
        streamed: Vec::new(),
    };
    let fused = Fused::new(&["CPU"]);
    let executor = fused.executor(&sketch.graph, fuse_all);
    let plan = fused.plan(&sketch, &sketch.request(&["x"], &["b"], &[]));
    let error = executor.prepare(&plan).unwrap_err().to_string();
    assert!(
        error.ends_with("fusing `a`, `b` into `NegNeg`: `a` is stateful"),
        "{error}"
    );
}

#[test]
fn inputs_of_the_kernel_are_those_that_the_nodes_have_from_outside() {
    let fused = Fused::new(&["CPU"]);
    let sketch = Sketch::parse("c = Const() @ 0\n a = Sum(c, c) @ 0\n b = Sum(a, c) @ 0");
    let plan = fused.plan(&sketch, &sketch.request(&[], &["b"], &[]));
    let node = |name: &str| sketch.graph.find_node(name).unwrap();
    let (a, b, c) = (node("a"), node("b"), node("c"));
    let outcome = |inputs: Vec<(NodeId, usize)>| {
        let executor = fused.executor(&sketch.graph, move |graph| {
            let fusion = FusedNode {
                nodes: vec![a, b],
                op: "NegSum".to_owned(),
                attrs: AttrSet::default(),
                inputs: inputs.clone(),
            };
            let fused = graph.fuse(fusion);
            fused.map_err(|error| DeviceError::InvalidArgument(error.to_string()))
        });
        let prepared = executor.prepare(&plan).map_err(|error| error.to_string())?;
        check_invariants(prepared.plan());
        Ok::<_, String>(run(&executor, &prepared, 0.0).remove(0))
    };
    // The constant, three times and once.
    let all = vec![(a, 0), (a, 1), (b, 1)];
    assert_eq!(outcome(all).unwrap(), [-3.0, -6.0, -9.0, -12.0]);
    assert_eq!(outcome(vec![(b, 1)]).unwrap(), [-1.0, -2.0, -3.0, -4.0]);
    let error = outcome(vec![(b, 0)]).unwrap_err();
    assert!(
        error.ends_with("input 0 of `b` is computed by one of these nodes"),
        "{error}"
    );
    let error = outcome(vec![(a, 2)]).unwrap_err();
    assert!(
        error.ends_with("input 2 of `a` is not an input of these nodes"),
        "{error}"
    );
    let error = outcome(vec![(c, 0)]).unwrap_err();
    assert!(
        error.ends_with("input 0 of `c` is not an input of these nodes"),
        "{error}"
    );
    // A kernel must be there.
    let executor = fused.executor(&sketch.graph, move |graph| {
        let fusion = FusedNode {
            nodes: vec![a, b],
            op: "Unheard".to_owned(),
            attrs: AttrSet::default(),
            inputs: vec![],
        };
        let error = graph.fuse(fusion).unwrap_err().to_string();
        assert_eq!(
            error,
            "fusing `a`, `b` into `Unheard`: no kernel for it on CPU"
        );
        Ok(())
    });
    executor.prepare(&plan).unwrap();
}

#[test]
fn a_device_that_panics_or_gets_a_foreign_plan_is_no_end() {
    let fused = Fused::new(&["CPU"]);
    let (small, large) = (Sketch::parse("c = Const() @ 0"), Sketch::parse(CHAIN));
    let plan = fused.plan(&large, &large.request(&["x"], &["n3"], &[]));
    let executor = fused.executor(&small.graph, fuse_all);
    assert_eq!(
        executor.prepare(&plan).unwrap_err(),
        ExecuteError::ForeignPlan
    );
    let executor = fused.executor(&large.graph, |_| panic!("out of cheese"));
    let error = executor.prepare(&plan).unwrap_err().to_string();
    assert!(
        error.contains("rewriting its part") && error.contains("out of cheese"),
        "{error}"
    );
}

/// A random DAG of `Neg` and `Sum` on two devices, with control edges.
fn random_sketch() -> impl Strategy<Value = (String, usize)> {
    let node = (
        any::<bool>(),
        any::<[prop::sample::Index; 3]>(),
        0..2u8,
        0..4u8,
    );
    prop::collection::vec(node, 2..24).prop_map(|nodes| {
        let mut text = "n0 = Placeholder() @ 0\nn1 = Const() @ 1\n".to_owned();
        let n_nodes = nodes.len() + 2;
        for (number, (is_sum, from, device, control)) in (2..).zip(nodes) {
            // Near ones, so that chains come into being.
            let near = |index: prop::sample::Index| number - 1 - index.index(number.min(3));
            let [first, second, waits] = from.map(near);
            let op = if is_sum {
                format!("Sum(n{first}, n{second}")
            } else {
                format!("Neg(n{first}")
            };
            let control = if control == 0 {
                format!(", ^n{waits}")
            } else {
                String::new()
            };
            text += &format!("n{number} = {op}{control}) @ {device}\n");
        }
        (text, n_nodes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_graphs_fused_are_as_before(
        (text, n_nodes) in random_sketch(),
        fetched in any::<[prop::sample::Index; 2]>(),
    ) {
        let fused = Fused::new(&["CPU", "CPU"]);
        let sketch = Sketch::parse(&text);
        let fetched = fetched.map(|index| format!("n{}", index.index(n_nodes)));
        let last = format!("n{}", n_nodes - 1);
        let request = sketch.request(&["n0"], &[&fetched[0], &fetched[1], &last], &[]);
        let plan = fused.plan(&sketch, &request);
        check_invariants(&plan);
        let plain = fused.executor(&sketch.graph, leave);
        let fusing = fused.executor(&sketch.graph, fuse_all);
        let (plain_plan, fused_plan) = (plain.prepare(&plan).unwrap(), fusing.prepare(&plan).unwrap());
        check_invariants(fused_plan.plan());
        let n_fused = plan.steps().len() - fused_plan.plan().steps().len();
        for x in [0.5, 3.0] {
            let expected = run(&plain, &plain_plan, x);
            prop_assert_eq!(fused.n_calls(), 0);
            prop_assert_eq!(run(&fusing, &fused_plan, x), expected);
            prop_assert_eq!(fused.n_calls(), n_fused as u64);
        }
    }
}
