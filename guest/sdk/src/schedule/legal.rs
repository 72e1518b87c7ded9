//! The devices that a node may take, given those of the nodes before it.

use super::TaskGraph;
use crate::NONE;
use crate::algorithm::Assignment;
use crate::memory::MemoryBudget;

/// The groups, pins and memory that schedules respect.
#[derive(Debug)]
pub(super) struct LegalDevices<'t, 'g> {
    tasks: &'t TaskGraph<'t, 'g>,
    assignment: Assignment<'t>,
    memory: Option<MemoryBudget>,
    /// Those of the last node that was asked about.
    found: Vec<u32>,
}

impl<'t, 'g> LegalDevices<'t, 'g> {
    pub(super) fn new(tasks: &'t TaskGraph<'t, 'g>, memory: Option<MemoryBudget>) -> Self {
        Self {
            tasks,
            assignment: Assignment::new(tasks.graph()),
            memory,
            found: Vec::new(),
        }
    }

    /// As [`super::ListSchedule::legal`].
    pub(super) fn of(&mut self, node: u32) -> &[u32] {
        self.found.clear();
        let forced = self.assignment.forced(node);
        if forced != NONE {
            self.found.push(forced);
            return &self.found;
        }
        let candidates = self.tasks.candidates(node);
        let Some(memory) = &self.memory else {
            self.found.extend_from_slice(candidates);
            return &self.found;
        };
        let group = self.tasks.graph().group()[node as usize];
        let fits = |device: &u32| memory.fits(group, *device);
        self.found.extend(candidates.iter().copied().filter(fits));
        if self.found.is_empty() {
            let free = |&device: &u32| (memory.free_bytes(device), u32::MAX - device);
            self.found
                .extend(candidates.iter().copied().max_by_key(free));
        }
        &self.found
    }

    /// Returns what [`Self::of`] found last.
    pub(super) fn found(&self) -> &[u32] {
        &self.found
    }

    /// Returns whether the group of a node is decided.
    pub(super) fn is_decided(&self, node: u32) -> bool {
        self.assignment.forced(node) != NONE
    }

    /// Places a node, and takes the memory of its group.
    pub(super) fn decide(&mut self, node: u32, device: u32) {
        self.assignment.decide(node, device);
        if let Some(memory) = &mut self.memory {
            memory.take(self.tasks.graph().group()[node as usize], device);
        }
    }
}
