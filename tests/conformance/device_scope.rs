//! `device_scope.json`: device scopes and colocation of the graph builder.

use placewright::builder::BuildError;
use placewright::builder::GraphBuilder;
use placewright::builder::Operation;
use placewright::builder::Scope;
use placewright::graph::AttrValue;
use placewright::graph::Graph;
use placewright::names::DeviceSpec;
use serde_json::Value;
use serde_json::json;

use crate::category;
use crate::device_spec::changed;
use crate::device_spec::name_error;
use crate::equal;
use crate::mentions;
use crate::text;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    match text(case, "op")? {
        "create_op_in_scopes" => nested(case),
        "colocation_program" => colocated(case),
        other => Err(format!("unknown op `{other}`")),
    }
}

fn nested(case: &Value) -> Result<(), String> {
    let expect = &case["expect"];
    let builder = GraphBuilder::new("scopes");
    let added = add_nested(&builder, case)?;
    if let Some(error) = expect.get("error") {
        if let Err(found) = &added {
            category(error, build_error(found))?;
        }
        return mentions(added, error);
    }
    added.map_err(|error| error.to_string())?;
    let graph = builder.finish();
    equal(
        "device",
        &json!(requested(&graph, "it")?),
        &expect["device"],
    )
}

/// Adds the operation `it` in the scopes of a case.
fn add_nested(
    builder: &GraphBuilder,
    case: &Value,
) -> Result<Result<Operation, BuildError>, String> {
    let mut scope = Scope::clone(builder);
    for entry in case["scopes_outer_to_inner"]
        .as_array()
        .ok_or("no scopes")?
    {
        scope = match entry {
            Value::Null => scope.without_device(),
            Value::Object(_) => scope
                .device_spec(changed(DeviceSpec::new(), entry).map_err(|(_, message)| message)?),
            Value::String(name) => match case["functions"][name].as_str() {
                Some(function) => by_function(&scope, function)?,
                None => match scope.device(name) {
                    Ok(scope) => scope,
                    Err(error) => return Ok(Err(error)),
                },
            },
            other => return Err(format!("no scope: {other}")),
        };
    }
    let mut operation = scope.op(text(case, "op_type")?).name("it");
    if text(case, "op_type")? == "MatMul" {
        let x = builder.placeholder::<f32>("x", [1, 1]);
        let x = x.map_err(|error| error.to_string())?;
        operation = operation.input(x).input(x);
    }
    Ok(operation.finish())
}

/// Returns a scope with the function that a case describes.
fn by_function(scope: &Scope, words: &str) -> Result<Scope, String> {
    let quoted = |text: &str| text.trim().trim_matches('\'').to_owned();
    if let Some(result) = words.strip_prefix("function returning ") {
        return Ok(match result {
            "None" => scope.device_function(|_| None),
            "the op's current device unchanged" => {
                scope.device_function(|operation| Some(operation.device().to_owned()))
            }
            device => {
                let device = quoted(device);
                scope.device_function(move |_| Some(device.clone()))
            }
        });
    }
    let rules = words
        .strip_prefix("function: ")
        .ok_or_else(|| format!("no function: {words}"))?;
    let mut by_op = Vec::new();
    for rule in rules.split(", ") {
        let (op, device) = rule
            .split_once(" -> ")
            .ok_or_else(|| format!("no rule: {rule}"))?;
        by_op.push((op.to_owned(), quoted(device)));
    }
    Ok(scope.device_function(move |operation| {
        let fits = |(op, _): &&(String, String)| op == operation.op() || op == "anything else";
        by_op.iter().find(fits).map(|(_, device)| device.clone())
    }))
}

/// Runs lines such as `with device('/cpu:0'): with colocate_with(a): b`, each of which adds one
/// operation.
fn colocated(case: &Value) -> Result<(), String> {
    let builder = GraphBuilder::new("colocation");
    let mut operations: Vec<(String, Operation)> = Vec::new();
    for line in case["program"].as_array().ok_or("no program")? {
        let line = line.as_str().ok_or("no line")?;
        let mut scope = Scope::clone(&builder);
        let mut rest = line;
        while let Some(inner) = rest.strip_prefix("with ") {
            let (call, others) = inner
                .split_once("): ")
                .ok_or_else(|| format!("no call: {rest}"))?;
            let (function, argument) = call
                .split_once('(')
                .ok_or_else(|| format!("no call: {call}"))?;
            scope = match (function, argument) {
                ("device", device) => scope
                    .device(device.trim_matches('\''))
                    .map_err(|error| error.to_string())?,
                ("colocate_with", "None, ignore_existing") => scope.without_colocation(),
                ("colocate_with", name) => {
                    let with = operations.iter().find(|(known, _)| known == name);
                    scope.colocate_with(with.ok_or_else(|| format!("no operation: {name}"))?.1)
                }
                _ => return Err(format!("no scope: {call}")),
            };
            rest = others;
        }
        let operation = scope
            .named(rest)
            .no_op()
            .map_err(|error| error.to_string())?;
        operations.push((rest.to_owned(), operation));
    }
    let graph = builder.finish();
    for (name, expect) in case["expect"]["nodes"].as_object().ok_or("no nodes")? {
        let found = json!({"device": requested(&graph, name)?, "_class": classes(&graph, name)?});
        equal(name, &found, expect)?;
    }
    Ok(())
}

fn requested(graph: &Graph, name: &str) -> Result<String, String> {
    let node = graph
        .find_node(name)
        .ok_or_else(|| format!("no node `{name}`"))?;
    Ok(graph.requested(node).to_owned())
}

fn classes(graph: &Graph, name: &str) -> Result<Vec<String>, String> {
    let node = graph
        .find_node(name)
        .ok_or_else(|| format!("no node `{name}`"))?;
    let classes = graph.attrs(node).list("_class").unwrap_or_default().iter();
    let classes = classes.filter_map(|class| match class {
        AttrValue::Bytes(class) => Some(String::from_utf8_lossy(class).into_owned()),
        _ => None,
    });
    Ok(classes.collect())
}

/// Returns the exception that Python raises.
fn build_error(error: &BuildError) -> &'static str {
    match error {
        BuildError::NoDevice { .. } => "TypeError",
        BuildError::Device { source, .. } => name_error(source),
        _ => "InvalidArgument",
    }
}
