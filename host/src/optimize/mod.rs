//! Rewrites a graph into one that computes the same faster: a stage between the import and the
//! candidates.
//!
//! A pass is one file, and edits the graph (`edit.rs`). Every name that both graphs have means the
//! same tensors in both, so pins, placements and traces have the names of the graph that was given.
//! Names of removed nodes are gone; a session that is asked for one runs the graph that was given.

mod channels_last;
mod edit;
mod fold_batch_norms;
mod fold_constants;
mod fold_padding;
mod hoist_products;

use std::sync::Arc;

use rustc_hash::FxHashSet;

use self::edit::Edit;
use self::edit::kept_nodes;
use crate::device::KernelRegistry;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::ops::OpRegistry;

/// What passes use beside the graph.
#[derive(Clone, Copy, Debug)]
pub struct Tools<'a> {
    /// The definitions of ops.
    pub ops: &'a OpRegistry,
    /// The kernels that fold constants, on a CPU device; without one for an op, it is not folded.
    pub kernels: &'a KernelRegistry,
}

/// A pass of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pass {
    /// Nodes that read only constants, and request no device, become constants of at most 1 MiB.
    FoldConstants,
    /// Images with channels first, which few devices compute, get them last.
    ChannelsLast,
    /// Batch normalization, in one node or as arithmetic, becomes part of the weights and a bias.
    FoldBatchNorms,
    /// Zeros around images become the padding of the convolution or pooling that reads them.
    FoldPadding,
    /// In unrolled recurrences, the inputs of all steps are multiplied at once.
    HoistProducts,
}

impl Pass {
    /// All passes, in order.
    pub const ALL: [Self; 5] = [
        Self::FoldConstants,
        Self::ChannelsLast,
        Self::FoldBatchNorms,
        Self::FoldPadding,
        Self::HoistProducts,
    ];

    /// Returns the pass of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pass| pass.name() == name)
    }

    /// Returns the name of the pass.
    pub fn name(self) -> &'static str {
        match self {
            Self::FoldConstants => "fold-constants",
            Self::ChannelsLast => "channels-last",
            Self::FoldBatchNorms => "fold-batch-norms",
            Self::FoldPadding => "fold-padding",
            Self::HoistProducts => "hoist-products",
        }
    }
}

/// A graph after the passes.
#[derive(Debug, Clone)]
pub struct Optimized {
    /// The graph; the given one if no pass has changed anything.
    pub graph: Arc<Graph>,
    /// Names of nodes whose value other nodes have taken over: a run that feeds one of them must
    /// run the graph that was given.
    pub absorbed_names: FxHashSet<String>,
    /// What each pass has changed.
    pub passes: Vec<PassReport>,
}

impl Optimized {
    /// Returns the nodes of [`Self::absorbed_names`].
    pub fn absorbed(&self) -> FxHashSet<NodeId> {
        let names = self.absorbed_names.iter();
        names
            .filter_map(|name| self.graph.find_node(name))
            .collect()
    }
}

/// What a pass has changed.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PassReport {
    /// The pass.
    pub pass: Pass,
    /// The graph before it.
    pub before: GraphSize,
    /// The graph after it.
    pub after: GraphSize,
}

/// The size of a graph, and the work of one execution of all of its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct GraphSize {
    /// Number of nodes.
    pub n_nodes: usize,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub traffic_bytes: u64,
}

impl GraphSize {
    /// Returns the size of a graph.
    pub fn of(graph: &Graph) -> Self {
        Self {
            n_nodes: graph.n_nodes(),
            flops: graph.flops().iter().sum(),
            traffic_bytes: graph.traffic_bytes().iter().sum(),
        }
    }
}

/// Applies passes to a graph, in the given order. Nodes that `is_kept` accepts by name remain, such
/// as those that the caller has pinned. So do nodes that [`Graph::init`] names, nodes with effects,
/// those of control flow, and those without readers.
pub fn optimize(
    graph: &Arc<Graph>,
    passes: &[Pass],
    is_kept: &dyn Fn(&str) -> bool,
    tools: &Tools<'_>,
) -> Optimized {
    let mut optimized = Optimized {
        graph: Arc::clone(graph),
        absorbed_names: FxHashSet::default(),
        passes: Vec::new(),
    };
    let first: FxHashSet<&str> = graph.init().iter().flatten().map(String::as_str).collect();
    for &pass in passes {
        let given = Arc::clone(&optimized.graph);
        let is_named = |node: NodeId| {
            let name = given.node_name(node);
            first.contains(name) || is_kept(name)
        };
        let kept = kept_nodes(&given, is_named);
        let mut edit = Edit::new(&given, tools.ops, &kept);
        match pass {
            Pass::FoldConstants => fold_constants::fold_constants(&mut edit, tools),
            Pass::ChannelsLast => channels_last::channels_last(&mut edit),
            Pass::FoldBatchNorms => fold_batch_norms::fold_batch_norms(&mut edit),
            Pass::FoldPadding => fold_padding::fold_padding(&mut edit),
            Pass::HoistProducts => hoist_products::hoist_products(&mut edit),
        }
        // A graph that cannot be assembled, because it exceeds 32-bit ids, remains as it is.
        if let Ok(Some(edited)) = edit.finish() {
            optimized.passes.push(PassReport {
                pass,
                before: GraphSize::of(&given),
                after: GraphSize::of(&edited.graph),
            });
            optimized.graph = Arc::new(edited.graph);
            optimized.absorbed_names.extend(edited.absorbed);
        }
    }
    optimized
}
