//! Proofs that no plan fits, whatever policy places the graph.
//!
//! Only what stays in memory is counted: the constants that a node reads, and state. Tensors of
//! runs may be fused away or freed, so a graph without a proof may still have no plan.

use std::fmt;

use rustc_hash::FxHashSet;

use super::memory::capacity_of_domains;
use super::shortage::flag_size;
use super::shortage::list;
use crate::candidates::Candidates;
use crate::candidates::short_device_name;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::memory::MemoryHolder;
use crate::memory::MemoryHolderKind;
use crate::memory::fits;
use crate::plan::is_constant;
use crate::tensor::show_bytes;

/// Maximum number of constants and states that a proof names.
const HOLDERS_MAX: usize = 3;

/// Why no plan fits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Infeasibility {
    /// What nodes of one device need there at one time is more than any device has that may run
    /// them: their state, and the constants of the node that reads most. The other constants may be
    /// streamed.
    Group {
        /// A node of the colocation group.
        node: String,
        /// Nodes of the group.
        n_nodes: usize,
        /// Those constants and the state, in bytes.
        needed_bytes: u64,
        /// The three largest constants and states, the largest first.
        holders: Vec<MemoryHolder>,
        /// The device with the largest memory that may run them: full name, and bytes that plans
        /// may use.
        largest: (String, u64),
    },
    /// What the nodes of the graph keep is more than all devices have.
    Graph {
        /// The constants that nodes read, and state, each once, in bytes.
        needed_bytes: u64,
        /// The sum of what plans may use, in bytes.
        capacity_bytes: u64,
    },
}

impl fmt::Display for Infeasibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group {
                node,
                n_nodes,
                needed_bytes,
                holders,
                largest: (device, capacity_bytes),
            } => {
                let needed = show_bytes(*needed_bytes);
                match n_nodes {
                    1 => write!(f, "`{node}` needs {needed} of constants and state")?,
                    n => write!(
                        f,
                        "`{node}` and the {} nodes that must be on its device need {needed} of constants and state at one time",
                        n - 1
                    )?,
                }
                let device = short_device_name(device);
                write!(
                    f,
                    " ({}), and no device that may run it may use more than {}; raise the capacity of one (`--memory {device}={}`, and more for the tensors of a run)",
                    list(holders, " and "),
                    show_bytes(*capacity_bytes),
                    flag_size(*needed_bytes)
                )
            }
            Self::Graph {
                needed_bytes,
                capacity_bytes,
            } => write!(
                f,
                "the graph keeps {} of constants and state, and all devices together may use {}; raise a capacity (`--memory`) or use more devices (`--device-count`)",
                show_bytes(*needed_bytes),
                show_bytes(*capacity_bytes)
            ),
        }
    }
}

impl Infeasibility {
    /// Returns why no plan fits, if what stays in memory proves it.
    pub(crate) fn prove(candidates: &Candidates) -> Option<Self> {
        let graph = candidates.graph();
        let capacities = capacity_of_domains(candidates);
        let kept = Kept::by_group(candidates);
        let groups = kept.iter().filter(|group| group.n_nodes > 0);
        let too_large = groups.filter_map(|group| group.beyond(candidates, &capacities));
        let largest = too_large.max_by_key(|proof| match proof {
            Self::Group {
                needed_bytes,
                n_nodes,
                ..
            } => (*needed_bytes, *n_nodes),
            Self::Graph { needed_bytes, .. } => (*needed_bytes, 0),
        });
        if largest.is_some() {
            return largest;
        }
        let of_groups = kept
            .iter()
            .flat_map(|it| it.constants.iter().chain(&it.states));
        let all: FxHashSet<NodeId> = of_groups.copied().collect();
        let bytes = |node: &NodeId| graph.resident_bytes()[node.index()];
        let needed_bytes = all.iter().map(bytes).fold(0, u64::saturating_add);
        let capacity_bytes = capacities.iter().copied().fold(0, u64::saturating_add);
        (!fits(needed_bytes, capacity_bytes)).then_some(Self::Graph {
            needed_bytes,
            capacity_bytes,
        })
    }
}

