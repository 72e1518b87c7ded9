//! Branches, loops and functions: what they add to the library, shapes, and each kind of misuse.

use super::builder;
use super::node;
use super::refused;
use crate::builder::Branch;
use crate::builder::BuildError;
use crate::builder::Dynamic;
use crate::builder::GraphBuilder;
use crate::builder::Parameter;
use crate::builder::Value;
use crate::builder::WhileLoop;
use crate::graph::Function;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::tensor::DType;
use crate::tensor::PartialShape;

#[track_caller]
fn function<'a>(graph: &'a Graph, name: &str) -> &'a Function {
    let names = graph.functions().iter().map(|function| &*function.name);
    let names: Vec<&str> = names.collect();
    let found = graph.find_function(name);
    found.unwrap_or_else(|| panic!("`{name}` is not among {names:?}"))
}

/// Returns the nodes of a function as `name = op(inputs)`.
fn text(function: &Function) -> Vec<String> {
    let nodes = function.nodes.iter();
    nodes
        .map(|node| format!("{} = {}({})", node.name, node.op, node.inputs.join(", ")))
        .collect()
}

fn inputs(graph: &Graph, name: &str) -> Vec<String> {
    let node = node(graph, name);
    let data = graph.data_inputs(node);
    data.map(|tensor| graph.tensor_name(tensor)).collect()
}

fn waits_for(graph: &Graph, name: &str) -> Vec<String> {
    let of = node(graph, name);
    let producers = graph.predecessors().row(of.index()).iter();
    let names = producers.map(|&node| graph.node_name(NodeId(node)).to_owned());
    names.collect()
}

#[test]
fn branches_capture_what_they_use_of_the_graph_around() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [3]).unwrap();
    let z = b.placeholder::<f32>("z", [3]).unwrap();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let y = b
        .named("y")
        .cond(p, |b| b.add(x, 1.0), |b| b.named("minus").sub(z, x))
        .unwrap();
    assert_eq!(b.tensor_name(y).unwrap(), "y:0");
    let graph = b.finish();
    let y = node(&graph, "y");
    assert_eq!(graph.op(y), "StatelessIf");
    assert_eq!(inputs(&graph, "y"), ["p:0", "x:0", "z:0"]);
    let then = function(&graph, "y_then");
    assert_eq!(
        text(then),
        ["add/y = Const()", "add = AddV2(captured_x, add/y:output:0)"]
    );
    let args: Vec<&str> = then.args.iter().map(|arg| &*arg.name).collect();
    assert_eq!(args, ["captured_x", "captured_z"]);
    assert_eq!(&*then.args[0].spec, "float");
    assert_eq!(&*then.returns[0].1, "add:z:0");
    assert_eq!(
        text(function(&graph, "y_else")),
        ["minus = Sub(captured_z, captured_x)"]
    );
}

#[test]
fn values_are_captured_through_all_bodies_between() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let n = b.placeholder::<i32>("n", PartialShape::scalar()).unwrap();
    b.cond(
        p,
        |b| {
            let (_, last) = b.while_loop(
                (b.scalar(0)?, x),
                |b, (i, _)| b.less(i, n),
                |b, (i, y)| {
                    let y = b.cond(p, |b| b.add(y, x), |_| Ok(x))?;
                    Ok((b.add(i, 1)?, y))
                },
            )?;
            Ok(last)
        },
        |_| Ok(x),
    )
    .unwrap();
    let graph = b.finish();
    assert_eq!(inputs(&graph, "cond"), ["p:0", "x:0", "n:0", "p:0"]);
    let outer = function(&graph, "cond_then");
    assert_eq!(
        text(outer)[1],
        "while = StatelessWhile(Const:output:0, captured_x, captured_n, captured_p, captured_x)"
    );
    // The function that a branch returns unchanged.
    assert_eq!(&*function(&graph, "cond_else").returns[0].1, "captured_x");
    let returns = &function(&graph, "cond_then_while_body").returns;
    let returns: Vec<&str> = returns.iter().map(|(_, source)| &**source).collect();
    assert_eq!(
        returns,
        [
            "add:z:0",
            "cond:output:0",
            "captured_n",
            "captured_p",
            "captured_x"
        ]
    );
    assert_eq!(graph.functions().len(), 6);
}

