//! The importer on real graphs, and on damaged ones.

use std::collections::BTreeMap;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::path::PathBuf;

use placewright::graph::Graph;
use placewright::import::ImportOptions;
use placewright::import::import_graph;
use placewright::ops::OpRegistry;
use placewright::tensor::HostAllocator;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;
use serde_json::Value;

/// Outputs whose shapes are not completely known before a run (model, output, known shape), because
/// they depend on feeds, or come from a loop or a function.
const NOT_KNOWN: [(&str, &str, &str); 8] = [
    ("cf_dynrnn_v1", "h:0", "<unknown>"),
    ("cf_dynrnn_v1", "ys:0", "[?,2,32]"),
    ("cf_dynrnn_v2", "ys:0", "[?,2,32]"),
    ("cf_functional", "y:0", "<unknown>"),
    ("cf_nested_v1", "y:0", "<unknown>"),
    ("cf_while_v1", "y:0", "<unknown>"),
    ("tiny_dynshape", "y1:0", "[?,1]"),
    ("tiny_dynshape", "y2:0", "[?]"),
];

#[test]
fn every_model_imports_with_the_nodes_and_ops_that_tensorflow_wrote() {
    let ops = OpRegistry::default();
    let mut n_models = 0;
    for name in models() {
        let info = info(&name);
        let graph = import(&name, &ops);
        assert_eq!(
            graph.n_nodes() as u64,
            info["nodes"].as_u64().unwrap(),
            "{name}"
        );
        assert_eq!(
            histogram(graph.nodes().map(|n| graph.op(n))),
            counts(&info["ops"]),
            "{name}"
        );
        let functions = graph.functions();
        assert_eq!(
            functions.len() as u64,
            info["functions"].as_u64().unwrap(),
            "{name}"
        );
        let bodies = functions.iter().flat_map(|function| &function.nodes);
        assert_eq!(
            histogram(bodies.map(|n| &*n.op)),
            counts(&info["lib_ops"]),
            "{name}"
        );
        n_models += 1;
    }
    assert_eq!(n_models, 36);
}

#[test]
fn inferred_output_shapes_are_those_that_tensorflow_computed() {
    let ops = OpRegistry::default();
    let mut unknown = Vec::new();
    for name in models() {
        let graph = import(&name, &ops);
        for (output, described) in info(&name)["outputs"].as_object().unwrap() {
            let (node, slot) = output.split_once(':').unwrap();
            let node = graph.find_node(node).unwrap();
            let tensor = graph.output(node, slot.parse().unwrap()).unwrap();
            let inferred = graph.tensor_shape(tensor);
            let computed = shape(&described["shape"]);
            let computed_shape = computed.to_shape().unwrap();
            assert!(
                inferred.matches(&computed_shape),
                "{name} {output}: {inferred} but {computed}"
            );
            if inferred != computed {
                unknown.push((name.clone(), output.clone(), inferred.to_string()));
            }
        }
    }
    let expected = NOT_KNOWN.map(|(m, o, s)| (m.to_owned(), o.to_owned(), s.to_owned()));
    assert_eq!(unknown, expected);
}

#[test]
fn a_skeleton_expands_to_the_bits_of_the_graph_that_it_was_made_from() {
    let ops = OpRegistry::default();
    let whole = import_graph(read("lenet.pb"), &ops, &ImportOptions::default()).unwrap();
    let skeleton = import_graph(read("lenet.skel.pb"), &ops, &ImportOptions::default()).unwrap();
    assert_eq!(describe(&whole), describe(&skeleton));
    let allocator = HostAllocator::new("test", u64::MAX);
    let mut n_constants = 0;
    for node in whole.nodes().filter(|&node| whole.op(node) == "Const") {
        let value = |graph: &Graph| -> Tensor {
            let literal = graph.attrs(node).tensor("value").unwrap();
            literal.to_tensor(&allocator).unwrap()
        };
        let (a, b) = (value(&whole), value(&skeleton));
        assert_eq!(
            a.as_bytes().unwrap(),
            b.as_bytes().unwrap(),
            "{}",
            whole.node_name(node)
        );
        n_constants += 1;
    }
    assert_eq!(n_constants, 11);
}

#[test]
fn a_truncated_file_is_an_error_or_a_graph() {
    let ops = OpRegistry::default();
    for file in ["tiny_broadcast.pb", "lenet.skel.pb"] {
        let bytes = read(file);
        let n_nodes = import_graph(bytes.clone(), &ops, &ImportOptions::default())
            .unwrap()
            .n_nodes();
        let mut n_errors = 0;
        for length in 0..bytes.len() {
            match import_graph(bytes[..length].to_vec(), &ops, &ImportOptions::default()) {
                // A file that ends between two nodes, or before the versions, looks complete.
                Ok(graph) => assert!(graph.n_nodes() <= n_nodes),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    n_errors += 1;
                }
            }
        }
        assert!(n_errors > bytes.len() * 9 / 10, "{file}: {n_errors} errors");
    }
}

