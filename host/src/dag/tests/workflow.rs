//! WfFormat.

use super::*;

/// Two tasks side by side, and one that joins what they write.
fn workflow(version: &str) -> String {
    format!(
        r#"{{
    "name": "join", "description": "an example", "schemaVersion": "{version}",
    "workflow": {{
        "specification": {{
            "tasks": [
                {{ "name": "join", "id": "t3", "parents": ["t1", "t2", "t0"], "children": [],
                  "inputFiles": ["one", "two"], "outputFiles": ["all"] }},
                {{ "name": "cut", "id": "t1", "parents": ["t0"], "children": ["t3"],
                  "inputFiles": ["raw", "db"], "outputFiles": ["one"] }},
                {{ "name": "cut", "id": "t2", "parents": ["t0"], "children": ["t3"],
                  "inputFiles": ["raw", "db", "db"], "outputFiles": ["two"] }},
                {{ "name": "prepare", "id": "t0", "parents": [], "children": ["t1", "t2", "t3"] }}
            ],
            "files": [
                {{ "id": "raw", "sizeInBytes": 900 }},
                {{ "id": "db", "sizeInBytes": 5000000000 }},
                {{ "id": "one", "sizeInBytes": 10 }},
                {{ "id": "two", "sizeInBytes": 20 }},
                {{ "id": "all", "sizeInBytes": 30 }},
                {{ "id": "unread", "sizeInBytes": 40 }}
            ],
            "metrics": {{ "numberOfTasks": 4 }}
        }},
        "execution": {{
            "makespanInSeconds": 14.2,
            "executedAt": "2026-01-01T00:00:00Z",
            "tasks": [
                {{ "id": "t0", "runtimeInSeconds": 0 }},
                {{ "id": "t1", "runtimeInSeconds": 1.5, "coreCount": 2, "priority": 20,
                  "memoryInBytes": 4096, "command": {{ "program": "cutter" }} }},
                {{ "id": "t2", "runtimeInSeconds": 2, "machines": ["node01"] }},
                {{ "id": "t3", "runtimeInSeconds": 0.25, "command": {{ "program": "Merge" }} }}
            ],
            "machines": [{{ "nodeName": "node01", "cpu": {{ "speedInMHz": 2300 }} }}]
        }}
    }}
}}"#
    )
}

#[test]
fn files_are_data_and_other_parents_are_order() {
    for version in ["1.5", "1.6"] {
        let tasks = parse(&workflow(version));
        assert_eq!(tasks.name(), "join");
        assert_eq!((tasks.n_tasks(), tasks.n_data()), (4, 5));
        let graph = tasks.graph();
        let names: Vec<&str> = graph.nodes().map(|node| graph.node_name(node)).collect();
        assert_eq!(names, ["input/raw", "input/db", "t0", "t1", "t2", "t3"]);
        assert_eq!(
            inputs(graph, "t2"),
            ["input/raw:900", "input/db:5000000000", "t0"]
        );
        assert_eq!(inputs(graph, "t3"), ["t1:10", "t2:20", "t0"]);
        let t1 = node(graph, "t1");
        assert_eq!(graph.workspace_bytes()[t1.index()], 4096);
        assert_eq!(graph.op(t1), "cutter");
        assert_eq!(graph.op(node(graph, "t2")), "cut");
        // The library has an op of this name.
        assert_eq!(graph.op(node(graph, "t3")), "Task");
    }
}

#[test]
fn times_hold_for_the_first_cpu() {
    let tasks = parse(&workflow("1.5"));
    let candidates = tasks.candidates(&devices()).unwrap();
    let graph = tasks.graph();
    let cost = |name: &str, device: u32| candidates.cost_ns(node(graph, name), DeviceId(device));
    assert_eq!(cost("t1", 0), 1.5e9);
    // It has half the rate.
    assert_eq!(cost("t1", OLD_CPU.0), 3e9);
    assert_eq!(cost("t0", 0), 0.0);
    assert_eq!(cost("t0", 1), f64::INFINITY);
    assert_eq!(legal(&candidates, "t3"), CPUS);
    let priorities = &candidates.nodes().user_priority;
    assert_eq!(priorities[node(graph, "t1").index()], 20);
}