#[test]
fn bodies_with_effects_are_stateful_and_return_control() {
    let b = builder();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let variable = b
        .op("VarHandleOp")
        .attr("dtype", DType::F32)
        .attr("shape", PartialShape::scalar())
        .value::<Dynamic>()
        .unwrap();
    let increment = b
        .function("increment", |b, (by,): (Value<f32>,)| {
            let added = b
                .op("AssignAddVariableOp")
                .input(variable)
                .input(by)
                .finish()?;
            b.control_dependencies([added]).identity(by)
        })
        .unwrap();
    b.cond(
        p,
        |b| {
            b.call(&increment, (b.scalar(1.0f32)?,))?;
            b.scalar(1)
        },
        |b| b.scalar(2),
    )
    .unwrap();
    let graph = b.finish();
    assert_eq!(graph.op(node(&graph, "cond")), "If");
    assert!(graph.class(node(&graph, "cond")).stateful);
    let then = function(&graph, "cond_then");
    assert!(then.stateful);
    let returned: Vec<&str> = then.control_returns.iter().map(|(_, n)| &**n).collect();
    assert_eq!(returned, ["increment"]);
    assert!(!function(&graph, "cond_else").stateful);
    // The result waits for the effect.
    let increment = function(&graph, "increment");
    assert!(increment.stateful && increment.control_returns.is_empty());
    assert_eq!(
        text(increment)[1],
        "Identity = Identity(arg0, ^AssignAddVariableOp)"
    );
}

#[test]
fn shapes_are_what_both_branches_have_in_common() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2, 3]).unwrap();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let n = b.placeholder::<i32>("n", PartialShape::scalar()).unwrap();
    let shape = |value: Value<f32>| b.shape(value).unwrap().to_string();
    let y = b.cond(p, |_| Ok(x), |b| b.concat([x, x], 0)).unwrap();
    assert_eq!(shape(y), "[?,3]");
    let y = b.cond(p, |_| Ok(x), |b| b.reduce_sum(x, 0)).unwrap();
    assert_eq!(shape(y), "<unknown>");
    let branches: Vec<Branch<'_, [Value<f32>; 2]>> = vec![
        Box::new(|b| Ok([b.neg(x)?, x])),
        Box::new(|b| Ok([x, b.concat([x, x], 1)?])),
    ];
    let [first, second] = b.switch_case(n, branches).unwrap();
    assert_eq!(
        (shape(first), shape(second)),
        ("[2,3]".into(), "[2,?]".into())
    );
}

#[test]
fn variables_keep_their_shapes_unless_declared() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let yes = b.scalar(true).unwrap();
    let grown = b.while_loop(x, |_, _| Ok(yes), |b, x| b.concat([x, x], 0));
    refused(
        grown,
        "node `while` (While): variable 0 is [2] before an iteration and [4] after it; declare \
         what is common to both by `WhileLoop::with_shape_invariants`",
    );
    let options = WhileLoop::default()
        .with_shape_invariants([[None]])
        .with_parallel_iterations(3);
    let y = b
        .while_loop_with(x, options, |_, _| Ok(yes), |b, x| b.concat([x, x], 0))
        .unwrap();
    assert_eq!(b.shape(y).unwrap().to_string(), "[?]");
    let options = WhileLoop::default().with_shape_invariants([[3]]);
    refused(
        b.while_loop_with(x, options, |_, _| Ok(yes), |_, x| Ok(x)),
        "node `while_1` (While): variable 0 is [2] before the loop, its declared invariant is [3]; \
         input shapes are [2]",
    );
    let options = WhileLoop::default().with_shape_invariants([[3], [4]]);
    refused(
        b.while_loop_with(x, options, |_, _| Ok(yes), |_, x| Ok(x)),
        "node `while_1` (While): 2 shape invariants are declared for 1 variables; input shapes \
         are [2]",
    );
    let graph = b.finish();
    let attrs = graph.attrs(node(&graph, "while"));
    assert_eq!(attrs.int("parallel_iterations"), Some(3));
    // Functions of refused nodes are not in the library.
    let names = graph.functions().iter().map(|function| &*function.name);
    assert_eq!(names.collect::<Vec<_>>(), ["while_cond", "while_body"]);
}

