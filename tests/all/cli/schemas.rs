//! Validates the JSON output of commands against their schemas.

use std::fs;
use std::path::Path;

use serde_json::Value;
use serde_json::json;

use super::Ran;
use super::args;
use super::file;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;
use super::refusals::gradients;
use super::run_with_cache;

/// Fails the test unless `document` matches the schema of `command`.
pub(crate) fn check(command: &str, document: &Value) {
    let mut line = vec!["schema"];
    line.extend(command.split(' '));
    let schema = placewright(line).expect(0).json();
    let problems = problems(&schema, document);
    assert_eq!(problems, Vec::<String>::new(), "{command}: {document:#}");
}

/// Returns the parts of a document that its schema does not allow.
fn problems(schema: &Value, document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    validate(schema, schema, document, "$", &mut found);
    found
}

/// Validates the part of JSON Schema (draft 2020-12) that the schemas use; any other keyword is an
/// error in the schema.
///
/// The crate `jsonschema` ignores unknown keywords, as the specification requires: a schema with
/// `requierd` would allow every document. It also brings crates for regular expressions, URIs and
/// exact fractions, which a dozen keywords do not need.
fn validate(root: &Value, schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let keywords = schema.as_object().expect("a schema is an object");
    let is_valid = |schema: &Value| {
        let mut found = Vec::new();
        validate(root, schema, value, path, &mut found);
        found.is_empty()
    };
    for (keyword, argument) in keywords {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => {}
            "$ref" => {
                let name = argument
                    .as_str()
                    .and_then(|path| path.strip_prefix("#/$defs/"));
                let definition = &root["$defs"][name.expect("a definition")];
                validate(root, definition, value, path, found);
            }
            "type" => {
                let one = [argument.clone()];
                let types = argument.as_array().map_or(&one[..], Vec::as_slice);
                if !types.iter().any(|name| has_type(value, name)) {
                    found.push(format!("{path}: {value} is not of type {argument}"));
                }
            }
            "enum" => {
                let allowed = argument.as_array().expect("values");
                if !allowed.contains(value) {
                    found.push(format!("{path}: {value} is not one of {argument}"));
                }
            }
            "const" => {
                if argument != value {
                    found.push(format!("{path}: {value} is not {argument}"));
                }
            }
            "minimum" => {
                if value.as_f64() < argument.as_f64() && value.is_number() {
                    found.push(format!("{path}: {value} is less than {argument}"));
                }
            }
            "oneOf" => {
                let schemas = argument.as_array().expect("schemas");
                let n_valid = schemas.iter().filter(|schema| is_valid(schema)).count();
                if n_valid != 1 {
                    found.push(format!("{path}: {n_valid} of `oneOf` match"));
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(root, argument, item, &format!("{path}[{index}]"), found);
                }
            }
            "required" => {
                for key in argument.as_array().expect("keys") {
                    let key = key.as_str().expect("a key");
                    if value.is_object() && value.get(key).is_none() {
                        found.push(format!("{path}: `{key}` is missing"));
                    }
                }
            }
            "properties" => {
                for (key, schema) in argument.as_object().expect("schemas") {
                    if let Some(member) = value.get(key) {
                        validate(root, schema, member, &format!("{path}.{key}"), found);
                    }
                }
            }
            "additionalProperties" => {
                let known = &schema["properties"];
                for (key, member) in value.as_object().into_iter().flatten() {
                    if known.get(key).is_some() {
                        continue;
                    }
                    match argument {
                        Value::Bool(false) => {
                            found.push(format!("{path}: `{key}` is not in the schema"));
                        }
                        schema => validate(root, schema, member, &format!("{path}.{key}"), found),
                    }
                }
            }
            other => panic!("the schema uses `{other}`, which is not validated"),
        }
    }
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("there is no type `{other}`"),
    }
}

