//! Tests `placewright bench` like a user: rows, exit statuses, errors, and the protocol of `bench
//! worker`. No time is asserted.

use std::fs;
use std::fs::File;
use std::io::Read;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::process::Stdio;

use placewright::policy::ShippedPolicy;
use serde_json::Value;
use serde_json::json;
use tempfile::TempDir;

use crate::cli::args;
use crate::cli::folder;
use crate::cli::model;
use crate::cli::placewright;
use crate::cli::schemas::check;

/// The ratios of a policy to one of the references: how many there are, their geometric mean, and
/// the worst.
fn mean_and_worst(rows: &[Value], name: &str, ratio: &str) -> (usize, f64, f64) {
    let policies = rows
        .iter()
        .flat_map(|row| row["policies"].as_array().unwrap());
    let ratios: Vec<f64> = policies
        .filter(|policy| policy["policy"] == name)
        .filter_map(|policy| policy[ratio].as_f64())
        .collect();
    // The solver rounded times to a millionth of the makespan.
    let is_possible = |it: &f64| ratio != "by_optimum" || *it > 1.0 - 2e-5;
    assert!(ratios.iter().all(is_possible), "{name}: {ratios:?}");
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    let n = f64::from(u32::try_from(ratios.len()).unwrap());
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    (ratios.len(), (sum / n).exp(), worst)
}

#[test]
fn no_policy_beats_a_proven_optimum_and_auto_comes_near() {
    let line = "bench quality {} --policy auto,heft,peft,cpop,hbmct,priority,round-robin --json";
    let report = placewright(args(line, &[&model("../quality")])).expect(0);
    let report = report.json();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 30);
    for (name, mean_max, worst_max) in [
        ("auto", 1.001, 1.01),
        ("heft", 1.02, 1.2),
        ("peft", 1.02, 1.2),
        ("cpop", 1.03, 1.25),
        ("hbmct", 1.02, 1.2),
        ("priority", f64::INFINITY, f64::INFINITY),
        ("round-robin", f64::INFINITY, f64::INFINITY),
    ] {
        let (n, mean, worst) = mean_and_worst(rows, name, "by_optimum");
        assert_eq!(n, 22);
        assert!(
            mean < mean_max && worst < worst_max,
            "{name}: {mean} {worst}"
        );
    }
    let (n, mean, worst) = mean_and_worst(rows, "auto", "by_best_published");
    assert_eq!(n, 30);
    assert!(mean <= 1.0 && worst < 1.03, "{mean} {worst}");
    // A chain has no choice.
    let chain = rows.iter().find(|row| row["graph"] == "synthetic.chain_2");
    let makespan = chain.unwrap()["policies"][0]["makespan"].as_f64().unwrap();
    assert!((makespan - 25.0).abs() < 1e-6, "{makespan}");
}

/// No policy was tuned with these.
#[test]
fn structured_graphs_are_placed_better_than_by_published_schedulers() {
    let line = "bench quality {} --policy auto,heft,peft,cpop,hbmct --json";
    let report = placewright(args(line, &[&model("../quality/structured")])).expect(0);
    let report = report.json();
    let rows = report["rows"].as_array().unwrap();
    for (name, mean_max, worst_max) in [
        ("auto", 1.01, 1.05),
        ("heft", 1.2, 1.5),
        ("peft", 1.2, 1.5),
        ("cpop", 1.2, 1.5),
        ("hbmct", 1.2, 1.5),
    ] {
        let (n, mean, worst) = mean_and_worst(rows, name, "by_optimum");
        assert_eq!(n, 22);
        assert!(
            mean < mean_max && worst < worst_max,
            "{name}: {mean} {worst}"
        );
    }
    let (_, mean, worst) = mean_and_worst(rows, "auto", "by_best_published");
    assert!(mean < 0.98 && worst < 1.05, "{mean} {worst}");
}

/// An adversary found these for an `auto` that took 1.3 to 2.5 times as long as others.
#[test]
fn slow_links_are_no_obstacle_to_the_search() {
    let line = "bench quality {} --policy auto,search,lookahead,hbmct,heft,peft --json";
    let report = placewright(args(line, &[&model("../quality/adversary")])).expect(0);
    let report = report.json();
    let (n, _, worst) = mean_and_worst(report["rows"].as_array().unwrap(), "auto", "by_best");
    assert_eq!(n, 7);
    assert!(worst < 1.1, "{worst}");
}

