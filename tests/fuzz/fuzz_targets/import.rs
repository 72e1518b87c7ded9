//! Fuzzes the import of untrusted GraphDefs: it returns an error or a graph, in memory bounded by
//! the file's size.
//!
//! libFuzzer's own limits bound the memory, see README.md.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use placewright::graph::NONE;
use placewright::import::ImportOptions;
use placewright::import::import_graph;
use placewright::ops::OpRegistry;

static OPS: LazyLock<OpRegistry> = LazyLock::new(OpRegistry::default);

fuzz_target!(|bytes: &[u8]| {
    let options = ImportOptions::default().with_name("fuzz");
    match import_graph(bytes.to_vec(), &OPS, &options) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(graph) => {
            assert!(graph.n_nodes() > 0);
            for node in graph.nodes() {
                assert_eq!(graph.find_node(graph.node_name(node)), Some(node));
                for edge in graph.predecessors().range(node.index()) {
                    let producer = graph.predecessors().items[edge];
                    assert!(producer < node.0, "ids are topological");
                    let tensor = graph.edge_tensors()[edge];
                    assert!(tensor == NONE || (tensor as usize) < graph.n_tensors());
                }
            }
        }
    }
});
