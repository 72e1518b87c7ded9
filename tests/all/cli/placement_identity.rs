//! Tests saved placements like a user: they are verified, kept in part, and served from the cache.

use std::fs;

use serde_json::Value;

use super::args;
use super::file;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;
use super::run_with_cache;

fn saved(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("read")).expect("JSON")
}

#[test]
fn two_processes_save_the_same_bytes_for_one_identity() {
    let folder = folder();
    let graph = model("lenet.pb");
    for policy in ["priority", "heft", "round-robin"] {
        let save = |name: &str, flags: &str| {
            let path = path_in(&folder, name);
            let line = format!(
                "place {{}} --policy {policy} --device-count CPU=3 --policy-fuel 1000000000 {flags} --save-placement {{}}"
            );
            placewright(args(&line, &[&graph, &path])).expect(0);
            fs::read_to_string(&path).expect("read")
        };
        let first = save("first.json", "--device CPU:1 --soft-placement");
        // The same scope, spelled differently.
        let second = save("second.json", "--soft-placement --device /device:CPU:1");
        assert_eq!(first, second);
        let identity = &saved(&path_in(&folder, "first.json"))["identity"];
        for hash in ["policy", "graph", "devices", "options"] {
            let text = identity[hash].as_str().expect("a hash");
            assert!(text.len() == 64, "{hash}: {text}");
        }
        save("other.json", "--device CPU:1 --soft-placement --seed 5");
        let other = &saved(&path_in(&folder, "other.json"))["identity"];
        assert_ne!(other["policy"], identity["policy"]);
        for hash in ["graph", "devices", "options"] {
            assert_eq!(other[hash], identity[hash], "{hash}");
        }
    }
}

#[test]
fn a_policy_is_identified_by_its_bytes_not_its_path() {
    let folder = folder();
    let graph = model("tiny_add.pb");
    let digest = |name: &str, bytes: &[u8]| {
        let policy = file(&folder, name, bytes);
        let path = path_in(&folder, "saved.json");
        let line = "place {} --policy {} --save-placement {}";
        placewright(args(line, &[&graph, &policy, &path])).expect(0);
        let saved = saved(&path);
        assert_eq!(saved["policy"], name);
        saved["identity"]["policy"].clone()
    };
    let shipped = |name| {
        placewright::policy::ShippedPolicy::find(name)
            .expect("shipped")
            .wasm()
    };
    let first = digest("a.wasm", shipped("priority"));
    assert_eq!(digest("b.wasm", shipped("priority")), first);
    assert_ne!(digest("a.wasm", shipped("heft")), first);
}

#[test]
fn a_placement_for_other_inputs_is_rejected_with_the_difference_and_a_remedy() {
    let folder = folder();
    let (graph, path) = (model("lenet.pb"), path_in(&folder, "saved.json"));
    let save = "place {} --policy round-robin --device-count CPU=2 --save-placement {}";
    placewright(args(save, &[&graph, &path])).expect(0);
    let place = |flags: &str| {
        let line = format!("place {{}} --placement {{}} {flags} --json");
        placewright(args(&line, &[&graph, &path]))
    };
    place("--device-count CPU=2").expect(0);
    // A placement in use does not depend on seeds of feeds or on reasons.
    place("--device-count CPU=2 --seed 9 --nodes").expect(0);
    let rows = [
        ("--device-count CPU=3", "other devices"),
        ("--device-count CPU=2 --memory CPU:1=1GiB", "other devices"),
        ("--device-count CPU=2 --threads 3", "other devices"),
        ("--device-count CPU=2 --soft-placement", "other options"),
        (
            "--device-count CPU=2 --device /job:localhost",
            "other options",
        ),
    ];
    for (flags, what) in rows {
        place(flags).expect_error(1, &["saved.json", what, "--keep", "--placement-unverified"]);
        let report = place(&format!("{flags} --placement-unverified"))
            .expect(0)
            .json();
        assert_eq!(report["placement"]["policy"], Value::Null, "{flags}");
    }
    let both = place("--device-count CPU=3 --soft-placement");
    both.expect_error(1, &["other devices (", ") and other options ("]);
    // If names do not match or a rule is broken, the error is more specific.
    place("--placement-unverified").expect_error(1, &["does not exist", "CPU:0"]);
    place("--device-count CPU=2 --memory CPU:1=1KiB").expect_error(1, &["memory", "CPU:1"]);
    placewright(args("place {} --placement-unverified", &[&graph])).expect(2);
}

