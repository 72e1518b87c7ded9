//! Names, scopes, devices and colocation; and each kind of misuse, with its error message.

use std::sync::Arc;

use super::Axes;
use super::BuildError;
use super::Conv2d;
use super::Dynamic;
use super::GraphBuilder;
use super::MatMul;
use super::Padding;
use super::Pool2d;
use super::Value;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::Work;
use crate::ops::OpDef;
use crate::ops::OpRegistry;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::Procedural;
use crate::tensor::Shape;
use crate::tensor::Tensor;

mod bodies;

fn builder() -> GraphBuilder {
    GraphBuilder::new("test")
}

fn names(graph: &Graph) -> Vec<&str> {
    graph.node_names().iter().collect()
}

#[track_caller]
fn node(graph: &Graph, name: &str) -> NodeId {
    graph.find_node(name).unwrap_or_else(|| panic!("{name}"))
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, BuildError>, expected: &str) {
    assert_eq!(result.unwrap_err().to_string(), expected);
}

#[test]
fn operations_are_named_and_numbered_as_in_tensorflow() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2, 2]).unwrap();
    let sum = b.add(x, x).unwrap();
    b.add(sum, 1.0).unwrap();
    b.named("add").mul(x, x).unwrap();
    let layer = b.name_scope("layer").unwrap();
    layer.matmul(x, x).unwrap();
    let inner = layer.name_scope("inner").unwrap();
    let last = inner.reshape(x, [4]).unwrap();
    b.name_scope("layer").unwrap().relu(x).unwrap();
    assert_eq!(b.tensor_name(last).unwrap(), "layer/inner/Reshape:0");
    let expected = [
        "x",
        "add",
        "add_1/y",
        "add_1",
        "add_2",
        "layer/MatMul",
        "layer/inner/Reshape/shape",
        "layer/inner/Reshape",
        "layer_1/Relu",
    ];
    assert_eq!(names(&b.finish()), expected);
}

#[test]
fn types_lengths_and_defaults_become_attributes() {
    let b = builder();
    let x = b.placeholder::<f64>("x", [2, 3]).unwrap();
    let n = b.placeholder::<i32>("n", [2, 3]).unwrap();
    b.concat([x, x, x], 1).unwrap();
    b.op("IdentityN")
        .inputs([x.erase(), n.erase()])
        .finish()
        .unwrap();
    b.matmul_with(x, x, MatMul::default().with_transpose_b())
        .unwrap();
    let graph = b.finish();
    let attrs = |name: &str| -> &AttrSet { graph.attrs(node(&graph, name)) };
    assert_eq!(attrs("concat").int("N"), Some(3));
    assert_eq!(attrs("concat").dtype("T"), Some(DType::F64));
    assert_eq!(attrs("concat").dtype("Tidx"), Some(DType::I32));
    assert_eq!(
        attrs("IdentityN").dtypes("T"),
        Some(vec![DType::F64, DType::I32])
    );
    assert_eq!(attrs("MatMul").bool("transpose_a"), Some(false));
    assert_eq!(attrs("MatMul").bool("transpose_b"), Some(true));
    let matmul = node(&graph, "MatMul");
    assert_eq!(
        graph
            .tensor_shape(graph.output(matmul, 0).unwrap())
            .to_string(),
        "[2,2]"
    );
    // 2 m n k operations.
    assert_eq!(graph.flops()[matmul.index()], 24.0);
}

