//! The graph as a policy sees it: columns, each fetched from the host at most once and returned as
//! slices.
//!
//! Node ids are topological: every edge goes from a lower to a higher id (back edges of loops are
//! separate). So a loop over `0..len()` visits producers before consumers, without sorting.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;

use crate::NONE;
use crate::log::Log;
use crate::source::Counts;
use crate::source::Csr;
use crate::source::Dims;
use crate::source::GraphSource;
use crate::source::Profile;
use crate::source::Strings;

/// The bits of [`Graph::edge_kinds`].
#[derive(Debug)]
pub struct EdgeKind;

impl EdgeKind {
    /// Order only, no tensor.
    pub const CONTROL: u8 = 1;
    /// The consumer reads it in host memory.
    pub const HOST_MEMORY: u8 = 2;
    /// The tensor's size is not known before the run.
    pub const SIZE_UNKNOWN: u8 = 4;
    /// A reference or resource.
    pub const REFERENCE: u8 = 8;
    /// The producer is a constant, an identity of one, or a placeholder. It does not run, and its
    /// tensor is on every device that reads it before a run begins, so no run transfers it.
    pub const PRELOADED: u8 = 16;
}

/// The bits of [`Graph::placement_hints`]. Ignore unknown bits.
#[derive(Debug)]
pub struct PlacementHint;

impl PlacementHint {
    /// No data inputs and one non-reference output: decided after all other nodes.
    pub const GENERATOR: u8 = 1;
    /// `Shape`, `Size`, `Rank`: follows the producer of its input.
    pub const METADATA: u8 = 2;
    /// Has state.
    pub const STATEFUL: u8 = 4;
    /// Calls a function.
    pub const FUNCTION_CALL: u8 = 8;
    /// Its request was softened.
    pub const SOFTENED: u8 = 16;
    /// An `Identity` without request between nodes of equal requests, with one edge in and one out:
    /// follows its producer.
    pub const MATCHING_IDENTITY: u8 = 32;
}

/// Rows of different lengths, borrowed: neighbours per node, devices per candidate set.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Where each row starts, and the end.
    pub offsets: &'a [u32],
    /// The rows, one after the other.
    pub items: &'a [u32],
}

impl<'a> Rows<'a> {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the range of a row in `items`, and in parallel columns.
    #[inline]
    pub fn range(&self, row: u32) -> Range<usize> {
        let row = row as usize;
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// Returns one row.
    #[inline]
    pub fn row(&self, row: u32) -> &'a [u32] {
        &self.items[self.range(row)]
    }
}

/// An edge, seen from its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InEdge {
    /// The producer.
    pub from: u32,
    /// Index of the edge: its position in the columns of edges.
    pub edge: usize,
    /// The tensor it carries, or [`NONE`] for a control edge. Two edges of one tensor into one
    /// device are one transfer.
    pub tensor: u32,
    /// Size of that tensor; 0 for a control edge.
    pub bytes: u64,
    /// [`EdgeKind`] bits.
    pub kind: u8,
}

/// The graph to place. Borrowed for one call. Each column is copied at its first use; later uses
/// are free.
pub struct Graph<'a> {
    source: &'a dyn GraphSource,
    log: &'a Log,
    counts: Counts,
    columns: Columns<'a>,
}

#[derive(Default)]
struct Columns<'a> {
    predecessors: OnceCell<Csr<'a>>,
    successors: OnceCell<Csr<'a>>,
    candidates: OnceCell<Csr<'a>>,
    tensor_dims: OnceCell<Dims<'a>>,
    requested: OnceCell<Strings<'a>>,
    node_names: OnceCell<Strings<'a>>,
    op_type_names: OnceCell<Vec<String>>,
    options: OnceCell<Vec<(String, String)>>,
    edge_tensors: OnceCell<Cow<'a, [u32]>>,
    edge_kinds: OnceCell<Cow<'a, [u8]>>,
    tensor_bytes: OnceCell<Cow<'a, [u64]>>,
    tensor_nodes: OnceCell<Cow<'a, [u32]>>,
    tensor_dtypes: OnceCell<Cow<'a, [u32]>>,
    back_edges: OnceCell<Cow<'a, [u32]>>,
    op_type: OnceCell<Cow<'a, [u32]>>,
    executions: OnceCell<Cow<'a, [f64]>>,
    flops: OnceCell<Cow<'a, [f64]>>,
    resident_bytes: OnceCell<Cow<'a, [u64]>>,
    workspace_bytes: OnceCell<Cow<'a, [u64]>>,
    user_priority: OnceCell<Cow<'a, [i32]>>,
    candidate_set: OnceCell<Cow<'a, [u32]>>,
    group: OnceCell<Cow<'a, [u32]>>,
    pinned: OnceCell<Cow<'a, [u32]>>,
    placement_hints: OnceCell<Cow<'a, [u8]>>,
    follow: OnceCell<Cow<'a, [u32]>>,
    frame: OnceCell<Cow<'a, [u32]>>,
    frame_parents: OnceCell<Cow<'a, [u32]>>,
    cost_row: OnceCell<Cow<'a, [u32]>>,
    costs: OnceCell<Cow<'a, [f64]>>,
    cost_samples: OnceCell<Cow<'a, [u32]>>,
}