#[test]
fn models_on_clusters_run_fastest_as_auto_places_them() {
    let clusters = ["desktop", "mixed", "server", "processors"];
    let paths = clusters.map(|name| model(&format!("../quality/clusters/{name}.toml")));
    let line = format!(
        "bench quality {{}} --cluster {} --policy auto,heft,m-sct,dmda,priority --json",
        paths.join(",")
    );
    let models = ["bert_tiny", "wide_branch", "small_cnn_fbn"];
    let files = models.map(|name| model(&format!("{name}.skel.pb")));
    for (name, file) in models.iter().zip(&files) {
        let report = placewright(args(&line, &[file])).expect(0).json();
        check("bench quality", &report);
        let rows = report["rows"].as_array().unwrap();
        let of: Vec<_> = rows
            .iter()
            .map(|row| row["cluster"].as_str().unwrap())
            .collect();
        assert_eq!(of, clusters);
        for row in rows {
            assert_eq!(row["graph"], *name);
            let policies = row["policies"].as_array().unwrap();
            let by_best = |index: usize| policies[index]["by_best"].as_f64().unwrap();
            // A cluster file states the rates, so `auto` leaves one device for a gain of 5 %.
            assert!(by_best(0) < 1.34, "{row}");
            assert!((0..5).map(by_best).any(|ratio| ratio == 1.0), "{row}");
        }
    }
    let none = placewright(args(
        "bench quality {} --cluster {}",
        &[&files[0], "no.toml"],
    ));
    assert!(none.expect(1).stderr.contains("no.toml"));
}

/// What the adversary saves is what it says: `bench quality` gives the same ratio.
#[test]
fn an_adversary_keeps_the_task_graphs_on_which_a_policy_does_worst() {
    let folder = folder();
    let saved = folder.path().join("worst");
    let line = "bench adversary --policy cpop --against heft,peft --walks 2 --tasks 6 --seed 3 \
        --seconds 600 --save {} --json";
    let report = placewright(args(line, &[saved.to_str().unwrap()])).expect(0);
    let report = report.json();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    let worst = rows[0]["ratio"].as_f64().unwrap();
    assert!(
        worst > 1.1,
        "the critical path on one device loses somewhere: {worst}"
    );
    for row in rows {
        assert_eq!(row["n_graphs_tried"], 1_001);
        let ratio = row["ratio"].as_f64().unwrap();
        assert!(ratio >= 1.0, "{row}");
        let line = "bench quality {} --policy cpop,heft,peft --json";
        let again = placewright(args(line, &[row["file"].as_str().unwrap()])).expect(0);
        let policies = again.json()["rows"][0]["policies"].clone();
        let makespan = |index: usize| policies[index]["makespan"].as_f64().unwrap();
        let best_other = makespan(1).min(makespan(2));
        assert!(
            (makespan(0) / best_other - ratio).abs() < 1e-6,
            "{row} {policies}"
        );
    }
    let line = "bench adversary --policy heft --against heft --walks 1 --tasks 2 --json";
    let equal = placewright(args(line, &[])).expect(0).json();
    assert_eq!(equal["rows"][0]["ratio"], 1.0);
    let unknown = placewright(args("bench adversary --policy nobody", &[])).expect(2);
    assert!(unknown.stderr.contains("nobody"), "{}", unknown.stderr);
}

#[test]
fn quality_of_damaged_task_graphs_is_an_error_that_names_the_file() {
    let folder = folder();
    let path = folder.path().join("wrong.json");
    let valid = json!({
        "name": "g",
        "task_graph": {
            "tasks": [{"name": "a", "cost": 1}, {"name": "b", "cost": 1}],
            "dependencies": [{"source": "a", "target": "b", "size": 1}],
        },
        "network": {
            "nodes": [{"name": "n", "speed": 1}, {"name": "m", "speed": 2}],
            "edges": [{"source": "n", "target": "m", "speed": 1}],
        },
    });
    let with = |pointer: &str, value: Value| {
        let mut damaged = valid.clone();
        *damaged.pointer_mut(pointer).unwrap() = value;
        damaged.to_string()
    };
    let task = "/task_graph/tasks/0";
    let edge = |source: &str, target: &str, speed: f64| json!({"source": source, "target": target, "speed": speed});
    for (text, problem) in [
        ("{".to_owned(), "EOF"),
        (
            with(&format!("{task}/cost"), json!(-1)),
            "task `a`: the cost is -1",
        ),
        (
            with("/task_graph/dependencies/0/size", json!(-1)),
            "`a` to `b`: the size is -1",
        ),
        (
            with("/task_graph/dependencies/0/target", json!("c")),
            "the task `c`",
        ),
        (
            with("/task_graph/dependencies/0/target", json!("a")),
            "tasks wait for each other",
        ),
        (
            with("/network/nodes/0/speed", json!(0)),
            "node `n`: the speed is 0",
        ),
        (
            with("/network/nodes/1/name", json!("n")),
            "two nodes have the name `n`",
        ),
        (with("/network/edges", json!([])), "no link from `n` to `m`"),
        (
            with("/network/edges", json!([edge("n", "x", 1.0)])),
            "names the node `x`",
        ),
        (
            with("/network/edges", json!([edge("n", "m", 0.0)])),
            "`n` to `m`: the speed is 0",
        ),
        (
            with(
                "/network/edges",
                json!([edge("n", "m", 1.0), edge("n", "m", 2.0)]),
            ),
            "`n` to `m` is stated twice",
        ),
    ] {
        fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let ran = placewright(args("bench quality {}", &[path]));
        ran.expect_error(1, &["wrong.json", problem]);
    }
}

