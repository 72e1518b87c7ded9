//! Tests the program like a user: the real binary, its output, its exit status.

mod cache;
mod calibrate;
mod cluster;
mod compared;
#[cfg(feature = "cuda")]
mod gpu;
mod hostile;
mod loadable;
mod measured;
mod models;
#[cfg(feature = "opencl")]
mod opencl;
mod outputs;
mod placement_identity;
mod policies;
mod readme;
mod refusals;
mod results;
mod saved_model;
mod saved_placement;
pub(crate) mod schemas;
mod strings;
mod terminal;
mod trace;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// The output of a command, and its exit status.
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    command: String,
}

impl Ran {
    /// Fails the test with the whole output, unless the command has this status.
    pub(crate) fn expect(self, status: i32) -> Self {
        assert_eq!(
            self.status, status,
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            self.command, self.stdout, self.stderr
        );
        self
    }

    /// Expects one `error:` line that contains all of `parts`.
    pub(crate) fn expect_error(self, status: i32, parts: &[&str]) {
        let ran = self.expect(status);
        let error = ran
            .stderr
            .lines()
            .find(|line| line.starts_with("error: "))
            .unwrap_or_else(|| panic!("{}: no error line in\n{}", ran.command, ran.stderr));
        for part in parts {
            assert!(
                error.contains(part),
                "{}\n{error}\nlacks `{part}`",
                ran.command
            );
        }
        assert!(!ran.stderr.contains("thread 'main'"), "{}", ran.stderr);
    }

    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|err| panic!("{}: {err} in\n{}", self.command, self.stdout))
    }
}

/// A folder without OpenCL drivers, so that runs do not depend on the machine.
pub(crate) const NO_OPENCL: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-opencl");

/// Runs the program. All tests share one cache of compiled policies, keyed by their content.
pub(crate) fn placewright<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    run_with_cache(
        args,
        &Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-cache"),
    )
}

pub(crate) fn run_with_cache<S: AsRef<OsStr>>(
    args: impl IntoIterator<Item = S>,
    cache: &Path,
) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_placewright"));
    command
        .args(args)
        .env("PLACEWRIGHT_CACHE_DIR", cache)
        .env("OCL_ICD_VENDORS", NO_OPENCL)
        .env_remove("TF_ENABLED_DEVICE_TYPES");
    let output = command.output().expect("the program starts");
    Ran {
        status: output.status.code().expect("it was not killed"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        command: format!("{command:?}"),
    }
}

pub(crate) fn model(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/models")
        .join(name);
    path.into_os_string().into_string().expect("UTF-8")
}

/// Creates a file with this content in `folder`.
pub(crate) fn file(folder: &TempDir, name: &str, content: &[u8]) -> String {
    let path = path_in(folder, name);
    fs::write(&path, content).expect("written");
    path
}

