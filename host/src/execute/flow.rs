//! Branches and loops of a plan: dead tensors, and steps that are executed once per iteration.
//!
//! A `Switch` leaves all of its outputs *dead* but one. An operation with a dead input is dead: it
//! does not execute, and its outputs are dead. A `Merge` passes on its live input. These are
//! TensorFlow's rules, so graphs that were written by hand run as they do there.
//!
//! The operations of a loop have consecutive ranks, a [`Region`]. One thread executes them in order
//! and starts again, as long as a `NextIteration` is live. TensorFlow may execute iterations of one
//! loop at the same time; the results are the same. A region has no tensors or counters of its own:
//! each iteration writes the same values of the run again.
//!
//! Plans without branches and loops have no [`Flow`], and their runs do not use this module.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::compile::Operation;
use super::error::ExecuteError;
use super::prepare::{Action, Program};
use super::run::{Request, RunState};
use super::step;
use crate::graph::{BodyId, Csr, is_exit};
use crate::memory::LoopSteps;
use crate::plan::{StepId, StepKind};
use crate::trace::{Event, EventKind};

/// The branches and loops of a compiled plan.
#[derive(Debug)]
pub(super) struct Flow {
    kinds: Box<[Kind]>,
    /// Per rank the ranks whose deadness reaches it other than by a tensor: over control edges, and
    /// from a send to its receive.
    control: Csr,
    /// Per entry of [`super::compile::Compiled::inputs`] whether the value stays after the read,
    /// because later iterations read it again.
    stays: Box<[bool]>,
    pub(super) regions: Box<[Region]>,
    /// The regions outside of all others, by rank.
    outermost: Box<[u32]>,
}

/// How an operation treats dead inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No input is ever dead.
    Live,
    /// It is dead if an input is.
    Guarded,
    /// It is dead if all inputs are.
    Merge,
    /// It is dead until its input has been live in one iteration.
    Exit,
    /// It is never dead, although an operation that it waits for may be.
    Trigger,
    /// It does nothing: the `Merge` that reads its output reads its input instead.
    Skipped,
}

/// The operations of a loop, `first..end`.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) body: BodyId,
    pub(super) first: u32,
    pub(super) end: u32,
    /// The operations that start an iteration: the first ones.
    merges: Box<[LoopMerge]>,
    /// The loops inside of it, by rank.
    children: Box<[u32]>,
    exits: Box<[u32]>,
    /// Values of enclosing bodies, one entry per read. They are read in each iteration, and left
    /// after the last one.
    pub(super) outside: Box<[u32]>,
    /// Values that must keep their places while the loop runs: those that the next iteration reads,
    /// and the results.
    pub(super) carried: Box<[u32]>,
}

/// A `Merge` that starts an iteration.
#[derive(Debug)]
struct LoopMerge {
    rank: u32,
    /// What the first iteration reads: index of the input, and value.
    first: Box<[(u32, u32)]>,
    /// What later iterations read.
    next: Box<[(u32, u32)]>,
}

/// The compiled parts that [`Flow`] is made from.
pub(super) struct FlowParts<'a> {
    pub(super) program: &'a Program,
    pub(super) order: &'a [StepId],
    pub(super) loops: &'a [LoopSteps],
    pub(super) rank_of: &'a [u32],
    pub(super) operations: &'a [Operation],
    pub(super) inputs: &'a [u32],
}

impl Flow {
    /// Returns the flow of a plan; `None` if it has no branches and no loops.
    pub(super) fn new(parts: &FlowParts<'_>) -> Option<Box<Self>> {
        let has_flow = |action: &Option<Action>| {
            matches!(
                action,
                Some(Action::Switch | Action::Merge | Action::PassOn)
            )
        };
        if !parts.program.actions.iter().any(has_flow) {
            return None;
        }
        let mut flow = Self {
            kinds: Box::default(),
            control: control_edges(parts),
            stays: vec![false; parts.inputs.len()].into(),
            regions: Box::default(),
            outermost: Box::default(),
        };
        flow.kinds = kinds(parts, &flow.control);
        flow.find_regions(parts);
        Some(Box::new(flow))
    }

