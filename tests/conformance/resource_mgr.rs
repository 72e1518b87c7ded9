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

/// What a creator that fails says.
#[derive(Debug, thiserror::Error)]
enum CreateError {
    #[error(transparent)]
    Resource(#[from] ResourceError),
    #[error("aborted")]
    Aborted,
}

/// The outcome of a call: what it gave, if anything, or the category and text of the error.
type Outcome = Result<Option<String>, (String, String)>;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    let mut manager = ResourceManager::new();
    for (number, step) in case["steps"].as_array().into_iter().flatten().enumerate() {
        let expected = &step["expect"];
        let found = call(&mut manager, step)?;
        let compared = match (&expected["error"], found) {
            (Value::Null, Ok(value)) => match expected["value"].as_str() {
                Some(expected) => equal("value", &value.as_deref(), &Some(expected)),
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

/// Container and name of a stateful op's resource, as `CONTAINER/NAME`.
fn info(manager: &ResourceManager, step: &Value) -> Outcome {
    let text = |key: &str| step[key].as_str().unwrap_or("").to_owned();
    let string = |text: String| AttrValue::from(text.as_str());
    let attrs = AttrSet::new([
        ("container".into(), string(text("container"))),
        ("shared_name".into(), string(text("shared_name"))),
    ]);
    let use_node_name = step["use_node_name_as_default"].as_bool().unwrap_or(false);
    told(
        ContainerInfo::resolve(manager, &text("node"), &attrs, use_node_name)
            .map(|info| format!("{}/{}", info.container, info.name)),
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
