//! Fuses steps of a plan.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::plan::ExecutionPlan;
use super::plan::Fetch;
use super::plan::StepId;
use super::plan::ValueId;
use crate::graph::Csr;

/// A set of steps that execute one node each, to be replaced by one step.
#[derive(Debug, Clone)]
pub(crate) struct FusedStep {
    /// In the order of the plan. No path leads from one of them through other steps to another.
    pub(crate) steps: Vec<StepId>,
    /// The inputs of the fused step.
    pub(crate) inputs: Vec<ValueId>,
    /// The values that it writes; other steps read no other value of the steps.
    pub(crate) outputs: Vec<ValueId>,
}

/// Marks a step or a value that was removed.
const GONE: u32 = u32::MAX;

impl ExecutionPlan {
    /// Returns the plan with each of these sets fused into one step, and that step per set. The
    /// step executes the last node of the set.
    pub(crate) fn with_fused(&self, fused: &[FusedStep]) -> (Self, Vec<StepId>) {
        // Per step the step that replaces it.
        let mut stands_for: Vec<u32> = self.step_ids().collect();
        let mut set_of = FxHashMap::default();
        for set in fused {
            if let Some(last) = set.steps.last() {
                set_of.insert(*last, set);
                for step in &set.steps {
                    stands_for[step.index()] = last.0;
                }
            }
        }
        let order = self.order_of_fused(&stands_for);
        let mut new_step = vec![GONE; self.steps.len()];
        let mut new_value = vec![GONE; self.values.len()];
        let mut plan = Self {
            bodies: self.bodies.clone(),
            back_inputs: self.back_inputs.clone(),
            transfers: self.transfers.clone(),
            feeds: self.feeds.clone(),
            fetches: self.fetches.clone(),
            partitions: self.partitions.clone(),
            ..Self::default()
        };
        for (id, new) in order.iter().copied().zip(0..) {
            new_step[id.index()] = new;
            let mut step = self.step(id).clone();
            let mut outputs: SmallVec<[ValueId; 3]> = step.outputs().collect();
            if let Some(set) = set_of.get(&id) {
                step.inputs = set.inputs.iter().copied().collect();
                outputs = set.outputs.iter().copied().collect();
                let priorities = set.steps.iter().map(|&step| self.step(step).priority);
                step.priority = priorities.max().unwrap_or(step.priority);
            }
            let first = plan.values.len();
            for (value, new) in outputs.iter().zip(first..) {
                new_value[value.index()] = to_u32(new);
                plan.values.push(self.values[value.index()].clone());
            }
            step.n_outputs = to_u32(outputs.len());
            step.first_output = if outputs.is_empty() { 0 } else { to_u32(first) };
            step.n_waits = 0;
            plan.steps.push(step);
        }
        let step_now = |step: StepId| StepId(new_step[stands_for[step.index()] as usize]);
        let value_now = |value: ValueId| ValueId(new_value[value.index()]);
        for step in &mut plan.steps {
            let inputs = step.inputs.iter_mut();
            inputs.for_each(|value| *value = value_now(*value));
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
        plan.back_inputs
            .sort_unstable_by_key(|input| (input.step, input.input));
        for transfer in &mut plan.transfers {
            transfer.sent = transfer.sent.map(value_now);
            transfer.received = transfer.received.map(value_now);
        }
        for partition in &mut plan.partitions {
            let is_left = |step: &StepId| stands_for[step.index()] == step.0;
            partition.steps.retain(is_left);
            let steps = partition.steps.iter_mut();
            steps.for_each(|step| *step = step_now(*step));
            partition.steps.sort_unstable();
        }
        for feed in &mut plan.feeds {
            let steps = feed.steps.iter_mut();
            steps.for_each(|step| *step = step_now(*step));
        }
        for fetch in &mut plan.fetches {
            if let Fetch::Step(_, step) = fetch {
                *step = step_now(*step);
            }
        }
        let last = |set: &FusedStep| {
            let last = set.steps.last();
            last.map_or(StepId(GONE), |&last| step_now(last))
        };
        (plan, fused.iter().map(last).collect())
    }

    /// Returns the remaining steps in a topological order. Of the steps that may be next, the one
    /// that comes first in this plan is.
    fn order_of_fused(&self, stands_for: &[u32]) -> Vec<StepId> {
        let is_left = |step: &u32| stands_for[*step as usize] == *step;
        let mut members: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        let mut n_waits = vec![0u32; self.steps.len()];
        for id in self.step_ids() {
            let from = stands_for[id as usize];
            if from != id {
                members.entry(from).or_default().push(id);
            }
            for &successor in self.successors.row(id as usize) {
                let to = stands_for[successor as usize];
                n_waits[to as usize] += u32::from(to != from);
            }
        }
        let left = self.step_ids().filter(is_left);
        let ready = left.filter(|&id| n_waits[id as usize] == 0);
        let mut ready: BinaryHeap<Reverse<u32>> = ready.map(Reverse).collect();
        let mut order = Vec::with_capacity(self.steps.len());
        while let Some(Reverse(next)) = ready.pop() {
            order.push(StepId(next));
            let inner = members.get(&next).map_or(&[][..], Vec::as_slice);
            for &id in inner.iter().chain([&next]) {
                for &successor in self.successors.row(id as usize) {
                    let to = stands_for[successor as usize];
                    if to == next {
                        continue;
                    }
                    n_waits[to as usize] -= 1;
                    if n_waits[to as usize] == 0 {
                        ready.push(Reverse(to));
                    }
                }
            }
        }
        debug_assert_eq!(
            order.len(),
            self.step_ids().filter(is_left).count(),
            "a fused set waits for itself"
        );
        order
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

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a plan's ids are 32 bits wide")
}
