//! A plan compiled for tensors of certain shapes: the operations, their order, and the place of
//! every tensor.

use tracing::debug_span;
use tracing::field;

use super::arena::Ancestry;
use super::arena::OffsetPlanner;
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
    /// Number of operations that execute a node.
    pub(super) n_kernels: u64,
    /// The feeds, one entry per feed operation.
    pub(super) feeds: Box<[u32]>,
    /// Whether a tensor that could have a place in an arena has an unknown shape.
    pub(super) is_partial: bool,
    /// A memory that is too small for the arenas of all concurrent runs: then no run has arenas.
    pub(super) short_memory: Option<PlannedMemory>,
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
        let order = serial_order(plan, &program.settled.is_settled);
        span.record("operations", order.len());
        let mut rank_of = vec![u32::MAX; plan.steps().len()];
        for (rank, &step) in (0..).zip(&order) {
            rank_of[step.index()] = rank;
        }
        let successors = rank_successors(program, &order, &rank_of);
        let mut n_waits = vec![0; order.len()];
        for &successor in &successors.items {
            n_waits[successor as usize] += 1;
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
        for (rank, operation) in (0..).zip(&operations) {
            layout.add(rank, operation);
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
            n_kernels,
            feeds,
            is_partial: false,
            short_memory: None,
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

    /// Returns the values that an operation reads.
    #[inline]
    pub(super) fn inputs(&self, operation: &Operation) -> &[u32] {
        let first = operation.first_input as usize;
        &self.inputs[first..first + operation.n_inputs as usize]
    }
}

impl Operation {
    /// Returns the values that it writes.
    #[inline]
    pub(super) fn outputs(&self) -> std::ops::Range<usize> {
        let first = self.first_output as usize;
        first..first + self.n_outputs as usize
    }
}

impl Program {
    /// Checks whether a value is produced in each run and has elements of fixed size.
    fn has_size(&self, value: usize) -> bool {
        let tensor = self.plan.values()[value].tensor;
        let dtype = self.graph.tensor_dtypes()[tensor.index()];
        dtype.size_bytes().is_some() && !self.settled.is_fixed[value]
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
    /// Per value its block, if any.
    block_of: Vec<Option<usize>>,
    forwarded: Vec<bool>,
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
        for (step, &rank) in plan.steps().iter().zip(rank_of) {
            if rank == u32::MAX {
                continue;
            }
            for input in &step.inputs {
                readers[input.index()].push(rank);
            }
            // The receive reads what is sent.
            if let StepKind::Receive(transfer) = step.kind
                && let Some(sent) = plan.transfers()[transfer.index()].sent
            {
                readers[sent.index()].push(rank);
            }
        }
        Self {
            program,
            shapes,
            block_of: vec![None; readers.len()],
            forwarded: vec![false; readers.len()],
            readers,
            regions: Vec::new(),
            ancestry,
            blocks: Vec::new(),
        }
    }

    fn add(&mut self, rank: u32, operation: &Operation) {
        for value in operation.outputs() {
            self.place(rank, operation, value);
        }
        let plan = &self.program.plan;
        let step = plan.step(operation.step);
        let sent = match step.kind {
            StepKind::Receive(transfer) => plan.transfers()[transfer.index()].sent,
            _ => None,
        };
        for value in step.inputs.iter().chain(&sent) {
            self.leave(value.index());
        }
        for value in operation.outputs() {
            self.leave(value);
        }
    }

    /// Assigns a place to an output: a new one, or that of the forwarded input.
    fn place(&mut self, rank: u32, operation: &Operation, value: usize) {
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
