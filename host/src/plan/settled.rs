//! The steps and values of a plan that are the same in all runs.

use super::plan::ExecutionPlan;
use super::plan::StepId;
use super::plan::StepKind;
use crate::graph::Graph;
use crate::graph::IDENTITY;
use crate::graph::NodeId;
use crate::graph::TensorId;

/// Which steps and values of a plan are the same in all runs.
#[derive(Debug)]
pub(crate) struct Settled {
    /// Per step whether runs skip it, because all values that it writes are fixed.
    pub(crate) is_settled: Vec<bool>,
    /// Per value the constant that it is in all runs: the output of a `Const`, what an `Identity`
    /// of it outputs, and copies of both on other devices.
    constants: Vec<Option<TensorId>>,
    /// Per value whether it is fixed and a step of a run reads it. Only such constants are kept: a
    /// constant that is read only on other devices takes no memory on its own device.
    is_held: Vec<bool>,
}

impl Settled {
    /// Computes the settled steps of a plan. `is_fused`: whether a step executes other nodes, too.
    pub(crate) fn of(
        plan: &ExecutionPlan,
        graph: &Graph,
        is_fused: impl Fn(StepId) -> bool,
    ) -> Self {
        let mut constants: Vec<Option<TensorId>> = vec![None; plan.values().len()];
        let mut is_settled = vec![false; plan.steps().len()];
        let mut n_waits: Vec<u32> = plan.steps().iter().map(|step| step.n_waits).collect();
        for (id, step) in plan.step_ids().map(StepId).zip(plan.steps()) {
            if n_waits[id.index()] > 0 {
                continue;
            }
            let sent = |transfer: usize| plan.transfers()[transfer].sent;
            let (settles, constant) = match step.kind {
                StepKind::Execute(_) if is_fused(id) => (false, None),
                StepKind::Execute(node) => {
                    let constant = match graph.op(node) {
                        IDENTITY => step.inputs.first().and_then(|of| constants[of.index()]),
                        _ if is_constant(graph, node) => graph.output(node, 0),
                        _ => None,
                    };
                    (constant.is_some(), constant)
                }
                // A streamed constant is sent in each run.
                StepKind::Send(transfer) if !plan.transfers()[transfer.index()].is_once => {
                    (false, None)
                }
                StepKind::Send(transfer) => {
                    let sent = sent(transfer.index());
                    (
                        sent.is_none_or(|sent| constants[sent.index()].is_some()),
                        None,
                    )
                }
                // It waits only for its send, which is settled.
                StepKind::Receive(transfer) => {
                    let sent = sent(transfer.index());
                    (true, sent.and_then(|sent| constants[sent.index()]))
                }
                StepKind::Feed(_) | StepKind::Fetch(_) => (false, None),
            };
            is_settled[id.index()] = settles;
            if settles {
                constants[step.output_range()].fill(constant);
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
                is_held[value.index()] = constants[value.index()].is_some();
            }
        }
        Self {
            is_settled,
            constants,
            is_held,
        }
    }

    /// Returns whether a value is the same in all runs.
    pub(crate) fn is_fixed(&self, value: usize) -> bool {
        self.constants[value].is_some()
    }

    /// Returns the constant that a value is in all runs, if a step of a run reads the value.
    pub(crate) fn held_constant(&self, value: usize) -> Option<TensorId> {
        self.constants[value].filter(|_| self.is_held[value])
    }
}

/// Checks whether a node outputs a constant, if nothing is fused into it.
pub(crate) fn is_constant(graph: &Graph, node: NodeId) -> bool {
    graph.op(node) == "Const" && graph.attrs(node).tensor("value").is_some()
}
