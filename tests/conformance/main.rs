//! TensorFlow's rules, case by case: one test per case of `cases/*.json`, or of the folder that `PLACEWRIGHT_CASES` names.

mod device_factory;
mod device_name;
mod device_set;
#[expect(dead_code, reason = "other suites use the rest")]
#[path = "../support/fakes.rs"]
mod fakes;
mod partition;

use std::path::PathBuf;

use libtest_mimic::Arguments;
use libtest_mimic::Failed;
use libtest_mimic::Trial;
use serde_json::Value;

/// Runs one case; the error says what differs.
type Check = fn(&Value) -> Result<(), String>;

const FILES: [(&str, Check); 4] = [
    ("device_factory.json", device_factory::check),
    ("device_name.json", device_name::check),
    ("device_set.json", device_set::check),
    ("partition.json", partition::check),
];

fn main() {
    let arguments = Arguments::from_args();
    let folder = std::env::var_os("PLACEWRIGHT_CASES").map_or_else(
        || {
            PathBuf::from(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../tests/conformance/cases"
            ))
        },
        PathBuf::from,
    );
    let mut trials = Vec::new();
    for (file, check) in FILES {
        match read(&folder.join(file)) {
            Ok(cases) => trials.extend(cases.into_iter().map(|case| trial(case, check))),
            Err(message) => {
                let failure = move || Err(Failed::from(message));
                trials.push(Trial::test(format!("read/{file}"), failure));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn read(path: &std::path::Path) -> Result<Vec<Value>, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("reading {}: {error}", path.display()))?;
    let cases: Vec<Value> = serde_json::from_str(&text)
        .map_err(|error| format!("parsing {}: {error}", path.display()))?;
    if cases.is_empty() {
        return Err(format!("{} has no cases", path.display()));
    }
    Ok(cases)
}

fn trial(case: Value, check: Check) -> Trial {
    let id = case["id"]
        .as_str()
        .unwrap_or("a case without id")
        .to_owned();
    Trial::test(id, move || {
        check(&case).map_err(|message| Failed::from(format!("{message}\ncase: {case:#}")))
    })
}

/// A text of a case.
fn text<'a>(case: &'a Value, key: &str) -> Result<&'a str, String> {
    case[key]
        .as_str()
        .ok_or_else(|| format!("case has no text `{key}`"))
}

/// Compares, with both sides in the message.
fn equal<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &T,
    expected: &T,
) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: expected {expected:?}, found {found:?}"))
    }
}

/// Checks that an error came, and mentions what it must.
fn mentions<T: std::fmt::Debug, E: std::fmt::Display>(
    result: Result<T, E>,
    error: &Value,
) -> Result<(), String> {
    let message = match result {
        Ok(value) => return Err(format!("expected an error, found {value:?}")),
        Err(error) => error.to_string(),
    };
    for fragment in error["mentions"].as_array().into_iter().flatten() {
        let fragment = fragment.as_str().unwrap_or_default();
        if !message.contains(fragment) {
            return Err(format!("error does not mention `{fragment}`: {message}"));
        }
    }
    Ok(())
}
