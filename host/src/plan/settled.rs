//! The steps and values of a plan that are the same in all runs.

use super::plan::ExecutionPlan;
use super::plan::StepId;
use super::plan::StepKind;
use crate::graph::Graph;
use crate::graph::NodeId;

/// Which steps and values of a plan are the same in all runs.
#[derive(Debug)]
pub(crate) struct Settled {
    /// Per step whether runs skip it, because all values that it writes are fixed.
    pub(crate) is_settled: Vec<bool>,
    /// Per value whether it is the same in all runs: constants, and their copies on other devices.
    pub(crate) is_fixed: Vec<bool>,
    /// Per value whether it is fixed and a step of a run reads it. Only such constants are kept: a
    /// constant that is read only on other devices takes no memory on its own device.
    pub(crate) is_held: Vec<bool>,
}

impl Settled {
    /// Computes the settled steps of a plan. `is_constant`: whether a step that executes a node
    /// outputs a constant.
    pub(crate) fn of(plan: &ExecutionPlan, is_constant: impl Fn(StepId, NodeId) -> bool) -> Self {
        let mut is_fixed = vec![false; plan.values().len()];
        let mut is_settled = vec![false; plan.steps().len()];
        let mut n_waits: Vec<u32> = plan.steps().iter().map(|step| step.n_waits).collect();
        for (id, step) in plan.step_ids().map(StepId).zip(plan.steps()) {
            if n_waits[id.index()] > 0 {
                continue;
            }
            let is_sent_fixed = |transfer: usize| {
                let sent = plan.transfers()[transfer].sent;
                sent.is_none_or(|sent| is_fixed[sent.index()])
            };
            is_settled[id.index()] = match step.kind {
                StepKind::Execute(node) => is_constant(id, node),
                StepKind::Send(transfer) => is_sent_fixed(transfer.index()),
                // It waits only for its send, which is settled.
                StepKind::Receive(_) => true,
                StepKind::Feed(_) | StepKind::Fetch(_) => false,
            };
            if is_settled[id.index()] {
                is_fixed[step.output_range()].fill(true);
                for &successor in plan.successors().row(id.index()) {
                    n_waits[successor as usize] -= 1;
                }
            }
        }
        let mut is_held = vec![false; plan.values().len()];
        for (step, _) in plan
            .steps()
            .iter()
            .zip(&is_settled)
            .filter(|(_, settled)| !**settled)
        {
            for value in &step.inputs {
                is_held[value.index()] = is_fixed[value.index()];
            }
        }
        Self {
            is_settled,
            is_fixed,
            is_held,
        }
    }
}

/// Checks whether a node outputs a constant, if nothing is fused into it.
pub(crate) fn is_constant(graph: &Graph, node: NodeId) -> bool {
    graph.op(node) == "Const" && graph.attrs(node).tensor("value").is_some()
}