    fn find_regions(&mut self, parts: &FlowParts<'_>) {
        let plan = &parts.program.plan;
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); parts.loops.len()];
        let mut outermost = Vec::new();
        let mut region_of = vec![u32::MAX; plan.bodies().len()];
        for (region, steps) in (0..).zip(parts.loops) {
            region_of[steps.body.index()] = region;
            match plan.bodies()[steps.body.index()].parent {
                BodyId::OUTERMOST => outermost.push(region),
                parent => children[region_of[parent.index()] as usize].push(region),
            }
        }
        let writer_body = writer_bodies(parts.program);
        let mut outside: Vec<Vec<u32>> = vec![Vec::new(); parts.loops.len()];
        let mut exits: Vec<Vec<u32>> = vec![Vec::new(); parts.loops.len()];
        let mut entry = 0;
        for (rank, operation) in (0..).zip(parts.operations) {
            let body = plan.step(operation.step).body;
            for &value in &parts.inputs[operation.input_range()] {
                // Left by the loop that is in the body of the value and encloses the reader.
                let mut reader = body;
                let mut region = None;
                while reader != writer_body[value as usize] && reader != BodyId::OUTERMOST {
                    region = Some(region_of[reader.index()]);
                    reader = plan.bodies()[reader.index()].parent;
                }
                if let Some(region) = region {
                    self.stays[entry] = true;
                    outside[region as usize].push(value);
                }
                entry += 1;
            }
            if self.kinds[rank as usize] == Kind::Exit {
                exits[region_of[body.index()] as usize].push(rank);
            }
        }
        let writer_rank = writer_ranks(parts);
        let mut regions = Vec::with_capacity(parts.loops.len());
        for (index, steps) in parts.loops.iter().enumerate() {
            let merges = parts.order[steps.first..steps.end].iter();
            let merges = merges.take_while(|&&step| {
                plan.step(step).body == steps.body && !plan.back_inputs_of(step).is_empty()
            });
            let mut merges: Box<[LoopMerge]> =
                merges.map(|&step| LoopMerge::new(parts, step)).collect();
            let first = steps.first + merges.len();
            for merge in &mut merges {
                for rank in merge.read_past_next(parts, self, &writer_rank, first..steps.end) {
                    self.kinds[rank as usize] = Kind::Skipped;
                }
            }
            let next = merges.iter().flat_map(|merge| &merge.next);
            let results = exits[index].iter().flat_map(|&rank| {
                let outputs = parts.operations[rank as usize].outputs();
                outputs.map(to_u32)
            });
            regions.push(Region {
                body: steps.body,
                first: to_u32(steps.first),
                end: to_u32(steps.end),
                carried: next.map(|&(_, value)| value).chain(results).collect(),
                merges,
                children: std::mem::take(&mut children[index]).into(),
                exits: exits[index].as_slice().into(),
                outside: std::mem::take(&mut outside[index]).into(),
            });
        }
        self.regions = regions.into();
        self.outermost = outermost.into();
    }

    /// Returns whether a value stays after the read with this position in the compiled inputs.
    #[inline]
    pub(super) fn stays(&self, entry: usize) -> bool {
        self.stays[entry]
    }

    /// Returns the outermost loop that starts at a rank.
    pub(super) fn region_at(&self, rank: u32) -> Option<&Region> {
        let regions = &self.outermost;
        let index = regions.binary_search_by_key(&rank, |&region| self.region(region).first);
        index.ok().map(|index| self.region(regions[index]))
    }

    /// Returns the outermost loop that a rank is in.
    pub(super) fn region_around(&self, rank: u32) -> Option<&Region> {
        let regions = &self.outermost;
        let after = regions.partition_point(|&region| self.region(region).first <= rank);
        let region = self.region(regions[after.checked_sub(1)?]);
        (rank < region.end).then_some(region)
    }

    fn region(&self, index: u32) -> &Region {
        &self.regions[index as usize]
    }

    /// Returns whether an operation may be dead or starts a loop, so that [`begin`] must be called
    /// before it.
    #[inline]
    pub(super) fn concerns(&self, rank: u32) -> bool {
        self.kinds[rank as usize] != Kind::Live || self.region_at(rank).is_some()
    }
}

