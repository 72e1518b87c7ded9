//! Calls of functions that forward resources, and devices that were assigned before.

use std::sync::Arc;

use placewright::candidates::Candidates;
use placewright::candidates::CandidatesError;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::candidates::isolate_function_calls;
use placewright::device::KernelDef;
use placewright::device::StatusCode;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::Function;
use placewright::graph::FunctionArg;
use placewright::graph::FunctionNode;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::ops::OpRegistry;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;

use super::Builder;
use super::CPU0;
use super::CPU1;
use super::GPU0;
use super::GPU1;
use super::TASK;
use super::candidates;
use super::devices;
use super::kernels;

fn dtype() -> AttrValue {
    AttrValue::Type {
        dtype: DType::Resource,
        is_ref: false,
    }
}

fn call_attrs(function: &str) -> AttrSet {
    let types = || AttrValue::List([dtype()].into());
    let function = AttrValue::Function(function.into(), AttrSet::new([("T".into(), dtype())]));
    AttrSet::new([
        ("Tin".into(), types()),
        ("Tout".into(), types()),
        ("f".into(), function),
    ])
}

/// A function with one resource as argument and result, with these nodes `(name, called, input)`. A
/// node that calls nothing is an identity.
fn function(name: &str, nodes: &[(&str, &str, &str)], result: &str) -> Function {
    let arg = |name: &str| FunctionArg {
        name: name.into(),
        spec: "T".into(),
        is_ref: false,
    };
    let node = |&(name, called, input): &(&str, &str, &str)| FunctionNode {
        name: name.into(),
        op: match called {
            "" => "Identity".into(),
            _ => "PartitionedCall".into(),
        },
        inputs: vec![input.into()],
        device: "".into(),
        attrs: match called {
            "" => AttrSet::new([("T".into(), AttrValue::Placeholder("T".into()))]),
            _ => call_attrs(called),
        },
    };
    Function {
        name: name.into(),
        args: vec![arg("x")],
        results: vec![arg("y")],
        nodes: nodes.iter().map(node).collect(),
        returns: vec![("y".into(), result.into())],
        control_returns: Vec::new(),
        attrs: AttrSet::default(),
        stateful: false,
    }
}

/// `handle`, which requests a CPU; `call`, which passes it to a function; `reader`, which reads the
/// function's result.
fn around_call(called: &str, functions: Vec<Function>) -> Arc<Graph> {
    first_around_call(3, called, functions)
}

/// Returns the first `n` of these nodes.
fn first_around_call(n: usize, called: &str, functions: Vec<Function>) -> Arc<Graph> {
    let mut assembler = GraphAssembler::new("call");
    let mut last = None;
    let identity = AttrSet::new([("T".into(), dtype())]);
    for (name, op, device, attrs) in [
        ("handle", "Any", "/device:CPU:1", AttrSet::default()),
        ("call", "PartitionedCall", "", call_attrs(called)),
        ("reader", "Identity", "", identity),
    ]
    .into_iter()
    .take(n)
    {
        let inputs: Vec<Input> = last
            .map(|node| Input::Data { node, slot: 0 })
            .into_iter()
            .collect();
        let added = assembler.add_node(&NodeSpec {
            name,
            op,
            inputs: &inputs,
            requested_device: device,
            attrs,
            outputs: &[Output {
                dtype: DType::Resource,
                is_ref: false,
                shape: PartialShape::unknown(),
            }],
            stateful: false,
            work: Work::default(),
        });
        last = Some(added.unwrap());
    }
    for function in functions {
        assembler.add_function(function);
    }
    Arc::new(assembler.finish())
}

fn enumerated(graph: &Arc<Graph>) -> Result<Candidates, CandidatesError> {
    let ops = Arc::new(OpRegistry::default());
    let mut kernels = kernels();
    kernels.register(KernelDef::new("PartitionedCall", "CPU"));
    kernels.register(KernelDef::new("PartitionedCall", "GPU"));
    let isolated = isolate_function_calls(graph, &*ops)?;
    let graph = isolated.map_or_else(|| Arc::clone(graph), Arc::new);
    let options = PlacementOptions::default().with_op_arguments(ops);
    enumerate(&graph, &devices(), &kernels, &options)
}

fn of(found: &Candidates, node: &str) -> Vec<u32> {
    let node = found.graph().find_node(node).unwrap();
    found.of_node(node).to_vec()
}

#[test]
fn a_resource_passes_through_a_call_whatever_the_order_of_its_body() {
    let nodes = [("a", "", "x"), ("b", "", "a:output:0")];
    for nodes in [nodes, [nodes[1], nodes[0]]] {
        let through = function("through", &nodes, "b:output:0");
        let found = enumerated(&around_call("through", vec![through])).unwrap();
        for node in ["handle", "handle_call", "call_reader", "reader"] {
            assert_eq!(of(&found, node), [CPU1], "{node}");
        }
        // The call itself is not restricted.
        assert_eq!(of(&found, "call"), [GPU0, GPU1, CPU0, CPU1]);
    }
}

