//! The ready tasks of a device or chip, in the order in which it takes them.

use std::cmp::Ordering;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Ready tasks, by the time at which their inputs arrive, then by a key.
///
/// A task leaves the queue when [`Self::first`] finds that it may no longer be taken: nothing is
/// searched for.
#[derive(Debug, Default)]
pub struct ReadyQueue {
    /// Tasks whose inputs arrive after the device is free, earliest first.
    early: BinaryHeap<Reverse<Entry>>,
    /// The other tasks, those with the largest key first.
    waiting: BinaryHeap<Entry>,
}

/// A task, by its key or the time when its inputs are there.
#[derive(Debug, PartialEq)]
struct Entry {
    key: f64,
    node: u32,
}

impl Eq for Entry {}

impl Ord for Entry {
    /// Of equal keys, the smaller id is the larger entry.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = self.key.total_cmp(&other.key);
        by_key.then_with(|| other.node.cmp(&self.node))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl ReadyQueue {
    /// Adds a task whose inputs arrive at `arrives_ns`.
    pub fn push(&mut self, node: u32, arrives_ns: f64) {
        let key = arrives_ns;
        self.early.push(Reverse(Entry { key, node }));
    }

    /// Returns the task that starts first on a device that is free at `free_ns`, and its start in
    /// ns. Of those whose inputs are there by then, it is that with the largest key, ties by
    /// smaller id. Drops the tasks on the way that the device may not take any longer.
    ///
    /// `free_ns` never decreases between calls.
    pub fn first(
        &mut self,
        free_ns: f64,
        keys: &[f64],
        mut may_take: impl FnMut(u32) -> bool,
    ) -> Option<(f64, u32)> {
        while let Some(Reverse(first)) = self.early.peek()
            && first.key <= free_ns
        {
            let node = first.node;
            self.early.pop();
            let key = keys[node as usize];
            self.waiting.push(Entry { key, node });
        }
        while let Some(first) = self.waiting.peek() {
            let node = first.node;
            if may_take(node) {
                return Some((free_ns, node));
            }
            self.waiting.pop();
        }
        while let Some(Reverse(first)) = self.early.peek() {
            let (key, node) = (first.key, first.node);
            if may_take(node) {
                return Some((key, node));
            }
            self.early.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrived_tasks_come_by_key_and_others_by_arrival() {
        let keys = [1.0, 3.0, 3.0, 9.0];
        let mut queue = ReadyQueue::default();
        for (node, arrives_ns) in [(0, 0.0), (1, 5.0), (2, 5.0), (3, 8.0)] {
            queue.push(node, arrives_ns);
        }
        assert_eq!(queue.first(5.0, &keys, |_| true), Some((5.0, 1)));
        assert_eq!(queue.first(5.0, &keys, |node| node != 1), Some((5.0, 2)));
        assert_eq!(queue.first(5.0, &keys, |node| node == 3), Some((8.0, 3)));
        assert_eq!(queue.first(9.0, &keys, |_| true), Some((9.0, 3)));
        assert_eq!(queue.first(9.0, &keys, |_| false), None);
    }
}
