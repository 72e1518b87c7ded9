//! Resources of a device.

use std::sync::Arc;

use placewright::device::ContainerInfo;
use placewright::device::Resource;
use placewright::device::ResourceError;
use placewright::device::ResourceManager;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use serde_json::Value;

use crate::category;
use crate::equal;
use crate::mentions;

/// Resources of two types.
struct A(String);
struct B(String);

impl Resource for A {
    fn describe(&self) -> String {
        self.0.clone()
    }
}

impl Resource for B {
    fn describe(&self) -> String {
        self.0.clone()
    }
}

/// The error of a creator that fails.
#[derive(Debug, thiserror::Error)]
enum CreateError {
    #[error(transparent)]
    Resource(#[from] ResourceError),
    #[error("aborted")]
    Aborted,
}

/// The outcome of a call: its result, if any, or the category and message of the error.
type Outcome = Result<Option<String>, (String, String)>;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    let mut manager = ResourceManager::new();
    for (number, step) in case["steps"].as_array().into_iter().flatten().enumerate() {
        let expected = &step["expect"];
        let found = call(&mut manager, step)?;
        let compared = match (&expected["error"], found) {
            (Value::Null, Ok(value)) => match expected["value"].as_str() {
                Some(expected) => same_value(value.as_deref(), expected),
                None => Ok(()),
            },
            (Value::Null, Err((_, message))) => Err(message),
            (error, Err((found, message))) => {
                category(error, &found).and_then(|()| mentions(Err::<(), _>(message), error))
            }
            (error, Ok(value)) => Err(format!("expected {error}, found {value:?}")),
        };
        compared.map_err(|message| format!("step {number}: {message}"))?;
    }
    Ok(())
}

fn call(manager: &mut ResourceManager, step: &Value) -> Result<Outcome, String> {
    let arguments = step["args"].as_array();
    let arguments: Vec<&str> = arguments
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let argument = |index: usize| arguments.get(index).copied().unwrap_or("");
    let (container, name, value) = (argument(0), argument(1), argument(2));
    Ok(match step["call"].as_str().unwrap_or("") {
        "new" => {
            *manager = match arguments.first() {
                Some(default) => ResourceManager::with_default_container(*default),
                None => ResourceManager::new(),
            };
            Ok(Some(manager.default_container().to_owned()))
        }
        "createA" => done(manager.create(container, name, Arc::new(A(value.to_owned())))),
        "createB" => done(manager.create(container, name, Arc::new(B(value.to_owned())))),
        "lookupA" => told(
            manager
                .lookup::<A>(container, name)
                .map(|found| found.0.clone()),
        ),
        "lookupB" => told(
            manager
                .lookup::<B>(container, name)
                .map(|found| found.0.clone()),
        ),
        "deleteA" => done(manager.delete::<A>(container, name)),
        "deleteB" => done(manager.delete::<B>(container, name)),
        "locA" => {
            let found = manager.lookup_or_create(container, name, || match value {
                "FAIL" => Err(CreateError::Aborted),
                value => Ok(A(value.to_owned())),
            });
            match found {
                Ok(found) => Ok(Some(found.0.clone())),
                Err(CreateError::Aborted) => Err(("Aborted".to_owned(), "aborted".to_owned())),
                Err(CreateError::Resource(error)) => told(Err(error)),
            }
        }
        "cleanup" => done(manager.cleanup(container)),
        "clear" => done(manager.clear()),
        "finalize" => done(manager.finalize()),
        "info" => info(manager, step),
        other => return Err(format!("no such call: {other}")),
    })
}

/// Returns container, name and privacy of a stateful op's resource, as TensorFlow's `ContainerInfo`
/// prints them. The arguments are the attributes `container` and `shared_name`, whether the node's
/// name is the default, and that name.
fn info(manager: &ResourceManager, step: &Value) -> Outcome {
    let argument = |index: usize, key: &str| match &step["args"][index] {
        Value::Null => step[key].clone(),
        given => given.clone(),
    };
    let text = |index, key| argument(index, key).as_str().unwrap_or("").to_owned();
    let string = |text: String| AttrValue::from(text.as_str());
    let attrs = AttrSet::new([
        ("container".into(), string(text(0, "container"))),
        ("shared_name".into(), string(text(1, "shared_name"))),
    ]);
    let use_node_name = match argument(2, "use_node_name_as_default") {
        Value::Bool(is_default) => is_default,
        Value::String(text) => text == "true" || text == "1",
        other => other == 1,
    };
    let node = match argument(3, "node") {
        Value::String(node) => node,
        _ => "foo".to_owned(),
    };
    told(
        ContainerInfo::resolve(manager, &node, &attrs, use_node_name).map(|info| {
            let privacy = if info.is_private_to_kernel {
                "private"
            } else {
                "public"
            };
            format!("[{},{},{privacy}]", info.container, info.name)
        }),
    )
}

/// Compares values, except for the number in a private name, which counts all such names of the
/// process.
fn same_value(found: Option<&str>, expected: &str) -> Result<(), String> {
    let without_number = |text: &str| -> String {
        let is_private = text.ends_with(",private]");
        let Some((head, tail)) = text.split_once(",_").filter(|_| is_private) else {
            return text.to_owned();
        };
        let tail = tail.trim_start_matches(|c: char| c.is_ascii_digit());
        format!("{head},_N{tail}")
    };
    equal(
        "value",
        &found.map(without_number),
        &Some(without_number(expected)),
    )
}

fn done(result: Result<(), ResourceError>) -> Outcome {
    told(result.map(|()| String::new())).map(|_| None)
}

fn told(result: Result<String, ResourceError>) -> Outcome {
    result
        .map(Some)
        .map_err(|error| (error.code().to_string(), error.to_string()))
}
