//! The order in which one thread executes the steps of a plan.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::graph::BodyId;
use crate::plan::ExecutionPlan;
use crate::plan::StepId;

/// The execution order of a plan's steps.
#[derive(Debug, Default)]
pub(crate) struct SerialOrder {
    /// Without settled steps. The steps of a loop are consecutive.
    pub(crate) steps: Vec<StepId>,
    /// The loops with steps, by their first step; a loop comes before those inside of it.
    pub(crate) loops: Vec<LoopSteps>,
}

/// The steps of a loop, `first..end` in a [`SerialOrder`], with those of the loops inside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopSteps {
    pub(crate) body: BodyId,
    pub(crate) first: usize,
    pub(crate) end: usize,
}

/// Returns the steps in execution order: among the ready ones, the highest priority first, then the
/// smallest id. A loop is ready when all that it needs from outside is there. Settled steps are
/// left out.
pub(crate) fn serial_order(plan: &ExecutionPlan, is_settled: &[bool]) -> SerialOrder {
    if !plan.bodies().is_empty() {
        return Nested::new(plan, is_settled).order();
    }
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
    SerialOrder {
        steps: order,
        loops: Vec::new(),
    }
}

/// The order of a plan with loops. Its items are steps and, in the body around them, whole loops.
struct Nested<'a> {
    plan: &'a ExecutionPlan,
    is_settled: &'a [bool],
    /// Per item the items of the same body that wait for it. Loops follow the steps.
    successors: Vec<Vec<u32>>,
    n_waits: Vec<u32>,
    /// Per body its items.
    items: Vec<Vec<u32>>,
    /// Per item the number that orders equals: a step's id, or that of a loop's first step.
    ids: Vec<u32>,
    order: SerialOrder,
}

impl<'a> Nested<'a> {
    fn new(plan: &'a ExecutionPlan, is_settled: &'a [bool]) -> Self {
        let (n_steps, n_bodies) = (plan.steps().len(), plan.bodies().len());
        let mut nested = Self {
            plan,
            is_settled,
            successors: vec![Vec::new(); n_steps + n_bodies],
            n_waits: vec![0; n_steps + n_bodies],
            items: vec![Vec::new(); n_bodies],
            ids: plan.step_ids().collect(),
            order: SerialOrder::default(),
        };
        nested.ids.resize(n_steps + n_bodies, u32::MAX);
        for (id, step) in plan.step_ids().zip(plan.steps()) {
            nested.items[step.body.index()].push(id);
            // Step ids ascend, so a loop that has a number has the smallest.
            let mut body = step.body;
            while body != BodyId::OUTERMOST && nested.ids[n_steps + body.index()] == u32::MAX {
                let item = nested.loop_item(body);
                nested.ids[item as usize] = id;
                body = plan.bodies()[body.index()].parent;
                nested.items[body.index()].push(item);
            }
        }
        for from in plan.step_ids() {
            for &to in plan.successors().row(from as usize) {
                if let Some((from, to)) = nested.level(from, to) {
                    nested.successors[from as usize].push(to);
                    nested.n_waits[to as usize] += 1;
                }
            }
        }
        nested
    }

    #[expect(clippy::cast_possible_truncation, reason = "bodies have 32-bit ids")]
    fn loop_item(&self, body: BodyId) -> u32 {
        (self.plan.steps().len() + body.index()) as u32
    }

    /// Returns the ends of an edge as items of the innermost body that encloses both; `None` if
    /// both are in one item.
    fn level(&self, from: u32, to: u32) -> Option<(u32, u32)> {
        let bodies = self.plan.bodies();
        let (mut from, mut to) = (from, to);
        let mut from_body = self.plan.steps()[from as usize].body;
        let mut to_body = self.plan.steps()[to as usize].body;
        while from_body != to_body {
            let is_from_deeper = bodies[from_body.index()].depth >= bodies[to_body.index()].depth;
            let (item, body) = match is_from_deeper {
                true => (&mut from, &mut from_body),
                false => (&mut to, &mut to_body),
            };
            *item = self.loop_item(*body);
            *body = bodies[body.index()].parent;
        }
        (from != to).then_some((from, to))
    }

    fn order(mut self) -> SerialOrder {
        self.order_body(BodyId::OUTERMOST);
        self.order
    }

    /// Appends the items of a body.
    fn order_body(&mut self, body: BodyId) {
        let n_steps = self.plan.steps().len();
        let items = std::mem::take(&mut self.items[body.index()]);
        let entry = |nested: &Self, item: u32| {
            let priority = match nested.plan.steps().get(item as usize) {
                // Reads what the previous iteration wrote, before anything is written again.
                Some(_) if !nested.plan.back_inputs_of(StepId(item)).is_empty() => i64::MAX,
                Some(step) => step.priority.into(),
                None => 0,
            };
            (priority, Reverse(nested.ids[item as usize]), item)
        };
        let ready = items.iter().copied();
        let ready = ready.filter(|&item| self.n_waits[item as usize] == 0);
        let mut ready: BinaryHeap<_> = ready.map(|item| entry(self, item)).collect();
        while let Some((_, _, item)) = ready.pop() {
            if let Some(body) = (item as usize).checked_sub(n_steps) {
                let slot = self.order.loops.len();
                let first = self.order.steps.len();
                #[expect(clippy::cast_possible_truncation, reason = "bodies have 32-bit ids")]
                let body = BodyId(body as u32);
                let end = first;
                self.order.loops.push(LoopSteps { body, first, end });
                self.order_body(body);
                self.order.loops[slot].end = self.order.steps.len();
            } else if !self.is_settled[item as usize] {
                self.order.steps.push(StepId(item));
            }
            for successor in std::mem::take(&mut self.successors[item as usize]) {
                let waits = &mut self.n_waits[successor as usize];
                *waits -= 1;
                if *waits == 0 {
                    ready.push(entry(self, successor));
                }
            }
        }
    }
}
