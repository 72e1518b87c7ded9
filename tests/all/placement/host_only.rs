//! Nodes that take lists: a variant does not reveal its element type, and some types exist on the
//! host only.

use std::sync::Arc;

use placewright::candidates::PlacementOptions;
use placewright::candidates::conflicts;
use placewright::candidates::enumerate;
use placewright::device::KernelDef;
use placewright::device::KernelRegistry;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;

use super::CPU0;
use super::CPU1;
use super::GPU0;
use super::GPU1;
use super::devices;
use super::soft;

const EVERYWHERE: [u32; 4] = [GPU0, GPU1, CPU0, CPU1];
const ON_CPUS: [u32; 2] = [CPU0, CPU1];

/// Nodes `(name, op, elements, reads)`, each of which produces a variant and may run on any device.
/// The last one requests `request`.
fn graph(nodes: &[(&str, &str, Option<DType>, &[u32])], request: &str) -> Arc<Graph> {
    let mut assembler = GraphAssembler::new("lists");
    for (index, &(name, op, elements, reads)) in nodes.iter().enumerate() {
        let dtype = elements.map(|dtype| AttrValue::Type {
            dtype,
            is_ref: false,
        });
        let inputs = reads.iter().map(|&node| Input::Data {
            node: NodeId(node),
            slot: 0,
        });
        let output = Output {
            dtype: DType::Variant,
            is_ref: false,
            shape: PartialShape::new(&[]),
        };
        assembler
            .add_node(&NodeSpec {
                name,
                op,
                inputs: &inputs.collect::<Vec<_>>(),
                requested_device: if index + 1 == nodes.len() {
                    request
                } else {
                    ""
                },
                attrs: AttrSet::new(dtype.map(|dtype| ("element_dtype".into(), dtype))),
                outputs: &[output],
                stateful: false,
                work: Work::default(),
            })
            .unwrap();
    }
    Arc::new(assembler.finish())
}

fn kernels() -> KernelRegistry {
    let mut kernels = KernelRegistry::empty();
    for op in ["TensorListReserve", "TensorListLength", "Identity"] {
        kernels.register(KernelDef::new(op, "CPU"));
        kernels.register(KernelDef::new(op, "GPU"));
    }
    kernels
}

/// Returns the candidates of the last node.
fn last(nodes: &[(&str, &str, Option<DType>, &[u32])]) -> Vec<u32> {
    let graph = graph(nodes, "");
    let found = enumerate(&graph, &devices(), &kernels(), &PlacementOptions::default()).unwrap();
    let first = found.of_node(NodeId(0));
    assert_eq!(first, EVERYWHERE, "what takes no list is anywhere");
    found
        .of_node(NodeId(u32::try_from(nodes.len() - 1).unwrap()))
        .to_vec()
}

#[test]
fn nodes_that_take_a_list_of_host_elements_run_on_cpus() {
    for (dtype, expected) in [
        (DType::String, &ON_CPUS[..]),
        (DType::Resource, &ON_CPUS),
        (DType::F32, &EVERYWHERE),
        (DType::I32, &EVERYWHERE),
    ] {
        let list = ("list", "TensorListReserve", Some(dtype), &[][..]);
        assert_eq!(
            last(&[list, ("n", "TensorListLength", None, &[0])]),
            expected
        );
        // Also through nodes that forward the list, and past lists of lists.
        let between = [
            list,
            ("same", "Identity", None, &[0]),
            ("outer", "TensorListReserve", Some(DType::Variant), &[1]),
            ("n", "TensorListLength", None, &[2]),
        ];
        assert_eq!(last(&between), expected);
        // The nearest list decides.
        let nearer = [
            list,
            ("nearer", "TensorListReserve", Some(DType::F32), &[0]),
            ("n", "TensorListLength", None, &[1]),
        ];
        assert_eq!(last(&nearer), EVERYWHERE);
    }
}

#[test]
fn a_request_for_another_device_conflicts_with_the_list() {
    let nodes: [(&str, &str, Option<DType>, &[u32]); 2] = [
        ("list", "TensorListReserve", Some(DType::String), &[]),
        ("n", "TensorListLength", None, &[0]),
    ];
    let graph = graph(&nodes, "/gpu:1");
    let options = PlacementOptions::default();
    let error = enumerate(&graph, &devices(), &kernels(), &options).unwrap_err();
    let found = conflicts(&graph, &devices(), &kernels(), &options).unwrap();
    assert_eq!(error.conflict(), found.first(), "{error}");
    let constraints: Vec<String> = found[0]
        .constraints
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(constraints.len(), 2, "{constraints:?}");
    assert!(
        constraints.contains(
            &"`n` reads a list of string from `list`, which only a CPU can hold".to_owned()
        ),
        "{constraints:?}"
    );
    assert_eq!(
        found[0].suggestions[0].to_string(),
        "request `/device:CPU:1` for `n`"
    );
    let softened = enumerate(&graph, &devices(), &kernels(), &soft()).unwrap();
    assert_eq!(softened.of_node(NodeId(1)), ON_CPUS);
}
