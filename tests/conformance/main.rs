//! TensorFlow's rules, case by case: one test per case of `cases/*.json`, or of the folder that `PLACEWRIGHT_CASES` names.

mod device_factory;
mod device_mgr;
mod device_name;
mod device_scope;
mod device_set;
mod device_spec;
#[expect(dead_code, reason = "other suites use the rest")]
#[path = "../support/fakes.rs"]
mod fakes;
mod gpu;
mod partition;
mod rendezvous;
mod resource_mgr;

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;

use libtest_mimic::Arguments;
use libtest_mimic::Failed;
use libtest_mimic::Trial;
use serde_json::Value;

/// Runs one case; the error says what differs.
type Check = fn(&Value) -> Result<(), String>;

const FILES: &[(&str, Check)] = &[
    ("device_factory.json", device_factory::check),
    ("device_mgr_renamed_remote.json", device_mgr::check),
    ("device_name.json", device_name::check),
    ("device_scope.json", device_scope::check),
    ("device_set.json", device_set::check),
    ("device_spec.json", device_spec::check),
    ("gpu.json", gpu::check),
    ("partition.json", partition::check),
    ("resource_mgr.json", resource_mgr::check),
    ("rendezvous.json", rendezvous::check),
];

#[expect(clippy::print_stdout, reason = "the report of a test program")]
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
    for &(file, check) in FILES {
        match read(&folder.join(file)) {
            Ok(cases) => trials.extend(cases.into_iter().map(|case| trial(case, check))),
            Err(message) => {
                let failure = move || Err(Failed::from(message));
                trials.push(Trial::test(format!("read/{file}"), failure));
            }
        }
    }
    // Reported, not passed.
    for file in files_without_check(&folder) {
        let cases = read(&folder.join(&file)).unwrap_or_default();
        for case in cases {
            count(&case, |counts| counts.n_not_built += 1);
            trials.push(Trial::test(id(&case), || Ok(())).with_ignored_flag(true));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        for (area, counts) in &*COUNTS.lock().unwrap_or_else(PoisonError::into_inner) {
            println!("{area}: {counts}");
        }
    }
    conclusion.exit();
}

/// What became of the cases of one area.
#[derive(Debug, Default)]
struct Counts {
    n_passed: usize,
    n_failed: usize,
    n_not_built: usize,
}

static COUNTS: Mutex<BTreeMap<String, Counts>> = Mutex::new(BTreeMap::new());

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.n_not_built > 0 {
            return write!(f, "{} cases, not built", self.n_not_built);
        }
        write!(f, "{} passed, {} failed", self.n_passed, self.n_failed)
    }
}

fn count(case: &Value, change: impl FnOnce(&mut Counts)) {
    let area = case["area"].as_str().unwrap_or("no area").to_owned();
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    change(counts.entry(area).or_default());
}

/// Files of cases for which nothing is built here.
fn files_without_check(folder: &Path) -> Vec<String> {
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = listed.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.ends_with(".json") && FILES.iter().all(|(file, _)| file != name))
        .collect();
    names.sort_unstable();
    names
}

fn read(path: &Path) -> Result<Vec<Value>, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("reading {}: {error}", path.display()))?;
    let cases: Vec<Value> = serde_json::from_str(&text)
        .map_err(|error| format!("parsing {}: {error}", path.display()))?;
    if cases.is_empty() {
        return Err(format!("{} has no cases", path.display()));
    }
    Ok(cases)
}

fn id(case: &Value) -> String {
    let id = case["id"].as_str();
    id.unwrap_or("a case without id").to_owned()
}

fn trial(case: Value, check: Check) -> Trial {
    Trial::test(id(&case), move || {
        let outcome = check(&case);
        count(&case, |counts| match &outcome {
            Ok(()) => counts.n_passed += 1,
            Err(_) => counts.n_failed += 1,
        });
        outcome.map_err(|message| Failed::from(format!("{message}\ncase: {case:#}")))
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

/// Checks that an error is of the kind that a case names.
fn category(error: &Value, found: &str) -> Result<(), String> {
    match error["category"].as_str() {
        Some(expected) if expected != found => {
            Err(format!("the error is of category {found}, not {expected}"))
        }
        _ => Ok(()),
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
