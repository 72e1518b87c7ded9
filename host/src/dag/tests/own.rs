//! Our own format.

use super::*;

const PIPELINE: &str = r#"{
    "name": "pipeline",
    "inputs": [
        { "name": "weights", "bytes": "4 GB" },
        { "name": "log", "bytes": 1000, "device": "/job:b/device:CPU:0" },
        { "name": "unread", "bytes": 7 }
    ],
    "tasks": [
        { "name": "train", "op": "Train", "time": { "GPU": "2 ms", "TPU": 5 },
          "reads": ["frames", "weights", "frames"], "after": ["decode", "check"],
          "memory": "1 GiB", "priority": 3 },
        { "name": "check", "work": { "flops": "3 GFLOP", "bytes": "1 MB" },
          "device": "/job:a", "colocate-with": ["decode"] },
        { "name": "decode", "time": { "CPU": "12 ms" }, "reads": ["log"],
          "writes": [{ "name": "sound", "bytes": "1 KiB" }, { "name": "frames", "bytes": 5000 }] }
    ]
}"#;

#[test]
fn tasks_and_data_become_nodes_and_tensors() {
    let tasks = parse(PIPELINE);
    assert_eq!(tasks.name(), "pipeline");
    assert_eq!((tasks.n_tasks(), tasks.n_data()), (3, 4));
    assert_eq!(tasks.data_bytes(), 4_000_000_000 + 1000 + 1024 + 5000);
    let graph = tasks.graph();
    let names: Vec<&str> = graph.nodes().map(|node| graph.node_name(node)).collect();
    assert_eq!(
        names,
        ["input/weights", "input/log", "check", "decode", "train"]
    );
    assert_eq!(
        inputs(graph, "train"),
        ["decode:5000", "input/weights:4000000000", "check"]
    );
    assert_eq!(inputs(graph, "decode"), ["input/log:1000"]);
    let train = node(graph, "train");
    assert_eq!(graph.op(train), "Train");
    assert_eq!(graph.workspace_bytes()[train.index()], 1 << 30);
    let check = node(graph, "check");
    assert_eq!(graph.requested(check), "/job:a");
    assert_eq!(graph.flops()[check.index()], 3e9);
    assert_eq!(graph.traffic_bytes()[check.index()], 1_000_000);
    assert!(graph.is_preloaded(node(graph, "input/weights")));
    assert!(!graph.is_preloaded(node(graph, "input/log")));
}

#[test]
fn costs_and_constraints_become_candidates() {
    let tasks = parse(PIPELINE);
    let candidates = tasks.candidates(&devices()).unwrap();
    // Three kinds of devices.
    assert_eq!(candidates.devices().n_cost_classes, 3);
    assert_eq!(legal(&candidates, "train"), GPUS);
    assert_eq!(legal(&candidates, "input/log"), [OLD_CPU.0]);
    assert_eq!(legal(&candidates, "input/weights").len(), 6);
    // One is for `/job:a`, the other for CPUs.
    assert_eq!(legal(&candidates, "check"), [0]);
    assert_eq!(legal(&candidates, "decode"), [0]);
    let graph = candidates.graph();
    let nodes = candidates.nodes();
    let group = |name: &str| nodes.group[node(graph, name).index()];
    assert_eq!(group("check"), group("decode"));
    assert_ne!(group("check"), group("train"));
    assert_eq!(nodes.user_priority[node(graph, "train").index()], 3);
    let cost = |name: &str, device: u32| candidates.cost_ns(node(graph, name), DeviceId(device));
    assert_eq!(cost("train", 1), 2e6);
    assert_eq!(cost("train", 0), f64::INFINITY);
    assert_eq!(cost("decode", 3), 12e6);
    // 3 GFLOP at 1 TFLOP/s.
    assert_eq!(cost("check", 0), 100.0 + 3e6);
    assert_eq!(cost("check", 3), 100.0 + 6e6);
    assert_eq!(cost("input/log", 3), 0.0);
}

