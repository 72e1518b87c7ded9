//! `device_spec.json`: specifications of the Python front end.

use placewright::names::DeviceSpec;
use placewright::names::NameError;
use serde_json::Value;
use serde_json::json;

use crate::category;
use crate::equal;
use crate::mentions;
use crate::text;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    let expect = &case["expect"];
    match text(case, "op")? {
        "from_string" => {
            let parsed = text(case, "input")?.parse::<DeviceSpec>();
            match &expect["error"] {
                Value::Null => is_as_expected(&parsed.map_err(|e| e.to_string())?, expect),
                error => {
                    if let Err(found) = &parsed {
                        category(error, name_error(found))?;
                    }
                    mentions(parsed, error)
                }
            }
        }
        "construct" => made(changed(DeviceSpec::new(), &case["args"]), expect),
        "replace" => made(changed(spec(case, "base")?, &case["changes"]), expect),
        "make_merged_spec" => {
            let merged = spec(case, "base")?.merged(&spec(case, "override")?);
            is_as_expected(&merged, expect)
        }
        "equals" => {
            let are_equal = spec(case, "a")? == spec(case, "b")?;
            equal("equal", &json!(are_equal), &expect["value"])
        }
        "canonical_name" => {
            let canonical = match &case["input"] {
                Value::Null => Ok(String::new()),
                _ => text(case, "input")?
                    .parse()
                    .map(|spec: DeviceSpec| spec.to_string()),
            };
            if expect["error"].is_object() {
                if let Err(found) = &canonical {
                    category(&expect["error"], name_error(found))?;
                }
                return mentions(canonical, &expect["error"]);
            }
            let canonical = canonical.map_err(|error| error.to_string())?;
            equal("canonical", &json!(canonical), &expect["result"])
        }
        other => Err(format!("unknown op `{other}`")),
    }
}

/// Returns the exception that Python raises.
pub(crate) fn name_error(error: &NameError) -> &'static str {
    match error {
        NameError::Spec { .. } => "ValueError",
        _ => "InvalidArgument",
    }
}

/// The exception that Python raises, and its message.
pub(crate) type Raised = (&'static str, String);

fn made(made: Result<DeviceSpec, Raised>, expect: &Value) -> Result<(), String> {
    match (made, &expect["error"]) {
        (Ok(spec), Value::Null) => is_as_expected(&spec, expect),
        (Err((_, message)), Value::Null) => Err(message),
        (made, error) => {
            if let Err((found, _)) = &made {
                category(error, found)?;
            }
            mentions(made.map_err(|(_, message)| message), error)
        }
    }
}

/// Returns a specification with these components. Strings are converted if a number is expected,
/// and numbers if a string is.
pub(crate) fn changed(mut spec: DeviceSpec, changes: &Value) -> Result<DeviceSpec, Raised> {
    for (component, value) in changes.as_object().into_iter().flatten() {
        let text = match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            number => Some(number.to_string()),
        };
        // Parsed by the grammar of specifications, whose numbers are Python's.
        let number = || {
            let Some(digits) = &text else {
                return Ok(None);
            };
            let parsed = format!("/task:{digits}").parse::<DeviceSpec>();
            match parsed.map(|parsed| parsed.task) {
                Ok(Some(number)) if !digits.contains('/') => Ok(Some(number)),
                _ => Err((
                    "ValueError",
                    format!("{component}: `{digits}` is no number"),
                )),
            }
        };
        match &**component {
            "job" => spec.job = text,
            "replica" => spec.replica = number()?,
            "task" => spec.task = number()?,
            "device_index" => spec.device_index = number()?,
            "device_type" => {
                spec.device_type = None;
                if let Some(device_type) = text {
                    spec = spec.with_device_type(&device_type);
                }
            }
            other => return Err(("TypeError", format!("unknown component `{other}`"))),
        }
    }
    Ok(spec)
}

fn spec(case: &Value, key: &str) -> Result<DeviceSpec, String> {
    text(case, key)?
        .parse()
        .map_err(|error: NameError| error.to_string())
}

fn is_as_expected(spec: &DeviceSpec, expect: &Value) -> Result<(), String> {
    equal("printed", &json!(spec.to_string()), &expect["to_string"])?;
    let Some(components) = expect.get("components") else {
        return Ok(());
    };
    let found = json!({
        "job": spec.job,
        "replica": spec.replica,
        "task": spec.task,
        "device_type": spec.device_type,
        "device_index": spec.device_index,
    });
    equal("components", &found, components)
}