#[test]
fn a_maximum_of_iterations_adds_a_counter() {
    let b = builder();
    let x = b.placeholder::<f32>("x", PartialShape::scalar()).unwrap();
    let n = b.placeholder::<i32>("n", PartialShape::scalar()).unwrap();
    let options = WhileLoop::default().with_maximum_iterations(n);
    let y = b
        .while_loop_with(x, options, |b, x| b.less(x, 9.0), |b, x| b.add(x, x))
        .unwrap();
    assert_eq!(b.tensor_name(y).unwrap(), "while:1");
    let graph = b.finish();
    assert_eq!(inputs(&graph, "while"), ["while/input:0", "x:0", "n:0"]);
    let condition = text(function(&graph, "while_cond"));
    assert_eq!(
        condition[2..],
        [
            "maximum_iterations/Less = Less(loop_counter, captured_n)",
            "maximum_iterations/LogicalAnd = LogicalAnd(maximum_iterations/Less:z:0, Less:z:0)"
        ]
    );
}

#[test]
fn calls_infer_shapes_by_the_body() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2, 3]).unwrap();
    let twice = b
        .function("twice", |b, (x,): (Value<f32>,)| b.concat([x, x], 0))
        .unwrap();
    let four = b
        .function("four", |b, (x,): (Value<f32>,)| {
            b.call(&twice, (b.call(&twice, (x,))?,))
        })
        .unwrap();
    let y = b.call(&four, (x,)).unwrap();
    assert_eq!(b.shape(y).unwrap().to_string(), "[8,3]");
    let product = b
        .function("product", |b, [x, y]: [Value<f32>; 2]| b.matmul(x, y))
        .unwrap();
    let error = b.call(&product, [x, x]).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "node `product` (PartitionedCall): in function `product`: node `MatMul` (MatMul): "
        ),
        "{error}"
    );
    assert!(error.ends_with("input shapes are [2,3], [2,3]"), "{error}");
    let parameters = [Parameter::new(DType::F32, [None, Some(4)])];
    let declared = b
        .function_with("declared", parameters, |b, (x,): (Value<f32>,)| b.neg(x))
        .unwrap();
    refused(
        b.call(&declared, (x,)),
        "node `declared` (PartitionedCall): argument 0 of function `declared` is declared as \
         [?,4], not [2,3]; input shapes are [2,3]",
    );
}

#[test]
fn functions_of_any_number_of_values_are_declared() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let n = b.placeholder::<i32>("n", [2]).unwrap();
    let swapped = b
        .function_with("swapped", [DType::F32, DType::I32], |_, v: Vec<Value>| {
            Ok(vec![v[1], v[0]])
        })
        .unwrap();
    let results = b.call(&swapped, vec![x.erase(), n.erase()]).unwrap();
    assert_eq!(results.len(), 2);
    b.typed::<i32>(results[0]).unwrap();
    refused(
        b.call(&swapped, vec![x.erase()]),
        "node `swapped_1` (PartitionedCall): the number of arguments is 1, the op takes 2 by \
         function `swapped`: float, int32",
    );
    refused(
        b.call(&swapped, vec![n.erase(), n.erase()]),
        "node `swapped_1` (PartitionedCall): argument `args[0]` takes float (function `swapped`), \
         but `n:0` is int32",
    );
    let declared = [DType::F32, DType::F32];
    refused(
        b.function_with("other", declared, |_, (x,): (Value<f32>,)| Ok(x)),
        "function `other`: 2 arguments are declared, its body takes 1",
    );
    refused(
        b.function_with("other", [DType::I32], |_, (x,): (Value<f32>,)| Ok(x)),
        "function `other`: argument 0 is declared as int32, its body takes float",
    );
    refused(
        b.function("-", |_, (x,): (Value<f32>,)| Ok(x)),
        "`-` is not a valid name of a node or scope; use letters, digits and `_ . - / >`, and do \
         not start with `- / >`",
    );
}

