//! What an estimate records so that a plan with a few moved nodes costs only the part of the
//! schedule that they change.
//!
//! Nothing depends on the device of a node before a producer sends it something, or it becomes
//! ready. The schedule up to that instant stays, so the next one continues from the last checkpoint
//! before it. Small state is copied to checkpoints; counters of nodes are restored backwards from a
//! log, which costs no more than the part of the schedule that is computed again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Chip;
use super::Event;
use super::Pool;

/// Events between two checkpoints, at least. Beyond that, as many as a checkpoint has entries: so
/// checkpoints take no more time and memory than the schedule.
const EVENTS_MIN: usize = 16;

#[derive(Debug)]
pub(super) struct Journal {
    /// Those from [`Self::n_valid`] on only keep their buffers.
    checkpoints: Vec<Checkpoint>,
    n_valid: usize,
    n_events: usize,
    /// Node and its ready time before, per delivered input.
    deliveries: Vec<(u32, f64)>,
    /// Per node, before when nothing depends on its device.
    depends_from_ns: Vec<f64>,
}

/// The state at an instant at which everything has started that can start.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    pub(super) at_ns: f64,
    pub(super) makespan_ns: f64,
    pub(super) n_copies: usize,
    pub(super) n_readers: usize,
    n_deliveries: usize,
    pub(super) pools: Vec<Pool>,
    pub(super) chips: Vec<Chip>,
    pub(super) link_free_ns: Vec<f64>,
    pub(super) events: BinaryHeap<Reverse<Event>>,
}

impl Journal {
    pub(super) fn new(n_nodes: usize) -> Self {
        Self {
            checkpoints: Vec::new(),
            n_valid: 0,
            n_events: 0,
            deliveries: Vec::new(),
            depends_from_ns: vec![f64::INFINITY; n_nodes],
        }
    }

    /// Forgets everything: a schedule begins.
    pub(super) fn clear(&mut self) {
        self.n_valid = 0;
        self.n_events = 0;
        self.deliveries.clear();
        self.depends_from_ns.fill(f64::INFINITY);
    }

    /// Records that the schedule depends on the device of a node from now on.
    pub(super) fn depends(&mut self, node: u32, now_ns: f64) {
        let from_ns = &mut self.depends_from_ns[node as usize];
        *from_ns = from_ns.min(now_ns);
    }

    /// Returns before when nothing depends on the device of a node.
    pub(super) fn depends_from_ns(&self, node: u32) -> f64 {
        self.depends_from_ns[node as usize]
    }

    /// Records that an input of a node arrives.
    pub(super) fn delivered(&mut self, node: u32, ready_before_ns: f64) {
        self.deliveries.push((node, ready_before_ns));
    }

    /// Records that so many events were processed. Returns the checkpoint to be filled, if it is
    /// time for one.
    pub(super) fn next_checkpoint(
        &mut self,
        n_events: usize,
        n_entries: usize,
    ) -> Option<&mut Checkpoint> {
        self.n_events += n_events;
        if self.n_events < n_entries.max(EVENTS_MIN) {
            return None;
        }
        self.n_events = 0;
        if self.n_valid == self.checkpoints.len() {
            self.checkpoints.push(Checkpoint::default());
        }
        self.n_valid += 1;
        let checkpoint = &mut self.checkpoints[self.n_valid - 1];
        checkpoint.n_deliveries = self.deliveries.len();
        Some(checkpoint)
    }

    /// Returns the last checkpoint before an instant; later ones become invalid. `undo` is called
    /// for each delivery since then, latest first, with the node and its ready time before.
    pub(super) fn go_back(
        &mut self,
        before_ns: f64,
        mut undo: impl FnMut(u32, f64),
    ) -> Option<&Checkpoint> {
        let valid = &self.checkpoints[..self.n_valid];
        self.n_valid = valid.partition_point(|checkpoint| checkpoint.at_ns < before_ns);
        self.n_events = 0;
        let checkpoint = self.checkpoints[..self.n_valid].last()?;
        for (node, ready_before_ns) in self.deliveries.drain(checkpoint.n_deliveries..).rev() {
            undo(node, ready_before_ns);
            let from_ns = &mut self.depends_from_ns[node as usize];
            if *from_ns > checkpoint.at_ns {
                *from_ns = f64::INFINITY;
            }
        }
        Some(checkpoint)
    }
}