#[test]
fn other_shapes_change_the_identity_but_another_file_name_does_not() {
    let folder = folder();
    let saved = path_in(&folder, "saved.json");
    let (graph, larger) = (model("mlp.skel.pb"), model("mlp_b64.skel.pb"));
    placewright(args("place {} --save-placement {}", &[&graph, &saved])).expect(0);
    let bytes = fs::read(&graph).expect("read");
    let copy = file(&folder, "copy.pb", &bytes);
    placewright(args("place {} --placement {}", &[&copy, &saved])).expect(0);
    let line = "place {} --placement {}";
    placewright(args(line, &[&larger, &saved])).expect_error(1, &["saved.json", "another graph ("]);
    let line = "place {} --placement {} --placement-unverified";
    placewright(args(line, &[&larger, &saved])).expect(0);
}

#[test]
fn a_file_of_the_first_version_is_used_on_request() {
    let folder = folder();
    let (graph, path) = (model("tiny_add.pb"), path_in(&folder, "saved.json"));
    placewright(args("place {} --save-placement {}", &[&graph, &path])).expect(0);
    let mut old = saved(&path);
    old["version"] = 1.into();
    old.as_object_mut().expect("an object").remove("identity");
    let old = file(&folder, "old.json", old.to_string().as_bytes());
    let line = "place {} --placement {}";
    placewright(args(line, &[&graph, &old]))
        .expect_error(1, &["old.json", "version 1", "--placement-unverified"]);
    let line = "place {} --placement {} --placement-unverified --save-placement {}";
    placewright(args(line, &[&graph, &old, &path])).expect(0);
    // An unverified placement is not attributed to the policy.
    assert_eq!(saved(&path)["identity"]["policy"], Value::Null);
    placewright(args("place {} --placement {}", &[&graph, &path])).expect(0);
    let newer = file(&folder, "newer.json", br#"{"version": 3}"#);
    placewright(args("place {} --placement {}", &[&graph, &newer]))
        .expect_error(1, &["version 3", "1 and 2"]);
}

#[test]
fn an_earlier_answer_comes_from_the_cache_on_request() {
    let folder = folder();
    let cache = folder.path().join("cache");
    let graph = model("lenet.pb");
    let place = |flags: &str| {
        let line = format!("place {{}} --policy heft --device-count CPU=4 {flags}");
        run_with_cache(args(&line, &[&graph]), &cache)
    };
    let policy =
        |flags: &str| place(&format!("{flags} --json")).expect(0).json()["placement"].clone();
    let fuel = "--policy-fuel 1000000000";
    let asked = policy(&format!("{fuel} --placement-cache"));
    assert_eq!(asked["policy"]["is_cached"], false);
    let cached = policy(&format!("{fuel} --placement-cache"));
    assert_eq!(cached["policy"]["is_cached"], true);
    assert_eq!(cached["policy"]["answered_by"], "heft");
    assert_eq!(cached["devices"], asked["devices"]);
    assert_eq!(
        cached["policy"]["answer"]["fuel_used"],
        asked["policy"]["answer"]["fuel_used"]
    );
    assert_eq!(
        cached["policy"]["answer"]["host_fuel_used"],
        asked["policy"]["answer"]["host_fuel_used"]
    );
    assert!(asked["policy"]["answer"]["host_fuel_used"].as_u64() > Some(0));
    let shown = place(&format!("{fuel} --placement-cache")).expect(0).stdout;
    assert!(
        shown.contains("placed earlier by policy heft, found in the cache in"),
        "{shown}"
    );
    // Only on request, and not for another placement.
    assert_eq!(policy(fuel)["policy"]["is_cached"], false);
    assert_eq!(
        policy(&format!("{fuel} --placement-cache --seed 1"))["policy"]["is_cached"],
        false
    );
    place("--placement-cache").expect(2);

    let entry = fs::read_dir(&cache)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path());
    for path in entry.filter(|path| path.to_string_lossy().contains("placement-")) {
        fs::write(path, "damaged").expect("written");
    }
    let ran = place(&format!("{fuel} --placement-cache")).expect(0);
    assert!(
        ran.stderr
            .contains("note: the cache of placements was not used: found a damaged answer"),
        "{}",
        ran.stderr
    );
    let shown = place(&format!("{fuel} --placement-cache")).expect(0).stdout;
    assert!(shown.contains("placed earlier by policy"), "{shown}");
}