#[test]
fn benchmarks_have_the_documented_rows() {
    let line = "bench placement --nodes 300 --devices 4 --policy heft --repetitions 2 --json";
    let report = placewright(args(line, &[])).expect(0).json();
    assert_eq!(report["bench"], "placement");
    let row = &report["rows"][0];
    assert_eq!(
        (
            &row["policy"],
            row["nodes"].as_u64(),
            row["devices"].as_u64()
        ),
        (&"heft".into(), Some(300), Some(4))
    );
    for key in ["groups", "us_per_node", "wasm_over_native"] {
        assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
    }
    assert!(row.get("bytes_per_node").is_some());
    let moved = |row: &Value| {
        assert!(row["ms"].as_f64() > Some(0.0), "{row}");
        (row["change"].clone(), row["moved"].as_u64() > Some(0))
    };
    let rows = report["replacement"].as_array().expect("rows");
    let expected = [("lost", true), ("added", false), ("shrunk by half", true)];
    let expected = expected.map(|(change, moves)| (Value::from(change), moves));
    assert_eq!(rows.iter().map(moved).collect::<Vec<_>>(), expected);

    // The same moves; with little memory, fewer of them are legal.
    let rows = report["evaluation"].as_array().expect("rows");
    assert_eq!(
        (&rows[0]["memory"], &rows[1]["memory"]),
        (&"ample".into(), &"short".into())
    );
    let legal = |row: &Value| row["legal"].as_u64().expect("a number");
    assert_eq!(rows[0]["moves"].as_u64(), Some(legal(&rows[0])));
    assert!((1..legal(&rows[0])).contains(&legal(&rows[1])), "{rows:?}");
    assert!(
        rows.iter()
            .all(|row| row["us_per_move"].as_f64() > Some(0.0))
    );

    let report = placewright(args(
        "bench policy-call --tasks 64 --repetitions 1 --json",
        &[],
    ));
    let report = report.expect(0).json();
    assert_eq!(report["bench"], "policy-call");
    let calls: Vec<_> = report["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["call"].as_str().expect("a call").to_owned())
        .collect();
    for call in ["pick", "pick-batch(64)", "load, cold", "load, cached"] {
        assert!(calls.iter().any(|other| other == call), "{calls:?}");
    }
}

#[test]
fn dispatch_has_a_row_per_case_and_number_of_threads() {
    let line = "bench dispatch --nodes 200 --repetitions 2 --threads 1,2 --json";
    let report = placewright(args(line, &[])).expect(0).json();
    assert_eq!(report["bench"], "dispatch");
    let rows = report["rows"].as_array().expect("rows");
    let mut found = Vec::new();
    for row in rows {
        found.push((
            row["case"].as_str().expect("a case"),
            row["threads"].as_u64(),
        ));
        // The recorder counts them while all of them run.
        assert_eq!(
            (row["nodes"].as_u64(), row["kernels"].as_u64()),
            (Some(200), Some(200))
        );
        assert!(row["ns_per_node"].as_f64() > Some(0.0), "{row}");
        assert!(row.get("metg50_ns").is_some(), "{row}");
    }
    found.sort_unstable();
    let cases = ["chain", "independent", "layered"];
    let wanted = cases
        .into_iter()
        .flat_map(|case| [(case, Some(1)), (case, Some(2))]);
    assert_eq!(found, wanted.collect::<Vec<_>>());
    let tracing = report["tracing"].as_array().expect("rows about tracing");
    assert_eq!(tracing.len(), 2);
    for row in tracing {
        assert_eq!(row["kernels"].as_u64(), Some(201), "{row}");
    }
    placewright(args("bench dispatch --threads 0", &[])).expect(2);
}

/// Copies `tiny_add` to a separate folder, with `last` as its last expected number, which its graph
/// does not compute.
fn model_that_differs(folder: &TempDir, last: f32) -> String {
    let graph = folder.path().join("tiny_add.pb");
    fs::copy(model("tiny_add.pb"), &graph).expect("copied");
    let original = File::open(model("tiny_add.npz")).expect("an archive");
    let mut original = zip::ZipArchive::new(original).expect("an archive");
    let archive = File::create(folder.path().join("tiny_add.npz")).expect("a file");
    let mut archive = zip::ZipWriter::new(archive);
    for index in 0..original.len() {
        let mut entry = original.by_index(index).expect("an entry");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("bytes");
        if entry.name().starts_with("out/") {
            let start = bytes.len() - 4;
            bytes[start..].copy_from_slice(&last.to_le_bytes());
        }
        let options = zip::write::FileOptions::default();
        archive.start_file(entry.name(), options).expect("an entry");
        archive.write_all(&bytes).expect("written");
    }
    archive.finish().expect("written");
    graph.into_os_string().into_string().expect("UTF-8")
}

/// Returns the answers of `bench worker` to these lines.
fn worker(lines: &[&str]) -> Vec<Value> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-cache");
    let mut child = Command::new(env!("CARGO_BIN_EXE_placewright"))
        .args(["bench", "worker"])
        .env("PLACEWRIGHT_CACHE_DIR", cache)
        .env("OCL_ICD_VENDORS", crate::cli::NO_OPENCL)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin
        .write_all((lines.join("\n") + "\n").as_bytes())
        .expect("read");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let answers = String::from_utf8(output.stdout).expect("UTF-8");
    answers
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|err| panic!("{line}: {err}")))
        .collect()
}

