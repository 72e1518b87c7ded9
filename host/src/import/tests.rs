//! Each kind of error, with its message; graphs are encoded with the messages of [`super::proto`].

use bytes::Bytes;
use prost::Message;

use super::ImportError;
use super::ImportOptions;
use super::import_graph;
use super::proto::ArgDef;
use super::proto::AttrDef;
use super::proto::AttrEntry;
use super::proto::AttrValue;
use super::proto::Dim;
use super::proto::FunctionDef;
use super::proto::FunctionDefLibrary;
use super::proto::GraphDef;
use super::proto::ListValue;
use super::proto::NameAttrList;
use super::proto::NodeDef;
use super::proto::OpDef;
use super::proto::TensorProto;
use super::proto::TensorShapeProto;
use super::proto::TextEntry;
use super::proto::Value;
use super::proto::VersionDef;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::ops::OpRegistry;
use crate::tensor::DType;

const FLOAT: Value = Value::Type(1);
const INT32: Value = Value::Type(3);

fn attr(key: &'static str, value: Value) -> AttrEntry {
    let value = AttrValue { value: Some(value) };
    AttrEntry {
        key: key.into(),
        value: value.encode_to_vec().into(),
    }
}

fn node(
    name: &'static str,
    op: &'static str,
    inputs: &[&'static str],
    attrs: Vec<AttrEntry>,
) -> NodeDef {
    NodeDef {
        name: name.into(),
        op: op.into(),
        input: inputs.iter().map(|&input| input.into()).collect(),
        device: Bytes::new(),
        attr: attrs,
    }
}

fn shape(dims: &[i64]) -> TensorShapeProto {
    TensorShapeProto {
        dim: dims.iter().map(|&size| Dim { size }).collect(),
        unknown_rank: false,
    }
}

fn placeholder(name: &'static str, dims: &[i64]) -> NodeDef {
    let attrs = vec![
        attr("dtype", FLOAT),
        attr("shape", Value::Shape(shape(dims))),
    ];
    node(name, "Placeholder", &[], attrs)
}

fn constant(name: &'static str, dims: &[i64], values: &[i32]) -> NodeDef {
    let tensor = TensorProto {
        dtype: 3,
        tensor_shape: Some(shape(dims)),
        int_val: values.to_vec(),
        ..TensorProto::default()
    };
    let attrs = vec![
        attr("dtype", INT32),
        attr("value", Value::Tensor(Box::new(tensor))),
    ];
    node(name, "Const", &[], attrs)
}

fn graph(nodes: Vec<NodeDef>) -> GraphDef {
    GraphDef {
        node: nodes,
        library: None,
        versions: Some(VersionDef { producer: 2000 }),
    }
}

fn import(graph: &GraphDef) -> Result<Graph, ImportError> {
    import_graph(
        graph.encode_to_vec(),
        &OpRegistry::default(),
        &ImportOptions::default(),
    )
}

/// Returns the error message for these nodes.
fn refused(nodes: Vec<NodeDef>) -> String {
    import(&graph(nodes)).unwrap_err().to_string()
}

fn check(nodes: Vec<NodeDef>, expected: &str) {
    assert_eq!(refused(nodes), expected);
}

fn t() -> Vec<AttrEntry> {
    vec![attr("T", FLOAT)]
}

#[test]
fn defaults_are_filled_in_and_ids_follow_the_import_order() {
    let nodes = vec![
        node("y", "MatMul", &["a", "b:0"], t()),
        placeholder("b", &[3, 4]),
        placeholder("a", &[2, 3]),
    ];
    let graph = import(&graph(nodes)).unwrap();
    let names: Vec<_> = graph.node_names().iter().collect();
    assert_eq!(names, ["b", "a", "y"]);
    let y = graph.find_node("y").unwrap();
    assert_eq!(graph.attrs(y).bool("transpose_a"), Some(false));
    assert_eq!(
        graph.tensor_shape(graph.output(y, 0).unwrap()).to_string(),
        "[2,4]"
    );
    // 2 m n k operations; three matrices of 32-bit floats.
    assert_eq!(graph.flops()[y.index()], 48.0);
    assert_eq!(graph.traffic_bytes()[y.index()], 4 * (6 + 12 + 8));
}

#[test]
fn nodes_that_are_no_nodes_are_named() {
    check(
        vec![node("x", "Frobnicate", &[], vec![])],
        "node `x`: op `Frobnicate` is not known; register it in the OpRegistry if it is your own",
    );
    check(
        vec![
            node("x", "Frobnicate", &[], vec![]),
            node("y", "Twiddle", &["x"], vec![]),
            node("z", "Frobnicate", &["y"], vec![]),
            node("w", "Mangle", &["z"], vec![]),
        ],
        "node `x`: op `Frobnicate` is not known, nor are `Mangle`, `Twiddle`; register it in the OpRegistry if it is your own",
    );
    check(
        vec![placeholder("x", &[]), placeholder("x", &[])],
        "nodes 0 and 1 of the file have the same name, `x`",
    );
    check(
        vec![placeholder("a:b", &[])],
        "node 0 is called `a:b`, which is not a valid node name",
    );
    assert!(matches!(
        import(&GraphDef::default()),
        Err(ImportError::Empty)
    ));
}

#[test]
fn inputs_that_do_not_fit_the_op_are_named() {
    check(
        vec![placeholder("x", &[]), node("y", "Relu", &["x", "x"], t())],
        "node `y` (Relu): 2 data inputs; the op takes 1",
    );
    check(
        vec![placeholder("x", &[]), node("y", "Relu", &["x:1"], t())],
        "node `y` (Relu): input 0 `x:1`: the node has no such output",
    );
    check(
        vec![placeholder("x", &[]), node("y", "Relu", &["z"], t())],
        "node `y` (Relu): input 0 `z`: there is no such node",
    );
    check(
        vec![constant("x", &[], &[1]), node("y", "Relu", &["x"], t())],
        "node `y` (Relu): input 0 takes float, but `x` is int32",
    );
    check(
        vec![placeholder("x", &[]), node("y", "Assign", &["x", "x"], t())],
        "node `y` (Assign): input 0 takes a reference to float, but `x` is float",
    );
    check(
        vec![node("y", "Relu", &["y"], t())],
        "the nodes `y` form a cycle",
    );
    check(
        vec![
            placeholder("x", &[]),
            node(
                "y",
                "Pack",
                &["x"],
                vec![attr("T", FLOAT), attr("N", Value::I(1 << 40))],
            ),
        ],
        "node `y` (Pack): 1 data inputs; the op takes 1099511627776",
    );
}

#[test]
fn attributes_that_are_wrong_are_named() {
    let relu = |attrs| vec![placeholder("x", &[]), node("y", "Relu", &["x"], attrs)];
    check(
        relu(vec![]),
        "node `y` (Relu): attribute `T` is missing; the op takes T: type",
    );
    check(
        relu(vec![attr("T", Value::I(1))]),
        "node `y` (Relu): attribute `T` must be of kind type, found int",
    );
    let message = refused(relu(vec![attr("T", Value::Type(7))]));
    assert!(
        message.starts_with("node `y` (Relu): attribute `T` is string; allowed: float, double"),
        "{message}"
    );
    check(
        relu(vec![attr("T", Value::Type(11))]),
        "node `y` (Relu): attribute `T` names element type 11, which is not supported",
    );
    check(
        relu(vec![attr("T", FLOAT), attr("novelty", Value::B(true))]),
        "node `y` (Relu): attribute `novelty` is not an attribute of the op; a newer TensorFlow may have written it",
    );
    let neutral = relu(vec![attr("T", FLOAT), attr("novelty", Value::B(false))]);
    assert!(import(&graph(neutral)).is_ok());
    let own = relu(vec![attr("T", FLOAT), attr("_mine", Value::B(true))]);
    let own = import(&graph(own)).unwrap();
    let y = own.find_node("y").unwrap();
    assert_eq!(own.attrs(y).bool("_mine"), Some(true));
    let broken = AttrEntry {
        key: "T".into(),
        value: Bytes::from_static(&[0x30]),
    };
    let message = refused(relu(vec![broken]));
    assert!(
        message.starts_with("node `y` (Relu): attribute `T` is malformed: "),
        "{message}"
    );
    let mixed = ListValue {
        i: vec![1],
        b: vec![true],
        ..ListValue::default()
    };
    let message = refused(relu(vec![
        attr("T", FLOAT),
        attr("_l", Value::List(Box::new(mixed))),
    ]));
    assert!(
        message.ends_with("attribute `_l` is malformed: a list of mixed kinds"),
        "{message}"
    );
}

#[test]
fn constants_that_are_wrong_are_named() {
    let message = refused(vec![constant("c", &[1], &[1, 2])]);
    assert_eq!(
        message,
        "node `c` (Const): attribute `value` contains an invalid constant: \
         shape [1] of int32 takes at most 4 bytes, found 8 bytes"
    );
    let message = refused(vec![constant("c", &[-1], &[])]);
    assert!(
        message.starts_with("node `c` (Const): attribute `value` contains an invalid shape"),
        "{message}"
    );
    let message = refused(vec![constant("c", &[1 << 40, 1 << 40], &[1])]);
    assert!(
        message.contains("larger than this machine can address"),
        "{message}"
    );
    let mut procedural = constant("c", &[2], &[]);
    procedural
        .attr
        .push(attr("_proc", Value::S("fmix32:1:0:0".into())));
    let message = refused(vec![procedural]);
    assert_eq!(
        message,
        "node `c` (Const): attribute `_proc` contains an invalid constant: \
         a constant of type int32 is not supported"
    );
    let mut procedural = constant("c", &[2], &[5]);
    procedural
        .attr
        .push(attr("_proc", Value::S("fmix32:1:0:0".into())));
    assert!(refused(vec![procedural]).contains("elements of its own"));
    let mut procedural = constant("c", &[2], &[]);
    procedural
        .attr
        .push(attr("_proc", Value::S("nonsense".into())));
    assert!(refused(vec![procedural]).contains("`nonsense` is not a procedural constant"));
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    check(
        vec![
            placeholder("a", &[2, 3]),
            placeholder("b", &[4, 5]),
            node("y", "MatMul", &["a", "b"], t()),
        ],
        "node `y` (MatMul): inner dimensions must agree; they are 3 and 4 (shapes [2,3] and [4,5]); \
         input shapes are [2,3], [4,5]",
    );
    let mut declared = node("y", "Relu", &["x"], t());
    let shapes = ListValue {
        shape: vec![shape(&[3])],
        ..ListValue::default()
    };
    declared
        .attr
        .push(attr("_output_shapes", Value::List(Box::new(shapes))));
    check(
        vec![placeholder("x", &[2]), declared.clone()],
        "node `y` (Relu): the output has shape [2], but the file's `_output_shapes` specify [3]; input shapes are [2]",
    );
    let helped = import(&graph(vec![placeholder("x", &[-1]), declared])).unwrap();
    let y = helped.find_node("y").unwrap();
    assert_eq!(
        helped
            .tensor_shape(helped.output(y, 0).unwrap())
            .to_string(),
        "[3]"
    );
    assert!(helped.attrs(y).get("_output_shapes").is_none());
}

#[test]
fn a_small_file_cannot_ask_for_billions_of_outputs() {
    let attrs = vec![attr("T", FLOAT), attr("num_split", Value::I(1 << 31))];
    check(
        vec![
            constant("axis", &[], &[0]),
            placeholder("x", &[-1]),
            node("y", "Split", &["axis", "x"], attrs),
        ],
        "node `y` (Split): too many outputs for a file of this size",
    );
}

#[test]
fn functions_nest_only_so_deep() {
    let mut func = NameAttrList::default();
    for _ in 0..200 {
        func = NameAttrList {
            name: "f".into(),
            attr: vec![attr("f", Value::Func(func))],
        };
    }
    let attrs = vec![attr("T", FLOAT), attr("_f", Value::Func(func))];
    let message = refused(vec![
        placeholder("x", &[]),
        node("y", "Relu", &["x"], attrs),
    ]);
    assert_eq!(
        message,
        "node `y` (Relu): attribute `_f` nests functions more than 32 levels deep"
    );
}

/// `twice(x: T) -> y: T` with one node.
fn twice(body_op: &'static str) -> FunctionDef {
    let arg = |name: &str| ArgDef {
        name: name.to_owned(),
        type_attr: "T".to_owned(),
        ..ArgDef::default()
    };
    let attr_def = AttrDef {
        name: "T".to_owned(),
        r#type: "type".to_owned(),
        ..AttrDef::default()
    };
    FunctionDef {
        signature: Some(OpDef {
            name: "twice".to_owned(),
            input_arg: vec![arg("x")],
            output_arg: vec![arg("y")],
            attr: vec![attr_def],
            ..OpDef::default()
        }),
        node_def: vec![node(
            "sum",
            body_op,
            &["x", "x"],
            vec![attr("T", Value::Placeholder("T".into()))],
        )],
        ret: vec![TextEntry {
            key: "y".to_owned(),
            value: "sum:z:0".to_owned(),
        }],
        ..FunctionDef::default()
    }
}

fn with_library(nodes: Vec<NodeDef>, function: Vec<FunctionDef>) -> GraphDef {
    GraphDef {
        library: Some(FunctionDefLibrary { function }),
        ..graph(nodes)
    }
}

#[test]
fn functions_are_kept_and_called_by_name() {
    let nodes = vec![placeholder("x", &[2]), node("y", "twice", &["x"], t())];
    let graph = import(&with_library(nodes, vec![twice("AddV2")])).unwrap();
    let function = graph.find_function("twice").unwrap();
    assert_eq!(
        (&*function.args[0].name, &*function.args[0].spec),
        ("x", "T")
    );
    assert_eq!(&*function.returns[0].1, "sum:z:0");
    assert_eq!(&*function.nodes[0].inputs[1], "x");
    let y = graph.find_node("y").unwrap();
    let output = graph.output(y, 0).unwrap();
    assert_eq!(graph.tensor_dtypes()[output.index()], DType::F32);
}

#[test]
fn functions_that_are_wrong_are_named() {
    let refused = |nodes, functions| {
        import(&with_library(nodes, functions))
            .unwrap_err()
            .to_string()
    };
    let x = || vec![placeholder("x", &[2])];
    let call = || vec![placeholder("x", &[2]), node("y", "twice", &["x"], t())];
    assert_eq!(
        refused(call(), vec![twice("Nonsense")]),
        "function `twice`: node `sum`: op `Nonsense` is not known; \
         register it in the OpRegistry if it is your own"
    );
    assert_eq!(
        refused(x(), vec![twice("AddV2"), twice("Mul")]),
        "function `twice` of the library has the name of another function or op"
    );
    let mut without_name = twice("AddV2");
    without_name.signature = None;
    assert_eq!(
        refused(x(), vec![without_name]),
        "function `function 0 of the library`: the signature has no name"
    );
    let mut of_two_kinds = twice("AddV2");
    let signature = of_two_kinds.signature.as_mut().unwrap();
    signature.input_arg[0].number_attr = "N".to_owned();
    signature.input_arg[0].type_list_attr = "T".to_owned();
    let problem = refused(x(), vec![of_two_kinds]);
    assert!(problem.contains("both a list of types"), "{problem}");
    let mut without_result = twice("AddV2");
    without_result.ret.clear();
    assert_eq!(
        refused(x(), vec![without_result]),
        "function `twice`: the signature has result `y`, but no node is assigned to it"
    );
    let list = |types: Vec<i32>| {
        Value::List(Box::new(ListValue {
            r#type: types,
            ..ListValue::default()
        }))
    };
    let func = NameAttrList {
        name: "thrice".into(),
        attr: vec![],
    };
    let attrs = vec![
        attr("Tin", list(vec![1])),
        attr("Tout", list(vec![1])),
        attr("f", Value::Func(func)),
    ];
    let nodes = vec![
        placeholder("x", &[]),
        node("call", "PartitionedCall", &["x"], attrs),
    ];
    assert_eq!(
        refused(nodes, vec![]),
        "node `call` (PartitionedCall): attribute `f` names function `thrice`, which is not in the library"
    );
}

#[test]
fn a_function_that_comes_twice_is_one_function() {
    let nodes = || vec![placeholder("x", &[2]), node("y", "twice", &["x"], t())];
    let mut again = twice("AddV2");
    let label = |value: &'static str| attr(value, Value::S(value.into()));
    // Entries of maps come in any order.
    let mut first = twice("AddV2");
    first.attr = vec![label("a"), label("b")];
    again.attr = vec![label("b"), label("a")];
    let library = vec![first.clone(), again.clone(), first.clone()];
    let graph = import(&with_library(nodes(), library)).unwrap();
    assert_eq!(graph.functions().len(), 1);
    again.attr.pop();
    let error = import(&with_library(nodes(), vec![first, again])).unwrap_err();
    assert!(matches!(error, ImportError::DuplicateFunction(_)));
}

#[test]
fn functions_that_nobody_calls_may_have_ops_that_are_not_known() {
    let nodes = vec![placeholder("x", &[2])];
    let graph = import(&with_library(nodes.clone(), vec![twice("Nonsense")])).unwrap();
    assert!(graph.find_function("twice").is_none());
    let graph = import(&with_library(nodes, vec![twice("AddV2")])).unwrap();
    assert!(graph.find_function("twice").is_some());
}

#[test]
fn the_library_counts_towards_the_limit_of_nodes() {
    let nodes = vec![placeholder("x", &[2])];
    let graph = with_library(nodes, vec![twice("AddV2")]).encode_to_vec();
    let import = |n_nodes_max| {
        let options = ImportOptions::default().with_n_nodes_max(n_nodes_max);
        import_graph(graph.clone(), &OpRegistry::default(), &options)
    };
    let problem = import(1).unwrap_err().to_string();
    assert!(problem.contains("function 0 of the library"), "{problem}");
    import(2).unwrap();
}

#[test]
fn small_files_stay_small() {
    // Each node has twice the dimensions of the one before.
    let names: Vec<&'static str> = (0..34).map(|i| &*format!("d{i}").leak()).collect();
    let mut nodes = vec![placeholder(names[0], &[1])];
    for pair in names.windows(2) {
        nodes.push(node(pair[1], "Diag", &[pair[0]], t()));
    }
    let problem = refused(nodes);
    assert!(problem.contains("256 dimensions; at most 254"), "{problem}");
    let unpack = vec![
        attr("T", FLOAT),
        attr("num", Value::I(65_000)),
        attr("axis", Value::I(0)),
    ];
    let nodes = vec![
        placeholder("x", &[-1; 254]),
        node("y", "Unpack", &["x"], unpack),
    ];
    let problem = refused(nodes);
    assert!(problem.contains("outputs"), "{problem}");
    let strings = |values: &[&'static str], n| {
        let tensor = TensorProto {
            dtype: 7,
            tensor_shape: Some(shape(&[n])),
            string_val: values.iter().map(|&text| text.into()).collect(),
            ..TensorProto::default()
        };
        let attrs = vec![
            attr("dtype", Value::Type(7)),
            attr("value", Value::Tensor(Box::new(tensor))),
        ];
        vec![node("s", "Const", &[], attrs)]
    };
    let problem = refused(strings(&["x"], 1 << 30));
    assert!(problem.contains("use Fill"), "{problem}");
    let imported = import(&graph(strings(&["a", "bc"], 10))).unwrap();
    let s = imported.find_node("s").unwrap();
    // Places of 24 bytes each, and the bytes.
    assert_eq!(imported.resident_bytes()[s.index()], 10 * 24 + 1 + 9 * 2);
}

#[test]
fn an_attribute_without_a_value_is_the_empty_list() {
    let empty = |key: &'static str| AttrEntry {
        key: key.into(),
        value: Bytes::new(),
    };
    let squeeze = vec![attr("T", FLOAT), empty("squeeze_dims")];
    let nodes = vec![
        placeholder("x", &[1, 2]),
        node("y", "Squeeze", &["x"], squeeze),
    ];
    let imported = import(&graph(nodes)).unwrap();
    let y = imported.find_node("y").unwrap();
    let shape = imported.tensor_shape(imported.output(y, 0).unwrap());
    assert_eq!(shape.to_string(), "[2]");
    let problem = refused(vec![
        placeholder("x", &[2]),
        node("y", "Relu", &["x"], vec![empty("T")]),
    ]);
    assert!(problem.contains("must be of kind type"), "{problem}");
}