/// A table of times has a column per type, however many kinds of devices there are.
#[test]
fn times_alone_need_a_column_per_type() {
    let tasks = parse(
        r#"{"inputs": [{"name": "x", "bytes": 1}],
            "tasks": [{"name": "a", "time": {"CPU": "1 us", "GPU": 2.5}, "reads": ["x"]}]}"#,
    );
    let candidates = tasks.candidates(&devices()).unwrap();
    assert_eq!(candidates.devices().n_cost_classes, 2);
    let a = node(tasks.graph(), "a");
    assert!(
        CPUS.iter()
            .all(|&cpu| candidates.cost_ns(a, DeviceId(cpu)) == 1000.0)
    );
    assert!(
        GPUS.iter()
            .all(|&gpu| candidates.cost_ns(a, DeviceId(gpu)) == 2.5)
    );
}

#[test]
fn tasks_with_equal_devices_share_a_set() {
    let task = |name: String, rest: &str| format!("{{\"name\": \"{name}\", {rest}}}");
    let tasks: Vec<String> = (0..100)
        .map(|index| match index % 4 {
            0 => task(format!("t{index}"), "\"time\": {\"CPU\": 3}"),
            1 => task(format!("t{index}"), "\"time\": {\"GPU\": 3, \"CPU\": 4}"),
            2 => task(
                format!("t{index}"),
                "\"work\": {}, \"device\": \"/job:b/device:GPU:*\"",
            ),
            _ => task(
                format!("t{index}"),
                "\"work\": {}, \"device\": \"/device:GPU:*/job:b\"",
            ),
        })
        .collect();
    let tasks = parse(&format!("{{\"tasks\": [{}]}}", tasks.join(",\n")));
    let candidates = tasks.candidates(&devices()).unwrap();
    assert_eq!(candidates.nodes().sets.n_rows(), 3);
    assert_eq!(legal(&candidates, "t2"), [4, 5]);
    assert_eq!(legal(&candidates, "t3"), [4, 5]);
}

#[test]
fn errors_name_the_line_and_the_remedy() {
    let task = r#"{"name": "a", "work": {}}"#;
    let cases = [
        (r#"{}"#, "missing field `tasks`"),
        (
            "{\"tasks\": [],\n\"task\": []}",
            "line 2, `\"task\": []}`: unknown field `task`, expected",
        ),
        (
            "{\"tasks\": [\n{\"name\": \"a\"}\n]}",
            "line 2, `{\"name\": \"a\"}`: task `a` has neither `work` nor `time`",
        ),
        (
            r#"{"tasks": [{"name": "a", "work": {}, "time": {"CPU": 1}}]}"#,
            "both `work` and `time`",
        ),
        (
            r#"{"tasks": [{"name": "a", "time": {}}]}"#,
            "task `a` has no time",
        ),
        (
            r#"{"tasks": [{"name": "a", "time": {"CPU": "1 day"}}]}"#,
            "invalid value: string \"1 day\", expected a time such as \"2.5 us\"",
        ),
        (
            r#"{"tasks": [{"name": "a", "time": {"CPU": -3}}]}"#,
            "invalid value: integer `-3`, expected a time",
        ),
        (
            r#"{"tasks": [{"name": "a", "time": {"CPU": 1e999}}]}"#,
            "number out of range",
        ),
        (
            r#"{"tasks": [{"name": "a", "time": {"CPU": NaN}}]}"#,
            "expected value",
        ),
        (
            r#"{"tasks": [{"name": "a", "time": {"CPU": "4e9 s"}}]}"#,
            "task `a` takes 4000000000000000000 ns; the limits are",
        ),
        (
            r#"{"tasks": [{"name": "a", "time": {"CPU": 1, "CPU": 2}}]}"#,
            "task `a` has two times for `CPU`",
        ),
        (
            r#"{"tasks": [{"name": "a", "work": {"flops": 1e31}}]}"#,
            "task `a` has 1e31 floating-point operations",
        ),
        (
            r#"{"tasks": [{"name": "a", "work": {"flops": "1 GB"}}]}"#,
            "expected work such as \"3.2 GFLOP\"",
        ),
        (
            r#"{"tasks": [{"name": "a", "work": {"bytes": 1e17}}]}"#,
            "`a` has 100000000000000000 bytes; the limits",
        ),
        (
            r#"{"tasks": [{"name": "a", "work": {}, "writes": [{"name": "x", "bytes": 1e17}]}]}"#,
            "`x` has 100000000000000000 bytes; the limits",
        ),
        (
            r#"{"tasks": [{"name": "a", "work": {}, "writes": [{"name": "x"}]}]}"#,
            "missing field `bytes`",
        ),
        (
            r#"{"tasks": [{"name": "", "work": {}}]}"#,
            "the name of a task is empty",
        ),
        (
            r#"{"tasks": [{"name": "a\u0007", "work": {}}]}"#,
            "has control characters",
        ),
        (
            r#"{"tasks": [{"name": "a", "work": {}, "op": "Const"}]}"#,
            "task `a` has op `Const`, which has a meaning of its own",
        ),
        (
            r#"{"tasks": [{"name": "a", "work": {}, "op": ""}]}"#,
            "which is empty",
        ),
        (
            r#"{"tasks": [{"name": "a", "work": {}, "device": "/jobs:a"}]}"#,
            "`/jobs:a` is not a device name",
        ),
        (
            r#"{"inputs": [{"name": "x", "bytes": 1}],
                "tasks": [{"name": "input/x", "work": {}}]}"#,
            "task `input/x` has the name that the node of an input gets",
        ),
    ];
    for (text, expected) in cases {
        let found = error(text);
        assert!(found.contains(expected), "{text}: {found}");
    }
    let refer = [
        (
            r#""reads": ["y"]"#,
            "task `b` names data item `y`, which does not exist",
        ),
        (
            r#""after": ["c"]"#,
            "task `b` names task `c`, which does not exist",
        ),
        (
            r#""colocate-with": ["c"]"#,
            "task `b` names task `c`, which does not exist",
        ),
    ];
    for (rest, expected) in refer {
        let text =
            format!("{{\"tasks\": [{task},\n{{\"name\": \"b\", \"work\": {{}},\n{rest}}}]}}");
        let found = error(&text);
        assert!(found.starts_with("line 3, `\""), "{found}");
        assert!(found.ends_with(expected), "{found}");
    }
}

