//! The inputs of candidates other than graph and devices, which distinguish two of them.

use std::sync::Arc;

use hashbrown::HashSet;

use crate::candidates::options::PlacementOptions;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::graph::Graph;

/// The origin of candidates.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    /// [`super::enumerate`], with these options and the kernels registered for the ops of the graph
    /// and its functions.
    Enumerated {
        options: Box<PlacementOptions>,
        kernels: Vec<Arc<KernelDef>>,
    },
    /// An app that has stated sets and costs itself.
    Stated,
}

impl Origin {
    pub(super) fn enumerated(
        graph: &Graph,
        kernels: &KernelRegistry,
        options: &PlacementOptions,
    ) -> Self {
        let of_ops = ops_of(graph).into_iter().flat_map(|op| kernels.of_op(op));
        Self::Enumerated {
            options: Box::new(options.clone()),
            kernels: of_ops.cloned().collect(),
        }
    }
}

/// Returns the ops of a graph and of its functions' bodies, sorted.
pub(crate) fn ops_of(graph: &Graph) -> Vec<&str> {
    let of_bodies = graph
        .functions()
        .iter()
        .flat_map(|function| &function.nodes);
    let names = graph.op_names().iter().map(|op| &**op);
    let all: HashSet<&str> = names.chain(of_bodies.map(|node| &*node.op)).collect();
    let mut all: Vec<&str> = all.into_iter().collect();
    all.sort_unstable();
    all
}