#[test]
fn each_model_has_a_row() {
    let (lenet, mlp) = (model("lenet.pb"), model("mlp.skel.pb"));
    let line = "bench models {} {} --seconds 0 --threads 1 --json";
    let report = placewright(args(line, &[&lenet, &mlp])).expect(0).json();
    assert_eq!(report["bench"], "models");
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| &row["model"]).collect();
    assert_eq!(names, ["lenet", "mlp"]);
    for row in rows {
        assert_eq!(
            (&row["threads"], row["n_runs"].as_u64()),
            (&json!(1), Some(3))
        );
        for key in [
            "nodes",
            "load_ns",
            "first_ns",
            "median_ns",
            "p90_ns",
            "min_ns",
        ] {
            assert!(row[key].as_u64() > Some(0), "{key}: {row}");
        }
        assert!(row["min_ns"].as_u64() <= row["median_ns"].as_u64(), "{row}");
    }

    // If a model exists with and without its weights, the one with weights counts. Archives without
    // a graph and graphs without an archive are skipped.
    let folder = folder();
    for (from, to) in [
        ("tiny_add.pb", "a.pb"),
        ("tiny_add.skel.pb", "a.skel.pb"),
        ("tiny_add.npz", "a.npz"),
        ("tiny_add.npz", "b.npz"),
        ("tiny_add.pb", "c.pb"),
        ("tiny_unary.skel.pb", "d.skel.pb"),
        ("tiny_unary.npz", "d.npz"),
    ] {
        fs::copy(model(from), folder.path().join(to)).expect("copied");
    }
    let folder = folder.path().to_str().expect("UTF-8");
    let line = "bench models {} --seconds 0 --json";
    let report = placewright(args(line, &[folder])).expect(0).json();
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| &row["model"]).collect();
    assert_eq!(names, ["a", "d"]);
}

