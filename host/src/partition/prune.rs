//! Determines which nodes a request needs.

use rustc_hash::FxHashMap;

use super::{PartitionError, RunRequest};
use crate::graph::{Graph, NONE, NodeId, TensorId};

/// The part of a graph that runs.
#[derive(Debug)]
pub(super) struct Pruned {
    /// Per node whether it runs.
    pub(super) runs: Vec<bool>,
    /// Fed tensors, with the index of their feed.
    pub(super) fed: FxHashMap<TensorId, u32>,
}

impl Pruned {
    /// Checks whether `node` is a fed placeholder, so that waiting for it means waiting only for
    /// the caller. As in TensorFlow, only placeholders vanish when they are fed; another node with
    /// a fed output still runs if a control edge requires it.
    pub(super) fn is_fed_placeholder(&self, graph: &Graph, node: NodeId) -> bool {
        graph.is_placeholder(node)
            && graph
                .output(node, 0)
                .is_some_and(|tensor| self.fed.contains_key(&tensor))
    }
}

/// Walks from fetches and targets against the edges. Takes time linear in the visited part.
pub(super) fn prune(graph: &Graph, request: &RunRequest) -> Result<Pruned, PartitionError> {
    check_ids(graph, request)?;
    let mut fed = FxHashMap::default();
    for (index, &tensor) in (0u32..).zip(&request.feeds) {
        if fed.insert(tensor, index).is_some() {
            return Err(PartitionError::FedTwice(graph.tensor_name(tensor)));
        }
    }
    let mut pruned = Pruned {
        runs: vec![false; graph.n_nodes()],
        fed,
    };
    let mut closes_loop: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
    for pair in graph.back_edges().chunks_exact(2) {
        closes_loop.entry(pair[1]).or_default().push(pair[0]);
    }

    let producers = request
        .fetches
        .iter()
        .filter(|tensor| !pruned.fed.contains_key(tensor))
        .map(|&tensor| graph.producer(tensor).0);
    let targets = request
        .targets
        .iter()
        .copied()
        .filter(|&node| !pruned.is_fed_placeholder(graph, node));
    let mut stack: Vec<NodeId> = producers.chain(targets).collect();
    while let Some(node) = stack.pop() {
        if std::mem::replace(&mut pruned.runs[node.index()], true) {
            continue;
        }
        if graph.is_placeholder(node)
            && let Some(tensor) = graph.output(node, 0)
        {
            return Err(PartitionError::UnfedPlaceholder {
                node: graph.node_name(node).to_owned(),
                dtype: graph.tensor_dtypes()[tensor.index()],
                shape: graph.tensor_shape(tensor),
            });
        }
        for edge in graph.predecessors().range(node.index()) {
            let producer = NodeId(graph.predecessors().items[edge]);
            let is_preloaded = match graph.edge_tensors()[edge] {
                NONE => pruned.is_fed_placeholder(graph, producer),
                tensor => pruned.fed.contains_key(&TensorId(tensor)),
            };
            if !is_preloaded && !pruned.runs[producer.index()] {
                stack.push(producer);
            }
        }
        if let Some(sources) = closes_loop.get(&node.0) {
            stack.extend(sources.iter().map(|&source| NodeId(source)));
        }
    }
    Ok(pruned)
}

fn check_ids(graph: &Graph, request: &RunRequest) -> Result<(), PartitionError> {
    for tensor in request.feeds.iter().chain(&request.fetches) {
        if tensor.index() >= graph.n_tensors() {
            return Err(PartitionError::NoSuchTensor {
                tensor: tensor.0,
                n_tensors: graph.n_tensors(),
            });
        }
    }
    for node in &request.targets {
        if node.index() >= graph.n_nodes() {
            return Err(PartitionError::NoSuchNode {
                node: node.0,
                n_nodes: graph.n_nodes(),
            });
        }
    }
    Ok(())
}
