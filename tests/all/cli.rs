//! The program as users run it: the real binary, its output, its exit status.

mod cache;
mod calibrate;
#[cfg(feature = "cuda")]
mod gpu;
mod hostile;
mod loadable;
#[cfg(feature = "opencl")]
mod opencl;
mod outputs;
mod placement_identity;
mod readme;
mod refusals;
mod saved_model;
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

/// What a command printed, and how it ended.
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    command: String,
}

impl Ran {
    /// Fails the test, with everything there is to see, unless the command ended so.
    pub(crate) fn expect(self, status: i32) -> Self {
        assert_eq!(
            self.status, status,
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            self.command, self.stdout, self.stderr
        );
        self
    }

    /// One `error:` line that contains all of `parts`.
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

/// Where no OpenCL driver is, so that runs do not depend on what the machine has.
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

/// A file of this content in `folder`.
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

/// Splits at blanks; `{}` stand for the paths, in order.
pub(crate) fn args(line: &str, paths: &[&str]) -> Vec<String> {
    let mut paths = paths.iter();
    line.split_whitespace()
        .map(|word| match word {
            "{}" => (*paths.next().expect("a path for each {}")).to_owned(),
            word => word.to_owned(),
        })
        .collect()
}

fn check_model(graph: &str, expected: &str) {
    let (graph, expected) = (model(graph), model(expected));
    for policy in ["priority", "round-robin", "heft"] {
        for n_devices in [1, 4] {
            let line = format!(
                "run {{}} --check {{}} --atol 1e-4 --rtol 0 --policy {policy} --device-count CPU={n_devices} --strict-policy --json"
            );
            let report = placewright(args(&line, &[&graph, &expected]))
                .expect(0)
                .json();
            assert_eq!(report["check"]["matches"], true);
            assert_eq!(report["placement"]["policy"]["answered_by"], policy);
            let devices = report["placement"]["devices"].as_array().expect("devices");
            assert_eq!(devices.len(), n_devices);
            let fetches = report["check"]["fetches"].as_array().expect("fetches");
            assert!(!fetches.is_empty());
            assert!(
                fetches
                    .iter()
                    .all(|fetch| fetch["n_elements"].as_u64() > Some(0))
            );
        }
    }
}

macro_rules! models {
    ($($test:ident: $graph:literal, $expected:literal;)*) => {$(
        #[test]
        fn $test() {
            check_model($graph, $expected);
        }
    )*};
}

models! {
    mlp_gives_tensorflows_numbers_under_every_policy: "mlp.skel.pb", "mlp.npz";
    mlp_b64_gives_tensorflows_numbers_under_every_policy: "mlp_b64.skel.pb", "mlp_b64.npz";
    lenet_gives_tensorflows_numbers_under_every_policy: "lenet.pb", "lenet.npz";
    tiny_add_gives_tensorflows_numbers_under_every_policy: "tiny_add.pb", "tiny_add.npz";
    tiny_broadcast_gives_tensorflows_numbers_under_every_policy: "tiny_broadcast.pb", "tiny_broadcast.npz";
    wide_branch_gives_tensorflows_numbers_under_every_policy: "wide_branch.skel.pb", "wide_branch.npz";
    tiny_slices_gives_tensorflows_numbers_under_every_policy: "tiny_slices.skel.pb", "tiny_slices.npz";
    tiny_matmul_variants_gives_tensorflows_numbers_under_every_policy: "tiny_matmul_variants.skel.pb", "tiny_matmul_variants.npz";
    tiny_conv_variants_gives_tensorflows_numbers_under_every_policy: "tiny_conv_variants.skel.pb", "tiny_conv_variants.npz";
    tiny_unary_gives_tensorflows_numbers_under_every_policy: "tiny_unary.skel.pb", "tiny_unary.npz";
    tiny_reduce_gives_tensorflows_numbers_under_every_policy: "tiny_reduce.skel.pb", "tiny_reduce.npz";
    tiny_dtypes_gives_tensorflows_numbers_under_every_policy: "tiny_dtypes.skel.pb", "tiny_dtypes.npz";
    tiny_intbool_gives_tensorflows_numbers_under_every_policy: "tiny_intbool.skel.pb", "tiny_intbool.npz";
    tiny_embedding_gives_tensorflows_numbers_under_every_policy: "tiny_embedding.skel.pb", "tiny_embedding.npz";
    lstm20_gives_tensorflows_numbers_under_every_policy: "lstm20.skel.pb", "lstm20.npz";
    tiny_unknown_shape_gives_tensorflows_numbers_under_every_policy: "tiny_unknown_shape.skel.pb", "tiny_unknown_shape.npz";
    small_cnn_fbn_gives_tensorflows_numbers_under_every_policy: "small_cnn_fbn.skel.pb", "small_cnn_fbn.npz";
    bert_tiny_gives_tensorflows_numbers_under_every_policy: "bert_tiny.skel.pb", "bert_tiny.npz";
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
fn results_that_differ_end_in_status_1_and_show_where() {
    let folder = folder();
    let other = path_in(&folder, "other.npz");
    let (graph, feeds) = (model("lenet.pb"), model("lenet.npz"));
    placewright(args("run {} --seed 1 --output {}", &[&graph, &other])).expect(0);
    let line = "run {} --feeds {} --check {} --atol 1e-4";
    let ran = placewright(args(line, &[&graph, &feeds, &other])).expect(1);
    assert!(ran.stdout.contains("MISMATCH"), "{}", ran.stdout);
    assert!(ran.stdout.contains("differs in"), "{}", ran.stdout);
    let json = placewright(args(&format!("{line} --json"), &[&graph, &feeds, &other]));
    let fetch = json.expect(1).json()["check"]["fetches"][0].clone();
    assert_eq!(fetch["matches"], false);
    assert!(fetch["max_abs_error"].as_f64() > Some(1e-4));
    assert_eq!(fetch["worst"]["index"].as_array().map(Vec::len), Some(2));
}

#[test]
fn outputs_that_were_written_are_what_a_check_expects() {
    let folder = folder();
    let output = path_in(&folder, "output.npz");
    let (graph, feeds) = (model("tiny_broadcast.pb"), model("tiny_broadcast.npz"));
    placewright(args(
        "run {} --feeds {} --output {}",
        &[&graph, &feeds, &output],
    ))
    .expect(0);
    let line =
        "run {} --feeds {} --check {} --atol 0 --rtol 0 --device-count CPU=3 --policy round-robin";
    placewright(args(line, &[&graph, &feeds, &output])).expect(0);
}

#[test]
fn random_feeds_depend_on_the_seed_alone_and_are_announced() {
    let outputs = |seed: u64, policy: &str| {
        let line = format!("run {{}} --seed {seed} --policy {policy} --device-count CPU=2 --json");
        let ran = placewright(args(&line, &[&model("lenet.pb")])).expect(0);
        assert!(
            ran.stderr.contains(&format!("random values (seed {seed})")),
            "{}",
            ran.stderr
        );
        let report = ran.json();
        assert_eq!(report["random_feeds"][0], "x:0");
        report["outputs"].to_string()
    };
    let first = outputs(7, "priority");
    assert_eq!(first, outputs(7, "priority"));
    assert_eq!(first, outputs(7, "round-robin"));
    assert_ne!(first, outputs(8, "priority"));
}

#[test]
fn inner_tensors_can_be_fetched_and_runs_are_timed() {
    let line = "run {} --fetch Conv2D --fetch Conv2D:0 --fetch probs --repeat 3 --warmup 1 --json";
    let report = placewright(args(line, &[&model("lenet.pb")]))
        .expect(0)
        .json();
    let names: Vec<_> = report["outputs"]
        .as_array()
        .expect("outputs")
        .iter()
        .map(|output| output["name"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(names, ["Conv2D:0", "probs:0"]);
    assert_eq!(report["timing"]["n_runs"], 3);
    assert!(report["timing"]["median_ns"].as_u64() <= report["timing"]["p90_ns"].as_u64());
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
    run("run {} --feeds {}", &[&graph, &empty]).expect_error(1, &["empty.npz", "in/NAME"]);
    run("run {} --feeds {}", &[&graph, "absent.npz"]).expect_error(1, &["absent.npz"]);
    run("run {} --fetch prob", &[&graph]).expect_error(1, &["`prob`", "did you mean `probs`?"]);
    run("run {} --feeds {}", &[&graph, &model("tiny_add.npz")]).expect_error(1, &["no node `a`"]);
}

#[test]
fn wrong_command_lines_end_in_status_2() {
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
        let paths = [graph.as_str()];
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
fn device_types_that_are_absent_are_shown_and_asking_for_one_says_what_to_do() {
    let absent = ["TPU", "XLA_CPU", "XLA_GPU", "XLA_EXEC"];
    let shown = placewright(["devices"]).expect(0).stdout;
    let json = placewright(["devices", "--json"]).expect(0).json();
    for device_type in absent {
        let line = shown
            .lines()
            .find(|line| line.starts_with(&format!("no {device_type}: ")));
        let line = line.unwrap_or_else(|| panic!("{device_type} is not in\n{shown}"));
        assert!(line.contains("Registry::with"), "{line}");
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
        // What is there is shown all the same.
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
fn what_cannot_be_placed_says_why_and_what_to_do() {
    let graph = model("lenet.pb");
    let run = |line: &str| placewright(args(line, &[&graph]));
    run("place {} --memory CPU:0=100KiB").expect_error(1, &["memory", "Const_4"]);
    run("place {} --memory CPU:7=1GiB").expect_error(1, &["CPU:7", "CPU:0"]);
    run("place {} --device-count CPU=0").expect_error(1, &["at least one"]);
    run("place {} --device /device:CPU:3").expect_error(1, &["CPU:3", "CPU:0"]);
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
fn a_saved_placement_comes_back_and_differences_are_listed() {
    let folder = folder();
    let (graph, saved) = (model("lenet.pb"), path_in(&folder, "saved.json"));
    let run = |line: &str| placewright(args(line, &[&graph, &saved])).expect(0);
    run("place {} --policy round-robin --device-count CPU=4 --save-placement {}");
    let text = fs::read_to_string(&saved).expect("read");
    let same = run("place {} --placement {} --device-count CPU=4 --nodes --json").json();
    assert_eq!(same["placement"]["policy"], Value::Null);
    let saved_devices: Value = serde_json::from_str(&text).expect("JSON");
    let nodes = same["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 30);
    for node in nodes {
        let name = node["name"].as_str().expect("a name");
        assert_eq!(node["device"], saved_devices["devices"][name], "{name}");
    }

    let line = "place {} --policy round-robin --device-count CPU=4 --diff {} --json";
    let moved = |report: Value| report["diff"]["moved"].as_array().map(Vec::len);
    assert_eq!(moved(run(line).json()), Some(0));
    let line = "place {} --policy priority --device-count CPU=4 --diff {} --json";
    assert!(moved(run(line).json()) > Some(0));
    run("run {} --placement {} --device-count CPU=4");

    let fewer = placewright(args("place {} --placement {}", &[&graph, &saved]));
    fewer.expect_error(1, &["saved.json", "does not exist", "CPU:0"]);
    let other = placewright(args(
        "place {} --placement {}",
        &[&model("tiny_add.pb"), &saved],
    ));
    other.expect_error(1, &["saved.json", "not in the saved placement"]);
    let broken = file(&folder, "broken.json", b"{\"version\": 1");
    let broken = placewright(args("place {} --placement {}", &[&graph, &broken]));
    broken.expect_error(1, &["broken.json"]);
}

#[test]
fn every_node_is_logged_as_tensorflow_does() {
    for command in ["place", "run"] {
        let line = format!("{command} {{}} --log-device-placement --json");
        let ran = placewright(args(&line, &[&model("tiny_add.pb")])).expect(0);
        let mut logged = ran.stderr.lines().filter(|line| !line.starts_with("note:"));
        // CPU devices do not describe themselves.
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
    run("--device-filter nonsense").expect_error(1, &["nonsense", "device name"]);
    let pools = "--session-inter-op-pool 1 --session-inter-op-pool 2 --repeat 3";
    for pool in ["-1", "0", "1"] {
        run(&format!("{pools} --inter-op-pool {pool}")).expect(0);
    }
    run(&format!("{pools} --inter-op-pool 2")).expect_error(
        1,
        &["invalid inter_op_thread_pool 2", "the executor has 2 pools"],
    );
    run("--inter-op-pool 1").expect_error(
        1,
        &["invalid inter_op_thread_pool 1", "the executor has 1 pools"],
    );
}

#[test]
fn json_is_one_document_everywhere() {
    let folder = folder();
    let cache = folder.path().join("cache");
    let graph = model("tiny_add.pb");
    for (line, key) in [
        ("devices --json", "/devices/0/profile/is_calibrated"),
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
    let failed = placewright(args("place {} --json", &["absent.pb"])).expect(1);
    assert_eq!(failed.stdout, "");
}

#[test]
fn a_failing_policy_falls_down_the_ladder_visibly() {
    let folder = folder();
    let traps = file(&folder, "traps.wasm", placewright_fixtures::wasm("traps"));
    let (graph, expected) = (model("tiny_add.pb"), model("tiny_add.npz"));
    let line = "run {} --check {} --policy {}";
    let ran = placewright(args(line, &[&graph, &expected, &traps])).expect(3);
    assert!(
        ran.stdout.contains("FAILED") && ran.stdout.contains("traps.wasm"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout
            .contains("placed instead by policy heft (native)"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("all fetches match"), "{}", ran.stdout);

    let line = "place {} --policy {} --json";
    let report = placewright(args(line, &[&graph, &traps])).expect(3).json();
    let policy = &report["placement"]["policy"];
    assert_eq!(policy["is_fallback"], true);
    assert_eq!(policy["failed"][0]["fault"], "policy");

    let line = "place {} --policy {} --strict-policy";
    placewright(args(line, &[&graph, &traps])).expect_error(1, &["traps.wasm", "trapped"]);
}

#[test]
fn refused_defaults_fall_down_the_ladder_and_refused_settings_do_not() {
    let folder = folder();
    let refuses = placewright_fixtures::wasm("refuses-config");
    let refuses = file(&folder, "refuses.wasm", refuses);
    let graph = model("tiny_add.pb");
    let ran = placewright(args("run {} --policy {} --json", &[&graph, &refuses])).expect(3);
    let policy = &ran.json()["placement"]["policy"];
    assert_eq!(policy["failed"][0]["fault"], "policy");
    assert_eq!(policy["failed"][0]["call"], "load");
    // What was loaded is not what answered.
    assert_eq!(policy["load"], Value::Null);
    let line = "run {} --policy {} --policy-config mood=sour";
    placewright(args(line, &[&graph, &refuses])).expect_error(2, &["mood"]);
}

#[test]
fn a_saved_placement_says_what_made_it() {
    let folder = folder();
    let graph = model("tiny_add.pb");
    let saved = |line: &str, inputs: &[&str], status: i32| {
        let path = path_in(&folder, "origin.json");
        let mut paths = vec![graph.as_str()];
        paths.extend(inputs);
        paths.push(&path);
        placewright(args(line, &paths)).expect(status);
        let text = fs::read_to_string(&path).expect("read");
        let saved: Value = serde_json::from_str(&text).expect("JSON");
        (saved["policy"].clone(), saved["options"].clone(), text)
    };
    let line = "place {} --policy heft --policy-config insertion=false --policy-memory 64MiB --policy-deadline-ms 9000 --save-placement {}";
    let (policy, options, text) = saved(line, &[], 0);
    let expected = serde_json::json!({
        "insertion": "false", "policy-memory": "67108864", "policy-deadline-ms": "9000"
    });
    assert_eq!((policy, options), ("heft".into(), expected));
    let first = file(&folder, "first.json", text.as_bytes());
    let (_, _, again) = saved("place {} --placement {} --save-placement {}", &[&first], 0);
    assert_eq!(again, text);

    let fails = file(&folder, "fails.wasm", placewright_fixtures::wasm("fails"));
    let line = "place {} --policy {} --policy-config reason=none --policy-fuel 1000000000 --save-placement {}";
    let (policy, options, _) = saved(line, &[&fails], 3);
    assert_eq!(
        (policy, options),
        ("heft (native)".into(), serde_json::json!({}))
    );
}

/// A main thread with less stack than the guest may use.
#[cfg(unix)]
#[test]
fn recursion_does_not_end_a_process_with_little_stack() {
    let folder = folder();
    let recurses = placewright_fixtures::wasm("recurses");
    let recurses = file(&folder, "recurses.wasm", recurses);
    let output = Command::new("sh")
        .args(["-c", "ulimit -s 448 && exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_placewright"))
        .args(args(
            "place {} --policy {}",
            &[&model("tiny_add.pb"), &recurses],
        ))
        .env("PLACEWRIGHT_CACHE_DIR", folder.path().join("cache"))
        .env("OCL_ICD_VENDORS", NO_OPENCL)
        .output()
        .expect("a shell");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stdout.contains("used up its stack"), "{stdout}");
}

#[test]
fn a_mismatch_counts_more_than_a_fallback() {
    let folder = folder();
    let traps = file(&folder, "traps.wasm", placewright_fixtures::wasm("traps"));
    let other = path_in(&folder, "other.npz");
    let (graph, feeds) = (model("tiny_add.pb"), model("tiny_add.npz"));
    placewright(args("run {} --seed 3 --output {}", &[&graph, &other])).expect(0);
    let line = "run {} --feeds {} --check {} --policy {}";
    placewright(args(line, &[&graph, &feeds, &other, &traps])).expect(1);
}

#[test]
fn limits_of_policies_reach_the_sandbox() {
    let folder = folder();
    let spins = file(&folder, "spins.wasm", placewright_fixtures::wasm("spins"));
    let graph = model("tiny_add.pb");
    let run = |line: &str, parts: &[&str]| {
        placewright(args(line, &[&graph, &spins])).expect_error(1, parts);
    };
    run(
        "place {} --policy {} --strict-policy --policy-deadline-ms 50",
        &["spins.wasm", "deadline of 50 ms"],
    );
    run(
        "place {} --policy {} --strict-policy --policy-fuel 1000000",
        &["spins.wasm", "fuel of 1000000"],
    );
    let hoards = file(
        &folder,
        "hoards.wasm",
        placewright_fixtures::wasm("hoards-memory"),
    );
    let line = "place {} --policy {} --strict-policy --policy-memory 8MiB";
    let ran = placewright(args(line, &[&graph, &hoards]));
    ran.expect_error(1, &["hoards.wasm", "the limit is 8388608"]);
}

#[test]
fn plans_under_fuel_are_byte_equal() {
    let folder = folder();
    let graph = model("lenet.pb");
    let plan = |name: &str| {
        let saved = path_in(&folder, name);
        let line = "place {} --policy heft --device-count CPU=4 --policy-fuel 1000000000 --save-placement {}";
        placewright(args(line, &[&graph, &saved])).expect(0);
        fs::read(saved).expect("read")
    };
    assert_eq!(plan("first.json"), plan("second.json"));
}

#[test]
fn a_policy_is_looked_into_before_it_is_used() {
    let folder = folder();
    let check = |file: &str| placewright(args("policy check {} --json", &[file]));
    let list = placewright(["policy", "list", "--json"]).expect(0).json();
    let names: Vec<_> = list
        .as_array()
        .expect("policies")
        .iter()
        .map(|policy| policy["name"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(names, ["heft", "priority", "round-robin"]);
    assert!(
        list.as_array()
            .expect("policies")
            .iter()
            .all(|policy| policy["usable"] == true)
    );

    let good = file(&folder, "good.wasm", placewright_fixtures::wasm("declines"));
    let report = check(&good).expect(0).json();
    assert_eq!(report["usable"], true);
    assert_eq!(report["form"], "core module");
    assert_eq!(report["contract"], report["host_contract"]);
    assert!(report["size_bytes"].as_u64() > Some(1000));

    let bad = file(
        &folder,
        "bad.wasm",
        placewright_fixtures::wasm("imports-unknown"),
    );
    let report = check(&bad).expect(1).json();
    assert_eq!(report["usable"], false);
    assert!(
        report["error"]
            .as_str()
            .is_some_and(|error| error.contains("imports"))
    );

    let text = file(&folder, "text.wasm", b"(module)");
    placewright(args("policy check {}", &[&text])).expect_error(1, &["text.wasm"]);
    placewright(["policy", "check", "absent.wasm"]).expect_error(1, &["absent.wasm"]);
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
fn a_reader_that_goes_away_is_no_error() {
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
