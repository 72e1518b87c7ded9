//! The times of one graph's nodes, as costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::history::History;
use super::source::CostSource;
use super::source::KernelCosts;
use super::source::NodeWork;
use super::source::Prediction;
use crate::device::Device;
use crate::device::DeviceSet;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::trace::RunProfile;

/// The measured times of a profile. A node that was measured on a device costs what it took, on all
/// devices of that kind; any other node costs what nodes of equal work took.
#[derive(Debug)]
pub(crate) struct ProfiledCosts {
    history: History,
    by_kind: BTreeMap<String, Arc<NodeCosts>>,
}

/// The nodes on one kind of device.
#[derive(Debug)]
struct NodeCosts {
    by_node: FxHashMap<NodeId, Prediction>,
    by_work: Option<Arc<dyn KernelCosts>>,
}

impl ProfiledCosts {
    /// Returns the times of a profile, for the nodes of `graph` on devices as in `devices`.
    pub(crate) fn of(profile: &RunProfile, graph: &Graph, devices: &DeviceSet) -> Self {
        let history = History::new();
        // Nothing is written to a folder.
        let _ = history.learn(profile, graph, devices);
        let mut by_kind: BTreeMap<String, NodeCosts> = BTreeMap::new();
        for (_, device) in devices.iter() {
            if let Some(kind) = history.kind_of(&**device) {
                by_kind.entry(kind).or_insert_with(|| NodeCosts {
                    by_node: FxHashMap::default(),
                    by_work: history.of_device(&**device),
                });
            }
        }
        let measured = profile.nodes.iter().filter(|times| times.samples > 0);
        for times in measured {
            let device = devices.find_by_name(&times.device);
            let device = device.and_then(|id| devices.get(id));
            let kind = device.and_then(|device| history.kind_of(&**device));
            let costs = kind.and_then(|kind| by_kind.get_mut(&kind));
            if let (Some(node), Some(costs)) = (graph.find_node(&times.node), costs) {
                let prediction = Prediction {
                    ns: times.ns,
                    spread_ns: times.spread_ns,
                    samples: times.samples,
                };
                costs.by_node.insert(node, prediction);
            }
        }
        let by_kind = by_kind.into_iter();
        Self {
            history,
            by_kind: by_kind
                .map(|(kind, costs)| (kind, Arc::new(costs)))
                .collect(),
        }
    }
}

impl CostSource for ProfiledCosts {
    fn name(&self) -> &'static str {
        "profile"
    }

    fn of_device(&self, device: &dyn Device) -> Option<Arc<dyn KernelCosts>> {
        let kind = self.history.kind_of(device)?;
        let costs = self.by_kind.get(&kind)?;
        Some(Arc::clone(costs) as Arc<dyn KernelCosts>)
    }
}

impl KernelCosts for NodeCosts {
    fn predict(&self, work: &NodeWork<'_>) -> Option<Prediction> {
        let of_node = self.by_node.get(&work.node()).copied();
        of_node.or_else(|| self.by_work.as_ref()?.predict(work))
    }
}
