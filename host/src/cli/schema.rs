//! `placewright schema`: JSON schemas of what commands print with `--json`.
//!
//! A schema is a file in `schemas`, less the definitions that several share: those are in
//! `schemas/definitions.json`, and each document gets the ones that it refers to. Every schema also
//! allows the document that a failed command prints.

use std::collections::BTreeSet;

use anyhow::Context;
use anyhow::Result;
use clap::Args;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::Outcome;
use super::UsageError;
use super::output::Output;

/// Definitions that several schemas share.
const DEFINITIONS: &str = include_str!("schemas/definitions.json");

/// Commands that print a document with `--json`, and its schema.
const SCHEMAS: [(&str, &str); 21] = [
    ("devices", include_str!("schemas/devices.json")),
    ("run", include_str!("schemas/run.json")),
    ("place", include_str!("schemas/place.json")),
    ("simulate", include_str!("schemas/simulate.json")),
    ("explain", include_str!("schemas/explain.json")),
    ("compare", include_str!("schemas/compare.json")),
    ("report", include_str!("schemas/report.json")),
    ("inspect", include_str!("schemas/inspect.json")),
    ("policy list", include_str!("schemas/policy-list.json")),
    ("policy check", include_str!("schemas/policy-check.json")),
    ("cache", include_str!("schemas/cache.json")),
    (
        "bench placement",
        include_str!("schemas/bench-placement.json"),
    ),
    (
        "bench policy-call",
        include_str!("schemas/bench-policy-call.json"),
    ),
    (
        "bench dispatch",
        include_str!("schemas/bench-dispatch.json"),
    ),
    ("bench models", include_str!("schemas/bench-models.json")),
    (
        "bench prediction",
        include_str!("schemas/bench-prediction.json"),
    ),
    ("bench quality", include_str!("schemas/bench-quality.json")),
    (
        "bench adversary",
        include_str!("schemas/bench-adversary.json"),
    ),
    ("bench device", include_str!("schemas/bench-device.json")),
    ("bench gpu", include_str!("schemas/bench-gpu.json")),
    ("bench serve", include_str!("schemas/bench-serve.json")),
];

#[derive(Debug, Args)]
pub(super) struct SchemaArgs {
    /// The command, such as `run` or `bench models`; by default the names of all that have a
    /// schema are listed.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command.
pub(super) fn run(args: &SchemaArgs, output: &mut Output) -> Result<Outcome> {
    let names = SCHEMAS.map(|(name, _)| name);
    if args.command.is_empty() {
        for name in names {
            output.line(name)?;
        }
        output.json(&names)?;
        return Ok(Outcome::Done);
    }
    let name = args.command.join(" ");
    let schema = document(&name)?.ok_or_else(|| {
        UsageError(format!(
            "`{name}` has no schema; expected one of {}",
            names.join(", ")
        ))
    })?;
    output.document(&format!("{:#}\n", schema))?;
    Ok(Outcome::Done)
}

/// The schema of a command with the definitions that it refers to; `None` if it has none.
fn document(command: &str) -> Result<Option<Value>> {
    let Some((_, text)) = SCHEMAS.iter().find(|(name, _)| *name == command) else {
        return Ok(None);
    };
    let schema: Value = serde_json::from_str(text).context("the schema is not JSON")?;
    let mut schema = with_error(schema);
    let all: Value = serde_json::from_str(DEFINITIONS).context("the definitions are not JSON")?;
    let mut names = BTreeSet::new();
    references(&schema, &all, &mut names);
    let definitions: Map<String, Value> = names
        .into_iter()
        .map(|name| {
            let definition = all[&name].clone();
            (name, definition)
        })
        .collect();
    if !definitions.is_empty() {
        schema["$defs"] = Value::Object(definitions);
    }
    Ok(Some(schema))
}

/// Returns the schema of a document, or of the error that any command may print instead.
fn with_error(mut schema: Value) -> Value {
    let error = json!({"$ref": "#/$defs/error"});
    match schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        Some(documents) => {
            documents.push(error);
            schema
        }
        None => {
            let mut whole = json!({"$schema": schema["$schema"], "title": schema["title"]});
            if let Some(document) = schema.as_object_mut() {
                document.retain(|key, _| key != "$schema" && key != "title");
            }
            whole["oneOf"] = json!([schema, error]);
            whole
        }
    }
}

/// Collects the names of the definitions that a schema refers to, directly or through others.
fn references(schema: &Value, all: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                if key == "$ref"
                    && let Some(name) = value
                        .as_str()
                        .and_then(|path| path.strip_prefix("#/$defs/"))
                    && names.insert(name.to_owned())
                {
                    references(&all[name], all, names);
                }
                references(value, all, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, all, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_has_a_definition_and_every_definition_a_reference() {
        let all: Value = serde_json::from_str(DEFINITIONS).expect("JSON");
        let mut used = BTreeSet::new();
        for (name, _) in SCHEMAS {
            let schema = document(name).expect("JSON").expect("a schema");
            let definitions = schema["$defs"].as_object().cloned().unwrap_or_default();
            for (definition, value) in definitions {
                assert!(value.is_object(), "{name}: {definition}");
                used.insert(definition);
            }
        }
        let defined: BTreeSet<String> = all
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect();
        assert_eq!(used, defined);
    }
}
