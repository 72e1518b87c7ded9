//! Estimates which execution modes may be faster, from the measured time of each operation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::tuning::{ExecutionMode, ExecutionModes, RunConfig};
use crate::cost::{JOIN_NS, SERIAL_DISPATCH_NS, SHARED_DISPATCH_NS};
use crate::execute::compile::Compiled;
use crate::execute::ready::ReadySet;

/// Time of an operation from which on spinning workers can shorten it: much longer than publishing
/// a parallel loop to them.
const WORTH_SPINNING_NS: u32 = 4_000;

/// Returns serial mode, and each other mode that may be faster.
pub(super) fn modes_worth_trying(
    compiled: &Compiled,
    costs: &[u32],
    config: RunConfig,
) -> ExecutionModes {
    let mut modes = ExecutionModes::from_slice(&[ExecutionMode::Serial]);
    if config.may_spin && costs.iter().any(|&cost| cost >= WORTH_SPINNING_NS) {
        modes.push(ExecutionMode::Spinning);
    }
    if config.n_threads > 1 && sharing_pays(compiled, costs, config.n_threads) {
        modes.push(ExecutionMode::Shared);
    }
    modes
}

/// Checks whether several threads are worth their overhead, by list scheduling of the operations
/// with their measured times.
fn sharing_pays(compiled: &Compiled, costs: &[u32], n_threads: usize) -> bool {
    let cost = |rank: u32, dispatch| u64::from(costs[rank as usize]) + u64::from(dispatch);
    let n_operations = u32::try_from(costs.len()).unwrap_or(u32::MAX);
    let serial: u64 = (0..n_operations)
        .map(|rank| cost(rank, SERIAL_DISPATCH_NS))
        .sum();
    if serial < 2 * u64::from(JOIN_NS) {
        return false;
    }
    let ready = ReadySet::new(costs.len());
    let mut waits = compiled.n_waits.clone();
    for rank in (0..n_operations).filter(|&rank| waits[rank as usize] == 0) {
        ready.insert(rank);
    }
    let (mut now, mut n_idle) = (0, n_threads);
    let mut running: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
    loop {
        while n_idle > 0
            && let Some(rank) = ready.pop()
        {
            n_idle -= 1;
            running.push(Reverse((now + cost(rank, SHARED_DISPATCH_NS), rank)));
        }
        let Some(Reverse((end, rank))) = running.pop() else {
            break;
        };
        (now, n_idle) = (end, n_idle + 1);
        for &successor in compiled.successors.row(rank as usize) {
            let waits = &mut waits[successor as usize];
            *waits -= 1;
            if *waits == 0 {
                ready.insert(successor);
            }
        }
    }
    (now + u64::from(JOIN_NS)) * 10 < serial * 9
}
