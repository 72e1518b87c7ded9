//! Fuses steps of a plan.

use rustc_hash::FxHashMap;

use super::plan::Fetch;
use super::plan::Plan;
use super::plan::StepId;
use super::plan::ValueId;
use crate::graph::Csr;

/// A set of steps that execute one node each, to be replaced by the last of them.
#[derive(Debug, Clone)]
pub(crate) struct FusedStep {
    /// In the order of the plan. No other step reads the values of any but the last step, or waits
    /// for one.
    pub(crate) steps: Vec<StepId>,
    /// The inputs of the fused step.
    pub(crate) inputs: Vec<ValueId>,
}

/// Marks a step that was removed.
const GONE: u32 = u32::MAX;

impl Plan {
    /// Returns the plan with each of these sets fused into one step, and that step per set.
    pub(crate) fn with_fused(&self, fused: &[FusedStep]) -> (Self, Vec<StepId>) {
        // Per step the step that replaces it.
        let mut stands_for: Vec<u32> = self.step_ids().collect();
        let mut inputs_of = FxHashMap::default();
        for set in fused {
            if let Some((last, inner)) = set.steps.split_last() {
                inputs_of.insert(*last, &set.inputs);
                for step in inner {
                    stands_for[step.index()] = last.0;
                }
            }
        }
        let is_left = |step: u32| stands_for[step as usize] == step;
        let mut new_step = vec![GONE; self.steps.len()];
        let mut new_value = vec![GONE; self.values.len()];
        let (mut n_steps, mut n_values) = (0, 0);
        for (id, step) in self.step_ids().zip(&self.steps) {
            if is_left(id) {
                new_step[id as usize] = n_steps;
                n_steps += 1;
                for value in step.output_range() {
                    new_value[value] = n_values;
                    n_values += 1;
                }
            }
        }
        let step_now = |step: StepId| StepId(new_step[stands_for[step.index()] as usize]);
        let value_now = |value: ValueId| ValueId(new_value[value.index()]);

        let mut plan = Self {
            bodies: self.bodies.clone(),
            back_inputs: self.back_inputs.clone(),
            transfers: self.transfers.clone(),
            feeds: self.feeds.clone(),
            fetches: self.fetches.clone(),
            partitions: self.partitions.clone(),
            ..Self::default()
        };
        let values = self.values.iter().zip(&new_value);
        let values = values.filter(|&(_, &new)| new != GONE);
        plan.values = values.map(|(value, _)| value.clone()).collect();
        for (id, step) in self.step_ids().zip(&self.steps) {
            if !is_left(id) {
                continue;
            }
            let mut step = step.clone();
            if let Some(inputs) = inputs_of.get(&StepId(id)) {
                step.inputs = inputs.iter().copied().collect();
            }
            step.inputs
                .iter_mut()
                .for_each(|value| *value = value_now(*value));
            step.first_output = match step.n_outputs {
                0 => 0,
                _ => value_now(ValueId(step.first_output)).0,
            };
            step.n_waits = 0;
            plan.steps.push(step);
        }
        plan.link(self, &stands_for, &new_step);
        plan.values.iter_mut().for_each(|value| value.n_readers = 0);
        for step in &plan.steps {
            for value in &step.inputs {
                plan.values[value.index()].n_readers += 1;
            }
        }
        for input in &mut plan.back_inputs {
            input.step = step_now(input.step);
            input.value = value_now(input.value);
            plan.values[input.value.index()].n_readers += 1;
        }
        for transfer in &mut plan.transfers {
            transfer.sent = transfer.sent.map(value_now);
            transfer.received = transfer.received.map(value_now);
        }
        for partition in &mut plan.partitions {
            partition.steps.retain(|step| is_left(step.0));
            partition
                .steps
                .iter_mut()
                .for_each(|step| *step = step_now(*step));
        }
        for feed in &mut plan.feeds {
            feed.steps
                .iter_mut()
                .for_each(|step| *step = step_now(*step));
        }
        for fetch in &mut plan.fetches {
            if let Fetch::Step(_, step) = fetch {
                *step = step_now(*step);
            }
        }
        let last = |set: &FusedStep| {
            set.steps
                .last()
                .map_or(StepId(GONE), |&last| step_now(last))
        };
        (plan, fused.iter().map(last).collect())
    }

    /// Copies the edges of `old` between the remaining steps, without those within a set.
    fn link(&mut self, old: &Self, stands_for: &[u32], new_step: &[u32]) {
        let edges = || {
            old.step_ids().flat_map(|id| {
                let from = stands_for[id as usize];
                let row = old.successors.row(id as usize).iter();
                let to = row.map(|&successor| stands_for[successor as usize]);
                let outside = to.filter(move |&to| to != from);
                outside.map(move |to| (new_step[from as usize], new_step[to as usize]))
            })
        };
        let mut successors = Csr::default();
        successors.offsets.resize(self.steps.len() + 1, 0);
        for (from, to) in edges() {
            successors.offsets[from as usize + 1] += 1;
            self.steps[to as usize].n_waits += 1;
        }
        for step in 0..self.steps.len() {
            successors.offsets[step + 1] += successors.offsets[step];
        }
        let mut next = successors.offsets.clone();
        let n_edges = next.last().map_or(0, |&end| end as usize);
        successors.items.resize(n_edges, 0);
        for (from, to) in edges() {
            let slot = &mut next[from as usize];
            successors.items[*slot as usize] = to;
            *slot += 1;
        }
        self.successors = successors;
    }
}
