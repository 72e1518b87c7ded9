//! The columns of the contract over the host's memory. This module defines the meaning of each.
//!
//! The sandbox's imports and native policies use it, so both read the same values.

use placewright_guest::source::{
    Counts, Csr, DeviceAttributes, DeviceSource, DeviceSpec, Dims, GraphSource, LinkCost, Locality,
    Profile, Strings,
};
use std::borrow::Cow;

use super::last_run::last_run;
use super::limits::PolicyLimits;
use crate::candidates::Candidates;
use crate::device::LinkRates;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::names::DeviceName;

/// The incarnation that replaces hidden ones. 0 would mean that a device was never created.
const INCARNATION_HIDDEN: u64 = 1;

/// The graph and devices of one placement, as policies see them.
#[derive(Debug, Clone)]
pub(super) struct View {
    candidates: Candidates,
    shows_incarnations: bool,
}

impl View {
    /// Creates a view for a call with these limits. If the call is metered by fuel, its answer must
    /// be the same in every process, so values that differ between processes are hidden.
    pub(super) fn new(candidates: Candidates, limits: &PolicyLimits) -> Self {
        Self {
            candidates,
            shows_incarnations: limits.fuel.is_none(),
        }
    }

    fn n_nodes(&self) -> usize {
        self.candidates.graph().n_nodes()
    }

    fn has_device(&self, device: u32) -> bool {
        (device as usize) < self.candidates.n_devices()
    }
}

impl GraphSource for View {
    fn counts(&self) -> Counts {
        let graph = self.candidates.graph();
        let nodes = self.candidates.nodes();
        let n_cost_classes = self.candidates.devices().n_cost_classes;
        let n_cost_rows = nodes.costs.len() / (n_cost_classes as usize).max(1);
        Counts {
            nodes: id(graph.n_nodes()),
            edges: id(graph.n_edges()),
            tensors: id(graph.n_tensors()),
            candidate_sets: id(nodes.sets.n_rows()),
            groups: nodes.n_groups,
            cost_rows: id(n_cost_rows),
            cost_classes: n_cost_classes,
        }
    }

    fn predecessors(&self) -> Csr<'_> {
        csr(self.candidates.graph().predecessors())
    }

    fn successors(&self) -> Csr<'_> {
        csr(self.candidates.graph().successors())
    }

    fn edge_tensors(&self) -> Cow<'_, [u32]> {
        self.candidates.graph().edge_tensors().into()
    }

    fn edge_kinds(&self) -> Cow<'_, [u8]> {
        self.candidates.nodes().edge_kinds.as_slice().into()
    }

    fn tensor_bytes(&self) -> Cow<'_, [u64]> {
        self.candidates.graph().tensor_bytes().into()
    }

    fn tensor_nodes(&self) -> Cow<'_, [u32]> {
        self.candidates.graph().tensor_nodes().into()
    }

    fn tensor_dtypes(&self) -> Cow<'_, [u32]> {
        let dtypes = self.candidates.graph().tensor_dtypes().iter();
        dtypes.map(|dtype| dtype.number()).collect()
    }

    fn tensor_dims(&self) -> Dims<'_> {
        let (offsets, sizes) = self.candidates.graph().tensor_dims();
        Dims {
            offsets: offsets.into(),
            sizes: sizes.into(),
        }
    }

    fn back_edges(&self) -> Cow<'_, [u32]> {
        self.candidates.graph().back_edges().into()
    }

    fn op_type(&self) -> Cow<'_, [u32]> {
        self.candidates.graph().op_types().into()
    }

    fn op_type_names(&self) -> Vec<String> {
        let names = self.candidates.graph().op_names().iter();
        names.map(ToString::to_string).collect()
    }

    fn executions(&self) -> Cow<'_, [f64]> {
        or_constant(&self.candidates.nodes().executions, 1.0, self.n_nodes())
    }

    fn flops(&self) -> Cow<'_, [f64]> {
        self.candidates.graph().flops().into()
    }

    fn resident_bytes(&self) -> Cow<'_, [u64]> {
        self.candidates.graph().resident_bytes().into()
    }

    fn workspace_bytes(&self) -> Cow<'_, [u64]> {
        self.candidates.graph().workspace_bytes().into()
    }

    fn user_priority(&self) -> Cow<'_, [i32]> {
        or_constant(&self.candidates.nodes().user_priority, 0, self.n_nodes())
    }

    fn candidate_set(&self) -> Cow<'_, [u32]> {
        self.candidates.nodes().candidate_set.as_slice().into()
    }

    fn candidates(&self) -> Csr<'_> {
        csr(&self.candidates.nodes().sets)
    }

    fn group(&self) -> Cow<'_, [u32]> {
        self.candidates.nodes().group.as_slice().into()
    }

    fn pinned(&self) -> Cow<'_, [u32]> {
        self.candidates.nodes().pinned.as_slice().into()
    }

    fn placement_hints(&self) -> Cow<'_, [u8]> {
        self.candidates.nodes().placement_hints.as_slice().into()
    }

    fn follow(&self) -> Cow<'_, [u32]> {
        self.candidates.nodes().follow.as_slice().into()
    }

    fn requested(&self) -> Strings<'_> {
        let graph = self.candidates.graph();
        let names = graph.requested_devices();
        let mut offsets = Vec::with_capacity(graph.n_nodes() + 1);
        let mut text = String::new();
        offsets.push(0);
        for &requested in graph.requested_ids() {
            text.push_str(&names[requested as usize]);
            offsets.push(id(text.len()));
        }
        Strings {
            offsets: offsets.into(),
            text: text.into(),
        }
    }

    fn frame(&self) -> Cow<'_, [u32]> {
        or_constant(&self.candidates.nodes().frame, NONE, self.n_nodes())
    }

    fn frame_parents(&self) -> Cow<'_, [u32]> {
        self.candidates.nodes().frame_parents.as_slice().into()
    }

    fn options(&self) -> Vec<(String, String)> {
        self.candidates.options().to_vec()
    }

    fn cost_row(&self) -> Cow<'_, [u32]> {
        self.candidates.nodes().cost_row.as_slice().into()
    }

    fn costs(&self) -> Cow<'_, [f64]> {
        self.candidates.nodes().costs.as_slice().into()
    }

    fn cost_samples(&self) -> Cow<'_, [u32]> {
        let nodes = self.candidates.nodes();
        or_constant(&nodes.cost_samples, 0, nodes.costs.len())
    }

    fn cost(&self, node: u32, device: u32) -> f64 {
        // A node or device that does not exist cannot run: the contract's value for that.
        if node as usize >= self.n_nodes() || !self.has_device(device) {
            return f64::INFINITY;
        }
        self.candidates.cost_ns(NodeId(node), DeviceId(device))
    }

    fn node_name(&self, node: u32) -> String {
        if node as usize >= self.n_nodes() {
            return String::new();
        }
        self.candidates.graph().node_name(NodeId(node)).to_owned()
    }

    fn node_names(&self) -> Strings<'_> {
        let names = self.candidates.graph().node_names();
        Strings {
            offsets: names.offsets().into(),
            text: names.text().into(),
        }
    }

    fn last_run(&self) -> Option<Profile> {
        let profile = self.candidates.profile()?;
        Some(last_run(&self.candidates, profile))
    }
}