#[test]
fn a_function_is_not_named_like_an_op() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let f = b
        .function("Neg", |b, (x,): (Value<f32>,)| b.neg(x))
        .unwrap();
    let again = b.function("Neg", |_, (x,): (Value<f32>,)| Ok(x)).unwrap();
    assert_eq!((f.name(), again.name()), ("Neg_1", "Neg_2"));
    b.call(&f, (x,)).unwrap();
    assert_eq!(b.finish().functions().len(), 2);
}

#[test]
fn control_dependencies_on_operations_around_are_those_of_the_node() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let first = b.named("first").no_op().unwrap();
    b.cond(
        p,
        |b| {
            let inner = b.named("inner").no_op()?;
            let waiting = b.control_dependencies([first, inner]);
            waiting.cond(
                p,
                |b| b.control_dependencies([first, inner]).neg(x),
                |_| Ok(x),
            )
        },
        |_| Ok(x),
    )
    .unwrap();
    let graph = b.finish();
    assert_eq!(waits_for(&graph, "cond"), ["p", "p", "x", "first"]);
    let then = text(function(&graph, "cond_then"));
    assert_eq!(
        then[1],
        "cond = StatelessIf(captured_p, captured_x, ^inner)"
    );
    assert_eq!(
        text(function(&graph, "cond_then_cond_then"))[0],
        "Neg = Neg(captured_x)"
    );
}

#[test]
fn a_node_that_calls_waits_also_for_nodes_whose_results_it_takes() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let y = b.named("y").neg(x).unwrap();
    b.cond(p, |b| b.control_dependencies([y]).add(y, x), |_| Ok(x))
        .unwrap();
    let loops = b.control_dependencies([y]);
    loops.while_loop(y, |_, _| Ok(p), |_, y| Ok(y)).unwrap();
    // All other nodes start when their inputs are there.
    loops.named("sum").add(y, x).unwrap();
    let graph = b.finish();
    assert_eq!(waits_for(&graph, "cond"), ["p", "y", "x", "y"]);
    assert_eq!(waits_for(&graph, "while"), ["y", "p", "y"]);
    assert_eq!(waits_for(&graph, "sum"), ["y", "x"]);
}

#[test]
fn devices_names_and_colocation_work_inside_of_bodies() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let on_gpu = b.device("/gpu:0").unwrap();
    on_gpu
        .cond(
            p,
            |b| {
                let y = b.name_scope("part")?.device("/cpu:1")?.neg(x)?;
                b.colocate_with(y).named("beside").neg(y)
            },
            |b| b.neg(x),
        )
        .unwrap();
    let by_op = b.device_function(|operation| Some(format!("/task:{}", operation.op().len())));
    by_op.cond(p, |b| b.neg(x), |_| Ok(x)).unwrap();
    refused(
        b.cond(p, |b| b.colocate_with(x).neg(x), |_| Ok(x)),
        "node `Neg` (Neg): the colocation target is outside of the then branch of `cond_2`; \
         colocate inside of one body, or colocate the node that runs it",
    );
    let graph = b.finish();
    assert_eq!(graph.requested(node(&graph, "cond")), "/device:GPU:0");
    let then = function(&graph, "cond_then");
    assert_eq!(&*then.nodes[0].name, "part/Neg");
    assert_eq!(&*then.nodes[0].device, "/device:CPU:1");
    assert_eq!(&*then.nodes[1].device, "/device:CPU:1");
    let class = then.nodes[1].attrs.list("_class").unwrap();
    assert_eq!(class, ["loc:@part/Neg".into()]);
    // Other operations inherit the device of their node when they run.
    assert_eq!(&*function(&graph, "cond_else").nodes[0].device, "");
    assert_eq!(&*function(&graph, "cond_1_then").nodes[0].device, "/task:3");
}

