//! Policies given as files: the ladder, limits, and `policy check`.

#[cfg(unix)]
use std::process::Command;

use serde_json::Value;

#[cfg(unix)]
use super::NO_OPENCL;
use super::args;
use super::file;
use super::folder;
use super::model;
use super::placewright;

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
    assert_eq!(policy["failed"][0]["error"]["fault"], "policy");

    let line = "place {} --policy {} --strict-policy";
    placewright(args(line, &[&graph, &traps])).expect_error(1, &["traps.wasm", "panicked"]);
}

#[test]
fn rejected_defaults_fall_down_the_ladder_but_rejected_settings_do_not() {
    let folder = folder();
    let refuses = placewright_fixtures::wasm("refuses-config");
    let refuses = file(&folder, "refuses.wasm", refuses);
    let graph = model("tiny_add.pb");
    let ran = placewright(args("run {} --policy {} --json", &[&graph, &refuses])).expect(3);
    let policy = &ran.json()["placement"]["policy"];
    assert_eq!(policy["failed"][0]["error"]["fault"], "policy");
    assert_eq!(policy["failed"][0]["call"], "load");
    // It could not be loaded.
    assert_eq!(policy["load"], Value::Null);
    let line = "run {} --policy {} --policy-config mood=sour";
    placewright(args(line, &[&graph, &refuses])).expect_error(2, &["mood"]);
}

#[test]
fn a_file_that_is_not_webassembly_is_a_wrong_argument() {
    let folder = folder();
    let graph = model("tiny_add.pb");
    for (name, content, part) in [
        ("source.rs", &b"fn main() {}"[..], "does not begin with"),
        ("empty.wasm", b"", "it is empty"),
        ("text.wasm", b" (module)", "wasm-tools parse"),
    ] {
        let policy = file(&folder, name, content);
        for line in ["place {} --policy {}", "run {} --policy {}"] {
            let ran = placewright(args(line, &[&graph, &policy]));
            ran.expect_error(2, &[name, "not a WebAssembly file", part]);
        }
    }
    // A damaged policy is the policy's fault.
    let damaged = &placewright_fixtures::wasm("declines")[..1000];
    let damaged = file(&folder, "damaged.wasm", damaged);
    placewright(args("place {} --policy {}", &[&graph, &damaged])).expect(3);
}

#[test]
fn an_offer_that_is_lost_is_reported() {
    let folder = folder();
    let ends = placewright_fixtures::wasm("ends-after-offer");
    let ends = file(&folder, "ends.wasm", ends);
    let traps = file(&folder, "traps.wasm", placewright_fixtures::wasm("traps"));
    let graph = model("tiny_add.pb");
    let failed = |policy: &str, flags: &str| {
        let line = format!("place {{}} --policy {{}} {flags}");
        placewright(args(&line, &[&graph, policy])).expect(3).stdout
    };
    let lost = "; the legal plan that it had offered before is lost";
    for how in ["panic", "decline"] {
        let shown = failed(&ends, &format!("--policy-config how={how}"));
        assert!(shown.contains(lost), "{shown}");
    }
    let shown = failed(&traps, "");
    assert!(!shown.contains(lost), "{shown}");
}

/// The main thread has less stack than the guest may use.
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
    ran.expect_error(1, &["hoards.wasm", "the limit is 8.0 MiB"]);
}

#[test]
fn a_policy_is_inspected_before_it_is_used() {
    let folder = folder();
    let check = |file: &str| placewright(args("policy check {} --json", &[file]));
    let list = placewright(["policy", "list", "--json"]).expect(0).json();
    let names: Vec<_> = list
        .as_array()
        .expect("policies")
        .iter()
        .map(|policy| policy["name"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(
        names,
        [
            "auto",
            "cpop",
            "dmda",
            "dmdas",
            "hbmct",
            "heft",
            "layers",
            "lookahead",
            "lws",
            "m-etf",
            "m-sct",
            "m-topo",
            "peft",
            "pipeline",
            "priority",
            "round-robin",
            "search"
        ]
    );
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
    placewright(["policy", "check", "absent.wasm"]).expect_error(2, &["absent.wasm"]);

    let report = check("auto").expect(0).json();
    assert_eq!(
        (&report["name"], &report["usable"]),
        (&list[0]["name"], &true.into())
    );
    assert_eq!(report["settings"], list[0]["settings"]);
}