impl LoopMerge {
    fn new(parts: &FlowParts<'_>, step: StepId) -> Self {
        let plan = &parts.program.plan;
        let next: Box<[(u32, u32)]> = plan
            .back_inputs_of(step)
            .iter()
            .map(|input| (input.input, input.value.0))
            .collect();
        let is_next = |index: &u32| next.iter().any(|(other, _)| other == index);
        let indices = (0..).filter(|index| !is_next(index));
        let first = indices.zip(&plan.step(step).inputs);
        Self {
            rank: parts.rank_of[step.index()],
            first: first.map(|(index, value)| (index, value.0)).collect(),
            next,
        }
    }

    /// Reads the inputs of `NextIteration`s instead of their outputs, where that is the same: each
    /// of these inputs is written in the iteration, by one of the `ranks` after the merges, which
    /// overwrite their own outputs one after the other. Returns the ranks of these
    /// `NextIteration`s, which need not execute.
    fn read_past_next(
        &mut self,
        parts: &FlowParts<'_>,
        flow: &Flow,
        writer_rank: &[u32],
        ranks: Range<usize>,
    ) -> Vec<u32> {
        let mut skipped = Vec::new();
        let plan = &parts.program.plan;
        for (_, value) in &mut self.next {
            let written = &plan.values()[*value as usize];
            let rank = writer_rank[*value as usize];
            let Some(operation) = parts.operations.get(rank as usize) else {
                continue;
            };
            let is_plain = matches!(
                parts.program.actions[operation.step.index()],
                Some(Action::PassOn)
            ) && written.n_readers == 1
                && plan.successors().row(operation.step.index()).is_empty()
                && flow.control.row(rank as usize).is_empty();
            let entry = operation.input_range();
            let &[input] = &parts.inputs[entry.clone()] else {
                continue;
            };
            let source = &plan.values()[input as usize];
            let Some(writer) = parts.operations.get(writer_rank[input as usize] as usize) else {
                continue;
            };
            // A tensor that is forwarded has the place of another one, which is not kept from the
            // start of the loop.
            let is_forwarded = matches!(
                &parts.program.actions[writer.step.index()],
                Some(Action::Kernel(kernel)) if kernel.forwarded_input().is_some()
            );
            if is_plain
                && !is_forwarded
                && !flow.stays(entry.start)
                && ranks.contains(&(writer_rank[input as usize] as usize))
                && (source.device, source.space) == (written.device, written.space)
            {
                skipped.push(rank);
                *value = input;
            }
        }
        skipped
    }
}

/// Returns per value the rank of the operation that writes it; `u32::MAX` if none does.
fn writer_ranks(parts: &FlowParts<'_>) -> Vec<u32> {
    let mut ranks = vec![u32::MAX; parts.program.plan.values().len()];
    for (rank, operation) in (0..).zip(parts.operations) {
        ranks[operation.outputs()].fill(rank);
    }
    ranks
}

/// Returns per value the body that writes it once per execution.
fn writer_bodies(program: &Program) -> Vec<BodyId> {
    let plan = &program.plan;
    let mut bodies = vec![BodyId::OUTERMOST; plan.values().len()];
    let of_graph = program.graph.bodies().ok();
    for step in plan.steps() {
        let body = match (step.kind, of_graph) {
            (StepKind::Execute(node), Some(of_graph)) => of_graph.of_outputs(&program.graph, node),
            _ => step.body,
        };
        bodies[step.output_range()].fill(body);
    }
    bodies
}

/// Returns per rank the ranks that it waits for without reading a value.
fn control_edges(parts: &FlowParts<'_>) -> Csr {
    let plan = &parts.program.plan;
    let mut rows: Vec<Vec<u32>> = vec![Vec::new(); parts.order.len()];
    for (from, &step) in (0..).zip(parts.order) {
        let written = plan.step(step).output_range();
        for &successor in plan.successors().row(step.index()) {
            let to = parts.rank_of[successor as usize];
            let reads = &plan.steps()[successor as usize].inputs;
            let reads = reads.iter().any(|value| written.contains(&value.index()));
            if to != u32::MAX && !reads {
                rows[to as usize].push(from);
            }
        }
    }
    let mut csr = Csr::default();
    for row in rows {
        csr.items.extend(row);
        csr.offsets.push(to_u32(csr.items.len()));
    }
    csr
}

