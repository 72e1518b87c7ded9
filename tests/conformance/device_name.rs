//! `device_name.json`: grammar, string forms, relations and merging.

use placewright::names::DeviceName;
use placewright::names::MergeMode;
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
        "parse_full" => parsed(DeviceName::parse_full(text(case, "input")?), expect),
        "parse_local" => parsed(DeviceName::parse_local(text(case, "input")?), expect),
        "parse_full_or_local" => parsed(
            DeviceName::parse_full_or_local(text(case, "input")?),
            expect,
        ),
        "round_trip" => {
            let printed = DeviceName::parse_full(text(case, "input")?).map(|name| name.to_string());
            same_text(printed.ok(), expect, "canonical")
        }
        "is_specification" => {
            let less = name(case, "less_specific")?;
            let more = name(case, "more_specific")?;
            value(more.is_specification_of(&less), expect)
        }
        "is_complete_specification" => {
            let name_of_device = name(case, "name")?;
            value(name(case, "pattern")?.matches(&name_of_device), expect)
        }
        "are_compatible" => value(
            name(case, "a")?.is_compatible_with(&name(case, "b")?),
            expect,
        ),
        "ensure_specification" => {
            let mut more = name(case, "more_specific")?;
            more.ensure_specification(&name(case, "less_specific")?);
            same_name(&more, expect)
        }
        "address_space_relation" => {
            let (a, b) = (name(case, "a")?, name(case, "b")?);
            equal("same", &json!(a.is_same_address_space(&b)), &expect["same"])?;
            equal(
                "different",
                &json!(a.is_different_address_space(&b)),
                &expect["different"],
            )
        }
        "merge" => {
            let soft = case["soft"].as_bool().ok_or("case has no flag `soft`")?;
            let mode = if soft {
                MergeMode::Soft
            } else {
                MergeMode::Hard
            };
            let (a, b) = (name(case, "target")?, name(case, "other")?);
            merged(&a, &b, mode, expect)?;
            if case["symmetric"] == true {
                merged(&b, &a, mode, expect)?;
            }
            Ok(())
        }
        "merge_override" => merged(
            &name(case, "target")?,
            &name(case, "other")?,
            MergeMode::Override,
            expect,
        ),
        "merge_unset" => {
            let mut target = name(case, "target")?;
            target.merge_unset(&name(case, "other")?);
            same_name(&target, expect)
        }
        "canonicalize" => {
            let found = DeviceName::canonicalize(text(case, "input")?, text(case, "basename")?);
            if expect["error"].is_object() {
                return refused(found, &expect["error"]);
            }
            same_text(found.ok().map(|name| name.to_string()), expect, "result")
        }
        "local_name" => {
            let index = case["id_number"]
                .as_u64()
                .and_then(|id| u32::try_from(id).ok());
            let local = DeviceName::local(text(case, "type")?, index.ok_or("bad id_number")?);
            local_names(&local, expect)
        }
        "local_name_of_full" => local_names(&name(case, "input")?, expect),
        "full_name" => {
            let number = |key: &str| {
                let number = case[key].as_u64().and_then(|n| u32::try_from(n).ok());
                number.ok_or_else(|| format!("bad {key}"))
            };
            let full = DeviceName::full(
                text(case, "job")?,
                number("replica")?,
                number("task")?,
                text(case, "type")?,
                number("id_number")?,
            );
            // A device whose name does not print as it was parsed is rejected, as by its
            // constructor.
            if expect["error"].is_object() {
                return refused(DeviceName::parse_full(&full.to_string()), &expect["error"]);
            }
            same_text(Some(full.to_string()), expect, "result")
        }
        "split_device_name" => {
            let split = DeviceName::parse_full(text(case, "input")?)
                .ok()
                .and_then(|name| name.split());
            equal("ok", &json!(split.is_some()), &expect["ok"])?;
            let Some((task, device)) = split else {
                return Ok(());
            };
            equal("task", &json!(task), &expect["task"])?;
            equal("device", &json!(device), &expect["device"])
        }
        "mapping_names" => {
            let name = name(case, "input")?;
            equal("full", &json!(name.mapping_names()), &expect["full"])?;
            equal(
                "local",
                &json!(name.local_mapping_names()),
                &expect["local"],
            )
        }
        "host_cpu_name" => {
            let found = DeviceName::host_cpu_of(text(case, "input")?);
            if expect["error"].is_object() {
                return refused(found, &expect["error"]);
            }
            same_text(found.ok().map(|name| name.to_string()), expect, "result")
        }
        "task_name" => {
            let task = DeviceName::parse_full(text(case, "input")?)
                .ok()
                .and_then(|name| name.task_name());
            equal("ok", &json!(task.is_some()), &expect["ok"])?;
            task.map_or(Ok(()), |task| equal("task", &json!(task), &expect["task"]))
        }
        "compare_full_names_less" => {
            let order = DeviceName::compare_names(text(case, "a")?, text(case, "b")?);
            value(order.is_lt(), expect)
        }
        other => Err(format!("unknown op `{other}`")),
    }
}

fn name(case: &Value, key: &str) -> Result<DeviceName, String> {
    DeviceName::parse_full(text(case, key)?).map_err(|error| format!("{key}: {error}"))
}

fn value(found: bool, expect: &Value) -> Result<(), String> {
    equal("value", &json!(found), &expect["value"])
}

fn parsed(found: Result<DeviceName, NameError>, expect: &Value) -> Result<(), String> {
    equal("ok", &json!(found.is_ok()), &expect["ok"])?;
    let Ok(name) = found else { return Ok(()) };
    parts(&name, expect)?;
    if expect["canonical"].is_string() {
        same_text(Some(name.to_string()), expect, "canonical")?;
    }
    Ok(())
}

fn parts(name: &DeviceName, expect: &Value) -> Result<(), String> {
    let found = json!({
        "job": name.job.as_deref(),
        "replica": name.replica,
        "task": name.task,
        "type": name.device_type.as_deref(),
        "id": name.index,
    });
    equal("parsed", &found, &expect["parsed"])
}

fn refused<T: std::fmt::Debug>(found: Result<T, NameError>, error: &Value) -> Result<(), String> {
    if let Err(found) = &found {
        category(error, found.code().name())?;
    }
    mentions(found, error)
}

fn merged(
    target: &DeviceName,
    other: &DeviceName,
    mode: MergeMode,
    expect: &Value,
) -> Result<(), String> {
    let mut name = target.clone();
    let result = name.merge(other, mode);
    if expect["error"].is_object() {
        return refused(result, &expect["error"]);
    }
    result.map_err(|error| error.to_string())?;
    if expect["parsed"].is_object() {
        parts(&name, expect)?;
    }
    same_name(&name, expect)
}

/// Compares the result after parsing: any equivalent form is accepted.
fn same_name(found: &DeviceName, expect: &Value) -> Result<(), String> {
    let expected = DeviceName::parse_full(text(expect, "result")?).map_err(|e| e.to_string())?;
    equal("result", &found.to_string(), &expected.to_string())
}

fn same_text(found: Option<String>, expect: &Value, key: &str) -> Result<(), String> {
    if expect["ok"].is_boolean() {
        equal("ok", &json!(found.is_some()), &expect["ok"])?;
    }
    found.map_or(Ok(()), |found| equal(key, &json!(found), &expect[key]))
}

fn local_names(name: &DeviceName, expect: &Value) -> Result<(), String> {
    equal("result", &json!(name.local_name()), &expect["result"])?;
    equal(
        "legacy_result",
        &json!(name.legacy_local_name()),
        &expect["legacy_result"],
    )
}
