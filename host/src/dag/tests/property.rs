//! Any task graph becomes a graph with the same dependencies and bytes.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A task: bytes of what it writes, earlier data that it reads, earlier tasks that it waits for.
#[derive(Debug, Clone)]
struct Task {
    writes: Vec<u64>,
    reads: Vec<prop::sample::Index>,
    after: Vec<prop::sample::Index>,
}

fn any_task() -> impl Strategy<Value = Task> {
    let indices = || prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    let writes = prop::collection::vec(0..(1u64 << 50), 0..3);
    (writes, indices(), indices()).prop_map(|(writes, reads, after)| Task {
        writes,
        reads,
        after,
    })
}

/// Names of tasks with the items and tasks that they depend on.
#[derive(Debug, PartialEq, Eq)]
struct Dependencies {
    /// Task, producer, bytes.
    data: Vec<(String, String, u64)>,
    /// Task and task before.
    order: BTreeSet<(String, String)>,
}

/// A random file of one of the formats, and what is in it.
struct File {
    own: serde_json::Value,
    workflow: serde_json::Value,
    expected: Dependencies,
}

fn file(tasks: &[Task], inputs: &[u64], shuffle: &[usize]) -> File {
    // Items: name, bytes, producer.
    let mut items: Vec<(String, u64, String)> = inputs
        .iter()
        .enumerate()
        .map(|(index, &bytes)| (format!("in{index}"), bytes, format!("input/in{index}")))
        .collect();
    let mut own = Vec::new();
    let mut workflow = Vec::new();
    let mut data = Vec::new();
    let mut order = BTreeSet::new();
    let mut children = vec![Vec::new(); tasks.len()];
    for (index, task) in tasks.iter().enumerate() {
        let name = format!("t{index}");
        let mut reads: Vec<usize> = match items.is_empty() {
            true => Vec::new(),
            false => task
                .reads
                .iter()
                .map(|read| read.index(items.len()))
                .collect(),
        };
        let mut after: BTreeSet<usize> = match index {
            0 => BTreeSet::new(),
            _ => task
                .after
                .iter()
                .map(|before| before.index(index))
                .collect(),
        };
        let listed: Vec<&str> = reads.iter().map(|&read| &*items[read].0).collect();
        let listed = json!(listed);
        let before: Vec<String> = after.iter().map(|before| format!("t{before}")).collect();
        reads.sort_unstable();
        reads.dedup();
        let producers: BTreeSet<&str> = reads.iter().map(|&read| &*items[read].2).collect();
        for &read in &reads {
            data.push((name.clone(), items[read].2.clone(), items[read].1));
        }
        order.extend(
            before
                .iter()
                .filter(|before| !producers.contains(before.as_str()))
                .map(|before| (name.clone(), before.clone())),
        );
        // WfFormat has writers of input files among the parents.
        let of_data = producers.iter().filter_map(|name| name.strip_prefix('t'));
        after.extend(of_data.map(|number| number.parse::<usize>().unwrap()));
        for &parent in &after {
            children[parent].push(name.clone());
        }
        let parents: Vec<String> = after.iter().map(|parent| format!("t{parent}")).collect();
        let first = items.len();
        let writes = task.writes.iter().enumerate();
        items
            .extend(writes.map(|(slot, &bytes)| (format!("d{index}.{slot}"), bytes, name.clone())));
        let written: Vec<_> = items[first..]
            .iter()
            .map(|(name, bytes, _)| json!({"name": name, "bytes": bytes}))
            .collect();
        own.push(json!({
            "name": name, "time": {"CPU": index}, "reads": listed, "after": before,
            "writes": written,
        }));
        let written: Vec<&String> = items[first..].iter().map(|(name, ..)| name).collect();
        workflow.push(json!({
            "name": name, "id": name, "parents": parents, "inputFiles": listed,
            "outputFiles": written,
        }));
    }
    for (task, children) in workflow.iter_mut().zip(children) {
        task["children"] = json!(children);
    }
    let times: Vec<_> = (0..tasks.len())
        .map(|index| json!({"id": format!("t{index}"), "runtimeInSeconds": index}))
        .collect();
    let shuffled = |of: &[serde_json::Value]| -> Vec<serde_json::Value> {
        shuffle.iter().map(|&index| of[index].clone()).collect()
    };
    let files: Vec<_> = items
        .iter()
        .map(|(name, bytes, _)| json!({"id": name, "sizeInBytes": bytes}))
        .collect();
    let inputs: Vec<_> = items[..inputs.len()]
        .iter()
        .map(|(name, bytes, _)| json!({"name": name, "bytes": bytes}))
        .collect();
    data.sort();
    File {
        own: json!({"tasks": shuffled(&own), "inputs": inputs}),
        workflow: json!({
            "name": "w", "schemaVersion": "1.5",
            "workflow": {
                "specification": {"tasks": shuffled(&workflow), "files": files},
                "execution": {"tasks": times},
            },
        }),
        expected: Dependencies { data, order },
    }
}

fn dependencies(graph: &Graph) -> Dependencies {
    let mut found = Dependencies {
        data: Vec::new(),
        order: BTreeSet::new(),
    };
    for node in graph.nodes() {
        let name = graph.node_name(node).to_owned();
        for edge in graph.predecessors().range(node.index()) {
            let producer = NodeId(graph.predecessors().items[edge]);
            assert!(producer < node, "ids are topological");
            let producer = graph.node_name(producer).to_owned();
            match graph.edge_tensors()[edge] {
                NONE => assert!(found.order.insert((name.clone(), producer))),
                tensor => {
                    let bytes = graph.tensor_bytes()[tensor as usize];
                    found.data.push((name.clone(), producer, bytes));
                }
            }
        }
    }
    found.data.sort();
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn dependencies_and_bytes_are_those_of_the_file(
        (tasks, shuffle) in prop::collection::vec(any_task(), 1..20).prop_flat_map(|tasks| {
            let order: Vec<usize> = (0..tasks.len()).collect();
            (Just(tasks), Just(order).prop_shuffle())
        }),
        inputs in prop::collection::vec(0..(1u64 << 50), 0..4),
    ) {
        let file = file(&tasks, &inputs, &shuffle);
        let devices = devices();
        for value in [&file.own, &file.workflow] {
            for text in [value.to_string(), serde_json::to_string_pretty(value).unwrap()] {
                let read = parse(&text);
                prop_assert_eq!(&dependencies(read.graph()), &file.expected);
                prop_assert_eq!(read.n_tasks(), tasks.len());
                let candidates = read.candidates(&devices).unwrap();
                let cost_ns = |name: String| {
                    candidates.cost_ns(node(read.graph(), &name), DeviceId(0))
                };
                let unit = if std::ptr::eq(value, &file.own) { 1.0 } else { 1e9 };
                for index in 0..tasks.len() {
                    prop_assert_eq!(cost_ns(format!("t{index}")), index as f64 * unit);
                }
            }
        }
    }
}
