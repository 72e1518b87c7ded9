//! A graph in memory.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::NONE;
use crate::source::Counts;
use crate::source::Csr;
use crate::source::Dims;
use crate::source::GraphSource;
use crate::source::Profile;
use crate::source::Strings;

/// The op types that every graph has: that of nodes for which a test sets none, and that of
/// constants.
pub(super) const OP_TYPES: [&str; 2] = ["Test", "Const"];

/// The index of the constants' op type.
pub(super) const OP_CONST: u32 = 1;

/// A graph in memory. Every output of a node to a consumer is a tensor of its own.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "documented in the contract")]
pub struct TestGraph {
    pub counts: Counts,
    pub predecessors: Csr<'static>,
    pub successors: Csr<'static>,
    /// Parallel to the items of `successors`: positions in the columns of edges.
    pub(super) successor_edges: Vec<u32>,
    pub edge_tensors: Vec<u32>,
    pub edge_kinds: Vec<u8>,
    pub tensor_bytes: Vec<u64>,
    pub tensor_nodes: Vec<u32>,
    pub candidate_set: Vec<u32>,
    pub candidates: Csr<'static>,
    pub group: Vec<u32>,
    pub pinned: Vec<u32>,
    pub placement_hints: Vec<u8>,
    pub follow: Vec<u32>,
    pub op_type: Vec<u32>,
    pub op_type_names: Vec<String>,
    pub executions: Vec<f64>,
    pub flops: Vec<f64>,
    pub resident_bytes: Vec<u64>,
    pub workspace_bytes: Vec<u64>,
    pub user_priority: Vec<i32>,
    pub cost_row: Vec<u32>,
    pub costs: Vec<f64>,
    pub cost_samples: Vec<u32>,
    pub options: Vec<(String, String)>,
    pub cost_classes: Vec<u32>,
    pub names: Vec<String>,
    pub requested: Vec<String>,
}

impl TestGraph {
    /// Returns the edges into a node, as positions in the columns of edges.
    pub(super) fn edges_into(&self, node: usize) -> std::ops::Range<usize> {
        self.predecessors.offsets[node] as usize..self.predecessors.offsets[node + 1] as usize
    }

    /// Returns the bytes that an edge carries, 0 for control edges.
    pub(super) fn edge_bytes(&self, edge: usize) -> u64 {
        match self.edge_tensors[edge] {
            NONE => 0,
            tensor => self.tensor_bytes[tensor as usize],
        }
    }

    /// Returns whether a node is a constant, as [`crate::Graph::constants`] does.
    pub(super) fn is_constant(&self, node: usize) -> bool {
        let has_inputs = !self.edges_into(node).is_empty();
        self.op_type[node] == OP_CONST && self.resident_bytes[node] > 0 && !has_inputs
    }

    /// Returns the bytes that stay on devices under a plan: the state of each node on its device,
    /// and each constant once on each device that reads it, or on its own if it is streamed. Each
    /// item is the node that requires the bytes, its device, and their number.
    pub(super) fn staying(&self, placed: &[u32], streamed: &[u32]) -> Vec<(usize, u32, u64)> {
        let mut staying = Vec::new();
        let mut held = BTreeSet::new();
        for (node, &device) in placed.iter().enumerate() {
            if !self.is_constant(node) || is_streamed(streamed, node) {
                staying.push((node, device, self.resident_bytes[node]));
            }
            for edge in self.edges_into(node) {
                let producer = self.predecessors.items[edge] as usize;
                let is_read = self.edge_tensors[edge] != NONE && self.is_constant(producer);
                let is_held = is_read && !is_streamed(streamed, producer);
                if is_held && held.insert((producer, device)) {
                    staying.push((node, device, self.resident_bytes[producer]));
                }
            }
        }
        staying
    }

    /// Returns what a node reads of streamed constants on other devices: their devices and bytes.
    pub(super) fn streamed_reads<'a>(
        &'a self,
        placed: &'a [u32],
        streamed: &'a [u32],
        node: usize,
    ) -> impl Iterator<Item = (u32, u64)> + 'a {
        let producers = self
            .edges_into(node)
            .filter(|&edge| self.edge_tensors[edge] != NONE)
            .map(|edge| self.predecessors.items[edge] as usize);
        producers
            .filter(move |&producer| {
                is_streamed(streamed, producer) && placed[producer] != placed[node]
            })
            .map(|producer| (placed[producer], self.resident_bytes[producer]))
    }
}

fn is_streamed(streamed: &[u32], node: usize) -> bool {
    streamed.iter().any(|&constant| constant as usize == node)
}

fn borrowed<'a>(csr: &'a Csr<'_>) -> Csr<'a> {
    Csr {
        offsets: Cow::Borrowed(&csr.offsets),
        items: Cow::Borrowed(&csr.items),
    }
}

