//! Strings of graphs and policies on a terminal and in JSON: truncated, escaped, and in linear
//! time.

use std::time::Duration;
use std::time::Instant;

use serde_json::Value;

use super::args;
use super::file;
use super::folder;
use super::model;
use super::placewright;
use crate::hard_requests::push_field;

#[test]
fn a_policys_message_cannot_control_the_terminal() {
    let folder = folder();
    let fails = file(&folder, "fails.wasm", placewright_fixtures::wasm("fails"));
    let mut arguments = args("place {} --policy {}", &[&model("tiny_add.pb"), &fails]);
    arguments.push("--policy-config".to_owned());
    let reason = format!("\u{1b}[2J\nplaced by policy mine{}", "x".repeat(10_000));
    arguments.push(format!("reason={reason}"));
    let ran = placewright(&arguments).expect(3);
    assert!(!ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
    assert!(ran.stdout.contains(r"\u{1b}[2J"), "{}", ran.stdout);
    assert!(ran.stdout.contains("[truncated]"), "{}", ran.stdout);
    let forged = |line: &str| line.starts_with("placed by policy mine");
    assert!(!ran.stdout.lines().any(forged), "{}", ran.stdout);
}

/// Policies in Python and JavaScript return tracebacks.
#[test]
fn the_error_of_a_policy_keeps_its_lines() {
    let folder = folder();
    let fails = file(&folder, "fails.wasm", placewright_fixtures::wasm("fails"));
    let graph = model("tiny_add.pb");
    let reason = "Traceback:\n  File \"a.py\", line 3\n    1 / 0\nerror: ZeroDivisionError";
    let lines = [
        "      File \"a.py\", line 3",
        "        1 / 0",
        "    error: ZeroDivisionError",
    ];
    for (flag, status) in [("--strict-policy", 1), ("--json", 3), ("", 3)] {
        let mut arguments = args("place {} --policy {}", &[&graph, &fails]);
        arguments.extend(flag.split_whitespace().map(str::to_owned));
        arguments.push("--policy-config".to_owned());
        arguments.push(format!("reason={reason}"));
        let ran = placewright(&arguments).expect(status);
        if flag == "--json" {
            let report: Value = serde_json::from_str(&ran.stdout).unwrap();
            let error = &report["placement"]["policy"]["failed"][0]["error"]["message"];
            assert!(error.as_str().unwrap().contains(reason), "{error}");
            continue;
        }
        let shown = if status == 1 {
            &ran.stderr
        } else {
            &ran.stdout
        };
        for line in lines {
            let is_shown = shown.lines().any(|shown| shown.starts_with(line));
            assert!(is_shown, "{flag}: {line}: {shown}");
        }
    }
}

/// Returns a GraphDef of one constant, a scalar string.
fn text_graph(name: &str, text: &[u8]) -> Vec<u8> {
    const STRING: u8 = 7;
    let mut tensor = vec![0x08, STRING, 0x12, 0];
    push_field(&mut tensor, 0x42, text);
    let attr = |name: &str, value: &[u8]| {
        let mut entry = Vec::new();
        push_field(&mut entry, 0x0a, name.as_bytes());
        push_field(&mut entry, 0x12, value);
        entry
    };
    let mut value = Vec::new();
    push_field(&mut value, 0x42, &tensor);
    let mut node = Vec::new();
    push_field(&mut node, 0x0a, name.as_bytes());
    push_field(&mut node, 0x12, b"Const");
    push_field(&mut node, 0x2a, &attr("dtype", &[0x30, STRING]));
    push_field(&mut node, 0x2a, &attr("value", &value));
    let mut graph = Vec::new();
    push_field(&mut graph, 0x0a, &node);
    graph
}

/// A table once took quadratic time in the length of a cell: 12 s for this one.
#[test]
fn a_string_of_megabytes_is_truncated() {
    let folder = folder();
    let text = [b"\x1b[2J".as_slice(), &vec![b'x'; 10 << 20]].concat();
    let graph = file(&folder, "text.pb", &text_graph("strings", &text));
    for flags in ["", " --json"] {
        let started = Instant::now();
        let ran = placewright(args(&format!("run {{}}{flags}"), &[&graph])).expect(0);
        assert!(started.elapsed() < Duration::from_secs(20), "{flags}");
        assert!(ran.stdout.len() < 100_000, "{}", ran.stdout.len());
        assert!(!ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
        assert!(ran.stdout.contains("xxx.. ["), "{}", ran.stdout);
        assert!(ran.stdout.contains(" bytes more]"), "{}", ran.stdout);
    }
}

/// Fetches belong to a run; `place` always shows a run of the whole graph.
#[test]
fn fetches_change_nothing_that_place_shows() {
    let line = "place {} --policy round-robin --device-count CPU=4 --transfers --json";
    let whole = placewright(args(line, &[&model("lenet.pb")])).expect(0);
    let fetched = placewright(args(
        &format!("{line} --fetch Conv2D"),
        &[&model("lenet.pb")],
    ));
    let fetched = fetched.expect(0);
    assert!(
        fetched.stderr.contains("have no effect"),
        "{}",
        fetched.stderr
    );
    let (whole, fetched): (Value, Value) = (whole.json(), fetched.json());
    for part in ["transfers", "links", "memory"] {
        assert_eq!(whole[part], fetched[part], "{part}");
        assert!(!whole[part].is_null(), "{part}");
    }
}
