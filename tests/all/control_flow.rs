//! Branches, loops and calls: results of TensorFlow, what policies see, and what is refused.

use std::path::Path;
use std::sync::Arc;

use placewright::Error;
use placewright::builder::GraphBuilder;
use placewright::candidates::Candidates;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::device::DeviceOptions;
use placewright::device::DeviceSet;
use placewright::execute::ExecuteError;
use placewright::functions::lower;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::Function;
use placewright::graph::FunctionArg;
use placewright::graph::FunctionNode;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::LoopError;
use placewright::graph::NONE;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::import::ImportOptions;
use placewright::import::import_graph;
use placewright::names::DeviceId;
use placewright::ops::OpRegistry;
use placewright::partition::PartitionError;
use placewright::registry::Registry;
use placewright::session::InstantiateOptions;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::DType;
use placewright::tensor::Literal;
use placewright::tensor::LiteralData;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;
use placewright::trace::Recorder;

use crate::fakes::FakeDevice;
use crate::hard_requests::Model;
use crate::hard_requests::assert_agree;
use crate::sample::Random;
use crate::sample::seed;

fn cpus(n: u32) -> SessionBuilder {
    let mut options = DeviceOptions::default();
    let counts = [("CPU", n), ("SYCL", 0), ("GPU", 0)];
    let counts = counts.map(|(device_type, n)| (device_type.to_owned(), n));
    options.device_count.extend(counts);
    Session::builder().with_device_options(options)
}

fn bytes_of(folder: &str, file: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests")
        .join(folder);
    std::fs::read(folder.join(file)).unwrap()
}

