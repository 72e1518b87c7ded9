//! The order in which one thread executes the steps of a plan.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::plan::Plan;
use crate::plan::StepId;

/// Returns the steps in execution order: among the ready ones, the highest priority first, then the
/// smallest id. Settled steps are left out.
pub(crate) fn serial_order(plan: &Plan, is_settled: &[bool]) -> Vec<StepId> {
    let mut n_waits: Vec<u32> = plan.steps().iter().map(|step| step.n_waits).collect();
    let entry = |id: StepId| (plan.step(id).priority, Reverse(id));
    let ready = plan.step_ids().map(StepId);
    let ready = ready.filter(|id| n_waits[id.index()] == 0).map(entry);
    let mut ready: BinaryHeap<_> = ready.collect();
    let mut order = Vec::with_capacity(plan.steps().len());
    while let Some((_, Reverse(id))) = ready.pop() {
        if !is_settled[id.index()] {
            order.push(id);
        }
        for &successor in plan.successors().row(id.index()) {
            let waits = &mut n_waits[successor as usize];
            *waits -= 1;
            if *waits == 0 {
                ready.push(entry(StepId(successor)));
            }
        }
    }
    order
}