#[test]
fn the_validator_finds_what_is_wrong() {
    let schema = json!({
        "$defs": {"count": {"type": "integer", "minimum": 1}},
        "type": "object",
        "properties": {
            "n": {"$ref": "#/$defs/count"},
            "kind": {"enum": ["a", "b"]},
            "rows": {"type": "array", "items": {"type": ["string", "null"]}},
            "map": {"type": "object", "additionalProperties": {"type": "number"}},
            "either": {"oneOf": [{"const": true}, {"type": "string"}]},
        },
        "required": ["n"],
        "additionalProperties": false,
    });
    let good = json!({"n": 2, "kind": "b", "rows": ["x", null], "map": {"y": 0.5}, "either": "z"});
    assert_eq!(problems(&schema, &good), Vec::<String>::new());
    for (key, value) in [
        ("n", json!(0)),
        ("n", json!(1.5)),
        ("n", json!("1")),
        ("kind", json!("c")),
        ("rows", json!([1])),
        ("rows", json!({})),
        ("map", json!({"y": "z"})),
        ("either", json!(false)),
        ("more", json!(1)),
    ] {
        let mut bad = good.clone();
        bad[key] = value;
        assert_eq!(problems(&schema, &bad).len(), 1, "{bad}");
    }
    assert_eq!(problems(&schema, &json!({})).len(), 1);
    assert_eq!(problems(&schema, &json!([])).len(), 1);
}

/// Every object lists its keys: a new key needs a line in the schema.
#[test]
fn schemas_are_closed_and_described() {
    fn open_objects(schema: &Value, path: &str, found: &mut Vec<String>) {
        match schema {
            Value::Object(members) => {
                let is_object = members.get("type").is_some_and(|kind| {
                    kind == "object"
                        || kind
                            .as_array()
                            .is_some_and(|kinds| kinds.contains(&json!("object")))
                });
                if is_object && !members.contains_key("additionalProperties") {
                    found.push(path.to_owned());
                }
                for (key, value) in members {
                    open_objects(value, &format!("{path}/{key}"), found);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    open_objects(item, &format!("{path}/{index}"), found);
                }
            }
            _ => {}
        }
    }
    let names = placewright(["schema", "--json"]).expect(0).json();
    let names = names.as_array().expect("names");
    let listed = placewright(["schema"]).expect(0).stdout;
    assert_eq!(listed.lines().count(), names.len());
    assert!(names.len() >= 12);
    for name in names {
        let name = name.as_str().expect("a name");
        let mut line = vec!["schema"];
        line.extend(name.split(' '));
        let schema = placewright(line).expect(0).json();
        assert!(schema["title"].is_string(), "{name}");
        assert!(schema["$schema"].is_string(), "{name}");
        let mut found = Vec::new();
        open_objects(&schema, "", &mut found);
        assert_eq!(found, Vec::<String>::new(), "{name}");
    }
    placewright(["schema", "dance"]).expect_error(2, &["`dance`", "bench models"]);
}

#[test]
fn devices_and_policies_match_their_schemas() {
    let folder = folder();
    let cache = folder.path().join("cache");
    let run = |line: &str, status: i32| {
        run_with_cache(args(line, &[]), &cache)
            .expect(status)
            .json()
    };
    check("devices", &run("devices --json", 0));
    check("devices", &run("devices --device-count CPU=2 --json", 0));
    check(
        "devices",
        &run("devices --threads 1 --calibrate --seconds 2 --json", 0),
    );
    check("devices", &run("devices --device-count TPU=1 --json", 1));

    check("policy list", &run("policy list --json", 0));
    for (name, status) in [("declines", 0), ("imports-unknown", 1)] {
        let policy = file(&folder, "policy.wasm", placewright_fixtures::wasm(name));
        let ran = placewright(args("policy check {} --json", &[&policy]));
        check("policy check", &ran.expect(status).json());
    }
    for action in ["path", "usage", "clear"] {
        let line = format!("cache {action} --json");
        check("cache", &run(&line, 0));
        let off = run_with_cache(args(&line, &[]), Path::new(""));
        check("cache", &off.expect(0).json());
    }
}