#[test]
fn shapes_follow_from_constants_and_from_what_is_computed_of_them() {
    let b = builder();
    let x = b
        .placeholder::<f32>("x", [None, Some(28), Some(28), Some(1)])
        .unwrap();
    let shape = |value: Value<f32>| b.shape(value).unwrap().to_string();
    let filters = b.constant([5, 5, 1, 6], &[0.1f32; 150]).unwrap();
    let y = b
        .conv2d(x, filters, Conv2d::new(Padding::Valid).with_strides([2, 2]))
        .unwrap();
    assert_eq!(shape(y), "[?,12,12,6]");
    let y = b.max_pool(y, Pool2d::new([2, 2], Padding::Same)).unwrap();
    assert_eq!(shape(y), "[?,6,6,6]");
    let flat = b.reshape(y, [-1, 216]).unwrap();
    assert_eq!(shape(flat), "[?,216]");
    assert_eq!(shape(b.transpose(y, [0, 3, 1, 2]).unwrap()), "[?,6,6,6]");
    let mean = b.reduce_mean(y, Axes::new([1, 2]).keeping_dims()).unwrap();
    assert_eq!(shape(mean), "[?,1,1,6]");
    // A shape that is computed from a shape: sizes that are known stay known.
    let sizes = b.shape_of(y).unwrap();
    let sizes = b.op("Unpack").input(sizes).attr("num", 4).finish().unwrap();
    let height = b.output::<i32>(sizes, 1).unwrap();
    let target = b.stack([height, b.scalar(-1).unwrap()], 0).unwrap();
    assert_eq!(shape(b.reshape(y, target).unwrap()), "[6,?]");
    let parts = b.split(flat, 3, 1).unwrap();
    assert_eq!(shape(parts[2]), "[?,72]");
    assert_eq!(shape(b.stack([flat, flat], 0).unwrap()), "[2,?,216]");
    let row = b.slice(flat, [0, 0], [1, -1]).unwrap();
    assert_eq!(shape(row), "[1,216]");
    assert_eq!(shape(b.squeeze(row, &[0]).unwrap()), "[216]");
    assert_eq!(shape(b.expand_dims(row, -1).unwrap()), "[1,216,1]");
    assert_eq!(shape(b.gather(row, [3, 5], 1).unwrap()), "[1,2]");
    assert_eq!(b.dtype(b.arg_max(row, 1).unwrap()).unwrap(), DType::I64);
}

#[test]
fn devices_come_from_scopes_part_by_part_and_from_operations() {
    let b = builder();
    let worker = b.device("/job:worker/device:CPU:0").unwrap();
    let x = worker.placeholder::<f32>("x", [2]).unwrap();
    let gpu = worker.device("/gpu:1").unwrap();
    gpu.add(x, 1.0).unwrap();
    worker.op("Relu").input(x).device("CPU:2").finish().unwrap();
    b.neg(x).unwrap();
    let graph = b.finish();
    let requested = |name| graph.requested(node(&graph, name));
    assert_eq!(requested("x"), "/job:worker/device:CPU:0");
    assert_eq!(requested("add"), "/job:worker/device:GPU:1");
    assert_eq!(requested("add/y"), "/job:worker/device:GPU:1");
    assert_eq!(requested("Relu"), "/job:worker/device:CPU:2");
    assert_eq!(requested("Neg"), "");
}

#[test]
fn colocated_operations_share_groups_and_requests() {
    let b = builder();
    let x = b
        .device("/cpu:1")
        .unwrap()
        .placeholder::<f32>("x", [2])
        .unwrap();
    let y = b.placeholder::<f32>("y", [2]).unwrap();
    let near_x = b.device("/gpu:0").unwrap().colocate_with(x);
    let first = near_x.named("first").relu(y).unwrap();
    // Groups are inherited: this is in the group of x, not in a group of `first`.
    let second = b.colocate_with(first).named("second").relu(y).unwrap();
    b.colocate_with(second)
        .colocate_with(y)
        .named("third")
        .relu(y)
        .unwrap();
    // Classes that are not groups are not inherited, and do not count as a group.
    let tagged = b.op("Relu").name("tagged").input(y).attr("_class", ["tag"]);
    let tagged = tagged.value::<f32>().unwrap();
    b.colocate_with(tagged).named("fourth").relu(y).unwrap();
    let graph = b.finish();
    let class = |name| graph.attrs(node(&graph, name)).get("_class");
    let groups = |groups: &[&str]| AttrValue::from(groups);
    assert_eq!(class("first"), Some(&groups(&["loc:@x"])));
    assert_eq!(class("second"), Some(&groups(&["loc:@x"])));
    assert_eq!(class("third"), Some(&groups(&["loc:@x", "loc:@y"])));
    assert_eq!(class("fourth"), Some(&groups(&["loc:@tagged"])));
    for name in ["first", "second", "third"] {
        assert_eq!(
            graph.requested(node(&graph, name)),
            "/device:CPU:1",
            "{name}"
        );
    }
}

#[test]
fn control_dependencies_are_edges_once_and_not_beside_data() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let before = b.named("before").relu(x).unwrap();
    let after = b.control_dependencies([before, before]);
    let y = after.op("Neg").input(x).control(before).finish().unwrap();
    after.named("sum").add(before, 1.0).unwrap();
    b.control_dependencies([y]).named("done").no_op().unwrap();
    let graph = b.finish();
    let producers = |name| {
        let row = graph.predecessors().row(node(&graph, name).index());
        let names = row.iter().map(|&id| graph.node_name(NodeId(id)));
        names.collect::<Vec<_>>()
    };
    assert_eq!(producers("Neg"), ["x", "before"]);
    assert_eq!(producers("sum"), ["before", "sum/y"]);
    assert_eq!(producers("sum/y"), Vec::<&str>::new());
    assert_eq!(producers("done"), ["Neg"]);
}