/// What the nodes of a colocation group keep on their device.
struct Kept {
    first: NodeId,
    /// Nodes that run.
    n_nodes: usize,
    constants: FxHashSet<NodeId>,
    /// The constants of the node that reads most bytes of them.
    most: FxHashSet<NodeId>,
    /// Nodes with state.
    states: Vec<NodeId>,
}

impl Kept {
    fn by_group(candidates: &Candidates) -> Vec<Self> {
        let graph = candidates.graph();
        let columns = candidates.nodes();
        let nothing = || Self {
            first: NodeId(0),
            n_nodes: 0,
            constants: FxHashSet::default(),
            most: FxHashSet::default(),
            states: Vec::new(),
        };
        let mut kept: Vec<Self> = Vec::new();
        kept.resize_with(columns.n_groups as usize, nothing);
        let size = |nodes: &FxHashSet<NodeId>| {
            let bytes = nodes
                .iter()
                .map(|node| graph.resident_bytes()[node.index()]);
            bytes.fold(0, u64::saturating_add)
        };
        // A constant is needed where it is read. What does not run reads nothing, and neither does
        // a placeholder with a default, if it is fed.
        let runs = |node: &NodeId| {
            !graph.is_preloaded(*node) && !graph.op(*node).starts_with("Placeholder")
        };
        for node in graph.nodes().filter(runs) {
            let group = &mut kept[columns.group[node.index()] as usize];
            if group.n_nodes == 0 {
                group.first = node;
            }
            group.n_nodes += 1;
            if graph.op(node) != "Const" && graph.resident_bytes()[node.index()] > 0 {
                group.states.push(node);
            }
            let read: FxHashSet<NodeId> = constants_of(candidates, graph, node).collect();
            group.constants.extend(&read);
            if size(&read) > size(&group.most) {
                group.most = read;
            }
        }
        kept
    }

    /// Returns the proof that the group fits nowhere.
    fn beyond(&self, candidates: &Candidates, capacities: &[u64]) -> Option<Infeasibility> {
        let graph = candidates.graph();
        let held = |node: &NodeId, kind: MemoryHolderKind| MemoryHolder {
            kind,
            name: graph.node_name(*node).to_owned(),
            bytes: graph.resident_bytes()[node.index()],
        };
        let constants = self.most.iter();
        let constants = constants.map(|node| held(node, MemoryHolderKind::Constant));
        let states = self.states.iter();
        let states = states.map(|node| held(node, MemoryHolderKind::State));
        let mut holders: Vec<MemoryHolder> = constants.chain(states).collect();
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        let needed_bytes = holders
            .iter()
            .map(|it| it.bytes)
            .fold(0, u64::saturating_add);
        holders.truncate(HOLDERS_MAX);
        let domains = &candidates.devices().memory_domain;
        let pinned = candidates.nodes().pinned[self.first.index()];
        let all = candidates.of_node(self.first).iter().copied();
        let legal = all.filter(|&device| pinned == NONE || device == pinned);
        let (device, capacity) = legal
            .map(|device| (device, capacities[domains[device as usize] as usize]))
            .max_by_key(|&(device, bytes)| (bytes, std::cmp::Reverse(device)))?;
        (!fits(needed_bytes, capacity)).then(|| Infeasibility::Group {
            node: graph.node_name(self.first).to_owned(),
            n_nodes: self.n_nodes,
            needed_bytes,
            holders,
            largest: (candidates.device_name(device).to_owned(), capacity),
        })
    }
}

/// Returns the constants that a node reads on its device.
fn constants_of<'a>(
    candidates: &'a Candidates,
    graph: &'a Graph,
    node: NodeId,
) -> impl Iterator<Item = NodeId> + 'a {
    let kinds = &candidates.nodes().edge_kinds;
    let edges = graph.predecessors().range(node.index());
    edges.filter_map(move |edge| {
        let tensor = graph.edge_tensors()[edge];
        let is_read = tensor != NONE && kinds[edge] & EdgeKind::HOST_MEMORY == 0;
        let constant = is_read.then(|| graph.constant_of(TensorId(tensor)));
        constant.flatten().filter(|&node| is_constant(graph, node))
    })
}
