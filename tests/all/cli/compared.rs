//! Explaining placements, comparing policies, and the page that shows them.

use std::fs;

use placewright::comparison::Comparison;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use serde_json::Value;

use super::args;
use super::file;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;
use super::schemas::check;
use crate::sample::sample;

const CLUSTER: &str = r#"
[[host]]
device = [{ profile = "epyc-9654" }, { profile = "h100-sxm", count = 2 }]
"#;

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().expect("a number")
}

#[test]
fn a_node_is_explained_and_its_moves_are_what_simulations_show() {
    let folder = folder();
    let cluster = file(&folder, "three.toml", CLUSTER.as_bytes());
    let graph = model("bert_tiny.skel.pb");
    let saved = path_in(&folder, "placed.json");
    let line = "place {} --cluster {} --policy heft --save-placement {}";
    placewright(args(line, &[&graph, &cluster, &saved])).expect(0);
    let line = "simulate {} --cluster {} --placement {} --json";
    let before = placewright(args(line, &[&graph, &cluster, &saved])).expect(0);
    let before_ns = number(&before.json(), "expected_ns");
    let path = {
        let line = "simulate {} --cluster {} --placement {} --json";
        let report = placewright(args(line, &[&graph, &cluster, &saved])).expect(0);
        let path = report.json()["critical_path"].clone();
        let path = path.as_array().expect("nodes").clone();
        path[path.len() / 2]["name"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    let line = "explain {} {} --cluster {} --placement {} --against GPU:1 --json";
    let explained = placewright(args(line, &[&graph, &path, &cluster, &saved])).expect(0);
    let explained = explained.json();
    check("explain", &explained);
    let node = &explained["node"];
    assert_eq!(node["name"], *path);
    assert_eq!(node["is_critical"], true);
    let candidates = node["candidates"].as_array().expect("candidates");
    assert_eq!(candidates.len(), 3);
    let mut n_moves = 0;
    for candidate in candidates {
        let moved = &candidate["move"];
        if moved.is_null() {
            assert_eq!(candidate["device"], node["device"]);
            continue;
        }
        n_moves += 1;
        // The same, by hand: the saved placement with another device.
        let device = candidate["device"].as_u64().expect("an index");
        let device = &explained["devices"][usize::try_from(device).expect("few")];
        let text = fs::read_to_string(&saved).expect("readable");
        let mut placement: Value = serde_json::from_str(&text).expect("JSON");
        placement["devices"][&path] = device.clone();
        let by_hand = file(&folder, "moved.json", placement.to_string().as_bytes());
        let line = "simulate {} --cluster {} --placement {} --placement-unverified --json";
        let after = placewright(args(line, &[&graph, &cluster, &by_hand])).expect(0);
        let after_ns = number(&after.json(), "expected_ns");
        let expected_ns = number(moved, "expected_ns");
        assert!(
            (after_ns / expected_ns - 1.0).abs() < 1e-9,
            "{moved}: {after_ns}"
        );
        let change_ns = number(moved, "change_ns");
        assert!((before_ns + change_ns - after_ns).abs() < 1e-6 * after_ns);
        if device.as_str().is_some_and(|name| name.ends_with("GPU:1")) {
            let against = &explained["against"];
            assert!((number(&against["after"], "expected_ns") - after_ns).abs() < 1e-6 * after_ns);
            assert!((number(&against["now"], "expected_ns") - before_ns).abs() < 1e-6 * before_ns);
        }
    }
    assert_eq!(n_moves, 2);
    let shown = placewright(args(
        "explain {} {} --cluster {}",
        &[&graph, &path, &cluster],
    ));
    let shown = shown.expect(0).stdout;
    assert!(
        shown.contains("is here") && shown.contains("critical path"),
        "{shown}"
    );
}

#[test]
fn the_best_moves_of_a_plan_are_listed() {
    let folder = folder();
    let cluster = file(&folder, "three.toml", CLUSTER.as_bytes());
    let graph = model("wide_branch.skel.pb");
    let line = "explain {} --cluster {} --policy round-robin --json";
    let report = placewright(args(line, &[&graph, &cluster]))
        .expect(0)
        .json();
    check("explain", &report);
    let moves = report["best_moves"].as_array().expect("moves");
    assert!(!moves.is_empty() && moves.len() <= 10, "{moves:?}");
    for pair in moves.windows(2) {
        assert!(number(&pair[0], "change_ns") <= number(&pair[1], "change_ns"));
    }
    assert!(moves.iter().all(|row| number(row, "change_ns") < 0.0));
    let wrong = "explain {} no_such_node --cluster {}";
    placewright(args(wrong, &[&graph, &cluster])).expect_error(1, &["no_such_node"]);
    let node = moves[0]["name"].as_str().expect("a name");
    let wrong = "explain {} {} --cluster {} --against TPU:0";
    let parts = ["--against TPU:0", "there is no such device", "GPU:1"];
    placewright(args(wrong, &[&graph, node, &cluster])).expect_error(2, &parts);
    placewright(args("explain {} --against GPU:0", &[&graph])).expect(2);
}

#[test]
fn policies_are_compared_and_one_that_fails_is_named() {
    let folder = folder();
    let cluster = file(&folder, "three.toml", CLUSTER.as_bytes());
    let traps = file(&folder, "traps.wasm", placewright_fixtures::wasm("traps"));
    let graphs = [model("bert_tiny.skel.pb"), model("wide_branch.skel.pb")];
    let policies = format!("priority,heft,{traps}");
    let line = "compare {} {} --cluster {} --policy {} --json";
    let report = placewright(args(line, &[&graphs[0], &graphs[1], &cluster, &policies]));
    let report = report.expect(0).json();
    check("compare", &report);
    let reports = report.as_array().expect("comparisons");
    assert_eq!(reports.len(), 2);
    for (report, graph) in reports.iter().zip(&graphs) {
        let rows = report["policies"].as_array().expect("rows");
        let names: Vec<&str> = rows
            .iter()
            .filter_map(|row| row["policy"].as_str())
            .collect();
        assert_eq!(names, ["priority", "heft", &traps]);
        assert!(
            rows[2]["error"]
                .as_str()
                .is_some_and(|error| error.contains("panicked"))
        );
        let best = report["best"].as_str().expect("a policy");
        let mut least = f64::INFINITY;
        for row in &rows[..2] {
            let name = row["policy"].as_str().expect("a name");
            let line = "place {} --cluster {} --policy {} --json";
            let placed = placewright(args(line, &[graph, &cluster, name]))
                .expect(0)
                .json();
            let placed = &placed["placement"];
            assert_eq!(row["expected_ns"], placed["expected_ns"], "{name}");
            assert_eq!(row["transfer_bytes"], placed["transfer_bytes"], "{name}");
            assert_eq!(row["peak_bytes"], placed["expected_peak_bytes"], "{name}");
            assert_eq!(
                number(row, "by_best") == 1.0,
                name == best,
                "{name}, {best}"
            );
            least = least.min(number(row, "by_best"));
        }
        assert_eq!(least, 1.0);
    }
    let shown = placewright(args("compare {} --cluster {}", &[&graphs[0], &cluster])).expect(0);
    for part in ["priority", "heft", "round-robin", "has the fastest plan"] {
        assert!(shown.stdout.contains(part), "{}", shown.stdout);
    }
    // No plan at all is a negative answer.
    let line = "compare {} --cluster {} --policy {} --json";
    let declines = file(
        &folder,
        "declines.wasm",
        placewright_fixtures::wasm("declines"),
    );
    let policies = format!("{traps},{declines}");
    let none = placewright(args(line, &[&graphs[0], &cluster, &policies]));
    let none = none.expect(1).json();
    check("compare", &none);
    assert!(none[0]["best"].is_null());
    let line = "compare {} --cluster {} --policy priority,no_such_policy";
    placewright(args(line, &[&graphs[0], &cluster])).expect_error(2, &["no_such_policy"]);
    let line = "compare {} --cluster {} --measure";
    placewright(args(line, &[&graphs[0], &cluster])).expect(2);
    let line = "compare {} --save-placement x.json";
    placewright(args(line, &[&graphs[0]])).expect_error(2, &["--save-placement", "`place`"]);
}

#[test]
fn plans_are_measured_on_devices() {
    let line = "compare {} --device-count CPU=2 --device-count SYCL=0 --device-count GPU=0 --policy priority,round-robin \
                --measure --turn-ms 1 --rounds 2 --json";
    let report = placewright(args(line, &[&model("mlp.skel.pb")]))
        .expect(0)
        .json();
    check("compare", &report);
    assert_eq!(report[0]["is_measured"], true);
    for row in report[0]["policies"].as_array().expect("rows") {
        assert!(row["measured_ns"].as_u64() > Some(0), "{row}");
    }
}

/// Returns the data of a page.
fn data(page: &str) -> Value {
    let (_, after) = page.split_once(r#"id="data">"#).expect("a place for data");
    let (data, _) = after.split_once("</script>").expect("an end");
    serde_json::from_str(data).expect("JSON")
}

#[test]
fn a_page_has_what_simulations_show() {
    let folder = folder();
    let cluster = file(&folder, "three.toml", CLUSTER.as_bytes());
    let graph = model("cf_while_v1.skel.pb");
    let html = path_in(&folder, "report.html");
    let line = "report {} --cluster {} --policy heft,round-robin --html {} --json";
    let report = placewright(args(line, &[&graph, &cluster, &html]))
        .expect(0)
        .json();
    check("report", &report);
    let page = fs::read_to_string(&html).expect("readable");
    assert_eq!(report["bytes"].as_u64(), Some(page.len() as u64));
    // Nothing is loaded from anywhere.
    for part in ["http://", "https://", "src=", "@import"] {
        let uses = page.lines().filter(|line| line.contains(part));
        let loads = uses.filter(|line| !line.contains("www.w3.org"));
        assert_eq!(loads.count(), 0, "{part}");
    }
    let data = data(&page);
    let plans = data["plans"].as_array().expect("plans");
    for (plan, policy) in plans.iter().zip(["heft", "round-robin"]) {
        assert_eq!(plan["policy"], policy);
        let line = "simulate {} --cluster {} --policy {} --nodes --json";
        let simulated = placewright(args(line, &[&graph, &cluster, policy]))
            .expect(0)
            .json();
        let round = |value: f64| Some(value.round());
        assert_eq!(
            plan["makespan_ns"].as_f64(),
            round(number(&simulated, "end_ns"))
        );
        let n_nodes = data["graph"]["nodes"]["name"]
            .as_array()
            .expect("names")
            .len();
        let starts = plan["start_ns"].as_array().expect("times");
        assert_eq!(starts.len(), n_nodes);
        for row in simulated["nodes"].as_array().expect("nodes") {
            let names = data["graph"]["nodes"]["name"].as_array().expect("names");
            let node = names.iter().position(|name| *name == row["name"]);
            let node = node.expect("the node");
            assert_eq!(starts[node].as_f64(), round(number(row, "start_ns")));
            let device = plan["device"][node].as_u64().expect("an index");
            let device = &data["devices"][usize::try_from(device).expect("few")];
            assert_eq!(device["name"], row["device"]);
        }
        let n_links: usize = simulated["transfers"]
            .as_array()
            .expect("transfers")
            .iter()
            .map(|row| row["links"].as_array().expect("links").len().max(1))
            .sum();
        assert_eq!(
            plan["transfers"]["link"].as_array().expect("links").len(),
            n_links
        );
    }
    let line = "report {} --cluster {} --html /no/such/folder/x.html";
    placewright(args(line, &[&graph, &cluster])).expect_error(1, &["there is no folder"]);
}

/// What a mail may carry, and a browser shows at once.
#[test]
fn a_page_of_ten_thousand_nodes_is_below_five_megabytes() {
    let candidates = sample(10_000, 1);
    let builder = Session::builder().with_candidates(candidates);
    let requests = ["heft", "priority"].map(|name| {
        let policy = ShippedPolicy::find(name).expect("shipped");
        PolicyRequest::new(policy)
    });
    let comparison = Comparison::new(&builder, requests).expect("placed");
    assert_eq!(comparison.plans().count(), 2);
    let mut page = Vec::new();
    comparison.write_html(&mut page).expect("written");
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    let page = String::from_utf8(page).expect("text");
    let names = &data(&page)["graph"]["nodes"]["name"];
    assert_eq!(names.as_array().map(Vec::len), Some(10_000));
}

const TASKS: &str = r#"{ "name": "three",
  "tasks": [
    { "name": "a", "time": { "CPU": "2 ms", "GPU": "1 ms" }, "writes": [{ "name": "x", "bytes": "4 MB" }] },
    { "name": "b", "time": { "CPU": "2 ms", "GPU": "1 ms" }, "reads": ["x"] },
    { "name": "c", "time": { "CPU": "2 ms", "GPU": "1 ms" }, "reads": ["x"], "device": "/device:GPU:1" }
  ] }"#;

#[test]
fn a_task_graph_is_placed_simulated_explained_and_compared() {
    let folder = folder();
    let cluster = file(&folder, "three.toml", CLUSTER.as_bytes());
    let tasks = file(&folder, "tasks.json", TASKS.as_bytes());
    let line = "simulate {} --cluster {} --policy heft --nodes --json";
    let report = placewright(args(line, &[&tasks, &cluster]))
        .expect(0)
        .json();
    check("simulate", &report);
    assert_eq!(report["placement"]["n_nodes"], 3);
    // a, then b beside c, whose input is copied.
    let end_ns = number(&report, "end_ns");
    assert!((2.0e6..2.1e6).contains(&end_ns), "{end_ns}");
    assert_eq!(report["expected_ns"], report["end_ns"]);
    let peaks = report["placement"]["expected_peak_bytes"]
        .as_array()
        .expect("bytes");
    let most = peaks.iter().filter_map(Value::as_u64).max();
    assert!(most >= Some(4_000_000), "{peaks:?}");
    let line = "explain {} b --cluster {} --policy heft --against GPU:1 --json";
    let explained = placewright(args(line, &[&tasks, &cluster]))
        .expect(0)
        .json();
    check("explain", &explained);
    assert_eq!(
        explained["node"]["candidates"].as_array().map(Vec::len),
        Some(3)
    );
    let line = "compare {} --cluster {} --json";
    let compared = placewright(args(line, &[&tasks, &cluster]))
        .expect(0)
        .json();
    check("compare", &compared);
    let html = path_in(&folder, "tasks.html");
    let line = "report {} --cluster {} --html {}";
    placewright(args(line, &[&tasks, &cluster, &html])).expect(0);
    let line = "place {} --cluster {} --memory GPU=1MB,CPU=1MB";
    placewright(args(line, &[&tasks, &cluster])).expect_error(1, &["no policy found a placement"]);
    for (line, part) in [
        ("run {}", "`simulate` shows"),
        ("place {} --pin a=CPU:0", "--pin has no effect"),
        ("place {} --check-ops", "--check-ops is about kernels"),
        ("compare {} --measure", "no kernels to run"),
    ] {
        placewright(args(line, &[&tasks])).expect_error(2, &[part]);
    }
    let wrong = TASKS.replace(r#""reads": ["x"] }"#, r#""reads": ["y"] }"#);
    let wrong = file(&folder, "wrong.json", wrong.as_bytes());
    let parts = ["wrong.json", "line 4", "`y`"];
    placewright(args("place {} --cluster {}", &[&wrong, &cluster])).expect_error(1, &parts);
}