#[test]
fn misused_bodies_say_which_body_and_result() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let n = b.placeholder::<i32>("n", PartialShape::scalar()).unwrap();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let pp = b.placeholder::<bool>("pp", [2]).unwrap();
    refused(
        b.cond(p, |_| Ok(x.erase()), |_| Ok(n.erase())),
        "node `cond` (If): result 0 of the else branch of `cond` is int32, expected float (as in \
         the then branch of `cond`)",
    );
    refused(
        b.cond(p, |_| Ok(vec![x.erase()]), |_| Ok(vec![])),
        "node `cond` (If): the else branch of `cond` returns 0 values, expected 1 as in the then \
         branch of `cond`",
    );
    refused(
        b.cond(pp, |_| Ok(x), |_| Ok(x)),
        "node `cond` (If): `cond` must be a scalar; input shapes are [2]",
    );
    refused(
        b.while_loop(vec![x.erase()], |_, _| Ok(p), |_, _| Ok(vec![n.erase()])),
        "node `while` (While): result 0 of the body of `while` is int32, expected float (as in \
         the variables of the loop)",
    );
    refused(
        b.while_loop(vec![x.erase()], |_, _| Ok(p), |_, _| Ok(vec![])),
        "node `while` (While): the body of `while` returns 0 values, expected 1 as in the \
         variables of the loop",
    );
    refused(
        b.while_loop(x, |_, _| Ok(pp), |_, x| Ok(x)),
        "node `while` (While): the condition must be a scalar; input shapes are [2]",
    );
    let error = b.switch_case(n, Vec::<Branch<'_, Value>>::new());
    refused(
        error,
        "node `switch_case` (StatelessCase): attribute `branches` has 0 elements; at least 1 \
         are required",
    );
    let mut escaped = None;
    let mut scope = None;
    b.cond(
        p,
        |b| {
            escaped = Some(b.neg(x)?);
            scope = Some(b.clone());
            Ok(x)
        },
        |_| Ok(x),
    )
    .unwrap();
    let (escaped, scope) = (escaped.unwrap(), scope.unwrap());
    refused(
        b.neg(escaped),
        "node `Neg` (Neg): argument `x` belongs to the then branch of `cond` and exists only \
         there; return the value as a result of the body",
    );
    refused(
        b.cond(p, |_| Ok(escaped), |_| Ok(x)),
        "result 0 of the then branch of `cond_1` belongs to the then branch of `cond` and exists \
         only there; return the value as a result of the body",
    );
    refused(
        b.control_dependencies([escaped]).neg(x),
        "node `Neg` (Neg): a control dependency belongs to the then branch of `cond` and exists \
         only there; return the value as a result of the body",
    );
    assert_eq!(scope.neg(x).unwrap_err(), BuildError::Finished);
    let name = b.name(escaped).unwrap_err();
    assert!(matches!(name, BuildError::OtherBody { .. }), "{name}");
    let other = GraphBuilder::new("other");
    let y = other.placeholder::<f32>("y", [2]).unwrap();
    refused(
        b.cond(p, |b| b.neg(y), |_| Ok(x)),
        "node `Neg` (Neg): argument `x` belongs to another GraphBuilder; a handle is valid only \
         for the builder that created it",
    );
    let f = other.function("f", |_, (x,): (Value<f32>,)| Ok(x)).unwrap();
    refused(
        b.call(&f, (x,)),
        "node `f` (PartitionedCall): function `f` belongs to another GraphBuilder; a handle is \
         valid only for the builder that created it",
    );
    assert_eq!(b.finish().functions().len(), 2);
}

#[test]
fn a_function_of_a_body_is_called_where_its_values_exist() {
    let b = builder();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let (mut free, mut bound) = (None, None);
    b.cond(
        p,
        |b| {
            let y = b.neg(x)?;
            free = Some(b.function("free", |b, (x,): (Value<f32>,)| b.neg(x))?);
            let inner = b.function("bound", |b, (x,): (Value<f32>,)| b.add(x, y))?;
            bound = Some(inner.clone());
            b.call(&inner, (x,))
        },
        |_| Ok(x),
    )
    .unwrap();
    b.call(&free.unwrap(), (x,)).unwrap();
    refused(
        b.call(&bound.unwrap(), (x,)),
        "node `bound` (PartitionedCall): a value that function `bound` uses belongs to the then \
         branch of `cond` and exists only there; return the value as a result of the body",
    );
    let graph = b.finish();
    assert_eq!(inputs(&graph, "free"), ["x:0"]);
    let then = text(function(&graph, "cond_then"));
    assert_eq!(then[1], "bound = PartitionedCall(captured_x, Neg:y:0)");
}
