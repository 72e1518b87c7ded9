//! Placements that are saved, loaded and compared.

use std::fs;

use serde_json::Value;

use super::args;
use super::file;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;

#[test]
fn a_saved_placement_loads_and_differences_are_listed() {
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
    other.expect_error(
        1,
        &[
            "saved.json",
            "of graph `lenet`",
            "this graph is `tiny_add`",
            "0 of its 3 nodes",
        ],
    );
    let broken = file(&folder, "broken.json", b"{\"version\": 1");
    let broken = placewright(args("place {} --placement {}", &[&graph, &broken]));
    broken.expect_error(1, &["broken.json"]);
}

#[test]
fn a_saved_placement_names_its_origin() {
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

#[test]
fn nodes_are_pinned_by_flags() {
    let folder = folder();
    let (graph, saved) = (model("lenet.pb"), path_in(&folder, "saved.json"));
    let pins = "--device-count CPU=2 --pin probs=CPU:1";
    let line = format!("place {{}} {pins} --nodes --json --save-placement {{}}");
    let report = placewright(args(&line, &[&graph, &saved])).expect(0).json();
    let nodes = report["nodes"].as_array().expect("nodes");
    let device_of = |name: &str| {
        let node = nodes.iter().find(|node| node["name"] == name);
        node.expect("the node")["device"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    assert!(device_of("probs").ends_with("CPU:1"));
    let others = nodes.iter().filter(|node| node["name"] != "probs");
    for node in others {
        assert!(
            node["device"]
                .as_str()
                .is_some_and(|it| it.ends_with("CPU:0")),
            "{node}"
        );
    }
    let text = fs::read_to_string(&saved).expect("read");
    let text: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(text["options"]["pin"], "probs=CPU:1");
    let line = format!("run {{}} --check {{}} {pins}");
    placewright(args(&line, &[&graph, &model("lenet.npz")])).expect(0);
    placewright(args("place {} --pin prob=CPU:0", &[&graph]))
        .expect_error(2, &["--pin", "`prob`", "did you mean `probs`?"]);
}

#[test]
fn plans_limited_by_fuel_are_byte_equal() {
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