#[test]
fn attributes_stand_for_values_only_inside_functions() {
    let x = || placeholder("x", &[2]);
    let t = vec![attr("T", Value::Placeholder("T".into()))];
    let problem = refused(vec![x(), node("y", "Relu", &["x"], t)]);
    assert!(problem.contains("attribute `T` of a function"), "{problem}");
    let reference = vec![attr("T", Value::Type(101))];
    let problem = refused(vec![x(), node("y", "Relu", &["x"], reference)]);
    assert!(problem.contains("reference"), "{problem}");
    let mut wrong = constant("c", &[2], &[1, 2]);
    wrong.attr[0] = attr("dtype", FLOAT);
    let problem = refused(vec![wrong]);
    assert!(problem.contains("`dtype` is float"), "{problem}");
}

#[test]
fn loops_are_wired_back() {
    let merge = vec![attr("T", FLOAT), attr("N", Value::I(2))];
    let enter = vec![
        attr("T", FLOAT),
        attr("frame_name", Value::S("loop".into())),
    ];
    let mut nodes = vec![
        placeholder("x", &[2]),
        node("enter", "Enter", &["x"], enter),
        node("merge", "Merge", &["enter", "next"], merge),
        node("body", "Relu", &["merge"], t()),
        node("next", "NextIteration", &["body"], t()),
    ];
    let imported = import(&graph(nodes.clone())).unwrap();
    let merge = imported.find_node("merge").unwrap();
    let inputs = imported.all_data_inputs(merge);
    let inputs: Vec<_> = inputs
        .iter()
        .map(|&tensor| imported.tensor_name(tensor))
        .collect();
    assert_eq!(inputs, ["enter:0", "next:0"]);
    nodes[2].input[1] = "next:1".into();
    check(
        nodes.clone(),
        "node `merge` (Merge): input 1 `next:1`: the node has no such output",
    );
    nodes[2].input[1] = "next".into();
    nodes[3] = constant("body", &[], &[1]);
    nodes[4] = node("next", "NextIteration", &["body"], vec![attr("T", INT32)]);
    check(
        nodes,
        "node `merge` (Merge): input 1 takes float, but `next` is int32",
    );
}

