//! The memory rule: what stays in a memory, and the largest workspace in it, against its capacity.
//!
//! Both are needed at once by whatever order the whole graph runs in. A run that fetches a part of it may need less: resident
//! bytes count for every node that is placed, because a later run may fetch the rest, and state stays. Tensors in flight are not
//! counted: how many live at once depends on the run.

use crate::candidates::Candidates;

/// Per memory domain the bytes that stay, and the largest workspace.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryUse {
    pub(super) resident_bytes: Vec<u64>,
    pub(super) workspace_bytes: Vec<u64>,
}

impl MemoryUse {
    pub(super) fn none(candidates: &Candidates) -> Self {
        let n_domains = n_domains(candidates);
        Self {
            resident_bytes: vec![0; n_domains],
            workspace_bytes: vec![0; n_domains],
        }
    }

    pub(super) fn of(candidates: &Candidates, devices: &[u32]) -> Self {
        let mut used = Self::none(candidates);
        for (node, &device) in devices.iter().enumerate() {
            used.add(candidates, node, device);
        }
        used
    }

    pub(super) fn add(&mut self, candidates: &Candidates, node: usize, device: u32) {
        let graph = candidates.graph();
        let domain = candidates.devices().memory_domain[device as usize] as usize;
        let resident = &mut self.resident_bytes[domain];
        *resident = resident.saturating_add(graph.resident_bytes()[node]);
        let workspace = &mut self.workspace_bytes[domain];
        *workspace = (*workspace).max(graph.workspace_bytes()[node]);
    }

    /// Takes a node away. The largest workspace stays as it is: too large a figure leads to a full check, not to a refusal.
    pub(super) fn remove_resident(&mut self, candidates: &Candidates, node: usize, device: u32) {
        let domain = candidates.devices().memory_domain[device as usize] as usize;
        let resident = &mut self.resident_bytes[domain];
        *resident = resident.saturating_sub(candidates.graph().resident_bytes()[node]);
    }

    /// Whether the memory of one device suffices.
    pub(super) fn fits_on(
        &self,
        candidates: &Candidates,
        device: u32,
        capacity_bytes: &[u64],
    ) -> bool {
        let domain = candidates.devices().memory_domain[device as usize] as usize;
        let needed = self.resident_bytes[domain].saturating_add(self.workspace_bytes[domain]);
        needed <= capacity_bytes[domain]
    }

    pub(super) fn fits(&self, capacity_bytes: &[u64]) -> bool {
        self.resident_bytes
            .iter()
            .zip(&self.workspace_bytes)
            .zip(capacity_bytes)
            .all(|((&resident, &workspace), &capacity)| {
                resident.saturating_add(workspace) <= capacity
            })
    }
}

/// Capacity of every memory domain; devices of one domain state the same, else the smallest counts.
pub(super) fn capacity_of_domains(candidates: &Candidates) -> Vec<u64> {
    let columns = candidates.devices();
    let mut capacity = vec![u64::MAX; n_domains(candidates)];
    for (&domain, &bytes) in columns
        .memory_domain
        .iter()
        .zip(&columns.memory_capacity_bytes)
    {
        let smallest = &mut capacity[domain as usize];
        *smallest = (*smallest).min(bytes);
    }
    capacity
}

fn n_domains(candidates: &Candidates) -> usize {
    let domains = &candidates.devices().memory_domain;
    domains
        .iter()
        .map(|&domain| domain as usize + 1)
        .max()
        .unwrap_or(0)
}