/// Concatenates strings.
fn strings<'a>(all: impl Iterator<Item = &'a str>) -> Strings<'static> {
    let mut offsets = vec![0];
    let mut text = String::new();
    for one in all {
        text.push_str(one);
        offsets.push(u32::try_from(text.len()).expect("test graphs are small"));
    }
    Strings {
        offsets: offsets.into(),
        text: text.into(),
    }
}

impl GraphSource for TestGraph {
    fn counts(&self) -> Counts {
        self.counts
    }

    fn predecessors(&self) -> Csr<'_> {
        borrowed(&self.predecessors)
    }

    fn successors(&self) -> Csr<'_> {
        borrowed(&self.successors)
    }

    fn edge_tensors(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.edge_tensors)
    }

    fn edge_kinds(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.edge_kinds)
    }

    fn tensor_bytes(&self) -> Cow<'_, [u64]> {
        Cow::Borrowed(&self.tensor_bytes)
    }

    fn tensor_nodes(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.tensor_nodes)
    }

    fn tensor_dtypes(&self) -> Cow<'_, [u32]> {
        // DT_FLOAT
        Cow::Owned(vec![1; self.tensor_bytes.len()])
    }

    fn tensor_dims(&self) -> Dims<'_> {
        let n = u32::try_from(self.tensor_bytes.len()).expect("test graphs are small");
        Dims {
            offsets: (0..=n).collect(),
            sizes: Cow::Owned(vec![-1; self.tensor_bytes.len()]),
        }
    }

    fn back_edges(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&[])
    }

    fn op_type(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.op_type)
    }

    fn op_type_names(&self) -> Vec<String> {
        self.op_type_names.clone()
    }

    fn executions(&self) -> Cow<'_, [f64]> {
        Cow::Borrowed(&self.executions)
    }

    fn flops(&self) -> Cow<'_, [f64]> {
        Cow::Borrowed(&self.flops)
    }

    fn resident_bytes(&self) -> Cow<'_, [u64]> {
        Cow::Borrowed(&self.resident_bytes)
    }

    fn workspace_bytes(&self) -> Cow<'_, [u64]> {
        Cow::Borrowed(&self.workspace_bytes)
    }

    fn user_priority(&self) -> Cow<'_, [i32]> {
        Cow::Borrowed(&self.user_priority)
    }

    fn candidate_set(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.candidate_set)
    }

    fn candidates(&self) -> Csr<'_> {
        borrowed(&self.candidates)
    }

    fn group(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.group)
    }

    fn pinned(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.pinned)
    }

    fn placement_hints(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.placement_hints)
    }

    fn follow(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.follow)
    }

    fn requested(&self) -> Strings<'_> {
        strings(self.requested.iter().map(String::as_str))
    }

    fn frame(&self) -> Cow<'_, [u32]> {
        Cow::Owned(vec![NONE; self.names.len()])
    }

    fn frame_parents(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&[])
    }

    fn options(&self) -> Vec<(String, String)> {
        self.options.clone()
    }

    fn cost_row(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.cost_row)
    }

    fn costs(&self) -> Cow<'_, [f64]> {
        Cow::Borrowed(&self.costs)
    }

    fn cost_samples(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.cost_samples)
    }

    fn cost(&self, node: u32, device: u32) -> f64 {
        let row = self.cost_row.get(node as usize);
        let class = self.cost_classes.get(device as usize);
        let (Some(&row), Some(&class)) = (row, class) else {
            return f64::INFINITY;
        };
        self.costs[row as usize * self.counts.cost_classes as usize + class as usize]
    }

    fn node_name(&self, node: u32) -> String {
        self.names.get(node as usize).cloned().unwrap_or_default()
    }

    fn node_names(&self) -> Strings<'_> {
        strings(self.names.iter().map(String::as_str))
    }

    fn last_run(&self) -> Option<Profile> {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::Graph;
    use crate::log::Log;
    use crate::testing::GraphBuilder;
    use crate::testing::cluster;

    #[test]
    fn what_does_not_exist_cannot_run_and_has_no_name() {
        let mut builder = GraphBuilder::new(&cluster("1xCPU,1xGPU"));
        builder.node("a", &[1.0, 2.0]);
        let (graph, log) = (builder.build(), Log::silent());
        let graph = Graph::new(&graph, &log);
        assert_eq!([graph.cost_ns(0, 0), graph.cost_ns(0, 1)], [1.0, 2.0]);
        assert_eq!(graph.cost_ns(0, 2), f64::INFINITY);
        assert_eq!(graph.cost_ns(99_999, 0), f64::INFINITY);
        assert_eq!(graph.fetch_name(0), "a");
        assert_eq!(graph.fetch_name(1), "");
    }
}
