//! A plan compiled for tensors of certain shapes: the operations, their order, and the place of
//! every tensor.

use tracing::debug_span;
use tracing::field;

use super::arena::Ancestry;
use super::arena::OffsetPlanner;
use super::flow::{Flow, FlowParts, Region as LoopRegion};
use super::memory::memories;
use super::prepare::Action;
use super::prepare::Program;
use crate::graph::Csr;
use crate::memory::PlannedMemory;
use crate::memory::serial_order;
use crate::names::DeviceId;
use crate::plan::MemorySpace;
use crate::plan::StepId;
use crate::plan::StepKind;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::trace::targets;

/// Tensors below this many bytes share cache lines instead of having one of their own each.
const SMALL_BYTES: usize = 64;

/// Alignment of small tensors: that of the widest element.
const SMALL_UNIT: usize = 16;

/// Maximum size of tensors that switches, merges and loops copy between places of the arena. Larger
/// ones have their own allocations, and are passed on by reference.
pub(super) const PASSED_ON_BY_COPY_MAX: usize = 256;

/// Maximum size of tensors whose copies to a device take no longer than waking a thread.
const SUBMITTED_BYTES_MAX: usize = 128 << 10;

/// A plan compiled for certain shapes.
#[derive(Debug)]
pub(super) struct Compiled {
    /// In the order in which one thread executes them; the index is the operation's rank.
    pub(super) operations: Box<[Operation]>,
    /// Values that operations read, concatenated.
    pub(super) inputs: Box<[u32]>,
    /// Ranks that depend on each rank.
    pub(super) successors: Csr,
    /// Per rank the number of its incoming edges.
    pub(super) n_waits: Box<[u32]>,
    /// Per value.
    pub(super) places: Box<[Place]>,
    /// Per value the number of its readers.
    pub(super) n_readers: Box<[u32]>,
    pub(super) arenas: Box<[ArenaPlan]>,
    /// Per rank its measured time in ns; empty before it is measured.
    pub(super) costs: Box<[u32]>,
    /// Per rank whether a thread only submits work that a device does later; empty if there are no
    /// such operations. One thread submits the work of a device.
    is_submitted: Box<[bool]>,
    /// Number of operations that execute a node.
    pub(super) n_kernels: u64,
    /// The feeds, one entry per feed operation.
    pub(super) feeds: Box<[u32]>,
    /// Whether a tensor that could have a place in an arena has an unknown shape.
    pub(super) is_partial: bool,
    /// A memory that is too small for the arenas of all concurrent runs: then no run has arenas.
    pub(super) short_memory: Option<PlannedMemory>,
    /// The branches and loops, if there are any.
    pub(super) flow: Option<Box<Flow>>,
}

/// A step of the plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) step: StepId,
    pub(super) kind: StepKind,
    pub(super) device: DeviceId,
    first_input: u32,
    n_inputs: u32,
    pub(super) first_output: u32,
    pub(super) n_outputs: u32,
}

/// Where a value is stored.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// Allocated when it is produced.
    Anywhere,
    /// A constant: the same in all runs.
    Fixed(Tensor),
    /// A part of an arena.
    Arena {
        arena: u32,
        offset: usize,
        dtype: DType,
        shape: Shape,
        /// Whether it is the place of the input that the kernel forwards.
        is_forwarded: bool,
    },
}

/// The arena of a run in one memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArenaPlan {
    pub(super) device: DeviceId,
    pub(super) on_host: bool,
    pub(super) len_bytes: usize,
    /// Whether runs allocate it. False if the device may still use a tensor when its place is
    /// reused: then each tensor has its own allocation, and at most about as much memory is held.
    pub(super) is_allocated: bool,
}