#[test]
fn contradictions_are_named() {
    let valid = workflow("1.5");
    let cases = [
        (
            r#""schemaVersion": "1.5""#,
            r#""schemaVersion": "1.4""#,
            "WfFormat `1.4` is not supported, only 1.5 and 1.6 are",
        ),
        (
            r#""id": "t3", "parents": ["t1", "t2", "t0"]"#,
            r#""id": "t3", "parents": ["t1", "t2"]"#,
            "task `t0` has the child `t3`, which does not have it as a parent",
        ),
        (
            r#""children": ["t1", "t2", "t3"]"#,
            r#""children": ["t1", "t2"]"#,
            "task `t3` has the parent `t0`, which does not have it as a child",
        ),
        (
            r#""parents": ["t0"]"#,
            r#""parents": ["t9"]"#,
            "task `t1` names task `t9`, which does not exist",
        ),
        (
            r#""outputFiles": ["two"]"#,
            r#""outputFiles": ["one"]"#,
            "tasks `t1` and `t2` both write file `one`",
        ),
        (
            r#""inputFiles": ["raw", "db"]"#,
            r#""inputFiles": ["raw", "bd"]"#,
            "task `t1` names file `bd`, which does not exist",
        ),
        (
            r#""inputFiles": ["raw", "db"]"#,
            r#""inputFiles": ["raw", "all"]"#,
            "tasks wait for each other: `t1`, then `t3`, then `t1`",
        ),
        (
            r#"{ "id": "raw""#,
            r#"{ "id": "db""#,
            "there are two of file `db`",
        ),
        (
            r#""id": "t3""#,
            r#""id": "t1""#,
            "there are two of task `t1`",
        ),
        (
            r#"{ "id": "t0", "runtimeInSeconds": 0 },"#,
            "",
            "task `t0` has no time in `execution`",
        ),
        (
            r#"{ "id": "t0", "runtimeInSeconds": 0 },"#,
            r#"{ "id": "t1", "runtimeInSeconds": 0 },"#,
            "task `t1` was executed twice",
        ),
        (
            r#"{ "id": "t0", "runtimeInSeconds": 0 },"#,
            r#"{ "id": "t7", "runtimeInSeconds": 0 },"#,
            "task `t7` was executed, but `specification` does not have it",
        ),
        (
            r#""runtimeInSeconds": 1.5"#,
            r#""runtimeInSeconds": -1.5"#,
            "task `t1` takes -1500000000 ns; the limits are 0",
        ),
        (
            r#""runtimeInSeconds": 1.5"#,
            r#""runtimeInSeconds": 1e300"#,
            "ns; the limits are 0 and 1e18 ns",
        ),
        (
            r#""runtimeInSeconds": 1.5"#,
            r#""runtimeInSecond": 1.5"#,
            "missing field `runtimeInSeconds`",
        ),
        (
            r#""sizeInBytes": 900"#,
            r#""sizeInBytes": -900"#,
            "`raw` has -900 bytes; the limits are 0",
        ),
        (
            r#""memoryInBytes": 4096"#,
            r#""memoryInBytes": 1e40"#,
            "`t1` has 1",
        ),
        (
            r#""execution": "#,
            r#""executed": "#,
            "the workflow has no `execution`",
        ),
        (
            r#""specification": "#,
            r#""specified": "#,
            "missing field `specification`",
        ),
        (
            r#""name": "join", "id""#,
            r#""name": 3, "id""#,
            "invalid type: integer `3`, expected a string",
        ),
    ];
    for (from, to, expected) in cases {
        let text = valid.replacen(from, to, 1);
        assert_ne!(text, valid, "{from}");
        let found = error(&text);
        assert!(found.starts_with("line "), "{found}");
        assert!(found.contains(expected), "{to}: {found}");
    }
}

#[test]
fn a_set_without_cpus_cannot_run_workflows() {
    let devices = devices();
    let gpus = devices.iter().filter(|(id, _)| GPUS.contains(&id.0));
    let gpus = Arc::new(DeviceSet::new(gpus.map(|(_, device)| Arc::clone(device))));
    let found = parse(&workflow("1.6")).candidates(&gpus).unwrap_err();
    let found = found.to_string();
    assert!(
        found.contains("no device can run task `t0`: tasks of workflows run on type `CPU`"),
        "{found}"
    );
}
