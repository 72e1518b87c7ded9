//! Which edges are consumed in host memory.

use hashbrown::HashMap;

use crate::candidates::columns::NodeColumns;
use crate::candidates::options::OpArguments;
use crate::candidates::support::TypeTable;
use crate::device::KernelRegistry;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::tensor::DType;

/// The graph's edge kinds, with [`EdgeKind::HOST_MEMORY`] where the consumer's kernel on its most preferred device takes the
/// argument in host memory, and for strings and resources, which never leave it.
pub(super) fn edge_kinds(
    graph: &Graph,
    nodes: &NodeColumns,
    types: &TypeTable,
    kernels: &KernelRegistry,
    arguments: Option<&dyn OpArguments>,
) -> Vec<u8> {
    let mut kinds = graph.edge_kinds().to_vec();
    let on_host: Vec<bool> = graph
        .tensor_dtypes()
        .iter()
        .map(|dtype| matches!(dtype, DType::String | DType::Resource))
        .collect();
    if on_host.contains(&true) {
        for (kind, &tensor) in kinds.iter_mut().zip(graph.edge_tensors()) {
            if tensor != NONE && on_host[tensor as usize] {
                *kind |= EdgeKind::HOST_MEMORY;
            }
        }
    }
    let has_host_arguments = |op: &str| {
        let mut defs = kernels.of_op(op).iter();
        defs.any(|def| !def.host_memory_args.is_empty())
    };
    let of_op: Vec<bool> = graph
        .op_names()
        .iter()
        .map(|op| has_host_arguments(op))
        .collect();
    if !of_op.contains(&true) {
        return kinds;
    }
    let mut names: HashMap<(u32, u32), Vec<String>> = HashMap::new();
    for node in graph.nodes() {
        if !of_op[graph.op_types()[node.index()] as usize] {
            continue;
        }
        let class = graph.class_ids()[node.index()];
        let first = nodes.sets.row(nodes.candidate_set[node.index()] as usize)[0];
        let number = types.of_device[first as usize];
        let host_arguments = names.entry((class, number)).or_insert_with(|| {
            let device_type = &types.names[number as usize];
            let found = kernels.find(graph.op(node), device_type, graph.attrs(node));
            found
                .ok()
                .flatten()
                .map_or_else(Vec::new, |def| def.host_memory_args.clone())
        });
        if !host_arguments.is_empty() {
            mark(graph, node, host_arguments, arguments, &mut kinds);
        }
    }
    kinds
}

fn mark(
    graph: &Graph,
    node: NodeId,
    host_arguments: &[String],
    arguments: Option<&dyn OpArguments>,
    kinds: &mut [u8],
) {
    let (op, attrs) = (graph.op(node), graph.attrs(node));
    for (slot, edge) in graph.predecessors().range(node.index()).enumerate() {
        let tensor = graph.edge_tensors()[edge];
        if tensor == NONE {
            break;
        }
        let in_host_memory = match arguments.and_then(|known| known.input(op, attrs, slot)) {
            Some(argument) => host_arguments.iter().any(|name| name == argument.name),
            // Without names: the arguments that kernels keep in host memory are shapes, axes and permutations.
            None => graph.tensor_dtypes()[tensor as usize] == DType::I32,
        };
        if in_host_memory {
            kinds[edge] |= EdgeKind::HOST_MEMORY;
        }
    }
}
