//! Candidates restricted to the choices that an earlier placement leaves open.

use hashbrown::HashMap;

use crate::candidates::columns::Candidates;
use crate::candidates::edge_kinds::edge_kinds;
use crate::candidates::index::to_u32;
use crate::candidates::origin::Origin;

/// The remaining choice of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Restriction {
    /// All its devices.
    None,
    /// Only this device.
    Pinned(u32),
    /// Only these devices, in this order; at least one.
    Among(Vec<u32>),
}

impl Candidates {
    /// Restricts the choice of each group; one entry per group. The caller only passes devices that
    /// are legal already.
    pub(crate) fn restricted(&self, of_group: &[Restriction]) -> Self {
        let mut nodes = self.nodes().clone();
        let mut sets: HashMap<&[u32], u32> = HashMap::new();
        let mut added = nodes.sets.clone();
        let set_of_group: Vec<Option<u32>> = of_group
            .iter()
            .map(|restriction| {
                let devices = match restriction {
                    Restriction::None => return None,
                    Restriction::Pinned(device) => std::slice::from_ref(device),
                    Restriction::Among(devices) => devices,
                };
                Some(*sets.entry(devices).or_insert_with(|| {
                    added.items.extend_from_slice(devices);
                    added.offsets.push(to_u32(added.items.len()));
                    to_u32(added.n_rows() - 1)
                }))
            })
            .collect();
        nodes.sets = added;
        for (index, &group) in self.nodes().group.iter().enumerate() {
            if let Some(set) = set_of_group[group as usize] {
                nodes.candidate_set[index] = set;
            }
            if let Restriction::Pinned(device) = of_group[group as usize] {
                nodes.pinned[index] = device;
            }
        }
        if let Origin::Enumerated { .. } = self.origin() {
            nodes.edge_kinds = edge_kinds(self.graph(), &nodes, self.host_memory());
        }
        self.with_nodes(nodes)
    }
}
