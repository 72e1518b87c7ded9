//! Checks TensorFlow's rules: one test per case of `cases/*.json`, or of the folder in
//! `PLACEWRIGHT_CASES`. The `area` of a case selects the part of the library under test; file names
//! are arbitrary.

#[cfg(feature = "graphdef")]
mod choice;
mod chooser;
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
#[cfg(feature = "graphdef")]
mod partition_graph;
#[cfg(feature = "graphdef")]
mod placer;
mod rendezvous;
mod resource_mgr;

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use libtest_mimic::Arguments;
use libtest_mimic::Failed;
use libtest_mimic::Trial;
use serde_json::Value;

/// Runs one case; the error describes the difference.
type Check = fn(&Value) -> Result<(), String>;

/// The checks, by the area of a case.
const AREAS: &[(&str, Check)] = &[
    ("device_factory", device_factory::check),
    ("device_mgr", device_mgr::check),
    ("device_name", device_name::check),
    ("device_scope", device_scope::check),
    ("device_set", device_set::check),
    ("device_spec", device_spec::check),
    ("gpu_devices", gpu::check),
    ("gpu_memory", gpu::check),
    ("partition", partition::check),
    #[cfg(feature = "graphdef")]
    ("partition_graph", partition_graph::check),
    #[cfg(feature = "graphdef")]
    ("placer", placer::check),
    ("remote_device", device_mgr::check),
    ("renamed_device", device_mgr::check),
    ("rendezvous", rendezvous::check),
    ("resource_mgr", resource_mgr::check),
];

#[expect(clippy::print_stdout, reason = "the report of a test program")]
fn main() {
    let arguments = Arguments::from_args();
    let given = std::env::var_os("PLACEWRIGHT_CASES").map(PathBuf::from);
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/conformance/cases");
    let mut trials = trials(given.as_ref().unwrap_or(&built_in));
    if given.is_none() {
        trials.extend(AREAS.iter().map(|(area, _)| has_cases(area)));
        #[cfg(feature = "graphdef")]
        trials.extend(choice::trials(&built_in));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        for (area, counts) in &*counts() {
            println!("{area}: {counts}");
        }
    }
    conclusion.exit();
}

/// Returns one test per case of a folder, and one that fails per unreadable file.
fn trials(folder: &Path) -> Vec<Trial> {
    let paths = match files(folder) {
        Ok(paths) => paths,
        Err(message) => return vec![failure("read/folder", message)],
    };
    let mut trials = Vec::new();
    for path in paths {
        match read(&path) {
            Ok(cases) => trials.extend(cases.into_iter().map(trial)),
            Err(message) => {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                trials.push(failure(&format!("read/{file}"), message));
            }
        }
    }
    trials
}

/// Returns all `*.json` files of a folder, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("reading {}: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(format!(
            "{} has no cases; expected lists in `*.json` files",
            folder.display()
        ));
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Counts the outcomes of the cases of one area.
#[derive(Debug, Default)]
struct Counts {
    n_read: usize,
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

fn counts() -> MutexGuard<'static, BTreeMap<String, Counts>> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(case: &Value, change: impl FnOnce(&mut Counts)) {
    let area = case["area"].as_str().unwrap_or("no area").to_owned();
    change(counts().entry(area).or_default());
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

fn trial(case: Value) -> Trial {
    let Some(area) = case["area"].as_str() else {
        return failure(&id(&case), format!("case has no `area`: {case:#}"));
    };
    let Some(&(_, check)) = AREAS.iter().find(|(checked, _)| *checked == area) else {
        // Counted separately, not as passed.
        count(&case, |counts| counts.n_not_built += 1);
        return Trial::test(id(&case), || Ok(())).with_ignored_flag(true);
    };
    count(&case, |counts| counts.n_read += 1);
    Trial::test(id(&case), move || {
        let outcome = check(&case);
        count(&case, |counts| match &outcome {
            Ok(()) => counts.n_passed += 1,
            Err(_) => counts.n_failed += 1,
        });
        outcome.map_err(|message| Failed::from(format!("{message}\ncase: {case:#}")))
    })
}

/// A check for which the project has no case would never run.
fn has_cases(area: &'static str) -> Trial {
    let n_read = counts().get(area).map_or(0, |counts| counts.n_read);
    Trial::test(format!("cases/{area}"), move || match n_read {
        0 => Err(Failed::from(format!("no case is about `{area}`"))),
        _ => Ok(()),
    })
}

fn failure(name: &str, message: String) -> Trial {
    Trial::test(name, move || Err(Failed::from(message)))
}

/// Returns a string of a case.
fn text<'a>(case: &'a Value, key: &str) -> Result<&'a str, String> {
    case[key]
        .as_str()
        .ok_or_else(|| format!("case has no text `{key}`"))
}

/// Compares two values, and puts both into the message.
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
        // Errors that abort TensorFlow's process are ordinary errors here, of any category.
        Some("Fatal") => Ok(()),
        Some(expected) if expected != found => {
            Err(format!("the error is of category {found}, not {expected}"))
        }
        _ => Ok(()),
    }
}

/// Checks that the result is an error, and that its message contains all fragments.
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