impl Compiled {
    /// Compiles a plan. `shapes`: per value, as far as known. `with_threads`: steps may start in
    /// any order that their edges allow.
    pub(super) fn new(program: &Program, shapes: &[Option<Shape>], with_threads: bool) -> Self {
        let span = debug_span!(
            target: targets::EXECUTE,
            "compile",
            graph = program.graph.name(),
            operations = field::Empty,
            arena_bytes = field::Empty,
        );
        let _entered = span.enter();
        let plan = &program.plan;
        let serial = serial_order(plan, &program.settled.is_settled);
        let order = serial.steps;
        span.record("operations", order.len());
        let mut rank_of = vec![u32::MAX; plan.steps().len()];
        for (rank, &step) in (0..).zip(&order) {
            rank_of[step.index()] = rank;
        }
        let mut inputs = Vec::new();
        let operations = order.iter().map(|&id| {
            let step = plan.step(id);
            let first_input = to_u32(inputs.len());
            inputs.extend(step.inputs.iter().map(|input| input.0));
            Operation {
                step: id,
                kind: step.kind,
                device: step.device,
                first_input,
                n_inputs: to_u32(step.inputs.len()),
                first_output: step.first_output,
                n_outputs: step.n_outputs,
            }
        });
        let operations: Box<[Operation]> = operations.collect();
        let flow = Flow::new(&FlowParts {
            program,
            order: &order,
            loops: &serial.loops,
            rank_of: &rank_of,
            operations: &operations,
            inputs: &inputs,
        });
        let mut successors = rank_successors(program, &order, &rank_of);
        if let Some(flow) = flow.as_ref().filter(|flow| !flow.regions.is_empty()) {
            successors = around_loops(&successors, flow);
        }
        let mut n_waits = vec![0; order.len()];
        for &successor in &successors.items {
            n_waits[successor as usize] += 1;
        }
        let mut is_submitted = Box::default();
        let mut partitions = plan.partitions().iter();
        if partitions.any(|partition| program.is_deferred(partition.device)) {
            let of = |operation| program.is_submitted(operation, shapes);
            is_submitted = operations.iter().map(of).collect();
        }
        let is_kernel = |operation: &&Operation| matches!(operation.kind, StepKind::Execute(_));
        let n_kernels = operations.iter().filter(is_kernel).count() as u64;
        let feeds = operations
            .iter()
            .filter_map(|operation| match operation.kind {
                StepKind::Feed(feed) => Some(feed),
                _ => None,
            });
        let feeds = feeds.collect();
        let ancestry = with_threads.then(|| Ancestry::new(&successors));
        let mut layout = Layout::new(program, shapes, &rank_of, ancestry.as_ref());
        layout.enclose(flow.as_deref());
        let mut entry = 0;
        for (rank, operation) in (0..).zip(&operations) {
            layout.begin_loops(rank, &operations);
            layout.add(rank, operation, entry);
            layout.end_loops(rank + 1);
            entry += operation.input_range().len();
        }
        let (places, arenas) = layout.finish();
        let allocated = arenas.iter().filter(|arena| arena.is_allocated);
        let arena_bytes = allocated
            .map(|arena| arena.len_bytes)
            .fold(0, usize::saturating_add);
        span.record("arena_bytes", arena_bytes);
        let mut compiled = Self {
            n_readers: plan.values().iter().map(|value| value.n_readers).collect(),
            operations,
            inputs: inputs.into(),
            successors,
            n_waits: n_waits.into(),
            places,
            arenas,
            costs: Box::default(),
            is_submitted,
            n_kernels,
            feeds,
            is_partial: false,
            short_memory: None,
            flow,
        };
        compiled.is_partial = compiled.n_unplanned(program, shapes) > 0;
        let memories = memories(program, shapes, &compiled.arenas);
        compiled.short_memory = program.short_memory(&memories).copied();
        compiled
    }

    /// Returns the number of tensors that are produced in each run and have an unknown size.
    pub(super) fn n_unplanned(&self, program: &Program, shapes: &[Option<Shape>]) -> usize {
        let values = shapes.iter().zip(&self.places).enumerate();
        let is_unplanned = |&(value, (shape, place)): &(usize, (&Option<Shape>, &Place))| {
            shape.is_none() && matches!(place, Place::Anywhere) && program.has_size(value)
        };
        values.filter(is_unplanned).count()
    }