impl DeviceSource for View {
    fn count(&self) -> u32 {
        id(self.candidates.n_devices())
    }

    fn attributes(&self, device: u32) -> Option<DeviceAttributes> {
        let set = self.candidates.device_set();
        let found = set.get(DeviceId(device))?.attributes();
        // TensorFlow numbers the other end of a link among the devices of its type.
        let peers = set.of_type(&found.device_type);
        let links = found.locality.links.iter().filter_map(|link| {
            let peer = peers.get(usize::try_from(link.device_index).ok()?)?;
            Some((peer.0, link.kind.clone(), link.strength))
        });
        Some(DeviceAttributes {
            name: found.name.clone(),
            device_type: found.device_type.clone(),
            memory_limit: found.memory_limit_bytes,
            locality: Locality {
                bus_id: found.locality.bus_id,
                numa_node: found.locality.numa_node,
                links: links.collect(),
            },
            incarnation: if self.shows_incarnations {
                found.incarnation
            } else {
                INCARNATION_HIDDEN
            },
            physical_description: found.physical_description.clone(),
            type_preference: self
                .candidates
                .devices()
                .type_preference
                .get(device as usize)
                .copied()
                .unwrap_or_else(|| set.type_priority(&found.device_type)),
            properties: Vec::new(),
        })
    }

    fn all(&self) -> Vec<DeviceAttributes> {
        (0..self.count())
            .filter_map(|device| self.attributes(device))
            .collect()
    }

    fn by_name(&self, name: &str) -> Option<u32> {
        let set = self.candidates.device_set();
        if let Some(found) = set.find_by_name(name) {
            return Some(found.0);
        }
        // Accept other spellings and local names if they match exactly one device.
        let parsed = DeviceName::parse_full_or_local(name).ok()?;
        parsed.index?;
        match set.find_matching(&parsed)[..] {
            [found] => Some(found.0),
            _ => None,
        }
    }

    fn by_spec(&self, spec: &DeviceSpec) -> Vec<u32> {
        self.matching(&DeviceName {
            job: spec.job.as_deref().map(Into::into),
            replica: spec.replica,
            task: spec.task,
            device_type: spec.device_type.as_deref().map(Into::into),
            index: spec.index,
        })
    }

    fn by_spec_text(&self, spec: &str) -> Result<Vec<u32>, String> {
        let parsed = DeviceName::parse_full_or_local(spec).map_err(|error| error.to_string())?;
        Ok(self.matching(&parsed))
    }