#[test]
fn run_and_place_match_their_schemas() {
    let folder = folder();
    let (graph, arrays) = (model("lenet.pb"), model("lenet.npz"));
    let tiny = model("tiny_add.pb");
    let saved = path_in(&folder, "saved.json");
    let traps = file(&folder, "traps.wasm", placewright_fixtures::wasm("traps"));
    let json = |ran: Ran, status: i32| ran.expect(status).json();
    let run = |line: &str, paths: &[&str], status: i32| {
        let line = format!("run {line} --json");
        check("run", &json(placewright(args(&line, paths)), status));
    };
    let place = |line: &str, paths: &[&str], status: i32| {
        let line = format!("place {line} --json");
        check("place", &json(placewright(args(&line, paths)), status));
    };
    run("{} --repeat 2", &[&graph], 0);
    run("{} --check {} --policy heft", &[&graph, &arrays], 0);
    run("{} --check {} --atol 0 --rtol 0", &[&graph, &arrays], 1);
    run("{} --policy {}", &[&tiny, &traps], 3);
    run("{}", &[&model("tiny_dtypes.skel.pb")], 0);

    let devices = "--device-count CPU=4 --policy round-robin";
    let line = format!("{{}} {devices} --save-placement {{}}");
    place(&line, &[&graph, &saved], 0);
    run(
        "{} --placement {} --device-count CPU=4",
        &[&graph, &saved],
        0,
    );
    let line = format!("{{}} {devices} --nodes --transfers --diff {{}}");
    place(&line, &[&graph, &saved], 0);
    place("{} --keep {} --device-count CPU=2", &[&graph, &saved], 0);
    place(
        "{} --policy priority --device-count CPU=2 --diff {}",
        &[&graph, &saved],
        0,
    );
    place("{} --policy heft --policy-fuel 1000000000", &[&graph], 0);
    place("{} --policy {}", &[&tiny, &traps], 3);
    let requests = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/conformance/graphs/cond_v1.graph.pb"
    );
    place("{} --device-count CPU=1", &[requests], 1);
    place("{} --check-ops", &[&graph], 0);
    let gradients = gradients(["first", "second"]);
    let gradients = file(&folder, "gradients.pb", &gradients);
    place("{} --check-ops", &[&gradients], 1);
}

#[test]
fn benchmarks_match_their_schemas() {
    let folder = folder();
    let policy = path_in(&folder, "mine.wasm");
    let heft = placewright::policy::ShippedPolicy::find("heft").expect("shipped");
    fs::write(&policy, heft.wasm()).expect("written");
    for (command, flags, paths) in [
        (
            "bench placement",
            "--nodes 200 --policy priority --policy {} --repetitions 1",
            vec![policy.as_str()],
        ),
        ("bench policy-call", "--tasks 64 --repetitions 1", vec![]),
        (
            "bench prediction",
            "{} --seconds 0 --rounds 1 --plans 3 --device-count CPU=2,SYCL=0,GPU=0",
            vec![&model("lenet.pb")],
        ),
        (
            "bench quality",
            "{} --policy heft --policy {}",
            vec![&model("../quality/synthetic.chain_2.json"), policy.as_str()],
        ),
        (
            "bench adversary",
            "--policy heft --against {} --walks 1 --tasks 3 --seconds 0.1",
            vec![policy.as_str()],
        ),
        (
            "bench dispatch",
            "--nodes 200 --repetitions 1 --threads 1",
            vec![],
        ),
        (
            "bench models",
            "{} --seconds 0",
            vec![&model("tiny_add.pb")],
        ),
        (
            "bench serve",
            "{} --seconds 0 --callers 1",
            vec![&model("tiny_add.pb")],
        ),
    ] {
        let line = format!("{command} {flags} --json");
        check(command, &placewright(args(&line, &paths)).expect(0).json());
    }
}
