//! Divides the nodes of devices that take whole partitions into clusters.
//!
//! A cluster is executed as one step, so what it reads must not depend on what it computes, and all
//! of its nodes must be executed in the same cases. Nodes may share a cluster if they have
//!
//! - the same device and the same body, and so the same iterations,
//! - the same guards: the outputs of `Switch` nodes that must be live for the node to be executed,
//! - the same generation. The generation of a step is the largest of those of the steps that it
//!   waits for, and one more for those in another class of device, body and guards. A path that
//!   leaves a cluster therefore never returns to it.
//!
//! Generations separate nodes also where no path leaves and returns, for example those that read a
//! tensor of another device from those that do not. Neighbouring clusters are therefore merged if
//! no path leads from the first through other steps to the second.

use rustc_hash::FxHashMap;
use rustc_hash::FxHashSet;

use crate::device::ClusterNodes;
use crate::device::ClusterSource;
use crate::device::ClusterTensor;
use crate::graph::BodyId;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::TensorId;
use crate::graph::is_merge;
use crate::graph::is_switch;
use crate::names::DeviceId;
use crate::ops::decides_dead_tensors;
use crate::plan::ExecutionPlan;
use crate::plan::FusedStep;
use crate::plan::MemorySpace;
use crate::plan::Settled;
use crate::plan::StepId;
use crate::plan::StepKind;
use crate::plan::ValueId;
use crate::plan::is_constant;

/// Number of pairs of clusters per plan for which a merge is tried. Each try may visit all steps.
const N_MERGES_TRIED: usize = 256;

/// What must be true for a step to be executed, in its iteration. Equal sets are true at the same
/// times.
type Guards = Vec<Guard>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Guard {
    /// The selector of a `Switch` has chosen this output of so many. A selector that is too large
    /// chooses the last output, so the number matters.
    Chosen(TensorId, u32, u32),
    /// The loop has been entered.
    Entered(BodyId),
    /// This `Merge` has a live input.
    Merged(StepId),
}

/// The classes of nodes that may share a cluster.
type Class = (DeviceId, BodyId, u32);

/// Returns the clusters of these devices, each with the same for the plan.
pub(super) fn clusters(
    graph: &Graph,
    plan: &ExecutionPlan,
    is_clustered: impl Fn(DeviceId) -> bool,
) -> Vec<(ClusterNodes, FusedStep)> {
    let guards = guards(graph, plan);
    let settled = Settled::of(plan, graph, |_| false);
    let class_of = |id: StepId| -> Option<Class> {
        let step = plan.step(id);
        let StepKind::Execute(node) = step.kind else {
            return None;
        };
        let is_member = is_clustered(step.device)
            && !is_constant(graph, node)
            && !settled.is_settled[id.index()]
            && !decides_dead_tensors(graph.op(node));
        is_member.then(|| (step.device, step.body, guards[id.index()]))
    };
    let mut groups = Groups::of(plan, class_of);
    groups.merge(plan);
    let members = groups.members.iter().filter(|members| !members.is_empty());
    let writers = writers(plan);
    members
        .map(|members| cluster(graph, plan, &settled, &writers, members))
        .collect()
}

/// Steps by cluster.
struct Groups {
    /// Per step its cluster, or [`NONE`].
    group_of: Vec<u32>,
    /// Per cluster its steps, in the order of the plan; empty if it was merged into another.
    members: Vec<Vec<StepId>>,
    /// The clusters of each class, by generation.
    classes: Vec<Vec<u32>>,
}