#[test]
fn old_placeholders_without_dimensions_have_any_shape() {
    let shape_of = |producer| {
        let mut graph = graph(vec![placeholder("x", &[])]);
        graph.versions = Some(VersionDef { producer });
        let graph = import(&graph).unwrap();
        graph
            .tensor_shape(graph.output(crate::graph::NodeId(0), 0).unwrap())
            .to_string()
    };
    assert_eq!(
        (shape_of(23).as_str(), shape_of(24).as_str()),
        ("<unknown>", "[]")
    );
}

#[test]
fn versions_that_do_not_say_change_nothing() {
    let of = |producer| GraphDef {
        versions: Some(VersionDef { producer }),
        ..GraphDef::default()
    };
    let nodes = graph(vec![placeholder("x", &[])]);
    let import = |versions: &[i32]| {
        let mut bytes = GraphDef {
            versions: None,
            ..nodes.clone()
        }
        .encode_to_vec();
        for &producer in versions {
            bytes.extend(of(producer).encode_to_vec());
        }
        let bytes = Bytes::from(bytes);
        assert_eq!(
            super::producer_version(&bytes).unwrap(),
            super::wire::split(&bytes, &ImportOptions::default())
                .unwrap()
                .producer_version
        );
        super::producer_version(&bytes).unwrap()
    };
    assert_eq!(import(&[]), 0);
    assert_eq!(import(&[24, 0]), 24);
    assert_eq!(import(&[0, 30, 24]), 24);
}

