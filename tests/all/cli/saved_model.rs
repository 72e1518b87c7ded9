//! SavedModels, and other folders, passed as graphs.

use std::fs;

use serde_json::json;

use super::args;
use super::folder;
use super::path_in;
use super::placewright;
use super::schemas::check;

fn saved(name: &str) -> String {
    format!(
        "{}/../tests/saved_models/{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}

#[test]
fn folders_without_a_model_are_refused_and_damaged_models_are_named() {
    let folder = folder();
    let plain = folder.path().to_str().expect("UTF-8");
    for line in ["run {}", "place {}", "place {} --check-ops", "inspect {}"] {
        let parts = [plain, "without saved_model.pb", "frozen GraphDef"];
        placewright(args(line, &[plain])).expect_error(1, &parts);
    }
    let model = folder.path().join("my_model");
    fs::create_dir_all(&model).expect("made");
    let file = model.join("saved_model.pb");
    fs::write(&file, b"\x08\x01").expect("written");
    for path in [&model, &file] {
        let path = path.to_str().expect("UTF-8");
        for line in ["run {}", "place {}", "inspect {}"] {
            placewright(args(line, &[path])).expect_error(1, &["my_model", "has no graph"]);
        }
        let parts = ["my_model", "expected an archive"];
        placewright(args("bench models {}", &[path])).expect_error(1, &parts);
    }
}

#[test]
fn a_saved_model_is_run_by_the_names_of_its_signature() {
    let folder = folder();
    let out = path_in(&folder, "out.npz");
    for (model, signature) in [("counter", "serving_default"), ("keras_conv", "serve")] {
        let arrays = saved(&format!("{model}.serving_default.npz"));
        let line = format!("run {{}} --signature {signature} --check {{}} --output {{}} --json");
        let ran = placewright(args(&line, &[&saved(model), &arrays, &out])).expect(0);
        let report = ran.json();
        check("run", &report);
        assert_eq!(report["check"]["matches"], true);
        let name = report["outputs"][0]["name"].as_str().expect("a name");
        assert!(matches!(name, "twice" | "output_0"), "{name}");
    }
    let arrays = saved("counter.count.npz");
    let line = "run {} --signature count --check {} --keep-variables";
    placewright(args(line, &[&saved("counter"), &arrays])).expect(0);
    // A table of words, which the model initialises from an asset.
    let arrays = saved("words.serving_default.npz");
    placewright(args("run {} --check {}", &[&saved("words"), &arrays])).expect(0);
    for line in [
        "place {}",
        "simulate {}",
        "explain {}",
        "compare {}",
        "place {} --check-ops",
    ] {
        placewright(args(line, &[&saved("keras_lstm")])).expect(0);
    }
    let file = saved("counter/saved_model.pb");
    placewright(args("run {} --tag-set serve", &[&file])).expect(0);
    let parts = ["no signature `other`", "`count`, `serving_default`"];
    let line = "run {} --signature other";
    placewright(args(line, &[&saved("counter")])).expect_error(1, &parts);
    let graph = super::model("tiny_add.pb");
    let parts = ["--keep-variables has no effect on a GraphDef"];
    placewright(args("run {} --keep-variables", &[&graph])).expect_error(2, &parts);
}

#[test]
fn feeds_and_results_may_be_json() {
    let folder = folder();
    let (feeds, out) = (path_in(&folder, "feeds.json"), path_in(&folder, "out.json"));
    let read = || -> serde_json::Value {
        serde_json::from_slice(&fs::read(&out).expect("written")).expect("JSON")
    };
    let line = "run {} --feeds {} --output {}";
    fs::write(&feeds, r#"{"words": ["sat", {"b64": "dGhl"}, "dog"]}"#).expect("written");
    placewright(args(line, &[&saved("words"), &feeds, &out])).expect(0);
    assert_eq!(read()["ids"], json!([2, 0, 7]));
    let vectors = read()["vectors"].as_array().map(Vec::len);
    assert_eq!(vectors, Some(3));
    // What the program writes, it reads.
    fs::write(&feeds, r#"{"x": [[1, 2.5]]}"#).expect("written");
    placewright(args(line, &[&saved("counter"), &feeds, &out])).expect(0);
    let twice = read()["twice"].clone();
    assert_eq!(twice[0].as_array().map(Vec::len), Some(3), "{twice}");
    for (content, parts) in [
        (r#"{"y": 1}"#, &["feeds.json", "`y`"][..]),
        (r#"{"x": [1, 2]}"#, &["feeds.json", "`x`", "shape is [2]"]),
        (
            r#"{"x": [["a", "b"]]}"#,
            &["\"a\" is not a value of type float"],
        ),
        ("[1]", &["feeds.json", "expected an object", "x"]),
        ("{", &["feeds.json", "expected an object"]),
    ] {
        fs::write(&feeds, content).expect("written");
        placewright(args(line, &[&saved("counter"), &feeds, &out])).expect_error(1, parts);
    }
}

#[test]
fn saved_models_are_measured() {
    let folder = folder();
    let archive = saved("words.serving_default.npz");
    let model = folder.path().join("words");
    for part in ["", "assets", "variables"] {
        let (from, to) = (saved(&format!("words/{part}")), model.join(part));
        fs::create_dir(&to).expect("made");
        for entry in fs::read_dir(from).expect("a folder") {
            let path = entry.expect("an entry").path();
            if let (true, Some(name)) = (path.is_file(), path.file_name()) {
                fs::copy(&path, to.join(name)).expect("copied");
            }
        }
    }
    let model = model.to_str().expect("UTF-8");
    let parts = ["expected an archive", "words.npz"];
    placewright(args("bench models {}", &[model])).expect_error(1, &parts);
    fs::copy(archive, format!("{model}.npz")).expect("copied");
    for path in [model, folder.path().to_str().expect("UTF-8")] {
        let ran = placewright(args("bench models {} --seconds 0.01 --json", &[path])).expect(0);
        assert_eq!(ran.json()["rows"][0]["model"], "words");
    }
}

#[test]
fn inspect_shows_what_a_model_consists_of() {
    let json = |line: &str, path: &str| {
        let line = format!("inspect {line} {{}} --json");
        let report = placewright(args(&line, &[path])).expect(0).json();
        check("inspect", &report);
        report
    };
    let report = json("--signature count", &saved("counter"));
    assert_eq!(report["name"], "counter");
    assert_eq!(report["model"]["signature"], "count");
    assert_eq!(report["model"]["tag_sets"], json!([["serve"]]));
    let signatures = report["model"]["signatures"]
        .as_array()
        .expect("signatures");
    let names = signatures
        .iter()
        .map(|signature| signature["name"].as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        [Some("count"), Some("serving_default")]
    );
    assert_eq!(signatures[1]["inputs"][0]["name"], "x");
    assert_eq!(signatures[1]["inputs"][0]["shape"], "[?,2]");
    let variables = report["variables"].as_array().expect("variables");
    let constants = variables.iter().map(|row| row["is_constant"].as_bool());
    assert_eq!(constants.filter(|it| *it == Some(true)).count(), 1);
    let report = json("", &super::model("tiny_add.pb"));
    assert!(report["model"].is_null());
    let ops = report["ops"].as_array().expect("ops").iter();
    let add = ops
        .clone()
        .find(|row| row["op"].as_str().is_some_and(|op| op.starts_with("Add")));
    assert!(add.expect("an addition")["kernels"].as_array().is_some());
    let shown = placewright(args("inspect {}", &[&saved("words")]))
        .expect(0)
        .stdout;
    for part in ["serving_default", "words", "HashTableV2", "vectors"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
}

#[test]
fn inspect_shows_what_each_pass_changes() {
    let json = |path: &str| {
        let line = "inspect {} --passes --json";
        let report = placewright(args(line, &[path])).expect(0).json();
        check("inspect", &report);
        report["passes"].as_array().expect("passes").clone()
    };
    assert!(json(&super::model("tiny_add.pb")).is_empty());
    let graph = super::model("small_cnn_fbn.skel.pb");
    let passes = json(&graph);
    let names: Vec<&str> = passes
        .iter()
        .filter_map(|row| row["pass"].as_str())
        .collect();
    assert!(names.contains(&"fold-batch-norms"), "{names:?}");
    for pass in &passes {
        let size = |side: &str, what: &str| pass[side][what].as_f64().expect("a number");
        assert!(size("after", "n_nodes") < size("before", "n_nodes"));
        assert!(size("after", "flops") <= size("before", "flops"));
    }
    let shown = placewright(args("inspect {} --passes", &[&graph]));
    let shown = shown.expect(0).stdout;
    assert!(shown.contains("fold-batch-norms"), "{shown}");
    json(&saved("counter"));
}