impl Groups {
    fn of(plan: &ExecutionPlan, class_of: impl Fn(StepId) -> Option<Class>) -> Self {
        let classes: Vec<Option<Class>> = plan.step_ids().map(|id| class_of(StepId(id))).collect();
        let mut generations = vec![0u32; plan.steps().len()];
        let mut groups: FxHashMap<(Class, u32), u32> = FxHashMap::default();
        let mut group_of = vec![NONE; plan.steps().len()];
        let mut members: Vec<Vec<StepId>> = Vec::new();
        for id in plan.step_ids() {
            let (class, generation) = (classes[id as usize], generations[id as usize]);
            if let Some(class) = class {
                let next = u32::try_from(groups.len()).unwrap_or(NONE);
                let group = *groups.entry((class, generation)).or_insert(next);
                if group == next {
                    members.push(Vec::new());
                }
                members[group as usize].push(StepId(id));
                group_of[id as usize] = group;
            }
            for &successor in plan.successors().row(id as usize) {
                let leaves = class.is_some() && classes[successor as usize] != class;
                let reached = generation + u32::from(leaves);
                let known = &mut generations[successor as usize];
                *known = reached.max(*known);
            }
        }
        let mut sorted: Vec<_> = groups.into_iter().collect();
        sorted.sort_unstable();
        let same_class = sorted.chunk_by(|((a, _), _), ((b, _), _)| a == b);
        Self {
            classes: same_class
                .map(|groups| groups.iter().map(|&(_, group)| group).collect())
                .collect(),
            group_of,
            members,
        }
    }

    /// Merges neighbouring clusters of a class where nothing between them forbids it.
    fn merge(&mut self, plan: &ExecutionPlan) {
        let mut n_tries = N_MERGES_TRIED;
        for class in std::mem::take(&mut self.classes) {
            let mut groups = class.into_iter();
            let Some(mut first) = groups.next() else {
                continue;
            };
            for second in groups {
                if n_tries == 0 {
                    return;
                }
                n_tries -= 1;
                if self.is_path_between(plan, first, second) {
                    first = second;
                    continue;
                }
                let moved = std::mem::take(&mut self.members[second as usize]);
                for step in &moved {
                    self.group_of[step.index()] = first;
                }
                let members = &mut self.members[first as usize];
                members.extend(moved);
                members.sort_unstable();
            }
        }
    }

    /// Returns whether a path leads from a cluster through steps outside of both to another.
    fn is_path_between(&self, plan: &ExecutionPlan, first: u32, second: u32) -> bool {
        let mut seen_groups = FxHashSet::default();
        let mut seen_steps = FxHashSet::default();
        let mut pending: Vec<StepId> = self.members[first as usize].clone();
        seen_groups.insert(first);
        while let Some(step) = pending.pop() {
            let is_inside = self.group_of[step.index()] == first;
            for &successor in plan.successors().row(step.index()) {
                let group = self.group_of[successor as usize];
                if group == second {
                    if !is_inside {
                        return true;
                    }
                } else if group == NONE {
                    if seen_steps.insert(successor) {
                        pending.push(StepId(successor));
                    }
                } else if seen_groups.insert(group) {
                    // A cluster is executed as a whole: all of its nodes follow.
                    pending.extend(&self.members[group as usize]);
                }
            }
        }
        false
    }
}

/// Returns per step the set of its guards, numbered. Steps with equal numbers are executed in the
/// same cases, if they have the same body.
fn guards(graph: &Graph, plan: &ExecutionPlan) -> Vec<u32> {
    let n_steps = plan.steps().len();
    let is_decided = |id: u32| match plan.step(StepId(id)).kind {
        StepKind::Execute(node) => decides_dead_tensors(graph.op(node)),
        _ => false,
    };
    if !plan.step_ids().any(is_decided) {
        return vec![0; n_steps];
    }
    let mut of_steps: Vec<Guards> = vec![Guards::new(); n_steps];
    let mut of_values: Vec<Guards> = vec![Guards::new(); plan.values().len()];
    let mut numbers: FxHashMap<Guards, u32> = FxHashMap::default();
    let mut numbered = Vec::with_capacity(n_steps);
    for (id, step) in plan.step_ids().map(StepId).zip(plan.steps()) {
        let op = match step.kind {
            StepKind::Execute(node) => graph.op(node),
            _ => "",
        };
        let inputs = step.inputs.iter().map(|value| &of_values[value.index()]);
        let own = if is_merge(op) {
            merged(plan, id, inputs)
        } else {
            let mut own = std::mem::take(&mut of_steps[id.index()]);
            own.extend(inputs.flatten().copied());
            own.sort_unstable();
            own.dedup();
            own
        };
        for (output, value) in step.output_range().enumerate() {
            of_values[value].clone_from(&own);
            if is_switch(op)
                && let Some(selector) = step.inputs.get(1)
            {
                let selector = plan.values()[selector.index()].tensor;
                let output = u32::try_from(output).unwrap_or(NONE);
                of_values[value].push(Guard::Chosen(selector, output, step.n_outputs));
            }
        }
        for &successor in plan.successors().row(id.index()) {
            of_steps[successor as usize].extend(own.iter().copied());
        }
        let next = u32::try_from(numbers.len()).unwrap_or(NONE);
        numbered.push(*numbers.entry(own).or_insert(next));
    }
    numbered
}