fn variable(name: &'static str, dims: &[i64]) -> NodeDef {
    let attrs = vec![
        attr("dtype", FLOAT),
        attr("shape", Value::Shape(shape(dims))),
    ];
    node(name, "VariableV2", &[], attrs)
}

/// Returns each node as `name = Op(inputs)`.
fn lines(nodes: Vec<NodeDef>) -> Vec<String> {
    let graph = import(&graph(nodes)).unwrap();
    let mut lines: Vec<String> = graph
        .nodes()
        .map(|node| {
            let inputs = graph
                .data_inputs(node)
                .map(|tensor| graph.tensor_name(tensor));
            let mut inputs: Vec<String> = inputs.collect();
            let all = graph.predecessors().row(node.index());
            let controls = all[inputs.len()..].iter();
            inputs.extend(controls.map(|&from| format!("^{}", graph.node_name(NodeId(from)))));
            let (name, op) = (graph.node_name(node), graph.op(node));
            format!("{name} = {op}({})", inputs.join(", "))
        })
        .collect();
    lines.sort();
    lines
}

/// A value is read when its reader has its other inputs, and after what has changed the variable.
#[test]
fn reference_variables_become_resources() {
    let nodes = vec![
        variable("v", &[2]),
        placeholder("x", &[2]),
        node("neg", "Neg", &["x"], t()),
        node("set", "Assign", &["v", "neg"], t()),
        node("add", "AssignAdd", &["set", "x", "^neg"], t()),
        node("id", "Identity", &["v", "^add"], t()),
        node("sum", "AddV2", &["add", "neg"], t()),
        node("twice", "AddV2", &["v", "v"], t()),
        node(
            "is",
            "IsVariableInitialized",
            &["v"],
            vec![attr("dtype", FLOAT)],
        ),
    ];
    assert_eq!(
        lines(nodes),
        [
            "add = ReadVariableOp(v/handle:0, ^add/change)",
            "add/change = AssignAddVariableOp(v/handle:0, x:0, ^neg, ^set)",
            "id = ReadVariableOp(v/handle:0, ^add)",
            "is = VarIsInitializedOp(v/handle:0)",
            "neg = Neg(x:0)",
            "set = ReadVariableOp(v/handle:0, ^set/change)",
            "set/change = AssignVariableOp(v/handle:0, neg:0)",
            "sum = AddV2(sum/read:0, neg:0)",
            "sum/read = ReadVariableOp(v/handle:0, ^add, ^neg)",
            "twice = AddV2(twice/read:0, twice/read:0)",
            "twice/read = ReadVariableOp(v/handle:0)",
            "v = ReadVariableOp(v/handle:0)",
            "v/handle = VarHandleOp()",
            "x = Placeholder()",
        ]
    );
}