    fn prioritized_types(&self) -> Vec<String> {
        let types = self.candidates.device_set().prioritized_types();
        types.into_iter().map(ToOwned::to_owned).collect()
    }

    fn of_type(&self, device_type: &str) -> Vec<u32> {
        let devices = self.candidates.device_set().of_type(device_type);
        devices.into_iter().map(|device| device.0).collect()
    }

    fn client_device(&self) -> Option<u32> {
        self.candidates
            .device_set()
            .client_device()
            .map(|device| device.0)
    }

    fn cost_classes(&self) -> Cow<'_, [u32]> {
        self.candidates.devices().cost_class.as_slice().into()
    }

    fn link_domains(&self) -> Cow<'_, [u32]> {
        self.candidates.devices().link_domain.as_slice().into()
    }

    fn chips(&self) -> Cow<'_, [u32]> {
        self.candidates.devices().competing_chips().into()
    }

    fn memory_domains(&self) -> Cow<'_, [u32]> {
        self.candidates.devices().memory_domain.as_slice().into()
    }

    fn memory_capacity(&self) -> Cow<'_, [u64]> {
        self.candidates
            .devices()
            .memory_capacity_bytes
            .as_slice()
            .into()
    }

    fn memory_free(&self) -> Cow<'_, [u64]> {
        self.candidates
            .devices()
            .memory_free_bytes
            .as_slice()
            .into()
    }

    fn loads(&self) -> Cow<'_, [f64]> {
        self.candidates.devices().load.as_slice().into()
    }

    fn calibrated(&self) -> Cow<'_, [u8]> {
        let calibrated = self.candidates.devices().is_calibrated.iter();
        calibrated.map(|&is| u8::from(is)).collect()
    }

    fn queues(&self) -> Cow<'_, [u32]> {
        self.candidates.devices().queues.as_slice().into()
    }

    fn links(&self) -> Vec<LinkCost> {
        let links = self.candidates.devices().links.iter();
        links.copied().map(link_cost).collect()
    }

    fn link(&self, src: u32, dst: u32) -> LinkCost {
        if !self.has_device(src) || !self.has_device(dst) {
            return LinkCost {
                latency_ns: f64::INFINITY,
                ns_per_byte: 0.0,
            };
        }
        link_cost(self.candidates.link(DeviceId(src), DeviceId(dst)))
    }
}

impl View {
    /// Returns every match, most preferred first.
    fn matching(&self, spec: &DeviceName) -> Vec<u32> {
        let set = self.candidates.device_set();
        let mut found: Vec<_> = set
            .find_matching(spec)
            .into_iter()
            .filter_map(|device| {
                let device_type = &set.get(device)?.attributes().device_type;
                Some((device, set.type_priority(device_type)))
            })
            .collect();
        set.sort_by_priority(&mut found);
        found.into_iter().map(|(device, _)| device.0).collect()
    }
}

fn link_cost(link: LinkRates) -> LinkCost {
    LinkCost {
        latency_ns: link.latency_ns,
        ns_per_byte: link.ns_per_byte,
    }
}

fn csr(csr: &crate::graph::Csr) -> Csr<'_> {
    Csr {
        offsets: csr.offsets.as_slice().into(),
        items: csr.items.as_slice().into(),
    }
}

/// Returns a column, or the same value for all rows if the column is empty.
fn or_constant<T: Clone>(column: &[T], constant: T, n_rows: usize) -> Cow<'_, [T]> {
    if column.is_empty() && n_rows > 0 {
        vec![constant; n_rows].into()
    } else {
        column.into()
    }
}

/// Converts a count or position to the contract's type.
#[expect(
    clippy::cast_possible_truncation,
    reason = "graphs and device sets have fewer than 2^32 of anything; the strings of requests are bounded by them"
)]
fn id(count: usize) -> u32 {
    count as u32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::candidates::CandidatesBuilder;
    use crate::candidates::synthetic;

    #[test]
    fn values_that_differ_between_processes_are_hidden_under_fuel() {
        let devices = Arc::new(synthetic::devices(3));
        let builder = CandidatesBuilder::new(&synthetic::graph(2, 0), &devices);
        let candidates = builder.build().unwrap();
        let incarnations = |limits: &PolicyLimits| -> Vec<u64> {
            let view = View::new(candidates.clone(), limits);
            view.all().iter().map(|device| device.incarnation).collect()
        };
        let limits = PolicyLimits::default();
        let own = devices.iter().map(|(_, device)| device.attributes());
        let own: Vec<u64> = own.map(|attributes| attributes.incarnation).collect();
        assert_eq!(incarnations(&limits), own);
        let limits = limits.with_fuel(Some(1));
        assert_eq!(incarnations(&limits), [INCARNATION_HIDDEN; 3]);
    }
}