#[test]
fn constants_come_from_values_tensors_and_formulas() {
    let b = builder();
    let tensor = Tensor::from_values([2], &[1i64, 2]).unwrap();
    assert_eq!(
        b.dtype(b.tensor::<i64>(&tensor).unwrap()).unwrap(),
        DType::I64
    );
    let words = Tensor::from_strings(Shape::new(&[1]), vec![b"a"[..].into()]).unwrap();
    assert_eq!(
        b.dtype(b.tensor::<Dynamic>(&words).unwrap()).unwrap(),
        DType::String
    );
    let formula = Procedural {
        seed: 7,
        lo: 0.0,
        span: 1.0,
    };
    let literal = Literal::new(
        DType::F32,
        [1 << 30].into(),
        LiteralData::Procedural(formula),
    );
    let large = b.literal::<f32>(literal.unwrap()).unwrap();
    assert_eq!(b.shape(large).unwrap().to_string(), "[1073741824]");
    assert_eq!(
        b.dtype(b.constant([2], &[true, false]).unwrap()).unwrap(),
        DType::Bool
    );
    refused(
        b.constant([3], &[1.0f32]),
        "node `Const`: invalid constant: shape [3] of float takes 12 bytes, found 4 bytes",
    );
    refused(
        b.tensor::<f32>(&tensor),
        "`Const:0` (Const) is int64, not float",
    );
}

#[test]
fn arguments_are_counted_and_lists_are_lists() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    refused(
        b.op("AddV2").input(x).finish(),
        "node `AddV2` (AddV2): the number of arguments is 1, the op takes 2: x, y",
    );
    refused(
        b.op("NoOp").input(x).finish(),
        "node `NoOp` (NoOp): the number of arguments is 1, the op takes none",
    );
    refused(
        b.op("AddN").input(x).finish(),
        "node `AddN` (AddN): argument `inputs` takes a list of tensors; pass it with `inputs`",
    );
    refused(
        b.op("Relu").inputs([x]).finish(),
        "node `Relu` (Relu): argument `features` takes one tensor; pass it with `input`",
    );
    refused(
        b.op("AddN").inputs([x, x]).attr("N", 3).finish(),
        "node `AddN` (AddN): the number of tensors in argument `inputs` is 2, but attribute `N` is 3",
    );
    refused(
        b.op("IdentityN")
            .inputs([x])
            .attr("T", [DType::F32, DType::I32])
            .finish(),
        "node `IdentityN` (IdentityN): the number of tensors in argument `input` is 1, but attribute `T` is 2",
    );
    refused(
        b.concat([x], 0),
        "node `concat` (ConcatV2): attribute `N` is 1; the smallest allowed value is 2; it was taken from argument `values`",
    );
    refused(
        b.add_n::<f32>([]),
        "node `AddN` (AddN): attribute `N` is 0; the smallest allowed value is 1; it was taken from argument `inputs`",
    );
}

#[test]
fn types_that_do_not_go_together_are_named_with_their_reason() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let n = b.placeholder::<i32>("n", [2]).unwrap();
    refused(
        b.op("AddV2").input(x).input(n).finish(),
        "node `AddV2` (AddV2): argument `y` takes float (`T` of argument `x`), but `n:0` is int32",
    );
    refused(
        b.add(x.erase(), n),
        "node `add` (AddV2): argument `y` takes float (`T` of argument `x`), but `n:0` is int32",
    );
    refused(
        b.op("AddN").inputs([x.erase(), n.erase()]).finish(),
        "node `AddN` (AddN): argument `inputs[1]` takes float (`T` of argument `inputs`), but `n:0` is int32",
    );
    refused(
        b.op("Relu").input(x).attr("T", DType::F64).finish(),
        "node `Relu` (Relu): argument `features` takes double (attribute `T`), but `x:0` is float",
    );
    refused(
        b.op("LogicalNot").input(x).finish(),
        "node `LogicalNot` (LogicalNot): argument `x` takes bool, but `x:0` is float",
    );
    refused(
        b.op("Assign").input(x).input(x).finish(),
        "node `Assign` (Assign): argument `ref` takes a reference to float (`T` of argument `ref`), but `x:0` is float",
    );
    refused(
        b.softmax(n.erase()),
        "node `Softmax` (Softmax): attribute `T` is int32; allowed: half, bfloat16, float, double; \
         it was taken from argument `logits`",
    );
    refused(
        b.typed::<i32>(x.erase()),
        "`x:0` (Placeholder) is float, not int32",
    );
    refused(
        b.op("Relu").input(x).value::<i32>(),
        "`Relu:0` (Relu) is float, not int32",
    );
}