    /// Returns the measured time of an operation, in ns.
    #[inline]
    pub(super) fn cost_ns(&self, rank: u32) -> Option<u64> {
        self.costs.get(rank as usize).map(|&cost| cost.into())
    }

    /// Returns the device of an operation whose work a thread only submits, as a set of devices.
    /// Devices whose numbers differ by a multiple of 64 count as one.
    #[inline]
    pub(super) fn submitted_to(&self, rank: u32) -> u64 {
        match self.is_submitted.get(rank as usize) {
            Some(true) => 1 << (self.operations[rank as usize].device.0 % 64),
            _ => 0,
        }
    }

    /// Returns the values that an operation reads.
    #[inline]
    pub(super) fn inputs(&self, operation: &Operation) -> &[u32] {
        &self.inputs[operation.input_range()]
    }
}

impl Operation {
    /// Returns the positions of its inputs in the compiled inputs.
    #[inline]
    pub(super) fn input_range(&self) -> std::ops::Range<usize> {
        let first = self.first_input as usize;
        first..first + self.n_inputs as usize
    }

    /// Returns the values that it writes.
    #[inline]
    pub(super) fn outputs(&self) -> std::ops::Range<usize> {
        let first = self.first_output as usize;
        first..first + self.n_outputs as usize
    }
}

impl Program {
    /// Checks whether the device of an operation does its work later, and a thread only submits it:
    /// kernels, and copies that end later or are short.
    fn is_submitted(&self, operation: &Operation, shapes: &[Option<Shape>]) -> bool {
        if !self.is_deferred(operation.device) {
            return false;
        }
        match operation.kind {
            StepKind::Execute(_) => true,
            _ if self.copies_later(operation.step) => true,
            StepKind::Feed(_) | StepKind::Receive(_) => operation.outputs().all(|value| {
                let tensor = self.plan.values()[value].tensor;
                let size_bytes = self.graph.tensor_dtypes()[tensor.index()].size_bytes();
                let n_elements = shapes[value].as_ref().map(Shape::n_elements);
                let len_bytes = size_bytes
                    .zip(n_elements)
                    .map(|(size, n)| size.saturating_mul(n));
                len_bytes.is_some_and(|bytes| bytes <= SUBMITTED_BYTES_MAX)
            }),
            _ => false,
        }
    }

    /// Checks whether a value is produced in each run and has elements of fixed size.
    fn has_size(&self, value: usize) -> bool {
        let tensor = self.plan.values()[value].tensor;
        let dtype = self.graph.tensor_dtypes()[tensor.index()];
        dtype.size_bytes().is_some() && !self.settled.is_fixed(value)
    }

    /// Checks whether such a value may have a place in an arena once its shape is known. A fetched
    /// value may not, because the caller keeps it.
    fn may_be_planned(&self, value: usize) -> bool {
        self.has_size(value) && !self.is_fetched[value]
    }