/// Defines a getter per column: documentation, name, entry type.
macro_rules! columns {
    ($($(#[$doc:meta])+ $name:ident: $entry:ty;)+) => {
        $(
            $(#[$doc])+
            pub fn $name(&self) -> &[$entry] {
                self.columns.$name.get_or_init(|| self.source.$name())
            }
        )+
    };
}

impl<'a> Graph<'a> {
    /// Creates a view of the host's graph.
    pub fn new(source: &'a dyn GraphSource, log: &'a Log) -> Self {
        Self {
            source,
            log,
            counts: source.counts(),
            columns: Columns::default(),
        }
    }

    /// Returns the number of nodes; ids are `0..len()`.
    pub fn len(&self) -> usize {
        self.counts.nodes as usize
    }

    /// Returns whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.counts.nodes == 0
    }

    /// Returns the node ids, producers before consumers.
    pub fn nodes(&self) -> Range<u32> {
        0..self.counts.nodes
    }

    /// Returns all sizes.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the producers of each node, control inputs included. The position in `items` is the
    /// index of the edge.
    pub fn predecessors(&self) -> Rows<'_> {
        rows(
            self.columns
                .predecessors
                .get_or_init(|| self.source.predecessors()),
        )
    }

    /// Returns the consumers of each node, control outputs included.
    pub fn successors(&self) -> Rows<'_> {
        rows(
            self.columns
                .successors
                .get_or_init(|| self.source.successors()),
        )
    }

    /// Returns the legal devices of each candidate set, most preferred first; never empty. All
    /// members of a group have the same set.
    pub fn candidates(&self) -> Rows<'_> {
        rows(
            self.columns
                .candidates
                .get_or_init(|| self.source.candidates()),
        )
    }

    /// Returns the legal devices of a node, most preferred first.
    #[inline]
    pub fn candidates_of(&self, node: u32) -> &[u32] {
        self.candidates().row(self.candidate_set()[node as usize])
    }

    /// Returns the edges into a node, with their tensors.
    pub fn edges_into(&self, node: u32) -> impl Iterator<Item = InEdge> + '_ {
        let predecessors = self.predecessors();
        let (tensors, kinds, bytes) = (self.edge_tensors(), self.edge_kinds(), self.tensor_bytes());
        predecessors.range(node).map(move |edge| InEdge {
            from: predecessors.items[edge],
            edge,
            tensor: tensors[edge],
            bytes: match tensors[edge] {
                NONE => 0,
                tensor => bytes[tensor as usize],
            },
            kind: kinds[edge],
        })
    }

    /// Returns for each node whether it is a constant without inputs, or an identity of such a
    /// constant that waits for nothing else. Such a node is not executed: the host creates the
    /// constant once, on each device whose nodes read it. So it takes no time in a run, is never
    /// transferred, and takes memory only on the devices of its readers that run.
    pub fn constants(&self) -> Vec<bool> {
        let names = self.op_type_names().iter();
        let of_op = |op: &str| -> Vec<bool> { names.clone().map(|name| name == op).collect() };
        let (is_const, is_identity) = (of_op("Const"), of_op("Identity"));
        let predecessors = self.predecessors();
        let columns = self.op_type().iter().zip(self.resident_bytes());
        let mut constants: Vec<bool> = self
            .nodes()
            .zip(columns)
            .map(|(node, (&op, &bytes))| {
                bytes > 0 && is_const[op as usize] && predecessors.range(node).is_empty()
            })
            .collect();
        if is_identity.contains(&true) {
            let kinds = self.edge_kinds();
            let is_preloaded = |&kind: &u8| kind & EdgeKind::PRELOADED != 0;
            for (node, &op) in self.nodes().zip(self.op_type()) {
                if is_identity[op as usize]
                    && let Some(&first) = predecessors.row(node).first()
                {
                    constants[node as usize] = constants[first as usize]
                        && kinds[predecessors.range(node)].iter().all(is_preloaded);
                }
            }
        }
        constants
    }

    /// Returns the bytes that each edge carries, 0 for control edges: [`Self::tensor_bytes`] per
    /// edge. Computed at each call.
    pub fn edge_bytes(&self) -> Vec<u64> {
        let bytes = self.tensor_bytes();
        let of_tensor = |&tensor: &u32| match tensor {
            NONE => 0,
            tensor => bytes[tensor as usize],
        };
        self.edge_tensors().iter().map(of_tensor).collect()
    }

    columns! {
        /// Per edge: the tensor it carries, [`NONE`] for control edges.
        edge_tensors: u32;
        /// Per edge: [`EdgeKind`] bits.
        edge_kinds: u8;
        /// Per tensor: size in bytes.
        tensor_bytes: u64;
        /// Per tensor: the producing node.
        tensor_nodes: u32;
        /// Per tensor: TensorFlow's DataType number.
        tensor_dtypes: u32;
        /// Loop back edges, (from, to) pairs flattened; not part of [`Self::predecessors`].
        back_edges: u32;
        /// Per node: index into [`Self::op_type_names`].
        op_type: u32;
        /// Per node: expected executions in one run: 1, a loop's trip count, a branch's
        /// probability. A tensor is transferred as often as its producer is executed.
        executions: f64;
        /// Per node: floating-point operations of one execution.
        flops: f64;
        /// Per node: bytes of parameters and other state that stay on the device.
        resident_bytes: u64;
        /// Per node: bytes needed while it runs.
        workspace_bytes: u64;
        /// Per node: the priority that the user requests, larger first.
        user_priority: i32;
        /// Per node: its row of [`Self::candidates`].
        candidate_set: u32;
        /// Per node: its colocation group, dense. One group, one device; a node alone has a group
        /// of its own.
        group: u32;
        /// Per node: the device fixed by the user or an earlier placement, or [`NONE`].
        pinned: u32;
        /// Per node: [`PlacementHint`] bits.
        placement_hints: u8;
        /// Per node: the producer whose device the node takes, if that producer was decided before
        /// it and its device is legal; else the node takes item 0 of its candidates. For metadata
        /// ops and matching identities the producer of the first in-edge, [`NONE`] for all other
        /// nodes.
        follow: u32;
        /// Per node: its loop frame, [`NONE`] outside loops. A node that brings a tensor into a
        /// frame (`Enter`) is in the frame around it.
        frame: u32;
        /// Per loop frame: the frame around it, or [`NONE`].
        frame_parents: u32;
        /// Per node: its row of the cost table.
        cost_row: u32;
        /// Cost of one execution in ns, cost rows x cost classes, row-major; +inf = cannot run
        /// there. A device's column is its cost class. [`crate::CostMatrix`] spreads it over
        /// devices.
        costs: f64;
        /// Measurements behind each entry of [`Self::costs`]; 0 = estimated.
        cost_samples: u32;
    }

    /// Returns the distinct op types, indexed by [`Self::op_type`].
    pub fn op_type_names(&self) -> &[String] {
        self.columns
            .op_type_names
            .get_or_init(|| self.source.op_type_names())
    }

    /// Returns the dims of a tensor; -1 = unknown, a single -2 = unknown rank.
    pub fn dims_of(&self, tensor: u32) -> &[i64] {
        let dims = self
            .columns
            .tensor_dims
            .get_or_init(|| self.source.tensor_dims());
        let tensor = tensor as usize;
        &dims.sizes[dims.offsets[tensor] as usize..dims.offsets[tensor + 1] as usize]
    }

    /// Returns the device that the user requests for a node, `""` if there is no request.
    pub fn requested(&self, node: u32) -> &str {
        text(
            self.columns
                .requested
                .get_or_init(|| self.source.requested()),
            node,
        )
    }

    /// Returns the name of a node. Fetches all names at the first call: for one or two names of a
    /// large graph, [`Self::fetch_name`] is cheaper.
    pub fn name(&self, node: u32) -> &str {
        text(
            self.columns
                .node_names
                .get_or_init(|| self.source.node_names()),
            node,
        )
    }

    /// Fetches the name of one node from the host, for messages; `""` if there is no such node.
    pub fn fetch_name(&self, node: u32) -> String {
        self.source.node_name(node)
    }

    /// Returns an open-ended option: `allow-soft-placement`, `graph-name`, `stated-costs`, which is
    /// `true` if the app states what nodes take, and `stated-rates`, which is `true` if a cluster
    /// file states the rates of all devices.
    pub fn option(&self, key: &str) -> Option<&str> {
        let options = self.columns.options.get_or_init(|| self.source.options());
        let found = options.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// Fetches the cost of one execution of one node on one device from the host, for small graphs.
    /// +inf if the node cannot run there, or there is no such node or device.
    pub fn cost_ns(&self, node: u32, device: u32) -> f64 {
        self.source.cost(node, device)
    }

    /// Returns the measurements of earlier runs of this graph, if there are any. Copies at each
    /// call.
    pub fn last_run(&self) -> Option<Profile> {
        self.source.last_run()
    }

    /// Returns the log of this call.
    pub fn log(&self) -> &Log {
        self.log
    }
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

fn rows<'a>(csr: &'a Csr<'_>) -> Rows<'a> {
    Rows {
        offsets: &csr.offsets,
        items: &csr.items,
    }
}

fn text<'a>(strings: &'a Strings<'_>, index: u32) -> &'a str {
    let index = index as usize;
    &strings.text[strings.offsets[index] as usize..strings.offsets[index + 1] as usize]
}
