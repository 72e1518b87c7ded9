//! The ties between nodes, in the order in which TensorFlow's placer visits them. The order decides
//! whose request counts.

use std::ops::ControlFlow;

use hashbrown::HashMap;

use crate::candidates::calls::CallInspector;
use crate::candidates::error::CandidatesError;
use crate::candidates::facts::Facts;
use crate::candidates::host_only::for_each_host_only;
use crate::candidates::index::to_u32;
use crate::candidates::options::OpArguments;
use crate::candidates::tie::Tie;
use crate::graph::AttrValue;
use crate::graph::Csr;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::ops::CallOp;
use crate::tensor::DType;

/// Ops whose reference and resource inputs do not bind them to the producer's device (TensorFlow's
/// input colocation exemption registry), besides [`CallOp::Partitioned`].
const EXEMPT_OPS: [&str; 22] = [
    "RpcServerRegister",
    "FilterDataset",
    "FlatMapDataset",
    "GeneratorDataset",
    "GroupByReducerDataset",
    "GroupByWindowDataset",
    "InterleaveDataset",
    "MapAndBatchDataset",
    "MapDataset",
    "OneShotIterator",
    "ParallelInterleaveDataset",
    "ParallelInterleaveDatasetV2",
    "ParallelMapDataset",
    "ParallelMapDatasetV2",
    "ReduceDataset",
    "ScanDataset",
    "TakeWhileDataset",
    "ExperimentalGroupByReducerDataset",
    "ExperimentalGroupByWindowDataset",
    "ExperimentalMapAndBatchDataset",
    "ExperimentalParallelInterleaveDataset",
    "ExperimentalScanDataset",
];

/// Visits the ties of a graph until `visit` breaks.
///
/// # Errors
/// The error of a call that cannot be inspected.
pub(super) fn for_each_tie<'g, B>(
    facts: &Facts<'g>,
    inspector: &mut dyn CallInspector,
    mut visit: impl FnMut(Tie<'g>) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, CandidatesError> {
    let graph = facts.graph;
    let calls = inspector.calls(graph)?;
    let mut found = for_each_edge(graph, facts.arguments, &calls, &mut visit);
    if found.is_continue() {
        found = for_each_host_only(graph, &mut visit);
    }
    for call in calls {
        if found.is_break() {
            return Ok(found);
        }
        let groups = inspector.look_into(facts, call)?;
        found = visit(Tie::Call {
            call,
            found: groups,
        });
    }
    if found.is_continue() {
        found = for_each_class(graph, &mut visit);
    }
    Ok(found)
}