    /// Returns the bytes that the caller gets of a value of this shape.
    pub(super) fn fetched_bytes(&self, value: usize, shape: &Shape) -> u64 {
        let tensor = self.plan.values()[value].tensor;
        let dtype = self.graph.tensor_dtypes()[tensor.index()];
        if !self.is_fetched[value] || !self.has_size(value) {
            return 0;
        }
        let bytes = shape.size_bytes(dtype).unwrap_or(usize::MAX);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Returns the edges between ranks. Settled steps depend only on settled steps, so their edges are
/// left out.
fn rank_successors(program: &Program, order: &[StepId], rank_of: &[u32]) -> Csr {
    let mut successors = Csr::default();
    for &id in order {
        let row = program.plan.successors().row(id.index()).iter();
        let ranks = row.map(|&step| rank_of[step as usize]);
        successors
            .items
            .extend(ranks.filter(|&rank| rank != u32::MAX));
        successors.offsets.push(to_u32(successors.items.len()));
    }
    successors
}

/// Returns the edges between operations outside of loops and whole loops. The operations of a loop
/// follow each other in one chain; edges into the loop lead to its first operation, and edges out
/// of it start at its last one.
fn around_loops(successors: &Csr, flow: &Flow) -> Csr {
    let n_ranks = successors.n_rows();
    let around: Vec<Option<(u32, u32)>> = (0..to_u32(n_ranks))
        .map(|rank| {
            let region = flow.region_around(rank)?;
            Some((region.first, region.end - 1))
        })
        .collect();
    let mut rows: Vec<Vec<u32>> = vec![Vec::new(); n_ranks];
    for from in 0..n_ranks {
        let own = around[from];
        if let Some((_, last)) = own
            && (from as u64) < u64::from(last)
        {
            rows[from].push(to_u32(from + 1));
        }
        for &to in successors.row(from) {
            let other = around[to as usize];
            if own.is_none() || own != other {
                let from = own.map_or(from, |(_, last)| last as usize);
                rows[from].push(other.map_or(to, |(first, _)| first));
            }
        }
    }
    let mut edges = Csr::default();
    for row in rows {
        edges.items.extend(row);
        edges.offsets.push(to_u32(edges.items.len()));
    }
    edges
}

/// The layout of one memory: an arena of large tensors followed by one of small tensors.
struct Region<'a> {
    device: DeviceId,
    on_host: bool,
    large: OffsetPlanner<'a>,
    small: OffsetPlanner<'a>,
}

/// The place of a value and of all values that forward it.
#[derive(Clone)]
struct Block {
    region: usize,
    offset: usize,
    bytes: usize,
    /// Its writer and readers.
    users: Vec<u32>,
    /// Number of users at the current rank or later.
    n_users_left: usize,
}

struct Layout<'a> {
    program: &'a Program,
    shapes: &'a [Option<Shape>],
    /// Per value the ranks that read it.
    readers: Vec<Vec<u32>>,
    regions: Vec<Region<'a>>,
    ancestry: Option<&'a Ancestry>,
    blocks: Vec<Block>,
    /// Per value the size, in bytes, from which a device that receives it uses it in place.
    shared_bytes_min: Vec<usize>,
    /// Per value its block, if any.
    block_of: Vec<Option<usize>>,
    forwarded: Vec<bool>,
    flow: Option<&'a Flow>,
    /// Per loop its end and its index; the loop that ends first is the last one.
    ends: Vec<(u32, usize)>,
}

impl<'a> Layout<'a> {
    fn new(
        program: &'a Program,
        shapes: &'a [Option<Shape>],
        rank_of: &[u32],
        ancestry: Option<&'a Ancestry>,
    ) -> Self {
        let plan = &program.plan;
        let mut readers = vec![Vec::new(); plan.values().len()];
        let mut shared_bytes_min = vec![usize::MAX; readers.len()];
        for ((step_id, step), &rank) in plan.step_ids().map(StepId).zip(plan.steps()).zip(rank_of) {
            if rank == u32::MAX {
                continue;
            }
            for input in &step.inputs {
                readers[input.index()].push(rank);
            }
            for input in plan.back_inputs_of(step_id) {
                readers[input.value.index()].push(rank);
            }
            // The receive reads what is sent.
            if let StepKind::Receive(transfer) = step.kind
                && let transfer = &plan.transfers()[transfer.index()]
                && let Some(sent) = transfer.sent
            {
                readers[sent.index()].push(rank);
                if transfer.destination_space == MemorySpace::Device
                    && let Some(min) = program.shared_bytes_min(transfer.destination)
                {
                    let value_min = &mut shared_bytes_min[sent.index()];
                    *value_min = min.min(*value_min);
                }
            }
        }
        Self {
            program,
            shapes,
            shared_bytes_min,
            block_of: vec![None; readers.len()],
            forwarded: vec![false; readers.len()],
            readers,
            regions: Vec::new(),
            ancestry,
            blocks: Vec::new(),
            flow: None,
            ends: Vec::new(),
        }
    }