#[test]
fn attributes_are_checked() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [1, 4, 4, 1]).unwrap();
    let check = |op: super::OpBuilder<'_>, problem: &str| {
        let error = op.finish().unwrap_err().to_string();
        assert_eq!(
            error,
            format!("node `MaxPool` (MaxPool): attribute {problem}")
        );
    };
    let pool = || {
        b.op("MaxPool")
            .input(x)
            .attr("ksize", [1, 2, 2, 1])
            .attr("strides", [1, 2, 2, 1])
    };
    check(pool(), "`padding` is missing; the op takes padding: string");
    check(
        pool().attr("padding", "FULL"),
        "`padding` is `FULL`; allowed: SAME, VALID, EXPLICIT",
    );
    check(
        pool().attr("padding", 1),
        "`padding` must be of kind string, found int",
    );
    check(pool().attr("ksize", [1, 1, 1, 1]), "`ksize` is given twice");
    check(
        pool().attr("pading", "SAME"),
        "`pading` is not an attribute of the op, which has T, ksize, strides, padding, explicit_paddings, data_format",
    );
    check(
        pool().attr("padding", AttrValue::Placeholder("p".into())),
        "`padding` refers to attribute `p` of a function, but the node is not in a function",
    );
    let body = AttrValue::Function("body".into(), AttrSet::default());
    check(
        pool().attr("_body", body),
        "`_body` names function `body`, which the GraphBuilder does not have",
    );
    refused(
        b.colocate_with(x)
            .op("Relu")
            .input(x)
            .attr("_class", ["loc:@x"])
            .finish(),
        "node `Relu` (Relu): attribute `_class` is given twice",
    );
    refused(
        b.op("Split")
            .input(b.scalar(0).unwrap())
            .input(x)
            .attr("num_split", 1i64 << 40)
            .finish(),
        "node `Split` (Split): 1099511627776 outputs; at most 65536 are allowed",
    );
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2, 3]).unwrap();
    refused(
        b.matmul(x, x),
        "node `MatMul` (MatMul): inner dimensions must agree; they are 3 and 2 (shapes [2,3] and [2,3]); input shapes are [2,3], [2,3]",
    );
    refused(
        b.add(x, [1.0, 2.0]),
        "node `add` (AddV2): shapes [2,3] and [2] cannot be broadcast to each other; input shapes are [2,3], [2]",
    );
}

#[test]
fn names_ops_devices_and_outputs_that_are_none_are_refused() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2, 2]).unwrap();
    let rule = "is not a valid name of a node or scope; use letters, digits and `_ . - / >`, and do not start with `- / >`";
    refused(b.named("a b").relu(x), &format!("`a b` {rule}"));
    refused(b.name_scope(""), &format!("`` {rule}"));
    refused(
        b.op("matmul").finish(),
        "node `matmul`: op `matmul` is not known (`MatMul` is); register it in the OpRegistry if it is your own",
    );
    refused(
        b.op("Frobnicate").name("f").finish(),
        "node `f`: op `Frobnicate` is not known; register it in the OpRegistry if it is your own",
    );
    let short = GraphBuilder::new("short");
    let npu = short.device("NPU:1").unwrap();
    npu.scalar(1.0f32).unwrap();
    let graph = short.finish();
    assert_eq!(graph.requested(NodeId(0)), "/device:NPU:1");
    let expected = "`job:J`, `replica:R`, `task:T`, `device:TYPE:INDEX`, or a short type such as `cpu:0` is expected";
    refused(
        b.op("Relu").input(x).device("/device:GPU").finish(),
        &format!(
            "node `Relu` (Relu): `/device:GPU` is not a device specification: `device:GPU`: {expected}"
        ),
    );
    refused(
        b.name_scope("fc").unwrap().device("/job:a/fpga:0"),
        &format!(
            "device scope in `fc/`: `/job:a/fpga:0` is not a device specification: `fpga:0`: {expected}"
        ),
    );
    let nowhere = b.device_function(|_| None);
    refused(
        nowhere.relu(x),
        "node `Relu` (Relu): a device function returned `None`; return an empty string to request no device, or `NewOperation::device` to keep the requested one",
    );
    let verbatim = b
        .device("/job:a")
        .unwrap()
        .device_function(|_| Some("/fpga".to_owned()));
    refused(
        verbatim.relu(x),
        &format!("node `Relu` (Relu): `/fpga` is not a device specification: `fpga`: {expected}"),
    );
    // A function may use the builder that calls it.
    let other = b.clone();
    let curious = b.device_function(move |operation| {
        let n = other.op("NoOp").name("seen").finish();
        Some(format!(
            "/task:{}{}",
            u8::from(n.is_ok()),
            operation.device()
        ))
    });
    curious.named("curious").relu(x).unwrap();
    let operation = b.op("Relu").input(x).finish().unwrap();
    refused(
        b.output::<f32>(operation, 1),
        "node `Relu` (Relu) has no output 1; its number of outputs is 1",
    );
    refused(
        b.op("TopKV2")
            .input(x)
            .input(b.scalar(1).unwrap())
            .value::<f32>(),
        "node `TopKV2` (TopKV2) has 2 outputs; end with `finish` and take them with `Scope::output`",
    );
    refused(
        b.control_dependencies([x]).op("NoOp").value::<f32>(),
        "node `NoOp` (NoOp) has 0 outputs; end with `finish` and take them with `Scope::output`",
    );
}