#[test]
fn policies_of_benchmarks_are_names_or_files() {
    let folder = folder();
    let policy = folder.path().join("mine.wasm");
    fs::write(
        &policy,
        ShippedPolicy::find("heft").expect("shipped").wasm(),
    )
    .expect("written");
    let policy = policy.to_str().expect("UTF-8");
    let line = format!(
        "bench placement --nodes 300 --devices 4 --policy heft,{policy} --repetitions 1 --json"
    );
    let report = placewright(args(&line, &[])).expect(0).json();
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| &row["policy"]).collect();
    assert_eq!(names, ["heft", policy]);
    // A file has no native build for comparison.
    assert!(rows[0]["wasm_over_native"].is_f64(), "{rows:?}");
    assert!(rows[1]["wasm_over_native"].is_null(), "{rows:?}");
    assert!(
        rows[1]["policy_us_per_node"].as_f64() > Some(0.0),
        "{rows:?}"
    );

    let line = "bench models {} --policy {} --seconds 0 --device-count CPU=2 --json";
    let report = placewright(args(line, &[&model("tiny_add.pb"), policy]));
    let report = report.expect(0).json();
    assert_eq!(report["rows"][0]["policy"], policy);
    // A policy that fails is not replaced by another one.
    let traps = folder.path().join("traps.wasm");
    fs::write(&traps, placewright_fixtures::wasm("traps")).expect("written");
    let traps = traps.to_str().expect("UTF-8");
    let line = "bench models {} --policy {} --seconds 0";
    placewright(args(line, &[&model("tiny_add.pb"), traps]))
        .expect_error(1, &["traps.wasm", "panicked"]);
    let line = "bench placement --nodes 300 --policy {} --repetitions 1";
    placewright(args(line, &[traps])).expect_error(1, &["traps.wasm", "panicked"]);
    for line in [
        "bench models --policy none-such",
        "bench placement --policy none-such",
    ] {
        placewright(args(line, &[])).expect_error(2, &["none-such", "heft"]);
    }
}

#[test]
fn each_number_of_callers_has_a_row() {
    let line = "bench serve {} --callers 1,3 --seconds 0 --threads 2 --json";
    let report = placewright(args(line, &[&model("tiny_add.pb")]))
        .expect(0)
        .json();
    assert_eq!(report["bench"], "serve");
    let rows = report["rows"].as_array().expect("rows");
    for (row, callers) in rows.iter().zip([1, 3]) {
        assert_eq!(
            (&row["model"], &row["callers"], &row["threads"]),
            (&json!("tiny_add"), &json!(callers), &json!(2))
        );
        // At least three requests of each caller.
        assert_eq!(row["requests"].as_u64(), Some(3 * callers));
        assert!(row["requests_per_s"].as_f64() > Some(0.0), "{row}");
        assert!(row["p50_ns"].as_u64() <= row["p99_ns"].as_u64(), "{row}");
    }
    assert_eq!(rows.len(), 2);
}

#[test]
fn wrong_results_are_not_measured() {
    let folder = folder();
    // With an infinite relative tolerance, anything would be close.
    let graph = model_that_differs(&folder, f32::INFINITY);
    let parts = ["tiny_add", "y:0", "[2]", "expected inf"];
    placewright(args("bench models {} --seconds 0", &[&graph])).expect_error(1, &parts);
    let graph = model_that_differs(&folder, 1000.0);
    let parts = ["tiny_add", "y:0", "[2]", "expected 1000"];
    for line in [
        "bench models {} --seconds 0",
        "bench serve {} --seconds 0 --json",
    ] {
        placewright(args(line, &[&graph])).expect_error(1, &parts);
    }
    let line = "bench models {} --seconds 0 --atol 2000";
    placewright(args(line, &[&graph])).expect(0);
}

#[test]
fn impossible_measurements_are_errors_with_a_reason() {
    let folder = folder();
    let empty = folder.path().to_str().expect("UTF-8");
    let run = |line: &str, path: &str| placewright(args(line, &[path]));
    run("bench models {}", empty).expect_error(1, &[empty, "M.npz", "folders of models"]);
    let absent = format!("{empty}/absent");
    run("bench models {}", &absent).expect_error(1, &[&absent, "no such model", "M.pb"]);
    // A graph without an archive.
    let graph = format!("{empty}/alone.skel.pb");
    fs::copy(model("tiny_add.pb"), &graph).expect("copied");
    run("bench models {}", &graph).expect_error(1, &["alone.npz", "in/NAME"]);
    // Missing files are reported before anything is measured.
    let paths = [model("tiny_add.pb"), graph.clone()];
    let line = "bench models {} {} --seconds 3600";
    let ran = placewright(args(line, &[&paths[0], &paths[1]]));
    ran.expect_error(1, &["alone.npz", "in/NAME"]);
    // Outside of the repository, models must be named.
    let output = Command::new(env!("CARGO_BIN_EXE_placewright"))
        .args(["bench", "models"])
        .current_dir(folder.path())
        .output()
        .expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for part in ["no folder tests/models", "M.npz", "folders of models"] {
        assert!(stderr.contains(part), "no `{part}` in {stderr}");
    }
    run("bench serve {}", &graph).expect_error(1, &["alone.npz", "in/NAME"]);

    let graph = model("tiny_add.pb");
    for line in [
        "bench serve",
        "bench serve {} --callers 0",
        "bench serve {} --callers 1025",
        "bench serve {} --callers 1,x",
        "bench serve {} --seconds -1",
        "bench models {} --seconds soon",
        "bench models {} --threads 5000",
        "bench models {} --rtol nan",
        "bench placement --repetitions 0",
    ] {
        let n_paths = line.matches("{}").count();
        let ran = placewright(args(line, &[graph.as_str()][..n_paths])).expect(2);
        assert!(!ran.stderr.is_empty() && ran.stdout.is_empty(), "{line}");
    }
}