/// Edges of `calls`, which are sorted, tie nothing, since their functions do.
fn for_each_edge<'g, B>(
    graph: &'g Graph,
    arguments: Option<&dyn OpArguments>,
    calls: &[NodeId],
    visit: &mut impl FnMut(Tie<'g>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let has_variants = graph.tensor_dtypes().contains(&DType::Variant);
    let kinds = graph.edge_kinds();
    if !has_variants && !kinds.iter().any(|kind| kind & EdgeKind::REFERENCE != 0) {
        return ControlFlow::Continue(());
    }
    let is_call = |node: NodeId| calls.binary_search(&node).is_ok();
    for node in graph.nodes().filter(|&node| !is_call(node)) {
        for (slot, edge) in graph.predecessors().range(node.index()).enumerate() {
            let is_reference = kinds[edge] & EdgeKind::REFERENCE != 0;
            if graph.edge_tensors()[edge] == NONE || !(is_reference || has_variants) {
                continue;
            }
            let producer = graph.predecessors().items[edge];
            if is_call(NodeId(producer)) {
                continue;
            }
            let ties = if is_reference {
                binds(graph, node, slot, edge, arguments)
            } else {
                let dtype = graph.tensor_dtypes()[graph.edge_tensors()[edge] as usize];
                dtype == DType::Variant
                    && is_dataset(graph, node)
                    && is_dataset(graph, NodeId(producer))
            };
            if ties {
                visit(Tie::Edge {
                    producer,
                    consumer: node.0,
                    edge: to_u32(edge),
                })?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// Visits the groups that nodes name in their attribute `_class`. A node that others name is also
/// in the group of its own name.
fn for_each_class<'g, B>(
    graph: &'g Graph,
    visit: &mut impl FnMut(Tie<'g>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let classes = NamedGroups::of(graph);
    if classes.names.is_empty() {
        return ControlFlow::Continue(());
    }
    for node in graph.nodes() {
        let class = graph.class_ids()[node.index()] as usize;
        let named = classes.of_class.row(class).iter();
        let own = Some(classes.of_node[node.index()]).filter(|&own| own != NONE);
        let all = named.map(|&number| (number, false));
        for (number, is_own) in all.chain(own.map(|number| (number, true))) {
            visit(Tie::Class {
                node: node.0,
                group: classes.names[number as usize],
                number,
                is_own,
            })?;
        }
    }
    ControlFlow::Continue(())
}

/// The colocation groups that nodes name.
struct NamedGroups<'g> {
    names: Vec<&'g str>,
    /// Per class of nodes the groups in its attribute `_class`.
    of_class: Csr,
    /// Per node the group with its name, or [`NONE`].
    of_node: Vec<u32>,
}

impl<'g> NamedGroups<'g> {
    fn of(graph: &'g Graph) -> Self {
        let mut found = Self {
            names: Vec::new(),
            of_class: Csr::default(),
            of_node: vec![NONE; graph.n_nodes()],
        };
        // Groups may also have names that no node has.
        let mut of_others: HashMap<&str, u32> = HashMap::new();
        for class in graph.classes() {
            for name in class.attrs.get("_class").into_iter().flat_map(groups_named) {
                let number = match graph.find_node(name) {
                    Some(node) => &mut found.of_node[node.index()],
                    None => of_others.entry(name).or_insert(NONE),
                };
                if *number == NONE {
                    *number = to_u32(found.names.len());
                    found.names.push(name);
                }
                found.of_class.items.push(*number);
            }
            found
                .of_class
                .offsets
                .push(to_u32(found.of_class.items.len()));
        }
        found
    }
}

/// Whether a reference or resource edge colocates its ends.
fn binds(
    graph: &Graph,
    node: NodeId,
    slot: usize,
    edge: usize,
    arguments: Option<&dyn OpArguments>,
) -> bool {
    let op = graph.op(node);
    if CallOp::of(op) == Some(CallOp::Partitioned) || EXEMPT_OPS.contains(&op) {
        return false;
    }
    let tensor = graph.edge_tensors()[edge] as usize;
    if graph.tensor_dtypes()[tensor] == DType::Resource {
        return true;
    }
    // A reference that is read as a value, through an input that is not a reference, does not
    // colocate.
    arguments
        .and_then(|arguments| arguments.input(op, graph.attrs(node), slot))
        .is_none_or(|argument| argument.is_ref)
}

/// Whether an op has one variant output and is named `...Dataset`, or `...DatasetV` and a number.
fn is_dataset(graph: &Graph, node: NodeId) -> bool {
    let outputs = graph.output_range(node);
    let op = graph.op(node);
    let stem = op.trim_end_matches(|c: char| c.is_ascii_digit());
    let named = op.ends_with("Dataset") || (stem.len() < op.len() && stem.ends_with("DatasetV"));
    named && outputs.len() == 1 && graph.tensor_dtypes()[outputs.start] == DType::Variant
}

/// Returns the `loc:@NAME` entries of a `_class` list. Other entries are ignored, as in TensorFlow.
fn groups_named(class: &AttrValue) -> impl Iterator<Item = &str> {
    let values: &[AttrValue] = match class {
        AttrValue::List(values) => values,
        _ => &[],
    };
    values.iter().filter_map(|value| match value {
        AttrValue::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.strip_prefix("loc:@"),
        _ => None,
    })
}