#[test]
fn handles_of_another_builder_are_refused_wherever_they_are_given() {
    let (b, other) = (builder(), builder());
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let foreign = other.placeholder::<f32>("x", [2]).unwrap();
    let check = |result: Result<(), BuildError>, place: &str| {
        let rest = "belongs to another GraphBuilder; a handle is valid only for the builder that created it";
        refused(result, &format!("{place} {rest}"));
    };
    let end = |result: Result<Value<f32>, BuildError>| result.map(|_| ());
    check(end(b.add(x, foreign)), "node `add` (AddV2): argument `y`");
    check(
        end(b.control_dependencies([foreign]).neg(x)),
        "node `Neg` (Neg): a control dependency",
    );
    check(
        end(b.colocate_with(foreign).neg(x)),
        "node `Neg` (Neg): the colocation target",
    );
    check(b.shape(foreign).map(|_| ()), "the value or operation");
    check(end(b.typed(foreign.erase())), "the value or operation");
    check(b.name(foreign).map(|_| ()), "the value or operation");
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2, 3]).unwrap();
    assert!(b.add(x, [1.0, 2.0]).is_err());
    assert!(b.reshape(x, [4]).is_err());
    assert!(b.op("Relu").input(x).value::<i32>().is_err());
    b.add(x, 1.0).unwrap();
    assert_eq!(names(&b.finish()), ["x", "add/y", "add"]);
}

#[test]
fn a_scope_that_outlives_its_builder_says_so() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let scope = b.name_scope("late").unwrap();
    assert_eq!(b.finish().n_nodes(), 1);
    assert_eq!(scope.relu(x).unwrap_err(), BuildError::Finished);
    assert_eq!(scope.shape(x).unwrap_err(), BuildError::Finished);
}

#[test]
fn ops_of_an_app_bring_shapes_values_and_work() {
    let op = OpDef::new(
        "Twice",
        &["x: T"],
        &["y: T"],
        &["T: {float, int32}", "by: int >= 1 = 2"],
    )
    .unwrap()
    .with_shape(|context| Ok(vec![context.shape(0).clone()]))
    .with_work(|context, _| Work {
        flops: context.input_elements(0),
        ..Work::default()
    });
    // The registry has only this op: a constant argument needs an op, too.
    let mut ops = OpRegistry::empty();
    ops.register(op).unwrap();
    let ops = Arc::new(ops);
    let b = GraphBuilder::with_ops("own", Arc::clone(&ops));
    refused(
        b.op("Twice").operand::<f32>(1.0).finish(),
        "node `Twice/x`: op `Const` is not known; register it in the OpRegistry if it is your own",
    );
    let source = OpDef::new("Source", &[], &["x: float"], &[]).unwrap();
    let source = source
        .stateful()
        .with_shape(|_| Ok(vec![PartialShape::from([3, 4])]));
    let mut ops = OpRegistry::clone(&ops);
    ops.register(source).unwrap();
    let b = GraphBuilder::with_ops("own", ops);
    let x = b.op("Source").value::<f32>().unwrap();
    let y = b.op("Twice").input(x).value::<f32>().unwrap();
    assert_eq!(b.shape(y).unwrap().to_string(), "[3,4]");
    let graph = b.finish();
    let twice = node(&graph, "Twice");
    assert_eq!(graph.flops()[twice.index()], 12.0);
    assert_eq!(graph.attrs(twice).int("by"), Some(2));
    assert!(graph.class(node(&graph, "Source")).stateful);
}