/// These graphs request devices inside of their branches and loops; the values are those of
/// TensorFlow 2.21 with four CPU devices.
#[test]
fn graphs_that_request_devices_inside_of_bodies_give_tensorflows_values() {
    let on_four_devices = |file: &str, feeds: &[(&str, Tensor)]| {
        let graph_def = bytes_of("conformance/graphs", file);
        let session = cpus(4).with_graph_def(graph_def).build().unwrap();
        let found = session.run(feeds, &["y:0"]).unwrap();
        found[0].as_slice::<f32>().unwrap().to_vec()
    };
    let x = Tensor::from_values([2], &[1f32, 2.0]).unwrap();
    for (taken, expected) in [(true, [2.718_281_7_f32, 7.389_056]), (false, [-1.0, -2.0])] {
        let feeds = [("x", x.clone()), ("p", truth(taken))];
        for file in ["cond_v1.graph.pb", "cond_v2.graph.pb"] {
            let found = on_four_devices(file, &feeds);
            let is_close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(
                found.iter().zip(&expected).all(is_close),
                "{file}: {found:?}"
            );
        }
    }
    let x = Tensor::from_values([2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    for file in ["while_v1.graph.pb", "while_v2.graph.pb"] {
        let found = on_four_devices(file, &[("x", x.clone())]);
        assert_eq!(
            found,
            [1_294.929_7, 1_887.265_6, 2_830.898_4, 4_125.828],
            "{file}"
        );
    }
}

/// What an inner loop passes out, the outer one may carry to its next iteration: it must keep its
/// place from the start of the outer loop on.
#[test]
fn nested_loops_may_be_on_several_devices() {
    let seed = seed();
    let mut random = Random::new(seed);
    for name in ["cf_nested_v1", "cf_nested_v2"] {
        let model = Model::read(name);
        let fed = model.fed.iter();
        let feeds: Vec<(&str, Tensor)> = fed.map(|(name, fed)| (&**name, fed.clone())).collect();
        let fetches: Vec<&str> = model.expected.iter().map(|(name, _)| &**name).collect();
        let builder = cpus(3).with_graph_def(model.graph_def.clone());
        let placement = builder.clone().build().unwrap().placement();
        let n_nodes = placement.graph().n_nodes();
        for number in 0..40 {
            let what = format!("{name}, placement {number} of seed {seed}");
            let mut plan = placement.evaluator();
            for _ in 0..1 + random.below(8) {
                let (from, device) = (random.below(n_nodes), random.below(3));
                let to = n_nodes.min(from + 1 + random.below(n_nodes / 4));
                let nodes = from as u32..to as u32;
                plan.move_nodes(&nodes.collect::<Vec<_>>(), device as u32);
            }
            plan.offer().unwrap();
            let placed = builder.clone().with_proposal(plan.into_proposal().unwrap());
            let found = placed.build().unwrap().run(&feeds, &fetches).unwrap();
            for (found, (output, expected)) in found.iter().zip(&model.expected) {
                assert_agree(found, expected, &format!("{what}: {output}"));
            }
        }
    }
}

fn candidates(graph: &Arc<Graph>) -> Candidates {
    let device = |index| {
        let name = format!("/job:localhost/replica:0/task:0/device:CPU:{index}");
        FakeDevice::new(&name, "CPU").shared()
    };
    let devices = Arc::new(DeviceSet::new((0..4).map(device)));
    let kernels = Registry::default().kernels();
    enumerate(graph, &devices, &kernels, &PlacementOptions::default()).unwrap()
}

#[test]
fn policies_see_loops_and_how_often_nodes_are_executed() {
    for file in ["while_v1.graph.pb", "while_v2.graph.pb"] {
        let ops = OpRegistry::default();
        let bytes = bytes_of("conformance/graphs", file);
        let graph = import_graph(bytes, &ops, &ImportOptions::default()).unwrap();
        let graph = Arc::new(lower(&graph, &ops).unwrap());
        let candidates = candidates(&graph);
        let columns = candidates.nodes();
        assert_eq!(columns.frame_parents, [NONE], "{file}");
        // The loop counts from 0 to 2.
        for (op, in_loop, executions) in [
            ("Enter", false, 1.0),
            ("Merge", true, 4.0),
            ("LoopCond", true, 4.0),
            ("MatMul", true, 3.0),
            ("NextIteration", true, 3.0),
            ("Exit", true, 1.0),
        ] {
            let nodes = graph.nodes().filter(|&node| graph.op(node) == op);
            let nodes: Vec<NodeId> = nodes.collect();
            assert!(!nodes.is_empty(), "{file}: {op}");
            for node in nodes {
                let name = graph.node_name(node);
                let frame = if in_loop { 0 } else { NONE };
                assert_eq!(columns.frame[node.index()], frame, "{file}: {name}");
                assert_eq!(
                    columns.executions[node.index()],
                    executions,
                    "{file}: {name}"
                );
            }
        }
    }
}

#[test]
fn a_branch_is_as_likely_as_the_other() {
    let ops = OpRegistry::default();
    let bytes = bytes_of("models", "cf_nested_v2.skel.pb");
    let graph = import_graph(bytes, &ops, &ImportOptions::default()).unwrap();
    let graph = Arc::new(lower(&graph, &ops).unwrap());
    let candidates = candidates(&graph);
    let columns = candidates.nodes();
    // The inner loop is in the outer one.
    assert_eq!(columns.frame_parents, [NONE, 0]);
    let executions = |name: &str| {
        let node = graph.find_node(name).unwrap_or_else(|| panic!("{name}"));
        columns.executions[node.index()]
    };
    let outer = executions("while/next0");
    let inner = executions("while/body/while_0/next0");
    let taken = executions("while/body/while_0/body/cond/then/pivot");
    assert_eq!(taken, executions("while/body/while_0/body/cond/else/pivot"));
    assert_eq!(taken, inner / 2.0);
    // The inner loop counts up to the counter of the outer one: 0 to 9 in ten assumed iterations.
    assert_eq!(outer.round(), 10.0);
    assert!((inner / outer - 4.5).abs() < 1e-9, "{inner} of {outer}");
}

#[test]
fn pins_by_node_id_are_those_of_the_apps_graph() {
    let ops = OpRegistry::default();
    let bytes = bytes_of("models", "cf_while_v2.skel.pb");
    let graph = import_graph(bytes, &ops, &ImportOptions::default()).unwrap();
    let y = graph.find_node("y").unwrap();
    let options = PlacementOptions::default().with_pin(y, DeviceId(1));
    let session = cpus(2).with_graph(graph).with_placement_options(options);
    let session = session.build().unwrap();
    let lowered = session.graph().find_node("y").unwrap();
    assert_ne!(lowered, y, "lowering adds nodes before it");
    assert_eq!(session.placement().device(lowered), DeviceId(1));
}

/// Adds nodes to a graph whose ops are TensorFlow's; the next one waits for these nodes.
struct Nodes(GraphAssembler, Vec<NodeId>);

impl Nodes {
    fn new() -> Self {
        Self(GraphAssembler::new("by hand"), Vec::new())
    }

    fn add(
        &mut self,
        (name, op): (&str, &str),
        dtypes: &[DType],
        inputs: &[(NodeId, u32)],
        attrs: Vec<(&str, AttrValue)>,
    ) -> NodeId {
        let outputs = dtypes.iter().map(|&dtype| Output {
            dtype,
            is_ref: false,
            shape: PartialShape::scalar(),
        });
        let outputs: Vec<Output> = outputs.collect();
        let inputs = inputs
            .iter()
            .map(|&(node, slot)| Input::Data { node, slot });
        let controls = std::mem::take(&mut self.1);
        let inputs = inputs.chain(controls.into_iter().map(Input::Control));
        let inputs: Vec<Input> = inputs.collect();
        let attrs = attrs.into_iter().map(|(name, value)| (name.into(), value));
        let spec = NodeSpec {
            name,
            op,
            inputs: &inputs,
            requested_device: "",
            attrs: AttrSet::new(attrs),
            outputs: &outputs,
            stateful: false,
            work: Work::default(),
        };
        self.0.add_node(&spec).unwrap()
    }

    fn constant(&mut self, name: &str, value: i32) -> NodeId {
        let attrs = vec![("dtype", DType::I32.into()), ("value", literal(value))];
        self.add((name, "Const"), &[DType::I32], &[], attrs)
    }

    fn placeholder(&mut self, name: &str, dtype: DType) -> NodeId {
        self.add(
            (name, "Placeholder"),
            &[dtype],
            &[],
            vec![("dtype", dtype.into())],
        )
    }

    fn int(&mut self, name: &str, op: &str, inputs: &[(NodeId, u32)]) -> NodeId {
        let mut attrs = vec![("T", DType::I32.into())];
        if op == "Merge" {
            attrs.push(("N", 2.into()));
        }
        let dtypes: &[DType] = match op {
            "Switch" | "Merge" => &[DType::I32, DType::I32],
            "Less" => &[DType::Bool],
            _ => &[DType::I32],
        };
        self.add((name, op), dtypes, inputs, attrs)
    }

    fn enter(&mut self, name: &str, frame: &str, input: NodeId) -> NodeId {
        let frame = AttrValue::Bytes(frame.as_bytes().into());
        let attrs = vec![
            ("T", DType::I32.into()),
            ("frame_name", frame),
            ("is_constant", false.into()),
            ("parallel_iterations", 10.into()),
        ];
        self.add((name, "Enter"), &[DType::I32], &[(input, 0)], attrs)
    }

    /// A loop that adds `step` to a variable, `first`, while it is below `limit`. Returns what the
    /// body reads, and the result.
    fn count(&mut self, frame: &str, first: NodeId, limit: NodeId, step: NodeId) -> [NodeId; 2] {
        let name = |part: &str| format!("{frame}/{part}");
        let entered = self.enter(&name("enter"), frame, first);
        let merge = self.int(&name("merge"), "Merge", &[(entered, 0)]);
        let less = self.int(&name("less"), "Less", &[(merge, 0), (limit, 0)]);
        let goes_on = (&*name("goes_on"), "LoopCond");
        let goes_on = self.add(goes_on, &[DType::Bool], &[(less, 0)], Vec::new());
        let switch = self.int(&name("switch"), "Switch", &[(merge, 0), (goes_on, 0)]);
        let sum = self.int(&name("sum"), "AddV2", &[(switch, 1), (step, 0)]);
        let next = self.int(&name("next"), "NextIteration", &[(sum, 0)]);
        self.0.add_back_input(next, 0, merge, 1).unwrap();
        [switch, self.int(&name("exit"), "Exit", &[(switch, 0)])]
    }

    fn session(self) -> Session {
        cpus(1).with_graph(self.0.finish()).build().unwrap()
    }
}

fn literal(value: i32) -> AttrValue {
    let bytes = LiteralData::Dense(Arc::new(value.to_le_bytes()));
    AttrValue::Tensor(Arc::new(
        Literal::new(DType::I32, Shape::scalar(), bytes).unwrap(),
    ))
}

fn int(value: i32) -> Tensor {
    Tensor::from_values(Shape::scalar(), &[value]).unwrap()
}

fn truth(value: bool) -> Tensor {
    Tensor::from_bools(Shape::scalar(), &[value]).unwrap()
}

fn ints(found: &[Tensor]) -> Vec<i32> {
    found
        .iter()
        .flat_map(|tensor| tensor.as_slice::<i32>().unwrap().to_vec())
        .collect()
}

#[test]
fn loops_follow_each_other_and_read_what_is_outside() {
    let mut nodes = Nodes::new();
    let first = nodes.placeholder("first", DType::I32);
    let limit = nodes.placeholder("limit", DType::I32);
    let step = nodes.constant("step", 3);
    let [_, counted] = nodes.count("a", first, limit, step);
    let limit = nodes.int("more", "AddV2", &[(limit, 0), (counted, 0)]);
    nodes.count("b", counted, limit, counted);
    let session = nodes.session();
    for (first, limit, expected) in [(0, 10, [12, 24]), (5, 5, [5, 10]), (7, 1, [7, 14])] {
        let feeds = [("first", int(first)), ("limit", int(limit))];
        let found = session.run(&feeds, &["a/exit", "b/exit"]).unwrap();
        assert_eq!(ints(&found), expected);
    }
}

#[test]
fn loops_may_exchange_their_variables() {
    let b = GraphBuilder::new("exchange");
    let [i, left, right] =
        ["i", "left", "right"].map(|name| b.placeholder::<i32>(name, [0usize; 0]).unwrap());
    let (i, left, right) = b
        .while_loop(
            (i, left, right),
            |b, (i, ..)| b.less(i, 5),
            |b, (i, left, right)| Ok((b.add(i, 1)?, right, left)),
        )
        .unwrap();
    for (name, value) in [("n", i), ("l", left), ("r", right)] {
        b.named(name).identity(value).unwrap();
    }
    let session = cpus(1).with_graph(b.finish()).build().unwrap();
    let fetches = ["n", "l", "r"];
    for (first, expected) in [(0, [5, 20, 10]), (1, [5, 10, 20]), (7, [7, 10, 20])] {
        let feeds = [("i", int(first)), ("left", int(10)), ("right", int(20))];
        assert_eq!(ints(&session.run(&feeds, &fetches).unwrap()), expected);
    }
}

#[test]
fn traces_show_loops_with_their_iterations() {
    let mut nodes = Nodes::new();
    let first = nodes.placeholder("first", DType::I32);
    let limit = nodes.placeholder("limit", DType::I32);
    let step = nodes.constant("step", 1);
    nodes.count("a", first, limit, step);
    let session = cpus(1)
        .with_graph(nodes.0.finish())
        .with_recorder(Recorder::on())
        .build()
        .unwrap();
    let feeds = [("first", int(0)), ("limit", int(2))];
    session.run(&feeds, &["a/exit"]).unwrap();
    let mut json = Vec::new();
    session.trace().write_chrome(&mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let events = json["traceEvents"].as_array().unwrap().iter();
    let mut loops: Vec<_> = events.filter(|event| event["cat"] == "loop").collect();
    loops.sort_by_key(|event| event["name"].as_str().map(str::to_owned));
    let names: Vec<_> = loops.iter().map(|event| &event["name"]).collect();
    // The third iteration finds that the loop ends.
    let iterations = ["a", "a: iteration 0", "a: iteration 1", "a: iteration 2"];
    assert_eq!(names, iterations);
    let range = |event: &serde_json::Value| {
        let [start, duration] = ["ts", "dur"].map(|key| event[key].as_f64().unwrap());
        (start, start + duration + 1e-3)
    };
    let whole = range(loops[0]);
    for iteration in &loops[1..] {
        let iteration_range = range(iteration);
        assert!(whole.0 <= iteration_range.0 && iteration_range.1 <= whole.1 + 1e-3);
        assert_eq!(iteration["tid"], loops[0]["tid"], "slices nest in one lane");
    }
}

/// A function that returns 7, whatever its argument is.
fn seven() -> Function {
    let arg = |name: &str| FunctionArg {
        name: name.into(),
        spec: "int32".into(),
        is_ref: false,
    };
    let constant = FunctionNode {
        name: "value".into(),
        op: "Const".into(),
        inputs: Vec::new(),
        device: "".into(),
        attrs: AttrSet::new([
            ("dtype".into(), DType::I32.into()),
            ("value".into(), literal(7)),
        ]),
    };
    Function {
        name: "seven".into(),
        args: vec![arg("x")],
        results: vec![arg("y")],
        nodes: vec![constant],
        returns: vec![("y".into(), "value:output:0".into())],
        control_returns: Vec::new(),
        attrs: AttrSet::default(),
        stateful: false,
    }
}

fn waits_for(graph: &Graph, node: &str, other: &str) -> bool {
    let [node, other] = [node, other].map(|name| graph.find_node(name).unwrap().0);
    let mut reached = vec![node];
    let mut next = 0;
    while let Some(&node) = reached.get(next) {
        next += 1;
        reached.extend_from_slice(graph.predecessors().row(node as usize));
    }
    reached.contains(&other)
}

#[test]
fn a_result_of_a_call_waits_for_what_the_call_waits_for() {
    let mut nodes = Nodes::new();
    let x = nodes.placeholder("x", DType::I32);
    let before = nodes.add(("before", "NoOp"), &[], &[], Vec::new());
    nodes.1 = vec![before];
    let types = || AttrValue::List([DType::I32.into()].into());
    let called = AttrValue::Function("seven".into(), AttrSet::default());
    let attrs = vec![("Tin", types()), ("Tout", types()), ("f", called)];
    let call = nodes.add(("call", "PartitionedCall"), &[DType::I32], &[(x, 0)], attrs);
    nodes.int("after", "Identity", &[(call, 0)]);
    nodes.0.add_function(seven());
    let lowered = lower(&nodes.0.finish(), &OpRegistry::default()).unwrap();
    assert!(waits_for(&lowered, "after", "before"));
}

/// The builders of TensorFlow 1 give constants of a loop a control edge from its first variable.
#[test]
fn constants_of_a_loop_are_made_once_if_its_condition_keeps_their_readers_in_it() {
    let mut nodes = Nodes::new();
    let limit = nodes.constant("limit", 5);
    let first = nodes.placeholder("first", DType::I32);
    let merges = ["i", "x"].map(|name| {
        let entered = nodes.enter(&format!("{name}/enter"), "a", first);
        nodes.int(&format!("{name}/merge"), "Merge", &[(entered, 0)])
    });
    let less = nodes.int("less", "Less", &[(merges[0], 0), (limit, 0)]);
    let goes_on = nodes.add(
        ("goes_on", "LoopCond"),
        &[DType::Bool],
        &[(less, 0)],
        Vec::new(),
    );
    let [i, x] = [("i", merges[0]), ("x", merges[1])].map(|(name, merge)| {
        nodes.int(
            &format!("{name}/switch"),
            "Switch",
            &[(merge, 0), (goes_on, 0)],
        )
    });
    for (name, pivot, variable, merge) in [("i", x, i, merges[0]), ("x", i, x, merges[1])] {
        let pivot = nodes.int(&format!("{name}/pivot"), "Identity", &[(pivot, 1)]);
        nodes.1 = vec![pivot];
        let two = nodes.constant(&format!("{name}/two"), 2);
        let sum = nodes.int(&format!("{name}/sum"), "AddV2", &[(variable, 1), (two, 0)]);
        let next = nodes.int(&format!("{name}/next"), "NextIteration", &[(sum, 0)]);
        nodes.0.add_back_input(next, 0, merge, 1).unwrap();
        nodes.int(&format!("{name}/exit"), "Exit", &[(variable, 0)]);
    }
    let graph = nodes.0.finish();
    let lowered = lower(&graph, &OpRegistry::default()).unwrap();
    // `x/pivot` passes on `i`, of which the condition is computed: `x` is in the loop with it.
    assert!(!waits_for(&lowered, "x/two", "x/pivot"));
    // `i/pivot` passes on `x`, on which the condition does not depend.
    assert!(waits_for(&lowered, "i/two", "i/pivot"));
    let session = cpus(1).with_graph(graph).build().unwrap();
    let found = session.run(&[("first", int(0))], &["i/exit", "x/exit"]);
    assert_eq!(ints(&found.unwrap()), [6, 6]);
}

/// TensorFlow's call is dead with its argument, and so is a result that does not depend on it.
#[test]
fn a_call_is_in_the_branch_of_its_arguments() {
    let mut nodes = Nodes::new();
    let chooses = nodes.placeholder("chooses", DType::Bool);
    let x = nodes.placeholder("x", DType::I32);
    let switch = nodes.int("switch", "Switch", &[(x, 0), (chooses, 0)]);
    let types = || AttrValue::List([DType::I32.into()].into());
    let called = AttrValue::Function("seven".into(), AttrSet::default());
    let attrs = vec![("Tin", types()), ("Tout", types()), ("f", called)];
    let call = ("call", "PartitionedCall");
    let call = nodes.add(call, &[DType::I32], &[(switch, 0)], attrs);
    nodes.int("merge", "Merge", &[(call, 0), (switch, 1)]);
    nodes.0.add_function(seven());
    let session = nodes.session();
    for (chosen, expected) in [(true, 3), (false, 7)] {
        let feeds = [("chooses", truth(chosen)), ("x", int(3))];
        let found = session.run(&feeds, &["merge"]).unwrap();
        assert_eq!(ints(&found), [expected]);
    }
}

#[test]
fn a_tensor_that_a_branch_did_not_make_cannot_be_fetched() {
    let mut nodes = Nodes::new();
    let taken = nodes.placeholder("taken", DType::Bool);
    let one = nodes.constant("one", 1);
    let switch = nodes.int("switch", "Switch", &[(one, 0), (taken, 0)]);
    let [no, yes] =
        [0, 1].map(|side| nodes.int(["no", "yes"][side as usize], "Neg", &[(switch, side)]));
    nodes.int("either", "Merge", &[(no, 0), (yes, 0)]);
    let session = nodes.session();
    for (taken, live, dead) in [(true, "yes", "no"), (false, "no", "yes")] {
        let feeds = [("taken", truth(taken))];
        let found = session.run(&feeds, &["either", live, "either:1"]).unwrap();
        assert_eq!(ints(&found), [-1, -1, i32::from(taken)]);
        let error = session.run(&feeds, &[dead]).unwrap_err();
        let Error::Execute(ExecuteError::DeadFetch { tensor }) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(tensor, &format!("{dead}:0"));
        assert!(error.to_string().contains("branch"), "{error}");
        // The session still works.
        assert_eq!(ints(&session.run(&feeds, &[live]).unwrap()), [-1]);
    }
}

/// Returns the error of a run.
fn refused(nodes: Nodes, fetch: &str) -> PartitionError {
    match nodes.session().run(&[], &[fetch]) {
        Err(Error::Partition(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn loops_that_cannot_be_executed_are_refused_with_their_nodes() {
    let base = || {
        let mut nodes = Nodes::new();
        let zero = nodes.constant("zero", 0);
        let ten = nodes.constant("ten", 10);
        let one = nodes.constant("one", 1);
        (nodes, [zero, ten, one])
    };

    let (mut nodes, [zero, ten, one]) = base();
    let [in_a, _] = nodes.count("a", zero, ten, one);
    let [in_b, _] = nodes.count("b", zero, ten, one);
    nodes.int("mixed", "AddV2", &[(in_a, 1), (in_b, 1)]);
    let error = refused(nodes, "a/exit");
    assert!(
        matches!(&error, PartitionError::Loop(LoopError::DifferentLoops { node, .. }) if node == "mixed"),
        "{error:?}"
    );

    let (mut nodes, [zero, ten, one]) = base();
    let [in_a, _] = nodes.count("a", zero, ten, one);
    nodes.count("b", in_a, ten, one);
    let again = nodes.enter("again", "b", zero);
    nodes.int("read", "Neg", &[(again, 0)]);
    let error = refused(nodes, "a/exit");
    assert!(
        matches!(&error, PartitionError::Loop(LoopError::SharedFrame { node, .. }) if node == "again"),
        "{error:?}"
    );

    let (mut nodes, [zero, ..]) = base();
    nodes.int("lost", "Exit", &[(zero, 0)]);
    let error = refused(nodes, "lost");
    assert!(
        matches!(&error, PartitionError::Loop(LoopError::OutsideLoop { node, .. }) if node == "lost"),
        "{error:?}"
    );

    let (mut nodes, [zero, ten, one]) = base();
    let [in_a, _] = nodes.count("a", zero, ten, one);
    nodes.int("negated", "Neg", &[(in_a, 1)]);
    let error = refused(nodes, "negated");
    assert!(
        matches!(&error, PartitionError::InsideLoop { tensor, frame } if tensor == "negated:0" && frame == "a"),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("use a result of the loop"),
        "{error}"
    );
}

#[test]
fn functions_of_the_library_are_called_by_handles() {
    let graph_def = bytes_of("models", "cf_functional.skel.pb");
    let session = cpus(2).with_graph_def(graph_def).build().unwrap();
    let graph = session.graph();
    let named = |part: &str| {
        let mut functions = graph.functions().iter();
        let found = functions.find(|function| function.name.contains(part));
        found.unwrap_or_else(|| panic!("{part}")).name.to_string()
    };
    let a = Tensor::from_values([2], &[0.5f32, -1.0]).unwrap();
    // i + 1, and a multiple of a plus i.
    let body = named("inference_b");
    let handle = session
        .instantiate(&body, &InstantiateOptions::default())
        .unwrap();
    let found = handle.run(&[int(4), a.clone()]).unwrap();
    assert_eq!(ints(&found[..1]), [5]);
    let first = found[1].as_slice::<f32>().unwrap().to_vec();
    let again = handle.clone().run(&[int(5), a.clone()]).unwrap();
    let again = again[1].as_slice::<f32>().unwrap();
    assert_eq!([again[0] - first[0], again[1] - first[1]], [1.0, 1.0]);

    let condition = named("inference_c");
    let on_second = InstantiateOptions::default()
        .with_device("/device:CPU:1")
        .with_arg_devices(["/device:CPU:1", "/device:CPU:0"]);
    let handle = session.instantiate(&condition, &on_second).unwrap();
    let infos = handle.callable().feeds();
    assert_eq!([infos[0].dtype, infos[1].dtype], [DType::I32, DType::F32]);
    let found = handle.run(&[int(0), a.clone()]).unwrap();
    assert_eq!(found[0].as_bools().unwrap(), [1]);
    let placement = handle.callable().placement();
    let less = placement
        .graph()
        .find_node("call/Less")
        .expect("the node of the function");
    assert_eq!(placement.device(less), DeviceId(1));

    let error = session
        .instantiate("no such", &InstantiateOptions::default())
        .unwrap_err();
    assert!(error.to_string().contains("it has: "), "{error}");
    let error = handle.run(&[a.clone(), a]).unwrap_err();
    assert!(error.to_string().contains("int32"), "{error}");
}

#[test]
fn a_session_with_loops_is_extended() {
    let ops = OpRegistry::default();
    let bytes = bytes_of("models", "cf_while_v2.skel.pb");
    let graph = Arc::new(import_graph(bytes, &ops, &ImportOptions::default()).unwrap());
    let session = cpus(1).with_graph(Arc::clone(&graph)).build().unwrap();
    let n_nodes = session.graph().n_nodes();
    // The same graph is its own extension, before and after lowering.
    session.extend(graph).unwrap();
    session.extend(session.graph()).unwrap();
    assert_eq!(session.graph().n_nodes(), n_nodes);
}