pub(crate) fn path_in(folder: &TempDir, name: &str) -> String {
    let path: PathBuf = folder.path().join(name);
    path.into_os_string().into_string().expect("UTF-8")
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Splits a line at blanks; each `{}` stands for the next path.
pub(crate) fn args(line: &str, paths: &[&str]) -> Vec<String> {
    let mut paths = paths.iter();
    line.split_whitespace()
        .map(|word| match word {
            "{}" => (*paths.next().expect("a path for each {}")).to_owned(),
            word => word.to_owned(),
        })
        .collect()
}

#[test]
fn round_robin_spreads_a_graph_and_transfers_are_counted() {
    let line = "place {} --policy round-robin --device-count CPU=4 --transfers --json";
    let report = placewright(args(line, &[&model("lenet.pb")]))
        .expect(0)
        .json();
    let transfers = report["transfers"].as_array().expect("transfers");
    assert!(transfers.len() > 1);
    for transfer in transfers {
        let text = |key: &str| transfer[key].as_str().expect("a text");
        let (source, destination) = (text("source"), text("destination"));
        let start = format!("{source};0000000000000001;{destination};edge_");
        assert!(text("key").starts_with(&start), "{transfer}");
        assert!(text("key").ends_with(";0:0"), "{transfer}");
    }
    let devices = report["placement"]["devices"].as_array().expect("devices");
    assert!(
        devices
            .iter()
            .all(|device| device["n_nodes"].as_u64() > Some(0))
    );
    let sum = |key: &str| -> u64 {
        let links = report["links"].as_array().expect("links");
        links.iter().filter_map(|link| link[key].as_u64()).sum()
    };
    assert_eq!(report["placement"]["n_transfers"], sum("n_transfers"));
    assert_eq!(report["placement"]["n_transfers"], transfers.len());
    assert_eq!(report["placement"]["transfer_bytes"], sum("transfer_bytes"));
    assert!(sum("transfer_bytes") > 0);
}

#[test]
fn malformed_graphs_and_archives_are_errors_that_name_the_file() {
    let folder = folder();
    let whole = fs::read(model("lenet.pb")).expect("read");
    let cut = file(&folder, "cut.pb", &whole[..whole.len() / 2]);
    let text = file(&folder, "text.pb", b"this is no graph at all");
    let archive = file(&folder, "text.npz", b"this is no archive at all");
    let empty = file(
        &folder,
        "empty.npz",
        b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    );
    let graph = model("lenet.pb");
    let run = |line: &str, paths: &[&str]| placewright(args(line, paths));
    run("run {}", &[&cut]).expect_error(1, &["cut.pb"]);
    run("place {}", &[&text]).expect_error(1, &["text.pb"]);
    run("run {}", &["absent.pb"]).expect_error(1, &["absent.pb"]);
    run("run {} --check {}", &[&graph, &archive]).expect_error(1, &["text.npz", "savez"]);
    run("run {} --check {}", &[&graph, &empty]).expect_error(1, &["empty.npz", "out/FETCH"]);
    run("run {} --feeds {}", &[&graph, &empty])
        .expect_error(1, &["empty.npz", "in/NAME", "its arrays: none"]);
    let (tiny, arrays) = (model("tiny_add.pb"), model("lenet.npz"));
    run("run {} --feeds {}", &[&tiny, &arrays]).expect_error(1, &["no node `x`"]);
    let outputs = path_in(&folder, "outputs.npz");
    run("run {} --output {}", &[&tiny, &outputs]).expect(0);
    let wanted = ["outputs.npz", "`out/y:0`", "wanted: `in/a`, `in/b`"];
    run("run {} --feeds {}", &[&tiny, &outputs]).expect_error(1, &wanted);
    let unfed = "placeholder `a` is needed but not fed";
    run("run {} --check {}", &[&tiny, &outputs]).expect_error(1, &[unfed, wanted[2]]);
    run("run {} --feeds {}", &[&graph, "absent.npz"]).expect_error(1, &["absent.npz"]);
    run("run {} --fetch prob", &[&graph]).expect_error(2, &["`prob`", "did you mean `probs`?"]);
    run("run {} --feeds {}", &[&graph, &model("tiny_add.npz")]).expect_error(1, &["no node `a`"]);
}

#[test]
fn invalid_command_lines_end_with_status_2() {
    let graph = model("tiny_add.pb");
    for line in [
        "",
        "dance",
        "run",
        "run {} --device-count CPU",
        "run {} --device-count cpu=2",
        "devices --device-count NPU=2",
        "devices --device-count CPU=1 --device-count CPU=3",
        "run {} --memory CPU:0=1MiB --memory CPU:0=2MiB",
        "run {} --memory CPU:0=lots",
        "run {} --gpu-memory-fraction nan",
        "run {} --gpu-memory-fraction inf",
        "run {} --atol 1e-4",
        "run {} --policy-config k",
        "run {} --policy-fuel 5 --policy-deadline-ms 5",
        "run {} --policy-deadline-ms 0",
        "run {} --placement p.json --policy heft",
        "run {} --pin y",
        "run {} --pin y=CPU:1",
        "run {} --pin nowhere=CPU:0",
        "run {} --device-filter nonsense",
        "run {} --fetch nowhere",
        "run {} --inter-op-pool 1",
        "run {} --policy {}",
        "place {} --memory CPU:7=1GiB",
        "place {} --device-count CPU=0",
        "devices --memory CPU:7=1GiB",
        "policy check absent.wasm",
        "run {} --device /job:",
        "run {} --policy no-such-policy",
        "run {} --policy heft --policy-config no-such-key=1",
        "run {} --threads -1",
        "run {} --inter-op-threads -1",
        "run {} --intra-op-threads many",
        "run {} --session-inter-op-pool 2 --inter-op-threads 2",
        "place {} --session-inter-op-pool 5000",
        "run {} --inter-op-pool first",
        "cache empty",
    ] {
        // A graph is not a WebAssembly file.
        let paths = [graph.as_str(), graph.as_str()];
        let n_paths = line.matches("{}").count();
        let ran = placewright(args(line, &paths[..n_paths])).expect(2);
        assert!(
            !ran.stderr.is_empty() && ran.stdout.is_empty(),
            "{line}: {}",
            ran.stdout
        );
    }
}

#[test]
fn absent_device_types_are_listed_and_requesting_one_gives_a_remedy() {
    let absent = ["TPU", "XLA_CPU", "XLA_GPU", "XLA_EXEC"];
    let shown = placewright(["devices"]).expect(0).stdout;
    let json = placewright(["devices", "--json"]).expect(0).json();
    for device_type in absent {
        let line = shown
            .lines()
            .find(|line| line.starts_with("no backend in this program: "));
        let line = line.unwrap_or_else(|| panic!("no such line in\n{shown}"));
        assert!(
            line.contains(device_type) && line.contains("Registry::with"),
            "{line}"
        );
        assert_eq!(shown.matches(device_type).count(), 1, "{shown}");
        let rows = json["without_devices"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["device_type"] == device_type);
        let remedy = row.and_then(|row| row["remedy"].as_str()).expect("a row");
        assert!(remedy.contains(device_type), "{remedy}");
        let count = |n: u32| {
            placewright(args(
                &format!("devices --device-count {device_type}={n}"),
                &[],
            ))
        };
        count(1).expect_error(1, &[device_type, "no backend", "Registry::with"]);
        // The present devices are listed all the same.
        let report = placewright(args(
            &format!("devices --device-count {device_type}=1 --json"),
            &[],
        ));
        let report = report.expect(1).json();
        let error = report["devices_error"].as_str().expect("an error");
        assert!(error.contains("no backend"), "{error}");
        assert_eq!(
            report["physical_devices"][0]["name"],
            "/physical_device:CPU:0"
        );
        count(0).expect(0);
    }
}

#[test]
fn impossible_placements_are_errors_with_reason_and_remedy() {
    let graph = model("lenet.pb");
    let run = |line: &str| placewright(args(line, &[&graph]));
    run("place {} --memory CPU:0=100KiB").expect_error(1, &["memory", "Const_4"]);
    run("place {} --memory CPU:7=1GiB").expect_error(2, &["--memory", "CPU:7", "CPU:0"]);
    run("place {} --device-count CPU=0").expect_error(2, &["at least one"]);
    run("place {} --device /device:CPU:3").expect_error(2, &["--device", "CPU:3", "CPU:0"]);
    run("place {} --device /device:CPU:3 --soft-placement").expect(0);
    run("place {} --device CPU:1 --device-count CPU=2").expect(0);
}

#[test]
fn a_device_scope_moves_the_whole_graph() {
    let line = "place {} --device /device:CPU:1 --device-count CPU=2 --json";
    let report = placewright(args(line, &[&model("lenet.pb")]))
        .expect(0)
        .json();
    let n_nodes = |device: usize| report["placement"]["devices"][device]["n_nodes"].as_u64();
    assert_eq!((n_nodes(0), n_nodes(1)), (Some(0), Some(30)));
}

#[test]
fn every_node_is_logged_as_tensorflow_does() {
    for command in ["place", "run"] {
        let line = format!("{command} {{}} --log-device-placement --json");
        let ran = placewright(args(&line, &[&model("tiny_add.pb")])).expect(0);
        let mut logged = ran.stderr.lines().filter(|line| !line.starts_with("note:"));
        // CPU devices have no description.
        assert_eq!(logged.next(), Some("Device mapping: no known devices."));
        let node = "y: (AddV2): /job:localhost/replica:0/task:0/device:CPU:0";
        assert!(logged.any(|line| line == node), "{}", ran.stderr);
    }
}

#[test]
fn threads_pools_and_filters_are_flags() {
    let graph = model("tiny_add.pb");
    let check = model("tiny_add.npz");
    let run = |flags: &str| {
        let line = format!("run {{}} --check {{}} {flags}");
        placewright(args(&line, &[&graph, &check]))
    };
    run("--inter-op-threads 2 --intra-op-threads 1").expect(0);
    run("--threads 1 --inter-op-threads 0").expect(0);
    run("--device-filter /device:CPU:*").expect(0);
    run("--device-filter nonsense")
        .expect_error(2, &["--device-filter", "nonsense", "device name"]);
    let pools = "--session-inter-op-pool 1 --session-inter-op-pool 2 --repeat 3";
    for pool in ["-1", "0", "1"] {
        run(&format!("{pools} --inter-op-pool {pool}")).expect(0);
    }
    run(&format!("{pools} --inter-op-pool 2"))
        .expect_error(2, &["invalid inter_op_thread_pool 2", "expected 0 to 1"]);
    run("--inter-op-pool 1")
        .expect_error(2, &["invalid inter_op_thread_pool 1", "expected 0, or -1"]);
}

#[test]
fn json_is_one_document_everywhere() {
    let folder = folder();
    let cache = folder.path().join("cache");
    let graph = model("tiny_add.pb");
    for (line, key) in [
        ("devices --json", "/devices/0/rates/is_calibrated"),
        (
            "devices --device-count CPU=3 --json",
            "/devices/2/incarnation",
        ),
        ("devices --device-count CPU=3 --json", "/devices/2/chip"),
        ("devices --json", "/types/1/is_placeholder"),
        ("devices --json", "/physical_devices/0/details"),
        (
            "devices --numa-affinity --json",
            "/devices/0/locality/numa_node",
        ),
        ("place {} --json", "/placement/transfer_bytes"),
        ("place {} --json", "/memory/memories/0/peak_bytes"),
        ("run {} --json", "/outputs/0/first_values/0"),
        ("policy list --json", "/2/name"),
        ("cache --json", "/kept/size_bytes"),
        ("cache path --json", "/path"),
        ("cache clear --json", "/removed/n_entries"),
        (
            "bench policy-call --tasks 64 --repetitions 1 --json",
            "/rows/0/ns_per_task",
        ),
        (
            "bench placement --nodes 200 --devices 2,3 --policy priority --repetitions 1 --json",
            "/rows/1/wasm_over_native",
        ),
    ] {
        let paths = [graph.as_str()];
        let n_paths = line.matches("{}").count();
        let json = run_with_cache(args(line, &paths[..n_paths]), &cache)
            .expect(0)
            .json();
        assert!(json.pointer(key).is_some(), "{line}: {json:#} has no {key}");
    }
    // Errors, too: those of commands, of wrong values, and of the parser.
    for (line, status, part) in [
        ("place absent.pb --json", 1, "absent.pb"),
        ("--json run {} --device-filter nonsense", 2, "nonsense"),
        ("run {} --device-count CPU --json", 2, "invalid value 'CPU'"),
        ("policy check {} --json", 1, "not a WebAssembly file"),
    ] {
        let paths = [graph.as_str()];
        let n_paths = line.matches("{}").count();
        let ran = placewright(args(line, &paths[..n_paths])).expect(status);
        let shown = ran.stderr.clone();
        let document = ran.json();
        let error = document["error"].as_str().expect("a message");
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
        assert!(shown.contains(part), "{shown}");
        schemas::check("place", &document);
        schemas::check("policy list", &document);
        assert_eq!(document["exit_status"], status);
    }
}

#[test]
fn version_and_help_show_the_contract_and_the_exit_status() {
    let version = placewright(["--version"]).expect(0);
    assert!(
        version.stdout.contains("placewright:policy@0.1."),
        "{}",
        version.stdout
    );
    for help in [&["--help"][..], &["run", "--help"], &["place", "--help"]] {
        let help = placewright(help).expect(0);
        assert!(help.stdout.contains("Exit status:"), "{}", help.stdout);
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_placewright"))
        .args(args("place {} --nodes", &[&model("lenet.pb")]))
        .env("PLACEWRIGHT_CACHE_DIR", "")
        .env("OCL_ICD_VENDORS", NO_OPENCL)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""));
}