#[test]
fn a_placement_is_kept_if_possible_and_the_difference_lists_moved_nodes() {
    let folder = folder();
    let (graph, path) = (model("lenet.pb"), path_in(&folder, "saved.json"));
    let again = path_in(&folder, "again.json");
    let save = "place {} --policy round-robin --device-count CPU=4 --save-placement {}";
    placewright(args(save, &[&graph, &path])).expect(0);
    let before = saved(&path);
    let on = |device: u32| {
        let devices = before["devices"].as_object().expect("devices").values();
        let name = format!("/job:localhost/replica:0/task:0/device:CPU:{device}");
        devices.filter(|device| **device == name).count()
    };
    for policy in ["priority", "round-robin", "heft"] {
        let keep = |flags: &str| {
            let line = format!(
                "place {{}} --policy {policy} --keep {{}} --diff {{}} {flags} --save-placement {{}} --json"
            );
            placewright(args(&line, &[&graph, &path, &path, &again]))
                .expect(0)
                .json()
        };
        let n_moved = |report: &Value| {
            let kept = report["placement"]["kept"]["moved"]
                .as_array()
                .map(Vec::len);
            assert_eq!(report["diff"]["moved"].as_array().map(Vec::len), kept);
            kept.expect("a list")
        };
        // One device lost, one added, one shrunk.
        let lost = keep("--device-count CPU=3");
        assert_eq!(n_moved(&lost), on(3));
        for moved in lost["placement"]["kept"]["moved"]
            .as_array()
            .expect("moved")
        {
            assert_eq!(moved["reason"], "its device is gone");
            assert!(moved["from"].as_str().expect("a name").ends_with("CPU:3"));
        }
        assert_eq!(n_moved(&keep("--device-count CPU=5")), 0);
        let shrunk = keep("--device-count CPU=4 --memory CPU:0=2KiB");
        assert!(n_moved(&shrunk) > 0);
        for moved in shrunk["placement"]["kept"]["moved"]
            .as_array()
            .expect("moved")
        {
            assert_eq!(moved["reason"], "its device has too little memory");
        }
        // It is not an answer of the policy alone.
        assert_eq!(saved(&again)["identity"]["policy"], Value::Null);
    }
    let line = "place {} --keep {} --device-count CPU=3";
    let shown = placewright(args(line, &[&graph, &path])).expect(0).stdout;
    assert!(
        shown.contains("nodes kept where saved") && shown.contains("(its device is gone)"),
        "{shown}"
    );
    let line = "place {} --keep {} --device-count CPU=2 --memory CPU:0=1KiB --memory CPU:1=1KiB";
    placewright(args(line, &[&graph, &path]))
        .expect_error(1, &["saved.json", "has to move", " free)"]);
    placewright(args(
        "run {} --keep {} --device-count CPU=3 --placement p.json",
        &[&graph, &path],
    ))
    .expect(2);
    placewright(args(
        "run {} --keep {} --device-count CPU=3",
        &[&graph, &path],
    ))
    .expect(0);
}