#[test]
fn names_are_unique() {
    let found =
        error("{\"tasks\": [{\"name\": \"a\", \"work\": {}},\n{\"name\": \"a\", \"work\": {}}]}");
    assert!(found.starts_with("line 2, "), "{found}");
    assert!(found.ends_with("there are two of task `a`"), "{found}");
    let found = error(
        r#"{"inputs": [{"name": "x", "bytes": 1}],
            "tasks": [{"name": "a", "work": {}, "writes": [{"name": "x", "bytes": 1}]}]}"#,
    );
    assert!(found.ends_with("there are two of data item `x`"), "{found}");
}

#[test]
fn cycles_are_named_in_order() {
    let task = |name: usize, after: usize| {
        format!("{{\"name\": \"t{name}\", \"work\": {{}}, \"after\": [\"t{after}\"]}}")
    };
    let ring = |n: usize| {
        let tasks: Vec<String> = (0..n).map(|name| task(name, (name + 1) % n)).collect();
        error(&format!("{{\"tasks\": [{}]}}", tasks.join(",\n")))
    };
    assert!(
        ring(1).ends_with("tasks wait for each other: `t0`, then `t0`"),
        "{}",
        ring(1)
    );
    assert!(
        ring(3).ends_with("`t2`, then `t1`, then `t0`, then `t2`"),
        "{}",
        ring(3)
    );
    let long = ring(1000);
    assert!(long.contains("`t999`, then `t998`"), "{long}");
    assert!(long.ends_with("then 992 more, then `t999`"), "{long}");
    let by_data = error(
        r#"{"tasks": [
            {"name": "a", "work": {}, "reads": ["x"], "writes": [{"name": "x", "bytes": 1}]}
        ]}"#,
    );
    assert!(by_data.starts_with("line 2, "), "{by_data}");
    assert!(by_data.ends_with("`a`, then `a`"), "{by_data}");
}

