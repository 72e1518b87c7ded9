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
        "construct" => is_as_expected(&changed(DeviceSpec::new(), &case["args"])?, expect),
        "replace" => is_as_expected(&changed(spec(case, "base")?, &case["changes"])?, expect),
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
                Value::Null => String::new(),
                _ => spec(case, "input")?.to_string(),
            };
            equal("canonical", &json!(canonical), &expect["result"])
        }
        other => Err(format!("unknown op `{other}`")),
    }
}

/// What Python raises.
pub(crate) fn name_error(error: &NameError) -> &'static str {
    match error {
        NameError::Spec { .. } => "ValueError",
        _ => "InvalidArgument",
    }
}

/// A specification of these components; texts where numbers are expected are converted, and numbers where texts are.
pub(crate) fn changed(mut spec: DeviceSpec, changes: &Value) -> Result<DeviceSpec, String> {
    for (component, value) in changes.as_object().ok_or("no components")? {
        let text = match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            number => Some(number.to_string()),
        };
        let number = || {
            let digits = text.as_ref();
            digits.map(|digits| digits.parse::<i64>()).transpose()
        };
        let bad = |error| format!("{component}: {error}");
        match &**component {
            "job" => spec.job = text,
            "replica" => spec.replica = number().map_err(bad)?,
            "task" => spec.task = number().map_err(bad)?,
            "device_index" => spec.device_index = number().map_err(bad)?,
            "device_type" => {
                spec.device_type = None;
                if let Some(device_type) = text {
                    spec = spec.with_device_type(&device_type);
                }
            }
            other => return Err(format!("unknown component `{other}`")),
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