#[test]
fn a_worker_answers_each_line_and_survives_errors() {
    let open_model = |graph: &str, arrays: &str| {
        json!({"do": "open-model", "graph": model(graph), "arrays": model(arrays), "threads": 1})
            .to_string()
    };
    let open_dag = |case: &str| {
        json!({"do": "open-dag", "case": case, "nodes": 250, "threads": 2}).to_string()
    };
    let turn = r#"{"do": "turn", "ms": 0}"#;
    let serve = r#"{"do": "serve", "ms": 0, "callers": 2}"#;
    let answers = worker(&[
        r#"{"do": "hello"}"#,
        turn,
        "nonsense",
        r#"{"do": "dance"}"#,
        &open_model("tiny_add.pb", "tiny_add.npz"),
        turn,
        serve,
        &open_dag("layered"),
        turn,
        &open_dag("ring"),
        &open_model("mlp.skel.pb", "lenet.npz"),
        r#"{"do": "close"}"#,
        turn,
    ]);
    assert_eq!(answers[0]["framework"], "Placewright");
    for (index, expected) in [
        (1, "nothing is open"),
        (2, "nonsense"),
        (3, "dance"),
        (9, "ring"),
        (10, "[1,28,28,1]"),
        (12, "nothing is open"),
    ] {
        let error = answers[index]["error"].as_str().unwrap_or_default();
        assert!(error.contains(expected), "{index}: {answers:?}");
    }
    for index in [4, 7] {
        assert!(answers[index]["first_ns"].as_u64() > Some(0), "{answers:?}");
    }
    for index in [5, 8] {
        assert_eq!(answers[index]["runs"], 3, "{answers:?}");
        assert!(
            answers[index]["median_ns"].as_u64() > Some(0),
            "{answers:?}"
        );
    }
    assert_eq!(answers[6]["runs"], 6);
    assert_eq!(answers[11], json!({}));
    assert_eq!(answers.len(), 13);
}

/// Absent peers are reported, and the table is printed without them.
#[cfg(target_os = "linux")]
#[test]
#[needs(Python)]
fn the_driver_of_the_peers_runs_without_them() {
    let folder = folder();
    let absent = "TensorFlow\tremedy 1\nONNX Runtime\tremedy 2\n\
                  OpenVINO\tremedy 3\nStarPU\tremedy 4\n";
    fs::write(folder.path().join("absent"), absent).expect("written");
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/peers");
    let output = Command::new("python3")
        .args(["-B".as_ref(), peers.join("driver.py").as_os_str()])
        .args(["--placewright", env!("CARGO_BIN_EXE_placewright")])
        .args(["--folder".as_ref(), folder.path().as_os_str()])
        .args(["--rounds", "2", "--turn-ms", "1", "--threads", "1"])
        .args(["--models", "tiny_add,mlp"])
        .output()
        .expect("the driver starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    for expected in [
        "dispatch: layered | 1 | ns/node |",
        "latency: tiny_add | 1 | us |",
        "requests: mlp, 8 callers | 1 | 1/s |",
        "p99: mlp, 2 callers | 1 | us |",
        "OpenVINO is absent: remedy 3",
        "StarPU is absent: remedy 4",
    ] {
        assert!(stdout.contains(expected), "no `{expected}` in\n{stdout}");
    }
    let results = fs::read(folder.path().join("results.json")).expect("results");
    let results: Value = serde_json::from_slice(&results).expect("JSON");
    assert_eq!(
        results["rows"].as_array().map(Vec::len),
        Some(3 + 2 + 2 * 3)
    );
    assert_eq!(results["absent"]["TensorFlow"], "remedy 1");
    for row in results["rows"].as_array().expect("rows") {
        assert!(row["ours"].as_f64() > Some(0.0), "{row}");
    }
}
