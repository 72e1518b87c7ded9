//! Strings of graphs and policies on a terminal and in JSON: cut, escaped, and in linear time.

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
fn a_policys_message_cannot_act_on_the_terminal() {
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

/// A GraphDef of one constant: a scalar string.
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

/// The table took time in the square of a cell's length: 12 s for this one.
#[test]
fn a_string_of_megabytes_is_cut() {
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

/// Fetches belong to a run; `place` shows a run of the whole graph.
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