/// TensorFlow connects unread nodes to the sink when it reads a graph; identities are added to
/// calls later.
#[test]
fn an_identity_after_a_call_follows_it_if_it_has_a_reader() {
    let follow = |n: usize, identity: &str| {
        let through = function("through", &[("a", "", "x")], "a:output:0");
        let graph = first_around_call(n, "through", vec![through]);
        let found = enumerated(&graph).unwrap();
        let identity = found.graph().find_node(identity).unwrap();
        let producer = found.nodes().follow[identity.index()];
        let is_one = producer != u32::MAX;
        is_one.then(|| found.graph().node_name(NodeId(producer)).to_owned())
    };
    assert_eq!(follow(3, "call_reader").as_deref(), Some("call"));
    assert_eq!(follow(3, "reader").as_deref(), Some("call_reader"));
    assert_eq!(follow(2, "call_0"), None);
    let asks_otherwise = follow(3, "handle_call");
    assert_eq!(asks_otherwise, None);
}

#[test]
fn functions_are_analysed_once_however_often_they_are_called() {
    // Each calls the next one twice: 2^40 calls.
    let name = |level: usize| format!("f{level}");
    let mut functions = vec![function(&name(40), &[], "x")];
    for level in 0..40 {
        let next = name(level + 1);
        let nodes = [("a", &*next, "x"), ("b", &*next, "a:output:0")];
        functions.push(function(&name(level), &nodes, "b:output:0"));
    }
    let found = enumerated(&around_call("f0", functions)).unwrap();
    assert_eq!(of(&found, "reader"), [CPU1]);
}

/// A body that consists of one call.
fn to(called: &str) -> [(&str, &str, &str); 1] {
    [("inner", called, "x")]
}

#[test]
fn functions_that_cannot_be_analysed_are_rejected_by_name() {
    let refused = |called: &str, functions, code, words: &[&str]| {
        let error = enumerated(&around_call(called, functions)).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let (invalid, recursive) = (StatusCode::InvalidArgument, StatusCode::Unimplemented);
    let missing = ["`call`", "`nowhere`", "library"];
    refused("nowhere", Vec::new(), invalid, &missing);
    let there = function("there", &to("back"), "inner:output:0");
    let back = function("back", &to("there"), "inner:output:0");
    let loops = ["`inner`", "`there`", "there > back"];
    refused("there", vec![there, back], recursive, &loops);
    let mut deep: Vec<Function> = (0..1000)
        .map(|n| {
            function(
                &format!("f{n}"),
                &to(&format!("f{}", n + 1)),
                "inner:output:0",
            )
        })
        .collect();
    deep.push(function("f1000", &[], "x"));
    refused("f0", deep, recursive, &["levels"]);
    let cycle = [("a", "", "b:output:0"), ("b", "", "a:output:0")];
    let cyclic = function("cyclic", &cycle, "b:output:0");
    refused("cyclic", vec![cyclic], invalid, &["`cyclic`", "cycle"]);
    for wrong in ["z", "a:output:1", "a:other:0", "a"] {
        let wrong = function("wrong", &[("a", "", "x")], wrong);
        refused(
            "wrong",
            vec![wrong],
            invalid,
            &["`wrong`", "is not a node or tensor"],
        );
    }
}

#[test]
fn devices_are_assigned_by_their_full_names() {
    let mut builder = Builder::new();
    let any = builder.on("any", "Any", &[], "/gpu:1");
    let with_it = builder.with("with it", "Any", &[], "", "any");
    let cpu = builder.node("cpu", "CpuOnly", &[]);
    let missing = builder.node("missing", "Missing", &[]);
    let graph = builder.finish();
    let assigned =
        |node: NodeId, device: &str| PlacementOptions::default().with_assigned_device(node, device);
    let refused = |node, device: &str, words: &[&str]| {
        let error = candidates(&graph, &assigned(node, device)).unwrap_err();
        assert_eq!(error.code(), StatusCode::Internal, "{error}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let gpu = format!("{TASK}/device:GPU:0");
    refused(any, "/gpu:zero", &["`any`", "malformed", "/gpu:zero"]);
    refused(any, "/gpu:0", &["`any`", "`/gpu:0`", &gpu]);
    let nobody = candidates(&graph, &assigned(NodeId(99), &gpu)).unwrap_err();
    assert_eq!(nobody.code(), StatusCode::InvalidArgument, "{nobody}");
    refused(cpu, &gpu, &["`cpu`", "CpuOnly", &gpu]);
    refused(missing, &gpu, &["`missing`", "no registered kernels"]);
    let mut builder = Builder::new();
    builder.on("any", "Any", &[], "/gpu:1");
    builder.with("with it", "Any", &[], "", "any");
    let found = candidates(&builder.finish(), &assigned(any, &gpu)).unwrap();
    assert_eq!(found.of_node(any), [GPU0], "rather than what it asks for");
    assert_eq!(found.of_node(with_it), [GPU0]);
}