fn kinds(parts: &FlowParts<'_>, control: &Csr) -> Box<[Kind]> {
    let Program { plan, graph, .. } = parts.program;
    let mut may_be_dead = vec![false; plan.values().len()];
    let mut kinds: Vec<Kind> = Vec::with_capacity(parts.order.len());
    for (rank, operation) in parts.operations.iter().enumerate() {
        let step = plan.step(operation.step);
        let action = parts.program.actions[operation.step.index()].as_ref();
        let op = match step.kind {
            StepKind::Execute(node) => graph.op(node),
            _ => "",
        };
        let mut inputs = parts.inputs[operation.input_range()].iter();
        let is_guarded = step.body != BodyId::OUTERMOST
            || inputs.any(|&value| may_be_dead[value as usize])
            || control
                .row(rank)
                .iter()
                .any(|&from| kinds[from as usize] != Kind::Live);
        let kind = match action {
            _ if !is_guarded => Kind::Live,
            Some(Action::Merge) => Kind::Merge,
            _ if op == "ControlTrigger" => Kind::Trigger,
            Some(Action::PassOn) if is_exit(op) => Kind::Exit,
            _ => Kind::Guarded,
        };
        let is_switch = matches!(action, Some(Action::Switch));
        let has_dead_outputs = is_switch || !matches!(kind, Kind::Live | Kind::Trigger);
        may_be_dead[operation.outputs()].fill(has_dead_outputs);
        kinds.push(kind);
    }
    kinds.into()
}

/// The state of a run's branches and loops. Reused by later runs.
#[derive(Debug, Default)]
pub(super) struct FlowState {
    /// Per body the iteration that executes, from 0.
    iterations: Box<[AtomicU64]>,
}

