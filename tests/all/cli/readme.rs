//! Checks the first screen of README.md: its policy is the example, and places as the page claims.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{args, file, model, placewright};

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).expect("a file of the repository")
}

/// Returns the source without what a page may leave out or wrap differently.
fn squeezed(source: &str) -> String {
    let source: String = source.split_whitespace().collect();
    source.replace("<'_>", "").replace(",)", ")")
}

#[test]
fn the_policy_of_the_readme_is_the_example() {
    let readme = read("README.md");
    let (_, block) = readme.split_once("```rust,ignore\n").expect("a block");
    let (policy, _) = block.split_once("```").expect("the end of the block");
    let example = read("guest/examples/branches/src/lib.rs");
    assert!(squeezed(&example).contains(&squeezed(policy)));
}

#[test]
fn the_policy_of_the_readme_uses_devices_that_tensorflow_leaves_idle() {
    let folder = tempfile::tempdir().unwrap();
    let policy = file(
        &folder,
        "branches.wasm",
        placewright_fixtures::README_POLICY,
    );
    let place = |policy: &str| -> Value {
        let line = "--json place {} --device-count CPU=2 --device-count SYCL=0 \
                    --strict-policy --policy {}";
        let graph = model("wide_branch.skel.pb");
        let ran = placewright(args(line, &[&graph, policy])).expect(0);
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let nodes = |placed: &Value, device: usize| {
        placed["placement"]["devices"][device]["n_nodes"]
            .as_u64()
            .unwrap()
    };
    let (branches, priority) = (place(&policy), place("priority"));
    assert!(
        nodes(&branches, 0) > 0 && nodes(&branches, 1) > 0,
        "{branches}"
    );
    assert_eq!(nodes(&priority, 1), 0, "{priority}");
    let expected_ns = |placed: &Value| placed["placement"]["expected_ns"].as_f64().unwrap();
    // Both devices compute with the same threads.
    let ratio = expected_ns(&branches) / expected_ns(&priority);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}