    /// Returns the loops, outer ones before those inside of them.
    fn loops(&self) -> &'a [LoopRegion] {
        self.flow.map_or(&[], |flow| &flow.regions)
    }

    /// Sets the loops. The values that a loop carries get a user that leaves them when it ends.
    fn enclose(&mut self, flow: Option<&'a Flow>) {
        self.flow = flow;
        self.ends = self
            .loops()
            .iter()
            .map(|region| region.end)
            .zip(0..)
            .collect();
        self.ends.sort_unstable_by(|left, right| right.cmp(left));
        for region in self.loops() {
            let last = region.end - 1;
            for &value in &region.carried {
                self.readers[value as usize].push(last);
            }
        }
    }

    /// Places the values that the loops which start at this rank carry, before anything else in
    /// them: the last iteration's values are read while the next one writes.
    fn begin_loops(&mut self, rank: u32, operations: &[Operation]) {
        let loops = self.loops();
        let loops = &loops[loops.partition_point(|region| region.first < rank)..];
        for region in loops.iter().take_while(|region| region.first == rank) {
            for &value in &region.carried {
                // What a loop inside of this one passes out may be carried by both.
                if self.block_of[value as usize].is_some() {
                    continue;
                }
                let writer = operations[region.first as usize..region.end as usize].iter();
                let mut writer =
                    writer.filter(|operation| operation.outputs().contains(&(value as usize)));
                if let Some(writer) = writer.next() {
                    self.place(rank, writer, value as usize);
                }
            }
        }
    }

    /// Ends the loops that end before this rank: their values of other bodies are read no more.
    fn end_loops(&mut self, rank: u32) {
        while let Some(region) = self.ends.pop_if(|&mut (end, _)| end == rank) {
            let region = &self.loops()[region.1];
            for &value in region.outside.iter().chain(&region.carried) {
                self.leave(value as usize);
            }
        }
    }

    /// Places the outputs of an operation, and counts what it reads. `entry`: position of its
    /// inputs in the compiled inputs.
    fn add(&mut self, rank: u32, operation: &Operation, entry: usize) {
        for value in operation.outputs() {
            if self.block_of[value].is_none() {
                self.place(rank, operation, value);
            }
        }
        let plan = &self.program.plan;
        let step = plan.step(operation.step);
        let sent = match step.kind {
            StepKind::Receive(transfer) => plan.transfers()[transfer.index()].sent,
            _ => None,
        };
        for input in plan.back_inputs_of(operation.step) {
            self.leave(input.value.index());
        }
        for (entry, value) in (entry..).zip(&step.inputs) {
            // What a loop reads from outside, the end of the loop leaves.
            if self.flow.is_none_or(|flow| !flow.stays(entry)) {
                self.leave(value.index());
            }
        }
        if let Some(sent) = sent {
            self.leave(sent.index());
        }
        for value in operation.outputs() {
            self.leave(value);
        }
    }

    /// Assigns a place to an output: a new one, or that of the forwarded input.
    fn place(&mut self, rank: u32, operation: &Operation, value: usize) {
        debug_assert!(self.block_of[value].is_none(), "a value has one place");
        let Some(shape) = &self.shapes[value] else {
            return;
        };
        if !self.program.may_be_planned(value) {
            return;
        }
        let values = self.program.plan.values();
        let dtype = self.program.graph.tensor_dtypes()[values[value].tensor.index()];
        let Ok(bytes) = shape.size_bytes(dtype) else {
            return;
        };
        // A device may read it in place after its other readers have ended. In an arena, it would
        // be copied for that device.
        if bytes >= self.shared_bytes_min[value] {
            return;
        }
        // Branches and loops pass tensors on. Only small ones are copied.
        if bytes > PASSED_ON_BY_COPY_MAX && self.program.is_passed_on(value) {
            return;
        }
        let users = self.readers[value].iter().copied().chain([rank]);
        if let Some(input) = self.forwarded_input(operation, value) {
            let Some(block) = self.block_of[input] else {
                return; // Forwarded from wherever the input will be.
            };
            if self.blocks[block].bytes == bytes {
                let block_of_input = &mut self.blocks[block];
                block_of_input.users.extend(users);
                block_of_input.n_users_left += self.readers[value].len() + 1;
                self.block_of[value] = Some(block);
                self.forwarded[value] = true;
                return;
            }
        }
        let users: Vec<u32> = users.collect();
        let on_host = values[value].space == MemorySpace::Host;
        let region = self.region(values[value].device, on_host);
        let planner = self.regions[region].planner(bytes);
        self.block_of[value] = Some(self.blocks.len());
        self.blocks.push(Block {
            region,
            offset: planner.take(bytes, rank),
            bytes,
            n_users_left: users.len(),
            users,
        });
    }

    fn forwarded_input(&self, operation: &Operation, value: usize) -> Option<usize> {
        if value != operation.first_output as usize {
            return None;
        }
        let step = self.program.plan.step(operation.step);
        let Some(Action::Kernel(kernel)) = &self.program.actions[operation.step.index()] else {
            return None;
        };
        let input = step.inputs.get(kernel.forwarded_input()?)?.index();
        let space = |value: usize| &self.program.plan.values()[value];
        (space(input).space == space(value).space).then_some(input)
    }

    fn region(&mut self, device: DeviceId, on_host: bool) -> usize {
        let mut known = self.regions.iter();
        let known = known.position(|region| (region.device, region.on_host) == (device, on_host));
        known.unwrap_or_else(|| {
            self.regions.push(Region {
                device,
                on_host,
                large: OffsetPlanner::new(self.ancestry, SMALL_BYTES),
                small: OffsetPlanner::new(self.ancestry, SMALL_UNIT),
            });
            self.regions.len() - 1
        })
    }

    /// Counts down the remaining users of a value.
    fn leave(&mut self, value: usize) {
        let Some(block) = self.block_of[value] else {
            return;
        };
        let block = &mut self.blocks[block];
        block.n_users_left -= 1;
        if block.n_users_left == 0 {
            let planner = self.regions[block.region].planner(block.bytes);
            planner.give_back(block.offset, block.bytes, &block.users);
        }
    }

    fn finish(self) -> (Box<[Place]>, Box<[ArenaPlan]>) {
        let place = |value: usize| {
            if let Some(tensor) = &self.program.fixed[value] {
                return Place::Fixed(tensor.clone());
            }
            let (Some(block), Some(shape)) = (self.block_of[value], &self.shapes[value]) else {
                return Place::Anywhere;
            };
            let block = &self.blocks[block];
            let region = &self.regions[block.region];
            if self.program.is_deferred(region.device) {
                return Place::Anywhere;
            }
            let before = if block.bytes < SMALL_BYTES {
                region.large.len()
            } else {
                0
            };
            let tensor = self.program.plan.values()[value].tensor;
            Place::Arena {
                arena: to_u32(block.region),
                offset: before + block.offset,
                dtype: self.program.graph.tensor_dtypes()[tensor.index()],
                shape: shape.clone(),
                is_forwarded: self.forwarded[value],
            }
        };
        let places = (0..self.block_of.len()).map(place).collect();
        let arenas = self.regions.iter().map(|region| ArenaPlan {
            device: region.device,
            on_host: region.on_host,
            len_bytes: region.large.len().saturating_add(region.small.len()),
            is_allocated: !self.program.is_deferred(region.device),
        });
        (places, arenas.collect())
    }
}

impl<'a> Region<'a> {
    fn planner(&mut self, bytes: usize) -> &mut OffsetPlanner<'a> {
        if bytes < SMALL_BYTES {
            &mut self.small
        } else {
            &mut self.large
        }
    }
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a plan's ids are 32 bits wide")
}