/// Returns the guards of a `Merge`.
fn merged<'a>(
    plan: &ExecutionPlan,
    id: StepId,
    inputs: impl Iterator<Item = &'a Guards>,
) -> Guards {
    let step = plan.step(id);
    if !plan.back_inputs_of(id).is_empty() {
        return vec![Guard::Entered(step.body)];
    }
    let inputs: Vec<&Guards> = inputs.collect();
    let has_controls = step.n_waits as usize != step.inputs.len();
    let opaque = vec![Guard::Merged(id)];
    let [first, second] = inputs[..] else {
        return opaque;
    };
    // The two outputs of one `Switch`: one of them is live.
    let only = |a: &Guards, b: &Guards| -> Vec<Guard> {
        let only = a.iter().filter(|guard| !b.contains(guard));
        only.copied().collect()
    };
    match (&only(first, second)[..], &only(second, first)[..]) {
        (&[Guard::Chosen(a, 0, 2)], &[Guard::Chosen(b, 1, 2)])
        | (&[Guard::Chosen(a, 1, 2)], &[Guard::Chosen(b, 0, 2)])
            if a == b && !has_controls =>
        {
            let both = first.iter().filter(|guard| second.contains(guard));
            both.copied().collect()
        }
        _ => opaque,
    }
}

fn writers(plan: &ExecutionPlan) -> Vec<StepId> {
    let mut writers = vec![StepId(NONE); plan.values().len()];
    for (id, step) in plan.step_ids().map(StepId).zip(plan.steps()) {
        writers[step.output_range()].fill(id);
    }
    writers
}

/// Describes the cluster of these steps.
fn cluster(
    graph: &Graph,
    plan: &ExecutionPlan,
    settled: &Settled,
    writers: &[StepId],
    members: &[StepId],
) -> (ClusterNodes, FusedStep) {
    let inside: FxHashSet<StepId> = members.iter().copied().collect();
    let describe = |value: ValueId, is_constant: bool| ClusterTensor {
        tensor: plan.values()[value.index()].tensor,
        is_on_host: plan.values()[value.index()].space == MemorySpace::Host,
        is_constant,
    };
    let mut inputs: Vec<ValueId> = Vec::new();
    let mut index_of: FxHashMap<ValueId, usize> = FxHashMap::default();
    let mut read_inside: FxHashMap<ValueId, u32> = FxHashMap::default();
    let (mut nodes, mut sources) = (Vec::new(), Vec::new());
    for &id in members {
        let step = plan.step(id);
        let StepKind::Execute(node) = step.kind else {
            continue;
        };
        nodes.push(node);
        let found = step.inputs.iter().map(|&value| {
            let writer = writers[value.index()];
            if inside.contains(&writer) {
                *read_inside.entry(value).or_default() += 1;
                let (node, output) = graph.producer(plan.values()[value.index()].tensor);
                return ClusterSource::Node(node, output);
            }
            let index = *index_of.entry(value).or_insert_with(|| {
                inputs.push(value);
                inputs.len() - 1
            });
            ClusterSource::Input(index)
        });
        sources.push(found.collect());
    }
    let written = members.iter().flat_map(|&id| plan.step(id).outputs());
    let outputs: Vec<ValueId> = written
        .filter(|value| {
            let n_inside = read_inside.get(value).copied().unwrap_or(0);
            plan.values()[value.index()].n_readers > n_inside
        })
        .collect();
    let is_constant = |value: ValueId| settled.is_fixed(value.index());
    let cluster = ClusterNodes {
        nodes,
        inputs: inputs
            .iter()
            .map(|&value| describe(value, is_constant(value)))
            .collect(),
        outputs: outputs
            .iter()
            .map(|&value| describe(value, false))
            .collect(),
        sources,
    };
    let fused = FusedStep {
        steps: members.to_vec(),
        inputs,
        outputs,
    };
    (cluster, fused)
}
