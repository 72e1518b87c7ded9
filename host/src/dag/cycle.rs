//! The order of tasks: each after those that it waits for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::draft::to_u32;

/// Sorts tasks: of those whose predecessors have been sorted, the first one is next. Returns the
/// tasks of a cycle, each of which waits for the one before, and the first for the last, if there
/// is one.
///
/// `predecessors`: per task, possibly several times the same.
pub(super) fn sort(predecessors: &[Vec<u32>]) -> Result<Vec<u32>, Vec<u32>> {
    let n_tasks = predecessors.len();
    let mut n_waits: Vec<u32> = predecessors.iter().map(|of| to_u32(of.len())).collect();
    let mut offsets = vec![0usize; n_tasks + 1];
    for &task in predecessors.iter().flatten() {
        offsets[task as usize + 1] += 1;
    }
    for task in 0..n_tasks {
        offsets[task + 1] += offsets[task];
    }
    let mut next = offsets.clone();
    let mut successors = vec![0u32; offsets[n_tasks]];
    for (task, of) in predecessors.iter().enumerate() {
        for &predecessor in of {
            let slot = &mut next[predecessor as usize];
            successors[*slot] = to_u32(task);
            *slot += 1;
        }
    }
    let tasks = 0..to_u32(n_tasks);
    let mut ready: BinaryHeap<Reverse<u32>> = tasks
        .filter(|&task| n_waits[task as usize] == 0)
        .map(Reverse)
        .collect();
    let mut order = Vec::with_capacity(n_tasks);
    while let Some(Reverse(task)) = ready.pop() {
        order.push(task);
        for &successor in &successors[offsets[task as usize]..offsets[task as usize + 1]] {
            let left = &mut n_waits[successor as usize];
            *left -= 1;
            if *left == 0 {
                ready.push(Reverse(successor));
            }
        }
    }
    match order.len() == n_tasks {
        true => Ok(order),
        false => Err(cycle(predecessors, &n_waits)),
    }
}

/// Each task that waits for others waits for one that does so, too: a way back ends in a cycle.
fn cycle(predecessors: &[Vec<u32>], n_waits: &[u32]) -> Vec<u32> {
    let waits = |task: &u32| n_waits[*task as usize] > 0;
    let mut at = (0..to_u32(n_waits.len())).find(waits);
    let mut step_of: Vec<Option<usize>> = vec![None; n_waits.len()];
    let mut way = Vec::new();
    while let Some(task) = at {
        if let Some(first) = step_of[task as usize] {
            let mut cycle = way.split_off(first);
            cycle.reverse();
            return cycle;
        }
        step_of[task as usize] = Some(way.len());
        way.push(task);
        at = predecessors[task as usize].iter().copied().find(waits);
    }
    way
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ready_task_is_next() {
        assert_eq!(
            sort(&[vec![2], vec![], vec![3, 3], vec![]]),
            Ok(vec![1, 3, 2, 0])
        );
        assert_eq!(sort(&[]), Ok(vec![]));
    }

    #[test]
    fn cycles_are_in_the_order_of_execution() {
        assert_eq!(sort(&[vec![0]]), Err(vec![0]));
        // 4 waits for the cycle, but is not part of it.
        let cycle = sort(&[vec![4], vec![3], vec![1], vec![2], vec![3]]);
        assert_eq!(cycle, Err(vec![1, 2, 3]));
    }
}