#[test]
fn tasks_without_a_device_are_named() {
    let of_type = "{\"tasks\": [{\"name\": \"a\", \"work\": {}},\n\
        {\"name\": \"b\", \"time\": {\"TPU\": 1}}]}";
    let of_request = "{\"tasks\": [{\"name\": \"a\", \"work\": {}},\n\
        {\"name\": \"b\", \"time\": {\"GPU\": 1}, \"device\": \"CPU:0\"}]}";
    let of_group = "{\"tasks\": [{\"name\": \"a\", \"time\": {\"CPU\": 1}},\n\
        {\"name\": \"b\", \"time\": {\"GPU\": 1}, \"colocate-with\": [\"a\"]}]}";
    for (text, expected) in [
        (
            of_type,
            "it has times for `TPU`, and the devices are /job:a",
        ),
        (
            of_request,
            "and it asks for `/device:CPU:0`, and the devices",
        ),
        (of_group, "and it is colocated with `a`, and the devices"),
    ] {
        let found = parse(text).candidates(&devices()).unwrap_err().to_string();
        assert!(
            found.starts_with("line 2: no device can run task `b`: "),
            "{found}"
        );
        assert!(found.contains(expected), "{found}");
    }
    let of_none = "{\"tasks\": [\n{\"name\": \"b\", \"work\": {}, \"device\": \"/job:c\"}]}";
    let found = parse(of_none).candidates(&devices()).unwrap_err();
    let found = found.to_string();
    assert!(found.starts_with("line 2, `{\"name\": \"b\""), "{found}");
    assert!(
        found.contains("no device matches `/job:c`; there are /job:a"),
        "{found}"
    );
}

#[test]
fn a_name_with_escapes_is_found() {
    let text = "{\"tasks\": [\n{\"name\": \"a\\\"b\", \"work\": {}},\n{\"name\": \"c\", \"work\": {}, \"after\": [\"d\\\"\"]}]}";
    let found = error(text);
    assert!(found.starts_with("line 3, "), "{found}");
    let text = text.replace("[\"d\\\"\"]", "[\"a\\\"b\"]");
    assert_eq!(inputs(parse(&text).graph(), "c"), ["a\"b"]);
}

/// Each of these would take minutes if something were quadratic.
#[test]
fn large_files_take_linear_time() {
    const N: usize = 60_000;
    let file = |task: &dyn Fn(usize) -> String| {
        let tasks: Vec<String> = (0..N).map(task).collect();
        format!("{{\"tasks\": [{}]}}", tasks.join(",\n"))
    };
    // A chain, read backwards.
    let chain = file(&|index| {
        let after = match index + 1 == N {
            true => String::new(),
            false => format!("\"t{}\"", index + 1),
        };
        format!("{{\"name\": \"t{index}\", \"work\": {{}}, \"after\": [{after}]}}")
    });
    assert_eq!(parse(&chain).graph().n_edges(), N - 1);
    // All read one item, and one waits for all.
    let star = file(&|index| match index {
        0 => {
            let all: Vec<String> = (1..N).map(|other| format!("\"t{other}\"")).collect();
            format!(
                "{{\"name\": \"t0\", \"work\": {{}}, \"after\": [{}]}}",
                all.join(",")
            )
        }
        1 => "{\"name\": \"t1\", \"work\": {}, \"writes\": [{\"name\": \"x\", \"bytes\": 1}]}"
            .to_owned(),
        _ => format!(
            "{{\"name\": \"t{index}\", \"time\": {{\"CPU\": {index}}}, \"reads\": [\"x\"], \
             \"colocate-with\": [\"t1\"]}}"
        ),
    });
    let star = parse(&star);
    assert_eq!(star.graph().n_edges(), 2 * N - 3);
    let candidates = star.candidates(&devices()).unwrap();
    assert_eq!(candidates.nodes().n_groups, 2);
    assert_eq!(candidates.nodes().sets.n_rows(), 2);
    // The last one is wrong.
    let wrong = file(&|index| match index + 1 == N {
        true => "{\"name\": \"t0\", \"work\": {}}".to_owned(),
        false => format!("{{\"name\": \"t{index}\", \"work\": {{}}}}"),
    });
    assert!(error(&wrong).starts_with(&format!("line {N}, ")));
}