#[test]
fn a_truncated_node_is_named() {
    let bytes = read("lenet.skel.pb");
    let error = import_graph(
        bytes[..70].to_vec(),
        &OpRegistry::default(),
        &ImportOptions::default(),
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("node 1 (`Const`)") && error.contains("truncated"),
        "{error}"
    );
}

#[test]
fn flipped_bytes_give_an_error_or_a_graph() {
    let ops = OpRegistry::default();
    let seed = std::env::var("PLACEWRIGHT_SEED")
        .ok()
        .map_or(20_260_101, |s| s.parse().unwrap());
    let mut random = Random(seed);
    for file in [
        "tiny_broadcast.pb",
        "lenet.skel.pb",
        "cf_functional.skel.pb",
        "cf_while_v1.skel.pb",
    ] {
        let bytes = read(file);
        for round in 0..2000 {
            let mut damaged = bytes.clone();
            for _ in 0..=random.below(3) {
                let position = random.below(damaged.len());
                damaged[position] = u8::try_from(random.below(256)).unwrap();
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                import_graph(damaged, &ops, &ImportOptions::default()).map(|graph| graph.n_nodes())
            }));
            assert!(
                outcome.is_ok(),
                "{file}, round {round}: set PLACEWRIGHT_SEED={seed} to repeat"
            );
        }
    }
}

#[test]
fn limits_are_enforced() {
    let ops = OpRegistry::default();
    let bytes = read("tiny_broadcast.pb");
    let small = ImportOptions::default().with_size_bytes_max(100);
    let error = import_graph(bytes.clone(), &ops, &small).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the GraphDef has {} bytes; the limit is 100; an app can raise it with `ImportOptions::size_bytes_max`",
            bytes.len()
        )
    );
    let few = ImportOptions::default().with_n_nodes_max(2);
    let error = import_graph(bytes.clone(), &ops, &few)
        .unwrap_err()
        .to_string();
    assert!(error.contains("more than 2 nodes"), "{error}");
    let wrong = ImportOptions::default().with_input_shape("nonsense", PartialShape::scalar());
    let error = import_graph(bytes, &ops, &wrong).unwrap_err().to_string();
    assert!(error.contains("`nonsense`"), "{error}");
}

/// Describes a graph, except the values of its constants.
fn describe(graph: &Graph) -> Vec<String> {
    let describe = |node| {
        let inputs: Vec<_> = graph
            .all_data_inputs(node)
            .iter()
            .map(|&t| graph.tensor_name(t))
            .collect();
        let outputs = graph.output_range(node).map(|tensor| {
            let shape =
                graph.tensor_shape(placewright::graph::TensorId(u32::try_from(tensor).unwrap()));
            format!("{} {shape}", graph.tensor_dtypes()[tensor])
        });
        let outputs: Vec<_> = outputs.collect();
        format!(
            "{} {} {inputs:?} {outputs:?} {} flop {} bytes {} resident",
            graph.node_name(node),
            graph.op(node),
            graph.flops()[node.index()],
            graph.traffic_bytes()[node.index()],
            graph.resident_bytes()[node.index()]
        )
    };
    graph.nodes().map(describe).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }
}

/// Returns the names of all models.
fn models() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".skel.pb").map(str::to_owned)
        })
        .collect();
    names.sort();
    names
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/models")
}

fn read(file: &str) -> Vec<u8> {
    fs::read(folder().join(file)).unwrap()
}

fn info(name: &str) -> Value {
    serde_json::from_slice(&read(&format!("{name}.json"))).unwrap()
}

/// Imports the skeleton of a model with the shapes of its feeds.
fn import(name: &str, ops: &OpRegistry) -> Graph {
    let mut options = ImportOptions::default().with_name(name);
    for (input, described) in info(name)["inputs"].as_object().unwrap() {
        options = options.with_input_shape(input, shape(&described["shape"]));
    }
    import_graph(read(&format!("{name}.skel.pb")), ops, &options)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn shape(dims: &Value) -> PartialShape {
    let dims = dims.as_array().unwrap().iter();
    dims.map(|dim| dim.as_u64().map(|dim| usize::try_from(dim).unwrap()))
        .collect()
}

fn histogram<'a>(ops: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for op in ops {
        *counts.entry(op.to_owned()).or_default() += 1;
    }
    counts
}

fn counts(value: &Value) -> BTreeMap<String, u64> {
    let counts = value.as_object().unwrap().iter();
    counts
        .map(|(op, count)| (op.clone(), count.as_u64().unwrap()))
        .collect()
}