#[test]
fn references_pass_through_branches_as_handles() {
    let predicate = node(
        "p",
        "Placeholder",
        &[],
        vec![attr("dtype", Value::Type(10))],
    );
    let nodes = vec![
        variable("v", &[2]),
        placeholder("x", &[2]),
        predicate,
        node("switch", "RefSwitch", &["v", "p"], t()),
        node("set", "Assign", &["switch:1", "x"], t()),
        node("neg", "Neg", &["switch:0"], t()),
    ];
    assert_eq!(
        lines(nodes)[..4],
        [
            "neg = Neg(neg/read:0)",
            "neg/read = ReadVariableOp(switch:0)",
            "p = Placeholder()",
            "set = ReadVariableOp(switch:1, ^set/change)",
        ]
    );
}

#[test]
fn variables_that_are_assigned_any_shape_have_an_unknown_one() {
    let any = vec![attr("T", FLOAT), attr("validate_shape", Value::B(false))];
    let nodes = vec![
        variable("v", &[2]),
        placeholder("x", &[3]),
        node("set", "Assign", &["v", "x"], any),
        node("sum", "AddV2", &["set", "x"], t()),
    ];
    let graph = import(&graph(nodes)).unwrap();
    let set = graph.find_node("set").unwrap();
    let shape = graph.tensor_shape(graph.output(set, 0).unwrap());
    assert_eq!(shape.to_string(), "<unknown>");
}