impl FlowState {
    pub(super) fn new(program: &Program) -> Self {
        let bodies = program.plan.bodies().iter();
        Self {
            iterations: bodies.map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns the iteration of a loop that executes.
    pub(super) fn iteration(&self, body: BodyId) -> u64 {
        let iteration = self.iterations.get(body.index());
        iteration.map_or(0, |iteration| iteration.load(Ordering::Relaxed))
    }

    fn set(&self, body: BodyId, iteration: u64) {
        self.iterations[body.index()].store(iteration, Ordering::Relaxed);
    }
}

/// What is left to do for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// Execute it.
    Live,
    /// Nothing: it is dead, or it was the start of a loop, which has been executed. The operations
    /// up to this rank have ended.
    Ended(u32),
}

/// Begins an operation outside of all loops: finds out whether it is dead, or executes the loop
/// that starts with it.
pub(super) fn begin(
    state: &RunState,
    request: &Request,
    rank: u32,
    events: &mut Vec<Event>,
) -> Result<Begun, ExecuteError> {
    let Some(flow) = &state.compiled.flow else {
        return Ok(Begun::Live);
    };
    if let Some(region) = flow.region_at(rank) {
        run_loop(state, request, flow, region, events)?;
        return Ok(Begun::Ended(region.end - 1));
    }
    Ok(match settle(state, request, flow, rank)? {
        true => Begun::Live,
        false => Begun::Ended(rank),
    })
}

/// Executes all operations on this thread, in the order of their ranks.
pub(super) fn run(
    state: &RunState,
    request: &Request,
    flow: &Flow,
    events: &mut Vec<Event>,
) -> Result<(), ExecuteError> {
    let end = to_u32(state.compiled.operations.len());
    run_range(state, request, flow, (0, end), &flow.outermost, events)
}

/// Executes the operations of a body, from rank `from` to rank `to`, with the loops in it.
fn run_range(
    state: &RunState,
    request: &Request,
    flow: &Flow,
    (from, to): (u32, u32),
    loops: &[u32],
    events: &mut Vec<Event>,
) -> Result<(), ExecuteError> {
    let mut loops = loops.iter().map(|&region| flow.region(region)).peekable();
    let mut rank = from;
    while rank < to {
        if let Some(region) = loops.next_if(|region| region.first == rank) {
            run_loop(state, request, flow, region, events)?;
            rank = region.end;
            continue;
        }
        request.check_interrupts()?;
        if settle(state, request, flow, rank)? {
            step::execute_and_wait(state, request, rank, events)?;
        }
        rank += 1;
    }
    Ok(())
}

/// Executes a loop until no `NextIteration` is live.
fn run_loop(
    state: &RunState,
    request: &Request,
    flow: &Flow,
    region: &Region,
    events: &mut Vec<Event>,
) -> Result<(), ExecuteError> {
    let started = (!state.nanoseconds.is_empty()).then(Instant::now);
    let listeners = &request.listeners;
    let now_ns = || match listeners.is_recorded() {
        true => listeners.now_ns(),
        false => 0,
    };
    let event = |iteration, start_ns, end_ns| Event {
        kind: EventKind::Loop {
            run: listeners.run,
            body: region.body,
            iteration,
        },
        start_ns: listeners.on_recorder_ns(start_ns),
        duration_ns: end_ns - start_ns,
    };
    let first_ns = now_ns();
    let mut start_ns = first_ns;
    for &exit in &region.exits {
        step::kill(state, request, exit);
    }
    let mut iteration = 0;
    loop {
        state.flow.set(region.body, iteration);
        let mut is_live = false;
        for merge in &region.merges {
            let sources = match iteration {
                0 => &merge.first,
                _ => &merge.next,
            };
            request.check_interrupts()?;
            is_live |= step::merge(state, request, merge.rank, sources, iteration > 0)?;
        }
        // Without a Merge a loop is one pass over its operations.
        if !is_live && iteration > 0 {
            break;
        }
        let from = region.first + to_u32(region.merges.len());
        let range = (from, region.end);
        run_range(state, request, flow, range, &region.children, events)?;
        if listeners.is_recorded() {
            let end_ns = now_ns();
            events.push(event(Some(iteration), start_ns, end_ns));
            start_ns = end_ns;
        }
        if region.merges.is_empty() {
            break;
        }
        iteration += 1;
    }
    if listeners.is_recorded() {
        events.push(event(None, first_ns, now_ns()));
    }
    for &value in &region.outside {
        step::leave_after_loop(state, request, region.first, value)?;
    }
    if let Some(started) = started {
        // The whole loop is one unit for the estimate of other ways to execute the plan.
        let elapsed = u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX);
        for rank in region.first..region.end {
            let nanoseconds = if rank == region.first { elapsed } else { 0 };
            state.nanoseconds[rank as usize].store(nanoseconds, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Finds out whether an operation is live. If it is dead, ends it.
fn settle(
    state: &RunState,
    request: &Request,
    flow: &Flow,
    rank: u32,
) -> Result<bool, ExecuteError> {
    let kind = flow.kinds[rank as usize];
    let is_dead = match kind {
        Kind::Live => return Ok(true),
        Kind::Skipped => return Ok(false),
        Kind::Trigger => false,
        Kind::Merge => step::has_dead_input(state, request, rank, true),
        // It keeps what an earlier iteration has passed out, and there is no other input to leave.
        Kind::Exit if step::has_dead_input(state, request, rank, false) => return Ok(false),
        Kind::Guarded | Kind::Exit => {
            step::has_dead_input(state, request, rank, false)
                || step::waits_for_dead(state, flow.control.row(rank as usize))
        }
    };
    match (is_dead, kind) {
        (true, Kind::Exit) => step::leave_inputs(state, request, rank)?,
        (true, _) => step::end_dead(state, request, rank)?,
        (false, _) => step::revive(state, rank),
    }
    Ok(!is_dead)
}

/// Returns the loops around a step, innermost first, with the iterations that execute: `iteration 3
/// of loop a`. `None` outside of all loops.
pub(super) fn describe_iteration(state: &RunState, step: StepId) -> Option<String> {
    let plan = &state.program.plan;
    let mut body = plan.step(step).body;
    let mut parts = Vec::new();
    while body != BodyId::OUTERMOST {
        let Some(of_graph) = plan.bodies().get(body.index()) else {
            break;
        };
        let iteration = state.flow.iteration(body);
        parts.push(format!("iteration {iteration} of loop `{}`", of_graph.name));
        body = of_graph.parent;
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a plan's ids are 32 bits wide")
}
